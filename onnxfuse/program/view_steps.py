"""How a Program sees a tensor that lies in memory in another shape or order: steps, applied one after the other.

=================  ============================================================================================
``slice:a:b:e:s``  along axis a from b up to but not including e every s-th element, as ONNX's Slice has it
``split:a:o:i``    axis a becomes two, of o and i elements; one of the two may be -1, which is what the other leaves
``merge:a``        axes a and a + 1 become one
``permute:p.q.…``  the axes, counted from the front, in this order
``squeeze:a``      axis a, of one element, is left out
``unsqueeze:a``    a new axis of one element, which is axis a of the result
``nibbles:a``      axis a, the last, of bytes that are two elements of 4 bits each, the first of them in the low half
=================  ============================================================================================

Axes count from the back and are negative.  An input's steps lead from the tensor to what the Program reads, an output's
from what the Program computes to the tensor.  ``nibbles`` comes first, of an input of bytes; its elements are numbers
from 0 to 15.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onnxfuse.program.figures import MAX_RANK, MAX_VIEW_STEPS

_NUMBERS = {"slice": 4, "split": 3, "merge": 1, "squeeze": 1, "unsqueeze": 1, "nibbles": 1}
NIBBLES = "nibbles"
_LIMIT = 1 << 63


class ViewStep(NamedTuple):
    """One step: its name and its numbers, in the order of the table above."""

    name: str
    numbers: tuple[int, ...]

    def __str__(self) -> str:
        if self.name == "permute":
            return "permute:" + ".".join(map(str, self.numbers))
        return ":".join((self.name, *map(str, self.numbers)))

    def check(self) -> None:
        """Raises ValueError for a step that fits no tensor."""
        if self.name == "permute":
            if sorted(self.numbers) != list(range(len(self.numbers))) or not 1 < len(self.numbers) <= MAX_RANK:
                raise ValueError(f"'{self}' is no order of axes")
            return
        if len(self.numbers) != _NUMBERS[self.name]:
            raise ValueError(f"{self.name} takes {_NUMBERS[self.name]} numbers")
        axis, *rest = self.numbers
        if not -MAX_RANK <= axis < (-1 if self.name == "merge" else 0):
            raise ValueError(f"the axis of '{self}' is out of range")
        if not all(-_LIMIT <= number < _LIMIT for number in rest):
            raise ValueError(f"a number of '{self}' is out of range")
        if self.name == NIBBLES and axis != -1:
            raise ValueError(f"'{self}' is not of the last axis")
        if self.name == "slice" and rest[2] < 1:
            raise ValueError(f"the step of '{self}' is not at least 1")
        if self.name == "split" and not (min(rest) == -1 < 0 < max(rest) or min(rest) > 0):
            raise ValueError(f"'{self}' does not say how an axis is split")


def parse_steps(text: str) -> tuple[ViewStep, ...]:
    """Steps from their text form, separated by commas.  Raises ValueError for what is none."""
    steps = tuple(map(_parse_step, text.split(",")))
    if ",".join(map(str, steps)) != text:
        raise ValueError(f"{text!r} is no view")
    return steps


def _parse_step(text: str) -> ViewStep:
    name, _, numbers = text.partition(":")
    if name not in _NUMBERS and name != "permute":
        raise ValueError(f"{name!r} is no step of a view")
    return ViewStep(name, tuple(map(int, numbers.split("." if name == "permute" else ":"))))


def check_steps(steps: Sequence[ViewStep]) -> None:
    """Raises ValueError if they are too many, or one fits no tensor."""
    if len(steps) > MAX_VIEW_STEPS:
        raise ValueError(f"{len(steps)} steps of a view; the limit is {MAX_VIEW_STEPS}")
    for place, step in enumerate(steps):
        step.check()
        if step.name == NIBBLES and place > 0:
            raise ValueError(f"'{step}' of what is no tensor of bytes")


def has_nibbles(steps: Sequence[ViewStep]) -> bool:
    """Whether what is read are halves of bytes."""
    return bool(steps) and steps[0].name == NIBBLES


def viewed(array: np.ndarray, steps: Sequence[ViewStep]) -> np.ndarray:
    """What the steps make of an array.  Raises ValueError where they do not fit its shape."""
    for step in steps:
        array = _apply(array, step)
    return array


def _apply(array: np.ndarray, step: ViewStep) -> np.ndarray:
    shape, rank = list(array.shape), array.ndim
    if step.name == "permute":
        if len(step.numbers) != rank:
            raise ValueError(f"'{step}' of a tensor of {rank} dimensions")
        return array.transpose(step.numbers)
    axis, *rest = step.numbers
    if axis + rank + (step.name == "unsqueeze") < 0:
        raise ValueError(f"there is no axis {axis} of {rank}")
    at = axis + rank
    match step.name:
        case "slice":
            return array[(slice(None),) * at + (slice(rest[0], rest[1], rest[2]),)]
        case "split":
            return array.reshape(shape[:at] + split_size(shape[at], rest) + shape[at + 1 :])
        case "merge":
            return array.reshape((*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]))
        case "squeeze":
            return array.squeeze(at)
        case "nibbles":
            return np.stack([array & 15, array >> 4], -1).reshape((*shape[:-1], 2 * shape[-1]))
        case _:
            return np.expand_dims(array, axis)


def split_size(size: int, parts: Sequence[int]) -> list[int]:
    """The sizes of the two axes that one of ``size`` elements is split into.  Raises ValueError if there are none."""
    outer, inner = parts
    if outer < 0:
        outer = size // inner
    elif inner < 0:
        inner = size // outer
    if outer * inner != size:
        raise ValueError(f"an axis of {size} elements does not split into {parts[0]} and {parts[1]}")
    return [outer, inner]
