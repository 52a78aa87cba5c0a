"""scripts/fuzz.py: a short run of random models, what it makes of faults, and what it has found before."""

import json
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from random import Random
from typing import Any

import fuzz
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onnxfuse.cli import cli
from onnxfuse.program import Program, ProgramError, lowering
from onnxfuse.run.sessions import Session
from tests.check.test_float64_reference import HALVES, NORMALIZED, SIGNATURE, SQUARES, parsed
from tools.fuzz import bytes as fuzz_bytes
from tools.fuzz import check as fuzz_check
from tools.fuzz import graphs as fuzz_graphs
from tools.fuzz import nnsmith_models as fuzz_nnsmith
from tools.fuzz import sessions as fuzz_sessions
from tools.fuzz import shrink as fuzz_shrink
from tools.fuzz import slack as fuzz_slack
from tools.fuzz.kernels import models as fuzz_kernels
from tools.fuzz.models import random_model
from tools.fuzz.pool import Job, run_shards

ROOT = Path(__file__).resolve().parents[2]


class Checker:
    """fuzz_check.check in a process of its own, for ONNX Runtime aborts on a model now and then."""

    def __init__(self) -> None:
        self._executor = self._new()

    def check(self, model: onnx.ModelProto, feeds: list[fuzz_shrink.Feeds], pipeline: str) -> fuzz_check.Verdict:
        """The verdict: not run if the process ends on the original too, failed if it ends on what we make of it."""
        try:
            return self._executor.submit(fuzz_check.check, model, feeds, pipeline).result()
        except BrokenProcessPool:
            self._executor = self._new()
        try:
            self._executor.submit(fuzz_check.run_original, model, feeds, pipeline).result()
        except BrokenProcessPool:
            self._executor = self._new()
            return fuzz_check.Verdict(fuzz_check.NOT_RUN, "ONNX Runtime ends the process")
        return fuzz_check.Verdict(fuzz_check.FAILED, "it ends the process")

    def close(self) -> None:
        self._executor.shutdown()

    @staticmethod
    def _new() -> ProcessPoolExecutor:
        """An executor whose process is there: it finds the installed package before that of the checkout."""
        executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        with pytest.MonkeyPatch.context() as patch:
            others = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
            patch.setattr("sys.path", [*others, str(ROOT)])
            executor.submit(os.getpid).result()
        return executor


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    made = Checker()
    yield made
    made.close()


@pytest.mark.parametrize("pipeline", fuzz_check.PIPELINES)
def test_random_models(pipeline: str, checker: Checker) -> None:
    @settings(max_examples=100, database=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(), st.booleans())
    def run(choose: Random, exact: bool) -> None:
        made = random_model(choose, max_nodes=30, exact=exact)
        verdict = checker.check(made.model, [made.feeds, made.resized], pipeline)
        assert verdict.outcome not in (fuzz_check.FAILED, fuzz_check.UNJUDGED), verdict.reason

    run()


@pytest.mark.parametrize("kind", fuzz_kernels.EMITTERS)
def test_random_operators_with_kernels(kind: str, checker: Checker) -> None:
    for seed, pipeline in enumerate((fuzz_check.EVERYTHING, *fuzz_check.REWRITING)):
        model, feeds = fuzz_kernels.random_kernels(Random(seed), [kind])
        verdict = checker.check(model, [feeds], pipeline)
        assert verdict.outcome not in (fuzz_check.FAILED, fuzz_check.UNJUDGED), f"seed {seed}: {verdict.reason}"


def abort(*arguments: object) -> None:
    """What ONNX Runtime does where an assertion of its own fails."""
    os.abort()


@pytest.mark.parametrize(
    ("dies", "outcome"), [("check", fuzz_check.FAILED), ("run_original", fuzz_check.NOT_RUN), ("", fuzz_check.SAME)]
)
def test_a_process_that_ends_fails_unless_it_does_on_the_original(
    dies: str, outcome: str, checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = random_model(Random(1), max_nodes=3, exact=True)
    if dies:
        monkeypatch.setattr(fuzz_check, "check", abort)
    if dies == "run_original":
        monkeypatch.setattr(fuzz_check, "run_original", abort)
    assert checker.check(made.model, [made.feeds], "fuse").outcome == outcome


@pytest.mark.filterwarnings("ignore")
def test_nearly_all_models_run_and_are_fused_and_compared_to_the_last_bit(tmp_path: Path) -> None:
    result = fuzz_graphs.run_seeds(range(10_000, 10_150), lambda seed: None, {"reproducers": str(tmp_path)})
    assert not result["failures"]
    counts = result["counts"]
    assert counts[fuzz_check.SAME] >= 130
    assert counts["fused"] > 150
    assert counts["exact"] > 80
    assert counts["command line"] > 0
    assert len(result["operators"]) > 80


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


def test_a_process_that_dies_is_reported_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)  # processes that it starts import this module
    shards = list(run_shards(Job(__name__, "crash", None), iter([range(5), range(5, 10)]), 1, None))
    assert [shard.lost for shard in shards] == [[], [(7, "the process was ended by SIGSEGV")]]
    assert [result["first"] for shard in shards for result in shard.results] == [0, 8]


def test_processes_that_die_before_they_begin_are_reported() -> None:
    shards = list(run_shards(Job("no_such_module", "run", None), iter([range(3, 5)]), 1, None))
    assert [shard.lost for shard in shards] == [[(number, "the process ended with status 1") for number in (3, 4)]]


def test_a_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fuzz.py", "graphs", "--seed", "1", "--count", "2", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    # The processes that it starts take the installed package, as the tests do, and not the source tree.
    monkeypatch.setattr("sys.path", [*(entry for entry in sys.path if Path(entry).resolve() != ROOT), str(ROOT)])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert fuzz.main() == 0
    log = tmp_path / "graphs" / "shards.jsonl"
    first = log.read_text()
    assert json.loads(first)["counts"]["graphs"] == 2
    capsys.readouterr()
    assert fuzz.main() == 0
    assert log.read_text() == first
    assert capsys.readouterr().out.startswith("2 graphs of ")


NNSMITH = """
import json, os, sys
import numpy as np, onnx
for line in sys.stdin:
    request = json.loads(line)
    if request["seed"] == 2:
        os._exit(3)
    if request["seed"] == 4:
        print(json.dumps("NotImplementedError: no such model"), flush=True)
        continue
    text = '<ir_version: 7, opset_import: ["" : 14]> g (float[3] x) => (float[3] y) { a = Neg(x) y = Exp(a) }'
    onnx.save(onnx.parser.parse_model(text), request["model"])
    np.savez(request["inputs"], x=np.ones(3, np.float32))
    print(json.dumps(""), flush=True)
"""


def test_models_of_nnsmith_are_checked_and_those_that_it_does_not_make_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "generator.py"
    program.write_text(NNSMITH, encoding="utf-8")
    monkeypatch.setattr(fuzz_nnsmith, "_PROGRAM", program)
    request = {"reproducers": str(tmp_path), "python": sys.executable}
    begun: list[int] = []
    result = fuzz_nnsmith.run_seeds(range(6), begun.append, request)
    assert begun == list(range(6)) and not result["failures"]
    counts = result["counts"]
    assert (counts[fuzz_nnsmith.MADE], counts[fuzz_nnsmith.NOT_MADE]) == (4, 2)
    assert counts["graphs"] == counts[fuzz_check.SAME] == 8 and counts["fused"] >= 4
    assert counts["pipeline default"] == 4


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_end_in_a_result_or_one_line(tmp_path: Path) -> None:
    request = {"models": [], "own": False, "reproducers": str(tmp_path)}
    result = fuzz_bytes.run_cases(range(30), lambda number: None, request)
    assert not result["failures"]
    assert result["counts"]["files"] == 30
    assert result["counts"]["optimize status 0"] > 0
    assert result["counts"]["optimize status 2"] > 0


@pytest.mark.parametrize("name", ["NODE", "OPERATOR", "TENSOR", "SYMBOL", "CONSTANT", "DOMAIN", "ATTRIBUTE", "GRAPH"])
def test_a_name_that_is_not_text(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "DOMAIN" : 1]>
        GRAPH (float[SYMBOL] x) => (float[SYMBOL] y) <float CONSTANT = {2}>
        { [NODE] TENSOR = DOMAIN.OPERATOR <ATTRIBUTE = 1> (x, CONSTANT) y = Neg (TENSOR) }"""
    path = tmp_path / "model.onnx"
    data = onnx.parser.parse_model(text).SerializeToString()
    path.write_bytes(data.replace(name.encode(), b"\xff" + name.encode()[1:]))
    for command in (["inspect", str(path)], ["check", str(path), str(path)]):
        assert cli.main(command) == 2
        assert capsys.readouterr().err.splitlines()[-1].endswith("it has a name that is not UTF-8")


@pytest.mark.parametrize(
    ("ended", "wrong"),
    [
        (fuzz_bytes.Ended(2, "reading the model\nonnxfuse: error: no\n", 100), ""),
        (fuzz_bytes.Ended(0, "reading the model\n", 100), ""),
        (fuzz_bytes.Ended(0, "", 100_000), "MB"),
        (fuzz_bytes.Ended(2, "onnxfuse: error: one\nonnxfuse: error: two\n", 100), "standard error"),
        (fuzz_bytes.Ended(2, "Traceback (most recent call last):\n", 100), "Traceback"),
        (fuzz_bytes.Ended(2, "onnxfuse: error: this is a bug in onnxfuse (KeyError)\n", 100), "KeyError"),
        (fuzz_bytes.Ended(3, "", 100), "status 3"),
        (fuzz_bytes.Ended(0, "free(): invalid pointer\n", 100), "unexpected"),
        (fuzz_bytes.Ended(None, "", 100), "not done"),
        (fuzz_bytes.Ended(-signal.SIGSEGV, "", 100), "SIGSEGV"),
    ],
    ids=lambda value: str(value),
)
def test_how_a_command_may_end(ended: fuzz_bytes.Ended, wrong: str) -> None:
    found = fuzz_bytes.judge(ended)
    assert wrong in found
    assert bool(found) == bool(wrong)


def test_a_changed_output_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ruin(command: list[str], _folder: Path) -> fuzz_bytes.Ended:
        if command[0] == "optimize":
            Path(command[2]).write_bytes(b"half a model")
        return fuzz_bytes.Ended(2, "onnxfuse: error: no\n", 100)

    monkeypatch.setattr(fuzz_bytes, "run_command", ruin)
    results = fuzz_bytes.run_case(b"", None, tmp_path, Counter())
    assert [failure for failure, _ in results] == ["", "optimize: the output was changed"]


def test_the_programs_of_the_native_run_are_valid_for_the_most_part() -> None:
    def is_valid(text: str) -> bool:
        try:
            return bool(Program.parse(text))
        except ProgramError:
            return False

    valid = sum(is_valid(fuzz_sessions.random_text(Random(seed))) for seed in range(300))
    assert 50 < valid < 250


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


@pytest.mark.parametrize(
    ("body", "outcome"), [(HALVES, fuzz_check.ILL_CONDITIONED), (SQUARES, fuzz_check.FAILED)], ids=["as far", "further"]
)
def test_float64_tells_what_is_ill_conditioned_from_what_is_wrong(
    body: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = (parsed(SIGNATURE, text) for text in (NORMALIZED, body))
    monkeypatch.setattr(fuzz_check, "optimize", lambda model, pipeline: other)
    monkeypatch.setattr(fuzz_slack, "unexplained", lambda *arguments: ["y"])
    feeds = {"x": np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)}
    verdict = fuzz_check.check(model, [feeds], "default")
    assert verdict.outcome == outcome
    assert "against float64 it is off by" in verdict.reason and verdict.reason.endswith("is nearer")


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


def test_what_onnx_runtime_itself_makes_of_infinite_weights_is_explained() -> None:
    """It multiplies the weights by the infinite scale, so that the sum becomes one of two infinities."""
    text = """g (float[1,2,1,1] x) => (float[1,1,1,1] y)
        <float[1,2,1,1] w = {1, -1}, float[1,1,1] s = {inf}> { c = Conv (x, w) y = Mul (c, s) }"""
    model = onnx.parser.parse_model(HEADER.format(17) + text)
    feeds = {"x": np.array([[[[1]], [[0.5]]]], np.float32)}
    rewritten = Session(model.SerializeToString(), threads=1, optimized=True).run(dict(feeds))[0]
    assert np.isnan(rewritten)
    for value, found in ((np.inf, []), (1, ["y"])):
        result = ("y", rewritten, np.full_like(rewritten, value), False)
        assert fuzz_slack.unexplained(model, feeds, [result], rewritten=True) == found


@pytest.mark.parametrize(("element", "found"), [(np.nan, []), (2, ["y"])])
def test_a_nan_that_is_hidden_from_the_greatest_is_explained_in_old_opsets(element: float, found: list[str]) -> None:
    text = "g (float[1,4] x) => (float[p,q] y) { a = ReduceMax (x) y = Clip <max = 1.0> (a) }"
    model = onnx.parser.parse_model(HEADER.format(10) + text)
    feeds = {"x": np.array([[0.5, element, 3, -1]], np.float32)}
    result = ("y", np.ones((1, 1), np.float32), np.full((1, 1), np.nan, np.float32), False)
    assert fuzz_slack.unexplained(model, feeds, [result], rewritten=True) == found


@pytest.mark.parametrize(
    ("row", "value", "found"),
    [
        ([0.0] * 7, 0.0, []),
        ([0.1] * 7, 0.0, []),
        ([0.1] * 7, 0.9, []),
        ([0.1] * 7, 3.5, ["y"]),
        ([1.0] * 6 + [np.nan], 0.0, ["y"]),
        ([1.0] * 6 + [np.inf], 0.0, ["y"]),
        ([np.inf] * 7, 0.0, ["y"]),
        ([1.0] * 6 + [2.0], 0.0, ["y"]),
    ],
)
@pytest.mark.parametrize("opset", [9, 13, 18])
def test_what_is_made_of_equal_elements_is_explained(
    row: list[float], value: float, found: list[str], opset: int
) -> None:
    """ONNX Runtime's MeanVarianceNormalization divides by their deviation as it is."""
    text = "g (float[n,7] x) => (float[n,7] y) { y = MeanVarianceNormalization <axes = [1]> (x) }"
    model = onnx.parser.parse_model(HEADER.format(opset) + text)
    feeds = {"x": np.array([row], np.float32)}
    (expected,) = Session(model.SerializeToString(), threads=1, optimized=False).run(dict(feeds))
    result = ("y", expected, np.full_like(expected, value), False)
    assert fuzz_slack.unexplained(model, feeds, [result], rewritten=True, attempts=4) == found


def test_what_is_made_of_equal_elements_that_nodes_make_is_explained() -> None:
    """Noise of the nodes before would leave no two of them equal."""
    text = """g (float[1,64] x) => (float[1,64] y)
        { a = Sub (x, x) b = Sqrt (a) c = MeanVarianceNormalization <axes = [1]> (b) y = Mish (c) }"""
    model = onnx.parser.parse_model(HEADER.format(18) + text)
    feeds = {"x": np.ones((1, 64), np.float32)}
    result = ("y", np.full((1, 64), np.nan, np.float32), np.zeros((1, 64), np.float32), False)
    assert fuzz_slack.unexplained(model, feeds, [result], rewritten=True) == []


@pytest.mark.parametrize(("sizes", "outcome"), [((3, 0), fuzz_check.EXPLAINED), ((1, 2), fuzz_check.NOT_RUN)])
def test_a_concat_that_fused_nodes_refuse_is_explained(sizes: tuple[int, int], outcome: str) -> None:
    text = "g (bool[2,k] x, bool[m,n] z) => (bool[p,q] y) { a = Not (x) y = Concat <axis = 0> (a, z) }"
    model = onnx.parser.parse_model(HEADER.format(17) + text)
    feeds = {"x": np.zeros((2, 5), np.bool_), "z": np.zeros(sizes, np.bool_)}
    assert fuzz_check.joins_what_is_refused(model, feeds) == (outcome == fuzz_check.EXPLAINED)
    assert fuzz_check.check(model, [feeds], fuzz_check.EVERYTHING).outcome == outcome
