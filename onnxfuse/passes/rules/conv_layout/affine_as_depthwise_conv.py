"""x · scale + offset → Conv(x, scale, offset), depthwise and 1x1, where that keeps the blocked layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfuse.fused.conv.cpu_convolutions import cpu_chooser
from onnxfuse.model.graph import sorted_nodes
from onnxfuse.model.returned import Returned
from onnxfuse.ort.ort_layout import CHANNEL_ALIGNMENT, ConvLayout
from onnxfuse.passes.rules.fold_affine.affine import Affine, Axis, constant_step, read_step, then_along
from onnxfuse.passes.rules.fold_affine.fold_affine_after import chain_after
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, Refusal, RewriteRule

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.rewrite.base import PassContext


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
        is_output = Returned(model.graphs())
        self._layouts = [ConvLayout(sorted_nodes(graph), is_output) for graph in model.graphs()]
        self._is_own = cpu_chooser(context).is_own

    def pattern(self, op: Ops, x: Any) -> Any:
        """The first step; the chain after it is of any length and read in ``check``."""
        return constant_step(op, x, op.constant("k"))

    def check(self, match: Match) -> str | None:
        """Reads the chain; ``match.plan`` holds what it does, one value a channel."""
        graph = match.editor.graph_index(match.root)
        assert graph is not None
        layout = self._layouts[graph]
        x = match["x"]
        if not layout.is_blocked(x):
            return NOT_APPLICABLE
        shape = x.shape
        if shape is None or len(shape) != 4 or not isinstance(shape[1], int):
            return "the number of its channels is not known"
        channels = shape[1]
        if channels % CHANNEL_ALIGNMENT:
            return f"{channels} channels cannot be blocked"
        axis = Axis(channels, rank=4, index=1)
        followers, step = chain_after(match, read_step(match.root, axis), then_along(axis))
        result = followers[-1].outputs[0] if followers else match.outputs[0]
        readers = [reader for reader in result.outputs if reader.inputs[0] is result and not self._is_own(reader)]
        if not self.everything and not any(map(layout.reads_blocked, readers)):
            return "no convolution reads its result in the blocked layout"
        match.plan = _rounded(step, channels)
        for node in followers:
            match.absorb(node)
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """A convolution with one 1x1 kernel a channel."""
        scale, offset = match.plan
        hint = match["k"].name or match.root.name
        weights = builder.initializer(scale.reshape(-1, 1, 1, 1), f"{hint}_scale")
        bias = builder.initializer(offset, f"{hint}_offset")
        return builder.op("Conv", match["x"], weights, bias, group=scale.size, kernel_shape=[1, 1])


def _rounded(step: Affine, channels: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Scale and offset in float32.  Raises Refusal where one overflows."""
    with np.errstate(over="ignore"):
        scale, offset = (
            np.broadcast_to(values, (channels,)).astype(np.float32) for values in (step.scale, step.offset)
        )
    if not (np.all(np.isfinite(scale)) and np.all(np.isfinite(offset))):
        raise Refusal("its constants together overflow float32")
    return scale, offset
