"""Sums that one other region reads, computed there again instead of written: rematerialization.

A transformer that normalizes first adds what each of its blocks computes to what comes in, and writes the sum beside
what is normalized, for the next to be added to.  That sum is computed from two tensors that are in memory anyway, so
that the next region may read these: as many bytes are read more as are not written, and a tensor less lies between
launches.  The sum after it is written then, for what it is computed from is not in memory any more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxfuse.fused.fused_node import ProgramFusion
from onnxfuse.model.constants import dtype_of, is_constant
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import Node
from onnxfuse.program.lowering import is_elementwise
from onnxfuse.rewrite.base import PassContext
from onnxfuse.rewrite.editor import GraphEditor

_MOST_NODES = 4
"""That compute a sum: a bias, the factor of a layer, a residual."""
_MOST_READ = 2
"""Tensors that are read in place of one that is written and read."""


@dataclass(frozen=True)
class _Sum:
    """A tensor, the nodes that compute it, in topological order, what they read, and the nodes that will have their
    own."""

    tensor: gs.Tensor
    nodes: Sequence[Node]
    operands: Sequence[gs.Tensor]
    readers: Sequence[Node]


class RepeatedSums:
    """Gives regions of a model copies of nodes; ``new`` are the ids of these."""

    def __init__(self, model: Model, context: PassContext) -> None:
        self._model = model
        self._context = context
        self._copies: list[tuple[gs.Tensor, gs.Tensor, Sequence[Node]]] = []

    @property
    def new(self) -> frozenset[int]:
        """The ids of the nodes that were not in the model."""
        return frozenset(id(node) for _, _, nodes in self._copies for node in nodes)

    def repeat(self, planned: Sequence[Sequence[ProgramFusion]]) -> bool:
        """Copies what computes the sums between the regions that are ``planned`` for each graph; whether there are any.
        The regions are to be planned anew then."""
        editor = GraphEditor(self._model)
        for one in [one for fusions in planned for one in _sums(fusions, editor)]:
            self._context.rewrote("repeat-sums", one.nodes)
            made, nodes = self._copy(one)
            for reader in one.readers:
                for place, tensor in enumerate(reader.inputs):
                    if tensor is one.tensor:
                        reader.inputs[place] = made
            editor.insert(nodes, at=one.nodes[-1])
            self._copies.append((one.tensor, made, nodes))
        editor.finish()
        return bool(self._copies)

    def take_back(self, planned: Sequence[Sequence[ProgramFusion]]) -> bool:
        """Removes the copies that are not in the regions that are ``planned`` now; whether there are any."""
        inside = {id(node) for fusions in planned for fusion in fusions for node in fusion.nodes}
        needless = [one for one in self._copies if not inside.issuperset(map(id, one[2]))]
        editor = GraphEditor(self._model)
        for tensor, made, nodes in needless:
            editor.replace_uses(made, tensor)
            editor.remove(nodes)
        editor.finish()
        self._copies = [one for one in self._copies if one not in needless]
        return bool(needless)

    def _copy(self, one: _Sum) -> tuple[gs.Tensor, list[Node]]:
        """The same sum, and the nodes that compute it once more."""
        tensors: dict[int, gs.Tensor] = {}
        nodes = []
        for node in one.nodes:
            made = node.outputs[0]
            copied = gs.Variable(self._model.unique_name(f"{made.name}_again"), made.dtype, made.shape)
            tensors[id(made)] = copied
            self._model.same_shapes[copied.name] = made.name
            inputs = [tensors.get(id(tensor), tensor) for tensor in node.inputs]
            copy = node.copy(inputs=inputs, outputs=[copied])
            copy.name = self._model.unique_name(f"{node.name}_again")
            nodes.append(copy)
        return tensors[id(one.tensor)], nodes


def _sums(fusions: Sequence[ProgramFusion], editor: GraphEditor) -> Iterator[_Sum]:
    """Those between the regions of one graph, which are in topological order, that are better computed twice."""
    region = {id(node): place for place, fusion in enumerate(fusions) for node in fusion.nodes}
    kept: set[int] = set()  # what must be in memory
    dropped: set[int] = set()
    for place, fusion in enumerate(fusions):
        for tensor in fusion.outputs:
            readers = [node for node in tensor.outputs if region.get(id(node)) != place]
            others = {region.get(id(node), -1) for node in readers}
            if len(others) != 1 or -1 in others or id(tensor) in kept or editor.is_graph_output(tensor):
                continue
            found = _computed(tensor, {id(node) for node in fusion.nodes})
            if found is None:
                continue
            nodes, operands = found
            there = {id(read) for other in others for read in fusions[other].inputs}
            more = [read for read in operands if id(read) not in there]
            if len(more) > _MOST_READ or any(id(read) in dropped or _is_wider(read, tensor) for read in operands):
                continue
            kept.update(map(id, operands))
            dropped.add(id(tensor))
            yield _Sum(tensor, nodes, operands, readers)


def _computed(tensor: gs.Tensor, inside: set[int]) -> tuple[list[Node], list[gs.Tensor]] | None:
    """The elementwise nodes of a region (their ids) that compute a tensor, in topological order, and what they read but
    for constants; None if it is not computed by few of these alone.
    """
    nodes: dict[int, Node] = {}
    operands: dict[int, gs.Tensor] = {}
    waiting = [tensor]
    while waiting:
        made = waiting.pop()
        node = made.inputs[0] if made.inputs else None
        if node is None or id(node) not in inside:
            if made.name and not is_constant(made):
                operands[id(made)] = made
            continue
        nodes.pop(id(node), None)
        nodes[id(node)] = node  # behind all that read it
        if not is_elementwise(node) or len(node.outputs) != 1 or len(nodes) > _MOST_NODES:
            return None
        waiting += node.inputs
    return list(nodes.values())[::-1], list(operands.values())


def _is_wider(one: gs.Tensor, other: gs.Tensor) -> bool:
    """Whether an element of a tensor has, or may have, more bytes than one of another."""
    sizes = [dtype and dtype.itemsize for dtype in map(dtype_of, (one, other))]
    return sizes[0] is None or sizes[1] is None or sizes[0] > sizes[1]
