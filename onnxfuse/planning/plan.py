"""From a model to its plan: the passes of a request, run in memory.  ``optimize`` and ``inspect`` both begin so."""

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import Node
from onnxfuse.passes import Pass, PassContext
from onnxfuse.report.report import Report
from onnxfuse.rewrite.base import label
from onnxfuse.run.given_shapes import Shapes
from onnxfuse.run.inputs import InputSpec
from onnxfuse.targets import RequestedTarget
from onnxfuse.targets.request import Request


def apply_passes(
    model: Model,
    specs: list[InputSpec],
    request: Request,
    shapes: Shapes,
    target: RequestedTarget,
    context: PassContext,
) -> Model:
    """The model after the passes of the request; ``context`` is given what its ``target`` has for them.

    ``specs`` are the inputs, which ``shapes`` fit.  Raises OnnxfuseError for a model that cannot have the shapes which
    a static one is to have.
    """
    target.prepare(context)
    if request.static:
        if not shapes and not all(spec.is_static for spec in specs):
            raise OnnxfuseError("a static model needs the shapes of its inputs: give them with --shape, or shapes=")
        from onnxfuse.planning.static_shapes import make_static

        context.progress("computing what follows from the shapes")
        model = make_static(model, specs, shapes, context)
    for step in request.steps:
        run_pass(step, model, context)
    add_unknown(model, context.report)
    target.judge(model, context.report)
    return model


def run_pass(step: Pass, model: Model, context: PassContext) -> None:
    """Run a pass.  An exception that is no OnnxfuseError, which may come from a user's, gets a note that names it."""
    context.progress(f"pass {step.name}")
    try:
        step.run(model, context)
    except Exception as error:
        error.add_note(f"pass {step.name!r}")
        raise


def add_unknown(model: Model, report: Report) -> None:
    """Say in the report which nodes of ONNX's own domain were left alone because they are not all known, and why."""
    for graph in model.graphs():
        for node in graph.nodes:
            if isinstance(node, Node) and node.unknown:
                report.add_left_alone(label(node), node.operator, node.unknown)
