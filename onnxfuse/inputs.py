"""Inputs to run a model on: read from files, or made up so that they are realistic for its signature."""

import math
import operator
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfuse.comparison import precision
from onnxfuse.errors import OnnxfuseError
from onnxfuse.sessions import SessionError, Value

Shapes = dict[str, tuple[int, ...]]
"""Input name to the shape that the user asked for, and name of a symbolic dimension to its one size."""

_OF_TENSORS = ("tensor", "sequence", "optional")
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

    def describe(self) -> str:
        """For a message: ``images: float32[batch, 3, ?, ?]``."""
        if self.kind not in _OF_TENSORS:
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


# --- shapes that the user gives ---


def parse_shapes(options: list[str]) -> Shapes:
    """``["image=1x3x640x640", "batch=1", "scale="]`` as shapes; the last ``=`` ends the name, nothing after it is a
    scalar."""
    shapes: Shapes = {}
    for option in options:
        name, equals, sizes = option.rpartition("=")
        if not equals or not name or not re.fullmatch(r"(\d+(x\d+)*)?", sizes, re.ASCII):
            raise OnnxfuseError(f"--shape {option!r}: write it as NAME=SIZExSIZE…, for example image=1x3x640x640")
        if name in shapes:
            raise OnnxfuseError(f"--shape gives a shape to {name!r} twice")
        try:
            shapes[name] = tuple(int(size) for size in sizes.split("x")) if sizes else ()
        except ValueError as error:  # Python reads no number of more than 4300 digits
            raise OnnxfuseError(f"--shape gives {name!r} a size of too many digits: {_SIZES_ARE}") from error
    return checked_shapes(shapes)


_SIZES_ARE = "sizes are whole numbers from 0 to 2**63 - 1"


def checked_shapes(shapes: Mapping[str, Iterable[int] | int]) -> Shapes:
    """Shapes as they may be given, with integers of any kind, and one size by itself.  Raises OnnxfuseError for what is
    no shape."""
    if not isinstance(shapes, Mapping):
        raise OnnxfuseError(f"shapes are given as a dict of the inputs' names, not as {type(shapes).__name__}")
    return {name: _checked_shape(name, shape) for name, shape in shapes.items()}


def _checked_shape(name: str, shape: Iterable[int] | int) -> tuple[int, ...]:
    try:
        if not isinstance(shape, Iterable):
            return (_checked_size(shape),)
        if isinstance(shape, (str, bytes)):
            raise TypeError("it has no sizes, though one can iterate over it")
        return tuple(map(_checked_size, shape))
    except (TypeError, ValueError) as error:
        raise OnnxfuseError(f"{_shown(shape)} is no shape for {name!r}: {_SIZES_ARE}") from error


def _shown(shape: object) -> str:
    try:
        return repr(shape)
    except ValueError:  # Python writes no number of more than 4300 digits
        return "what is given"


def _checked_size(given: int) -> int:
    size = operator.index(given)
    if isinstance(given, bool) or not 0 <= size < 1 << 63:
        raise ValueError(given)
    return size


def fit_shapes(specs: list[InputSpec], shapes: Shapes) -> Shapes:
    """The shapes that the user gives, and those of other inputs of which they fix every dimension.

    Raises OnnxfuseError unless each names an input, and agrees with the dimensions that the model fixes, or else names
    a symbolic dimension and is one size.
    """
    by_name = {spec.name: spec for spec in specs}
    dimensions = {dim for spec in specs for dim in spec.shape or () if isinstance(dim, str)}
    symbols: dict[str, int] = {}
    for name, shape in shapes.items():
        if name in by_name:
            continue
        if name not in dimensions:
            inputs, named = ", ".join(by_name) or "none", ", ".join(sorted(dimensions)) or "none"
            raise OnnxfuseError(
                f"the model has no input or dimension {name!r}; its inputs are: {inputs}; its named dimensions: {named}"
            )
        if len(shape) != 1:
            raise OnnxfuseError(f"dimension {name!r} has one size, not {'x'.join(map(str, shape)) or 'none'}")
        symbols[name] = shape[0]
    for name, shape in shapes.items():
        if name not in by_name:
            continue
        spec = by_name[name]
        if spec.shape is None:
            continue
        fits = len(spec.shape) == len(shape) and all(
            not isinstance(dim, int) or dim == size for dim, size in zip(spec.shape, shape, strict=True)
        )
        if not fits:
            raise OnnxfuseError(f"shape {'x'.join(map(str, shape)) or 'scalar'} does not fit input {spec.describe()}")
        for dim, size in zip(spec.shape, shape, strict=True):
            if isinstance(dim, str) and symbols.setdefault(dim, size) != size:
                raise OnnxfuseError(f"the shapes give dimension {dim!r} both {symbols[dim]} and {size}")
    fitted = dict(shapes)
    for spec in specs:
        sizes = [symbols.get(dim) if isinstance(dim, str) else dim for dim in spec.shape or ()]
        if spec.name not in shapes and not dimensions.isdisjoint(spec.shape or ()):
            whole = tuple(size for size in sizes if size is not None)
            if len(whole) == len(sizes):
                fitted[spec.name] = whole
    return fitted


def symbol_sizes(specs: list[InputSpec], shapes: Shapes) -> dict[str, int]:
    """The symbolic dimensions that the shapes fix."""
    inputs = {spec.name for spec in specs}
    return {name: shape[0] for name, shape in shapes.items() if name not in inputs and len(shape) == 1} | {
        dim: size
        for spec in specs
        if spec.name in shapes and spec.shape is not None
        for dim, size in zip(spec.shape, shapes[spec.name], strict=True)
        if isinstance(dim, str)
    }


# --- inputs from files ---


def read_inputs(path: Path, specs: list[InputSpec], defaults: Iterable[InputSpec] = ()) -> list[InputSet]:
    """Input sets from an ``.npz`` file (arrays named as the inputs), or from a directory; an ``.npz`` file may have
    values for the inputs with ``defaults`` too.

    A directory holds ``.npz`` files, ``test_data_set_*`` directories as the ONNX backend tests have them
    (``input_0.pb``, ``input_1.pb``, … in the order of the graph's inputs), or the ``input_*.pb`` files
    themselves.  Raises OnnxfuseError for anything else, and for values that do not fit the model.
    """
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
        if spec.kind not in _OF_TENSORS:
            raise OnnxfuseError(f"{spec.name!r} is {_a(spec.kind)}, which is not read from files")
    try:
        feeds = _read_protobufs(path, specs) if path.is_dir() else _read_npz(path)
    except OnnxfuseError:
        raise
    except Exception as error:  # NumPy, zipfile and protobuf each raise their own kinds for a damaged file
        raise OnnxfuseError(f"cannot read inputs from {path}: {' '.join(str(error).split())}") from error
    given = [*specs, *(spec for spec in defaults if spec.name in feeds)]
    names = {spec.name for spec in given}
    missing = [spec.name for spec in specs if spec.name not in feeds]
    extra = [name for name in feeds if name not in names]
    if missing:
        raise OnnxfuseError(f"{path} has no value for input {missing[0]!r}")
    if extra:
        raise OnnxfuseError(f"{path} has a value for {extra[0]!r}, which is no input of the model")
    return {spec.name: _checked(feeds[spec.name], spec, path) for spec in given}


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


def _checked(value: Value, spec: InputSpec, path: Path) -> Value:
    if spec.kind != "tensor" or not isinstance(value, np.ndarray):
        return value
    structured = value.dtype.names is not None
    raw = value.dtype.kind == "V" and not structured and value.dtype.itemsize == spec.dtype.itemsize
    if raw and spec.dtype.isbuiltin != 1:
        value = value.view(spec.dtype)  # NumPy files do not know bfloat16 and its kin: they keep the bits alone
    if value.dtype.newbyteorder("=") == spec.dtype:
        value = value.astype(spec.dtype, copy=False)
    if value.dtype != spec.dtype and (structured or spec.elem_type != onnx.TensorProto.STRING):
        raise OnnxfuseError(f"{path}: {spec.describe()} cannot take an array of {value.dtype}")
    fits = spec.shape is None or (
        len(spec.shape) == value.ndim
        and all(not isinstance(dim, int) or dim == size for dim, size in zip(spec.shape, value.shape, strict=True))
    )
    if not fits:
        raise OnnxfuseError(f"{path}: {spec.describe()} cannot take an array of shape {list(value.shape)}")
    return value


# --- made-up inputs ---


@dataclass(frozen=True)
class Sizes:
    """What to put in place of dynamic dimensions, by what they seem to be."""

    batch: int = 1
    channels: int = 3
    spatial: int = 64
    length: int = 32


_SIZES = (
    Sizes(),
    Sizes(spatial=224, length=16),
    Sizes(channels=1),
    Sizes(spatial=32, length=8),
    Sizes(spatial=128, length=128),
    Sizes(spatial=256, length=1),
    Sizes(spatial=640, length=512),
    Sizes(channels=4, spatial=16, length=2),
)
BENCHMARK_SIZES = (Sizes(spatial=224, length=128), *_SIZES)
"""Larger sizes first: what a benchmark should try."""

_INTEGER_BOUNDS = (
    16,
    2,
    1,
)  # integers that index something must stay below a bound that the signature does not tell
_BATCH = re.compile(r"batch|^n$|^b$|^bs$", re.IGNORECASE)
_SPATIAL = re.compile(r"height|width|^h$|^w$", re.IGNORECASE)
_LENGTH = re.compile(r"seq|len|time|token|frame|sample", re.IGNORECASE)
_STATE = re.compile(r"state|hidden|^[hc]_?[0n]$", re.IGNORECASE)
_RATE = re.compile(r"^sr$|sample_?rate|sampling_?rate", re.IGNORECASE)
_MASK = re.compile(r"mask", re.IGNORECASE)

_MOST_BYTES = 1 << 31
_MOST_DIMENSIONS = 64
"""In all made-up inputs together."""
_MANY = 1 << 25
"""Elements in all inputs, or in all outputs, beyond which there is only the first kind of values, for all are held at
once; and in an input beyond which its dynamic dimensions shrink."""
_PART = 1 << 20
"""Elements that are made at a time."""

_GIVE_OTHERS = "give others where the command has --shape or --inputs"
NO_INPUTS = f"could not run the original with generated inputs: {_GIVE_OTHERS}"


def generate(
    specs: list[InputSpec],
    run: Callable[[dict[str, Value]], list[Value]],
    shapes: Shapes,
    candidates: tuple[Sizes, ...] = _SIZES,
) -> Iterator[tuple[InputSet, list[Value]]]:
    """Made-up input sets on which ``run`` (of the original model) succeeds, each with the outputs it gave.

    Three kinds: standard normal; a page of dark strokes on white where an input looks like an image (networks that
    find things in images answer noise with next to nothing), uniform in [0, 1) for other inputs, with a batch of two
    where the batch is dynamic; and magnitudes spread from 0.001 to 30 with exact zeros.  Integers stay in a small
    range, which shrinks until the model takes them (an index must not leave its table).  A bool by itself, which may
    choose a branch, is true in the first set and false in the second.  Inputs or outputs of more than 32 Mi elements
    are only made once, of the first kind.  Raises OnnxfuseError if nothing runs, and for an input that holds no
    tensors.
    """
    for spec in specs:
        if spec.kind not in _OF_TENSORS or spec.elem_type == onnx.TensorProto.UNDEFINED:
            what = f"{spec.kind} of an unknown type" if spec.kind in _OF_TENSORS else spec.kind
            raise OnnxfuseError(f"no inputs can be made up for {spec.name!r}, {_a(what)}")
    failure = ""
    seen = set()
    for sizes in candidates:
        for bound in _INTEGER_BOUNDS:
            resolved = resolve_shapes(specs, shapes, sizes)
            key = (tuple(resolved.items()), bound if any(_is_integer(spec) for spec in specs) else 0)
            if key in seen:
                continue
            seen.add(key)
            inputs = make_inputs(specs, resolved, "normal", bound)
            try:
                outputs = run(inputs.feeds)
            except SessionError as error:
                failure = failure or str(error)
                continue
            yield inputs, outputs
            if max(_elements(inputs.feeds.values()), _elements(outputs)) <= _MANY:
                yield from _variations(specs, run, shapes, sizes, bound)
            return
    raise OnnxfuseError(f"{NO_INPUTS} ({failure})")


def _a(kind: str) -> str:
    return f"{'an' if kind.startswith('optional') else 'a'} {kind}"


def _elements(values: Iterable[Value]) -> int:
    return sum(value.size for value in values if isinstance(value, np.ndarray))


def _variations(
    specs: list[InputSpec],
    run: Callable[[dict[str, Value]], list[Value]],
    shapes: Shapes,
    sizes: Sizes,
    bound: int,
) -> Iterator[tuple[InputSet, list[Value]]]:
    """The other kinds of values; a kind that the model refuses (a batch of two, say) is left out."""
    if not specs:
        return
    pair = Sizes(2, sizes.channels, sizes.spatial, sizes.length)
    shapes_here = resolve_shapes(specs, shapes, sizes)
    natural = "image" if any(_is_image(spec, shapes_here[spec.name]) for spec in specs) else "uniform"
    for kind, batches in ((natural, (pair, sizes)), ("spread", (sizes,))):
        for batch in batches:
            inputs = make_inputs(specs, resolve_shapes(specs, shapes, batch), kind, bound)
            try:
                outputs = run(inputs.feeds)
            except SessionError:
                continue
            yield inputs, outputs
            break


def resolve_shapes(specs: list[InputSpec], shapes: Shapes, sizes: Sizes) -> Shapes:
    """A shape for every input: the user's, else the model's with ``sizes`` for its dynamic dimensions."""
    symbols = symbol_sizes(specs, shapes)
    largest = {spec.name: _largest(spec, sizes) for spec in specs}
    crowded: dict[str, int] = {}  # the least of these for each symbol, which other inputs may have too
    for spec in specs:
        for dim in spec.shape or ():
            if isinstance(dim, str):
                crowded[dim] = min(largest[spec.name], crowded.get(dim, largest[spec.name]))
    resolved: Shapes = {}
    for spec in specs:
        if spec.name in shapes:
            resolved[spec.name] = shapes[spec.name]
            continue
        concrete = []
        for axis, dim in enumerate(spec.shape if spec.shape is not None else (None,)):
            if isinstance(dim, int):
                concrete.append(dim)
                continue
            size = min(_size(spec, axis, sizes), largest[spec.name])
            concrete.append(size if dim is None else symbols.setdefault(dim, min(size, crowded[dim])))
        resolved[spec.name] = tuple(concrete)
    return resolved


def _size(spec: InputSpec, axis: int, sizes: Sizes) -> int:
    """A size for the dynamic dimension ``axis``, by its name, else by where it stands."""
    dims: tuple[int | str | None, ...] = spec.shape or (None,)
    name = str(dims[axis] or "")
    if _BATCH.search(name):
        return sizes.batch
    if _SPATIAL.search(name):
        return sizes.spatial
    if _LENGTH.search(name):
        return sizes.length
    # The state of a recurrent network is laid out (layers, batch, features).
    if axis == (1 if len(dims) == 3 and isinstance(dims[0], int) and _STATE.search(spec.name) else 0):
        return sizes.batch
    if len(dims) >= 4:
        channels_last = isinstance(dims[-1], int) and dims[-1] <= 4
        return sizes.channels if axis == 1 and not channels_last else sizes.spatial
    return sizes.length


def _largest(spec: InputSpec, sizes: Sizes) -> int:
    """The largest size for a dynamic dimension: small where they would fill the memory together."""
    dims = (None,) if spec.shape is None else spec.shape
    fixed = math.prod(dim for dim in dims if isinstance(dim, int))
    dynamic = [_size(spec, axis, sizes) for axis, dim in enumerate(dims) if not isinstance(dim, int)]
    largest = 8 if len(dynamic) > 5 else max(dynamic, default=1)
    while largest > 1 and fixed * math.prod(min(size, largest) for size in dynamic) > _MANY:
        largest //= 2
    return largest


def _is_integer(spec: InputSpec) -> bool:
    return spec.dtype.kind in "iu"


def make_inputs(specs: list[InputSpec], shapes: Shapes, kind: str, bound: int) -> InputSet:
    """Values of the given kind ("normal", "uniform", "image", "spread"), the same each time; integers in [0, bound).

    Raises OnnxfuseError where they are larger than 2 GiB.
    """
    _check_size(specs, shapes)
    generator = np.random.default_rng([2024, len(kind), bound])
    feeds: dict[str, Value] = {}
    for spec in specs:
        shape = shapes[spec.name]
        value = _values(spec, shape, kind, bound, generator)
        feeds[spec.name] = [value] if spec.kind == "sequence" else value
    return InputSet(f"{kind} values", feeds)


def _check_size(specs: list[InputSpec], shapes: Shapes) -> None:
    for spec in specs:
        rank = len(shapes[spec.name])
        if rank > _MOST_DIMENSIONS:
            raise OnnxfuseError(
                f"input {spec.name!r} has {rank} dimensions, and NumPy's arrays {_MOST_DIMENSIONS} at most"
            )
    sizes = [math.prod(shapes[spec.name]) * max(spec.dtype.itemsize, 1) for spec in specs]
    if sum(sizes) > _MOST_BYTES:
        _, spec = max(zip(sizes, specs, strict=True), key=lambda pair: pair[0])
        shape = list(shapes[spec.name])
        raise OnnxfuseError(
            f"the inputs, {spec.describe()} of shape {shape} among them, are larger than 2 GiB: {_GIVE_OTHERS}"
        )


def _values(spec: InputSpec, shape: tuple[int, ...], kind: str, bound: int, generator: np.random.Generator) -> Value:
    if spec.elem_type == onnx.TensorProto.STRING:
        return np.full(shape, "text", dtype=object)
    dtype = spec.dtype
    if kind == "image" and _is_image(spec, shape):
        return _page(shape, dtype, generator)
    if dtype.kind == "b" and math.prod(shape) == 1 and kind != "spread":
        return np.full(shape, kind == "normal")
    if dtype.kind == "b":
        return _filled(shape, dtype, lambda count: generator.random(count) < 0.5)
    if dtype.kind in "iu":
        return _integers(spec, shape, bound, generator)
    if dtype.kind == "c":
        return np.asarray(generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype)
    if kind == "normal":
        return _filled(shape, dtype, lambda count: generator.standard_normal(count, dtype=np.float32))
    return np.asarray(_floats(shape, kind, generator)).astype(dtype, copy=False)


def _filled(shape: tuple[int, ...], dtype: np.dtype, draw: Callable[[int], np.ndarray]) -> np.ndarray:
    """An array of the numbers that ``draw`` gives, which may be of a wider type: it is asked for a part at a time."""
    values = np.empty(shape, dtype)
    flat = values.reshape(-1)
    for start in range(0, flat.size, _PART):
        part = flat[start : start + _PART]
        part[:] = draw(part.size)
    return values


def _floats(shape: tuple[int, ...], kind: str, generator: np.random.Generator) -> np.ndarray:
    if kind in ("uniform", "image"):
        return generator.random(shape, dtype=np.float32)
    values = generator.standard_normal(shape, dtype=np.float32)
    magnitude = 10.0 ** generator.uniform(-3.0, 1.5, shape).astype(np.float32)
    return np.where(generator.random(shape) < 0.01, np.float32(0), np.sign(values) * magnitude)


_CHANNELS = (1, 3, 4)


def _is_image(spec: InputSpec, shape: tuple[int, ...]) -> bool:
    if spec.kind != "tensor" or len(shape) != 4 or (shape[1] not in _CHANNELS and shape[3] not in _CHANNELS):
        return False
    return spec.elem_type == onnx.TensorProto.UINT8 or precision(spec.dtype) > 0


def _page(shape: tuple[int, ...], dtype: np.dtype, generator: np.random.Generator) -> np.ndarray:
    """Images of lines of dark strokes on white with a little noise, in about [-1, 1], or [0, 255] for bytes."""
    batch, height, width = (shape[0], *shape[2:]) if shape[1] in _CHANNELS else shape[:3]
    strokes = generator.random((batch, -(-height // 12), -(-width // 2))) < 0.5
    ink = strokes.repeat(12, axis=1).repeat(2, axis=2)[:, :height, :width]
    ink &= (np.arange(height) % 12 < 8)[:, None]
    margin = width // 8
    ink &= (np.arange(width) >= margin) & (np.arange(width) < width - margin)
    page = np.where(ink, np.float32(-0.9), np.float32(0.9))
    image = np.broadcast_to(np.expand_dims(page, 1 if shape[1] in _CHANNELS else 3), shape)
    image = image + np.float32(0.03) * generator.standard_normal(shape, dtype=np.float32)
    if dtype == np.uint8:
        image = np.clip(127.5 + 127.5 * image, 0, 255)
    return np.asarray(image).astype(dtype)


def _integers(spec: InputSpec, shape: tuple[int, ...], bound: int, generator: np.random.Generator) -> np.ndarray:
    if spec.dtype.itemsize == 1 and len(shape) >= 3:  # pixels or quantized activations rather than indices
        low, high = (-128, 128) if spec.dtype.kind == "i" else (0, 256)
        return _filled(shape, spec.dtype, lambda count: generator.integers(low, high, count))
    if _RATE.search(spec.name) and spec.dtype.itemsize > 2:
        return np.full(shape, 16000, spec.dtype)
    if _MASK.search(spec.name):
        mask = _filled(shape, spec.dtype, lambda count: generator.integers(0, 2, count))
        if mask.size:
            mask.reshape(-1)[0] = 1  # a row that attends to nothing is not what a model meets
        return mask
    return _filled(shape, spec.dtype, lambda count: generator.integers(0, bound, count))
