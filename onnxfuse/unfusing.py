"""``onnxfuse.unfuse``: plain nodes in place of fused ones, for tools that know no functions."""

from pathlib import Path

import onnx

from onnxfuse.api import checked_source, load_source
from onnxfuse.errors import OnnxfuseError
from onnxfuse.files.model_io import check_output, load, read_proto, save
from onnxfuse.fused.kinds import DOMAIN, PREFERS_NHWC
from onnxfuse.model.graph import Model, describe
from onnxfuse.model.graph_import import import_opsets
from onnxfuse.model.inlining import FunctionKey, called_key, nested_nodes
from onnxfuse.passes.inline_functions import inline
from onnxfuse.targets.request import path_of


def unfuse(
    model: str | Path | bytes | onnx.ModelProto, *, output: str | Path | None = None, overwrite: bool = False
) -> onnx.ModelProto:
    """Put the nodes that they stand for in place of a model's fused nodes.

    ``model`` is a path, a ModelProto, which is not changed, or the bytes of one.  ``output`` is where to write the
    result: through a temporary file in the same directory, once it has been read again, with its external data, if any,
    in ``<output>.data``; of a link the target is written.  ``overwrite`` allows it to be the input itself.

    What else was rewritten stays as it is.  The returned ModelProto is what was written to ``output``; without that it
    refers to the external data of the input.  Raises OnnxfuseError if something about the request is wrong (bad model,
    a fused node without its function).
    """
    if output is not None:
        output = path_of("the output", output)
    source = checked_source(model)
    if output is not None:
        check_output(output, source if isinstance(source, Path) else None, overwrite=overwrite)
    loaded = load_source(source)
    _unfuse(loaded)
    if output is None:
        return loaded.to_proto()
    save(loaded, output, overwrite=overwrite, check=_read_again)
    return read_proto(output)


def _read_again(candidate: Path) -> None:
    """Raise OnnxfuseError if what was written is no valid model."""
    load(candidate)


def _unfuse(model: Model) -> None:
    functions = _functions(model)
    proto = inline(model, functions) if functions else model.to_proto()
    opsets = [entry for entry in proto.opset_import if entry.domain != DOMAIN]
    metadata = [entry for entry in proto.metadata_props if entry.key != PREFERS_NHWC]
    for field, kept in ((proto.opset_import, opsets), (proto.metadata_props, metadata)):
        del field[:]
        field.extend(kept)
    model.replace(proto)


def _functions(model: Model) -> dict[FunctionKey, onnx.FunctionProto]:
    """The functions of fused nodes, and those that call them.

    Raises OnnxfuseError if a fused node has none, or one that does not fit the model.
    """
    found = {key: function for key, function in model.functions.items() if key[0] == DOMAIN}
    for graph in model.graphs():
        for node in graph.nodes:
            if node.domain == DOMAIN and (DOMAIN, node.op, getattr(node, "overload", "")) not in found:
                raise OnnxfuseError(f"{describe(node)} has no function that says what it stands for")
    calls = {key: {called_key(node) for node in nested_nodes(f.node)} for key, f in model.functions.items()}
    while more := [key for key, called in calls.items() if key not in found and not called.isdisjoint(found)]:
        found.update((key, model.functions[key]) for key in more)
    for key, function in found.items():
        for domain, version in import_opsets(function).items():
            if model.opsets.get(domain, version) != version:
                name = ".".join(key[:2])
                raise OnnxfuseError(
                    f"the function {name} is of opset {version}, and the model of {model.opsets[domain]}"
                )
    return found
