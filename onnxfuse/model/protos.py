"""Parts of models as ONNX has them: all graphs, attributes, what is said of values."""

from collections.abc import Container, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from google.protobuf.message import Message
from onnx import AttributeProto, GraphProto, ValueInfoProto

from onnxfuse.model.symbols import MADE_BY_ONNX


def copy_fields(source: Message, out: Message, skipped: Container[str]) -> None:
    """Copy the fields of a message that are not ``skipped``, by name, into one of its type that lacks them."""
    for field, value in source.ListFields():
        if field.name in skipped:
            continue
        if hasattr(value, "MergeFrom"):
            getattr(out, field.name).MergeFrom(value)
        else:
            setattr(out, field.name, value)


def onnx_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """``graph`` and every graph nested in it, outer before inner, in the order of the file."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from onnx_graphs(attribute.g)
            elif attribute.type == AttributeProto.GRAPHS:
                for inner in attribute.graphs:
                    yield from onnx_graphs(inner)


def make_attribute(name: str, value: Any, original: AttributeProto | None = None) -> AttributeProto:
    """A node's attribute of this value, of the type of the ``original`` as far as the value has that."""
    attr_type = original.type if original is not None and not original.ref_attr_name else None
    if isinstance(value, (np.dtype, type)):
        value = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value))
    elif isinstance(value, np.generic):
        value = value.item()
    if attr_type == AttributeProto.FLOAT and isinstance(value, int):
        value = float(value)
    elif attr_type == AttributeProto.FLOATS:
        value = [float(item) for item in value]
    elif isinstance(value, (list, tuple)) and not value and attr_type is None:
        attr_type = AttributeProto.INTS
    try:
        return onnx.helper.make_attribute(name, value, attr_type=attr_type)
    except (TypeError, ValueError):
        # The new value is of another kind than the old one.
        return onnx.helper.make_attribute(name, value)


def forget_symbols(graphs: Sequence[GraphProto], *, of_outputs: bool) -> set[str]:
    """Clear the symbols that onnx made up of the sizes of results, and return those like them that inputs have.

    ``graphs`` are all those of a model, the main one first.  Those of a graph's outputs are results too, unless they
    have to stay as they are declared.

    Who writes what inference found into a file, and then merges it with another, has one symbol for several sizes.
    ONNX Runtime plans the memory of results by them.
    """
    declared = {dim.dim_param for info in graphs[0].input for dim in info.type.tensor_type.shape.dim}
    for graph in graphs:
        for info in (*graph.value_info, *(graph.output if of_outputs else ())):
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_param.startswith(MADE_BY_ONNX) and dim.dim_param not in declared:
                    dim.ClearField("dim_param")
    return {name for name in declared if name.startswith(MADE_BY_ONNX)}


def value_info(tensor: gs.Tensor) -> ValueInfoProto:
    """The name, type and shape of a tensor, as far as they are known."""
    if tensor.dtype is None:
        return ValueInfoProto(name=tensor.name)
    data_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
    return onnx.helper.make_tensor_value_info(tensor.name, data_type, tensor.shape)
