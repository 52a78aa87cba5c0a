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

from onnxfuse.cuda.conv.kernel import FAMILIES, ConvAccess, ConvKernel
from onnxfuse.cuda.recipe import LaunchRecipe, not_a_kernel
from onnxfuse.program.figures import MAX_CONV_SPLIT, MAX_CONV_TILE

HEADER = "onnxfuse-conv 1"
VECTORS = (1, 2, 4, 8)

_FIELDS = ("kernel", "family", "tile", "block", "split", "vector", "index", "access")
_NUMBER = re.compile(r"[1-9][0-9]{0,3}")


class ConvRecipe(LaunchRecipe[ConvKernel]):
    """That of convolutions."""

    header = HEADER

    def _problem(self, kernel: ConvKernel) -> str | None:
        if not all(1 <= size <= MAX_CONV_TILE for size in kernel.tile):
            return f"a tile of {kernel.tile}"
        if not 1 <= kernel.split <= MAX_CONV_SPLIT or (kernel.split > 1 and kernel.family != "gemm"):
            return f"a sum in {kernel.split} parts"
        if kernel.vector not in VECTORS or (kernel.vector > 1 and (kernel.index == 64 or kernel.family == "any")):
            return f"{kernel.vector} is not the length of a vector of this kernel"
        if kernel.family == "any" and kernel.tile != (1, 1, 1):
            return f"family any with a tile of {kernel.tile}"
        access, first = kernel.access, self.kernels[0].access
        if (len(access.prologue), len(access.epilogue)) != (len(first.prologue), len(first.epilogue)):
            return f"'{access}' is of other operands than '{first}'"
        return None

    @staticmethod
    def _names(kernel: ConvKernel) -> tuple[str, ...]:
        return (kernel.name,) if kernel.split == 1 else (kernel.name, kernel.sum_name)

    @staticmethod
    def _accepts_everything(kernel: ConvKernel) -> bool:
        return accepts_everything(kernel)

    @staticmethod
    def _parse_kernel(number: int, line: str) -> ConvKernel:
        words = line.split(" ")
        if tuple(words[::2]) == _FIELDS and len(words) == 2 * len(_FIELDS):
            name, family, tile, *sizes, access = words[1::2]
            families = [known for known in FAMILIES if known == family]
            edges = tile.split("x")
            if families and len(edges) == 3 and all(map(_NUMBER.fullmatch, (*edges, *sizes))):
                block, split, vector, index = map(int, sizes)
                m, n, k = map(int, edges)
                parsed = (m, n, k)
                with suppress(ValueError):
                    return ConvKernel(name, families[0], parsed, block, split, vector, index, ConvAccess.parse(access))
        raise not_a_kernel(number, line)


def accepts_everything(kernel: ConvKernel) -> bool:
    """Whether a kernel takes every shape and every pointer."""
    return kernel.family == "any" and kernel.index == 64 and set(kernel.access.letters) <= {"g"}
