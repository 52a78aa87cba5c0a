"""The shapes that tensors are likely to have where a model leaves sizes open: to weigh one plan against another."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import constant_value
from onnxfuse.model.graph import sorted_nodes
from onnxfuse.model.graph_ir import VIEWS, permutation_of, standard_op
from onnxfuse.program.lowering import is_elementwise

LIKELY_SIZE = 320
"""Of an open dimension other than the first, which is taken for a batch of one."""

Shape = tuple[int, ...]


class LikelyShapes:
    """Shapes of the tensors of one graph whose shapes have been inferred, with guesses for what is open.

    Inputs have the shapes ``given`` for their names, and symbols the one size.  What is guessed for a symbol holds
    wherever it is.
    """

    def __init__(self, graph: gs.Graph, given: Mapping[str, Shape] | None = None) -> None:
        self._shapes: dict[int, Shape] = {}
        inputs = {tensor.name for tensor in graph.inputs}
        self._symbols = {name: shape[0] for name, shape in (given or {}).items() if name not in inputs and shape}
        for tensor in graph.inputs:
            if given and tensor.name in given:
                self._note(tensor, given[tensor.name])
        for node in sorted_nodes(graph):
            for index, tensor in enumerate(node.outputs):
                if (shape := self._guess(node, tensor, index)) is not None:
                    self._note(tensor, shape)

    def of(self, tensor: gs.Tensor) -> Shape | None:
        """The shape of a tensor; None if its rank is not known."""
        if id(tensor) in self._shapes:
            return self._shapes[id(tensor)]
        if tensor.shape is None:
            return None
        default = (1 if axis == 0 else LIKELY_SIZE for axis in range(len(tensor.shape)))
        return tuple(own if size is None else size for size, own in zip(self._sizes(tensor), default, strict=True))

    def _note(self, tensor: gs.Tensor, shape: Shape) -> None:
        self._shapes[id(tensor)] = shape
        for dim, size in zip(tensor.shape or (), shape, strict=False):
            if isinstance(dim, str):
                self._symbols.setdefault(dim, size)

    def _sizes(self, tensor: gs.Tensor) -> list[int | None]:
        """The sizes of a tensor of known rank, as far as they are known or have been guessed."""
        return [int(dim) if isinstance(dim, (int, np.integer)) else self._symbols.get(dim) for dim in tensor.shape]

    def _guess(self, node: gs.Node, tensor: gs.Tensor, index: int) -> Shape | None:
        """The inferred shape, its open sizes as the node computes them from its inputs."""
        if tensor.shape is None or all(isinstance(dim, int) for dim in tensor.shape):
            return None
        operator = standard_op(node)
        if index > 0 and operator != "Split":
            return None
        sizes = self._sizes(tensor)
        if operator in VIEWS:
            read = self.of(node.inputs[0])
            return None if read is None else _reshaped(read, sizes)
        shapes = [shape for shape in map(self.of, node.inputs) if shape is not None]
        alike = [shape for shape in shapes if len(shape) == len(sizes)]
        if not alike:
            return None
        computed = [*_computed(node, alike)] or [min(max(each), LIKELY_SIZE) for each in zip(*alike, strict=True)]
        return tuple(max(int(other), 1) if size is None else size for size, other in zip(sizes, computed, strict=True))


def _reshaped(read: Shape, made: Sequence[int | None]) -> Shape:
    """A shape of as many elements as ``read`` has, where ``made`` has None for the sizes that are open.

    The first size is that of ``read``, as of a batch.  The last ones are too if they fit, as those of an image whose
    channels are taken apart; others share what there is.
    """
    sizes = {axis: size for axis, size in enumerate(made) if size is not None}
    unknown = [axis for axis, size in enumerate(made) if size is None]
    if unknown and unknown[0] == 0 and read:
        sizes[unknown.pop(0)] = read[0]
    rest = math.prod(read) // max(math.prod(sizes.values()), 1)
    if unknown:
        last = read[-len(unknown) :]
        fits = len(last) == len(unknown) and math.prod(last) == rest
        sizes.update(zip(unknown, last if fits else [round(rest ** (1 / len(unknown)))] * len(unknown), strict=True))
    return tuple(max(sizes[axis], 1) for axis in range(len(made)))


def _computed(node: gs.Node, shapes: Sequence[Shape]) -> Iterable[float]:
    """The sizes of a node's result, given the shapes of those inputs that have its rank; empty if not known."""
    first, operator = shapes[0], standard_op(node)
    if is_elementwise(node):
        return [max(sizes) for sizes in zip(*shapes, strict=True)]
    if operator == "Concat":
        axis = int(node.attrs.get("axis", 0)) % len(first)
        return [sum(shape[d] for shape in shapes) if d == axis else size for d, size in enumerate(first)]
    if operator == "Transpose":
        return [first[axis] for axis in permutation_of(node, len(first)) or ()]
    if operator in ("Conv", "MaxPool", "AveragePool", "LpPool", "ConvTranspose"):
        strides = node.attrs.get("strides") or [1] * (len(first) - 2)
        wider = operator == "ConvTranspose"
        return [
            *first[:2],
            *(size * stride if wider else -(-size // stride) for size, stride in zip(first[2:], strides, strict=False)),
        ]
    if operator in ("Resize", "Upsample"):
        for values in map(constant_value, node.inputs[1:]):
            if values is not None and values.dtype == np.float32 and values.size == len(first):
                return [size * scale for size, scale in zip(first, values.tolist(), strict=True)]
        return []
    return first
