"""Conv(x, v) + Conv(x, w) + BatchNormalization(x) + x → Conv(x, v + w + scale + 1)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import Array
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.passes.rules.budget import CopyBudget
from onnxfuse.passes.rules.fold_affine.affine import (
    IDENTITY,
    Affine,
    axis_of_data,
    data_input,
    is_affine_node,
    read_step,
)
from onnxfuse.passes.rules.fold_affine.linear import Conv, auto_pad
from onnxfuse.rewrite.editor import GraphEditor
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, Refusal, RewriteRule
from onnxfuse.shapes.windows import extent

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.rewrite.base import PassContext

_MOST_TERMS = 16  # of a sum: more than a network has branches, few enough to look at again for each of its additions


class MergeParallelConvs(RewriteRule):
    """Adds the weights of convolutions of one tensor where the network adds their results, so that one does what all
    did: networks that are trained with branches (X. Ding et al., RepVGG, arXiv:2101.03697).

    The taps of a smaller kernel must be taps of the largest, and its groups parts of the largest's.  The tensor itself
    and an affine step on it count as depthwise convolutions with one tap.
    Refused: weights that are not constant or not finite; new weights that overflow or are denormal; results that are
    needed elsewhere.  Convolutions that find out their padding by themselves are left as they are.
    """

    name = "merge-parallel-convs"

    def begin(self, model: Model, context: PassContext) -> None:
        """A fresh budget for copies of shared weights."""
        self._budget = CopyBudget()

    def may_end_at(self, node: Node) -> bool:
        """Only where a convolution or another sum is added."""
        return any(standard_op(producer) in ("Add", "Conv") for tensor in node.inputs for producer in tensor.inputs)

    def pattern(self, op: Ops, a: Any, b: Any) -> Any:
        """The sum; its terms, which may be sums themselves, are found in ``check``."""
        return op.Add(a, b)

    def check(self, match: Match) -> str | None:
        """Finds the terms that can be one; ``match.plan`` holds the convolution, its values and the other terms."""
        if match.root.attrs:  # it broadcasts as before opset 7
            return NOT_APPLICABLE
        sums, terms = _terms(match.root, match.editor)
        home = match.editor.graph_index(match.root)
        inner = [term for term in terms if term.inputs and _is_inner(term, term.inputs[0], home, match.editor)]
        branches = [branch for branch in map(_conv_branch, inner) if branch is not None]
        for largest in sorted(branches, key=lambda branch: -int(np.prod(branch.conv.shape))):
            conv = largest.conv
            merged = [branch for branch in branches if branch is not largest and largest.takes(branch)]
            steps = [(term, step) for term in inner if (step := largest.affine_step(term)) is not None]
            copies = [term for term in terms if term is largest.data and largest.copies]
            if not merged and not steps and not copies:
                continue
            for branch in merged:
                weights, offset = branch.conv.values()
                conv.add(largest.embedded(weights, branch), offset)
            for step in (*(step for _, step in steps), *(IDENTITY for _ in copies)):
                conv.add(largest.scaling(step.scale), step.offset)
            weight, bias = conv.new_weight(), conv.new_bias()
            self._budget.take(conv.copied_bytes())
            gone = {
                id(term) for term in (*(branch.term for branch in (largest, *merged)), *(term for term, _ in steps))
            }
            match.nodes.extend([*sums, *(term.inputs[0] for term in terms if id(term) in gone)])
            gone.update(map(id, copies))
            match.plan = (conv, weight, bias, [term for term in terms if id(term) not in gone])
            return None
        return NOT_APPLICABLE

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The largest convolution with the sum of the weights, and what else is added."""
        conv, weight, bias, others = match.plan
        hint = conv.weight_tensor.name
        inputs = [conv.node.inputs[0], builder.initializer(weight, f"{hint}_merged")]
        if bias is not None:
            inputs.append(builder.initializer(bias, f"{hint}_bias_merged"))
        elif conv.bias_tensor is not None:
            inputs.append(conv.bias_tensor)
        result = builder.like(conv.node, *inputs)
        for term in others:
            result = builder.op("Add", result, term)
        return result


@dataclass(frozen=True)
class _Branch:
    """A convolution whose result is a term of a sum."""

    term: gs.Tensor
    conv: Conv
    strides: tuple[int, ...]
    taps: tuple[tuple[int, ...], ...]
    """Along each axis of the kernel, where it reads, counted from the first element: with padding from below zero."""
    shrinkage: tuple[int, ...]
    """By how much the result would be shorter than the data with strides of one."""

    @property
    def data(self) -> gs.Tensor:
        """What is convolved."""
        data: gs.Tensor = self.conv.node.inputs[0]
        return data

    @property
    def copies(self) -> bool:
        """Whether this kernel with other weights could give its data as it is."""
        return (
            self.conv.shape[0] == self.conv.input_axis.size
            and all(stride == 1 for stride in self.strides)
            and all(0 in own for own in self.taps)
            and not any(self.shrinkage)
        )

    def affine_step(self, term: gs.Tensor) -> Affine | None:
        """What ``term`` makes of the same data channel by channel, if this kernel could do that as well."""
        node = term.inputs[0]
        if not (self.copies and is_affine_node(node) and data_input(node) is self.data):
            return None
        try:
            return read_step(node, axis_of_data(self.data, self.conv.input_axis))
        except Refusal:
            return None

    def takes(self, other: _Branch) -> bool:
        """Whether this kernel with other weights could do what ``other`` does as well."""
        return (
            self.data is other.data
            and self.conv.dtype == other.conv.dtype
            and self.conv.shape[0] == other.conv.shape[0]
            and self.conv.input_axis == other.conv.input_axis
            and other.conv.groups % self.conv.groups == 0
            and self.strides == other.strides
            and self.shrinkage == other.shrinkage
            and all(set(theirs) <= set(own) for own, theirs in zip(self.taps, other.taps, strict=True))
        )

    def embedded(self, weight: Array, other: _Branch) -> Array:
        """The ``weight`` of ``other`` as one of this kernel, with zeros elsewhere."""
        places = [[own.index(tap) for tap in theirs] for own, theirs in zip(self.taps, other.taps, strict=True)]
        return self._spread(weight, other.conv.groups, places)

    def scaling(self, scale: Array) -> Array:
        """The weights of this kernel that multiply each channel by its own ``scale``, of shape () or (channels,)."""
        channels = self.conv.shape[0]
        weight = np.broadcast_to(scale, (channels,)).reshape(channels, 1, *(1,) * len(self.taps))
        return self._spread(weight, channels, [[own.index(0)] for own in self.taps])

    def _spread(self, weight: Array, groups: int, places: Sequence[Sequence[int]]) -> Array:
        """``weight`` of a convolution with ``groups``, whose taps are at ``places`` of this kernel."""
        outputs, width = self.conv.shape[:2]
        rows = np.arange(outputs)
        first = rows // (outputs // groups) * weight.shape[1] - rows // (outputs // self.conv.groups) * width
        columns = first[:, np.newaxis] + np.arange(weight.shape[1])
        result = np.zeros(self.conv.shape)
        for tap in itertools.product(*map(range, weight.shape[2:])):
            place = tuple(own[index] for own, index in zip(places, tap, strict=True))
            read: Any = (..., *tap)
            written: Any = (rows[:, np.newaxis], columns, *place)
            result[written] = weight[read]
        return result


def _terms(root: Node, editor: GraphEditor) -> tuple[list[Node], list[gs.Tensor]]:
    """The additions below ``root`` whose results nothing else reads, and what they and ``root`` add, in order."""
    home = editor.graph_index(root)
    sums: list[Node] = []
    terms: list[gs.Tensor] = []
    pending = list(reversed(root.inputs))
    while pending:
        tensor = pending.pop()
        producer = tensor.inputs[0] if tensor.inputs else None
        if (
            producer is not None
            and len(pending) + len(terms) < _MOST_TERMS
            and standard_op(producer) == "Add"
            and not producer.attrs
            and _is_inner(tensor, producer, home, editor)
        ):
            sums.append(producer)
            pending.extend(reversed(producer.inputs))
        else:
            terms.append(tensor)
    return sums, terms


def _is_inner(tensor: gs.Tensor, producer: Node, home: int | None, editor: GraphEditor) -> bool:
    """Whether one node alone reads what ``producer``, in the same graph, computes."""
    return len(tensor.outputs) == 1 and not editor.is_graph_output(tensor) and editor.graph_index(producer) == home


def _conv_branch(term: gs.Tensor) -> _Branch | None:
    """What a Conv that computes ``term`` reads; None for another node, and if its weights cannot be changed."""
    node = term.inputs[0]
    if standard_op(node) != "Conv" or auto_pad(node) not in ("NOTSET", "VALID"):
        return None
    try:
        conv = Conv(node)
    except Refusal:
        return None
    kernel = conv.shape[2:]
    rank = len(kernel)
    strides = tuple(node.attrs.get("strides", (1,) * rank))
    dilations = tuple(node.attrs.get("dilations", (1,) * rank))
    padding = tuple(node.attrs.get("pads", ())) if auto_pad(node) == "NOTSET" else ()
    padding = padding or (0,) * 2 * rank
    if len(strides) != rank or len(dilations) != rank or len(padding) != 2 * rank or 0 in conv.shape:
        return None
    begins, ends = padding[:rank], padding[rank:]
    taps = tuple(
        tuple(place * step - begin for place in range(size))
        for size, step, begin in zip(kernel, dilations, begins, strict=True)
    )
    shrinkage = tuple(
        extent(size, step) - 1 - begin - end
        for size, step, begin, end in zip(kernel, dilations, begins, ends, strict=True)
    )
    return _Branch(term, conv, strides, taps, shrinkage)
