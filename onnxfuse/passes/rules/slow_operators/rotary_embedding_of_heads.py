"""x · cos + Concat(x₂, x₁) · sin, where x = Transpose(y) → Transpose(y · c + Concat(y₂, y₁) · s)."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.fused.attention.attention_heads import SWAPPED
from onnxfuse.fused.attention.attention_parts import part_of
from onnxfuse.model.constants import constant_value
from onnxfuse.passes.rules.opset_forms import unsqueeze
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

_SLICES = ("first", "second")
_OF_ONE_HEAD = {3: [1, 0, 2], 4: SWAPPED}  # how cosines for (…, heads, length, size) are turned, by their rank


class RotaryEmbeddingOfHeads(RewriteRule):
    """Rotates Q or K before the heads come first, (batch, length, heads, size) → (batch, heads, length, size).

    A node of an attention reads its heads from wherever they lie, so that the Transpose behind does not cost anything.
    Results stay the same.  Refused where the result is put together with others, as with the keys of words before: the
    heads must come first for that.
    """

    name = "rotary-embedding-of-heads"

    def pattern(self, op: Ops, y: Any, cosines: Any, sines: Any) -> Any:
        """The rotation, behind the minus that ``rotary-embedding`` moves to the sines."""
        x = op.Transpose(y, perm=SWAPPED, _name="turn")
        slices = [op.Slice(x, _extra_inputs=True, _name=name) for name in _SLICES]
        parts = op.Split(x, _outputs=2, _extra_inputs=True, _name="split")
        halves = op.Concat(*slices, _name="swapped"), op.Concat(*reversed(parts), _name="swapped")
        swapped = op.any_of(*halves, op.Gather(x, op.constant("places"), _name="gathered"))
        return op.Add(op.Mul(x, cosines, _name="straight"), op.Mul(swapped, sines, _name="turned"))

    def check(self, match: Match) -> str | None:
        """Only of two parts of ``x`` along its last dimension, and of cosines that are the same for all heads."""
        if match.has_node("gathered"):
            if match.attribute("gathered", "axis") not in (-1, 3):
                return NOT_APPLICABLE
        else:
            parts = [part_of(tensor) for tensor in match.node("swapped").inputs]
            if any(part is None or part.axis != 3 for part in parts):
                return NOT_APPLICABLE
            if match.attribute("swapped", "axis") not in (-1, 3):
                return NOT_APPLICABLE
        if not all(map(_is_for_all_heads, (match["cosines"], match["sines"]))):
            return "its cosines are not known to be the same for all heads"
        (result,) = match.outputs
        if match.editor.is_graph_output(result) or any(reader.op == "Concat" for reader in result.outputs):
            return "it is put together with others, heads first"
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The same nodes on what was transposed, and the Transpose behind them."""
        y = match["y"]
        if match.has_node("gathered"):
            swapped = builder.like(match.node("gathered"), y, match["places"])
        elif match.has_node("split"):
            split = match.node("split")
            swapped = builder.like(match.node("swapped"), *reversed(builder.like(split, y, *split.inputs[1:])))
        else:
            halves = (builder.like(part, y, *part.inputs[1:]) for part in map(match.node, _SLICES))
            swapped = builder.like(match.node("swapped"), *halves)
        straight = builder.like(match.node("straight"), y, _turned(builder, match["cosines"]))
        turned = builder.like(match.node("turned"), swapped, _turned(builder, match["sines"]))
        return builder.like(match.node("turn"), builder.like(match.root, straight, turned))


def _is_for_all_heads(factor: Any) -> bool:
    """(length, size), or more dimensions before these, of which that of heads is 1."""
    shape = factor.shape
    return shape is not None and (len(shape) == 2 or (len(shape) in _OF_ONE_HEAD and shape[-3] == 1))


def _turned(builder: Builder, factor: Any) -> Any:
    """(length, size) → (length, 1, size), and with more dimensions accordingly."""
    perm, values = _OF_ONE_HEAD.get(len(factor.shape)), constant_value(factor)
    if values is not None:
        return builder.initializer(values[:, np.newaxis] if perm is None else values.transpose(perm), "turned")
    if perm is None:
        return unsqueeze(builder, factor, 1)
    name = builder.model.unique_name(f"{factor.name}_turned")  # not that of the Transpose which is replaced
    return builder.op("Transpose", factor, perm=perm, _name=name)
