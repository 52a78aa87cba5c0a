"""How far results of kernels that reduce are from those in float64: no more than twice as far as ONNX Runtime's own."""

from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from onnxfuse.cuda.nest.launch import choose
from onnxfuse.cuda.nest.layout import lay_out
from onnxfuse.cuda.nest.renderer import case_of, render_nest
from onnxfuse.program import Program, ProgramBuilder
from tests.cuda.emulation.emulator import Emulation
from tests.cuda.nest.emulator import MULTIPROCESSORS, run_kernel
from tests.cuda.nest.programs import chains

FACTOR = 2
EPSILON = 1e-5


def _reduced(op: str) -> Program:
    b = ProgramBuilder()
    return b.build([b.reduce(op, b.input("f32"), [-1])])


def _softmax(x: np.ndarray) -> np.ndarray:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _normalized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPSILON)


def _normalize() -> Program:
    b = ProgramBuilder()
    x = b.input("f32")
    centred = b.emit("sub", "f32", x, b.reduce("reduce_mean", x, (-1,)))
    variance = b.reduce("reduce_mean", b.emit("mul", "f32", centred, centred), (-1,))
    root = b.emit("sqrt", "f32", b.emit("add", "f32", variance, b.const("f32", EPSILON)))
    return b.build([b.emit("div", "f32", centred, root)])


Exact = Callable[[np.ndarray], np.ndarray]
CASES: dict[str, tuple[str, Program, Exact]] = {
    "sum": ("ReduceSum", _reduced("reduce_sum"), lambda x: x.sum(-1, keepdims=True)),
    "mean": ("ReduceMean", _reduced("reduce_mean"), lambda x: x.mean(-1, keepdims=True)),
    "log softmax": ("LogSoftmax", chains("f32")["log softmax"].program, _log_softmax),
    "layer norm": ("LayerNormalization", _normalize(), _normalized),
}
DATA: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "plain": lambda random, shape: random.standard_normal(shape),
    "cancelling": lambda random, shape: random.standard_normal(shape) * 10.0 ** random.uniform(-4, 4, shape),
    "far from zero": lambda random, shape: random.standard_normal(shape) + 300,
    "denormal": lambda random, shape: random.standard_normal(shape) * 1e-41,
}


@cache
def _emulated(name: str) -> tuple[Emulation, object]:
    source = render_nest(case_of(CASES[name][1], [("n", "m")]))
    return Emulation([source]), source


def _ort(operator: str, x: np.ndarray) -> np.ndarray:
    inputs, attributes = ["x"], {}
    initializers = []
    if operator == "ReduceMean" or operator == "ReduceSum":
        initializers = [helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [-1])]
        inputs += ["axes"]
    elif operator == "LayerNormalization":
        ones = np.ones(x.shape[-1], np.float32)
        initializers = [onnx.numpy_helper.from_array(ones, "scale")]
        inputs += ["scale"]
        attributes["epsilon"] = EPSILON
    node = helper.make_node(operator, inputs, ["y"], **attributes)
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", "m"]) for name in ("x", "y")]
    graph = helper.make_graph([node], "graph", value[:1], value[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", CASES)
def test_errors_are_no_larger_than_twice_those_of_onnx_runtime(name: str, data: str) -> None:
    operator, program, exact = CASES[name]
    emulation, source = _emulated(name)
    for seed, shape in enumerate([(7, 100), (5, 770), (2, 4096), (1, 30000)]):
        x = DATA[data](np.random.default_rng(seed), shape).astype(np.float32)
        layout = lay_out(program, [shape])
        kernel, _ = choose(source.kernels, layout, [0, 0], MULTIPROCESSORS)  # type: ignore[attr-defined]
        (ours,) = run_kernel(emulation, kernel, program, layout, [x])
        wanted = exact(x.astype(np.float64))
        errors = [np.abs(result.astype(np.float64) - wanted).max() for result in (ours, _ort(operator, x))]
        one_rounding = np.spacing(np.abs(wanted).max().astype(np.float32))
        assert errors[0] <= FACTOR * max(errors[1], one_rounding), (shape, kernel.name)
