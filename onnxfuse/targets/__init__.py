"""Targets as they are asked for: what each gives the passes to work with, and what it adds to their result."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from onnxfuse.passes import PassContext
from onnxfuse.report.report import Report
from onnxfuse.run.given_shapes import Shapes
from onnxfuse.targets.request import Request

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model


class RequestedTarget(Protocol):
    """A target with the options of one request."""

    def prepare(self, context: PassContext) -> None:
        """Give the passes what chooses, and what compiles, as it was asked for."""

    def judge(self, model: "Model", report: Report) -> None:
        """Say in the report what holds of a model after the passes on this target alone."""

    def finish(self, model: "Model", context: PassContext, *, time_kernels: bool = False) -> None:
        """Add to the model what its fused nodes need to run, and say so in the report; ``time_kernels`` where that can
        be.
        """


def _cpu(request: Request, shapes: Shapes) -> RequestedTarget:
    from onnxfuse.targets.cpu import CpuTarget

    return CpuTarget(request, shapes)


def _cuda(request: Request, shapes: Shapes) -> RequestedTarget:
    from onnxfuse.targets.cuda.target import CudaTarget

    return CudaTarget(request)


_TARGETS: Mapping[str, Callable[[Request, Shapes], RequestedTarget]] = {"cpu": _cpu, "cuda": _cuda}


def target_of(request: Request, shapes: Shapes) -> RequestedTarget:
    """The target of a request for a model whose inputs will most likely have these ``shapes``."""
    return _TARGETS[request.target](request, shapes)
