"""The target cpu: kernels of the native library, of which a model carries nothing."""

from typing import TYPE_CHECKING

from onnxfuse.fused.conv.cpu_convolutions import CpuChooser
from onnxfuse.passes import PassContext
from onnxfuse.report.report import Report
from onnxfuse.run.given_shapes import Shapes
from onnxfuse.targets.request import Request

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model


class CpuTarget:
    """The CPU for one request."""

    def __init__(self, request: Request, shapes: Shapes) -> None:
        self._request = request
        self._shapes = shapes

    def prepare(self, context: PassContext) -> None:
        """Convolutions are chosen by estimates for the likely shapes, or as it was asked for or measured."""
        context.convolutions = CpuChooser(self._request.conv, measured=self._request.tune, shapes=self._shapes)

    def judge(self, model: "Model", report: Report) -> None:
        """Nothing."""

    def finish(self, model: "Model", context: PassContext, *, time_kernels: bool = False) -> None:
        """Nothing."""
