"""The text of one kernel: how it reads its operands, calls the Program's function, and writes what that gives."""

from collections.abc import Iterator, Sequence

from onnxfuse.cuda.element import computed_of, live, stored
from onnxfuse.cuda.kernel import TRANSPOSED, JointKernel, Kernel
from onnxfuse.program import Program


def joint_kernel(joint: JointKernel, members: Sequence["KernelText"]) -> str:
    """The text of a kernel whose blocks are divided among parts, which the device functions of ``members`` compute."""
    ends = [f"end{part}" for part in range(len(members))]
    parameters = [f"u32 {end}" for end in ends]
    body = []
    for part, (member, end) in enumerate(zip(members, ends, strict=True)):
        own = member.parameters()
        parameters += [f"{kind} part{part}_{name}" for kind, name in own]
        begin = ends[part - 1] if part else "0"
        arguments = [*(f"part{part}_{name}" for _, name in own), f"blockIdx.x - {begin}", f"{end} - {begin}"]
        body += [
            f"  if (blockIdx.x < {end}) {{",
            f"    {member.kernel.name}_part({', '.join(arguments)});",
            "    return;",
            "  }",
        ]
    lines = [
        f'extern "C" __global__ void __launch_bounds__({members[0].kernel.block})',
        f"{joint.name}(",
        ",\n".join(f"    {parameter}" for parameter in parameters) + ") {",
    ]
    return "\n".join([*lines, *body, "}\n"])


def _by_reference(parameter: str) -> str:
    """A parameter of a kernel as one of a device function."""
    kind, _, name = parameter.rpartition(" ")
    return f"{kind.replace('__grid_constant__ ', '')}& {name}" if "__grid_constant__" in kind else parameter


class KernelText:
    """Writes one kernel, each thread of which computes a group of elements."""

    def __init__(self, program: Program, kernel: Kernel, function: str) -> None:
        self.program = program
        self.kernel = kernel
        self.function = function
        self.block, self.is_last = "blockIdx.x", "blockIdx.x == gridDim.x - 1"
        self.index = f"u{kernel.index}"
        needed = live(program)
        self.inputs = [
            (index, stored(spec.dtype), letter)
            for index, (spec, letter) in enumerate(zip(program.inputs, kernel.access.inputs, strict=True))
            if index in needed
        ]
        self.outputs = [
            (index, stored(program.dtype(value)), letter)
            for index, (value, letter) in enumerate(zip(program.outputs, kernel.access.outputs, strict=True))
        ]

    def text(self) -> str:
        """The kernel."""
        kernel = self.kernel
        lines = [
            f'extern "C" __global__ void __launch_bounds__({kernel.block})',
            f"{kernel.name}(",
            *(f"    {parameter}," for parameter in self._parameters()),
        ]
        lines[-1] = lines[-1][:-1] + ") {"
        lines += [f"  {line}" if line[:1] != "#" else line for line in self._body()]
        return "\n".join([*lines, "}\n"])

    def part(self) -> str:
        """The kernel as a device function, which also takes which block of how many it is: one part of a kernel."""
        self.block, self.is_last = "block", "block == blocks - 1"
        parameters = [*map(_by_reference, self._parameters()), "u32 block", "u32 blocks"]
        lines = [f"ONNXFUSE_DEVICE void {self.kernel.name}_part({', '.join(parameters)}) {{"]
        lines += [f"  {line}" if line[:1] != "#" else line for line in self._body()]
        return "\n".join([*lines, "}\n"])

    def parameters(self) -> list[tuple[str, str]]:
        """The type and the name of each parameter."""
        return [(kind, name) for kind, _, name in (text.rpartition(" ") for text in self._parameters())]

    def _parameters(self) -> Iterator[str]:
        """As ``onnxfuse.cuda.arguments.pack`` gives them."""
        access = self.kernel.access
        yield from self._pointers()
        for index, letter in enumerate(access.inputs):
            if letter in "oc":
                yield f"Divider<{self.index}> in{index}_inner"
            if letter in "ic":
                yield f"Divider<{self.index}> in{index}_extent"
        for index, letter in enumerate(access.outputs):
            if letter == "p":
                yield f"Divider<{self.index}> out{index}_run"
                yield f"{self.index} out{index}_gap"
        if access.strided:
            yield from self._strides("g", "w")

    def _strides(self, inputs: str, outputs: str) -> Iterator[str]:
        """The Space, and the Strides of operands of these letters."""
        yield f"const __grid_constant__ Space<{self.index}> space"
        access = self.kernel.access
        names = [f"in{index}" for index, letter in enumerate(access.inputs) if letter in inputs]
        names += [f"out{index}" for index, letter in enumerate(access.outputs) if letter in outputs]
        for name in names:
            yield f"const __grid_constant__ Strides<{self.index}> {name}_strides"

    def _pointers(self) -> Iterator[str]:
        for index, spec in enumerate(self.program.inputs):
            yield f"const {stored(spec.dtype)}* in{index}"
        for index, dtype, _ in self.outputs:
            yield f"{dtype}* out{index}"
        yield f"{self.index} count"

    def _body(self) -> Iterator[str]:
        kernel, vector = self.kernel, self.kernel.vector
        yield from self._scalars()
        yield "struct Item {"
        yield from (f"  {line}" for line in self._item())
        yield "};"
        yield f"const auto read = [&]({self.index} i) {{"
        yield "  Item item;"
        yield from (line if line[:1] == "#" else f"  {line}" for line in self._read())
        yield "  return item;"
        yield "};"
        yield f"const auto write = [&]({self.index} i, const Item& item) {{"
        yield from (line if line[:1] == "#" else f"  {line}" for line in self._compute())
        yield from (f"  {line}" for line in self._write())
        yield "};"
        yield f"for_own_group<{vector}, {kernel.block}>(count, {self.block}, read, write);"
        if vector > 1 and set(kernel.access.letters) <= set("ls"):
            yield from self._rest()

    def _scalars(self) -> Iterator[str]:
        for index, dtype, letter in self.inputs:
            if letter == "s":
                yield f"const {dtype} in{index}_value = load(in{index}, 0);"

    def _compute(self) -> Iterator[str]:
        """The results of a group, from what was read."""
        for index, dtype, _ in self.outputs:
            yield f"{computed_of(dtype)} y{index}[{self.kernel.vector}];"
        yield "#pragma unroll"
        yield f"for (int j = 0; j < {self.kernel.vector}; ++j) {self._call('.get(j)', '[j]')};"

    def _item(self) -> Iterator[str]:
        """What a group has read before it computes."""
        for index, dtype, letter in self.inputs:
            if letter in "lig":
                yield f"Pack<{dtype}, {self.kernel.vector}> in{index};"
            elif letter in "oc":
                yield f"{dtype} in{index};"
        for index, _, letter in self.outputs:
            if letter == "w":
                yield f"{self.index} out{index}_at;"
                yield f"bool out{index}_is_first;"

    def _read(self) -> Iterator[str]:
        vector = self.kernel.vector
        yield from self._walk()
        for index, dtype, letter in self.inputs:
            name = f"in{index}"
            match letter:
                case "l":
                    yield f"item.{name} = load_pack<{vector}>({name}, i);"
                case "i":
                    yield f"item.{name} = load_pack<{vector}>({name}, {name}_extent.remainder(i));"
                case "o":
                    yield f"item.{name} = load({name}, {name}_inner.quotient(i));"
                case "c":
                    yield f"item.{name} = load({name}, {name}_extent.remainder({name}_inner.quotient(i)));"
                case "g":
                    yield from self._load_strided(index, dtype)

    def _walk(self) -> Iterator[str]:
        """Where element i lies in each operand that is addressed by strides."""
        if not self.kernel.access.strided:
            return
        inputs = [f"in{index}" for index, _, letter in self.inputs if letter == "g"]
        outputs = [f"out{index}" for index, _, letter in self.outputs if letter == "w"]
        yield f"{self.index} rest = i;"
        yield from (f"{self.index} {name}_at = 0;" for name in inputs)
        for name in outputs:
            yield f"item.{name}_at = 0;"
            yield f"item.{name}_is_first = true;"
        yield "#pragma unroll 1"
        yield "for (u32 d = 0; d < space.rank; ++d) {"
        yield f"  const {self.index} coordinate = space.take(d, rest);"
        yield from (f"  {name}_at += coordinate * {name}_strides.step[d];" for name in inputs)
        for name in outputs:
            yield f"  item.{name}_at += coordinate * {name}_strides.step[d];"
            yield f"  item.{name}_is_first &= coordinate == 0 || {name}_strides.step[d] != 0;"
        yield "}"

    def _load_strided(self, index: int, dtype: str) -> Iterator[str]:
        name, vector, place = f"in{index}", self.kernel.vector, self._place(index)
        if vector == 1:
            yield f"item.{name} = load_pack<1>({name}, {place});"
        else:
            yield f"item.{name} = {name}_strides.step[0] != 0 ? load_pack<{vector}>({name}, {place})"
            yield f"    : splat<{dtype}, {vector}>(load({name}, {place}));"

    def _place(self, index: int) -> str:
        """The index of an input's element, which may be negative where halves change places."""
        at = f"in{index}_at"
        return f"static_cast<i{self.kernel.index}>({at})" if self.program.inputs[index].swaps_halves else at

    def _call(self, element: str, result: str) -> str:
        """A call of the Program's function: ``element`` takes one from a Pack, ``result`` is its place in a result."""
        arguments = []
        for index, _, letter in self.inputs:
            match letter:
                case "s":
                    arguments.append(f"widen(in{index}_value)")
                case "o" | "c":
                    arguments.append(f"widen(item.in{index})")
                case _:
                    arguments.append(f"widen(item.in{index}{element})")
        arguments += [f"y{index}{result}" for index, _, _ in self.outputs]
        return f"{self.function}({', '.join(arguments)})"

    def _write(self) -> Iterator[str]:
        for index, dtype, letter in self.outputs:
            pack = f"narrow_pack<{dtype}>(y{index})"
            if letter == "l":
                yield f"store_pack(out{index}, i, {pack});"
            elif letter == "p":
                yield f"store_pack(out{index}, i + out{index}_run.quotient(i) * out{index}_gap, {pack});"
            else:
                yield f"if (item.out{index}_is_first) store_pack(out{index}, item.out{index}_at, {pack});"

    def _rest(self) -> Iterator[str]:
        """The elements after the last group, one a thread."""
        yield f"for_each_left<{self.kernel.vector}>(count, {self.is_last}, [&]({self.index} i) {{"
        for index, dtype, _ in self.outputs:
            yield f"  {computed_of(dtype)} y{index};"
        arguments = [
            f"widen(in{index}_value)" if letter == "s" else f"widen(load(in{index}, i))"
            for index, _, letter in self.inputs
        ]
        arguments += [f"y{index}" for index, _, _ in self.outputs]
        yield f"  {self.function}({', '.join(arguments)});"
        for index, dtype, _ in self.outputs:
            yield f"  store(out{index}, i, narrow<{dtype}>(y{index}));"
        yield "});"


class TransposingText(KernelText):
    """Writes a kernel that turns tiles: a block has one, of ``tile`` columns, which are the innermost dimension of the
    space, and as many rows, the dimension in which transposed inputs have their neighbours.
    """

    def __init__(self, program: Program, kernel: Kernel, function: str) -> None:
        super().__init__(program, kernel, function)
        self.transposed = [(index, dtype) for index, dtype, letter in self.inputs if letter == TRANSPOSED]
        self.strided = [f"in{index}" for index, _, letter in self.inputs if letter != "s"]
        self.strided += [f"out{index}" for index, _, _ in self.outputs]

    def _parameters(self) -> Iterator[str]:
        yield from self._pointers()
        yield f"Divider<{self.index}> column_tiles"
        yield f"Divider<{self.index}> row_tiles"
        yield from self._strides("tg", "l")

    def _body(self) -> Iterator[str]:
        kernel, index, tile = self.kernel, self.index, self.kernel.tile
        for number, dtype in self.transposed:
            yield f"__shared__ TransposedTile<{dtype}, {tile}, {kernel.vector}> in{number}_tile;"
        yield from self._scalars()
        yield f"const {index} row_tile = column_tiles.quotient({self.block});"
        yield f"{index} rest = row_tiles.quotient(row_tile);"
        yield f"const {index} first_column = ({self.block} - row_tile * column_tiles.divisor) * {tile};"
        yield f"const {index} first_row = (row_tile - rest * row_tiles.divisor) * {tile};"
        for name in self.strided:
            yield f"{index} {name}_first = first_column * {name}_strides.step[0] + first_row * {name}_strides.step[1];"
        yield "#pragma unroll 1"
        yield "for (u32 d = 2; d < space.rank; ++d) {"
        yield f"  const {index} coordinate = space.take(d, rest);"
        yield from (f"  {name}_first += coordinate * {name}_strides.step[d];" for name in self.strided)
        yield "}"
        yield f"const {index} columns = space.dims[0].divisor - first_column;"
        yield f"const {index} rows = space.dims[1].divisor - first_row;"
        for number, _ in self.transposed:
            name = f"in{number}"
            arguments = f"{name}, {name}_first, {name}_strides.step[0], rows, columns"
            yield f"{name}_tile.template load<{kernel.block}>({arguments});"
        yield "__syncthreads();"
        yield from self._groups()

    def _groups(self) -> Iterator[str]:
        """Every thread's groups of the tile."""
        index, kernel = self.index, self.kernel
        groups = kernel.tile // kernel.vector
        yield "#pragma unroll 1"
        yield f"for ({index} group = threadIdx.x; group < {kernel.tile * groups}; group += {kernel.block}) {{"
        yield f"  const {index} row = group / {groups};"
        yield f"  const {index} column = group % {groups} * {kernel.vector};"
        yield "  if (row >= rows || column >= columns) continue;"
        for name in self.strided:
            if (name, TRANSPOSED) not in ((f"in{number}", letter) for number, _, letter in self.inputs):
                yield f"  const {index} {name}_at = {name}_first + row * {name}_strides.step[1]"
                yield f"      + column * {name}_strides.step[0];"
        yield "  struct {"
        for number, dtype, letter in self.inputs:
            if letter != "s":
                kind = "Few" if letter == TRANSPOSED else "Pack"
                yield f"    {kind}<{dtype}, {kernel.vector}> in{number};"
        yield "  } item;"
        for number, dtype, letter in self.inputs:
            if letter == TRANSPOSED:
                yield f"  item.in{number} = in{number}_tile.get(row, column);"
            elif letter == "g":
                yield from (f"  {line}" for line in self._load_strided(number, dtype))
        yield from (line if line[:1] == "#" else f"  {line}" for line in self._compute())
        for number, dtype, _ in self.outputs:
            yield f"  store_pack(out{number}, out{number}_at, narrow_pack<{dtype}>(y{number}));"
        yield "}"
