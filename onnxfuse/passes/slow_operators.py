"""The pass slow-operators: writes what ONNX Runtime's CPU kernels are slow at so that it becomes fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxfuse.inference import infer
from onnxfuse.passes.base import PassContext
from onnxfuse.passes.rewriter import RulePass
from onnxfuse.passes.rules.local_response_normalization import LocalResponseNormalization
from onnxfuse.passes.rules.rms_normalization import RmsNormalization
from onnxfuse.passes.rules.rotary_embedding import RotaryEmbedding
from onnxfuse.passes.rules.rotary_embedding_of_heads import RotaryEmbeddingOfHeads
from onnxfuse.passes.rules.softmax_over_channels import SoftmaxOverChannels

if TYPE_CHECKING:
    from onnxfuse.graph import Model

NAME = "slow-operators"

_RULES = (LocalResponseNormalization, RmsNormalization, RotaryEmbedding, RotaryEmbeddingOfHeads, SoftmaxOverChannels)


class SlowOperators:
    """LRN, Softmax, RMS normalization and rotary embeddings in forms that this project or ONNX Runtime fuses.

    For the target cpu alone: other execution providers have other kernels.  Results stay the same up to rounding.
    """

    name = NAME
    description = "Writes what ONNX Runtime's kernels for the CPU are slow at so that it can be fused."

    def run(self, model: Model, context: PassContext) -> None:
        """Runs the rules, if there is anything for them."""
        operators = {node.op for graph in model.graphs() for node in graph.nodes}
        wanted = operators & {"LRN", "Reciprocal", "Softmax"} or operators >= {"Concat", "Neg"}
        if context.target != "cpu" or not wanted:
            return
        infer(model)
        RulePass([rule() for rule in _RULES], NAME).run(model, context)
