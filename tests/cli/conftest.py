"""A model for all tests of the command line."""

from pathlib import Path

import pytest

from tests.support.parity_models import chain, save


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(chain(), tmp_path / "model.onnx")
