"""The launch recipe of a fused convolution: which kernels its machine code has, and what each of them accepts.

The text form is the attribute ``cuda_recipe`` of the node; the native library reads it as hostile input::

    onnxfuse-conv 1
    source 2f1c…          sha256 of the CUDA source text, 64 hexadecimal digits
    kernel conv_0 family gemm tile 64x64x16 block 256 split 4 vector 4 index 32 access ;cl
    kernel conv_1 family any tile 1x1x1 block 256 split 1 vector 1 index 64 access ;gg

Kernels are tried in order; the first that accepts is launched (``onnxfuse.cuda.conv.arguments`` has the conditions, the
grid and the parameters).  The last is of the family ``any``, by strides and with 64-bit indices, and accepts
everything.  The access has a letter for each operand of the prologue after X, a semicolon, and a letter for each
operand of the epilogue after the result; either may be empty.  The fields are those of ``onnxfuse.cuda.conv.kernel``.

There are 1 to 16 kernels.  A name is a C identifier of at most 128 characters (124 where ``split`` is more than 1, for
``NAME_sum`` is a kernel too), and no two are equal.  Each number of a tile is 1 to 4096, ``block`` a multiple of 32 up
to 1024, ``split`` 1 to 64, ``vector`` 1, 2, 4 or 8, ``index`` 32 or 64.  Only ``gemm`` splits.  A kernel with 64-bit
indices, and one of the family ``any``, has a vector of 1; one of the family ``any`` has the tile 1x1x1.  Numbers are
decimal without leading zeros, fields are separated by one space, every line ends in a newline.
"""

import re
from contextlib import suppress
from dataclasses import dataclass

from onnxfuse.cuda.conv.kernel import FAMILIES, ConvAccess, ConvKernel, ConvSource
from onnxfuse.cuda.recipe import INDEX_WIDTHS, MAX_BLOCK, WARP, RecipeError, check_recipe, recipe_lines, recipe_text

HEADER = "onnxfuse-conv 1"
MAX_TILE = 4096
MAX_SPLIT = 64
VECTORS = (1, 2, 4, 8)

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_NUMBER = re.compile(r"[1-9][0-9]{0,3}")


@dataclass(frozen=True)
class ConvRecipe:
    """A validated recipe: the sha256 of the ``source`` in hexadecimal, and its ``kernels`` in the order tried."""

    source: str
    kernels: tuple[ConvKernel, ...]

    def __post_init__(self) -> None:
        problems = [self._problem(kernel) for kernel in self.kernels]
        check_recipe(self.source, problems, [name for kernel in self.kernels for name in _names(kernel)])
        if not accepts_everything(self.kernels[-1]):
            raise RecipeError("the last kernel does not accept everything")

    def _problem(self, kernel: ConvKernel) -> str | None:
        if not all(map(_IDENTIFIER.fullmatch, _names(kernel))):
            return f"{kernel.name!r} is not the name of a kernel"
        if not all(1 <= size <= MAX_TILE for size in kernel.tile):
            return f"a tile of {kernel.tile}"
        if not WARP <= kernel.block <= MAX_BLOCK or kernel.block % WARP:
            return f"a block of {kernel.block} threads is not a multiple of {WARP} up to {MAX_BLOCK}"
        if not 1 <= kernel.split <= MAX_SPLIT or (kernel.split > 1 and kernel.family != "gemm"):
            return f"a sum in {kernel.split} parts"
        if kernel.vector not in VECTORS or (kernel.vector > 1 and (kernel.index == 64 or kernel.family == "any")):
            return f"{kernel.vector} is not the length of a vector of this kernel"
        if kernel.index not in INDEX_WIDTHS:
            return f"indices of {kernel.index} bits"
        if kernel.family == "any" and kernel.tile != (1, 1, 1):
            return f"family any with a tile of {kernel.tile}"
        access, first = kernel.access, self.kernels[0].access
        if (len(access.prologue), len(access.epilogue)) != (len(first.prologue), len(first.epilogue)):
            return f"'{access}' is of other operands than '{first}'"
        return None

    @classmethod
    def of(cls, source: ConvSource) -> "ConvRecipe":
        """The recipe of a rendered source."""
        return cls(source.sha256, source.kernels)

    def __str__(self) -> str:
        return recipe_text(HEADER, self.source, self.kernels)

    @classmethod
    def parse(cls, text: str) -> "ConvRecipe":
        """Read the text form.  Raises RecipeError, which names the line, for anything that does not validate."""
        source, lines = recipe_lines(text, HEADER)
        return cls(source, tuple(_parse_kernel(number, line) for number, line in lines))


def accepts_everything(kernel: ConvKernel) -> bool:
    """Whether a kernel takes every shape and every pointer."""
    return kernel.family == "any" and kernel.index == 64 and set(kernel.access.letters) <= {"g"}


def _names(kernel: ConvKernel) -> tuple[str, ...]:
    return (kernel.name,) if kernel.split == 1 else (kernel.name, kernel.sum_name)


_FIELDS = ("kernel", "family", "tile", "block", "split", "vector", "index", "access")


def _parse_kernel(number: int, line: str) -> ConvKernel:
    words = line.split(" ")
    if tuple(words[::2]) == _FIELDS and len(words) == 2 * len(_FIELDS):
        name, family, tile, *sizes, access = words[1::2]
        families = [known for known in FAMILIES if known == family]
        edges = tile.split("x")
        if families and len(edges) == 3 and all(map(_NUMBER.fullmatch, (*edges, *sizes))):
            block, split, vector, index = map(int, sizes)
            m, n, k = map(int, edges)
            with suppress(ValueError):
                return ConvKernel(name, families[0], (m, n, k), block, split, vector, index, ConvAccess.parse(access))
    raise RecipeError(f"line {number}: {line!r} is not a kernel")
