"""What the tools that come with onnx and ONNX Runtime do with an optimized file: what docs/tools.md says."""

from pathlib import Path

import other_tools
import pytest

import onnxfuse


@pytest.mark.parametrize("name", other_tools.TOOLS)
def test_the_page_says_what_the_tool_does(name: str, tmp_path: Path) -> None:
    row = other_tools.row(name, tmp_path)
    if row is None:
        pytest.skip("the tool is not installed")
    assert row in other_tools.PAGE.read_text(encoding="utf-8").splitlines()


def test_a_second_time_the_file_is_the_same(tmp_path: Path) -> None:
    onnxfuse.optimize(other_tools.model(), output=tmp_path / "once.onnx", check=False)
    onnxfuse.optimize(tmp_path / "once.onnx", output=tmp_path / "twice.onnx", check=False)
    assert (tmp_path / "twice.onnx").read_bytes() == (tmp_path / "once.onnx").read_bytes()
