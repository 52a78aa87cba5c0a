"""Turning a convolution, or a matrix product, and its elementwise neighbours into one fused node.

The node's inputs are X, W, what the prologue reads besides X, and what the epilogue reads besides the convolution's
result, the bias among it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs

from onnxfuse.cuda.conv.spec import PRODUCT, Convolution
from onnxfuse.fused.conv.convolutions import bias
from onnxfuse.fused.fused_node import Constants, RegionProgram, local_function
from onnxfuse.fused.fusion import Fusion
from onnxfuse.fused.kinds import CONV, TF32_KEY
from onnxfuse.program import Program

Attributes = dict[str, str | int | list[int] | onnx.TensorProto]

_PROGRAMS = ("program", "prologue")
_NOT_OF_CONV = ("operator", "weight_shape")
"""Attributes of the fused node that are none of the convolution's."""


@dataclass(frozen=True)
class ConvRegion:
    """A convolution's node, the elementwise nodes before it and after it, each in topological order, and ``data``,
    the tensor that takes the place of the convolution's first input."""

    conv: gs.Node
    convolution: Convolution
    data: gs.Tensor
    before: tuple[gs.Node, ...] = ()
    after: tuple[gs.Node, ...] = ()

    @property
    def nodes(self) -> tuple[gs.Node, ...]:
        """All nodes, in topological order."""
        return (*self.before, self.conv, *self.after)


@dataclass(frozen=True)
class ConvFusion:
    """What takes the place of a region; ``prologue`` is None where nothing stands before the convolution."""

    region: ConvRegion
    epilogue: Program
    prologue: Program | None
    function: onnx.FunctionProto
    constants: Constants
    inputs: tuple[gs.Tensor, ...]
    outputs: tuple[gs.Tensor, ...]

    @property
    def attributes(self) -> Attributes:
        """The attributes of the fused node, but for those with code."""
        return {**node_attributes(self.region.convolution, self.epilogue, self.prologue), **self.constants}

    def fusion(self, *, tf32: bool = False) -> Fusion:
        """The fused node; ``tf32`` lets it round factors of float32 so."""
        rounds = {TF32_KEY: "1"} if tf32 and self.region.convolution.dtype == "f32" else {}
        nodes = self.region.nodes
        return Fusion(CONV, nodes, self.inputs, self.outputs, self.attributes, self.function, metadata=rounds)


def fuse_conv(
    region: ConvRegion,
    opset: int,
    is_used_outside: Callable[[gs.Tensor], bool],
    fast_math: bool = False,
    immediates: bool = True,
) -> ConvFusion:
    """Build the ConvFusion of a region; the graph is not changed.

    ``is_used_outside`` says whether a tensor that the region computes is read by anything but the region.  Without
    ``immediates`` constants of one element are inputs.  Raises ProgramError if a Program exceeds a limit.
    """
    conv, result = region.conv, region.conv.outputs[0]
    before = RegionProgram(opset, fast_math)
    before.input(region.data)
    for node in region.before:
        before.lower(node)
    prologue = before.build([conv.inputs[0]]) if region.before else None

    after = RegionProgram(opset, fast_math, immediates)
    value = after.input(result)
    if (vector := bias(conv)) is not None:
        axis = None if region.convolution.channels_last else 1
        value = after.builder.emit("add", region.convolution.dtype, value, after.input(vector, axis))
    after.define(result, value)
    for node in region.after:
        after.lower(node)
    outputs = [node.outputs[0] for node in (conv, *region.after) if is_used_outside(node.outputs[0])]
    epilogue = after.build(outputs)

    inputs = [region.data, conv.inputs[1], *before.inputs[1:], *after.inputs[1:]]
    attributes = node_attributes(region.convolution, epilogue, prologue)
    apart = attributes if region.convolution.channels_last else (*_PROGRAMS, *_NOT_OF_CONV)
    own = {name: value for name, value in attributes.items() if name not in apart}
    function, constants = local_function(region.nodes, inputs, outputs, attributes, opset, {id(conv): own})
    return ConvFusion(region, epilogue, prologue, function, constants, tuple(inputs), tuple(outputs))


def node_attributes(conv: Convolution, epilogue: Program, prologue: Program | None) -> Attributes:
    """The attributes of a fused node, but for those with code."""
    programs = {"program": epilogue} if prologue is None else {"program": epilogue, "prologue": prologue}
    texts: Attributes = {name: str(program) for name, program in programs.items()}
    if conv.channels_last:
        shape = list(conv.weight_shape)
        return {"operator": PRODUCT, "weight_shape": shape, "transB": int(not conv.transposed), **texts}
    found: Attributes = {
        "operator": "ConvTranspose" if conv.transposed else "Conv",
        "weight_shape": list(conv.weight_shape),
        "kernel_shape": list(conv.kernel),
        "strides": list(conv.strides),
        "dilations": list(conv.dilations),
        "group": conv.group,
        "auto_pad": conv.auto_pad,
    }
    if conv.pads is not None:
        found["pads"] = list(conv.pads)
    if conv.transposed:
        found["output_padding"] = list(conv.output_padding)
    return {**found, **texts}


def operands(inputs: Sequence[gs.Tensor], prologue: Program | None) -> tuple[list[gs.Tensor], list[gs.Tensor]]:
    """The inputs of a fused convolution that its prologue and its epilogue read besides their first."""
    count = 0 if prologue is None else len(prologue.inputs) - 1
    return list(inputs[2 : 2 + count]), list(inputs[2 + count :])
