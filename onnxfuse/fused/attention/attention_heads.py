"""Q, K and V of an attention, by head: which tensor has them, and which nodes split it into heads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.attention.attention_parts import part_of, producer
from onnxfuse.fused.attention.head_shapes import TRANSPOSED, repeats_of
from onnxfuse.model import dtypes
from onnxfuse.model.constants import constant_value, is_constant, single_number
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.program.node_lowering import UnsupportedError

Shape = Sequence[int | str | None]

NOT_TRANSPOSED = "what it multiplies by Q is not the transpose of K"
UNKNOWN_HEADS = "the number of heads is not known, or differs between K and V"

SWAPPED = [0, 2, 1, 3]
_SWAPPED_AND_TRANSPOSED = [0, 2, 3, 1]
_PARTS_FIRST = [2, 0, 3, 1, 4]
_ONE = np.float32(1)


@dataclass(frozen=True)
class Heads:
    """Some heads of a tensor: ``nodes`` make of it the (batch, heads, length, size) that a product reads.

    ``first`` says whether heads come before the length in the tensor, which has ``total`` of them; these are ``count``
    from ``place`` on.  ``repeats`` says how often the nodes repeat each, and ``scale`` by what they multiply all.
    """

    tensor: gs.Tensor
    count: int
    first: bool
    nodes: tuple[gs.Node, ...]
    total: int
    place: int = 0
    repeats: int = 1
    scale: np.float32 = _ONE

    def before(self, *nodes: gs.Node) -> "Heads":
        """With more nodes."""
        return replace(self, nodes=(*self.nodes, *nodes))


class HeadsReader:
    """Finds the nodes that make Q, K and V; ``reader`` is the node that alone reads a tensor, None if there is none.

    With ``parts`` they may be parts of one tensor, and with ``whole`` the Reshape that splits all of it into heads is
    among the nodes.  Then the nodes that make it have several readers, of which it is to be found out whether they are
    of the same attention.  With ``scales`` what multiplies them is part of them: that of Q and K is the scores', that
    of V is not.
    """

    def __init__(self, reader: Callable[[gs.Tensor], gs.Node | None], parts: bool, whole: bool, scales: bool) -> None:
        self._reader = reader
        self._parts = parts
        self._whole = whole
        self._scales = scales

    def heads(self, tensor: gs.Tensor) -> Heads:
        """Q or V.  Raises UnsupportedError, as do the others, where the number of heads is not known."""
        scaled = self._scaled(tensor, self.heads)
        if scaled is not None:
            return scaled
        swap = self._inner(tensor, "Transpose")
        if swap is not None and swap.attrs.get("perm") == SWAPPED:
            return self._split(swap)
        count = _count(tensor, 1)
        part = part_of(tensor) if self._parts else None
        if part is not None and part.squeezed and part.axis == 0:
            turn = producer(part.tensor)
            if standard_op(turn) == "Transpose" and turn.attrs.get("perm") == _PARTS_FIRST:
                found = self._of_parts(turn.inputs[0], part.first, count)
                if found is not None:
                    return found.before(turn, *part.nodes)
        return Heads(tensor, count, True, (), count)

    def repeated(self, tensor: gs.Tensor) -> Heads:
        """K or V, of which each head may serve several of Q."""
        gather = self._inner(tensor, "Gather")
        repeats = None if gather is None else repeats_of(gather)
        if gather is None or repeats is None or not is_constant(gather.inputs[1]):
            return self.heads(tensor)
        return replace(self.heads(gather.inputs[0]), repeats=repeats).before(gather)

    def keys(self, tensor: gs.Tensor, heads: Callable[[gs.Tensor], Heads]) -> Heads:
        """K, whose transpose is ``tensor``; ``heads`` reads what is transposed."""
        scaled = self._scaled(tensor, lambda before: self.keys(before, heads))
        if scaled is not None:
            return scaled
        transpose = self._inner(tensor, "Transpose")
        if transpose is None:
            raise UnsupportedError(NOT_TRANSPOSED)
        if transpose.attrs.get("perm") == _SWAPPED_AND_TRANSPOSED:
            return self._split(transpose)
        if transpose.attrs.get("perm") != TRANSPOSED:
            raise UnsupportedError(NOT_TRANSPOSED)
        return heads(transpose.inputs[0]).before(transpose)

    def _scaled(self, tensor: gs.Tensor, read: Callable[[gs.Tensor], Heads]) -> Heads | None:
        """What ``read`` makes of a tensor that is multiplied by one number; None if it is not."""
        node = self._inner(tensor, "Mul", "Div") if self._scales else None
        factor = None if node is None else factor_of(node)
        if node is None or factor is None or tensor.shape is None or factor[0].shape is None:
            return None
        if len(factor[0].shape) != len(tensor.shape):
            return None
        found = read(factor[0])
        with np.errstate(all="ignore"):
            scale = found.scale * factor[1]
        return replace(found, scale=scale).before(node)

    def _split(self, transpose: gs.Node) -> Heads:
        """What ``transpose`` reads as (batch, length, heads, size), or what is split into that."""
        tensor = transpose.inputs[0]
        count = _count(tensor, 2)
        found = self._part(tensor, count) or Heads(tensor, count, False, (), count)
        reshape = self._inner(tensor, "Reshape")
        if reshape is not None and _splits_heads(reshape, count):
            merged = reshape.inputs[0]
            scaled = self._scaled(merged, lambda before: self._merged(before, count))
            found = (scaled or self._merged(merged, count)).before(reshape)
        return found.before(transpose)

    def _part(self, tensor: gs.Tensor, count: int) -> Heads | None:
        """Heads of (batch, length, parts, heads, size) or of (batch, length, all heads, size)."""
        part = part_of(tensor) if self._parts else None
        if part is None or part.axis != 2:
            return None
        if part.squeezed:
            found = self._of_parts(part.tensor, part.first, count)
            return None if found is None else found.before(*part.nodes)
        total = part.tensor.shape[2]
        reshape = producer(part.tensor)
        if self._whole and standard_op(reshape) == "Reshape" and _splits_heads(reshape, total):
            return Heads(reshape.inputs[0], count, False, (reshape, *part.nodes), total, part.first)
        return Heads(part.tensor, count, False, part.nodes, total, part.first)

    def _of_parts(self, tensor: gs.Tensor, part: int, count: int) -> Heads | None:
        """The heads of one part of (batch, length, parts, heads, size), or of what a Reshape splits into that."""
        shape = tensor.shape
        if shape is None or len(shape) != 5 or not isinstance(shape[2], int) or shape[3] != count:
            return None
        reshape = producer(tensor)
        total, place = shape[2] * count, part * count
        if self._whole and standard_op(reshape) == "Reshape" and _splits_heads(reshape, shape[2], count):
            return Heads(reshape.inputs[0], count, False, (reshape,), total, place)
        return Heads(tensor, count, False, (), total, place)

    def _merged(self, tensor: gs.Tensor, count: int) -> Heads:
        """(batch, length, heads · size), perhaps of (batch, length, all heads · size)."""
        part = part_of(tensor) if self._parts else None
        if part is not None and part.axis == 2 and not part.squeezed:
            size, total = part.size // count, part.tensor.shape[2]
            if total % size == 0 and part.first % size == 0:
                return Heads(part.tensor, count, False, part.nodes, total // size, part.first // size)
        return Heads(tensor, count, False, (), count)

    def _inner(self, tensor: gs.Tensor, *operators: str) -> gs.Node | None:
        """The node that makes a tensor which nothing else reads, if it is of one of these operators."""
        node = producer(tensor)
        return node if standard_op(node) in operators and self._reader(tensor) is not None else None


def factor_of(node: gs.Node) -> tuple[gs.Tensor, np.float32] | None:
    """The tensor that a Mul or Div multiplies by one finite number, and the number; None if it does not."""
    if standard_op(node) not in ("Mul", "Div"):
        return None
    for place in (0, 1) if node.op == "Mul" else (0,):
        number = number_of(node.inputs[1 - place])
        if number is not None:
            with np.errstate(all="ignore"):
                scale = number if node.op == "Mul" else np.float32(1) / number
            return (node.inputs[place], scale) if np.isfinite(scale) else None
    return None


def target_of(reshape: gs.Node) -> list[int] | None:
    """The constant shape, in which 0 stands for a size of the data, and -1 for one that is no number."""
    constant = constant_value(reshape.inputs[1]) if len(reshape.inputs) == 2 else None
    if constant is None:
        return None
    target: list[int] = constant.tolist()
    if reshape.attrs.get("allowzero", 0) and 0 in target:
        return None
    made = reshape.outputs[0].shape
    if made is None or len(made) != len(target):
        return target
    return [size if own == -1 and isinstance(size, int) else own for own, size in zip(target, made, strict=True)]


def keeps(target: Sequence[int], sizes: Shape) -> bool:
    """Whether the first two dimensions stay as they are, where the elements of the others do."""
    return all(size in (0, -1, kept) for size, kept in zip(target[:2], sizes[:2], strict=True))


def _splits_heads(reshape: gs.Node, *counts: int) -> bool:
    """(batch, length, counts · size) → (batch, length, counts, size)."""
    shape, target = reshape.inputs[0].shape, target_of(reshape)
    if shape is None or len(shape) != 3 or target is None or len(target) != len(counts) + 3:
        return False
    if target[2:-1] != list(counts) or not isinstance(shape[2], int):
        return False
    return int(np.prod(target[2:])) == shape[2] and keeps(target, shape)


def number_of(tensor: gs.Tensor) -> np.float32 | None:
    """The value of a constant of one element that does not add dimensions, of float32 or 16 bits; None for others."""
    known = dtypes.from_numpy(tensor.dtype)
    number = single_number(tensor, 4) if known is not None and known.compute == "f32" else None
    return None if number is None else np.float32(number)


def _count(tensor: gs.Tensor, axis: int) -> int:
    """The number of heads, a dimension of a tensor of four."""
    count = tensor.shape[axis] if tensor.shape is not None and len(tensor.shape) == 4 else None
    if not isinstance(count, int) or count < 1:
        raise UnsupportedError(UNKNOWN_HEADS)
    return count
