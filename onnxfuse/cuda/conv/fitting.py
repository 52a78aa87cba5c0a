"""The source of a fused convolution's kernels, by what is known of its shapes, what was tuned, and the compiler's word.

The candidates are tried in the order of argument.  A kernel that spills registers to memory, or of which few threads
fit on a multiprocessor, gives way to the next one; the chooser leaves a convolution to ONNX Runtime if none is good.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.conv.candidates import candidates
from onnxfuse.cuda.conv.case import ConvCase
from onnxfuse.cuda.conv.kernel import ConvSource
from onnxfuse.cuda.conv.recipe import ConvRecipe
from onnxfuse.cuda.conv.renderer import render_conv
from onnxfuse.cuda.conv.tiling import Tiling
from onnxfuse.cuda.conv.tunings import Tunings, known_dims
from onnxfuse.cuda.fitting import CaseFitter
from onnxfuse.cuda.tuned import Choice

Tilings = tuple[Tiling, ...]

LEAST_OCCUPANCY = {"depthwise": 0.25, "direct": 0.25, "gemm": 0.125}
"""The share of a multiprocessor's threads that a kernel has to fill, by family.

By argument: a thread of a depthwise or direct kernel waits for four loads of up to 16 bytes at a time, so that a
quarter of an H100's threads have 32 KB under way, for which its memory (3.35 TB/s for 132 multiprocessors) takes
1.3 µs, longer than its latency.  A thread of a matrix product has up to 64 independent sums, and is content with two
warps for each of the four schedulers, 8 of 64.
"""


@dataclass(frozen=True)
class ConvFit:
    """A rendered fused convolution; ``choice`` says where its tilings come from, and the rest what the kernels that are
    meant for the shapes have ``taken``.
    """

    case: ConvCase
    tilings: Tilings
    source: ConvSource
    choice: Choice
    spills: tuple[int, str] = (0, "")
    occupancy: tuple[float, str] = (1.0, "")

    @property
    def recipe(self) -> str:
        """How its kernels are launched."""
        return str(ConvRecipe.of(self.source))

    @property
    def problem(self) -> str:
        """What speaks against the kernels, of which there are no better ones; empty if nothing does."""
        bytes_, where = self.spills
        if bytes_:
            return f"its kernels run out of registers in every tiling, and spill {bytes_} bytes a thread on {where}"
        share, where = self.occupancy
        if share < LEAST_OCCUPANCY.get(self.source.kernels[0].family, 0.0):
            return f"its kernels leave {100 - 100 * share:.0f} % of the threads of {where} out, in every tiling"
        return ""

    @property
    def is_good(self) -> bool:
        """Whether nothing speaks against the kernels."""
        return not self.problem

    @property
    def rank(self) -> tuple[float, ...]:
        """Larger is better: fewer spills first, then occupancy."""
        return -self.spills[0], self.occupancy[0]


class ConvFitter(CaseFitter[ConvCase, ConvFit]):
    """Finds for each case the kernels to compile; what was tuned is not kept here."""

    def __init__(
        self,
        compiler: CompilerCache | None,
        options: tuple[str, ...],
        architectures: Sequence[str],
        fast_math: bool,
        tunings: Tunings,
    ) -> None:
        """As CaseFitter; kernels in ``tunings`` go before the candidates."""
        super().__init__(compiler, options, architectures)
        self._fast_math = fast_math
        self._tunings = tunings

    def fit(self, case: ConvCase) -> ConvFit:
        """The kernels tuned for the first of the architectures that was, else the first good candidate.

        Raises ProgramError if there can be none, CompileError if it does not compile.
        """
        for name in self._architectures:
            entry = self._tunings.find(case, name, self._fast_math)
            if entry is not None and entry.tilings:
                return ConvFit(case, entry.tilings, render_case(case, entry.tilings), Choice.TUNED)
        return self._fit(case)

    def prepare(self, cases: Sequence[ConvCase]) -> None:
        """Compile the first candidates of several cases at once, which takes all processors."""
        self._compile_ahead(render_case(case, tilings_of(case)[0]).text for case in cases if tilings_of(case))

    def _candidates(self, case: ConvCase) -> Iterator[ConvFit]:
        choice = Choice.HEURISTIC
        for tilings in tilings_of(case) or [()]:
            source = render_case(case, tilings)
            main = {kernel.name: kernel.block for kernel in source.kernels if kernel.family != "any"}
            yield ConvFit(case, tilings, source, choice, *self._taken(source.text, main))
            choice = Choice.REGISTERS


def tilings_of(case: ConvCase) -> list[Tilings]:
    """The candidates for a case, the best by argument first."""
    return candidates(case.conv, known_dims(case), case.tf32)


def render_case(case: ConvCase, tilings: Tilings) -> ConvSource:
    """The source of a case with these tilings.  Raises ProgramError if there can be none."""
    return render_conv(case.conv, case.epilogue, case.prologue, case.access, tilings)
