"""The pass fold-constants: what does not depend on the inputs is computed once, here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import (
    Array,
    byte_size,
    constant_node_value,
    constant_value,
    domain_of,
    dtype_of,
    is_constant,
    is_constant_node,
    is_dense,
    shape_of,
)
from onnxfuse.model.graph_ir import VIEWS, Node, numpy_dtype, standard_op, subgraphs
from onnxfuse.passes.folding import Evaluator
from onnxfuse.passes.result_size import largest_elements, largest_itemsize, most_work
from onnxfuse.passes.scalar_inputs import write_scalars
from onnxfuse.rewrite.base import PassContext
from onnxfuse.rewrite.editor import GraphEditor

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model

NAME = "fold-constants"

_FREE_BYTES = 1 << 12  # a result of this size is folded however small the constants it comes from
_FREE_BYTES_IN_ALL = 1 << 24
_MAX_WORK = 1 << 36  # multiplications in one node: some seconds
_MAX_ROUNDS = 32

RANDOM = frozenset(
    [
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Dropout",
    ]
)
# Runtimes look for these around the weights of a quantized model; folding them would undo the quantization.
QUANTIZATION = frozenset(["QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"])
_NUMERIC = "fiub"
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}


class FoldConstants:
    """Evaluates nodes whose inputs are all constant with ONNX Runtime's CPU kernels, in every graph of the
    model.

    It also turns Constant nodes into initializers and Shape of a known shape into a constant, and drops Identity, Cast
    to the same type, Concat of one tensor, Dropout, what gives a tensor back the shape that others have taken, and, as
    ONNX Runtime does, sums with 0 and products with 1.  A node that makes an output of a graph stays.  A result that
    would make the model larger by more than 4 KiB, or take seconds to compute, stays a node, and so do random and
    quantization ops and ops that are not standard.  All runs of one object make models larger by 16 MiB at most.
    What is read as a scalar becomes one (scalar_inputs.py).
    """

    name = NAME
    description = "Computes what does not depend on the inputs, and drops nodes that do nothing."

    def __init__(self) -> None:
        self._free_bytes = _FREE_BYTES_IN_ALL

    def run(self, model: Model, context: PassContext) -> None:
        """Folds each graph, outer before inner, so that bodies see the constants around them."""
        editor = GraphEditor(model)
        folder = _Folder(editor, context, self._free_bytes)
        try:
            open_before = _open_conditions(editor)
            for graph in editor.graphs:
                folder.fold(graph)
            write_scalars(editor, computed=_open_conditions(editor) < open_before)
        finally:
            editor.finish()
            self._free_bytes = folder.free_bytes


class _Folder:
    """One run over a model.  ``free_bytes`` is by how much it may make it larger."""

    def __init__(self, editor: GraphEditor, context: PassContext, free_bytes: int) -> None:
        self._editor = editor
        self._context = context
        self._opsets = editor.model.opsets
        self._evaluator = Evaluator(self._opsets)
        self.free_bytes = free_bytes
        self._failed: set[int] = set()

    def fold(self, graph: gs.Graph) -> None:
        """Folds one graph to a fixed point."""
        for node in list(graph.nodes):
            if self._editor.graph_index(node) is None:
                continue
            if is_constant_node(node):
                self._take_constant(node)
            elif not self._bypass(node):
                self._take_shape(node)
        for _ in range(_MAX_ROUNDS):
            nodes = self._affordable(self._candidates(graph))
            if not nodes or not self._evaluate(nodes):
                break

    def _take_constant(self, node: Node) -> None:
        """Constant node → initializer of the same name."""
        if len(node.outputs) == 1 and not self._editor.is_graph_output(node.outputs[0]):
            value = constant_node_value(node)
            if value is not None and self._agrees(node.outputs[0], value):
                self._replace(node, [value], report=False)

    def _take_shape(self, node: Node) -> None:
        """Shape or Size of a tensor whose shape inference knows → constant."""
        if node.op not in ("Shape", "Size") or domain_of(node) != "" or self._returned(node):
            return
        shape = shape_of(node.inputs[0])
        if shape is None:
            return
        if node.op == "Size":
            value = np.array(int(np.prod(shape, dtype=np.int64)), np.int64)
        else:
            value = np.array(shape[node.attrs.get("start", 0) : node.attrs.get("end", None)], np.int64).reshape(-1)
        if self._agrees(node.outputs[0], value):
            self._replace(node, [value])

    def _bypass(self, node: Node) -> bool:
        """Makes the readers of a node that passes its input on read that input; whether ``node`` was such a
        one.
        """
        if domain_of(node) != "" or not self._passes_on(node) or self._returned(node):
            return False
        self._context.rewrote(NAME, [node])
        source = _kept_operand(node) or self._undone_view(node) or node.inputs[0]
        self._editor.replace_uses(node.outputs[0], source)
        self._editor.remove([node])
        return True

    def _passes_on(self, node: Node) -> bool:
        if any(tensor.name for tensor in list(node.outputs)[1:]):
            return False
        if node.op == "Identity" or (node.op == "Concat" and len(node.inputs) == 1):
            return True
        if node.op == "Cast":
            source, result = dtype_of(node.inputs[0]), _cast_target(node)
            return source is not None and source == result
        if _kept_operand(node) is not None or self._undone_view(node) is not None:
            return True
        if node.op == "Dropout" and self._opsets.get("", 1) >= 7:
            training = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2].name else None
            if training is None:
                return True
            value = constant_value(training)
            return value is not None and not value.any()
        return False

    def _undone_view(self, node: Node) -> gs.Tensor | None:
        """The tensor that a node gives the shape again which others before it have taken; None if it does not."""
        source = node.inputs[0] if node.op in VIEWS else None
        while source is not None:
            if _has_shape_of(node.outputs[0], source):
                return source
            before = source.inputs[0] if len(source.inputs) == 1 else None
            inside = before is not None and self._editor.graph_index(before) == self._editor.graph_index(node)
            source = before.inputs[0] if before is not None and inside and _is_view(before) else None
        return None

    def _candidates(self, graph: gs.Graph) -> list[Node]:
        """The nodes of ``graph`` that could be folded, size apart, in topological order."""
        constant: set[int] = set()
        found = []
        for node in graph.nodes:
            if self._editor.graph_index(node) is None or id(node) in self._failed or not self._foldable(node):
                continue
            inputs = [tensor for tensor in node.inputs if tensor.name]
            if all(id(tensor) in constant or _is_numeric_constant(tensor) for tensor in inputs):
                constant.update(id(tensor) for tensor in node.outputs)
                found.append(node)
        return found

    def _foldable(self, node: Node) -> bool:
        """Whether the op is one whose result depends on its inputs alone, and is an ordinary tensor."""
        if domain_of(node) != "" or node.op in RANDOM or node.op in QUANTIZATION or node.op == "Constant":
            return False
        if "Sequence" in node.op or "Optional" in node.op or "String" in node.op:
            return False
        if subgraphs(node):
            return False
        if not any(tensor.name for tensor in node.inputs) or self._returned(node):
            return False
        if node.op in ("Div", "Mod") and not _is_safe_divisor(node.inputs[1]):
            return False
        if node.op == "Cast" and getattr(_cast_target(node), "kind", "") not in tuple(_NUMERIC):
            return False
        dtypes = (dtype_of(tensor) for tensor in node.outputs if tensor.name)
        return all(dtype is None or dtype.kind in _NUMERIC for dtype in dtypes)

    def _returned(self, node: Node) -> bool:
        return any(self._editor.is_graph_output(tensor) for tensor in node.outputs if tensor.name)

    def _affordable(self, candidates: list[Node]) -> list[Node]:
        """Those of ``candidates`` whose results may take the place of the constants that they are made from.

        A constant pays for as much as its own size in all, and only if all its readers go; the rest has to be small.
        """
        while True:
            inside = {id(node) for node in candidates}
            elements: dict[str, int] = {}
            credit: dict[str, int] = {}
            free = self.free_bytes
            kept: list[Node] = []
            refused: list[tuple[Node, str]] = []
            for node in candidates:
                inputs = {tensor.name: tensor for tensor in node.inputs if tensor.name}
                for name, tensor in inputs.items():
                    if name not in elements and isinstance(tensor, gs.Constant):
                        elements[name] = int(np.prod(tensor.shape, dtype=np.int64))
                        readers_go = all(id(reader) in inside for reader in tensor.outputs)
                        credit[name] = (byte_size(tensor) or 0) if readers_go else 0
                if not all(name in elements for name in inputs):
                    continue
                bounds = largest_elements(node, elements)
                if bounds is None:
                    if all(isinstance(tensor, gs.Constant) for tensor in inputs.values()):
                        refused.append((node, "the size of its result is not known beforehand"))
                    continue
                outputs = [tensor for tensor in node.outputs if tensor.name]
                size = sum(bounds) * largest_itemsize(node)
                paid = sum(credit[name] for name in inputs)
                if size > max(_FREE_BYTES, paid) or size - paid > free:
                    refused.append((node, f"its result would make the model larger ({size} bytes from {paid})"))
                    continue
                if most_work(node, elements) > _MAX_WORK:
                    refused.append((node, "it would take too long to compute"))
                    continue
                free -= max(size - paid, 0)
                for name in inputs:
                    used = min(size, credit[name])
                    credit[name] -= used
                    size -= used
                for tensor, bound in zip(outputs, bounds, strict=True):
                    elements[tensor.name] = bound
                    readers_go = all(id(reader) in inside for reader in tensor.outputs)
                    credit[tensor.name] = bound * largest_itemsize(node) if readers_go else 0
                kept.append(node)
            if not refused:
                self.free_bytes = free
                return kept
            for node, reason in refused:
                self._failed.add(id(node))
                self._context.refused(NAME, node, reason)
            candidates = _without(candidates, {id(node) for node, _ in refused})

    def _evaluate(self, nodes: list[Node]) -> bool:
        """Evaluates ``nodes`` and puts the results in their place; whether any was folded."""
        known = {
            tensor.name: value
            for node in nodes
            for tensor in node.inputs
            if tensor.name and (value := constant_value(tensor)) is not None
        }
        values, failures = self._evaluator.evaluate(nodes, known)
        found: list[tuple[Node, list[Array]]] = []
        for node in nodes:
            outputs = [tensor for tensor in node.outputs if tensor.name]
            reason = failures.get(node.outputs[0].name)
            if reason is None and not all(self._agrees(tensor, values[tensor.name]) for tensor in outputs):
                reason = "its result is not of the type and shape that the model declares"
            if reason is not None:
                self._failed.add(id(node))
                self._context.refused(NAME, node, reason)
            else:
                found.append((node, [values[tensor.name] for tensor in outputs]))
        for node, results in found:  # only now: it may give tensors other names
            self._replace(node, results)
        return bool(found)

    @staticmethod
    def _agrees(tensor: gs.Tensor, value: Array) -> bool:
        dtype = dtype_of(tensor)
        if value.dtype.kind not in _NUMERIC and dtype != value.dtype:
            return False
        if dtype is not None and dtype != value.dtype:
            return False
        if tensor.shape is None:
            return True
        dims = list(tensor.shape)
        return len(dims) == value.ndim and all(
            not isinstance(dim, int) or dim < 0 or dim == actual for dim, actual in zip(dims, value.shape, strict=True)
        )

    def _replace(self, node: Node, values: list[Array], report: bool = True) -> None:
        """Makes the outputs of ``node`` that have names constants of these, or equal ones, and removes it."""
        if report:
            self._context.rewrote(NAME, [node])
        outputs = [tensor for tensor in node.outputs if tensor.name]
        node.outputs.clear()
        for tensor, value in zip(outputs, values, strict=True):
            tensor.to_constant(np.array(value, order="C"))
            if report:
                self._editor.replace_uses(tensor, self._editor.model.shared(tensor))
        self._editor.remove([node])


def _open_conditions(editor: GraphEditor) -> int:
    """How many If have a condition that is no constant; ONNX Runtime puts a body in the place of the others."""
    nodes = (node for graph in editor.graphs for node in graph.nodes if standard_op(node) == "If")
    return sum(not is_constant(node.inputs[0]) for node in nodes if editor.graph_index(node) is not None)


def _is_view(node: Node) -> bool:
    return domain_of(node) == "" and node.op in VIEWS


def _has_shape_of(tensor: gs.Tensor, other: gs.Tensor) -> bool:
    """Whether two tensors of as many elements have one shape: a size that is open follows from the others."""
    if tensor.shape is None or other.shape is None or len(tensor.shape) != len(other.shape):
        return False
    pairs = list(zip(tensor.shape, other.shape, strict=True))
    known = [isinstance(one, int) and one == size and one > 0 for one, size in pairs]
    return known.count(False) <= 1 and all(
        is_known or not (isinstance(one, int) and isinstance(size, int))
        for is_known, (one, size) in zip(known, pairs, strict=True)
    )


def _kept_operand(node: Node) -> gs.Tensor | None:
    """What a node adds the number 0 to or multiplies by 1, with as many dimensions; None if it does anything else."""
    if node.op not in _NEUTRAL or len(node.inputs) != 2:
        return None
    for place in (1, 0) if node.op in ("Add", "Mul") else (1,):
        number, other = node.inputs[place], node.inputs[1 - place]
        shape = shape_of(number)
        if shape is None or other.shape is None or len(shape) > len(other.shape) or math.prod(shape) != 1:
            continue
        value = constant_value(number)
        if value is None or value.dtype.kind not in _NUMERIC or value.reshape(()) != _NEUTRAL[node.op]:
            continue
        if other.inputs or not _changes_zero(node.op, value):
            return other
    return None


def _changes_zero(op: str, zero: np.ndarray) -> bool:
    """Whether -0 becomes 0 when a zero is added or subtracted, as ONNX Runtime has it for a graph's inputs alone."""
    return op in ("Add", "Sub") and zero.dtype.kind == "f" and bool(np.signbit(zero)) == (op == "Sub")


def _is_safe_divisor(divisor: gs.Tensor) -> bool:
    """Whether no process dies of an integer divided by it, as of one by 0 or of the smallest by -1.  One that is not
    known yet may be in the next round.
    """
    dtype = dtype_of(divisor)
    if dtype is not None and dtype.kind not in "iu":
        return True
    value = constant_value(divisor)
    return value is not None and (value.dtype.kind not in "iu" or not np.any((value == 0) | (value == -1)))


def _is_numeric_constant(tensor: gs.Tensor) -> bool:
    if not isinstance(tensor, gs.Constant):
        return False
    dtype = dtype_of(tensor)
    return is_dense(tensor) and dtype is not None and dtype.kind in _NUMERIC


def _cast_target(node: Node) -> np.dtype[Any] | None:
    to = node.attrs.get("to")
    if isinstance(to, str):  # as it was before opset 6
        to = dict(onnx.TensorProto.DataType.items()).get(to)
    if isinstance(to, int):
        return numpy_dtype(to)
    return np.dtype(to) if isinstance(to, (np.dtype, type)) else None


def _without(nodes: list[Node], dropped: set[int]) -> list[Node]:
    """``nodes`` less those in ``dropped``, and less those that read a result of one of these."""
    lost: set[int] = set()
    kept = []
    for node in nodes:
        if id(node) in dropped or any(id(tensor) in lost for tensor in node.inputs):
            lost.update(id(tensor) for tensor in node.outputs)
        else:
            kept.append(node)
    return kept
