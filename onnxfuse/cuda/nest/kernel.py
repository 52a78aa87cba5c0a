"""What is known of a generated kernel of a Program that reduces, besides its text."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from onnxfuse.cuda.kernel import SourceText
from onnxfuse.program.figures import NEST_LANES

LETTERS = "slbg"
"""How a kernel finds element r of a row in an operand: ``s`` the row's only one; ``l`` by a constant step for each r,
which is 1 in kernels along rows; ``b`` by strides over the reduced dimensions, of which the innermost has one element
there, as the scale of a block, in kernels along rows; ``g`` by strides over them."""
WRITTEN = "slg"
"""Those of outputs."""
SHARED = LETTERS.upper()
"""The same of an input or an index that is the same for all tiles of a kernel that has several."""

Along = Literal["rows", "columns"]
ALONG: tuple[Along, ...] = ("rows", "columns")


@dataclass(frozen=True)
class NestAccess:
    """A letter for each input, each index and each output of a Program."""

    inputs: str
    indices: str
    outputs: str

    def __str__(self) -> str:
        return f"{self.inputs}:{self.indices}:{self.outputs}"

    @classmethod
    def parse(cls, text: str) -> "NestAccess":
        """Read what ``str`` writes.  Raises ValueError for any other text."""
        parts = text.split(":")
        if len(parts) != 3 or not parts[2] or any(map(_is_wrong, parts, (True, True, False))):
            raise ValueError(f"{text!r} is not an access pattern of rows")
        return cls(*parts)

    @property
    def letters(self) -> str:
        """The letters of all operands: inputs, indices, outputs."""
        return self.inputs + self.indices + self.outputs


def _is_wrong(letters: str, is_read: bool) -> bool:
    return bool(set(letters) - set(LETTERS + SHARED if is_read else WRITTEN))


@dataclass(frozen=True)
class NestKernel:
    """A kernel of a source, of blocks of ``block`` threads.

    Along rows a row is shared by ``threads`` threads, and ``vector`` neighbours of a row are read and written at once;
    along columns these are ``vector`` rows that lie side by side, a block takes 32 such groups, and ``threads`` of its
    threads share each.  A thread keeps what it needs of ``items`` groups; with 0 it reads the row again in each pass.
    A kernel with ``steps`` is as many functions, one for each pass, of which several blocks share a row and hand on the
    results of reductions in a workspace; else it is one.  ``index`` is the width of indices in bits.  With a ``tile``
    of more than 1 a thread has as many rows, one for each place along the outermost of the dimensions that stay, and
    reads once what these share.
    """

    name: str
    along: Along
    threads: int
    items: int
    vector: int
    block: int
    index: int
    steps: int
    access: NestAccess
    tile: int = 1

    def __str__(self) -> str:
        text = (
            f"kernel {self.name} along {self.along} threads {self.threads} items {self.items} vector {self.vector} "
            f"block {self.block} index {self.index} steps {self.steps} access {self.access}"
        )
        return f"{text} tile {self.tile}" if self.tile > 1 else text

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of its functions, in the order in which they are launched."""
        return tuple(f"{self.name}_{step}" for step in range(self.steps)) if self.steps else (self.name,)

    @property
    def capacity(self) -> int:
        """The longest row that it takes; 0 for any."""
        return self.threads * self.items * (self.vector if self.along == "rows" else 1)

    @property
    def rows_of_block(self) -> int:
        """How many rows a block takes, of each tile."""
        return self.block // self.threads if self.along == "rows" else NEST_LANES * self.vector


@dataclass(frozen=True)
class NestSource(SourceText):
    """A source and its kernels, in the order in which a launch tries them."""

    kernels: tuple[NestKernel, ...]

    def functions(self) -> Iterator[str]:
        """The names of all functions that are launched."""
        for kernel in self.kernels:
            yield from kernel.functions
