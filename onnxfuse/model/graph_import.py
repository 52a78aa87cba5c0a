"""From ONNX messages to the graph that passes work on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_graphsurgeon as gs
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, TypeProto

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model import tensor_data
from onnxfuse.model.graph_ir import (
    STANDARD_DOMAINS,
    Graph,
    GraphSource,
    Initializer,
    LazySparseTensor,
    LazyTensor,
    Node,
    decode_text,
    numpy_dtype,
)
from onnxfuse.model.known_operators import unknown


def import_graph(
    proto: ModelProto,
    directory: Path | None,
    opsets: Mapping[str, int],
    names: set[str],
    stored: Mapping[str, tensor_data.Stored],
) -> Graph:
    """The model's main graph.  Adds the name of every tensor and node anywhere in the model to ``names``.

    ``stored`` has the data of those of its initializers that have none.
    Nodes of which onnxfuse does not know all that they are (``known_operators``) say so, and why.
    """
    return _Importer(proto, directory, opsets, names).graph(proto.graph, None, stored)


def set_type(variable: gs.Variable, type_proto: TypeProto) -> None:
    """Set a Variable's ``type``, and for a dense tensor its ``dtype`` and ``shape``, where ``type_proto``
    tells them.

    A dimension is an int, a str (a symbol) or None (unknown); the shape of an unknown rank is None.
    """
    kind = type_proto.WhichOneof("value")
    if kind is None:
        return
    if variable.type != kind:  # setting an attribute of onnx-graphsurgeon's takes longer than to compare it
        variable.type = kind
    if kind != "tensor_type":
        variable.dtype = variable.shape = None
        return
    tensor_type = type_proto.tensor_type
    dtype = numpy_dtype(tensor_type.elem_type)
    if dtype is not None and variable.dtype is not dtype:
        variable.dtype = dtype
    if tensor_type.HasField("shape"):
        variable.shape = [_dimension(dim) for dim in tensor_type.shape.dim]


def attribute_value(attribute: AttributeProto) -> Any:
    """The Python value of an attribute of numbers or strings; the AttributeProto itself for any other."""
    if attribute.ref_attr_name:
        return attribute
    match attribute.type:
        case AttributeProto.FLOAT:
            return attribute.f
        case AttributeProto.INT:
            return attribute.i
        case AttributeProto.STRING:
            return decode_text(attribute.s)
        case AttributeProto.FLOATS:
            return list(attribute.floats)
        case AttributeProto.INTS:
            return list(attribute.ints)
        case AttributeProto.STRINGS:
            return [decode_text(text) for text in attribute.strings]
    return attribute


def _dimension(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    # Some exporters write "?" for every unknown size; it must not be taken for one symbol.
    return dim.dim_param.strip("?") or None


class _Scope:
    """The tensors that a graph can name: its own, then those of the graphs around it."""

    def __init__(self, proto: GraphProto, outer: "_Scope | None"):
        self.proto = proto
        self.outer = outer
        self.tensors: dict[str, gs.Tensor] = {}
        self.types = {info.name: info.type for info in (*proto.value_info, *proto.output)}
        self._produced: set[str] | None = None

    def define(self, name: str) -> gs.Tensor:
        """The tensor of that name that this graph itself holds."""
        tensor = self.tensors.get(name)
        if tensor is None:
            tensor = self.tensors[name] = gs.Variable(name)
            if (type_proto := self.types.get(name)) is not None:
                set_type(tensor, type_proto)
        return tensor

    def find(self, name: str) -> gs.Tensor:
        """The tensor that the name means at this point of the graph."""
        scope: _Scope | None = self
        while scope is not None:
            tensor = scope.tensors.get(name)
            if tensor is not None:
                return tensor
            scope = scope.outer
        # A file that is not sorted: a later node of this graph or of one around it makes the tensor.
        scope = self
        while scope is not None:
            if name in scope.produced():
                return scope.define(name)
            scope = scope.outer
        return self.define(name)

    def produced(self) -> set[str]:
        """Names of all node outputs of this graph."""
        if self._produced is None:
            self._produced = {name for node in self.proto.node for name in node.output}
        return self._produced


class _Importer:
    def __init__(self, model: ModelProto, directory: Path | None, opsets: Mapping[str, int], names: set[str]):
        self.directory = directory
        self.names = names
        self.opset = opsets.get("", 1)
        self.functions = {function.name for function in model.functions if function.domain in STANDARD_DOMAINS}
        # Before IR version 4 every initializer had to be an input too, and ORT lets nobody override one.
        self.inputs_override = model.ir_version >= 4
        self.graph_fields = {
            "opset": opsets.get(""),
            "import_domains": list(model.opset_import),
            "producer_name": model.producer_name,
            "producer_version": model.producer_version,
            "ir_version": model.ir_version,
        }

    def graph(
        self,
        proto: GraphProto,
        outer: _Scope | None,
        stored: Mapping[str, tensor_data.Stored] = tensor_data.NOTHING_STORED,
    ) -> Graph:
        scope = _Scope(proto, outer)
        source = GraphSource(proto, tensors=scope.tensors)
        inputs = []
        fixed = set() if self.inputs_override else {initializer.name for initializer in proto.initializer}
        for info in proto.input:
            if info.name in fixed:
                continue
            tensor = scope.define(info.name)
            set_type(tensor, info.type)
            inputs.append(tensor)
        for initializer in proto.initializer:
            values = LazyTensor(initializer, self.directory, stored.get(initializer.name))
            self._initializer(initializer, values, source)
        for sparse in proto.sparse_initializer:
            self._initializer(sparse, LazySparseTensor(sparse, self.directory), source)
        nodes = [self._node(node, scope) for node in proto.node]
        outputs = [scope.find(info.name) for info in proto.output]
        output_ids = {id(tensor) for tensor in outputs}
        for entry in source.initializers:
            entry.used = bool(entry.tensor.outputs) or id(entry.tensor) in output_ids
        self.names.update(scope.tensors, scope.types)
        return Graph(
            source,
            nodes=nodes,
            inputs=inputs,
            outputs=outputs,
            name=proto.name,
            doc_string=proto.doc_string,
            **self.graph_fields,
        )

    def _initializer(self, proto: TensorProto | SparseTensorProto, values: LazyTensor, source: GraphSource) -> None:
        name = values.tensor.name
        tensor = source.tensors.get(name)
        if tensor is None:
            tensor = source.tensors[name] = gs.Constant(name, values)
            source.constants.add(name)
        source.initializers.append(Initializer(proto, tensor, values))

    def _node(self, proto: NodeProto, scope: _Scope) -> Node:
        inputs = [scope.find(name) if name else gs.Variable.empty() for name in proto.input]
        attrs = {attribute.name: self._attribute(attribute, scope) for attribute in proto.attribute}
        outputs = [scope.define(name) if name else gs.Variable.empty() for name in proto.output]
        self.names.add(proto.name)
        domain = proto.domain
        node = Node(
            proto.op_type,
            proto.name,
            attrs,
            inputs,
            outputs,
            None if domain in ("", "ai.onnx") else domain,
            proto.overload,
            proto.doc_string,
            {entry.key: entry.value for entry in proto.metadata_props},
            source=proto,
        )
        if node.domain is None:
            reason = unknown(proto.op_type, self.opset, attrs, len(inputs), len(outputs), self.functions)
            if reason:
                node.make_unknown(reason)
        for name, value in attrs.items():
            constants = value if isinstance(value, list) else [value]
            if constants and isinstance(constants[0], gs.Constant):
                node.source_tensors[name] = [constant._values for constant in constants]
        return node

    def _attribute(self, attribute: AttributeProto, scope: _Scope) -> Any:
        if not attribute.ref_attr_name:
            match attribute.type:
                case AttributeProto.TENSOR:
                    return self._constant(attribute.t)
                case AttributeProto.TENSORS:
                    return [self._constant(tensor) for tensor in attribute.tensors]
                case AttributeProto.GRAPH:
                    return self.graph(attribute.g, scope)
                case AttributeProto.GRAPHS:
                    return [self.graph(graph, scope) for graph in attribute.graphs]
        return attribute_value(attribute)

    def _constant(self, tensor: TensorProto) -> gs.Constant:
        return gs.Constant(tensor.name, LazyTensor(tensor, self.directory))


def import_opsets(proto: ModelProto | onnx.FunctionProto) -> dict[str, int]:
    """The opset versions of a model or function by domain; the standard domain is ``""``."""
    return {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in proto.opset_import}


def import_functions(proto: ModelProto) -> dict[tuple[str, str, str], onnx.FunctionProto]:
    """The model's functions by domain, name and overload.  Raises OnnxfuseError when two have the same."""
    functions = {(function.domain, function.name, function.overload): function for function in proto.functions}
    if len(functions) != len(proto.functions):
        raise OnnxfuseError("the model has two functions of the same domain, name and overload")
    return functions
