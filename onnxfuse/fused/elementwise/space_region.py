"""The fused node of elementwise nodes with views before, between and behind them."""

from collections.abc import Mapping, Sequence

import onnx_graphsurgeon as gs

from onnxfuse.fused.fused_node import ElementwiseFusion, local_function
from onnxfuse.fused.kinds import ELEMENTWISE
from onnxfuse.fused.space.lowering import SpaceLowering
from onnxfuse.fused.space.spaces import Space


def fuse_in_space(
    nodes: Sequence[gs.Node],
    space: Space,
    outputs: Sequence[gs.Tensor],
    opsets: Mapping[str, int],
    fast_math: bool = False,
) -> ElementwiseFusion:
    """Build the fusion of a region's ``nodes``, given in topological order; the graph is not changed.

    Raises ProgramError if the Program exceeds a limit, UnsupportedError for a node that cannot be lowered, LayoutError
    where a result is in another order than the others.
    """
    lowering = SpaceLowering(space, opsets[""], fast_math, outputs)
    for node in nodes:
        lowering.add(node)
    program = lowering.build()
    function, constants = local_function(nodes, lowering.inputs, outputs, ["program"], opsets[""])
    return ElementwiseFusion(
        kind=ELEMENTWISE,
        nodes=tuple(nodes),
        inputs=tuple(lowering.inputs),
        outputs=tuple(outputs),
        attributes={"program": str(program), **constants},
        function=function,
        reads=tuple(lowering.reads),
        program=program,
    )
