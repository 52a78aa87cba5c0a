"""The pass that replaces regions of elementwise nodes by fused nodes, and the plan behind it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import onnx_graphsurgeon as gs

from onnxfuse.fused.elementwise.apart import Apart
from onnxfuse.fused.elementwise.into_concat import IntoConcat, copying
from onnxfuse.fused.elementwise.joined_programs import Joinable, JoinError
from onnxfuse.fused.elementwise.through_views import NAME, ThroughViews
from onnxfuse.fused.fused_node import ProgramFusion, fuse
from onnxfuse.fused.fusion import emit_all
from onnxfuse.fused.kinds import ELEMENTWISE
from onnxfuse.fused.likely_shapes import LikelyShapes
from onnxfuse.fused.one_space import SpacesError, by_space
from onnxfuse.fused.regions import find_regions, halve
from onnxfuse.fused.sizes import Sizes
from onnxfuse.fused.space.layouts import LayoutError
from onnxfuse.fused.space.region import fuse_in_space
from onnxfuse.fused.space.spaces import Space
from onnxfuse.fused.space.view_nodes import is_view, left_to_ort
from onnxfuse.fused.views import find_views
from onnxfuse.fused.worth import TOO_LITTLE, is_worthwhile, loads_library
from onnxfuse.model.elementwise_operators import HAVE_AXIS
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.graph_ir import permutation_of, standard_op
from onnxfuse.model.returned import Returned
from onnxfuse.ort.host import constant_arithmetic, shape_arithmetic
from onnxfuse.ort.ort_fusions import ONE_KERNEL
from onnxfuse.ort.ort_layout import BLOCKED, ConvLayout
from onnxfuse.ort.ort_quantization import UNTYPED, loses_type
from onnxfuse.ort.slow_kernels import FREE_OPS, is_slow
from onnxfuse.program import ProgramError
from onnxfuse.program.lowering import is_elementwise, vector_axes
from onnxfuse.program.node_lowering import UnsupportedError
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.shapes.inference import infer

if TYPE_CHECKING:
    from onnxfuse.cuda.elementwise.fitting import Fitter
    from onnxfuse.fused.elementwise.cuda_regions import CudaRegions

UNUSED = "nothing reads its result"
UNKNOWN_IN_BODY = "its rank, which ONNX Runtime needs in the body of Scan, is not known"
INLINED = "ONNX Runtime inlines the operator around it, and would lose the types of fused nodes"
ALONE = "no neighbour to fuse with"


@dataclass
class Plan:
    """What to do with one graph: the fusions, and for each elementwise node left alone the reason."""

    graph: gs.Graph
    fusions: list[ProgramFusion] = field(default_factory=list)
    left_alone: list[tuple[gs.Node, str]] = field(default_factory=list)


class FuseElementwise:
    """Replaces convex regions of elementwise nodes by fused nodes."""

    name = NAME
    description = "compute each region of elementwise nodes in one fused node"

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrite ``model`` in place and record every fusion and every node left alone."""
        if ELEMENTWISE not in context.on.kinds:
            return
        if any(tensor.dtype is None for graph in model.graphs() for node in graph.nodes for tensor in node.outputs):
            infer(model)  # earlier passes have added tensors
        if context.fitter is not None:
            # Planned without a compiler first, for what that plans can be compiled at once, on all processors.
            planned = _Planner(model, context, None).plans()
            fusions = [fusion for plan in planned for fusion in plan.fusions]
            context.fitter.prepare([(own.program, [tensor.shape for tensor in own.inputs]) for own in fusions])
        planner = _Planner(model, context, context.fitter)
        plans = list(planner.plans())
        if context.on.library_costs and not context.everything and not loads_library(model):
            _drop_if_too_little(plans, planner.gains_alone)
        for plan in plans:
            emit_all(model, plan.graph, plan.fusions, context)
            for node, reason in plan.left_alone:
                context.report.add_left_alone(label(node), node.op, reason)


def _drop_if_too_little(plans: list[Plan], gains_alone: Callable[[gs.Node], bool]) -> None:
    """Leave everything alone if what there is to fuse does not pay for loading the library."""
    if is_worthwhile(
        [fusion for plan in plans for fusion in plan.fusions],
        sum(len(plan.graph.nodes) for plan in plans),
        gains_alone,
    ):
        return
    for plan in plans:
        nodes = [node for fusion in plan.fusions for node in fusion.nodes if is_elementwise(node)]
        plan.left_alone += [(node, TOO_LITTLE) for node in nodes]
        plan.fusions.clear()


def _cuda_regions(fitter: "Fitter | None") -> "CudaRegions":
    """Imported for this target alone, for it reads what renders kernels."""
    from onnxfuse.fused.elementwise.cuda_regions import CudaRegions

    return CudaRegions(fitter)


class _Planner:
    """Plans the graphs of one model, without changing it."""

    def __init__(self, model: Model, context: PassContext, fitter: "Fitter | None") -> None:
        self._model = model
        self._context = context
        self._on = context.on
        self._everything = context.everything
        self._fast_math = context.fast_math
        self._opset = model.opsets.get("")
        self._apart = Apart(model, context) if self._opset is not None else None
        self._ort = self._apart.ort if self._apart else None
        self._placement = self._apart.placement if self._apart else None
        self._cuda = _cuda_regions(fitter) if self._on.one_space else None
        self._is_output = Returned(model.graphs())

    @cached_property
    def _sizes(self) -> Sizes:
        """For views, which many models do not have."""
        return Sizes(self._model)

    def plans(self) -> Iterator[Plan]:
        """A plan for every graph, the bodies of If, Loop and Scan among them."""
        fusible = set(map(id, self._model.fusible_graphs()))
        for graph in list(self._model.graphs()):
            if id(graph) in fusible:
                yield self._plan(graph)
            else:
                yield Plan(graph, left_alone=[(node, INLINED) for node in graph.nodes if is_elementwise(node)])

    def gains_alone(self, node: gs.Node) -> bool:
        """Whether a fused node beats what ORT makes of ``node``, which is slow, on the CPU instead of the GPU, or not
        what it was."""
        if self._placement is not None:
            return id(node) in self._placement.moved or (self._ort is not None and id(node) in self._ort.weights)
        return is_slow(node) or (self._ort is not None and id(node) in self._ort.slowed)

    def _plan(self, graph: gs.Graph) -> Plan:
        plan = Plan(graph)
        nodes = sorted_nodes(graph)
        elementwise = [node for node in nodes if is_elementwise(node)]
        joins = self._on.writes_parts and self._everything and any(standard_op(node) == "Concat" for node in nodes)
        shares = self._on.shares_launches and any(map(_keeps_rows, nodes))
        if not (elementwise or joins or shares) or self._opset is None or self._apart is None:
            return plan
        layout = self._apart.layout(nodes)
        reasons = self._apart.reasons(nodes, elementwise, layout)
        for node in elementwise:
            if not self._is_read_outside(node.outputs[0], set()):
                reasons[id(node)] = UNUSED
            elif graph is not self._model.graph and node.outputs[0].shape is None:
                reasons[id(node)] = UNKNOWN_IN_BODY
        fusible = {id(node) for node in elementwise if id(node) not in reasons}
        vectors = _vector_tensors(elementwise, fusible, self._opset)

        def is_joined(producer: gs.Node, consumer: gs.Node, tensor: gs.Tensor) -> bool:
            return (id(consumer), id(tensor)) not in vectors

        within = {id(node) for node in nodes}
        regions = find_regions(nodes, lambda node: id(node) in fusible, is_joined)
        plan.fusions += self._through_views(graph, nodes, regions, layout)
        taken = {id(node) for fusion in plan.fusions for node in fusion.nodes}
        for region in regions:
            if id(region[0]) in taken:
                continue
            fusions, left = self._fuse_if_worth(region, layout, within)
            plan.fusions += fusions
            reasons.update(left)
        if self._on.writes_parts:
            self._into_concats(plan, nodes, regions, layout)
        if self._on.shares_launches and not self._everything:
            self._share_launches(plan, nodes, regions, layout)
        taken = {id(node) for fusion in plan.fusions for node in fusion.nodes}
        reasons = {own: reason for own, reason in reasons.items() if own not in taken}
        plan.left_alone = [(node, reasons[id(node)]) for node in elementwise if id(node) in reasons]
        return plan

    def _into_concats(
        self, plan: Plan, nodes: list[gs.Node], regions: list[list[gs.Node]], layout: ConvLayout | None
    ) -> None:
        """Let the fusions of a plan, and nodes that are fused with nothing else, take the Concats behind them."""
        assert self._opset is not None
        if not any(standard_op(node) == "Concat" for node in nodes):
            return
        lone = self._lone(plan, nodes, regions, layout)
        joining = IntoConcat(self._joinable(plan, nodes, lone), self._context)
        within = {id(node) for node in nodes}
        plan.fusions = joining.join(shape_arithmetic(nodes, within) | constant_arithmetic(nodes))

    def _share_launches(
        self, plan: Plan, nodes: list[gs.Node], regions: list[list[gs.Node]], layout: ConvLayout | None
    ) -> None:
        """Let small fusions of a plan, and nodes that are fused with nothing else, become parts of one."""
        from onnxfuse.fused.elementwise.horizontal import Horizontal

        lone = self._lone(plan, nodes, regions, layout)
        lone += self._copies([*plan.fusions, *lone], nodes)
        plan.fusions = Horizontal(self._joinable(plan, nodes, lone)).join()

    def _joinable(self, plan: Plan, nodes: list[gs.Node], lone: list[ProgramFusion]) -> Joinable:
        """The fusions of a plan, and those of single nodes, to be joined."""
        assert self._opset is not None
        check = self._cuda.check_parts if self._cuda else _accept
        likely = LikelyShapes(plan.graph)
        return Joinable(nodes, plan.fusions, lone, self._opset, self._fast_math, likely, self._is_read_outside, check)

    def _lone(
        self, plan: Plan, nodes: list[gs.Node], regions: list[list[gs.Node]], layout: ConvLayout | None
    ) -> list[ProgramFusion]:
        """The fusions of nodes that are fused with nothing else."""
        within = {id(node) for node in nodes}
        lone = []
        for region in regions:
            counts = any(node.op not in FREE_OPS for node in region)
            if counts and self._why_not(region, layout) == ALONE:
                lone += self._fuse(region, layout, within)[0]
        taken = {id(node) for fusion in plan.fusions for node in fusion.nodes}
        return [fusion for fusion in lone if not any(id(node) in taken for node in fusion.nodes)]

    def _copies(self, fusions: Iterable[ProgramFusion], nodes: list[gs.Node]) -> Iterator[ProgramFusion]:
        """The fusions of Transposes that nothing is fused with and that leave rows in one piece, as of heads, and of
        Concats where a kernel copies what they join as fast as ONNX Runtime's, as a cache and what is appended to it.

        ``fusions`` have their nodes already.
        """
        assert self._opset is not None
        taken = {id(node) for fusion in fusions for node in fusion.nodes}
        within = {id(node) for node in nodes}
        apart = taken | shape_arithmetic(nodes, within) | constant_arithmetic(nodes)
        for node in nodes:
            if id(node) in apart:
                continue
            if (
                standard_op(node) == "Concat"
                and self._on.copies_parts
                and self._is_read_outside(node.outputs[0], set())
            ):
                with suppress(JoinError, ProgramError):
                    if (copy := copying(node, self._opset, self._fast_math)) is not None:
                        yield copy
            if not _keeps_rows(node):
                continue
            if left_to_ort(node, node.outputs[0].outputs, self._context) is not None:
                continue
            with suppress(LayoutError, ProgramError, UnsupportedError):
                space = Space([node], self._opset, self._sizes)
                yield fuse_in_space(ELEMENTWISE, [node], space, node.outputs, self._model.opsets, self._fast_math)

    def _through_views(
        self, graph: gs.Graph, nodes: list[gs.Node], regions: list[list[gs.Node]], layout: ConvLayout | None
    ) -> list[ProgramFusion]:
        """The fusions of regions that take views around them."""
        assert self._opset is not None
        if not any(map(is_view, nodes)):
            return []
        within = {id(node) for node in nodes}
        open_ones: list[list[gs.Node]] = []
        others: list[list[gs.Node]] = []
        for region in regions:
            before, views = find_views(region, self._opset, within, self._is_read_outside)
            if self._why_not(region, layout) in (None, ALONE):
                swaps = any(view.swaps_halves for view in views)
                (others if swaps else open_ones).append([*before, *region])
        growing = ThroughViews(
            nodes,
            self._opset,
            self._sizes,
            LikelyShapes(graph),
            self._context,
            self._is_read_outside,
        )
        fusions = []
        excluded = shape_arithmetic(nodes, within) | constant_arithmetic(nodes)
        for region, space in growing.grow(open_ones, others, excluded):
            inside = {id(node) for node in region}
            made = [tensor for node in region for tensor in node.outputs if tensor.name]
            outputs = [tensor for tensor in made if self._is_read_outside(tensor, inside)]
            try:
                fusion = fuse_in_space(ELEMENTWISE, region, space, outputs, self._model.opsets, self._fast_math)
                if self._cuda:
                    self._cuda.check(fusion, has_space=True)
            except (LayoutError, ProgramError, UnsupportedError):
                continue
            if not loses_type(fusion.inputs, fusion.outputs) and (not self._cuda or self._cuda.is_good(fusion)):
                fusions.append(fusion)
        return fusions

    def _why_not(self, region: list[gs.Node], layout: ConvLayout | None) -> str | None:
        """Why a region is not worth fusing; None if it is."""
        if layout and layout.leaves_to_ort(region):
            return BLOCKED
        if self._ort and self._ort.keeps(region):
            return ONE_KERNEL
        counted = [node for node in region if node.op not in FREE_OPS]
        if len(counted) < 2 and not self._everything and not any(map(self.gains_alone, counted)):
            return ALONE
        return None

    def _fuse_if_worth(
        self, region: list[gs.Node], layout: ConvLayout | None, within: set[int]
    ) -> tuple[list[ProgramFusion], dict[int, str]]:
        """The fusions of a region, and by id why other nodes of it are left alone; ``within`` are all nodes' ids."""
        reason = self._why_not(region, layout)
        if reason is not None:
            return [], {id(node): reason for node in region}
        return self._fuse(region, layout, within)

    def _fuse(
        self, region: list[gs.Node], layout: ConvLayout | None, within: set[int]
    ) -> tuple[list[ProgramFusion], dict[int, str]]:
        """The same, in parts if the region exceeds a limit, or if its halves make better kernels."""
        assert self._opset is not None
        inside = {id(node) for node in region}
        viewed = find_views(region, self._opset, within, self._is_read_outside)
        try:
            whole = fuse(
                region,
                self._model.opsets,
                lambda tensor: self._is_read_outside(tensor, inside),
                self._fast_math,
                *viewed,
            )
            if loses_type(whole.inputs, whole.outputs):
                return [], {id(node): UNTYPED for node in region}
            if self._cuda:
                self._cuda.check(whole)
        except ProgramError as error:
            if len(region) == 1:
                return [], {id(region[0]): str(error)}
            parts = by_space(region) if isinstance(error, SpacesError) else halve(region)
            return self._fuse_parts(parts if len(parts) > 1 else halve(region), layout, within)
        if self._cuda and len(region) > 1 and not self._cuda.is_good(whole):
            fusions, left = self._fuse_parts(halve(region), layout, within)
            if self._cuda.is_better(fusions, whole):
                return fusions, left
        return [whole], {}

    def _fuse_parts(
        self, parts: list[list[gs.Node]], layout: ConvLayout | None, within: set[int]
    ) -> tuple[list[ProgramFusion], dict[int, str]]:
        fusions: list[ProgramFusion] = []
        reasons: dict[int, str] = {}
        for part in parts:
            found, left = self._fuse_if_worth(part, layout, within)
            fusions += found
            reasons |= left
        return fusions, reasons

    def _is_read_outside(self, tensor: gs.Tensor, inside: set[int]) -> bool:
        """Whether anything but the nodes of a region (their ids) reads ``tensor``: other nodes, or a graph's output."""
        if self._is_output(tensor):
            return True
        return any(id(node) not in inside for node in tensor.outputs)


def _accept(_fusion: ProgramFusion) -> None:
    """The check of joined fusions where any has a good kernel."""


def _keeps_rows(node: gs.Node) -> bool:
    """Whether a node is a Transpose that leaves the last axis where it is."""
    order = permutation_of(node)
    return order is not None and node.inputs[0].shape is not None and order[-1:] == [len(order) - 1]


def _vector_tensors(elementwise: list[gs.Node], fusible: set[int], opset: int) -> set[tuple[int, int]]:
    """Pairs of a node and a tensor that it reads as a vector, which must then come from outside its region."""
    found: set[tuple[int, int]] = set()
    for node in elementwise:
        if id(node) in fusible and node.op in HAVE_AXIS:
            found.update((id(node), id(node.inputs[index])) for index in vector_axes(node, opset))
    return found
