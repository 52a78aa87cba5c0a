"""RotaryEmbedding(x, cosines, sines) → x · cos + Concat(x₂, x₁) · sin."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import domain_of, dtype_of
from onnxfuse.model.known_operators import CONTRIB_OPERATORS
from onnxfuse.passes.rules.opset_forms import unsqueeze
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

_PLACES = {"": (1, 2, 3), "com.microsoft": (2, 3, 1)}
"""By domain where the operator has its cosines, its sines, and the positions, which may be left out in ONNX's."""


class RotaryEmbeddingOperator(RewriteRule):
    """Writes the operator RotaryEmbedding, of ONNX or of ONNX Runtime, in the nodes that it stands for.

    ONNX Runtime computes it in one kernel; in nodes it is part of what else is fused, and computed for queries and keys
    at once.  Cosines and sines are taken by position once for all layers.
    Refused: what rotates a part of each head, scales its result, or counts positions from an offset; heads of unknown
    size; and results that operators of other domains read, for which nothing is gained.
    """

    name = "rotary-embedding-operator"

    def pattern(self, op: Ops, x: Any) -> Any:
        """The operator."""
        own = op.RotaryEmbedding(x, _extra_inputs=True, _name="rotary")
        return op.any_of(own, op("com.microsoft").RotaryEmbedding(x, _extra_inputs=True, _name="rotary"))

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds the cosines, the sines, the positions, and of a tensor of three dimensions the heads."""
        node, x = match.node("rotary"), match["x"]
        inputs = [node.inputs[place] if place < len(node.inputs) else None for place in _PLACES[domain_of(node)]]
        cosines, sines, positions = (tensor if tensor is not None and tensor.name else None for tensor in inputs)
        if cosines is None or sines is None or not x.shape or len(x.shape) not in (3, 4) or dtype_of(x) is None:
            return NOT_APPLICABLE
        if any(domain_of(reader) for reader in match.outputs[0].outputs):
            return NOT_APPLICABLE
        if domain_of(node) and not node.attrs.keys() <= CONTRIB_OPERATORS[node.op]:
            return "it has an attribute that is not known"
        if node.attrs.get("scale", 1.0) != 1 or node.attrs.get("is_packed_batching", 0):
            return "it scales its result, or packs a batch"
        ranks = [None if tensor.shape is None else len(tensor.shape) for tensor in (cosines, sines)]
        if ranks != ([3, 3] if positions is None else [2, 2]):
            return "the number of dimensions of its cosines is not known"
        if positions is not None and (positions.shape is None or len(positions.shape) != 2):
            return "its positions are not given one by one"
        half = cosines.shape[-1]
        if not isinstance(half, int) or not isinstance(x.shape[-1], int):
            return "the size of its heads is not known"
        heads = None
        size = x.shape[-1]
        if len(x.shape) == 3:
            heads = node.attrs.get("num_heads", 0) or size // (2 * half)
            size = size // heads if heads and size % heads == 0 else 0
        if size != 2 * half or node.attrs.get("rotary_embedding_dim", 0) not in (0, size):
            return "it rotates a part of each head"
        match.plan = cosines, sines, positions, heads, bool(node.attrs.get("interleaved", 0))
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The rotation, of (batch, length, heads, size) or (batch, heads, length, size)."""
        cosines, sines, positions, heads, interleaved = match.plan
        x = match["x"]
        size, heads_axis = 2 * cosines.shape[-1], 1 if heads is None else 2

        def reshaped(tensor: Any, *sizes: int) -> Any:
            return builder.op("Reshape", tensor, builder.initializer(np.array(sizes, np.int64), "heads"))

        def of_positions(table: gs.Tensor) -> Any:
            """(batch, 1, length, size / 2) or (batch, length, 1, size / 2)."""
            taken = table if positions is None else builder.op("Gather", table, positions, axis=0)
            return unsqueeze(builder, taken, heads_axis)

        cos, sin = of_positions(cosines), of_positions(sines)
        apart = x if heads is None else reshaped(x, 0, 0, heads, size)
        axis = 3
        if interleaved:
            apart, axis = reshaped(apart, 0, 0, 0, size // 2, 2), 4
            cos, sin = (unsqueeze(builder, factor, 4) for factor in (cos, sin))
        else:
            cos = builder.op("Concat", cos, cos, axis=3)
        sin = builder.op("Concat", builder.op("Neg", sin), sin, axis=axis)
        middle = 1 if interleaved else size // 2

        def half(start: int, end: int) -> Any:
            bounds = [builder.initializer(np.array([number], np.int64), "bound") for number in (start, end, axis)]
            return builder.op("Slice", apart, *bounds)

        swapped = builder.op("Concat", half(middle, 2 * middle), half(0, middle), axis=axis)
        rotated = builder.op("Add", builder.op("Mul", apart, cos), builder.op("Mul", swapped, sin))
        if heads is not None:
            return reshaped(rotated, 0, 0, heads * size)
        return reshaped(rotated, 0, 0, 0, size) if interleaved else rotated
