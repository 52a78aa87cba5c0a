"""The target cuda: kernels are rendered from programs, compiled, and carried by the model."""

from typing import TYPE_CHECKING

from onnxfuse.cuda import arch
from onnxfuse.cuda.conv.choice import about_layout
from onnxfuse.cuda.embed import embed
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.cuda.report import CudaReport
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.conv.choosers import CudaChooser
from onnxfuse.fused.kinds import PREFERS_NHWC
from onnxfuse.passes import PassContext
from onnxfuse.report.report import Report
from onnxfuse.targets.cuda.capture import not_captured
from onnxfuse.targets.cuda.chooser import chooser_for, keep_tunings
from onnxfuse.targets.request import Request

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model


class CudaTarget:
    """A GPU for one request."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._options = CudaOptions() if request.cuda is None else request.cuda
        self._fitter = self._options.fitter(request.fast_math)

    def prepare(self, context: PassContext) -> None:
        """Regions are judged by what the compiler makes of them; convolutions are chosen by rule or measured."""
        self._chooser = chooser_for(self._options, self._fitter, context.progress, context.report.add_warning)
        context.fitter = self._fitter
        context.convolutions = CudaChooser(self._chooser, tf32=self._request.tf32)
        context.tf32, context.prefer_nhwc = self._request.tf32, self._options.prefer_nhwc

    def judge(self, model: "Model", report: Report) -> None:
        """What keeps a CUDA graph from being captured."""
        report.not_captured = not_captured(model)

    def finish(self, model: "Model", context: PassContext, *, time_kernels: bool = False) -> None:
        """The machine code of all kernels, tuned if that was asked for, and what is to be said of the layout."""
        report = context.report
        written = PREFERS_NHWC in model.metadata
        if written or not self._options.prefer_nhwc:
            report.layout = about_layout([one.reason for one in report.convolutions], written)
        keep_tunings(self._options, self._chooser)
        if self._options.tune:
            from onnxfuse.cuda.measure import tune

            tune(model, self._fitter, self._options, context.progress)
        context.progress("compiling kernels")
        report.cuda = embed(model, self._fitter, self._options)
        if time_kernels:
            self._add_times(model, report.cuda, context)

    def _add_times(self, model: "Model", report: CudaReport, context: PassContext) -> None:
        """Times of the kernels, where there is a GPU that they are compiled for."""
        if not report.compiler or not set(arch.devices()) & set(self._options.architectures):
            return
        from onnxfuse.cuda.measure import add_times

        context.progress("timing kernels")
        try:
            add_times(model, self._fitter, self._options, report)
        except OnnxfuseError as error:
            context.report.add_warning(f"the kernels were not timed: {error}")
