"""Loading models from files and saving them: what is refused, and what a failure leaves behind.

Neither direction holds external data as a whole.  A model is saved under its final names in a directory of
its own beside the output, checked there, and renamed into place; until then, and on any failure, the output
path stays as it was.  An output path that is a link stays one: what it links to is replaced.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from onnxfuse.errors import OnnxfuseError
from onnxfuse.files.wire import divide, outline, write_model
from onnxfuse.model import contrib_operators, ort_operators, tensor_data
from onnxfuse.model.attributes import check_attributes
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.graph_export import Export
from onnxfuse.model.graph_import import import_opsets
from onnxfuse.model.inlining import check_inlining
from onnxfuse.model.names import check_names
from onnxfuse.model.replacing import check_beside, place, put_in_place, scratch_beside, undisturbed, writing
from onnxfuse.shapes import inference
from onnxfuse.wording import is_utf8

_ALIGNMENT = 64
_EXTERNAL_BYTES = 1024
"""Tensors smaller than this stay in the model file unless they were external before."""

_OUTLINED = 1 << 16
"""Bytes of a tensor whose elements an outline has, which are shapes, indices and the like."""

_SMALL = 1 << 20
"""Bytes of a model file that is read as a whole."""

_PROTOBUF_LIMIT = (1 << 31) - 1
_PROTOBUF_MARGIN = 64 << 20
"""Room left for everything in a model file that is not tensor data."""


def load(path: str | Path) -> Model:
    """Read, check and infer the model in a file.

    Raises OnnxfuseError, one line that names the file, when it cannot be read, is no valid ONNX model of a version that
    the installed onnx knows, has a cycle or types that do not check, or has external data that is missing, too short or
    outside the model's directory.  Unknown operator domains are no error.
    """
    path = Path(path)
    with _naming(path):
        proto, stored = _read_model(path)
        return load_proto(proto, path=path, stored=stored)


def read_proto(path: str | Path) -> ModelProto:
    """The model in a file, without its external data and hardly checked.

    Raises OnnxfuseError, one line that names the file, if it cannot be read or is no ONNX model.
    """
    path = Path(path)
    with _naming(path):
        proto = parse(_read(path))
        _check_graph(proto)
        check_names(proto)
        return proto


def read_outline(path: str | Path) -> ModelProto:
    """``read_proto`` without the data of large initializers, which takes no memory of their size.

    These have their names, types and dimensions, and no elements.
    """
    path = Path(path)
    with _naming(path):
        _check_regular(path)
        try:
            light = outline(tensor_data.OpenFile(path).mapped(), _OUTLINED)
        except (OSError, ValueError):  # empty, damaged, or no file that can be mapped: it is said of the whole
            return read_proto(path)
        proto = parse(light)
        _check_graph(proto)
        check_names(proto)
        return proto


def read_stored(path: str | Path) -> tuple[ModelProto, dict[str, tensor_data.Stored]]:
    """``read_proto`` without the data of large initializers, and that data, by their names, as ``Model.from_proto``
    takes it: it stays in the file until it is asked for."""
    path = Path(path)
    with _naming(path):
        proto, stored = _read_model(path)
        _check_graph(proto)
        check_names(proto)
        return proto, stored


def external_files(path: Path) -> set[Path]:
    """The files, links resolved, that hold data of the model in a file; none if ``load`` would refuse it for them."""
    try:
        return {part.path for _, part in _external_slices(read_outline(path), path.parent)}
    except OnnxfuseError:
        return set()


def parse(data: bytes) -> ModelProto:
    """The model in these bytes.  Raises OnnxfuseError if there is none."""
    if not data:
        raise OnnxfuseError("it is empty")
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RuntimeError, ValueError) as error:
        raise OnnxfuseError("not an ONNX model, or a damaged or truncated one") from error
    return proto


def load_proto(
    proto: ModelProto,
    *,
    path: str | Path | None = None,
    stored: Mapping[str, tensor_data.Stored] = tensor_data.NOTHING_STORED,
) -> Model:
    """``load`` for a model already in memory, which is kept and must not be changed from now on.

    ``path`` is the file that it comes from; external data is relative to its directory.  ``stored`` has the data of
    initializers, by their names, that are without.
    """
    _check_versions(proto)
    check_names(proto)
    check_attributes(proto)
    path = None if path is None else Path(path)
    tensor_data.check_all(proto, None if path is None else path.parent)
    try:
        model = Model.from_proto(proto, path, stored)
        for graph in model.graphs():
            sorted_nodes(graph)
        light = model.export(light=True)
    except UnicodeDecodeError as error:
        raise OnnxfuseError("not a valid ONNX model: it has a name or a text that is not UTF-8") from error
    _check_structure(light)
    check_inlining(proto)
    inference.run(model, light, None, check_types=True)
    return model


def load_again(source: Path | ModelProto, shapes: inference.Shapes | None) -> Model:
    """``load`` or ``load_proto`` of a model that one of them has taken before, or that was written here.

    What they check is not checked again.  ``shapes`` gives graph inputs other shapes for the analysis.
    """
    if isinstance(source, ModelProto):
        model = Model.from_proto(source)
    else:
        with _naming(source):
            proto, stored = _read_model(source)
            model = Model.from_proto(proto, source, stored)
    inference.infer(model, shapes)
    return model


def check_output(path: str | Path, source: str | Path | None, *, overwrite: bool = False) -> None:
    """Raise OnnxfuseError, before any work is done, for an output path that ``save`` would refuse.

    Of external data it takes for granted that the output has some if the source has.
    """
    path, source = Path(path), None if source is None else Path(source)
    target = _refuse(path, source, overwrite)
    if files := _files_at_risk(target, source):
        _refuse_files(path, target, source, files)
        _refuse_data(path, target, source, files)


def save(
    model: Model,
    path: str | Path,
    *,
    overwrite: bool = False,
    source: str | Path | None = None,
    check: Callable[[Path], None] | None = None,
) -> None:
    """Write ``model`` to ``path``, as ``staged`` does.

    ``check`` is called with the path of the finished model before it is put in place, and stops that by raising.
    """
    with staged(model, path, overwrite=overwrite, source=source) as written:
        if check is not None:
            check(written)


@contextmanager
def staged(
    model: Model, path: str | Path, *, overwrite: bool = False, source: str | Path | None = None
) -> Iterator[Path]:
    """Write ``model``, and on the way out put it at ``path``, with its external data, if any, in ``<path>.data``.

    Gives the path of the finished model in a directory of its own; the model is not held meanwhile.  An output path
    that is a link stays one, and both files are those of its target.  A file that is replaced passes its permissions
    on.  Tensors whose data was external stay external; so does new data of such a model, and the data of a model too
    large for one file.  ``source`` is the file that the model comes from, by default the one that it was loaded from.

    Raises OnnxfuseError if ``path`` is the source and ``overwrite`` is not set, if the model would replace external
    data of the source, or its data the source or data that the source still needs, or if it cannot be written.
    On any failure or interrupt, and if the block raises, the output path is as it was.  A model whose own external data
    was overwritten is to be loaded anew before its values are read again.
    """
    path = Path(path)
    source = model.path if source is None else Path(source)
    export = model.export(whole=False)
    slices = _external_slices(export.proto, model.directory)
    inline = _tensors_to_move(export, model.had_external_data)
    has_data = bool(slices or inline)
    target = _refuse(path, source, overwrite)
    files = _files_at_risk(target, source) | {part.path for _, part in slices}
    _refuse_files(path, target, source, files)
    data = _data_of(target)
    if has_data:
        check_beside(path, target, [data])
        _refuse_data(path, target, source, files)
    with scratch_beside(target, path) as directory:
        with writing(path):
            _write(export, slices, inline, directory, target.name, data.name)
        del model, export, slices, inline
        yield directory / target.name
        places = {directory / data.name: data} if has_data else {}
        with writing(path), undisturbed():
            put_in_place({**places, directory / target.name: target})


def _read_model(path: Path) -> tuple[ModelProto, dict[str, tensor_data.Stored]]:
    """The model in a file, and the data of its large initializers, which stays there until it is asked for."""
    _check_regular(path)
    with _readable():
        file = tensor_data.OpenFile(path)
    if file.size < _SMALL:
        return parse(_read(path)), {}
    try:
        light, places = divide(file.mapped(), _OUTLINED)
        proto = parse(light)
    except (OSError, ValueError, OnnxfuseError):  # damaged, or no file that can be mapped: it is said of the whole
        return parse(_read(path)), {}
    stored: dict[str, tensor_data.Stored] = {}
    for tensor in proto.graph.initializer:
        if (place := places.get(tensor.name)) is None:
            continue
        if place.length != (expected := tensor_data.byte_size(tensor)):
            raise OnnxfuseError(f"tensor {tensor.name!r}: it holds {place.length} bytes where {expected} are needed")
        stored[tensor.name] = tensor_data.FileSlice(tensor.name, path, place.offset, place.length, file)
    return proto, stored


def _read(path: Path) -> bytes:
    with _readable():
        _check_regular(path)
        return path.read_bytes()


def _check_regular(path: Path) -> None:
    with _readable():
        if not stat.S_ISREG(path.stat().st_mode):
            raise OnnxfuseError("it is not a file" if not path.is_dir() else "it is a directory, not a model file")
        if path.stat().st_size > _PROTOBUF_LIMIT:
            raise OnnxfuseError("it is larger than 2 GiB, so it is no ONNX model; larger models use external data")


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise OnnxfuseError("no such file") from None
    except (OSError, ValueError) as error:
        raise OnnxfuseError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _check_graph(proto: ModelProto) -> None:
    if not proto.HasField("graph"):
        raise OnnxfuseError("not an ONNX model: it has no graph")


def _check_versions(proto: ModelProto) -> None:
    _check_graph(proto)
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
    # It takes no function of another opset whose operators changed; ONNX Runtime does, and it is left alone here.
    functions = list(light.proto.functions)
    opsets = import_opsets(light.proto)
    del light.proto.functions[:]
    light.proto.functions.extend(function for function in functions if _is_of(function, opsets))
    contrib_operators.add_import(light.proto)
    ort_operators.hide(light.proto)
    try:
        onnx.checker.check_model(light.proto.SerializeToString())
    except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        raise OnnxfuseError(f"not a valid ONNX model: {_one_line(error)}") from error
    ort_operators.show(light.proto)
    del light.proto.functions[:]
    light.proto.functions.extend(functions)
    light.proto.graph.name = name
    for tensor, original in zip(light.stripped, dims, strict=True):
        tensor.dims[:] = original
    for tensor_type in without_shape:
        tensor_type.ClearField("shape")


Slices = list[tuple[TensorProto, tensor_data.FileSlice]]


def _external_slices(proto: ModelProto, directory: Path | None) -> Slices:
    return [
        (tensor, tensor_data.locate(tensor, directory))
        for tensor in tensor_data.tensors(proto)
        if tensor_data.is_external(tensor)
    ]


def _refuse(path: Path, source: Path | None, overwrite: bool) -> Path:
    """The file to write for the output ``path``.  Raises OnnxfuseError where none may be."""
    target = place(path)
    with writing(path):
        if not is_utf8(str(target)):
            raise OnnxfuseError("its path is not UTF-8, and ONNX Runtime takes no other")
        if _is_same(target, source) and not overwrite:
            raise OnnxfuseError("the output is the input; allow that with --overwrite (overwrite=True)")
    return target


def _data_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.data")


def _files_at_risk(target: Path, source: Path | None) -> set[Path]:
    """The files with the external data of ``source``; none if ``target`` and its data replace nothing but the source's.

    The source is read for it, but only where something is replaced.
    """
    exists = os.path.lexists(target) or os.path.lexists(_data_of(target))
    return external_files(source) if source is not None and exists and not _is_same(target, source) else set()


def _refuse_files(path: Path, target: Path, source: Path | None, files: set[Path]) -> None:
    """Raise OnnxfuseError where ``target`` is one of the ``files`` with the data of ``source``."""
    with writing(path):
        if not _is_same(target, source) and any(_is_same(target, file) for file in files):
            raise OnnxfuseError("it holds data of the input model")


def _refuse_data(path: Path, target: Path, source: Path | None, files: set[Path]) -> None:
    """Raise OnnxfuseError where the data of ``target`` would replace ``source``, or ``files`` that another needs."""
    data = _data_of(target)
    with writing(path):
        if _is_same(data, source):
            raise OnnxfuseError(f"its data would replace {data}, which is the input model")
        if not _is_same(target, source) and any(_is_same(data, file) for file in files):
            raise OnnxfuseError(f"its data would replace {data}, which belongs to the input model")


def _is_same(path: Path, other: Path | None) -> bool:
    if other is None:
        return False
    try:
        there = other.exists()
    except OSError:  # one that cannot be read says so when it is
        return False
    return there and path.exists() and path.samefile(other)


def _write(
    export: Export,
    slices: Slices,
    inline: list[TensorProto],
    directory: Path,
    model_name: str,
    data_name: str,
) -> None:
    if slices or inline:
        with (directory / data_name).open("xb") as file:
            written: dict[tuple[Path, int, int], int] = {}
            for tensor, part in slices:
                key = (part.path, part.offset, part.length)
                if key not in written:
                    written[key] = _align(file)
                    file.writelines(part.chunks())
                _make_external(tensor, data_name, written[key], part.length)
            for tensor in inline:
                offset = _align(file)
                if tensor.HasField("raw_data"):
                    file.write(tensor.raw_data)
                else:
                    file.writelines(export.stored.pop(tensor.name).chunks())
                _make_external(tensor, data_name, offset, file.tell() - offset)
            file.flush()
            os.fsync(file.fileno())
    with (directory / model_name).open("xb") as file:
        write_model(export.proto, file, export.stored)
        file.flush()
        os.fsync(file.fileno())


def _tensors_to_move(export: Export, has_external: bool) -> list[TensorProto]:
    """The tensors with raw data inside the model that are to be written outside it."""
    main = list(export.proto.graph.initializer)  # which are the same objects below
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
    stored = {id(tensor) for tensor in main if tensor.name in export.stored}
    return [tensor for tensor in candidates if tensor.HasField("raw_data") or id(tensor) in stored]


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


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OnnxfuseError as error:
        raise OnnxfuseError(f"{path}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _is_of(function: onnx.FunctionProto, opsets: Mapping[str, int]) -> bool:
    return all(opsets.get(domain, version) == version for domain, version in import_opsets(function).items())
