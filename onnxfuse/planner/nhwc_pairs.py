"""Depthwise convolutions that become part of the 1x1 convolution after them.

A depthwise separable block is a convolution of single channels and a product of all (F. Chollet, Xception, 2017).  With
the channels last the product reads the first one's pixels one after the other, each once: the node computes them where
it wants them, and they are never stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs

from onnxfuse.planner.conv_node import ConvFusion
from onnxfuse.planner.nhwc_layout import NhwcLayout
from onnxfuse.program import Program
from onnxfuse.program.program import Instruction

BEFORE = "depthwise_"
"""Begins the names of what is the first convolution's: attributes, and tensors of the function."""


@dataclass(frozen=True)
class NhwcPair:
    """A depthwise convolution, and the 1x1 convolution that alone reads its result."""

    before: ConvFusion
    product: ConvFusion

    @property
    def nodes(self) -> tuple[gs.Node, ...]:
        """All nodes, in topological order."""
        return (*self.before.region.nodes, *self.product.region.nodes)


def find_pairs(fusions: Sequence[ConvFusion], layout: NhwcLayout, nodes: Sequence[gs.Node]) -> dict[int, NhwcPair]:
    """The pairs among the ``fusions`` of a graph of ``nodes``, by the ids of both convolutions' nodes."""
    made = {id(fusion.outputs[0]): fusion for fusion in fusions if _may_be_before(fusion, layout)}
    region = {id(node): id(fusion.region.conv) for fusion in fusions for node in fusion.region.nodes}
    readers: dict[int, set[int]] = {}
    for node in nodes:
        for tensor in node.inputs:
            readers.setdefault(id(tensor), set()).add(region.get(id(node), id(node)))
    pairs: dict[int, NhwcPair] = {}
    for fusion in fusions:
        before = made.get(id(fusion.region.data))
        if before is None or not _may_be_product(fusion, layout):
            continue
        own = id(fusion.region.conv)
        reads = [tensor for tensor in fusion.inputs if tensor is fusion.region.data]
        if readers[id(fusion.region.data)] == {own} and len(reads) == 1:
            pair = NhwcPair(before, fusion)
            pairs |= {own: pair, id(before.region.conv): pair}
    return pairs


def pair_function(first: onnx.FunctionProto, second: onnx.FunctionProto) -> onnx.FunctionProto:
    """The function, without a name, of a pair whose own functions are ``first`` and ``second``.

    Its inputs are the first's data, the second's weights, the first's weights and operands, and the second's operands.
    """
    function = onnx.FunctionProto()
    function.CopyFrom(second)
    del function.node[:]
    for node in first.node:
        added = function.node.add()
        added.CopyFrom(node)
        for tensors in (added.input, added.output):
            tensors[:] = [second.input[0] if name == first.output[0] else name and BEFORE + name for name in tensors]
        for attribute in added.attribute:
            if attribute.ref_attr_name:
                attribute.ref_attr_name = BEFORE + attribute.ref_attr_name
    function.node.extend(second.node)
    del function.input[:]
    function.input.extend(
        [BEFORE + first.input[0], second.input[1], *(BEFORE + name for name in first.input[1:]), *second.input[2:]]
    )
    return function


def _may_be_before(fusion: ConvFusion, layout: NhwcLayout) -> bool:
    conv = fusion.region.convolution
    return (
        id(fusion.region.conv) in layout.convolutions
        and conv.depthwise
        and fusion.prologue is None
        and len(fusion.outputs) == 1
        and id(fusion.region.data) in layout.tensors
        and id(fusion.outputs[0]) in layout.tensors
        and not any(layout.inputs(fusion)[2:])
        and is_of_result(fusion.epilogue)
    )


def _may_be_product(fusion: ConvFusion, layout: NhwcLayout) -> bool:
    is_last = id(fusion.region.conv) in layout.convolutions
    return is_last and fusion.region.convolution.pointwise and fusion.prologue is None


def is_of_result(program: Program) -> bool:
    """Whether a Program makes one float32 tensor of its first input, and computes nothing else."""
    depends = [index == 0 for index in range(len(program.values))]
    for index, value in enumerate(program.values):
        if isinstance(value, Instruction):
            depends[index] = any(depends[operand] for operand in value.operands)
            if not depends[index]:
                return False
    return program.outputs != (0,) and program.dtype(program.outputs[0]) == "f32"
