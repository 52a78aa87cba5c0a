"""The Programs of a fused convolution as C++ functors: the prologue (head) and the epilogue (tail) of its kernels.

A functor holds the Program's operands but the first, with whose elements it is called (cuda/device/conv.cuh).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from onnxfuse.cuda.element import computed_of, live, stored
from onnxfuse.program import Program


@dataclass(frozen=True)
class Functor(ABC):
    """A Program in a kernel: ``letters`` and ``prefix`` are those of its operands, ``index`` the width of indices.

    ``function`` is the name of the Program's element function, ``dtype`` the type of what is convolved.  The V elements
    that it is called with are of neighbouring positions, or where the channels are last of neighbouring channels.
    """

    name: str
    program: Program
    function: str
    letters: str
    index: int
    dtype: str
    channels_last: bool

    prefix = ""

    @property
    def operands(self) -> list[tuple[str, str, str]]:
        """Name, C++ type and letter of each operand, needed or not."""
        specs = self.program.inputs[1:]
        return [
            (f"{self.prefix}in{number}", stored(spec.dtype), letter)
            for number, (spec, letter) in enumerate(zip(specs, self.letters, strict=True), 1)
        ]

    @property
    def pointers(self) -> list[str]:
        """The kernel's parameters for the operands."""
        return [f"const {dtype}* {name}" for name, dtype, _ in self.operands]

    @property
    def steps(self) -> list[str]:
        """The names of the operands' ConvSteps."""
        return [f"{name}_steps" for name, _, letter in self.operands if letter == "g"]

    @property
    def arguments(self) -> str:
        """What the functor is initialized with."""
        return ", ".join(["shape", *(name for name, _, _ in self.operands), *self.steps])

    def text(self) -> str:
        """The struct's definition."""
        word = f"u{self.index}"
        members = [f"const ConvShape<{word}>& shape", *self.pointers, *self._outputs()]
        members += [f"const ConvSteps<{word}>& {name}" for name in self.steps]
        return "\n".join(
            (
                f"struct {self.name} {{",
                "  static constexpr bool exists = true;",
                *(f"  {member};" for member in members),
                "",
                f"  template <int V> ONNXFUSE_DEVICE void operator()({self._elements()}, {word} image, "
                f"{word} channel, {word} position) const {{",
                *(f"    {line}" if line[:1] != "#" else line for line in self._body()),
                "  }",
                "};\n",
            )
        )

    def _outputs(self) -> list[str]:
        return []

    @abstractmethod
    def _elements(self) -> str:
        """The parameters that hold the V elements."""

    @abstractmethod
    def _body(self) -> Iterator[str]:
        """The lines of the call."""

    def _loads(self, channels: int, positions: str, place: str) -> Iterator[str]:
        """Declares what each needed operand has for the V elements."""
        needed = live(self.program)
        used = [own for number, own in enumerate(self.operands, 1) if number in needed]
        yield f"const u{self.index} plane = image * {channels} + channel;"
        if self.channels_last:
            yield f"const u{self.index} first = (image * {positions} + position) * {channels} + channel;"
        else:
            yield f"const u{self.index} first = plane * {positions} + position;"
        for name, dtype, letter in used:
            where = {"l": "first", "s": "0", "c": "channel", "o": "plane", "g": ""}[letter]
            if letter == "g":
                yield f"{dtype} {name}_at[V];"
            elif letter in self._packs:
                yield f"const Pack<{dtype}, V> {name}_at = load_pack<V>({name}, {where});"
            else:
                yield f"const {dtype} {name}_at = load({name}, {where});"
        general = [name for name, _, letter in used if letter == "g"]
        if general:
            yield "#pragma unroll"
            yield "for (int j = 0; j < V; ++j) {"
            steps = ("channel + j", "position") if self.channels_last else ("channel", "position + j")
            yield f"  const auto at = {place}(shape, {steps[1]});"
            yield from (
                f"  {name}_at[j] = load({name}, strided({name}_steps, image, {steps[0]}, at));" for name in general
            )
            yield "}"

    @property
    def _packs(self) -> str:
        """The letters of operands that are read by vectors."""
        return "lco" if self.channels_last else "l"

    def _call(self, first: str) -> str:
        """The call of the element function for element j."""
        needed = live(self.program)
        reads = {"g": "[j]", **dict.fromkeys(self._packs, ".get(j)")}
        arguments = [first] if 0 in needed else []
        arguments += [
            f"widen({name}_at{reads.get(letter, '')})"
            for number, (name, _, letter) in enumerate(self.operands, 1)
            if number in needed
        ]
        arguments += [self._result(number) for number in range(len(self.program.outputs))]
        return f"{self.function}({', '.join(arguments)});"

    @abstractmethod
    def _result(self, output: int) -> str:
        """Where the element function puts an output of element j."""


@dataclass(frozen=True)
class Head(Functor):
    """The prologue: changes the elements that it is called with, as they would be after a round trip through memory."""

    channels: int

    prefix = "x_"

    def _elements(self) -> str:
        return "f32 (&values)[V]"

    def _result(self, output: int) -> str:
        return "y"

    def _body(self) -> Iterator[str]:
        yield from self._loads(self.channels, "in_positions(shape)", "in_position")
        yield "#pragma unroll"
        yield "for (int j = 0; j < V; ++j) {"
        yield "  f32 y;"
        yield f"  {self._call('values[j]')}"
        yield f"  values[j] = widen(narrow<{self.dtype}>(y));"
        yield "}"


@dataclass(frozen=True)
class Tail(Functor):
    """The epilogue: rounds the sums to the type of the convolution's result, computes the outputs and writes them."""

    channels: int

    @property
    def outputs(self) -> list[tuple[str, str]]:
        """Name and C++ type of each output."""
        return [
            (f"out{number}", stored(self.program.dtype(value))) for number, value in enumerate(self.program.outputs)
        ]

    @property
    def arguments(self) -> str:
        """What the functor is initialized with."""
        names = [name for name, _, _ in self.operands] + [name for name, _ in self.outputs]
        return ", ".join(["shape", *names, *self.steps])

    def _outputs(self) -> list[str]:
        return [f"{dtype}* {name}" for name, dtype in self.outputs]

    def _elements(self) -> str:
        return "const f32 (&sums)[V]"

    def _result(self, output: int) -> str:
        return f"y{output}[j]"

    def _body(self) -> Iterator[str]:
        yield from self._loads(self.channels, "shape.positions.divisor", "out_position")
        for number, (_, dtype) in enumerate(self.outputs):
            yield f"{computed_of(dtype)} y{number}[V];"
        yield "#pragma unroll"
        yield f"for (int j = 0; j < V; ++j) {self._call(f'widen(narrow<{self.dtype}>(sums[j]))')}"
        for number, (name, dtype) in enumerate(self.outputs):
            yield f"store_pack({name}, first, narrow_pack<{dtype}>(y{number}));"
