"""Inputs to run a model on, made up so that they are realistic for its signature."""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from onnxfuse.comparison import precision
from onnxfuse.errors import OnnxfuseError
from onnxfuse.given_shapes import Shapes, symbol_sizes
from onnxfuse.inputs import OF_TENSORS, InputSet, InputSpec, with_article
from onnxfuse.sessions import SessionError, Value


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
        if spec.kind not in OF_TENSORS or spec.elem_type == onnx.TensorProto.UNDEFINED:
            what = f"{spec.kind} of an unknown type" if spec.kind in OF_TENSORS else spec.kind
            raise OnnxfuseError(f"no inputs can be made up for {spec.name!r}, {with_article(what)}")
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
