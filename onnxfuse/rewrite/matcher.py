"""Finding a pattern in a graph."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import Array, constant_value, domain_of, is_constant
from onnxfuse.rewrite.editor import GraphEditor, unique_nodes
from onnxfuse.rewrite.pattern import AnyOf, Constant, NodePattern, Optional, Output, Value, Variable

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.model.graph_ir import Node

_MAX_PERMUTED_INPUTS = 4  # 24 orders at most; longer variadic nodes are matched in the order written


class _State:
    """What has been matched so far.  Copied where the search branches."""

    def __init__(self) -> None:
        self.values: dict[str, gs.Tensor | None] = {}
        self.named: dict[str, Node] = {}
        self.nodes: dict[int, Node] = {}  # by id of the node pattern
        self.tensors: dict[int, gs.Tensor | None] = {}  # by id of the value pattern

    def copy(self) -> _State:
        other = _State()
        other.values = dict(self.values)
        other.named = dict(self.named)
        other.nodes = dict(self.nodes)
        other.tensors = dict(self.tensors)
        return other


class Match:
    """A place where a pattern fits: the nodes, and the tensors that its variables stand for."""

    def __init__(self, editor: GraphEditor, state: _State, outputs: Sequence[gs.Tensor]) -> None:
        self.model: Model = editor.model
        self.editor = editor
        self.outputs = list(outputs)
        """The tensors that ``rewrite`` has to supply, in the order in which ``pattern`` returns them."""
        self.nodes: list[Node] = unique_nodes(state.nodes.values())
        """The matched nodes; those that produce ``outputs`` are among them."""
        self.notes: list[tuple[Node, str]] = []
        self.plan: Any = None
        """Whatever ``check`` found out that ``rewrite`` needs."""
        self._values = state.values
        self._named = state.named

    @property
    def root(self) -> Node:
        """The node that produces the first output."""
        producer: Node = self.outputs[0].inputs[0]
        return producer

    def __getitem__(self, name: str) -> gs.Tensor:
        """The tensor that the variable or constant ``name`` stands for.  Raises KeyError if it is missing."""
        tensor = self._values.get(name)
        if tensor is None:
            known = ", ".join(known for known, value in self._values.items() if value is not None)
            raise KeyError(f"no variable {name!r}; there is {known or 'none'}")
        return tensor

    def get(self, name: str) -> gs.Tensor | None:
        """The tensor that ``name`` stands for; None for an optional part that is missing."""
        return self._values.get(name)

    def node(self, name: str) -> Node:
        """The node whose pattern has ``_name=name``.  Raises KeyError if that part did not match."""
        return self._named[name]

    def attribute(self, node: str, name: str) -> Any:
        """An attribute of the node of that name, or its default in the model's opset; None if it has neither."""
        return attribute(self.node(node), name, self.model.opsets)

    def has_node(self, name: str) -> bool:
        """Whether the part of the pattern with ``_name=name`` is there."""
        return name in self._named

    def constant(self, name: str) -> Array | None:
        """The value of ``name`` if it is a constant; None if it is not, or is missing."""
        return constant_value(self._values.get(name))

    def opset(self, domain: str = "") -> int:
        """The version of ``domain`` that the model imports; 1 if it names none."""
        return self.model.opsets.get(domain, 1)

    def note(self, node: Node, reason: str) -> None:
        """Records why ``node`` could not take part in the rewrite, whether or not the rewrite goes ahead."""
        self.notes.append((node, reason))

    def absorb(self, node: Node) -> None:
        """Takes ``node``, which must read the output of a match with one output, into it: its output is then
        the match's.
        """
        self.nodes.append(node)
        self.outputs = [node.outputs[0]]


class Matcher:
    """Finds one pattern.  ``outputs`` are the patterns of the values that a rewrite replaces; the first
    anchors it.
    """

    def __init__(self, outputs: Sequence[Value]) -> None:
        self.outputs = list(outputs)

    def match(self, editor: GraphEditor, node: Node) -> Match | None:
        """The pattern's occurrence whose first output ``node`` produces, or None."""
        graph = editor.graph_index(node)
        for tensor in node.outputs:
            if not tensor.name:
                continue
            for state in self._solve(((self.outputs[0], tensor),), _State(), editor, graph):
                for complete in self._anchor(1, state, editor, graph):
                    return Match(editor, complete, [self._bound(output, complete) for output in self.outputs])
        return None

    @staticmethod
    def _bound(value: Value, state: _State) -> gs.Tensor:
        tensor = state.tensors[id(value)]
        assert tensor is not None
        return tensor

    def _anchor(self, index: int, state: _State, editor: GraphEditor, graph: int | None) -> Iterator[_State]:
        """Matches the outputs after the first, each looked for among the readers of what is bound already."""
        if index == len(self.outputs):
            yield state
            return
        output = self.outputs[index]
        for tensor in _candidates(output, state, editor, graph):
            for found in self._solve(((output, tensor),), state, editor, graph):
                yield from self._anchor(index + 1, found, editor, graph)

    def _solve(
        self,
        goals: tuple[tuple[Value, gs.Tensor | None], ...],
        state: _State,
        editor: GraphEditor,
        graph: int | None,
    ) -> Iterator[_State]:
        """Every way to match all ``goals`` (a value pattern, and the tensor or missing input that must fit
        it).
        """
        if not goals:
            yield state
            return
        (value, tensor), rest = goals[0], goals[1:]
        if id(value) in state.tensors:
            if state.tensors[id(value)] is tensor:
                yield from self._solve(rest, state, editor, graph)
            return
        if not _may_fit(value, tensor):
            return
        if isinstance(value, AnyOf):
            for choice in value.choices:
                if not _may_fit(choice, tensor):
                    continue
                branch = state.copy()
                branch.tensors[id(value)] = tensor
                yield from self._solve(((choice, tensor), *rest), branch, editor, graph)
            return
        state = state.copy()
        state.tensors[id(value)] = tensor
        if isinstance(value, Optional):
            if tensor is not None:
                yield from self._solve(((value.inner, tensor), *rest), state, editor, graph)
            elif _bind_missing(value.inner, state):
                yield from self._solve(rest, state, editor, graph)
        elif isinstance(value, Variable):
            if tensor is not None and _bind(value.name, tensor, state):
                yield from self._solve(rest, state, editor, graph)
        elif isinstance(value, Constant):
            if _fits_constant(value, tensor) and (value.name is None or _bind(value.name, tensor, state)):
                yield from self._solve(rest, state, editor, graph)
        elif isinstance(value, Output) and tensor is not None:
            node = _producer(value, tensor, editor, graph)
            if node is None:
                return
            if id(value.node) in state.nodes:
                if state.nodes[id(value.node)] is node:
                    yield from self._solve(rest, state, editor, graph)
                return
            if not _fits_node(value.node, node, editor.model):
                return
            state.nodes[id(value.node)] = node
            if value.node.name is not None:
                state.named[value.node.name] = node
            for operands in _input_orders(value.node, node):
                if not all(map(_may_fit, value.node.inputs, operands)):
                    continue
                yield from self._solve((*zip(value.node.inputs, operands, strict=True), *rest), state, editor, graph)


def may_occur(value: Value, operators: Container[str]) -> bool:
    """Whether a graph of no other ``operators`` may have a match of ``value``."""
    if isinstance(value, Output):
        node = value.node
        return node.op_type in operators and all(may_occur(operand, operators) for operand in node.inputs)
    return not isinstance(value, AnyOf) or any(may_occur(choice, operators) for choice in value.choices)


def _may_fit(value: Value, tensor: gs.Tensor | None) -> bool:
    """What can be told at a glance, before anything is copied: False if the pattern does not fit."""
    if isinstance(value, Output):
        return tensor is not None and len(tensor.inputs) == 1 and tensor.inputs[0].op == value.node.op_type
    if isinstance(value, AnyOf):
        return any(_may_fit(choice, tensor) for choice in value.choices)
    if isinstance(value, Optional):
        return tensor is None or _may_fit(value.inner, tensor)
    return is_constant(tensor) if isinstance(value, Constant) else tensor is not None


def _producer(value: Output, tensor: gs.Tensor, editor: GraphEditor, graph: int | None) -> Node | None:
    """The node of this graph that gives ``tensor`` as the output that the pattern asks for."""
    if len(tensor.inputs) != 1:
        return None
    node: Node = tensor.inputs[0]
    if editor.graph_index(node) != graph or value.index >= len(node.outputs):
        return None
    return node if node.outputs[value.index] is tensor else None


def _bind(name: str, tensor: gs.Tensor | None, state: _State) -> bool:
    if name in state.values:
        return state.values[name] is tensor
    state.values[name] = tensor
    return True


def _bind_missing(value: Value, state: _State) -> bool:
    name = getattr(value, "name", None)
    return name is None or _bind(name, None, state)


def _fits_constant(pattern: Constant, tensor: gs.Tensor | None) -> bool:
    if not is_constant(tensor):
        return False
    if pattern.value is None:
        return True
    values = constant_value(tensor)
    if values is None or values.size == 0 or values.dtype.kind not in "fiub":
        return False
    return bool(np.allclose(values.astype(np.float64), pattern.value, rtol=pattern.tolerance, atol=0.0, equal_nan=True))


def _fits_node(pattern: NodePattern, node: Node, model: Model) -> bool:
    if node.op != pattern.op_type or domain_of(node) != pattern.domain:
        return False
    return all(
        _fits_attribute(expected, attribute(node, name, model.opsets)) for name, expected in pattern.attributes.items()
    )


def _fits_attribute(expected: Any, actual: Any) -> bool:
    if callable(expected):
        return bool(expected(actual))
    if isinstance(expected, float) and isinstance(actual, float):
        return math.isclose(expected, actual, rel_tol=1e-6)  # attributes are stored as float32
    if isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        return len(expected) == len(actual) and all(map(_fits_attribute, expected, actual))
    return bool(expected == actual)


def attribute(node: Node, name: str, opsets: dict[str, int]) -> Any:
    """The node's attribute, or the standard's default for it in the model's opset; None if it has neither."""
    if name in node.attrs:
        return node.attrs[name]
    domain = domain_of(node)
    try:
        schema = onnx.defs.get_schema(node.op, opsets.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return None
    definition = schema.attributes.get(name)
    if definition is None or definition.default_value.type == onnx.AttributeProto.UNDEFINED:
        return None
    value = onnx.helper.get_attribute_value(definition.default_value)
    return value.decode() if isinstance(value, bytes) else value


def _input_orders(pattern: NodePattern, node: Node) -> Iterator[tuple[gs.Tensor | None, ...]]:
    """The orders in which the node's inputs may be held against the pattern's; none if the numbers differ."""
    inputs = tuple(tensor if tensor.name else None for tensor in node.inputs)
    wanted = len(pattern.inputs)
    if len(inputs) < wanted:
        inputs += (None,) * (wanted - len(inputs))
    if len(inputs) > wanted and not pattern.extra_inputs and any(tensor is not None for tensor in inputs[wanted:]):
        return
    if pattern.commutative and len(inputs) <= _MAX_PERMUTED_INPUTS:
        yield from itertools.permutations(inputs, wanted)
    else:
        yield inputs[:wanted]


def _candidates(value: Value, state: _State, editor: GraphEditor, graph: int | None) -> Iterator[gs.Tensor]:
    """Tensors that a further output of the pattern may stand for: outputs of the matched nodes and of readers
    of theirs.
    """
    if isinstance(value, AnyOf):
        for choice in value.choices:
            yield from _candidates(choice, state, editor, graph)
        return
    if not isinstance(value, Output):
        return
    if id(value.node) in state.nodes:
        nodes = [state.nodes[id(value.node)]]
    else:
        read = [tensor for tensor in (_known(operand, state) for operand in value.node.inputs) if tensor is not None]
        readers: list[Node] = min((tensor.outputs for tensor in read), key=len, default=[])
        if not read:
            readers = [
                reader
                for operand in value.node.inputs
                for tensor in _candidates(operand, state, editor, graph)
                for reader in tensor.outputs
            ]
        nodes = [node for node in unique_nodes(readers) if editor.graph_index(node) == graph]
    for node in nodes:
        if node.op == value.node.op_type and value.index < len(node.outputs):
            yield node.outputs[value.index]


def _known(value: Value, state: _State) -> gs.Tensor | None:
    if isinstance(value, Variable):
        return state.values.get(value.name)
    return state.tensors.get(id(value))
