"""What onnxfuse understands of ONNX's own operators: versions, attributes and their values, and numbers of tensors.

Every rule, planner, lowering, estimate and shape reader was written for these and for no others.  So the importer asks
``unknown`` about each node of the standard domain, once, and marks what is not in this table (``Node.unknown``): such a
node has an operator and a domain that nobody reads, and is left as it is.

A row is there for every operator that the standard had when the table was last gone through, also for those that
nothing reads by name.  Before a row takes a newer version, another attribute or another value, each reader of the
operator is looked at (``git grep '"NAME"' onnxfuse``).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx

MANY = 2**31 - 1
"""As many tensors as a node has."""

Values = Collection[Any] | None
"""The values of an attribute that are understood; None for all of its type."""

_OF_ORT = {"GroupNormalization": 21, "LayerNormalization": 17, "SimplifiedLayerNormalization": None}
"""The opset that first has an operator which ONNX Runtime has in earlier ones too; None for none.  GroupNormalization
is in earlier ones, but withdrawn."""

FLAG = (0, 1)
_AUTO_PAD = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
_COORDINATES = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"),
    *("tf_crop_and_resize", "tf_half_pixel_for_nn"),
)
_DIRECTIONS = ("forward", "reverse", "bidirectional")
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_REDUCTIONS = ("none", "add", "mul", "max", "min")
_SAMPLES = ("bilinear", "nearest", "bicubic", "linear", "cubic")


@dataclass(frozen=True)
class KnownOperator:
    """The newest version (the opset that it came with) of an operator that is understood, the most inputs and outputs,
    and the attributes with their values, of this and all earlier versions.
    """

    newest: int
    inputs: int
    outputs: int
    attributes: Mapping[str, Values]


def unknown(
    operator: str, opset: int, attributes: Mapping[str, Any], inputs: int, outputs: int, functions: Collection[str] = ()
) -> str:
    """Why nothing is known of a node of the standard domain, for the user; empty if all of it is.

    ``opset`` is the model's, ``attributes`` have their values as the importer gives them, ``inputs`` and ``outputs``
    are numbers, with those left out in between.  ``functions`` are the names that the model's own functions have in
    the standard domain.
    """
    if operator in functions:
        return "it is a function of the model by the name of an operator"
    row = OPERATORS.get(operator)
    if row is None:
        return "its operator is not known"
    version = _version(operator, opset)
    if version is None or version > row.newest:
        return f"{operator} is known up to the version of opset {row.newest}"
    for name, value in attributes.items():
        if name not in row.attributes:
            return f"its attribute {name} is not known"
        values = row.attributes[name]
        if values is not None and value not in values:
            return f"{name}={value} is not known"
    if inputs > row.inputs or outputs > row.outputs:
        return f"it has more than {row.inputs} inputs or {row.outputs} outputs"
    return ""


def is_of_ort(operator: str, opset: int) -> bool:
    """Whether an operator of the standard domain is one that only ONNX Runtime has there (``ort_operators``)."""
    since = _OF_ORT.get(operator, 0)
    return since is None or opset < since


@cache
def _version(operator: str, opset: int) -> int | None:
    """The version of an operator in an opset, as the installed onnx has it; None if it has none.

    A model of an opset that the installed onnx does not know has been refused before.
    """
    if is_of_ort(operator, opset):
        return 1
    try:
        return int(onnx.defs.get_schema(operator, opset).since_version)
    except onnx.defs.SchemaError:
        return None


def _row(newest: int, inputs: int, outputs: int, attributes: str = "", **values: Values) -> KnownOperator:
    """``attributes`` are the names of those with any value."""
    return KnownOperator(newest, inputs, outputs, {**dict.fromkeys(attributes.split()), **values})


OPERATORS: Mapping[str, KnownOperator] = {
    "Abs": _row(13, 1, 1),
    "Acos": _row(22, 1, 1),
    "Acosh": _row(22, 1, 1),
    "Add": _row(14, 2, 1),
    "AffineGrid": _row(20, 2, 1, align_corners=FLAG),
    "And": _row(7, 2, 1),
    "ArgMax": _row(13, 1, 1, "axis", keepdims=FLAG, select_last_index=FLAG),
    "ArgMin": _row(13, 1, 1, "axis", keepdims=FLAG, select_last_index=FLAG),
    "Asin": _row(22, 1, 1),
    "Asinh": _row(22, 1, 1),
    "Atan": _row(22, 1, 1),
    "Atanh": _row(22, 1, 1),
    "Attention": _row(
        25,
        7,
        4,
        "kv_num_heads left_window_size q_num_heads right_window_size scale softcap softmax_precision",
        is_causal=FLAG,
        qk_matmul_output_mode=(0, 1, 2, 3),
    ),
    "AveragePool": _row(
        22, 1, 1, "dilations kernel_shape pads strides", auto_pad=_AUTO_PAD, ceil_mode=FLAG, count_include_pad=FLAG
    ),
    "BatchNormalization": _row(15, 5, 5, "epsilon momentum", spatial=FLAG, training_mode=FLAG),
    "Bernoulli": _row(22, 1, 1, "dtype seed"),
    "BitCast": _row(26, 1, 1, "to"),
    "BitShift": _row(11, 2, 1, direction=("LEFT", "RIGHT")),
    "BitwiseAnd": _row(18, 2, 1),
    "BitwiseNot": _row(18, 1, 1),
    "BitwiseOr": _row(18, 2, 1),
    "BitwiseXor": _row(18, 2, 1),
    "BlackmanWindow": _row(17, 1, 1, "output_datatype", periodic=FLAG),
    "Cast": _row(28, 1, 1, "round_mode to", saturate=FLAG),
    "CastLike": _row(25, 2, 1, "round_mode", saturate=FLAG),
    "CausalConvWithState": _row(27, 4, 2, "activation"),
    "Ceil": _row(13, 1, 1),
    "Celu": _row(12, 1, 1, "alpha"),
    "CenterCropPad": _row(18, 2, 1, "axes"),
    "Clip": _row(13, 3, 1, "max min"),
    "Col2Im": _row(18, 3, 1, "dilations pads strides"),
    "Compress": _row(28, 2, 1, "axis"),
    "Concat": _row(13, MANY, 1, "axis"),
    "ConcatFromSequence": _row(11, 1, 1, "axis", new_axis=FLAG),
    "Constant": _row(
        25, 0, 1, "sparse_value value value_float value_floats value_int value_ints value_string value_strings"
    ),
    "ConstantOfShape": _row(25, 1, 1, "value"),
    "Conv": _row(22, 3, 1, "dilations group kernel_shape pads strides", auto_pad=_AUTO_PAD),
    "ConvInteger": _row(10, 4, 1, "dilations group kernel_shape pads strides", auto_pad=_AUTO_PAD),
    "ConvTranspose": _row(
        22, 3, 1, "dilations group kernel_shape output_padding output_shape pads strides", auto_pad=_AUTO_PAD
    ),
    "Cos": _row(22, 1, 1),
    "Cosh": _row(22, 1, 1),
    "CumProd": _row(26, 2, 1, exclusive=FLAG, reverse=FLAG),
    "CumSum": _row(14, 2, 1, exclusive=FLAG, reverse=FLAG),
    "DFT": _row(20, 3, 1, "axis", inverse=FLAG, onesided=FLAG),
    "DeformConv": _row(22, 5, 1, "dilations group kernel_shape offset_group pads strides"),
    "DepthToSpace": _row(28, 1, 1, "blocksize", mode=("DCR", "CRD")),
    "DequantizeLinear": _row(28, 3, 1, "axis block_size output_dtype"),
    "Det": _row(22, 1, 1),
    "Div": _row(14, 2, 1),
    "Dropout": _row(22, 3, 2, "ratio seed"),
    "DynamicQuantizeLinear": _row(11, 1, 3),
    "Einsum": _row(28, MANY, 1, "equation"),
    "Elu": _row(22, 1, 1, "alpha"),
    "Equal": _row(19, 2, 1),
    "Erf": _row(13, 1, 1),
    "Exp": _row(13, 1, 1),
    "Expand": _row(13, 2, 1),
    "EyeLike": _row(22, 1, 1, "dtype k"),
    "Flatten": _row(25, 1, 1, "axis"),
    "Floor": _row(13, 1, 1),
    "GRU": _row(
        22,
        6,
        2,
        "activation_alpha activation_beta activations clip hidden_size",
        direction=_DIRECTIONS,
        layout=FLAG,
        linear_before_reset=FLAG,
    ),
    "Gather": _row(13, 2, 1, "axis"),
    "GatherElements": _row(13, 2, 1, "axis"),
    "GatherND": _row(13, 2, 1, "batch_dims"),
    "Gelu": _row(20, 1, 1, approximate=("none", "tanh")),
    "Gemm": _row(13, 3, 1, "alpha beta", transA=FLAG, transB=FLAG),
    "GlobalAveragePool": _row(22, 1, 1),
    "GlobalLpPool": _row(22, 1, 1, "p"),
    "GlobalMaxPool": _row(22, 1, 1),
    "Greater": _row(13, 2, 1),
    "GreaterOrEqual": _row(16, 2, 1),
    "GridSample": _row(22, 2, 1, align_corners=FLAG, mode=_SAMPLES, padding_mode=("zeros", "border", "reflection")),
    "GroupNormalization": _row(21, 3, 1, "epsilon num_groups", stash_type=_FLOATS),
    "HammingWindow": _row(17, 1, 1, "output_datatype", periodic=FLAG),
    "HannWindow": _row(17, 1, 1, "output_datatype", periodic=FLAG),
    "HardSigmoid": _row(22, 1, 1, "alpha beta"),
    "HardSwish": _row(22, 1, 1),
    "Hardmax": _row(13, 1, 1, "axis"),
    "Identity": _row(25, 1, 1),
    "If": _row(25, 1, MANY, "else_branch then_branch"),
    "ImageDecoder": _row(20, 1, 1, "pixel_format"),
    "InstanceNormalization": _row(22, 3, 1, "epsilon"),
    "IsInf": _row(20, 1, 1, detect_negative=FLAG, detect_positive=FLAG),
    "IsNaN": _row(20, 1, 1),
    "LRN": _row(13, 1, 1, "alpha beta bias size"),
    "LSTM": _row(
        22,
        8,
        3,
        "activation_alpha activation_beta activations clip hidden_size",
        direction=_DIRECTIONS,
        input_forget=FLAG,
        layout=FLAG,
    ),
    "LayerNormalization": _row(17, 3, 3, "axis epsilon", stash_type=_FLOATS),
    "LeakyRelu": _row(16, 1, 1, "alpha"),
    "Less": _row(13, 2, 1),
    "LessOrEqual": _row(16, 2, 1),
    "LinearAttention": _row(27, 6, 2, "chunk_size kv_num_heads q_num_heads scale update_rule"),
    "Log": _row(13, 1, 1),
    "LogSoftmax": _row(13, 1, 1, "axis"),
    "Loop": _row(25, MANY, MANY, "body"),
    "LpNormalization": _row(22, 1, 1, "axis p"),
    "LpPool": _row(22, 1, 1, "dilations kernel_shape p pads strides", auto_pad=_AUTO_PAD, ceil_mode=FLAG),
    "MatMul": _row(13, 2, 1),
    "MatMulInteger": _row(10, 4, 1),
    "Max": _row(13, MANY, 1),
    "MaxPool": _row(
        22, 1, 2, "dilations kernel_shape pads strides", auto_pad=_AUTO_PAD, ceil_mode=FLAG, storage_order=FLAG
    ),
    "MaxRoiPool": _row(22, 2, 1, "pooled_shape spatial_scale"),
    "MaxUnpool": _row(22, 3, 1, "kernel_shape pads strides"),
    "Mean": _row(13, MANY, 1),
    "MeanVarianceNormalization": _row(13, 1, 1, "axes"),
    "MelWeightMatrix": _row(17, 5, 1, "output_datatype"),
    "Min": _row(13, MANY, 1),
    "Mish": _row(22, 1, 1),
    "Mod": _row(13, 2, 1, fmod=FLAG),
    "Mul": _row(14, 2, 1),
    "Multinomial": _row(22, 1, 1, "dtype sample_size seed"),
    "Neg": _row(13, 1, 1),
    "NegativeLogLikelihoodLoss": _row(22, 3, 1, "ignore_index reduction"),
    "NonMaxSuppression": _row(11, 5, 1, center_point_box=FLAG),
    "NonZero": _row(13, 1, 1),
    "Not": _row(1, 1, 1),
    "OneHot": _row(28, 3, 1, "axis"),
    "Optional": _row(28, 1, 1, "type"),
    "OptionalGetElement": _row(28, 1, 1),
    "OptionalHasElement": _row(28, 1, 1),
    "Or": _row(7, 2, 1),
    "PRelu": _row(16, 2, 1),
    "Pad": _row(25, 4, 1, "pads value", mode=("constant", "reflect", "edge", "wrap")),
    "Pow": _row(15, 2, 1),
    "QLinearConv": _row(10, 9, 1, "dilations group kernel_shape pads strides", auto_pad=_AUTO_PAD),
    "QLinearMatMul": _row(21, 8, 1),
    "QuantizeLinear": _row(28, 3, 1, "axis block_size output_dtype precision", saturate=FLAG),
    "RMSNormalization": _row(23, 2, 1, "axis epsilon", stash_type=_FLOATS),
    "RNN": _row(
        22, 6, 2, "activation_alpha activation_beta activations clip hidden_size", direction=_DIRECTIONS, layout=FLAG
    ),
    "RandomNormal": _row(22, 0, 1, "dtype mean scale seed shape"),
    "RandomNormalLike": _row(22, 1, 1, "dtype mean scale seed"),
    "RandomUniform": _row(22, 0, 1, "dtype high low seed shape"),
    "RandomUniformLike": _row(22, 1, 1, "dtype high low seed"),
    "Range": _row(11, 3, 1),
    "Reciprocal": _row(13, 1, 1),
    "ReduceL1": _row(18, 2, 1, "axes", keepdims=FLAG, noop_with_empty_axes=FLAG),
    "ReduceL2": _row(18, 2, 1, "axes", keepdims=FLAG, noop_with_empty_axes=FLAG),
    "ReduceLogSum": _row(28, 2, 1, "axes", keepdims=FLAG, noop_with_empty_axes=FLAG),
    "ReduceLogSumExp": _row(28, 2, 1, "axes", keepdims=FLAG, noop_with_empty_axes=FLAG),
    "ReduceMax": _row(20, 2, 1, "axes", keepdims=FLAG, noop_with_empty_axes=FLAG),
    "ReduceMean": _row(18, 2, 1, "axes", keepdims=FLAG, noop_with_empty_axes=FLAG),
    "ReduceMin": _row(20, 2, 1, "axes", keepdims=FLAG, noop_with_empty_axes=FLAG),
    "ReduceProd": _row(18, 2, 1, "axes", keepdims=FLAG, noop_with_empty_axes=FLAG),
    "ReduceSum": _row(13, 2, 1, "axes", keepdims=FLAG, noop_with_empty_axes=FLAG),
    "ReduceSumSquare": _row(18, 2, 1, "axes", keepdims=FLAG, noop_with_empty_axes=FLAG),
    "RegexFullMatch": _row(20, 1, 1, "pattern"),
    "Relu": _row(14, 1, 1),
    "Reshape": _row(25, 2, 1, allowzero=FLAG),
    "Resize": _row(
        19,
        4,
        1,
        "axes cubic_coeff_a extrapolation_value",
        antialias=FLAG,
        coordinate_transformation_mode=_COORDINATES,
        exclude_outside=FLAG,
        keep_aspect_ratio_policy=("stretch", "not_larger", "not_smaller"),
        mode=("nearest", "linear", "cubic"),
        nearest_mode=_NEAREST,
    ),
    "ReverseSequence": _row(28, 2, 1, "batch_axis time_axis"),
    "RoiAlign": _row(
        22, 3, 1, "coordinate_transformation_mode mode output_height output_width sampling_ratio spatial_scale"
    ),
    "RotaryEmbedding": _row(23, 4, 1, "num_heads rotary_embedding_dim", interleaved=FLAG),
    "Round": _row(22, 1, 1),
    "STFT": _row(17, 4, 1, onesided=FLAG),
    "Scan": _row(
        25,
        MANY,
        MANY,
        "body directions num_scan_inputs scan_input_axes scan_input_directions scan_output_axes scan_output_directions",
    ),
    "Scatter": _row(11, 3, 1, "axis"),
    "ScatterElements": _row(18, 3, 1, "axis", reduction=_REDUCTIONS),
    "ScatterND": _row(18, 3, 1, reduction=_REDUCTIONS),
    "Selu": _row(22, 1, 1, "alpha gamma"),
    "SequenceAt": _row(11, 2, 1),
    "SequenceConstruct": _row(11, MANY, 1),
    "SequenceEmpty": _row(11, 0, 1, "dtype"),
    "SequenceErase": _row(11, 2, 1),
    "SequenceInsert": _row(11, 3, 1),
    "SequenceLength": _row(11, 1, 1),
    "SequenceMap": _row(17, MANY, MANY, "body"),
    "Shape": _row(25, 1, 1, "end start"),
    "Shrink": _row(9, 1, 1, "bias lambd"),
    "Sigmoid": _row(13, 1, 1),
    "Sign": _row(13, 1, 1),
    "SimplifiedLayerNormalization": _row(1, 3, 3, "axis epsilon", stash_type=_FLOATS),
    "Sin": _row(22, 1, 1),
    "Sinh": _row(22, 1, 1),
    "Size": _row(25, 1, 1),
    "Slice": _row(13, 5, 1, "axes ends starts"),
    "Softmax": _row(13, 1, 1, "axis"),
    "SoftmaxCrossEntropyLoss": _row(13, 3, 2, "ignore_index reduction"),
    "Softplus": _row(22, 1, 1),
    "Softsign": _row(22, 1, 1),
    "SpaceToDepth": _row(13, 1, 1, "blocksize"),
    "Split": _row(18, 2, MANY, "axis num_outputs split"),
    "SplitToSequence": _row(24, 2, 1, "axis", keepdims=FLAG),
    "Sqrt": _row(13, 1, 1),
    "Squeeze": _row(25, 2, 1, "axes"),
    "StringConcat": _row(20, 2, 1),
    "StringNormalizer": _row(10, 1, 1, "case_change_action locale stopwords", is_case_sensitive=FLAG),
    "StringSplit": _row(20, 1, 2, "delimiter maxsplit"),
    "Sub": _row(14, 2, 1),
    "Sum": _row(13, MANY, 1),
    "SwiGLU": _row(28, 2, 1, "alpha"),
    "Swish": _row(24, 1, 1, "alpha"),
    "Tan": _row(22, 1, 1),
    "Tanh": _row(13, 1, 1),
    "TensorScatter": _row(24, 3, 1, "axis mode"),
    "TfIdfVectorizer": _row(
        9,
        1,
        1,
        "max_gram_length max_skip_count min_gram_length mode ngram_counts ngram_indexes "
        "pool_int64s pool_strings weights",
    ),
    "ThresholdedRelu": _row(22, 1, 1, "alpha"),
    "Tile": _row(13, 2, 1),
    "TopK": _row(24, 2, 2, "axis k", largest=FLAG, sorted=FLAG),
    "Transpose": _row(25, 1, 1, "perm"),
    "Trilu": _row(14, 2, 1, upper=FLAG),
    "Unique": _row(28, 1, 4, "axis", sorted=FLAG),
    "Unsqueeze": _row(25, 2, 1, "axes"),
    "Upsample": _row(10, 2, 1, "scales", mode=("nearest", "linear")),
    "Where": _row(16, 3, 1),
    "Xor": _row(7, 2, 1),
}
"""By name.  The standard has newer versions of these than the row: BitShift 28 (signed integers), Celu 28 (more
types), Mod 28 (of floats without fmod), Range 27 (stash_type), SpaceToDepth 28 (mode).
"""

CONTRIB_OPERATORS: Mapping[str, frozenset[str]] = {
    "BiasGelu": frozenset(),
    "BiasSoftmax": frozenset(("axis", "is_inner_broadcast")),
    "FastGelu": frozenset(),
    "GatherBlockQuantized": frozenset(("bits", "block_size", "gather_axis", "quantize_axis")),
    "Gelu": frozenset(),
    "GroupQueryAttention": frozenset(
        (
            *("causal", "do_rotary", "k_norm_epsilon", "k_quant_type", "kv_cache_bit_width", "kv_num_heads"),
            *("local_window_size", "num_heads", "q_norm_epsilon", "qk_norm_epsilon", "qk_output", "rotary_interleaved"),
            *("scale", "sliding_window_cache", "smooth_softmax", "softcap", "v_quant_type"),
        )
    ),
    "MatMulNBits": frozenset(("K", "N", "accuracy_level", "bits", "block_size", "weight_prepacked")),
    "QuickGelu": frozenset(("alpha",)),
    "RotaryEmbedding": frozenset(("interleaved", "is_packed_batching", "num_heads", "rotary_embedding_dim", "scale")),
    "SkipLayerNormalization": frozenset(("epsilon",)),
    "SkipSimplifiedLayerNormalization": frozenset(("epsilon",)),
}
"""The attributes of ONNX Runtime's own operators whose types and shapes ``contrib_operators`` knows."""
