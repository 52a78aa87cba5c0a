"""The pass fold-affine: scalar and per-channel steps become part of the weights next to them."""

from onnxfuse.passes.rules import AFFINE_RULES
from onnxfuse.rewrite.rewriter import RulePass


class FoldAffine(RulePass):
    """Runs the rules of affine steps, of the padding before a convolution, and of convolutions that are added."""

    def __init__(self) -> None:
        super().__init__(
            [rule() for rule in AFFINE_RULES],
            "fold-affine",
            "Folds scalar and per-channel affine steps into the weights of Conv, ConvTranspose, Gemm and MatMul, and"
            " zeros around an image into the padding of a Conv; makes one of convolutions of one tensor that are added;"
            " with fast math one product and one sum of a chain of steps.",
        )
