"""Slice(Reshape(Slice(Reshape(Pad(x))))) → Slice(Reshape(Slice(Reshape(x)))), where nothing that is padded is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import Array, integers_of, slices_of
from onnxfuse.model.graph_ir import VIEWS, Node, producer_of, standard_op
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

_MOST_ELEMENTS = 1 << 24
_LONGEST = 8
"""Nodes in a chain."""
_OPSET = 10
"""From which on Slice has its bounds as inputs."""


class RelativeShift(RewriteRule):
    """Reads scores of relative positions where they lie: row i of the queries begins one place before row i - 1.

    So a Transformer-XL (Z. Dai et al., Attentive Language Models beyond a Fixed-Length Context, 2019) and a Conformer
    (A. Gulati et al., 2020) move them: a Pad, which is a copy, a Reshape, a Slice, a Reshape, and another Slice.  What
    is left are equal steps through memory, of which the first element is cut off and the last of each row, and fused
    nodes read that as a view.  Refused: sizes of the last two dimensions that are not known, and other steps.
    """

    name = "relative-shift"

    def pattern(self, op: Ops, data: Any) -> Any:
        """The last Slice or Reshape; what is before is read in ``check``."""
        cut = op.Slice(data, _extra_inputs=True, _name="slice")
        return op.any_of(cut, op.Reshape(data, _extra_inputs=True, _name="reshape"))

    def check(self, match: Match) -> str | None:
        """``match.plan`` is what is padded, its first element that is read, the step from row to row, their length."""
        chain = _chain(match)
        if chain is None or match.opset() < _OPSET or any(map(_moves, match.root.outputs[0].outputs)):
            return NOT_APPLICABLE
        x, made = chain[0].inputs[0], match.root.outputs[0].shape
        shapes = [x.shape, *(node.outputs[0].shape for node in chain)]
        if x.shape is None or any(shape is None or len(shape) != len(x.shape) for shape in shapes):
            return NOT_APPLICABLE
        if len(x.shape) < 2 or any(shape[:-2] != x.shape[:-2] or None in shape for shape in shapes):
            return NOT_APPLICABLE
        if not all(isinstance(size, int) and size > 0 for shape in shapes for size in shape[-2:]):
            return "its sizes are not known"
        size = int(np.prod(x.shape[-2:]))
        places = _places(chain, np.arange(size).reshape(x.shape[-2:])) if size <= _MOST_ELEMENTS else None
        if places is None or list(places.shape) != list(made[-2:]):
            return NOT_APPLICABLE
        rows, length = places.shape
        first, step = int(places[0, 0]), int(places[1, 0] - places[0, 0]) if rows > 1 else length
        steps = first + step * np.arange(rows)[:, None] + np.arange(length)
        if first < 0 or step < length or first + rows * step > size or not np.array_equal(places, steps):
            return "it reads what is padded, or by other steps than equal ones"
        match.plan = x, first, step, length
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The rows as one, of which the middle is read and divided anew."""
        x, first, step, length = match.plan
        return spaced_rows(builder, x, x.shape, first, step, (match.root.outputs[0].shape[-2], length))


def spaced_rows(
    builder: Builder, x: gs.Tensor, shape: Sequence[Any], first: int, step: int, sizes: tuple[int, int]
) -> Any:
    """Of the elements of the last two dimensions of ``x``, which has this ``shape``, a matrix of these ``sizes``: its
    rows begin with element ``first`` and then every ``step`` elements, as nodes that fused nodes read as a view.

    ``step`` is no less than a row has, and ``first`` and a step for each row no more than there are elements.
    """
    rows, length = sizes
    leading = [0] * (len(shape) - 2)

    def integers(name: str, *numbers: int) -> gs.Tensor:
        return builder.initializer(np.array(numbers, np.int64), name)

    def cut(data: gs.Tensor, begin: int, end: int) -> gs.Tensor:
        return builder.op("Slice", data, integers("from", begin), integers("to", end), integers("axis", -1))

    x = builder.op("Reshape", x, integers("flat", *leading, shape[-2] * shape[-1]))
    x = builder.op("Reshape", cut(x, first, first + rows * step), integers("apart", *leading, rows, step))
    return cut(x, 0, length) if length < step else x


def _moves(node: Node) -> bool:
    return standard_op(node) in VIEWS or standard_op(node) == "Slice"


def _chain(match: Match) -> list[Node] | None:
    """The nodes from a Pad to the root of a match that nothing else reads; None where there is no Pad."""
    chain = [match.root]
    while len(chain) < _LONGEST:
        data = chain[0].inputs[0]
        node = producer_of(data)
        if node is None or len(data.outputs) != 1 or match.editor.is_graph_output(data):
            return None
        if standard_op(node) != "Pad" and not _moves(node):
            return None
        chain.insert(0, node)
        if standard_op(node) == "Pad":
            return chain if sum(standard_op(one) == "Slice" for one in chain) else None
    return None


def _places(chain: list[Node], places: Array) -> Array | None:
    """Which elements of the last two dimensions come where, -1 for what is padded; None where others move too."""
    for node in chain:
        shape = node.outputs[0].shape
        match standard_op(node):
            case "Pad":
                padded = _padded(node, places)
                if padded is None:
                    return None
                places = padded
            case "Slice":
                for one in slices_of(node) or ():
                    axis = one.axis - len(shape) if one.axis >= 0 else one.axis
                    if axis not in (-1, -2):
                        return None
                    places = places.take(np.array(one.places(places.shape[axis]), np.int64), axis)
                if slices_of(node) is None:
                    return None
            case _:
                if places.size != np.prod(shape[-2:]):
                    return None
                places = places.reshape(shape[-2:])
        if list(places.shape) != list(shape[-2:]):
            return None
    return places


def _padded(node: Node, places: Array) -> Array | None:
    """What a Pad with a constant makes of the last two dimensions; None for another one."""
    rank = len(node.outputs[0].shape)
    sizes = integers_of(node, "pads", 1)
    axes = integers_of(node, "axes", 3, list(range(rank)))
    if sizes is None or axes is None or len(sizes) != 2 * len(axes) or min(sizes) < 0:
        return None
    if node.attrs.get("mode", "constant") != "constant":
        return None
    around = [(0, 0)] * rank
    for place, axis in enumerate(axes):
        if not -rank <= axis < rank:
            return None
        around[axis] = (sizes[place], sizes[place + len(axes)])
    return None if any(map(any, around[:-2])) else np.pad(places, around[-2:], constant_values=-1)
