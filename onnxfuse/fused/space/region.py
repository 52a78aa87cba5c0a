"""The fused node of a region that has a common space."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import onnx_graphsurgeon as gs

from onnxfuse.fused.fused_node import ElementwiseFusion, local_function
from onnxfuse.fused.fusion import Fusion
from onnxfuse.fused.kinds import Kind
from onnxfuse.fused.space.lowering import SpaceLowering
from onnxfuse.fused.space.spaces import Space
from onnxfuse.program import Program


@dataclass(frozen=True, kw_only=True)
class ReductionFusion(Fusion):
    """What takes the place of a region that reduces: ``program`` is what it computes."""

    program: Program


_Made = TypeVar("_Made", ElementwiseFusion, ReductionFusion)


def fuse_in_space(
    kind: Kind,
    made: type[_Made],
    nodes: Sequence[gs.Node],
    space: Space,
    outputs: Sequence[gs.Tensor],
    opsets: Mapping[str, int],
    fast_math: bool = False,
) -> _Made:
    """Build the fusion of a region's ``nodes``, given in topological order; the graph is not changed.

    Raises ProgramError if the Program exceeds a limit, UnsupportedError for a node that cannot be lowered, LayoutError
    where a result is in another order than the others.
    """
    lowering = SpaceLowering(space, opsets[""], fast_math, outputs)
    for node in nodes:
        lowering.add(node)
    program = lowering.build()
    function, constants = local_function(nodes, lowering.inputs, outputs, ["program"], opsets[""])
    return made(
        kind=kind,
        nodes=tuple(nodes),
        inputs=tuple(lowering.inputs),
        outputs=tuple(outputs),
        attributes={"program": str(program), **constants},
        function=function,
        reads=tuple(lowering.reads),
        program=program,
    )
