"""Squeeze-and-excitation blocks: where a graph computes a gate for each channel from the means of all channels.

The gate is a mean over the spatial dimensions, a 1x1 convolution, elementwise nodes, another 1x1 convolution, and
elementwise nodes again; what it gates is no part of it (J. Hu et al., Squeeze-and-Excitation Networks, 2018).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs

from onnxfuse.fused.contraction import Contraction
from onnxfuse.fused.conv.convolutions import bias, describe
from onnxfuse.fused.fused_node import Constants, RegionProgram, local_function
from onnxfuse.fused.fusion import Fusion
from onnxfuse.fused.kinds import SQUEEZE_EXCITE
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.passes.rules.channel_mean import averaged
from onnxfuse.program import Program
from onnxfuse.program.lowering import check, is_elementwise
from onnxfuse.program.node_lowering import UnsupportedError, tensor_dtype

MOST_NODES = 32
"""Elementwise nodes after one convolution."""

READ_ELSEWHERE = "a value inside its gate is read elsewhere too"
NO_SECOND = "no other convolution follows the first one and its elementwise nodes"
NOT_POINTWISE = "its convolutions are not 1x1 ones of float32 with constant weights"


@dataclass(frozen=True)
class GateLayer:
    """A 1x1 convolution of 1x1 images, the elementwise nodes after it, in topological order, and their result."""

    conv: gs.Node
    tail: tuple[gs.Node, ...]
    result: gs.Tensor


@dataclass(frozen=True)
class SqueezeBlock:
    """The nodes of a gate; ``data`` is the tensor whose channels it takes the means of."""

    pool: gs.Node
    data: gs.Tensor
    squeeze: GateLayer
    excite: GateLayer

    @property
    def convolutions(self) -> tuple[gs.Node, gs.Node]:
        """Both."""
        return self.squeeze.conv, self.excite.conv

    @property
    def nodes(self) -> tuple[gs.Node, ...]:
        """All nodes, in topological order."""
        return (self.pool, self.squeeze.conv, *self.squeeze.tail, self.excite.conv, *self.excite.tail)


@dataclass(frozen=True)
class SqueezeFusion:
    """What takes the place of a block: a Program after each of its products."""

    block: SqueezeBlock
    squeeze: Program
    excite: Program
    function: onnx.FunctionProto
    constants: Constants
    inputs: tuple[gs.Tensor, ...]

    @property
    def fusion(self) -> Fusion:
        """The fused node."""
        attributes = {**_attributes(self.squeeze, self.excite), **self.constants}
        outputs = [self.block.excite.result]
        return Fusion(SQUEEZE_EXCITE, self.block.nodes, self.inputs, outputs, attributes, self.function)


class SqueezeBlocks:
    """The blocks of one graph; ``is_output`` says whether a graph returns a tensor."""

    def __init__(self, nodes: Sequence[gs.Node], is_output: Callable[[gs.Tensor], bool], opset: int) -> None:
        self._graph = Contraction(nodes)
        self._is_output = is_output
        self._opset = opset

    def readers(self, tensor: gs.Tensor) -> list[gs.Node]:
        """The nodes that read a tensor, those whose bodies read it among them."""
        return self._graph.readers(tensor)

    def block(self, node: gs.Node) -> SqueezeBlock | None:
        """The block that begins with ``node``; None if it is no mean that a convolution reads.

        Raises UnsupportedError, with a reason for the user, for one that has no kernel.
        """
        data = averaged(node)
        if data is None or not any(standard_op(reader) == "Conv" for reader in self.readers(node.outputs[0])):
            return None
        squeeze = self._layer(node.outputs[0])
        if not any(standard_op(reader) == "Conv" for reader in self.readers(squeeze.result)):
            raise UnsupportedError(NO_SECOND)
        return SqueezeBlock(node, data, squeeze, self._layer(squeeze.result))

    def _layer(self, tensor: gs.Tensor) -> GateLayer:
        """The convolution that reads a tensor, which nothing else may do, and what follows it."""
        readers = self.readers(tensor)
        if len(readers) != 1 or self._is_output(tensor):
            raise UnsupportedError(READ_ELSEWHERE)
        conv = readers[0]
        convolution = describe(conv)
        constant = all(isinstance(own, gs.Constant) for own in conv.inputs[1:] if own.name)
        if not convolution.pointwise or convolution.dtype != "f32" or not constant or conv.inputs[0] is not tensor:
            raise UnsupportedError(NOT_POINTWISE)
        return GateLayer(conv, *self._tail(conv, convolution.out_channels))

    def _tail(self, conv: gs.Node, channels: int) -> tuple[tuple[gs.Node, ...], gs.Tensor]:
        """As many elementwise nodes after a convolution as make one tensor of float32 for what follows."""
        made = [conv.outputs[0]]
        region: list[gs.Node] = []
        whole: tuple[tuple[gs.Node, ...], gs.Tensor] | None = None
        while True:
            inside = {id(node) for node in region}
            open_ends = [tensor for tensor in made if self._is_read_outside(tensor, inside)]
            if len(open_ends) == 1 and tensor_dtype(open_ends[0]) == "f32":
                whole = tuple(region), open_ends[0]
            known = {id(tensor) for tensor in made}
            readers = {id(node): node for tensor in made for node in self.readers(tensor) if id(node) not in inside}
            joining = [node for node in readers.values() if self._joins(node, known, channels)]
            if not joining or len(region) == MOST_NODES:
                break
            region.append(min(joining, key=self._graph.position))
            made.append(region[-1].outputs[0])
        if whole is None:
            raise UnsupportedError(READ_ELSEWHERE)
        return whole

    def _is_read_outside(self, tensor: gs.Tensor, inside: set[int]) -> bool:
        return self._is_output(tensor) or any(id(node) not in inside for node in self.readers(tensor))

    def _joins(self, node: gs.Node, known: set[int], channels: int) -> bool:
        """Whether a node computes one value a channel, from ``known`` tensors and constants alone."""
        if not is_elementwise(node) or check(node, self._opset) is not None:
            return False
        region = RegionProgram(self._opset, immediates=False)
        region.lower(node)
        program = region.build([node.outputs[0]])
        shape = node.outputs[0].shape
        if shape is None or len(shape) < 3 or list(shape[1:]) != [channels, *[1] * (len(shape) - 2)]:
            return False
        return all(
            id(tensor) in known
            if not isinstance(tensor, gs.Constant)
            else _is_operand(tensor, value.axis, channels, len(shape))
            for tensor, value in zip(region.inputs, program.inputs, strict=True)
        )


def fuse_squeeze_excite(block: SqueezeBlock, opset: int, fast_math: bool = False) -> SqueezeFusion:
    """Build the SqueezeFusion of a block; the graph is not changed.

    Raises ProgramError if a Program exceeds a limit.
    """
    inputs = [block.data]
    programs: list[Program] = []
    # The mean by the model's own operator: without the library ONNX Runtime may compute a GlobalAveragePool in blocks
    # of channels, where it lost ten times the digits that it does in a ReduceMean.
    body: list[gs.Node | _BodyNode] = [block.pool]
    for layer in (block.squeeze, block.excite):
        region = RegionProgram(opset, fast_math, immediates=False)
        value = region.input(layer.conv.outputs[0])
        if (vector := bias(layer.conv)) is not None:
            value = region.builder.emit("add", "f32", value, region.input(vector, 1))
        region.define(layer.conv.outputs[0], value)
        for node in layer.tail:
            region.lower(node)
        programs.append(region.build([layer.result]))
        inputs += [layer.conv.inputs[1], *region.inputs[1:]]
        body += [_BodyNode("Conv", tuple(layer.conv.inputs), (layer.conv.outputs[0],)), *layer.tail]
    squeeze, excite = programs
    function, constants = local_function(body, inputs, [block.excite.result], _attributes(squeeze, excite), opset)
    return SqueezeFusion(block, squeeze, excite, function, constants, tuple(inputs))


@dataclass(frozen=True)
class _BodyNode:
    """A node of the function alone, without the attributes that make no difference to 1x1 images: so that all blocks of
    a model share one function."""

    op: str
    inputs: tuple[gs.Tensor, ...]
    outputs: tuple[gs.Tensor, ...]
    domain: str = ""

    @property
    def attrs(self) -> dict[str, object]:
        """None."""
        return {}


def _attributes(squeeze: Program, excite: Program) -> dict[str, str]:
    return {"squeeze_program": str(squeeze), "program": str(excite)}


def _is_operand(tensor: gs.Constant, axis: int | None, channels: int, rank: int) -> bool:
    """Whether a constant has one element, or one a channel."""
    shape = list(tensor.shape)
    if axis is not None:
        return axis in (1, 1 - rank) and shape == [channels]
    return len(shape) <= rank and all(
        size == 1 or (place == 1 and size == channels) for place, size in enumerate(shape, rank - len(shape))
    )
