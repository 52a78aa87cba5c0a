"""The source of a Program that reduces, by what is known of its shapes and by the compiler's word.

A kernel that keeps a row in registers is compiled for every architecture; where one spills, all keep half as much a
thread, which halves the longest row that is read once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse.cuda.compile.compiled import taken
from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.nest.kernel import NestKernel, NestSource
from onnxfuse.cuda.nest.recipe import NestRecipe
from onnxfuse.cuda.nest.renderer import NestCase, NestTuning, case_of, nest_of, render_nest
from onnxfuse.cuda.strided import Dim
from onnxfuse.cuda.tuned import Choice
from onnxfuse.program import Program, ProgramError

TUNINGS = tuple(NestTuning(share) for share in range(4))
"""What is tried, in this order."""


@dataclass(frozen=True)
class NestFit:
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

    @property
    def is_good(self) -> bool:
        """Whether no kernel spills."""
        return not self.spills[0]

    def traffic(self, kernel: NestKernel) -> float:
        """Bytes that a kernel moves for each element over those of its inputs and outputs: 1 where a row is kept."""
        nest = nest_of(self.program, kernel)
        least = nest.input_bytes + nest.written_bytes
        return (nest.read_bytes + nest.written_bytes) / least if least else 1.0


class NestFitter:
    """Finds for each Program and what is known of its shapes the source to compile; what was found is kept."""

    def __init__(self, compiler: CompilerCache | None, options: tuple[str, ...], architectures: Sequence[str]) -> None:
        """Without a ``compiler`` the first tuning is taken.  ``options`` are the compiler's, and let it log."""
        self._compiler = compiler
        self._options = options
        self._architectures = tuple(architectures)
        self._fits: dict[NestCase, NestFit] = {}

    def fit(self, program: Program, shapes: Sequence[Sequence[Dim] | None]) -> NestFit:
        """The source for inputs of these shapes, as far as they are known.

        Raises ProgramError if there can be none, CompileError if it does not compile.
        """
        case = case_of(program, shapes)
        if case not in self._fits:
            self._fits[case] = self._best(case)
        return self._fits[case]

    def prepare(self, cases: Sequence[tuple[Program, Sequence[Sequence[Dim] | None]]]) -> None:
        """Compile what ``fit`` compiles first of several Programs, on all processors.

        Raises CompileError if one does not compile.
        """
        if self._compiler is None:
            return
        texts: dict[str, None] = {}
        for program, shapes in cases:
            try:
                texts[render_nest(case_of(program, shapes)).text] = None
            except ProgramError:  # of which there is no source
                continue
        self._compiler.compile(texts, self._architectures, self._options)

    def _best(self, case: NestCase) -> NestFit:
        best: NestFit | None = None
        for tuning in TUNINGS:
            found = self._compiled(case, tuning)
            if best is None or found.spills[0] < best.spills[0]:
                best = found
            if best.is_good:
                break
        assert best is not None
        return best

    def _compiled(self, case: NestCase, tuning: NestTuning) -> NestFit:
        source = render_nest(case, tuning)
        choice = Choice.REGISTERS if tuning.share else Choice.HEURISTIC
        if self._compiler is None:
            return NestFit(case, source, tuning, choice)
        compiled = self._compiler.compile([source.text], self._architectures, self._options)
        blocks = {function: kernel.block for kernel in source.kernels for function in kernel.functions}
        return NestFit(case, source, tuning, choice, *taken(compiled, blocks))
