"""Estimates of what convolutions and pooling take on the CPU, in each of the layouts that they may be computed in."""

import math
from collections.abc import Sequence

import onnx_graphsurgeon as gs

from onnxfuse import cpu
from onnxfuse.fused.conv.conv_figures import (
    CHANGES,
    FAR,
    FAR_APART,
    FAR_FOR_EACH,
    FEW_BLOCKS,
    INSIDE,
    MADE_AGAIN,
    NARROW,
    NODE_CALL,
    ROWS,
    SHORT,
    SHORT_GROUP,
    SWISH_MUL,
    TAP,
    TRANSPOSES,
    WEIGHT_PIXELS,
    WIDE,
    Layout,
    times,
)
from onnxfuse.fused.likely_shapes import LikelyShapes
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.ort.ort_layout import block_size, hard_swish_pair
from onnxfuse.program.figures import FEW_NHWC_PIXELS, LEAST_GROUP
from onnxfuse.program.lowering import instructions, is_elementwise
from onnxfuse.program.node_lowering import UnsupportedError
from onnxfuse.program.ops import OPS
from onnxfuse.shapes.windows import count, covered, extent


def activation_inside(node: gs.Node) -> float:
    """Nanoseconds of an element of a node that ONNX Runtime computes inside a blocked convolution."""
    return SWISH_MUL if node.op == "Mul" and hard_swish_pair(node) else INSIDE[node.op]


def is_short(node: gs.Node, opset: int) -> bool:
    """Whether an elementwise node takes but a few instructions in a tail, no function and no division."""
    try:
        found = instructions(node, opset)
    except UnsupportedError:  # it is in no tail
        return False
    return all(OPS[one.op].cost.cpu[DTYPES[one.dtype].compute] < SHORT for one in found)


class ConvTimes:
    """Estimates for the convolutions of one graph, whose tensors are likely to have these ``shapes``."""

    def __init__(self, shapes: LikelyShapes) -> None:
        self.ns = times()
        self.shapes = shapes
        self._block = block_size()

    def of(self, node: gs.Node, layout: Layout) -> float:
        """Nanoseconds of a convolution in one thread; infinite where no kernel knows the layout, 0 where its shapes are
        unknown or without elements.

        ONNX Runtime's blocked layout is taken for granted.
        """
        weights = node.inputs[1].shape
        if weights is None or not all(isinstance(dim, int) for dim in weights):
            return 0.0
        if layout is Layout.NHWC and not (_has_nhwc(node) and self._fills_vectors(node)):
            return math.inf
        read, written = (self.shapes.of(tensor) for tensor in (node.inputs[0], node.outputs[0]))
        if read is None or written is None or 0 in (*read, *written):
            return 0.0
        return (self._single if _is_single(node) else self._many)(node, layout, read, written)

    def of_pool(self, node: gs.Node, layout: Layout) -> float:
        """Nanoseconds of a MaxPool or AveragePool in one thread; 0 where its shapes are unknown or without elements.

        In the plain layout ONNX Runtime reorders whole blocks of channels of two dimensions before and after it.
        """
        read, written = (self.shapes.of(tensor) for tensor in (node.inputs[0], node.outputs[0]))
        if read is None or written is None or 0 in (*read, *written):
            return 0.0
        elements, reorders = math.prod(read) + math.prod(written), 0.0
        if layout is Layout.PLAIN and len(read) == 4 and node.inputs[0].shape[1] == _round_up(read[1], self._block):
            layout, reorders = Layout.BLOCKED, elements * self.ns.reorder + 2 * NODE_CALL
        product, element = self.ns.pool[layout]
        rows = math.prod(written[:-1]) * self.ns.pool_row if layout is Layout.PLAIN else 0.0
        taps = math.prod(written) * math.prod(node.attrs["kernel_shape"])
        return taps * product + elements * element + rows + reorders

    def change(self, elements: int) -> float:
        """Nanoseconds of a convolution that changes the layout of so many elements that it reads or makes itself."""
        return CHANGES * elements * self.ns.reorder + NODE_CALL

    def transpose(self, elements: int) -> float:
        """Nanoseconds of ONNX Runtime's Transpose of so many elements."""
        return TRANSPOSES * elements * self.ns.reorder + NODE_CALL

    def handed_on(self, node: gs.Node) -> tuple[gs.Node, float] | None:
        """The convolution that one node computes with this one if both have the channels last, and what this one reads
        (nhwc_pairs.py), and the nanoseconds to write and to read what is between them, which that saves."""
        written = self.shapes.of(node.outputs[0])
        reader = _reader(node.outputs[0])
        if reader is None or written is None or _is_single(node) == _is_single(reader):
            return None
        if _is_single(node):
            becomes_part = _is_pointwise(reader)
        else:
            becomes_part = _is_pointwise(node) and not _is_behind_single(node) and is_better_by_rows(written, reader)
        if not becomes_part:
            return None
        elements, last = math.prod(written), Layout.NHWC
        costs = (self.ns.depthwise, self.ns.pointwise)
        return reader, sum(self._passed(elements, cost[last].element, last) for cost in costs)

    def _fills_vectors(self, node: gs.Node) -> bool:
        """Whether the kernel for channels last uses whole vectors."""
        return not _is_single(node) or int(node.attrs["group"]) >= self._block

    def _passed(self, elements: int, element: float, layout: Layout) -> float:
        far = min(elements, FAR_FOR_EACH * max(elements - FAR, 0))
        return elements * element + far * self.ns.far[layout]

    def _single(self, node: gs.Node, layout: Layout, read: tuple[int, ...], written: tuple[int, ...]) -> float:
        """Convolutions of single channels."""
        weights, ns = node.inputs[1].shape, self.ns
        strides = node.attrs.get("strides") or [1]
        filters = weights[1] * weights[0] if node.op == "ConvTranspose" else weights[0]
        made = _round_up(filters, self._block) if layout is Layout.BLOCKED else filters
        positions, outer = math.prod(written[2:]) * written[0], math.prod(read[2:]) * read[0]
        copied = layout is Layout.PLAIN and strides[-1] > 1
        product, element = ns.strided if copied else ns.depthwise[layout]
        if layout is Layout.PLAIN and not copied:
            product *= min(_round_up(written[-1], self._block) / written[-1], 2)  # of the last vector of a row
            product *= self._of_last_rows(written[2] if len(written) > 3 else 1)
        passed = sum(self._passed(made * places, element, layout) for places in (positions, outer))
        if layout is Layout.NHWC:
            product *= _rows_inside(read[2], written[2], weights[2])
        return made * positions * math.prod(weights[2:]) * product + passed + ns.call[layout]

    def _of_last_rows(self, rows: int) -> float:
        """Times what a product takes where so many rows are not computed all together."""
        at_once, more = self.ns.rows
        last = _round_up(rows % at_once, 2) if rows > 1 else 0
        return (rows - rows % at_once + more * last) / rows if last else 1.0

    def _of_vectors(self, filters: int) -> float:
        """Times what a product takes with the channels last, of whole vectors of so many filters."""
        return FEW_BLOCKS.get(filters // self._block, 1.0)

    def _of_groups(self, filters: int, channels: int, layout: Layout) -> float:
        """Times what a product takes where groups have so many filters and channels.

        With the channels last vectors of whole groups, whose channels are one vector too, put these in order, and other
        vectors of several groups read for each, but for one of two groups, with AVX-512, which shares what the vectors
        beside it read: three are computed at once.
        """
        if layout is not Layout.NHWC:
            return 1 + SHORT_GROUP[layout] / filters
        vectors = math.lcm(filters, self._block) // self._block
        shared = math.lcm(filters, self._block) // filters - 1
        if cpu.has_avx512() and shared == 1 and vectors > 1:
            beside = (vectors - 3) * self._of_vectors(vectors // 2 * self._block - self._block)
            return (3 + beside) / vectors * (1 + SHORT_GROUP[layout] / channels)
        mixed = NARROW if shared and vectors == 1 and filters == channels else (vectors + shared) / vectors
        whole = max(filters // self._block, 1) if vectors == 1 else 1
        return mixed * self._of_vectors(whole * self._block) * (1 + SHORT_GROUP[layout] / channels)

    def _many(self, node: gs.Node, layout: Layout, read: tuple[int, ...], written: tuple[int, ...]) -> float:
        weights, ns = node.inputs[1].shape, self.ns
        strides = node.attrs.get("strides") or [1]
        group = int(node.attrs.get("group", 1))
        taps = math.prod(weights[2:])
        transposed = node.op == "ConvTranspose"
        filters, channels = (weights[1], weights[0]) if transposed else (weights[0], weights[1])
        positions, outer = math.prod(written[2:]) * written[0], math.prod(read[2:]) * read[0]
        if layout is not Layout.PLAIN:
            filters = _round_up(filters, self._block)
        if layout is Layout.BLOCKED and channels >= self._block:
            channels = _round_up(channels, self._block)
        products = float(filters * channels * taps * positions)
        if transposed:
            products /= math.prod(strides)
        product, element = (ns.others if taps > 1 else ns.pointwise)[layout]
        if layout is Layout.BLOCKED and filters == self._block:
            product *= ns.one_block
        if group > 1 and not transposed:
            product *= self._of_groups(weights[0] // group, channels, layout)
        call = ns.call[layout]
        if layout is Layout.NHWC:
            if positions <= FEW_NHWC_PIXELS:
                call = ns.call[Layout.PLAIN]
            products *= max(WEIGHT_PIXELS / positions, 1.0)
            if group == 1:
                product *= self._of_vectors(filters)
            call += positions * taps * TAP if taps > 1 else 0.0
        if layout is Layout.PLAIN:
            call += math.prod(weights) * ns.weight
            if taps > 1:
                product *= min(_round_up(written[-1], self._block), written[-1] + weights[-1] - 1) / written[-1]
            else:
                product *= _round_up(positions, self._block) / positions
        apart = FAR_APART if layout is Layout.PLAIN and max(strides) > 2 and not transposed else 1
        copying = apart * self._passed(channels * group * outer, element, layout)
        return products * product + self._passed(filters * positions, element, layout) + copying + call


class LastIsFree(ConvTimes):
    """As if channels last, and the changes to them and back, cost nothing: whatever can have them last then has."""

    def of(self, node: gs.Node, layout: Layout) -> float:
        """Nothing where there is a kernel for channels last."""
        if layout is Layout.NHWC:
            return 0.0 if _has_nhwc(node) else math.inf
        return 1.0

    def of_pool(self, node: gs.Node, layout: Layout) -> float:
        """Nothing with the channels last."""
        return 0.0 if layout is Layout.NHWC else 1.0

    def change(self, elements: int) -> float:
        """Nothing."""
        return 0.0

    def transpose(self, elements: int) -> float:
        """Nothing."""
        return 0.0


def is_better_by_rows(shape: Sequence[int] | None, single: gs.Node) -> bool:
    """Whether a tensor of this shape is better made a few rows at a time, by the depthwise convolution that reads it.

    It is too large to be found in a core's caches by the next node, and few of its rows are made twice: those that two
    threads, or two parts of a thread's work, both read.
    """
    if shape is None or len(shape) != 4 or math.prod(shape[1:]) < WIDE:
        return False
    channels, _, width = shape[1:]
    stride, dilation = ((single.attrs.get(name) or [1])[0] for name in ("strides", "dilations"))
    reach = extent(single.inputs[1].shape[2], dilation)
    rows = max(count(ROWS // (channels * width), reach, stride), 1)
    return covered(rows, reach, stride) <= MADE_AGAIN * rows * stride


def _has_nhwc(node: gs.Node) -> bool:
    """Whether there is a kernel for channels last."""
    weights, group = node.inputs[1].shape, int(node.attrs.get("group", 1))
    single = group == weights[0] and weights[1] == 1
    grouped = group < weights[0] and weights[0] // group >= LEAST_GROUP
    return node.op == "Conv" and len(weights) <= 4 and (group == 1 or single or grouped)


def _is_single(node: gs.Node) -> bool:
    """Whether a convolution is of single channels."""
    return int(node.attrs.get("group", 1)) > 1 and node.inputs[1].shape[1] == 1


def _is_pointwise(node: gs.Node) -> bool:
    return all(size == 1 for size in node.inputs[1].shape[2:])


def _is_behind_single(node: gs.Node) -> bool:
    """Whether a 1x1 convolution is the one that alone reads what a depthwise one makes."""
    tensor = node.inputs[0]
    while tensor.inputs and standard_op(tensor.inputs[0]) != "Conv" and is_elementwise(tensor.inputs[0]):
        tensor = next((one for one in tensor.inputs[0].inputs if one.name and one.inputs), tensor.inputs[0].inputs[0])
    before = tensor.inputs[0] if tensor.inputs else None
    known = before is not None and standard_op(before) == "Conv" and len(before.inputs) > 1 and before.inputs[1].shape
    return bool(known) and _is_single(before) and _reader(tensor) is node


def _reader(tensor: gs.Tensor) -> gs.Node | None:
    """The Conv that alone reads a tensor, or what an elementwise node with constants or x Sigmoid(x) makes of it."""
    while True:
        readers = list({id(node): node for node in tensor.outputs}.values())
        others = 0
        if len(readers) == 2:
            gates = [node for node in readers if standard_op(node) in ("Sigmoid", "HardSigmoid")]
            readers = [node for node in readers if node not in gates]
            if len(gates) != 1 or gates[0].outputs[0].outputs != readers:
                return None
            others = 1
        if len(readers) != 1:
            return None
        (node,) = readers
        if standard_op(node) == "Conv":
            known = len(node.inputs) > 1 and node.inputs[0] is tensor and node.inputs[1].shape
            return node if known else None
        variables = [one for one in node.inputs if one.name and not isinstance(one, gs.Constant)]
        if not is_elementwise(node) or len(variables) != 1 + others:
            return None
        tensor = node.outputs[0]


def _rows_inside(read: int, written: int, kernel: int) -> float:
    """The share of a kernel's rows that meet the image, in the mean."""
    stride = max(read // written, 1)
    pad = max(covered(written, kernel, stride) - read, 0) // 2
    starts = range(-pad, written * stride - pad, stride)
    return sum(max(min(start + kernel, read) - max(start, 0), 0) for start in starts) / (written * kernel)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
