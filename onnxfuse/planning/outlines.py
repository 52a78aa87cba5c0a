"""What a model's graph launches, and which kernel reads what of which, as the report draws it."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.kinds import DOMAIN, kind_of, reported_name
from onnxfuse.model.graph import captured_tensors, sorted_nodes, subgraphs
from onnxfuse.model.graph_ir import operator_key, standard_op
from onnxfuse.ort.host import RANDOM, shape_arithmetic
from onnxfuse.planning.statistics import is_launched
from onnxfuse.program.lowering import is_elementwise
from onnxfuse.report.byte_counts import Bytes, bytes_of, touched
from onnxfuse.report.fused_region import describe_shape
from onnxfuse.report.outline import Step
from onnxfuse.rewrite.base import label

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model

_FEW_BYTES = 64


def outline(model: "Model", *, with_sizes: bool = False) -> list[Step]:
    """The steps of the main graph of a model whose types and shapes have been inferred, with what they move if
    ``with_sizes``.

    If, Loop and Scan are a step each.  What only renames memory is none: who reads it reads what it renames.  Nor is
    what writes a few numbers; whole ones are sizes and positions mostly, and those who read them are not joined to what
    they come from.  Nor is what no input of the model gets to but by its sizes, such as masks of positions.
    """
    nodes = sorted_nodes(model.graph)
    left_out = _without_inputs(model.graph.inputs, nodes)
    steps: list[Step] = []
    makers: dict[int, tuple[int, ...]] = {}  # by the id of a tensor: the positions of the steps behind it
    for node in nodes:
        if id(node) in left_out:
            continue
        has_body = bool(subgraphs(node))
        read = [*node.inputs, *(captured_tensors(node) if has_body else ())]
        sources = tuple(dict.fromkeys(position for tensor in read for position in makers.get(id(tensor), ())))
        if not has_body and node.domain != DOMAIN and all(map(_is_small, node.outputs)):
            is_whole = all(tensor.dtype is not None and np.dtype(tensor.dtype).kind in "iub" for tensor in node.outputs)
            sources = () if is_whole else sources
        elif is_launched(node) or has_body:
            steps.append(_step(node, sources, with_sizes))
            sources = (len(steps) - 1,)
        makers.update((id(tensor), sources) for tensor in node.outputs)
    return steps


def _without_inputs(inputs: Iterable[gs.Tensor], nodes: Sequence[gs.Node]) -> set[int]:
    """The ids of the nodes, in topological order, that compute with nothing but constants and sizes."""
    left_out = shape_arithmetic(nodes, {id(node) for node in nodes if is_elementwise(node)})
    reached = {id(tensor) for tensor in inputs}
    for node in nodes:
        is_source = standard_op(node) in ("", *RANDOM) or bool(subgraphs(node))
        if is_source or any(id(tensor) in reached for tensor in node.inputs):
            if id(node) not in left_out:
                reached.update(map(id, node.outputs))
        else:
            left_out.add(id(node))
    return left_out


def _is_small(tensor: gs.Tensor) -> bool:
    size = bytes_of(tensor)
    return size is not None and size <= _FEW_BYTES


def _step(node: gs.Node, sources: tuple[int, ...], with_size: bool) -> Step:
    kind = kind_of(node.op) if node.domain == DOMAIN else None
    size = _moved(node) if with_size else None
    shape = describe_shape(node.outputs[0].shape) if node.outputs else ""
    op = reported_name(operator_key(node)[1], kind is not None)
    return Step(label(node), op, "" if kind is None else kind.name, shape, sources, size)


def _moved(node: gs.Node) -> Bytes:
    """What a node reads and writes."""
    size = Bytes()
    for tensor in touched(node):
        size.add(tensor)
    return size
