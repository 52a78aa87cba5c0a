"""The inputs of a model: their signatures, and values for them read from files."""

import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.sessions import Value

Given = Path | Mapping[str, Value]
"""What ``read_inputs`` takes: the path of a file or directory, or values by the names of inputs."""

OF_TENSORS = ("tensor", "sequence", "optional")
"""The kinds of inputs that are made up, and read from files."""


@dataclass(frozen=True)
class InputSpec:
    """One input of a model.  ``shape`` has a str for a symbolic dimension, None for an unknown one; None: any
    rank.  ``kind`` is what it is, or holds: "tensor", "sequence" or "optional" of tensors of ``elem_type``; else, with
    no type, "map", "sparse tensor", "sequence of maps" and the like."""

    name: str
    elem_type: int
    shape: tuple[int | str | None, ...] | None
    kind: str = "tensor"

    def __post_init__(self) -> None:
        # Exporters write dimensions that they know nothing of as "?", "" or -1.
        if self.shape is not None:
            unknown = ("?", "")
            dims = (None if dim in unknown or (isinstance(dim, int) and dim < 0) else dim for dim in self.shape)
            object.__setattr__(self, "shape", tuple(dims))

    @property
    def dtype(self) -> np.dtype:
        """The NumPy type of the elements."""
        return helper.tensor_dtype_to_np_dtype(self.elem_type)

    @property
    def is_static(self) -> bool:
        """Whether all of its dimensions are numbers."""
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)

    def describe(self) -> str:
        """For a message: ``images: float32[batch, 3, ?, ?]``."""
        if self.kind not in OF_TENSORS:
            return f"{self.name}: {self.kind}"
        dims = "…" if self.shape is None else ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.name}: {type_name(self.elem_type)}[{dims}]"


@dataclass
class InputSet:
    """Values for every input of a model, and where they come from."""

    label: str
    feeds: dict[str, Value] = field(repr=False)

    def shapes(self) -> dict[str, list[int]]:
        """The shapes of the tensors."""
        return {name: list(value.shape) for name, value in self.feeds.items() if isinstance(value, np.ndarray)}


def type_name(elem_type: int) -> str:
    """The lower-case name of a ``TensorProto.DataType``: ``float``, ``int64``, ``bfloat16``."""
    try:
        return str(onnx.TensorProto.DataType.Name(elem_type)).lower()
    except ValueError:
        return f"type {elem_type}"


def input_specs(model: onnx.ModelProto) -> list[InputSpec]:
    """The inputs that a caller has to feed: graph inputs that no initializer gives a default."""
    defaults = _initializers(model)
    return [value_spec(value) for value in model.graph.input if value.name not in defaults]


def default_specs(model: onnx.ModelProto) -> list[InputSpec]:
    """The other inputs, which a caller may feed: those that an initializer gives a default."""
    defaults = _initializers(model)
    return [value_spec(value) for value in model.graph.input if value.name in defaults]


def _initializers(model: onnx.ModelProto) -> set[str]:
    dense = {tensor.name for tensor in model.graph.initializer}
    return dense | {tensor.values.name for tensor in model.graph.sparse_initializer}


def value_spec(value: onnx.ValueInfoProto) -> InputSpec:
    """The signature of one graph input or output."""
    proto = value.type
    kind = "tensor"
    while proto.WhichOneof("value") in ("sequence_type", "optional_type"):
        kind = "sequence" if proto.HasField("sequence_type") or kind == "sequence" else "optional"
        proto = proto.sequence_type.elem_type if proto.HasField("sequence_type") else proto.optional_type.elem_type
    other = {"map_type": "map", "sparse_tensor_type": "sparse tensor"}.get(proto.WhichOneof("value") or "")
    if other:
        kind = other if kind == "tensor" else f"{kind} of {other}s"
    tensor = proto.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(
            dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else (dim.dim_param or None)
            for dim in tensor.shape.dim  # some exporters write -1 for a dynamic dimension
        )
    return InputSpec(value.name, tensor.elem_type, shape, kind)


def with_article(kind: str) -> str:
    """For a message: ``a sequence``, ``an optional``."""
    return f"{'an' if kind.startswith('optional') else 'a'} {kind}"


# --- inputs from files ---


def read_inputs(given: Given, specs: list[InputSpec], defaults: Iterable[InputSpec] = ()) -> list[InputSet]:
    """Input sets from an ``.npz`` file (arrays named as the inputs), from a directory, or of arrays by the names of the
    inputs; an ``.npz`` file and a dict may have values for the inputs with ``defaults`` too.

    A directory holds ``.npz`` files, ``test_data_set_*`` directories as the ONNX backend tests have them
    (``input_0.pb``, ``input_1.pb``, … in the order of the graph's inputs), or the ``input_*.pb`` files
    themselves.  Raises OnnxfuseError for anything else, and for values that do not fit the model.
    """
    if isinstance(given, Mapping):
        tensors = {spec.name for spec in (*specs, *defaults) if spec.kind == "tensor"}
        for name, value in given.items():
            if name in tensors and not isinstance(value, np.ndarray):
                raise OnnxfuseError(f"inputs has no array for {name!r}, but {type(value).__name__}")
        return [InputSet("the arrays given", _fitting(given, "inputs", specs, tuple(defaults)))]
    path = given
    if path.is_dir():
        sets = [path] if any(path.glob("input_*.pb")) else sorted(path.glob("test_data_set_*"))
        files = [*sets, *sorted(path.glob("*.npz"))]
        if not files:
            raise OnnxfuseError(f"no .npz file, test_data_set_* directory or input_*.pb file in {path}")
    elif path.exists():
        files = [path]
    else:
        raise OnnxfuseError(f"no such file or directory: {path}")
    return [InputSet(file.name, _read_set(file, specs, tuple(defaults))) for file in files]


def _read_set(path: Path, specs: list[InputSpec], defaults: tuple[InputSpec, ...]) -> dict[str, Value]:
    for spec in specs:
        if spec.kind not in OF_TENSORS:
            raise OnnxfuseError(f"{spec.name!r} is {with_article(spec.kind)}, which is not read from files")
    try:
        feeds = _read_protobufs(path, specs) if path.is_dir() else _read_npz(path)
    except OnnxfuseError:
        raise
    except Exception as error:  # NumPy, zipfile and protobuf each raise their own kinds for a damaged file
        raise OnnxfuseError(f"cannot read inputs from {path}: {' '.join(str(error).split())}") from error
    return _fitting(feeds, str(path), specs, defaults)


def _fitting(
    feeds: Mapping[str, Value], source: str, specs: list[InputSpec], defaults: tuple[InputSpec, ...]
) -> dict[str, Value]:
    """The values for the inputs, which ``source`` gives.  Raises OnnxfuseError if some do not fit or are missing."""
    given = [*specs, *(spec for spec in defaults if spec.name in feeds)]
    names = {spec.name for spec in given}
    missing = [spec.name for spec in specs if spec.name not in feeds]
    extra = [name for name in feeds if name not in names]
    if missing:
        raise OnnxfuseError(f"{source} has no value for input {missing[0]!r}")
    if extra:
        raise OnnxfuseError(f"{source} has a value for {extra[0]!r}, which is no input of the model")
    return {spec.name: _checked(feeds[spec.name], spec, source) for spec in given}


def _read_npz(path: Path) -> dict[str, Value]:
    _check_regular(path)
    if not zipfile.is_zipfile(path):
        raise OnnxfuseError(f"{path} is not an .npz archive, or a damaged or truncated one")
    with np.load(path, allow_pickle=False) as archive:
        values = {name: archive[name] for name in archive.files}
    for name, value in values.items():
        if not isinstance(value, np.ndarray):  # NumPy gives the bytes of other files
            raise OnnxfuseError(f"{path} has no array for {name!r}, but another file")
    return values


def _read_protobufs(folder: Path, specs: list[InputSpec]) -> dict[str, Value]:
    feeds: dict[str, Value] = {}
    wanted = {f"input_{index}.pb" for index in range(len(specs))}
    extra = sorted({file.name for file in folder.glob("input_*.pb")} - wanted)
    if extra:
        raise OnnxfuseError(f"{folder} has {extra[0]}, which is for no input of the model")
    for index, spec in enumerate(specs):
        file = folder / f"input_{index}.pb"
        if not file.exists():
            raise OnnxfuseError(f"{folder} has no input_{index}.pb for input {spec.name!r}")
        _check_regular(file)
        data = file.read_bytes()
        if spec.kind == "sequence":
            feeds[spec.name] = numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        elif spec.kind == "optional":
            feeds[spec.name] = numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
        else:
            feeds[spec.name] = numpy_helper.to_array(onnx.TensorProto.FromString(data))
    return feeds


def _check_regular(path: Path) -> None:
    if not path.is_file():  # a FIFO may never end, or never begin
        raise OnnxfuseError(f"{path} is not a regular file")


def _checked(value: Value, spec: InputSpec, source: str) -> Value:
    if spec.kind != "tensor" or not isinstance(value, np.ndarray):
        return value
    structured = value.dtype.names is not None
    raw = value.dtype.kind == "V" and not structured and value.dtype.itemsize == spec.dtype.itemsize
    if raw and spec.dtype.isbuiltin != 1:
        value = value.view(spec.dtype)  # NumPy files do not know bfloat16 and its kin: they keep the bits alone
    if value.dtype.newbyteorder("=") == spec.dtype:
        value = value.astype(spec.dtype, copy=False)
    if value.dtype != spec.dtype and (structured or spec.elem_type != onnx.TensorProto.STRING):
        raise OnnxfuseError(f"{source}: {spec.describe()} cannot take an array of {value.dtype}")
    fits = spec.shape is None or (
        len(spec.shape) == value.ndim
        and all(not isinstance(dim, int) or dim == size for dim, size in zip(spec.shape, value.shape, strict=True))
    )
    if not fits:
        raise OnnxfuseError(f"{source}: {spec.describe()} cannot take an array of shape {list(value.shape)}")
    return value
