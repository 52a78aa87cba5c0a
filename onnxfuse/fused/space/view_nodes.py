"""Nodes that give the elements of their first input, or a part of them, in another shape or order."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.nhwc.nhwc_layout import to_first, to_last
from onnxfuse.fused.views import parts_of
from onnxfuse.model import dtypes
from onnxfuse.model.constants import constant_value, dtype_of, is_constant
from onnxfuse.model.graph_ir import VIEWS, permutation_of, standard_op
from onnxfuse.model.slices import AxisSlice
from onnxfuse.program.view_steps import ViewStep
from onnxfuse.rewrite.base import PassContext

INSIDE_PRODUCT = "ONNX Runtime transposes inside the matrix product"
BETWEEN_LAYOUTS = "ONNX Runtime has the channels last of what is around it"
OWN_KERNEL = "ONNX Runtime's kernel for it is as fast"
_PRODUCTS = {"Gemm", "MatMul"}
_PARTS = {"Gather", "Slice", "Split"}
_BLOCKS = {"DepthToSpace", "SpaceToDepth"}
_NUMBERS = (np.int32, np.int64)
_MOST_PLACES = 1 << 12
"""That a Gather takes."""


@dataclass(frozen=True)
class Part:
    """``tensor`` is what ``slices`` leave of a node's first input, without the axis ``dropped`` if there is one."""

    tensor: gs.Tensor
    slices: tuple[AxisSlice, ...]
    dropped: int | None = None

    def steps(self, rank: int) -> tuple[ViewStep, ...]:
        """The same as steps of a view of a tensor of so many dimensions."""
        steps = [ViewStep("slice", (one.axis % rank - rank, *one[1:])) for one in self.slices]
        if self.dropped is not None:
            steps.append(ViewStep("squeeze", (self.dropped % rank - rank,)))
        return tuple(steps)


def is_free(node: gs.Node) -> bool:
    """Whether ONNX Runtime moves nothing for a view: it has the same elements in the same order."""
    return standard_op(node) in VIEWS


def repeats(node: gs.Node) -> bool:
    """Whether a view gives elements of its input more than once."""
    return standard_op(node) in ("Expand", "Tile")


def is_view(node: gs.Node) -> bool:
    """Whether a node is a view that a space can have, as far as the node alone says it."""
    operator = standard_op(node)
    if operator == "Transpose" or operator in _BLOCKS:
        return True
    if operator in VIEWS or repeats(node):
        return all(map(is_constant, node.inputs[1:]))
    return operator in _PARTS and bool(taken_parts(node))


def left_to_ort(node: gs.Node, readers: Sequence[gs.Node], context: PassContext) -> str | None:
    """Why no region takes a view that some nodes read; None if one may."""
    if (standard_op(node) == "SpaceToDepth" or _tiles_several(node)) and context.on.transposes_well:
        return OWN_KERNEL
    if context.on.nhwc_option and context.prefer_nhwc and _moves_channels(node):
        return BETWEEN_LAYOUTS
    if _swaps_last(node) and readers and all(standard_op(reader) in _PRODUCTS for reader in readers):
        return INSIDE_PRODUCT
    return None


def _tiles_several(node: gs.Node) -> bool:
    """Whether a Tile repeats more than one dimension of several elements: ONNX Runtime took 0.9 of the time so at
    1x64x64x64, and 1.1 to 1.3 times as long where it was one."""
    counts = constant_value(node.inputs[1]) if standard_op(node) == "Tile" else None
    if counts is None or node.inputs[0].shape is None or counts.shape != (len(node.inputs[0].shape),):
        return False
    return sum(count > 1 and size != 1 for count, size in zip(counts, node.inputs[0].shape, strict=True)) > 1


def taken_parts(node: gs.Node) -> list[Part]:
    """What a Slice, a Split, or a Gather of places at even distances takes; nothing where that is not known."""
    if standard_op(node) == "Gather":
        return _gathered(node)
    return [Part(part.tensor, part.slices) for part in parts_of(node)]


def is_part(node: gs.Node) -> bool:
    """Whether a view leaves elements out."""
    return standard_op(node) in _PARTS


def names_rows(node: gs.Node) -> bool:
    """Whether a node takes rows of a tensor, one for each element of another one that has their numbers."""
    if standard_op(node) != "Gather" or is_view(node):
        return False
    table, numbers = node.inputs[:2]
    if table.shape is None or len(table.shape) < 2 or numbers.shape is None:
        return False
    is_first = node.attrs.get("axis", 0) in (0, -len(table.shape))
    return is_first and dtype_of(numbers) in _NUMBERS and dtypes.from_numpy(table.dtype) is not None


def _swaps_last(node: gs.Node) -> bool:
    """Whether a Transpose has the last two axes in each other's place."""
    shape = node.inputs[0].shape
    if shape is None or len(shape) < 2:
        return False
    *others, last, other = range(len(shape))
    return permutation_of(node) == [*others, other, last]


def _moves_channels(node: gs.Node) -> bool:
    """Whether a Transpose makes the channels the last axis, or the one behind the first."""
    shape = node.inputs[0].shape
    if shape is None or len(shape) < 3:
        return False
    return permutation_of(node) in (list(to_last(len(shape))), list(to_first(len(shape))))


def _gathered(node: gs.Node) -> list[Part]:
    data, places = node.inputs[:2]
    axis = node.attrs.get("axis", 0)
    if data.shape is None or isinstance(data, gs.Constant) or not -len(data.shape) <= axis < len(data.shape):
        return []
    size = data.shape[axis]
    if not isinstance(size, int) or places.shape is None or not is_constant(places):
        return []
    if not all(isinstance(dim, int) for dim in places.shape) or math.prod(places.shape) > _MOST_PLACES:
        return []
    values = constant_value(places)
    if values is None or values.ndim > 1 or values.size == 0 or not ((-size <= values) & (values < size)).all():
        return []
    taken = [int(value) % size for value in values.reshape(-1)]
    step = taken[1] - taken[0] if len(taken) > 1 else 1
    if step < 1 or taken != list(range(taken[0], taken[-1] + 1, step)):
        return []
    part = AxisSlice(axis, taken[0], taken[-1] + 1, step)
    return [Part(node.outputs[0], (part,), None if values.ndim else axis)]
