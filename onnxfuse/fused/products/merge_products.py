"""The pass merge-products: products of one tensor, as the gate and the values of a gated MLP, as one product."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from onnxfuse.fused.elementwise.apart import Apart
from onnxfuse.fused.made import split_node
from onnxfuse.fused.products.products import (
    Product,
    is_product,
    merged_product,
    merged_result,
    product_of,
    take_weights,
)
from onnxfuse.fused.products.row_parts import RowPart, fit, row_part, taking
from onnxfuse.fused.regions import find_regions
from onnxfuse.model.elementwise_operators import HAVE_AXIS
from onnxfuse.model.graph import sorted_nodes
from onnxfuse.model.graph_ir import VIEWS, Node, standard_op
from onnxfuse.ort.slow_kernels import FREE_OPS
from onnxfuse.passes.rules.budget import CopyBudget
from onnxfuse.program.lowering import is_elementwise
from onnxfuse.program.reducing import reduces
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor
from onnxfuse.rewrite.rule import Refusal
from onnxfuse.shapes.inference import infer

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model

NAME = "merge-products"
NO_PARTS = "what reads it is not known to be fused into a node that reads a part of a tensor where it lies"
_OPSET = 13
"""From which on the sizes of a Split are an input, which folding knows."""


class MergeProducts:
    """Multiplies a tensor by several constant matrices at once, where fused nodes read the parts of the result.

    One product of all columns takes a kernel in place of several, reads the tensor once, and fills the processor more.
    Its parts are views, which cost nothing where all that reads them are regions of elementwise nodes; on GPUs parts of
    a single row, as of queries and keys in a step of decoding, in other shapes too.  Where anything else does, products
    stay apart, and so do those of weights that others share, beyond a budget.
    """

    name = NAME
    description = "multiply a tensor by several constant matrices at once where fused nodes read the parts"

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrite ``model`` in place."""
        if model.opsets.get("", 0) < _OPSET:
            return
        if sum(is_product(node) for graph in model.graphs() for node in graph.nodes) < _FEWEST:
            return
        infer(model)
        editor, budget = GraphEditor(model), CopyBudget()
        nodes_of = [sorted_nodes(graph) for graph in model.fusible_graphs()]
        groups_of = [_groups(nodes, editor) for nodes in nodes_of]
        if not any(groups_of):
            return
        apart = Apart(model, context)
        for nodes, groups in zip(nodes_of, groups_of, strict=True):
            regions = _regions(nodes, apart)
            for group in groups:
                parts = _row_parts(group, editor, regions, context)
                together = [one.product for one in parts] or [
                    one for one in group if _reads_parts(one, regions, context)
                ]
                _merge(model, editor, together, budget, context, parts)
        editor.finish()


_FEWEST = 2


def _groups(nodes: Sequence[Node], editor: GraphEditor) -> list[list[Product]]:
    """The products of one tensor each, of which nothing but nodes of their graph reads the results."""
    here = {id(node) for node in nodes}
    found: dict[Hashable, list[Product]] = {}
    for node in nodes:
        if not is_product(node) or editor.is_graph_output(node.outputs[0]):
            continue
        product = product_of(node.outputs[0], editor, with_bias=False)
        if product is not None and all(id(reader) in here for reader in node.outputs[0].outputs):
            found.setdefault(product.together, []).append(product)
    return [group for group in found.values() if len(group) >= _FEWEST]


def _regions(nodes: Sequence[Node], apart: Apart) -> dict[int, list[Node]]:
    """By the id of an elementwise node that will be fused with others the region of these: one that reduces nothing
    reads, and nothing that reduces is read by.
    """
    elementwise = [node for node in nodes if is_elementwise(node)]
    reasons = apart.reasons(nodes, elementwise, apart.layout(nodes))
    fusible = {id(node) for node in elementwise if id(node) not in reasons}
    found: dict[int, list[Node]] = {}
    for region in find_regions(nodes, lambda node: id(node) in fusible, lambda producer, consumer, tensor: True):
        counted = [node for node in region if node.op not in FREE_OPS]
        kept = apart.ort is not None and apart.ort.keeps(region)
        if len(counted) >= _FEWEST and not kept and not any(map(_is_beside_reduction, region)):
            found.update((id(node), region) for node in region)
    return found


def _is_beside_reduction(node: Node) -> bool:
    """Whether a node reads what a reduction makes, or the other way, perhaps through views."""
    before = [made for tensor in node.inputs for made in tensor.inputs]
    behind = [reader for tensor in node.outputs for reader in tensor.outputs]
    while before or behind:
        if any(map(reduces, (*before, *behind))):
            return True
        before = [made for view in before if standard_op(view) in VIEWS for made in view.inputs[0].inputs]
        behind = [reader for view in behind if standard_op(view) in VIEWS for reader in view.outputs[0].outputs]
    return False


def _reads_parts(product: Product, regions: dict[int, list[Node]], context: PassContext) -> bool:
    """Whether all that reads a product may read a part of a tensor."""
    readers = product.result.outputs
    if readers and all(id(node) in regions and node.op not in HAVE_AXIS for node in readers):
        return True
    context.refused(NAME, product.nodes[0], NO_PARTS)
    return False


def _row_parts(
    group: Sequence[Product], editor: GraphEditor, regions: dict[int, list[Node]], context: PassContext
) -> list[RowPart]:
    """The products of a group that are to be parts of one row, in another shape than that which they make."""
    if not context.on.one_space:
        return []
    parts = [part for one in group if (part := row_part(one, editor, regions)) is not None]
    return parts if len(parts) >= _FEWEST and any(part.views for part in parts) and fit(parts) else []


def _merge(
    model: Model,
    editor: GraphEditor,
    group: Sequence[Product],
    budget: CopyBudget,
    context: PassContext,
    parts: Sequence[RowPart] = (),
) -> None:
    """One product, and a Split of its result, in place of a group of two or more.

    Of products whose results are ``parts`` of a row, a Slice for each in the place of the Split.
    """
    if len(group) < _FEWEST:
        return
    nodes = [node for product in group for node in product.nodes]
    try:
        take_weights(group, budget)
    except Refusal as reason:
        for node in nodes:
            context.refused(NAME, node, str(reason))
        return
    context.rewrote(NAME, nodes)
    whole = merged_result(model, group)
    name = label(nodes[0])
    if parts:
        reshapes, takers = taking(model, parts, whole, name)
        made = [[part.tensor] for part in parts]
    else:
        columns = [product.columns for product in group]
        reshapes, takers = [], [split_node(model, whole, len(whole.shape) - 1, columns, f"{name}_Split")]
        made = [[product.result for product in group]]
    editor.insert([*merged_product(model, group, whole), *reshapes, *takers], at=nodes[0])
    editor.sort(nodes[0])
    editor.remove([*nodes, *(view for part in parts for view in part.views)])
    for taker, results in zip(takers, made, strict=True):
        taker.outputs.extend(results)
