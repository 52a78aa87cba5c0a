"""What keeps ONNX Runtime from capturing a CUDA graph of a model.

It refuses a model with control flow, and one in which it copies a tensor between host and device
(onnxruntime/core/session/inference_session.cc); and no kernel can be captured that waits for data on the host.  Where
nodes run is as onnxfuse.fused.elementwise.cuda_placement says.  What depends on constants alone, or on shapes that are
numbers, is computed when the session is created.
"""

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from onnxfuse.fused.elementwise.cuda_placement import CudaPlacement
from onnxfuse.model.graph import Model, sorted_nodes, subgraphs
from onnxfuse.model.graph_ir import operator_key, standard_op
from onnxfuse.ort.cuda_kernels import HOST_INPUTS
from onnxfuse.ort.host import SOURCES, constant_arithmetic
from onnxfuse.report.report import NotCaptured
from onnxfuse.rewrite.base import label

CONTROL_FLOW = "control flow"
WAITS = "how large its result is follows from data, for which the host waits"
TO_HOST = "what it reads on the host is made on the GPU"
TO_DEVICE = "what it reads on the GPU is made on the host"
BOTH = "an input of the model is read on the host and on the GPU, by"

_SIZED_BY_DATA = {"Compress", "NonMaxSuppression", "NonZero", "Unique"}


def not_captured(model: Model) -> list[NotCaptured]:
    """The nodes of the main graph that keep it from being captured, with reasons; empty where nothing is known to."""
    nodes = sorted_nodes(model.graph)
    placed = CudaPlacement(model).on_host
    folded = constant_arithmetic(nodes, with_shapes=True)
    run = [node for node in nodes if id(node) not in folded]
    made_on_host = {id(tensor) for node in run if id(node) in placed for tensor in node.outputs}
    made = {id(tensor) for node in run for tensor in node.outputs}
    entries = {id(tensor) for tensor in model.graph.inputs}
    sides: dict[int, set[bool]] = {}  # by the id of an input of the model: who reads it, True for the host
    found = []
    for node in run:
        reasons = list(_by_itself(node))
        for tensor, by_host in _reads(node, on_host=id(node) in placed):
            if id(tensor) in entries:
                sides.setdefault(id(tensor), set()).add(by_host)
                if len(sides[id(tensor)]) > 1:
                    reasons.append(BOTH)
            elif id(tensor) in made and by_host != (id(tensor) in made_on_host):
                reasons.append(TO_HOST if by_host else TO_DEVICE)
        found += [NotCaptured(label(node), operator_key(node)[1], reason) for reason in dict.fromkeys(reasons)]
    return found


def _by_itself(node: gs.Node) -> Iterator[str]:
    if subgraphs(node):
        yield CONTROL_FLOW
    elif standard_op(node) in _SIZED_BY_DATA:
        yield WAITS


def _reads(node: gs.Node, *, on_host: bool) -> Iterator[tuple[gs.Tensor, bool]]:
    """What a node reads of values, and whether on the host.  The kernel of a Shape reads none, wherever it runs."""
    if standard_op(node) in SOURCES or subgraphs(node):
        return
    by_host = HOST_INPUTS.get(operator_key(node), ())
    for place, tensor in enumerate(node.inputs):
        if tensor.name and not isinstance(tensor, gs.Constant):
            yield tensor, on_host or place in by_host
