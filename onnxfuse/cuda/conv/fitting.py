"""The source of a fused convolution's kernels, by what is known of its shapes and what was tuned."""

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse.cuda.conv.candidates import candidates
from onnxfuse.cuda.conv.case import ConvCase
from onnxfuse.cuda.conv.kernel import ConvSource
from onnxfuse.cuda.conv.recipe import ConvRecipe
from onnxfuse.cuda.conv.renderer import render_conv
from onnxfuse.cuda.conv.tiling import Tiling
from onnxfuse.cuda.conv.tunings import Tunings, known_dims
from onnxfuse.cuda.tuned import Choice

Tilings = tuple[Tiling, ...]


@dataclass(frozen=True)
class ConvFit:
    """A rendered fused convolution; ``choice`` says where its tilings come from."""

    case: ConvCase
    source: ConvSource
    choice: Choice

    @property
    def recipe(self) -> str:
        """How its kernels are launched."""
        return str(ConvRecipe.of(self.source))


def fit_conv(case: ConvCase, tunings: Tunings, architectures: Sequence[str], fast_math: bool) -> ConvFit:
    """The kernels for a case: those tuned for the first of the ``architectures`` that was, else the best by argument.

    Raises ProgramError if there can be none.
    """
    for architecture in architectures:
        entry = tunings.find(case, architecture, fast_math)
        if entry is not None and entry.tilings:
            return ConvFit(case, render_case(case, entry.tilings), Choice.TUNED)
    return ConvFit(case, render_case(case, next(iter(tilings_of(case)), ())), Choice.HEURISTIC)


def tilings_of(case: ConvCase) -> list[Tilings]:
    """The candidates for a case, the best by argument first."""
    return candidates(case.conv, known_dims(case), case.tf32)


def render_case(case: ConvCase, tilings: Tilings) -> ConvSource:
    """The source of a case with these tilings.  Raises ProgramError if there can be none."""
    return render_conv(case.conv, case.epilogue, case.prologue, case.access, tilings)
