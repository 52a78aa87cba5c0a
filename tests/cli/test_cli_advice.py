"""What the command line advises: on what was mistyped, and on the machine."""

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

import onnxfuse
from onnxfuse import doctor
from onnxfuse.cli.cli import main
from onnxfuse.errors import OnnxfuseError
from tests.support.model_files import write

MODEL = '<ir_version: 9, opset_import: ["" : 17]> g (float[{}] x) => (float[{}] y) {{ a = Exp(x) y = Mul(a, x) }}'


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["optimise", "a", "b"], "did you mean 'optimize'?"),
        (["zoo", "fecth", "a"], "did you mean 'fetch'?"),
        (["optimize", "a", "b", "--no-benhc"], "did you mean '--no-bench'?"),
        (["bench", "a", "b", "--input=c"], "did you mean '--inputs'?"),
        (["optimize", "a", "b", "--passes", "fuse-elementwis"], "did you mean 'fuse-elementwise'?"),
    ],
)
def test_what_was_meant(arguments: list[str], advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert advice in line


def test_short_words_look_like_too_many_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "a", "b", "--target", "gpu"]) == 2
    assert "no 'gpu'; there are auto, cpu, cuda" in capsys.readouterr().err


def test_a_static_model_may_be_made_static() -> None:
    result = onnxfuse.optimize(parser.parse_model(MODEL.format("2, 3", "2, 3")), "cpu", static=True, check=False)
    assert [node.op_type.partition("_")[0] for node in result.model.graph.node] == ["FusedElementwise"]
    with pytest.raises(OnnxfuseError, match="needs the shapes"):
        onnxfuse.optimize(parser.parse_model(MODEL.format("n, 3", "n, 3")), "cpu", static=True, check=False)


def test_models_are_timed_on_given_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "m.onnx", parser.parse_model(MODEL.format("n, 3", "n, 3")))
    np.savez(tmp_path / "x.npz", x=np.zeros((7, 3), np.float32))
    times = ["bench", str(path), str(path), "--seconds", "0.2", "--inputs"]
    assert main([*times, str(tmp_path / "x.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"] == {"x": [7, 3]}
    np.savez(tmp_path / "x.npz", x=np.zeros((7, 4), np.float32))
    assert main([*times, str(tmp_path / "x.npz")]) == 2


def test_doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ONNXFUSE_ISA", "baseline")
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["a fused model"] == "runs, and is right" and found["environment ONNXFUSE_ISA"] == "baseline"
    assert {"onnxfuse", "Python", "processor", "onnxruntime", "providers", "native library", "GPUs"} <= found.keys()


def test_doctor_without_the_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> str:
        raise OnnxfuseError("it is not in the installed package")

    monkeypatch.setattr(doctor, "custom_ops_library", missing)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("missing to run fused nodes ") and "not in the installed" in line for line in lines)
