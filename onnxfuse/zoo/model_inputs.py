"""Inputs for the models of the zoo, as the manifest describes them."""

from pathlib import Path

import numpy as np
import onnx

from onnxfuse.run.inputs import InputSet, input_specs
from onnxfuse.zoo.manifest import FetchError, StoredModel


def check(model: StoredModel, path: Path) -> None:
    """Raise FetchError unless the file has the inputs that the manifest says, by name, type and rank."""
    try:
        found = {spec.name: spec for spec in input_specs(onnx.load(path, load_external_data=False))}
    except Exception as error:  # protobuf's decode errors, by format
        raise FetchError(f"the file of {model.name} is not an ONNX model") from error
    if list(found) != list(model.inputs):
        raise FetchError(f"{model.name} has the inputs {', '.join(found)}; the manifest says {', '.join(model.inputs)}")
    for name, entry in model.inputs.items():
        spec = found[name]
        if entry.dtype and str(spec.dtype) != entry.dtype:
            raise FetchError(f"{model.name}: {spec.describe()} is not of type {entry.dtype}, as the manifest says")
        if spec.shape is not None and len(spec.shape) != len(entry.shape):
            raise FetchError(f"{model.name}: {spec.describe()} does not have the rank that the manifest says")


def make_inputs(model: StoredModel, path: Path, size: int = 0, seed: int = 0) -> dict[str, np.ndarray]:
    """An array for every input: its shape from the manifest, for one of the model's ``sizes``, its type from
    the model's file at ``path``."""
    generator = np.random.default_rng(seed)
    graph = onnx.load(path, load_external_data=False).graph
    types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    arrays = {}
    for name, shape in model.shapes(size).items():
        entry = model.inputs[name]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(types[name])
        if entry.range is None:
            arrays[name] = np.full(shape, entry.value, dtype)
        elif dtype.kind in "iub":
            low, high = entry.range
            arrays[name] = generator.integers(int(low), int(high), shape, endpoint=True).astype(dtype)
        else:
            arrays[name] = np.asarray(generator.uniform(*entry.range, shape)).astype(dtype)
    return arrays


def input_sets(model: StoredModel, path: Path) -> list[InputSet]:
    """One set of inputs for each of the model's sizes."""
    sets = []
    for index, sizes in enumerate(model.sizes):
        label = ", ".join(f"{name}={size}" for name, size in sizes.items()) or "fixed sizes"
        sets.append(InputSet(label, dict(make_inputs(model, path, index, seed=index))))
    return sets
