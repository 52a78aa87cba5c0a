"""What the user asked of the target cuda."""

from dataclasses import dataclass, field
from pathlib import Path

from onnxfuse.cuda.arch import default_architectures
from onnxfuse.cuda.attention.fitting import AttentionFitter
from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.conv.fitting import ConvFitter
from onnxfuse.cuda.conv.tunings import Tunings, own_tunings
from onnxfuse.cuda.elementwise.fitting import Fitter
from onnxfuse.cuda.nest.fitting import NestFitter
from onnxfuse.cuda.tuned import TunedKernels
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.choices import ConvPolicy


@dataclass
class CudaOptions:
    """How kernels are compiled and carried.

    ``architectures`` are those to compile for; ``embed`` puts the machine code into the model; ``keep_source`` is a
    directory for the CUDA source of every kernel; ``tune`` times variants of every kernel on the GPU.  ``policy`` says
    which convolutions are fused, ``tunings`` are those that were measured, by default on this machine, and
    ``tuning_file`` gets what ``tune`` measures, besides the file of this machine.  ``prefer_nhwc`` says that sessions
    will have this option of the provider.
    """

    architectures: tuple[str, ...] = field(default_factory=default_architectures)
    embed: bool = True
    keep_source: Path | None = None
    tune: bool = False
    policy: ConvPolicy = ConvPolicy.AUTO
    tunings: Tunings = field(default_factory=own_tunings)
    tuning_file: Path | None = None
    prefer_nhwc: bool = False
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

    def nest_fitter(self, fitter: Fitter) -> NestFitter:
        """What renders the kernels of Programs that reduce, in the way of ``fitter``."""
        return NestFitter(fitter.compiler, fitter.options, self.architectures)

    def conv_fitter(self, fitter: Fitter) -> ConvFitter:
        """What renders the kernels of convolutions, in the way of ``fitter``."""
        return ConvFitter(fitter.compiler, fitter.options, self.architectures, fitter.fast_math, self.tunings)

    def attention_fitter(self, fitter: Fitter) -> AttentionFitter:
        """What renders the kernels of attention, in the way of ``fitter``."""
        return AttentionFitter(fitter.compiler, fitter.options, self.architectures)
