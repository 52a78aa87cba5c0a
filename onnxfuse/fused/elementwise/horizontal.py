"""Horizontal fusion: independent maps, each too small to fill a GPU, become the parts of one fused node.

Which may be joined is a question of levels: the level of a node is the length of the longest path to it, with each
region as one node.  Nodes of one level never wait for each other; those of levels that are close are joined if the
graph stays without a cycle, and their inputs are there at about the same time, so that nothing lives much longer.  What
reads inputs of the model alone, which live anyway, may wait for any other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.cuda.elementwise.parts import part_count
from onnxfuse.fused.elementwise.joined_programs import Joinable, JoinedPrograms, JoinError
from onnxfuse.fused.fused_node import ProgramFusion
from onnxfuse.fused.space.blocks import Block, Blocks
from onnxfuse.ort.ort_quantization import loses_type
from onnxfuse.program import ProgramError
from onnxfuse.program.figures import MAX_PARTS, SMALL_MAP, WIDEST_ACCESS

_MOST_LEVELS = 3
"""Levels between two maps that are joined."""


def _are_near(first: int | None, second: int | None) -> bool:
    return first is None or second is None or second - first <= _MOST_LEVELS


@dataclass
class _Group:
    """Fusions that are to become one; ``level`` is that of the first which waits for a node, None if none does."""

    level: int | None
    members: list[ProgramFusion]
    fusion: ProgramFusion
    parts: int


class Horizontal:
    """Joins the small ones of a graph's fusions."""

    def __init__(self, graph: Joinable) -> None:
        self._graph = graph
        nodes, fusions, lone = graph.nodes, graph.fusions, graph.lone
        self._blocks = Blocks(nodes, [fusion.nodes for fusion in (*fusions, *lone)])
        levels = self._blocks.levels()
        small = [fusion for fusion in (*fusions, *lone) if self._is_small(fusion)]
        self._levels = {id(fusion): levels[id(self._blocks.of(fusion.nodes[0]))] for fusion in small}
        self._small = sorted(small, key=lambda fusion: self._levels[id(fusion)])

    def join(self) -> list[ProgramFusion]:
        """The fusions, those that were joined as one."""
        groups: list[_Group] = []
        for fusion in self._small:
            level, parts = self._level(fusion), part_count(fusion.program)
            near = [group for group in groups if _are_near(group.level, level)]
            joined = next((group for group in near if self._add(group, fusion, parts)), None)
            if joined is None:
                groups.append(_Group(level, [fusion], fusion, parts))
            elif joined.level is None:
                joined.level = level
        shared = [group for group in groups if len(group.members) > 1]
        taken = {id(member) for group in shared for member in group.members}
        return [fusion for fusion in self._graph.fusions if id(fusion) not in taken] + [
            group.fusion for group in shared
        ]

    def _level(self, fusion: ProgramFusion) -> int | None:
        """The level of a fusion; None for one that reads inputs of the model and constants alone."""
        return self._levels[id(fusion)] if any(tensor.inputs for tensor in fusion.inputs) else None

    def _is_small(self, fusion: ProgramFusion) -> bool:
        """Whether a map leaves a GPU in part idle, as far as the sizes are known."""
        if any(tensor.shape is None for tensor in (*fusion.inputs, *fusion.outputs)):
            return False
        return all(self._bytes(tensor) < SMALL_MAP * WIDEST_ACCESS for tensor in fusion.outputs)

    def _bytes(self, tensor: gs.Tensor) -> int:
        return math.prod(self._graph.likely.of(tensor) or ()) * np.dtype(tensor.dtype).itemsize

    def _add(self, group: _Group, fusion: ProgramFusion, parts: int) -> bool:
        """Join a fusion to a group, if that can be and its kernel has registers enough; whether it was."""
        if group.parts + parts > MAX_PARTS:
            return False
        blocks = [self._blocks.of(own.nodes[0]) for own in (*group.members, fusion)]
        distinct = list({id(block): block for block in blocks}.values())
        joint = self._blocks.joined(distinct)
        if joint is None:
            return False
        members = [*group.members, fusion]
        try:
            made = self._joined(members, joint)
            if part_count(made.program) != group.parts + parts or loses_type(made.inputs, made.outputs):
                return False
            self._graph.check(made)
        except (JoinError, ProgramError):
            return False
        self._blocks.join(distinct)
        group.members, group.fusion, group.parts = members, made, group.parts + parts
        return True

    def _joined(self, members: Sequence[ProgramFusion], joint: Block) -> ProgramFusion:
        """The fusion of several, whose nodes are those of a block."""
        inside = {id(node) for node in joint.nodes}
        program = JoinedPrograms(self._graph.fast_math)
        outputs: list[gs.Tensor] = []
        for member in members:
            program.add(member)
            outputs += [tensor for tensor in member.outputs if self._graph.is_read_outside(tensor, inside)]
        for tensor in outputs:
            program.write(tensor)
        return program.fusion(joint.nodes, outputs, self._graph.opset)
