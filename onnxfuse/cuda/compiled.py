"""What a CUDA compiler makes of a source, or says about it."""

from collections.abc import Mapping
from dataclasses import dataclass

from onnxfuse.cuda.resources import Resources
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
