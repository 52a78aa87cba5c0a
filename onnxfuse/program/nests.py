"""How a Program that reduces is computed: the passes over the elements of a row, and what is kept between them.

A row is all elements that have their coordinates along the axes that are not reduced in common.  A value with one
element along the reduced axes is a *row value*, computed once a row; all others are values of elements.  The phase of a
value is the largest of its operands', a reduction's result has one more than what it reduces: in pass p over a row the
values of phase p are computed, and before it the row values of phase p.

What a pass needs of earlier ones is *kept*, or computed again from what is: the values that are kept are those that
take the fewest bytes with nothing but cheap operators repeated.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program.ops import OPS
from onnxfuse.program.program import Const, Index, Input, Instruction, Program, ProgramError, Reduction

_REGISTER = 4
"""Bytes that a computed value takes at least."""


@dataclass(frozen=True)
class Pass:
    """One pass over the elements of a row, of values by their ids.

    ``rows``: the row values that are computed before it, results of the reductions of the pass before among them.
    ``reads``: the inputs and indices that it reads.  ``computes``: the instructions, in order.  ``uses``: what it takes
    of what earlier passes have kept.  ``reduces``: the reductions that it feeds.  ``writes`` and ``row_writes``: the
    outputs of elements and of rows that are known in it, by their places among the outputs.
    """

    rows: tuple[int, ...]
    reads: tuple[int, ...]
    computes: tuple[int, ...]
    uses: tuple[int, ...]
    reduces: tuple[int, ...]
    writes: tuple[int, ...]
    row_writes: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        """Whether it does nothing for each element."""
        return not self.reduces and not self.writes


@dataclass(frozen=True)
class Nest:
    """The passes of a Program, where ``kept`` are values that one pass leaves to others.

    ``row_values`` are the ids of all row values.
    """

    program: Program
    row_values: frozenset[int]
    kept: tuple[int, ...]
    passes: tuple[Pass, ...]

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept for each element, at most at one time."""
        most, made = 0, set[int]()
        for number, one in enumerate(self.passes):
            made.update({*one.reads, *one.computes} & set(self.kept))
            later = {value for other in self.passes[number + 1 :] for value in other.uses}
            most = max(most, sum(_bytes(self.program, value) for value in made & later))
        return most

    @property
    def read_bytes(self) -> int:
        """Bytes that are read for each element from whole tensors, in all passes."""
        return sum(self._size(value) for one in self.passes for value in one.reads)

    @property
    def input_bytes(self) -> int:
        """Bytes of an element of all inputs that are whole tensors: what is read if nothing is read twice."""
        return sum(self._size(value) for value in {value for one in self.passes for value in one.reads})

    @property
    def written_bytes(self) -> int:
        """Bytes that are written for each element."""
        return sum(
            DTYPES[self.program.dtype(self.program.outputs[place])].itemsize
            for one in self.passes
            for place in one.writes
        )

    def _size(self, value: int) -> int:
        spec = self.program.values[value]
        return DTYPES[spec.dtype].itemsize if isinstance(spec, Input) else 0


def describe(program: Program) -> str:
    """How a Program that reduces is computed, in a line; empty for one that does not."""
    if not program.reductions:
        return ""
    made = nest(program)
    passes = sum(not one.is_empty for one in made.passes)
    last = program.axes == tuple(range(-len(program.axes), 0))
    axes = ", ".join(map(str, program.axes))
    along = f"axes {axes}" if len(program.axes) > 1 else "the last axis" if last else f"axis {axes}"
    kept = f"; {made.kept_bytes} bytes of an element kept between them" if made.kept_bytes else ""
    return f"{passes} {'pass' if passes == 1 else 'passes'} over {'rows' if last else 'columns'} along {along}{kept}"


def leaves(program: Program) -> tuple[int, ...]:
    """The inputs, then the indices: what a kernel finds by where an element lies."""
    inputs = [value for value, spec in enumerate(program.values) if isinstance(spec, Input)]
    return (*inputs, *(value for value, spec in enumerate(program.values) if isinstance(spec, Index)))


def needed(program: Program) -> set[int]:
    """The ids of the values that an output needs, the numbers of rows among them; of an index only itself, for its
    operand but gives it a shape.
    """
    found = set(program.outputs)
    for value in reversed(range(len(program.values))):
        spec = program.values[value]
        if value in found and isinstance(spec, Instruction | Reduction):
            found.update(spec.operands)
        elif value in found and isinstance(spec, Input) and spec.row is not None:
            found.add(spec.row)
    return found


def nest(program: Program, rows: Collection[int] = (), keeps: bool = True) -> Nest:
    """The passes of a Program whose inputs and indices in ``rows`` have one element along the reduced axes.

    Without ``keeps`` every pass computes what it needs from the inputs.  Raises ProgramError if a row value is reduced.
    """
    return _Analysis(program, rows).nest(keeps)


class _Analysis:
    def __init__(self, program: Program, rows: Collection[int]) -> None:
        self.program = program
        self.live = needed(program)
        self.row: set[int] = set()
        self.phase: list[int] = []
        for value, spec in enumerate(program.values):
            phase = 0
            match spec:
                case Instruction(operands=operands):
                    phase = max((self.phase[operand] for operand in operands), default=0)
                    is_row = all(operand in self.row for operand in operands)
                case Reduction(operand=operand):
                    phase = self.phase[operand] + 1
                    is_row = True
                    if operand in self.row and value in self.live:
                        raise ProgramError(f"line {program.line_of(value)}: '{spec}' reduces a value of rows")
                case Const():
                    is_row = True
                case _:
                    is_row = value in rows
            self.phase.append(phase)
            if is_row:
                self.row.add(value)

    def nest(self, keeps: bool) -> Nest:
        count = 1 + max((self.phase[value] for value in self.live), default=0)
        holdable = self._holdable() if keeps else set()
        seen: set[int] = set()  # computed or read by the passes so far
        kept: set[int] = set()
        passes = []
        for number in range(count):
            one, visited = self._pass(number, holdable & seen)
            passes.append(one)
            seen |= visited
            kept.update(one.uses)
        return Nest(self.program, frozenset(self.row), tuple(sorted(kept)), tuple(passes))

    def _pass(self, number: int, available: set[int]) -> tuple[Pass, set[int]]:
        program, live = self.program, self.live
        reduces = [value for value in self._reductions() if self.phase[program.values[value].operand] == number]  # type: ignore[union-attr]
        own = [place for place, output in enumerate(program.outputs) if self.phase[output] == number]
        writes = [place for place in own if program.outputs[place] not in self.row]
        targets = [program.values[value].operand for value in reduces]  # type: ignore[union-attr]
        targets += [program.outputs[place] for place in writes]
        reads: set[int] = set()
        computes: set[int] = set()
        uses: set[int] = set()
        rest = list(targets)
        while rest:
            value = rest.pop()
            if value in self.row or value in reads | computes | uses:
                continue
            spec = program.values[value]
            if value in available:
                uses.add(value)
            elif isinstance(spec, Instruction):
                computes.add(value)
                rest.extend(spec.operands)
            else:
                reads.add(value)
        one = Pass(
            rows=tuple(value for value in sorted(self.row & live) if self.phase[value] == number),
            reads=tuple(sorted(reads)),
            computes=tuple(sorted(computes)),
            uses=tuple(sorted(uses)),
            reduces=tuple(reduces),
            writes=tuple(writes),
            row_writes=tuple(place for place in own if program.outputs[place] in self.row),
        )
        return one, reads | computes

    def _reductions(self) -> Iterator[int]:
        for value in sorted(self.live):
            if isinstance(self.program.values[value], Reduction):
                yield value

    def _holdable(self) -> set[int]:
        """What to keep of the values that a later phase than their own reads."""
        crossing: set[int] = set()
        for value in self.live - self.row:
            spec = self.program.values[value]
            if isinstance(spec, Instruction):
                crossing.update(one for one in self._own(spec) if self.phase[one] < self.phase[value])
        while (fewer := self._with_less(crossing)) is not None:
            crossing = fewer
        return crossing

    def _with_less(self, held: set[int]) -> set[int] | None:
        """The same with one value computed again from what it comes from, if that takes fewer bytes."""
        size = self._size(held)
        for value in sorted(held, reverse=True):
            spec = self.program.values[value]
            if not isinstance(spec, Instruction) or not OPS[spec.op].cost.repeatable:
                continue
            instead = (held - {value}) | self._own(spec)
            if self._size(instead) < size:
                return instead
        return None

    def _own(self, spec: Instruction) -> set[int]:
        """The operands that would have to be kept."""
        values = self.program.values
        return {one for one in spec.operands if one not in self.row and not isinstance(values[one], Index)}

    def _size(self, values: Collection[int]) -> int:
        return sum(_bytes(self.program, value) for value in values)


def _bytes(program: Program, value: int) -> int:
    """What a value of an element takes: of an input as it lies in memory."""
    spec = program.values[value]
    if isinstance(spec, Input):
        return DTYPES[spec.dtype].itemsize
    return max(_REGISTER, DTYPES[DTYPES[program.dtype(value)].compute].itemsize)
