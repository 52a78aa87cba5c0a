"""Which operators ONNX Runtime's CUDA provider has kernels for.

From the table of registered kernels in ONNX Runtime's docs/OperatorKernels.md (version 1.25, March 2026), which is made
from its source.  A node without a CUDA kernel runs on the CPU, with its tensors copied there and back.
"""

import onnx_graphsurgeon as gs

from onnxfuse.model import dtypes
from onnxfuse.model.graph_ir import operator_key
from onnxfuse.program.lowering import is_elementwise

_HALF = "f16 f32 f64"
_FLOATS = f"{_HALF} bf16"
_SIGNED = "i8 i16 i32 i64"
_INTEGERS = f"{_SIGNED} u8 u16 u32 u64"
_WORDS = "i32 i64 u32 u64"
_ANY = f"{_FLOATS} {_INTEGERS} bool"

_TYPES = {
    "Abs Add Div Mul Sign Sub": f"{_FLOATS} {_INTEGERS}",
    "Shrink": f"{_HALF} {_INTEGERS}",
    "BatchNormalization Ceil Cos Elu Floor LeakyRelu Log PRelu Reciprocal Round Selu Sin Softplus Softsign": _HALF,
    "ThresholdedRelu": _HALF,
    "Dropout Erf Exp Gelu HardSigmoid HardSwish IsInf IsNaN Relu Sigmoid Sqrt Sum Tanh": _FLOATS,
    "Clip": f"{_HALF} i8 i64 u8 u64",
    "Equal": f"{_HALF} {_WORDS} bool",
    "Greater GreaterOrEqual Less LessOrEqual": f"{_HALF} {_WORDS}",
    "Max Min Mod": f"{_FLOATS} {_WORDS}",
    "Neg": f"{_FLOATS} {_SIGNED}",
    "Pow": f"{_FLOATS} i32 i64",
    "And Not Or Xor": "bool",
    "Where": f"{_FLOATS} i32 i64 u8",
    "QuantizeLinear": "f16 f32",
    "DequantizeLinear": "i8 u8",
    "Cast Identity": _ANY,
    # These have no kernel on any provider: ONNX Runtime inlines the functions that the standard defines for them.
    "CastLike Mish Swish": _ANY,
    "Acos Acosh Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Celu": "",
    "Cosh Mean Sinh Tan": "",
}
ELEMENTWISE = {op: frozenset(types.split()) for ops, types in _TYPES.items() for op in ops.split()}
"""The element types, by elementwise operator, none where there is no kernel; of Where that of its second input, of the
others that of the first."""

CPU_ONLY = {
    *("AffineGrid", "BlackmanWindow", "Col2Im", "ConvInteger", "DFT", "Det", "DynamicQuantizeLinear", "GlobalLpPool"),
    *("HammingWindow", "HannWindow", "Hardmax", "LpNormalization", "LpPool", "MaxRoiPool", "MaxUnpool"),
    *("MeanVarianceNormalization", "MelWeightMatrix", "Multinomial", "Optional", "OptionalGetElement"),
    *("OptionalHasElement", "QLinearConv", "QLinearMatMul", "RegexFullMatch", "STFT", "SplitToSequence"),
    *("StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer", "Unique"),
}
"""The other operators of the standard that have a kernel for the CPU and none for CUDA."""


READ_ON_HOST = {"Range": (0, 1, 2), "ConstantOfShape": (0,), "Expand": (1,), "Tile": (1,), "Pad": (1, 2, 3)}
"""The inputs that a CUDA kernel reads on the host, by operators that make data of them: these stay on the GPU."""

_SECOND_ON_HOST = (
    *("CumSum", "OneHot", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Reshape", "Split", "Squeeze", "TopK", "Trilu"),
    *("Unsqueeze", "Upsample"),
)
_STANDARD_HOST_INPUTS = {
    **READ_ON_HOST,
    **dict.fromkeys(_SECOND_ON_HOST, (1,)),
    **{"Clip": (1, 2), "Dropout": (1, 2), "Resize": (1, 2, 3), "Slice": (1, 2, 3, 4)},
}
HOST_INPUTS = {
    **{("", operator): places for operator, places in _STANDARD_HOST_INPUTS.items()},
    ("com.microsoft", "GroupQueryAttention"): (6,),
}
"""The inputs that a CUDA kernel reads on the host, by domain and operator (OrtMemTypeCPUInput in its registration)."""


def has_kernel(node: gs.Node) -> bool:
    """Whether the CUDA provider runs ``node``.  Operators of other domains are taken to be written for it, and unknown
    ones of the standard to have kernels where their known versions have them.
    """
    domain, operator = operator_key(node)
    if domain:
        return domain != "ai.onnx.ml"
    if not is_elementwise(node):
        return operator not in CPU_ONLY
    typed = node.inputs[1 if node.op == "Where" else 0] if len(node.inputs) > (node.op == "Where") else None
    dtype = None if typed is None else dtypes.from_numpy(typed.dtype)
    return dtype is not None and dtype.name in ELEMENTWISE[node.op]
