"""The launch recipe of an attention: which kernels its machine code has, and what each of them accepts.

The text form is the attribute ``cuda_recipe`` of the node; the native library reads it as hostile input::

    onnxfuse-cuda-attention 1
    source 2f1c…          sha256 of the CUDA source text, 64 hexadecimal digits
    kernel a_0 family simt type f32 reads m zeros 0 rows 64 keys 32 size 64 columns 64 block 128 vector 4 split 1
    kernel a_1 family any type f32 reads m zeros 0 rows 4 keys 1 size 0 columns 128 block 128 vector 1 split 1

The fields are those of ``onnxfuse.cuda.attention.kernel``, and ``onnxfuse.cuda.attention.arguments`` says which kernel
is launched.  There are 1 to 16 kernels, of one type and with equal ``reads`` and ``zeros``.  A name is a C identifier
of at most 128 characters (124 where ``split`` is more than 1, for ``NAME_sum`` is a kernel too), and no two are equal.
``rows``, ``keys`` and ``columns`` are 1 to 1024, ``size`` up to 1024, ``block`` a multiple of 32 up to 1024, ``vector``
1, 2, 4 or 8, ``split`` 1 to 64.  Only the family ``any`` has a size of 0, and its vector is 1; the last kernel is of
that family and accepts everything.
"""

import re

from onnxfuse.cuda.attention.kernel import FAMILIES, READS, TYPES, AttentionKernel
from onnxfuse.cuda.recipe import LaunchRecipe, not_a_kernel
from onnxfuse.program.figures import MAX_ATTENTION_SPLIT, MAX_ATTENTION_TILE

HEADER = "onnxfuse-cuda-attention 1"
VECTORS = (1, 2, 4, 8)

_FIELDS = (
    *("kernel", "family", "type", "reads", "zeros", "rows"),
    *("keys", "size", "columns", "block", "vector", "split"),
)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,3}")


class AttentionRecipe(LaunchRecipe[AttentionKernel]):
    """That of attention."""

    header = HEADER

    @staticmethod
    def _names(kernel: AttentionKernel) -> tuple[str, ...]:
        return kernel.functions

    def _problem(self, kernel: AttentionKernel) -> str | None:
        first = self.kernels[0]
        if kernel.family not in FAMILIES or kernel.dtype not in TYPES or kernel.reads not in READS:
            return f"a kernel of family {kernel.family}, type {kernel.dtype}, that reads {kernel.reads}"
        if (kernel.dtype, kernel.reads, kernel.zeros) != (first.dtype, first.reads, first.zeros):
            return "a kernel of another node than the first"
        sizes = (kernel.rows, kernel.keys, kernel.columns)
        if not all(1 <= size <= MAX_ATTENTION_TILE for size in sizes) or not 0 <= kernel.size <= MAX_ATTENTION_TILE:
            return f"a tile of {sizes} for heads of {kernel.size}"
        if kernel.vector not in VECTORS or not 1 <= kernel.split <= MAX_ATTENTION_SPLIT:
            return f"a vector of {kernel.vector}, {kernel.split} splits"
        if (kernel.family == "any") != (kernel.size == 0) or (kernel.family == "any" and kernel.vector > 1):
            return f"family {kernel.family} with a size of {kernel.size} and a vector of {kernel.vector}"
        return None

    @staticmethod
    def _accepts_everything(kernel: AttentionKernel) -> bool:
        return kernel.family == "any"

    @staticmethod
    def _parse_kernel(number: int, line: str) -> AttentionKernel:
        words = line.split(" ")
        if tuple(words[::2]) == _FIELDS and len(words) == 2 * len(_FIELDS):
            name, family, dtype, reads, zeros, *sizes = words[1::2]
            families = [known for known in FAMILIES if known == family]
            if families and zeros in ("0", "1") and all(map(_NUMBER.fullmatch, sizes)):
                rows, keys, size, columns, block, vector, split = map(int, sizes)
                return AttentionKernel(
                    name, families[0], dtype, reads, zeros == "1", rows, keys, size, columns, block, vector, split
                )
        raise not_a_kernel(number, line)
