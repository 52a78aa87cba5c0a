"""BiasGelu, FastGelu, Gelu and QuickGelu of ONNX Runtime → the nodes that they stand for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxfuse.model.constants import dtype_of
from onnxfuse.model.known_operators import CONTRIB_OPERATORS
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

DOMAIN = "com.microsoft"
UNKNOWN_ATTRIBUTE = "it has an attribute that is not known"
NOT_FLOAT32 = "it is not of float32, in which alone its nodes compute what it does"
_OPERATORS = ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")
_HAVE_BIAS = {"BiasGelu": True, "FastGelu": False, "Gelu": None, "QuickGelu": None}
"""Whether an operator has a bias: always, perhaps or never."""
_GELU = 20
"""The opset from which Gelu is an operator of ONNX."""


class OrtActivations(RewriteRule):
    """Writes the activations that ONNX Runtime's transformer optimizer puts into a file in nodes of ONNX.

    Between fused nodes they are computed with these then.  ONNX Runtime makes the same operators of what is not fused.
    Definitions: ONNX Runtime, docs/ContribOperators.md.
    Refused: attributes that are not known, and other types than float32.
    """

    name = "ort-activations"

    def pattern(self, op: Ops, x: Any) -> Any:
        """Any of them; a bias is read in ``check``."""
        own = op(DOMAIN)
        return op.any_of(*(getattr(own, name)(x, _extra_inputs=True, _name="own") for name in _OPERATORS))

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds the bias, None where there is none."""
        node = match.node("own")
        bias = node.inputs[1] if len(node.inputs) > 1 and node.inputs[1].name else None
        wanted = _HAVE_BIAS[node.op]
        if len(node.inputs) > 2 or (bias is None and wanted) or (bias is not None and wanted is None):
            return NOT_APPLICABLE
        if not node.attrs.keys() <= CONTRIB_OPERATORS[node.op]:
            return UNKNOWN_ATTRIBUTE
        if dtype_of(match["x"]) != np.float32:
            return NOT_FLOAT32
        match.plan = bias
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """Gelu where the opset has it, else x/2 (1 + erf(x/√2)) or x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))); for
        QuickGelu x / (1 + exp(-alpha x)).
        """
        op, node, x = builder.op, match.node("own"), match["x"]

        def number(value: float) -> Any:
            return builder.initializer(np.float32(value), "number")

        if match.plan is not None:
            x = op("Add", x, match.plan)
        if node.op == "QuickGelu":
            return op("Mul", x, op("Sigmoid", op("Mul", x, number(node.attrs.get("alpha", 1.702)))))
        by_tanh = node.op == "FastGelu"
        if match.opset() >= _GELU:
            return op("Gelu", x, approximate="tanh") if by_tanh else op("Gelu", x)
        if not by_tanh:
            gate = op("Add", op("Erf", op("Div", x, number(math.sqrt(2)))), number(1))
            return op("Mul", op("Mul", x, gate), number(0.5))
        inner = op("Add", x, op("Mul", op("Pow", x, number(3)), number(0.044715)))
        gate = op("Add", op("Tanh", op("Mul", inner, number(math.sqrt(2 / math.pi)))), number(1))
        return op("Mul", op("Mul", x, number(0.5)), gate)
