"""Fixtures for all tests: real models of the manifest, and the modules under scripts/ and tools/."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

from onnxfuse.zoo.fetching import fetch
from onnxfuse.zoo.manifest import FetchError, StoredModel, read_manifest
from tests.support import sampling, versions

os.environ["ONNXFUSE_NO_BENCH"] = "1"  # `optimize` times its result where a test asks for that alone

# A test that is slow once, on a machine with other work, is not wrong, and does the same in every run: what is random
# from run to run is scripts/fuzz.py.
settings.register_profile("onnxfuse", deadline=None, derandomize=True)
settings.load_profile("onnxfuse")


def pytest_addoption(parser: pytest.Parser) -> None:
    sampling.add_options(parser)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    sampling.sample(config, items)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return sampling.is_left_out(collection_path, config) or None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left_out := sampling.summary(config):
        terminalreporter.write_line(left_out)
    if versions.others():
        terminalreporter.write_line(f"versions that are not those of tests/constraints.txt: {versions.describe()}")


@pytest.fixture(scope="session")
def manifest() -> dict[str, StoredModel]:
    """Every model of models/manifest.toml by name."""
    return read_manifest()


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """Gives the file of a model of the manifest; skips the test where it cannot be had.

    That is on a machine that cannot download, and of a model in the package onnx with another version of that.
    """

    def get(name: str) -> Path:
        try:
            return fetch(name)
        except FetchError as error:
            if "cannot download" in str(error) or ("the installed onnx" in str(error) and "onnx" in versions.others()):
                pytest.skip(str(error))
            raise

    return get


@pytest.fixture
def breaking_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only pass is ``mine``, as a user's, and raises ``ValueError: no such thing``."""

    class Mine:
        name = "mine"
        description = "breaks"

        def run(self, loaded: object, context: object) -> None:
            raise ValueError("no such thing")

    monkeypatch.setattr("onnxfuse.targets.request.resolve", lambda names: [Mine()])
