"""The pass widen-float16: on the CPU, models of float16 become models of float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import onnx_graphsurgeon as gs
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from onnxfuse.model.constants import domain_of, dtype_of
from onnxfuse.model.elementwise_operators import operators_that
from onnxfuse.model.graph_ir import LazyTensor, standard_op
from onnxfuse.model.inlining import nested_nodes
from onnxfuse.model.protos import onnx_graphs
from onnxfuse.model.tensor_data import byte_size, tensors
from onnxfuse.rewrite.base import PassContext
from onnxfuse.rewrite.rule import Refusal
from onnxfuse.shapes.inference import infer

if TYPE_CHECKING:
    from pathlib import Path

    from onnxfuse.model.graph import Model
    from onnxfuse.model.graph_ir import Node

NAME = "widen-float16"
_Message = TypeVar("_Message", NodeProto, TensorProto)

_HALF, _SINGLE = TensorProto.FLOAT16, TensorProto.FLOAT
_COMPUTE = {
    *("Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "LayerNormalization", "MatMul"),
    *("MatMulNBits", "RNN"),
}
"""Operators that take most of a model's time, and that ONNX Runtime computes in float32: the others may be as fast in
float16, for half of the memory."""
_MOVE = {
    *("Concat", "Expand", "Gather", "GatherElements", "GatherND", "Pad", "ScatterElements", "ScatterND", "Slice"),
    *("Split", "Tile", "Transpose"),
}
"""Operators that ONNX Runtime runs in float16, and that take twice as long in float32."""
_ROUNDED = operators_that(lambda row: row.steps) | {"DynamicQuantizeLinear"}
"""Operators of which a last digit decides the result: after one of those above ONNX Runtime does round to float16."""
_DOMAINS = {"", "ai.onnx.ml", "com.microsoft"}
"""Those whose operators take float32 wherever they take float16."""
_TYPE_ATTRIBUTES = {"dtype", "output_datatype", "output_dtype", "softmax_precision", "stash_type", "to"}
_CAPTURED = "a body reads what stays in float16, as inputs and outputs do, or the model returns one that no node makes"
_MOST_BYTES = 512 << 20
"""Of weights in float16: they take twice as much in the file that is written."""


class WidenFloat16:
    """Makes float32 of all float16 in a model but its inputs and outputs.

    For the target cpu, but for AArch64.  ONNX Runtime has few kernels for float16 there: it computes in float32, with a
    Cast on either side that it drops where two meet.  So results are rounded to float16 less often than the model says,
    and after this pass once, at the end.  Convolutions, attention and normalizations are then fused as those of float32
    are.  Weights take twice as much in the file, which ONNX Runtime makes float32 when it creates a session.

    Where a last digit decides a result, as that of a Cast to integers, all that it is computed from stays in float16:
    buckets of positions, flags of a mask.  A model stays as it is if that is a product or a convolution, or in a body;
    if it has no product or convolution of float16, or more than 512 MiB of such weights; if it mostly moves float16, as
    with caches of keys and values that it is given; if it returns the scores of an Attention; and with operators of
    other domains or functions that see float16, or bodies that read what would stay.
    """

    name = NAME
    description = "Makes float32 of float16 on the CPU, as ONNX Runtime computes it."

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrites all graphs at once."""
        if not context.on.halves_in_float():
            return
        nodes = [node for graph in model.graphs() for node in graph.nodes]
        computing = [node for node in nodes if node.op in _COMPUTE and _has_half(node)]
        if not computing:
            return
        try:
            kept = _kept(model, nodes)
            if reason := _why_not(model, nodes):
                raise Refusal(reason)
            widened = _widened(model, kept)
        except Refusal as refusal:
            context.refused(NAME, computing[0], str(refusal))
            return
        stay = {id(node) for node in kept}
        context.rewrote(NAME, [node for node in nodes if _has_half(node) and id(node) not in stay])
        model.replace(widened)
        infer(model)


def _has_half(node: Node) -> bool:
    return any(_is_half(tensor) for tensor in (*node.inputs, *node.outputs))


def _is_half(tensor: gs.Tensor) -> bool:
    return bool(tensor.name) and dtype_of(tensor) == np.float16


def _kept(model: Model, nodes: list[Node]) -> list[Node]:
    """The nodes that stay in float16, for a last digit decides what is made of their results.

    Raises Refusal where they cannot.
    """
    inside = {id(node) for node in model.graph.nodes}
    deciding = [node for node in nodes if node.op in _ROUNDED or _makes_integers(node)]
    pending = [(node, node) for node in deciding if any(map(_is_half, node.inputs[:1]))]
    found: dict[int, Node] = {}
    while pending:
        node, decides = pending.pop()
        if id(node) in found:
            continue
        types = [dtype_of(tensor) for tensor in node.inputs if tensor.name]
        if id(node) not in inside or node.op in _COMPUTE or None in types or _has_bodies(node):
            raise Refusal(f"the result of a node of type {decides.op} may depend on the last digit of float16")
        found[id(node)] = node
        pending += [(maker, decides) for tensor in node.inputs if _is_half(tensor) for maker in tensor.inputs]
    return list(found.values())


def _has_bodies(node: Node) -> bool:
    return any(isinstance(value, gs.Graph) for value in node.attrs.values())


def _why_not(model: Model, nodes: list[Node]) -> str | None:
    """Why a model has to stay as it is; None if nothing is known that would stand in the way."""
    for node in nodes:
        foreign = domain_of(node) not in _DOMAINS or (domain_of(node), node.op, node.overload) in model.functions
        if (foreign and _sees_half(node)) or node.op == "BitCast":
            return f"it has a node of type {node.op} on float16"
        if node.op == "Attention" and any(tensor.name for tensor in node.outputs[3:]) and _has_half(node):
            return "it returns the scores of an Attention, which are the lowest float16 where they are masked"
    if reason := _why_slower(model, nodes):
        return reason
    proto = model.export(light=True).proto
    if any(_holds_half(info.type) for info in (*proto.graph.input, *proto.graph.output)):
        return "it has inputs or outputs that hold several tensors of float16"
    initializers = {tensor.name for tensor in proto.graph.initializer if tensor.data_type == _HALF}
    if not initializers.isdisjoint(info.name for info in proto.graph.input):
        return "it has a weight of float16 that its caller may replace"
    if any(
        sparse.values.data_type == _HALF for graph in onnx_graphs(proto.graph) for sparse in graph.sparse_initializer
    ):
        return "it has sparse weights of float16"
    size = sum(byte_size(tensor) or 0 for tensor in tensors(proto.graph) if tensor.data_type == _HALF)
    return f"its weights take {size >> 20} MiB in float16" if size > _MOST_BYTES else None


def _why_slower(model: Model, nodes: list[Node]) -> str | None:
    """What may take longer in float32: to move much data, as caches of keys and values are that a model is given."""
    if any(node.op == "GroupQueryAttention" and _has_half(node) for node in nodes):
        return "ONNX Runtime computes GroupQueryAttention in float16"
    for tensor in model.graph.inputs:
        # An image may be padded, or have its channels put first.
        if dtype_of(tensor) == np.float16 and any(node.op in _MOVE - {"Pad", "Transpose"} for node in tensor.outputs):
            return "it moves an input in float16"
    halves = [node for node in nodes if _has_half(node) and node.op not in ("Cast", "Constant", "Reshape")]
    moving = sum(node.op in _MOVE for node in halves)
    return "most of its nodes in float16 move data" if 2 * moving > len(halves) else None


def _makes_integers(node: Node) -> bool:
    """Whether a Cast makes integers or flags."""
    dtype = dtype_of(node.outputs[0]) if standard_op(node) == "Cast" else None
    return dtype is not None and dtype.kind in "iub"


def _sees_half(node: Node) -> bool:
    """Whether a node has tensors that are, or may be, of float16."""
    types = [dtype_of(tensor) for tensor in (*node.inputs, *node.outputs) if tensor.name]
    return any(dtype is None or dtype == np.float16 for dtype in types)


def _holds_half(kind: TypeProto) -> bool:
    """Whether a sequence, map or optional holds tensors of float16."""
    return kind.WhichOneof("value") != "tensor_type" and any(
        tensor.elem_type == _HALF for tensor in _tensor_types(kind)
    )


def _tensor_types(kind: TypeProto) -> Iterator[TypeProto.Tensor]:
    match kind.WhichOneof("value"):
        case "tensor_type":
            yield kind.tensor_type
        case "sequence_type":
            yield from _tensor_types(kind.sequence_type.elem_type)
        case "optional_type":
            yield from _tensor_types(kind.optional_type.elem_type)
        case "map_type":
            yield from _tensor_types(kind.map_type.value_type)


def _widened(model: Model, kept: Sequence[Node]) -> ModelProto:
    """The model in float32, but for the nodes that are ``kept``.

    Raises Refusal if that cannot be told from its inputs and outputs and from what these nodes read and make.
    """
    proto = model.to_proto()
    graph = proto.graph
    inputs = [info.name for info in graph.input if info.type.tensor_type.elem_type == _HALF]
    # A model may return a tensor twice.
    outputs = list(dict.fromkeys(info.name for info in graph.output if info.type.tensor_type.elem_type == _HALF))
    made = {name for node in graph.node for name in node.output}
    bodies = (body for body in onnx_graphs(graph) if body is not graph)
    read_inside = {name for body in bodies for name in _names(body)}
    narrow = _Narrow(graph, kept)
    shared = dict.fromkeys((*inputs, *outputs, *narrow.results, *narrow.weights))
    if not made.issuperset(outputs) or not read_inside.isdisjoint(shared):
        raise Refusal(_CAPTURED)
    narrow.take_out(graph)
    _widen(graph, model.directory)
    others = [info for info in graph.value_info if info.name not in shared]
    del graph.value_info[:]
    graph.value_info.extend(others)
    wide = {name: model.unique_name(f"{name}_float32") for name in shared}
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [wide.get(name, name) for name in names]
    for tensor in graph.initializer:
        tensor.name = wide.get(tensor.name, tensor.name)
    graph.node.extend(_cast(model, wide[name], name, _HALF) for name in outputs if name not in narrow.results)
    narrow.put_back(graph)
    read = {name for node in graph.node for name in node.input}
    for name in (*narrow.results, *inputs):
        if wide[name] in read:
            place = next((place + 1 for place, node in enumerate(graph.node) if name in node.output), 0)
            graph.node.insert(place, _cast(model, name, wide[name], _SINGLE))
    for place in reversed(range(len(graph.initializer))):
        if graph.initializer[place].name in {wide[name] for name in narrow.weights} - read:
            del graph.initializer[place]
    return proto


class _Narrow:
    """The nodes of a graph that stay in float16, with their weights; ``results`` are what they make of that type."""

    def __init__(self, graph: GraphProto, kept: Sequence[Node]) -> None:
        halves = {tensor.name for node in kept for tensor in (*node.inputs, *node.outputs) if _is_half(tensor)}
        made = {tensor.name for node in kept for tensor in node.outputs if tensor.name}
        self._places = [
            place
            for place, node in enumerate(graph.node)
            if not made.isdisjoint(node.output) or (node.op_type == "Constant" and node.output[0] in halves)
        ]
        self._nodes = [_copy(graph.node[place]) for place in self._places]
        self._weights = [_copy(tensor) for tensor in graph.initializer if tensor.name in halves]
        self.weights = [tensor.name for tensor in self._weights]
        self.results = [name for node in self._nodes for name in node.output if name in halves]

    def take_out(self, graph: GraphProto) -> None:
        """Leave the nodes to others, but not their weights, which others may read too."""
        for place in reversed(self._places):
            del graph.node[place]

    def put_back(self, graph: GraphProto) -> None:
        """Have them where they were, before anything else is inserted."""
        for place, node in zip(self._places, self._nodes, strict=True):
            graph.node.insert(place, node)
        graph.initializer.extend(self._weights)


def _copy(message: _Message) -> _Message:
    made = type(message)()
    made.CopyFrom(message)
    return made


def _names(graph: GraphProto) -> Iterator[str]:
    """What is read in a graph, but for the bodies in it."""
    for node in graph.node:
        yield from node.input
    yield from (info.name for info in graph.output)


def _widen(graph: GraphProto, directory: Path | None) -> None:
    """Make float32 of all float16 in a model's graph but the types of its inputs and outputs."""
    for tensor in tensors(graph):
        if tensor.data_type == _HALF:
            values = LazyTensor(tensor, directory).load().astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for part in onnx_graphs(graph):
        for info in (*part.value_info, *(() if part is graph else (*part.input, *part.output))):
            _widen_type(info.type)
    for node in nested_nodes(graph.node):
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i == _HALF:
                attribute.i = _SINGLE
            _widen_type(attribute.tp)


def _widen_type(kind: TypeProto) -> None:
    for tensor in _tensor_types(kind):
        if tensor.elem_type == _HALF:
            tensor.elem_type = _SINGLE


def _cast(model: Model, source: str, made: str, data_type: int) -> NodeProto:
    return helper.make_node("Cast", [source], [made], model.unique_name(f"{made}_Cast"), to=data_type)
