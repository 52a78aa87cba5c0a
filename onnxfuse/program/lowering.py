"""From ONNX nodes to instructions: what each elementwise operator of the standard means as a Program.

An operator that is one row of the op table needs nothing here.  The others have a function registered for their ONNX
name, in ``lower_arithmetic.py``, ``lower_activations.py`` or ``lower_conversions.py``; what else is known by that name
is in ``onnxfuse/model/elementwise_operators.py``.  A node that cannot be lowered raises ``UnsupportedError`` with the
reason, which the report shows to the user.
"""

import onnx_graphsurgeon as gs

from onnxfuse.model.graph_ir import STANDARD_DOMAINS
from onnxfuse.program import lower_activations, lower_arithmetic, lower_conversions
from onnxfuse.program.builder import ProgramBuilder
from onnxfuse.program.figures import MAX_RANK
from onnxfuse.program.node_lowering import NodeLowering, Operands, UnsupportedError, tensor_dtype
from onnxfuse.program.ops import OPS
from onnxfuse.program.program import Instruction

OLDEST_OPSET = 7
"""Operators of earlier opsets may differ: Add broadcasts by attributes, Dropout trains unless told otherwise."""


def is_elementwise(node: gs.Node) -> bool:
    """Whether the node is an operator of the ONNX standard that Programs can express, whatever its types."""
    return node.domain in STANDARD_DOMAINS and (node.op in _DIRECT or node.op in _LOWERINGS)


def lower(node: gs.Node, opset: int, builder: ProgramBuilder, operands: Operands) -> int:
    """Append the instructions of ``node`` to ``builder`` and return the value of its first output.

    Raises UnsupportedError, with a reason for the user, if the node has no equivalent.
    """
    if opset < OLDEST_OPSET:
        raise UnsupportedError(f"it is of opset {opset}; operators are fused from opset {OLDEST_OPSET} on")
    if any(output.name for output in node.outputs[1:]):
        raise UnsupportedError(f"the second output of {node.op} is used")
    lowering = NodeLowering(node, opset, builder, operands)
    if node.op in _DIRECT:
        op = _DIRECT[node.op]
        if len(node.inputs) != OPS[op].arity:
            raise UnsupportedError(f"{node.op} with {len(node.inputs)} inputs")
        # T of Where is the type of its second input.
        return lowering.emit(op, *lowering.args(), dtype=lowering.dtype(1 if op == "where" else 0))
    return _LOWERINGS[node.op](lowering)


_DIRECT = {op.onnx: op.name for op in OPS.values() if op.onnx}
_LOWERINGS = {**lower_arithmetic.LOWERINGS, **lower_activations.LOWERINGS, **lower_conversions.LOWERINGS}


def instructions(node: gs.Node, opset: int) -> tuple[Instruction, ...]:
    """The instructions of ``node`` by itself.  Raises UnsupportedError if it cannot be lowered."""
    builder = ProgramBuilder()

    def operand(index: int, axis: int | None = None) -> int:
        return builder.input(tensor_dtype(node.inputs[index]), axis)

    return builder.build([lower(node, opset, builder, operand)]).instructions


def check(node: gs.Node, opset: int) -> str | None:
    """Why ``node`` cannot be lowered; None if it can."""
    builder = ProgramBuilder()
    read: set[int] = set()

    def operand(index: int, axis: int | None = None) -> int:
        read.add(index)
        return builder.input(tensor_dtype(node.inputs[index]), axis)

    try:
        result = lower(node, opset, builder, operand)
        if builder.dtype(result) != tensor_dtype(node.outputs[0]):
            return f"the type of {node.outputs[0].name!r} is not what {node.op} gives"
    except UnsupportedError as reason:
        return str(reason)
    if any(len(tensor.shape or ()) > MAX_RANK for tensor in (*node.inputs, *node.outputs)):
        return f"a tensor of more than {MAX_RANK} dimensions"
    for index, tensor in enumerate(node.inputs):
        if tensor.name and index not in read and not isinstance(tensor, gs.Constant) and not ignores_input(node, index):
            return f"input {index} of {node.op} is not a constant"
    return None


def ignores_input(node: gs.Node, index: int) -> bool:
    """Whether an input matters for its type only, so that the fused node need not take it."""
    return node.op == "CastLike" and index == 1


def vector_axes(node: gs.Node, opset: int) -> dict[int, int]:
    """The inputs that ``lower`` reads as vectors, and along which axis each, counted from the back.

    They cannot be values computed in the region.
    """
    builder = ProgramBuilder()
    found: dict[int, int] = {}

    def operand(index: int, axis: int | None = None) -> int:
        if axis is not None:
            found[index] = axis
        return builder.input(tensor_dtype(node.inputs[index]), axis)

    lower(node, opset, builder, operand)
    return found
