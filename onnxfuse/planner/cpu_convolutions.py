"""Which convolutions the library computes itself on the CPU, and why.

ONNX Runtime computes convolutions in blocks of channels, and reorders tensors where a node beside them knows the plain
layout alone.  The library's convolutions read and write the plain layout and take in any elementwise tail.  Neither is
better as such: what one saves depends on what stands around it.  So all convolutions of a graph are chosen at once: the
times of all nodes in either layout, and of the reorders between them, are estimated, and the cheapest assignment is a
minimum cut.

The times were measured on one core of two AMD EPYCs, those with AVX-512 on a Zen 5 (ONNX Runtime 1.32).  Other machines
differ by much the same factor for all.  Where they do not, or the number of threads makes a difference,
``optimize --tune`` measures (cpu_tuning.py).
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse import cpu
from onnxfuse.cuda.conv.choice import ASKED_FOR, SWITCHED_OFF, ConvChoice, ConvPolicy
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.graph import Model, sorted_nodes
from onnxfuse.passes.base import PassContext
from onnxfuse.planner.convolutions import describe, is_convolution
from onnxfuse.planner.likely_shapes import LikelyShapes
from onnxfuse.planner.minimum_cut import MinimumCut
from onnxfuse.planner.ort_layout import ConvLayout, block_size
from onnxfuse.program.lowering import UnsupportedError, is_elementwise

FASTER = ConvChoice(True, "the plain layout is cheaper here, for the nodes around it know no other")
MEASURED = ConvChoice(True, "the model was measured to be faster so")
ONLY_FLOAT = ConvChoice(False, "the CPU has kernels of float32 alone")
THREE_DIMENSIONS = ConvChoice(False, "convolutions in three dimensions were not measured against ONNX Runtime's")
MEASURED_SLOWER = ConvChoice(False, "the model was measured to be faster without")
OPEN_WEIGHTS = ConvChoice(False, "its weights are no constant of the model")
BLOCKED_LAYOUT = ConvChoice(False, "ONNX Runtime's blocked layout is cheaper here")
SMALL_IMAGE = ConvChoice(False, "its image is so small that ONNX Runtime's is as fast")
ALONE = ConvChoice(False, "nothing beside it would be fused with it, and ONNX Runtime's is as fast")
NO_OTHER = ConvChoice(True, "ONNX Runtime's is as fast, and its code would be needed for this alone")


class _Cost(NamedTuple):
    """Nanoseconds that a convolution takes: for each product and its addition, and to read or write an element."""

    product: float
    element: float


@dataclass(frozen=True)
class _Times:
    """What parts of nodes take, in nanoseconds; of two the first in the plain layout, the second in the blocked one."""

    pointwise: tuple[_Cost, _Cost]
    """Convolutions of one tap: products of matrices."""
    depthwise: tuple[_Cost, _Cost]
    strided: _Cost
    """Depthwise ones in the plain layout that skip columns."""
    others: tuple[_Cost, _Cost]
    far: tuple[float, float]
    """To read or write an element beyond that, where a tensor is larger than what a core has of the caches."""
    call: tuple[float, float]
    """A convolution, however small, beyond what any node takes."""
    reorder: float
    """To change an element's layout."""
    node: float
    """An element of an elementwise node that is computed by itself."""
    silu: float
    """The same of x Sigmoid(x), which ONNX Runtime computes as one node."""
    tail: tuple[float, float]
    """The same in the tail of a convolution: of a function, or of a few instructions."""


_AVX2 = _Times(
    pointwise=(_Cost(1 / 50, 0.30), _Cost(1 / 57, 0.10)),
    depthwise=(_Cost(0.020, 0.10), _Cost(0.018, 0.10)),
    strided=_Cost(0.028, 0.30),
    others=(_Cost(1 / 50, 0.30), _Cost(1 / 57, 0.10)),
    far=(0.0, 0.0),
    call=(0.0, 0.0),
    reorder=0.40,
    node=0.35,
    silu=0.70,
    tail=(0.30, 0.08),
)
_AVX512 = _Times(
    pointwise=(_Cost(1 / 105, 0.09), _Cost(1 / 104, 0.035)),
    depthwise=(_Cost(0.0113, 0.11), _Cost(0.0166, 0.05)),
    strided=_Cost(0.0132, 0.14),
    others=(_Cost(1 / 97, 0.12), _Cost(1 / 117, 0.065)),
    far=(0.04, 0.12),
    call=(1000.0, 1000.0),
    reorder=0.11,
    node=0.14,
    silu=0.16,
    tail=(0.10, 0.01),
)
_FAR = 1 << 20  # elements of a tensor that is larger than what a core has of the caches
_FAR_APART = 4  # times what it takes to read an element, for elements that are more than two apart
_CALL = 1500.0  # nanoseconds of a node, a reorder among them, however small
_LEAST_GAIN = 0.08  # of a graph's time: what an estimate is good for
_FEW_POSITIONS = 16
_POSITIONS_PER_CHANNEL = 8  # of the input of a ConvTranspose
_MOST_TAPS, _LEAST_FILTERS, _LEAST_CHANNELS = 3, 32, 16  # where ONNX Runtime's copy for a product of matrices is cheap
_SHORT = {"Add", "Sub", "Mul", "Relu", "Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "PRelu", "BatchNormalization"}


def cpu_chooser(context: PassContext) -> "CpuChooser":
    """The context's chooser, which is made where there is none."""
    if context.own_convolutions is None:
        context.own_convolutions = CpuChooser()
    return context.own_convolutions


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

    @property
    def policy(self) -> ConvPolicy:
        """What was asked for."""
        return self._policy

    def decide(self, model: Model) -> None:
        """Choose, if that has not been done: the shapes of the model's tensors have been inferred."""
        if self._own is not None:
            return
        self._own = {}
        if self._policy is not ConvPolicy.NONE:
            for graph in model.fusible_graphs():
                known = {id(node): node for node in graph.nodes if _is_known(node)}
                if self._policy is ConvPolicy.AUTO:
                    known = {key: node for key, node in known.items() if len(node.inputs[1].shape) < 5}
                if known and self._policy is ConvPolicy.AUTO:
                    given = self._given if graph is model.graph else {}
                    own, small = _GraphChoice(graph, set(known), given).own()
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

    def of(self, node: gs.Node, conv: Convolution, *, alone: bool = False) -> ConvChoice:
        """The choice for a convolution, or for one that is known to be fused ``alone``."""
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
        if id(node) in self._small:
            return SMALL_IMAGE
        return BLOCKED_LAYOUT if conv.rank < 3 else THREE_DIMENSIONS

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


def is_pointwise(conv: Convolution) -> bool:
    """Whether a convolution reads every element of its input once for each filter: it is a matrix product."""
    return (
        not conv.transposed
        and conv.group == 1
        and not any(conv.pads or ())
        and all(size == 1 for size in (*conv.kernel, *conv.strides))
    )


def _is_as_fast_alone(conv: Convolution) -> bool:
    """Whether ONNX Runtime computes a convolution as fast as the library if nothing is fused with it.

    Over one dimension both multiply matrices in the plain layout, ONNX Runtime after a copy of the input for each tap.
    Measured with AVX2 (ONNX Runtime 1.32, one thread), it takes 0.7 to 1.0 of the library's time with up to 3 taps, and
    0.8 to 1.3 with 5 to 31.  With AVX-512 that was not measured, and the library computes them.
    """
    product = conv.rank == 1 and not conv.transposed and conv.group == 1 and conv.kernel[0] <= _MOST_TAPS
    large = conv.out_channels >= _LEAST_FILTERS and conv.in_channels >= _LEAST_CHANNELS
    return product and large and not cpu.has_avx512()


def _is_silu(node: gs.Node) -> bool:
    """Whether a node is the Sigmoid of x Sigmoid(x)."""
    readers = node.outputs[0].outputs if node.op == "Sigmoid" else []
    return len(readers) == 1 and readers[0].op == "Mul" and any(one is node.inputs[0] for one in readers[0].inputs)


class _GraphChoice:
    """The choice for one graph: the side True of the cut is the plain layout."""

    def __init__(self, graph: gs.Graph, known: set[int], given: Mapping[str, tuple[int, ...]]) -> None:
        self._nodes = sorted_nodes(graph)
        self._outputs = {id(tensor) for tensor in graph.outputs}
        self._known = known
        self._layout = ConvLayout(self._nodes, graph.outputs)
        self._shapes = LikelyShapes(graph, given)
        self._block = block_size()
        self._ns = _AVX512 if cpu.has_avx512() else _AVX2

    def own(self) -> tuple[set[int], set[int]]:
        """The ids of the convolutions to compute in the plain layout, those of the library and those of ONNX Runtime.

        None that could be blocked is in the plain layout for a small gain.
        """
        unit = self._units()
        free, best = self._cut(unit, all_blocked=False)
        blocked, least = self._cut(unit, all_blocked=True)
        side = free if best < (1 - _LEAST_GAIN) * least else blocked
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

    def _cut(self, unit: dict[int, int], all_blocked: bool) -> tuple[set[Hashable], float]:
        """What is plain at the least time, and that time; with ``all_blocked`` no convolution that can be blocked."""
        cut = MinimumCut()
        for node in self._nodes:
            plain, blocked = self._times(node)
            forced = all_blocked and is_convolution(node) and math.isfinite(blocked)
            cut.add(unit[id(node)], math.inf if forced else plain, blocked)
        for node in self._nodes:
            self._add_reorders(cut, node, unit)
        return cut.solve(), cut.cost

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

    def _times(self, node: gs.Node) -> tuple[float, float]:
        """The times of a node in the plain and in the blocked layout; infinite where there is no such kernel."""
        elements = self._elements(node.outputs[0]) if node.outputs else 0
        if is_convolution(node):
            plain = self._conv_time(node, blocked=False)
            return plain, self._conv_time(node, blocked=True) if id(node) in self._layout.blocked_nodes else math.inf
        if not is_elementwise(node):
            return 0.0, 0.0 if id(node) in self._layout.blocked_nodes else math.inf
        plain = elements * self._ns.tail[node.op in _SHORT]
        if id(node) in self._layout.inside_conv:
            return plain, 0.0
        if id(node) in self._layout.blocked_nodes:
            of_silu = _is_silu(node) or any(_is_silu(tensor.inputs[0]) for tensor in node.inputs if tensor.inputs)
            return plain, elements * (self._ns.silu / 2 if of_silu else self._ns.node) + _CALL
        return plain, elements * self._ns.node / 2 + _CALL if self._becomes_conv(node) else math.inf

    def _conv_time(self, node: gs.Node, blocked: bool) -> float:
        weights = node.inputs[1].shape
        if weights is None or not all(isinstance(dim, int) for dim in weights):
            return 0.0
        group = int(node.attrs.get("group", 1))
        read, written = (self._shapes.of(tensor) for tensor in (node.inputs[0], node.outputs[0]))
        if read is None or written is None or 0 in (*read, *written):
            return 0.0
        taps = math.prod(weights[2:])
        filters, channels = (weights[1], weights[0]) if node.op == "ConvTranspose" else (weights[0], weights[1])
        positions = math.prod(written[2:]) * written[0]
        outer = math.prod(read[2:]) * read[0]
        strides = node.attrs.get("strides") or [1]
        ns = self._ns

        def passed(elements: int) -> float:
            return elements * (element + (ns.far[blocked] if elements > _FAR else 0.0))

        if group > 1 and weights[1] == 1:
            made = _round_up(filters, self._block) if blocked else filters
            copied = not blocked and strides[-1] > 1
            product, element = ns.strided if copied else ns.depthwise[blocked]
            if not blocked and not copied:
                product *= min(_round_up(written[-1], self._block) / written[-1], 2)  # of the last vector of a row
            products = made * positions * taps
            return products * product + passed(made * positions) + passed(made * outer) + ns.call[blocked]
        if blocked:
            filters = _round_up(filters, self._block)
        products = filters * channels * taps * positions
        if node.op == "ConvTranspose":
            products //= math.prod(strides)
        product, element = (ns.others if taps > 1 else ns.pointwise)[blocked]
        if not blocked and taps > 1:
            product *= min(_round_up(written[-1], self._block), written[-1] + weights[-1] - 1) / written[-1]
        apart = _FAR_APART if not blocked and max(strides) > 2 and node.op == "Conv" else 1
        copying = apart * passed(channels * group * outer)
        return products * product + passed(filters * positions) + copying + ns.call[blocked]

    def _elements(self, tensor: gs.Tensor) -> int:
        """How many elements a tensor is likely to have, with as many channels as a convolution reads."""
        shape = self._shapes.of(tensor)
        if shape is None or len(shape) < 2:
            return 0
        channels = shape[1]
        if not isinstance(tensor.shape[1], (int, np.integer)):
            weights = [node.inputs[1].shape for node in tensor.outputs if node.op == "Conv"]
            channels = min([shape[1] for shape in weights if shape and isinstance(shape[1], int)] or [channels])
        return math.prod(shape) // max(shape[1], 1) * channels

    def _becomes_conv(self, node: gs.Node) -> bool:
        """Whether conv-layout may write a node as a depthwise convolution: a constant step of each channel."""
        if node.op not in ("Add", "Sub", "Mul", "Div", "BatchNormalization") or not node.outputs[0].shape:
            return False
        shape = node.outputs[0].shape
        variables = [tensor for tensor in node.inputs if tensor.name and not isinstance(tensor, gs.Constant)]
        if len(shape) != 4 or len(variables) != 1 or not isinstance(shape[1], int) or shape[1] % 4:
            return False
        return node.op == "BatchNormalization" or all(
            tensor.values.size in (1, shape[1]) for tensor in node.inputs if isinstance(tensor, gs.Constant)
        )

    def _add_reorders(self, cut: MinimumCut, node: gs.Node, unit: dict[int, int]) -> None:
        for tensor in node.outputs:
            elements = self._elements(tensor)
            if not elements or len(self._shapes.of(tensor) or ()) != 4 or tensor.dtype != np.float32:
                continue
            cost = elements * self._ns.reorder + _CALL
            made, plain, blocked = unit[id(node)], ("plain", id(tensor)), ("blocked", id(tensor))
            cut.separate(plain, made, cost)
            cut.separate(made, blocked, cost)
            if id(tensor) in self._outputs:
                cut.add(plain, 0.0, math.inf)
            for reader in self._readers(tensor):
                if unit.get(id(reader)) in (None, made):
                    continue
                cut.separate(unit[id(reader)], plain, math.inf)
                if reader.op != "Conv" or self._layout.reads_blocked(reader):
                    cut.separate(blocked, unit[id(reader)], math.inf)

    @staticmethod
    def _readers(tensor: gs.Tensor) -> Iterable[gs.Node]:
        return {id(node): node for node in tensor.outputs}.values()


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
