"""What ONNX Runtime computes apart from the data: values that depend on shapes or on constants alone.

Shape arithmetic is a few integers that ORT keeps on the host, folds and propagates when it plans memory.  A fused node
in between would hide them and save nothing.  What depends on constants alone it computes once, when it creates the
session; it does not look into custom nodes, so a fused node would compute it in every run.
"""

from collections.abc import Iterable

import onnx_graphsurgeon as gs

from onnxfuse.model.graph_ir import standard_op, subgraphs

CONSTANT_ARITHMETIC = "ONNX Runtime computes it once, for it depends on no input"
"""Why what depends on constants alone is left to ONNX Runtime."""
SOURCES = {"Shape", "Size"}
CARRIERS = {
    *("Cast", "CastLike", "Concat", "Flatten", "Gather", "GatherElements", "Identity", "ReduceMax", "ReduceMin"),
    *("ReduceProd", "ReduceSum", "Reshape", "ScatterElements", "ScatterND", "Slice", "Split", "Squeeze", "Unsqueeze"),
}
"""Operators whose result is shape arithmetic when all that they read is."""
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def shape_arithmetic(nodes: Iterable[gs.Node], is_elementwise: set[int]) -> set[int]:
    """The ids of the nodes, among ``nodes`` in topological order, that compute with shapes alone.

    ``is_elementwise`` holds the ids of the elementwise nodes.
    """
    found: set[int] = set()
    for node in nodes:
        op = standard_op(node)
        carries = op in CARRIERS or id(node) in is_elementwise or _is_small_fill(node)
        if op in SOURCES or (carries and _reads_only(node, found) and any(map(_is_computed, node.inputs))):
            found.add(id(node))
    return found


def constant_arithmetic(nodes: Iterable[gs.Node], *, with_shapes: bool = False) -> set[int]:
    """The ids of the nodes, among ``nodes`` in topological order, that depend on constants alone, or also
    ``with_shapes`` that are numbers."""
    found: set[int] = set()
    for node in nodes:
        if standard_op(node) in ("", *RANDOM) or subgraphs(node):
            continue
        is_known = with_shapes and standard_op(node) in SOURCES and _is_static(node.inputs[0])
        if is_known or _reads_only(node, found):
            found.add(id(node))
    return found


def _reads_only(node: gs.Node, made: set[int]) -> bool:
    """Whether a node reads nothing but constants and what nodes with the ids ``made`` compute."""
    for tensor in node.inputs:
        if _is_computed(tensor) and not (tensor.inputs and id(tensor.inputs[0]) in made):
            return False
    return True


def _is_computed(tensor: gs.Tensor) -> bool:
    return bool(tensor.name) and not isinstance(tensor, gs.Constant)


def _is_static(tensor: gs.Tensor) -> bool:
    return tensor.shape is not None and all(isinstance(dim, int) for dim in tensor.shape)


def _is_small_fill(node: gs.Node) -> bool:
    """A ConstantOfShape that makes a vector: a shape in the making, where other ranks are data."""
    if standard_op(node) != "ConstantOfShape":
        return False
    shape = node.outputs[0].shape
    return shape is not None and len(shape) == 1
