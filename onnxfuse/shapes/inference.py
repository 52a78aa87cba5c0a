"""Element types and shapes of a model's tensors, as onnx's shape inference finds them.

What is inferred goes to the Variables of the graph alone and is never written to a file.  Inference reads a
light export of the model, so a model of any size takes little memory, and what it cannot tell stays unknown.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import onnx
import onnx_graphsurgeon as gs
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TensorShapeProto,
    TypeProto,
    ValueInfoProto,
    numpy_helper,
)
from onnx.shape_inference import InferenceError

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.contrib_operators import show_as_standard
from onnxfuse.model.graph import Model, Types
from onnxfuse.model.graph_export import Export
from onnxfuse.model.graph_import import set_type
from onnxfuse.model.graph_ir import STANDARD_DOMAINS, numpy_dtype
from onnxfuse.model.ort_operators import replace_by_casts
from onnxfuse.model.protos import forget_symbols, onnx_graphs
from onnxfuse.model.symbols import MADE_BY_ONNX, MADE_UP, is_made_up
from onnxfuse.shapes.doubtful_shapes import forget_doubtful_shapes
from onnxfuse.shapes.missed_sizes import MissedSizes

Shapes = Mapping[str, Sequence[int | str]]

_ERRORS = (InferenceError, RuntimeError, ValueError)
_LONG_VECTOR = 1 << 20
_MOST_DIMENSIONS = 64
_LONGEST_STEP = 1 << 30
_SHAPE_INPUTS = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1}
_ROUNDS = 4
_TYPE_ERRORS = ("TypeInferenceError", "has unsupported type", "has inconsistent type")


def infer(model: Model, shapes: Shapes | None = None) -> None:
    """Set ``dtype`` and ``shape`` of every Variable of the model, subgraphs included, as far as can be told.

    A dimension is an int, a symbol or None.  Symbols that begin with ``?unk__`` are inference's own: equal ones
    are equal sizes.  ``shapes`` gives graph inputs other shapes for this analysis, sizes or symbols; what the model
    declares of other tensors' shapes is then left out of it.  Raises OnnxfuseError if ``shapes`` names no input of the
    model or contradicts a declared shape.
    """
    run(model, model.export(light=True), shapes, check_types=False)


def run(model: Model, light: Export, shapes: Shapes | None, *, check_types: bool) -> None:
    """``infer`` on a light export at hand; ``check_types`` makes a type error an OnnxfuseError."""
    proto, graphs = light.proto, light.messages
    _make_dense(graphs)
    replace_by_casts(proto, graphs)
    show_as_standard(graphs)
    if shapes is not None:
        _override(model, graphs, shapes)
    if check_types:
        _check_ranks(graphs)
    declared = _declared_symbols(graphs)
    key = proto.SerializeToString()
    found = model.inferred.get(key)
    if found is None:
        found = _found(_infer(proto, graphs, key, check_types), len(graphs))
        model.remember_inferred(key, found)
    for graph, types in zip(light.graphs, found, strict=True):
        _fill(graph, types, declared)
    missed = MissedSizes()
    for graph in light.graphs:
        missed.name(graph)
    forget_doubtful_shapes(model)


def _make_dense(graphs: Sequence[GraphProto]) -> None:
    """Declare sparse initializers as what they are to every operator, ordinary tensors; onnx takes none otherwise.

    What is said of initializers elsewhere goes: ONNX Runtime does not look at it, and converters leave old types there.
    """
    for graph in graphs:
        constants = {tensor.name for tensor in graph.initializer}
        described = [info for info in graph.value_info if info.name not in constants]
        if len(described) < len(graph.value_info):
            del graph.value_info[:]
            graph.value_info.extend(described)
        for sparse in graph.sparse_initializer:
            values = sparse.values
            graph.initializer.add(name=values.name, dims=sparse.dims, data_type=values.data_type)
        del graph.sparse_initializer[:]


def _check_ranks(graphs: Sequence[GraphProto]) -> None:
    """Raise OnnxfuseError for a rank that no tensor has: onnx would fill the memory with its dimensions."""
    for graph in graphs:
        types = _types(graph)
        for node in graph.node:
            place = _SHAPE_INPUTS.get(node.op_type) if node.domain in STANDARD_DOMAINS else None
            if place is None or place >= len(node.input):
                continue
            length = types.get(node.input[place], TypeProto()).tensor_type.shape.dim
            if len(length) == 1 and length[0].dim_value > _MOST_DIMENSIONS:
                sizes = f"{length[0].dim_value} sizes in {node.input[place]!r}"
                raise OnnxfuseError(f"not a valid ONNX model: {node.op_type} to a shape of {sizes}")


def _found(results: Iterable[ModelProto], count: int) -> list[Types]:
    """What is known of the tensors of each of ``count`` graphs, of results of which later ones tell more: the last are
    read first, and what they tell all of is not read again."""
    found: list[Types] = [{} for _ in range(count)]
    told: list[set[str]] = [set() for _ in range(count)]
    for result in reversed(list(results)):
        for types, known, graph in zip(found, told, _graphs(result, count), strict=True):
            for info in (*graph.input, *graph.output, *graph.value_info):
                if (name := info.name) in known:
                    continue
                types[name] = [type_proto := info.type, *types.get(name, ())]
                if _tells_all(type_proto):
                    known.add(name)
    return found


def _graphs(model: ModelProto, count: int) -> Iterable[GraphProto]:
    """The graphs of a model, of which there are ``count``."""
    return [model.graph] if count == 1 else onnx_graphs(model.graph)


def _tells_all(type_proto: TypeProto) -> bool:
    """Whether nothing is left of what was known of a tensor before."""
    tensor_type = type_proto.tensor_type
    return tensor_type.HasField("shape") and numpy_dtype(tensor_type.elem_type) is not None


def _infer(
    proto: ModelProto, graphs: Sequence[GraphProto], serialized: bytes, check_types: bool
) -> Iterator[ModelProto]:
    """The model, whose graphs are given, with inferred types, the ones that tell more last."""
    inferred = proto
    try:
        # Strict mode raises on trouble of any kind; only some kinds are the model's fault.
        inferred = onnx.shape_inference.infer_shapes(serialized, check_type=True, strict_mode=True)
    except _ERRORS as error:
        if check_types and (problem := _type_error(str(error))):
            raise OnnxfuseError(f"the model's types do not check: {problem}") from error
        with suppress(*_ERRORS):
            inferred = onnx.shape_inference.infer_shapes(serialized)
    yield inferred
    propagate = not _has_long_vector(_graphs(inferred, len(graphs))) and not _has_endless_slice(graphs)
    for _ in range(_ROUNDS):
        with suppress(*_ERRORS):
            inferred = onnx.shape_inference.infer_shapes(serialized, data_prop=propagate)
            yield inferred
        if not _declare_reshape_ranks(graphs, _graphs(inferred, len(graphs))):
            return
        serialized = proto.SerializeToString()


def _declare_reshape_ranks(graphs: Iterable[GraphProto], inferred: Iterable[GraphProto]) -> bool:
    """Declare the rank of Reshape results that inference left unknown; whether there was any to declare.

    Before opset 14 onnx tells nothing of a Reshape to a computed shape, though that shape's length is its rank.
    """
    declared = False
    for graph, result in zip(graphs, inferred, strict=True):
        reshapes = [node for node in graph.node if _is_reshape(node)]
        types = _types(result) if reshapes else {}
        for node in reshapes:
            source, shape, output = (types.get(name, TypeProto()) for name in (*node.input, node.output[0]))
            length = shape.tensor_type.shape.dim
            known = output.tensor_type.HasField("shape") or not source.tensor_type.elem_type
            if not known and len(length) == 1 and 0 < length[0].dim_value <= _MOST_DIMENSIONS:
                info = graph.value_info.add(name=node.output[0])
                info.type.tensor_type.elem_type = source.tensor_type.elem_type
                for axis in range(length[0].dim_value):
                    info.type.tensor_type.shape.dim.add(dim_param=f"{MADE_UP}{info.name}_{axis}")
                declared = True
    return declared


def _is_reshape(node: NodeProto) -> bool:
    return node.op_type == "Reshape" and node.domain in STANDARD_DOMAINS and len(node.input) == 2


def _types(graph: GraphProto) -> dict[str, TypeProto]:
    return {info.name: info.type for info in (*graph.value_info, *graph.output, *graph.input)}


def _has_endless_slice(graphs: Iterable[GraphProto]) -> bool:
    """Whether data propagation would not end: onnx adds the steps of a Slice up in 32 bits, whatever they are."""
    for graph in graphs:
        steps = {node.input[4] for node in graph.node if node.op_type == "Slice" and len(node.input) > 4}
        numbers = [_integers(tensor) for tensor in graph.initializer if tensor.name in steps]
        for node in graph.node if steps else ():
            if node.op_type == "Constant" and steps.intersection(node.output):
                numbers += [[*_integers(attribute.t), *attribute.ints, attribute.i] for attribute in node.attribute]
        if any(abs(step) > _LONGEST_STEP for some in numbers for step in some):
            return True
    return False


def _integers(tensor: TensorProto) -> list[int]:
    """The elements of a short tensor of int32 or int64, as far as it has any."""
    if tensor.data_type not in (TensorProto.INT32, TensorProto.INT64) or tensor.data_location == TensorProto.EXTERNAL:
        return []
    with suppress(ValueError):
        return [int(number) for number in numpy_helper.to_array(tensor).reshape(-1)[:_MOST_DIMENSIONS]]
    return []


def _has_long_vector(graphs: Iterable[GraphProto]) -> bool:
    """Whether data propagation, which holds some 80 bytes for every element of a vector, costs too much."""
    for graph in graphs:
        if any(len(tensor.dims) == 1 and tensor.dims[0] > _LONG_VECTOR for tensor in graph.initializer):
            return True
        for info in (*graph.input, *graph.value_info, *graph.output):
            dims = info.type.tensor_type.shape.dim
            if len(dims) == 1 and dims[0].dim_value > _LONG_VECTOR:
                return True
    return False


def _type_error(message: str) -> str | None:
    """The first error that is the model's.

    That a type "is null", as readers of a tensor say whose type onnx did not find, is not.
    """
    for line in message.splitlines():
        if any(text in line for text in _TYPE_ERRORS) and " is null" not in line and not _inner(line):
            return line.removeprefix("[ShapeInferenceError] ").removeprefix("Inference error(s): ").strip()
    return None


def _inner(line: str) -> bool:
    """Whether an error is of a node of the function that onnx has for an operator of its own.

    Some have constants of float whatever the type is, as that of MeanVarianceNormalization.
    """
    outer, *inner = re.findall(r"\(op_type:(\w+)", line)[:2] or [""]
    return bool(inner) and onnx.defs.has(outer)


def _override(model: Model, graphs: Sequence[GraphProto], shapes: Shapes) -> None:
    inputs = {info.name: info for info in graphs[0].input}
    for name, shape in shapes.items():
        if name not in inputs:
            known = ", ".join(tensor.name for tensor in model.graph.inputs) or "none"
            raise OnnxfuseError(f"the model has no input {name!r}; its inputs: {known}")
        _set_shape(inputs[name], shape)
    # Declared shapes may hold for the declared inputs only, but for those of constants, which some exporters declare.
    for graph in graphs:
        constants = {tensor.name for tensor in graph.initializer}
        for info in (*graph.value_info, *graph.output):
            if info.type.HasField("tensor_type") and info.name not in constants:
                info.type.tensor_type.ClearField("shape")


def _set_shape(info: ValueInfoProto, shape: Sequence[int | str]) -> None:
    if not info.type.HasField("tensor_type"):
        raise OnnxfuseError(f"input {info.name!r} is no tensor: it has no shape to set")
    tensor_type = info.type.tensor_type
    declared = list(tensor_type.shape.dim) if tensor_type.HasField("shape") else None
    if declared is not None and len(declared) != len(shape):
        raise OnnxfuseError(f"input {info.name!r} has {len(declared)} dimensions, not {len(shape)}")
    given = TensorShapeProto()
    for axis, size in enumerate(shape):
        fixed = declared[axis].dim_value if declared is not None and declared[axis].HasField("dim_value") else None
        if isinstance(size, str):
            given.dim.add(dim_param=size)
        elif size < 0 or (fixed is not None and fixed >= 0 and fixed != size):
            known = "a size" if fixed is None else str(fixed)
            raise OnnxfuseError(f"input {info.name!r}: dimension {axis} is {known}, not {size}")
        else:
            given.dim.add(dim_value=size)
    tensor_type.shape.CopyFrom(given)


def _declared_symbols(graphs: Sequence[GraphProto]) -> set[str]:
    """Those of inputs that look as if onnx had made them up, which takes others then; those that look as if we had, and
    those that onnx did make up, are forgotten, and what they stand for is inferred anew."""
    for graph in graphs:
        for info in (*graph.input, *graph.value_info, *graph.output):
            for dim in info.type.tensor_type.shape.dim:
                if is_made_up(dim.dim_param):
                    dim.ClearField("dim_param")
    return forget_symbols(graphs, of_outputs=True)


def _fill(graph: gs.Graph, types: Types, declared: set[str]) -> None:
    def named(size: int | str | None) -> int | str | None:
        if isinstance(size, str) and size.startswith(MADE_BY_ONNX) and size not in declared:
            return MADE_UP + size.removeprefix(MADE_BY_ONNX)
        return size

    for tensor in (*graph.inputs, *(tensor for node in graph.nodes for tensor in node.outputs)):
        if isinstance(tensor, gs.Variable) and (told := types.get(tensor.name)) is not None:
            for type_proto in told:
                set_type(tensor, type_proto)
            if tensor.shape is not None and any(isinstance(size, str) for size in tensor.shape):
                tensor.shape = [named(size) for size in tensor.shape]
