"""Gather(DequantizeLinear(table)) → DequantizeLinear(Gather(table))."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxfuse.model.constants import dtype_of, shape_of
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

_LIKELY_PLACES = 512
"""Where the number of rows that are taken is not known: as many as a text may have words."""


class DequantizedRows(RewriteRule):
    """Takes rows out of a quantized table, as that of words, before they are dequantized.

    ONNX Runtime leaves a DequantizeLinear of a constant as it is for its integer kernels, and dequantizes the whole
    table in each run.  Results are the same to the last bit.
    Left alone: scales that are not one number, which would have to be gathered too, other types than of 8 bits, for
    which there may be no Gather, and tables of fewer rows than are taken.
    """

    name = "dequantized-rows"
    keep_shared_nodes = True  # of a table that a product reads too, which may do so in integers

    def pattern(self, op: Ops, scale: Any, zero: Any, places: Any) -> Any:
        """Rows of a constant."""
        table = op.constant("table")
        dequantized = op.DequantizeLinear(table, scale, op.optional(zero), _name="dequantize")
        return op.Gather(dequantized, places, _name="gather")

    def check(self, match: Match) -> str | None:
        """Of more rows than are taken, as far as that is known."""
        table = match["table"]
        if dtype_of(table) not in (np.int8, np.uint8) or shape_of(match["scale"]) != ():
            return NOT_APPLICABLE
        if match.attribute("dequantize", "block_size") or match.attribute("dequantize", "output_dtype"):
            return NOT_APPLICABLE
        places = shape_of(match["places"])
        taken = _LIKELY_PLACES if places is None else math.prod(places)
        rows = table.shape[match.attribute("gather", "axis")]
        return None if self.everything or taken < rows else NOT_APPLICABLE

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The same nodes the other way round."""
        axis = match.attribute("gather", "axis")
        rows = builder.op("Gather", match["table"], match["places"], axis=axis)
        zero = match.get("zero")
        return builder.like(match.node("dequantize"), rows, match["scale"], *([] if zero is None else [zero]))
