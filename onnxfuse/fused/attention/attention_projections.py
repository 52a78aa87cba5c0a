"""Products of one tensor with several weights, which make Q, K and V of an attention, as one product.

ONNX Runtime computes each in a node of its own, and reshapes around those to which it adds a bias.  A node of an
attention reads its heads from wherever they lie, so that nothing has to take the result apart.  What queries and keys
go through alike before they are read, as the rotation by their places, is computed of both at once.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.attention.attention_blocks import AttentionBlock
from onnxfuse.fused.attention.attention_heads import Heads
from onnxfuse.fused.made import Made, make_nodes, split_node
from onnxfuse.fused.products.joining import Joiner, Span
from onnxfuse.fused.products.products import Product, merged_product, merged_result, product_of, take_weights
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import Node
from onnxfuse.passes.rules.budget import CopyBudget
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor
from onnxfuse.rewrite.rule import Refusal

NAME = "merge-projections"
READ_ELSEWHERE = "something besides the attention reads it"
OTHER_HEADS = "its heads are of another size than those of other projections of the same tensor"
NOT_ALIKE = "queries and keys go through different nodes behind the products"
_MOST_STEPS = 100
"""Tensors between a product and what an attention reads."""
_SLICE_TAKES_BOUNDS = 10
"""The opset from which on the bounds of a Slice are inputs."""


@dataclass(frozen=True)
class _Projection:
    """The product of which the ``heads`` are, directly, or after nodes that other heads may go through too."""

    heads: Heads
    product: Product
    direct: bool

    @property
    def size(self) -> int:
        """Elements of a head."""
        return int(self.product.columns // self.heads.count if self.direct else self.heads.tensor.shape[3])


def merge_projections(model: Model, blocks: Sequence[AttentionBlock], context: PassContext) -> list[Node]:
    """Merges what can be, and returns the Splits behind the new products, which make what Q, K and V were.

    If there are any, the blocks are to be found anew.  Weights that others read too are copied within a budget.
    """
    if not blocks:
        return []
    editor, budget = GraphEditor(model), CopyBudget()
    splits = []
    for block in blocks:
        found: dict[Hashable, list[_Projection]] = {}
        for heads in (block.q, block.k, block.v):
            projection = _projection(heads, editor)
            if projection is not None:
                found.setdefault(projection.product.together, []).append(projection)
        for group in found.values():
            if len(group) > 1:
                splits += _merged(model, editor, group, budget, context)
    editor.finish()
    return splits


def _projection(heads: Heads, editor: GraphEditor) -> _Projection | None:
    """How a tensor is made of which the heads are all; None if it is not by one product."""
    if heads.first or heads.total != heads.count or heads.tensor.shape is None:
        return None
    direct = len(heads.tensor.shape) == 3
    product = _direct(heads.tensor, editor) if direct else _behind(heads.tensor, editor)
    if product is None or (product.columns % heads.count if direct else not isinstance(heads.tensor.shape[3], int)):
        return None
    return _Projection(heads, product, direct)


def _direct(tensor: gs.Tensor, editor: GraphEditor) -> Product | None:
    found = product_of(tensor, editor, with_bias=True)
    return found if found is not None and len(found.source.shape) == 3 else None


def _behind(tensor: gs.Tensor, editor: GraphEditor) -> Product | None:
    """The only product on the way to a tensor of four dimensions."""
    products: dict[int, Product] = {}
    waiting, seen = [tensor], {id(tensor)}
    while waiting and len(seen) < _MOST_STEPS:
        tensor = waiting.pop()
        found = _direct(tensor, editor) if tensor.shape is not None and len(tensor.shape) == 3 else None
        if found is not None:
            products[id(tensor)] = found
            continue
        more = [operand for node in tensor.inputs for operand in node.inputs if operand.inputs]
        waiting += [operand for operand in more if id(operand) not in seen]
        seen.update(map(id, more))
    return next(iter(products.values())) if len(products) == 1 and not waiting else None


def _merged(
    model: Model, editor: GraphEditor, group: Sequence[_Projection], budget: CopyBudget, context: PassContext
) -> list[Node]:
    """What takes the results of as many of a ``group`` as can be one product apart again."""

    def refused(projections: Sequence[_Projection], reason: str) -> None:
        for one in projections:
            context.refused(NAME, one.product.nodes[-1], reason)

    read_elsewhere = [one for one in group if one.direct and not editor.is_inner(one.product.result)]
    refused(read_elsewhere, READ_ELSEWHERE)
    rest = [one for one in group if one not in read_elsewhere]
    other_size = [one for one in rest if one.size != rest[0].size]
    refused(other_size, OTHER_HEADS)
    direct = [one for one in rest if one.direct and one not in other_size]
    behind = [one for one in rest if not one.direct and one not in other_size]
    plans = (_Plan(model, editor, behind[:count], direct) for count in range(len(behind), 1, -1))
    plan = next((plan for plan in plans if plan.joins()), None)
    if plan is None:
        refused(behind, NOT_ALIKE)
        plan = _Plan(model, editor, [], direct)
    if not plan.gains:
        return []
    try:
        take_weights(plan.products, budget)
    except Refusal as reason:
        refused([*behind, *direct], str(reason))
        return []
    context.rewrote(NAME, plan.replaced)
    return plan.carry_out()


class _Plan:
    """One product in place of those of some projections, and what several of them go through behind it, computed once.

    The heads of those ``behind`` other nodes come first in the new product, and those of the ``direct`` ones last.
    Where all are parts of the result of one product, that stays as it is, and ``products`` are empty.
    """

    def __init__(
        self, model: Model, editor: GraphEditor, behind: Sequence[_Projection], direct: Sequence[_Projection]
    ) -> None:
        everything = [one.product for one in (*behind, *direct)]
        self.products = everything if len({id(product.result) for product in everything}) > 1 else []
        self._model = model
        self._editor = editor
        self._behind = behind
        self._direct = direct
        self._joined: Made | None = None
        self._spans: dict[int, Span] = {}
        if self.products:
            self._whole = merged_result(model, self.products)
            start = 0
            for product in self.products:
                self._spans[id(product.result)] = Span(self._whole, start, start + product.columns)
                start += product.columns
        self._joiner = Joiner(model, self._spans)

    @property
    def gains(self) -> bool:
        """Whether there is anything to do."""
        return len(self.products) > 1 or self._joined is not None

    def joins(self) -> bool:
        """Whether what lies between the products and the heads behind them can be computed of all of these at once."""
        if len(self._behind) < 2 or self._model.opsets[""] < _SLICE_TAKES_BOUNDS:
            return False
        tensors = [one.heads.tensor for one in self._behind]
        found = self._joiner.join(tensors, -2, self._counts)
        if not isinstance(found, Made) or not self._joiner.nodes:
            return False
        self._joined = found
        inside = {id(node) for node in self.replaced}
        made = [tensor for node in self.replaced for tensor in node.outputs]
        kept = {id(one.heads.tensor) for one in (*self._behind, *self._direct)}
        return not any(
            self._editor.is_graph_output(tensor) or any(id(reader) not in inside for reader in tensor.outputs)
            for tensor in made
            if id(tensor) not in kept
        )

    @property
    def replaced(self) -> list[Node]:
        """The nodes in whose place the new ones are."""
        nodes = [node for product in self.products for node in product.nodes]
        return nodes if self._joined is None else [*nodes, *self._joiner.nodes.values()]

    def carry_out(self) -> list[Node]:
        """Puts the new nodes into the graph; returns those that take their results apart."""
        model, replaced = self._model, self.replaced
        first, name = replaced[0], label(replaced[0])
        nodes = merged_product(model, self.products, self._whole) if self.products else []
        takers: list[tuple[Node, list[gs.Tensor]]] = []
        if self._joined is not None:
            dtype = self._behind[0].heads.tensor.dtype
            heads = gs.Variable(model.unique_name(f"{name}_heads"), dtype, list(self._joined.shape))
            nodes += make_nodes(model, self._joined, heads, name)
            split = split_node(model, heads, 2, self._counts, f"{name}_Split")
            takers.append((split, [one.heads.tensor for one in self._behind]))
            takers += [(self._slice(one.product), [one.product.result]) for one in self._direct]
        else:
            columns = [product.columns for product in self.products]
            split = split_node(model, self._whole, 2, columns, f"{name}_Split")
            takers.append((split, [product.result for product in self.products]))
        self._editor.insert([*nodes, *(node for node, _ in takers)], at=first)
        self._editor.sort(first)
        self._editor.remove(replaced)
        for node, tensors in takers:
            node.outputs.extend(tensors)
        return [node for node, _ in takers]

    def _slice(self, product: Product) -> Node:
        """What takes the columns of a product, still without an output."""
        span = self._spans[id(product.result)]
        bounds = [self._model.constant(np.array([place], np.int64), "bound") for place in (span.start, span.end, 2)]
        return Node("Slice", self._model.unique_name(f"{label(product.nodes[0])}_Slice"), {}, [self._whole, *bounds])

    @property
    def _counts(self) -> list[int]:
        """How many heads those behind other nodes have."""
        return [one.heads.count for one in self._behind]
