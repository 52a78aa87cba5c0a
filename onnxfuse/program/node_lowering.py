"""A node as it becomes instructions, and which function makes them of which operator."""

from collections.abc import Callable
from typing import Protocol

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model import dtypes
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program.builder import ProgramBuilder
from onnxfuse.program.operand_types import supports


class UnsupportedError(Exception):
    """Why a node cannot become part of a Program."""


class Operands(Protocol):
    """Gives the value of a node's input to the lowering."""

    def __call__(self, index: int, axis: int | None = None) -> int:
        """The value of input ``index``; with ``axis``, a vector along that axis (counted from the back)."""


class NodeLowering:
    """A node being lowered: its types, attributes and operands, and the builder that receives its instructions."""

    def __init__(self, node: gs.Node, opset: int, builder: ProgramBuilder, operands: Operands) -> None:
        self.node = node
        self.opset = opset
        self.builder = builder
        self._operands = operands

    def has(self, index: int) -> bool:
        """Whether the optional input ``index`` is given."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index].name)

    def arg(self, index: int, axis: int | None = None) -> int:
        """The value of input ``index``."""
        return self._operands(index, axis)

    def args(self) -> list[int]:
        """The values of all inputs."""
        return [self.arg(index) for index in range(len(self.node.inputs))]

    def dtype(self, index: int = 0) -> str:
        """The type of input ``index``.  Raises UnsupportedError for a type that Programs cannot hold."""
        return tensor_dtype(self.node.inputs[index])

    def attr(self, name: str, default: float) -> float:
        """A numeric attribute; one that is no integer has the precision of float, and so has its default."""
        value = self.node.attrs.get(name, default)
        if not isinstance(value, (int, float)):
            raise UnsupportedError(f"attribute {name} is not a number")
        return value if isinstance(value, int) else float(np.float32(value))

    def const(self, value: object, dtype: str | None = None) -> int:
        """A scalar of type ``dtype``, by default that of the first input."""
        return self.builder.const(dtype or self.dtype(), value)

    def parameter(self, name: str, default: float) -> int:
        """A numeric attribute as a scalar of the type of the first input.

        ONNX Runtime computes 16-bit floats in float, with the attribute as it is.  Here it has their precision, which
        is one more rounding.  Raises UnsupportedError for one that is no normal number there, which may become
        anything: 0, infinite, or off by half.
        """
        value, dtype = self.attr(name, default), self.dtype()
        if dtype in ("f16", "bf16") and value != 0 and np.isfinite(value):
            info = ml_dtypes.finfo(DTYPES[dtype].numpy)  # type: ignore[no-untyped-call]
            if not float(info.smallest_normal) <= abs(value) <= float(info.max):
                raise UnsupportedError(f"{name} of {self.node.op} is beyond the numbers of {info.dtype}")
        return self.const(value)

    def emit(self, op: str, *operands: int, dtype: str | None = None) -> int:
        """An instruction whose T is ``dtype``, by default the type of the first input."""
        dtype = dtype or self.dtype()
        if not supports(op, dtype):
            raise UnsupportedError(f"{self.node.op} of {DTYPES[dtype].numpy.name} has no kernel")
        return self.builder.emit(op, dtype, *operands)

    def fold(self, op: str) -> int:
        """A variadic operator as a chain of binary instructions, from the left."""
        result, *rest = self.args()
        for operand in rest:
            result = self.emit(op, result, operand)
        return result

    def inference_only(self, flag_input: int) -> None:
        """Raises UnsupportedError unless the optional input ``flag_input`` (training_mode) is absent or false."""
        if self.has(flag_input):
            flag = self.node.inputs[flag_input]
            if not isinstance(flag, gs.Constant) or bool(np.any(flag.values)):
                raise UnsupportedError(f"{self.node.op} in training mode")


def tensor_dtype(tensor: gs.Tensor) -> str:
    """The short name of a tensor's type.  Raises UnsupportedError if it is unknown or no Program can hold it."""
    dtype = dtypes.from_numpy(tensor.dtype)
    if dtype is None:
        if tensor.dtype is None:
            raise UnsupportedError(f"the type of {tensor.name!r} is not known")
        raise UnsupportedError(f"the type of {tensor.name!r} is not supported")
    return dtype.name


class Lowerings(dict[str, Callable[[NodeLowering], int]]):
    """Functions by the names of the operators that they lower."""

    def of(self, *onnx_ops: str) -> Callable[[Callable[[NodeLowering], int]], Callable[[NodeLowering], int]]:
        """Adds a function for these operators of the standard."""

        def add(function: Callable[[NodeLowering], int]) -> Callable[[NodeLowering], int]:
            self.update(dict.fromkeys(onnx_ops, function))
            return function

        return add


def logical_not(n: NodeLowering, condition: int) -> int:
    """The opposite of a condition: it exchanges the operands of "where", of which the third keeps the sign of -0."""
    return n.emit("not", condition, dtype="bool")


def known_rank(n: NodeLowering) -> int:
    """Of the first input.  Raises UnsupportedError if it is not known."""
    shape = n.node.inputs[0].shape
    if shape is None:
        raise UnsupportedError(f"the rank of {n.node.inputs[0].name!r} is not known")
    return len(shape)


def has_one_element(tensor: gs.Tensor) -> bool:
    """Whether that is known of a tensor."""
    return tensor.shape is not None and all(dim == 1 for dim in tensor.shape)


def require_float(n: NodeLowering) -> None:
    """Raises UnsupportedError unless the first input is computed in floating point."""
    if DTYPES[n.dtype()].compute not in ("f32", "f64"):
        raise UnsupportedError(f"{n.node.op} of {DTYPES[n.dtype()].numpy.name} has no kernel")


def cast_to(n: NodeLowering, value: int, dtype: str) -> int:
    """The value as ``dtype``."""
    return n.builder.cast(value, dtype)
