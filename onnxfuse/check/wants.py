"""What is wanted of the values of a tensor, and what is known around the node that wants it."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxfuse.check.tensor_facts import Dims, Facts, attributes

MOST_TRIED = 1 << 14
"""Ways that are tried to come by a declared shape."""

FEW = 8
"""What a number is at most that nothing bounds."""


@dataclass(frozen=True)
class Want:
    """Bounds of the elements of a tensor, both included, in arrays that broadcast to its shape.  ``distinct``: no two
    elements of a vector, or rows of a matrix, are the same."""

    low: np.ndarray
    high: np.ndarray
    distinct: bool = False

    def within(self, other: "Want") -> "Want | None":
        """What both want; None if there is no such value."""
        try:
            low, high = np.maximum(self.low, other.low), np.minimum(self.high, other.high)
        except ValueError:  # shapes that do not go together
            return None
        return Want(low, high, self.distinct or other.distinct) if np.all(low <= high) else None

    def is_uniform(self) -> bool:
        """Whether all elements have the same bounds."""
        return self.low.size == 1 and self.high.size == 1

    def is_range(self) -> bool:
        """Whether an element may have several values."""
        return bool(np.all(self.low < self.high))


def between(low: float, high: float) -> Want:
    """The same bounds for every element."""
    return Want(np.array(low, np.float64), np.array(high, np.float64))


def exactly(values: Iterable[float] | np.ndarray | float) -> Want:
    """These values and no others."""
    array = np.array(values if isinstance(values, (np.ndarray, float, int)) else list(values), np.float64)
    return Want(array, array)


@dataclass(frozen=True)
class Reader:
    """A node that reads a tensor, and what is known around it."""

    node: NodeProto
    place: int
    facts: Facts
    wanted: Callable[[str], Want | None]
    """What is wanted of what the node makes, by name."""
    branch: bool
    """Which way a condition goes."""
    direct: bool = False
    """Whether an input of the model is what is read."""

    def shape(self, place: int) -> Dims | None:
        """The shape of an input of the node."""
        return self.facts.shape(self.node.input[place]) if self.has(place) else None

    def whole(self, place: int) -> tuple[int, ...] | None:
        """That shape if every size of it is known."""
        return self.facts.whole_shape(self.node.input[place]) if self.has(place) else None

    def has(self, place: int) -> bool:
        """Whether the node has an input at a place."""
        return place < len(self.node.input) and bool(self.node.input[place])

    def value(self, place: int) -> np.ndarray | None:
        """The value of an input of the node, if it is known."""
        return self.facts.value(self.node.input[place]) if self.has(place) else None

    def integers(self, place: int) -> list[int] | None:
        """The elements of an input of the node, if they are known."""
        value = self.value(place)
        return None if value is None else [int(element) for element in value.reshape(-1)]

    def count(self, declared: Dims | None = None) -> int:
        """How many elements the tensor has; if that is not known one for each size that is declared, or 1."""
        shape = self.whole(self.place)
        if shape is None:
            return 1 if declared is None else len(declared)
        return math.prod(shape)

    def declared(self, place: int = 0) -> Dims | None:
        """The shape that the model declares of a result."""
        return self.facts.declared(self.node.output[place]) if place < len(self.node.output) else None

    def attribute(self, name: str, default: int) -> int:
        """An integer attribute."""
        return int(attributes(self.node).get(name, default))

    def integers_of(self, name: str, default: list[int]) -> list[int]:
        """A list of integers in an attribute."""
        return list(attributes(self.node).get(name, default))


Rule = Callable[[Reader], Want | None]


def dim(shape: Dims | None, axis: int) -> int | None:
    """A size of a shape; None where it has none such, or it is not known."""
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    return shape[axis]


def whole(shape: Dims | None) -> tuple[int, ...] | None:
    """A shape if all its sizes are known."""
    return None if shape is None or None in shape else tuple(size for size in shape if size is not None)


def up_to(limit: int | None, low: int = 0) -> Want | None:
    """From ``low`` up to a limit; None where that is not known, or less."""
    return None if limit is None or limit < low else between(low, limit)
