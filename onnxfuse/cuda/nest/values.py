"""The values of a Program in a kernel that reduces: their names and types, and those that each tile of rows has."""

from collections.abc import Callable, Iterator

from onnxfuse.cuda.element import computed, stored
from onnxfuse.cuda.nest.kernel import NestKernel
from onnxfuse.program import Const, Input, Instruction, Program
from onnxfuse.program.nests import Nest, Pass, leaves, needed
from onnxfuse.program.ops import REDUCTIONS
from onnxfuse.program.program import Reduction
from onnxfuse.program.view_steps import has_nibbles

_MOST_SUMS = 8
"""Of a thread: so many additions are under way at once."""


def element(spec: Input) -> str:
    """The C++ type of an element of an input in memory."""
    return "nibble" if has_nibbles(spec.view) else stored(spec.dtype)


class KernelValues:
    """The values of a Program as a kernel has them.

    ``own`` are those of which each of the ``tiles`` has a copy; they are what stands behind the names of copies.
    """

    def __init__(self, program: Program, kernel: NestKernel, nest: Nest) -> None:
        self.program, self.kernel, self.nest = program, kernel, nest
        self.index = f"u{kernel.index}"
        self.is_columns = kernel.along == "columns"
        live = needed(program)
        inputs = len(program.inputs)
        self.leaves = [
            (value, f"in{number}" if number < inputs else f"index{number - inputs}", letter)
            for number, (value, letter) in enumerate(
                zip(leaves(program), kernel.access.inputs + kernel.access.indices, strict=True)
            )
        ]
        self.live_leaves = [leaf for leaf in self.leaves if leaf[0] in live]
        self.names = {value: name for value, name, _ in self.leaves}
        self.letters = {value: letter.lower() for value, _, letter in self.leaves}
        self.tables = [value for value, spec in enumerate(program.inputs) if spec.row is not None]
        self.consts = [value for value in sorted(live) if isinstance(program.values[value], Const)]
        self.reductions = [
            value for value, spec in enumerate(program.values) if isinstance(spec, Reduction)
        ]  # all of them, for their places in the workspace
        self.live_reductions = [value for value in self.reductions if value in live]
        self.tiles = [f"_{tile}" for tile in range(kernel.tile)] if kernel.tile > 1 else [""]
        self.own = self._own_values()

    def _own_values(self) -> set[int]:
        """The values of which each tile has its own."""
        own = {value for value, _, letter in self.leaves if letter.islower() and self.kernel.tile > 1}
        for value, spec in enumerate(self.program.values):
            if isinstance(spec, Instruction | Reduction) and not own.isdisjoint(spec.operands):
                own.add(value)
        return own

    def _copies(self, value: int) -> list[str]:
        """What stands behind the names of a value, one for each tile or one for all."""
        return self.tiles if value in self.own else [""]

    def _in(self, tile: str, value: int) -> str:
        """What stands behind the name of a value in a tile."""
        return tile if value in self.own else ""

    def _name(self, value: int, tile: str = "") -> str:
        is_array = self.is_columns and value in self.nest.row_values and value not in self.consts
        return f"v{value}[j]" if is_array else f"v{value}{self._in(tile, value)}"

    def _names(self, tile: str) -> Callable[[int], str]:
        """The names of values in a tile."""
        return lambda value: self._name(value, tile)

    def _product(self, value: int) -> int | None:
        """The product of float32 that a sum is of, and that nothing else reads: each is added by one instruction then,
        and rounded once.
        """
        spec = self.program.values[value]
        assert isinstance(spec, Reduction)
        product = self.program.values[spec.operand]
        adds = REDUCTIONS[spec.op].combine == "add" and isinstance(product, Instruction) and product.op == "mul"
        if not adds or self._type(value) != "f32" or self._type(spec.operand) != "f32":
            return None
        readers = [one for one in self.program.values if isinstance(one, Instruction | Reduction)]
        reads = sum(one.operands.count(spec.operand) for one in readers)
        is_kept = spec.operand in self.nest.kept or spec.operand in self.program.outputs
        return spec.operand if reads == 1 and not is_kept else None

    @property
    def _sums(self) -> int:
        """Partial sums of a thread, for each tile: fewer where there are several, of which each is a sum of its own."""
        return min(_MOST_SUMS, 1 << (max(1, self.kernel.vector // self.kernel.tile).bit_length() - 1))

    def _each(self, statement: str) -> Iterator[str]:
        if self.kernel.vector > 1:
            yield "#pragma unroll"
        yield f"for (int j = 0; j < {self.kernel.vector}; ++j) {statement}"

    def _type(self, value: int) -> str:
        return computed(self.program.dtype(value))

    def _spec(self, value: int) -> Input:
        spec = self.program.values[value]
        assert isinstance(spec, Input)
        return spec

    def _row_of(self, value: int) -> int:
        """The input that has the numbers of the rows of another one."""
        row = self._spec(value).row
        assert row is not None
        return row

    def _is_input(self, value: int) -> bool:
        return isinstance(self.program.values[value], Input)

    def _inputs(self, one: Pass) -> list[int]:
        """The inputs that a pass reads."""
        return [value for value in one.reads if self._is_input(value)]

    def _width(self, value: int) -> int:
        """Elements that a group reads of an input."""
        return 1 if self.letters[value] == "b" else self.kernel.vector

    def _pack(self, value: int) -> str:
        return f"Pack<{element(self._spec(value))}, {self._width(value)}>"

    def _op(self, value: int) -> str:
        spec = self.program.values[value]
        assert isinstance(spec, Reduction)
        return REDUCTIONS[spec.op].combine.capitalize()
