"""The pass that multiplies with constant matrices in the library, with the elementwise nodes after the products."""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.anchor_regions import AnchorRegions
from onnxfuse.fused.functions import INTEGERS_OPSET
from onnxfuse.fused.fusion import Fusion, emit_all
from onnxfuse.fused.kinds import MATMUL
from onnxfuse.fused.matmul.matmul_node import (
    MatMulRegion,
    adds_bias,
    constant_product,
    fuse_matmul,
    packed_parts,
    packed_shape,
    weights_bytes,
)
from onnxfuse.fused.matmul.tied import SharedWeights, can_unpack, turn_shared_weights, unpack
from onnxfuse.fused.sizes import Sizes
from onnxfuse.fused.worth import TOO_LITTLE, is_worthwhile, loads_library
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.graph_ir import ComputedValues
from onnxfuse.model.returned import Returned
from onnxfuse.ort.host import CONSTANT_ARITHMETIC, constant_arithmetic, shape_arithmetic
from onnxfuse.ort.ort_fusions import INSIDE_MATMUL, OrtFusions
from onnxfuse.passes.rules.budget import CopyBudget
from onnxfuse.program import ProgramError
from onnxfuse.program.figures import LEAST_PRODUCT_WEIGHTS, MAX_OPERANDS
from onnxfuse.program.lowering import check, is_elementwise
from onnxfuse.program.multiplying import Product, multiplies
from onnxfuse.program.node_lowering import UnsupportedError
from onnxfuse.rewrite.base import PassContext
from onnxfuse.rewrite.rule import Refusal
from onnxfuse.shapes.inference import infer

NAME = "fuse-matmul"
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
        turn_shared_weights(model)
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
        planner.unpack_shared()


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
        self._shared: list[tuple[gs.Graph, SharedWeights]] = []

    def plan(self, graph: gs.Graph) -> list[Fusion]:
        """The fusions of one graph."""
        nodes = sorted_nodes(graph)
        constant = constant_arithmetic(nodes)
        products = list(self._products(nodes, constant))
        if not products:
            return []
        regions = AnchorRegions(nodes, self._fusible(nodes, constant), self._is_output, self._sizes, self._opset)
        found = [self._with_tail(MatMulRegion(product), regions) for product in reversed(products)]
        found = self._within_budget(graph, [region for region in found if self._is_worth(region)])
        found = [self._with_sides(region, regions) for region in found]
        return [self._fuse(region, regions, self._weights(region.product)) for region in reversed(found)]

    def _products(self, nodes: list[gs.Node], constant: set[int]) -> Iterator[Product]:
        """The products that there are kernels for."""
        for node in filter(multiplies, nodes):
            try:
                if id(node) in constant:
                    raise UnsupportedError(CONSTANT_ARITHMETIC)
                if not node.outputs[0].outputs and not self._is_output(node.outputs[0]):
                    raise UnsupportedError(UNUSED)
                yield constant_product(node, self._opset)
            except UnsupportedError as reason:
                self._context.refused(NAME, node, str(reason))

    def _is_worth(self, region: MatMulRegion) -> bool:
        """Whether the product is large, or something is computed with it that ONNX Runtime would not."""
        if self._context.everything or math.prod(region.product.sizes) >= LEAST_PRODUCT_WEIGHTS:
            self.has_large = True
            return True
        computed = region.after[int(adds_bias(region)) :]  # ONNX Runtime makes a product and its bias a Gemm
        if any(id(node) not in self._inside for node in computed):
            return True
        self._context.refused(NAME, region.product.node, FEW_WEIGHTS)
        return False

    def _within_budget(self, graph: gs.Graph, regions: list[MatMulRegion]) -> list[MatMulRegion]:
        """The regions, without those of weights of which the model would have too many copies.

        What other nodes read of large ones is made of the packed weights, where that can be done.
        """
        by_weights: dict[int, list[MatMulRegion]] = {}
        for region in regions:
            by_weights.setdefault(id(region.product.matrix), []).append(region)
        refused: set[int] = set()
        for key, group in by_weights.items():
            inside = {id(region.product.node) for region in group}
            copies = len({region.product.transposed for region in group})
            product = group[0].product
            size = weights_bytes(product)
            others = [reader for reader in product.matrix.outputs if id(reader) not in inside]
            can_share = others and copies == 1 and can_unpack(self._model, product, others, self._is_output)
            if can_share and size > self._budget.left:
                self._shared.append((graph, SharedWeights.of(product)))
                continue
            try:
                self._budget.take((copies + int(bool(others)) - 1) * size)
            except Refusal as reason:
                refused.add(key)
                for region in group:
                    self._context.refused(NAME, region.product.node, str(reason))
        return [region for region in regions if id(region.product.matrix) not in refused]

    def unpack_shared(self) -> None:
        """Let what still reads weights that are packed read what is made of these; the fused nodes are in place."""
        for graph, weights in self._shared:
            unpack(self._model, graph, weights, self._packed[id(weights.matrix), weights.transposed])

    def _weights(self, product: Product) -> gs.Tensor:
        key = id(product.matrix), product.transposed
        if key not in self._packed:
            pack = partial(packed_parts, product.matrix, product.transposed)
            values = ComputedValues(packed_shape(*product.sizes), np.dtype(np.float32), pack)
            self._packed[key] = gs.Constant(self._model.unique_name(f"{product.matrix.name}_packed"), values)
        return self._packed[key]

    def _fusible(self, nodes: list[gs.Node], constant: set[int]) -> set[int]:
        """The ids of the elementwise nodes that a product may take in: what ONNX Runtime would compute inside of its
        own among them."""
        elementwise = [node for node in nodes if is_elementwise(node)]
        out = shape_arithmetic(nodes, {id(node) for node in elementwise}) | constant
        out |= self._reasons.keys() - self._inside
        return {id(node) for node in elementwise if id(node) not in out and check(node, self._opset) is None}

    def _with_tail(self, region: MatMulRegion, regions: AnchorRegions) -> MatMulRegion:
        product = region.product
        accepts = partial(self._is_within_limits, product, regions)
        return MatMulRegion(product, tuple(regions.tail(product.node, accepts)))

    def _with_sides(self, region: MatMulRegion, regions: AnchorRegions) -> MatMulRegion:
        product = region.product
        accepts = partial(self._is_within_limits, product, regions)
        return MatMulRegion(product, tuple(regions.beside(product.node, region.after, accepts)))

    def _is_within_limits(self, product: Product, regions: AnchorRegions, after: list[gs.Node]) -> bool:
        """Whether a region has one node's worth of operands and instructions."""
        try:
            fusion = self._fuse(MatMulRegion(product, tuple(after)), regions, product.matrix)
        except ProgramError:
            return False
        return len(fusion.inputs) + len(fusion.outputs) <= MAX_OPERANDS

    def _fuse(self, region: MatMulRegion, regions: AnchorRegions, weights: gs.Tensor) -> Fusion:
        is_used = regions.read_outside(region)
        return fuse_matmul(region, weights, self._opset, is_used, self._context.fast_math)
