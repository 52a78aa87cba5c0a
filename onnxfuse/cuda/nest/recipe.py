"""The launch recipe of a Program that reduces.

The text form is the attribute ``cuda_recipe``; the native library reads it as hostile input::

    onnxfuse-cuda-rows 1
    source 2f1c…          sha256 of the CUDA source text, 64 hexadecimal digits
    kernel reduced_0 along rows threads 32 items 4 vector 4 block 128 index 32 steps 0 access ll::l
    kernel reduced_1 along rows threads 64 items 3 vector 4 block 64 index 32 steps 0 access lL::s tile 4
    kernel reduced_2 along rows threads 32 items 0 vector 1 block 128 index 64 steps 0 access gg::g

Kernels are tried in order; the first that accepts the shapes and the alignment of the pointers is launched, one in
steps only where there are so few rows that blocks have to share them.  The last accepts everything.  Only a kernel
along rows, and not in steps, has a ``tile``, which is 1 where it is not said, and large letters.
"""

import re
from contextlib import suppress

from onnxfuse.cuda.nest.kernel import ALONG, SHARED, NestAccess, NestKernel
from onnxfuse.cuda.recipe import VECTORS, LaunchRecipe, not_a_kernel
from onnxfuse.program.figures import MAX_NEST_ITEMS, MAX_NEST_STEPS, MAX_NEST_TILE, MAX_NEST_VECTOR, NEST_LANES, WARP

HEADER = "onnxfuse-cuda-rows 1"

_NUMBER = re.compile(r"0|[1-9][0-9]{0,3}")


class NestRecipe(LaunchRecipe[NestKernel]):
    """That of kernels which reduce."""

    header = HEADER

    def _problem(self, kernel: NestKernel) -> str | None:
        if kernel.vector not in (*VECTORS, MAX_NEST_VECTOR):
            return f"{kernel.vector} is not the length of a vector"
        if kernel.items > MAX_NEST_ITEMS or kernel.steps > MAX_NEST_STEPS:
            return f"more than {MAX_NEST_ITEMS} items or {MAX_NEST_STEPS} steps"
        if not _divides(kernel):
            return f"{kernel.threads} threads do not share a block of {kernel.block} along {kernel.along}"
        if kernel.steps and (kernel.items or (kernel.along == "rows" and kernel.threads < kernel.block)):
            return "a kernel in steps that keeps rows, or has several in a block"
        access, first = kernel.access, self.kernels[0].access
        if [*map(len, _parts(access))] != [*map(len, _parts(first))]:
            return f"'{access}' is of other operands than '{first}'"
        if not 1 <= kernel.tile <= MAX_NEST_TILE or (kernel.tile > 1 and (kernel.along == "columns" or kernel.steps)):
            return f"a tile of {kernel.tile} rows"
        if kernel.along == "columns" and "b" in access.letters:
            return f"access '{access}' along columns"
        if kernel.tile == 1 and set(access.letters) & set(SHARED):
            return f"access '{access}' without a tile"
        if kernel.vector > 1 and "g" in access.outputs:
            return f"access '{access}' cannot be by vectors"
        return None

    @staticmethod
    def _accepts_everything(kernel: NestKernel) -> bool:
        return accepts_everything(kernel)

    @staticmethod
    def _parse_kernel(number: int, line: str) -> NestKernel:
        words = line.split(" ")
        labels = ("kernel", "along", "threads", "items", "vector", "block", "index", "steps", "access")
        if len(words) == 2 * len(labels):
            words += ["tile", "1"]
        if tuple(words[::2]) == (*labels, "tile") and len(words) == 2 * len(labels) + 2:
            name, along, *sizes, access, tile = words[1::2]
            known = [one for one in ALONG if one == along]
            if known and all(map(_NUMBER.fullmatch, (*sizes, tile))):
                with suppress(ValueError):
                    threads, items, vector, block, index, steps = map(int, sizes)
                    parsed = NestAccess.parse(access)
                    return NestKernel(name, known[0], threads, items, vector, block, index, steps, parsed, int(tile))
        raise not_a_kernel(number, line)


def accepts_everything(kernel: NestKernel) -> bool:
    """Whether a kernel takes every shape and every pointer."""
    general = set(kernel.access.inputs + kernel.access.indices) <= {"g"} and set(kernel.access.outputs) <= {"g", "s"}
    sizes = kernel.along == "rows" and kernel.vector == 1 and kernel.index == 64
    return general and sizes and kernel.items == kernel.steps == 0


def _divides(kernel: NestKernel) -> bool:
    if kernel.along == "columns":
        return kernel.threads * NEST_LANES == kernel.block
    whole = kernel.threads > 0 and kernel.threads & (kernel.threads - 1) == 0 and kernel.block % kernel.threads == 0
    return whole and (kernel.threads <= WARP or kernel.threads == kernel.block)


def _parts(access: NestAccess) -> tuple[str, str, str]:
    return access.inputs, access.indices, access.outputs
