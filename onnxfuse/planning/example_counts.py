"""The static counts of a dynamic model for given shapes of its inputs, as numbers."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_graphsurgeon as gs

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.graph import Model
from onnxfuse.passes import PassContext
from onnxfuse.planning.static_shapes import fold_shapes, with_shapes
from onnxfuse.planning.statistics import Statistics, collect

Shapes = Mapping[str, Sequence[int]]


def counts_for(models: Iterable[Model], shapes: Shapes) -> list[Statistics]:
    """The counts of a model and of what others were made of it, loaded with these ``shapes`` of their inputs.

    Sizes that ONNX's inference does not follow, because a model computes them from shapes, are those of tensors of the
    same name in the models before it, or else found by folding, which takes as long as a pass or two.
    """
    found: list[Statistics] = []
    known: dict[str, list[int]] = {}
    for model in models:
        _fill(model, known)
        counts = collect(model)
        if counts.bytes_total.constant() is None:
            known |= _folded_shapes(model, shapes)
            _fill(model, known)
            counts = collect(model)
        found.append(counts)
    return found


def _folded_shapes(model: Model, shapes: Shapes) -> dict[str, list[int]]:
    """The shapes of tensors, by name, that inference finds once what the model computes from shapes is folded."""
    try:
        static = with_shapes(model, shapes)
        fold_shapes(static, PassContext())
    except OnnxfuseError:  # shapes that the model cannot have
        return {}
    tensors = list(_tensors(static))
    names = Counter(tensor.name for tensor in tensors)
    return {tensor.name: tensor.shape for tensor in tensors if names[tensor.name] == 1 and _is_static(tensor)}


def _fill(model: Model, shapes: Mapping[str, list[int]]) -> None:
    for tensor in _tensors(model):
        if not _is_static(tensor) and tensor.name in shapes:
            tensor.shape = shapes[tensor.name]


def _tensors(model: Model) -> Iterator[gs.Variable]:
    """The results of all nodes; equal names are results of different graphs."""
    for graph in model.graphs():
        yield from (tensor for node in graph.nodes for tensor in node.outputs if tensor.name)


def _is_static(tensor: gs.Tensor) -> bool:
    return tensor.shape is not None and all(isinstance(dim, int) for dim in tensor.shape)
