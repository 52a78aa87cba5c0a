"""What a region that reduces makes for others, and which nodes at its ends it is better without."""

from collections.abc import Collection, Sequence

import onnx_graphsurgeon as gs

from onnxfuse.fused.space.growth import Graph
from onnxfuse.fused.space.spaces import Space
from onnxfuse.fused.space.view_nodes import is_free, is_view
from onnxfuse.model.constants import is_scalar
from onnxfuse.rewrite.editor import GraphEditor


class Ends:
    """Looks at regions of one ``graph``; with ``views`` those of any kind are left out where what they view is written
    anyway, else those alone that move nothing.
    """

    def __init__(self, graph: Graph, editor: GraphEditor, views: bool = False) -> None:
        self._graph = graph
        self._editor = editor
        self._views = views

    def outputs(self, region: Sequence[gs.Node]) -> list[gs.Tensor]:
        """What anything but the region reads of what it makes."""
        inside = {id(node) for node in region}
        return [tensor for node in region for tensor in node.outputs if tensor.name and self.is_read(tensor, inside)]

    def operands(self, region: Sequence[gs.Node], space: Space) -> int:
        """How many inputs and outputs a region has, each part of a tensor one, constants of one element none."""
        return sum(not is_scalar(tensor) for tensor in space.inputs) + len(self.outputs(region))

    def better_outside(self, space: Space, region: Sequence[gs.Node]) -> gs.Node | None:
        """A node that has a result which the others' rows do not make, is a view of one that is written anyway, or has
        none that is read.
        """
        inside = {id(node) for node in region}
        for node in reversed(region):
            read = [tensor for tensor in node.outputs if tensor.name and self.is_read(tensor, inside)]
            if any(not space.has_rows(tensor) for tensor in read):
                return node
            moves_nothing = is_free(node) or (self._views and is_view(node))
            if moves_nothing and read and self._is_elsewhere(node.inputs[0], inside):
                return node
            if not read and not any(id(reader) in inside for reader in self._graph.consumers(node)):
                return node
        return None

    def connected(self, region: Sequence[gs.Node], seed: gs.Node) -> list[gs.Node]:
        """The part of a region that is connected with ``seed``, one of its nodes."""
        inside = {id(node) for node in region}
        found: dict[int, gs.Node] = {}
        waiting = [seed]
        while waiting:
            node = waiting.pop()
            if id(node) in found:
                continue
            found[id(node)] = node
            around = (*self._graph.producers(node), *self._graph.consumers(node))
            waiting += [other for other in around if id(other) in inside]
        return self._graph.sorted(found.values())

    def is_read(self, tensor: gs.Tensor, inside: Collection[int]) -> bool:
        """Whether anything but the nodes of a region (their ids) reads ``tensor``: other nodes, or a graph's output."""
        return self._editor.is_graph_output(tensor) or any(id(node) not in inside for node in tensor.outputs)

    def _is_elsewhere(self, tensor: gs.Tensor, inside: Collection[int]) -> bool:
        """Whether a tensor is in memory whatever becomes of the region's views of it."""
        is_made = any(id(node) in inside for node in tensor.inputs)
        return not is_made or self.is_read(tensor, inside)
