"""Normalizations along the last axis: LayerNormalization and RMSNormalization, as one node or written out.

J. L. Ba et al., Layer Normalization, 2016; B. Zhang and R. Sennrich, Root Mean Square Layer Normalization, 2019.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import dtype_of, is_constant
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.model.known_operators import is_of_ort
from onnxfuse.ort.ort_fusions import find_normalizations
from onnxfuse.passes.rules.deviation import is_mean_of_rows
from onnxfuse.program.node_lowering import UnsupportedError
from onnxfuse.rewrite.editor import GraphEditor
from onnxfuse.rewrite.matcher import Match, attribute

OTHER_AXES = "it normalizes along other axes than the last one"
NOT_FLOAT32 = "it is not of float32"
UNKNOWN_EPSILON = "its epsilon is not a finite constant of one element in float32"
UNKNOWN_SCALE = "its scale or bias is not a constant of one value for each element of a row"
READ_ELSEWHERE = "a value inside it is read elsewhere too"

_OPERATORS = {"LayerNormalization": True, "RMSNormalization": False}
"""Whether they subtract the mean."""


@dataclass(frozen=True)
class NormalizationBlock:
    """The ``nodes`` that normalize ``x``, in topological order; ``bias`` is None where nothing is added."""

    x: gs.Tensor
    scale: gs.Tensor
    bias: gs.Tensor | None
    epsilon: np.float32
    centered: bool
    nodes: tuple[gs.Node, ...]

    @property
    def result(self) -> gs.Tensor:
        """What the last node makes."""
        made: gs.Tensor = self.nodes[-1].outputs[0]
        return made

    @property
    def vectors(self) -> tuple[gs.Tensor, ...]:
        """The scale, and the bias if there is one."""
        return (self.scale,) if self.bias is None else (self.scale, self.bias)


def find_blocks(
    nodes: Sequence[gs.Node], editor: GraphEditor, opsets: dict[str, int], refuse: Callable[[gs.Node, str], None]
) -> Iterator[NormalizationBlock]:
    """The blocks of a graph's ``nodes``, given in topological order; ``refuse`` is told of those without a kernel."""
    position = {id(node): index for index, node in enumerate(nodes)}
    for node in nodes:
        if standard_op(node) in _OPERATORS and not is_of_ort(node.op, opsets.get("", 1)):
            try:
                yield _checked(_of_operator(node, editor, opsets), editor)
            except UnsupportedError as reason:
                refuse(node, str(reason))
    # What is centered before its root mean square is taken is both: the larger one counts.
    taken: set[int] = set()
    for match in sorted(find_normalizations(nodes, editor), key=lambda match: -len(match.nodes)):
        ids = {id(node) for node in match.nodes}
        if ids & taken:
            continue
        taken |= ids
        try:
            yield _checked(_of_match(match, position), editor)
        except UnsupportedError as reason:
            refuse(match.root, str(reason))


def _of_operator(node: gs.Node, editor: GraphEditor, opsets: dict[str, int]) -> NormalizationBlock:
    x, scale, *more = node.inputs
    rank = None if x.shape is None else len(x.shape)
    if attribute(node, "axis", opsets) not in (-1, None if rank is None else rank - 1):
        raise UnsupportedError(OTHER_AXES)
    if any(tensor.outputs or editor.is_graph_output(tensor) for tensor in node.outputs[1:]):
        raise UnsupportedError(READ_ELSEWHERE)
    bias = more[0] if more and more[0].name else None
    epsilon = np.float32(attribute(node, "epsilon", opsets))
    return NormalizationBlock(x, scale, bias, epsilon, _OPERATORS[node.op], (node,))


def _of_match(match: Match, position: Mapping[int, int]) -> NormalizationBlock:
    x, epsilon = match["x"], match.constant("epsilon")
    centered = standard_op(match.root) == "Add"
    if not all(is_mean_of_rows(node) for node in match.nodes if standard_op(node) == "ReduceMean"):
        raise UnsupportedError(OTHER_AXES)
    if epsilon is None or epsilon.size != 1 or epsilon.dtype != np.float32:
        raise UnsupportedError(UNKNOWN_EPSILON)
    nodes = tuple(sorted(match.nodes, key=lambda node: position[id(node)]))
    bias = match["bias"] if centered else None
    return NormalizationBlock(x, match["scale"], bias, np.float32(epsilon.reshape(())), centered, nodes)


def _checked(block: NormalizationBlock, editor: GraphEditor) -> NormalizationBlock:
    """The block.  Raises UnsupportedError if it has no kernel."""
    if any(dtype_of(tensor) != np.float32 for tensor in (block.x, *block.vectors, block.result)):
        raise UnsupportedError(NOT_FLOAT32)
    shape = block.x.shape
    size = shape[-1] if shape else None
    if not isinstance(size, int) or size < 1 or not all(_is_vector(tensor, size) for tensor in block.vectors):
        raise UnsupportedError(UNKNOWN_SCALE)
    if not np.isfinite(block.epsilon):
        raise UnsupportedError(UNKNOWN_EPSILON)
    inside = {id(node) for node in block.nodes}
    for node in block.nodes[:-1]:
        for tensor in node.outputs:
            if editor.is_graph_output(tensor) or any(id(reader) not in inside for reader in tensor.outputs):
                raise UnsupportedError(READ_ELSEWHERE)
    return block


def _is_vector(tensor: gs.Tensor, size: int) -> bool:
    return is_constant(tensor) and tensor.shape is not None and list(tensor.shape) == [size]
