"""Products of tensors with constant weights, and several of one tensor as a single one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import Array, constant_value, dtype_of, is_constant
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import Node, producer_of, standard_op
from onnxfuse.passes.rules.budget import CopyBudget
from onnxfuse.program.block_quantized import BIAS, BlockQuantized, block_quantized, multiplies_blocks
from onnxfuse.program.node_lowering import UnsupportedError
from onnxfuse.rewrite.base import label
from onnxfuse.rewrite.editor import GraphEditor


@dataclass(frozen=True)
class Product:
    """``result`` = MatMul(``source``, ``weights``), perhaps + ``bias``: what ``nodes``, in topological order, compute.

    The weights are a constant of two dimensions and the bias one of a single dimension, both of the type of the source.
    Weights that are ``quantized`` in blocks are the bytes of these.
    """

    result: gs.Tensor
    source: gs.Tensor
    weights: gs.Tensor
    bias: gs.Tensor | None
    nodes: tuple[Node, ...]
    quantized: BlockQuantized | None = None

    @property
    def columns(self) -> int:
        """Elements of a row of the result."""
        return int(self.weights.shape[1]) if self.quantized is None else self.quantized.columns

    @property
    def together(self) -> Hashable:
        """What products have in common that may be one: what they multiply, and how their weights are kept."""
        if self.quantized is None:
            return id(self.source)
        kept = {place: (tensor.dtype, len(tensor.shape)) for place, tensor in self.quantized.tensors.items()}
        facts = (self.quantized.bits, self.quantized.block, self.quantized.level)
        return (id(self.source), facts, tuple(kept.items()))


def is_product(node: Node) -> bool:
    """Whether the operator of a node is one of those that may be such a product."""
    return standard_op(node) == "MatMul" or multiplies_blocks(node)


def product_of(result: gs.Tensor, editor: GraphEditor, *, with_bias: bool) -> Product | None:
    """The product that makes a tensor, in no more nodes than a MatMul and, ``with_bias``, an Add; None if none does.

    Of a product with a bias nothing else reads what the MatMul makes.
    """
    node, bias, nodes = producer_of(result), None, []
    if node is not None and with_bias and standard_op(node) == "Add":
        constants = [tensor for tensor in node.inputs if is_constant(tensor)]
        others = [tensor for tensor in node.inputs if not is_constant(tensor)]
        if len(constants) != 1 or not editor.is_inner(others[0]):
            return None
        bias, nodes = constants[0], [node]
        node = producer_of(others[0])
    if node is None or not is_product(node) or not is_constant(node.inputs[1]):
        return None
    if multiplies_blocks(node):
        return _quantized(result, node, bias, nodes)
    source, weights = node.inputs
    if (
        source.shape is None
        or len(source.shape) < 2
        or len(weights.shape) != 2
        or dtype_of(source) != dtype_of(weights)
    ):
        return None
    if bias is not None and (list(bias.shape) != [weights.shape[1]] or dtype_of(bias) != dtype_of(weights)):
        return None
    return Product(result, source, weights, bias, (node, *nodes))


def _quantized(result: gs.Tensor, node: Node, bias: gs.Tensor | None, nodes: Sequence[Node]) -> Product | None:
    """The product with a matrix of blocks; None if it is not understood, or adds something itself."""
    try:
        quantized = block_quantized(node)
    except UnsupportedError:
        return None
    if not all(map(is_constant, quantized.tensors.values())) or len(node.inputs) > BIAS:
        return None
    if bias is not None and (list(bias.shape) != [quantized.columns] or dtype_of(bias) != dtype_of(result)):
        return None
    return Product(result, node.inputs[0], node.inputs[1], bias, (node, *nodes), quantized)


def take_weights(group: Sequence[Product], budget: CopyBudget) -> None:
    """Account for what one product in place of a ``group`` would make the model larger, as it does where others read
    the weights too.  Raises Refusal if that is too much.
    """
    inside = {id(node) for product in group for node in product.nodes}
    readers = {id(one.weights): one.weights.outputs for one in group}
    places = [id(one.weights) for one in group]
    for product in group:
        shared = any(id(node) not in inside for node in readers[id(product.weights)])
        if shared or places.count(id(product.weights)) > 1:
            budget.take(_values(product.weights).nbytes)


def merged_product(model: Model, group: Sequence[Product], result: gs.Tensor) -> list[Node]:
    """The nodes of one product, with a bias if one of the ``group`` has one, that make ``result``: the columns of each,
    one behind the other.
    """
    name = label(group[0].nodes[0])
    with_bias = any(each.bias is not None for each in group)
    made = gs.Variable(model.unique_name(f"{name}_product"), result.dtype, list(result.shape)) if with_bias else result
    product = _of_all_columns(model, group, name)
    product.outputs.append(made)
    if not with_bias:
        return [product]
    kind = dtype_of(group[0].source)
    biases = [np.zeros(each.columns, kind) if each.bias is None else _values(each.bias) for each in group]
    bias = model.constant(np.concatenate(biases), f"{name}_bias")
    return [product, Node("Add", model.unique_name(f"{name}_Add"), {}, [made, bias], [result])]


def _of_all_columns(model: Model, group: Sequence[Product], name: str) -> Node:
    """The product with the columns of all weights, still without a result."""
    first = group[0].quantized
    if first is None:
        weights = np.concatenate([_values(each.weights) for each in group], axis=1)
        product = Node("MatMul", model.unique_name(f"{name}_MatMul"), {}, [group[0].source])
        product.inputs.append(model.constant(weights, f"{name}_weights"))
        return product
    columns = sum(each.columns for each in group)
    product = Node(first.node.op, model.unique_name(f"{name}_{first.node.op}"), {**first.node.attrs, "N": columns})
    product.domain = first.node.domain
    product.inputs.append(group[0].source)
    for place in range(1, max(first.tensors) + 1):
        whole = np.concatenate([_values(each.quantized.tensors[place]) for each in group if each.quantized is not None])
        product.inputs.append(model.constant(whole, f"{name}_{first.node.op}_{place}"))
    return product


def merged_result(model: Model, group: Sequence[Product]) -> gs.Variable:
    """A tensor for the result of one product in place of a ``group``."""
    first = group[0].result
    columns = sum(each.columns for each in group)
    name = model.unique_name(f"{label(group[0].nodes[0])}_merged")
    return gs.Variable(name, first.dtype, [*group[0].source.shape[:-1], columns])


def _values(tensor: gs.Tensor) -> Array:
    values = constant_value(tensor)
    assert values is not None
    return values
