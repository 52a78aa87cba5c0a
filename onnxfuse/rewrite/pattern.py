"""Patterns: shapes of graph written as Python expressions over ops.

``op.Mul(op.Conv(x, w), scale)`` is a tree of the classes below.  Names of op types become node patterns, the
variables are the arguments of a rule's ``pattern`` method, and an expression used twice stands for one value
that is read twice.  Finding a pattern in a graph is in matcher.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import onnx

from onnxfuse.model.elementwise_operators import operators_that

COMMUTATIVE = operators_that(lambda row: row.commutes)
"""Standard ops whose inputs may come in any order."""


class Value:
    """A pattern for one tensor, or for a missing input."""


class Variable(Value):
    """Any tensor; each time it appears in a pattern it must be the same one."""

    def __init__(self, name: str) -> None:
        self.name = name


class Constant(Value):
    """A constant: any, bound to ``name``, or one whose every element is ``value`` within ``tolerance``."""

    def __init__(self, name: str | None, value: float | None, tolerance: float) -> None:
        self.name = name
        self.value = value
        self.tolerance = tolerance


class Optional(Value):
    """``inner``, or an input that the node leaves out (a variable is then bound to None)."""

    def __init__(self, inner: Value) -> None:
        self.inner = inner


class AnyOf(Value):
    """The first of ``choices`` that matches."""

    def __init__(self, choices: tuple[Value, ...]) -> None:
        self.choices = choices


class NodePattern:
    """One node.  ``attributes`` maps names to a value or to a predicate of the value."""

    def __init__(
        self,
        domain: str,
        op_type: str,
        inputs: tuple[Value, ...],
        attributes: dict[str, Any],
        name: str | None,
        extra_inputs: bool,
    ) -> None:
        self.domain = domain
        self.op_type = op_type
        self.inputs = inputs
        self.attributes = attributes
        self.name = name
        self.extra_inputs = extra_inputs

    @property
    def commutative(self) -> bool:
        """Whether the inputs may be matched in any order."""
        return self.domain == "" and self.op_type in COMMUTATIVE


class Output(Value):
    """Output number ``index`` of a node."""

    def __init__(self, node: NodePattern, index: int) -> None:
        self.node = node
        self.index = index


class Ops:
    """What a rule's ``pattern`` gets as ``op``: ``op.Relu(x)``, ``op("com.microsoft").Gelu(x)``,
    ``op.any_of(…)``.

    A call takes the patterns of the inputs, then attributes by name, then these:
    ``_name`` (for ``match.node``), ``_outputs`` (how many outputs the pattern uses: a tuple comes back),
    ``_attrs`` (a dict, for attributes whose names are no Python names), ``_extra_inputs`` (more may follow).
    """

    def __init__(self, domain: str = "") -> None:
        self._domain = "" if domain == "ai.onnx" else domain

    def __call__(self, domain: str) -> Ops:
        """The ops of another domain."""
        return Ops(domain)

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)
        if self._domain == "" and (known := _in_another_case(op_type)):
            raise TypeError(f"there is no operator {op_type}; did you mean {known}?")

        def build(
            *inputs: Value,
            _name: str | None = None,
            _outputs: int = 1,
            _attrs: dict[str, Any] | None = None,
            _extra_inputs: bool = False,
            **attributes: Any,
        ) -> Any:
            operands = tuple(as_value(item) for item in inputs)
            node = NodePattern(self._domain, op_type, operands, {**(_attrs or {}), **attributes}, _name, _extra_inputs)
            outputs = tuple(Output(node, index) for index in range(_outputs))
            return outputs[0] if _outputs == 1 else outputs

        return build

    @staticmethod
    def optional(value: Any) -> Value:
        """An input that may be missing."""
        return Optional(as_value(value))

    def maybe(self, op_type: str, value: Any, **attributes: Any) -> Value:
        """``value``, with or without a unary node of ``op_type`` after it."""
        return AnyOf((getattr(self, op_type)(value, **attributes), as_value(value)))

    @staticmethod
    def any_of(*choices: Any) -> Value:
        """Whichever of ``choices`` matches first."""
        return AnyOf(tuple(as_value(choice) for choice in choices))

    @staticmethod
    def const(value: float, tolerance: float = 1e-5) -> Value:
        """A constant of any shape whose elements all are ``value``, up to ``tolerance`` relative to it."""
        return Constant(None, value, tolerance)

    @staticmethod
    def constant(name: str) -> Value:
        """Any constant, bound to ``name``."""
        return Constant(name, None, 0.0)


def _in_another_case(op_type: str) -> str | None:
    """The standard operator that ``op_type`` misspells; None if it is one, or like none."""
    if onnx.defs.has(op_type):
        return None
    return _standard_operators().get(op_type.lower())


@cache
def _standard_operators() -> dict[str, str]:
    return {schema.name.lower(): schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}


def as_value(item: Any) -> Value:
    """A pattern as it is; a number as a constant of that value."""
    if isinstance(item, Value):
        return item
    if isinstance(item, (int, float)) and not isinstance(item, bool):
        return Constant(None, float(item), 1e-5)
    raise TypeError(f"a pattern is built from variables, numbers and op.…, not from {item!r}")


def root_ops(value: Value) -> Iterator[tuple[str, str]]:
    """The (domain, op type) of each node that can produce ``value``.  Raises TypeError for a variable."""
    if isinstance(value, Output):
        yield value.node.domain, value.node.op_type
    elif isinstance(value, AnyOf):
        for choice in value.choices:
            yield from root_ops(choice)
    else:
        raise TypeError("a pattern must be the output of an op, not a variable or a constant")
