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

    def places(self, size: int) -> range:
        """Which elements of an axis of ``size`` are read."""
        return range(size)[self.start : self.end : self.step]
