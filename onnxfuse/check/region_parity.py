"""Run every fused node alone, on the values that reach it in the model.

The optimized model is run without the onnxfuse library, so ONNX Runtime computes the original nodes, with the
inputs of the fused nodes as further outputs.  Then each node becomes a model of its own, run with the library
(its kernel) and without (its function body).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from onnxfuse.check.comparison import Comparison, Numbers, compare_values
from onnxfuse.check.numerics import coarsest_type, has_tf32, probabilities, with_tf32
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.conv.convolutions import OPERATORS
from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.model.protos import onnx_graphs
from onnxfuse.run.inputs import InputSet
from onnxfuse.run.runtime import CUDA_PROVIDER
from onnxfuse.run.sessions import Session, SessionError, Value

_BATCH = 8  # nodes whose inputs are held in memory at once


@dataclass
class RegionResult:
    """One fused node run alone, on what reaches it in the model, against its own nodes in plain ONNX
    Runtime."""

    node: str
    comparison: Comparison
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether the region computes what its nodes compute."""
        return self.comparison.ok

    def to_json(self) -> dict[str, object]:
        """The fields as JSON takes them."""
        return {**self.comparison.to_json(), "name": self.node, "note": self.note}


def compare_regions(
    path: Path, model: onnx.ModelProto, inputs: InputSet, providers: tuple[str, ...], progress: Callable[[str], None]
) -> list[RegionResult]:
    """One result for each fused node of the main graph; nodes inside If, Loop and Scan bodies are named and
    not run.

    ``model`` is the file at ``path`` read without external data.  Raises OnnxfuseError if the model cannot be
    run with its inner values as outputs.
    """
    nodes = [node for node in model.graph.node if node.domain == DOMAIN]
    results = []
    for start in range(0, len(nodes), _BATCH):
        batch = nodes[start : start + _BATCH]
        progress(f"fused nodes {start + 1} to {start + len(batch)} of {len(nodes)}")
        values = region_values(path, model, batch, inputs, providers)
        results += [_compare_region(model, node, values, providers) for node in batch]
    for graph in list(onnx_graphs(model.graph))[1:]:
        for node in graph.node:
            if node.domain == DOMAIN:
                results.append(RegionResult(_label(node), Comparison(_label(node)), "in a subgraph: not run alone"))
    return results


def region_values(
    path: Path,
    model: onnx.ModelProto,
    nodes: list[onnx.NodeProto],
    inputs: InputSet,
    providers: tuple[str, ...],
) -> dict[str, Value]:
    """The values that reach the nodes in the model: their inputs, by name.

    Raises OnnxfuseError if the model cannot be run with its inner values as outputs.
    """
    names = list(dict.fromkeys(name for node in nodes for name in node.input if name and name not in inputs.feeds))
    if not names:  # ONNX Runtime would take an empty list for all outputs
        return dict(inputs.feeds)
    known = {value.name for value in model.graph.output}
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    for name in names:
        if name not in known:
            tapped.graph.output.add().name = name  # ONNX Runtime infers the type
    try:
        session = Session(tapped.SerializeToString(), providers=providers, folder=path.parent)
        return {**inputs.feeds, **dict(zip(names, session.run(inputs.feeds, names), strict=True))}
    except SessionError as error:
        raise OnnxfuseError(f"cannot run {path} with its inner values as outputs: {error}") from error


def _compare_region(
    model: onnx.ModelProto, node: onnx.NodeProto, values: dict[str, Value], providers: tuple[str, ...]
) -> RegionResult:
    label = _label(node)
    feeds = {name: values[name] for name in node.input if name}
    region = region_model(model, node, feeds)
    numbers = Numbers(coarsest_type(region))
    if CUDA_PROVIDER in providers and has_tf32(region):
        numbers = Numbers(with_tf32(numbers.coarsest))
    try:
        expected = Session(region.SerializeToString(), providers=providers).run(feeds)
    except SessionError as error:
        if error.lacks_memory():
            raise MemoryError(str(error)) from error
        return RegionResult(label, Comparison(label, reason=f"its nodes do not run alone: {error}", mismatches=1))
    declare_outputs(region, expected)
    try:
        actual = Session(region.SerializeToString(), providers=providers, library=True).run(feeds)
    except SessionError as error:
        if error.lacks_memory():
            raise MemoryError(str(error)) from error
        return RegionResult(label, Comparison(label, reason=f"it does not run: {error}", mismatches=1))
    total = Comparison(label, ", ".join(dict.fromkeys(str(np.asarray(value).dtype) for value in expected)))
    unit = _probabilities(region)
    for index, (name, left, right) in enumerate(zip(node.output, expected, actual, strict=True)):
        total.merge(compare_values(name, left, right, replace(numbers, scale=float(index in unit))))
    return RegionResult(label, total)


def _probabilities(region: onnx.ModelProto) -> set[int]:
    """Which outputs of a fused convolution lie between 0 and 1, by their place: the error of its sums is that of a
    logit, whatever probability comes of it.  None of other nodes, whose arithmetic has one order."""
    convolutions = [item for item in region.functions if any(node.op_type in OPERATORS for node in item.node)]
    if not convolutions:
        return set()
    function = convolutions[0]
    graph = onnx.GraphProto(node=function.node)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in function.output)
    unit = probabilities(onnx.ModelProto(graph=graph))
    return {index for index, name in enumerate(function.output) if name in unit}


def region_model(model: onnx.ModelProto, node: onnx.NodeProto, feeds: dict[str, Value]) -> onnx.ModelProto:
    """A model of one fused node, with its function; the inputs have the types of ``feeds`` and dynamic
    shapes."""
    graph = onnx.GraphProto(name="region")
    graph.node.add().CopyFrom(node)
    for name, value in feeds.items():
        array = np.asarray(value)
        dims = [f"{name}_{axis}" for axis in range(array.ndim)]
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        graph.input.append(helper.make_tensor_value_info(name, kind, dims))
    for name in node.output:
        graph.output.add().name = name
    key = (node.domain, node.op_type, node.overload)
    functions = [function for function in model.functions if (function.domain, function.name, function.overload) == key]
    region = onnx.ModelProto(ir_version=model.ir_version, graph=graph, functions=functions)
    region.opset_import.extend(model.opset_import)
    return region


def declare_outputs(region: onnx.ModelProto, values: list[Value]) -> None:
    """Give the outputs the types of ``values``: the library cannot tell them where a shape may be a scalar's."""
    for output, value in zip(region.graph.output, values, strict=True):
        output.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype)


def _label(node: onnx.NodeProto) -> str:
    return node.name or node.overload
