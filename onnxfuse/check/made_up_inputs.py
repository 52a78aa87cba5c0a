"""Inputs to run a model on, made up so that they are realistic for its signature."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np
import onnx

from onnxfuse.check.drawn_values import drawn, is_image
from onnxfuse.check.dynamic_sizes import DynamicSizes, sizes_of
from onnxfuse.check.input_advice import advice
from onnxfuse.check.input_shapes import MANY_ELEMENTS, Sizes, resolve_shapes, role_of, size_name
from onnxfuse.check.input_values import Purposes
from onnxfuse.check.larger_sizes import Goals, alternatives, beyond, limits_of
from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.given_shapes import Shapes, symbol_sizes
from onnxfuse.run.inputs import OF_TENSORS, InputSet, InputSpec, with_article
from onnxfuse.run.sessions import SessionError, Value

_SIZES = (
    Sizes(),
    Sizes(spatial=224, length=16),
    Sizes(channels=1),
    Sizes(spatial=32, length=8),
    Sizes(spatial=128, length=128),
    Sizes(spatial=256, length=1),
    Sizes(spatial=640, length=512),
    Sizes(channels=4, spatial=16, length=2),
)
BENCHMARK_SIZES = (Sizes(spatial=224, length=128), *_SIZES)
"""Larger sizes first: what a benchmark should try."""

_INTEGER_BOUNDS = (16, 2, 1)
"""Integers that index something must stay below a bound that the signature does not tell."""
_MOST_BYTES = 1 << 31
"""In all made-up inputs together."""
_MOST_DIMENSIONS = 64
"""Of an array of NumPy's."""
_MOST_SECONDS = 5.0
"""That a run with larger sizes may take."""
_MOST_SIZES = 4
"""Of which one is tried as the sum of others."""
_GROWTH = 4
"""By how much sizes grow at a time, where it is not known how long a run takes."""

_GIVE_OTHERS = "give others where the command has --shape or --inputs"
NO_INPUTS = f"could not run the original with generated inputs: {_GIVE_OTHERS}"


Run = Callable[[dict[str, Value]], list[Value]]
Tell = Callable[[str], None]


def generate(
    specs: list[InputSpec],
    run: Run,
    shapes: Shapes,
    candidates: tuple[Sizes, ...] = _SIZES,
    model: onnx.ModelProto | None = None,
    tell: Tell = lambda message: None,
) -> Iterator[tuple[InputSet, list[Value]]]:
    """Made-up input sets on which ``run`` (of the original model) succeeds, each with the outputs it gave.

    Three kinds: standard normal; a page of dark strokes on white where an input looks like an image (networks that
    find things in images answer noise with next to nothing), uniform in [0, 1) for other inputs, with a batch of two
    where the batch is dynamic; and magnitudes spread from 0.001 to 30 with exact zeros.  Inputs of which ``model``
    tells what they are for, shapes, indices, axes, lengths and the like, get such values.  Other integers stay in a
    small range, which shrinks until the model takes them.  A bool by itself, and what else may choose a branch, goes
    one way in the first set and the other in the second.  Where ``model`` compares dynamic sizes with constants there
    is one set more, of the first kind with larger sizes; ``tell`` is told if they are not as large as they should be.
    Inputs or outputs of more than 32 Mi elements are only made once, of the first kind.  Raises OnnxfuseError if
    nothing runs, and for an input that holds no tensors.
    """
    for spec in specs:
        if spec.kind not in OF_TENSORS or spec.elem_type == onnx.TensorProto.UNDEFINED:
            what = f"{spec.kind} of an unknown type" if spec.kind in OF_TENSORS else spec.kind
            raise OnnxfuseError(f"no inputs can be made up for {spec.name!r}, {with_article(what)}")
    maker = _Maker(specs, run, shapes, model, tell)
    for (way, sizes), bound in ((way, bound) for way in maker.ways(candidates) for bound in _INTEGER_BOUNDS):
        made = maker.first(way, sizes, bound)
        if made is None:
            continue
        yield made
        if not maker.is_large():
            yield from maker.variations(way, sizes, bound)
            yield from maker.larger(way, sizes, bound)
        return
    raise OnnxfuseError(f"{NO_INPUTS}, {maker.advice(candidates[-1])} ({maker.failure})")


def _elements(values: Iterable[Value]) -> int:
    return sum(value.size for value in values if isinstance(value, np.ndarray))


@dataclass(frozen=True)
class _Way:
    """A way to make inputs up: what is known of them, which sizes are fixed, and one that is the sum of two others."""

    purposes: Purposes | None
    fixed: Mapping[str, int]
    sum: "_Sum | None" = None


@dataclass(frozen=True)
class _Sum:
    """A size that is that of others together, and some more, as that of all keys is of cached and of new ones."""

    name: str
    parts: tuple[str, ...]
    more: int


Made = tuple[InputSet, list[Value]]


class _Maker:
    """Makes inputs up and runs the model on them."""

    def __init__(
        self, specs: list[InputSpec], run: Run, shapes: Shapes, model: onnx.ModelProto | None, tell: Tell
    ) -> None:
        self._specs = specs
        self._run = run
        self._shapes = shapes
        self._tell = tell
        self._purposes = None if model is None else Purposes(model, specs)
        self._seen: set[object] = set()
        self._seconds = 0.0
        self._elements = 0
        self.failure = ""

    def is_large(self) -> bool:
        """Whether the last inputs, or the outputs for them, have so many elements that there are to be no more."""
        return self._elements > MANY_ELEMENTS

    def ways(self, candidates: tuple[Sizes, ...]) -> Iterator[tuple[_Way, Sizes]]:
        """What to try, one after the other."""
        known = _Way(self._purposes, {})
        yield known, candidates[0]
        needed = {} if self._purposes is None else self._dynamic().needed()
        yield from product([_Way(self._purposes, needed)] if needed else [], candidates)
        yield from product(self._sums(needed, candidates[0]), candidates[:1])
        yield from product([known], candidates[1:])
        yield from product([_Way(None, {})] if self._purposes else [], candidates)

    def _sums(self, needed: Mapping[str, int], sizes: Sizes) -> list[_Way]:
        """Sizes that may be sums of others, of a model that has few of them, or of one and a new element."""
        way = _Way(self._purposes, needed)
        names = list(self._free(way, self._resolved(way, sizes)))
        if self._purposes is None or not 1 < len(names) <= _MOST_SIZES:
            return []
        pairs = [_Sum(name, parts, 0) for name in names for parts in combinations([n for n in names if n != name], 2)]
        ones = [_Sum(name, (part,), 1) for name in names for part in names if part != name]
        return [replace(way, sum=made) for made in (*pairs, *ones)]

    def advice(self, sizes: Sizes) -> str:
        """What the user could give."""
        graph = None if self._purposes is None else self._purposes.graph
        shapes = resolve_shapes(self._specs, self._shapes, sizes)
        return advice(self._specs, graph, self.failure, shapes, {*self._shapes})

    def _dynamic(self) -> DynamicSizes:
        assert self._purposes is not None
        return DynamicSizes(self._purposes.graph, self._specs)

    def _resolved(self, way: _Way, sizes: Sizes) -> Shapes:
        shapes = resolve_shapes(self._specs, self._shapes, sizes, way.fixed)
        if way.sum is None:
            return shapes
        known = sizes_of(self._specs, shapes)
        total = sum(known[part] for part in way.sum.parts) + way.sum.more
        return resolve_shapes(self._specs, self._shapes, sizes, {**way.fixed, way.sum.name: total})

    def _made(self, way: _Way, sizes: Sizes, kind: str, bound: int, branch: bool = True) -> Made | None:
        """Inputs and the outputs for them; None if the model does not run on them."""
        inputs = make_inputs(self._specs, self._resolved(way, sizes), kind, bound, way.purposes, branch)
        started = time.perf_counter()
        try:
            outputs = self._run(inputs.feeds)
        except SessionError as error:
            self.failure = self.failure or str(error)
            return None
        self._seconds = time.perf_counter() - started
        self._elements = max(_elements(inputs.feeds.values()), _elements(outputs))
        return inputs, outputs

    def first(self, way: _Way, sizes: Sizes, bound: int) -> Made | None:
        """The first kind of values, unless the same inputs were tried before."""
        resolved = self._resolved(way, sizes)
        key = (way.purposes is None, tuple(resolved.items()), bound if any(map(_is_integer, self._specs)) else 0)
        if key in self._seen:
            return None
        self._seen.add(key)
        return self._made(way, sizes, "normal", bound)

    def variations(self, way: _Way, sizes: Sizes, bound: int) -> Iterator[Made]:
        """The other kinds of values; a kind that the model refuses (a batch of two, say) is left out."""
        if not self._specs:
            return
        pair = replace(sizes, batch=2)
        shapes = self._resolved(way, sizes)
        natural = "image" if any(is_image(spec, shapes[spec.name]) for spec in self._specs) else "uniform"
        for kind, ways in ((natural, product((False, True), (pair, sizes))), ("spread", ((True, sizes),))):
            tried = (self._made(way, batch, kind, bound, branch) for branch, batch in ways)
            made = next(filter(None, tried), None)
            if made is not None:
                yield made

    def larger(self, way: _Way, sizes: Sizes, bound: int) -> Iterator[Made]:
        """One set of sizes that are beyond what they are compared with, and as large as the tables allow."""
        dynamic = None if way.purposes is None else self._dynamic()
        limits = [] if dynamic is None else limits_of(dynamic)
        if dynamic is None or not limits:
            return
        goals = Goals(tuple(limits), self._free(way, self._resolved(way, sizes)))
        positions = [beyond(limit.value) for limit in limits if limit.sizes & {*dynamic.positions.values()}]
        bound = max([bound, *positions])
        best: tuple[Made, Mapping[str, int]] | None = None
        for goal in [*goals, *([{}] if positions else [])]:
            if best is not None and all(best[1].get(name, 0) >= size for name, size in goal.items()):
                break
            for found in self._towards(way, sizes, goal, goals.sizes, bound):
                best = found
        reached = {} if best is None else best[1]
        if best is not None:
            inputs, outputs = best[0]
            yield replace(inputs, label=f"{inputs.label}, larger sizes"), outputs
        if (missed := goals.missed(reached)) is not None:
            size, names = max(
                (reached.get(name, goals.sizes[name]), name) for name in missed.sizes & goals.sizes.keys()
            )
            self._tell(
                f"the model compares {names} with {missed.value}, and was run with {size} at most: "
                "give a larger one where the command has --shape"
            )

    def _free(self, way: _Way, shapes: Shapes) -> dict[str, int]:
        """The sizes that may be larger, as they are: those of no batch that the user and the model leave open."""
        fixed = {*self._shapes, *way.fixed, *symbol_sizes(self._specs, self._shapes)}
        fixed |= {way.sum.name} if way.sum else set()
        return {
            name: size
            for spec in self._specs
            if spec.name not in fixed and spec.shape is not None
            for axis, size in enumerate(shapes[spec.name])
            if (name := size_name(spec, axis)) and name not in fixed and role_of(spec, axis) != "batch"
        }

    def _towards(
        self, way: _Way, sizes: Sizes, goal: Mapping[str, int], first: Mapping[str, int], bound: int
    ) -> Iterator[tuple[Made, Mapping[str, int]]]:
        """What is made with the sizes of a goal, or ever nearer ones, and these.

        They grow by and by where it is not known whether a run takes long, and no further where it does.
        """
        now = first
        while True:
            step = goal
            if not self._is_quick(goal, now):
                step = {name: min(size, now[name] * _GROWTH) for name, size in goal.items()}
            if not self._is_quick(step, now):
                return
            tried = ((self._made_with(way, sizes, fixed, bound), fixed) for fixed in alternatives(step, first))
            found = next(((made, fixed) for made, fixed in tried if made is not None), None)
            if found is None:
                return
            yield found
            if step == goal:
                return
            now = {**now, **step}

    def _is_quick(self, goal: Mapping[str, int], now: Mapping[str, int]) -> bool:
        """Whether a run, which may take four times as long with twice the size, will not take too long."""
        growth = max((size / max(now[name], 1) for name, size in goal.items()), default=1.0)
        return self._seconds * growth**2 <= _MOST_SECONDS and self._elements * growth <= MANY_ELEMENTS

    def _made_with(self, way: _Way, sizes: Sizes, fixed: Mapping[str, int], bound: int) -> Made | None:
        larger = replace(way, fixed={**way.fixed, **fixed})
        if sum(math.prod(shape) for shape in self._resolved(larger, sizes).values()) > MANY_ELEMENTS:
            return None
        return self._made(larger, sizes, "normal", bound)


def _is_integer(spec: InputSpec) -> bool:
    return spec.dtype.kind in "iu"


def make_inputs(
    specs: list[InputSpec],
    shapes: Shapes,
    kind: str,
    bound: int,
    purposes: Purposes | None = None,
    branch: bool = True,
) -> InputSet:
    """Values of the given kind ("normal", "uniform", "image", "spread"), the same each time; integers in [0, bound)
    where ``purposes`` does not tell more, which also has a ``branch`` taken or not.

    Raises OnnxfuseError where they are larger than 2 GiB.
    """
    _check_size(specs, shapes)
    generator = np.random.default_rng([2024, len(kind), bound])
    plain = {spec.name: drawn(spec, shapes[spec.name], kind, bound, generator) for spec in specs}
    known: dict[str, np.ndarray] = {}
    if purposes is not None:
        known = purposes.values(shapes, branch, lambda spec: np.asarray(plain[spec.name]), generator)
    feeds: dict[str, Value] = {}
    for spec in specs:
        value = known.get(spec.name, plain[spec.name])
        feeds[spec.name] = [value] if spec.kind == "sequence" else value
    return InputSet(f"{kind} values", feeds)


def _check_size(specs: list[InputSpec], shapes: Shapes) -> None:
    for spec in specs:
        rank = len(shapes[spec.name])
        if rank > _MOST_DIMENSIONS:
            raise OnnxfuseError(
                f"input {spec.name!r} has {rank} dimensions, and NumPy's arrays {_MOST_DIMENSIONS} at most"
            )
    sizes = [math.prod(shapes[spec.name]) * max(spec.dtype.itemsize, 1) for spec in specs]
    if sum(sizes) > _MOST_BYTES:
        _, spec = max(zip(sizes, specs, strict=True), key=lambda pair: pair[0])
        shape = list(shapes[spec.name])
        raise OnnxfuseError(
            f"the inputs, {spec.describe()} of shape {shape} among them, are larger than 2 GiB: {_GIVE_OTHERS}"
        )
