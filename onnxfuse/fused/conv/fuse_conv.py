"""The pass that replaces convolutions, and matrix products, and their elementwise neighbours by fused nodes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.fused.anchor_regions import AnchorRegions
from onnxfuse.fused.choices import ConvChoice
from onnxfuse.fused.conv.choosers import chooser_of
from onnxfuse.fused.conv.conv_node import ConvFusion, ConvRegion, fuse_conv
from onnxfuse.fused.conv.conv_times import ConvTimes, LastIsFree, is_better_by_rows
from onnxfuse.fused.conv.convolutions import describe, describe_product, is_convolution
from onnxfuse.fused.conv.cpu_convolutions import CHANNELS_LAST, FASTER, cpu_chooser
from onnxfuse.fused.elementwise.cuda_placement import CudaPlacement
from onnxfuse.fused.elementwise.fuse_elementwise import UNUSED
from onnxfuse.fused.functions import INTEGERS_OPSET
from onnxfuse.fused.fusion import emit, put_in_place
from onnxfuse.fused.kinds import CONV, NHWC_CONV
from onnxfuse.fused.nhwc.nhwc_concats import NhwcConcats, nhwc_concat
from onnxfuse.fused.nhwc.nhwc_layout import NhwcLayout, choose_layout
from onnxfuse.fused.nhwc.nhwc_node import (
    apply_layout,
    drop_identities,
    nhwc_fusion,
    nhwc_pair,
    squeeze_excite_reads_last,
)
from onnxfuse.fused.nhwc.nhwc_pairs import NhwcPair, find_pairs
from onnxfuse.fused.nhwc.nhwc_pools import nhwc_pool
from onnxfuse.fused.sizes import Sizes, is_gate
from onnxfuse.model.graph import Model, Node, sorted_nodes
from onnxfuse.model.returned import Returned
from onnxfuse.ort.host import CONSTANT_ARITHMETIC, constant_arithmetic, shape_arithmetic
from onnxfuse.ort.ort_fusions import INSIDE_MATMUL, ONE_KERNEL, OrtFusions
from onnxfuse.ort.slow_kernels import FREE_OPS
from onnxfuse.program import ProgramError
from onnxfuse.program.figures import MAX_OPERANDS
from onnxfuse.program.lowering import check, is_elementwise
from onnxfuse.program.multiplying import multiplies
from onnxfuse.program.node_lowering import UnsupportedError
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.shapes.inference import infer

NAME = "fuse-conv"
NO_NEIGHBOUR = "no bias and no elementwise node before or after it that a kernel could take in"
_MOST_ROUNDS = 4
_BESIDE_PRODUCTS = (INSIDE_MATMUL, ONE_KERNEL)
"""What ONNX Runtime does with neighbours of a product that its kernel may take in all the same."""

Verdicts = dict[int, ConvChoice]


class FuseConv:
    """Replaces convolutions, with elementwise nodes around them, by fused nodes where that is the better choice.

    Which ones the ConvChooser of the context decides.  Where kernels of convolutions multiply matrices, products are
    convolutions too.
    """

    name = NAME
    description = "compute convolutions together with the elementwise nodes around them"

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrite ``model`` in place and record every convolution and the choice for it."""
        graphs = list(model.fusible_graphs())
        if CONV not in context.on.kinds or "" not in model.opsets:
            return
        if not any(_is_anchor(node, context) for node in _nodes(graphs)):
            return
        if any(tensor.dtype is None for node in _nodes(graphs) for tensor in node.outputs):
            infer(model)  # earlier passes have added tensors
        chooser_of(context).begin(model)
        planner = _Planner(model, context)
        plans = [planner.plan(graph) for graph in graphs]
        for plan in plans:
            for node in (node for node in plan.graph.nodes if id(node) in plan.verdicts):
                verdict = plan.verdicts[id(node)]
                if is_convolution(node) or verdict.fused:
                    context.report.add_convolution(label(node), node.op, verdict)
                else:
                    context.refused(NAME, node, verdict.reason)
            # Nodes without a name are called by what they make, which the layout renames.
            labels = {id(fusion): label(fusion.region.nodes[-1]) for fusion in plan.fusions}
            alone = [node for node in plan.graph.nodes if id(node) in plan.layout.pools]
            alone += [node for node in plan.concats.nodes if not plan.concats.is_joined(node)]
            labels |= {id(node): label(node) for node in alone}
            renamed = apply_layout(model, plan.graph, plan.layout)
            context.report.rename_tensors({node.name for node in plan.graph.nodes}, renamed)
            fused = [*_emit(model, plan, labels, context), *_emit_alone(model, plan, alone, labels, context)]
            plan.concats.take_away()
            replaced = [node for found in plan.fusions for node in found.region.nodes]
            put_in_place(plan.graph, [*replaced, *alone, *plan.concats.nodes], fused)
            for node in plan.graph.nodes:
                if is_gate(node) and id(node.inputs[0]) in plan.layout.tensors:
                    squeeze_excite_reads_last(model, node)
        drop_identities(model, [node for plan in plans for node in plan.layout.nodes])


@dataclass(frozen=True)
class _Plan:
    """The fusions of one graph, their layout, and the choice for each of its convolutions, by the id of its node."""

    graph: gs.Graph
    fusions: list[ConvFusion]
    layout: NhwcLayout
    concats: NhwcConcats
    pairs: dict[int, NhwcPair]
    verdicts: Verdicts


def _is_anchor(node: gs.Node, context: PassContext) -> bool:
    """Whether a node is a convolution, or what counts as one on the target."""
    return is_convolution(node) or (context.on.multiplies_as_convolution and multiplies(node))


def _nodes(graphs: list[gs.Graph]) -> Iterator[gs.Node]:
    return (node for graph in graphs for node in graph.nodes)


class _Planner:
    """Plans the graphs of one model, without changing it."""

    def __init__(self, model: Model, context: PassContext) -> None:
        self._context = context
        self._on = context.on
        self._main = model.graph
        self._opset = model.opsets[""]
        self._fast_math = context.fast_math
        self._prefer_nhwc = context.prefer_nhwc
        self._everything = context.everything
        self._chooser = chooser_of(context)
        self._nhwc = cpu_chooser(context) if NHWC_CONV in context.on.kinds else None
        self._sizes = Sizes(model)
        self._ort = OrtFusions(model, self._on)
        self._placement = CudaPlacement(model) if self._on.host_apart else None
        self._is_output = Returned(model.graphs())

    def plan(self, graph: gs.Graph) -> _Plan:
        """The plan for one graph."""
        nodes = sorted_nodes(graph)
        verdicts: Verdicts = {}
        wanted: dict[int, Convolution] = {}
        constant = constant_arithmetic(nodes)
        for node in (node for node in nodes if _is_anchor(node, self._context)):
            try:
                convolution = describe(node) if is_convolution(node) else describe_product(node, self._opset)
            except UnsupportedError as reason:
                verdicts[id(node)] = ConvChoice(False, str(reason))
                continue
            if id(node) in constant:
                choice = ConvChoice(False, CONSTANT_ARITHMETIC)
            elif not self._is_read(node.outputs[0]):
                choice = ConvChoice(False, UNUSED)
            else:
                choice = self._chooser.might(node, convolution)
            verdicts[id(node)] = choice
            if choice.fused:
                wanted[id(node)] = convolution
        inside = any(one.channels_last for one in wanted.values())
        fusible = self._fusible(nodes, constant, _BESIDE_PRODUCTS if inside else ()) if wanted else set()
        fusions: list[ConvFusion] = []
        for _ in range(_MOST_ROUNDS if wanted else 0):
            fusions = self._fusions(nodes, wanted, fusible) if wanted else []
            self._chooser.prepare(fusions)
            chosen = {id(fusion.region.conv): self._chooser.choose(fusion) for fusion in fusions}
            verdicts.update(chosen)
            verdicts.update(dict.fromkeys(wanted.keys() - chosen.keys(), ConvChoice(False, NO_NEIGHBOUR)))
            left = {key: convolution for key, convolution in wanted.items() if verdicts[key].fused}
            if len(left) == len(wanted):
                break
            wanted = left  # the others take up what those that are left to ONNX Runtime had taken in
        fusions = [fusion for fusion in fusions if id(fusion.region.conv) in wanted]
        if self._nhwc is None or not fusions or self._opset < INTEGERS_OPSET:
            layout = NhwcLayout()
            return _Plan(graph, fusions, layout, NhwcConcats(nodes, fusions, layout, self._is_output), {}, verdicts)
        shapes = self._nhwc.likely_shapes(graph, main=graph is self._main)
        times = LastIsFree(shapes) if self._everything else ConvTimes(shapes)
        layout = choose_layout(nodes, fusions, self._is_output, self._sizes, times)
        for key in layout.convolutions:
            verdicts[key] = CHANNELS_LAST if verdicts[key] is FASTER else verdicts[key]
        concats = NhwcConcats(nodes, fusions, layout, self._is_output)

        def may_expand(expansion: ConvFusion, single: ConvFusion) -> bool:
            made = shapes.of(expansion.region.conv.outputs[0])
            pays = self._everything or is_better_by_rows(made, single.region.conv)
            return pays and len(concats.parts(expansion.region.data)) < 2

        pairs = find_pairs(fusions, layout, nodes, may_expand)
        return _Plan(graph, fusions, layout, concats, pairs, verdicts)

    def _fusible(self, nodes: list[gs.Node], constant: set[int], free: Sequence[str]) -> set[int]:
        """The ids of the elementwise nodes that a convolution may take in; of what ONNX Runtime does with a node the
        reasons that are ``free`` do not count."""
        elementwise = [node for node in nodes if is_elementwise(node)]
        ids = {id(node) for node in elementwise}
        out = shape_arithmetic(nodes, ids) | constant
        out |= {key for key, reason in self._ort.reasons.items() if reason not in free}
        return {
            id(node)
            for node in elementwise
            if id(node) not in out and not self._is_placed(node) and check(node, self._opset) is None
        }

    def _is_placed(self, node: gs.Node) -> bool:
        return self._placement is not None and self._placement.why_alone(node) is not None

    def _is_read(self, tensor: gs.Tensor) -> bool:
        return bool(tensor.outputs) or self._is_output(tensor)

    def _fusions(self, nodes: list[gs.Node], wanted: Mapping[int, Convolution], fusible: set[int]) -> list[ConvFusion]:
        """The fusions of the ``wanted`` convolutions that have elementwise neighbours.

        The last one goes first, so that of the two that a residual addition joins, the one takes it that ends later.
        All tails go before what stands beside them, which may be the tail of another one, and that before the heads:
        what stands between two convolutions is computed once if it is the tail of the first.
        """
        regions = AnchorRegions(nodes, fusible, self._is_output, self._sizes, self._opset)
        convs = [node for node in reversed(nodes) if id(node) in wanted]
        alone = [ConvRegion(node, wanted[id(node)], node.inputs[0]) for node in convs]
        found = [self._with_tail(region, regions) for region in alone]
        found = [self._with_sides(region, regions) for region in found]
        if self._nhwc is None:
            found = [self._with_head(region, regions) for region in found]
            return [self._fuse(region, regions) for region in reversed(found) if self._has_neighbours(region)]
        found = [self._with_head(region, regions) if region.convolution.pointwise else region for region in found]
        found = self._with_shifted(found, regions)
        # One without neighbours is fused for the sake of the layout around it.
        return [self._fuse(region, regions) for region in reversed(found)]

    def _has_neighbours(self, region: ConvRegion) -> bool:
        """Whether a region is more than the sums.  On CUDA the bias is a neighbour, which ONNX Runtime adds in a kernel
        of its own; with the channels last it is not worth to leave that layout for."""
        bias = region.conv.inputs[2:3]
        if not self._prefer_nhwc and bias and bias[0].name:
            return True
        return any(node.op not in FREE_OPS for node in (*region.before, *region.after))

    def _with_shifted(self, found: list[ConvRegion], regions: AnchorRegions) -> list[ConvRegion]:
        """The regions, those of a gated block with what the gate multiplies computed where it does."""
        by_conv = {id(region.conv): region for region in found}
        tails = {id(node): id(region.conv) for region in found for node in region.after}
        for region in found:
            maker = region.data.inputs[0] if region.data.inputs else None
            first = by_conv.get(tails.get(id(maker), 0))
            both = None if first is None else regions.shifted(first, by_conv[id(region.conv)])
            if both is not None and all(self._is_within_limits(one, regions) for one in both):
                by_conv |= {id(one.conv): one for one in both}
        return [by_conv[id(region.conv)] for region in found]

    def _with_tail(self, region: ConvRegion, regions: AnchorRegions) -> ConvRegion:
        def accepts(nodes: list[gs.Node]) -> bool:
            return self._is_within_limits(replace(region, after=tuple(nodes)), regions)

        return replace(region, after=tuple(regions.tail(region.conv, accepts)))

    def _with_sides(self, region: ConvRegion, regions: AnchorRegions) -> ConvRegion:
        def accepts(nodes: list[gs.Node]) -> bool:
            return self._is_within_limits(replace(region, after=tuple(nodes)), regions)

        return replace(region, after=tuple(regions.beside(region.conv, region.after, accepts)))

    def _with_head(self, region: ConvRegion, regions: AnchorRegions) -> ConvRegion:
        def accepts(nodes: list[gs.Node], data: gs.Tensor) -> bool:
            return self._is_within_limits(replace(region, before=tuple(nodes), data=data), regions)

        before, data = regions.head(region.conv, region.convolution.dtype, accepts)
        return replace(region, before=tuple(before), data=data)

    def _fuse(self, region: ConvRegion, regions: AnchorRegions) -> ConvFusion:
        return fuse_conv(
            region, self._opset, regions.read_outside(region), self._fast_math, immediates=self._on.reads_immediates
        )

    def _is_within_limits(self, region: ConvRegion, regions: AnchorRegions) -> bool:
        """Whether a region has one node's worth of operands and instructions."""
        try:
            fusion = self._fuse(region, regions)
        except ProgramError:
            return False
        return len(fusion.inputs) + len(fusion.outputs) <= MAX_OPERANDS


def _emit(model: Model, plan: _Plan, labels: Mapping[int, str], context: PassContext) -> Iterator[Node]:
    """The nodes that take the place of a plan's regions, named by the ``labels`` of these."""
    for found in plan.fusions:
        key, stem = id(found.region.conv), labels[id(found)]
        if key not in plan.layout.convolutions:
            yield emit(model, found.fusion(tf32=context.tf32), context, stem)
        elif key not in plan.pairs:
            nhwc = nhwc_fusion(model, found, plan.layout, plan.concats.parts(found.region.data))
            yield emit(model, nhwc.fusion, context, stem)
        elif plan.pairs[key].fusions[-1] is found:
            yield emit(model, nhwc_pair(model, plan.pairs[key], plan.layout).fusion, context, stem)


def _emit_alone(
    model: Model, plan: _Plan, nodes: Sequence[gs.Node], labels: Mapping[int, str], context: PassContext
) -> Iterator[Node]:
    """The nodes that take the place of a plan's pools and Concats, ``nodes``, named by their ``labels``."""
    opset = model.opsets[""]
    for node in nodes:
        pool = plan.layout.pools.get(id(node))
        fusion = nhwc_concat(node, plan.concats, opset) if pool is None else nhwc_pool(node, pool, opset)
        yield emit(model, fusion, context, labels[id(node)])
