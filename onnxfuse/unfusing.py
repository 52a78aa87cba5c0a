"""``onnxfuse.unfuse``: plain nodes in place of fused ones, for tools that know no functions."""

from pathlib import Path

import onnx

from onnxfuse.files.model_io import check_output, load, read_proto, save
from onnxfuse.fused.plain_nodes import plain_nodes
from onnxfuse.optimization import checked_source, load_source
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
    loaded.replace(*plain_nodes(loaded))
    if output is None:
        return loaded.to_proto()
    save(loaded, output, overwrite=overwrite, check=_read_again)
    return read_proto(output)


def _read_again(candidate: Path) -> None:
    """Raise OnnxfuseError if what was written is no valid model."""
    load(candidate)
