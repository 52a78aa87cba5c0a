"""Makes a failing model smaller while it fails in the same way.

A step is kept if the changed model still runs in ONNX Runtime and fails with a reason of the same kind: outputs are
dropped, what is not needed for them is removed, inner values become inputs with the values that they had, nodes are
left out (also in the bodies of If, Loop and Scan), dimensions and names become plain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import helper

from onnxfuse.model.protos import onnx_graphs
from onnxfuse.run.sessions import Session, SessionError, Value

Feeds = dict[str, Value]
Fails = Callable[[onnx.ModelProto, Feeds], bool]


def shrink(model: onnx.ModelProto, feeds: Feeds, fails: Fails, seconds: float = 60.0) -> tuple[onnx.ModelProto, Feeds]:
    """The smallest model found, and its inputs; ``fails`` says whether a candidate fails in the same way."""
    deadline = time.monotonic() + seconds
    again = True
    while again and time.monotonic() < deadline:
        again = False
        for step in (_fewer_outputs, _cut_inputs, _without_nodes, _fewer_attributes, _smaller_arrays, _plain_names):
            candidates = step(model, feeds)
            for changed, values in candidates:
                if time.monotonic() > deadline:
                    break
                values = _without_unused(changed, values)
                if _size(changed, values) < _size(model, feeds) and fails(changed, values):
                    model, feeds, again = changed, values, True
                    break
            if again:
                break
    return model, feeds


def _size(model: onnx.ModelProto, feeds: Feeds) -> tuple[int, ...]:
    """What counts as smaller, the most important first."""
    graphs = list(onnx_graphs(model.graph))
    nodes = [node for graph in graphs for node in graph.node]
    elements = sum(value.size for value in feeds.values())
    elements += sum(int(np.prod(tensor.dims)) for graph in graphs for tensor in graph.initializer)
    dynamic = sum(dim.HasField("dim_param") for info in model.graph.input for dim in info.type.tensor_type.shape.dim)
    attributes = sum(len(node.attribute) for node in nodes)
    odd = sum(len(node.name) for node in nodes) + sum(len(name) for node in nodes for name in node.output)
    return (
        len(nodes),
        len(model.graph.output),
        len(feeds),
        elements,
        attributes,
        dynamic + len(model.graph.value_info),
        odd,
    )


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


Candidates = Iterator[tuple[onnx.ModelProto, Feeds]]


def _fewer_outputs(model: onnx.ModelProto, feeds: Feeds) -> Candidates:
    outputs = list(model.graph.output)
    if len(outputs) < 2:
        return
    groups = [[output] for output in outputs] + [[other for other in outputs if other is not out] for out in outputs]
    for group in groups:
        changed = _copy(model)
        kept = [onnx.ValueInfoProto.FromString(output.SerializeToString()) for output in group]
        del changed.graph.output[:]
        changed.graph.output.extend(kept)
        yield changed, feeds


def _cut_inputs(model: onnx.ModelProto, feeds: Feeds) -> Candidates:
    """Inner values as inputs, the last first."""
    whole = _copy(model)
    known = {output.name for output in whole.graph.output}
    names = [name for node in whole.graph.node for name in node.output if name and name not in known]
    if not names:
        return
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        values = Session(whole.SerializeToString(), threads=1, optimized=False).run(feeds, names)
    except SessionError:
        return
    for name, value in reversed(list(zip(names, values, strict=True))):
        if not isinstance(value, np.ndarray):  # a sequence, or an optional value
            continue
        changed = _copy(model)
        for node in changed.graph.node:
            for index, output in enumerate(node.output):
                if output == name:
                    node.output[index] = f"{name} was"
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        changed.graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
        yield changed, {**feeds, name: value}


def _without_nodes(model: onnx.ModelProto, feeds: Feeds) -> Candidates:
    """Each node left out, its result replaced by one of its inputs."""
    for number, graph in enumerate(onnx_graphs(model.graph)):
        for position, node in enumerate(graph.node):
            for source in dict.fromkeys(node.input):
                changed = _copy(model)
                inside = list(onnx_graphs(changed.graph))[number]
                outputs = {output.name for output in inside.output}
                victim = inside.node[position]
                if not source or victim.op_type == "Identity":
                    continue
                if any(name in outputs for name in victim.output):
                    del victim.attribute[:]
                    del victim.input[:]
                    victim.op_type = "Identity"
                    victim.domain = ""
                    victim.input.append(source)
                else:
                    _rename_uses(changed.graph, victim.output[0], source)
                    del inside.node[position]
                yield changed, feeds


def _rename_uses(graph: onnx.GraphProto, old: str, new: str) -> None:
    for inner in onnx_graphs(graph):
        for node in inner.node:
            for index, name in enumerate(node.input):
                if name == old:
                    node.input[index] = new


def _fewer_attributes(model: onnx.ModelProto, feeds: Feeds) -> Candidates:
    changed = _copy(model)
    del changed.graph.value_info[:]
    yield changed, feeds
    for number, graph in enumerate(onnx_graphs(model.graph)):
        for position, node in enumerate(graph.node):
            for index, attribute in enumerate(node.attribute):
                if attribute.type != onnx.AttributeProto.GRAPH and attribute.name not in ("value", "to"):
                    changed = _copy(model)
                    del list(onnx_graphs(changed.graph))[number].node[position].attribute[index]
                    yield changed, feeds


def _smaller_arrays(model: onnx.ModelProto, feeds: Feeds) -> Candidates:
    """Fixed sizes instead of symbols, and the first half of an axis."""
    changed = _copy(model)
    for info in changed.graph.input:
        if info.name in feeds:
            kind = info.type.tensor_type.elem_type
            info.CopyFrom(helper.make_tensor_value_info(info.name, kind, feeds[info.name].shape))
    yield changed, feeds
    sizes = sorted({size for value in feeds.values() for size in value.shape if size > 1}, reverse=True)
    for size in sizes:
        for smaller in dict.fromkeys((1, size // 2, size - 1)):
            changed = _copy(model)
            values = {name: _cut(value, size, smaller) for name, value in feeds.items()}
            for info in changed.graph.input:
                for dim in info.type.tensor_type.shape.dim:
                    if dim.dim_value == size:
                        dim.dim_value = smaller
            for graph in onnx_graphs(changed.graph):
                for tensor in graph.initializer:
                    if size in tensor.dims:
                        cut = _cut(onnx.numpy_helper.to_array(tensor), size, smaller)
                        tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(cut), tensor.name))
            yield changed, values


def _cut(array: np.ndarray, size: int, smaller: int) -> np.ndarray:
    return array[tuple(slice(0, smaller if dim == size else None) for dim in array.shape)] if array.ndim else array


def _plain_names(model: onnx.ModelProto, feeds: Feeds) -> Candidates:
    changed = _copy(model)
    for graph in onnx_graphs(changed.graph):
        for node in graph.node:
            node.name = ""
    yield changed, feeds
    changed, values = _copy(model), dict(feeds)
    names: dict[str, str] = {"": ""}

    def plain(name: str) -> str:
        return names.setdefault(name, f"v{len(names)}")

    for graph in onnx_graphs(changed.graph):
        for info in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            info.name = plain(info.name)
        for node in graph.node:
            node.input[:] = [plain(name) for name in node.input]
            node.output[:] = [plain(name) for name in node.output]
    yield changed, {plain(name): value for name, value in values.items()}


def _without_unused(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """Removes from ``model`` what its outputs do not need; the feeds of the inputs that are left."""
    needed = {output.name for output in model.graph.output}
    for node in reversed(list(model.graph.node)):
        if needed.isdisjoint(node.output):
            model.graph.node.remove(node)
            continue
        needed.update(node.input)
        bodies = [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
        for inner in (inner for body in bodies for inner in onnx_graphs(body)):
            needed.update(name for item in inner.node for name in item.input)
            needed.update(output.name for output in inner.output)
    for items in (model.graph.initializer, model.graph.input):
        for item in list(items):
            if item.name not in needed:
                items.remove(item)
    kept = {info.name for info in model.graph.input}
    return {name: value for name, value in feeds.items() if name in kept}
