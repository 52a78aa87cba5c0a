"""What the user asked of the target cuda."""

from dataclasses import dataclass, field
from pathlib import Path

from onnxfuse.cuda.arch import default_architectures
from onnxfuse.cuda.compiler import CompilerCache
from onnxfuse.cuda.fitting import Fitter
from onnxfuse.cuda.tuned import TunedKernels
from onnxfuse.errors import OnnxfuseError


@dataclass
class CudaOptions:
    """How kernels are compiled and carried.

    ``architectures`` are those to compile for; ``embed`` puts the machine code into the model; ``keep_source`` is a
    directory for the CUDA source of every kernel; ``tune`` times variants of every kernel on the GPU.
    """

    architectures: tuple[str, ...] = field(default_factory=default_architectures)
    embed: bool = True
    keep_source: Path | None = None
    tune: bool = False
    compiler: CompilerCache = field(default_factory=CompilerCache)

    def fitter(self, fast_math: bool) -> Fitter:
        """What renders the kernels.  Where code need not be embedded a compiler is used only if there is one."""
        compiler: CompilerCache | None = self.compiler
        if not self.embed:
            try:
                _ = self.compiler.version
            except OnnxfuseError:
                compiler = None
        return Fitter(compiler, self.architectures, fast_math, TunedKernels(self.architectures))
