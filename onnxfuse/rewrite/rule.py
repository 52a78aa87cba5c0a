"""Rewrite rules: a pattern, a check that says why not, and a rewrite."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.constants import dtype_of
from onnxfuse.model.graph_ir import Node
from onnxfuse.rewrite.matcher import Match, Matcher
from onnxfuse.rewrite.pattern import Ops, Value, Variable, root_ops

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.rewrite.base import PassContext

NOT_APPLICABLE = ""
"""What ``check`` returns where the rule simply does not apply and nobody would ask why."""


class Refusal(Exception):  # noqa: N818 - not an error: a rule declines
    """Raised in ``check`` or ``rewrite`` to leave a match alone; the message is the reason, one sentence."""


class Builder:
    """Makes the nodes and constants that replace a match."""

    def __init__(self, match: Match) -> None:
        self.match = match
        self.model = match.model
        self.nodes: list[Node] = []
        self._root_label = match.root.name or match.root.outputs[0].name
        self._free_names = {node.name: node.op for node in match.nodes if node.name}

    def op(
        self,
        op_type: str,
        *inputs: gs.Tensor | float | None,
        _domain: str = "",
        _outputs: int = 1,
        _name: str | None = None,
        **attributes: Any,
    ) -> Any:
        """A new node; returns its output, or a tuple of them.  None stands for an input that is left out.

        A number becomes a scalar constant of the type of the first tensor among the inputs; where that is not
        known the match is refused.  Raises OnnxfuseError for a fraction among integers.  Without ``_name`` the
        node takes over the name of a replaced node of the same op type, or one derived from the node at the root
        of the match.
        """
        node = Node(op_type, attrs=dict(attributes), domain=_domain or None)
        tensors = [self._number(item, inputs) if isinstance(item, (int, float)) else item for item in inputs]
        return self._finish(node, tensors, _outputs, _name)

    def like(self, node: Node, *inputs: gs.Tensor | None, **attributes: Any) -> Any:
        """A copy of a replaced ``node``, its name if that is free, attributes and documentation, with other inputs and
        attributes.
        """
        copied = node.copy()
        copied.attrs.update(attributes)
        return self._finish(copied, inputs, len(node.outputs), node.name if node.name in self._free_names else None)

    def initializer(self, value: Any, hint: str) -> gs.Constant:
        """A constant with a name made from ``hint``, or one that a pass made before with the same values."""
        return self.model.constant(np.asarray(value), hint)

    def set_input(self, node: Node, index: int, tensor: gs.Tensor) -> None:
        """Makes a node that stays read ``tensor`` as its input ``index``, which may be one past the last."""
        while len(node.inputs) < index:
            node.inputs.append(gs.Variable.empty())
        if index == len(node.inputs):
            node.inputs.append(tensor)
        else:
            node.inputs[index] = tensor

    def _number(self, number: float, inputs: Sequence[gs.Tensor | float | None]) -> gs.Constant:
        first = next((item for item in inputs if isinstance(item, gs.Tensor) and item.name), None)
        dtype = None if first is None else dtype_of(first)
        if dtype is None:
            raise Refusal(f"the type of the number {number} is not known")
        if dtype.kind in "iu" and number != int(number):
            raise OnnxfuseError(f"{number} is no {dtype}")
        return self.initializer(np.array(number, dtype), "number")

    def _finish(self, node: Node, inputs: Sequence[gs.Tensor | None], outputs: int, name: str | None) -> Any:
        node.name = name if name is not None else self._name_for(node.op)
        self._free_names.pop(node.name, None)
        node.inputs.extend([gs.Variable.empty() if tensor is None else tensor for tensor in inputs])
        results = tuple(gs.Variable(self.model.unique_name(f"{node.name}_output")) for _ in range(outputs))
        node.outputs.extend(results)
        self.nodes.append(node)
        return results[0] if outputs == 1 else results

    def _name_for(self, op_type: str) -> str:
        for name, replaced in self._free_names.items():
            if replaced == op_type:
                return str(name)
        return str(self.model.unique_name(f"{self._root_label}_{op_type}"))


class RewriteRule:
    """A rewrite: subclasses give ``name``, ``pattern``, ``rewrite`` and, where not every match is good,
    ``check``.

    A match is left alone where a value inside the pattern, not one that the pattern returns, is also read
    elsewhere or returned by the graph.  ``keep_shared_nodes = True`` lifts that: such inner nodes then stay
    in the graph beside the replacement, for their other readers.

    ``everything`` is that of the PassContext: a rule then applies wherever it can, whether or not that gains.
    """

    name: str = ""
    description: str = ""
    keep_shared_nodes: bool = False
    everything: bool = False

    def begin(self, model: Model, context: PassContext) -> None:
        """Called once before the rule is applied to a model: the place to reset what a rule counts."""

    def may_end_at(self, node: Node) -> bool:
        """Whether a match may have ``node`` as its root: a glance that saves looking for the pattern, where many nodes
        could be roots and few are.
        """
        return True

    def pattern(self, op: Ops, *variables: Any) -> Any:
        """The value to replace, or a tuple of several, as an expression over ``op`` and the variables."""
        raise NotImplementedError

    def check(self, match: Match) -> str | None:
        """None to go ahead, or the reason not to, one sentence; ``NOT_APPLICABLE`` for a reason not worth
        reporting.
        """
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """Builds the replacement; returns one tensor for each value that ``pattern`` returns (a tuple of
        several).
        """
        raise NotImplementedError


class CompiledRule:
    """A rule with its pattern built: what the rewriter works with."""

    def __init__(self, rule: RewriteRule) -> None:
        self.rule = rule
        if not rule.name:
            raise OnnxfuseError(f"rewrite rule {type(rule).__name__} has no name")
        for method in ("pattern", "rewrite"):
            if getattr(type(rule), method) is getattr(RewriteRule, method):
                raise OnnxfuseError(f"rewrite rule {rule.name} has no method {method}")
        names = list(inspect.signature(rule.pattern).parameters)[1:]
        try:
            returned = rule.pattern(Ops(), *map(Variable, names))
            outputs: Sequence[Value] = returned if isinstance(returned, tuple) else (returned,)
            if not outputs:
                raise TypeError("a pattern must have an output")
            self.roots = tuple(dict.fromkeys(root_ops(outputs[0])))
            for output in outputs[1:]:
                list(root_ops(output))
        except TypeError as error:
            raise OnnxfuseError(f"rewrite rule {rule.name}: {error}") from error
        except Exception as error:
            error.add_note(f"in the pattern of rewrite rule {rule.name}")
            raise
        self.matcher = Matcher(outputs)
