"""Widens convolutions by channels of zeros, so that ONNX Runtime can keep them in its blocked layout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.graph_ir import Node
from onnxfuse.passes.base import PassContext, label
from onnxfuse.passes.constants import Array, constant_value, domain_of, is_constant
from onnxfuse.passes.editor import GraphEditor, unique_nodes
from onnxfuse.passes.rule import NOT_APPLICABLE, Refusal
from onnxfuse.planner.ort_layout import CHANNEL_ALIGNMENT

if TYPE_CHECKING:
    from onnxfuse.graph import Model

BLOCK = 16
"""Channels in the largest of ORT's blocks; a multiple of it is one of every block's."""
MAX_GROWTH = 1.25
"""By how much the multiplications of a convolution over whole images may grow."""

# What gives finite values for zeros, so that the zeros among the weights after it cancel them.
_UNARY = frozenset(["Relu", "HardSigmoid", "HardSwish", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Identity"])
_POOLING = frozenset(["GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool"])
_BINARY = frozenset(["Add", "Mul"])


@dataclass
class ChannelGroup:
    """Tensors that must have the same number of channels, and the convolutions around them."""

    channels: int
    pooled: bool = False
    tensors: dict[int, gs.Tensor] = field(default_factory=dict)
    producers: dict[int, Node] = field(default_factory=dict)
    depthwise: dict[int, Node] = field(default_factory=dict)
    readers: dict[int, Node] = field(default_factory=dict)

    def convolutions(self) -> list[Node]:
        """All convolutions of the group."""
        return unique_nodes([*self.producers.values(), *self.depthwise.values(), *self.readers.values()])


class PadChannels:
    """Pads the channels between convolutions to a multiple of 16 with zero weights.

    The added channels come from zero weights and are read by zero weights, so every output keeps its value as
    long as the values are finite.  Tensors that have more channels get new names.  Left alone: channels that
    ORT can block as they are; channels that anything reads but a convolution, an activation, a pooling, or an
    Add or Mul of such tensors; outputs of the graph; convolutions with groups other than depthwise ones;
    whatever would make a convolution over whole images more than a quarter more work.
    """

    name = "pad-channels"
    description = "Pads the channels between convolutions to a multiple of ONNX Runtime's blocks."

    def run(self, model: Model, context: PassContext) -> None:
        """Pads what it can in every graph of the model."""
        editor = GraphEditor(model)
        for graph in editor.graphs:
            small = _one_pixel_tensors(graph)
            refused: dict[int, str] = {}
            for node in graph.nodes:
                weights = _weights(node)
                if weights is None or node.attrs.get("group", 1) != 1 or weights.shape[0] % BLOCK == 0:
                    continue
                group = ChannelGroup(weights.shape[0])
                try:
                    _collect(group, node, editor, refused)
                    if _is_blocked(group):
                        raise Refusal(NOT_APPLICABLE)
                    _check_growth(group, small)
                except Refusal as reason:
                    refused.update(dict.fromkeys(group.tensors, str(reason)))
                    if str(reason):
                        context.refused(self.name, node, str(reason))
                    continue
                _pad(group, model)
                context.rewrote(self.name, group.convolutions())


def _weights(node: Node) -> gs.Constant | None:
    """The weights of a float32 convolution of images, if they and its bias are constants."""
    if node.op != "Conv" or domain_of(node) != "" or len(node.inputs) < 2:
        return None
    if not isinstance(node.inputs[1], gs.Constant):
        return None
    weights: gs.Constant = node.inputs[1]
    if len(weights.shape) != 4 or weights.dtype != np.float32:
        return None
    if len(node.inputs) > 2 and node.inputs[2].name and not is_constant(node.inputs[2]):
        return None
    return weights


def _is_depthwise(node: Node, weights: gs.Constant) -> bool:
    return bool(node.attrs.get("group", 1) == weights.shape[0] and weights.shape[1] == 1)


def _collect(group: ChannelGroup, start: Node, editor: GraphEditor, refused: Mapping[int, str]) -> None:
    """Adds everything that shares its channels with the output of ``start``.  Raises Refusal.

    ``refused`` has the tensors of groups found before: whatever leads to one of them belongs to that group.
    """
    home = editor.graph_index(start)
    pending = [start.outputs[0]]
    while pending:
        tensor = pending.pop()
        if id(tensor) in group.tensors:
            continue
        if id(tensor) in refused:
            raise Refusal(refused[id(tensor)])
        group.tensors[id(tensor)] = tensor
        if editor.is_graph_output(tensor):
            raise Refusal(f"{tensor.name!r} is an output of the graph")
        if len(tensor.inputs) != 1:
            raise Refusal(f"{tensor.name!r} is an input of the graph")
        for node in unique_nodes([*tensor.inputs, *tensor.outputs]):
            if editor.graph_index(node) != home:
                raise Refusal(f"{tensor.name!r} is used in another graph")
            pending.extend(_visit(group, node, tensor))


def _visit(group: ChannelGroup, node: Node, tensor: gs.Tensor) -> Iterator[gs.Tensor]:
    """Takes ``node``, next to ``tensor``, into the group; yields the tensors that come with it."""
    if node.op == "Conv":
        weights = _weights(node)
        if weights is None:
            raise Refusal(f"the weights of {label(node)!r} are no float32 constants")
        if _is_depthwise(node, weights) and weights.shape[0] == group.channels and group.channels > 1:
            group.depthwise[id(node)] = node
            yield from (node.inputs[0], node.outputs[0])
            return
        if node.attrs.get("group", 1) != 1:
            raise Refusal(f"{label(node)!r} is a convolution with groups")
        if node.outputs[0] is tensor:
            if weights.shape[0] != group.channels:
                raise Refusal(f"{label(node)!r} has another number of channels")
            group.producers[id(node)] = node
        elif node.inputs[0] is tensor and weights.shape[1] == group.channels:
            group.readers[id(node)] = node
        else:
            raise Refusal(f"{label(node)!r} reads it as more than its data")
        return
    if domain_of(node) != "" or len([output for output in node.outputs if output.name]) != 1:
        raise Refusal(f"{label(node)!r} ({node.op}) cannot be padded")
    group.pooled |= node.op in _POOLING
    bounded = node.op == "Clip" and all(is_constant(bound) for bound in list(node.inputs)[1:] if bound.name)
    if node.op in _UNARY or node.op in _POOLING or bounded:
        yield from (node.inputs[0], node.outputs[0])
        return
    if node.op in _BINARY and not any(is_constant(operand) for operand in node.inputs):
        yield from (*node.inputs, node.outputs[0])
        return
    raise Refusal(f"{label(node)!r} ({node.op}) needs the channels as they are")


def _is_blocked(group: ChannelGroup) -> bool:
    """Whether ORT blocks these channels anyway; for pooling it does so with whole blocks only."""
    return group.channels > BLOCK and group.channels % CHANNEL_ALIGNMENT == 0 and not group.pooled


def _one_pixel_tensors(graph: gs.Graph) -> set[int]:
    """Tensors that are one pixel an image: the work on them does not count."""
    return {
        id(tensor)
        for node in graph.nodes
        for tensor in node.outputs
        if tensor.shape is not None and len(tensor.shape) == 4 and list(tensor.shape[2:]) == [1, 1]
    }


def _check_growth(group: ChannelGroup, small: set[int]) -> None:
    """Raises Refusal if a convolution over whole images would grow by too much."""
    for node in group.convolutions():
        if id(node.outputs[0]) not in small:
            growth = _work(_padded_shape(group, node)) / _work(node.inputs[1].shape)
            if growth > MAX_GROWTH:
                more, channels = f"{growth - 1:.0%}", _target(group)
                raise Refusal(f"{label(node)!r} would do {more} more work with {channels} channels")


def _work(shape: Sequence[int]) -> int:
    """Multiplications for each pixel, as far as they cost time.

    ORT fills up blocks of outputs by itself, and blocks of inputs unless there is less than one, which it
    reads in the plain layout.  A 1x1 kernel over half a block of inputs is no slower over a whole one (measured).
    """
    outputs, inputs, *kernel = shape
    pixels = math.prod(kernel)
    free = inputs > BLOCK or (pixels == 1 and 2 * inputs >= BLOCK)
    counted = _whole_blocks(inputs) if free else inputs
    return _whole_blocks(outputs) * counted * pixels


def _whole_blocks(channels: int) -> int:
    return -(-channels // BLOCK) * BLOCK


def _target(group: ChannelGroup) -> int:
    return _whole_blocks(group.channels)


def _padded_shape(group: ChannelGroup, node: Node) -> tuple[int, ...]:
    outputs, inputs, *kernel = node.inputs[1].shape
    if id(node) in group.producers or id(node) in group.depthwise:
        outputs = _target(group)
    if id(node) in group.readers:
        inputs = _target(group)
    return outputs, inputs, *kernel


def _pad(group: ChannelGroup, model: Model) -> None:
    """Gives the convolutions their new weights, and the tensors between them new names and shapes."""
    for node in group.convolutions():
        shape = _padded_shape(group, node)
        node.inputs[1] = _padded(node.inputs[1], shape, model)
        if len(node.inputs) > 2 and node.inputs[2].name:
            node.inputs[2] = _padded(node.inputs[2], shape[:1], model)
        if id(node) in group.depthwise:
            node.attrs["group"] = shape[0]
    for tensor in group.tensors.values():
        tensor.name = model.unique_name(f"{tensor.name}_padded")
        if tensor.shape is not None:
            tensor.shape = [*tensor.shape[:1], _target(group), *tensor.shape[2:]]


def _padded(tensor: gs.Tensor, shape: tuple[int, ...], model: Model) -> gs.Constant:
    values = constant_value(tensor)
    assert values is not None
    widened: Array = np.zeros(shape, values.dtype)
    widened[tuple(slice(size) for size in values.shape)] = values
    return model.constant(widened, f"{tensor.name}_padded")
