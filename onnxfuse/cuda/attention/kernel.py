"""What is known of a generated kernel of attention besides its text."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from onnxfuse.cuda.kernel import SourceText

Family = Literal["tensor", "simt", "any"]
FAMILIES: tuple[Family, ...] = ("tensor", "simt", "any")

TYPES = ("f32", "f16", "bf16")
"""The types of Q, K, V, the mask and the result that there are kernels for."""

READS = ("-", "m", "c", "mc")
"""What a kernel reads besides Q, K and V: ``m`` a mask that is added to the scores, ``c`` choices that put a number in
their place."""


@dataclass(frozen=True)
class AttentionKernel:
    """A kernel of a source, of blocks of ``block`` threads.

    A block has ``rows`` rows of Q, of heads that share one of K and V, and ``columns`` columns of the result, and goes
    through the keys, ``keys`` at a time; heads of Q and K have ``size`` elements at most, or any number if it is 0.  Up
    to ``split`` blocks may share the keys of a row.  ``vector`` neighbouring elements are read at once.  ``zeros`` says
    that rows of which masks leave nothing are zero.
    """

    name: str
    family: Family
    dtype: str
    reads: str
    zeros: bool
    rows: int
    keys: int
    size: int
    columns: int
    block: int
    vector: int
    split: int

    def __str__(self) -> str:
        return (
            f"kernel {self.name} family {self.family} type {self.dtype} reads {self.reads} zeros {int(self.zeros)} "
            f"rows {self.rows} keys {self.keys} size {self.size} columns {self.columns} block {self.block} "
            f"vector {self.vector} split {self.split}"
        )

    @property
    def index(self) -> int:
        """Bits of the place of an element, the same in all of them."""
        return 64

    @property
    def sum_name(self) -> str:
        """The kernel that joins what the splits of this one have left."""
        return f"{self.name}_sum"

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of its functions, in the order in which they are launched."""
        return (self.name, self.sum_name) if self.split > 1 else (self.name,)


@dataclass(frozen=True)
class AttentionSource(SourceText):
    """A source and its kernels, in the order in which a launch tries them."""

    kernels: tuple[AttentionKernel, ...]

    def functions(self) -> Iterator[str]:
        """The names of all functions that are launched."""
        for kernel in self.kernels:
            yield from kernel.functions
