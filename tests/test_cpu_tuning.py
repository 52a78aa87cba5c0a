"""``optimize --tune`` for the CPU: the fastest choice of convolutions is taken, and the model stays the same model."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxfuse
from onnxfuse import cpu_tuning
from onnxfuse.cli.cli import main
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.choices import ConvPolicy

AUTO, ALL, NONE = ConvPolicy.AUTO, ConvPolicy.ALL, ConvPolicy.NONE


def _model(op: str = "Conv", channels: int = 64) -> onnx.ModelProto:
    """A convolution, which the estimate leaves to ONNX Runtime, or another node; and Relu behind it."""
    weights = np.random.default_rng(0).normal(size=(channels, channels, 3, 3)).astype(np.float32)
    convolves = op == "Conv"
    attributes = {"pads": [1] * 4} if convolves else {}
    first = helper.make_node(op, ["x", "w"] if convolves else ["x"], ["y"], **attributes)
    nodes = [first, helper.make_node("Relu", ["y"], ["z"])]
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", channels, 16, 16]) for n in ("x", "z")]
    constants = [numpy_helper.from_array(weights, "w")] if convolves else []
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _own(model: onnx.ModelProto) -> int:
    """How many convolutions are the library's, in whichever layout is the faster one on this machine."""
    return sum(node.op_type.startswith(("FusedConv", "FusedNhwcConv")) for node in model.graph.node)


def _pretend(monkeypatch: pytest.MonkeyPatch, times: dict[ConvPolicy, float], spread: float) -> None:
    """Every run takes these times, up to a ``spread``, at random, relative to them."""
    random = np.random.default_rng(0)
    monkeypatch.setattr(
        cpu_tuning,
        "_time_in_turns",
        lambda sessions, _inputs: {policy: times[policy] * random.uniform(1, 1 + spread, 12) for policy in sessions},
    )


@pytest.mark.parametrize(
    ("times", "spread", "own"),
    [
        ({AUTO: 1.0, ALL: 0.9, NONE: 1.0}, 0.02, 1),
        ({AUTO: 1.0, ALL: 0.995, NONE: 1.0}, 0.0, 0),  # too little to leave the estimate for
        ({AUTO: 1.0, ALL: 0.95, NONE: 1.0}, 1.0, 0),  # may be chance
        ({AUTO: 1.0, ALL: 1.1, NONE: 1.0}, 0.02, 0),
    ],
)
def test_the_fastest_choice_is_taken(
    times: dict[ConvPolicy, float], spread: float, own: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend(monkeypatch, times, spread)
    result = onnxfuse.optimize(_model(), "cpu", tune=True)
    assert _own(result.model) == own
    assert result.report.parity is not None and result.report.parity.ok
    assert re.search(r"all \d\.\d\d \(\d\.\d\d to \d\.\d\d\)", result.report.tuned)
    reasons = {choice.reason for choice in result.report.convolutions}
    assert ("the model was measured to be faster so" in reasons) == (own == 1)


def test_what_is_measured_are_the_models_of_each_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu_tuning, "SECONDS", 0.0)
    monkeypatch.setattr(cpu_tuning, "TURN_SECONDS", 0.0)
    onnx.save(_model(), tmp_path / "in.onnx")
    made: dict[ConvPolicy, int] = {}

    def make(policy: ConvPolicy, path: Path) -> None:
        result = onnxfuse.optimize(tmp_path / "in.onnx", "cpu", conv=policy.value, check=False, output=path)
        made[policy] = _own(result.model)

    tuned = cpu_tuning.tune(make, tmp_path, {}, None, lambda _message: None)
    assert made == {AUTO: 0, ALL: 1, NONE: 0}
    assert set(tuned.ratios) == {ALL}  # the model without is the estimate's own
    assert all(0.001 < number < 1000 for number in tuned.ratios[ALL])


def test_from_the_command_line_with_inputs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cpu_tuning, "SECONDS", 0.0)
    monkeypatch.setattr(cpu_tuning, "TURN_SECONDS", 0.0)
    onnx.save(_model(), tmp_path / "in.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((3, 64, 16, 16), np.float32))
    files = [str(tmp_path / name) for name in ("in.onnx", "out.onnx", "x.npz", "r.json")]
    assert main(["optimize", *files[:2], "--target", "cpu", "--tune", "--inputs", files[2], "--report", files[3]]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Tuned: --conv " in shown
    assert json.loads(Path(files[3]).read_text(encoding="utf-8"))["tuned"] in shown


def test_a_model_without_convolutions_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_tuning, "_time_in_turns", lambda *_arguments: pytest.fail("there is nothing to choose"))
    report = onnxfuse.optimize(_model("Softsign"), "cpu", tune=True).report
    assert report.tuned == "Nothing to tune: no choice of convolutions changes the model."


def test_what_was_asked_for_is_not_tuned() -> None:
    with pytest.raises(OnnxfuseError, match="the choice of convolutions is tuned, and 'all' was asked for"):
        onnxfuse.optimize(_model(), "cpu", tune=True, conv="all")


def test_inputs_that_do_not_fit_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(_model(), tmp_path / "in.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((3, 7, 16, 16), np.float32))
    files = [str(tmp_path / name) for name in ("in.onnx", "out.onnx", "x.npz")]
    assert main(["optimize", *files[:2], "--target", "cpu", "--tune", "--inputs", files[2]]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("onnxfuse: error: ")
    assert not (tmp_path / "out.onnx").exists()
