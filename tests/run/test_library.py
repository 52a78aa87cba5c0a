"""A library that is not that of the Python package is refused."""

from pathlib import Path

import pytest

import onnxfuse
from onnxfuse.errors import OnnxfuseError
from onnxfuse.run import library


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxfuse, "__version__", "9.9.9")
    with pytest.raises(
        OnnxfuseError, match=r"is of \d+\.\d+\.\d+, the Python package of 9\.9\.9: install onnxfuse again$"
    ):
        library.custom_ops_library.__wrapped__()


def test_another_kind_of_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "lib" / Path(library.custom_ops_library()).name
    path.parent.mkdir()
    path.write_bytes(b"\x7fELF of another machine")
    monkeypatch.setattr(
        library.importlib.util, "find_spec", lambda name: type("", (), {"submodule_search_locations": [tmp_path]})
    )
    with pytest.raises(OnnxfuseError, match=r"cannot be loaded here .*: install onnxfuse for this machine$"):
        library.custom_ops_library.__wrapped__()
