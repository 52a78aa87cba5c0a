"""The shapes of inputs that are made up: sizes in place of the dynamic dimensions that nothing is known of."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from onnxfuse.run.given_shapes import Shapes, symbol_sizes
from onnxfuse.run.inputs import InputSpec

_BATCH = re.compile(r"batch|^n$|^b$|^bs$", re.IGNORECASE)
_SPATIAL = re.compile(r"height|width|^h$|^w$", re.IGNORECASE)
_LENGTH = re.compile(r"seq|len|time|token|frame|sample", re.IGNORECASE)
_STATE = re.compile(r"state|hidden|^[hc]_?[0n]$", re.IGNORECASE)

MANY_ELEMENTS = 1 << 25
"""Elements in all inputs, or in all outputs, beyond which there is only the first kind of values, for all are held at
once; and in an input beyond which its dynamic dimensions shrink."""


@dataclass(frozen=True)
class Sizes:
    """What to put in place of dynamic dimensions, by what they seem to be."""

    batch: int = 1
    channels: int = 3
    spatial: int = 64
    length: int = 32


def size_name(spec: InputSpec, axis: int) -> str | None:
    """The name of the size of an input along an axis; None if the model fixes it."""
    dim = None if spec.shape is None else spec.shape[axis]
    return None if isinstance(dim, int) else dim or f"{spec.name}[{axis}]"


def resolve_shapes(
    specs: list[InputSpec], shapes: Shapes, sizes: Sizes, fixed: Mapping[str, int] = MappingProxyType({})
) -> Shapes:
    """A shape for every input: the user's, else the model's with ``sizes`` for its dynamic dimensions, but those that
    are ``fixed`` by their names, which are ``size_name``'s."""
    symbols = symbol_sizes(specs, shapes)
    open_ones = {name: size for name, size in fixed.items() if name not in symbols}
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
            if (name := size_name(spec, axis)) and name in open_ones:
                concrete.append(open_ones[name])
                continue
            size = min(_size(spec, axis, sizes), largest[spec.name])
            concrete.append(size if dim is None else symbols.setdefault(dim, min(size, crowded[dim])))
        resolved[spec.name] = tuple(concrete)
    return resolved


def _size(spec: InputSpec, axis: int, sizes: Sizes) -> int:
    """A size for the dynamic dimension ``axis``."""
    size: int = getattr(sizes, role_of(spec, axis))
    return size


def role_of(spec: InputSpec, axis: int) -> str:
    """Which of ``Sizes`` the dynamic dimension ``axis`` is, by its name, else by where it stands."""
    dims: tuple[int | str | None, ...] = spec.shape or (None,)
    name = str(dims[axis] or "")
    if _BATCH.search(name):
        return "batch"
    if _SPATIAL.search(name):
        return "spatial"
    if _LENGTH.search(name):
        return "length"
    # The state of a recurrent network is laid out (layers, batch, features).
    if axis == (1 if len(dims) == 3 and isinstance(dims[0], int) and _STATE.search(spec.name) else 0):
        return "batch"
    if len(dims) >= 4:
        channels_last = isinstance(dims[-1], int) and dims[-1] <= 4
        return "channels" if axis == 1 and not channels_last else "spatial"
    return "length"


def _largest(spec: InputSpec, sizes: Sizes) -> int:
    """The largest size for a dynamic dimension: small where they would fill the memory together."""
    dims = (None,) if spec.shape is None else spec.shape
    fixed = math.prod(dim for dim in dims if isinstance(dim, int))
    dynamic = [_size(spec, axis, sizes) for axis, dim in enumerate(dims) if not isinstance(dim, int)]
    largest = 8 if len(dynamic) > 5 else max(dynamic, default=1)
    while largest > 1 and fixed * math.prod(min(size, largest) for size in dynamic) > MANY_ELEMENTS:
        largest //= 2
    return largest
