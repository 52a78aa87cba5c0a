"""QuantizeLinear and DequantizeLinear of int8 around what several nodes read → the same of uint8, on x86-64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfuse import cpu
from onnxfuse.model.constants import constant_value
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.rewrite.base import PassContext

_SHIFT = 128
"""From int8 to the uint8 that stands for the same number."""
_PRODUCTS = {"Conv", "Gemm", "MatMul"}
NO_INSTRUCTIONS = "the processor has no instructions that multiply uint8 by int8 exactly"


class UnsignedActivations(RewriteRule):
    """Writes activations that are quantized to int8, as ONNX Runtime's ``quantize_static`` does by default, as uint8.

    On x86-64 ONNX Runtime has integer kernels for activations of uint8 alone.  It makes uint8 of an int8 between a
    QuantizeLinear and a DequantizeLinear, but not where several nodes read it, as the input of a residual block or of
    the projections to Q, K and V: these stay in float32, and dequantize their weights in each run (1.32,
    qdq_transformer/qdq_s8_to_u8.cc).  Zero points move along, so the numbers in between are the same; products in
    integers round as those beside them do.

    Refused: without VNNI, where ONNX Runtime's sums of products of uint8 and int8 saturate at 16 bits.
    """

    name = "unsigned-activations"

    def begin(self, model: Model, context: PassContext) -> None:
        """Asks for the processor once."""
        self._exact = cpu.has_vnni()

    def pattern(self, op: Ops, x: Any, scale: Any) -> Any:
        """What quantizes; its readers are looked at in ``check``."""
        return op.QuantizeLinear(x, scale, op.constant("zero"), _name="quantize")

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds the nodes that dequantize."""
        zero, quantized = match.constant("zero"), match.outputs[0]
        if zero is None or zero.dtype != np.int8 or match.attribute("quantize", "output_dtype"):
            return NOT_APPLICABLE
        dequantizing: list[Node] = list({id(reader): reader for reader in quantized.outputs}.values())
        if match.editor.is_graph_output(quantized) or not all(map(_dequantizes, dequantizing)):
            return NOT_APPLICABLE
        readers = [reader for node in dequantizing for reader in node.outputs[0].outputs]
        if not self.everything and (len(readers) < 2 or not any(standard_op(one) in _PRODUCTS for one in readers)):
            return NOT_APPLICABLE
        match.plan = dequantizing
        return None if self._exact else NO_INSTRUCTIONS

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """Both with other zero points."""

        def unsigned(zero: Any) -> Any:
            shifted = np.asarray(constant_value(zero)).astype(np.int16) + _SHIFT
            return builder.initializer(shifted.astype(np.uint8), f"{zero.name}_unsigned")

        for node in match.plan:
            builder.set_input(node, 2, unsigned(node.inputs[2]))
        return builder.like(match.node("quantize"), match["x"], match["scale"], unsigned(match["zero"]))


def _dequantizes(node: Node) -> bool:
    """Whether a node is a DequantizeLinear with a constant zero point."""
    known = standard_op(node) == "DequantizeLinear" and len(node.inputs) == 3
    return known and constant_value(node.inputs[2]) is not None
