"""Products of one row with constant matrices as parts of the row that one product of them all makes.

A part of a row is of one piece, whatever its shape: so fused nodes read heads of it where they lie, as those of the
queries and keys of a step of decoding.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.products.products import Product
from onnxfuse.fused.space.view_nodes import is_free
from onnxfuse.fused.views import parts_of, source_of_swapped
from onnxfuse.model.elementwise_operators import HAVE_AXIS
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import Node, moves_ones
from onnxfuse.rewrite.editor import GraphEditor


@dataclass(frozen=True)
class RowPart:
    """The row that a ``product`` makes, as ``tensor``, of which ``views`` change the shape alone."""

    product: Product
    tensor: gs.Tensor
    views: tuple[Node, ...]

    @property
    def axis(self) -> int:
        """The first dimension of more than one element, or else the last: parts of the row are parts along that."""
        shape = self.tensor.shape
        return next((axis for axis, size in enumerate(shape) if size != 1), len(shape) - 1)

    @property
    def inner(self) -> int:
        """Elements behind one place along the axis."""
        return math.prod(self.tensor.shape[self.axis + 1 :])


def row_part(product: Product, editor: GraphEditor, regions: Container[int]) -> RowPart | None:
    """The part that a product of one row may be, where nothing but nodes of regions (their ids) reads it; else None."""
    if product.result.shape is None or list(product.result.shape[:-1]) != [1] * (len(product.result.shape) - 1):
        return None
    tensor, views = product.result, []
    while not editor.is_graph_output(tensor) and len(tensor.outputs) == 1 and _is_in_place(tensor.outputs[0]):
        views.append(tensor.outputs[0])
        tensor = tensor.outputs[0].outputs[0]
    if editor.is_graph_output(tensor) or not tensor.outputs:
        return None
    if not all(_reads_heads(reader, tensor, editor, regions) for reader in tensor.outputs):
        return None
    return RowPart(product, tensor, tuple(views))


def fit(parts: Sequence[RowPart]) -> bool:
    """Whether all parts, one behind the other, begin and end where places along their axes do."""
    start, total = 0, sum(part.product.columns for part in parts)
    for part in parts:
        if total % part.inner or start % part.inner:
            return False
        start += part.product.columns
    return True


def taking(model: Model, parts: Sequence[RowPart], whole: gs.Tensor, name: str) -> tuple[list[Node], list[Node]]:
    """The Reshapes of the ``whole`` row to the shapes that parts have, and for each part a Slice, without an output."""
    shaped: dict[tuple[int, ...], gs.Tensor] = {tuple(whole.shape): whole}
    reshapes: list[Node] = []
    slices: list[Node] = []
    start = 0
    for part in parts:
        shape = list(part.tensor.shape)
        shape[part.axis] = whole.shape[-1] // part.inner
        if tuple(shape) not in shaped:
            made = gs.Variable(model.unique_name(f"{name}_heads"), whole.dtype, shape)
            target = model.constant(np.array(shape, np.int64), "heads")
            reshapes.append(Node("Reshape", model.unique_name(f"{name}_Reshape"), {}, [whole, target], [made]))
            shaped[tuple(shape)] = made
        end = start + part.product.columns
        bounds = [start // part.inner, end // part.inner, part.axis]
        constants = [model.constant(np.array([bound], np.int64), "bound") for bound in bounds]
        slices.append(Node("Slice", model.unique_name(f"{name}_Slice"), {}, [shaped[tuple(shape)], *constants]))
        start = end
    return reshapes, slices


def _is_in_place(node: Node) -> bool:
    """Whether a node gives a row another shape, of sizes that are known: a view, or a Transpose that moves ones."""
    shape, made = node.inputs[0].shape, node.outputs[0].shape
    if shape is None or made is None or not all(isinstance(size, int) for size in (*shape, *made)):
        return False
    return is_free(node) or moves_ones(node)


def _reads_heads(reader: Node, tensor: gs.Tensor, editor: GraphEditor, regions: Container[int]) -> bool:
    """Whether a node is of a region, or takes halves of heads that change places before one reads them."""
    if id(reader) in regions:
        return reader.op not in HAVE_AXIS
    halves = [half for half in reader.outputs if half.name] if parts_of(reader) else []
    joined = [node for half in halves for node in half.outputs]
    if not joined or any(map(editor.is_graph_output, halves)):
        return False
    return all(
        source_of_swapped(node) is tensor
        and not editor.is_graph_output(node.outputs[0])
        and all(id(one) in regions and one.op not in HAVE_AXIS for one in node.outputs[0].outputs)
        for node in joined
    )
