"""What is known of a generated convolution kernel besides its text."""

from dataclasses import dataclass
from typing import Literal

from onnxfuse.cuda.kernel import SourceText

LETTERS = "lscog"
"""How a kernel reads element (n, m, d, h, w) of the space [N, M, out…] (of the prologue's [N, C, in…]) from an operand:
``l`` the operand has the whole shape; ``s`` its only element; ``c`` element m, one for each channel; ``o`` element
n·M + m, one for each channel of each image; ``g`` by strides."""

Family = Literal["depthwise", "gemm", "direct", "any"]
FAMILIES: tuple[Family, ...] = ("depthwise", "gemm", "direct", "any")

Tile = tuple[int, int, int]


@dataclass(frozen=True)
class ConvAccess:
    """A letter for each operand but the first of the prologue (none without a prologue) and of the epilogue.

    The first operand is X or the convolution's result.  Outputs have no letters: they all have the shape of the result.
    """

    prologue: str
    epilogue: str

    def __str__(self) -> str:
        return f"{self.prologue};{self.epilogue}"

    @classmethod
    def parse(cls, text: str) -> "ConvAccess":
        """Read what ``str`` writes.  Raises ValueError for any other text."""
        prologue, semicolon, epilogue = text.partition(";")
        if not semicolon or set(prologue + epilogue) - set(LETTERS):
            raise ValueError(f"{text!r} is not an access pattern of a convolution")
        return cls(prologue, epilogue)

    @property
    def letters(self) -> str:
        """The letters of all operands: the prologue's, then the epilogue's."""
        return self.prologue + self.epilogue

    @property
    def general(self) -> "ConvAccess":
        """The access that serves all shapes."""
        return ConvAccess("g" * len(self.prologue), "g" * len(self.epilogue))


@dataclass(frozen=True)
class ConvKernel:
    """A kernel of a source.

    ``tile`` is what a block of ``block`` threads computes: for ``gemm`` channels x positions x products at a
    time; for ``depthwise`` planes x rows x columns; for ``direct`` channels x rows x columns; for ``any`` 1x1x1.
    The sum over K may be cut into up to ``split`` parts (``gemm`` only).  ``vector`` neighbouring elements of a row (of
    the positions for ``gemm``) are read and written at once.  ``index`` is the width in bits of indices.
    """

    name: str
    family: Family
    tile: Tile
    block: int
    split: int
    vector: int
    index: int
    access: ConvAccess

    def __str__(self) -> str:
        return (
            f"kernel {self.name} family {self.family} tile {'x'.join(map(str, self.tile))} block {self.block} "
            f"split {self.split} vector {self.vector} index {self.index} access {self.access}"
        )

    @property
    def sum_name(self) -> str:
        """The kernel that adds the parts of a ``split`` sum and applies the epilogue."""
        return f"{self.name}_sum"


@dataclass(frozen=True)
class ConvSource(SourceText):
    """A source and its kernels, in the order in which a launch tries them."""

    kernels: tuple[ConvKernel, ...]
