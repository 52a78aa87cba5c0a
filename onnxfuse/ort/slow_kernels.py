"""What ONNX Runtime's CPU provider does with an elementwise operator by itself: which kernels are slow enough to
replace one alone, and which are faster than the library's.

Measured side by side on float32 tensors of 64 KB to 6.6 MB, ORT 1.31 over a fused node, 2 threads (AVX-512): PRelu 4 to
29, Mish 13 to 25, Softplus 11 to 19, Shrink 2 to 23, Sign 4 to 12, Sin and Cos 3 to 6, Celu and Elu 4 to 5, Selu 3 to
4, Log 4, Where 2 to 6.  Of float64 Sin and Cos take the library, which has no vectors of them, twice as long as ORT
1.32 in one thread; all other functions that ORT has kernels for take it less.
"""

from enum import Enum

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.graph_ir import standard_op

FASTER = "ONNX Runtime's kernel for it in float64 is faster"


class Speed(Enum):
    """What ONNX Runtime's kernel takes beside a fused node of the same operator alone."""

    NONE = "none"
    """It has none at run time: the optimizer removes the node."""
    USUAL = "usual"
    """About as long, or not measured."""
    SLOW = "slow"
    """Several times as long in float32."""
    FASTER_OF_DOUBLE = "faster of double"
    """Several times as long in float32, and less in float64."""


_SPEEDS = {
    "Celu Elu Log Mish PRelu Selu Shrink Sign Softplus Where": Speed.SLOW,
    "Cos Sin": Speed.FASTER_OF_DOUBLE,
    "Abs Add And Ceil Clip Div Equal Floor Greater GreaterOrEqual Less LessOrEqual": Speed.USUAL,
    "Max Mean Min Mod Mul Neg Not Or Pow Reciprocal Relu Round Sqrt Sub Sum Xor": Speed.USUAL,
    "Acos Acosh Asin Asinh Atan Atanh Cosh Erf Exp Gelu HardSigmoid HardSwish LeakyRelu": Speed.USUAL,
    "Sigmoid Sinh Softsign Swish Tan Tanh ThresholdedRelu": Speed.USUAL,
    "BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike IsInf IsNaN": Speed.USUAL,
    "BatchNormalization DequantizeLinear QuantizeLinear": Speed.USUAL,
    "Dropout Identity": Speed.NONE,
}
SPEEDS = {op: speed for ops, speed in _SPEEDS.items() for op in ops.split()}
"""By elementwise operator."""
FREE_OPS = frozenset(op for op, speed in SPEEDS.items() if speed is Speed.NONE)
"""Operators that count for nothing when a region is weighed."""


def is_slow(node: gs.Node) -> bool:
    """Whether ORT's kernel for the node is much slower than a fused node."""
    slow = SPEEDS.get(standard_op(node)) in (Speed.SLOW, Speed.FASTER_OF_DOUBLE)
    return slow and node.outputs[0].dtype == np.float32


def is_faster(node: gs.Node) -> bool:
    """Whether ORT's kernel for the node is much faster than the library's."""
    return SPEEDS.get(standard_op(node)) is Speed.FASTER_OF_DOUBLE and node.outputs[0].dtype == np.float64
