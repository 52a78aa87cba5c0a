"""The pass slow-operators: writes what ONNX Runtime's kernels are slow at so that it becomes fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxfuse.passes.rules.local_response_normalization import LocalResponseNormalization
from onnxfuse.passes.rules.mean_of_channels import MeanOfChannels
from onnxfuse.passes.rules.normalization_by_moments import NormalizationByMoments
from onnxfuse.passes.rules.rms_normalization import RmsNormalization
from onnxfuse.passes.rules.rotary_embedding import RotaryEmbedding
from onnxfuse.passes.rules.rotary_embedding_of_heads import RotaryEmbeddingOfHeads
from onnxfuse.passes.rules.rotary_embedding_of_pairs import RotaryEmbeddingOfPairs
from onnxfuse.passes.rules.rotary_embedding_operator import RotaryEmbeddingOperator
from onnxfuse.passes.rules.slices_as_gather import SlicesAsGather
from onnxfuse.passes.rules.softmax_over_channels import SoftmaxOverChannels
from onnxfuse.rewrite.base import PassContext
from onnxfuse.rewrite.rewriter import RulePass
from onnxfuse.rewrite.rule import RewriteRule
from onnxfuse.shapes.inference import infer

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model

NAME = "slow-operators"

_ROTARY_EMBEDDINGS = (RotaryEmbeddingOperator, RotaryEmbeddingOfPairs, RotaryEmbedding, RotaryEmbeddingOfHeads)
_RULES: dict[str, tuple[type[RewriteRule], ...]] = {
    "cpu": (
        *(LocalResponseNormalization, NormalizationByMoments, RmsNormalization),
        *(*_ROTARY_EMBEDDINGS, SoftmaxOverChannels),
    ),
    "cuda": (MeanOfChannels, *_ROTARY_EMBEDDINGS, SlicesAsGather),
}
_WANTED: dict[str, tuple[set[str], ...]] = {
    "cpu": ({"LRN"}, {"Reciprocal"}, {"Div", "Sqrt"}, {"Softmax"}, {"Concat", "Neg"}, {"RotaryEmbedding"}),
    "cuda": ({"GlobalAveragePool"}, {"Concat", "Slice"}, {"Concat", "Neg"}, {"RotaryEmbedding"}),
}
"""Operators of which a model has some together if there may be something for the rules: else nothing is inferred."""


class SlowOperators:
    """On the CPU LRN, Softmax, layer and RMS normalization in forms that this project or ONNX Runtime fuses; on CUDA
    means of channels and slices that are put together again as kernels that are faster there; on both targets rotary
    embeddings in a form that is fused.

    Results stay the same up to rounding.
    """

    name = NAME
    description = "Writes what ONNX Runtime's kernels are slow at, on the CPU or on CUDA, so that it becomes fast."

    def run(self, model: Model, context: PassContext) -> None:
        """Runs the rules, if there is anything for them."""
        operators = {node.op for graph in model.graphs() for node in graph.nodes}
        if not any(operators >= wanted for wanted in _WANTED.get(context.target, ())):
            return
        infer(model)
        RulePass([rule() for rule in _RULES[context.target]], NAME).run(model, context)
