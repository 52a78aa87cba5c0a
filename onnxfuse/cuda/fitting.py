"""Which of several ways to render a source is compiled: the first good one by the compiler's word, else the best."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from onnxfuse.cuda.compile.compiled import Taken, taken
from onnxfuse.cuda.compile.compiler import CompilerCache


class Fit(Protocol):
    """A rendered source, and what its kernels take of a multiprocessor."""

    @property
    def is_good(self) -> bool:
        """Whether nothing speaks against its kernels."""

    @property
    def rank(self) -> tuple[float, ...]:
        """Larger is better."""


class FewestSpills:
    """A fit that is good where no kernel spills registers to memory, and else the better the less one spills."""

    spills: tuple[int, str]

    @property
    def is_good(self) -> bool:
        """Whether no kernel spills."""
        return not self.spills[0]

    @property
    def rank(self) -> tuple[float, ...]:
        """Larger is better: fewer spills."""
        return (-self.spills[0],)


def fewer(least: tuple[int, str], spills: tuple[int, str]) -> tuple[int, str]:
    """The fewest spills of several sources, the first of which has not been seen where ``least`` has none."""
    return spills if not least[0] or spills[0] < least[0] else least


FitT = TypeVar("FitT", bound=Fit)
CaseT = TypeVar("CaseT")


def best_of(fits: Iterator[FitT]) -> FitT:
    """The first good one, else the first of the highest rank.  Nothing behind a good one is rendered."""
    best = next(fits)
    while not best.is_good and (found := next(fits, None)) is not None:
        best = max(best, found, key=lambda fit: fit.rank)
    return best


class CaseFitter(Generic[CaseT, FitT]):
    """Finds for each case the source to compile, for every architecture; what was found is kept."""

    def __init__(self, compiler: CompilerCache | None, options: tuple[str, ...], architectures: Sequence[str]) -> None:
        """Without a ``compiler`` the first candidate is taken.  ``options`` are the compiler's, and let it log."""
        self._compiler = compiler
        self._options = options
        self._architectures = tuple(architectures)
        self._fits: dict[CaseT, FitT] = {}

    def _fit(self, case: CaseT) -> FitT:
        if case not in self._fits:
            self._fits[case] = best_of(self._candidates(case))
        return self._fits[case]

    def _candidates(self, case: CaseT) -> Iterator[FitT]:
        """The sources of a case, the best by argument first, with what the compiler says of each."""
        raise NotImplementedError

    def _taken(self, text: str, blocks: Mapping[str, int], least: tuple[int, str] = (0, "")) -> Taken:
        """What the functions of a source take whose ``blocks`` have so many threads.

        ``least`` are the fewest spills before, and where: a source that spills no less there is compiled for no other
        architecture, and what it takes there is the answer.
        """
        if self._compiler is None or not blocks:
            return Taken()
        spilled, architecture = least
        if spilled:
            there = taken(self._compiler.compile([text], (architecture,), self._options), blocks)
            if there.spills[0] >= spilled:
                return there
        return taken(self._compiler.compile([text], self._architectures, self._options), blocks)

    def _compile_ahead(self, texts: Iterator[str]) -> None:
        """Compile several sources at once, which takes all processors.  Raises CompileError if one does not compile."""
        if self._compiler is not None:
            self._compiler.compile(dict.fromkeys(texts), self._architectures, self._options)
