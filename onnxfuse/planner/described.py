"""What the report says of a fused node, of whatever operator."""

from collections.abc import Collection, Sequence

import onnx
import onnx_graphsurgeon as gs

from onnxfuse.byte_counts import bytes_saved, traffic_of_kernel, traffic_of_nodes
from onnxfuse.report import FusedRegion

FREE_OPS = {"Identity", "Dropout"}
"""Operators that ONNX Runtime removes: they count for nothing when a region is weighed."""


def described(
    name: str,
    function: onnx.FunctionProto,
    nodes: Sequence[gs.Node],
    inputs: Sequence[gs.Tensor],
    outputs: Sequence[gs.Tensor],
    program: object = "",
    prologue: object = "",
    new: Collection[int] = (),
    reads: Sequence[gs.Tensor] | None = None,
) -> FusedRegion:
    """A region of ``nodes``; those whose ids are ``new`` were not in the model, and count for nothing.

    ``reads`` are the inputs as they are read, where that is not as a whole.
    """
    reads = inputs if reads is None else reads
    counted = [node for node in nodes if id(node) not in new]
    return FusedRegion(
        name=name,
        overload=function.overload,
        ops=[node.op for node in nodes],
        program=str(program),
        prologue=str(prologue),
        inputs=[tensor.name for tensor in inputs],
        outputs=[tensor.name for tensor in outputs],
        shape=outputs[0].shape,
        bytes_saved=bytes_saved(counted, reads, outputs, FREE_OPS),
        before=traffic_of_nodes(counted, outputs, FREE_OPS),
        after=traffic_of_kernel(reads, outputs),
    )
