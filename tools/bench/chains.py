"""Chains of elementwise nodes over one large tensor, timed against ONNX Runtime and against a copy of it."""

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

import onnxfuse
from onnxfuse.bench import time_in_turns
from onnxfuse.bench_turns import ratio_with_spread
from tools.bench.peers.job import zeros

LARGE = (1, 64, 512, 512)  # 67 MB of float32: beyond any cache
SMALL = (1, 64, 161, 161)  # 6.6 MB
TURN_BYTES = 1 << 27
"""A turn is runs over so many bytes together, so that what fits a cache is found there as a program's own run before
has left it, as in any loop over one model, and not as the other program has."""


class _GraphBuilder:
    """Collects nodes; operands are names of values, numbers, or arrays."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def __call__(self, op: str, *operands: str | float | np.ndarray) -> str:
        names = [operand if isinstance(operand, str) else self._constant(operand) for operand in operands]
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [output], name=f"{op}_{len(self.nodes)}"))
        return output

    def _constant(self, value: float | np.ndarray) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    def model(self, shape: tuple[int | str, ...], output: str) -> onnx.ModelProto:
        """The model from the float32 input ``x`` of ``shape`` to ``output``."""
        values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in ("x", output)]
        graph = helper.make_graph(self.nodes, "chain", values[:1], values[1:], self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _scale_relu_add(op: _GraphBuilder) -> str:
    return op("Add", op("Relu", op("Mul", "x", 0.7)), 0.3)


def _affine_hard_swish(op: _GraphBuilder) -> str:
    channels = np.linspace(0.5, 1.5, LARGE[1]).reshape(-1, 1, 1)
    y = op("Add", op("Mul", "x", channels), channels - 1)
    return op("Div", op("Mul", y, op("Clip", op("Add", y, 3.0), 0.0, 6.0)), 6.0)


def _ten_mul_add(op: _GraphBuilder) -> str:
    value = "x"
    for step in range(5):
        value = op("Add", op("Mul", value, 0.9 + 0.05 * step), 0.1 - 0.03 * step)
    return value


def _tanh_gelu(op: _GraphBuilder) -> str:
    inner = op("Mul", op("Add", "x", op("Mul", op("Pow", "x", 3.0), 0.044715)), 0.7978845608)
    return op("Mul", op("Mul", "x", op("Add", op("Tanh", inner), 1.0)), 0.5)


def _silu_residual(op: _GraphBuilder) -> str:
    return op("Add", op("Mul", "x", op("Mul", "x", op("Sigmoid", "x"))), "x")


@dataclass(frozen=True)
class Chain:
    """A chain, and its targets: time over a copy at 67 MB, and ORT's time over ours at 6.6 MB."""

    name: str
    build: Callable[[_GraphBuilder], str]
    over_copy: float | None
    speedup: float | None


CHAINS = (
    Chain("scale, relu, add", _scale_relu_add, 1.3, 2),
    Chain("per-channel affine + hardswish (6 ops)", _affine_hard_swish, 1.8, 4),
    Chain("ten alternating mul/add", _ten_mul_add, 1.8, 4),
    Chain("tanh-GELU (8 ops)", _tanh_gelu, 3.0, 3),
    Chain("SiLU gate + residual", _silu_residual, None, None),
)


def long_chain(length: int) -> onnx.ModelProto:
    """``length`` alternating mul/add nodes, each with a constant of its own."""
    op = _GraphBuilder()
    value = "x"
    for step in range(length):
        value = op("Add" if step % 2 else "Mul", value, 1 + (step % 7 - 3) / 1000)
    return op.model(("n", 64), value)


def chain_model(chain: Chain, shape: tuple[int, ...]) -> onnx.ModelProto:
    """The chain over one tensor ``x`` of ``shape``, which has 64 channels."""
    op = _GraphBuilder()
    return op.model(shape, chain.build(op))


def chain_input(shape: tuple[int, ...]) -> np.ndarray:
    """What the chains are timed on: float32, normally distributed."""
    values = zeros(shape, np.dtype(np.float32))
    values[...] = np.random.default_rng(0).normal(0, 2, shape)
    return values


@dataclass(frozen=True)
class ChainTimes:
    """Ratios of times of one chain at one size."""

    over_copy: float
    ort_over_ours: float


def measure(chain: Chain, shape: tuple[int, ...], threads: int, seconds: float) -> ChainTimes:
    """Time one chain at one size: onnxfuse and the copy in turns, then ONNX Runtime and onnxfuse in turns."""
    original, x = chain_model(chain, shape), chain_input(shape)
    runs = max(TURN_BYTES // x.nbytes, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain.onnx"
        optimized = onnxfuse.optimize(original, output=path, check=False).model
        theirs = _turn(_runner(original.SerializeToString(), x, threads, library=False), runs)
        ours = _turn(_runner(optimized.SerializeToString(), x, threads, library=True), runs)
    with ThreadPoolExecutor(threads - 1) as pool:
        over_copy = ratio_with_spread(time_in_turns(ours, _turn(_copier(x, threads, pool), runs), seconds))[0]
    return ChainTimes(over_copy, ratio_with_spread(time_in_turns(theirs, ours, seconds))[0])


def _turn(run: Callable[[], object], runs: int) -> Callable[[], object]:
    def turn() -> None:
        for _ in range(runs):
            run()

    return turn


def _runner(model: bytes, x: np.ndarray, threads: int, library: bool) -> Callable[[], object]:
    """Runs a session from one buffer to another, so that nothing but the model's own work is timed."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if library:
        onnxfuse.register(options)
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
    output = ort.OrtValue.ortvalue_from_numpy(zeros(x.shape, x.dtype))
    binding.bind_ortvalue_output(session.get_outputs()[0].name, output)
    return lambda: session.run_with_iobinding(binding)


def _copier(x: np.ndarray, threads: int, pool: ThreadPoolExecutor) -> Callable[[], object]:
    """Copies ``x`` into another buffer, each thread (the caller too) an equal part."""
    target = zeros(x.shape, x.dtype)
    targets, sources = (np.array_split(array.reshape(-1), threads) for array in (target, x))
    parts = list(zip(targets, sources, strict=True))

    def copy() -> None:
        others = [pool.submit(np.copyto, *part) for part in parts[1:]]
        np.copyto(*parts[0])
        for other in others:
            other.result()

    return copy
