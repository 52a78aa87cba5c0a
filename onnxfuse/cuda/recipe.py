"""The launch recipe: which kernels a fused node's machine code has, and which shapes each of them accepts.

The text form is the attribute ``cuda_recipe`` of a fused node; the native library reads it as hostile input::

    onnxfuse-cuda 2
    source 2f1c…          sha256 of the CUDA source text, 64 hexadecimal digits
    kernel onnxfuse_0 vector 4 block 256 index 32 access ls:l
    kernel onnxfuse_1 vector 4 block 256 index 32 access gt:l tile 32
    kernel onnxfuse_2 vector 1 block 256 index 64 access gg:w

Kernels are tried in order; the first that accepts the shapes and the alignment of the pointers is launched.  The access
letters, one for each input and after the colon one for each output, are those of ``onnxfuse.cuda.kernel``.  The last
kernel accepts everything.  A thread computes ``vector`` adjacent elements at once, a thread block has ``block``
threads, and ``index`` is the width of the indices in bits.  Only a kernel that transposes, of letter ``t``, computes a
``tile`` of so many elements each way in a block.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from onnxfuse.cuda.kernel import Access, Kernel
from onnxfuse.program import ProgramError
from onnxfuse.program.figures import MAX_BLOCK, MAX_KERNEL_NAME, MAX_KERNELS, WARP

HEADER = "onnxfuse-cuda 2"
VECTORS = (1, 2, 4, 8, 16)
INDEX_WIDTHS = (32, 64)
TILES = (32, 64)

_HASH = re.compile(r"[0-9a-f]{64}")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[1-9][0-9]{0,3}")


class RecipeError(ProgramError):
    """A launch recipe that does not validate; the message names the line of its text."""


class AnyKernel(Protocol):
    """What all kernels have."""

    @property
    def name(self) -> str:
        """The function's."""

    @property
    def block(self) -> int:
        """Threads of a block."""

    @property
    def index(self) -> int:
        """Bits of an index."""


K = TypeVar("K", bound=AnyKernel)
K_co = TypeVar("K_co", bound=AnyKernel, covariant=True)


class AnySource(Protocol[K_co]):
    """What all rendered sources have."""

    @property
    def sha256(self) -> str:
        """Of the text, in hexadecimal."""

    @property
    def kernels(self) -> tuple[K_co, ...]:
        """In the order tried."""


@dataclass(frozen=True)
class LaunchRecipe(Generic[K]):
    """A validated recipe: the sha256 of the ``source`` in hexadecimal, and its ``kernels`` in the order tried."""

    source: str
    kernels: tuple[K, ...]

    header: ClassVar[str]
    """The first line of the text form."""

    def __post_init__(self) -> None:
        problems = [self._shape_problem(kernel) or self._problem(kernel) for kernel in self.kernels]
        check_recipe(self.source, problems, [name for kernel in self.kernels for name in self._names(kernel)])
        if not self._accepts_everything(self.kernels[-1]):
            raise RecipeError("the last kernel does not accept everything")

    def _shape_problem(self, kernel: K) -> str | None:
        if not all(map(is_identifier, self._names(kernel))):
            return f"{kernel.name!r} is not the name of a kernel"
        if not WARP <= kernel.block <= MAX_BLOCK or kernel.block % WARP:
            return f"a block of {kernel.block} threads is not a multiple of {WARP} up to {MAX_BLOCK}"
        return None if kernel.index in INDEX_WIDTHS else f"indices of {kernel.index} bits"

    @staticmethod
    def _names(kernel: K) -> tuple[str, ...]:
        """Those of the functions of a kernel."""
        return (kernel.name,)

    def _problem(self, kernel: K) -> str | None:
        """What else is wrong with a kernel."""
        raise NotImplementedError

    @staticmethod
    def _accepts_everything(kernel: K) -> bool:
        """Whether a kernel takes every shape and every pointer."""
        raise NotImplementedError

    @staticmethod
    def _parse_kernel(number: int, line: str) -> K:
        """Reads a line.  Raises RecipeError if it is not a kernel."""
        raise NotImplementedError

    @classmethod
    def of(cls, source: AnySource[K]) -> Self:
        """The recipe of a rendered source."""
        return cls(source.sha256, source.kernels)

    def __str__(self) -> str:
        return recipe_text(self.header, self.source, self.kernels)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form.  Raises RecipeError, which names the line, for anything that does not validate."""
        source, lines = recipe_lines(text, cls.header)
        return cls(source, tuple(cls._parse_kernel(number, line) for number, line in lines))


class Recipe(LaunchRecipe[Kernel]):
    """That of elementwise kernels."""

    header = HEADER

    def _problem(self, kernel: Kernel) -> str | None:
        if kernel.vector not in VECTORS:
            return f"{kernel.vector} is not the length of a vector"
        access, first = kernel.access, self.kernels[0].access
        if (len(access.inputs), len(access.outputs)) != (len(first.inputs), len(first.outputs)):
            return f"'{access}' is of other operands than '{first}'"
        if kernel.vector > 1 and "w" in access.outputs:
            return f"access '{access}' cannot be by vectors"
        if access.transposes != (kernel.tile != 0) or (kernel.tile and kernel.tile not in TILES):
            return f"access '{access}' is not by tiles of {kernel.tile}"
        if kernel.tile and (set(access.inputs) - set("tgs") or set(access.outputs) != {"l"} or kernel.index != 32):
            return f"access '{access}' cannot be by tiles"
        return None

    @staticmethod
    def _accepts_everything(kernel: Kernel) -> bool:
        return accepts_everything(kernel)

    @classmethod
    def parse_kernel(cls, number: int, line: str) -> Kernel:
        """Read a kernel's line, of this number.  Raises RecipeError if it is none."""
        return cls._parse_kernel(number, line)

    @staticmethod
    def _parse_kernel(number: int, line: str) -> Kernel:
        match line.split(" "):
            case ["kernel", name, "vector", vector, "block", block, "index", index, "access", access, *rest]:
                tile = rest[1:] if len(rest) == 2 and rest[0] == "tile" else []
                if len(rest) == 2 * len(tile) and all(map(_NUMBER.fullmatch, (vector, block, index, *tile))):
                    with suppress(ValueError):
                        letters, sizes = Access.parse(access), map(int, tile)
                        return Kernel(name, int(vector), int(block), int(index), letters, *sizes)
        raise not_a_kernel(number, line)


def check_recipe(source: str, problems: Sequence[str | None], names: Sequence[str]) -> None:
    """Raises RecipeError unless ``source`` is a hash, no kernel has a problem, and no two have a name in common."""
    if not _HASH.fullmatch(source):
        raise RecipeError(f"line 2: {source!r} is not a sha256 in hexadecimal")
    if not 1 <= len(problems) <= MAX_KERNELS:
        raise RecipeError(f"{len(problems)} kernels; there are 1 to {MAX_KERNELS}")
    for number, problem in enumerate(problems, 3):
        if problem:
            raise RecipeError(f"line {number}: {problem}")
    if len(set(names)) < len(names):
        raise RecipeError("two kernels have the same name")


def recipe_text(header: str, source: str, kernels: Iterable[object]) -> str:
    """The text form of a recipe, from the text forms of its kernels."""
    return "\n".join([header, f"source {source}", *map(str, kernels)]) + "\n"


def recipe_lines(text: str, header: str, most: int = MAX_KERNELS) -> tuple[str, list[tuple[int, str]]]:
    """The hash of the source in a recipe's text, and the lines of its kernels with their numbers.

    Raises RecipeError, which names the line, if it is not a recipe with this header.
    """
    lines = text.split("\n")
    if lines.pop() != "":
        raise RecipeError("the last line of the recipe is not ended")
    if not lines or lines[0] != header:
        raise RecipeError(f"line 1: such a recipe begins with {header!r}")
    if len(lines) < 2 or not lines[1].startswith("source "):
        raise RecipeError("line 2: the hash of the source is missing")
    if len(lines) > 2 + most:
        raise RecipeError(f"{len(lines) - 2} kernels; there are 1 to {most}")
    return lines[1].removeprefix("source "), list(enumerate(lines[2:], 3))


def is_identifier(name: str) -> bool:
    """Whether a kernel may be called so."""
    return len(name) <= MAX_KERNEL_NAME and _IDENTIFIER.fullmatch(name) is not None


def accepts_everything(kernel: Kernel) -> bool:
    """Whether a kernel takes every shape and every pointer."""
    general = set(kernel.access.inputs) <= {"g"} and set(kernel.access.outputs) <= {"w"}
    return general and kernel.vector == 1 and kernel.index == 64


def not_a_kernel(number: int, line: str) -> RecipeError:
    """What to raise for a line that is none."""
    return RecipeError(f"line {number}: {line!r} is not a kernel")
