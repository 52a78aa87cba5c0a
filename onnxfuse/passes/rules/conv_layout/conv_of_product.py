"""Conv(image(x · v + c), w) → image(x · (v · w) + c'), where an image is a sequence with the channels first."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.model.constants import Array
from onnxfuse.passes.rules.conv_layout.merge_pointwise_convs import takes_single_places
from onnxfuse.passes.rules.conv_layout.merged_weights import merged
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule


class ConvOfProduct(RewriteRule):
    """Multiplies the weights of a matrix product and of the 1x1 convolution of the image that is made of its result.

    So begin the heads of transformers of images, once a convolution of what is interpolated comes before that (E. Xie
    et al., SegFormer, arXiv:2105.15203).
    Refused: a product with more weights than the two; an inner value that is needed elsewhere; weights of other types
    than float16, bfloat16 and float32; products that overflow or vanish; groups, strides, padding, larger kernels,
    sizes that are not known.
    """

    name = "conv-of-product"

    def pattern(self, op: Ops, x: Any) -> Any:
        """(N, L, K) → (N, L, C) → (N, C, L) → (N, C, H, W), and the convolution."""
        product = op.MatMul(x, op.constant("v"))
        sequence = op.any_of(op.Add(product, op.constant("c")), product)
        image = op.Reshape(op.Transpose(sequence, perm=[0, 2, 1], _name="turned"), op.constant("shape"), _name="image")
        return op.Conv(image, op.constant("w"), op.optional(op.constant("b")), _name="conv")

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds weights [K, M], the bias or None, and the shape of the result."""
        turned, image = (match.node(name).outputs[0].shape for name in ("turned", "image"))
        constants: dict[str, Array] = {}
        for name in ("v", "c", "w", "b"):
            if match.get(name) is not None:
                values = match.constant(name)
                if values is None:
                    return NOT_APPLICABLE
                constants[name] = values
        v, w = constants["v"], constants["w"]
        if v.ndim != 2 or w.ndim != 4 or w.shape[1:] != (v.shape[1], 1, 1):
            return NOT_APPLICABLE
        if not _is_image(turned, image) or not takes_single_places(match.node("conv")):
            return NOT_APPLICABLE
        if "c" in constants and constants["c"].shape != v.shape[1:]:
            return "what is added to the product is no vector of its columns"
        product, conv = (v.T, constants.get("c")), (w[:, :, 0, 0], constants.get("b"))
        weights, bias = merged(product, conv, "product", at_any_cost=self.everything)
        match.plan = np.ascontiguousarray(weights.T), bias, [image[0], w.shape[0], *image[2:]]
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The product, and the image of it."""
        weights, bias, shape = match.plan
        made = builder.op("MatMul", match["x"], builder.initializer(weights, f"{match['w'].name}_merged"))
        if bias is not None:
            made = builder.op("Add", made, builder.initializer(bias, f"{match['w'].name}_bias_merged"))
        turned = builder.op("Transpose", made, perm=[0, 2, 1])
        return builder.op("Reshape", turned, builder.initializer(np.array(shape), "image"))


def _is_image(turned: Any, image: Any) -> bool:
    """Whether a Reshape of (N, C, L) to (N, C, H, W) keeps sequences and channels apart."""
    if turned is None or image is None or len(turned) != 3 or len(image) != 4:
        return False
    return all(isinstance(size, int) and size > 0 for size in (*turned, *image)) and turned[:2] == image[:2]
