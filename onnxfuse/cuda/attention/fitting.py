"""The source of an attention, by what is known of its sizes and by the compiler's word.

The tiles are tried in the order of argument on every architecture; where a kernel spills registers, the next ones are.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from onnxfuse.cuda.attention.case import AttentionCase
from onnxfuse.cuda.attention.kernel import AttentionSource
from onnxfuse.cuda.attention.recipe import AttentionRecipe
from onnxfuse.cuda.attention.renderer import render_attention
from onnxfuse.cuda.attention.tiling import LARGEST_HEAD, SIZES, Tilings, tilings_of
from onnxfuse.cuda.fitting import CaseFitter, FewestSpills, fewer
from onnxfuse.cuda.tuned import Choice


@dataclass(frozen=True)
class AttentionFit(FewestSpills):
    """A rendered attention; ``choice`` says where its tiles come from, and the rest what its kernels have ``taken``."""

    case: AttentionCase
    tilings: tuple[Tilings, ...]
    source: AttentionSource
    choice: Choice
    spills: tuple[int, str] = (0, "")
    occupancy: tuple[float, str] = (1.0, "")

    @property
    def recipe(self) -> str:
        """How its kernels are launched."""
        return str(AttentionRecipe.of(self.source))


class AttentionFitter(CaseFitter[AttentionCase, AttentionFit]):
    """Finds for each attention the source to compile."""

    def fit(self, case: AttentionCase) -> AttentionFit:
        """The source for a case.  Raises CompileError if it does not compile."""
        return self._fit(case)

    def _candidates(self, case: AttentionCase) -> Iterator[AttentionFit]:
        choice = Choice.HEURISTIC
        least = (0, "")
        for tilings in candidates(case):
            source = render_attention(case, tilings)
            blocks = {kernel.name: kernel.block for kernel in source.kernels}
            found = self._taken(source.text, blocks, least)
            yield AttentionFit(case, tilings, source, choice, *found)
            least = fewer(least, found.spills)
            choice = Choice.REGISTERS


def candidates(case: AttentionCase) -> Iterator[tuple[Tilings, ...]]:
    """The tiles that are tried: of heads whose size is not known those for some sizes, and none for heads that are
    larger than there are tiles for."""
    sizes = [size for size in (case.size, case.value_size) if size is not None]
    if any(size > LARGEST_HEAD for size in sizes):
        yield ()
    elif case.size is not None and case.value_size is not None:
        yield from ((tilings,) for tilings in tilings_of(case.dtype, case.size, case.value_size))
    else:
        known = [size for size in SIZES if size >= max(sizes, default=0)]
        tried = [list(tilings_of(case.dtype, size, size)) for size in known]
        for place in range(max(map(len, tried))):
            yield tuple(each[min(place, len(each) - 1)] for each in tried)
