"""Loading models from files and saving them: what is refused, and what a failure leaves behind.

Neither direction holds external data as a whole.  A model is saved under its final names in a directory of
its own beside the output, checked there, and renamed into place; until then, and on any failure, the output
path stays as it was.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto, TensorProto

from onnxfuse import inference, tensor_data
from onnxfuse.attributes import check_attributes
from onnxfuse.errors import OnnxfuseError
from onnxfuse.graph import Model, sorted_nodes
from onnxfuse.graph_export import Export
from onnxfuse.inlining import check_inlining
from onnxfuse.names import check_names

_ALIGNMENT = 64
_EXTERNAL_BYTES = 1024
"""Tensors smaller than this stay in the model file unless they were external before."""

_PROTOBUF_LIMIT = (1 << 31) - 1
_PROTOBUF_MARGIN = 64 << 20
"""Room left for everything in a model file that is not tensor data."""


def load(path: str | Path, *, shapes: inference.Shapes | None = None) -> Model:
    """Read, check and infer the model in a file.

    ``shapes`` gives graph inputs other shapes for the analysis.  Raises OnnxfuseError, one line that names
    the file, when it cannot be read, is no valid ONNX model of a version that the installed onnx knows, has a
    cycle or types that do not check, or has external data that is missing, too short or outside the model's
    directory.  Unknown operator domains are no error.
    """
    path = Path(path)
    with _naming(path):
        return load_proto(_parse(_read(path)), path=path, shapes=shapes)


def load_proto(proto: ModelProto, *, path: str | Path | None = None, shapes: inference.Shapes | None = None) -> Model:
    """``load`` for a model already in memory, which is kept and must not be changed from now on.

    ``path`` is the file that it comes from; external data is relative to its directory.
    """
    _check_versions(proto)
    check_names(proto)
    check_attributes(proto)
    path = None if path is None else Path(path)
    tensor_data.check_all(proto, None if path is None else path.parent)
    try:
        model = Model.from_proto(proto, path)
        for graph in model.graphs():
            sorted_nodes(graph)
        light = model.export(light=True)
    except UnicodeDecodeError as error:
        raise OnnxfuseError("not a valid ONNX model: it has a name or a text that is not UTF-8") from error
    _check_structure(light)
    check_inlining(proto)
    inference.run(model, light, shapes, check_types=True)
    return model


def check_output(path: str | Path, source: str | Path | None, *, overwrite: bool = False) -> None:
    """Raise OnnxfuseError, before any work is done, for an output path that ``save`` would refuse."""
    _refuse(Path(path), None if source is None else Path(source), overwrite, [])


def save(
    model: Model,
    path: str | Path,
    *,
    overwrite: bool = False,
    source: str | Path | None = None,
    check: Callable[[Path], None] | None = None,
) -> None:
    """Write ``model`` to ``path``, and its external data, if any, to ``<path>.data`` beside it.

    Tensors whose data was external stay external; so does new data of such a model, and the data of a model
    too large for one file.  ``check`` is called with the path of the finished model before it is put in
    place, and stops that by raising.  ``source`` is the file that the model comes from, by default the one
    that it was loaded from.

    Raises OnnxfuseError if ``path`` is the source and ``overwrite`` is not set, or if it cannot be written.
     On any failure or interrupt the output path is as it was.  A model whose own external data was
    overwritten is to be loaded anew before its values are read again.
    """
    path = Path(path)
    source = model.path if source is None else Path(source)
    export = model.export()
    slices = _external_slices(export.proto, model.directory)
    _refuse(path, source, overwrite, slices)
    data_name = f"{path.name}.data"
    with _writing(path):
        directory = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        with _writing(path):
            _write(export, slices, directory, path.name, data_name)
        if check is not None:
            check(directory / path.name)
        with _writing(path):
            _put_in_place(directory, path, data_name)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _read(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OnnxfuseError("it is not a file" if not path.is_dir() else "it is a directory, not a model file")
        if path.stat().st_size > _PROTOBUF_LIMIT:
            raise OnnxfuseError("it is larger than 2 GiB, so it is no ONNX model; larger models use external data")
        return path.read_bytes()
    except FileNotFoundError:
        raise OnnxfuseError("no such file") from None
    except (OSError, ValueError) as error:
        raise OnnxfuseError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _parse(data: bytes) -> ModelProto:
    if not data:
        raise OnnxfuseError("the file is empty")
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RuntimeError, ValueError) as error:
        raise OnnxfuseError("not an ONNX model, or a damaged or truncated one") from error
    return proto


def _check_versions(proto: ModelProto) -> None:
    if not proto.HasField("graph"):
        raise OnnxfuseError("not an ONNX model: it has no graph")
    if proto.ir_version > onnx.IR_VERSION:
        raise OnnxfuseError(
            f"it has IR version {proto.ir_version}; onnx {onnx.__version__} knows up to {onnx.IR_VERSION}: upgrade onnx"
        )
    newest = onnx.defs.onnx_opset_version()
    for entry in proto.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version > newest:
            raise OnnxfuseError(
                f"it uses opset {entry.version}; onnx {onnx.__version__} knows up to {newest}: upgrade onnx"
            )


def _check_structure(light: Export) -> None:
    """Run onnx's checker, to which tensors without data are shown as empty ones."""
    dims = [list(tensor.dims) for tensor in light.stripped]
    without_shape = []
    for tensor in light.stripped:
        tensor.dims[:] = [0]
    # The checker wants the rank of every input and output; ONNX Runtime does not, and many files lack it.
    for info in (*light.proto.graph.input, *light.proto.graph.output):
        tensor_type = info.type.tensor_type
        if info.type.HasField("tensor_type") and not tensor_type.HasField("shape"):
            tensor_type.shape.SetInParent()
            without_shape.append(tensor_type)
    # It also wants a name of the graph; ONNX Runtime does not.
    name = light.proto.graph.name
    light.proto.graph.name = name or "graph"
    try:
        onnx.checker.check_model(light.proto.SerializeToString())
    except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        raise OnnxfuseError(f"not a valid ONNX model: {_one_line(error)}") from error
    light.proto.graph.name = name
    for tensor, original in zip(light.stripped, dims, strict=True):
        tensor.dims[:] = original
    for tensor_type in without_shape:
        tensor_type.ClearField("shape")


def _external_slices(proto: ModelProto, directory: Path | None) -> list[tuple[TensorProto, tensor_data.ExternalSlice]]:
    return [
        (tensor, tensor_data.locate(tensor, directory))
        for tensor in tensor_data.tensors(proto)
        if tensor_data.is_external(tensor)
    ]


def _refuse(
    path: Path,
    source: Path | None,
    overwrite: bool,
    slices: list[tuple[TensorProto, tensor_data.ExternalSlice]],
) -> None:
    try:
        if not path.name:
            raise OnnxfuseError(f"{path}: it names no file to write")
        if path.exists() and not path.is_file():
            raise OnnxfuseError(f"{path}: it exists and is not a regular file")
        if not path.parent.is_dir():
            raise OnnxfuseError(f"{path}: there is no directory {path.parent}")
        replaces_source = source is not None and source.exists() and path.exists() and path.samefile(source)
        if replaces_source and not overwrite:
            raise OnnxfuseError(f"{path}: the output is the input; allow that with --overwrite (overwrite=True)")
        data = path.with_name(f"{path.name}.data")
        if slices and data.exists():
            if not data.is_file():
                raise OnnxfuseError(f"{data}: it exists and is not a regular file")
            if not replaces_source and any(data.samefile(part.path) for _, part in slices):
                raise OnnxfuseError(f"{path}: its data would replace {data}, which belongs to the input model")
    except (OSError, ValueError) as error:
        raise OnnxfuseError(f"{path}: cannot be written: {error}") from error


def _write(
    export: Export,
    slices: list[tuple[TensorProto, tensor_data.ExternalSlice]],
    directory: Path,
    model_name: str,
    data_name: str,
) -> None:
    inline = _tensors_to_move(export, bool(slices))
    if slices or inline:
        with (directory / data_name).open("xb") as file:
            written: dict[tuple[Path, int, int], int] = {}
            for tensor, part in slices:
                key = (part.path, part.offset, part.length)
                if key not in written:
                    written[key] = _align(file)
                    part.copy_to(file)
                _make_external(tensor, data_name, written[key], part.length)
            for tensor in inline:
                offset, data = _align(file), tensor.raw_data
                file.write(data)
                _make_external(tensor, data_name, offset, len(data))
            file.flush()
            os.fsync(file.fileno())
    try:
        serialized = export.proto.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise OnnxfuseError("the model is too large for one file, even with its data outside it") from error
    with (directory / model_name).open("xb") as file:
        file.write(serialized)
        file.flush()
        os.fsync(file.fileno())


def _tensors_to_move(export: Export, has_external: bool) -> list[TensorProto]:
    """The tensors with raw data inside the model that are to be written outside it."""
    inside = [
        (tensor, tensor_data.byte_size(tensor) or 0)
        for tensor in tensor_data.tensors(export.proto)
        if not tensor_data.is_external(tensor)
    ]
    if sum(size for _, size in inside) > _PROTOBUF_LIMIT - _PROTOBUF_MARGIN:
        candidates = [tensor for tensor, size in inside if size >= _EXTERNAL_BYTES]
    elif has_external:
        candidates = [tensor for tensor in export.fresh if (tensor_data.byte_size(tensor) or 0) >= _EXTERNAL_BYTES]
    else:
        candidates = []
    return [tensor for tensor in candidates if tensor.HasField("raw_data")]


def _align(file: BinaryIO) -> int:
    offset = file.tell()
    padding = -offset % _ALIGNMENT
    file.write(bytes(padding))
    return offset + padding


def _make_external(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def _put_in_place(directory: Path, path: Path, data_name: str) -> None:
    """Rename the data, then the model; if the second fails, undo the first."""
    data, old_data = path.with_name(data_name), directory / f"{data_name}.old"
    moves_data = (directory / data_name).exists()
    try:
        if moves_data:
            if data.exists():
                data.rename(old_data)
            (directory / data_name).rename(data)
        (directory / path.name).replace(path)
    except BaseException:
        if not (directory / path.name).exists():
            raise  # Interrupted just after the model was put in place.
        if old_data.exists():
            old_data.replace(data)
        elif moves_data and not (directory / data_name).exists():
            data.unlink(missing_ok=True)
        raise


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OnnxfuseError as error:
        raise OnnxfuseError(f"{path}: {_one_line(error)}") from error


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OnnxfuseError(f"{path}: cannot be written: {error.strerror or error}") from error
    except OnnxfuseError as error:
        raise OnnxfuseError(f"{path}: {error}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
