"""Weights that a product reads and other nodes too, as an embedding that is also the last layer.

A product's weights lie in the file as its kernels read them.  What the other nodes read is then made of these, by views
of a constant, which ONNX Runtime computes once, when a session is created: so the file holds the weights once, and a
session twice, as it does where ONNX Runtime packs them for its own kernels.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import constant_value, dtype_of, is_constant
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import ComputedValues, Node, permutation_of, standard_op
from onnxfuse.model.returned import Returned
from onnxfuse.program.figures import LEAST_PRODUCT_WEIGHTS, NHWC_BLOCK
from onnxfuse.program.multiplying import Product, multiplies


def turn_shared_weights(model: Model) -> None:
    """Where products read a constant matrix through a Transpose, and other nodes as it is, let the products have it as
    it is and the others through the Transpose.

    Only of large matrices that no other product reads as they are, and of models without graphs in attributes, which
    may read what is around them.
    """
    graph, *bodies = model.graphs()
    if bodies:
        return
    is_output = Returned([graph])
    for node in list(graph.nodes):
        if not _turns_matrix(node) or is_output(node.outputs[0]) or not is_constant(node.inputs[0]):
            continue
        weights, turned = node.inputs[0], node.outputs[0]
        others = [reader for reader in weights.outputs if reader is not node]
        products = list(turned.outputs)
        if any(map(multiplies, others)):
            continue
        if others and not is_output(weights) and products and all(_multiplies_with(one, turned) for one in products):
            _exchange(model, graph, node, others)


def _turns_matrix(node: gs.Node) -> bool:
    """Whether a node is the Transpose of a large matrix of float32."""
    shape = node.inputs[0].shape
    if shape is None or permutation_of(node) != [1, 0] or dtype_of(node.inputs[0]) != np.float32:
        return False
    return all(isinstance(size, int) for size in shape) and math.prod(shape) >= LEAST_PRODUCT_WEIGHTS


def _multiplies_with(node: gs.Node, matrix: gs.Tensor) -> bool:
    return standard_op(node) == "MatMul" and node.inputs[1] is matrix and node.inputs[0] is not matrix


def _exchange(model: Model, graph: gs.Graph, node: gs.Node, others: Iterable[gs.Node]) -> None:
    """Makes a Transpose, whose result products read, one that ``others`` read, of a matrix that lies turned."""
    weights, turned = node.inputs[0], node.outputs[0]
    rows, columns = weights.shape
    matrix = transposed_constant(model, weights)
    original = gs.Variable(model.unique_name(f"{weights.name}_rows"), np.dtype(np.float32), [rows, columns])
    for reader in list(turned.outputs):
        reader.inputs = [matrix if tensor is turned else tensor for tensor in reader.inputs]
    for reader in others:
        reader.inputs = [original if tensor is weights else tensor for tensor in reader.inputs]
    node.inputs, node.outputs = [matrix], [original]
    _put_first(graph, [node])


def transposed_constant(model: Model, matrix: gs.Tensor) -> gs.Constant:
    """A constant matrix [N, K] as one of [K, N], which is made when the model is written."""

    def transpose() -> Iterator[np.ndarray]:
        values = constant_value(matrix)
        assert values is not None
        yield values.T

    dtype = dtype_of(matrix)
    assert dtype is not None
    rows, columns = matrix.shape
    return gs.Constant(model.unique_name(f"{matrix.name}_turned"), ComputedValues((columns, rows), dtype, transpose))


@dataclass(frozen=True)
class SharedWeights:
    """The weights [K, N] of a product, or if they are ``transposed`` [N, K], which other nodes read too."""

    matrix: gs.Tensor
    transposed: bool
    sizes: tuple[int, int]
    """K and N."""

    @classmethod
    def of(cls, product: Product) -> "SharedWeights":
        """Those of a product."""
        return cls(product.matrix, product.transposed, product.sizes)


def can_unpack(model: Model, product: Product, readers: Iterable[gs.Node], is_output: Returned) -> bool:
    """Whether what ``readers`` read of a product's weights can be made of the packed ones: the weights as [N, K]."""
    if len(list(model.graphs())) > 1 or is_output(product.matrix):
        return False
    return product.transposed or all(_turns_matrix(node) and not is_output(node.outputs[0]) for node in readers)


def unpack(model: Model, graph: gs.Graph, weights: SharedWeights, packed: gs.Tensor) -> None:
    """Let every node that still reads the weights, of which ``can_unpack`` has said that it can, read what is made of
    ``packed``; the products are no longer in the graph."""
    matrix = weights.matrix
    inner, columns = weights.sizes
    kind = np.dtype(np.float32)
    blocks = packed.shape[0]
    steps = [
        ("Transpose", {"perm": [0, 2, 1]}, [], [blocks, NHWC_BLOCK, inner]),
        ("Reshape", {}, [np.array([-1, inner], np.int64)], [blocks * NHWC_BLOCK, inner]),
    ]
    if columns % NHWC_BLOCK:
        bounds = [np.array([value], np.int64) for value in (0, columns, 0)]
        steps.append(("Slice", {}, bounds, [columns, inner]))
    made, nodes = packed, []
    for op, attributes, constants, shape in steps:
        result = gs.Variable(model.unique_name(f"{matrix.name}_{op.lower()}"), kind, shape)
        inputs = [made, *(model.constant(value, op.lower()) for value in constants)]
        nodes.append(Node(op, model.unique_name(f"{matrix.name}_{op.lower()}_of_packed"), attributes, inputs, [result]))
        made = result
    for reader in list(matrix.outputs):
        if weights.transposed:
            reader.inputs = [made if tensor is matrix else tensor for tensor in reader.inputs]
            continue
        for later in list(reader.outputs[0].outputs):
            later.inputs = [made if tensor is reader.outputs[0] else tensor for tensor in later.inputs]
        reader.inputs = []
        reader.outputs = []
        graph.nodes[:] = [node for node in graph.nodes if node is not reader]
    _put_first(graph, nodes)


def _put_first(graph: gs.Graph, nodes: list[gs.Node]) -> None:
    moved = set(map(id, nodes))
    graph.nodes[:] = [*nodes, *(node for node in graph.nodes if id(node) not in moved)]
