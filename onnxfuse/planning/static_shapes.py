"""A dynamic model for given shapes of its inputs: what it computes from shapes becomes constant."""

from collections.abc import Mapping, Sequence

from onnx import TensorShapeProto, ValueInfoProto

from onnxfuse.files.model_io import load_proto
from onnxfuse.model.graph import Model
from onnxfuse.model.protos import onnx_graphs
from onnxfuse.model.symbols import is_made_up
from onnxfuse.passes.fold_constants import FoldConstants
from onnxfuse.rewrite.base import PassContext
from onnxfuse.run.given_shapes import symbol_sizes
from onnxfuse.run.inputs import InputSpec
from onnxfuse.shapes.inference import infer

Shapes = Mapping[str, Sequence[int]]

_ROUNDS = 16


def make_static(model: Model, specs: Sequence[InputSpec], shapes: Shapes, context: PassContext) -> Model:
    """The model for inputs of these ``shapes`` alone, with what follows from them computed; ``model`` stays as it is.

    ``specs`` are its inputs, which the shapes fit (see ``given_shapes.fit_shapes``).  A symbol that the shapes
    give a size has it in every input; what they say nothing of stays dynamic.  Raises OnnxfuseError if the model
    cannot have these shapes.
    """
    static = with_shapes(model, shapes, symbol_sizes(list(specs), {name: tuple(shapes[name]) for name in shapes}))
    fold_shapes(static, context)
    export = static.export(whole=False)
    proto = export.proto
    known = {tensor.name: tensor.shape for tensor in static.graph.outputs}
    declared = {output.name: output.type.tensor_type for output in model.export(light=True).proto.graph.output}
    for output in proto.graph.output:
        if output.type.HasField("tensor_type"):
            shape = known.get(output.name)
            if shape is None and declared[output.name].HasField("shape"):
                shape = [None] * len(declared[output.name].shape.dim)
            if shape is not None:
                _set_shape(output, shape)
    return load_proto(proto, path=model.path, stored=export.stored)


def with_shapes(model: Model, shapes: Shapes, symbols: Mapping[str, int] | None = None) -> Model:
    """The model with these shapes of its inputs, sizes in place of ``symbols`` in others, and none declared elsewhere.

    Raises OnnxfuseError for shapes that the model cannot have.
    """
    export = model.export(whole=False)
    proto = export.proto
    for value in proto.graph.input:
        if not value.type.HasField("tensor_type"):
            continue
        if value.name in shapes:
            _set_shape(value, shapes[value.name])
            continue
        for dim in value.type.tensor_type.shape.dim:
            if (size := (symbols or {}).get(dim.dim_param)) is not None:
                dim.dim_value = size
    for graph in onnx_graphs(proto.graph):  # what was said of dynamic shapes
        del graph.value_info[:]
        for output in graph.output:
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
    return load_proto(proto, path=model.path, stored=export.stored)


def fold_shapes(model: Model, context: PassContext) -> None:
    """Fold constants of a model whose shapes are inferred, again and again: one that is known then may make the next
    one known."""
    fold = FoldConstants()
    for _ in range(_ROUNDS):
        before = sum(len(graph.nodes) for graph in model.graphs())
        fold.run(model, context)
        if sum(len(graph.nodes) for graph in model.graphs()) == before:
            break
        infer(model)


def _set_shape(value: ValueInfoProto, shape: Sequence[int | str | None]) -> None:
    """Declare a shape; a name that inference made up is none."""
    declared = TensorShapeProto()
    for size in shape:
        dim = declared.dim.add()
        if isinstance(size, int):
            dim.dim_value = size
        elif size and not is_made_up(size):
            dim.dim_param = size
    value.type.tensor_type.shape.CopyFrom(declared)
