"""What is known of a generated kernel besides its text: how it reads its operands, and how it is launched."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

INPUT_LETTERS = "lsiocg"
"""How a kernel reads an input, for element i of the iteration space: ``l`` element i; ``s`` the only element; ``i``
element i mod extent; ``o`` element i div inner; ``c`` element (i div inner) mod extent; ``g`` by strides."""

TRANSPOSED = "t"
"""The same of a kernel that turns tiles in shared memory: by strides, of which that of another dimension than the
innermost is 1.  It reads all other inputs by ``g`` or ``s``."""

OUTPUT_LETTERS = "lwp"
"""How a kernel writes an output: ``l`` every element at i; ``w`` by strides, an output smaller than the space; ``p``
every element, runs of them at equal distances: the part of a tensor that is written in parts."""


@dataclass(frozen=True)
class Access:
    """A letter for each input and each output of a Program."""

    inputs: str
    outputs: str

    def __str__(self) -> str:
        return f"{self.inputs}:{self.outputs}"

    @classmethod
    def parse(cls, text: str) -> "Access":
        """Read what ``str`` writes.  Raises ValueError for any other text."""
        inputs, colon, outputs = text.partition(":")
        if (
            not colon
            or not outputs
            or set(inputs) - set(INPUT_LETTERS + TRANSPOSED)
            or set(outputs) - set(OUTPUT_LETTERS)
        ):
            raise ValueError(f"{text!r} is not an access pattern")
        return cls(inputs, outputs)

    @property
    def letters(self) -> str:
        """The letters of all operands: inputs, then outputs."""
        return self.inputs + self.outputs

    @property
    def strided(self) -> bool:
        """Whether an operand is addressed by strides, so that the kernel takes the Space."""
        return "g" in self.inputs or "w" in self.outputs or self.transposes

    @property
    def transposes(self) -> bool:
        """Whether an input is read in tiles that are turned."""
        return TRANSPOSED in self.inputs


@dataclass(frozen=True)
class Kernel:
    """A kernel of a source: a thread computes groups of ``vector`` elements, a block has ``block`` threads.

    ``index`` is the width in bits of indices: 32 serves up to MAX_COUNT_32 elements.  A thread computes one group, or a
    block one tile of ``tile`` by ``tile`` elements, if that is not 0.
    """

    name: str
    vector: int
    block: int
    index: int
    access: Access
    tile: int = 0

    def __str__(self) -> str:
        text = f"kernel {self.name} vector {self.vector} block {self.block} index {self.index} access {self.access}"
        return f"{text} tile {self.tile}" if self.tile else text


@dataclass(frozen=True)
class PartKernels:
    """One part of a Program, which a range of blocks computes.

    ``outputs`` are the places of what it computes among the Program's outputs, its kernels those from ``first`` up to
    but not including ``end`` of the source, for the inputs that these outputs need and for these outputs.
    """

    outputs: tuple[int, ...]
    first: int
    end: int

    def __str__(self) -> str:
        return "part " + ",".join(map(str, self.outputs))


@dataclass(frozen=True)
class JointKernel:
    """A kernel that computes all parts of a Program, each as one of the part's own kernels does.

    ``members`` are the places of these among the kernels of the source, in the order of the parts.
    """

    name: str
    members: tuple[int, ...]

    def __str__(self) -> str:
        return " ".join(("joint", self.name, *map(str, self.members)))


@dataclass(frozen=True)
class SourceText:
    """CUDA C++ text that compiles by itself; ``body`` is the part after the prelude, which is what there is to read."""

    prelude: str
    body: str

    @cached_property
    def text(self) -> str:
        """The whole text."""
        return self.prelude + "\n" + self.body

    @cached_property
    def sha256(self) -> str:
        """The hash of the whole text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class Source(SourceText):
    """A source and its kernels, in the order in which a launch tries them.

    Of a Program whose outputs are computed in several ``parts`` each has kernels of its own, and the ``joint`` ones
    compute all: a launch takes the first of them whose members all accept, and else one kernel after the other.
    """

    kernels: tuple[Kernel, ...]
    parts: tuple[PartKernels, ...] = ()
    joint: tuple[JointKernel, ...] = ()

    @property
    def main(self) -> str:
        """The name of the kernel that is meant for the expected shapes."""
        return self.joint[0].name if self.joint else self.kernels[0].name
