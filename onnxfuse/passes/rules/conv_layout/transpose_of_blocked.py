"""Transpose(Squeeze(x)), Transpose(Reshape(x)) → Squeeze(Transpose(x)), Reshape(Transpose(x)) where x is blocked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.graph import sorted_nodes
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.model.returned import Returned
from onnxfuse.ort.ort_layout import ConvLayout
from onnxfuse.passes.rules.opset_forms import squeeze
from onnxfuse.program.lowering import is_elementwise
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.rewrite.base import PassContext

_LAST = [0, 2, 3, 1]
"""The order of the dimensions with the channels last: from the blocked layout ONNX Runtime goes to it at once."""

_MOST_TENSORS = 16
"""How far to look for a convolution: an activation written out has fewer."""


class TransposeOfBlocked(RewriteRule):
    """Moves the channels of an image behind its positions before, not after, its two spatial dimensions become one.

    So is the sequence made that a transformer reads of what convolutions give.  Refused: data that no convolution in
    the blocked layout gives, with elementwise nodes after it; a Reshape that is not known to keep images and channels
    apart.
    """

    name = "transpose-of-blocked"

    def begin(self, model: Model, context: PassContext) -> None:
        """Finds out what ONNX Runtime keeps in the blocked layout."""
        is_output = Returned(model.graphs())
        self._layouts = [ConvLayout(sorted_nodes(graph), is_output) for graph in model.graphs()]

    def pattern(self, op: Ops, x: Any) -> Any:
        """(N, C, H, W) → (N, C, L) → (N, L, C)."""
        squeezed = op.Squeeze(x, op.optional(op.constant("axes")), _name="squeeze")
        return op.Transpose(op.any_of(squeezed, op.Reshape(x, op.constant("shape"), _name="reshape")), perm=[0, 2, 1])

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds the axis to squeeze once it is transposed, or the new shape."""
        x = match["x"]
        graph = match.editor.graph_index(match.root)
        assert graph is not None
        if x.shape is None or len(x.shape) != 4 or not _made_of_blocked(x, self._layouts[graph]):
            return NOT_APPLICABLE
        if match.has_node("squeeze"):
            axes = match.attribute("squeeze", "axes") if match.get("axes") is None else match.constant("axes")
            dropped = [int(axis) % 4 for axis in axes] if axes is not None else []
            match.plan = dropped[0] - 1 if dropped in ([2], [3]) else None
        else:
            shape = match.constant("shape")
            known = shape is not None and (0 not in shape or not match.attribute("reshape", "allowzero"))
            match.plan = _channels_last(x.shape, shape.tolist()) if shape is not None and known else None
        return "it is not known to leave images and channels as they are" if match.plan is None else None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """A Transpose of four dimensions and what makes three of them."""
        transposed = builder.like(match.root, match["x"], perm=_LAST)
        if match.has_node("squeeze"):
            return squeeze(builder, transposed, match.plan)
        return builder.op("Reshape", transposed, builder.initializer(np.array(match.plan, np.int64), "channels_last"))


def _made_of_blocked(tensor: gs.Tensor, layout: ConvLayout) -> bool:
    """Whether ``tensor`` is blocked, or computed from such a one by elementwise nodes, which ONNX Runtime may fuse into
    one that keeps it blocked.
    """
    pending, seen = [tensor], {id(tensor)}
    while pending:
        made = pending.pop()
        if layout.is_blocked(made) or any(standard_op(node) == "Conv" for node in made.inputs):
            return True
        read = [operand for node in made.inputs if is_elementwise(node) for operand in node.inputs]
        pending += [operand for operand in read if id(operand) not in seen and len(seen) < _MOST_TENSORS]
        seen.update(map(id, read))
    return False


def _channels_last(sizes: list[Any], shape: list[int]) -> list[int] | None:
    """The shape (N, L, C) for what (N, C, L) was for; None where images or channels are not kept apart."""
    if len(shape) != 3 or not isinstance(sizes[1], int) or sizes[1] < 1:
        return None
    images, channels, positions = shape
    if images not in (0, sizes[0]) or channels not in (0, sizes[1]) or positions == 0:
        return None
    return [images, positions, sizes[1]]
