"""x · scale + offset → Conv(x, scale, offset), depthwise and 1x1, where that keeps the blocked layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.graph import sorted_nodes
from onnxfuse.graph_ir import Node
from onnxfuse.passes.matcher import Match
from onnxfuse.passes.pattern import Ops
from onnxfuse.passes.rule import NOT_APPLICABLE, Builder, Refusal, RewriteRule
from onnxfuse.passes.rules.affine import Affine, Axis, compose, data_input, is_affine_node, read_step
from onnxfuse.planner.ort_layout import CHANNEL_ALIGNMENT, ConvLayout

if TYPE_CHECKING:
    from onnxfuse.graph import Model
    from onnxfuse.passes.base import PassContext


class AffineAsDepthwiseConv(RewriteRule):
    """Computes affine steps between two convolutions as a third, for which ONNX Runtime reorders nothing.

    Meant for the steps that could not be folded into either, as an offset before a convolution that pads.
    Refused: a result that no convolution reads in the blocked layout; a number of channels that cannot be
    blocked; constants that are neither scalar nor per channel, or not finite.  A BatchNormalization alone is
    left to ONNX Runtime, which does the same with it.
    """

    name = "affine-as-depthwise-conv"

    def begin(self, model: Model, context: PassContext) -> None:
        """Finds out what ONNX Runtime keeps in the blocked layout."""
        self._layouts = [ConvLayout(sorted_nodes(graph), graph.outputs) for graph in model.graphs()]

    def pattern(self, op: Ops, x: Any) -> Any:
        """The first step; the chain after it is of any length and read in ``check``."""
        k = op.constant("k")
        return op.any_of(op.Mul(x, k), op.Add(x, k), op.Sub(x, k), op.Sub(k, x), op.Div(x, k))

    def check(self, match: Match) -> str | None:
        """Reads the chain; ``match.plan`` holds what it does, one value a channel."""
        graph = match.editor.graph_index(match.root)
        assert graph is not None
        layout = self._layouts[graph]
        if not layout.is_blocked(match["x"]):
            return NOT_APPLICABLE
        followers = _followers(match)
        last = followers[-1] if followers else match.root
        result = last.outputs[0]
        conv = next((reader for reader in result.outputs if _reads_blocked(layout, reader, result)), None)
        if conv is None:
            return "no convolution reads its result in the blocked layout"
        channels = int(conv.inputs[1].shape[1] * conv.attrs.get("group", 1))
        if channels % CHANNEL_ALIGNMENT:
            return f"{channels} channels cannot be blocked"
        axis = Axis(channels, rank=4, index=1)
        step = read_step(match.root, axis)
        for node in followers:
            step = compose(step, read_step(node, axis))
            match.absorb(node)
        match.plan = _rounded(step, channels)
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """A convolution with one 1x1 kernel a channel."""
        scale, offset = match.plan
        hint = match["k"].name or match.root.name
        weights = builder.initializer(scale.reshape(-1, 1, 1, 1), f"{hint}_scale")
        bias = builder.initializer(offset, f"{hint}_offset")
        return builder.op("Conv", match["x"], weights, bias, group=scale.size, kernel_shape=[1, 1])


def _followers(match: Match) -> list[Node]:
    """The affine nodes that follow the root one on the other; nothing else reads a value in between."""
    editor = match.editor
    node = match.root
    found: list[Node] = []
    while True:
        value = node.outputs[0]
        if len(value.outputs) != 1 or editor.is_graph_output(value):
            return found
        node = value.outputs[0]
        home = editor.graph_index(node) == editor.graph_index(match.root)
        if not (home and is_affine_node(node) and data_input(node) is value):
            return found
        found.append(node)


def _reads_blocked(layout: ConvLayout, reader: Node, tensor: gs.Tensor) -> bool:
    return layout.reads_blocked(reader) and reader.inputs[0] is tensor


def _rounded(step: Affine, channels: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Scale and offset in float32.  Raises Refusal where one overflows."""
    with np.errstate(over="ignore"):
        scale, offset = (
            np.broadcast_to(values, (channels,)).astype(np.float32) for values in (step.scale, step.offset)
        )
    if not (np.all(np.isfinite(scale)) and np.all(np.isfinite(offset))):
        raise Refusal("its constants together overflow float32")
    return scale, offset
