"""Rendering a Program with the register count that the compiler finds for it.

Fusing pays until registers run out: a kernel that spills, or of which few threads fit on a multiprocessor, waits for
memory.  So a Program is first rendered as the heuristic has it, then with fewer elements a thread; what does not fit
even so is for the planner to split.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from onnxfuse.cuda.arch import Architecture, architecture
from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.compile.resources import Resources
from onnxfuse.cuda.elementwise.access import expected_access
from onnxfuse.cuda.elementwise.parts import Part, expected_accesses, first_members, parts_of
from onnxfuse.cuda.elementwise.renderer import (
    HEURISTIC,
    Tuning,
    compile_options,
    joint_members,
    render,
    render_parts,
)
from onnxfuse.cuda.fitting import best_of
from onnxfuse.cuda.kernel import Access, Kernel, Source
from onnxfuse.cuda.parts_recipe import PartsRecipe
from onnxfuse.cuda.recipe import Recipe
from onnxfuse.cuda.strided import Dim
from onnxfuse.cuda.tuned import Choice, TunedKernels
from onnxfuse.program import Program, ProgramError

LEAST_OCCUPANCY = 0.5

LOG_OPTION = "--ptxas-options=-v"
"""Makes ptxas say what each kernel takes."""


@dataclass(frozen=True)
class Fit:
    """A rendered Program.

    ``access`` is None if it is computed in several parts, of which each has its own.  ``choice`` says where the sizes
    come from.  ``main`` is what the compiler says of the kernel that is meant for the expected shapes, and
    ``occupancy`` follows from it, both for the architecture with the most threads to feed; None where nothing was
    compiled.
    """

    program: Program
    access: Access | None
    source: Source
    tuning: Tuning
    choice: Choice
    main: Resources | None = None
    occupancy: float | None = None

    @property
    def recipe(self) -> str:
        """How its kernels are launched."""
        return str(PartsRecipe.of(self.source) if self.source.parts else Recipe.of(self.source))

    @property
    def is_good(self) -> bool:
        """Whether the kernel neither spills nor leaves more than half of the threads out."""
        return self.main is None or (self.main.spills == 0 and (self.occupancy or 0.0) >= LEAST_OCCUPANCY)

    @property
    def rank(self) -> tuple[float, ...]:
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
        if parts := parts_of(program, shapes):
            return self._fit_parts(program, parts, shapes)
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
                if parts := parts_of(program, shapes):
                    texts[self._render_parts(program, parts, shapes, HEURISTIC).text] = None
                    continue
                access = expected_access(program, shapes)
                tuning = self._tuned.find(program, access, self._options) or HEURISTIC
                texts[render(program, [access], tuning).text] = None
        self._compiler.compile(texts, (self._strictest.name,), self._options)

    def _find(self, program: Program, access: Access) -> Fit:
        tuning = self._tuned.find(program, access, self._options)
        if tuning is not None:
            return self._measured(program, access, tuning, Choice.TUNED)

        def candidates() -> Iterator[Fit]:
            first = self._measured(program, access, HEURISTIC, Choice.HEURISTIC)
            yield first
            for smaller in _smaller(first.source):
                yield self._measured(program, access, smaller, Choice.REGISTERS)

        return best_of(candidates())

    def _fit_parts(self, program: Program, parts: Sequence[Part], shapes: Sequence[Sequence[Dim] | None]) -> Fit:
        """The same of a Program in several parts."""
        source = self._render_parts(program, parts, shapes, HEURISTIC)
        key = str(program), source.sha256

        def candidates() -> Iterator[Fit]:
            yield self._compiled(Fit(program, None, source, HEURISTIC, Choice.HEURISTIC))
            for smaller in _smaller(source):
                fewer = self._render_parts(program, parts, shapes, smaller)
                yield self._compiled(Fit(program, None, fewer, smaller, Choice.REGISTERS))

        if key not in self._fits:
            self._fits[key] = best_of(candidates())
        return self._fits[key]

    def _render_parts(
        self, program: Program, parts: Sequence[Part], shapes: Sequence[Sequence[Dim] | None], tuning: Tuning
    ) -> Source:
        accesses = expected_accesses(program, parts, shapes)

        def members(own: Sequence[Sequence[Kernel]]) -> list[tuple[int, ...]]:
            return joint_members(first_members(program, parts, own, shapes), own)

        return render_parts(program, parts, accesses, [tuning] * len(parts), members)

    def _measured(self, program: Program, access: Access, tuning: Tuning, choice: Choice) -> Fit:
        return self._compiled(Fit(program, access, render(program, [access], tuning), tuning, choice))

    def _compiled(self, fit: Fit) -> Fit:
        """The same with what the compiler says of its main kernel."""
        source = fit.source
        if self._compiler is None:
            return fit
        name = self._strictest.name
        main = self._compiler.compile([source.text], (name,), self._options)[source.sha256, name].resources.get(
            source.main
        )
        if main is None:
            return fit
        return replace(fit, main=main, occupancy=occupancy(self._strictest, main, source))


def occupancy(on: Architecture, main: Resources, source: Source) -> float:
    """The share of a multiprocessor's threads that the first kernel of ``source`` fills."""
    return on.occupancy(main.registers, source.kernels[0].block, main.shared)


def _smaller(source: Source) -> Iterator[Tuning]:
    """Ever fewer elements a thread."""
    vector = source.kernels[0].vector
    while vector > 1:
        vector //= 2
        yield Tuning(vector)
