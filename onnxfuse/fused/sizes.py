"""Which dimensions of a graph are of one size, where their sizes are not numbers.

Shape inference makes up a new symbol for every dimension that a convolution or pooling computes from a symbolic one.  A
residual block then seems to add tensors of sizes that have nothing to do with each other.  Here such a size is named by
what it is computed from, so that those that must be equal are.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import onnx_graphsurgeon as gs

from onnxfuse.fused.kinds import DOMAIN, SQUEEZE_EXCITE, kind_of
from onnxfuse.fused.views import ViewedInput, parts_of
from onnxfuse.model.elementwise_operators import BROADCASTING, ELEMENTWISE
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.graph_ir import STANDARD_DOMAINS
from onnxfuse.program.lowering import is_elementwise
from onnxfuse.shapes.missed_sizes import broadcast
from onnxfuse.shapes.windows import extent

Size = int | str | tuple[Any, ...]
"""A number, a symbol of the model, or how the size is computed; equal ones are equal sizes."""

_WINDOWS = {"Conv", "MaxPool", "AveragePool", "LpPool"}
_GLOBAL_POOLING = {"GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"}
_FIRST_INPUT = (ELEMENTWISE.keys() - BROADCASTING) | {
    *("InstanceNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization", "LpNormalization"),
    *("LRN", "Softmax", "LogSoftmax", "Hardmax", "CumSum"),
}
"""Operators whose result has the shape of their first input, whatever the others are."""


class Sizes:
    """The sizes of all tensors of a model whose shapes have been inferred."""

    def __init__(self, model: Model) -> None:
        self._known: dict[int, tuple[Size, ...]] = {}
        self._same = model.same_shapes
        for graph in model.graphs():
            for node in sorted_nodes(graph):
                self._visit(node)

    def of(self, tensor: gs.Tensor) -> tuple[Size, ...] | None:
        """The sizes of a tensor's dimensions; None if its rank is not known."""
        found = self._known.get(id(tensor))
        return _declared(tensor) if found is None else found

    def _visit(self, node: gs.Node) -> None:
        if not node.outputs or not (node.domain in STANDARD_DOMAINS or is_gate(node)):
            return
        if parts := parts_of(node):
            for part in parts:
                self._note(part.tensor, self._of_part(part))
            return
        declared = _declared(node.outputs[0])
        if declared is not None and (same := self._same.get(node.outputs[0].name)) is not None:
            computed: Sequence[Size | None] | None = [("shape", same, axis) for axis in range(len(declared))]
        else:
            computed = self._compute(node)
        if computed is not None:
            self._note(node.outputs[0], computed)

    def _note(self, tensor: gs.Tensor, computed: Sequence[Size | None]) -> None:
        declared = _declared(tensor)
        if declared is None or len(computed) != len(declared):
            return
        pairs = zip(declared, computed, strict=True)
        self._known[id(tensor)] = tuple(own if isinstance(own, int) or other is None else other for own, other in pairs)

    def _of_part(self, part: ViewedInput) -> list[Size | None]:
        sizes: list[Size | None] = list(self.of(part.source) or ())
        for axis, start, end, step in part.slices:
            sizes[axis] = ("part", sizes[axis], start, end, step)
        return sizes

    def _compute(self, node: gs.Node) -> Sequence[Size | None] | None:
        inputs = [self.of(tensor) for tensor in node.inputs if tensor.name]
        if not inputs or inputs[0] is None:
            return None
        if node.op in _FIRST_INPUT:
            return inputs[0]
        if is_elementwise(node):
            known = [sizes for sizes in inputs if sizes is not None]
            return broadcast(known) if len(known) == len(inputs) else None
        if len(inputs[0]) < 2:
            return None
        if is_gate(node):
            return [inputs[0][0], None, *([1] * (len(inputs[0]) - 2))]
        if node.op in _GLOBAL_POOLING:
            return [*inputs[0][:2], *([1] * (len(inputs[0]) - 2))]
        if node.op in _WINDOWS:
            return [inputs[0][0], None, *_windows(node, inputs[0][2:])]
        if node.op == "ConvTranspose":
            return [inputs[0][0], None, *_widened(node, inputs[0][2:])]
        return None


def is_gate(node: gs.Node) -> bool:
    """Whether a node is a fused one that makes one value a channel for each image of its first input."""
    return bool(node.domain == DOMAIN and kind_of(node.op) is SQUEEZE_EXCITE)


def _declared(tensor: gs.Tensor) -> tuple[Size, ...] | None:
    if tensor.shape is None:
        return None
    return tuple(_size(dim, tensor, axis) for axis, dim in enumerate(tensor.shape))


def _size(dim: object, tensor: gs.Tensor, axis: int) -> Size:
    if isinstance(dim, str) and dim:
        return dim
    return ("unknown", id(tensor), axis) if dim is None or isinstance(dim, str) else int(dim)  # type: ignore[call-overload]


def _windows(node: gs.Node, sizes: Sequence[Size]) -> Iterable[Size | None]:
    """floor((size + pads - extent) / stride) + 1, for windows of an extent, as Conv and pooling have it.

    With ``ceil_mode`` that is rounded up, and less 1 where the last window would begin in the padding at the end.
    """
    rank = len(sizes)
    kernel = _list(node, "kernel_shape", 0, rank)
    if kernel is None and node.op == "Conv" and node.inputs[1].shape is not None:
        kernel = [dim if isinstance(dim, int) else 0 for dim in node.inputs[1].shape[2:]]
    strides, dilations = _list(node, "strides", 1, rank), _list(node, "dilations", 1, rank)
    pads = _list(node, "pads", 0, 2 * rank)
    if not kernel or len(kernel) != rank or 0 in kernel or strides is None or dilations is None or pads is None:
        return [None] * rank
    how = str(node.attrs.get("auto_pad", "NOTSET"))
    found: list[Size | None] = []
    for axis, size in enumerate(sizes):
        stride, room = strides[axis], -extent(kernel[axis], dilations[axis])
        begin, end = (pads[axis], pads[axis + rank]) if how == "NOTSET" else (0, 0)
        room += begin + end
        if how.startswith("SAME"):
            found.append(size if stride == 1 else ("same", size, stride))
        elif stride == 1 and room == -1:
            found.append(size)
        else:
            found.append(("window", size, room, stride, begin if node.attrs.get("ceil_mode", 0) else None))
    return found


def _widened(node: gs.Node, sizes: Sequence[Size]) -> Iterable[Size | None]:
    """stride (size - 1) + output_padding + extent - pads, as ConvTranspose has it."""
    rank = len(sizes)
    if "output_shape" in node.attrs or str(node.attrs.get("auto_pad", "NOTSET")) != "NOTSET":
        return [None] * rank
    shape = node.inputs[1].shape
    strides, dilations = _list(node, "strides", 1, rank), _list(node, "dilations", 1, rank)
    pads, more = _list(node, "pads", 0, 2 * rank), _list(node, "output_padding", 0, rank)
    if shape is None or len(shape) != rank + 2 or strides is None or dilations is None or pads is None or more is None:
        return [None] * rank
    found: list[Size | None] = []
    for axis, size in enumerate(sizes):
        if not isinstance(shape[2 + axis], int):
            found.append(None)
            continue
        offset = more[axis] + extent(shape[2 + axis], dilations[axis]) - 1 - pads[axis] - pads[axis + rank]
        found.append(size if strides[axis] == 1 and offset == 0 else ("widened", size, strides[axis], offset))
    return found


def _list(node: gs.Node, name: str, default: int, length: int) -> list[int] | None:
    """A list of integers among the attributes; None for one that does not fit."""
    values = node.attrs.get(name)
    if values is None:
        return None if name == "kernel_shape" else [default] * length
    if not isinstance(values, list) or len(values) != length or not all(isinstance(value, int) for value in values):
        return None
    return values
