"""What the parity check takes of memory besides the values that the models take and give."""

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.check import parity
from onnxfuse.check.comparison import compare_values
from onnxfuse.check.made_up_inputs import generate, make_inputs
from onnxfuse.check.numerics import reads_computed_constants
from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.inputs import InputSpec
from onnxfuse.run.sessions import Session, Value
from tests.support.parity_models import save


def peak_bytes(work: Callable[[], object]) -> int:
    """How much more memory there is in use at a time while ``work`` runs, its result included."""
    tracemalloc.start()
    try:
        kept = work()
        assert kept is not None
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_large_outputs_are_compared_in_a_fraction_of_their_size() -> None:
    expected = np.random.default_rng(0).normal(size=(1 << 12, 1 << 10)).astype(np.float32)
    actual = expected.copy()
    actual[-1, -1] += 1
    actual[7, 7] = np.nan
    assert peak_bytes(lambda: compare_values("y", expected, actual)) < 3 * expected.nbytes
    found = compare_values("y", expected, actual)
    assert found.reason == "NaN in 1 other places of 4194304" and found.max_abs == pytest.approx(1)


@pytest.mark.parametrize("dtype", [TensorProto.UINT8, TensorProto.BOOL, TensorProto.FLOAT16, TensorProto.FLOAT])
def test_large_inputs_are_made_in_little_more_than_their_size(dtype: int) -> None:
    spec = InputSpec("x", dtype, (1, 1 << 12, 1 << 12))
    size = spec.dtype.itemsize << 24
    made = peak_bytes(lambda: make_inputs([spec], {"x": (1, 1 << 12, 1 << 12)}, "normal", 16))
    assert size <= made < size + (24 << 20)


def test_inputs_that_would_fill_the_memory_are_refused_or_made_once() -> None:
    specs = [InputSpec(name, TensorProto.UINT8, (1 << 25, size)) for name, size in (("x", 48), ("y", 49))]
    with pytest.raises(OnnxfuseError, match=r"y: uint8\[33554432, 49\] .* larger than 2 GiB"):
        next(generate(specs, lambda feeds: [], {}))
    spec = InputSpec("x", TensorProto.BOOL, ((1 << 25) + 1,))
    assert [inputs.label for inputs, _ in generate([spec], lambda feeds: [], {})] == ["normal values"]
    huge = np.broadcast_to(np.float32(0), (1 << 26,))
    small = InputSpec("x", TensorProto.FLOAT, (2,))
    assert len(list(generate([small], lambda feeds: [huge], {}))) == 1
    assert len(list(generate([small], lambda feeds: [huge[:2]], {}))) == 3


# --- sessions that take less memory ---


def _large(folder: Path, size: int, layers: int = 1) -> Path:
    """Products by matrices of ``size`` rows and columns, each with a sum and a Tanh, which make fused nodes."""
    generator = np.random.default_rng(0)
    values = [generator.normal(0, size**-0.5, (size, size)).astype(np.float32) for _ in range(layers)]
    weights = [numpy_helper.from_array(value, f"w{layer}") for layer, value in enumerate(values)]
    weights.append(numpy_helper.from_array(generator.normal(size=size).astype(np.float32), "bias"))
    nodes = []
    for layer in range(layers):
        nodes.append(helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"p{layer}"]))
        nodes.append(helper.make_node("Add", [f"p{layer}", "bias"], [f"s{layer}"]))
        nodes.append(helper.make_node("Tanh", [f"s{layer}"], [f"x{layer + 1}"]))
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [8, size])],
        [helper.make_tensor_value_info(f"x{layers}", TensorProto.FLOAT, [8, size])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return save(model, folder / "large.onnx")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, onnx.ModelProto]:
    """A model whose weights a lean session does not fold, and the same fused."""
    original = _large(tmp_path_factory.mktemp("large"), 512)
    fused = onnxfuse.optimize(original, check=False).model
    assert [node.op_type.startswith("FusedMatMul") for node in fused.graph.node] == [True]
    assert {"Transpose", "Tanh"} <= {node.op_type for node in fused.functions[0].node}
    return original, fused


def _copied(fused: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(fused)
    return copy


def _failing(result: parity.ParityResult) -> list[bool]:
    """Of each run whose outputs differ, whether it was one with the library."""
    return [found.library for found in result.sets if not all(output.ok for output in found.outputs)]


def test_a_wrong_body_of_a_function_is_found(large: tuple[Path, onnx.ModelProto], tmp_path: Path) -> None:
    original, fused = large
    wrong = _copied(fused)
    next(node for node in wrong.functions[0].node if node.op_type == "Tanh").op_type = "Erf"
    assert _failing(parity.compare(original, save(wrong, tmp_path / "a.onnx"))) == [False] * 3


def test_a_wrong_kernel_is_found(large: tuple[Path, onnx.ModelProto], tmp_path: Path) -> None:
    original, fused = large
    wrong = _copied(fused)
    program = next(item for item in wrong.graph.node[0].attribute if item.name == "program")
    assert b"\nadd " in program.s
    program.s = program.s.replace(b"\nadd ", b"\nsub ")
    assert _failing(parity.compare(original, save(wrong, tmp_path / "a.onnx"))) == [True] * 3


def test_what_differs_in_a_lean_session_alone_counts_as_in_another(
    large: tuple[Path, onnx.ModelProto], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, fused = large
    made: list[tuple[bool, bool]] = []

    class Off(Session):
        def __init__(self, path: Path, **settings: Any) -> None:
            super().__init__(path, **settings)
            made.append((settings.get("library", False), settings.get("lean", False)))

        def run(self, feeds: dict[str, Value], names: list[str] | None = None) -> list[Value]:
            return [value + np.float32(made[-1] == (False, True)) for value in super().run(feeds, names)]

    monkeypatch.setattr(parity, "Session", Off)
    assert parity.compare(original, save(fused, tmp_path / "a.onnx")).ok
    assert made[:3] == [(False, False), (True, True), (False, True)]
    assert made[-2:] == [(True, False), (False, False)]


def test_a_constant_that_a_fused_node_reads_is_computed_as_users_have_it() -> None:
    def reads(*nodes: onnx.NodeProto, inputs: tuple[str, ...] = ()) -> bool:
        weights = numpy_helper.from_array(np.ones((2, 2), np.float32), "w")
        given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in inputs]
        return reads_computed_constants(helper.make_model(helper.make_graph(nodes, "g", given, [], [weights])))

    turned = helper.make_node("Transpose", ["w"], ["t"])
    fused = helper.make_node("Fused", ["x", "t"], ["y"], domain="onnxfuse")
    assert reads(turned, fused)
    assert not reads(turned, fused, inputs=("w",))  # of which a run may be given another
    assert not reads(helper.make_node("Fused", ["x", "w"], ["y"], domain="onnxfuse"), turned)
    body = helper.make_graph([fused], "body", [], [])
    assert reads(turned, helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body))


_PEAK = """
import sys
import onnxfuse

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) << 10

onnxfuse.optimize(sys.argv[1])  # whatever is loaded only once
before = peak()
onnxfuse.optimize(sys.argv[2], output=sys.argv[3])
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="it tells the peak")
def test_the_check_takes_no_more_than_two_and_a_half_times_the_file(
    large: tuple[Path, onnx.ModelProto], tmp_path: Path
) -> None:
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 27):
        pytest.skip("this ONNX Runtime computes all constants before the first run")
    model = _large(tmp_path, 2048, layers=4)
    command = [sys.executable, "-P", "-c", _PEAK, large[0], model, tmp_path / "fused.onnx"]
    added = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert added < 2.5 * model.stat().st_size
