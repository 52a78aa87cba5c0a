"""Sizes that onnx's shape inference gets wrong: ONNX Runtime computes others, and nothing may rest on them."""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import constant_value
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.shapes.windows import count, extent

_POOLS = {"MaxPool", "AveragePool", "LpPool"}


def forget_doubtful_shapes(model: Model) -> None:
    """Leave of the inferred shapes that come from such sizes the ranks alone, and of those that come from such ranks
    nothing."""
    nodes = [node for graph in model.graphs() for node in graph.nodes]
    sizes = _behind(nodes, [node for node in nodes if _is_wrong(node)])
    ranks = _behind(nodes, [node for node in nodes if _has_another_rank(node)])
    for node in nodes:
        for tensor in node.outputs:
            if tensor.name in ranks:
                tensor.shape = None
            elif tensor.name in sizes and tensor.shape is not None:
                tensor.shape = [None] * len(tensor.shape)


def _behind(nodes: Sequence[gs.Node], first: Sequence[gs.Node]) -> set[str]:
    """The names of what some nodes make, and of what is made of that."""
    waiting = [name for node in first for name in _made_names(node)]
    if not waiting:
        return set()
    readers: dict[str, list[gs.Node]] = {}
    for node in nodes:
        for name in _read_names(node):
            readers.setdefault(name, []).append(node)
    names = set(waiting)
    while waiting:
        made = {name for node in readers.pop(waiting.pop(), []) for name in _made_names(node)}
        waiting += made - names
        names |= made
    return names


def _bodies(node: gs.Node) -> list[gs.Graph]:
    return [value for value in node.attrs.values() if isinstance(value, gs.Graph)]


def _read_names(node: gs.Node) -> Iterator[str]:
    """What a node reads, and what the bodies of an If, Loop or Scan return to it."""
    yield from (tensor.name for tensor in node.inputs if tensor.name)
    for body in _bodies(node):
        yield from (tensor.name for tensor in body.outputs)


def _made_names(node: gs.Node) -> Iterator[str]:
    yield from (tensor.name for tensor in node.outputs if tensor.name)
    for body in _bodies(node):
        yield from (tensor.name for tensor in body.inputs)


def _has_another_rank(node: gs.Node) -> bool:
    """Whether inference says of a node's result a rank that it does not have.

    ONNX Runtime drops the dimension that is split, which ONNX keeps where ``split`` is given.  Of the products of an
    Attention whose keys or values have any rank inference knows the first dimension, and takes it for all.
    """
    operator = standard_op(node)
    if operator == "Attention":
        return any(tensor.shape is None for tensor in node.inputs[:3])
    is_split = operator == "SplitToSequence" and len(node.inputs) > 1 and bool(node.inputs[1].name)
    return is_split and not node.attrs.get("keepdims", 1)


def _is_wrong(node: gs.Node) -> bool:
    """Whether inference says of a node's result what ONNX Runtime does not make of it."""
    operator = standard_op(node)
    if operator == "STFT":
        return True
    if operator == "ConvTranspose":
        return str(node.attrs.get("auto_pad", "")).startswith("SAME") and any(node.attrs.get("output_padding", []))
    if operator == "Einsum":
        return _may_broadcast(node)
    if operator == "PRelu":
        return _slope_is_larger(node)
    if operator not in _POOLS and operator != "Resize":
        return False
    before, after = node.inputs[0].shape, node.outputs[0].shape
    if before is None or after is None or len(before) != len(after):
        return False
    sizes = _pooled(node, before[2:]) if operator in _POOLS else _resized(node, before)
    return any(
        isinstance(own, int) and isinstance(size, int) and own != size
        for own, size in zip(sizes, after[len(after) - len(sizes) :], strict=True)
    )


def _may_broadcast(node: gs.Node) -> bool:
    """Whether a letter of an Einsum stands for sizes that are not known to be one, or dots do.

    ONNX Runtime broadcasts a size of 1 under it, and inference says the first operand's size.
    """
    terms = str(node.attrs.get("equation", "")).split("->")[0].replace(" ", "").split(",")
    if sum("..." in term for term in terms) > 1:
        return True
    sizes: dict[str, object] = {}
    for term, tensor in zip(terms, node.inputs, strict=False):
        before, _, behind = term.partition("...")
        shape = tensor.shape
        if shape is None or len(shape) < len(before + behind):
            return True
        read = [*shape[: len(before)], *shape[len(shape) - len(behind) :]]
        for letter, size in zip(before + behind, read, strict=True):
            own = object() if size is None else size  # like no other
            if sizes.setdefault(letter, own) != own:
                return True
    return False


def _slope_is_larger(node: gs.Node) -> bool:
    """Whether a slope of PRelu may not broadcast to what it is multiplied by: ONNX Runtime broadcasts both."""
    data, slope = node.inputs[0].shape, node.inputs[1].shape
    if data is None or slope is None or len(slope) > len(data):
        return True
    pairs = zip(slope, data[len(data) - len(slope) :], strict=True)
    return any(size != 1 and size != whole for size, whole in pairs)


def _pooled(node: gs.Node, sizes: Sequence[object]) -> list[int | None]:
    """A window that would begin behind the image, or in the padding at its end, is none (``pool_attributes.h`` of ONNX
    Runtime)."""
    rank = len(sizes)
    kernel = node.attrs.get("kernel_shape", [])
    strides = node.attrs.get("strides", [1] * rank)
    dilations = node.attrs.get("dilations", [1] * rank)
    pads = node.attrs.get("pads", [0] * 2 * rank)
    regular = len(kernel) == len(strides) == len(dilations) == rank and len(pads) == 2 * rank
    if not regular or min(strides, default=0) < 1:
        return []
    if not node.attrs.get("ceil_mode", 0) or node.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return []
    found: list[int | None] = []
    for axis, size in enumerate(sizes):
        if not isinstance(size, int):
            found.append(None)
            continue
        window, around = extent(kernel[axis], dilations[axis]), (pads[axis], pads[axis + rank])
        found.append(count(size, window, strides[axis], around, rounds_up=True))
    return found


def _resized(node: gs.Node, sizes: Sequence[object]) -> list[int | None]:
    """Sizes times scales, as float32, rounded down (``ComputeOutputShape`` in ``upsamplebase.h`` of ONNX Runtime)."""
    place = 1 if len(node.inputs) == 2 else 2
    scales = constant_value(node.inputs[place]) if len(node.inputs) == place + 1 else None
    if scales is None or scales.ndim != 1:
        return []
    axes = node.attrs.get("axes", list(range(len(sizes))))
    if scales.shape[0] != len(axes) or not all(-len(sizes) <= axis < len(sizes) for axis in axes):
        return []
    found: list[int | None] = [None] * len(sizes)
    for axis, scale in zip(axes, scales.astype(np.float32), strict=True):
        size = sizes[axis]
        if isinstance(size, int) and np.isfinite(product := scale * np.float32(size)):
            found[axis] = int(product)
    return found
