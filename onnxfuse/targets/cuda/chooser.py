"""What chooses the convolutions to fuse for CUDA, as the user asked, and what it has measured."""

from contextlib import suppress

from onnxfuse.cuda.conv.choice import CaseChooser, RuleChooser
from onnxfuse.cuda.conv.tunings import add_to_file, own_file, own_tunings, write_tunings
from onnxfuse.cuda.elementwise.fitting import Fitter
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.errors import OnnxfuseError
from onnxfuse.targets.cuda.measuring import MeasuringChooser, Say


def chooser_for(options: CudaOptions, fitter: Fitter, progress: Say, warn: Say) -> CaseChooser:
    """The chooser by rule and tuning files, or with ``options.tune`` by measuring."""
    known = options.policy, options.tunings, options.architectures
    if not options.tune:
        return RuleChooser(*known, fitter.fast_math, options.conv_fitter(fitter), options.prefer_nhwc)
    return MeasuringChooser(
        *known,
        options.compiler,
        fitter.options,
        fitter.fast_math,
        progress,
        warn,
        prefer_nhwc=options.prefer_nhwc,
    )


def keep_tunings(options: CudaOptions, chooser: CaseChooser) -> None:
    """Write down what a chooser has measured.  Raises OnnxfuseError if the user's file cannot be written."""
    if not isinstance(chooser, MeasuringChooser) or not len(chooser.measured):
        return
    with suppress(OnnxfuseError):  # as the cache, it is no loss
        write_tunings(own_file(), own_tunings().merged(chooser.measured))
    if options.tuning_file is not None:
        add_to_file(options.tuning_file, chooser.measured)
