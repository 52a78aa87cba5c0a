"""Depthwise convolutions that become part of the 1x1 convolution after them, and 1x1 convolutions before these.

A depthwise separable block is a convolution of single channels and a product of all (F. Chollet, Xception, 2017).  With
the channels last the product reads the first one's pixels one after the other, each once: the node computes them where
it wants them, and they are never stored.

An inverted residual block (Sandler et al., MobileNetV2, 2018) has a product before that, which makes several times as
many channels.  Where these are more than the caches next to a core hold, the node makes a few rows of them at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs

from onnxfuse.fused.conv.conv_node import ConvFusion
from onnxfuse.fused.nhwc.nhwc_layout import NhwcLayout
from onnxfuse.program import Program
from onnxfuse.program.figures import MAX_OPERANDS
from onnxfuse.program.program import Instruction

BEFORE = "depthwise_"
"""Begins the names of what is the first convolution's: attributes, and tensors of the function."""
EXPANSION = "expansion_"
"""The same of the product before that, after BEFORE where the depthwise convolution has that too."""


@dataclass(frozen=True)
class NhwcPair:
    """A depthwise convolution, what makes all that it reads, and the 1x1 convolution that alone reads its result: one
    of these at least."""

    expansion: ConvFusion | None
    depthwise: ConvFusion
    product: ConvFusion | None

    @property
    def fusions(self) -> tuple[ConvFusion, ...]:
        """The convolutions, in topological order."""
        return tuple(fusion for fusion in (self.expansion, self.depthwise, self.product) if fusion is not None)


def find_pairs(
    fusions: Sequence[ConvFusion],
    layout: NhwcLayout,
    nodes: Sequence[gs.Node],
    may_expand: Callable[[ConvFusion, ConvFusion], bool],
) -> dict[int, NhwcPair]:
    """The pairs among the ``fusions`` of a graph of ``nodes``, by the ids of all of their convolutions' nodes.

    ``may_expand`` says whether a 1x1 convolution would rather be part of the depthwise one that reads it.
    """
    made = {id(fusion.outputs[0]): fusion for fusion in fusions if _is_between(fusion, layout)}
    region = {id(node): id(fusion.region.conv) for fusion in fusions for node in fusion.region.nodes}
    readers: dict[int, set[int]] = {}
    for node in nodes:
        for tensor in node.inputs:
            readers.setdefault(id(tensor), set()).add(region.get(id(node), id(node)))

    def before(fusion: ConvFusion) -> ConvFusion | None:
        """What makes what a convolution alone reads, and once."""
        data = fusion.region.data
        alone = readers[id(data)] == {id(fusion.region.conv)} and sum(one is data for one in fusion.inputs) == 1
        return made.get(id(data)) if alone else None

    products: dict[int, ConvFusion] = {}
    for fusion in fusions:
        single = before(fusion) if _may_end(fusion, layout) and fusion.region.convolution.pointwise else None
        if single is not None and single.region.convolution.depthwise:
            products[id(single)] = fusion
    of_pairs = {id(product) for product in products.values()}

    def expansion_of(fusion: ConvFusion, product: ConvFusion | None) -> ConvFusion | None:
        """A 1x1 convolution that is no part of another pair, if it and the pair are one node's worth of operands."""
        made_by = before(fusion)
        if made_by is None or not made_by.region.convolution.pointwise or id(made_by) in of_pairs:
            return None
        all_of_them = NhwcPair(made_by, fusion, product).fusions
        operands = sum(len(one.inputs) + len(one.outputs) - 1 for one in all_of_them)
        fits = operands <= MAX_OPERANDS and all(value.dtype == "f32" for value in made_by.epilogue.inputs)
        return made_by if fits and may_expand(made_by, fusion) else None

    pairs: dict[int, NhwcPair] = {}
    for fusion in fusions:
        if fusion.region.convolution.depthwise and _may_end(fusion, layout):
            product = products.get(id(fusion))
            pair = NhwcPair(expansion_of(fusion, product), fusion, product)
            if len(pair.fusions) > 1:
                pairs |= {id(one.region.conv): pair for one in pair.fusions}
    return pairs


def pair_function(first: onnx.FunctionProto, second: onnx.FunctionProto, prefix: str) -> onnx.FunctionProto:
    """The function, without a name, of a pair whose own functions are ``first`` and ``second``.

    Its inputs are the first's data, the second's weights, the first's weights and operands, and the second's operands.
    Names of what is the first's begin with ``prefix``.
    """
    function = onnx.FunctionProto()
    function.CopyFrom(second)
    del function.node[:]
    for node in first.node:
        added = function.node.add()
        added.CopyFrom(node)
        for tensors in (added.input, added.output):
            tensors[:] = [second.input[0] if name == first.output[0] else name and prefix + name for name in tensors]
        for attribute in added.attribute:
            if attribute.ref_attr_name:
                attribute.ref_attr_name = prefix + attribute.ref_attr_name
    function.node.extend(second.node)
    del function.input[:]
    function.input.extend(
        [prefix + first.input[0], second.input[1], *(prefix + name for name in first.input[1:]), *second.input[2:]]
    )
    return function


def _is_between(fusion: ConvFusion, layout: NhwcLayout) -> bool:
    """Whether a convolution reads its data alone as it is, and gives one tensor, with the channels last."""
    return (
        _may_end(fusion, layout)
        and len(fusion.outputs) == 1
        and id(fusion.region.data) in layout.tensors
        and id(fusion.outputs[0]) in layout.tensors
        and not any(layout.inputs(fusion)[2:])
        and is_of_result(fusion.epilogue)
    )


def _may_end(fusion: ConvFusion, layout: NhwcLayout) -> bool:
    """Whether a convolution has the channels last, and reads its data as it is."""
    return id(fusion.region.conv) in layout.convolutions and fusion.prologue is None


def is_of_result(program: Program) -> bool:
    """Whether a Program makes one float32 tensor of its first input, and computes nothing else."""
    depends = [index == 0 for index in range(len(program.values))]
    for index, value in enumerate(program.values):
        if isinstance(value, Instruction):
            depends[index] = any(depends[operand] for operand in value.operands)
            if not depends[index]:
                return False
    return program.outputs != (0,) and program.dtype(program.outputs[0]) == "f32"
