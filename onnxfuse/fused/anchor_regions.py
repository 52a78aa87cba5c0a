"""What an anchor, a convolution or a matrix product, takes in: the elementwise nodes after it, those beside them, and
cheap ones before it.

The tail is the largest convex region of elementwise nodes that follow the anchor and are certain to have the shape of
its result.  A node beside it gives an operand to the tail and to nothing else.  What stands before an anchor is
computed again wherever its input is read again, so only cheap operations are taken in there, and only if nothing else
reads their results.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import onnx_graphsurgeon as gs

from onnxfuse.fused.contraction import Contraction
from onnxfuse.fused.conv.conv_node import ConvRegion
from onnxfuse.fused.fused_node import RegionProgram
from onnxfuse.fused.regions import MAX_NODES
from onnxfuse.fused.sizes import Size, Sizes
from onnxfuse.program import ProgramBuilder
from onnxfuse.program.lowering import ignores_input, lower
from onnxfuse.program.node_lowering import tensor_dtype
from onnxfuse.program.ops import OPS

MOST_BEFORE = 8
"""Instructions before an anchor."""


class Region(Protocol):
    """An anchor's node with those around it."""

    @property
    def nodes(self) -> tuple[gs.Node, ...]:
        """All nodes, in topological order."""


class AnchorRegions:
    """Forms regions around anchors of one graph, one after the other; no node is in two of them.

    ``fusible`` are the ids of the elementwise nodes that may be in one, ``is_output`` says whether a graph returns a
    tensor.
    """

    def __init__(
        self,
        nodes: Sequence[gs.Node],
        fusible: set[int],
        is_output: Callable[[gs.Tensor], bool],
        sizes: Sizes,
        opset: int,
    ) -> None:
        self._graph = Contraction(nodes)
        self._nodes = {id(node) for node in nodes}
        self._fusible = fusible
        self._is_output = is_output
        self._sizes = sizes
        self._opset = opset
        self._broadcast: dict[int, tuple[list[gs.Tensor], list[gs.Tensor]]] = {}

    def tail(self, anchor: gs.Node, accepts: Callable[[list[gs.Node]], bool]) -> list[gs.Node]:
        """The nodes after ``anchor``, in topological order; they are taken from now on.

        As many as there are, or half of them, a quarter and so on until ``accepts`` has no objection.
        """
        space = self._sizes.of(anchor.outputs[0])
        most = MAX_NODES if space is not None else 0
        while True:
            region, outside = self._graph.grow(anchor, lambda node: self._fits(node, space), most)
            if len(region) == 1 or accepts(region[1:]):
                self._graph.contract(region, outside)
                return region[1:]
            most = (len(region) - 1) // 2

    def beside(
        self, anchor: gs.Node, tail: Sequence[gs.Node], accepts: Callable[[list[gs.Node]], bool]
    ) -> list[gs.Node]:
        """The ``tail`` of ``anchor`` with the nodes beside it, in topological order; they are taken from now on.

        Just the tail if ``accepts`` objects to all of them.
        """
        found = self._closure(tail, self._sizes.of(anchor.outputs[0]) or ())
        whole = [*sorted(found, key=self._graph.position), *tail]
        if not found or not accepts(whole):
            return list(tail)
        self._graph.take(anchor, found)
        return whole

    def head(
        self, conv: gs.Node, dtype: str, accepts: Callable[[list[gs.Node], gs.Tensor], bool]
    ) -> tuple[list[gs.Node], gs.Tensor]:
        """The nodes before ``conv``, in topological order, and the tensor that its kernel reads in place of its input.

        They are taken from now on; there are none if ``accepts`` objects to all of them.
        """
        data = conv.inputs[0]
        space = self._sizes.of(data)
        if space is None:
            return [], data
        before = sorted(self._closure([conv], space, {id(data)}), key=self._graph.position)
        made = {id(node.outputs[0]) for node in before}
        read = [tensor for node in before for tensor in self._reads(node)[0] if id(tensor) not in made]
        whole = [tensor for tensor in read if self._is_whole(tensor, space, dtype)]
        if not whole or not self._is_whole(data, space, dtype) or not self._is_cheap(before, MOST_BEFORE):
            return [], data
        if not accepts(before, whole[0]):
            return [], data
        self._graph.take(conv, before)
        return before, whole[0]

    def shifted(self, first: ConvRegion, second: ConvRegion) -> tuple[ConvRegion, ConvRegion] | None:
        """Both regions, with the end of the ``first``'s tail moved to the begin of the ``second``'s head.

        None if that is no use.  It is where the second alone reads what the end makes, and what the end is made of is
        read elsewhere too: then the first has one output less.  The second's data are a value of the first's tail.
        """
        if not second.before:
            return None
        inside = {id(node) for node in second.before}
        end: list[gs.Node] = []
        for node in reversed(first.after):
            output = node.outputs[0]
            if self._is_output(output) or any(id(reader) not in inside for reader in self._graph.readers(output)):
                continue
            inside.add(id(node))
            end.insert(0, node)
        rest = replace(first, after=tuple(node for node in first.after if id(node) not in inside))
        made = {id(node.outputs[0]): node.outputs[0] for node in (first.conv, *rest.after)}
        reads = {id(tensor): tensor for node in end for tensor in node.inputs if id(tensor) in made}
        is_read = self.read_outside(first)
        if len(reads) != 1 or not end or not all(is_read(tensor) for tensor in reads.values()):
            return None
        whole = replace(second, before=(*end, *second.before), data=next(iter(reads.values())))
        space, dtype = self._sizes.of(second.data), second.convolution.dtype
        fits = (
            space is not None and self._is_whole(whole.data, space, dtype) and self._is_cheap(whole.before, MOST_BEFORE)
        )
        return (rest, whole) if fits else None

    def read_outside(self, region: Region) -> Callable[[gs.Tensor], bool]:
        """Says whether a tensor that the region computes is read by anything but the region."""
        inside = {id(node) for node in region.nodes}

        def is_read(tensor: gs.Tensor) -> bool:
            return self._is_output(tensor) or any(id(node) not in inside for node in self._graph.readers(tensor))

        return is_read

    def _fits(self, node: gs.Node, space: tuple[Size, ...] | None) -> bool:
        """Whether a node after an anchor is certain to have the shape of its result."""
        if space is None or id(node) not in self._fusible:
            return False
        if any(ignores_input(node, index) and tensor.inputs for index, tensor in enumerate(node.inputs)):
            return False  # the type of the result may be all that it takes
        shapes = [self._sizes.of(tensor) for tensor in self._reads(node)[0]]
        return all(shape is not None and _broadcasts(shape, space) for shape in shapes)

    def _closure(
        self, region: Sequence[gs.Node], space: tuple[Size, ...], only: set[int] | None = None
    ) -> list[gs.Node]:
        """The nodes that give tensors to the ``region`` and to nothing else, directly or through each other.

        ``only`` restricts the tensors through which the region is entered.  What has not the shape of the space would
        be computed once an element, and has to be cheap.
        """
        inside = {id(node) for node in region}
        found: list[gs.Node] = []
        vectors = {id(tensor) for node in region if only is None for tensor in self._reads(node)[1]}
        tensors = [t for node in region for t in node.inputs if only is None or id(t) in only]
        waiting = {id(node): node for tensor in tensors for node in tensor.inputs if id(node) in self._nodes}
        while waiting and len(found) < MAX_NODES:
            node = max(waiting.values(), key=self._graph.position)  # its readers have been looked at
            del waiting[id(node)]
            if id(node) in inside or id(node) not in self._fusible or self._graph.is_taken(node):
                continue
            output = node.outputs[0]
            if id(output) in vectors or self._is_output(output):
                continue
            if not all(id(reader) in inside for reader in self._graph.readers(output)):
                continue
            if self._sizes.of(output) != space and not self._is_cheap([node]):
                continue
            inside.add(id(node))
            found.append(node)
            broadcast, along = self._reads(node)
            vectors.update(map(id, along))
            waiting.update((id(p), p) for tensor in broadcast for p in tensor.inputs if id(p) in self._nodes)
        return found

    def _reads(self, node: gs.Node) -> tuple[list[gs.Tensor], list[gs.Tensor]]:
        """What a node's Program reads by broadcasting, and as vectors along an axis."""
        if id(node) not in self._broadcast:
            builder = ProgramBuilder()
            broadcast: list[gs.Tensor] = []
            along: list[gs.Tensor] = []

            def operand(index: int, axis: int | None = None) -> int:
                (broadcast if axis is None else along).append(node.inputs[index])
                return builder.input(tensor_dtype(node.inputs[index]), axis)

            lower(node, self._opset, builder, operand)
            self._broadcast[id(node)] = broadcast, along
        return self._broadcast[id(node)]

    def _is_whole(self, tensor: gs.Tensor, space: tuple[Size, ...], dtype: str) -> bool:
        """Whether a tensor can be the input of the convolution, to which everything else before it broadcasts."""
        variable = not isinstance(tensor, gs.Constant)
        return variable and self._sizes.of(tensor) == space and tensor_dtype(tensor) == dtype

    def _is_cheap(self, nodes: Sequence[gs.Node], most: int = MAX_NODES) -> bool:
        """Whether nodes, of which the last gives the result, are cheap to compute again."""
        region = RegionProgram(self._opset)
        for node in nodes:
            region.lower(node)
        instructions = region.build([nodes[-1].outputs[0]]).instructions
        return len(instructions) <= most and all(OPS[one.op].cost.repeatable for one in instructions)


def _broadcasts(shape: tuple[Size, ...], space: tuple[Size, ...]) -> bool:
    """Whether a shape is certain to broadcast to a space without making it larger."""
    if len(shape) > len(space):
        return False
    return all(own in (1, size) for own, size in zip(shape, space[len(space) - len(shape) :], strict=True))
