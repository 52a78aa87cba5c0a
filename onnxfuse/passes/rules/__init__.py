"""onnxfuse's own rewrite rules, one a file, in folders by their pass; what several passes read is beside these."""

from onnxfuse.passes.rules.fold_affine.fold_affine_after_conv import FoldAffineAfterConv
from onnxfuse.passes.rules.fold_affine.fold_affine_after_conv_transpose import FoldAffineAfterConvTranspose
from onnxfuse.passes.rules.fold_affine.fold_affine_after_gemm import FoldAffineAfterGemm
from onnxfuse.passes.rules.fold_affine.fold_affine_after_matmul import FoldAffineAfterMatMul
from onnxfuse.passes.rules.fold_affine.fold_affine_before_linear import FoldAffineBeforeLinear
from onnxfuse.passes.rules.fold_affine.fold_affine_before_mean import FoldAffineBeforeMean
from onnxfuse.passes.rules.fold_affine.fold_pad_before_conv import FoldPadBeforeConv
from onnxfuse.passes.rules.fold_affine.merge_affine_steps import MergeAffineSteps
from onnxfuse.passes.rules.fold_affine.merge_parallel_convs import MergeParallelConvs

AFFINE_RULES = (
    FoldPadBeforeConv,
    FoldAffineAfterConv,
    FoldAffineAfterConvTranspose,
    FoldAffineAfterGemm,
    FoldAffineAfterMatMul,
    FoldAffineBeforeLinear,
    FoldAffineBeforeMean,
    MergeParallelConvs,
    MergeAffineSteps,
)
"""The rules of the pass fold-affine, in the order in which they are tried."""
