"""The source of a Program that reduces, by what is known of its shapes and by the compiler's word.

A kernel that keeps a row in registers is compiled for every architecture; where one spills, all keep half as much a
thread, which halves the longest row that is read once.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from onnxfuse.cuda.fitting import CaseFitter, FewestSpills, fewer
from onnxfuse.cuda.nest.kernel import NestKernel, NestSource
from onnxfuse.cuda.nest.recipe import NestRecipe
from onnxfuse.cuda.nest.renderer import NestCase, NestTuning, case_of, nest_of, render_nest
from onnxfuse.cuda.strided import Dim
from onnxfuse.cuda.tuned import Choice
from onnxfuse.program import Program, ProgramError

TUNINGS = tuple(NestTuning(share) for share in range(4))
"""What is tried, in this order."""


@dataclass(frozen=True)
class NestFit(FewestSpills):
    """A rendered Program that reduces, and what its kernels have ``taken``."""

    case: NestCase
    source: NestSource
    tuning: NestTuning
    choice: Choice
    spills: tuple[int, str] = (0, "")
    occupancy: tuple[float, str] = (1.0, "")

    @property
    def program(self) -> Program:
        """What is computed."""
        return self.case.program

    @property
    def recipe(self) -> str:
        """How its kernels are launched."""
        return str(NestRecipe.of(self.source))

    def traffic(self, kernel: NestKernel) -> float:
        """Bytes that a kernel moves for each element over those of its inputs and outputs: 1 where a row is kept."""
        nest = nest_of(self.program, kernel)
        least = nest.input_bytes + nest.written_bytes
        return (nest.read_bytes + nest.written_bytes) / least if least else 1.0


class NestFitter(CaseFitter[NestCase, NestFit]):
    """Finds for each Program and what is known of its shapes the source to compile."""

    def fit(self, program: Program, shapes: Sequence[Sequence[Dim] | None]) -> NestFit:
        """The source for inputs of these shapes, as far as they are known.

        Raises ProgramError if there can be none, CompileError if it does not compile.
        """
        return self._fit(case_of(program, shapes))

    def prepare(self, cases: Sequence[tuple[Program, Sequence[Sequence[Dim] | None]]]) -> None:
        """Compile what ``fit`` compiles first of several Programs, on all processors.

        Raises CompileError if one does not compile.
        """

        def texts() -> Iterator[str]:
            for program, shapes in cases:
                with suppress(ProgramError):  # of which there is no source
                    yield render_nest(case_of(program, shapes)).text

        self._compile_ahead(texts())

    def _candidates(self, case: NestCase) -> Iterator[NestFit]:
        least = (0, "")
        for tuning in TUNINGS:
            source = render_nest(case, tuning)
            choice = Choice.REGISTERS if tuning.share else Choice.HEURISTIC
            blocks = {function: kernel.block for kernel in source.kernels for function in kernel.functions}
            found = self._taken(source.text, blocks, least)
            yield NestFit(case, source, tuning, choice, *found)
            least = fewer(least, found.spills)
