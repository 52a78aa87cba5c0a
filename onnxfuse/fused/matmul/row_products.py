"""The pass that multiplies few rows with constant matrices in nodes that reduce, with what is around the products.

The time of such a product is that in which its matrix is read, so that any kernel which reads this once, and all of a
GPU's memory at its pace, is as fast; what is around it then costs no launch.  No other product is taken.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxfuse.fused.elementwise.apart import Apart
from onnxfuse.fused.fused_node import ProgramFusion
from onnxfuse.fused.fusion import Fusion, emit_all
from onnxfuse.fused.kinds import REDUCTION
from onnxfuse.fused.matmul.row_regions import RowRegions
from onnxfuse.fused.matmul.tied import transposed_constant
from onnxfuse.fused.sizes import Sizes
from onnxfuse.fused.space.region import fuse_in_space
from onnxfuse.fused.space.view_nodes import is_view, left_to_ort
from onnxfuse.model.constants import constant_value, is_constant
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.graph_ir import Node, producer_of, standard_op
from onnxfuse.ort.host import CONSTANT_ARITHMETIC
from onnxfuse.ort.ort_fusions import INSIDE_MATMUL, NORMALIZATION, ONE_KERNEL
from onnxfuse.passes.rules.budget import CopyBudget
from onnxfuse.program import lowering
from onnxfuse.program.block_quantized import multiplies_blocks
from onnxfuse.program.lowering import is_elementwise
from onnxfuse.program.multiplying import NOT_CONSTANT, Product, multiplies, product_of
from onnxfuse.program.node_lowering import UnsupportedError, tensor_dtype
from onnxfuse.program.reducing import check, reduces
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor
from onnxfuse.rewrite.rule import Refusal
from onnxfuse.shapes.inference import infer

NAME = "fuse-row-products"
UNKNOWN_ROWS = "how many rows it multiplies is not known in advance, and for many ONNX Runtime's kernel is faster"
NO_ROWS = "it multiplies no rows"
MANY_ROWS = "the time is not only that in which the matrix is read, and ONNX Runtime's kernel is made for that"
DEQUANTIZED = "its matrix is dequantized for others too, or in a way that is not known"


class FuseRowProducts:
    """Replaces products of few rows with constant matrices, and the nodes around them, by nodes that reduce."""

    name = NAME
    description = "multiply few rows with constant matrices in one node with what is around the product, on GPUs"

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrite ``model`` in place and record every product that is left alone."""
        if not context.on.product_rows or REDUCTION not in context.on.kinds or "" not in model.opsets:
            return
        if not any(_may_be_fused(node) for graph in model.graphs() for node in graph.nodes):
            return
        infer(model)
        planner = _Planner(model, context)
        for graph, fusions in [(graph, planner.plan(graph)) for graph in model.fusible_graphs()]:
            emit_all(model, graph, fusions, context, planner.stem)


class _Planner:
    """Plans the graphs of one model, of which only what is fused is changed."""

    def __init__(self, model: Model, context: PassContext) -> None:
        self._model = model
        self._context = context
        self._opset = model.opsets[""]
        self._editor = GraphEditor(model)
        self._sizes = Sizes(model)
        self._apart = Apart(model, context)
        self._budget = CopyBudget()
        self._turned: dict[int, gs.Constant] = {}

    def plan(self, graph: gs.Graph) -> list[ProgramFusion]:
        """The fusions of one graph."""
        nodes = sorted_nodes(graph)
        products = self._products(nodes)
        if not products:
            return []
        free, before = self._free(nodes)
        dequantizing = {id(one) for node in nodes if id(node) in products for one in [_dequantizing(node.inputs[1])]}
        free |= {id(node) for node in nodes if id(node) in dequantizing and lowering.check(node, self._opset) is None}
        regions = RowRegions(
            nodes, products, free, before, self._sizes, self._opset, self._editor, self._context.everything
        )
        found, reasons = regions.find()
        for node, reason in reasons:
            self._context.refused(NAME, node, reason)
        return [self._fuse(region, regions) for region in self._within_budget(found, products)]

    @staticmethod
    def stem(fusion: Fusion) -> str:
        """What a fused node is named after: the last of its nodes that was in the model."""
        return label([node for node in fusion.nodes if id(node) not in fusion.new][-1])

    def _products(self, nodes: Sequence[Node]) -> dict[int, Product]:
        """The products that there are kernels for, by the ids of their nodes."""
        found: dict[int, Product] = {}
        for node in filter(_may_be_fused, nodes):
            try:
                product = product_of(node, self._opset, scaled=True)
                matrix = product.quantized
                stored = [_stored(product.matrix)] if matrix is None else matrix.tensors.values()
                if not all(map(is_constant, stored)):
                    raise UnsupportedError(NOT_CONSTANT)
                if is_constant(node.inputs[0]):
                    raise UnsupportedError(CONSTANT_ARITHMETIC)
                rows = node.inputs[0].shape[:-1]
                if not all(isinstance(size, int) for size in rows):
                    raise UnsupportedError(UNKNOWN_ROWS)
                dtype = tensor_dtype(node.inputs[0])
                most = self._context.on.product_rows.get(dtype, 0)
                if math.prod(rows) == 0:
                    raise UnsupportedError(NO_ROWS)
                if math.prod(rows) > most:
                    raise UnsupportedError(f"of {math.prod(rows)} rows, more than {most} of {dtype}: {MANY_ROWS}")
                found[id(node)] = product
            except UnsupportedError as reason:
                self._context.refused(NAME, node, str(reason))
        return found

    def _free(self, nodes: Sequence[Node]) -> tuple[set[int], set[int]]:
        """The ids of the nodes that may be part of a region, what ONNX Runtime computes in one kernel or inside the
        product among them, and of those, the parts of normalizations, that may only be before a product.
        """
        elementwise = [node for node in nodes if is_elementwise(node)]
        reasons = self._apart.reasons(nodes, elementwise, self._apart.layout(nodes))
        taken = (None, INSIDE_MATMUL, ONE_KERNEL, NORMALIZATION)
        free = {id(node) for node in elementwise if reasons.get(id(node)) in taken}
        before = {id(node) for node in elementwise if reasons.get(id(node)) == NORMALIZATION}
        before |= {id(node) for node in nodes if reduces(node) and check(node, self._opset) is None}
        for node in filter(is_view, nodes):
            readers = [reader for tensor in node.outputs for reader in tensor.outputs]
            if self._context.everything or left_to_ort(node, readers, self._context) is None:
                free.add(id(node))
        return free | before, before

    def _within_budget(self, regions: Sequence[Sequence[Node]], products: dict[int, Product]) -> list[Sequence[Node]]:
        """The regions, without those for which the model would have too many copies of weights."""
        taken = []
        for region in regions:
            own = [products[id(node)] for node in region if id(node) in products]
            try:
                for product in own:
                    stored = _stored(product.matrix)
                    if stored is not product.matrix and not any(node is product.matrix.inputs[0] for node in region):
                        raise Refusal(DEQUANTIZED)
                    if not product.transposed and id(stored) not in self._turned:
                        self._turn(stored, regions)
                taken.append(region)
            except Refusal as reason:
                for product in own:
                    self._context.refused(NAME, product.node, str(reason))
        return taken

    def _turn(self, matrix: gs.Tensor, regions: Sequence[Sequence[Node]]) -> None:
        """Make the transposed constant of a matrix.  Raises Refusal if others read this too, and it is too large."""
        inside = {id(node) for region in regions for node in region}
        if any(id(reader) not in inside for reader in matrix.outputs):
            values = constant_value(matrix)
            assert values is not None
            self._budget.take(values.nbytes)
        self._turned[id(matrix)] = transposed_constant(self._model, matrix)

    def _fuse(self, region: Sequence[Node], regions: RowRegions) -> ProgramFusion:
        """The fused node of a region, whose matrices lie row by row: what is summed is of one piece then."""
        new = []
        for node in region:
            if (product := regions.products.get(id(node))) is not None and not product.transposed:
                new.append(self._transpose(node))
        whole = [*new, *region]
        space = regions.space(whole)
        made = fuse_in_space(
            REDUCTION,
            whole,
            space,
            regions.outputs(region),
            self._model.opsets,
            self._context.fast_math,
        )
        return replace(made, new=frozenset(map(id, new)))

    def _transpose(self, product: Node) -> Node:
        """A node that puts the transposed constant into the order that a product has it in.

        That reads it then, or what dequantizes it does.
        """
        dequantizing = _dequantizing(product.inputs[1])
        node, place = (product, 1) if dequantizing is None else (dequantizing, 0)
        matrix = node.inputs[place]
        result = gs.Variable(self._model.unique_name(f"{matrix.name}_in_order"), matrix.dtype, list(matrix.shape))
        made = Node("Transpose", self._model.unique_name(f"{label(node)}_Transpose"), {"perm": [1, 0]})
        made.inputs.append(self._turned[id(matrix)])
        made.outputs.append(result)
        node.inputs[place] = result
        return made


def _may_be_fused(node: Node) -> bool:
    return multiplies(node) or multiplies_blocks(node)


def _dequantizing(matrix: gs.Tensor) -> Node | None:
    """The DequantizeLinear of constants that makes a matrix; None if none does."""
    node = producer_of(matrix)
    found = node is not None and standard_op(node) == "DequantizeLinear" and all(map(is_constant, node.inputs))
    return node if found else None


def _stored(matrix: gs.Tensor) -> gs.Tensor:
    """What a matrix is kept as: itself, or what is dequantized to it."""
    node = _dequantizing(matrix)
    return matrix if node is None else node.inputs[0]
