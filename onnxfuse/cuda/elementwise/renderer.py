"""From a Program to CUDA C++: one source with the kernels that its access patterns need.

All kernels of a source call one device function, the Program on one element.  A kernel differs in how it reads and
writes operands (its ``Access``), in how many neighbouring elements a thread takes at once, and in the width of indices.
The device code that every source shares is in custom_ops/cuda/device; ``for_own_group`` there shares the space out.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnxfuse.cuda.arguments import MAX_BYTES, parameter_bytes
from onnxfuse.cuda.element import computed_of, element_function, header, live, stored
from onnxfuse.cuda.kernel import Access, Kernel, Source
from onnxfuse.cuda.prelude import prelude
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program, ProgramError
from onnxfuse.program.ops import OPS

MAX_KERNELS = 16
"""Kernels in a source."""


@dataclass(frozen=True)
class Tuning:
    """What a tuner may vary; None leaves it to the heuristic.

    ``vector``: elements a thread (1, 2, 4, 8 or 16); ``block``: threads a block (a multiple of 32 up to 1024).
    """

    vector: int | None = None
    block: int | None = None


HEURISTIC = Tuning()


def compile_options(fast_math: bool) -> tuple[str, ...]:
    """Options for NVRTC and nvcc alike; the architecture is to be added.

    Exactness is one of options: without contraction, and with IEEE division and square root and denormals, basic
    operations give the bits of separate ONNX nodes.
    """
    if fast_math:
        return ("--std=c++17", "--use_fast_math")
    return ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")


def render(program: Program, accesses: Sequence[Access], tuning: Tuning = HEURISTIC) -> Source:
    """The source of ``program``, for nodes that are expected to access their operands in these ways.

    For each access its vector kernel, where an operand repeats or is a view one of smaller vectors too, and the same
    for single elements, which serves unaligned pointers and sizes that are no multiple of a vector; then kernels that
    address by strides, the last of which takes any shapes.  Raises ProgramError if the operands are too many for a
    kernel's parameters or the accesses do not fit the Program.
    """
    for access in accesses:
        if (len(access.inputs), len(access.outputs)) != (len(program.inputs), len(program.outputs)):
            raise ProgramError(
                f"access {access} does not fit {len(program.inputs)} inputs and {len(program.outputs)} outputs"
            )
    key = hashlib.sha256("\n".join((prelude(), str(program), *map(str, accesses), str(tuning))).encode()).hexdigest()
    name = f"fused_{key[:12]}"
    kernels = tuple(_kernels(program, accesses, tuning, name))
    if len(kernels) > MAX_KERNELS:
        raise ProgramError(f"{len(kernels)} kernels for {len(accesses)} access patterns; the limit is {MAX_KERNELS}")
    if (size := max(map(parameter_bytes, kernels))) > MAX_BYTES:
        operands = len(program.inputs) + len(program.outputs)
        raise ProgramError(f"{operands} operands take {size} bytes of kernel parameters; the limit is {MAX_BYTES}")
    parts = [header(program), element_function(program, name)]
    parts += [_KernelText(program, kernel, name).text() for kernel in kernels]
    body = "\n".join((*parts[:1], "namespace onnxfuse {\n", *parts[1:], "}  // namespace onnxfuse\n"))
    return Source(prelude(), body, kernels)


# ------------------------------------------------------------------------------------------------ choice of kernels


def _kernels(program: Program, accesses: Sequence[Access], tuning: Tuning, name: str) -> Iterator[Kernel]:
    strided_inputs = "g" * len(program.inputs)
    wanted: dict[tuple[Access, int, int], None] = {}  # in order, each once
    for access in accesses:
        vector = 1 if "w" in access.outputs else tuning.vector or _vector(program, access)
        wanted[access, vector, 32] = None
        if vector > _NARROW and set(access.inputs) & set("iocg" if program.reads_views else "ioc"):
            wanted[access, _NARROW, 32] = None
        wanted[access, 1, 32] = None
    for access in accesses:
        wanted[Access(strided_inputs, access.outputs), 1, 32] = None
    wanted[Access(strided_inputs, "w" * len(program.outputs)), 1, 64] = None
    for access, vector, index in wanted:
        suffix = f"{access.inputs}_{access.outputs}_v{vector}" + ("" if index == 32 else f"_i{index}")
        yield Kernel(f"{name}_{suffix}", vector, tuning.block or _BLOCK, index, access)


_BLOCK = 256
_NARROW = 4
"""Elements a group where the size that an operand repeats by, or the rows of a view, are no multiple of more: images of
14x14, in float16."""


def _vector(program: Program, access: Access) -> int:
    """Elements a group, so that the item size with the most traffic is accessed 16 bytes at a time.

    Operands of half that size are then accessed 8 bytes at a time, which still fills the memory's 32-byte sectors.
    Operands of a larger size take several 16-byte pieces, whose sectors two instructions share: no more than two.
    """
    sizes = [
        DTYPES[spec.dtype].itemsize
        for spec, letter in zip(program.inputs, access.inputs, strict=True)
        if letter in "lg"
    ]
    sizes += [DTYPES[program.dtype(output)].itemsize for output in program.outputs]
    traffic = {size: sizes.count(size) * size for size in sizes}
    widest = max(traffic, key=lambda size: (traffic[size], size))
    vector = min(16 // widest, 32 // max(sizes))
    while vector > 1 and vector * _instructions(program) > _MAX_INSTRUCTIONS:
        vector //= 2
    return vector


_MAX_INSTRUCTIONS = 1 << 13


def _instructions(program: Program) -> int:
    """Roughly, the machine instructions for one element."""
    return sum(OPS[one.op].cost.cuda[one.dtype.endswith("64")] for one in program.instructions)


# ------------------------------------------------------------------------------------------------ text of a kernel


class _KernelText:
    """Writes one kernel."""

    def __init__(self, program: Program, kernel: Kernel, function: str) -> None:
        self.program = program
        self.kernel = kernel
        self.function = function
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
        kernel = self.kernel
        lines = [
            f'extern "C" __global__ void __launch_bounds__({kernel.block})',
            f"{kernel.name}(",
            *(f"    {parameter}," for parameter in self._parameters()),
        ]
        lines[-1] = lines[-1][:-1] + ") {"
        lines += [f"  {line}" if line[:1] != "#" else line for line in self._body()]
        return "\n".join([*lines, "}\n"])

    def _parameters(self) -> Iterator[str]:
        """As ``onnxfuse.cuda.arguments.pack`` gives them."""
        access = self.kernel.access
        for index, spec in enumerate(self.program.inputs):
            yield f"const {stored(spec.dtype)}* in{index}"
        for index, _, _ in self.outputs:
            yield f"{self._pointer(index)} out{index}"
        yield f"{self.index} count"
        for index, letter in enumerate(access.inputs):
            if letter in "oc":
                yield f"Divider<{self.index}> in{index}_inner"
            if letter in "ic":
                yield f"Divider<{self.index}> in{index}_extent"
        if access.strided:
            yield f"const __grid_constant__ Space<{self.index}> space"
        names = [f"in{index}" for index, letter in enumerate(access.inputs) if letter == "g"]
        names += [f"out{index}" for index, letter in enumerate(access.outputs) if letter == "w"]
        for name in names:
            yield f"const __grid_constant__ Strides<{self.index}> {name}_strides"

    def _pointer(self, output: int) -> str:
        return f"{stored(self.program.dtype(self.program.outputs[output]))}*"

    def _body(self) -> Iterator[str]:
        kernel, vector = self.kernel, self.kernel.vector
        for index, dtype, letter in self.inputs:
            if letter == "s":
                yield f"const {dtype} in{index}_value = load(in{index}, 0);"
        yield "struct Item {"
        yield from (f"  {line}" for line in self._item())
        yield "};"
        yield f"const auto read = [&]({self.index} i) {{"
        yield "  Item item;"
        yield from (line if line[:1] == "#" else f"  {line}" for line in self._read())
        yield "  return item;"
        yield "};"
        yield f"const auto write = [&]({self.index} i, const Item& item) {{"
        for index, dtype, _ in self.outputs:
            yield f"  {computed_of(dtype)} y{index}[{vector}];"
        yield "#pragma unroll"
        yield f"  for (int j = 0; j < {vector}; ++j) {self._call('.get(j)', '[j]')};"
        yield from (f"  {line}" for line in self._write())
        yield "};"
        yield f"for_own_group<{vector}, {kernel.block}>(count, read, write);"
        if vector > 1 and set(kernel.access.letters) <= set("ls"):
            yield from self._rest()

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
                case "g" if vector == 1:
                    yield f"item.{name} = load_pack<1>({name}, {self._place(index)});"
                case "g":
                    place = self._place(index)
                    yield f"item.{name} = {name}_strides.step[0] != 0 ? load_pack<{vector}>({name}, {place})"
                    yield f"    : splat<{dtype}, {vector}>(load({name}, {place}));"

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
            else:
                yield f"if (item.out{index}_is_first) store_pack(out{index}, item.out{index}_at, {pack});"

    def _rest(self) -> Iterator[str]:
        """The elements after the last group, one a thread."""
        yield f"for_each_left<{self.kernel.vector}>(count, [&]({self.index} i) {{"
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
