"""What scripts/bench.py and scripts/bench_reductions.py time beside peers: models of the zoo, chains of elementwise
nodes at four sizes, and chains that reduce."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

import onnxfuse
from onnxfuse.check.comparison import Comparison, compare_values
from onnxfuse.check.float64_reference import is_within
from onnxfuse.check.numerics import output_numbers
from onnxfuse.run.sessions import Session, Value
from onnxfuse.speed import Speed
from onnxfuse.zoo.fetching import fetch
from onnxfuse.zoo.manifest import MANIFEST, StoredModel
from onnxfuse.zoo.model_inputs import make_inputs
from tools.bench.chains import Chain, chain_input, chain_model
from tools.gpu import reduction_chains
from tools.gpu.reduction_chains import Reducing

SIZES = {"16 KB": (1, 64, 8, 8), "512 KB": (1, 64, 32, 64), "6.6 MB": (1, 64, 161, 161), "67 MB": (1, 64, 512, 512)}
"""Shapes of a chain's float32 tensor: within the first level of cache, the second, the last, and beyond it."""

LENIENCE = 10.0
"""How many times the error that onnxfuse is allowed another program may have: the order of sums is its own, and so
are its functions; bfloat16 in place of float32 would be far outside."""

OF_MOVED = 2.0
"""How many times as far as ONNX Runtime's own optimizations another program may move an output.  What quantizes its
activations rounds them another way in each order of sums, and amplifies that from layer to layer."""


@dataclass
class Subject:
    """A model with inputs, ready for every peer: files in a folder, and the outputs that ONNX Runtime gives."""

    name: str
    group: str
    size: str
    model: Path
    static: Path
    folded: Path
    optimized: Path
    fast: Path
    library: bool
    inputs: Path
    expected: dict[str, np.ndarray]
    recipe: str = ""
    recipes: str = ""
    chain: str = ""
    reducing: str = ""
    tolerance: float = 1.0
    moved: dict[str, Comparison] = field(default_factory=dict)
    """How far ONNX Runtime's own optimizations move the outputs."""
    parameters: int = 0
    printed: Speed | None = None
    """What ``optimize`` says of its result."""

    def difference(self, outputs: list[np.ndarray]) -> str:
        """In one line how outputs, in the model's order, differ from ONNX Runtime's; empty if they do not, or no
        more than ``OF_MOVED`` allows."""
        if len(outputs) != len(self.expected):
            return f"{len(outputs)} outputs instead of {len(self.expected)}"
        numbers = output_numbers(onnx.load(self.model, load_external_data=False))
        for (name, expected), actual in zip(self.expected.items(), outputs, strict=True):
            comparison = compare_values(name, expected, actual.astype(expected.dtype, copy=False), numbers[name])
            moved = self.moved.get(name)
            if comparison.within(LENIENCE * self.tolerance):
                continue
            if moved is None or not is_within(comparison, moved, OF_MOVED):
                return f"output {name!r}: {comparison.reason}"
        return ""


def make_chain(chain: Chain, size: str, folder: Path) -> Subject:
    """A chain at one of the SIZES."""
    shape = SIZES[size]
    path = folder / "model.onnx"
    onnx.save(chain_model(chain, shape), path)
    subject = _prepare(f"{chain.name}, {size}", "chains", path, {"x": chain_input(shape)}, folder)
    subject.size, subject.chain = size, chain.name
    return subject


def make_reducing(reducing: Reducing, megabytes: float | None, folder: Path) -> Subject:
    """A chain that reduces, with a first input of so many 10^6 bytes, or of its usual shape, as ``onnxfuse optimize``
    plans it by default."""
    path = folder / "model.onnx"
    onnx.save(reduction_chains.onnx_model(reducing, "float32"), path)
    feeds = reduction_chains.feeds(reducing, megabytes, "float32")
    size = reducing.size(megabytes)
    subject = _prepare(f"{reducing.name}, {size}", "reductions", path, feeds, folder, tuned=False)
    subject.size, subject.reducing = size, reducing.name
    return subject


def make_model(model: StoredModel, folder: Path, tuned: bool = False, made: Path | None = None) -> Subject:
    """A model of the zoo, at the first of its sizes, as ``onnxfuse optimize`` leaves it by default or, ``tuned``, with
    ``--static`` and ``--tune``.  ``made`` is the folder that keeps what recipes make.  Raises OnnxfuseError if it
    cannot be had."""
    path = fetch(model.name, folder=folder, made=made)
    feeds = make_inputs(model, path)
    subject = _prepare(model.name, "models", path, feeds, folder, tuned)
    subject.tolerance = model.tolerance
    subject.moved = _moved(path, feeds, subject.expected)
    subject.parameters = count_parameters(onnx.load(path, load_external_data=False))
    if model.environment is not None:
        subject.recipe, subject.recipes = model.recipe, str(MANIFEST.parent / "recipes")
    subject.size = ", ".join(dict.fromkeys("x".join(map(str, array.shape)) for array in feeds.values() if array.ndim))
    return subject


def _moved(path: Path, feeds: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> dict[str, Comparison]:
    plain = Session(path, optimized=False).run(dict(feeds))
    numbers = output_numbers(onnx.load(path, load_external_data=False))
    return {
        name: compare_values(name, value, other, numbers[name])
        for (name, value), other in zip(expected.items(), plain, strict=True)
    }


_WEIGHTS = {
    *(TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE),
    *(TensorProto.INT8, TensorProto.UINT8),
}


def count_parameters(model: onnx.ModelProto) -> int:
    """The elements of the weights, in float or 8 bits, of a model's main graph."""
    return sum(math.prod(tensor.dims) for tensor in model.graph.initializer if tensor.data_type in _WEIGHTS)


def _prepare(
    name: str, group: str, path: Path, feeds: dict[str, np.ndarray], folder: Path, tuned: bool = True
) -> Subject:
    session = Session(path)
    values: list[Value] = session.run(dict(feeds))
    arrays = (*feeds.values(), *values)
    if not all(isinstance(array, np.ndarray) and array.dtype.kind in "fiub" for array in arrays):
        raise onnxfuse.OnnxfuseError(f"{name} takes or gives what NumPy has no type for")
    expected = dict(zip(session.output_names, values, strict=True))
    inputs, static, folded = (folder / file for file in ("inputs.npz", "static.onnx", "folded.onnx"))
    arguments: dict[str, Any] = dict(feeds)
    np.savez(inputs, **arguments)
    onnx.save(with_static_shapes(onnx.load(path), feeds, expected), static)
    _fold(static, folded)
    shapes = {name: array.shape for name, array in feeds.items()}
    optimized, fast = (folder / file for file in ("optimized.onnx", "fast.onnx"))
    options: dict[str, Any] = {"shapes": shapes, "check": False}
    if tuned:
        options["static"] = True
        result = onnxfuse.optimize(path, "cpu", tune=True, inputs=inputs, output=optimized, **options)
    else:
        if group == "models":  # what is slower is taken back; a chain stays as it is planned
            options |= {"bench": True, "inputs": inputs}
        result = onnxfuse.optimize(path, "cpu", output=optimized, **options)
    if group == "chains":
        onnxfuse.optimize(path, "cpu", fast_math=True, output=fast, **options)
    library = any(opset.domain == "onnxfuse" for opset in result.model.opset_import)
    subject = Subject(name, group, "", path, static, folded, optimized, fast, library, inputs, expected)
    subject.printed = result.report.speed
    return subject


def with_static_shapes(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], outputs: dict[str, np.ndarray]
) -> onnx.ModelProto:
    """The model with numbers for every dimension of its inputs and outputs, and shapes inferred from those."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    for values, arrays in ((model.graph.input, feeds), (model.graph.output, outputs)):
        for value in values:
            if value.name in initializers and value.name not in arrays:
                continue
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            for size in arrays[value.name].shape:
                shape.dim.add().dim_value = size
    del model.graph.value_info[:]  # what was said of dynamic shapes
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return model


def _fold(source: Path, target: Path) -> None:
    """The model after ONNX Runtime's basic optimizations, which compute what depends on shapes alone."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
