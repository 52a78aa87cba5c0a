"""BatchNormalization(x) → x · scale + offset, where a 1x1 convolution of the library takes it in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.conv.convolutions import describe
from onnxfuse.fused.conv.cpu_convolutions import cpu_chooser
from onnxfuse.model.constants import constant_value, dtype_of
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.passes.rules.fold_affine.affine import Axis, read_step
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.rewrite.base import PassContext

_BETWEEN = {"Clip", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Relu"}
_FLOAT = np.dtype(np.float32)


class NormalizationBeforeConv(RewriteRule):
    """Computes the scale and the offset of a BatchNormalization before a 1x1 convolution, as in networks that normalize
    and activate first (K. He et al., 2016, arXiv:1603.05027; G. Huang et al., DenseNet, arXiv:1608.06993).

    The convolution then reads what is normalized, and computes two operations an element more.  Scale and offset are
    rounded as ONNX Runtime's kernel rounds them.
    Refused: types other than float32; statistics that are no constants, or whose scale or offset is not finite.
    """

    name = "normalization-before-conv"

    def begin(self, model: Model, context: PassContext) -> None:
        """Finds out which convolutions the library computes."""
        self._is_own = cpu_chooser(context).is_own

    def pattern(self, op: Ops, x: Any) -> Any:
        """The normalization alone; what follows it is read in ``check``."""
        return op.BatchNormalization(x, *map(op.constant, ("scale", "bias", "mean", "variance")))

    def check(self, match: Match) -> str | None:
        """The convolution must be all that reads the result; ``match.plan`` holds scale and offset."""
        x = match["x"]
        if x.shape is None or len(x.shape) < 3 or not isinstance(x.shape[1], int) or not self._feeds_own(match):
            return NOT_APPLICABLE
        if any(dtype_of(tensor) != _FLOAT for tensor in match.root.inputs):
            return "it is of another type than float32"
        read_step(match.root, Axis(x.shape[1], rank=len(x.shape), index=1))
        scale, bias, mean, variance = (np.asarray(constant_value(tensor)) for tensor in match.root.inputs[1:])
        epsilon = np.float32(match.root.attrs.get("epsilon", 1e-5))
        with np.errstate(all="ignore"):
            factor = scale * (np.float32(1) / np.sqrt(variance + epsilon))
            offset = bias - mean * factor
        if not (np.all(np.isfinite(factor)) and np.all(np.isfinite(offset))):
            return "its scale or its offset is not finite"
        match.plan = [values.reshape(-1, *(1,) * (len(x.shape) - 2)) for values in (factor, offset)]
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """A Mul and an Add."""
        hint = match.root.name or match.outputs[0].name
        scale, offset = (
            builder.initializer(values, f"{hint}_{what}")
            for values, what in zip(match.plan, ("scale", "offset"), strict=True)
        )
        return builder.op("Add", builder.op("Mul", match["x"], scale), offset)

    def _feeds_own(self, match: Match) -> bool:
        tensor = match.outputs[0]
        while True:
            reader = _only_reader(match, tensor)
            if reader is None or reader.inputs[0] is not tensor:
                return False
            if standard_op(reader) not in _BETWEEN:
                return self._is_own(reader) and describe(reader).pointwise
            tensor = reader.outputs[0]


def _only_reader(match: Match, tensor: gs.Tensor) -> Node | None:
    readers = tensor.outputs
    return None if len(readers) != 1 or match.editor.is_graph_output(tensor) else readers[0]
