"""Rendering a Program with the register count that the compiler finds for it.

Fusing pays until registers run out: a kernel that spills, or of which few threads fit on a multiprocessor, waits for
memory.  So a Program is first rendered as the heuristic has it, then with fewer elements a thread; what does not fit
even so is for the planner to split.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from onnxfuse.cuda.arch import Architecture, architecture
from onnxfuse.cuda.compiler import CompilerCache
from onnxfuse.cuda.elementwise.access import expected_access
from onnxfuse.cuda.elementwise.renderer import HEURISTIC, Tuning, compile_options, render
from onnxfuse.cuda.kernel import Access, Source
from onnxfuse.cuda.recipe import Recipe
from onnxfuse.cuda.resources import Resources
from onnxfuse.cuda.strided import Dim
from onnxfuse.cuda.tuned import Choice, TunedKernels
from onnxfuse.program import Program, ProgramError

LEAST_OCCUPANCY = 0.5

LOG_OPTION = "--ptxas-options=-v"
"""Makes ptxas say what each kernel takes."""


@dataclass(frozen=True)
class Fit:
    """A rendered Program.

    ``choice`` says where the sizes come from.  ``main`` is what the compiler says of the kernel that is meant for the
    expected shapes, the first of the source, and ``occupancy`` follows from it, both for the architecture with the most
    threads to feed; None where nothing was compiled.
    """

    program: Program
    access: Access
    source: Source
    tuning: Tuning
    choice: Choice
    main: Resources | None = None
    occupancy: float | None = None

    @property
    def recipe(self) -> str:
        """How its kernels are launched."""
        return str(Recipe.of(self.source))

    @property
    def is_good(self) -> bool:
        """Whether the kernel neither spills nor leaves more than half of the threads out."""
        return self.main is None or (self.main.spills == 0 and (self.occupancy or 0.0) >= LEAST_OCCUPANCY)

    @property
    def rank(self) -> tuple[bool, float]:
        """Larger is better: no spills first, then occupancy."""
        return self.main is None or self.main.spills == 0, 1.0 if self.occupancy is None else self.occupancy


class Fitter:
    """Finds for each Program and access the source to compile; what was found is kept."""

    def __init__(
        self, compiler: CompilerCache | None, architectures: tuple[str, ...], fast_math: bool, tuned: TunedKernels
    ) -> None:
        """Without a ``compiler`` every Program is rendered as the heuristic has it."""
        self._compiler = compiler
        self._fast_math = fast_math
        self._options = (*compile_options(fast_math), LOG_OPTION)
        self._strictest = max(map(architecture, architectures), key=lambda known: (known.threads, -known.number))
        self._tuned = tuned
        self._fits: dict[tuple[str, str], Fit] = {}

    @property
    def fast_math(self) -> bool:
        """Whether kernels need not be exact."""
        return self._fast_math

    @property
    def compiler(self) -> CompilerCache | None:
        """What compiles, if anything does."""
        return self._compiler

    @property
    def options(self) -> tuple[str, ...]:
        """The compiler's options."""
        return self._options

    def forget(self) -> None:
        """Find everything anew, since the tuner has."""
        self._fits.clear()

    def fit(self, program: Program, shapes: Sequence[Sequence[Dim] | None]) -> Fit:
        """The source for inputs of these shapes, as far as they are known.

        Raises ProgramError if there can be none, CompileError if it does not compile.
        """
        access = expected_access(program, shapes)
        key = str(program), str(access)
        if key not in self._fits:
            self._fits[key] = self._find(program, access)
        return self._fits[key]

    def prepare(self, cases: Sequence[tuple[Program, Sequence[Sequence[Dim] | None]]]) -> None:
        """Compile what ``fit`` compiles first of several Programs, with the shapes of their inputs, on all processors.

        Raises CompileError if one does not compile.
        """
        if self._compiler is None:
            return
        texts: dict[str, None] = {}
        for program, shapes in cases:
            with suppress(ProgramError):  # of which there is no source
                access = expected_access(program, shapes)
                tuning = self._tuned.find(program, access, self._options) or HEURISTIC
                texts[render(program, [access], tuning).text] = None
        self._compiler.compile(texts, (self._strictest.name,), self._options)

    def _find(self, program: Program, access: Access) -> Fit:
        tuning = self._tuned.find(program, access, self._options)
        if tuning is not None:
            return self._measured(program, access, tuning, Choice.TUNED)
        best = self._measured(program, access, HEURISTIC, Choice.HEURISTIC)
        for smaller in _smaller(best.source) if not best.is_good else ():
            found = self._measured(program, access, smaller, Choice.REGISTERS)
            best = max(best, found, key=lambda fit: fit.rank)
            if best.is_good:
                break
        return best

    def _measured(self, program: Program, access: Access, tuning: Tuning, choice: Choice) -> Fit:
        source = render(program, [access], tuning)
        if self._compiler is None:
            return Fit(program, access, source, tuning, choice)
        name = self._strictest.name
        main = self._compiler.compile([source.text], (name,), self._options)[source.sha256, name].resources.get(
            source.kernels[0].name
        )
        if main is None:
            return Fit(program, access, source, tuning, choice)
        return Fit(program, access, source, tuning, choice, main, occupancy(self._strictest, main, source))


def occupancy(on: Architecture, main: Resources, source: Source) -> float:
    """The share of a multiprocessor's threads that the first kernel of ``source`` fills."""
    return on.occupancy(main.registers, source.kernels[0].block, main.shared)


def _smaller(source: Source) -> Iterator[Tuning]:
    """Ever fewer elements a thread."""
    vector = source.kernels[0].vector
    while vector > 1:
        vector //= 2
        yield Tuning(vector)
