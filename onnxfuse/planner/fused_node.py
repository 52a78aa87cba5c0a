"""Turning a region into one fused node and the local function that stands in for it where the library is not loaded."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper, numpy_helper

from onnxfuse.dtypes import DTYPES, from_numpy
from onnxfuse.graph import Node
from onnxfuse.graph_export import value_info
from onnxfuse.program import Program, ProgramBuilder
from onnxfuse.program.lowering import cast_target, ignores_input, lower
from onnxfuse.runtime import DOMAIN

OPSET_VERSION = 1
FUSED_NODES_KEY = "onnxfuse.nodes"
"""Metadata of a fused node: the names of the nodes that it stands for."""
FAST_MATH_KEY = "onnxfuse.fast_math"
"""Metadata of a fused node whose kernels need not be exact."""


@dataclass(frozen=True)
class Fusion:
    """What takes the place of a region: the Program, the function, and the tensors on the outside."""

    nodes: tuple[gs.Node, ...]
    program: Program
    function: onnx.FunctionProto
    inputs: tuple[gs.Tensor, ...]
    outputs: tuple[gs.Tensor, ...]

    @property
    def overload(self) -> str:
        """Names the function among those of the fused operator."""
        return self.function.overload

    def node(self, name: str, op: str, attributes: Mapping[str, int], fast_math: bool = False) -> Node:
        """The fused node, of operator ``op`` and with ``attributes`` besides the Program.

        It takes over the outputs of the region's nodes, which lose their connections.
        """
        for node in self.nodes:
            node.inputs.clear()
            node.outputs.clear()
        fused = Node(
            op=op,
            name=name,
            attrs={"program": str(self.program), **attributes},
            inputs=list(self.inputs),
            outputs=list(self.outputs),
            domain=DOMAIN,
        )
        fused.overload = self.overload
        fused.output_types = [_output_type(tensor) for tensor in self.outputs]
        fused.metadata = {FUSED_NODES_KEY: ",".join(node.name or node.op for node in self.nodes)}
        if fast_math:
            fused.metadata[FAST_MATH_KEY] = "1"
        return fused


def fuse(
    nodes: Sequence[gs.Node],
    opsets: Mapping[str, int],
    is_used_outside: Callable[[gs.Tensor], bool],
    fast_math: bool = False,
) -> Fusion:
    """Build the Fusion of a region's ``nodes``, given in topological order; the graph is not changed.

    ``is_used_outside`` says whether a tensor that the region computes is read by anything but the region.  Raises
    ProgramError if the Program exceeds a limit.
    """
    builder = ProgramBuilder(fast_math)
    values: dict[int, int] = {}
    inputs: list[gs.Tensor] = []
    read: dict[tuple[int, int | None], int] = {}

    def value_of(node: gs.Node, index: int, axis: int | None) -> int:
        tensor = node.inputs[index]
        if id(tensor) in values:
            return values[id(tensor)]
        dtype = from_numpy(tensor.dtype)
        assert dtype is not None  # lowering.check has refused the node otherwise
        if is_immediate(tensor, node, opsets[""]):
            return builder.const(dtype.name, tensor.values.reshape(()))
        if (id(tensor), axis) not in read:
            read[id(tensor), axis] = builder.input(dtype.name, axis)
            inputs.append(tensor)
        return read[id(tensor), axis]

    for node in nodes:
        result = lower(node, opsets[""], builder, lambda index, axis=None, node=node: value_of(node, index, axis))
        values[id(node.outputs[0])] = result
    outputs = [node.outputs[0] for node in nodes if is_used_outside(node.outputs[0])]
    program = builder.build([values[id(output)] for output in outputs])
    function = _function(nodes, inputs, outputs, program, opsets[""])
    return Fusion(tuple(nodes), program, function, tuple(inputs), tuple(outputs))


def _output_type(tensor: gs.Tensor) -> onnx.ValueInfoProto:
    """What is known of an output, for ORT, whose interface for custom ops cannot infer an unknown shape or rank 0.

    Symbols that shape inference made up are left out.
    """
    info = value_info(tensor)
    for dim in info.type.tensor_type.shape.dim:
        if dim.dim_param.startswith("unk__"):
            dim.Clear()
    return info


def is_immediate(tensor: gs.Tensor, node: gs.Node, opset: int) -> bool:
    """Whether a constant of one element can be written into the Program: not if its rank shows in the result's."""
    if not _is_single(tensor):
        return False
    if opset < 9 and tensor.dtype not in (np.float16, np.float32, np.float64):
        return False  # the function's body could not have it, for Constant knew no other types
    if len(tensor.shape) == 0:
        return True
    return any(
        other.shape is not None and len(other.shape) >= len(tensor.shape) and not _is_single(other)
        for other in node.inputs
        if other is not tensor and other.name
    )


def _is_single(tensor: gs.Tensor) -> bool:
    """Whether the tensor is a constant of one element."""
    return isinstance(tensor, gs.Constant) and int(np.prod(tensor.shape, dtype=np.int64)) == 1


def _function(
    nodes: Sequence[gs.Node],
    inputs: Sequence[gs.Tensor],
    outputs: Sequence[gs.Tensor],
    program: Program,
    opset: int,
) -> onnx.FunctionProto:
    """The local function, not named yet: the region's nodes with canonical names, so that equal regions share one."""
    names: dict[int, str] = {}
    # A tensor that is an input twice (as a vector and by broadcasting) is read through its first name.
    input_names = [f"input_{position}" for position in range(len(inputs))]
    for tensor, name in zip(inputs, input_names, strict=True):
        names.setdefault(id(tensor), name)
    body: list[onnx.NodeProto] = []
    for position, node in enumerate(nodes):
        arguments: list[str] = []
        for index, tensor in enumerate(node.inputs):
            if ignores_input(node, index) or not tensor.name:
                arguments.append("")
                continue
            if id(tensor) not in names:
                names[id(tensor)] = f"constant_{len(names)}"
                value = numpy_helper.from_array(np.asarray(tensor.values))
                body.append(helper.make_node("Constant", [], [names[id(tensor)]], value=value))
            arguments.append(names[id(tensor)])
        while arguments and not arguments[-1]:
            arguments.pop()
        names[id(node.outputs[0])] = result = f"value_{position}"
        body.append(_body_node(node, arguments, result))
    function = onnx.FunctionProto(
        domain=DOMAIN,
        input=input_names,
        output=[names[id(output)] for output in outputs],
        attribute=["program"],
        node=body,
        opset_import=[helper.make_opsetid("", opset)],
    )
    digest = hashlib.sha256(str(program).encode() + function.SerializeToString(deterministic=True)).hexdigest()
    operators = [node.op for node in nodes]
    shown = operators if len(operators) <= 4 else [*operators[:3], f"{len(operators) - 3}_more"]
    function.overload = "_".join([*shown, digest[:12]])
    return function


def _body_node(node: gs.Node, arguments: list[str], result: str) -> onnx.NodeProto:
    if node.op == "CastLike":  # its second input gives only the type, which is known
        return helper.make_node("Cast", arguments, [result], to=DTYPES[cast_target(node)].onnx)
    attributes = [helper.make_attribute(name, value) for name, value in node.attrs.items()]
    return onnx.NodeProto(op_type=node.op, input=arguments, output=[result], attribute=attributes)
