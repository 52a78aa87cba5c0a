"""Turning a region into one fused node and the local function that stands in for it where the library is not loaded."""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper, numpy_helper

from onnxfuse.fused.fusion import Fusion
from onnxfuse.fused.kinds import DOMAIN, ELEMENTWISE, Kind
from onnxfuse.fused.views import ViewedInput
from onnxfuse.model.constants import constant_value, is_scalar
from onnxfuse.model.dtypes import DTYPES, from_numpy
from onnxfuse.model.graph_ir import operator_key
from onnxfuse.model.protos import make_attribute
from onnxfuse.program import Program, ProgramBuilder
from onnxfuse.program.lower_conversions import cast_target
from onnxfuse.program.lowering import ignores_input, lower
from onnxfuse.program.node_lowering import tensor_dtype
from onnxfuse.program.program import Input

ATTRIBUTE_OPSET = 12
"""From which onnx's ReferenceEvaluator takes an attribute of the node for a Constant."""

_MOST_ELEMENTS = 16
"""Of a constant that is an attribute of each node."""

Constants = Mapping[str, onnx.TensorProto]
"""Attributes of a fused node that are the values of its function's Constants, in which functions do not differ then."""


@dataclass(frozen=True, kw_only=True)
class ProgramFusion(Fusion):
    """What takes the place of a region, and of the views before it that only serve it: ``program`` computes it all."""

    program: Program
    reads: Sequence[gs.Tensor]


class RegionProgram:
    """Lowers nodes one after the other into one Program; ``inputs`` are the tensors that it reads, in their order.

    Constants of one element are part of the Program, or inputs without ``immediates``: then regions that differ in them
    have one Program, and one function.
    """

    def __init__(self, opset: int, fast_math: bool = False, immediates: bool = True) -> None:
        self.builder = ProgramBuilder(fast_math)
        self.inputs: list[gs.Tensor] = []
        self.reads: list[gs.Tensor] = []
        self._immediates = immediates
        self._opset = opset
        self._values: dict[int, int] = {}
        self._read: dict[tuple[int, int | None], int] = {}

    def input(self, tensor: gs.Tensor, axis: int | None = None) -> int:
        """The value of a tensor from outside, by broadcasting or as a vector along ``axis``."""
        dtype = from_numpy(tensor.dtype)
        assert dtype is not None  # lowering.check has refused the node otherwise
        if (id(tensor), axis) not in self._read:
            self._read[id(tensor), axis] = self.builder.input(dtype.name, axis)
            self.inputs.append(tensor)
            self.reads.append(tensor)
        return self._read[id(tensor), axis]

    def input_view(self, view: ViewedInput) -> None:
        """Read a tensor as a view of another."""
        spec = Input(tensor_dtype(view.tensor), slices=view.slices, swaps_halves=view.swaps_halves)
        self.define(view.tensor, self.builder.view(spec))
        self.inputs.append(view.source)
        self.reads.append(view.tensor)

    def define(self, tensor: gs.Tensor, value: int) -> None:
        """Take ``value`` for a tensor from now on."""
        self._values[id(tensor)] = value

    def lower(self, node: gs.Node) -> None:
        """Append a node."""
        result = lower(
            node, self._opset, self.builder, lambda index, axis=None: self._operand(node, node.inputs[index], axis)
        )
        self.define(node.outputs[0], result)

    def build(self, outputs: Sequence[gs.Tensor]) -> Program:
        """The Program with these outputs.  Raises ProgramError if it exceeds a limit."""
        return self.builder.build([self._values[id(output)] for output in outputs])

    def _operand(self, node: gs.Node, tensor: gs.Tensor, axis: int | None) -> int:
        if id(tensor) in self._values:
            return self._values[id(tensor)]
        if self._immediates and is_immediate(tensor, node, self._opset):
            dtype = from_numpy(tensor.dtype)
            assert dtype is not None
            return self.builder.const(dtype.name, tensor.values.reshape(()))
        return self.input(tensor, axis)


def fuse(
    nodes: Sequence[gs.Node],
    opsets: Mapping[str, int],
    is_used_outside: Callable[[gs.Tensor], bool],
    fast_math: bool = False,
    viewing: Sequence[gs.Node] = (),
    views: Sequence[ViewedInput] = (),
) -> ProgramFusion:
    """Build the fusion of a region's ``nodes``, given in topological order; the graph is not changed.

    ``is_used_outside`` says whether a tensor that the region computes is read by anything but the region.  ``viewing``
    are Slices, Splits and Concats before the region: it reads ``views`` of what they read, in place of their results.
    Raises ProgramError if the Program exceeds a limit.
    """
    region = RegionProgram(opsets[""], fast_math)
    for view in views:
        region.input_view(view)
    for node in nodes:
        region.lower(node)
    outputs = [node.outputs[0] for node in nodes if is_used_outside(node.outputs[0])]
    program = region.build(outputs)
    return program_fusion(ELEMENTWISE, (*viewing, *nodes), region.inputs, region.reads, outputs, program, opsets[""])


def program_fusion(
    kind: Kind,
    nodes: Sequence[gs.Node],
    inputs: Sequence[gs.Tensor],
    reads: Sequence[gs.Tensor],
    outputs: Sequence[gs.Tensor],
    program: Program,
    opset: int,
) -> ProgramFusion:
    """The fused node in the place of ``nodes``, which are in topological order: a Program over ``inputs``, of which it
    sees what it ``reads``, as ``Fusion`` has them."""
    function, constants = local_function(nodes, inputs, outputs, ["program"], opset)
    return ProgramFusion(
        kind=kind,
        nodes=tuple(nodes),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        attributes={"program": str(program), **constants},
        function=function,
        reads=tuple(reads),
        program=program,
    )


def is_immediate(tensor: gs.Tensor, node: gs.Node, opset: int) -> bool:
    """Whether a constant of one element can be written into the Program: not if its rank shows in the result's."""
    if not is_scalar(tensor):
        return False
    if opset < 9 and tensor.dtype not in (np.float16, np.float32, np.float64):
        return False  # the function's body could not have it, for Constant knew no other types
    if len(tensor.shape) == 0:
        return True
    return any(
        other.shape is not None and len(other.shape) >= len(tensor.shape) and not is_scalar(other)
        for index, other in enumerate(node.inputs)
        if other is not tensor and other.name and not ignores_input(node, index)
    )


def local_function(
    nodes: Sequence[gs.Node],
    inputs: Sequence[gs.Tensor],
    outputs: Sequence[gs.Tensor],
    attributes: Iterable[str],
    opset: int,
    passed: Mapping[int, Mapping[str, Any]] | None = None,
) -> tuple[onnx.FunctionProto, Constants]:
    """The local function, not named yet: the region's nodes with canonical names, so that equal regions share one.

    Regions that differ in small constants share one too, if their tensors are of the same types: the constants, which
    come with it, are attributes of the fused node.  ``attributes`` are the names of its others, and ``passed`` says
    which of them, with their values, a node of the body, by its id, has in place of its own.
    """
    names: dict[int, str] = {}
    # A tensor that is an input twice (as a vector and by broadcasting) is read through its first name.
    input_names = [f"input_{position}" for position in range(len(inputs))]
    for tensor, name in zip(inputs, input_names, strict=True):
        names.setdefault(id(tensor), name)
    body: list[onnx.NodeProto] = []
    constants: dict[bytes, str] = {}
    given: dict[str, onnx.TensorProto] = {}
    for position, node in enumerate(_needed_nodes(nodes, outputs)):
        arguments: list[str] = []
        for index, tensor in enumerate(node.inputs):
            if ignores_input(node, index) or not tensor.name:
                arguments.append("")
                continue
            if id(tensor) not in names:
                value = numpy_helper.from_array(np.asarray(constant_value(tensor)))
                content = value.SerializeToString(deterministic=True)
                if content not in constants:
                    constants[content] = name = f"constant_{len(constants)}"
                    if opset >= ATTRIBUTE_OPSET and math.prod(value.dims) <= _MOST_ELEMENTS:
                        given[name] = value
                        body.append(constant_from_attribute(name, name))
                    else:
                        body.append(helper.make_node("Constant", [], [name], value=value))
                names[id(tensor)] = constants[content]
            arguments.append(names[id(tensor)])
        while arguments and not arguments[-1]:
            arguments.pop()
        results = [f"value_{position}" + (f"_{index}" if index else "") for index in range(len(node.outputs))]
        names.update(zip(map(id, node.outputs), results, strict=True))
        body.append(_body_node(node, arguments, results, {} if passed is None else passed.get(id(node), {})))
    function = onnx.FunctionProto(
        domain=DOMAIN,
        input=input_names,
        output=[names[id(output)] for output in outputs],
        attribute=[*attributes, *given],
        node=body,
        opset_import=[
            helper.make_opsetid("", opset),
            *(helper.make_opsetid(domain, 1) for domain in sorted({operator_key(node)[0] for node in nodes} - {""})),
        ],
    )
    types = " ".join(str(tensor.dtype) for tensor in (*inputs, *outputs))
    set_overload(function, types, *(node.op for node in nodes))
    return function, given


def _needed_nodes(nodes: Sequence[gs.Node], outputs: Sequence[gs.Tensor]) -> list[gs.Node]:
    """Those that the outputs need: of what matters for its type alone no value is computed."""
    needed = set(map(id, outputs))
    found = []
    for node in reversed(nodes):
        if needed.isdisjoint(map(id, node.outputs)):
            continue
        found.append(node)
        needed.update(id(tensor) for index, tensor in enumerate(node.inputs) if not ignores_input(node, index))
    return found[::-1]


def constant_from_attribute(output: str, attribute: str) -> onnx.NodeProto:
    """A node of a function's body: a Constant whose value is an attribute of the function's node."""
    node = helper.make_node("Constant", [], [output])
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, ref_attr_name=attribute)
    return node


def constant_integers(output: str, values: Sequence[int]) -> onnx.NodeProto:
    """A node of a function's body: a Constant of one dimension."""
    return helper.make_node("Constant", [], [output], value=numpy_helper.from_array(np.array(values, np.int64)))


def set_overload(function: onnx.FunctionProto, identity: str, *operators: str) -> None:
    """Tell a function without a name from others by some of its ``operators`` and by all that it is."""
    function.overload = ""
    digest = hashlib.sha256(identity.encode() + function.SerializeToString(deterministic=True)).hexdigest()
    shown = operators if len(operators) <= 4 else [*operators[:3], f"{len(operators) - 3}_more"]
    function.overload = "_".join([*shown, digest[:12]])


def _body_node(node: gs.Node, arguments: list[str], results: list[str], passed: Mapping[str, Any]) -> onnx.NodeProto:
    if node.op == "CastLike":  # its second input gives only the type, which is known
        return helper.make_node("Cast", arguments, results, to=DTYPES[cast_target(node)].onnx)
    attributes = [make_attribute(name, value) for name, value in node.attrs.items() if name not in passed]
    for name, value in passed.items():
        kind = make_attribute(name, value).type
        attributes.append(onnx.AttributeProto(name=name, type=kind, ref_attr_name=name))
    domain = operator_key(node)[0]
    return onnx.NodeProto(op_type=node.op, input=arguments, output=results, attribute=attributes, domain=domain)
