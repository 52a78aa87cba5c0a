"""What ONNX Runtime's profiler says of a model before and after, for people and programs."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class NodeTime:
    """A node as ONNX Runtime ran it, after its own fusions: how long it takes in a run on average, in microseconds.

    ``op`` is its operator, of a fused node its kind; ``stands_for`` are the names of the original nodes in a fused one.
    """

    name: str
    op: str
    microseconds: float
    stands_for: tuple[str, ...] = ()


@dataclass(frozen=True)
class Profile:
    """The nodes of the original and of the result, each with the longest first, and how many runs were profiled."""

    original: tuple[NodeTime, ...]
    result: tuple[NodeTime, ...]
    runs: tuple[int, int]

    def by_operator(self) -> list[tuple[str, float, float]]:
        """Operators with their microseconds before and after, the longest first."""
        before, after = _sums(self.original), _sums(self.result)
        rows = [(op, before.get(op, 0.0), after.get(op, 0.0)) for op in before | after]
        return sorted(rows, key=lambda row: (-max(row[1:]), row[0]))

    def to_json(self) -> dict[str, object]:
        """The fields as JSON takes them."""
        return asdict(self)


def _sums(times: Iterable[NodeTime]) -> dict[str, float]:
    found: dict[str, float] = {}
    for time in times:
        found[time.op] = found.get(time.op, 0.0) + time.microseconds
    return found


def milliseconds(microseconds: float) -> str:
    """Of an operator that a model has; else a dash."""
    return f"{microseconds / 1000:.3f}" if microseconds else "-"
