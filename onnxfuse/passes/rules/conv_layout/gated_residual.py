"""x + x · g → x · (1 + g), for a gate g that is small compared with x."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import dtype_of, is_constant
from onnxfuse.model.elementwise_operators import Values, operators_that
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

_BETWEEN_ZERO_AND_ONE = operators_that(lambda row: row.values is Values.UNIT) | {"Softmax"}
_KEEPS_THE_RANGE = {"Identity", "ReduceMax", "ReduceMean", "ReduceMin", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class GatedResidual(RewriteRule):
    """Adds one to the gate of a squeeze-and-excitation block in place of adding its input to its output.

    The gate has one value a channel, or one in all, for each image, so one pass over a large tensor is saved.  An
    infinite ``x`` whose gate is 0 stays infinite, where the sum was NaN.
    Refused: a gate that is not known to have sizes of one behind the channels of 4-D, or to lie between 0 and 1, for
    with others the product could overflow where the new one does not; types other than float32 and float64; a
    product that is needed elsewhere.
    """

    name = "gated-residual"

    def pattern(self, op: Ops, x: Any, g: Any) -> Any:
        """Either operand order of either node."""
        return op.Add(x, op.Mul(x, g))

    def check(self, match: Match) -> str | None:
        """The gate must be small, and known to be."""
        x, gate = match["x"], match["g"]
        if is_constant(gate) or is_constant(x) or x is gate:
            return NOT_APPLICABLE
        if gate.shape is None or x.shape is None:
            return "the shapes of the tensor and of its gate are not known"
        if len(gate.shape) != 4 or len(x.shape) != 4 or list(gate.shape[2:]) != [1, 1]:
            return "the gate is not known to be one value a channel"
        if list(x.shape[2:]) == [1, 1]:
            return "the gate is as large as what it gates"
        if dtype_of(gate) not in _FLOATS:
            return "the gate is not known to be float32 or float64"
        if not _is_between_zero_and_one(gate):
            return "the gate is not known to lie between 0 and 1"
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """An Add on the gate and the Mul."""
        return builder.op("Mul", match["x"], builder.op("Add", match["g"], 1.0))


def _is_between_zero_and_one(tensor: gs.Tensor) -> bool:
    while tensor.inputs:
        op = standard_op(tensor.inputs[0])
        if op in _BETWEEN_ZERO_AND_ONE:
            return True
        if op not in _KEEPS_THE_RANGE:
            return False
        tensor = tensor.inputs[0].inputs[0]
    return False
