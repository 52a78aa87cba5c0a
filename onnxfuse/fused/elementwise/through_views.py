"""Regions of elementwise nodes that read and write through views, and that views join."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.likely_shapes import LikelyShapes
from onnxfuse.fused.regions import MAX_NODES
from onnxfuse.fused.sizes import Sizes
from onnxfuse.fused.space.blocks import Block, Blocks
from onnxfuse.fused.space.growth import Graph
from onnxfuse.fused.space.layouts import LayoutError
from onnxfuse.fused.space.permuted import why_not_permuted
from onnxfuse.fused.space.spaces import Space
from onnxfuse.fused.space.view_nodes import is_free, is_part, is_view, left_to_ort
from onnxfuse.program.figures import MAX_INPUTS, MAX_OPERANDS, MAX_OUTPUTS
from onnxfuse.program.node_lowering import UnsupportedError
from onnxfuse.rewrite.base import PassContext

IN_MEMORY = "its result is read by others too, and in memory anyway"
NO_GAIN = "no pass over memory less"
_TOO_MANY_NODES = f"more than {MAX_NODES} nodes"
NAME = "fuse-elementwise"
_INTEGER_CONSTANTS = 9
"""The opset from which a function may have constants of integers, as views take them."""

Viewing = tuple[list[gs.Node], Space]
"""A region in topological order, and the space that its tensors have."""


class ThroughViews:
    """Grows the regions of one graph's ``nodes``, in topological order.

    ``is_read_outside`` says whether anything but some nodes (their ids) reads a tensor.  The ``context`` is told why
    views are left alone.
    """

    def __init__(
        self,
        nodes: Sequence[gs.Node],
        opset: int,
        sizes: Sizes,
        likely: LikelyShapes,
        context: PassContext,
        is_read_outside: Callable[[gs.Tensor, set[int]], bool],
    ) -> None:
        self._graph = Graph(nodes)
        self._opset = opset
        self._sizes = sizes
        self._likely = likely
        self._on = context.on
        self._everything = context.everything
        self._is_read_outside = is_read_outside
        self._context = context

    def grow(
        self, regions: Sequence[Sequence[gs.Node]], others: Sequence[Sequence[gs.Node]], excluded: Collection[int]
    ) -> list[tuple[list[gs.Node], Space]]:
        """The regions that take views, with their spaces; each takes the place of all of ``regions`` that it is of.

        ``others`` are regions that stay as they are and become nodes too, for which none of these may wait in a circle.
        Nodes by their ids in ``excluded`` are no views to take.
        """
        blocks = Blocks(self._graph.nodes, [*regions, *others])
        grown = {id(blocks.of(region[0])): blocks.of(region[0]) for region in regions}
        joined = False
        for chain in self._chains(excluded):
            while chain and (more := self._extended(blocks, chain, grown)) is not None:
                members, rest = more
                for member in members:
                    grown.pop(id(member), None)
                block = blocks.join(members)
                grown[id(block)] = block
                joined = True
                chain = rest
        return [found for block in grown.values() if joined and (found := self._region(block)) is not None]

    def _region(self, block: Block) -> Viewing | None:
        """What a block has become, if it has views."""
        nodes = self._trimmed(block.nodes)
        if not any(map(is_view, nodes)):
            return None
        try:
            return nodes, self._space(nodes, self._outputs(nodes, {id(node) for node in nodes}))
        except (LayoutError, UnsupportedError):  # of one that has not grown
            return None

    def _space(self, nodes: Sequence[gs.Node], outputs: Sequence[gs.Tensor]) -> Space:
        """The space of a region; of one kernel, results of one shape that do not meet are computed side by side."""
        space = Space(nodes, self._opset, self._sizes)
        if self._on.one_space and not all(map(space.has_rows, outputs)):
            space.align(outputs)
        return space

    def _chains(self, excluded: Collection[int]) -> list[list[gs.Node]]:
        """Views that follow one another, where nothing else reads what is between them."""
        chains: list[list[gs.Node]] = []
        seen: set[int] = set()
        for node in self._graph.nodes:
            if id(node) in seen or not self._is_open(node, excluded):
                continue
            chain = [node]
            while (behind := self._next(chain[-1])) is not None and self._is_open(behind, excluded):
                chain.append(behind)
            seen.update(map(id, chain))
            chains.append(chain)
        return chains

    def _next(self, node: gs.Node) -> gs.Node | None:
        made = [tensor for tensor in node.outputs if tensor.name]
        readers = [reader for tensor in made for reader in self._graph.readers(tensor)]
        if len(made) != 1 or len(readers) != 1 or self._is_read_outside(made[0], {id(readers[0])}):
            return None
        return readers[0] if readers[0].inputs[0] is made[0] else None

    def _is_open(self, node: gs.Node, excluded: Collection[int]) -> bool:
        """Whether a node is a view that a region may take."""
        if id(node) in excluded or not is_view(node) or isinstance(node.inputs[0], gs.Constant):
            return False
        if any(tensor.name and tensor.shape is None for tensor in (node.inputs[0], *node.outputs)):
            return False
        if self._opset < _INTEGER_CONSTANTS and len(node.inputs) > 1:
            return False
        reason = left_to_ort(node, self._graph.readers(node.outputs[0]), self._context)
        if reason is None or self._everything:
            return True
        self._context.refused(NAME, node, reason)
        return False

    def _extended(
        self, blocks: Blocks, chain: Sequence[gs.Node], grown: Mapping[int, Block]
    ) -> tuple[list[Block], list[gs.Node]] | None:
        """The blocks that some views of a chain join, and the views that are left; None if that is not worth it."""
        above = [blocks.of(made) for made in chain[0].inputs[0].inputs if id(made) in self._graph.position]
        above = [block for block in above if id(block) in grown]
        below = [blocks.of(reader) for tensor in chain[-1].outputs for reader in self._graph.readers(tensor)]
        below = list({id(block): block for block in below if id(block) in grown}.values())
        options: list[tuple[int, int, list[Block]]] = []
        if above and below:
            options.append((0, len(chain), above + below))
        # A view at an end that ONNX Runtime has for nothing is no gain.
        if below:
            options += [(first, len(chain), below) for first, node in enumerate(chain) if not is_free(node)]
        if above:
            options += [(0, last + 1, above) for last, node in reversed([*enumerate(chain)]) if not is_free(node)]
        reasons: list[tuple[gs.Node, str]] = []
        for first, last, others in options:
            if last - first > MAX_NODES:  # of a long chain nearly all options are that
                reasons.append((chain[first], _TOO_MANY_NODES))
                continue
            views = [blocks.of(node) for node in chain[first:last]]
            members = list({id(block): block for block in (*others, *views)}.values())
            if len(members) == 1:
                continue  # it has them already
            reason = self._why_not(blocks, members)
            if reason is None:
                return members, [*chain[:first], *chain[last:]]
            reasons.append((chain[first], reason))
        for node in chain:
            if reasons and not is_free(node) and id(blocks.of(node)) not in grown:
                self._context.refused(NAME, node, reasons[0][1])
        return None

    def _why_not(self, blocks: Blocks, members: Sequence[Block]) -> str | None:
        """Why some blocks do not become one region; None if they may."""
        if sum(len(block.nodes) for block in members) > MAX_NODES:
            return _TOO_MANY_NODES
        joint = blocks.joined(members)
        if joint is None:
            return "a node outside of it would wait for it, and it for that node"
        inside = {id(node) for node in joint.nodes}
        outputs = self._outputs(joint.nodes, inside)
        if not outputs:
            return "nothing reads its results"
        if len(outputs) > MAX_OUTPUTS:
            return _TOO_MANY_NODES
        try:
            space = self._space(joint.nodes, outputs)
            order = space.ordered(outputs)
        except (LayoutError, UnsupportedError) as error:
            return str(error)
        if not all(map(space.is_whole, outputs)):
            return "a result that repeats what is computed"
        if self._on.one_space and not all(map(space.has_rows, outputs)):
            return "results of different shapes"
        if len(space.inputs) > MAX_INPUTS or (self._on.one_space and len(space.inputs) + len(outputs) > MAX_OPERANDS):
            return "more inputs and outputs than a kernel takes"
        if any(self._is_copied(node, space, inside) for node in joint.nodes):
            return IN_MEMORY
        if self._everything:
            return None
        if self._traffic(joint.nodes) >= sum(self._traffic(member.nodes) for member in members):
            return NO_GAIN
        layouts = map(space.layout, space.inputs)
        if self._on.transposes_well:
            return next(filter(None, (why_not_permuted(layout, order) for layout in layouts)), None)
        return None

    def _is_copied(self, node: gs.Node, space: Space, inside: set[int]) -> bool:
        """Whether a view of what is in memory moves elements, for others too."""
        if not is_view(node) or is_free(node) or not space.is_from_outside(node.inputs[0]):
            return False
        return any(tensor.name and self._is_read_outside(tensor, inside) for tensor in node.outputs)

    def _outputs(self, nodes: Sequence[gs.Node], inside: set[int]) -> list[gs.Tensor]:
        made = [tensor for node in nodes for tensor in node.outputs if tensor.name]
        return [tensor for tensor in made if self._is_read_outside(tensor, inside)]

    def _traffic(self, nodes: Sequence[gs.Node]) -> int:
        """The bytes that some nodes read and write as one, or that ONNX Runtime does for a view."""
        if len(nodes) == 1 and is_view(nodes[0]) and is_free(nodes[0]):
            return 0
        inside = {id(node) for node in nodes}
        read: dict[int, gs.Tensor] = {}
        made: set[int] = set()
        for node in nodes:
            for tensor in node.inputs:
                if tensor.name and id(tensor) not in made:
                    read[id(tensor)] = tensor
            if is_part(node):  # what it leaves is not read
                read.pop(id(node.inputs[0]), None)
                read.update((id(tensor), tensor) for tensor in node.outputs if tensor.name)
            made.update(map(id, node.outputs))
        return sum(map(self._bytes, (*read.values(), *self._outputs(nodes, inside))))

    def _bytes(self, tensor: gs.Tensor) -> int:
        shape = self._likely.of(tensor)
        return 0 if shape is None or tensor.dtype is None else math.prod(shape) * np.dtype(tensor.dtype).itemsize

    def _trimmed(self, nodes: Sequence[gs.Node]) -> list[gs.Node]:
        """A region without views at its ends that ONNX Runtime has for nothing."""
        kept = list(nodes)
        while True:
            made = {id(tensor) for node in kept for tensor in node.outputs}
            readers = Counter(id(tensor) for node in kept for tensor in node.inputs)
            ends = [
                node
                for node in kept
                if is_view(node)
                and is_free(node)
                and (
                    (id(node.inputs[0]) not in made and readers[id(node.inputs[0])] == 1)
                    or not readers[id(node.outputs[0])]
                )
            ]
            if not ends:
                return kept
            kept = [node for node in kept if node not in ends]
