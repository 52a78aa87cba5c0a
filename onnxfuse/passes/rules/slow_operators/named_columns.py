"""GatherElements(x · w, columns) → the same of a product that has no other columns, where it can as a view."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import Array, constant_value, is_constant_node, shape_of
from onnxfuse.model.graph import sorted_nodes
from onnxfuse.model.graph_ir import Node
from onnxfuse.ort.host import constant_arithmetic
from onnxfuse.passes.folding import Evaluator
from onnxfuse.passes.rules.slow_operators.relative_shift import spaced_rows
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.rewrite.base import PassContext

_MOST_ELEMENTS = 1 << 24
"""Of a tensor that is computed while planning."""
_LEAST_ROWS = 64
"""Of a product: those of a tile of it."""
_ALIGNED = 8
"""Columns of which a product has a multiple: 16 bytes of float16, as tensor cores want rows to begin."""
_MOST_NAMED = 0.75
"""Of the columns, where they go on being gathered: with more, what is saved is not worth other constants."""


@dataclass(frozen=True)
class _Shift:
    """Row i of the result begins one column further back than row i - 1, so that each of ``blocks`` of ``rows`` rows
    names ``columns[block]``, in the order in which they are read."""

    rows: int
    columns: Array

    @property
    def blocks(self) -> int:
        return len(self.columns)


class NamedColumns(RewriteRule):
    """Multiplies with the columns that are read of a product, and reads scores of relative positions as a view.

    DeBERTa (P. He et al., arXiv:2006.03654) multiplies queries with all positions that there may be, then gathers for
    each pair of words that of their distance.  Between so many words as a text has there are fewer distances, and as
    long as each has its own position a row of scores begins one column before the row above, which are equal steps
    through memory.  A few rows after one another name yet fewer columns, so that the product is one of blocks of rows,
    as far as that takes no more constants than before.
    Refused: columns or a second factor that depend on inputs; sizes that are not known; most columns named, and not in
    such an order; another reader of the product.
    """

    name = "named-columns"

    def begin(self, model: Model, context: PassContext) -> None:
        """Finds out what depends on constants alone."""
        self._constant: dict[int, Node] = {}  # in topological order
        for graph in model.graphs():
            nodes = sorted_nodes(graph)
            found = constant_arithmetic(nodes)
            self._constant.update((id(node), node) for node in nodes if id(node) in found)
        self._evaluator = Evaluator(model.opsets)

    def pattern(self, op: Ops, x: Any, w: Any, places: Any) -> Any:
        """What makes ``w`` and ``places`` is read in ``check``."""
        return op.GatherElements(op.MatMul(x, w, _name="product"), places, _name="gather")

    def check(self, match: Match) -> str | None:
        """``match.plan`` is a shift, or the columns and for each of the old ones which of these it is."""
        x, w, places = match["x"], match["w"], match["places"]
        made, read = shape_of(match.node("product").outputs[0]), shape_of(places)
        if not self._is_known(w) or not self._is_known(places):
            return NOT_APPLICABLE
        if made is None or read is None or shape_of(x) is None or shape_of(w) is None or len(w.shape) < 2:
            return "its sizes are not known"
        if len(x.shape) < 2 or match.attribute("gather", "axis") not in (-1, len(made) - 1):
            return NOT_APPLICABLE
        if len(read) != len(made) or read[:-1] != made[:-1] or 0 in (*made, *read):
            return NOT_APPLICABLE
        named = self._values(places)
        if named is None or named.min() < -made[-1] or named.max() >= made[-1]:
            return "it is not known which columns are named"
        named = named.reshape(-1, *read[-2:]) % made[-1]
        shift = _shift(named, made[-1])
        if shift is not None:
            match.plan = shift
            return None
        columns = np.unique(named)
        if len(columns) > _MOST_NAMED * made[-1] and not self.everything:
            return "it names most columns, and not those of a row one before those of the row above"
        order = np.zeros(made[-1], np.int64)
        order[columns] = np.arange(len(columns))
        match.plan = np.pad(columns, (0, _padded(len(columns)) - len(columns))), order
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The product with columns in a new order, and what is read of it."""
        x, w, places = match["x"], match["w"], match["places"]
        if not isinstance(match.plan, _Shift):
            columns, order = match.plan
            fewer = builder.op("Gather", w, builder.initializer(columns, "columns"), axis=-1)
            numbers = builder.op("Gather", builder.initializer(order, "order"), places, axis=0)
            return builder.op("GatherElements", builder.op("MatMul", x, fewer), numbers, axis=-1)
        shift, sizes = match.plan, list(places.shape)
        columns = shift.columns if shift.blocks > 1 else shift.columns[0]
        shape = [*sizes[:-2], shift.rows, shift.columns.shape[1]]
        fewer = builder.op("Gather", w, builder.initializer(columns, "columns"), axis=-1)
        if shift.blocks > 1:
            shape.insert(-2, shift.blocks)
            rank = len(w.shape)
            fewer = builder.op("Transpose", fewer, perm=[*range(rank - 2), rank - 1, rank - 2, rank])
            blocks = [*x.shape[:-2], shift.blocks, shift.rows, x.shape[-1]]
            x = builder.op("Reshape", x, builder.initializer(np.array(blocks, np.int64), "blocks"))
        product = builder.op("MatMul", x, fewer)
        made = spaced_rows(builder, product, shape, shift.rows - 1, shape[-1] - 1, (shift.rows, sizes[-1]))
        if shift.blocks > 1:
            made = builder.op("Reshape", made, builder.initializer(np.array(sizes, np.int64), "rows"))
        return made

    def _is_known(self, tensor: gs.Tensor) -> bool:
        """Whether a tensor depends on constants alone."""
        return isinstance(tensor, gs.Constant) or (bool(tensor.inputs) and id(tensor.inputs[0]) in self._constant)

    def _values(self, tensor: gs.Tensor) -> Array | None:
        """The integers of a tensor that depends on constants alone; None if they are too many, or cannot be had."""
        inside: set[int] = set()
        waiting = list(tensor.inputs)
        while waiting:
            node = waiting.pop()
            if id(node) not in inside and not is_constant_node(node):
                inside.add(id(node))
                waiting += [maker for read in node.inputs for maker in read.inputs]
        nodes = [node for node in self._constant.values() if id(node) in inside]
        read = {one.name: one for one in (tensor, *(one for node in nodes for one in node.inputs)) if one.name}
        if any((shape := shape_of(one)) is None or math.prod(shape) > _MOST_ELEMENTS for one in read.values()):
            return None
        known = {name: value for name, one in read.items() if (value := constant_value(one)) is not None}
        values = self._evaluator.evaluate(nodes, known)[0] if nodes else known
        found = values.get(tensor.name)
        return found if found is not None and found.dtype.kind == "i" else None


def _shift(named: Array, count: int) -> _Shift | None:
    """How columns are named of a product with ``count`` of them if that is by a shift; None for another way."""
    rows, length = named.shape[1:]
    if rows < 2 or length < 2:
        return None
    first = named[0].astype(np.int64)
    step = first[0, 1] - first[0, 0]
    distances = np.arange(length) - np.arange(rows)[:, None]
    if abs(step) != 1 or not np.array_equal(named, np.broadcast_to(first[0, 0] + step * distances, named.shape)):
        return None
    sizes = [size for size in range(_LEAST_ROWS, rows) if rows % size == 0] + [rows]
    size = next(size for size in sizes if rows // size * _width(size, length, count) <= count)
    begins = np.arange(0, rows, size)[:, None] + size - 1
    columns = first[0, 0] + step * (np.arange(_width(size, length, count)) - begins)
    return _Shift(size, np.clip(columns, 0, count - 1))  # those that are not named may be any


def _width(rows: int, length: int, count: int) -> int:
    """How many columns so many rows name together, or a few more that nothing reads, but no more than there are."""
    return min(_padded(length + rows - 1), count)


def _padded(columns: int) -> int:
    return -(-columns // _ALIGNED) * _ALIGNED
