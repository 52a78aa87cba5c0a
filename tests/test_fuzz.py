"""scripts/fuzz.py: a short run of random models, what it makes of faults, and what it has found before."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzz
import fuzz_check
import fuzz_graphs
import numpy as np
import onnx
import pytest
from fuzz_pool import Job, run_shards

from onnxfuse.program import lowering


@pytest.mark.filterwarnings("ignore")
def test_a_fault_is_found_shrunk_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lowering._LOWERINGS, "Max", lambda node: node.fold("min"))
    result = fuzz_graphs.run_seeds(range(1, 60), lambda seed: None, {"reproducers": str(tmp_path)})
    assert result["failures"]
    saved = sorted(tmp_path.glob("*.onnx"))
    assert len(saved) == len(result["failures"])
    for path, failure in zip(saved, sorted(result["failures"], key=lambda line: line.split(",")[0]), strict=False):
        model = onnx.load(path)
        assert len(model.graph.node) <= 3, onnx.printer.to_text(model)
        assert any(node.op_type == "Max" for node in model.graph.node)
        feeds = dict(np.load(path.with_suffix(".npz")))
        assert set(feeds) == {info.name for info in model.graph.input} - {
            tensor.name for tensor in model.graph.initializer
        }
        assert "output" in failure


def crash(numbers: range, begin: Callable[[int], None], request: Any) -> dict[str, Any]:
    """What a worker of the next test runs: it dies at number 7."""
    for number in numbers:
        begin(number)
        if number == 7:
            os.kill(os.getpid(), signal.SIGSEGV)
    return {"first": numbers.start}


def test_a_process_that_dies_is_reported_and_the_rest_goes_on() -> None:
    shards = list(run_shards(Job(__name__, "crash", None), iter([range(5), range(5, 10)]), 1, None))
    assert [shard.lost for shard in shards] == [[], [(7, "the process was ended by SIGSEGV")]]
    assert [result["first"] for shard in shards for result in shard.results] == [0, 8]


def test_a_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fuzz.py", "graphs", "--seed", "1", "--count", "2", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    assert fuzz.main() == 0
    log = tmp_path / "graphs" / "shards.jsonl"
    first = log.read_text()
    assert json.loads(first)["counts"]["graphs"] == 2
    capsys.readouterr()
    assert fuzz.main() == 0
    assert log.read_text() == first
    assert capsys.readouterr().out.startswith("2 graphs of ")


# --- what was found: each model failed once ---

Inputs = dict[str, Any]


def verdict_of(text: str, inputs: Inputs, pipeline: str) -> fuzz_check.Verdict:
    model = onnx.parser.parse_model(text)
    types = {info.name: info.type.tensor_type.elem_type for info in model.graph.input}
    feeds = {
        name: np.asarray(value).astype(onnx.helper.tensor_dtype_to_np_dtype(types[name]))
        for name, value in inputs.items()
    }
    return fuzz_check.check(model, [feeds], pipeline)


HEADER = '<ir_version: 10, opset_import: ["" : {}]> '
FOUND: dict[str, tuple[int, str, Inputs]] = {
    "a vector along an axis, beside a value of more dimensions": (
        17,
        """g (float[2,3] x, bool[1,2,3] c) => (float[p,q] y, float[r,s,t] z)
        <float[3] s = {1.5, 2, 3}, float[3] b = {0.5, 1, -1}, float[3] mean = {1, 0, 2}, float[3] var = {1, 2, 3}>
        { a = Neg (x) y = BatchNormalization (a, s, b, mean, var) z = Where (c, a, y) }""",
        {"x": [[1, 2, 3], [4, 5, 6]], "c": [[[True, False, True], [False, True, False]]]},
    ),
    "a scale of one element for a scalar": (
        10,
        "g (int32 x) => (float y) <float[1] s = {0.25}> { a = DequantizeLinear (x, s) y = Softsign (a) }",
        {"x": 16},
    ),
    "a constant integer in a function's body of opset 8": (
        8,
        "g (int32[n] x) => (int32[n] y) <int32 two = {2}> { a = Add (x, two) y = Mul (a, two) }",
        {"x": [1, 2, 3]},
    ),
    "two constants of one element whose rank is the result's": (
        16,
        """g (uint64[1] x) => (uint64[n] y, int64[m] z) <int64[1] one = {1}>
        { s = Shape (x) z = Mul (s, one) y = Reshape (x, z) }""",
        {"x": [9]},
    ),
    "a bound of Clip that is NaN": (
        17,
        "g (float[n] x, float high) => (float[n] y) <float low = {1}> { a = Neg (x) y = Clip (a, low, high) }",
        {"x": [-3, 0.5], "high": np.nan},
    ),
    "HardSwish of double, whose sixth is that of float": (
        18,
        "g (double[n] x) => (double[n] y) { a = Neg (x) y = HardSwish (a) }",
        {"x": [-1, 0.3, 2.9]},
    ),
    "a default of an attribute, beside double": (
        15,
        """g (double[1,2] x) => (double[p,q] y)
        <double[2] s = {1.5, 2}, double[2] b = {0.5, 1}, double[2] mean = {1, 0}, double[2] var = {1e-7, 1e-9}>
        { a = Neg (x) y = BatchNormalization (a, s, b, mean, var) }""",
        {"x": [[1, 2]]},
    ),
    "no bounds of Clip of 16-bit floats, in an old opset": (
        8,
        "g (float16[n] x) => (float16[n] y) { a = Neg (x) y = Clip (a) }",
        {"x": [np.inf, -np.inf, 1]},
    ),
}


@pytest.mark.parametrize("pipeline", fuzz_check.PIPELINES)
@pytest.mark.parametrize("found", FOUND)
def test_found(found: str, pipeline: str) -> None:
    opset, text, inputs = FOUND[found]
    verdict = verdict_of(HEADER.format(opset) + text, inputs, pipeline)
    if verdict.outcome == fuzz_check.NOT_RUN:
        pytest.skip(f"ONNX Runtime does not run it: {verdict.reason}")
    assert verdict.outcome == fuzz_check.SAME, verdict.reason
