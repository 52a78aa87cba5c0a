"""Matrices of few bits with a scale for each block of a column: those of ONNX Runtime's MatMulNBits.

B is [N, K / block, block * bits / 8] of bytes, of which each has two elements of 4 bits, the first in its low half, or
one of 8.  An element is (q - zero) * scale, with a scale and perhaps a zero point for each block, [N, K / block] or as
many in one dimension.  Zero points are of the type of the scales, or bytes with elements of the same bits, and each
column begins a byte.  Source: ONNX Runtime, docs/ContribOperators.md.
"""

import math
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxfuse.program.node_lowering import NodeLowering, UnsupportedError, tensor_dtype
from onnxfuse.program.view_steps import ViewStep

DOMAIN = "com.microsoft"
BIAS = 5
"""The place of what is added among the inputs."""
_SCALES, _ZEROS, _PERMUTED = 2, 3, 4
_BITS = (4, 8)
_LEAST_BLOCK = 16
_DEFAULTS = {"K": 0, "N": 0, "block_size": 0, "bits": 4, "accuracy_level": 0, "weight_prepacked": 0}
_ROUNDS_OTHERS = 4
"""The accuracy_level with which ONNX Runtime's CPU provider rounds what is multiplied with the matrix to 8 bits too."""

UNKNOWN_LAYOUT = "its matrix is quantized in a way that is not known"


def multiplies_blocks(node: gs.Node) -> bool:
    """Whether a node multiplies with such a matrix."""
    return bool(node.op == "MatMulNBits" and node.domain == DOMAIN)


@dataclass(frozen=True)
class BlockQuantized:
    """The matrix of a node: ``columns`` of ``blocks`` blocks of ``block`` elements of ``bits``."""

    node: gs.Node
    bits: int
    columns: int
    blocks: int
    block: int
    level: int

    @property
    def rounds_others(self) -> bool:
        """Whether ONNX Runtime may round what is multiplied with the matrix to 8 bits too."""
        return self.level == _ROUNDS_OTHERS

    @property
    def tensors(self) -> dict[int, gs.Tensor]:
        """B, the scales and perhaps the zero points, by their places among the node's inputs."""
        found = {1: self.node.inputs[1], _SCALES: self.node.inputs[_SCALES]}
        if _given(self.node, _ZEROS):
            found[_ZEROS] = self.node.inputs[_ZEROS]
        return found

    def sizes(self, place: int) -> tuple[int, ...]:
        """The shape that a Program has one of ``tensors`` in."""
        return (self.columns, self.blocks, self.block)[: 3 if place == 1 else 2]

    def steps(self, place: int) -> tuple[ViewStep, ...]:
        """What leads there from the tensor."""
        tensor = self.tensors[place]
        steps = [ViewStep("nibbles", (-1,))] if self._has_bits(place) and self.bits == _BITS[0] else []
        if len(tensor.shape) == 1:
            steps.append(ViewStep("split", (-1, self.columns, -1)))
        if place == _ZEROS and steps and steps[0].name == "nibbles" and self.blocks % 2:
            steps.append(ViewStep("slice", (-1, 0, self.blocks, 1)))
        return tuple(steps)

    def lower(self, n: NodeLowering) -> int:
        """Append what an element of the matrix is, in float32."""
        element = n.builder.cast(n.arg(1), "f32")
        zero = n.builder.cast(n.arg(_ZEROS), "f32") if _ZEROS in self.tensors else n.const(1 << (self.bits - 1), "f32")
        distance = n.emit("sub", element, zero, dtype="f32")
        return n.emit("mul", distance, n.builder.cast(n.arg(_SCALES), "f32"), dtype="f32")

    def check(self) -> None:
        """Raises UnsupportedError where a tensor is of another type or shape."""
        kind = tensor_dtype(self.node.inputs[0])
        for place, tensor in self.tensors.items():
            own = tensor_dtype(tensor)
            if tensor.shape is None or own != ("u8" if self._has_bits(place) else kind):
                raise UnsupportedError(UNKNOWN_LAYOUT)
            stored = list(self.sizes(place))
            if self._has_bits(place):
                stored[-1] = -(-stored[-1] * self.bits // 8)
            if list(tensor.shape) != stored and (place == 1 or list(tensor.shape) != [math.prod(stored)]):
                raise UnsupportedError(UNKNOWN_LAYOUT)

    def _has_bits(self, place: int) -> bool:
        """Whether a tensor has elements of ``bits``, as zero points that are bytes do."""
        return place == 1 or (place == _ZEROS and tensor_dtype(self.tensors[place]) == "u8")


def block_quantized(node: gs.Node) -> BlockQuantized:
    """The matrix of a node that ``multiplies_blocks``.  Raises UnsupportedError, with a reason, if it is not known."""
    inner, columns, block, bits, level, prepacked = (
        _number(node, name, default) for name, default in _DEFAULTS.items()
    )
    if node.attrs.keys() - _DEFAULTS.keys() or not 0 <= level <= _ROUNDS_OTHERS:
        raise UnsupportedError(UNKNOWN_LAYOUT)
    if len(node.inputs) <= _SCALES or min(inner, columns) < 1 or _given(node, _PERMUTED) or prepacked != 0:
        raise UnsupportedError(UNKNOWN_LAYOUT)
    if bits not in _BITS or block < _LEAST_BLOCK or inner % block:
        raise UnsupportedError(UNKNOWN_LAYOUT)
    if node.inputs[0].shape is None or node.inputs[0].shape[-1] != inner:
        raise UnsupportedError("what it multiplies is of another number of columns, or of one that is not known")
    found = BlockQuantized(node, bits, columns, inner // block, block, level)
    found.check()
    return found


def _given(node: gs.Node, place: int) -> bool:
    return place < len(node.inputs) and bool(node.inputs[place].name)


def _number(node: gs.Node, name: str, default: int) -> int:
    value = node.attrs.get(name, default)
    return value if isinstance(value, int) else -1
