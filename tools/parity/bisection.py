"""Reduce a model that differs after optimization to the smallest thing that shows it, and save that.

First every fused node is run alone on what reaches it in the model; of those that differ, the smallest is
reduced further, by fusing ever shorter beginnings of its nodes.  If none differs alone, fused nodes are put
back to their original nodes until as few as possible are left; if the model differs without any, the fault is
in a rewrite, and the shortest list of passes that shows it is named.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx

import onnxfuse
from onnxfuse.check.comparison import compare_values
from onnxfuse.check.parity import PROVIDERS, compare
from onnxfuse.check.region_parity import compare_regions, declare_outputs, region_model, region_values
from onnxfuse.errors import OnnxfuseError
from onnxfuse.files.model_io import read_proto
from onnxfuse.fused.elementwise.fuse_elementwise import FuseElementwise
from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.passes import PassContext
from onnxfuse.run.inputs import InputSet
from onnxfuse.run.sessions import Session, SessionError, Value
from onnxfuse.shapes.inference import infer

Item = TypeVar("Item")


def bisect(original: Path, optimized: Path, sets: list[InputSet], target: str, folder: Path) -> str:
    """Find the culprit, save a reproducer in ``folder``, and say in a line what it is.

    A reproducer is ``original.onnx``, ``optimized.onnx`` and ``inputs.npz``, for ``onnxfuse check --inputs``.
    """
    model = onnx.load(optimized)
    nodes = [node for node in model.graph.node if node.domain == DOMAIN]
    providers = PROVIDERS[target]
    for inputs in sets:
        results = compare_regions(optimized, read_proto(optimized), inputs, providers, lambda text: None)
        bad = {result.node for result in results if not result.ok and not result.note}
        guilty = [node for node in nodes if (node.name or node.overload) in bad]
        if guilty:
            values = region_values(optimized, read_proto(optimized), guilty, inputs, providers)
            return _save_region(model, min(guilty, key=lambda node: _length(model, node)), values, providers, folder)
    for inputs in sets:
        if not _differs(original, optimized, inputs, target):
            continue
        return _bisect_model(original, optimized, model, nodes, inputs, target, folder)
    return "it does not show when run again"


# --- one region ---


def _save_region(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    values: dict[str, Value],
    providers: tuple[str, ...],
    folder: Path,
) -> str:
    feeds = {name: values[name] for name in node.input if name}
    region = region_model(model, node, feeds)
    declare_outputs(region, Session(region.SerializeToString(), providers=providers).run(feeds))
    plain = unfused(region, lambda fused: True)
    fused, count = region, _length(model, node)
    for length in range(1, count + 1):
        shorter = _beginning(plain, length)
        attempt = _fuse(shorter)
        taken = {value.name: feeds[value.name] for value in shorter.graph.input}
        if attempt is not None and _models_differ(shorter, attempt, taken, providers):
            plain, fused, feeds, count = shorter, attempt, taken, length
            break
    _save(folder, plain, fused, feeds)
    label = node.name or node.overload
    return f"fused node {label!r} differs alone; reduced to {count} of its {_length(model, node)} nodes"


def _beginning(model: onnx.ModelProto, length: int) -> onnx.ModelProto:
    """The model cut off after its first ``length`` nodes; what the cut leaves without a reader is an output."""
    nodes = list(model.graph.node)[:length]
    read = {name for node in nodes for name in node.input}
    made = [name for node in nodes for name in node.output if name]
    final = {output.name for output in model.graph.output}
    graph = onnx.GraphProto(name="beginning", node=nodes)
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in read)
    graph.input.extend(value for value in model.graph.input if value.name in read)
    for name in made:
        if name not in read or name in final:
            graph.output.add().name = name
    cut = onnx.ModelProto(ir_version=model.ir_version, graph=graph, opset_import=model.opset_import)
    return onnx.shape_inference.infer_shapes(cut)  # gives the outputs their types


def _fuse(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model with all of it fused; None if nothing can be."""
    try:
        loaded = onnxfuse.Model.from_proto(model)
        infer(loaded)
        FuseElementwise().run(loaded, PassContext(everything=True))
    except OnnxfuseError:
        return None
    fused = loaded.to_proto()
    return fused if any(node.domain == DOMAIN for node in fused.graph.node) else None


def _models_differ(
    plain: onnx.ModelProto, fused: onnx.ModelProto, feeds: dict[str, Value], providers: tuple[str, ...]
) -> bool:
    try:
        expected = Session(plain.SerializeToString(), providers=providers).run(feeds)
    except SessionError:
        return False
    try:
        actual = Session(fused.SerializeToString(), providers=providers, library=True).run(feeds)
    except SessionError:
        return True
    return any(compare_values("", left, right).reason for left, right in zip(expected, actual, strict=True))


# --- the whole model ---


def _bisect_model(
    original: Path,
    optimized: Path,
    model: onnx.ModelProto,
    nodes: list[onnx.NodeProto],
    inputs: InputSet,
    target: str,
    folder: Path,
) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    attempt = folder / "optimized.onnx"

    def shows(kept: Sequence[onnx.NodeProto]) -> bool:
        names = {node.output[0] for node in kept}
        onnx.save(unfused(model, lambda node: node.output[0] not in names), attempt)
        return _differs(original, attempt, inputs, target)

    kept = fewest(nodes, shows)
    if kept:
        shows(kept)  # leaves the file of the fewest
        said = ", ".join(repr(node.name or node.overload) for node in kept)
        found = f"no fused node differs alone; the model differs with these fused: {said}"
    else:
        found = _guilty_passes(original, attempt, inputs, target)
    onnx.save(onnx.load(original), folder / "original.onnx")
    _save_inputs(folder, inputs.feeds)
    return found


def _guilty_passes(original: Path, attempt: Path, inputs: InputSet, target: str) -> str:
    passes = ("fold-constants", "fold-affine", "fuse-elementwise")
    for chosen in (passes[:1], passes[1:2], passes[:2], passes[2:], passes):
        onnxfuse.optimize(original, target, chosen, check=False, output=attempt, overwrite=True)
        if _differs(original, attempt, inputs, target):
            return f"the model differs after {', '.join(chosen)}"
    return "it does not show when run again"


def _differs(original: Path, optimized: Path, inputs: InputSet, target: str) -> bool:
    try:
        return not compare(original, optimized, inputs=[inputs], target=target).ok
    except OnnxfuseError:
        return True


def fewest(items: Sequence[Item], shows: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """A list of items that shows the fault and does not without any one of them (delta debugging); empty if
    the fault shows without items."""
    if shows([]):
        return []
    found, parts = list(items), 2
    while len(found) > 1:
        size = max(1, len(found) // parts)
        chunks = [found[start : start + size] for start in range(0, len(found), size)]
        for index, chunk in enumerate(chunks):
            rest = [item for other, part in enumerate(chunks) if other != index for item in part]
            if shows(chunk):
                found, parts = chunk, 2
                break
            if shows(rest):
                found, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(found))
    return found


def unfused(model: onnx.ModelProto, choose: Callable[[onnx.NodeProto], bool]) -> onnx.ModelProto:
    """The model with the fused nodes of the main graph that ``choose`` takes replaced by their original nodes."""
    functions = {(function.domain, function.name, function.overload): function for function in model.functions}
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    for number, node in enumerate(model.graph.node):
        if node.domain == DOMAIN and choose(node):
            changed.graph.node.extend(_body(node, functions[node.domain, node.op_type, node.overload], number))
        else:
            changed.graph.node.add().CopyFrom(node)
    used = {(node.domain, node.op_type, node.overload) for node in changed.graph.node}
    if not any(key[0] == DOMAIN for key in used):
        del changed.functions[:]
        imports = [opset for opset in model.opset_import if opset.domain != DOMAIN]
        del changed.opset_import[:]
        changed.opset_import.extend(imports)
    return changed


def _body(node: onnx.NodeProto, function: onnx.FunctionProto, number: int) -> list[onnx.NodeProto]:
    names = dict(zip(function.input, node.input, strict=False)) | dict(zip(function.output, node.output, strict=True))
    names[""] = ""
    given = {attribute.name: attribute for attribute in node.attribute}
    nodes = []
    for index, inner in enumerate(function.node):
        copied = onnx.NodeProto()
        copied.CopyFrom(inner)
        copied.name = f"{inner.name or inner.op_type}__{number}_{index}"
        for side in (copied.input, copied.output):
            for place, name in enumerate(side):
                side[place] = names.setdefault(name, f"{name}__{number}")
        for attribute in copied.attribute:
            if attribute.ref_attr_name:
                name = attribute.name
                attribute.CopyFrom(given[attribute.ref_attr_name])
                attribute.name = name
        nodes.append(copied)
    return nodes


def _length(model: onnx.ModelProto, node: onnx.NodeProto) -> int:
    key = (node.domain, node.op_type, node.overload)
    return next(len(f.node) for f in model.functions if (f.domain, f.name, f.overload) == key)


# --- files ---


def _save(folder: Path, plain: onnx.ModelProto, fused: onnx.ModelProto, feeds: dict[str, Value]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(plain, folder / "original.onnx")
    onnx.save(fused, folder / "optimized.onnx")
    _save_inputs(folder, feeds)


def _save_inputs(folder: Path, feeds: dict[str, Value]) -> None:
    arrays = {name: np.asarray(value) for name, value in feeds.items()}
    np.savez(folder / "inputs.npz", allow_pickle=False, **arrays)
