"""Concats of what fused nodes make: these write it as parts of the result, and copy what comes from elsewhere."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.elementwise.joined_programs import Joinable, JoinedPrograms, JoinError
from onnxfuse.fused.elementwise.through_views import NAME
from onnxfuse.fused.functions import INTEGERS_OPSET
from onnxfuse.fused.fused_node import ProgramFusion
from onnxfuse.fused.space.blocks import Block, Blocks
from onnxfuse.fused.space.layouts import LayoutError
from onnxfuse.fused.space.view_nodes import is_free, is_view
from onnxfuse.fused.views import parts_of
from onnxfuse.model.dtypes import from_numpy
from onnxfuse.model.graph_ir import producer_of, standard_op
from onnxfuse.ort.ort_quantization import loses_type
from onnxfuse.program import ProgramError
from onnxfuse.program.figures import MAX_RANK, MOST_FOREIGN_PARTS
from onnxfuse.program.node_lowering import tensor_dtype
from onnxfuse.rewrite.base import PassContext

FOREIGN = "most of what it joins is made by nodes that are not fused"
_MOST_PARTS = 16
"""Of a tensor that a region reads in parts: for each it has all its instructions once more."""
WAITS = "a node outside of it would wait for it, and it for that node"


def _is_known(node: gs.Node) -> bool:
    """Whether a node is a Concat whose axis, rank and type are known."""
    shape = node.outputs[0].shape if standard_op(node) == "Concat" else None
    if shape is None or not 0 < len(shape) <= MAX_RANK or from_numpy(node.outputs[0].dtype) is None:
        return False
    axis = node.attrs.get("axis")
    return isinstance(axis, int) and -len(shape) <= axis < len(shape)


def copying(node: gs.Node, opset: int, fast_math: bool) -> ProgramFusion | None:
    """The fusion of a Concat alone, which copies all that it joins; None for another node or one that is not known.

    Raises JoinError or ProgramError where that exceeds a limit.
    """
    if not _is_known(node):
        return None
    rank = len(node.outputs[0].shape)
    joined = JoinedPrograms(fast_math)
    joined.write_parts(tensor_dtype(node.outputs[0]), node.inputs, node.attrs["axis"] % rank - rank)
    return joined.fusion([node], node.outputs, opset)


@dataclass(frozen=True)
class _Split:
    """A ``node`` that takes apart a tensor of ``size`` elements along a negative ``axis``, between these ``bounds``."""

    node: gs.Node
    axis: int
    size: int
    bounds: tuple[tuple[int, int], ...]


class IntoConcat:
    """Joins a graph's fusions that make what a Concat reads.  The ``context`` is told why Concats are left alone."""

    def __init__(self, graph: Joinable, context: PassContext) -> None:
        self._graph = graph
        self._context = context
        nodes, fusions, lone = graph.nodes, graph.fusions, graph.lone
        self.fusions = {id(fusion): fusion for fusion in fusions}
        self._makers: dict[int, ProgramFusion] = {}
        self._fusions_by_id: dict[int, ProgramFusion] = {}
        self._place = {id(node): place for place, node in enumerate(nodes)}
        self._blocks = Blocks(nodes, [fusion.nodes for fusion in fusions])
        self._owners = {id(node): fusion for fusion in (*lone, *fusions) for node in fusion.nodes}
        for fusion in (*lone, *fusions):
            self._note(fusion)

    def join(self, excluded: Collection[int]) -> list[ProgramFusion]:
        """The fusions, and those that have taken a Concat in the place of what they are made of.

        Nodes by their ids in ``excluded`` are left alone.
        """
        taken = {id(node) for fusion in self.fusions.values() for node in fusion.nodes}
        for node in self._graph.nodes:
            if id(node) in excluded or id(node) in taken or not self._is_open(node):
                continue
            reader = self._reader(node)
            if reader is not None and self._take(node, self._members(node, {}), {}, reader) is None:
                continue
            views = self._views(node)
            found = self._members(node, views)
            makers = self._without_waiting(node, found, views)
            if not makers and not self._context.everything:
                if found:
                    self._context.refused(NAME, node, WAITS)
                continue
            views = {made: view for made, view in views.items() if self._maker(view.outputs[0], views) in makers}
            split = self._split(node)
            if split is not None and self._take(node, makers, views, split=split) is None:
                continue
            if (reason := self._take(node, makers, views)) is not None:
                self._context.refused(NAME, node, reason)
        return list(self.fusions.values())

    def _is_open(self, node: gs.Node) -> bool:
        """Whether a node is a Concat that a fused node may compute, whose result is read."""
        return _is_known(node) and self._graph.is_read_outside(node.outputs[0], set())

    def _reader(self, node: gs.Node) -> ProgramFusion | None:
        """The fusion that alone reads what a Concat makes, and may read its inputs in the place of that."""
        owners = [self._owners.get(id(reader)) for reader in node.outputs[0].outputs]
        if not owners or owners[0] is None or not 1 < len(node.inputs) <= _MOST_PARTS:
            return None
        if any(tensor.shape is None for tensor in node.inputs):
            return None
        inside = {id(own) for own in owners[0].nodes}
        return None if self._graph.is_read_outside(node.outputs[0], inside) else owners[0]

    def _views(self, node: gs.Node) -> dict[int, gs.Node]:
        """The views that give what a fusion makes another shape before a Concat, by what they make, in order."""
        taken = {id(own) for fusion in self.fusions.values() for own in fusion.nodes}
        views: dict[int, gs.Node] = {}
        for tensor in node.inputs:
            chain: list[gs.Node] = []
            readers, source = {id(node)}, tensor
            while id(source) not in self._makers and not self._graph.is_read_outside(source, readers):
                view = producer_of(source)
                if view is None or id(view) in taken or not is_free(view) or not is_view(view):
                    break
                if len(view.inputs) > 1 and self._graph.opset < INTEGERS_OPSET:
                    break
                chain.append(view)
                readers, source = {id(view)}, view.inputs[0]
            if id(source) in self._makers:
                views.update((id(view.outputs[0]), view) for view in reversed(chain))
        return views

    def _maker(self, tensor: gs.Tensor, views: Mapping[int, gs.Node]) -> int | None:
        """The id of the fusion that makes a tensor, perhaps through views; None where there is none."""
        while id(tensor) in views:
            tensor = views[id(tensor)].inputs[0]
        found = self._makers.get(id(tensor))
        return None if found is None else id(found)

    def _members(self, node: gs.Node, views: Mapping[int, gs.Node]) -> dict[int, ProgramFusion]:
        """The fusions that make what a Concat joins, perhaps through views, by their ids."""
        found = (self._maker(tensor, views) for tensor in node.inputs)
        return {key: self._fusions_by_id[key] for key in found if key is not None}

    def _without_waiting(
        self, node: gs.Node, members: Mapping[int, ProgramFusion], views: Mapping[int, gs.Node]
    ) -> dict[int, ProgramFusion]:
        """Those of some fusions that can be one with a Concat: others make what a node between reads.

        The latest come first: what they join of the others' is copied then.
        """
        found: dict[int, ProgramFusion] = {}
        of_view = [(view, self._maker(view.outputs[0], views)) for view in views.values()]
        for key, member in sorted(members.items(), key=lambda item: -self._place[id(item[1].nodes[-1])]):
            together = [*(own for one in (*found.values(), member) for own in one.nodes), node]
            together += [view for view, maker in of_view if maker == key or maker in found]
            blocks = list({id(block): block for block in map(self._blocks.of, together)}.values())
            if self._blocks.joined(blocks) is not None:
                found[key] = member
        return found

    def _split(self, node: gs.Node) -> _Split | None:
        """What alone reads a Concat and takes it apart along another axis, each of whose results is read."""
        made = node.outputs[0]
        split = made.outputs[0] if len(made.outputs) == 1 else None
        if split is None or standard_op(split) != "Split" or self._graph.is_read_outside(made, {id(split)}):
            return None
        pieces = parts_of(split)
        if len(pieces) < len(split.outputs) or not all(
            self._graph.is_read_outside(one.tensor, set()) for one in pieces
        ):
            return None
        rank = len(made.shape)
        places = [piece.slices[0] for piece in pieces]
        along = places[0].axis % rank - rank
        if along == node.attrs["axis"] % rank - rank:
            return None
        return _Split(split, along, made.shape[along], tuple((one.start, one.end) for one in places))

    def _take(
        self,
        node: gs.Node,
        makers: Mapping[int, ProgramFusion],
        views: Mapping[int, gs.Node],
        reader: ProgramFusion | None = None,
        split: _Split | None = None,
    ) -> str | None:
        """Make one fusion of those that make what a Concat joins, of that, and perhaps of what reads or splits it.

        Why not, where that is not done.
        """
        own = [self._bytes(tensor) for tensor in node.inputs if self._maker(tensor, views) in makers]
        is_mostly_foreign = self._bytes(node.outputs[0]) > (1 + MOST_FOREIGN_PARTS) * sum(own)
        may_copy = self._context.on.copies_parts or self._context.everything
        if reader is None and is_mostly_foreign and not may_copy:
            return FOREIGN
        members = {**makers, id(reader): reader} if reader is not None else makers
        together = [*(own for member in members.values() for own in member.nodes), *views.values(), node]
        together += [split.node] if split is not None else []
        blocks = list({id(block): block for block in map(self._blocks.of, together)}.values())
        joint = self._blocks.joined(blocks)
        if joint is None:
            return WAITS
        try:
            fusion = self._joined(node, makers, views, reader, split, joint)
            self._graph.check(fusion)
        except (JoinError, LayoutError, ProgramError) as error:
            return str(error)
        if loses_type(fusion.inputs, fusion.outputs):
            return "the type of what it reads is lost"
        self._blocks.join(blocks)
        for member in members:
            self.fusions.pop(member, None)
        self.fusions[id(fusion)] = fusion
        self._owners.update((id(own), fusion) for own in fusion.nodes)
        self._note(fusion)
        return None

    def _joined(
        self,
        node: gs.Node,
        makers: Mapping[int, ProgramFusion],
        views: Mapping[int, gs.Node],
        reader: ProgramFusion | None,
        split: _Split | None,
        joint: Block,
    ) -> ProgramFusion:
        """The fusion of the nodes of a block: those of some fusions, views of what they make, and a Concat."""
        place = {id(own): number for number, own in enumerate(joint.nodes)}
        inside = set(place)
        joined = JoinedPrograms(self._graph.fast_math)
        outputs: list[gs.Tensor] = []
        dtype = tensor_dtype(node.outputs[0])  # that of all parts, of which a custom operator may not say it
        rank = len(node.outputs[0].shape)
        axis = node.attrs["axis"] % rank - rank
        for member in sorted(makers.values(), key=lambda one: place[id(one.nodes[0])]):
            (joined.add if split is None else joined.add_for_pieces)(member)
            outputs += [tensor for tensor in member.outputs if self._graph.is_read_outside(tensor, inside)]
        if reader is not None:
            joined.add_by_parts(reader, node.outputs[0], node.inputs, axis)
            outputs += reader.outputs
        for tensor in outputs:
            joined.write(tensor)
        for view in views.values():
            joined.add_view(view)
        if split is not None:
            if outputs:
                raise JoinError("what is split is read as a whole too")
            joined.write_pieces(dtype, node.inputs, axis, split.axis, split.size, split.bounds)
            outputs += split.node.outputs
        elif reader is None:
            joined.write_parts(dtype, node.inputs, axis)
            outputs.append(node.outputs[0])
        return joined.fusion(joint.nodes, outputs, self._graph.opset)

    def _note(self, fusion: ProgramFusion) -> None:
        for tensor in fusion.outputs:
            self._makers[id(tensor)] = fusion
        self._fusions_by_id[id(fusion)] = fusion

    def _bytes(self, tensor: gs.Tensor) -> int:
        shape = self._graph.likely.of(tensor)
        return 0 if shape is None or tensor.dtype is None else math.prod(shape) * np.dtype(tensor.dtype).itemsize
