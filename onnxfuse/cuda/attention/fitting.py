"""The source of an attention, by what is known of its sizes and by the compiler's word.

The tiles are tried in the order of argument on every architecture; where a kernel spills registers, the next ones are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnxfuse.cuda.attention.case import AttentionCase
from onnxfuse.cuda.attention.kernel import AttentionSource
from onnxfuse.cuda.attention.recipe import AttentionRecipe
from onnxfuse.cuda.attention.renderer import render_attention
from onnxfuse.cuda.attention.tiling import LARGEST_HEAD, SIZES, Tilings, tilings_of
from onnxfuse.cuda.compile.compiled import taken
from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.tuned import Choice


@dataclass(frozen=True)
class AttentionFit:
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


class AttentionFitter:
    """Finds for each case the source to compile; what was found is kept."""

    def __init__(self, compiler: CompilerCache | None, options: tuple[str, ...], architectures: Sequence[str]) -> None:
        """Without a ``compiler`` the first tiles are taken.  ``options`` are the compiler's, and let it log."""
        self._compiler = compiler
        self._options = options
        self._architectures = tuple(architectures)
        self._fits: dict[AttentionCase, AttentionFit] = {}

    def fit(self, case: AttentionCase) -> AttentionFit:
        """The source for a case.  Raises CompileError if it does not compile."""
        if case not in self._fits:
            self._fits[case] = self._best(case)
        return self._fits[case]

    def _best(self, case: AttentionCase) -> AttentionFit:
        best: AttentionFit | None = None
        for tilings in candidates(case):
            found = self._compiled(case, tilings, Choice.REGISTERS if best else Choice.HEURISTIC)
            if best is None or found.spills[0] < best.spills[0]:
                best = found
            if not best.spills[0]:
                break
        assert best is not None, "there are tiles for every case"
        return best

    def _compiled(self, case: AttentionCase, tilings: tuple[Tilings, ...], choice: Choice) -> AttentionFit:
        source = render_attention(case, tilings)
        if self._compiler is None:
            return AttentionFit(case, tilings, source, choice)
        compiled = self._compiler.compile([source.text], self._architectures, self._options)
        blocks = {kernel.name: kernel.block for kernel in source.kernels}
        return AttentionFit(case, tilings, source, choice, *taken(compiled, blocks))


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
