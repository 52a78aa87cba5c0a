"""Applies rewrite rules to every graph of a model until none applies any more."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import onnx_graphsurgeon as gs

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.constants import domain_of
from onnxfuse.model.graph_ir import Node
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor, unique_nodes
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.rule import Builder, CompiledRule, Refusal, RewriteRule

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model

_REWRITES_PER_NODE = 8  # far more than any terminating set of rules needs; ends rules that undo each other


class RulePass:
    """The pass that applies a group of rules; earlier rules are tried first."""

    def __init__(self, rules: Iterable[RewriteRule], name: str | None = None, description: str = "") -> None:
        compiled = [CompiledRule(rule) for rule in rules]
        if not compiled:
            raise OnnxfuseError("a pass needs at least one rewrite rule")
        first = compiled[0].rule
        self.name = name or first.name
        self.description = description or first.description or (type(first).__doc__ or "").strip().split("\n")[0]
        self.rules = [item.rule for item in compiled]
        self._by_root: dict[tuple[str, str], list[CompiledRule]] = {}
        for item in compiled:
            for root in item.roots:
                self._by_root.setdefault(root, []).append(item)

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrites in topological order, and again around each rewrite, up to a bound on the number of
        rewrites.
        """
        for rule in self.rules:
            rule.everything = context.everything
            try:
                rule.begin(model, context)
            except Exception as error:
                error.add_note(f"in rewrite rule {rule.name}")
                raise
        editor = GraphEditor(model)
        try:
            self._run(editor, context)
        finally:
            editor.finish()

    def _run(self, editor: GraphEditor, context: PassContext) -> None:
        queue = deque(node for graph in editor.graphs for node in graph.nodes)
        queued = {id(node) for node in queue}
        allowed = _REWRITES_PER_NODE * len(queue) + 1
        while queue:
            node = queue.popleft()
            queued.discard(id(node))
            again = self._visit(node, editor, context)
            if again is None:
                continue
            allowed -= 1
            if allowed == 0:
                context.report.add_warning(
                    f"{self.name}: stopped before the rules came to rest; they may undo each other"
                )
                return
            # The neighbours next, so that a pattern that spans the replacement is found while it is fresh.
            for neighbour in reversed(again):
                if id(neighbour) not in queued and editor.graph_index(neighbour) is not None:
                    queued.add(id(neighbour))
                    queue.appendleft(neighbour)

    def _visit(self, node: Node, editor: GraphEditor, context: PassContext) -> list[Node] | None:
        """Applies the first rule that fits at ``node``; returns the nodes to look at again, or None."""
        if editor.graph_index(node) is None:
            return None
        for item in self._by_root.get((domain_of(node), node.op), ()):
            rule = item.rule
            try:
                match = item.matcher.match(editor, node) if rule.may_end_at(node) else None
            except Exception as error:
                _name(error, rule, node)
                raise
            if match is None:
                continue
            try:
                refusal = _checked(match, rule)
                again = None if refusal is not None else self._apply(match, rule, context)
            except Refusal as error:
                refusal, again = str(error), None
            except Exception as error:
                _name(error, rule, node)
                raise
            for noted, reason in match.notes:
                context.refused(rule.name, noted, reason)
            if refusal:
                context.refused(rule.name, match.root, refusal)
            if again is not None:
                return again
        return None

    def _apply(self, match: Match, rule: RewriteRule, context: PassContext) -> list[Node]:
        editor = match.editor
        builder = Builder(match)
        try:
            results = _as_tensors(rule.rewrite(match, builder), rule, len(match.outputs))
        except Exception:
            for node in builder.nodes:
                node.inputs.clear()
            raise
        context.rewrote(rule.name, match.nodes)
        anchor = match.root
        new_ids = {id(node) for node in builder.nodes}
        again: list[Node] = []
        taken: dict[int, gs.Tensor] = {}
        for output, result in zip(match.outputs, results, strict=True):
            _detach(output)
            result = taken.get(id(result), result)
            if len(result.inputs) == 1 and id(result.inputs[0]) in new_ids and id(result) not in taken:
                _take_over(output, result)
                taken[id(result)] = taken[id(output)] = output
            else:
                again.extend(output.outputs)
                editor.replace_uses(output, result)
                if editor.is_graph_output(output):
                    _take_over(output, builder.op("Identity", result))
        editor.insert(builder.nodes, at=anchor)
        if len(match.outputs) > 1:
            editor.sort(anchor)
        # An inner node stays where the replacement still reads it, or, if the rule allows that, somebody else
        # does.
        editor.remove(editor.unneeded(match.nodes))
        kept = {node.name for node in match.nodes if editor.graph_index(node) is not None}
        for node in builder.nodes:
            if node.name in kept:
                node.name = match.model.unique_name(node.name)
        again.extend(reader for output in match.outputs for reader in output.outputs)
        return unique_nodes([*builder.nodes, *again])


def _name(error: Exception, rule: RewriteRule, node: Node) -> None:
    """Make an error say whose it is."""
    error.add_note(f"in rewrite rule {rule.name} at node {label(node)!r}")


def _checked(match: Match, rule: RewriteRule) -> str | None:
    """Why the rule itself, or the graph around the match, forbids the rewrite; None if nothing does."""
    refusal = rule.check(match)
    if refusal is not None and not isinstance(refusal, str):
        raise OnnxfuseError(f"rewrite rule {rule.name}: check must return None or the reason not to, not {refusal!r}")
    return _obstacle(match, rule) if refusal is None else refusal


def _as_tensors(result: Any, rule: RewriteRule, wanted: int) -> list[gs.Tensor]:
    tensors = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(tensors) != wanted or not all(isinstance(tensor, gs.Tensor) for tensor in tensors):
        raise OnnxfuseError(f"rewrite rule {rule.name}: rewrite must return {wanted} tensor(s), one for each output")
    return tensors


def _take_over(output: gs.Tensor, result: gs.Tensor) -> None:
    """Makes ``output``, known to the rest of the model, the output of the new node, not ``result``."""
    producer = result.inputs[0]
    index = next(index for index, tensor in enumerate(producer.outputs) if tensor is result)
    producer.outputs[index] = output
    for reader in unique_nodes(result.outputs):
        for place, tensor in enumerate(reader.inputs):
            if tensor is result:
                reader.inputs[place] = output


def _detach(output: gs.Tensor) -> None:
    """Leaves an empty output where a node produced ``output``."""
    producer = output.inputs[0]
    index = next(index for index, tensor in enumerate(producer.outputs) if tensor is output)
    producer.outputs[index] = gs.Variable.empty()


def _obstacle(match: Match, rule: RewriteRule) -> str | None:
    """The reason why replacing the matched nodes would break the graph around them; None if it would not."""
    inside = {id(node) for node in match.nodes}
    replaced = {id(tensor) for tensor in match.outputs}
    for node in () if rule.keep_shared_nodes else match.nodes:
        for tensor in node.outputs:
            if not tensor.name or id(tensor) in replaced:
                continue
            if match.editor.is_graph_output(tensor):
                return f"its inner value {tensor.name!r} is an output of the graph"
            if any(id(reader) not in inside for reader in tensor.outputs):
                return f"its inner value {tensor.name!r} is used elsewhere"
    if len(match.outputs) > 1 and match.editor.reaches_back(match.nodes, match.outputs):
        return "one of its values is computed from another by nodes outside the pattern"
    return None
