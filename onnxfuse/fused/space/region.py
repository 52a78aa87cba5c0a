"""The fused node of a region that has a common space."""

from collections.abc import Mapping, Sequence

import onnx_graphsurgeon as gs

from onnxfuse.fused.fused_node import ProgramFusion, program_fusion
from onnxfuse.fused.kinds import Kind
from onnxfuse.fused.space.lowering import SpaceLowering
from onnxfuse.fused.space.spaces import Space


def fuse_in_space(
    kind: Kind,
    nodes: Sequence[gs.Node],
    space: Space,
    outputs: Sequence[gs.Tensor],
    opsets: Mapping[str, int],
    fast_math: bool = False,
) -> ProgramFusion:
    """Build the fusion of a region's ``nodes``, given in topological order; the graph is not changed.

    Raises ProgramError if the Program exceeds a limit, UnsupportedError for a node that cannot be lowered, LayoutError
    where a result is in another order than the others.
    """
    lowering = SpaceLowering(space, opsets[""], fast_math, outputs)
    for node in nodes:
        lowering.add(node)
    return program_fusion(kind, nodes, lowering.inputs, lowering.reads, outputs, lowering.build(), opsets[""])
