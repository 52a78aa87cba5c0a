"""Which nodes are computed together with products of few rows.

A product takes what is around it only where that saves a launch: all of what would else be one fused node has to be in
regions of products then.  What stands before a product is computed again for each of its columns, so that only cheap
operators do.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import onnx_graphsurgeon as gs

from onnxfuse.fused.fused_node import RegionProgram
from onnxfuse.fused.sizes import Sizes
from onnxfuse.fused.space.blocks import Blocks
from onnxfuse.fused.space.ends import Ends
from onnxfuse.fused.space.growth import Graph, grow
from onnxfuse.fused.space.layouts import LayoutError
from onnxfuse.fused.space.lowering import SpaceLowering
from onnxfuse.fused.space.spaces import Space
from onnxfuse.fused.space.view_nodes import is_free, is_view
from onnxfuse.model.graph_ir import Node
from onnxfuse.ort.slow_kernels import FREE_OPS
from onnxfuse.program import ProgramError
from onnxfuse.program.figures import MAX_OPERANDS
from onnxfuse.program.lowering import is_elementwise
from onnxfuse.program.multiplying import Product
from onnxfuse.program.node_lowering import UnsupportedError
from onnxfuse.program.ops import OPS
from onnxfuse.program.reducing import reduces
from onnxfuse.rewrite.editor import GraphEditor

ALONE = "nothing is around it that could be computed with it, and alone ONNX Runtime's kernel is as fast"
ELSEWHERE = "what is around it is computed with other nodes anyway, and no launch is saved"

Region = Sequence[Node]


class RowRegions:
    """Finds the regions of one graph's ``nodes``, in topological order.

    ``products`` are those that may be in one, by the ids of their nodes, ``free`` the ids of the nodes that may be
    around them, ``before`` of those that may only be before them.  With ``everything`` it does not matter whether that
    saves a launch.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        products: Mapping[int, Product],
        free: Collection[int],
        before: Collection[int],
        sizes: Sizes,
        opset: int,
        editor: GraphEditor,
        everything: bool,
    ) -> None:
        self.products = products
        self._nodes = nodes
        self._graph = Graph(nodes)
        self._ends = Ends(self._graph, editor, views=True)
        self._free = set(free)
        self._before = set(before)
        self._sizes = sizes
        self._opset = opset
        self._everything = everything

    def find(self) -> tuple[list[Region], list[tuple[Node, str]]]:
        """The regions, and why other products are in none."""
        free = set(self._free)
        components = [] if self._everything else self._components()
        while True:
            regions = self._grown(free)
            covered = {id(node) for region in regions for node in region}
            partly = [one for one in components if one & covered and not one <= covered]
            if not partly:
                break
            free = free.difference(*partly)
            components = [one for one in components if one not in partly]
        found = [region for region in regions if self._everything or self._saves(region)]
        inside = {id(node) for region in found for node in region}
        left = [node for node in self._nodes if id(node) in self.products and id(node) not in inside]
        return found, [(node, self._why_left(node)) for node in left]

    def space(self, nodes: Region) -> Space:
        """The space of some nodes.  Raises LayoutError or UnsupportedError if there is none."""
        return Space(nodes, self._opset, self._sizes, self.products)

    def outputs(self, region: Region) -> list[gs.Tensor]:
        """What anything but the region reads of what it makes."""
        return self._ends.outputs(region)

    def _components(self) -> list[set[int]]:
        """The ids of nodes that would be computed together if it were not for products: they are neighbours, or a view
        that moves nothing is between them, and none waits for a node of another kind that waits for the other.
        """
        vertices = {
            id(node): node
            for node in self._nodes
            if is_elementwise(node) or reduces(node) or (is_view(node) and is_free(node))
        }
        found: list[set[int]] = []
        seen: set[int] = set()
        for node in vertices.values():
            if id(node) in seen:
                continue
            component: set[int] = set()
            waiting = [node]
            while waiting:
                own = waiting.pop()
                if id(own) in seen:
                    continue
                seen.add(id(own))
                if not is_view(own) and own.op not in FREE_OPS:
                    component.add(id(own))
                before, behind = self._graph.producers(own), self._graph.consumers(own)
                waiting += [other for other in before if id(other) in vertices and not self._is_apart(other, own)]
                waiting += [other for other in behind if id(other) in vertices and not self._is_apart(own, other)]
            if component:
                found.append(component)
        return found

    def _is_apart(self, first: Node, second: Node) -> bool:
        """Whether the second of two neighbours waits for a node of another kind that waits for the first."""
        last = self._graph.position[id(second)]
        seen: set[tuple[int, bool]] = set()
        waiting = [(first, False)]
        while waiting:
            node, has_passed = waiting.pop()
            if node is second and has_passed:
                return True
            if node is second or (id(node), has_passed) in seen or self._graph.position[id(node)] > last:
                continue
            seen.add((id(node), has_passed))
            has_passed = has_passed or not (is_elementwise(node) or reduces(node) or is_view(node))
            waiting += [(reader, has_passed) for reader in self._graph.consumers(node)]
        return False

    def _grown(self, free: set[int]) -> list[Region]:
        """Regions of products, with as much around them as may be."""
        left = free | self.products.keys()
        regions: list[Region] = []
        blocks = Blocks(self._nodes, most_passed=len(self._nodes))
        for seed in self._nodes:
            if id(seed) not in self.products or id(seed) not in left:
                continue
            region = grow(self._graph, seed, left, self._is_behind)
            trimmed = self._trimmed(self._with_before(region, left), seed)
            if trimmed and blocks.join_nodes(trimmed):
                regions.append(trimmed)
                left -= {id(node) for node in trimmed}
        return regions

    def _is_behind(self, region: Region) -> bool:
        """Whether a region has nothing but products and what has a value for each row of these."""
        space = self._fitting(region)
        return space is not None and all(
            id(node) in self.products or (id(node) not in self._before and space.has_rows(node.outputs[0]))
            for node in region
        )

    def _with_before(self, region: Region, free: set[int]) -> Region:
        """A region with all that is computed for what a product multiplies, and for nothing else, where it may be."""
        read = {id(t): t for node in region if id(node) in self.products for t in node.inputs[:2]}
        for tensor in read.values():
            larger = self._graph.sorted([*region, *self._closure(tensor, region, free)])
            if len(larger) > len(region) and self._is_cheap(larger):
                region = larger
        return region

    def _closure(self, tensor: gs.Tensor, region: Region, free: set[int]) -> list[Node]:
        """The free nodes that a tensor is made by, and that are read by a region and by each other alone."""
        inside = {id(node) for node in region}
        found: list[Node] = []
        waiting = [node for node in tensor.inputs if id(node) in free]
        while waiting:
            node = max(waiting, key=lambda one: self._graph.position[id(one)])  # its readers have been looked at
            waiting = [one for one in waiting if one is not node]
            if id(node) in self.products or any(self._ends.is_read(result, inside) for result in node.outputs):
                continue
            inside.add(id(node))
            found.append(node)
            waiting += [made for made in self._graph.producers(node) if id(made) in free and id(made) not in inside]
        return found

    def _is_cheap(self, region: Region) -> bool:
        """Whether what a region computes again for each column, and of several rows more often, costs little."""
        space = self._fitting(region)
        if space is None:
            return False
        repeated = [node for node in region if id(node) not in self.products and space.is_repeated(node.outputs[0])]
        computed = [node for node in repeated if not is_view(node)]
        if any(self._has_several_rows(node) for node in region if id(node) in self.products) and computed:
            return False
        return all(reduces(node) or self._is_repeatable(node) for node in computed)

    def _has_several_rows(self, product: Node) -> bool:
        return math.prod(product.inputs[0].shape[:-1]) > 1

    def _is_repeatable(self, node: Node) -> bool:
        program = RegionProgram(self._opset)
        program.lower(node)
        return all(OPS[one.op].cost.repeatable for one in program.build([node.outputs[0]]).instructions)

    def _fitting(self, region: Region) -> Space | None:
        """The space of a region that may be one node; None if it may not."""
        try:
            space = self.space(region)
            space.check_rows()
            space.ordered(self.outputs(region))
        except (LayoutError, UnsupportedError):
            return None
        return space if self._ends.operands(region, space) <= MAX_OPERANDS else None

    def _trimmed(self, region: Region, seed: Node) -> Region:
        """A region without nodes that it is better without; empty where it has no Program."""
        while True:
            try:
                space = self.space(region)
                outside = self._ends.better_outside(space, region)
                if outside is None:
                    lowering = SpaceLowering(space, self._opset, False, self.outputs(region))
                    for node in region:
                        lowering.add(node)
                    lowering.build()
                    return region
            except (LayoutError, UnsupportedError, ProgramError):
                return []
            if outside is seed:
                return []
            region = self._ends.connected([node for node in region if node is not outside], seed)

    def _saves(self, region: Region) -> bool:
        """Whether a launch less is made: of other products, of what is around them, or of a copy."""
        if sum(id(node) in self.products for node in region) > 1:
            return True
        around = [node for node in region if id(node) not in self.products]
        return any(self._is_copy(node) if is_view(node) else node.op not in FREE_OPS for node in around)

    def _is_copy(self, node: Node) -> bool:
        """Whether ONNX Runtime copies for a view, which no fused node could read in its place."""
        if is_free(node):
            return False
        return not any(is_elementwise(reader) or reduces(reader) for reader in self._graph.consumers(node))

    def _why_left(self, node: Node) -> str:
        around = (*self._graph.producers(node), *self._graph.consumers(node))
        return ELSEWHERE if any(id(other) in self._free for other in around) else ALONE
