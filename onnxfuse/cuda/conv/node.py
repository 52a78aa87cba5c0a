"""Fused convolutions of a model, and products among them, read back from their nodes."""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxfuse.cuda.conv.case import ConvCase
from onnxfuse.cuda.conv.spec import OPERATORS, PRODUCT, Convolution, product
from onnxfuse.cuda.strided import Dim
from onnxfuse.fused.kinds import CONV, TF32_KEY
from onnxfuse.model import dtypes
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import text_attribute
from onnxfuse.program import Program, ProgramError


@dataclass(frozen=True)
class FusedConv:
    """A fused convolution of a model and what it computes."""

    node: gs.Node
    case: ConvCase


def fused_convolutions(model: Model) -> Iterator[FusedConv]:
    """The fused convolutions of every graph of a model whose shapes have been inferred.

    Raises ProgramError for a node that does not validate.
    """
    return (FusedConv(node, case_of(node)) for node in model.fused_nodes(CONV))


def case_of(node: gs.Node) -> ConvCase:
    """What a fused node computes.  Raises ProgramError, which names the node, for one that does not validate."""
    try:
        epilogue = Program.parse(text_attribute(node, "program"))
        prologue = Program.parse(text_attribute(node, "prologue")) if "prologue" in node.attrs else None
        if len(node.inputs) < 2 or not epilogue.inputs or (prologue is not None and not prologue.inputs):
            raise ProgramError("an input is missing")
        before = 0 if prologue is None else len(prologue.inputs) - 1
        operands = [_shape(tensor) for tensor in node.inputs[2:]]
        if len(operands) != before + len(epilogue.inputs) - 1:
            raise ProgramError(f"{len(node.inputs)} inputs do not fit its Programs")
        conv = _convolution(node, epilogue.inputs[0].dtype)
        data = _shape(node.inputs[0]) or (None,) * (2 if conv.channels_last else 2 + conv.rank)
        tf32 = TF32_KEY in getattr(node, "metadata", {})
        return ConvCase(conv, data, epilogue, tuple(operands[before:]), prologue, tuple(operands[:before]), tf32)
    except ProgramError as error:
        raise ProgramError(f"fused convolution {node.name!r}: {error}") from error


def _convolution(node: gs.Node, dtype: str) -> Convolution:
    operator, weights = text_attribute(node, "operator"), _integers(node, "weight_shape")
    if operator != PRODUCT and operator not in OPERATORS:
        raise ProgramError(f"operator {operator!r}")
    real = _shape(node.inputs[1])
    if real is not None and any(isinstance(dim, int) and dim != own for dim, own in zip(real, weights, strict=False)):
        raise ProgramError(f"its weights are not of shape {list(weights)}")
    if operator == PRODUCT:
        by_rows = node.attrs.get("transB")
        if len(weights) != 2 or by_rows not in (0, 1):
            raise ProgramError("its attributes do not fit each other")
        return product(dtype, (weights[1], weights[0]) if by_rows else (weights[0], weights[1]), by_rows=bool(by_rows))
    kernel = _integers(node, "kernel_shape")
    group, transposed = node.attrs.get("group", 1), OPERATORS[operator]
    if len(weights) < 3 or kernel != weights[2:] or not isinstance(group, int):
        raise ProgramError("its attributes do not fit each other")
    if (known := dtypes.from_numpy(node.inputs[1].dtype)) is not None and known.name != dtype:
        raise ProgramError("its weights are of another type than its Program's first input")
    first, second = weights[:2]
    return Convolution(
        transposed=transposed,
        dtype=dtype,
        in_channels=first if transposed else second * group,
        out_channels=second * group if transposed else first,
        group=group,
        kernel=kernel,
        strides=_integers(node, "strides"),
        dilations=_integers(node, "dilations"),
        pads=_integers(node, "pads") if "pads" in node.attrs else None,
        auto_pad=text_attribute(node, "auto_pad"),
        output_padding=_integers(node, "output_padding") if transposed else (0,) * len(kernel),
    )


def _integers(node: gs.Node, name: str) -> tuple[int, ...]:
    values = node.attrs.get(name)
    if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
        raise ProgramError(f"its {name} are no list of integers")
    return tuple(values)


def _shape(tensor: gs.Tensor) -> tuple[Dim, ...] | None:
    if tensor.shape is None:
        return None
    return tuple(dim if dim is None or isinstance(dim, str) else int(dim) for dim in tensor.shape)
