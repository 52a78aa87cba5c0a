"""Which convolutions the library computes itself on the CPU, and why.

ONNX Runtime computes convolutions in blocks of channels, and reorders tensors where a node beside them knows the plain
layout alone.  The library's convolutions read and write the plain layout, or have the channels last between each other,
and take in any elementwise tail.  None is better as such: what one saves depends on what stands around it.  So all
convolutions of a graph are chosen at once: the times of all nodes in each layout, and of the changes between them, are
estimated, and the cheapest assignment is a minimum cut.  Which of the library's have the channels last is decided anew
(nhwc_layout.py) once it is known what becomes part of each.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse import cpu
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.fused.choices import ASKED_FOR, SWITCHED_OFF, ConvChoice, ConvPolicy
from onnxfuse.fused.conv.conv_figures import NODE_CALL, Layout
from onnxfuse.fused.conv.conv_node import ConvFusion, ConvRegion
from onnxfuse.fused.conv.conv_times import ConvTimes, activation_inside, is_short
from onnxfuse.fused.conv.convolutions import describe, is_convolution
from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.fused.likely_shapes import LikelyShapes
from onnxfuse.fused.minimum_cut import MinimumCut
from onnxfuse.fused.nhwc.nhwc_layout import joins_channels, permutes, takes_parts, tells_sizes
from onnxfuse.fused.nhwc.pools import find_pool
from onnxfuse.fused.sizes import is_gate
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.model.returned import Returned
from onnxfuse.ort.ort_fusions import find_gelus
from onnxfuse.ort.ort_layout import PLAIN_ACTIVATIONS, ConvLayout
from onnxfuse.ort.slow_kernels import FREE_OPS
from onnxfuse.program.lowering import is_elementwise
from onnxfuse.program.node_lowering import UnsupportedError
from onnxfuse.rewrite.base import PassContext

FASTER = ConvChoice(True, "the plain layout is cheaper here, for the nodes around it know no other")
CHANNELS_LAST = ConvChoice(True, "the channels last are cheaper here, for the nodes around it have them so too")
MEASURED = ConvChoice(True, "the model was measured to be faster so")
ONLY_FLOAT = ConvChoice(False, "the CPU has kernels of float32 alone")
THREE_DIMENSIONS = ConvChoice(False, "convolutions in three dimensions were not measured against ONNX Runtime's")
MEASURED_SLOWER = ConvChoice(False, "the model was measured to be faster without")
OPEN_WEIGHTS = ConvChoice(False, "its weights are no constant of the model")
BLOCKED_LAYOUT = ConvChoice(False, "ONNX Runtime's blocked layout is cheaper here")
OPTIMIZED = ConvChoice(False, "the model has convolutions that ONNX Runtime has fused, whose blocked layout it shares")
WEIGHED_BEFORE = ConvChoice(False, "the model has fused nodes, with which its convolutions were weighed before")
SMALL_IMAGE = ConvChoice(False, "its image is so small that ONNX Runtime's is as fast")
ALONE = ConvChoice(False, "nothing beside it would be fused but what ONNX Runtime computes with it, as fast")
NO_OTHER = ConvChoice(True, "ONNX Runtime's is as fast, and its code would be needed for this alone")


_FEW_POSITIONS = 16
_POSITIONS_PER_CHANNEL = 8  # of the input of a ConvTranspose
_MOST_TAPS, _LEAST_FILTERS, _LEAST_CHANNELS = 3, 32, 16  # where ONNX Runtime's copy for a product of matrices is cheap


def cpu_chooser(context: PassContext) -> "CpuChooser":
    """The context's chooser, for the target cpu; it is made where there is none."""
    if context.convolutions is None:
        context.convolutions = CpuChooser(ConvPolicy.ALL if context.everything else ConvPolicy.AUTO)
    if not isinstance(context.convolutions, CpuChooser):
        raise TypeError(f"convolutions for the target cpu are chosen by a CpuChooser, not a {context.convolutions!r}")
    return context.convolutions


def _is_fused_by_ort(node: gs.Node) -> bool:
    """Whether ONNX Runtime's optimizer has written a node in place of a convolution and an activation."""
    return bool(node.domain == "com.microsoft" and node.op == "FusedConv")


class CpuChooser:
    """Chooses the convolutions of a model once; the choice holds for these nodes, whatever becomes of others."""

    def __init__(
        self,
        policy: ConvPolicy = ConvPolicy.AUTO,
        *,
        measured: bool = False,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """A policy that the user asked for, or that was ``measured`` to be the best for the model.

        ``shapes`` are those of inputs that the model will most likely get.
        """
        self._policy = policy
        self._given = shapes or {}
        self._measured = measured
        self._own: dict[int, gs.Node] | None = None
        self._small: dict[int, gs.Node] = {}
        self._no_other: dict[int, gs.Node] = {}
        self._left: dict[int, tuple[gs.Node, ConvChoice]] = {}  # where not all of a graph is seen

    @property
    def policy(self) -> ConvPolicy:
        """What was asked for."""
        return self._policy

    def begin(self, model: Model) -> None:
        """Choose, if that has not been done: the shapes of the model's tensors have been inferred."""
        if self._own is not None:
            return
        self._own = {}
        if self._policy is not ConvPolicy.NONE:
            gelus, is_output = find_gelus(model), Returned(model.graphs())
            # Of what became fused nodes there is neither a time nor a likely shape: it would be another choice.
            is_weighed = any(function.domain == DOMAIN for function in model.source.functions)
            for graph in model.fusible_graphs():
                known = {id(node): node for node in graph.nodes if _is_known(node)}
                if self._policy is ConvPolicy.AUTO:
                    known = {key: node for key, node in known.items() if len(node.inputs[1].shape) < 5}
                by_ort = any(map(_is_fused_by_ort, graph.nodes))
                if self._policy is ConvPolicy.AUTO and (by_ort or is_weighed):
                    why = OPTIMIZED if by_ort else WEIGHED_BEFORE
                    self._left |= {key: (node, why) for key, node in known.items()}
                    known = {}
                if known and self._policy is ConvPolicy.AUTO:
                    given = self._given if graph is model.graph else {}
                    own, small = _GraphChoice(graph, set(known), given, gelus, is_output, model.opsets.get("", 0)).own()
                    self._small |= {key: node for key, node in known.items() if key in small}
                    known = {key: node for key, node in known.items() if key in own}
                self._own |= known
            self._take_the_last(model)

    def _take_the_last(self, model: Model) -> None:
        """Take small matrix products too, if they are all that ONNX Runtime would have: a process then maps none of the
        code that it has for convolutions, which shows beside a small model."""
        assert self._own is not None
        rest = {id(node): node for graph in model.graphs() for node in graph.nodes if is_convolution(node)}
        rest = {key: node for key, node in rest.items() if key not in self._own}
        if self._own and all(key in self._small and node.op == "Conv" for key, node in rest.items()):
            self._small, self._no_other = {}, rest
            self._own |= rest

    def might(self, node: gs.Node, convolution: Convolution) -> ConvChoice:
        """The choice for a convolution, whatever becomes part of it."""
        return self._of(node, convolution, alone=False)

    def prepare(self, fusions: Sequence[ConvFusion]) -> None:
        """Nothing: there is nothing to compile."""

    def choose(self, fusion: ConvFusion) -> ConvChoice:
        """The choice for a convolution with its neighbours."""
        region = fusion.region
        return self._of(region.conv, region.convolution, alone=_is_alone(region))

    def _of(self, node: gs.Node, conv: Convolution, *, alone: bool) -> ConvChoice:
        assert self._own is not None
        if self._policy is ConvPolicy.NONE:
            return MEASURED_SLOWER if self._measured else SWITCHED_OFF
        if id(node) in self._own:
            if self._policy is ConvPolicy.AUTO:
                if id(node) in self._no_other:
                    return NO_OTHER
                return ALONE if alone and _is_as_fast_alone(conv) else FASTER
            return MEASURED if self._measured else ASKED_FOR
        if conv.dtype != "f32":
            return ONLY_FLOAT
        if not isinstance(node.inputs[1], gs.Constant):
            return OPEN_WEIGHTS
        if id(node) in self._left:
            return self._left[id(node)][1]
        if id(node) in self._small:
            return SMALL_IMAGE
        return BLOCKED_LAYOUT if conv.rank < 3 else THREE_DIMENSIONS

    def likely_shapes(self, graph: gs.Graph, *, main: bool) -> LikelyShapes:
        """The shapes that the tensors of a graph are likely to have, of the ``main`` graph or of another one."""
        return LikelyShapes(graph, self._given if main else {})

    def is_own(self, node: gs.Node) -> bool:
        """Whether the library computes a convolution."""
        return self._own is not None and id(node) in self._own


def _is_known(node: gs.Node) -> bool:
    """Whether the library computes a convolution on the CPU."""
    if not is_convolution(node):
        return False
    try:
        conv = describe(node)
    except UnsupportedError:
        return False
    return conv.dtype == "f32" and isinstance(node.inputs[1], gs.Constant)


def _is_as_fast_alone(conv: Convolution) -> bool:
    """Whether ONNX Runtime computes a convolution as fast as the library if nothing is fused with it.

    Over one dimension both multiply matrices in the plain layout, ONNX Runtime after a copy of the input for each tap.
    Measured with AVX2 (ONNX Runtime 1.32, one thread), it takes 0.7 to 1.0 of the library's time with up to 3 taps, and
    0.8 to 1.3 with 5 to 31.  With AVX-512 on a Xeon it takes 0.84 to 0.9 with one tap, and 1.0 to 1.26 with more; on
    AMD's processors with AVX-512 that was not measured, and the library computes them.
    """
    if cpu.has_avx512() and not cpu.is_intel():
        return False
    product = conv.rank == 1 and not conv.transposed and conv.group == 1
    large = conv.out_channels >= _LEAST_FILTERS and conv.in_channels >= _LEAST_CHANNELS
    return product and large and conv.kernel[0] <= (1 if cpu.has_avx512() else _MOST_TAPS)


def _is_alone(region: ConvRegion) -> bool:
    """Whether nothing is before and after a convolution but what ONNX Runtime computes in one node with it, or, as it
    does x Sigmoid(x), in one more."""
    tail = [node for node in region.after if node.op not in FREE_OPS]
    if region.before or not tail:
        return not region.before
    if [node.op for node in tail] == ["Sigmoid", "Mul"]:
        return _is_silu(tail[0]) and len(tail[0].inputs[0].outputs) == 2
    return len(tail) == 1 and tail[0].op in PLAIN_ACTIVATIONS and len(tail[0].inputs[0].outputs) == 1


def _is_silu(node: gs.Node) -> bool:
    """Whether a node is the Sigmoid of x Sigmoid(x)."""
    readers = node.outputs[0].outputs if node.op == "Sigmoid" else []
    return len(readers) == 1 and readers[0].op == "Mul" and any(one is node.inputs[0] for one in readers[0].inputs)


class _GraphChoice:
    """The choice for one graph: the side True of the cut is the plain layout."""

    def __init__(
        self,
        graph: gs.Graph,
        known: set[int],
        given: Mapping[str, tuple[int, ...]],
        gelus: Mapping[int, bool],
        is_output: Callable[[gs.Tensor], bool],
        opset: int,
    ) -> None:
        self._nodes = sorted_nodes(graph)
        self._is_output = is_output
        self._known = known
        self._gelus = gelus
        self._opset = opset
        self._tails: dict[int, float] = {}
        self._layout = ConvLayout(self._nodes, is_output, gelus=gelus)
        self._shapes = LikelyShapes(graph, given)
        self._conv = ConvTimes(self._shapes)
        self._ns = self._conv.ns

    def own(self) -> tuple[set[int], set[int]]:
        """The ids of the convolutions to compute in the plain layout, those of the library and those of ONNX Runtime.

        None that could be blocked is among them for a small gain.  The library's may have the channels last.
        """
        unit = self._units()
        side, best = self._cut(unit)
        blocked, least = self._cut(unit, all_blocked=True)
        if best >= (1 - self._ns.least_gain) * least:
            side = blocked
        plain = [node for node in self._nodes if id(node) in self._known and unit[id(node)] in side]
        small = {id(node) for node in plain if self._is_small(node)}
        return {id(node) for node in plain} - small, small

    def _is_small(self, node: gs.Node) -> bool:
        """Whether ONNX Runtime has a convolution in the plain layout too, and is as fast because of few positions.

        A matrix product of few columns is its weights' way through the caches, whoever computes it.  Of a transposed
        one the library orders the weights anew in each run, while ONNX Runtime adds up overlapping results, of which
        there are fewer the more channels are read.
        """
        if node.op == "ConvTranspose":
            read = self._shapes.of(node.inputs[0])
            return read is not None and math.prod(read[2:]) < read[1] * _POSITIONS_PER_CHANNEL
        weights, written = node.inputs[1].shape, self._shapes.of(node.outputs[0])
        product = weights is not None and all(size == 1 for size in weights[2:])
        few = written is not None and math.prod(written[2:]) < _FEW_POSITIONS
        return product and few and id(node) not in self._layout.blocked_nodes

    def _cut(self, unit: dict[int, int], *, all_blocked: bool = False) -> tuple[set[int], float]:
        """The units that are not blocked at the least time, and that time; with ``all_blocked`` no convolution that can
        be blocked is another.

        Each unit has one of three layouts in a row, which two sides tell apart: whether it is blocked, and if not,
        whether its channels are last (Ishikawa, IEEE PAMI 25 (2003)).
        """
        cut = MinimumCut()
        for item in dict.fromkeys(unit.values()):
            cut.separate(("last", item), item, math.inf)
        for node in self._nodes:
            item = unit[id(node)]
            plain, blocked, last = self._times(node)
            forced = all_blocked and is_convolution(node) and math.isfinite(blocked)
            cut.add(item, math.inf if forced else 0.0, blocked)
            cut.separate(item, ("last", item), plain)
            cut.add(("last", item), last, 0.0)
            handed = self._conv.handed_on(node) if is_convolution(node) and math.isfinite(last) else None
            if handed is not None and id(handed[0]) in unit:
                both = (("last", item), ("last", unit[id(handed[0])]))
                cut.reward((*both, ("tensor", id(node.inputs[0]))), handed[1])
        for node in self._nodes:
            self._add_reorders(cut, node, unit)
        self._add_changes(cut, unit)
        side = cut.solve()
        return {item for item in unit.values() if item in side}, cut.cost

    def _units(self) -> dict[int, int]:
        """For each node the id of the convolution that ONNX Runtime computes it in, or its own."""
        unit: dict[int, int] = {}
        for node in self._nodes:
            unit[id(node)] = id(node)
            if id(node) in self._layout.inside_conv:
                inner = [tensor.inputs[0] for tensor in node.inputs if tensor.inputs]
                heads = [one for one in inner if one.op == "Conv" or id(one) in self._layout.inside_conv]
                if heads:
                    unit[id(node)] = unit[id(heads[-1])]
        return unit

    def _times(self, node: gs.Node) -> tuple[float, float, float]:
        """The times of a node in each Layout; infinite where there is no such kernel."""
        elements = self._elements(node.outputs[0]) if node.outputs else 0
        is_blocked = id(node) in self._layout.blocked_nodes
        if is_convolution(node):
            blocked = self._conv.of(node, Layout.BLOCKED) if is_blocked else math.inf
            return self._conv.of(node, Layout.PLAIN), blocked, self._conv.of(node, Layout.NHWC)
        if permutes(node) is not None:
            return self._conv.transpose(elements), math.inf, 0.0
        if find_pool(node) is not None:
            blocked = self._conv.of_pool(node, Layout.BLOCKED) if is_blocked else math.inf
            return self._conv.of_pool(node, Layout.PLAIN), blocked, self._conv.of_pool(node, Layout.NHWC)
        if joins_channels(node):
            others, last = (elements * cost for cost in self._ns.concat)
            return others, others if is_blocked else math.inf, last
        if not is_elementwise(node):
            free = is_gate(node) or takes_parts(node) or tells_sizes(node)
            return 0.0, 0.0 if is_blocked else math.inf, 0.0 if free else math.inf
        if (ends_gelu := self._gelus.get(id(node))) is not None:
            alone, inside = self._ns.gelu
            own, blocked = (elements * inside, elements * alone + NODE_CALL) if ends_gelu else (0.0, 0.0)
            return own, blocked if is_blocked else math.inf, own
        own = elements * self._of_tail(node)
        if id(node) in self._layout.inside_conv:
            return own, elements * activation_inside(node), own
        if is_blocked:
            of_silu = _is_silu(node) or any(_is_silu(tensor.inputs[0]) for tensor in node.inputs if tensor.inputs)
            return own, elements * (self._ns.silu / 2 if of_silu else self._ns.node) + NODE_CALL, own
        return own, elements * self._ns.affine / 2 + NODE_CALL if self._becomes_conv(node) else math.inf, own

    def _of_tail(self, node: gs.Node) -> float:
        """Nanoseconds of an element of a node in the tail of a convolution."""
        if id(node) not in self._tails:
            self._tails[id(node)] = self._ns.tail[is_short(node, self._opset)]
        return self._tails[id(node)]

    def _elements(self, tensor: gs.Tensor) -> int:
        """How many elements a tensor is likely to have, with as many channels as a convolution reads."""
        shape = self._shapes.of(tensor)
        if shape is None or len(shape) < 2:
            return 0
        channels = shape[1]
        if tensor.shape is None or not isinstance(tensor.shape[1], (int, np.integer)):
            weights = [node.inputs[1].shape for node in tensor.outputs if standard_op(node) == "Conv"]
            channels = min([shape[1] for shape in weights if shape and isinstance(shape[1], int)] or [channels])
        return math.prod(shape) // max(shape[1], 1) * channels

    def _becomes_conv(self, node: gs.Node) -> bool:
        """Whether conv-layout may write a node as a depthwise convolution: a constant step of each channel."""
        if standard_op(node) not in ("Add", "Sub", "Mul", "Div", "BatchNormalization") or not node.outputs[0].shape:
            return False
        shape = node.outputs[0].shape
        variables = [tensor for tensor in node.inputs if tensor.name and not isinstance(tensor, gs.Constant)]
        if len(shape) != 4 or len(variables) != 1 or not isinstance(shape[1], int) or shape[1] % 4:
            return False
        return node.op == "BatchNormalization" or all(
            math.prod(tensor.shape) in (1, shape[1]) for tensor in node.inputs if isinstance(tensor, gs.Constant)
        )

    def _add_reorders(self, cut: MinimumCut, node: gs.Node, unit: dict[int, int]) -> None:
        """What it costs that a tensor is blocked on one side."""
        for tensor in node.outputs:
            elements = self._elements(tensor)
            if not elements or len(self._shapes.of(tensor) or ()) != 4 or tensor.dtype != np.float32:
                continue
            cost = elements * self._ns.reorder + NODE_CALL
            made, plain, blocked = unit[id(node)], ("plain", id(tensor)), ("blocked", id(tensor))
            cut.separate(plain, made, cost + self._of_lost_tail(node, tensor, elements))
            cut.separate(made, blocked, cost)
            if self._is_output(tensor):
                cut.add(plain, 0.0, math.inf)
            for reader in self._readers(tensor):
                if unit.get(id(reader)) in (None, made):
                    continue
                cut.separate(unit[id(reader)], plain, math.inf)
                if standard_op(reader) != "Conv" or self._layout.reads_blocked(reader):
                    cut.separate(blocked, unit[id(reader)], math.inf)

    def _of_lost_tail(self, node: gs.Node, tensor: gs.Tensor, elements: int) -> float:
        """What an elementwise node in the plain layout takes beyond its time in the tail of the convolution before it,
        if that is blocked."""
        readers = list(self._readers(tensor))
        if not is_convolution(node) or len(readers) != 1 or not is_elementwise(readers[0]):
            return 0.0
        return NODE_CALL + elements * max(self._ns.node - self._of_tail(readers[0]), 0.0)

    def _add_changes(self, cut: MinimumCut, unit: dict[int, int]) -> None:
        """What it costs that a tensor has its channels last on one side, on its way through the plain layout.

        A tensor has them last if all that make or read it do.  Otherwise each that does changes the layout itself, but
        for a Concat, whose inputs are transposed, and for a pool, a Slice and a Split, which have one layout.
        """
        made = {id(tensor): node for node in self._nodes for tensor in node.outputs}
        tensors = {id(tensor): tensor for node in self._nodes for tensor in (*node.inputs, *node.outputs)}
        for key, tensor in tensors.items():
            shape = self._shapes.of(tensor)
            if isinstance(tensor, gs.Constant) or shape is None or len(shape) not in (3, 4):
                continue
            if shape[1] == 1 or math.prod(shape[2:]) == 1:
                continue  # the elements are in one order
            last = ("tensor", key)
            if key not in made or self._is_output(tensor):
                cut.add(last, math.inf, 0.0)
            for node in ([made[key]] if key in made else []) + list(self._readers(tensor)):
                if id(node) not in unit:  # of another graph
                    cut.add(last, math.inf, 0.0)
                    continue
                item = ("last", unit[id(node)])
                cut.separate(last, item, math.inf)
                elements = self._elements(tensor)
                if joins_channels(node):
                    cut.separate(item, last, self._conv.transpose(elements))
                elif find_pool(node) is not None or takes_parts(node):
                    cut.separate(item, last, math.inf)
                elif (first := permutes(node)) is None:
                    cut.separate(item, last, self._conv.change(elements))
                elif first is tensor:
                    cut.separate(item, last, math.inf)
                else:
                    cut.add(last, math.inf, 0.0)

    @staticmethod
    def _readers(tensor: gs.Tensor) -> Iterable[gs.Node]:
        return {id(node): node for node in tensor.outputs}.values()
