"""What a Conv, ConvTranspose, MatMul or Gemm computes, as kernels need to know it, or why they cannot compute it."""

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from onnxfuse.cuda.conv.spec import DTYPES_OF_X, Convolution, product
from onnxfuse.model.constants import is_constant
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.program import ProgramError
from onnxfuse.program.figures import MAX_SPATIAL_RANK
from onnxfuse.program.multiplying import product_of
from onnxfuse.program.node_lowering import UnsupportedError, tensor_dtype
from onnxfuse.shapes.windows import extent

OPERATORS = ("Conv", "ConvTranspose")


def is_convolution(node: gs.Node) -> bool:
    """Whether the node is a Conv or ConvTranspose of the ONNX standard."""
    return standard_op(node) in OPERATORS


def bias(node: gs.Node) -> gs.Tensor | None:
    """The bias of a convolution, or what a Gemm adds, if it has one."""
    return node.inputs[2] if len(node.inputs) > 2 and node.inputs[2].name else None


def describe(node: gs.Node) -> Convolution:
    """The convolution of a node.  Raises UnsupportedError, with a reason for the user, if no kernel computes it."""
    if len(node.inputs) < 2 or not node.inputs[0].name or not node.inputs[1].name or len(node.outputs) != 1:
        raise UnsupportedError("it lacks an input or output")
    data, weights, output = node.inputs[0], node.inputs[1], node.outputs[0]
    dtype = tensor_dtype(data)
    if dtype not in DTYPES_OF_X:
        raise UnsupportedError("no kernel computes it in this type")
    if any(tensor_dtype(tensor) != dtype for tensor in (weights, output, *filter(None, [bias(node)]))):
        raise UnsupportedError("its inputs and its output are not of one type")
    shape = weights.shape
    if shape is None or not all(isinstance(dim, int) and dim > 0 for dim in map(_plain, shape)):
        raise UnsupportedError("the shape of its weights is not known")
    if data.shape is None or output.shape is None:
        raise UnsupportedError("its rank is not known")
    sizes = [int(dim) for dim in shape]
    rank = len(sizes) - 2
    if not 1 <= rank <= MAX_SPATIAL_RANK:
        raise UnsupportedError(f"it has {rank} spatial dimensions")
    if not len(data.shape) == len(output.shape) == len(sizes):
        raise UnsupportedError("its input and its weights are not of one rank")
    return _checked(node, dtype, sizes, rank)


def describe_product(node: gs.Node, opset: int) -> Convolution:
    """The product of a node that ``multiplies``.  Raises UnsupportedError, with a reason for the user, likewise."""
    found = product_of(node, opset)
    data, (inner, columns) = node.inputs[0], found.sizes
    if not all(isinstance(size, int) and size > 0 for size in (inner, columns)):
        raise UnsupportedError("the shape of what it multiplies with is not known")
    if is_constant(data):
        raise UnsupportedError("what it multiplies is constant")
    if len(data.shape) > 2 + MAX_SPATIAL_RANK or _plain(data.shape[-1]) not in (inner, None):
        raise UnsupportedError(f"there are kernels for 2 to {2 + MAX_SPATIAL_RANK} dimensions that fit the matrix")
    try:
        return product(tensor_dtype(data), (inner, columns), by_rows=found.transposed)
    except ProgramError as error:
        raise UnsupportedError(f"it has {str(error).removeprefix('no convolution: ')}") from error


def _skips_far(node: gs.Node, kernel: Sequence[int]) -> bool:
    """Whether the padding that SAME_UPPER or SAME_LOWER asks for may be less than -2, which counts as 0.

    It does in ONNX's formula, but ONNX Runtime (1.20 to 1.32) crops the image by half of it.
    """
    steps, dilations = (_integers(node, name, [1] * len(kernel), 1) for name in ("strides", "dilations"))
    reaches = map(extent, kernel, dilations)
    return any(reach < step - 2 for reach, step in zip(reaches, steps, strict=True))


def _checked(node: gs.Node, dtype: str, sizes: Sequence[int], rank: int) -> Convolution:
    group = node.attrs.get("group", 1)
    kernel = _integers(node, "kernel_shape", sizes[2:], 1)
    auto_pad = node.attrs.get("auto_pad", "NOTSET")
    transposed = node.op == "ConvTranspose"
    in_channels, out_channels = sizes[1], sizes[0]
    if not isinstance(group, int) or group < 1 or kernel != sizes[2:]:
        raise UnsupportedError("its attributes do not fit its weights")
    if transposed:
        in_channels, out_channels = sizes[0], sizes[1] * group
        if "output_shape" in node.attrs:
            raise UnsupportedError("the size of its output is given, and its padding is not")
        if str(auto_pad).startswith("SAME"):
            raise UnsupportedError("its padding follows from the size of its output")
    else:
        in_channels *= group
        if str(auto_pad).startswith("SAME") and _skips_far(node, kernel):
            raise UnsupportedError("ONNX Runtime begins inside of the image, where the standard does not")
    if in_channels % group or out_channels % group or _plain(node.inputs[0].shape[1]) not in (in_channels, None):
        raise UnsupportedError("its attributes do not fit its weights")
    if (given := bias(node)) is not None and [_plain(dim) for dim in given.shape or (None, None)] != [out_channels]:
        raise UnsupportedError("the shape of its bias is not known")
    pads = _integers(node, "pads", [0] * (2 * rank), 0) if auto_pad == "NOTSET" else None
    try:
        return Convolution(
            transposed=transposed,
            dtype=dtype,
            in_channels=in_channels,
            out_channels=out_channels,
            group=group,
            kernel=tuple(kernel),
            strides=tuple(_integers(node, "strides", [1] * rank, 1)),
            dilations=tuple(_integers(node, "dilations", [1] * rank, 1)),
            pads=None if pads is None else tuple(pads),
            auto_pad=auto_pad,
            output_padding=tuple(_integers(node, "output_padding", [0] * rank, 0)) if transposed else (0,) * rank,
        )
    except ProgramError as error:
        raise UnsupportedError(f"it has {str(error).removeprefix('no convolution: ')}") from error


def _integers(node: gs.Node, name: str, default: Sequence[int], least: int) -> list[int]:
    """A list of integers among the attributes, as long as the ``default``."""
    values = node.attrs.get(name)
    if values is None:
        return list(default)
    fits = isinstance(values, list) and len(values) == len(default)
    if not fits or not all(isinstance(value, int) and least <= value < 1 << 31 for value in values):
        raise UnsupportedError(f"its {name} are not what a kernel knows")
    return list(values)


def _plain(dim: object) -> int | None:
    """A dimension as a number; None for a symbol or an unknown one."""
    return None if dim is None or isinstance(dim, str) else int(dim)  # type: ignore[call-overload]
