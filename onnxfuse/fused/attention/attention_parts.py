"""Parts of a tensor along one axis, however a graph takes them: Slice, Split or Gather, and a Squeeze after them."""

from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from onnxfuse.model.constants import constant_value, integers_of, slices_of
from onnxfuse.model.graph_ir import standard_op


@dataclass(frozen=True)
class Part:
    """``size`` indices of ``axis`` of a tensor, from ``first`` on.

    ``nodes`` take them, in topological order; ``squeezed`` says that the axis, of one index, is left out.
    """

    tensor: gs.Tensor
    axis: int
    first: int
    size: int
    squeezed: bool
    nodes: tuple[gs.Node, ...]


def part_of(tensor: gs.Tensor) -> Part | None:
    """What part of which other tensor this one is; None if it is none, or one of unknown place."""
    node = producer(tensor)
    if standard_op(node) != "Squeeze":
        return _range_of(tensor)
    found, axes = _range_of(node.inputs[0]), integers_of(node, "axes", 1)
    if found is None or found.squeezed or found.size != 1 or axes is None or len(axes) != 1:
        return None
    if axes[0] % len(found.tensor.shape) != found.axis:
        return None
    return replace(found, squeezed=True, nodes=(*found.nodes, node))


def producer(tensor: gs.Tensor) -> gs.Node:
    """The node that makes a tensor; one of no operator for an input and for a constant."""
    return tensor.inputs[0] if tensor.inputs else gs.Node("")


def _range_of(tensor: gs.Tensor) -> Part | None:
    node = producer(tensor)
    operator = standard_op(node)
    if operator == "Slice":
        return _sliced(node)
    if operator == "Split":
        return _split(node, tensor)
    return _gathered(node) if operator == "Gather" else None


def _sliced(node: gs.Node) -> Part | None:
    slices = slices_of(node) or ()
    if len(slices) != 1 or slices[0].step != 1:
        return None
    total = _length(node.inputs[0], slices[0].axis)
    if total is None:
        return None
    places = slices[0].places(total)
    return _part(node, slices[0].axis, places.start, len(places))


def _split(node: gs.Node, tensor: gs.Tensor) -> Part | None:
    axis = node.attrs.get("axis", 0)
    place = next(index for index, made in enumerate(node.outputs) if made is tensor)
    before = [_length(made, axis) for made in node.outputs[:place]]
    size = _length(tensor, axis)
    known = [length for length in before if length is not None]
    return None if size is None or len(known) < place else _part(node, axis, sum(known), size)


def _gathered(node: gs.Node) -> Part | None:
    """One index: a scalar leaves the axis out."""
    axis, indices = node.attrs.get("axis", 0), constant_value(node.inputs[1])
    total = _length(node.inputs[0], axis)
    if indices is None or indices.size != 1 or indices.ndim > 1 or total is None:
        return None
    index = int(indices.reshape(()))
    return _part(node, axis, index + total if index < 0 else index, 1, squeezed=indices.ndim == 0)


def _part(node: gs.Node, axis: int, first: int, size: int, squeezed: bool = False) -> Part | None:
    """None if it is not all within the tensor."""
    tensor = node.inputs[0]
    total = _length(tensor, axis)
    if total is None or first < 0 or size < 1 or first + size > total:
        return None
    return Part(tensor, axis % len(tensor.shape), first, size, squeezed, (node,))


def _length(tensor: gs.Tensor, axis: int) -> int | None:
    """A dimension, if it is known to be there and known."""
    shape = tensor.shape
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    return shape[axis] if isinstance(shape[axis], int) else None
