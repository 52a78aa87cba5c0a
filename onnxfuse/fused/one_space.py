"""Whether a region has one iteration space on the GPU.

A CUDA kernel runs over the broadcast of all that a fused node reads, and every output has to broadcast to that.  A
chain does by itself; a region whose branches share no more than a scalar need not, and the CPU's kernels, which run one
stage after the other, do not care.
"""

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from onnxfuse.fused.fused_node import ProgramFusion
from onnxfuse.fused.regions import find_regions
from onnxfuse.program import ProgramError
from onnxfuse.program.lowering import is_elementwise


class SpacesError(ProgramError):
    """A region that may have more than one iteration space."""

    def __init__(self) -> None:
        super().__init__("its results are not known to broadcast to one shape")


def by_space(region: Sequence[gs.Node]) -> list[list[gs.Node]]:
    """The parts of a region whose nodes have results of one shape, each convex."""
    return find_regions(region, lambda node: True, _have_one_shape)


def _have_one_shape(producer: gs.Node, consumer: gs.Node, tensor: gs.Tensor) -> bool:
    shape = producer.outputs[0].shape
    return shape is not None and shape == consumer.outputs[0].shape


def has_one_space(fusion: ProgramFusion) -> bool:
    """Whether what a region reads is certain to broadcast to one shape, for every size of its dimensions.

    It is certain if one of its nodes depends on all of that, for then the model itself broadcasts them; or if, axis by
    axis, the shapes have one size (or name of a size) besides 1.  A vector along an axis has the size of the tensor
    that the same node reads.
    """
    wanted = {id(tensor) for tensor in fusion.reads}
    nodes = [node for node in fusion.nodes if is_elementwise(node)]
    read: dict[int, set[int]] = {}
    for node in nodes:
        own = {id(tensor) for tensor in node.inputs if id(tensor) in wanted}
        for tensor in node.inputs:
            own |= read.get(id(tensor), set())
        read[id(node.outputs[0])] = own
        if own == wanted:
            return True
    broadcast = zip(fusion.reads, fusion.program.inputs, strict=True)
    shapes = [tensor.shape for tensor, spec in broadcast if spec.axis is None]
    shapes += [node.outputs[0].shape for node in nodes]
    if any(shape is None for shape in shapes):
        return False
    rank = max(map(len, shapes), default=0)
    return all(_is_one_size([shape[axis] for shape in shapes if -axis <= len(shape)]) for axis in range(-rank, 0))


def _is_one_size(dims: Sequence[int | str | None]) -> bool:
    others = {dim for dim in dims if dim != 1}
    return len(others) <= 1 and not others & {None, ""}
