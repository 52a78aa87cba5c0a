"""The shapes that tensors are likely to have where a model leaves sizes open: to weigh one plan against another."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.graph import sorted_nodes
from onnxfuse.program.lowering import is_elementwise

LIKELY_SIZE = 320
"""Of an open dimension other than the first, which is taken for a batch of one."""

Shape = tuple[int, ...]


class LikelyShapes:
    """Shapes of the tensors of one graph whose shapes have been inferred, with guesses for what is open.

    Inputs have the shapes ``given`` for their names.
    """

    def __init__(self, graph: gs.Graph, given: Mapping[str, Shape] | None = None) -> None:
        given = given or {}
        self._shapes: dict[int, Shape] = {id(one): given[one.name] for one in graph.inputs if one.name in given}
        for node in sorted_nodes(graph):
            for index, tensor in enumerate(node.outputs):
                if (shape := self._guess(node, tensor, index)) is not None:
                    self._shapes[id(tensor)] = shape

    def of(self, tensor: gs.Tensor) -> Shape | None:
        """The shape of a tensor; None if its rank is not known."""
        if id(tensor) in self._shapes:
            return self._shapes[id(tensor)]
        if tensor.shape is None:
            return None
        return tuple(
            int(dim) if isinstance(dim, (int, np.integer)) else 1 if axis == 0 else LIKELY_SIZE
            for axis, dim in enumerate(tensor.shape)
        )

    def _guess(self, node: gs.Node, tensor: gs.Tensor, index: int) -> Shape | None:
        """The inferred shape, its open sizes as the node computes them from its inputs."""
        if tensor.shape is None or index > 0 or all(isinstance(dim, int) for dim in tensor.shape):
            return None
        shapes = [shape for shape in map(self.of, node.inputs) if shape is not None]
        rank = len(tensor.shape)
        alike = [shape for shape in shapes if len(shape) == rank]
        if not alike:
            return None
        computed = [*_computed(node, alike)] or [min(max(sizes), LIKELY_SIZE) for sizes in zip(*alike, strict=True)]
        return tuple(
            dim if isinstance(dim, int) else max(int(size), 1) for dim, size in zip(tensor.shape, computed, strict=True)
        )


def _computed(node: gs.Node, shapes: Sequence[Shape]) -> Iterable[float]:
    """The sizes of a node's result, given the shapes of those inputs that have its rank; empty if not known."""
    first = shapes[0]
    if is_elementwise(node):
        return [max(sizes) for sizes in zip(*shapes, strict=True)]
    if node.op == "Concat":
        axis = int(node.attrs.get("axis", 0)) % len(first)
        return [sum(shape[d] for shape in shapes) if d == axis else size for d, size in enumerate(first)]
    if node.op == "Transpose":
        return [first[axis] for axis in node.attrs.get("perm") or range(len(first))[::-1]]
    if node.op in ("Conv", "MaxPool", "AveragePool", "LpPool", "ConvTranspose"):
        strides = node.attrs.get("strides") or [1] * (len(first) - 2)
        wider = node.op == "ConvTranspose"
        return [
            *first[:2],
            *(size * stride if wider else -(-size // stride) for size, stride in zip(first[2:], strides, strict=False)),
        ]
    if node.op in ("Resize", "Upsample"):
        for tensor in node.inputs[1:]:
            if isinstance(tensor, gs.Constant) and tensor.dtype == np.float32 and tensor.values.size == len(first):
                return [size * scale for size, scale in zip(first, tensor.values.tolist(), strict=True)]
        return []
    return first
