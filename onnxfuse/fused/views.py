"""What a region reads through Slice, Split and Concat, as views of other tensors: a fused node needs no copies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from onnxfuse.model.constants import integers_of, slices_of
from onnxfuse.model.dtypes import from_numpy
from onnxfuse.model.elementwise_operators import HAVE_AXIS
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.model.slices import AxisSlice
from onnxfuse.program.figures import MAX_RANK, MAX_SLICES
from onnxfuse.program.lowering import ignores_input, vector_axes


@dataclass(frozen=True)
class ViewedInput:
    """``tensor`` is what ``slices`` leave of ``source``, perhaps with the halves of the last dimension swapped."""

    tensor: gs.Tensor
    source: gs.Tensor
    slices: tuple[AxisSlice, ...] = ()
    swaps_halves: bool = False


def find_views(
    region: Sequence[gs.Node], opset: int, within: set[int], is_read_outside: Callable[[gs.Tensor, set[int]], bool]
) -> tuple[list[gs.Node], list[ViewedInput]]:
    """The Slices, Splits and Concats among the nodes ``within`` (their ids) that only serve ``region``, and what they
    give it.

    The nodes are in topological order, and so may become the region's first.  ``is_read_outside`` says whether
    anything but some nodes (their ids) reads a tensor.
    """
    inside = {id(node) for node in region}
    excluded = {id(tensor) for node in region for tensor in _not_viewed(node, opset)}
    nodes, swapped = _swapped_halves(region, excluded, within, is_read_outside)
    inside.update(map(id, nodes))
    halved = {id(view.source) for view in swapped}
    parts: dict[int, ViewedInput] = {}
    read = {id(tensor): tensor for node in region for tensor in node.inputs}
    read.update((id(view.source), view.source) for view in swapped)
    waiting = list(read.values())
    room = {id(tensor): MAX_SLICES for tensor in waiting}  # slices that an input may still have before this tensor
    while waiting:
        tensor = waiting.pop()
        node = tensor.inputs[0] if tensor.inputs else None
        if node is None or id(node) in inside or id(node) not in within or not (own := parts_of(node)):
            continue
        left = min(room.get(id(part.tensor), MAX_SLICES) - len(part.slices) for part in own)
        made = [tensor for tensor in node.outputs if tensor.name]
        if left < 0 or any(id(tensor) in excluded or is_read_outside(tensor, inside) for tensor in made):
            continue
        if any(id(part.tensor) in halved and any(one.step > 1 for one in part.slices) for part in own):
            continue  # elements of a half lie side by side
        inside.add(id(node))
        nodes.insert(0, node)  # nodes are found after those that read their results
        parts.update((id(part.tensor), part) for part in own)
        waiting.append(node.inputs[0])
        room[id(node.inputs[0])] = min(left, room.get(id(node.inputs[0]), MAX_SLICES))
    direct = {id(tensor) for node in region for tensor in node.inputs}
    views = [*swapped, *(part for part in parts.values() if id(part.tensor) in direct)]
    return nodes, [_through(view, parts) for view in views]


def _not_viewed(node: gs.Node, opset: int) -> list[gs.Tensor]:
    """Inputs that a Program reads as a vector along an axis, or of which it takes the type alone."""
    found = [tensor for index, tensor in enumerate(node.inputs) if ignores_input(node, index)]
    if node.op in HAVE_AXIS:
        found += [node.inputs[index] for index in vector_axes(node, opset)]
    return found


def _swapped_halves(
    region: Sequence[gs.Node],
    excluded: set[int],
    within: set[int],
    is_read_outside: Callable[[gs.Tensor, set[int]], bool],
) -> tuple[list[gs.Node], list[ViewedInput]]:
    """Concats of the second half of a tensor and the first, as in rotary embeddings, and what makes the halves."""
    inputs = {id(tensor): tensor for node in region for tensor in node.inputs}
    nodes: list[gs.Node] = []
    views: list[ViewedInput] = []
    for tensor in inputs.values():
        node = tensor.inputs[0] if tensor.inputs else None
        source = source_of_swapped(node)
        if node is None or source is None or id(tensor) in excluded or is_read_outside(tensor, set(map(id, region))):
            continue
        makers = {id(half.inputs[0]): half.inputs[0] for half in node.inputs}
        made = [half for maker in makers.values() for half in maker.outputs if half.name]
        if not makers.keys() | {id(node)} <= within or any(is_read_outside(half, {id(node)}) for half in made):
            continue
        nodes += [*makers.values(), node]
        views.append(ViewedInput(tensor, source, swaps_halves=True))
    return nodes, views


def source_of_swapped(node: gs.Node | None) -> gs.Tensor | None:
    """The tensor whose halves along the last dimension a Concat puts together the other way round."""
    if node is None or standard_op(node) != "Concat" or not all(half.inputs for half in node.inputs):
        return None
    parts = {id(part.tensor): part for half in node.inputs for part in parts_of(half.inputs[0])}
    halves = [parts[id(half)] for half in node.inputs if id(half) in parts]
    if not len(halves) == len(node.inputs) == 2 or halves[0].source is not halves[1].source:
        return None
    source = halves[0].source
    last = len(source.shape) - 1
    size = source.shape[last]
    if not isinstance(size, int) or size % 2 or node.attrs.get("axis") not in (-1, last):
        return None
    for half, places in zip(halves, (range(size // 2, size), range(size // 2)), strict=True):
        if len(half.slices) != 1 or half.slices[0].axis not in (-1, last):
            return None
        (part,) = half.slices
        if part.places(size) != places:
            return None
    return source


def _through(part: ViewedInput, parts: dict[int, ViewedInput]) -> ViewedInput:
    """The same as a part of what no other is a part of."""
    while id(part.source) in parts:
        source = parts[id(part.source)]
        part = replace(part, source=source.source, slices=source.slices + part.slices)
    return part


def parts_of(node: gs.Node) -> list[ViewedInput]:
    """What a node takes of its input; nothing if it is no Slice or Split, or where that is not known in advance."""
    operator = standard_op(node)
    if operator not in ("Slice", "Split") or isinstance(node.inputs[0], gs.Constant):
        return []
    shape = node.inputs[0].shape
    if shape is None or not 0 < len(shape) <= MAX_RANK or from_numpy(node.inputs[0].dtype) is None:
        return []
    return _slice(node, len(shape)) if operator == "Slice" else _split(node, len(shape))


def _slice(node: gs.Node, rank: int) -> list[ViewedInput]:
    slices = slices_of(node) or ()
    if not 0 < len(slices) <= MAX_SLICES or not all(-rank <= part.axis < rank for part in slices):
        return []
    if len({part.axis % rank for part in slices}) < len(slices):
        return []
    return [ViewedInput(node.outputs[0], node.inputs[0], slices)]


def _split(node: gs.Node, rank: int) -> list[ViewedInput]:
    """Of an axis whose size is known and is that of all parts together: anything else ONNX Runtime finds out."""
    axis = node.attrs.get("axis", 0)
    size = node.inputs[0].shape[axis] if -rank <= axis < rank else None
    sizes = integers_of(node, "split", 1, [])
    if not isinstance(size, int) or sizes is None:
        return []
    if node.attrs.get("num_outputs", len(node.outputs)) != len(node.outputs):
        return []
    sizes = sizes or _equal_sizes(size, len(node.outputs), "num_outputs" in node.attrs)
    if len(sizes) != len(node.outputs) or sum(sizes) != size or min(sizes) < 0:
        return []
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [
        ViewedInput(tensor, node.inputs[0], (AxisSlice(axis, end - length, end, 1),))
        for tensor, length, end in zip(node.outputs, sizes, ends, strict=True)
        if tensor.name
    ]


def _equal_sizes(size: int, count: int, uneven: bool) -> list[int]:
    """Sizes that are all the same; but for the last, which may be smaller, if they may be ``uneven``."""
    length = -(-size // count) if uneven else size // count
    return [length] * (count - 1) + [size - length * (count - 1) if uneven else length]
