"""What a CUDA compiler makes of a source, or says about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from onnxfuse.cuda.arch import architecture
from onnxfuse.cuda.compile.resources import Resources
from onnxfuse.errors import OnnxfuseError


class CompileError(OnnxfuseError):
    """A CUDA source that does not compile; the message has the compiler's first error."""

    def __init__(self, compiler: str, architecture: str, log: str) -> None:
        lines = [" ".join(line.split()) for line in log.splitlines() if line.strip()]
        problem = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no reason given")
        super().__init__(f"{compiler} cannot compile for {architecture}: {problem}")


@dataclass(frozen=True)
class Compiled:
    """One source compiled for one architecture: ``cubin`` (an ELF file), ``ptx`` (text), and what its kernels take."""

    cubin: bytes
    ptx: bytes
    resources: Mapping[str, Resources]


class Taken(NamedTuple):
    """The worst of what kernels take on some architectures, each with the architecture.

    ``spills`` are the most bytes that a thread spills, ``occupancy`` is the least share of a multiprocessor's threads
    that they fill; nothing is known of what was not compiled.
    """

    spills: tuple[int, str] = (0, "")
    occupancy: tuple[float, str] = (1.0, "")


def taken(compiled: Mapping[tuple[str, str], Compiled], blocks: Mapping[str, int]) -> Taken:
    """What the functions of a compiled source take whose ``blocks`` have so many threads."""
    spills, occupancy = Taken()
    for (_, name), code in compiled.items():
        for function in blocks.keys() & code.resources.keys():
            own = code.resources[function]
            if own.spills:
                spills = max(spills, (own.spills, name))
            share = architecture(name).occupancy(own.registers, blocks[function], own.shared)
            occupancy = min(occupancy, (share, name))
    return Taken(spills, occupancy)
