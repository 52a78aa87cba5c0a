"""Products of few rows, as steps of decoding have them, beside a copy of as many bytes and ONNX Runtime's nodes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import onnxfuse
from tools.gpu.four_bits import BLOCK, DOMAIN
from tools.gpu.kernels import DTYPES, Measured, measure_each
from tools.gpu.reductions import Ready, time_kernel, time_session
from tools.gpu.sessions import BoundSession

OPSET = 21


@dataclass(frozen=True)
class Multiplying:
    """[rows, inner] times a matrix of so many columns, and a sum with what has the result's shape; ``gated``, a
    normalization, two such products and the gate of one by the other instead.  With ``bits`` matrices are of whole
    numbers of so many, with a scale and a zero point for each block of 32, as ONNX Runtime's MatMulNBits has them.
    """

    name: str
    rows: int
    inner: int
    columns: int
    gated: bool = False
    bits: int = 0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the inputs."""
        found: dict[str, tuple[int, ...]] = {"x0": (self.rows, self.inner)}
        return found if self.gated else {**found, "x1": (self.rows, self.columns)}

    def bytes(self, dtype: str) -> int:
        """Of the inputs, the constants and the result."""
        element = np.dtype(dtype).itemsize
        numbers = (2 if self.gated else 1) * self.inner * self.columns
        blocks = numbers // BLOCK
        matrices = numbers * element
        if self.bits:
            matrices = (numbers + blocks) * self.bits // 8 + blocks * element
        read = sum(int(np.prod(shape)) for shape in self.shapes.values()) + (self.inner if self.gated else 0)
        return matrices + (read + self.rows * self.columns) * element


SUBJECTS = {
    one.name: one
    for one in (
        Multiplying("768 to 2048, gated", 1, 768, 2048, gated=True),
        Multiplying("2048 to 768, a sum", 1, 2048, 768),
        Multiplying("4096 to 11008, gated", 1, 4096, 11008, gated=True),
        Multiplying("11008 to 4096, a sum", 1, 11008, 4096),
        Multiplying("4096 to 4096, a sum, 4 rows", 4, 4096, 4096),
        Multiplying("4096 to 32000, a sum", 1, 4096, 32000),
        Multiplying("768 to 2048, gated, 4 bits", 1, 768, 2048, gated=True, bits=4),
        Multiplying("4096 to 11008, gated, 4 bits", 1, 4096, 11008, gated=True, bits=4),
        Multiplying("11008 to 4096, a sum, 4 bits", 1, 11008, 4096, bits=4),
        Multiplying("4096 to 4096, a sum, 4 rows, 4 bits", 4, 4096, 4096, bits=4),
        Multiplying("4096 to 4096, a sum, 8 bits", 1, 4096, 4096, bits=8),
    )
}
"""Of a Llama of 160 million parameters and of one of 7 billion."""


def jobs() -> Iterator[Measured]:
    """What is to be measured; the bytes are those of inputs, matrices and the result, each once."""
    for dtype in DTYPES:
        for subject in SUBJECTS.values():
            size = subject.bytes(dtype)
            yield Measured(subject.name, dtype, round(size / 1e6, 1), size)


def onnx_model(subject: Multiplying, dtype: str) -> onnx.ModelProto:
    """The subject as ONNX nodes, on inputs x0 and x1."""
    rng = np.random.default_rng(0)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    shape = (subject.inner, subject.columns)
    values: dict[str, np.ndarray] = {}

    def product(x: str, name: str, result: str) -> onnx.NodeProto:
        if not subject.bits:
            values[name] = (rng.standard_normal(shape, np.float32) / 64).astype(dtype)
            return helper.make_node("MatMul", [x, name], [result])
        per_byte, blocks = 8 // subject.bits, subject.inner // BLOCK
        numbers = (subject.columns, blocks, BLOCK // per_byte)
        zeros = np.full((subject.columns, -(-blocks // per_byte)), 0x88 if subject.bits == 4 else 0x80, np.uint8)
        scales = rng.uniform(0.5, 1, subject.columns * blocks) / (64 << subject.bits - 3)
        parts = (rng.integers(0, 256, numbers, np.uint8), scales.astype(dtype), zeros)
        given = [f"{name}_{what}" for what in ("numbers", "scales", "zeros")]
        values.update(zip(given, parts, strict=True))
        facts: dict[str, Any] = {"K": subject.inner, "N": subject.columns, "bits": subject.bits, "block_size": BLOCK}
        return helper.make_node("MatMulNBits", [x, *given], [result], domain=DOMAIN, **facts)

    if subject.gated:
        values["scale"] = np.ones(subject.inner, dtype)
        values["bias"] = np.zeros(subject.inner, dtype)
        nodes = [
            helper.make_node("LayerNormalization", ["x0", "scale", "bias"], ["n"], axis=-1),
            product("n", "w", "a"),
            helper.make_node("Sigmoid", ["a"], ["s"]),
            helper.make_node("Mul", ["a", "s"], ["g"]),
            product("n", "v", "u"),
            helper.make_node("Mul", ["g", "u"], ["y"]),
        ]
    else:
        nodes = [product("x0", "w", "a"), helper.make_node("Add", ["a", "x1"], ["y"])]
    inputs = [helper.make_tensor_value_info(name, kind, own) for name, own in subject.shapes.items()]
    outputs = [helper.make_tensor_value_info("y", kind, [subject.rows, subject.columns])]
    constants = [numpy_helper.from_array(value, name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "subject", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", OPSET), *([helper.make_opsetid(DOMAIN, 1)] if subject.bits else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds(subject: Multiplying, dtype: str) -> dict[str, np.ndarray]:
    """What ``onnx_model`` reads, the same every time."""
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(shape, np.float32).astype(dtype) for name, shape in subject.shapes.items()}


def try_on_cpu(subject: Multiplying) -> None:
    """A small one of the kind, optimized and run: what of the measuring needs no GPU.  Raises what goes wrong."""
    small = Multiplying(subject.name, subject.rows, 64, 48, subject.gated, subject.bits)
    ready = _ready(small, "float32", embed=False)
    if [node.op_type for node in ready.fused.graph.node] != ["FusedReduction"]:
        raise ValueError("it is not one fused node")
    values = feeds(small, "float32")
    for model, library in ((ready.original, False), (ready.fused, True)):
        BoundSession(model.SerializeToString(), values, library=library, on_gpu=False).run()


def measure_all(todo: Sequence[Measured], deadline: float, progress: Callable[[str], None]) -> None:
    """Fill in what can be measured until the deadline (of ``time.monotonic``); what is wrong is not timed."""
    systems = {"ort": time_session, "onnxfuse": time_session, "kernel": time_kernel}
    measure_each("products", todo, deadline, lambda job: _ready(SUBJECTS[job.chain], job.dtype), systems, progress)


def _ready(subject: Multiplying, dtype: str, embed: bool = True) -> Ready:
    original = onnx_model(subject, dtype)
    fused = onnxfuse.optimize(original, "cuda", check=False, embed=embed).model
    shape = subject.rows, subject.columns
    return Ready(dtype, original, fused, lambda _: feeds(subject, dtype), lambda _: shape)
