"""What is read along an axis."""

from typing import NamedTuple


class AxisSlice(NamedTuple):
    """What is read along an axis of a tensor, as ONNX's Slice reads it; ``step`` is at least 1.

    ``axis``, ``start`` and ``end`` count from the back if they are negative; the latter are moved into the axis.
    """

    axis: int
    start: int
    end: int
    step: int

    @classmethod
    def parse(cls, text: str) -> "AxisSlice":
        """Read the four numbers, with colons between.  Raises ValueError for anything else."""
        numbers = [int(word) for word in text.split(":")]
        if len(numbers) != len(cls._fields) or ":".join(map(str, numbers)) != text:
            raise ValueError(f"{text!r} is not a slice of an axis")
        return cls(*numbers)

    def is_valid(self) -> bool:
        """Whether the numbers are in range: axes from -64 to 63, 64 bits, and a step of at least 1."""
        return all(-(1 << 63) <= number < 1 << 63 for number in self) and -64 <= self.axis < 64 and self.step >= 1

    def places(self, size: int) -> range:
        """Which elements of an axis of ``size`` are read."""
        return range(size)[self.start : self.end : self.step]
