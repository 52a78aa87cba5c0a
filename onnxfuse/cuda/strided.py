"""The tensors of a Program as strides along the dimensions of its space, and such dimensions collapsed."""

from collections.abc import Sequence

from onnxfuse.program import Input, ProgramError
from onnxfuse.program.strides import Strided, read_by

Dim = int | str | None
"""A dimension that may be known only by name, or not at all."""

STAND_INS = (3, 2, 4, 5, 8, 32, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024)
"""For sizes that are not known."""


def read_inputs(specs: Sequence[Input], shapes: Sequence[Sequence[int]]) -> list[Strided]:
    """What inputs read of tensors of these shapes, vectors along an axis in the rank of the region, and of tensors of
    which rows are named the first row.

    Raises ProgramError for shapes that do not fit, and for views that do not step evenly through memory.
    """
    if len(shapes) != len(specs):
        raise ProgramError(f"{len(shapes)} shapes for {len(specs)} inputs")
    found = [None if spec.axis is not None else read_by(spec, shape) for spec, shape in zip(specs, shapes, strict=True)]
    region = broadcast([one.sizes for one in found if one is not None])
    return [
        along_axis(spec, shape, region) if one is None else one
        for spec, shape, one in zip(specs, shapes, found, strict=True)
    ]


def along_axis(spec: Input, shape: Sequence[int], region: Sequence[int]) -> Strided:
    """A vector along an axis of the ``region``.  Raises ProgramError for what does not lie there."""
    axis = spec.axis or 0
    axis = axis + len(region) if axis < 0 else axis
    if len(shape) != 1 or not 0 <= axis < len(region) or shape[0] not in (1, region[axis]):
        raise ProgramError(f"an input of shape {list(shape)} does not lie along axis {spec.axis} of {list(region)}")
    sizes = tuple(shape[0] if dim == axis else 1 for dim in range(len(region)))
    return Strided(0, sizes, tuple(int(dim == axis) for dim in range(len(region))))


def broadcast(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The shape that these broadcast to.  Raises ProgramError if there is none."""
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for index, size in enumerate(shape, rank - len(shape)):
            if size != 1 and result[index] not in (1, size):
                raise ProgramError(f"shapes {', '.join(str(list(shape)) for shape in shapes)} do not broadcast")
            result[index] = size if size != 1 else result[index]
    return tuple(result)


def steps_in(tensor: Strided, rank: int) -> list[int]:
    """Its steps along the dimensions of a space of this rank."""
    own = [0 if size == 1 else step for size, step in zip(tensor.sizes, tensor.steps, strict=True)]
    return [0] * (rank - len(own)) + own


def collapse(dims: Sequence[tuple[int, Sequence[int]]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Sizes, and for each the steps of all tensors, of the dimensions that are left, the innermost first.

    Of the ``dims``, which are given likewise but from the outermost, those of 1 are dropped, and neighbours merged that
    all tensors step through alike.
    """
    sizes: list[int] = []
    steps: list[tuple[int, ...]] = []
    for size, own in reversed(dims):
        if size == 1:
            continue
        if sizes and all(step == last * sizes[-1] for step, last in zip(own, steps[-1], strict=True)):
            sizes[-1] *= size
        else:
            sizes.append(size)
            steps.append(tuple(own))
    return tuple(sizes), steps
