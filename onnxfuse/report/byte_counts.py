"""Numbers of bytes as polynomials in a model's symbolic dimensions."""

import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import DTypeLike

from onnxfuse.model.graph_ir import standard_op
from onnxfuse.model.symbols import is_made_up

_PLAIN_NAME = re.compile(r"[\w.]+|\?")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_SHOWN_TERMS = 3
_LONGEST_NAME = 10
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@lru_cache(maxsize=4096)
def _size(shape: tuple[object, ...], dtype: DTypeLike) -> tuple[tuple[str, ...], int]:
    """The symbols and the coefficient of the term that a tensor's size is."""
    coefficient = np.dtype(dtype).itemsize
    symbols = []
    for dim in shape:
        if isinstance(dim, (int, np.integer)):
            coefficient *= int(dim)
        else:
            symbols.append("?" if not dim or is_made_up(dim) else str(dim))
    return tuple(sorted(symbols)), coefficient


def bytes_of(tensor: gs.Tensor) -> int | None:
    """How many bytes a tensor has; None if a dimension of it is symbolic, or its rank or type unknown."""
    if tensor.shape is None or tensor.dtype is None:
        return None
    symbols, coefficient = _size(tuple(tensor.shape), tensor.dtype)
    return None if symbols and coefficient else coefficient


@dataclass
class Bytes:
    """A number of bytes as a polynomial in the model's symbolic dimensions.

    ``terms`` maps a product of dimensions (their names, sorted, repeated for powers; empty for the constant
    term) to its coefficient.  A dimension without a name is ``?``.  ``unknown`` counts tensors of unknown
    rank or type, which are in no term.
    """

    terms: Counter[tuple[str, ...]] = field(default_factory=Counter)
    unknown: int = 0

    def add(self, tensor: gs.Tensor, times: int = 1) -> None:
        """Add the size of a tensor, ``times`` over."""
        shape, dtype = tensor.shape, tensor.dtype
        if shape is None or dtype is None:
            self.unknown += times
            return
        symbols, coefficient = _size(tuple(shape), dtype)
        self._add_term(symbols, times * coefficient)

    def _add_term(self, symbols: tuple[str, ...], coefficient: int) -> None:
        if total := self.terms[symbols] + coefficient:
            self.terms[symbols] = total
        else:
            self.terms.pop(symbols, None)

    def plus(self, other: "Bytes", times: int = 1) -> "Bytes":
        """This and ``times`` the other."""
        found = Bytes(Counter(self.terms), self.unknown + times * other.unknown)
        for symbols, coefficient in other.terms.items():
            found._add_term(symbols, times * coefficient)
        return found

    def constant(self) -> int | None:
        """The number of bytes if no dimension is symbolic, else None."""
        return self.terms[()] if not any(self.terms.keys()) and not self.unknown else None

    def at(self, sizes: Mapping[str, int]) -> "Bytes":
        """The same with numbers for the dimensions that have a size in ``sizes``."""
        found = Bytes(unknown=self.unknown)
        for symbols, coefficient in self.terms.items():
            known = math.prod(sizes[symbol] for symbol in symbols if symbol in sizes)
            found._add_term(tuple(symbol for symbol in symbols if symbol not in sizes), coefficient * known)
        return found

    def at_least(self) -> str:
        """For people: the number of bytes without what depends on unknown sizes: ``12.3 MB``, ``≥ 12.3 MB``."""
        return ("" if self.constant() is not None else "≥ ") + format_bytes(self.terms[()])

    def symbols(self) -> set[str]:
        """The names of the dimensions."""
        return {symbol for symbols in self.terms for symbol in symbols}

    def __str__(self) -> str:
        """``text`` with the names that the dimensions have in the model."""
        return self.text({})

    def text(self, names: Mapping[str, str]) -> str:
        """For people: ``12.3 MB + 4.1 kB·batch``; beyond three terms the rest is counted.  ``names`` has shorter names
        for some dimensions."""
        ordered = sorted(self.terms.items(), key=lambda term: (-len(term[0]), -term[1], term[0]))
        ordered = [term for term in ordered if not term[0]] + [term for term in ordered if term[0]]
        parts = [_term(symbols, coefficient, names) for symbols, coefficient in ordered[:_SHOWN_TERMS]]
        if len(ordered) > _SHOWN_TERMS:
            parts.append(_counted(len(ordered) - _SHOWN_TERMS, "more term"))
        if self.unknown:
            parts.append(_counted(self.unknown, "tensor") + " of unknown size")
        return " + ".join(parts) or "0 B"

    def to_json(self) -> dict[str, object]:
        """``terms`` as a list of {"bytes", "dims"}, and ``text``, the same for people."""
        terms = [{"bytes": value, "dims": list(symbols)} for symbols, value in sorted(self.terms.items())]
        return {"text": str(self), "terms": terms, "unknown_tensors": self.unknown}


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number != 1 else "")


def _term(symbols: tuple[str, ...], coefficient: int, names: Mapping[str, str]) -> str:
    factors = [format_bytes(coefficient)]
    for symbol, power in Counter(symbols).items():
        name = names.get(symbol, symbol)
        exponent = str(power).translate(_SUPERSCRIPTS) if power > 1 else ""
        factors.append((name if _PLAIN_NAME.fullmatch(name) else f"({name})") + exponent)
    return "·".join(factors)


def format_bytes(number: float) -> str:
    """``12.3 MB``: three digits and a decimal unit."""
    unit = 0
    while number >= 999.5 and unit < len(_UNITS) - 1:
        number /= 1000
        unit += 1
    if unit == 0:
        return f"{number:.0f} B"
    return f"{number:.{0 if number >= 99.95 else 1}f} {_UNITS[unit]}"


def short_names(symbols: Iterable[str]) -> dict[str, str]:
    """``d0``, ``d1`` … for the dimensions whose names are too long for a formula."""
    used = set(symbols)
    free = (name for name in (f"d{number}" for number in count()) if name not in used)
    return {symbol: next(free) for symbol in sorted(used) if len(symbol) > _LONGEST_NAME}


def touched(node: gs.Node) -> list[gs.Tensor]:
    """The distinct tensors that a node reads, and those that it writes."""
    return [*_read(node), *(tensor for tensor in node.outputs if tensor.name)]


def _read(node: gs.Node) -> Iterable[gs.Tensor]:
    """The distinct tensors that a node reads; a Slice reads as much as it writes."""
    if standard_op(node) == "Slice":
        return node.outputs[:1]
    return {id(tensor): tensor for tensor in node.inputs if tensor.name}.values()


@dataclass
class Traffic:
    """What running a region takes: kernels launched, bytes read and written, and buffers between the kernels."""

    launches: int
    reads: Bytes
    writes: Bytes
    buffers: int

    @property
    def bytes(self) -> Bytes:
        """What is read and written."""
        return self.reads.plus(self.writes)

    def to_json(self) -> dict[str, object]:
        """The fields as JSON takes them."""
        return {**vars(self), "reads": self.reads.to_json(), "writes": self.writes.to_json()}


def traffic_of_nodes(nodes: Iterable[gs.Node], outputs: Iterable[gs.Tensor], free: Container[str] = ()) -> Traffic:
    """Running each of ``nodes`` alone; ``outputs`` are read elsewhere too, ``free`` operators do not run."""
    found = Traffic(0, Bytes(), Bytes(), 0)
    kept = {id(tensor) for tensor in outputs}
    for node in nodes:
        if node.op in free:
            continue
        found.launches += 1
        for tensor in _read(node):
            found.reads.add(tensor)
        for tensor in node.outputs:
            if tensor.name:
                found.writes.add(tensor)
                found.buffers += id(tensor) not in kept
    return found


def traffic_of_kernel(inputs: Iterable[gs.Tensor], outputs: Iterable[gs.Tensor]) -> Traffic:
    """Running one kernel."""
    found = Traffic(1, Bytes(), Bytes(), 0)
    for tensor in {id(tensor): tensor for tensor in inputs}.values():
        found.reads.add(tensor)
    for tensor in outputs:
        found.writes.add(tensor)
    return found


def bytes_saved(
    nodes: Iterable[gs.Node], inputs: Iterable[gs.Tensor], outputs: Sequence[gs.Tensor], free: Container[str] = ()
) -> Bytes:
    """What running ``nodes`` as one kernel with these inputs and outputs moves less than running each
    alone, but for ``free`` operators, which do not run."""
    return traffic_of_nodes(nodes, outputs, free).bytes.plus(traffic_of_kernel(inputs, outputs).bytes, -1)
