"""GatherND(x, all places in their order) → Reshape(x)."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.model.constants import constant_value, shape_of
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

_MOST_INDICES = 1 << 22


class GatherInOrder(RewriteRule):
    """Takes a tensor as it is where each of its elements is gathered once, in their order.

    So PyTorch exports masks of an attention, which are indexed by batch and place: (batch, length) → (batch, 1, 1,
    length).
    """

    name = "gather-in-order"

    def pattern(self, op: Ops, data: Any) -> Any:
        """A gather by constants."""
        return op.GatherND(data, op.constant("places"), batch_dims=0)

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds the shape of the result; sizes have to be known."""
        places, shape = match["places"], shape_of(match["data"])
        if shape is None or 0 in shape or len(places.shape) < 2 or not 0 < np.prod(places.shape) <= _MOST_INDICES:
            return NOT_APPLICABLE
        depth = places.shape[-1]
        if depth > len(shape) or np.prod(places.shape[:-1]) != np.prod(shape[:depth]):
            return NOT_APPLICABLE
        indices = np.asarray(constant_value(places)).reshape(-1, depth)
        sizes = np.array(shape[:depth])
        if np.any((indices < -sizes) | (indices >= sizes)):
            return NOT_APPLICABLE
        flat = np.ravel_multi_index(tuple((indices % sizes).T), shape[:depth])
        if not np.array_equal(flat, np.arange(len(flat))):
            return NOT_APPLICABLE
        match.plan = [*places.shape[:-1], *shape[depth:]]
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The Reshape."""
        return builder.op("Reshape", match["data"], builder.initializer(np.array(match.plan, np.int64), "shape"))
