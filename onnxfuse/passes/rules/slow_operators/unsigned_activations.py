"""QuantizeLinear and DequantizeLinear of int8 around what several nodes read → the same of uint8, on x86-64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse import cpu
from onnxfuse.model.graph_ir import standard_op
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
    keep_shared_nodes = True  # where several dequantize, each gets a QuantizeLinear; ONNX Runtime joins them

    def begin(self, model: Model, context: PassContext) -> None:
        """Notes what several nodes read, which later matches, when some have been changed, do not see."""
        self._exact = cpu.has_vnni()
        self._wanted = {
            id(node): node
            for graph in model.graphs()
            for node in graph.nodes
            if standard_op(node) == "QuantizeLinear" and (self.everything or _has_several_readers(node.outputs[0]))
        }

    def pattern(self, op: Ops, x: Any, scale: Any, own_scale: Any) -> Any:
        """What quantizes, and one that dequantizes."""
        quantized = op.QuantizeLinear(x, scale, op.constant("zero"), _name="quantize")
        return op.DequantizeLinear(quantized, own_scale, op.constant("own_zero"))

    def check(self, match: Match) -> str | None:
        """Of int8 that goes nowhere else."""
        zero, quantize = match.constant("zero"), match.node("quantize")
        if id(quantize) not in self._wanted or zero is None or zero.dtype != np.int8:
            return NOT_APPLICABLE
        if match.attribute("quantize", "output_dtype") or match.editor.is_graph_output(quantize.outputs[0]):
            return NOT_APPLICABLE
        return None if self._exact else NO_INSTRUCTIONS

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """Both with other zero points."""

        def unsigned(name: str) -> gs.Constant:
            shifted = np.asarray(match.constant(name)).astype(np.int16) + _SHIFT
            return builder.initializer(shifted.astype(np.uint8), f"{match[name].name}_unsigned")

        quantized = builder.like(match.node("quantize"), match["x"], match["scale"], unsigned("zero"))
        return builder.like(match.root, quantized, match["own_scale"], unsigned("own_zero"))


def _has_several_readers(quantized: gs.Tensor) -> bool:
    """Whether several nodes read a tensor, a product among them, each after it is dequantized."""
    if any(standard_op(node) != "DequantizeLinear" for node in quantized.outputs):
        return False
    readers = [standard_op(reader) for node in quantized.outputs for reader in node.outputs[0].outputs]
    return len(readers) > 1 and not _PRODUCTS.isdisjoint(readers)
