"""(x - mean(x)) · scale / Sqrt(var(x) + ε) + bias, multiplied out or in another order, in the one that is fused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import constant_value, single_number
from onnxfuse.model.graph_ir import producer_of, standard_op
from onnxfuse.passes.rules.deviation import is_mean_of_rows
from onnxfuse.passes.rules.opset_forms import reduce
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule


class NormalizationByMoments(RewriteRule):
    """Writes layer normalization as Keras and TensorFlow (tf.nn.moments, tf.nn.batch_normalization) have it in the form
    in which ONNX Runtime and this project fuse it.

    Keras multiplies out: x · f + (bias - mean(x) · f), where f is scale / Sqrt(var(x) + ε).  tf2onnx makes
    GlobalAveragePool of means along the last of three dimensions.  The variance has to be the mean of the squares of
    what is left of x less its mean: as the mean of x² less the square of the mean it loses digits, which the fused form
    would not.
    """

    name = "normalization-by-moments"
    keep_shared_nodes = True  # both moments are read again inside

    def pattern(self, op: Ops, x: Any, mean: Any, variance: Any, epsilon: Any, scale: Any, bias: Any) -> Any:
        """The result; the moments are looked at in ``check``."""
        root = op.Sqrt(op.Add(variance, epsilon))
        inverse = op.any_of(op.Reciprocal(root), op.Div(1.0, root))
        factor = op.Mul(inverse, scale)
        offset = op.any_of(op.Add(op.Mul(op.Neg(mean), factor), bias), op.Sub(bias, op.Mul(mean, factor)))
        centered = op.Sub(x, mean)
        scaled = op.any_of(op.Mul(centered, factor), op.Mul(op.Mul(centered, inverse), scale))
        return op.any_of(op.Add(op.Mul(x, factor), offset), op.Add(scaled, bias))

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds scale and bias as vectors."""
        x, mean = match["x"], match["mean"]
        if x.shape is None or _averaged(mean) is not x:
            return NOT_APPLICABLE
        difference = producer_of(_squared(_averaged(match["variance"])))
        if difference is None or standard_op(difference) != "Sub":
            return NOT_APPLICABLE
        if difference.inputs[0] is not x or difference.inputs[1] is not mean:
            return NOT_APPLICABLE
        scale, bias = _as_vector(match["scale"], x), _as_vector(match["bias"], x)
        match.plan = scale, bias
        return NOT_APPLICABLE if scale is None or bias is None else None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """All of it anew."""
        x, (scale, bias) = match["x"], match.plan
        axis = len(x.shape) - 1
        centered = builder.op("Sub", x, reduce(builder, "ReduceMean", x, axis))
        variance = reduce(builder, "ReduceMean", builder.op("Mul", centered, centered), axis)
        root = builder.op("Sqrt", builder.op("Add", variance, match["epsilon"]))
        vectors = [builder.initializer(values, match[name].name) for name, values in (("scale", scale), ("bias", bias))]
        return builder.op("Add", builder.op("Mul", builder.op("Div", centered, root), vectors[0]), vectors[1])


def _averaged(tensor: gs.Tensor) -> gs.Tensor | None:
    """What a tensor is the mean of along its last axis, which stays as a dimension of 1; None if it is no such mean."""
    node = producer_of(tensor)
    if node is None or not node.inputs:
        return None
    data: gs.Tensor = node.inputs[0]
    if standard_op(node) == "GlobalAveragePool":
        return data if data.shape is not None and len(data.shape) == 3 else None
    return data if standard_op(node) == "ReduceMean" and is_mean_of_rows(node) else None


def _squared(tensor: gs.Tensor | None) -> gs.Tensor | None:
    """What a tensor is the square of; None if it is no square."""
    node = producer_of(tensor)
    if node is None or standard_op(node) not in ("Mul", "Pow"):
        return None
    base, other = node.inputs
    rank = 0 if base.shape is None else len(base.shape)
    is_square = base is other if node.op == "Mul" else single_number(other, rank) == 2
    return base if is_square else None


def _as_vector(tensor: gs.Tensor, x: gs.Tensor) -> np.ndarray | None:
    """A constant of one value for each element of a row of ``x``, without the dimensions of 1 before."""
    values = constant_value(tensor)
    if values is None or not 0 < values.ndim <= len(x.shape) or values.shape[-1:] != tuple(x.shape[-1:]):
        return None
    return values.reshape(-1) if values.size == values.shape[-1] else None
