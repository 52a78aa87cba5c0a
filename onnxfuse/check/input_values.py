"""Values for those inputs of a model of which its nodes tell what they are for."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx

from onnxfuse.check.comparison import precision
from onnxfuse.check.input_uses import Use, uses, wanted
from onnxfuse.check.readers import READERS
from onnxfuse.check.tensor_facts import SMALL, Facts, Graph, key_of
from onnxfuse.check.wants import Want
from onnxfuse.run.given_shapes import Shapes, symbol_sizes
from onnxfuse.run.inputs import InputSpec

_SPAN = 16
"""How many integers there are to choose from where only one bound is known."""

_MOST_ROWS = 1 << 20
_LARGEST = 1 << 52
"""What a float64, in which bounds are kept, holds exactly."""

Draw = Callable[[InputSpec], np.ndarray]
"""Values for an input of which nothing is known."""


class Purposes:
    """What the inputs of a model are for."""

    def __init__(self, model: onnx.ModelProto, specs: list[InputSpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self.graph = Graph(model)
        found = {spec.name: self._uses_of(spec) for spec in specs}
        self._uses = {name: of_input for name, of_input in found.items() if of_input}

    def _uses_of(self, spec: InputSpec) -> list[Use]:
        """What an input is for; of a large one of floats only what reads it as it is."""
        if spec.kind != "tensor" or spec.elem_type in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
            return []
        dims = (None,) if spec.shape is None else spec.shape
        sizes = [dim for dim in dims if isinstance(dim, int)]
        if spec.dtype.kind in "iub" or (len(sizes) == len(dims) and math.prod(sizes) <= SMALL):
            return uses(self.graph, spec.name)
        if any(place in READERS.get(key_of(node), {}) for node, place in self.graph.readers[spec.name]):
            return [use for use in uses(self.graph, spec.name) if not use.between]
        return []

    def values(self, shapes: Shapes, branch: bool, draw: Draw, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Values, by name, for the inputs of which something is known, where all inputs have these ``shapes``.

        ``branch`` is which way conditions go, and ``draw`` gives what the values are that have one bound or none.
        """
        tensors = {name: shape for name, shape in shapes.items() if name in self._specs}
        facts = Facts(self.graph, tensors, symbol_sizes(list(self._specs.values()), tensors))
        made: dict[str, np.ndarray] = {}
        for name in sorted(self._uses, key=lambda name: self._uses[name][0].order):
            want = wanted(self.graph, facts, name, branch, self._uses[name])
            if want is None:
                continue
            spec = self._specs[name]
            value = drawn(want, spec.dtype, shapes[name], draw(spec), generator)
            if value is not None:
                made[name] = value
                if value.size <= SMALL:
                    facts.set(name, value)
        return made


def drawn(
    want: Want, dtype: np.dtype, shape: tuple[int, ...], other: np.ndarray, generator: np.random.Generator
) -> np.ndarray | None:
    """An array of what is wanted, or None if the type or the shape has no such.

    ``other`` is what it would be if nothing were wanted, and is moved to where it has but one bound.
    """
    try:
        low, high = (np.broadcast_to(bound, shape) for bound in (want.low, want.high))
    except ValueError:
        return None
    values = other.astype(np.float64)
    is_open = np.isneginf(low), np.isposinf(high)
    if precision(dtype) > 0 and dtype.kind != "c":
        is_closed = ~(is_open[0] | is_open[1])
        between = generator.uniform(np.where(is_closed, low, 0), np.where(is_closed, high, 0))
        found = np.where(is_open[0], high - abs(values), np.where(is_open[1], low + abs(values), between))
        return np.where(is_open[0] & is_open[1], values, found).astype(dtype)
    if dtype.kind not in "iub":
        return None
    least = 0 if dtype.kind in "ub" else max(np.iinfo(dtype).min, -_LARGEST)
    most = 1 if dtype.kind == "b" else min(np.iinfo(dtype).max, _LARGEST)
    free = is_open[0] & is_open[1]
    last = np.where(free, values, np.where(is_open[1], low + _SPAN - 1, high))
    first = np.where(free, values, np.where(is_open[0], np.where(last < 0, last - _SPAN + 1, 0), low))
    first, last = (bound.astype(np.int64) for bound in (np.ceil(first).clip(least), np.floor(last).clip(max=most)))
    if np.any(first > last):
        return None
    rows = _distinct_rows(first, last, generator) if want.distinct else None
    chosen = generator.integers(first, last, shape, endpoint=True) if rows is None else rows
    return np.asarray(chosen).astype(dtype)


def _distinct_rows(low: np.ndarray, high: np.ndarray, generator: np.random.Generator) -> np.ndarray | None:
    """Integers within bounds, which are the same for all rows, no two rows the same; None if there are not as many."""
    if low.ndim < 1 or low.size == 0:
        return None
    counts = high.reshape(-1, low.shape[-1])[0] - low.reshape(-1, low.shape[-1])[0] + 1
    total, rows = math.prod(int(count) for count in counts), low.size // low.shape[-1]
    if not rows <= total <= _MOST_ROWS:
        return None
    places = generator.choice(total, rows, replace=False)
    return np.stack(np.unravel_index(places, counts), axis=-1).reshape(low.shape) + low
