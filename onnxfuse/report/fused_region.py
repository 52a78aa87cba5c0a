"""A fused node as reports have it, and those of equal shape together."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onnxfuse.model.symbols import is_made_up
from onnxfuse.report.byte_counts import Bytes, Traffic

TIMES = "\N{MULTIPLICATION SIGN}"
_USUAL_SIZE = 64
_MOST_OPS = 12


def dimension(dim: int | str | None) -> str:
    """A dimension for people: ``?`` if it is unknown, or has a name that shape inference made up."""
    return "?" if dim in (None, "") or is_made_up(dim) else str(dim)


def describe_shape(shape: Sequence[int | str | None] | None, names: Mapping[str, str] | None = None) -> str:
    """``[1, 64, h, w]``; ``?`` if the rank is unknown.  ``names`` has shorter names for some dimensions."""
    if shape is None:
        return "?"
    dims = [str(dim) if isinstance(dim, int) else dimension(dim) for dim in shape]
    return f"[{', '.join(dims if names is None else (names.get(dim, dim) for dim in dims))}]"


@dataclass
class FusedRegion:
    """One fused node.

    ``ops`` are the ONNX operators that it stands for, in order; ``program`` the text that the kernel runs, with a
    convolution what follows that, and ``prologue`` what precedes it, if anything (in a squeeze-and-excitation gate what
    lies between its convolutions); ``shape`` is the shape of its first
    output as far as it is known (int, symbol, or None for unknown; None: unknown rank). ``bytes_saved`` is what it
    moves through memory less than its nodes did, if that was counted; ``before`` and ``after`` are the launches, reads,
    writes and buffers behind that number.  ``skeleton`` is "transpose" if its kernel turns tiles of what it reads.
    ``kind`` is the name of its kind, ``nodes`` those of the nodes that it stands for, or of their
    first outputs where they have none.
    """

    name: str
    overload: str
    ops: list[str]
    program: str
    inputs: list[str]
    outputs: list[str]
    shape: list[int | str | None] | None = None
    bytes_saved: Bytes | None = None
    before: Traffic | None = None
    after: Traffic | None = None
    prologue: str = ""
    skeleton: str = ""
    kind: str = ""
    nodes: list[str] = field(default_factory=list)

    @property
    def nest(self) -> str:
        """How its Program, if it reduces, is computed, in a line; else empty."""
        from onnxfuse.program.nests import describe
        from onnxfuse.program.program import Program

        return describe(Program.parse(self.program)) if "\nreduce_" in self.program else ""

    def describe_shape(self, names: Mapping[str, str] | None = None) -> str:
        """``[1, 64, h, w]``; ``?`` if the rank is unknown.  ``names`` has shorter names for some dimensions."""
        return describe_shape(self.shape, names)

    def to_json(self) -> dict[str, object]:
        """The fields as JSON takes them."""
        counts = {
            name: None if value is None else value.to_json()
            for name, value in (("bytes_saved", self.bytes_saved), ("before", self.before), ("after", self.after))
        }
        return {**vars(self), "shape": self._json_shape(), **counts, "nest": self.nest}

    def _json_shape(self) -> list[int | str | None] | None:
        """NumPy's integers are none for JSON."""
        if self.shape is None:
            return None
        return [dim if dim is None or isinstance(dim, str) else int(dim) for dim in self.shape]


@dataclass(frozen=True)
class RegionGroup:
    """Fused nodes that do the same to tensors of the same shape, such as those of all layers of a BERT.

    ``reads`` and ``writes`` are what all of them together move, before and after, in bytes; a dimension that has no
    size counts as 64, and what is not known as 0.
    """

    regions: tuple[FusedRegion, ...]
    reads: tuple[int, int]
    writes: tuple[int, int]

    @property
    def first(self) -> FusedRegion:
        """One of them."""
        return self.regions[0]

    @property
    def before(self) -> int:
        """The bytes that their nodes moved."""
        return self.reads[0] + self.writes[0]

    @property
    def after(self) -> int:
        """The bytes that they move."""
        return self.reads[1] + self.writes[1]

    @property
    def title(self) -> str:
        """How many of which kind, such as twelve of FusedAttention."""
        kind = self.first.kind or "fused node"
        return f"{len(self.regions)} {TIMES} {kind}" if len(self.regions) > 1 else kind


def group_regions(regions: Iterable[FusedRegion], sizes: Mapping[str, int] | None = None) -> list[RegionGroup]:
    """The fused nodes by what they do and to which shapes, first those that save the most.

    ``sizes`` has the sizes of dimensions, by their names.
    """
    groups: dict[tuple[object, ...], list[FusedRegion]] = {}
    for region in regions:
        shape = None if region.shape is None else tuple(region.shape)
        moved = tuple(str(traffic and traffic.bytes) for traffic in (region.before, region.after))
        key = (region.kind, tuple(sorted(region.ops)), shape, region.nest, region.skeleton, moved)
        groups.setdefault(key, []).append(region)
    found = [_summed(items, sizes or {}) for items in groups.values()]
    return sorted(found, key=lambda group: (group.after - group.before, -len(group.regions)))


def _summed(regions: list[FusedRegion], sizes: Mapping[str, int]) -> RegionGroup:
    sums = [
        tuple(
            sum(weight(getattr(traffic, what), sizes) for traffic in each if traffic is not None)
            for each in ([region.before for region in regions], [region.after for region in regions])
        )
        for what in ("reads", "writes")
    ]
    return RegionGroup(tuple(regions), (sums[0][0], sums[0][1]), (sums[1][0], sums[1][1]))


def weight(size: Bytes, sizes: Mapping[str, int] | None = None) -> int:
    """A number to sort and to draw by: a dimension that is not known counts as 64."""
    terms = size.at(sizes or {}).terms
    return sum(coefficient * _USUAL_SIZE ** len(symbols) for symbols, coefficient in terms.items())


def listed_ops(ops: list[str]) -> str:
    """``Mul, Add, Relu``; a long list is counted by operator."""
    if len(ops) <= _MOST_OPS:
        return ", ".join(ops)
    return ", ".join(f"{count} {op}" for op, count in Counter(ops).most_common())
