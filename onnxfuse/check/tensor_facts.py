"""What is known of a model's tensors once its inputs have shapes: sizes, and the values of small ones."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.constants import NUMBER_ATTRIBUTES
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import STANDARD_DOMAINS, numpy_dtype
from onnxfuse.model.protos import onnx_graphs
from onnxfuse.model.tensor_data import is_external
from onnxfuse.shapes.inference import infer

Dims = tuple[int | None, ...]
"""A shape with None for each size that is not known."""

SMALL = 4096
"""Elements of the tensors whose values are looked at."""

_FOLDED = {
    *("Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Expand"),
    *(
        "Flatten",
        "Floor",
        "Gather",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "Less",
        "LessOrEqual",
        "Max",
        "Min",
        "Mod",
        "Mul",
    ),
    *("Neg", "Not", "Or", "Range", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Slice", "Split"),
    *("Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where"),
}
"""What shapes, indices and the like are computed by."""

_DEEPEST = 64
_KEEP_SHAPE = {
    *("Abs", "Cast", "CastLike", "Ceil", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "Identity", "LeakyRelu"),
    *(
        "Log",
        "Neg",
        "Not",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Softmax",
        "Softplus",
        "Sqrt",
        "Tanh",
    ),
}


class Graph:
    """The nodes of a model, those of all its graphs, by the tensors that they read and make.

    Functions are inlined, and the data of large tensors is left out.
    """

    def __init__(self, model: ModelProto) -> None:
        self.proto = _inlined(_skeleton(model))
        self.opsets = [helper.make_opsetid(opset.domain, opset.version) for opset in self.proto.opset_import]
        self.readers: dict[str, list[tuple[NodeProto, int]]] = defaultdict(list)
        self.producers: dict[str, NodeProto] = {}
        self.constants: dict[str, TensorProto] = {}
        self.declared: dict[str, TypeProto] = {}
        self.order: dict[int, int] = {}
        """By the ids of nodes: their places in the file, outer nodes before those of their bodies."""
        self.passed_on: dict[str, tuple[NodeProto, str]] = {}
        """By the results of the bodies of an If: that node, and its result that is the same."""
        self._around: dict[int, tuple[NodeProto, str]] = {}
        """By the ids of nodes in the body of an If: that node, and the attribute that the body is."""
        graphs = list(onnx_graphs(self.proto.graph))
        self.nodes = [node for graph in graphs for node in graph.node]
        """Held, for messages are told apart by their ids."""
        for graph in graphs:
            self.constants |= {tensor.name: tensor for tensor in graph.initializer}
            self.declared |= {info.name: info.type for info in (*graph.input, *graph.value_info, *graph.output)}
            for node in graph.node:
                self.order[id(node)] = len(self.order)
                for place, name in enumerate(node.input):
                    self.readers[name].append((node, place))
                self.producers.update(dict.fromkeys(filter(None, node.output), node))
                if node.op_type == "If" and is_standard(node):
                    self._add_if(node)
        for info in self.proto.graph.input:
            self.constants.pop(info.name, None)  # a caller may give another value

    def _add_if(self, node: NodeProto) -> None:
        for attribute in node.attribute:
            names = [output.name for output in attribute.g.output]
            self.passed_on.update((name, (node, outer)) for name, outer in zip(names, node.output, strict=False))
            self._around.update((id(inner), (node, attribute.name)) for inner in attribute.g.node)

    def conditions(self, node: NodeProto) -> Iterator[tuple[str, bool]]:
        """The conditions on which a node runs, by the names of tensors, and what they must be."""
        found = self._around.get(id(node))
        while found is not None:
            outer, body = found
            yield outer.input[0], body == "then_branch"
            found = self._around.get(id(outer))


def is_standard(node: NodeProto) -> bool:
    """Whether the node's operator is one of ONNX's own."""
    return node.domain in STANDARD_DOMAINS


def key_of(node: NodeProto) -> str:
    """The operator of a node, with its domain before it if that is none of ONNX's."""
    return node.op_type if is_standard(node) or node.domain == "ai.onnx.ml" else f"{node.domain}.{node.op_type}"


def attributes(node: NodeProto) -> dict[str, Any]:
    """The attributes of a node by name, but for graphs."""
    graphs = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    return {item.name: helper.get_attribute_value(item) for item in node.attribute if item.type not in graphs}


def bodies(node: NodeProto) -> list[onnx.GraphProto]:
    """The graphs in the attributes of a node."""
    return [item.g for item in node.attribute if item.type == AttributeProto.GRAPH]


class Facts:
    """What is known where the inputs have these ``shapes``, and symbols these ``sizes``."""

    def __init__(
        self,
        graph: Graph,
        shapes: Mapping[str, Iterable[int]],
        sizes: Mapping[str, int],
    ) -> None:
        self.graph = graph
        self._given = {name: tuple(shape) for name, shape in shapes.items()}
        self._sizes = dict(sizes)
        self._values: dict[str, np.ndarray] = {}
        self._folded: dict[str, np.ndarray | None] = {}
        self._shapes: dict[str, Dims] | None = None
        self._types: dict[str, np.dtype] = {}

    def set(self, name: str, value: np.ndarray) -> None:
        """From now on the input ``name`` has this value."""
        self._values[name] = value
        self._folded.clear()
        self._shapes = None

    def shape(self, name: str) -> Dims | None:
        """The shape of a tensor; None for an unknown rank."""
        if name in self._given:
            return self._given[name]
        if name in self.graph.constants:
            return tuple(self.graph.constants[name].dims)
        if self._shapes is None:
            self._shapes = self._inferred()
        found = self._shapes.get(name)
        if found is not None and None not in found:
            return found
        node = self.graph.producers.get(name)
        if node is not None and is_standard(node):
            with suppress(IndexError, ValueError):
                return self._computed(node, name) or found
        return found

    def whole_shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor if each of its sizes is known."""
        shape = self.shape(name)
        return None if shape is None or None in shape else tuple(size for size in shape if size is not None)

    def is_integer(self, name: str) -> bool:
        """Whether a tensor is known to be one of integers."""
        if name in self.graph.constants:
            dtype = numpy_dtype(self.graph.constants[name].data_type)
        elif name in self.graph.declared:
            dtype = numpy_dtype(self.graph.declared[name].tensor_type.elem_type)
        else:
            if self._shapes is None:
                self._shapes = self._inferred()
            dtype = self._types.get(name)
        return dtype is not None and dtype.kind in "iu"

    def declared(self, name: str) -> Dims | None:
        """The shape that the model declares of a tensor, or of one that is made of it and has the same."""
        found: Dims | None = None
        for _ in range(_DEEPEST):
            proto = self.graph.declared.get(name)
            if proto is not None and proto.tensor_type.HasField("shape"):
                dims = tuple(
                    dim.dim_value if dim.HasField("dim_value") else self._sizes.get(dim.dim_param)
                    for dim in proto.tensor_type.shape.dim
                )
                if found is None:
                    found = dims
                elif len(found) == len(dims):
                    found = tuple(other if one is None else one for one, other in zip(found, dims, strict=True))
            if name in self.graph.passed_on:
                name = self.graph.passed_on[name][1]
                continue
            followers = [node for node, place in self.graph.readers[name] if place == 0 and node.op_type in _KEEP_SHAPE]
            if not followers or not followers[0].output or (found is not None and None not in found):
                break
            name = followers[0].output[0]
        return found

    def value(self, name: str, depth: int = 0) -> np.ndarray | None:
        """The value of a small tensor that follows from constants, shapes and the values that are set."""
        if name in self._values:
            return self._values[name]
        if name not in self._folded:
            self._folded[name] = None  # a cycle, which ONNX forbids, ends here
            self._folded[name] = self._fold(name, depth)
        return self._folded[name]

    def _fold(self, name: str, depth: int) -> np.ndarray | None:
        if name in self.graph.constants:
            return tensor_value(self.graph.constants[name])
        node = self.graph.producers.get(name)
        if node is None or not is_standard(node) or depth > _DEEPEST:
            return None
        if node.op_type == "Constant":
            return constant_value(node)
        if node.op_type in ("Shape", "Size"):
            return self._measured(node)
        if node.op_type == "If":
            inner = self._chosen(node, name)
            return self.value(inner, depth + 1) if inner else None
        if node.op_type not in _FOLDED:
            return None
        values = [self.value(one, depth + 1) if one else None for one in node.input]
        if any(value is None and one for value, one in zip(values, node.input, strict=True)):
            return None
        results = self.evaluate(node, dict(zip(node.input, values, strict=True)))
        return results[list(node.output).index(name)] if results else None

    def may_run(self, node: NodeProto) -> bool:
        """Whether the node runs, as far as is known of the conditions for that."""
        values = ((self.value(name), needed) for name, needed in self.graph.conditions(node))
        return all(value is None or value.size != 1 or bool(value.item()) == needed for value, needed in values)

    def _chosen(self, node: NodeProto, name: str) -> str:
        """What a result of an If is by the name that it has in the body, if it is known which; else ""."""
        condition = self.value(node.input[0])
        if condition is None or condition.size != 1:
            return ""
        wanted = "then_branch" if condition.item() else "else_branch"
        outputs = next((item.g.output for item in node.attribute if item.name == wanted), ())
        index = list(node.output).index(name)
        return outputs[index].name if index < len(outputs) else ""

    def _computed(self, node: NodeProto, name: str) -> Dims | None:
        """The shape of what a node makes, where inference does not see by what it is told."""
        if node.op_type == "If":
            inner = self._chosen(node, name)
            return self.shape(inner) if inner else None
        if node.op_type == "Concat":
            parts = [self.whole_shape(one) for one in node.input]
            axis = attributes(node).get("axis", 0)
            known = [part for part in parts if part is not None]
            size = sum(part[axis] for part in known)
            return (*known[0][:axis], size, *known[0][axis:][1:]) if len(known) == len(parts) and axis >= 0 else None
        if node.op_type == "ConstantOfShape":
            target = self.value(node.input[0])
            return None if target is None else tuple(int(size) for size in target)
        if node.op_type == "Range":
            numbers = [number.item() for one in node.input if (number := self.value(one)) is not None]
            whole = [int(number) for number in numbers if number == int(number)]
            return (len(range(*whole)),) if len(whole) == 3 else None
        return self._reshaped(node) if node.op_type in ("Expand", "Reshape") and len(node.input) > 1 else None

    def _reshaped(self, node: NodeProto) -> Dims | None:
        target, shape = self.value(node.input[1]), self.whole_shape(node.input[0])
        if target is None or shape is None:
            return None
        wanted = [int(size) for size in target.reshape(-1)]
        if node.op_type == "Expand":
            return tuple(np.broadcast_shapes(shape, wanted))
        if not attributes(node).get("allowzero", 0):
            wanted = [shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
        rest = math.prod(size for size in wanted if size != -1)
        return tuple(math.prod(shape) // max(rest, 1) if size == -1 else size for size in wanted)

    def _measured(self, node: NodeProto) -> np.ndarray | None:
        shape = self.shape(node.input[0])
        if shape is None:
            return None
        settings = attributes(node)
        part = shape[settings.get("start", 0) : settings.get("end", None)]
        if None in part:
            return None
        sizes = np.array(part, np.int64)
        return np.asarray(np.prod(sizes)) if node.op_type == "Size" else sizes

    def evaluate(self, node: NodeProto, values: Mapping[str, np.ndarray | None]) -> list[np.ndarray] | None:
        """What a node makes of these inputs; None if it makes nothing of them, or something large."""
        from onnx.reference import ReferenceEvaluator

        feeds = {name: value for name, value in values.items() if name and value is not None}
        if any(value.size > SMALL for value in feeds.values()):
            return None
        graph = onnx.GraphProto(name="node", node=[node])
        graph.input.extend(
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in feeds.items()
        )
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output)
        model = ModelProto(ir_version=10, graph=graph, opset_import=self.graph.opsets)
        try:
            with np.errstate(all="ignore"):
                results = [np.asarray(value) for value in ReferenceEvaluator(model).run(None, feeds)]
        except Exception:  # it raises whatever the operator's implementation runs into
            return None
        return results if all(result.size <= SMALL for result in results) else None

    def _inferred(self) -> dict[str, Dims]:
        proto = ModelProto()
        proto.CopyFrom(self.graph.proto)
        left = [info for info in proto.graph.input if info.name not in self._values]
        del proto.graph.input[:]
        proto.graph.input.extend(left)
        proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in self._values.items())
        names = {info.name for info in left if info.type.HasField("tensor_type")}
        try:
            model = Model.from_proto(proto)
            infer(model, {name: shape for name, shape in self._given.items() if name in names})
        except (OnnxfuseError, ValueError):
            return {}
        tensors = [tensor for graph in model.graphs() for node in graph.nodes for tensor in node.outputs]
        self._types = {tensor.name: np.dtype(tensor.dtype) for tensor in tensors if tensor.dtype is not None}
        return {
            tensor.name: tuple(int(size) if isinstance(size, (int, np.integer)) else None for size in tensor.shape)
            for tensor in tensors
            if tensor.shape is not None
        }


def tensor_value(tensor: TensorProto) -> np.ndarray | None:
    """The value of a small tensor whose data is at hand."""
    if _is_large(tensor):
        return None
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except (TypeError, ValueError, KeyError):
        return None


def constant_value(node: NodeProto) -> np.ndarray | None:
    """The value of a Constant node of numbers."""
    (name, value), *_ = (*attributes(node).items(), ("", None))
    if isinstance(value, TensorProto):
        return tensor_value(value)
    return np.array(value, NUMBER_ATTRIBUTES[name]) if name in NUMBER_ATTRIBUTES else None


def _skeleton(model: ModelProto) -> ModelProto:
    """The model without the data of its large constants, which are most of its bytes."""
    source = model.graph
    graph = onnx.GraphProto(name=source.name, value_info=source.value_info, input=source.input, output=source.output)
    graph.sparse_initializer.extend(source.sparse_initializer)
    graph.initializer.extend(map(_without_data, source.initializer))
    for node in source.node:
        value = next((item.t for item in node.attribute if item.HasField("t")), None)
        if node.op_type == "Constant" and value is not None and _is_large(value):
            item = AttributeProto(name="value", type=AttributeProto.TENSOR, t=_without_data(value))
            graph.node.add(op_type="Constant", output=node.output, attribute=[item])
        else:
            graph.node.add().CopyFrom(node)
    return ModelProto(
        ir_version=model.ir_version, graph=graph, opset_import=model.opset_import, functions=model.functions
    )


def _is_large(tensor: TensorProto) -> bool:
    return is_external(tensor) or math.prod(tensor.dims) > SMALL


def _without_data(tensor: TensorProto) -> TensorProto:
    """The tensor, if it is small, or its type and shape."""
    if not _is_large(tensor):
        return tensor
    return TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)


def _inlined(model: ModelProto) -> ModelProto:
    if not model.functions:
        return model
    from onnxfuse.passes.inline_functions import inlined

    try:
        return inlined(Model.from_proto(model)).source
    except OnnxfuseError:
        return model
