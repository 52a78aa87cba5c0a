"""The pass conv-layout: writes what lies between convolutions so that ORT keeps its blocked layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxfuse.passes.rules import AFFINE_RULES
from onnxfuse.passes.rules.conv_layout.affine_after_average_pool import AffineAfterAveragePool
from onnxfuse.passes.rules.conv_layout.affine_as_depthwise_conv import AffineAsDepthwiseConv
from onnxfuse.passes.rules.conv_layout.conv_of_interpolated import ConvOfInterpolated
from onnxfuse.passes.rules.conv_layout.conv_of_product import ConvOfProduct
from onnxfuse.passes.rules.conv_layout.conv_of_upsampled import ConvOfUpsampled
from onnxfuse.passes.rules.conv_layout.gated_residual import GatedResidual
from onnxfuse.passes.rules.conv_layout.hard_sigmoid import RecogniseHardSigmoid
from onnxfuse.passes.rules.conv_layout.hard_swish import RecogniseHardSwish
from onnxfuse.passes.rules.conv_layout.merge_pointwise_convs import MergePointwiseConvs
from onnxfuse.passes.rules.conv_layout.normalization_before_conv import NormalizationBeforeConv
from onnxfuse.passes.rules.conv_layout.transpose_before_conv import TransposeBeforeConv
from onnxfuse.passes.rules.conv_layout.transpose_of_blocked import TransposeOfBlocked
from onnxfuse.rewrite.base import PassContext
from onnxfuse.rewrite.rewriter import RulePass
from onnxfuse.shapes.inference import infer

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model

NAME = "conv-layout"

# Folding would take the division by six out of a decomposed activation, so those are recognised first (and
# this pass runs before fold-affine).  A sum of convolutions has no weights to fold a step into, so it is made later.
# An affine step becomes a convolution only where none could take it in.
_STEPS = (
    (RecogniseHardSigmoid, RecogniseHardSwish),
    (*AFFINE_RULES, GatedResidual, MergePointwiseConvs),
    (AffineAfterAveragePool, TransposeOfBlocked, TransposeBeforeConv, ConvOfUpsampled, ConvOfInterpolated),
    (AffineAsDepthwiseConv, NormalizationBeforeConv),
)
_IN_ANY_LAYOUT = (ConvOfInterpolated, ConvOfProduct)
"""What gains wherever images are: fewer products, and fewer bytes between the nodes."""


class ConvLayoutPass:
    """Activations as ORT computes them inside Conv, affine steps as Conv, and of repeated elements before they are.

    For the target cpu, but for convolutions of interpolated images: no other execution provider has the blocked layout.
    Results stay the same up to rounding.
    """

    name = NAME
    description = (
        "Writes what lies between convolutions so that ONNX Runtime keeps its blocked layout on the CPU, and convolves"
        " images before they are made larger."
    )

    def run(self, model: Model, context: PassContext) -> None:
        """Runs the groups of rules one after the other."""
        if not context.on.blocked_images():
            infer(model)
            RulePass([rule() for rule in _IN_ANY_LAYOUT], NAME).run(model, context)
            return
        from onnxfuse.fused.conv.cpu_convolutions import cpu_chooser

        infer(model)
        before = len(context.report.rewrites)
        for rules in _STEPS:
            if rules is _STEPS[-1]:
                if len(context.report.rewrites) > before:
                    infer(model)
                cpu_chooser(context).begin(model)
            RulePass([rule() for rule in rules], NAME).run(model, context)
