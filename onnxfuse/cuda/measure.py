"""Tuning and timing the kernels of a model on the GPU of this machine."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from onnxfuse.cuda.conv.node import fused_convolutions
from onnxfuse.cuda.conv.tuning import ConvBench
from onnxfuse.cuda.elementwise.fitting import Fit, Fitter
from onnxfuse.cuda.embed import elementwise_nodes
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.cuda.pycuda_tools import open_gpu
from onnxfuse.cuda.report import CudaReport, KernelTimes
from onnxfuse.cuda.tuned import TunedKernels
from onnxfuse.cuda.tuner import Bench, Case, sizes_for
from onnxfuse.model.graph import Model
from onnxfuse.program import ProgramError

Progress = Callable[[str], None]


def tune(model: Model, fitter: Fitter, options: CudaOptions, progress: Progress) -> None:
    """Find the best sizes for every kernel of the model, keep them, and make ``fitter`` use them.

    Raises OnnxfuseError without PyCUDA or a GPU.
    """
    keep = TunedKernels(options.architectures)
    cases = [case for _, case in _cases(model, fitter)]
    with open_gpu() as gpu:
        bench = Bench(gpu, options.compiler, fitter.options)
        for number, case in enumerate(cases, 1):
            progress(f"tuning kernel {number} of {len(cases)}")
            bench.tune(case, keep)
    fitter.forget()


def add_times(model: Model, fitter: Fitter, options: CudaOptions, report: CudaReport) -> None:
    """Add to the report how long each kernel takes.  Raises OnnxfuseError without PyCUDA or a GPU."""
    with open_gpu() as gpu:
        bench = Bench(gpu, options.compiler, fitter.options)
        found: dict[str, KernelTimes | None] = {
            fit.source.sha256: bench.times(case) for fit, case in _cases(model, fitter)
        }
        conv_bench, conv_fitter = ConvBench(gpu, options.compiler, fitter.options), options.conv_fitter(fitter)
        for fused in fused_convolutions(model):
            conv_fit = conv_fitter.fit(fused.case)
            if conv_fit.source.sha256 not in found:
                found[conv_fit.source.sha256] = conv_bench.times(conv_fit)
    for name, kernel in report.kernels.items():
        report.kernels[name] = replace(kernel, times=found.get(kernel.source))


def _cases(model: Model, fitter: Fitter) -> Iterator[tuple[Fit, Case]]:
    """Each distinct source of the model with the sizes of the first node that has it."""
    seen: set[str] = set()
    for node in elementwise_nodes(model):
        fit = fitter.fit(node.program, node.shapes)
        if fit.source.sha256 in seen:
            continue
        seen.add(fit.source.sha256)
        try:
            sizes = sizes_for(fit.program, node.shapes)
        except ProgramError:  # no sizes at hand that broadcast
            continue
        yield fit, Case(fit, sizes)
