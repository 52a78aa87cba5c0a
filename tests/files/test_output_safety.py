"""What a file that is written must never replace: the files of the input; and that no FIFO is read."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.cli.cli import main
from onnxfuse.cuda.conv.tunings import read_tunings
from onnxfuse.errors import OnnxfuseError
from onnxfuse.files import model_io
from onnxfuse.report.report_file import ReportFile

TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 512] x) => (float[n, 512] y) {
    a = Mul(x, w)
    b = Relu(a)
    y = Add(b, x)
}"""


def external_model(path: Path, data: str) -> Path:
    """A model with its weights in the file ``data`` beside it."""
    proto = onnx.parser.parse_model(TEXT)
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(512, dtype=np.float32), "w"))
    onnx.save(proto, path, save_as_external_data=True, location=data, size_threshold=0)
    return path


def snapshot(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("options", [[], ["--overwrite"]])
@pytest.mark.parametrize(
    ("model", "data", "output", "message"),
    [
        ("ext.onnx", "weights.bin", "weights.bin", "weights.bin: it holds data of the input model"),
        ("ext.onnx", "weights.bin", "link", "link: it holds data of the input model"),
        ("q.onnx.data", "weights.bin", "q.onnx", "q.onnx.data, which is the input model"),
        ("ext.onnx", "out.onnx.data", "out.onnx", "out.onnx.data, which belongs to the input model"),
    ],
)
def test_an_output_replaces_no_file_of_the_input(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    model: str,
    data: str,
    output: str,
    message: str,
) -> None:
    source = external_model(tmp_path / model, data)
    (tmp_path / "link").symlink_to(data)
    before = snapshot(tmp_path)
    assert main(["optimize", str(source), str(tmp_path / output), *options]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1, "it is refused before any work is done"
    loaded = model_io.load(source)
    with pytest.raises(OnnxfuseError, match=message):
        model_io.save(loaded, tmp_path / output, overwrite=bool(options))
    assert snapshot(tmp_path) == before


def test_data_that_the_output_has_no_use_for_is_not_replaced_either(tmp_path: Path) -> None:
    source = external_model(tmp_path / "in.onnx", "out.onnx.data")
    other = model_io.load(external_model(tmp_path / "other.onnx", "more.bin"))
    before = snapshot(tmp_path)
    with pytest.raises(OnnxfuseError, match="belongs to the input model"):
        model_io.save(other, tmp_path / "out.onnx", source=source)
    assert snapshot(tmp_path) == before


def test_a_model_without_data_may_lie_beside_anything(tmp_path: Path) -> None:
    source = tmp_path / "out.onnx.data"
    onnx.save(onnx.load(external_model(tmp_path / "ext.onnx", "weights.bin")), source)
    before = source.read_bytes()
    assert main(["optimize", str(source), str(tmp_path / "out.onnx"), "--no-check"]) == 0
    assert source.read_bytes() == before


@pytest.mark.parametrize("data", ["weights.bin", "in.onnx.data"])
def test_a_model_and_its_own_data_may_be_overwritten(tmp_path: Path, data: str) -> None:
    source = external_model(tmp_path / "in.onnx", data)
    assert main(["optimize", str(source), str(source), "--overwrite", "--no-check"]) == 0
    np.testing.assert_array_equal(
        numpy_helper.to_array(onnx.load(source).graph.initializer[0]).ravel(), np.arange(512, dtype=np.float32)
    )


def test_a_report_replaces_no_data_of_the_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = external_model(tmp_path / "ext.onnx", "weights.json")
    (tmp_path / "link.json").symlink_to("weights.json")
    before = snapshot(tmp_path)
    for name in ("weights.json", "link.json"):
        arguments = [str(source), str(tmp_path / "o.onnx"), "--report", str(tmp_path / name)]
        assert main(["optimize", *arguments]) == 2
        error = capsys.readouterr().err
        assert f"over {tmp_path / name}, which holds data of a model" in error and error.count("\n") == 1
        assert snapshot(tmp_path) == before
    (tmp_path / "old.json").write_text("old")
    with ReportFile(tmp_path / "old.json", source, tmp_path / "old.json.onnx"):
        pass


def test_a_tuning_file_that_is_a_fifo_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = external_model(tmp_path / "in.onnx", "weights.bin")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OnnxfuseError, match="fifo is not a regular file"):
        read_tunings(tmp_path / "fifo")
    arguments = [str(source), str(tmp_path / "o.onnx"), "--target", "cuda", "--tuning", str(tmp_path / "fifo")]
    assert main(["optimize", *arguments]) == 2
    assert "fifo is not a regular file" in capsys.readouterr().err
