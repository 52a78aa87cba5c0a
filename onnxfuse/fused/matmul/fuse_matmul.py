"""The pass that multiplies with constant matrices in the library, with the elementwise nodes after the products."""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.anchor_regions import AnchorRegions
from onnxfuse.fused.elementwise.cuda_regions import MAX_OPERANDS
from onnxfuse.fused.functions import INTEGERS_OPSET
from onnxfuse.fused.fusion import Fusion, emit_all
from onnxfuse.fused.kinds import MATMUL
from onnxfuse.fused.matmul.matmul_node import (
    MatMulRegion,
    Product,
    fuse_matmul,
    is_product,
    pack_weights,
    packed_shape,
    product_of,
)
from onnxfuse.fused.sizes import Sizes
from onnxfuse.fused.worth import TOO_LITTLE, is_worthwhile, loads_library
from onnxfuse.model.constants import constant_value, is_constant
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.graph_ir import ComputedValues, standard_op
from onnxfuse.model.returned import Returned
from onnxfuse.ort.host import constant_arithmetic, shape_arithmetic
from onnxfuse.ort.ort_fusions import INSIDE_MATMUL, OrtFusions
from onnxfuse.passes.rules.budget import CopyBudget
from onnxfuse.program import ProgramError
from onnxfuse.program.figures import LEAST_PRODUCT_WEIGHTS
from onnxfuse.program.lowering import check, is_elementwise
from onnxfuse.program.node_lowering import UnsupportedError
from onnxfuse.rewrite.base import PassContext
from onnxfuse.rewrite.rule import Refusal
from onnxfuse.shapes.inference import infer

NAME = "fuse-matmul"
CONSTANT = "ONNX Runtime computes it once, for it depends on no input"
UNUSED = "nothing reads its result"
FEW_WEIGHTS = "its weights are so few that ONNX Runtime's own kernel is as fast"


class FuseMatMul:
    """Replaces products with constant matrices, with the elementwise nodes after them, by single nodes, on the CPU.

    The weights lie in the file as the kernels read them, so that a session has nothing to put in order, and are fetched
    before they are wanted.
    """

    name = NAME
    description = "multiply with constant matrices in one node with the elementwise nodes after it, on the CPU"

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrite ``model`` in place and record every product that is left alone."""
        if MATMUL not in context.on.kinds or model.opsets.get("", 0) < INTEGERS_OPSET:
            return
        if not context.everything and not context.on.fast_products():
            return
        if not any(is_product(node) for graph in model.graphs() for node in graph.nodes):
            return
        infer(model)
        planner = _Planner(model, context)
        plans = [(graph, planner.plan(graph)) for graph in model.fusible_graphs()]
        fusions = [fusion for _, found in plans for fusion in found]
        costs = context.on.library_costs and not context.everything and not loads_library(model)
        if costs and not planner.has_large and not is_worthwhile(fusions, _count(model), lambda node: False):
            for fusion in fusions:
                context.refused(NAME, fusion.nodes[0], TOO_LITTLE)
            return
        for graph, found in plans:
            emit_all(model, graph, found, context)


def _count(model: Model) -> int:
    return sum(len(graph.nodes) for graph in model.graphs())


class _Planner:
    """Plans the graphs of one model, without changing it but for new weights."""

    def __init__(self, model: Model, context: PassContext) -> None:
        self._model = model
        self._context = context
        self._opset = model.opsets[""]
        self._sizes = Sizes(model)
        self._reasons = {} if context.everything else OrtFusions(model, context.on).reasons
        self._inside = {key for key, reason in self._reasons.items() if reason is INSIDE_MATMUL}
        self._is_output = Returned(model.graphs())
        self._budget = CopyBudget()
        self.has_large = False  # a product that pays for the library by itself
        self._packed: dict[tuple[int, bool], gs.Tensor] = {}

    def plan(self, graph: gs.Graph) -> list[Fusion]:
        """The fusions of one graph."""
        nodes = sorted_nodes(graph)
        constant = constant_arithmetic(nodes)
        products = list(self._products(nodes, constant))
        if not products:
            return []
        regions = AnchorRegions(nodes, self._fusible(nodes, constant), self._is_output, self._sizes, self._opset)
        found = [self._with_tail(MatMulRegion(product), regions) for product in reversed(products)]
        found = [self._with_sides(region, regions) for region in found if self._is_worth(region)]
        return [self._fuse(region, regions, self._weights(region.product)) for region in reversed(found)]

    def _products(self, nodes: list[gs.Node], constant: set[int]) -> Iterator[Product]:
        """The products that are taken."""
        for node in filter(is_product, nodes):
            try:
                if id(node) in constant:
                    raise UnsupportedError(CONSTANT)
                if not node.outputs[0].outputs and not self._is_output(node.outputs[0]):
                    raise UnsupportedError(UNUSED)
                product = product_of(node, self._opset)
                self._take_weights(product)
            except (UnsupportedError, Refusal) as reason:
                self._context.refused(NAME, node, str(reason))
                continue
            yield product

    def _is_worth(self, region: MatMulRegion) -> bool:
        """Whether the product is large, or something is computed with it that ONNX Runtime would not."""
        if self._context.everything or math.prod(region.product.sizes) >= LEAST_PRODUCT_WEIGHTS:
            self.has_large = True
            return True
        first = region.after[0] if region.after else None
        is_bias = first is not None and standard_op(first) == "Add" and any(map(is_constant, first.inputs))
        if any(id(node) not in self._inside for node in region.after[int(is_bias) :]):
            return True
        self._context.refused(NAME, region.product.node, FEW_WEIGHTS)
        return False

    def _take_weights(self, product: Product) -> None:
        """Account for weights that others read too.  Raises Refusal if they are too large."""
        key = id(product.weights), product.transposed
        if key not in self._packed and any(not is_product(reader) for reader in product.weights.outputs):
            values = constant_value(product.weights)
            assert values is not None
            self._budget.take(values.nbytes)

    def _weights(self, product: Product) -> gs.Tensor:
        key = id(product.weights), product.transposed
        if key not in self._packed:
            values = ComputedValues(packed_shape(product), np.dtype(np.float32), partial(pack_weights, product))
            self._packed[key] = gs.Constant(self._model.unique_name(f"{product.weights.name}_packed"), values)
        return self._packed[key]

    def _fusible(self, nodes: list[gs.Node], constant: set[int]) -> set[int]:
        """The ids of the elementwise nodes that a product may take in: what ONNX Runtime would compute inside of its
        own among them."""
        elementwise = [node for node in nodes if is_elementwise(node)]
        out = shape_arithmetic(nodes, {id(node) for node in elementwise}) | constant
        out |= self._reasons.keys() - self._inside
        return {id(node) for node in elementwise if id(node) not in out and check(node, self._opset) is None}

    def _with_tail(self, region: MatMulRegion, regions: AnchorRegions) -> MatMulRegion:
        node = region.product.node
        tail = regions.tail(node, lambda after: self._is_within_limits(region.product, after, regions))
        return MatMulRegion(region.product, tuple(tail))

    def _with_sides(self, region: MatMulRegion, regions: AnchorRegions) -> MatMulRegion:
        node = region.product.node
        accepts = lambda after: self._is_within_limits(region.product, after, regions)  # noqa: E731
        return MatMulRegion(region.product, tuple(regions.beside(node, region.after, accepts)))

    def _is_within_limits(self, product: Product, after: list[gs.Node], regions: AnchorRegions) -> bool:
        """Whether a region has one node's worth of operands and instructions."""
        try:
            fusion = self._fuse(MatMulRegion(product, tuple(after)), regions, product.weights)
        except ProgramError:
            return False
        return len(fusion.inputs) + len(fusion.outputs) <= MAX_OPERANDS

    def _fuse(self, region: MatMulRegion, regions: AnchorRegions, weights: gs.Tensor) -> Fusion:
        is_used = regions.read_outside(region)
        return fuse_matmul(region, weights, self._opset, is_used, self._context.fast_math)
