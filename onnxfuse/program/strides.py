"""Views as strides: where in memory the elements lie that a Program reads through the steps of a view."""

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse.model.slices import AxisSlice
from onnxfuse.program.program import Input, ProgramError
from onnxfuse.program.view_steps import ViewStep, split_size


@dataclass(frozen=True)
class Strided:
    """A tensor of these sizes, whose element (0, 0, …) is element ``offset`` of memory; ``steps`` are in elements.

    Of what is read of bytes by halves, elements are these.
    """

    offset: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]


def dense(shape: Sequence[int]) -> Strided:
    """A whole tensor in its own order."""
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return Strided(0, tuple(shape), tuple(reversed(steps)))


def read_by(spec: Input, shape: Sequence[int]) -> Strided:
    """What an input that is no vector along an axis reads of a tensor; where it is named rows, of the first of them.

    Raises ProgramError where its view does not fit the shape, or does not step evenly through memory.
    """
    if spec.swaps_halves:
        raise ProgramError("halves that change places do not step evenly through memory")
    steps = [ViewStep("slice", _from_back(part, len(shape))) for part in spec.slices] or list(spec.view)
    if spec.row is not None and not shape:
        raise ProgramError(f"'{spec}' of a tensor without dimensions")
    tensor = dense(shape if spec.row is None else shape[1:])
    for step in steps:
        try:
            tensor = _apply(tensor, step)
        except ValueError as error:
            raise ProgramError(f"'{spec}' of shape {list(shape)}: {error}") from None
    return tensor


def output_shape(shape: Sequence[int], steps: Sequence[ViewStep]) -> tuple[int, ...]:
    """The shape of an output's tensor, of what is computed.  Raises ProgramError where the steps do not fit."""
    tensor = dense(shape)
    for step in steps:
        try:
            tensor = _apply(tensor, step)
        except ValueError as error:
            raise ProgramError(f"'{step}' of an output of shape {list(shape)}: {error}") from None
    return tensor.sizes


def _from_back(part: tuple[int, ...], rank: int) -> tuple[int, ...]:
    axis, *rest = part
    if not -rank <= axis < rank:
        raise ProgramError(f"there is no axis {axis} of {rank}")
    return (axis if axis < 0 else axis - rank, *rest)


def _apply(tensor: Strided, step: ViewStep) -> Strided:
    rank, numbers = len(tensor.sizes), step.numbers
    sizes, steps, offset = list(tensor.sizes), list(tensor.steps), tensor.offset
    if step.name == "permute":
        if len(numbers) != rank:
            raise ValueError(f"'{step}' of a tensor of {rank} dimensions")
        return Strided(offset, tuple(sizes[axis] for axis in numbers), tuple(steps[axis] for axis in numbers))
    at = numbers[0] + rank
    if at + (step.name == "unsqueeze") < 0:
        raise ValueError(f"there is no axis {numbers[0]} of {rank}")
    match step.name:
        case "slice":
            places = AxisSlice(*numbers).places(sizes[at])
            offset += places.start * steps[at] if places else 0
            sizes[at], steps[at] = len(places), steps[at] * places.step
        case "split":
            outer, inner = split_size(sizes[at], numbers[1:])
            sizes[at : at + 1] = [outer, inner]
            steps[at : at + 1] = [steps[at] * inner, steps[at]]
        case "merge":
            (outer, inner), (far, near) = sizes[at : at + 2], steps[at : at + 2]
            if outer > 1 and inner > 1 and far != near * inner:
                raise ValueError(f"'{step}' does not step evenly through memory")
            sizes[at : at + 2] = [outer * inner]
            steps[at : at + 2] = [near if inner > 1 else far]
        case "nibbles":
            steps = [2 * step for step in steps[:-1]] + [1]
            sizes[at] *= 2
        case "squeeze":
            if sizes[at] != 1:
                raise ValueError(f"'{step}' of an axis of {sizes[at]} elements")
            del sizes[at], steps[at]
        case _:
            sizes.insert(at + 1, 1)
            steps.insert(at + 1, 0)
    return Strided(offset, tuple(sizes), tuple(steps))
