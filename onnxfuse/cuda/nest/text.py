"""The text of one kernel of a Program that reduces.

Along rows and along columns a kernel is the same but for where its threads are: along rows the ``vector`` neighbours of
a group are elements of one row, whose row values are scalars; along columns they are elements of as many rows, whose
row values are arrays.  Where a thread has the rows of several tiles, there is a copy of each value that is not the same
for all of them, with the tile's number behind its name.
"""

from collections.abc import Callable, Iterator, Sequence

from onnxfuse.cuda.element import computed, computed_of, expression, literal, stored
from onnxfuse.cuda.nest.values import KernelValues, element
from onnxfuse.program import Index, Input, Instruction
from onnxfuse.program.figures import NEST_LANES, WARP
from onnxfuse.program.nests import Pass
from onnxfuse.program.program import Reduction

_WALKED = "bg"
"""The letters of what is addressed by strides over the dimensions of a row."""
_GROUP_BYTES = 128
"""Bytes that a thread reads before it computes with them."""
_THREADS = 1024
"""Of a multiprocessor, at least: half of what most of them can have, with 64 registers each."""
_THREADS_OF_TILES = 512
"""The same where a thread has sums for several tiles, with twice as many registers."""


class KernelText(KernelValues):
    """Writes the functions of a kernel."""

    def functions(self) -> Iterator[str]:
        """The text of each."""
        if self.kernel.steps:
            for step, name in enumerate(self.kernel.functions):
                yield self._function(name, step)
        else:
            yield self._function(self.kernel.name, None)

    def _function(self, name: str, step: int | None) -> str:
        blocks = max(1, (_THREADS if self.kernel.tile == 1 else _THREADS_OF_TILES) // self.kernel.block)
        lines = [
            f'extern "C" __global__ void __launch_bounds__({self.kernel.block}, {blocks})',
            f"{name}(",
            *(f"    {parameter}," for parameter in self._parameters()),
        ]
        lines[-1] = lines[-1][:-1] + ") {"
        lines += [f"  {line}" if line[:1] != "#" else line for line in self._body(step)]
        return "\n".join([*lines, "}\n"])

    def _parameters(self) -> Iterator[str]:
        """As ``onnxfuse.cuda.nest.arguments.pack`` gives them."""
        for number, spec in enumerate(self.program.inputs):
            yield f"const {element(spec)}* __restrict__ in{number}"
        for number, output in enumerate(self.program.outputs):
            yield f"{stored(self.program.dtype(output))}* __restrict__ out{number}"
        yield "u64* workspace"
        yield from (f"{self.index} {name}" for name in ("rows", "length", "splits", "chunk"))
        yield f"const __grid_constant__ NestSpace<{self.index}> space"
        names = [name for _, name, _ in self.leaves] + [f"out{number}" for number in range(len(self.program.outputs))]
        yield from (f"const __grid_constant__ NestSteps<{self.index}> {name}_steps" for name in names)
        yield from (
            f"const __grid_constant__ NestTable<{self.index}> {self.names[value]}_table" for value in self.tables
        )

    # -------------------------------------------------------------------------------------------- parts of a function

    def _body(self, step: int | None) -> Iterator[str]:
        yield from self._shared(step)
        yield from self._place(step is not None)
        yield from self._bases()
        for value in self.consts:
            spec = self.program.values[value]
            yield f"const {computed(spec.dtype)} v{value} = {literal(spec)};"  # type: ignore[arg-type]
        if step is not None:
            for number, value in enumerate(self.reductions):
                own = self._type(value)
                place = f"workspace + {number} * static_cast<u64>(splits) * rows" if number else "workspace"
                if value in self.live_reductions:
                    yield f"{own}* const part{value} = reinterpret_cast<{own}*>({place});"
        passes = self.nest.passes
        for number, one in enumerate(passes) if step is None else enumerate(passes[: step + 1]):
            yield f"// pass {number}"
            if step is not None and number > 0:
                yield from self._gather(passes[number - 1])
            yield from self._row_values(one)
            is_own = step is None or number == step
            if is_own:
                yield from self._row_outputs(one, step is not None)
                yield from self._pass(one)
                if one.reduces:
                    yield from self._join(one)
                    if step is not None:
                        yield from self._hand_on(one)

    def _shared(self, step: int | None) -> Iterator[str]:
        kernel = self.kernel
        if kernel.threads <= (1 if self.is_columns else WARP):
            return
        passes = self.nest.passes if step is None else self.nest.passes[: step + 1]
        used = {value for one in passes for value in one.reduces}
        if step is not None and self.is_columns:
            used = set(passes[-1].reduces)
        size = kernel.threads * NEST_LANES * kernel.vector if self.is_columns else kernel.threads // WARP
        for value in sorted(used):
            for tile in self._copies(value):
                yield f"__shared__ SharedArray<{self._type(value)}, {size}> parts{value}{tile};"

    def _place(self, is_split: bool) -> Iterator[str]:
        kernel, index = self.kernel, self.index
        rows = f"rows / {kernel.tile}" if kernel.tile > 1 else "rows"
        tile = f"static_cast<{index}>(blockIdx.x)"
        if is_split:
            yield f"const {index} part = blockIdx.x % static_cast<u32>(splits);"
            yield f"const {index} tile = blockIdx.x / static_cast<u32>(splits);"
            yield f"const {index} begin = part * chunk;"
            yield f"const {index} end = begin + chunk < length ? begin + chunk : length;"
            tile = "tile"
        if self.is_columns:
            yield f"const {index} own = ({tile} * {NEST_LANES} + threadIdx.x % {NEST_LANES}) * {kernel.vector};"
            yield "const bool is_active = own < rows;"
            yield f"const {index} row = is_active ? own : 0;"
            yield f"const u32 lane = threadIdx.x / {NEST_LANES};"
        elif kernel.threads > WARP:
            yield f"const {index} row = {tile};"
            yield "const u32 lane = threadIdx.x;"
        else:
            yield f"const {index} own = {tile} * {kernel.rows_of_block} + threadIdx.x / {kernel.threads};"
            yield f"const u32 lane = threadIdx.x % {kernel.threads};"
            if kernel.threads == WARP:
                yield f"if (own >= {rows}) return;"
                yield f"const {index} row = own;"
            else:
                yield f"const bool is_active = own < {rows};  // all lanes of a warp exchange values"
                yield f"const {index} row = is_active ? own : {rows} - 1;"

    @property
    def _has_inactive(self) -> bool:
        return self.is_columns or self.kernel.threads < WARP

    def _bases(self) -> Iterator[str]:
        """Where the row begins in each operand."""
        names = [name for _, name, _ in self.live_leaves]
        outputs = [f"out{number}" for number in range(len(self.program.outputs))]
        yield from (f"{self.index} {name}_at = {name}_steps.offset;" for name in (*names, *outputs))
        # Of an output without a dimension, the row that is first there writes.
        yield from (f"bool {name}_on = {'is_active' if self._has_inactive else 'true'};" for name in outputs)
        yield f"{self.index} rest_of_rows = row;"
        yield "#pragma unroll 1"
        yield "for (u32 d = space.row_rank; d < space.rank; ++d) {"
        yield f"  const {self.index} coordinate = space.take(d, rest_of_rows);"
        yield from (f"  {name}_at += coordinate * {name}_steps.step[d];" for name in (*names, *outputs))
        yield from (f"  {name}_on &= coordinate == 0 || {name}_steps.step[d] != 0;" for name in outputs)
        yield "}"
        for value in self.tables:
            if value in {leaf for leaf, _, _ in self.live_leaves}:
                name, numbers = self.names[value], self.names[self._row_of(value)]
                yield f"const bool {name}_named = {name}_table.find(load({numbers}, {numbers}_at), {name}_at);"
        for name in [name for value, name, _ in self.live_leaves if value in self.own] + outputs:
            for number, tile in enumerate(self.tiles if self.kernel.tile > 1 else []):
                yield f"const {self.index} {name}_at{tile} = {name}_at + {number} * {name}_steps.step[space.rank - 1];"
        if self.is_columns:
            # The step from one of a group to the next: 1, or 0 where all of a group have one element.
            yield "const bool has_columns = space.rank > space.row_rank;"
            for name in names:
                yield f"const {self.index} {name}_across = has_columns ? {name}_steps.step[space.row_rank] : 0;"

    # -------------------------------------------------------------------------------------------- values of rows

    def _row_values(self, one: Pass) -> Iterator[str]:
        for value in one.rows:
            spec = self.program.values[value]
            for tile in self._copies(value):
                match spec:
                    case Input() | Index():
                        yield from self._row_leaf(value, spec, tile)
                    case Reduction():
                        yield from self._result(value, spec, tile)
                    case Instruction():
                        own = expression(spec, self._names(tile))
                        if self.is_columns:
                            yield f"{computed(spec.result)} v{value}[{self.kernel.vector}];"
                            yield from self._each(f"v{value}[j] = {own};")
                        else:
                            yield f"const {computed(spec.result)} v{value}{tile} = {own};"

    def _row_leaf(self, value: int, spec: Input | Index, tile: str) -> Iterator[str]:
        name, vector, own = self.names[value], self.kernel.vector, computed(spec.dtype)
        if not self.is_columns:
            place = f"{name}_at{tile}"
            text = f"widen(load({name}, {place}))" if isinstance(spec, Input) else f"static_cast<{own}>({place})"
            if value in self.tables:
                text = f"{name}_named ? {text} : {own}(0)"
            yield f"const {own} v{value}{tile} = {text};"
            return
        yield f"{own} v{value}[{vector}];"
        if isinstance(spec, Index):
            yield from self._each(f"v{value}[j] = static_cast<{own}>({name}_at + j * {name}_across);")
        else:
            yield f"const auto {name}_row = {self._load(value, f'{name}_at')};"
            yield from self._each(f"v{value}[j] = widen({name}_row.get(j));")

    def _result(self, value: int, spec: Reduction, tile: str) -> Iterator[str]:
        """The result of a reduction, of what the threads have joined."""
        own = self._type(value)
        joined = f"a{value}[j]" if self.is_columns else f"x{value}{tile}"
        text = f"{joined} / static_cast<{own}>(length > 0 ? length : 1)" if spec.op == "reduce_mean" else joined
        if self.is_columns:
            yield f"{own} v{value}[{self.kernel.vector}];"
            yield from self._each(f"v{value}[j] = {text};")
        else:
            yield f"const {own} v{value}{tile} = {text};"

    def _row_outputs(self, one: Pass, is_split: bool) -> Iterator[str]:
        for place in one.row_writes:
            value = self.program.outputs[place]
            dtype = stored(self.program.dtype(value))
            condition = f"lane == 0 && out{place}_on" + (" && part == 0" if is_split else "")
            if not self.is_columns:
                for tile in self.tiles:
                    result = f"narrow<{dtype}>({self._name(value, tile)})"
                    yield f"if ({condition}) store(out{place}, out{place}_at{tile}, {result});"
                continue
            yield f"{computed_of(dtype)} row_y{place}[{self.kernel.vector}];"
            yield from self._each(f"row_y{place}[j] = {self._name(value)};")
            yield f"if ({condition}) store_pack(out{place}, out{place}_at, narrow_pack<{dtype}>(row_y{place}));"

    # -------------------------------------------------------------------------------------------- a pass over a row

    def _pass(self, one: Pass) -> Iterator[str]:
        kernel, index = self.kernel, self.index
        for value in one.reduces:
            for tile in self._copies(value):
                yield f"{self._type(value)} a{value}{tile}[{self._sums}];"
                yield f"clear<{self._op(value)}>(a{value}{tile});"
        if one.is_empty:
            return
        vector = 1 if self.is_columns else kernel.vector
        if kernel.items:
            yield from self._kept_pass(one, vector)
            return
        begin, end = ("begin + ", "end") if kernel.steps else ("", "length")
        first = f"lane * {vector}" if vector > 1 else "lane"
        yield f"#pragma unroll {self._unrolled(one)}"
        yield f"for ({index} r = {begin}{first}; r < {end}; r += {kernel.threads * vector}) {{"
        target = lambda value, tile: f"const auto {self.names[value]}_pack{tile}"  # noqa: E731
        yield from (f"  {line}" for line in self._read(self._inputs(one), target))
        yield from (f"  {line}" if line[:1] != "#" else line for line in self._compute(one, "", ""))
        yield "}"

    def _unrolled(self, one: Pass) -> int:
        """Groups that are read before they are computed with."""
        size = max(1, self._read_bytes(one))
        return max(1, min(4, _GROUP_BYTES // size))

    def _read_bytes(self, one: Pass) -> int:
        """Bytes that a group reads before it computes."""
        early = [value for value in self._inputs(one) if not self._is_late(value)]
        return sum(-(-self._spec(value).bits * self._width(value) // 8) for value in early)

    def _kept_pass(self, one: Pass, vector: int) -> Iterator[str]:
        kernel, index, items = self.kernel, self.index, self.kernel.items
        kept = set(self.nest.kept)
        for value in self._inputs(one):
            if value in kept:
                yield from (f"{self._pack(value)} {name}[{items}];" for name in self._pack_names(value))
        for value in one.computes:
            if value in kept:
                for tile in self._copies(value):
                    yield f"{self._type(value)} k{value}{tile}[{items}][{kernel.vector}];"
        most = max(1, _GROUP_BYTES // max(1, self._read_bytes(one)))
        group = next(size for size in range(min(most, items), 0, -1) if items % size == 0)
        scale = f" * {vector}" if vector > 1 else ""
        place = f"const {index} r = (({index})(first + g) * {kernel.threads} + lane){scale};"
        yield "#pragma unroll"
        yield f"for (int first = 0; first < {items}; first += {group}) {{"
        loose = [value for value in self._inputs(one) if value not in kept and not self._is_late(value)]
        for value in loose:
            yield from (f"  {self._pack(value)} {name}[{group}];" for name in self._pack_names(value))
        late = [value for value in self._inputs(one) if value not in kept and self._is_late(value)]
        early = [value for value in self._inputs(one) if value not in late]
        if early:
            yield "#pragma unroll"
            yield f"  for (int g = 0; g < {group}; ++g) {{"
            yield f"    {place}"
            yield "    if (r < length) {"

            def target(value: int, tile: str) -> str:
                return f"{self.names[value]}_pack{tile}[{'first + g' if value in kept else 'g'}]"

            yield from (f"      {line}" if line[:1] != "#" else line for line in self._read(early, target))
            yield "    }"
            yield "  }"
        yield "#pragma unroll"
        yield f"  for (int g = 0; g < {group}; ++g) {{"
        yield f"    {place}"
        yield "    if (r < length) {"
        at_once = self._read(late, lambda value, tile: f"const auto {self.names[value]}_pack{tile}")
        yield from (f"      {line}" if line[:1] != "#" else line for line in at_once)
        yield from (f"      {line}" if line[:1] != "#" else line for line in self._compute(one, "[first + g]", "[g]"))
        yield "    }"
        yield "  }"
        yield "}"

    def _pack_names(self, value: int) -> list[str]:
        return [f"{self.names[value]}_pack{tile}" for tile in self._copies(value)]

    def _is_late(self, value: int) -> bool:
        """Whether an input is read when it is computed with: tiles have others, of few rows, which are near.

        What they share comes from memory, and takes the registers to wait for more of it.
        """
        return value in self.own

    def _read(self, values: Sequence[int], target: Callable[[int, str], str]) -> Iterator[str]:
        """Inputs of the group that begins at element r."""
        yield from self._walk([self.names[value] for value in values if self.letters[value] in _WALKED])
        for value in values:
            for tile in self._copies(value):
                yield f"{target(value, tile)} = {self._load(value, self._address(value, tile))};"

    def _walk(self, names: Sequence[str], outputs: Sequence[str] = ()) -> Iterator[str]:
        """Where element r of a row lies in what is addressed by strides."""
        if not names and not outputs:
            return
        rest = f"rest_of_{(*names, *outputs)[0]}"
        yield f"{self.index} {rest} = r;"
        yield from (f"{self.index} {name}_r = 0;" for name in (*names, *outputs))
        yield from (f"bool {name}_first = true;" for name in outputs)
        yield "#pragma unroll 1"
        yield "for (u32 d = 0; d < space.row_rank; ++d) {"
        yield f"  const {self.index} coordinate = space.take(d, {rest});"
        yield from (f"  {name}_r += coordinate * {name}_steps.step[d];" for name in (*names, *outputs))
        yield from (f"  {name}_first &= coordinate == 0 || {name}_steps.step[d] != 0;" for name in outputs)
        yield "}"

    def _address(self, value: int, tile: str) -> str:
        return self._address_of(self.names[value], self.letters[value], tile)

    def _address_of(self, name: str, letter: str, tile: str = "") -> str:
        if letter in _WALKED:
            return f"{name}_at{tile} + {name}_r"
        return f"{name}_at + r * {name}_steps.step[0]" if self.is_columns else f"{name}_at{tile} + r"

    def _load(self, value: int, address: str) -> str:
        text = self._load_there(value, address)
        return f"{self.names[value]}_named ? {text} : {self._pack(value)}{{}}" if value in self.tables else text

    def _load_there(self, value: int, address: str) -> str:
        name, vector, own = self.names[value], self._width(value), element(self._spec(value))
        if vector == 1:
            return f"load_pack<1>({name}, {address})"
        splat = f"splat_nibble<{vector}>" if own == "nibble" else f"splat<{own}, {vector}>"
        spread = f"{splat}(load({name}, {address}))"
        if self.is_columns:
            return f"{name}_across != 0 ? load_pack<{vector}>({name}, {address}) : {spread}"
        if self.letters[value] == "g":
            return f"{name}_steps.step[0] != 0 ? load_pack<{vector}>({name}, {address}) : {spread}"
        return f"load_pack<{vector}>({name}, {address})"

    def _compute(self, one: Pass, kept: str, loose: str) -> Iterator[str]:
        """The group's values; ``kept`` and ``loose`` are the places of its packs."""
        vector = self.kernel.vector
        held = set(self.nest.kept)
        indices = [value for value in one.reads if isinstance(self.program.values[value], Index)]
        outputs = [
            (place, stored(self.program.dtype(self.program.outputs[place])), self.kernel.access.outputs[place])
            for place in one.writes
        ]
        for place, dtype, _ in outputs:
            yield from (f"{computed_of(dtype)} y{place}{tile}[{vector}];" for tile in self.tiles)
        walked = [self.names[value] for value in indices if self.letters[value] in _WALKED]
        yield from self._walk(walked, [f"out{place}" for place, _, letter in outputs if letter == "g"])
        yield "#pragma unroll"
        yield f"for (int j = 0; j < {vector}; ++j) {{"
        for value in (*self._inputs(one), *(value for value in one.uses if self._is_input(value))):
            for tile in self._copies(value):
                index = kept if value in held else "" if self._is_late(value) else loose
                pack = f"{self.names[value]}_pack{tile}{index}"
                element_place = "j" if self._width(value) == vector else "0"
                yield f"  const {self._type(value)} v{value}{tile} = widen({pack}.get({element_place}));"
        for value in one.uses:
            if not self._is_input(value):
                for tile in self._copies(value):
                    yield f"  const {self._type(value)} v{value}{tile} = k{value}{tile}{kept}[j];"
        for value in indices:
            own = self._type(value)
            for tile in self._copies(value):
                yield f"  const {own} v{value}{tile} = static_cast<{own}>({self._coordinate(value, tile)});"
        products = {value: product for value in one.reduces if (product := self._product(value)) is not None}
        for value in one.computes:
            spec = self.program.values[value]
            for tile in self._copies(value) if value not in products.values() else ():
                own = expression(spec, self._names(tile))  # type: ignore[arg-type]
                yield f"  const {self._type(value)} v{value}{tile} = {own};"
                if value in held:
                    yield f"  k{value}{tile}{kept}[j] = v{value}{tile};"
        for value in one.reduces:
            for tile in self._copies(value):
                total = f"a{value}{tile}[{'j' if self._sums == vector else f'j % {self._sums}'}]"
                if value in products:
                    factors = self.program.values[products[value]].operands  # type: ignore[union-attr]
                    first, second = (self._name(factor, tile) for factor in factors)
                    yield f"  {total} = ::fmaf({first}, {second}, {total});"
                else:
                    operand = self._name(self.program.values[value].operand, tile)  # type: ignore[union-attr]
                    yield f"  {total} = {self._op(value)}::join({total}, {operand});"
        for place, _, _ in outputs:
            result = self.program.outputs[place]
            yield from (f"  y{place}{tile}[j] = {self._name(result, tile)};" for tile in self.tiles)
        yield "}"
        for place, dtype, letter in outputs:
            name = f"out{place}"
            condition = f"{name}_on" + (f" && {name}_first" if letter == "g" else "")
            for tile in self.tiles:
                pack = f"narrow_pack<{dtype}>(y{place}{tile})"
                yield f"if ({condition}) store_pack({name}, {self._address_of(name, letter, tile)}, {pack});"

    def _coordinate(self, value: int, tile: str) -> str:
        name, letter = self.names[value], self.letters[value]
        if self.is_columns:
            return f"{self._address_of(name, letter)} + j * {name}_across"
        steps = {"g": f" + j * {name}_steps.step[0]", "b": ""}
        return self._address_of(name, letter, tile) + steps.get(letter, " + j")

    # -------------------------------------------------------------------------------------------- what threads join

    def _join(self, one: Pass) -> Iterator[str]:
        """Sets x (along rows) or a (along columns) of each reduction to the result of all threads of a row."""
        threads = self.kernel.threads
        if self.is_columns:
            if threads > 1:
                yield from (f"give_columns(parts{value}, a{value});" for value in one.reduces)
                yield "__syncthreads();"
                for value in one.reduces:
                    yield f"take_columns<{self._op(value)}, {threads}>(parts{value}, a{value});"
            return
        for value, name in self._reduced(one):
            yield f"{self._type(value)} x{name} = join_all<{self._op(value)}>(a{name});"
        yield from self._join_threads(one)

    def _reduced(self, one: Pass) -> list[tuple[int, str]]:
        """The reductions of a pass, with what stands behind the letters of their names."""
        return [(value, f"{value}{tile}") for value in one.reduces for tile in self._copies(value)]

    def _join_threads(self, one: Pass) -> Iterator[str]:
        threads = self.kernel.threads
        for value, name in self._reduced(one):
            yield f"x{name} = join_lanes<{self._op(value)}, {min(threads, WARP)}>(x{name});"
        if threads > WARP:
            yield from (f"give_warp(parts{name}, x{name});" for _, name in self._reduced(one))
            yield "__syncthreads();"
            for value, name in self._reduced(one):
                yield f"x{name} = take_warps<{self._op(value)}>(parts{name});"

    def _hand_on(self, one: Pass) -> Iterator[str]:
        """What the block has of a row goes to the workspace."""
        for value in one.reduces:
            if self.is_columns:
                yield f"if (lane == 0 && is_active) for (int j = 0; j < {self.kernel.vector}; ++j)"
                yield f"  store(part{value}, part * rows + row + j, a{value}[j]);"
            else:
                yield f"if (lane == 0) store(part{value}, part * rows + row, x{value});"

    def _gather(self, one: Pass) -> Iterator[str]:
        """What all blocks of a row have put there."""
        for value in one.reduces:
            own, op = self._type(value), self._op(value)
            if not self.is_columns:
                yield f"{own} x{value} = {op}::identity<{own}>();"
                yield f"if (lane < splits) x{value} = load(part{value}, lane * rows + row);"
                continue
            yield f"{own} a{value}[{self.kernel.vector}];"
            yield f"clear<{op}>(a{value});"
            yield f"for ({self.index} s = 0; s < splits; ++s) {{"
            part = f"load(part{value}, s * rows + row + j)"
            yield from (f"  {line}" for line in self._each(f"a{value}[j] = {op}::join(a{value}[j], {part});"))
            yield "}"
        if not self.is_columns:
            yield from self._join_threads(one)
