"""From the graph that passes work on back to ONNX messages.

What no pass changed is written as the message that it was imported from.  ``light=True`` leaves the data of
large tensors out: what the checker and shape inference need of a model of any size.
"""

import math
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx_graphsurgeon.util.misc import convert_to_onnx_attr_type

from onnxfuse.fused.kinds import DOMAIN, OPSET_VERSION
from onnxfuse.model import tensor_data
from onnxfuse.model.graph_import import attribute_value
from onnxfuse.model.graph_ir import (
    ComputedValues,
    Graph,
    Initializer,
    LazySparseTensor,
    LazyTensor,
    Node,
    operator_key,
    subgraphs,
    walk,
)
from onnxfuse.model.graph_order import outer_tensors, sorted_nodes
from onnxfuse.model.protos import copy_fields, forget_symbols, make_attribute, value_info

INITIALIZER_IR_VERSION = 4
"""The first IR version in which an initializer need not be an input, and one that is can be overridden."""
FUSED_IR_VERSION = 10
"""The first IR version in which nodes and functions have overloads."""

_LIGHT_ELEMENTS = 1024
"""Tensors of more elements lose their data in a light export; shape inference reads no larger ones."""
_STORED_BYTES = 1 << 16
"""Computed tensors of fewer bytes are in every export."""
_LARGE = 1024
"""Elements from which a new constant is outside of the body that reads it."""


class Export:
    """One export of a model.

    ``proto`` is the result.  ``fresh`` are the tensors in it that were made from arrays, not imported.
    ``graphs`` are the graphs in the order in which ``onnx_graphs(proto.graph)`` gives their messages, and ``messages``
    these.
    ``stripped`` are the tensors that a light export left without data.  ``stored`` has, by their names, the data of the
    initializers of the main graph that an export which is not ``whole`` left without it.
    """

    def __init__(
        self,
        graph: gs.Graph,
        source: ModelProto,
        opsets: Mapping[str, int],
        functions: Iterable[FunctionProto],
        directory: Path | None,
        *,
        metadata: Mapping[str, str],
        light: bool = False,
        whole: bool = True,
    ):
        """Export ``graph`` with all else of ``source``, but with these opsets and functions, and more ``metadata``."""
        self.proto = ModelProto()
        self.fresh: list[TensorProto] = []
        self.graphs: list[gs.Graph] = []
        self.messages: list[GraphProto] = []
        self.stripped: list[TensorProto] = []
        self.stored: dict[str, tensor_data.Stored] = {}
        self._light = light
        self._whole = whole
        self._directory = directory
        self._visible: set[int] = set()
        self._used = {id(tensor) for part in walk(graph) for tensor in _direct_uses(part)}
        self._graph = graph
        self._reserved = {
            name
            for training in source.training_info
            for binding in (*training.initialization_binding, *training.update_binding)
            for name in (binding.key, binding.value)
        }
        skipped = {"graph", "functions", "ir_version", "opset_import"} | ({"training_info"} if light else set())
        copy_fields(source, self.proto, skipped)
        known = {entry.key: entry for entry in self.proto.metadata_props}
        for key, value in metadata.items():
            entry = known[key] if key in known else self.proto.metadata_props.add(key=key)
            entry.value = value
        domains = {operator_key(node)[0] for part in walk(graph) for node in part.nodes if _is_new(node)} - {""}
        fused = any(node.domain == DOMAIN for part in walk(graph) for node in part.nodes)
        if source.HasField("ir_version") or fused:
            self.proto.ir_version = max(source.ir_version, FUSED_IR_VERSION) if fused else source.ir_version
        self._write_opsets(source, opsets, domains | ({DOMAIN} if fused else set()))
        if source.HasField("graph"):
            self._write_graph(graph, self.proto.graph)
            if source.HasField("ir_version") and source.ir_version < INITIALIZER_IR_VERSION:
                self._write_fixed_inputs(source.graph)
            if fused:
                forget_symbols(self.messages, of_outputs=False)
        for function in functions:
            written = self.proto.functions.add()
            written.CopyFrom(function)
            if light:
                for tensor in tensor_data.tensors(written):
                    self._lighten(tensor)

    def _write_fixed_inputs(self, source: GraphProto) -> None:
        """Name the initializers among the inputs, as IR versions before 4 want it.

        A model that has new initializers gets IR version 4 instead, where they are constants because they are no
        inputs.
        """
        graph = self.proto.graph
        initializers = {tensor.name for tensor in graph.initializer}
        if initializers <= {info.name for info in source.input} and self.proto.ir_version < INITIALIZER_IR_VERSION:
            own = {info.name: info for info in graph.input}
            order = [own.pop(info.name, info) for info in source.input if info.name in own or info.name in initializers]
            order.extend(own.values())
            del graph.input[:]
            graph.input.extend(order)
        else:
            self.proto.ir_version = max(self.proto.ir_version, INITIALIZER_IR_VERSION)

    def _write_opsets(self, source: ModelProto, opsets: Mapping[str, int], needed: set[str]) -> None:
        self.proto.opset_import.extend(source.opset_import)
        present = set()
        for entry in self.proto.opset_import:
            domain = "" if entry.domain == "ai.onnx" else entry.domain
            present.add(domain)
            if opsets.get(domain, entry.version) != entry.version and domain in opsets:
                entry.version = opsets[domain]
        default = dict.fromkeys(sorted(needed), OPSET_VERSION)
        for domain, version in {**default, **opsets}.items():
            if domain not in present:
                self.proto.opset_import.add(domain=domain, version=version)

    def _write_graph(self, graph: gs.Graph, out: GraphProto) -> None:
        self.graphs.append(graph)
        self.messages.append(out)
        nodes = sorted_nodes(graph)
        source = graph.source.proto if isinstance(graph, Graph) else GraphProto(name=graph.name)
        rebuilt = {"node", "initializer", "sparse_initializer", "input", "output", "value_info"}
        copy_fields(source, out, rebuilt | {"name", "doc_string", "quantization_annotation"})
        _set_text(out, "name", graph.name, source)
        _set_text(out, "doc_string", graph.doc_string, source)

        names = {tensor.name for node in nodes for tensor in (*node.inputs, *node.outputs)}
        names.update(tensor.name for tensor in (*graph.inputs, *graph.outputs))
        imported = graph.source.tensors if isinstance(graph, Graph) else {}
        for annotation in source.quantization_annotation:
            if annotation.tensor_name in names or annotation.tensor_name not in imported:
                out.quantization_annotation.append(annotation)
        kept = self._reserved | {
            entry.value for item in out.quantization_annotation for entry in item.quant_parameter_tensor_names
        }
        constants = self._write_initializers(graph, nodes, out, kept)
        written = {tensor.name for tensor in constants}
        self._write_values(graph, source, out, names, written)
        _write_output_types(nodes, out)
        added = {id(tensor) for tensor in constants} - self._visible
        self._visible |= added
        for node in nodes:
            self._write_node(node, out.node.add())
        self._visible -= added

    def _write_values(
        self, graph: gs.Graph, source: GraphProto, out: GraphProto, names: set[str], constants: set[str]
    ) -> None:
        was_constant: set[str] = set()
        was_there: Mapping[str, gs.Tensor] = {}
        if isinstance(graph, Graph):
            was_constant, was_there = graph.source.constants, graph.source.tensors
        _write_infos(graph.inputs, source.input, was_there, out.input)
        _write_infos(graph.outputs, source.output, was_there, out.output)
        for info in source.value_info:
            name = info.name
            gone = name in was_there and name not in names and name not in constants
            folded = name in constants and name in was_there and name not in was_constant
            if not gone and not folded:
                out.value_info.append(info)

    def _write_initializers(
        self, graph: gs.Graph, nodes: list[gs.Node], out: GraphProto, kept: set[str]
    ) -> list[gs.Constant]:
        """Write the graph's initializers; return the Constants that are now its own."""
        constants: list[gs.Constant] = []
        is_main = graph is self._graph
        seen = set(self._visible)
        inputs = {id(tensor) for tensor in graph.inputs}
        for entry in graph.source.initializers if isinstance(graph, Graph) else ():
            tensor = entry.tensor
            if isinstance(tensor, gs.Constant):
                needed = not entry.used or id(tensor) in self._used or tensor.name in kept
                if needed and id(tensor) not in self._visible:
                    self._write_initializer(entry, out, is_main=is_main)
                    constants.append(tensor)
                    seen.add(id(tensor))
            elif id(tensor) in inputs:
                self._write_initializer(entry, out, is_main=is_main)
        own = (tensor for node in nodes for tensor in node.inputs)
        for tensor in (*own, *graph.outputs, *self._outside_of_subgraphs(nodes)):
            if isinstance(tensor, gs.Constant) and tensor.name and id(tensor) not in seen:
                seen.add(id(tensor))
                constants.append(tensor)
                self._write_values_of(tensor, out.initializer.add(), is_main=is_main)
        return constants

    def _outside_of_subgraphs(self, nodes: Iterable[gs.Node]) -> list[gs.Tensor]:
        """What subgraphs of the nodes read from around them that is written outside if it is a constant.

        That is what several read, and large constants that passes made, of which ONNX Runtime has two copies inside:
        but not where another tensor has the same name, as it may in another body.
        """
        seen: set[int] = set()
        outside: dict[int, gs.Tensor] = {}
        for subgraph in (subgraph for node in nodes for subgraph in subgraphs(node)):
            for tensor in outer_tensors(subgraph):
                is_large = isinstance(tensor, gs.Constant) and math.prod(tensor.shape) >= _LARGE
                if id(tensor) in seen or (is_large and len(self._named[tensor.name]) == 1):
                    outside[id(tensor)] = tensor
                seen.add(id(tensor))
        return list(outside.values())

    @cached_property
    def _named(self) -> Mapping[str, set[int]]:
        """The ids of the model's tensors by their names."""
        named: defaultdict[str, set[int]] = defaultdict(set)
        for graph in walk(self._graph):
            made = (tensor for node in graph.nodes for tensor in node.outputs)
            kept = (entry.tensor for entry in graph.source.initializers) if isinstance(graph, Graph) else ()
            for tensor in (*graph.inputs, *made, *kept, *_direct_uses(graph)):
                named[tensor.name].add(id(tensor))
        return named

    def _write_initializer(self, entry: Initializer, out: GraphProto, *, is_main: bool) -> None:
        tensor = entry.tensor
        if isinstance(tensor, gs.Constant) and not entry.values.holds(tensor._values):
            written = out.initializer.add()
            self._write_values_of(tensor, written, is_main=is_main)
            written.doc_string = entry.values.tensor.doc_string
            written.metadata_props.extend(entry.values.tensor.metadata_props)
        elif isinstance(entry.values, LazySparseTensor):
            self._write_sparse(entry.values, tensor.name, out)
        else:
            self._copy_values(entry.values, out.initializer.add(), tensor.name, is_main=is_main)

    def _write_sparse(self, values: LazySparseTensor, name: str, out: GraphProto) -> None:
        source = values.sparse
        external = tensor_data.is_external(source.values) or tensor_data.is_external(source.indices)
        if self._light and (external or tensor_data.element_count(source.values) > _LIGHT_ELEMENTS):
            out.initializer.add(name=name, dims=source.dims, data_type=source.values.data_type)
            self.stripped.append(out.initializer[-1])
            return
        sparse = out.sparse_initializer.add()
        sparse.CopyFrom(source)
        if sparse.values.name != name:
            sparse.values.name = name

    def _write_values_of(self, constant: gs.Constant, out: TensorProto, *, is_main: bool = False) -> None:
        values = constant._values
        if isinstance(values, ComputedValues):
            if self._light and math.prod(values.shape) > _LIGHT_ELEMENTS:
                self._strip(constant.name, values.shape, values.dtype, out)
                return
            if is_main and not (self._light or self._whole) and values.nbytes >= _STORED_BYTES:
                data_type = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
                out.MergeFrom(TensorProto(name=constant.name, dims=values.shape, data_type=data_type))
                self.stored[constant.name] = values
                self.fresh.append(out)
                return
        if isinstance(values, (LazySparseTensor, ComputedValues)):
            values = values.load()
        if isinstance(values, LazyTensor):
            self._copy_values(values, out, constant.name, is_main=is_main)
        else:
            self._write_array(values, constant.name, out)

    def _write_array(self, values: np.ndarray, name: str, out: TensorProto) -> None:
        if self._light and values.size > _LIGHT_ELEMENTS:
            self._strip(name, values.shape, values.dtype, out)
        else:
            out.CopyFrom(onnx.numpy_helper.from_array(np.asarray(values), name))
            self.fresh.append(out)

    def _strip(self, name: str, shape: Sequence[int], dtype: np.dtype, out: TensorProto) -> None:
        """Write a tensor without its data."""
        data_type = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        out.MergeFrom(TensorProto(name=name, dims=shape, data_type=data_type))
        self.stripped.append(out)

    def _copy_values(self, values: LazyTensor, out: TensorProto, name: str, *, is_main: bool = False) -> None:
        tensor = values.tensor
        if self._light and tensor_data.element_count(tensor) > _LIGHT_ELEMENTS:
            out.MergeFrom(_header(tensor) if values.stored is None else tensor)
            self.stripped.append(out)
        else:
            out.CopyFrom(tensor)
            if values.stored is not None:
                if is_main and not (self._light or self._whole):
                    self.stored[name] = values.stored
                else:
                    out.raw_data = tensor_data.read_all(values.stored)
            if self._light:
                self._lighten(out)
        if out.name != name:
            out.name = name

    def _lighten(self, tensor: TensorProto) -> None:
        """Take a large tensor's data out, and a small one's into the message."""
        if tensor_data.element_count(tensor) > _LIGHT_ELEMENTS:
            tensor.CopyFrom(_header(tensor))
            self.stripped.append(tensor)
        elif tensor_data.is_external(tensor):
            tensor.raw_data = tensor_data.read_all(tensor_data.locate(tensor, self._directory))
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")

    def _write_node(self, node: gs.Node, out: NodeProto) -> None:
        source = node.source if isinstance(node, Node) and node.source is not None else NodeProto()
        originals = {attribute.name: attribute for attribute in source.attribute} if node.attrs else {}
        kept = {
            name
            for name, value in node.attrs.items()
            if name in originals and self._keeps(node, value, originals[name])
        }
        if len(kept) == len(node.attrs) and (originals or not source.attribute):
            out.CopyFrom(source)
        else:
            copy_fields(source, out, {"attribute"})
            for name, value in node.attrs.items():
                attribute = out.attribute.add()
                if name in kept:
                    attribute.CopyFrom(originals[name])
                else:
                    self._write_attribute(node, name, value, originals.get(name), attribute)
        domain, operator = operator_key(node)
        if out.op_type != operator:
            out.op_type = operator
        if domain != ("" if out.domain == "ai.onnx" else out.domain):
            out.domain = domain
        if out.name != (node.name or ""):
            out.name = node.name
        _set_names(out.input, node.inputs)
        _set_names(out.output, node.outputs)
        if self._light and out.domain == "ai.onnx":  # which onnx itself does not take for its own domain
            out.domain = ""
        if isinstance(node, Node):
            if out.overload != node.overload:
                out.overload = node.overload
            if out.doc_string != node.doc_string:
                out.doc_string = node.doc_string
            if node.metadata != {entry.key: entry.value for entry in out.metadata_props}:
                del out.metadata_props[:]
                for key, value in node.metadata.items():
                    out.metadata_props.add(key=key, value=value)

    def _keeps(self, node: Node, value: Any, original: AttributeProto) -> bool:
        """Whether the attribute can be copied as it was imported; one with graphs is always written anew."""
        if not original.ref_attr_name:
            match original.type:
                case AttributeProto.GRAPH | AttributeProto.GRAPHS:
                    return False
                case AttributeProto.TENSOR | AttributeProto.TENSORS:
                    constants = value if isinstance(value, list) else [value]
                    imported = node.source_tensors.get(original.name, [])
                    return (
                        not self._light
                        and len(constants) == len(imported)
                        and all(
                            isinstance(constant, gs.Constant) and values.holds(constant._values)
                            for constant, values in zip(constants, imported, strict=True)
                        )
                    )
        return _same(value, attribute_value(original))

    def _write_attribute(
        self, node: gs.Node, name: str, value: Any, original: AttributeProto | None, out: AttributeProto
    ) -> None:
        items = value if isinstance(value, list) else [value]
        if items and all(isinstance(item, gs.Graph) for item in items):
            out.name = name
            out.type = AttributeProto.GRAPHS if isinstance(value, list) else AttributeProto.GRAPH
            for item in items:
                self._write_graph(item, out.graphs.add() if isinstance(value, list) else out.g)
        elif items and all(isinstance(item, (gs.Constant, np.ndarray)) for item in items):
            out.name = name
            out.type = AttributeProto.TENSORS if isinstance(value, list) else AttributeProto.TENSOR
            imported = node.source_tensors.get(name, []) if isinstance(node, Node) else []
            for index, item in enumerate(items):
                tensor = out.tensors.add() if isinstance(value, list) else out.t
                if isinstance(item, np.ndarray):
                    self._write_array(item, "", tensor)
                elif index < len(imported) and imported[index].holds(item._values):
                    self._copy_values(imported[index], tensor, item.name)
                else:
                    self._write_values_of(item, tensor)
        elif isinstance(value, AttributeProto):
            out.CopyFrom(value)
            out.name = name
        elif isinstance(value, gs.Node.AttributeRef):
            out.name = name
            out.ref_attr_name = value.name
            out.type = convert_to_onnx_attr_type(value.type)
        else:
            out.CopyFrom(make_attribute(name, value, original))
        if original is not None and original.doc_string:
            out.doc_string = original.doc_string


def _header(tensor: TensorProto) -> TensorProto:
    """A tensor without its data, which is checked if it is there."""
    if not tensor_data.is_external(tensor):
        tensor_data.check_inline(tensor)
    return TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)


def _same(value: Any, imported: Any) -> bool:
    """Equality that tells the signs of zeros and the types of numbers apart, and takes NaN for itself."""
    if isinstance(value, list) and isinstance(imported, list):
        return len(value) == len(imported) and all(map(_same, value, imported))
    if isinstance(value, float) and isinstance(imported, float):
        return struct.pack("d", value) == struct.pack("d", imported)
    return type(value) is type(imported) and value == imported


def _set_text(out: GraphProto, name: str, value: str | None, source: GraphProto) -> None:
    if value or source.HasField(name):
        setattr(out, name, value or "")


def _set_names(field: Any, tensors: Iterable[gs.Tensor]) -> None:
    names = [tensor.name for tensor in tensors]
    if names != list(field):
        del field[:]
        field.extend(names)


def _write_infos(
    tensors: Iterable[gs.Tensor],
    imported: Iterable[ValueInfoProto],
    was_there: Mapping[str, gs.Tensor],
    out: Any,
) -> None:
    """Write graph inputs or outputs: as they were imported, found by name, or by identity if renamed."""
    by_name = {info.name: info for info in imported}
    by_id = {id(was_there[name]): info for name, info in by_name.items() if name in was_there}
    for tensor in tensors:
        info = by_name.get(tensor.name) or by_id.get(id(tensor))
        if info is None:
            out.append(value_info(tensor))
            continue
        out.append(info)
        if info.name != tensor.name:
            out[-1].name = tensor.name


def _write_output_types(nodes: list[gs.Node], out: GraphProto) -> None:
    """Write what nodes that passes made know of their outputs' types, where the graph does not have it."""
    described = {info.name: info for info in (*out.value_info, *out.output)}
    for node in nodes:
        for known in node.output_types if isinstance(node, Node) else ():
            info = described.get(known.name)
            if info is None:
                out.value_info.append(known)
            elif not info.type.tensor_type.HasField("shape"):  # as the outputs of a body may be
                info.type.CopyFrom(known.type)


def _is_new(node: gs.Node) -> bool:
    return not isinstance(node, Node) or node.source is None


def _direct_uses(graph: gs.Graph) -> Iterator[gs.Tensor]:
    for node in graph.nodes:
        yield from node.inputs
    yield from graph.outputs
