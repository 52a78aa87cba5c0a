"""The pass that computes reductions, Softmax and normalizations with what is around them in one node."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxfuse.fused.elementwise.apart import Apart
from onnxfuse.fused.fused_node import ProgramFusion
from onnxfuse.fused.fusion import emit_all
from onnxfuse.fused.kinds import REDUCTION
from onnxfuse.fused.reduction.repeated_sums import RepeatedSums
from onnxfuse.fused.sizes import Sizes
from onnxfuse.fused.space.blocks import Blocks
from onnxfuse.fused.space.ends import Ends
from onnxfuse.fused.space.growth import Graph, grow
from onnxfuse.fused.space.layouts import LayoutError
from onnxfuse.fused.space.permuted import is_turned
from onnxfuse.fused.space.region import fuse_in_space
from onnxfuse.fused.space.spaces import Space
from onnxfuse.fused.space.view_nodes import is_free, is_view, left_to_ort, names_rows
from onnxfuse.model import dtypes
from onnxfuse.model.constants import dtype_of
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.ort.host import constant_arithmetic
from onnxfuse.ort.ort_fusions import NORMALIZATION
from onnxfuse.ort.ort_layout import BLOCKED, ConvLayout
from onnxfuse.ort.slow_kernels import FREE_OPS
from onnxfuse.program import Program, ProgramError
from onnxfuse.program.figures import MAX_OPERANDS, TURNED_BYTES
from onnxfuse.program.lowering import is_elementwise
from onnxfuse.program.node_lowering import UnsupportedError
from onnxfuse.program.reducing import check, reading, reduces
from onnxfuse.rewrite.base import PassContext
from onnxfuse.rewrite.editor import GraphEditor
from onnxfuse.shapes.inference import infer

NAME = "fuse-reductions"
ALONE = "no neighbour to fuse with"
KEPT_SOFTMAX = "a Softmax of its type is not measured to be as fast as ONNX Runtime's kernels"
ODD_SOFTMAX = "with one neighbour it is no faster than ONNX Runtime's kernel, but for rows of whole vectors"
FEW_ELEMENTS = "it has so few elements that ONNX Runtime's own kernel is as fast"
WAITS = "a node that reads its results and is fused too makes what it reads"
OTHER_SPACE = "its dimensions are not known to be those of the nodes around it"
_SOFTMAX = ("Softmax", "LogSoftmax")
_OF_ONE_NODE = ("LayerNormalization", "RMSNormalization")
_FEW = 512
"""Elements of a normalization alone, below which a call costs more than the work."""


class FuseReductions:
    """Replaces regions of elementwise nodes, views and reductions along the same axes by single nodes."""

    name = NAME
    description = "compute reductions, Softmax and normalizations with what is around them in one node"

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrite ``model`` in place and record every fusion."""
        if REDUCTION not in context.on.kinds or "" not in model.opsets:
            return
        if not any(reduces(node) for graph in model.graphs() for node in graph.nodes):
            return
        infer(model)
        graphs = list(model.fusible_graphs())

        def plan() -> list[list[ProgramFusion]]:
            planner = _Planner(model, context)
            return [planner.plan(graph) for graph in graphs]

        planned, sums = plan(), RepeatedSums(model, context)
        if context.on.repeats_sums and sums.repeat(planned):
            planned = plan()
            if sums.take_back(planned):
                planned = plan()
        for graph, fusions in zip(graphs, planned, strict=True):
            emit_all(model, graph, [replace(fusion, new=sums.new) for fusion in fusions], context)


class _Planner:
    """Plans the graphs of one model, without changing it."""

    def __init__(self, model: Model, context: PassContext) -> None:
        self._context = context
        self._opsets = model.opsets
        self._opset = model.opsets[""]
        self._editor = GraphEditor(model)
        self._sizes = Sizes(model)
        self._apart = Apart(model, context)

    def plan(self, graph: gs.Graph) -> list[ProgramFusion]:
        """The fusions of one graph."""
        nodes = sorted_nodes(graph)
        own = Graph(nodes)
        self._ends = Ends(own, self._editor)
        layout = self._apart.layout(nodes)
        elementwise = [node for node in nodes if is_elementwise(node)]
        reasons = self._apart.reasons(nodes, elementwise, layout)
        free = self._free(nodes, reasons)
        normalizations = {id(node) for node in nodes if reasons.get(id(node)) == NORMALIZATION}
        normalizations.update(id(node) for node in nodes if standard_op(node) in _OF_ONE_NODE)
        fusions: list[ProgramFusion] = []
        blocks = Blocks(nodes, most_passed=len(nodes))
        judged: set[int] = set()
        for seed in nodes:
            if not reduces(seed) or id(seed) not in free or id(seed) in judged:
                continue
            fusion = self._fusion(grow(own, seed, free, self._fits))
            reason = OTHER_SPACE if fusion is None else self._why_not(fusion, layout, normalizations)
            if fusion is not None and reason is None and not blocks.join_nodes(fusion.nodes):
                reason = WAITS
            if fusion is None or reason is not None:
                self._context.refused(NAME, seed, reason or OTHER_SPACE)
                # Its other reductions would find the same region.
                judged.update(id(node) for node in ([seed] if fusion is None else fusion.nodes))
                continue
            free -= {id(node) for node in fusion.nodes}
            fusions.append(fusion)
        return fusions

    def _free(self, nodes: Sequence[gs.Node], reasons: Mapping[int, str]) -> set[int]:
        """The ids of the nodes that may be part of a region; ``reasons`` says why others are not."""
        free: set[int] = set()
        once = constant_arithmetic(nodes)
        for node in nodes:
            if names_rows(node):
                if (self._context.on.gathers_rows or self._context.everything) and id(node) not in once:
                    free.add(id(node))
            elif is_view(node):
                readers = [reader for tensor in node.outputs for reader in tensor.outputs]
                reason = left_to_ort(node, readers, self._context)
                if reason is None or self._context.everything:
                    free.add(id(node))
            elif reasons.get(id(node)) not in (None, NORMALIZATION):
                continue
            elif is_elementwise(node):
                free.add(id(node))
            elif reduces(node):
                if (reason := self._why_apart(node)) is None:
                    free.add(id(node))
                else:
                    self._context.refused(NAME, node, reason)
        return free

    def _why_apart(self, node: gs.Node) -> str | None:
        """Why a node that reduces stays out of every region; None if it need not."""
        reason = check(node, self._opset)
        if reason is not None or self._context.everything or standard_op(node) not in _SOFTMAX:
            return reason
        dtype = dtypes.from_numpy(dtype_of(node.inputs[0]))
        return None if dtype is not None and dtype.name in self._context.on.softmax_rows else KEPT_SOFTMAX

    def _is_faster_alone(self, node: gs.Node) -> bool:
        """Whether a node is a Softmax that ONNX Runtime computes as fast as it would be with a single neighbour."""
        if standard_op(node) not in _SOFTMAX:
            return False
        dtype = dtypes.from_numpy(dtype_of(node.inputs[0]))
        of = 1 if dtype is None else self._context.on.softmax_rows[dtype.name]
        return of > 1 and not _has_rows_of(node, self._opset, of)

    def _fits(self, region: Sequence[gs.Node]) -> bool:
        try:
            space = Space(region, self._opset, self._sizes)
            if self._ends.operands(region, space) > MAX_OPERANDS:
                return False
            space.check_rows()
            return not any(is_view(node) and not is_free(node) for node in region) or self._is_read_well(region, space)
        except (LayoutError, UnsupportedError):
            return False

    def _is_read_well(self, region: Sequence[gs.Node], space: Space) -> bool:
        """Whether the views of a region are worth it.  Raises LayoutError for results in different orders."""
        inside = {id(node) for node in region}
        order = space.ordered(self._ends.outputs(region))
        for node in region:
            moves = is_view(node) and not is_free(node) and space.is_from_outside(node.inputs[0])
            if moves and any(t.name and self._ends.is_read(t, inside) for t in node.outputs):
                return False  # in memory anyway
        if self._context.everything:
            return True
        if self._context.on.gathers_rows:
            turned = [tensor for tensor in space.inputs if is_turned(space.layout(tensor), order)]
            return all(map(_is_read_from_caches, turned))
        return all(space.is_block(tensor, order) for tensor in space.inputs)

    def _fusion(self, region: Sequence[gs.Node]) -> ProgramFusion | None:
        """The fusion of a region, without nodes at its ends that it is better without; None if there is none."""
        region = list(region)
        while region:
            try:
                space = Space(region, self._opset, self._sizes)
                outside = self._ends.better_outside(space, region)
                if outside is None:
                    outputs = self._ends.outputs(region)
                    return fuse_in_space(REDUCTION, region, space, outputs, self._opsets, self._context.fast_math)
            except (LayoutError, UnsupportedError, ProgramError):
                return None
            region = [node for node in region if node is not outside]
            seed = next((node for node in region if reduces(node)), None)
            region = [] if seed is None else self._ends.connected(region, seed)
        return None  # what reduces is not in it any more

    def _why_not(self, fusion: ProgramFusion, layout: ConvLayout | None, normalizations: set[int]) -> str | None:
        """Why a region is not worth fusing; None if it is.  ``normalizations`` are the ids of nodes that are one, or
        parts of one.
        """
        if self._context.everything:
            return None
        counted = [node for node in fusion.nodes if node.op not in FREE_OPS and not is_free(node)]
        if all(id(node) in normalizations for node in counted) and self._is_normalized_alone(fusion.program):
            return FEW_ELEMENTS if _has_few_elements(counted) else None
        if len(counted) < 2:
            return ALONE
        if layout and layout.leaves_to_ort(counted):
            return BLOCKED
        if len(counted) == 2 and any(map(self._is_faster_alone, counted)):
            return ODD_SOFTMAX
        return None

    def _is_normalized_alone(self, program: Program) -> bool:
        """Whether a normalization is worth a node of its own: of what lies side by side."""
        types = {one.dtype for one in program.reductions}
        return program.axes[0] == -len(program.axes) and types <= self._context.on.normalized_alone


def _is_read_from_caches(tensor: gs.Tensor) -> bool:
    """Whether a tensor is known to have so few bytes that the order in which it is read hardly matters."""
    shape, dtype = tensor.shape, dtype_of(tensor)
    if shape is None or dtype is None or not all(isinstance(size, int) for size in shape):
        return False
    return math.prod(shape) * dtype.itemsize <= TURNED_BYTES


def _has_rows_of(node: gs.Node, opset: int, count: int) -> bool:
    """Whether what a Softmax reduces is known to be a multiple of ``count`` elements, or not to lie side by side."""
    shape = node.inputs[0].shape
    axes = reading(node, opset).axes
    if axes[-1] != len(shape) - 1:
        return True
    sizes = [shape[axis] for axis in axes]
    return all(isinstance(size, int) for size in sizes) and math.prod(sizes) % count == 0


def _has_few_elements(region: Sequence[gs.Node]) -> bool:
    """Whether what a region reduces is known to have few elements."""
    shape = next(node for node in region if reduces(node)).inputs[0].shape
    return all(isinstance(size, int) for size in shape) and math.prod(shape) < _FEW
