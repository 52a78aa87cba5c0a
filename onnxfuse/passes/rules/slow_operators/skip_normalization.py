"""SkipLayerNormalization and SkipSimplifiedLayerNormalization of ONNX Runtime → additions and a normalization."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import dtype_of
from onnxfuse.model.known_operators import CONTRIB_OPERATORS
from onnxfuse.passes.rules.opset_forms import reduce
from onnxfuse.passes.rules.slow_operators.ort_activations import DOMAIN, NOT_FLOAT32, UNKNOWN_ATTRIBUTE
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

_EPSILON = 1e-12
"""The default."""
_SUM = 3
"""The output that is the sum."""
_LAYER_NORMALIZATION = 17
"""The opset from which LayerNormalization is an operator of ONNX."""


class SkipNormalization(RewriteRule):
    """Writes the normalization of a sum, which ONNX Runtime's transformer optimizer puts into a file, in nodes of ONNX.

    Then what is before and behind them is fused with them.  ONNX Runtime makes the same operators of what is not fused.
    Definitions: ONNX Runtime, docs/ContribOperators.md.
    Refused: attributes that are not known; the mean and the deviation as results; a bias of
    SkipSimplifiedLayerNormalization, which versions of ONNX Runtime differ about; other types than float32.
    """

    name = "skip-normalization"
    operator = "SkipLayerNormalization"
    has_sum = False

    def pattern(self, op: Ops, x: Any, skip: Any, scale: Any) -> Any:
        """The operator; further inputs are read in ``check``."""
        make = getattr(op(DOMAIN), self.operator)
        made = make(x, skip, scale, _extra_inputs=True, _outputs=4 if self.has_sum else 1, _name="own")
        return (made[0], made[_SUM]) if self.has_sum else made

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds what is added behind the scale, and to the sum."""
        node, x = match.node("own"), match["x"]
        if bool(node.outputs[_SUM:] and node.outputs[_SUM].name) != self.has_sum:
            return NOT_APPLICABLE
        if any(tensor.name for tensor in node.outputs[1:_SUM]):
            return "its mean or its deviation is a result"
        if not node.attrs.keys() <= CONTRIB_OPERATORS[node.op]:
            return UNKNOWN_ATTRIBUTE
        if dtype_of(x) != np.float32:
            return NOT_FLOAT32
        more: list[gs.Tensor | None] = [tensor if tensor.name else None for tensor in node.inputs[3:]]
        match.plan = self.added(more)
        return None if match.plan is not None else "it adds a bias"

    def added(self, more: list[gs.Tensor | None]) -> tuple[gs.Tensor | None, gs.Tensor | None] | None:
        """What the inputs behind the scale mean; None where that is not known."""
        shift, bias, *rest = [*more, None, None]
        return None if any(tensor is not None for tensor in rest) else (shift, bias)

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """x + skip + bias, and that normalized."""
        shift, bias = match.plan
        total = builder.op("Add", match["x"], match["skip"])
        if bias is not None:
            total = builder.op("Add", total, bias)
        epsilon = np.float32(match.node("own").attrs.get("epsilon", _EPSILON))
        made = self.normalized(builder, total, match["scale"], shift, epsilon)
        return (made, total) if self.has_sum else made

    def normalized(
        self, builder: Builder, x: gs.Tensor, scale: gs.Tensor, shift: gs.Tensor | None, epsilon: np.float32
    ) -> Any:
        """The LayerNormalization of rows, in nodes where the opset has no operator for it."""
        op = builder.op
        if builder.match.opset() >= _LAYER_NORMALIZATION:
            more = [] if shift is None else [shift]
            return op("LayerNormalization", x, scale, *more, axis=-1, epsilon=float(epsilon))
        distance = op("Sub", x, reduce(builder, "ReduceMean", x, -1))
        scaled = op("Mul", op("Div", distance, _root_mean_square(builder, distance, epsilon)), scale)
        return op("Add", scaled, builder.initializer(np.float32(0), "number") if shift is None else shift)


def _root_mean_square(builder: Builder, x: gs.Tensor, epsilon: np.float32) -> Any:
    """√(mean(x²) + ε) of each row."""
    squares = builder.op("Pow", x, builder.initializer(np.float32(2), "number"))
    mean = reduce(builder, "ReduceMean", squares, -1)
    return builder.op("Sqrt", builder.op("Add", mean, builder.initializer(epsilon, "epsilon")))


class SkipNormalizationWithSum(SkipNormalization):
    """The same where the sum is a result too."""

    name = "skip-normalization-with-sum"
    has_sum = True


class SkipRmsNormalization(SkipNormalization):
    """The same of what is divided by its root mean square alone."""

    name = "skip-rms-normalization"
    operator = "SkipSimplifiedLayerNormalization"

    def added(self, more: list[gs.Tensor | None]) -> tuple[gs.Tensor | None, gs.Tensor | None] | None:
        """Nothing is."""
        return None if any(tensor is not None for tensor in more) else (None, None)

    def normalized(
        self, builder: Builder, x: gs.Tensor, scale: gs.Tensor, shift: gs.Tensor | None, epsilon: np.float32
    ) -> Any:
        """x / √(mean(x²) + ε) · scale."""
        return builder.op("Mul", builder.op("Div", x, _root_mean_square(builder, x, epsilon)), scale)


class SkipRmsNormalizationWithSum(SkipRmsNormalization):
    """The same where the sum is a result too."""

    name = "skip-rms-normalization-with-sum"
    has_sum = True
