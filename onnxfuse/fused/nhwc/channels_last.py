"""The pass channels-last: for CUDA with ``prefer_nhwc``, nodes between convolutions have their channels last.

With that option ONNX Runtime computes convolutions and pools with the channels last, puts a Transpose before and after
each, and removes those that undo each other, past its own elementwise operators too.  Past a fused node it cannot.  So
these nodes are written for channels that come last, with the Transposes that undo ONNX Runtime's around them.

Which nodes: the cheapest assignment of the two layouts to the nodes of a graph, a minimum cut, where each tensor that
is made in one layout and read in the other costs a Transpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.kinds import PREFERS_NHWC
from onnxfuse.fused.likely_shapes import LikelyShapes
from onnxfuse.fused.minimum_cut import MinimumCut
from onnxfuse.fused.nhwc.nhwc_layout import permuted, to_first, to_last
from onnxfuse.model.constants import constant_value, is_constant
from onnxfuse.model.graph import captured_tensors, sorted_nodes
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.passes.cancel_transposes import in_order, is_for_any_order
from onnxfuse.passes.rules.fold_affine.affine import Axis, read_step
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor
from onnxfuse.rewrite.rule import Refusal
from onnxfuse.shapes.inference import infer

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model

NAME = "channels-last"
_RANK = 4
_TO_LAST, _TO_FIRST = to_last(_RANK), to_first(_RANK)

_IN_NHWC = {
    *("Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
    *("DepthToSpace", "SpaceToDepth", "LRN", "GridSample"),
}
"""What ONNX Runtime's CUDA provider computes with the channels last (``CUDAExecutionProvider::
ShouldConvertDataLayoutForOp``), but for BatchNormalization, which is fused."""
_MOVED_PAST = {"Concat", "Pad", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Slice", "Split"}
"""What its optimizer (``onnx_transpose_optimization.cc``) moves Transposes past, besides elementwise nodes."""
_TYPES = (np.dtype(np.float32), np.dtype(np.float16))
_FIRST_OPSET = 9
"""BatchNormalization has its form since then, and operands are broadcast from the last dimension since opset 7."""
_LAUNCH = 2.5
_BYTES_A_MICROSECOND = 1.5e6
"""Of a Transpose, reading and writing; some half of what an H100 copies.  Only ratios matter here."""


class ChannelsLast:
    """Writes elementwise nodes for channels that come last, where the request is for ``prefer_nhwc``."""

    name = NAME
    description = (
        "For CUDA with prefer_nhwc: computes elementwise nodes between convolutions with the channels last, as these."
    )

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrites ``model`` in place."""
        if not (context.on.nhwc_option and context.prefer_nhwc):
            return
        if any(tensor.dtype is None for graph in model.graphs() for node in graph.nodes for tensor in node.outputs):
            infer(model)  # earlier passes have added tensors
        if not any(_is_in_nhwc(node) for graph in model.graphs() for node in graph.nodes):
            return
        model.metadata[PREFERS_NHWC] = "1"
        if model.opsets.get("", 0) < _FIRST_OPSET:
            return
        editor = GraphEditor(model)
        try:
            for graph in model.fusible_graphs():
                moved = _Choice(graph, editor.is_graph_output).solve()
                if moved:
                    context.rewrote(NAME, moved)
                    _Move(model, editor, moved).run()
        finally:
            editor.finish()


class _Choice:
    """The side True of the cut has the channels last."""

    def __init__(self, graph: gs.Graph, is_output: Callable[[gs.Tensor], bool]) -> None:
        self._nodes = sorted_nodes(graph)
        self._is_output = is_output
        self._shapes = LikelyShapes(graph)
        self._cut = MinimumCut()
        self._plain, self._last = object(), object()
        """Stand for all that has its channels first, or last, whatever the assignment."""

    def solve(self) -> list[Node]:
        """The elementwise nodes to be computed with the channels last, in topological order."""
        if not any(map(_is_in_nhwc, self._nodes)):
            return []
        self._cut.add(self._plain, math.inf, 0.0)
        self._cut.add(self._last, 0.0, math.inf)
        movable = [node for node in self._nodes if _is_movable(node)]
        free = {id(node) for node in (*movable, *filter(_is_moved_past, self._nodes))}
        made: dict[int, Any] = {}
        readers: dict[int, list[Any]] = {}
        tensors: dict[int, gs.Tensor] = {}
        for node in self._nodes:
            for tensor, side in self._reads(node, free):
                readers.setdefault(id(tensor), []).append(side)
                tensors[id(tensor)] = tensor
            for index, tensor in enumerate(node.outputs):
                made[id(tensor)] = self._makes(node, index, free)
                tensors[id(tensor)] = tensor
        for key, tensor in tensors.items():
            if not is_constant(tensor):
                found = readers.get(key, [])
                found = [*found, self._plain] if self._is_output(tensor) else found
                self._connect(tensor, made.get(key, self._plain), found)
        last = self._cut.solve()
        return [node for node in movable if id(node) in last]

    def _reads(self, node: Node, free: Container[int]) -> Iterator[tuple[gs.Tensor, Any]]:
        """The tensors that a node reads, and the layout in which it does, that of the node itself if it is ``free``."""
        for index, tensor in enumerate(node.inputs):
            side = self._plain
            if id(node) in free and (index == 0 or node.op == "Concat" or _is_movable(node)):
                side = id(node)
            elif index == 0 and (_is_in_nhwc(node) or _permutes(node, _TO_LAST)):
                side = self._last
            yield tensor, side
        yield from ((tensor, self._plain) for tensor in captured_tensors(node))

    def _makes(self, node: Node, index: int, free: Container[int]) -> Any:
        """The layout in which a node makes an output."""
        if id(node) in free:
            return id(node)
        return self._last if index == 0 and (_is_in_nhwc(node) or _permutes(node, _TO_FIRST)) else self._plain

    def _connect(self, tensor: gs.Tensor, made: Any, readers: Sequence[Any]) -> None:
        """A Transpose for all ``readers`` in the other layout than that in which a tensor is ``made``."""
        if all(reader is made for reader in readers):
            return
        shape = self._shapes.of(tensor)
        size = 1 if tensor.dtype is None else np.dtype(tensor.dtype).itemsize
        cost = _LAUNCH + 2 * size * math.prod(shape or ()) / _BYTES_A_MICROSECOND
        first, last = object(), object()
        self._cut.separate(made, first, cost)
        self._cut.separate(last, made, cost)
        for reader in readers:
            self._cut.separate(first, reader, math.inf)
            self._cut.separate(reader, last, math.inf)


class _Move:
    """Makes nodes anew that compute the same with the channels last."""

    def __init__(self, model: Model, editor: GraphEditor, nodes: Sequence[Node]) -> None:
        self._model = model
        self._editor = editor
        self._nodes = nodes
        self._last: dict[int, gs.Tensor] = {}
        """The tensors with their channels last, by the ids of those that have them first."""
        self._replaced: list[gs.Tensor] = []
        """Keeps these, so that no new one gets the id of one."""

    def run(self) -> None:
        """In place of each node the new one, behind Transposes of what it reads, and before one of its result."""
        moved = set(map(id, self._nodes))
        for node in self._nodes:
            made: list[Node] = []
            read = node.inputs[:1] if node.op == "BatchNormalization" else node.inputs
            operands = [self._operand(tensor, node, made) for tensor in read]
            old = node.outputs[0]
            self._replaced.append(old)
            new = self._tensor(old, f"{old.name}_last")
            made += self._made_anew(node, operands, new)
            undone = [reader for reader in old.outputs if self._undoes(reader, node)]
            for reader in undone:
                self._editor.replace_uses(reader.outputs[0], new)
            done = set(map(id, undone))
            plain = any(id(reader) not in moved and id(reader) not in done for reader in old.outputs)
            plain = plain or self._editor.is_graph_output(old)
            node.outputs.clear()
            self._last[id(old)] = new
            if plain:
                made.append(self._transpose(new, old, _TO_FIRST))
            self._editor.insert(made, at=node)
            self._editor.remove(undone)
        self._editor.remove(self._nodes)

    def _undoes(self, reader: Node, node: Node) -> bool:
        """Whether what a reader of a node makes is what the new node makes."""
        beside = self._editor.graph_index(reader) == self._editor.graph_index(node)
        return beside and _permutes(reader, _TO_LAST) and not self._editor.is_graph_output(reader.outputs[0])

    def _made_anew(self, node: Node, operands: list[gs.Tensor], new: gs.Tensor) -> list[Node]:
        name = self._model.unique_name(f"{label(node)}_last")
        if node.op != "BatchNormalization":
            return [Node(node.op, name, dict(node.attrs), operands, [new])]
        steps = _steps(node)
        assert steps is not None  # _is_movable has asked
        made: list[Node] = []
        value = operands[0]
        for op, constant in steps:
            result = new if op == "Add" else self._tensor(node.inputs[0], f"{name}_{op.lower()}")
            own = name if op == "Add" else self._model.unique_name(f"{name}_{op.lower()}")
            made.append(Node(op, own, {}, [value, self._model.constant(constant, own)], [result]))
            value = result
        return made

    def _operand(self, tensor: gs.Tensor, node: Node, made: list[Node]) -> gs.Tensor:
        if not tensor.name:
            return tensor
        if is_constant(tensor):
            return in_order(self._model, tensor, _TO_LAST)
        if id(tensor) not in self._last and tensor.inputs and _permutes(tensor.inputs[0], _TO_FIRST):
            maker = tensor.inputs[0]
            # In another graph the name of what the Transpose reads may be that of another tensor.
            if self._editor.graph_index(maker) == self._editor.graph_index(node):
                self._last[id(tensor)] = maker.inputs[0]
        if id(tensor) not in self._last:
            self._last[id(tensor)] = self._tensor(tensor, f"{tensor.name}_last")
            made.append(self._transpose(tensor, self._last[id(tensor)], _TO_LAST))
        return self._last[id(tensor)]

    def _tensor(self, plain: gs.Tensor, name: str) -> gs.Tensor:
        return gs.Variable(self._model.unique_name(name), plain.dtype, permuted(plain.shape))

    def _transpose(self, tensor: gs.Tensor, result: gs.Tensor, perm: Sequence[int]) -> Node:
        name = self._model.unique_name(f"{result.name}_transpose")
        return Node("Transpose", name, {"perm": list(perm)}, [tensor], [result])


def _is_in_nhwc(node: Node) -> bool:
    """Whether ONNX Runtime computes a node with the channels last."""
    if standard_op(node) not in _IN_NHWC or any(tensor.name for tensor in node.outputs[1:]):
        return False
    return _is_image(node.inputs[0]) and node.inputs[0].dtype in _TYPES


def _permutes(node: Node, perm: Sequence[int]) -> bool:
    """Whether a node is the Transpose by ``perm``."""
    return standard_op(node) == "Transpose" and node.attrs.get("perm") == perm


def _is_moved_past(node: Node) -> bool:
    """Whether ONNX Runtime moves Transposes past a node."""
    if standard_op(node) not in _MOVED_PAST:
        return False
    return node.attrs.get("keepdims", 1) != 0 and _is_image(node.inputs[0]) and _is_image(node.outputs[0])


def _is_movable(node: Node) -> bool:
    """Whether an elementwise node can be written for channels that come last."""
    if not node.outputs or not _is_image(node.outputs[0]):
        return False
    if standard_op(node) == "BatchNormalization":
        return _is_image(node.inputs[0]) and _steps(node) is not None
    operands = [tensor for tensor in node.inputs if tensor.name and not is_constant(tensor)]
    return is_for_any_order(node, _RANK) and bool(operands) and all(map(_is_image, operands))


def _is_image(tensor: gs.Tensor) -> bool:
    """Whether a tensor has a batch, channels, and two dimensions, and a type that every Transpose takes."""
    if tensor.shape is None or len(tensor.shape) != _RANK or tensor.dtype is None:
        return False
    dtype = np.dtype(tensor.dtype)
    return dtype.isbuiltin == 1 and dtype.kind in "fiub"


def _steps(node: Node) -> list[tuple[str, np.ndarray]] | None:
    """A BatchNormalization of constant parameters as operators with a constant: (x - mean) · factor + bias.

    None for another, and where the type of x does not hold the factor.
    """
    data, scale = node.inputs[0], node.inputs[1]
    if data.dtype not in _TYPES or scale.shape is None or len(scale.shape) != 1:
        return None
    try:
        factor = read_step(node, Axis(scale.shape[0], _RANK, 1)).scale
    except Refusal:
        return None
    dtype = np.dtype(data.dtype)
    bias, mean = (constant_value(node.inputs[index]) for index in (2, 3))
    if bias is None or mean is None or np.any((factor != 0) & (np.abs(factor) < np.finfo(dtype).tiny)):
        return None
    with np.errstate(over="ignore"):
        steps = [(op, values.astype(dtype)) for op, values in (("Sub", mean), ("Mul", factor), ("Add", bias))]
    return steps if all(np.isfinite(values).all() for _, values in steps) else None
