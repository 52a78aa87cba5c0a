"""Attention alone: ONNX Runtime's nodes and ours in sessions captured as CUDA graphs, and PyTorch's operator for it."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import onnxfuse
from tools.gpu.kernels import TOLERANCE, Measured
from tools.gpu.sessions import BoundSession
from tools.messages import one_line

DTYPES = ("float16", "float32")
OPSET = 21


@dataclass(frozen=True)
class Attending:
    """Heads of ``size`` elements, of [batch, heads, length, size]; ``masked`` adds a mask of [batch, 1, 1, keys]."""

    name: str
    batch: int
    heads: int
    queries: int
    keys: int
    size: int = 64
    masked: bool = False

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of Q, K, V and the mask."""
        of_keys = (self.batch, self.heads, self.keys, self.size)
        found: list[tuple[int, ...]] = [(self.batch, self.heads, self.queries, self.size), of_keys, of_keys]
        return [*found, (self.batch, 1, 1, self.keys)] if self.masked else found

    @property
    def elements(self) -> int:
        """Of all tensors, the result among them."""
        return sum(int(np.prod(shape)) for shape in [*self.shapes, self.shapes[0]])

    def arrays(self, _megabytes: float, dtype: str) -> list[np.ndarray]:
        """The same numbers each time."""
        rng = np.random.default_rng(0)
        found = [rng.normal(size=shape).astype(dtype) for shape in self.shapes]
        if self.masked:
            found[3] = np.where(np.arange(self.keys) % 7 == 6, -1e4, 0).astype(dtype) + np.zeros_like(found[3])
        return found

    def ops(self, library: Any, _kind: Any, _special: Any) -> SimpleNamespace:
        """What ``build`` calls: PyTorch's operator, as torch.compile leaves it."""
        return SimpleNamespace(attention=library.nn.functional.scaled_dot_product_attention)

    def build(self, ops: Any, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        """The result."""
        return ops.attention(q, k, v, attn_mask=mask)


SUBJECTS = {
    one.name: one
    for one in (
        *(Attending(f"{length} tokens", 1, 12, length, length) for length in (128, 512, 1024, 4096)),
        *(Attending(f"{length} tokens, masked", 8, 12, length, length, masked=True) for length in (128, 512, 1024)),
        Attending("1024 tokens, heads of 128", 1, 32, 1024, 1024, 128),
        Attending("a token after 4096", 1, 32, 1, 4096, 128),
        Attending("a token after 1024, masked", 8, 12, 1, 1024, masked=True),
    )
}


def jobs() -> Iterator[Measured]:
    """What is to be measured."""
    for dtype in DTYPES:
        for subject in SUBJECTS.values():
            size = subject.elements * np.dtype(dtype).itemsize
            yield Measured(subject.name, dtype, round(size / 1e6, 1), size)


def onnx_model(subject: Attending, dtype: str) -> onnx.ModelProto:
    """The subject as ONNX nodes, on inputs x0, x1, …"""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = [f"x{index}" for index in range(len(subject.shapes))]
    inputs = [helper.make_tensor_value_info(*pair) for pair in _specs(names, kind, subject.shapes)]
    nodes = [
        helper.make_node("Transpose", ["x1"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["x0", "t"], ["p"]),
        helper.make_node("Mul", ["p", "scale"], ["s"]),
        *([helper.make_node("Add", ["s", "x3"], ["m"])] if subject.masked else []),
        helper.make_node("Softmax", ["m" if subject.masked else "s"], ["w"], axis=-1),
        helper.make_node("MatMul", ["w", "x2"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("y", kind, list(subject.shapes[0]))]
    scale = numpy_helper.from_array(np.array(subject.size**-0.5, dtype), "scale")
    graph = helper.make_graph(nodes, "subject", inputs, outputs, [scale])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def _specs(
    names: Sequence[str], kind: int, shapes: Sequence[tuple[int, ...]]
) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    for name, shape in zip(names, shapes, strict=True):
        yield name, kind, shape


def feeds(subject: Attending, dtype: str) -> dict[str, np.ndarray]:
    """What ``onnx_model`` reads."""
    return {f"x{index}": array for index, array in enumerate(subject.arrays(0, dtype))}


def try_on_cpu(subject: Attending) -> None:
    """The subject optimized, without machine code: what of the measuring needs no GPU.  Raises what goes wrong."""
    fused = onnxfuse.optimize(onnx_model(subject, "float32"), "cuda", check=False, embed=False).model
    if [node.op_type for node in fused.graph.node] != ["FusedAttention"]:
        raise ValueError("it is not one fused node")


def measure_all(todo: Sequence[Measured], deadline: float, progress: Callable[[str], None]) -> None:
    """Fill in what can be measured until the deadline (of ``time.monotonic``); what is wrong is not timed."""
    for job in todo:
        if time.monotonic() > deadline:
            return
        progress(f"attention: {job.chain}, {job.dtype}")
        subject = SUBJECTS[job.chain]
        model, values = onnx_model(subject, job.dtype), feeds(subject, job.dtype)
        expected: np.ndarray | None = None
        for system in ("ort", "onnxfuse"):
            try:
                ours = system == "onnxfuse"
                made = onnxfuse.optimize(model, "cuda", check=False).model if ours else model
                session = BoundSession(made.SerializeToString(), values, library=ours, graph=True)
                session.run()
                (result,) = session.results()
                expected = _checked(result, expected, TOLERANCE[job.dtype])
                job.seconds[system] = session.seconds()
            except Exception as error:  # one that fails leaves the others
                job.errors[system] = one_line(error)


def _checked(result: np.ndarray, expected: np.ndarray | None, allowed: float) -> np.ndarray:
    """ONNX Runtime's result.  Raises ValueError if another is not near it."""
    if expected is None:
        return result
    wrong = ~np.isclose(result.astype(np.float64), expected.astype(np.float64), allowed, allowed, equal_nan=True)
    if wrong.any():
        raise ValueError(f"wrong results: {int(wrong.sum())} of {wrong.size} elements")
    return expected
