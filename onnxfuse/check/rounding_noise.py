"""Other ways to compute a model that are as good: without ONNX Runtime's optimizations, and with its weights, its
inputs or what it quantizes rounded otherwise.  What its outputs lose by that says how many of their digits count.

Rewrites that fold a step into weights, or merge convolutions, round each weight anew, and sums in another order what is
computed of them.  That is an error of half a unit in its last place, and no result is the worse for it; but where a
model amplifies rounding, two results that are equally good lie far apart.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfuse.files.model_io import read_outline, read_proto
from onnxfuse.model.graph_ir import numpy_dtype
from onnxfuse.model.protos import onnx_graphs
from onnxfuse.model.tensor_data import is_external
from onnxfuse.run.inputs import InputSet
from onnxfuse.run.sessions import Session, SessionError, Value
from onnxfuse.system import give_back_memory

_LINEAR = {"Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization"}
_QUANTIZERS = {"DynamicQuantizeLSTM", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "Round"}
_COMPUTED_IN_INT8 = 4
"""The accuracy_level of MatMulNBits with which ONNX Runtime quantizes the other factor too."""
_FLOATS = {np.dtype(name) for name in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)}

_ROUNDINGS = 3
"""How often the weights are rounded otherwise: some roundings happen to cancel."""

_REQUANTIZED = 12
"""How often what is quantized is: few roundings change one level of one number, but that all that is made of it."""

Expected = list[tuple[InputSet, list[Value]]]
"""Sets of inputs, and what the original gives for each."""


@dataclass(frozen=True)
class OtherOriginal:
    """A way to compute the original that is as good: ``cause`` is what tells it from the first, with its verb.

    ``by_chance`` says that the difference shows on few inputs, and is as large on others; ``is_as_exact`` that it is no
    further from the exact result, though weights or inputs are others.
    """

    cause: str
    make: Callable[[], Session]
    feeds_of: Callable[[dict[str, Value]], dict[str, Value]] = lambda feeds: feeds
    by_chance: bool = False
    is_as_exact: bool = False


class OtherRun:
    """What a way to compute the original gives, once that is asked for."""

    def __init__(self, original: OtherOriginal, expected: Expected) -> None:
        self.original = original
        self.is_done = False
        self._expected = expected

    @cached_property
    def values(self) -> list[list[Value]]:
        """The outputs for each set of inputs; none where it does not run, as some models do not unoptimized."""
        self.is_done = True
        give_back_memory()
        try:
            session = self.original.make()
            return [session.run(self.original.feeds_of(inputs.feeds)) for inputs, _ in self._expected]
        except SessionError:
            return []


def done(runs: Iterable[OtherRun]) -> Iterator[tuple[OtherOriginal, list[list[Value]]]]:
    """Each way that runs, with what it gives; one after the other, as they are asked for."""
    return ((run.original, run.values) for run in runs if run.values)


def other_originals(path: Path, providers: tuple[str, ...]) -> Iterator[OtherOriginal]:
    """Ways to compute the model in a file that are as good as the first, the ones that tell most first."""
    unoptimized = partial(Session, path, providers=providers, optimized=False)
    yield OtherOriginal("ONNX Runtime's own optimizations change", unoptimized, is_as_exact=True)
    for seed in range(_ROUNDINGS):
        session = partial(_rounded_otherwise, round_weights, path, providers, seed)
        yield OtherOriginal("its weights rounded otherwise change", session)
    for seed in range(_ROUNDINGS):
        moved = partial(inputs_rounded_otherwise, seed=seed)
        yield OtherOriginal("its inputs rounded otherwise change", partial(Session, path, providers=providers), moved)
    if not round_quantized(read_outline(path), 0):
        return
    for seed in range(_REQUANTIZED):
        session = partial(_rounded_otherwise, round_quantized, path, providers, seed)
        yield OtherOriginal("what it quantizes, rounded otherwise, changes", session, by_chance=True, is_as_exact=True)


def _rounded_otherwise(
    change: Callable[[onnx.ModelProto, int], object], path: Path, providers: tuple[str, ...], seed: int
) -> Session:
    return Session(_changed(change, path, seed), providers=providers, folder=path.absolute().parent)


def _changed(change: Callable[[onnx.ModelProto, int], object], path: Path, seed: int) -> bytes:
    """The model in a file, changed; no more than these bytes of it are in memory then."""
    model = read_proto(path)
    change(model, seed)
    return model.SerializeToString()


def round_weights(model: onnx.ModelProto, seed: int) -> None:
    """Leave each weight of a float type in a model at random as it is or make it one number more or less.

    Weights are constants that convolutions, matrix products and BatchNormalization read.  Those in files of their own
    stay as they are.
    """
    random = np.random.default_rng(seed)
    graphs = list(onnx_graphs(model.graph))
    # A body may read the weights of the graph around it.
    read = {name for graph in graphs for node in graph.node if node.op_type in _LINEAR for name in node.input}
    for graph in graphs:
        weights = [tensor for tensor in graph.initializer if tensor.name in read]
        for node in graph.node:
            if node.op_type == "Constant" and node.output[0] in read:
                weights += [attribute.t for attribute in node.attribute if attribute.name == "value"]
        for tensor in weights:
            if numpy_dtype(tensor.data_type) in _FLOATS and not is_external(tensor):
                moved = _moved(numpy_helper.to_array(tensor), random)
                tensor.CopyFrom(numpy_helper.from_array(moved, tensor.name))


def inputs_rounded_otherwise(feeds: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Inputs by name, with each number of a float type at random as it is or one number up or down."""
    random = np.random.default_rng(seed)
    return {
        name: _moved(value, random) if isinstance(value, np.ndarray) and value.dtype in _FLOATS else value
        for name, value in feeds.items()
    }


def inputs_shuffled(feeds: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Inputs by name, with the numbers of each of a float type in other places; none if that changes nothing."""
    random = np.random.default_rng(seed)
    floats = {name for name, value in feeds.items() if isinstance(value, np.ndarray) and value.dtype in _FLOATS}
    if not any(feeds[name].size > 1 for name in floats):
        return {}
    return {
        name: random.permutation(value.reshape(-1)).reshape(value.shape) if name in floats else value
        for name, value in feeds.items()
    }


def round_quantized(model: onnx.ModelProto, seed: int) -> bool:
    """Let a model quantize each number of float32 perhaps one number up or down, and from the fourth ``seed`` on by
    two, four, eight for three seeds each: what two nodes make differs by that soon.

    Which ones follows from the numbers themselves, since shapes may be open.  A quantizer makes a whole level of that,
    or nothing.  False if the model quantizes no float32.
    """
    graphs = list(onnx_graphs(model.graph))
    types = {tensor.name: tensor.data_type for graph in graphs for tensor in graph.initializer}
    constants = [node for graph in graphs for node in graph.node if node.op_type == "Constant"]
    types |= {node.output[0]: _constant_type(node) for node in constants}
    names = (f"onnxfuse_rounded_{number}" for number in count())
    found = False
    for graph in graphs:
        for place in reversed(range(len(graph.node))):
            node = graph.node[place]
            if node.input and node.input[0] not in types and _quantizes(node, types):
                made = list(_rounding(node.input[0], float(1000 + 777 * seed), 2.0 ** (seed // 3 - 23), names))
                node.input[0] = made[-1].output[0]
                for index, new in enumerate(made, place):
                    graph.node.insert(index, new)
                found = True
    return found


def _constant_type(node: onnx.NodeProto) -> int:
    (value,) = node.attribute or (onnx.AttributeProto(),)
    if value.name == "value":
        return value.t.data_type
    return onnx.TensorProto.FLOAT if value.name in ("value_float", "value_floats") else onnx.TensorProto.UNDEFINED


def _quantizes(node: onnx.NodeProto, types: Mapping[str, int]) -> bool:
    """Whether a node quantizes float32; Round does, as far as it takes that."""
    if node.op_type == "QuantizeLinear":
        return len(node.input) > 1 and types.get(node.input[1]) == onnx.TensorProto.FLOAT
    if node.op_type == "MatMulNBits" and len(node.input) > 2:
        level = (attribute.i for attribute in node.attribute if attribute.name == "accuracy_level")
        return next(level, 0) == _COMPUTED_IN_INT8 and types.get(node.input[2]) == onnx.TensorProto.FLOAT
    return node.op_type in _QUANTIZERS


def _rounding(name: str, frequency: float, part: float, names: Iterator[str]) -> Iterator[onnx.NodeProto]:
    """x (1 ± part), by the sign of sin(frequency x)."""

    def node(operator: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(operator, list(inputs), [next(names)], **attributes)

    def number(value: float) -> onnx.NodeProto:
        return node("Constant", value=numpy_helper.from_array(np.array(value, np.float32)))

    yield (often := number(frequency))
    yield (step := number(part))
    yield (product := node("Mul", name, often.output[0]))
    yield (wave := node("Sin", product.output[0]))
    yield (sign := node("Sign", wave.output[0]))
    yield (size := node("Mul", name, step.output[0]))
    yield (change := node("Mul", size.output[0], sign.output[0]))
    yield node("Add", name, change.output[0])


def _moved(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    infinity = values.dtype.type(np.inf)
    up, down = np.nextafter(values, infinity), np.nextafter(values, -infinity)
    steps = random.integers(-1, 2, values.shape)
    return np.where(steps == 0, values, np.where(steps > 0, up, down)).astype(values.dtype)
