"""The tiles of attention by the size of heads, and those that are tried where registers run out."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from onnxfuse.program.figures import SHARED_BYTES

LARGEST_HEAD = 256
"""The size of the largest head that there are tiles for."""
MOST_COLUMNS = 128
"""Of a result that a block has: those of larger heads are shared by blocks."""
SIZES = (64, 128, 256)
"""Those that there are kernels for where the size of heads is not known."""
FRAGMENT = 16
"""Sizes are multiples of this."""

SHARERS = 16
"""Threads that share a row without tensor cores."""


@dataclass(frozen=True)
class AttentionTiling:
    """``rows`` x ``keys`` scores at a time, for heads of up to ``size`` elements and ``columns`` columns of the result.

    Without tensor cores a thread has the scores of ``per_thread`` rows.
    """

    family: Literal["tensor", "simt"]
    rows: int
    keys: int
    size: int
    columns: int
    per_thread: int = 4

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.rows * 2 if self.family == "tensor" else self.rows // self.per_thread * SHARERS

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, as the device code lays it out."""
        if self.family == "tensor":
            return 2 * self.keys * (self.size + 8 + self.columns + 8)
        of_rows = self.rows * (self.size + 4 + self.keys + 4)
        return 4 * (of_rows + self.keys * (self.size + 4 + self.columns + 4))


Tilings = tuple[AttentionTiling, AttentionTiling]
"""For many rows, and for few."""


def tilings_of(dtype: str, size: int, value_size: int) -> Iterator[Tilings]:
    """The tiles for many rows and for few, of heads of up to these sizes, the best by argument first."""
    padded = -(-max(size, 1) // FRAGMENT) * FRAGMENT
    columns = min(-(-max(value_size, 1) // FRAGMENT) * FRAGMENT, MOST_COLUMNS)

    def fitting(rows: int, per_thread: int) -> Iterator[AttentionTiling]:
        family: Literal["simt", "tensor"] = "simt" if dtype == "f32" else "tensor"
        for keys in (64, 32, 16):
            tiling = AttentionTiling(family, rows, keys, padded, columns, per_thread)
            if tiling.shared_bytes <= SHARED_BYTES:
                yield tiling

    few = list(fitting(8, 4) if dtype == "f32" else fitting(16, 4))
    for rows, per_thread in ((64, 8), (32, 4), (16, 4)) if dtype == "f32" else ((64, 4),):
        for many in fitting(rows, per_thread):
            yield many, next(one for one in few if one.keys <= many.keys)
