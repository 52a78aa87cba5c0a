"""The shapes of inputs, and sizes of dimensions, that the user gives."""

import operator
import re
from collections.abc import Iterable, Mapping

from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.inputs import InputSpec

Shapes = dict[str, tuple[int, ...]]
"""Input name to the shape that the user asked for, and name of a symbolic dimension to its one size."""


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


def guessed_inputs(specs: list[InputSpec], shapes: Shapes) -> list[str]:
    """The inputs of which some size is made up, for neither the model nor ``shapes``, as fitted, gives it."""
    return [
        spec.name
        for spec in specs
        if spec.name not in shapes
        and (spec.shape is None or any(not isinstance(dim, int) and dim not in shapes for dim in spec.shape))
    ]


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
        if not _takes(spec, shape):
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


def fit_shapes_of(specs: list[InputSpec], optimized: Iterable[InputSpec], shapes: Shapes) -> Shapes:
    """As ``fit_shapes``, with the shapes of other inputs that an optimized model alone fixes, as one made static does.

    Raises OnnxfuseError as that does.
    """
    fixed: Shapes = {}
    by_name = {spec.name: spec for spec in specs}
    for spec in optimized:
        sizes = tuple(dim for dim in spec.shape or () if isinstance(dim, int))
        other = by_name.get(spec.name)
        if spec.is_static and other is not None and not other.is_static and _takes(other, sizes):
            fixed[spec.name] = sizes
    return fit_shapes(specs, fixed | shapes)


def _takes(spec: InputSpec, shape: tuple[int, ...]) -> bool:
    """Whether a shape agrees with the dimensions that the model fixes."""
    return spec.shape is None or (
        len(spec.shape) == len(shape)
        and all(not isinstance(dim, int) or dim == size for dim, size in zip(spec.shape, shape, strict=True))
    )


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
