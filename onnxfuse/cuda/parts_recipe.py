"""The launch recipe of a Program in several parts: each part's kernels, and the kernels that compute all parts at once.

Its text form is, like that of ``onnxfuse.cuda.recipe``, the attribute ``cuda_recipe`` of a fused node::

    onnxfuse-cuda 3
    source 2f1c…          sha256 of the CUDA source text, 64 hexadecimal digits
    part 0                the first part computes output 0; its kernels follow
    kernel p0_0 vector 4 block 256 index 32 access l:p
    kernel p0_1 vector 1 block 256 index 64 access g:p
    part 1,2              the second outputs 1 and 2
    kernel p1_0 vector 4 block 256 index 32 access ls:ll
    kernel p1_1 vector 1 block 256 index 64 access gg:ww
    joint all 0 2         a kernel that computes both, as kernels 0 and 2 do

The outputs are those of the Program, of which every one is in one part, and the access letters those of the inputs that
they need and of a part's outputs.  The last kernel of a part takes everything.  The first ``joint`` kernel whose
members all accept what a run has is launched, with the sum of their blocks; if none does, each part's own kernel is.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxfuse.cuda.kernel import JointKernel, Kernel, PartKernels, Source
from onnxfuse.cuda.recipe import Recipe, RecipeError, check_recipe, is_identifier, recipe_lines, recipe_text
from onnxfuse.program.figures import MAX_KERNELS, MAX_PART_LINES, MAX_PARTS

_NUMBERS = re.compile(r"(0|[1-9][0-9]{0,3})(,(0|[1-9][0-9]{0,3}))*")


@dataclass(frozen=True)
class PartsRecipe:
    """A validated recipe; the fields are those of ``onnxfuse.cuda.kernel.Source``, whose sha256 is ``source``."""

    source: str
    kernels: tuple[Kernel, ...]
    parts: tuple[PartKernels, ...]
    joint: tuple[JointKernel, ...]

    header: ClassVar[str] = "onnxfuse-cuda 3"

    def __post_init__(self) -> None:
        names = [kernel.name for kernel in self.kernels] + [one.name for one in self.joint]
        if not 1 <= len(self.parts) <= MAX_PARTS:
            raise RecipeError(f"{len(self.parts)} parts; there are 1 to {MAX_PARTS}")
        outputs = sorted(output for part in self.parts for output in part.outputs)
        if outputs != list(range(len(outputs))):
            raise RecipeError("an output is not in exactly one part")
        for part in self.parts:
            PartRecipe(self.source, self.kernels[part.first : part.end])
        if len(set(names)) < len(names):
            raise RecipeError("two kernels have the same name")
        for one in self.joint:
            if problem := self._problem(one):
                raise RecipeError(f"'{one}': {problem}")

    def _problem(self, joint: JointKernel) -> str | None:
        if not is_identifier(joint.name):
            return f"{joint.name!r} is not the name of a kernel"
        of_parts = zip(self.parts, joint.members, strict=False)
        if len(joint.members) != len(self.parts) or not all(part.first <= own < part.end for part, own in of_parts):
            return "it has not one kernel of each part"
        if len({self.kernels[own].block for own in joint.members}) > 1:
            return "its members have blocks of different sizes"
        return None

    @classmethod
    def of(cls, source: Source) -> "PartsRecipe":
        """The recipe of a rendered source."""
        return cls(source.sha256, source.kernels, source.parts, source.joint)

    def __str__(self) -> str:
        lines: list[object] = []
        for part in self.parts:
            lines += [part, *self.kernels[part.first : part.end]]
        return recipe_text(self.header, self.source, [*lines, *self.joint])

    @classmethod
    def parse(cls, text: str) -> "PartsRecipe":
        """Read the text form.  Raises RecipeError, which names the line, for anything that does not validate."""
        source, lines = recipe_lines(text, cls.header, MAX_PART_LINES)
        kernels: list[Kernel] = []
        begun: list[tuple[tuple[int, ...], int]] = []
        joint: list[JointKernel] = []
        for number, line in lines:
            match line.split(" "):
                case ["part", outputs] if _NUMBERS.fullmatch(outputs) and not joint:
                    begun.append((tuple(map(int, outputs.split(","))), len(kernels)))
                case ["joint", name, *members] if begun and all(map(_NUMBERS.fullmatch, members)) and members:
                    joint.append(JointKernel(name, _numbers(number, members)))
                case _ if begun and not joint:
                    kernels.append(Recipe.parse_kernel(number, line))
                case _:
                    raise RecipeError(f"line {number}: {line!r} is neither a part nor a joint kernel")
        ends = [first for _, first in begun[1:]] + [len(kernels)]
        parts = [PartKernels(outputs, first, end) for (outputs, first), end in zip(begun, ends, strict=True)]
        return cls(source, tuple(kernels), tuple(parts), tuple(joint))


class PartRecipe(Recipe):
    """That of one part alone, whose last kernel may write runs."""

    def __post_init__(self) -> None:
        check_recipe(self.source, [self._shape_problem(one) or self._problem(one) for one in self.kernels], [])
        last = self.kernels[-1]
        general = set(last.access.inputs) <= {"g"} and last.access.outputs.strip("w") in ("", "p")
        if not general or last.vector != 1 or last.index != 64 or len(self.kernels) > MAX_KERNELS:
            raise RecipeError("the last kernel of a part does not accept everything")


def _numbers(number: int, words: Sequence[str]) -> tuple[int, ...]:
    if any("," in word for word in words):
        raise RecipeError(f"line {number}: the members of a joint kernel are numbers of kernels")
    return tuple(map(int, words))
