"""Which of the library's convolutions have the channels last, and between which of them tensors do.

With the channels last the sums of a pixel's filters are vectors, what they read of a pixel follows one another, and
nothing is copied: that is faster than the plain layout, but only between convolutions that agree on it.  What else
reads or writes a tensor knows the plain layout, and a convolution changes the layout of what it reads or writes itself.
MaxPool and AveragePool have a kernel for either, and keep the layout of what they read.
Some nodes do not care: elementwise ones whose operands are all of one shape, a Slice or Split, a Concat of channels,
a gate, and a Shape, whose sizes are put in order; and a Transpose between the two layouts is nothing where its tensor
has the channels last.  What a Concat reads in another layout than it makes is transposed.  As for the choice of the
convolutions (cpu_convolutions.py), the cheapest assignment is a minimum cut.
"""

import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from onnxfuse.fused.conv.conv_figures import NODE_CALL, Layout
from onnxfuse.fused.conv.conv_node import ConvFusion, operands
from onnxfuse.fused.conv.conv_times import ConvTimes
from onnxfuse.fused.minimum_cut import MinimumCut
from onnxfuse.fused.nhwc.pools import Pool, find_pool
from onnxfuse.fused.sizes import Size, Sizes, is_gate
from onnxfuse.fused.views import parts_of
from onnxfuse.model.constants import is_scalar
from onnxfuse.model.graph import captured_tensors
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.program import Program
from onnxfuse.program.lowering import is_elementwise


@dataclass(frozen=True)
class NhwcLayout:
    """What has the channels last: convolutions and pools, by the ids of their nodes, and tensors, by their ids; and the
    ``nodes`` that are to be others for it: those of Concat, Shape, Slice, Split and Transpose."""

    convolutions: set[int] = field(default_factory=set)
    tensors: dict[int, gs.Tensor] = field(default_factory=dict)
    nodes: list[gs.Node] = field(default_factory=list)
    pools: dict[int, Pool] = field(default_factory=dict)

    def inputs(self, fusion: ConvFusion) -> list[bool]:
        """For each input of a fused node whether it has the channels last."""
        return [id(tensor) in self.tensors for tensor in fusion.inputs]

    def output(self, fusion: ConvFusion) -> bool:
        """Whether a fused node's outputs, which are all alike, have them last."""
        return id(fusion.outputs[0]) in self.tensors


def choose_layout(
    nodes: Sequence[gs.Node],
    fusions: Sequence[ConvFusion],
    is_output: Callable[[gs.Tensor], bool],
    sizes: Sizes,
    times: ConvTimes,
) -> NhwcLayout:
    """The layout for the ``fusions`` of one graph of ``nodes``, which is cheapest by these ``times``."""
    return _Choice(nodes, fusions, is_output, sizes, times).solve()


def to_last(rank: int) -> list[int]:
    """The ``perm`` that puts the channels last."""
    return [0, *range(2, rank), 1]


def to_first(rank: int) -> list[int]:
    """The ``perm`` that puts them back."""
    return [0, rank - 1, *range(1, rank - 1)]


def permutes(node: gs.Node) -> gs.Tensor | None:
    """The tensor of a Transpose between the two layouts that has the channels first; None for other nodes."""
    perm = node.attrs.get("perm") if standard_op(node) == "Transpose" else None
    if not perm or not 3 <= len(perm) <= 4:
        return None
    if perm == to_last(len(perm)):
        return node.inputs[0]
    return node.outputs[0] if perm == to_first(len(perm)) else None


def joins_channels(node: gs.Node) -> bool:
    """Whether a node is a Concat of channels."""
    shape = node.outputs[0].shape if standard_op(node) == "Concat" else None
    return shape is not None and 3 <= len(shape) <= 4 and node.attrs.get("axis") in (1, 1 - len(shape))


def takes_parts(node: gs.Node) -> bool:
    """Whether a node is a Slice or Split of known parts of a tensor that may have its channels last."""
    return bool(parts_of(node)) and 3 <= len(node.inputs[0].shape) <= 4


def tells_sizes(node: gs.Node) -> bool:
    """Whether a node is the Shape of a tensor that may have its channels last."""
    return standard_op(node) == "Shape" and node.inputs[0].shape is not None and 3 <= len(node.inputs[0].shape) <= 4


class _Choice:
    """The side True of the cut has the channels last."""

    def __init__(
        self,
        nodes: Sequence[gs.Node],
        fusions: Sequence[ConvFusion],
        is_output: Callable[[gs.Tensor], bool],
        sizes: Sizes,
        times: ConvTimes,
    ) -> None:
        self._nodes = nodes
        self._fusions = fusions
        self._own = {id(fusion.region.conv) for fusion in fusions}
        self._is_output = is_output
        self._sizes = sizes
        self._shapes = times.shapes
        self._times = times
        self._cut = MinimumCut()
        self._tensors: dict[int, gs.Tensor] = {}
        self._pools: dict[int, Pool] = {}

    def solve(self) -> NhwcLayout:
        """The cheapest assignment."""
        for fusion in self._fusions:
            self._add(fusion)
        inside = {id(node) for fusion in self._fusions for node in fusion.region.nodes}
        outside = [node for node in self._nodes if id(node) not in inside]
        free = {id(node): node for node in outside if self._add_pool(node) or self._is_free(node)}
        for tensor in self._others(outside, free):
            if id(tensor) in self._tensors:
                self._cut.add(id(tensor), math.inf, 0.0)
        last = self._cut.solve()
        tensors = {key: tensor for key, tensor in self._tensors.items() if key in last}
        return NhwcLayout(
            {id(fusion.region.conv) for fusion in self._fusions if id(fusion.region.conv) in last},
            tensors,
            [node for node in free.values() if any(id(one) in tensors for one in (*node.inputs, *node.outputs))],
            {key: pool for key, pool in self._pools.items() if key in last},
        )

    def _add_pool(self, node: gs.Node) -> bool:
        """Whether a node is a pool that may have its channels last: what it reads and makes has them where it has."""
        pool = find_pool(node)
        if pool is None:
            return False
        self._pools[id(node)] = pool
        self._cut.add(id(node), self._times.of_pool(node, Layout.NHWC), self._times.of_pool(node, Layout.PLAIN))
        for tensor in (node.inputs[0], node.outputs[0]):
            self._note(tensor)
            self._cut.separate(id(node), id(tensor), math.inf)
            self._cut.separate(id(tensor), id(node), math.inf)
        return True

    def _is_free(self, node: gs.Node) -> bool:
        """Whether a node does not care for the layout; what it reads and makes is then in one."""
        tensor = permutes(node)
        if tensor is not None:
            self._note(tensor)
            self._cut.add(id(tensor), 0.0, self._transpose(tensor))
            # With its channels last the one tensor is the other as that is, which has no channels first.
            other = node.outputs[0] if tensor is node.inputs[0] else node.inputs[0]
            self._note(other)
            self._cut.add(id(other), math.inf, 0.0)
            return True
        if tells_sizes(node):
            self._cut.add(id(node.inputs[0]), NODE_CALL, 0.0)
            return True
        if takes_parts(node):
            self._note(node.inputs[0])
            for part in filter(_is_named, node.outputs):
                self._note(part)
                self._cut.separate(id(node.inputs[0]), id(part), math.inf)
                self._cut.separate(id(part), id(node.inputs[0]), math.inf)
            return True
        joins = joins_channels(node)
        if len(node.outputs) != 1 or not (joins or self._is_of_one_shape(node)):
            return False
        first = node.outputs[0]
        self._note(first)
        for key, other in {id(tensor): tensor for tensor in node.inputs if not is_scalar(tensor)}.items():
            self._note(other)
            change = self._transpose(other) if joins else math.inf
            self._cut.separate(id(first), key, change)
            self._cut.separate(key, id(first), change)
        return True

    def _transpose(self, tensor: gs.Tensor) -> float:
        return self._times.transpose(math.prod(self._shapes.of(tensor) or ()))

    def _is_of_one_shape(self, node: gs.Node) -> bool:
        """Whether a node is elementwise, and each of its operands has the result's shape or a single element that is
        for all channels."""
        space = self._sizes.of(node.outputs[0])
        if not is_elementwise(node) or _has_vectors(node) or space is None or not 3 <= len(space) <= 4:
            return False
        whole = [tensor for tensor in node.inputs if not is_scalar(tensor)]
        return bool(whole) and all(tensor.name and self._sizes.of(tensor) == space for tensor in whole)

    def _add(self, fusion: ConvFusion) -> None:
        conv, outputs = fusion.region.conv, fusion.outputs
        nhwc = self._times.of(conv, Layout.NHWC)
        self._cut.add(id(conv), nhwc, self._times.of(conv, Layout.PLAIN))
        if math.isinf(nhwc):  # the plain layout is all it has
            for tensor in (*fusion.inputs, *outputs):
                self._note(tensor)
                self._cut.add(id(tensor), math.inf, 0.0)
            return
        if (handed := self._times.handed_on(conv)) is not None and id(handed[0]) in self._own:
            self._cut.reward((id(conv), id(handed[0]), id(fusion.region.data)), handed[1])
        before, after = operands(fusion.inputs, fusion.prologue)
        self._add_space(id(conv), fusion.region.data, fusion.region.data, before, fusion.prologue)
        self._add_space(id(conv), conv.outputs[0], outputs[0], [*after, *outputs[1:]], fusion.epilogue)

    def _add_space(
        self,
        conv: int,
        whole: gs.Tensor,
        first: gs.Tensor,
        others: Sequence[gs.Tensor],
        program: Program | None,
    ) -> None:
        """What a convolution reads or writes, the ``first`` and all ``others`` of it that are whole, in one layout.

        ``whole`` is a tensor of that size, ``program`` computes it or from it.
        """
        self._note(first)
        self._cut.separate(id(first), conv, math.inf)
        shape = self._shapes.of(first)
        elements = 0 if shape is None else math.prod(shape)
        self._cut.separate(conv, id(first), self._times.change(elements))
        space = self._sizes.of(whole)
        along = [] if program is None else [value.axis is not None for value in program.inputs[1:]]
        along += [False] * (len(others) - len(along))
        for tensor, is_vector in zip(others, along, strict=True):
            size = self._sizes.of(tensor)
            if size == space and not is_vector:
                self._note(tensor)
                self._cut.separate(id(tensor), id(first), math.inf)
                self._cut.separate(id(first), id(tensor), math.inf)
                continue
            self._note(tensor)
            self._cut.add(id(tensor), math.inf, 0.0)
            if not is_vector and not _is_same_in_both(size, space):
                self._cut.add(id(first), math.inf, 0.0)

    def _note(self, tensor: gs.Tensor) -> None:
        self._tensors[id(tensor)] = tensor

    def _others(self, outside: Sequence[gs.Node], free: Container[int]) -> Iterator[gs.Tensor]:
        """The tensors that have to stay plain, for something else reads or writes them."""
        made = {id(tensor) for fusion in self._fusions for tensor in fusion.outputs}
        made |= {id(tensor) for node in outside if id(node) in free for tensor in node.outputs}
        yield from (tensor for key, tensor in self._tensors.items() if key not in made or self._is_output(tensor))
        for node in outside:
            if id(node) not in free:
                yield from node.inputs[1:] if is_gate(node) else node.inputs
        for node in self._nodes:
            yield from captured_tensors(node)


def _is_named(tensor: gs.Tensor) -> bool:
    return bool(tensor.name)


def _has_vectors(node: gs.Node) -> bool:
    """Whether a node has operands that lie along an axis, if only of one element: an axis of that size."""
    if node.op in ("QuantizeLinear", "DequantizeLinear"):
        return node.inputs[1].shape is None or len(node.inputs[1].shape) > 0
    return bool(node.op == "BatchNormalization")


def _is_same_in_both(size: tuple[Size, ...] | None, space: tuple[Size, ...] | None) -> bool:
    """Whether the elements of what broadcasts to a space are in one order, wherever the channels are."""
    if size is None or space is None:
        return False
    whole = (*(1,) * (len(space) - len(size)), *size)
    return whole[1] == 1 or all(dim == 1 for dim in whole[2:])


def permuted(shape: Sequence[int | str | None]) -> list[int | str | None]:
    """[N, C, spatial…] as [N, spatial…, C]."""
    return [shape[axis] for axis in to_last(len(shape))]
