"""Concat(Slice(x), Slice(x), …) along one axis → Gather(x), for CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfuse.model.constants import slices_of
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.rewrite.base import PassContext

_MOST_INDICES = 1 << 12


class SlicesAsGather(RewriteRule):
    """Takes slices of one tensor that are put together again, as torch.roll is exported, in one kernel in place of
    three.

    ONNX Runtime makes a Split of slices that cover an axis whose size it knows, and its CUDA kernel for unequal parts
    copies the addresses and sizes of the parts from the host at each run: measured on an H100, those of a Swin
    Transformer take a sixth of its time in a CUDA graph.  Halves of the last dimension that change places, as in rotary
    embeddings, stay: fused nodes read them so.
    """

    name = "slices-as-gather"

    def begin(self, model: Model, context: PassContext) -> None:
        """Slice has its bounds as inputs from opset 10 on."""
        self._opset = model.opsets.get("", 1)

    def pattern(self, op: Ops, first: Any) -> Any:
        """The Concat; its inputs are read in ``check``."""
        return op.Concat(first, _extra_inputs=True)

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds what is sliced, the indices that are taken, and the axis."""
        slices = [tensor.inputs[0] for tensor in match.root.inputs if len(tensor.inputs) == 1]
        if self._opset < 10 or len(slices) != len(match.root.inputs) or len(slices) < 2:
            return NOT_APPLICABLE
        if any(standard_op(node) != "Slice" or node.inputs[0] is not slices[0].inputs[0] for node in slices):
            return NOT_APPLICABLE
        data = slices[0].inputs[0]
        # ONNX Runtime's Gather of strings is wrong, on the CPU and but for the last axis (1.31).
        if data.shape is None or data.dtype is None or data.dtype == np.dtype(object):
            return NOT_APPLICABLE
        rank = len(data.shape)
        axis = match.root.attrs["axis"] % rank
        size = data.shape[axis]
        if not isinstance(size, int):
            return NOT_APPLICABLE
        taken = [part for node in slices if (part := _indices(node, axis, rank, size)) is not None]
        if len(taken) != len(slices):
            return NOT_APPLICABLE
        indices = np.concatenate(taken)
        if not 0 < len(indices) <= _MOST_INDICES:
            return NOT_APPLICABLE
        if axis == rank - 1 and _swaps_halves(indices, size):
            return NOT_APPLICABLE
        match.plan = data, indices, axis
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The Gather; slices that nothing else reads go."""
        data, indices, axis = match.plan
        return builder.op("Gather", data, builder.initializer(indices, "indices"), axis=axis)


def _swaps_halves(indices: np.ndarray, size: int) -> bool:
    return size % 2 == 0 and np.array_equal(indices, np.roll(np.arange(size), size // 2))


def _indices(node: Node, axis: int, rank: int, size: int) -> np.ndarray | None:
    """The indices along ``axis``, of ``size``, that a Slice along it alone takes; None for any other Slice."""
    slices = slices_of(node) or ()
    if len(slices) != 1 or slices[0].axis % rank != axis:
        return None
    return np.array(slices[0].places(size), np.int64)
