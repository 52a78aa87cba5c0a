"""GlobalAveragePool(x) → ReduceMean(x) over the spatial dimensions, for CUDA."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

_AS_FAST = {np.dtype(np.float32): 64, np.dtype(np.float16): 400}
"""Elements of a channel up to which cuDNN's pooling is as fast: 7x7 on an H100; in float16 there are two casts."""


class MeanOfChannels(RewriteRule):
    """Takes the mean of whole channels by ONNX Runtime's own reduction in place of cuDNN's pooling.

    The pooling gives a thread to each channel.  Measured on an H100 with ONNX Runtime 1.31.1, float32: 73 us against
    11 us for 64 channels of 160x160, 20 against 5 for 256 of 40x40, 3 against 3 for 960 of 7x7; the reduction is also
    the more exact one.

    It writes the sum in the type of its input, and divides afterwards (``reduction_ops.cc``), so that float16 overflows
    at a sum of 65504, where the pooling sums in float32: what it reads is cast to float32 first.
    """

    name = "mean-of-channels"

    def pattern(self, op: Ops, x: Any) -> Any:
        """The pool."""
        return op.GlobalAveragePool(x)

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds the axes."""
        data = match["x"]
        if data.shape is None or len(data.shape) < 3 or data.dtype not in _AS_FAST:
            return NOT_APPLICABLE
        sizes = data.shape[2:]
        small = all(isinstance(size, int) for size in sizes) and math.prod(sizes) <= _AS_FAST[np.dtype(data.dtype)]
        if small and not self.everything:
            return NOT_APPLICABLE
        match.plan = list(range(2, len(data.shape)))
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The reduction, in float32."""
        data = match["x"]
        if data.dtype == np.float32:
            return self._mean(match, builder, data)
        mean = self._mean(match, builder, builder.op("Cast", data, to=int(TensorProto.FLOAT)))
        return builder.op("Cast", mean, to=int(TensorProto.FLOAT16))

    def _mean(self, match: Match, builder: Builder, data: gs.Tensor) -> Any:
        """The reduction, whose axes are an attribute before opset 18."""
        if match.model.opsets[""] < 18:
            return builder.op("ReduceMean", data, axes=match.plan, keepdims=1)
        axes = builder.initializer(np.array(match.plan, np.int64), "axes")
        return builder.op("ReduceMean", data, axes, keepdims=1)
