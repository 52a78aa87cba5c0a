"""The fused node of a region that has a common space."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_graphsurgeon as gs

from onnxfuse.fused.fused_node import ElementwiseFusion, local_function
from onnxfuse.fused.fusion import Fusion
from onnxfuse.fused.kinds import ELEMENTWISE, REDUCTION
from onnxfuse.fused.space.lowering import SpaceLowering
from onnxfuse.fused.space.spaces import Space
from onnxfuse.program import Program


@dataclass(frozen=True, kw_only=True)
class ReductionFusion(Fusion):
    """What takes the place of a region that reduces: ``program`` is what it computes."""

    program: Program


def fuse_elementwise(
    nodes: Sequence[gs.Node],
    space: Space,
    outputs: Sequence[gs.Tensor],
    opsets: Mapping[str, int],
    fast_math: bool = False,
) -> ElementwiseFusion:
    """Build the fusion of elementwise ``nodes`` with views, given in topological order; the graph is not changed.

    Raises ProgramError if the Program exceeds a limit, UnsupportedError for a node that cannot be lowered, LayoutError
    where a result is in another order than the others.
    """
    lowering, program, parts = _lowered(nodes, space, outputs, opsets, fast_math)
    return ElementwiseFusion(kind=ELEMENTWISE, reads=tuple(lowering.reads), program=program, **parts)


def fuse_reducing(
    nodes: Sequence[gs.Node],
    space: Space,
    outputs: Sequence[gs.Tensor],
    opsets: Mapping[str, int],
    fast_math: bool = False,
) -> ReductionFusion:
    """The same of nodes some of which reduce."""
    _, program, parts = _lowered(nodes, space, outputs, opsets, fast_math)
    return ReductionFusion(kind=REDUCTION, program=program, **parts)


def _lowered(
    nodes: Sequence[gs.Node],
    space: Space,
    outputs: Sequence[gs.Tensor],
    opsets: Mapping[str, int],
    fast_math: bool,
) -> tuple[SpaceLowering, Program, dict[str, Any]]:
    """The Program of some nodes, and what a Fusion has of them."""
    lowering = SpaceLowering(space, opsets[""], fast_math, outputs)
    for node in nodes:
        lowering.add(node)
    program = lowering.build()
    function, constants = local_function(nodes, lowering.inputs, outputs, ["program"], opsets[""])
    return (
        lowering,
        program,
        {
            "nodes": tuple(nodes),
            "inputs": tuple(lowering.inputs),
            "outputs": tuple(outputs),
            "attributes": {"program": str(program), **constants},
            "function": function,
        },
    )
