"""The pass slow-operators: writes what ONNX Runtime's kernels are slow at so that it becomes fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from onnxfuse.fused.target import CPU, CUDA
from onnxfuse.passes.rules.slow_operators.bias_softmax import BiasSoftmax
from onnxfuse.passes.rules.slow_operators.concat_of_concats import ConcatOfConcats
from onnxfuse.passes.rules.slow_operators.dequantized_rows import DequantizedRows
from onnxfuse.passes.rules.slow_operators.local_response_normalization import LocalResponseNormalization
from onnxfuse.passes.rules.slow_operators.mean_of_channels import MeanOfChannels
from onnxfuse.passes.rules.slow_operators.named_columns import NamedColumns
from onnxfuse.passes.rules.slow_operators.normalization_by_moments import NormalizationByMoments
from onnxfuse.passes.rules.slow_operators.ort_activations import OrtActivations
from onnxfuse.passes.rules.slow_operators.relative_shift import RelativeShift
from onnxfuse.passes.rules.slow_operators.rms_normalization import RmsNormalization
from onnxfuse.passes.rules.slow_operators.rotary_embedding import RotaryEmbedding
from onnxfuse.passes.rules.slow_operators.rotary_embedding_of_heads import RotaryEmbeddingOfHeads
from onnxfuse.passes.rules.slow_operators.rotary_embedding_of_pairs import RotaryEmbeddingOfPairs
from onnxfuse.passes.rules.slow_operators.rotary_embedding_operator import RotaryEmbeddingOperator
from onnxfuse.passes.rules.slow_operators.skip_normalization import (
    SkipNormalization,
    SkipNormalizationWithSum,
    SkipRmsNormalization,
    SkipRmsNormalizationWithSum,
)
from onnxfuse.passes.rules.slow_operators.slices_as_gather import SlicesAsGather
from onnxfuse.passes.rules.slow_operators.softmax_over_channels import SoftmaxOverChannels
from onnxfuse.passes.rules.slow_operators.stack_of_parts import HalvesOfStack, StackOfParts
from onnxfuse.passes.rules.slow_operators.unsigned_activations import UnsignedActivations
from onnxfuse.rewrite.base import PassContext
from onnxfuse.rewrite.rewriter import RulePass
from onnxfuse.rewrite.rule import RewriteRule
from onnxfuse.shapes.inference import infer

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model

NAME = "slow-operators"


class _Row(NamedTuple):
    """A rule, and the operators of which a model has some together if there may be something for it."""

    rule: type[RewriteRule]
    wanted: tuple[frozenset[str], ...]


def _row(rule: type[RewriteRule], *wanted: str) -> _Row:
    return _Row(rule, tuple(frozenset(operators.split()) for operators in wanted))


_ROTARY_EMBEDDINGS = (
    _row(RotaryEmbeddingOperator, "RotaryEmbedding"),
    _row(RotaryEmbeddingOfPairs, "Concat Neg"),
    _row(RotaryEmbedding, "Concat Neg"),
    _row(RotaryEmbeddingOfHeads, "Concat Neg", "RotaryEmbedding"),
)
_ORT_OPERATORS = (
    _row(OrtActivations, "BiasGelu", "FastGelu", "Gelu", "QuickGelu"),
    _row(BiasSoftmax, "BiasSoftmax"),
    _row(SkipNormalization, "SkipLayerNormalization"),
    _row(SkipNormalizationWithSum, "SkipLayerNormalization"),
    _row(SkipRmsNormalization, "SkipSimplifiedLayerNormalization"),
    _row(SkipRmsNormalizationWithSum, "SkipSimplifiedLayerNormalization"),
)
_RULES: Mapping[str, tuple[_Row, ...]] = {
    CPU.provider: (
        _row(LocalResponseNormalization, "LRN"),
        _row(NormalizationByMoments, "Reciprocal", "Div Sqrt"),
        _row(RmsNormalization, "Reciprocal"),
        *_ROTARY_EMBEDDINGS,
        *_ORT_OPERATORS,
        _row(StackOfParts, "Concat Reshape Transpose"),
        _row(RelativeShift, "Pad Reshape Slice"),
        _row(NamedColumns, "GatherElements MatMul"),
        _row(SoftmaxOverChannels, "Softmax"),
        _row(DequantizedRows, "DequantizeLinear Gather"),
        _row(UnsignedActivations, "DequantizeLinear QuantizeLinear"),
    ),
    CUDA.provider: (
        _row(MeanOfChannels, "GlobalAveragePool"),
        *_ROTARY_EMBEDDINGS,
        *_ORT_OPERATORS,
        _row(StackOfParts, "Concat Reshape Transpose"),
        _row(RelativeShift, "Pad Reshape Slice"),
        _row(NamedColumns, "GatherElements MatMul"),
        _row(HalvesOfStack, "Concat Reshape Split"),
        _row(SlicesAsGather, "Concat Slice"),
        _row(ConcatOfConcats, "Concat"),
        _row(DequantizedRows, "DequantizeLinear Gather"),
    ),
}
"""By the provider whose kernels are slow, in the order in which they run."""


class SlowOperators:
    """On the CPU LRN, Softmax, layer and RMS normalization in forms that this project or ONNX Runtime fuses, and what
    is quantized to int8 in the type of ONNX Runtime's integer kernels; on CUDA means of channels and slices that are
    put together again as kernels that are faster there; on both targets rows of quantized tables before they are
    dequantized, rotary embeddings, activations and normalizations of ONNX Runtime's own, and scores of relative
    positions, in a form that is fused.

    Results stay the same up to rounding.
    """

    name = NAME
    description = "Writes what ONNX Runtime's kernels are slow at, on the CPU or on CUDA, so that it becomes fast."

    def run(self, model: Model, context: PassContext) -> None:
        """Runs the rules, if there is anything for them."""
        operators = {node.op for graph in model.graphs() for node in graph.nodes}
        rows = _RULES.get(context.on.provider, ())
        if not any(operators >= wanted for row in rows for wanted in row.wanted):
            return  # nothing is inferred for nothing
        infer(model)
        RulePass([row.rule() for row in rows], NAME).run(model, context)
