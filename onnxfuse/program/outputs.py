"""The lines of a Program's text that say what is written: ``output id [view …]`` and ``append id axis [view …]``."""

from collections.abc import Sequence

from onnxfuse.program.figures import MAX_RANK
from onnxfuse.program.view_steps import NIBBLES, ViewStep, check_steps, parse_steps

OUTPUT, APPEND = "output", "append"


def parse_id(word: str) -> int:
    """The id of a value.  Raises ValueError for what is none."""
    if not word.isascii() or not word.isdigit() or (len(word) > 1 and word[0] == "0"):
        raise ValueError(f"{word!r} is not a value id")
    return int(word)


def parse_axes(text: str) -> tuple[int, ...]:
    """Axes, separated by commas.  Raises ValueError for what are none."""
    axes = tuple(map(int, text.split(",")))
    if ",".join(map(str, axes)) != text:
        raise ValueError(f"{text!r} are no axes")
    return axes


def parse_output(words: Sequence[str], is_newer: bool) -> tuple[int, int, tuple[ViewStep, ...]]:
    """The value, the axis along which it is appended, which is 0 for an ``output``, and the steps of its view.

    Raises ValueError for what is neither; version 1 has neither views nor appended parts.
    """
    match words:
        case ["output", word]:
            return parse_id(word), 0, ()
        case ["output", word, "view", steps] if is_newer:
            return parse_id(word), 0, parse_steps(steps)
        case ["append", word, axis]:
            return parse_id(word), _parse_axis(axis), ()
        case ["append", word, axis, "view", steps]:
            return parse_id(word), _parse_axis(axis), parse_steps(steps)
        case _:
            raise ValueError("not an output")


def _parse_axis(text: str) -> int:
    (axis,) = parse_axes(text)
    if axis == 0:
        raise ValueError("the axis is not a negative number")
    return axis


def output_line(value: int, axis: int, steps: Sequence[ViewStep]) -> str:
    """The line of what :func:`parse_output` gives."""
    line = f"{APPEND} {value} {axis}" if axis else f"{OUTPUT} {value}"
    return line + (" view " + ",".join(map(str, steps)) if steps else "")


def check_output_view(steps: Sequence[ViewStep]) -> None:
    """Raises ValueError for steps that lead to no output."""
    check_steps(steps)
    if any(step.name in ("slice", "permute", NIBBLES) for step in steps):
        raise ValueError("an output has all elements of what is computed, in their order")


def tensors_of(appends: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The places of the parts of each tensor, of which those are that begin with an axis of 0."""
    begins = [place for place, axis in enumerate(appends) if axis == 0]
    return tuple(tuple(range(begin, end)) for begin, end in zip(begins, [*begins[1:], len(appends)], strict=True))


def check_part(axis: int, first: int, dtype: str, whole: str) -> None:
    """Raises ValueError for a part of a type and along an axis if those of its tensor are ``whole`` and ``first``."""
    if not -MAX_RANK <= axis < 0 or axis != first:
        raise ValueError("the axis of the parts of an output is one negative number")
    if dtype != whole:
        raise ValueError("the parts of an output have one type")
