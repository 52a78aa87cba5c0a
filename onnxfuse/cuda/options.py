"""What the user asked of the target cuda."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from onnxfuse.cuda.arch import default_architectures
from onnxfuse.cuda.compiler import CompilerCache
from onnxfuse.cuda.conv.choice import ConvChooser, ConvPolicy, RuleChooser
from onnxfuse.cuda.conv.fitting import ConvFitter
from onnxfuse.cuda.conv.measuring import MeasuringChooser, Say
from onnxfuse.cuda.conv.tunings import Tunings, add_to_file, own_file, own_tunings, write_tunings
from onnxfuse.cuda.fitting import Fitter
from onnxfuse.cuda.tuned import TunedKernels
from onnxfuse.errors import OnnxfuseError


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
    _measuring: MeasuringChooser | None = field(default=None, repr=False)

    def fitter(self, fast_math: bool) -> Fitter:
        """What renders the kernels.  Where code need not be embedded a compiler is used only if there is one."""
        compiler: CompilerCache | None = self.compiler
        if not self.embed:
            try:
                _ = self.compiler.version
            except OnnxfuseError:
                compiler = None
        return Fitter(compiler, self.architectures, fast_math, TunedKernels(self.architectures))

    def conv_fitter(self, fitter: Fitter) -> ConvFitter:
        """What renders the kernels of convolutions, in the way of ``fitter``."""
        return ConvFitter(fitter.compiler, fitter.options, self.architectures, fitter.fast_math, self.tunings)

    def chooser(self, fitter: Fitter, progress: Say, warn: Say) -> ConvChooser:
        """What chooses the convolutions to fuse: by rule and tuning files, or with ``tune`` by measuring."""
        if not self.tune:
            conv_fitter = self.conv_fitter(fitter)
            known = self.policy, self.tunings, self.architectures, fitter.fast_math
            return RuleChooser(*known, conv_fitter, self.prefer_nhwc)
        self._measuring = MeasuringChooser(
            self.policy,
            self.tunings,
            self.architectures,
            self.compiler,
            fitter.options,
            fitter.fast_math,
            progress,
            warn,
            prefer_nhwc=self.prefer_nhwc,
        )
        return self._measuring

    def keep_tunings(self) -> None:
        """Write down what was measured.  Raises OnnxfuseError if the user's file cannot be written."""
        if self._measuring is None or not len(self._measuring.measured):
            return
        with suppress(OnnxfuseError):  # as the cache, it is no loss
            write_tunings(own_file(), own_tunings().merged(self._measuring.measured))
        if self.tuning_file is not None:
            add_to_file(self.tuning_file, self._measuring.measured)
