"""What patterns can say, and what the rewriter does with a match."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from onnxfuse.errors import OnnxfuseError
from onnxfuse.passes import NOT_APPLICABLE, Refusal, RewriteRule, RulePass
from onnxfuse.rewrite.matcher import may_occur
from onnxfuse.rewrite.pattern import Ops, Variable
from tests.passes.models import apply, assert_close, model, node, ops, random, reasons, run


def rule(pattern, rewrite=None, check=None, **fields) -> RulePass:
    """A pass of one rule, by default replacing what it matches by Identity of x."""

    class Made(RewriteRule):
        name = fields.pop("name", "made")
        keep_shared_nodes = fields.pop("keep_shared_nodes", False)

        def check(self, match):
            return check(match) if check else None

        def rewrite(self, match, builder):
            return rewrite(match, builder) if rewrite else builder.op("Tanh", match["x"])

    Made.pattern = pattern
    return RulePass([Made()])


X = {"x": [2, 3]}


def matches(pattern, nodes, **fields) -> bool:
    proto = model(nodes, fields.pop("inputs", X), **fields)
    return "Tanh" in ops(apply(proto, rule(pattern))[0])


def test_a_chain_is_replaced_and_keeps_the_output_name():
    proto = model([node("Abs", "x", "a"), node("Neg", "a", "y")], X)
    result, context = apply(proto, rule(lambda self, op, x: op.Neg(op.Abs(x))))
    assert ops(result) == ["Tanh"]
    assert list(result.graph.node[0].output) == ["y"] and result.graph.node[0].name.startswith("Neg_y")
    assert [(item.rule, set(item.nodes)) for item in context.report.rewrites] == [("made", {"Abs_a", "Neg_y"})]


@pytest.mark.parametrize("op_type", ["Add", "Mul", "Max", "Min", "Sum", "Mean"])
def test_commutative_ops_match_in_either_order(op_type):
    def pattern(self, op, x):
        return getattr(op, op_type)(op.Abs(x), op.constant("k"))

    for inputs in ("a k", "k a"):
        assert matches(pattern, [node("Abs", "x", "a"), node(op_type, inputs, "y")], constants={"k": [1, 2, 3]})


def test_other_ops_match_in_their_order_only():
    def pattern(self, op, x):
        return op.Sub(op.Abs(x), op.constant("k"))

    assert matches(pattern, [node("Abs", "x", "a"), node("Sub", "a k", "y")], constants={"k": 1.0})
    assert not matches(pattern, [node("Abs", "x", "a"), node("Sub", "k a", "y")], constants={"k": 1.0})


def test_commutative_matching_backtracks():
    def pattern(self, op, x):
        return op.Add(op.Mul(x, x), op.Mul(x, op.Abs(x)))

    nodes = [node("Abs", "x", "a"), node("Mul", "a x", "p"), node("Mul", "x x", "q"), node("Add", "p q", "y")]
    assert matches(pattern, nodes)


def test_a_repeated_variable_is_one_tensor():
    def pattern(self, op, x):
        return op.Add(op.Abs(x), x)

    both = {"x": [2], "z": [2]}
    assert matches(pattern, [node("Abs", "x", "a"), node("Add", "a x", "y")], inputs=both)
    assert not matches(pattern, [node("Abs", "x", "a"), node("Add", "a z", "y")], inputs=both)


def test_a_shared_expression_is_one_node():
    def pattern(self, op, x):
        shared = op.Exp(x)
        return op.Div(shared, op.Add(shared, 1.0))

    one = [node("Exp", "x", "e"), node("Add", "e k", "s"), node("Div", "e s", "y")]
    two = [node("Exp", "x", "e"), node("Exp", "x", "f"), node("Add", "f k", "s"), node("Div", "e s", "y")]
    assert matches(pattern, one, constants={"k": 1.0})
    assert not matches(pattern, two, constants={"k": 1.0})


def test_optional_inputs():
    def pattern(self, op, x):
        return op.Clip(x, op.optional(op.constant("low")), op.optional(op.constant("high")))

    seen = []

    def rewrite(match, builder):
        seen.append((match.get("low") is not None, match.get("high") is not None))
        return builder.op("Tanh", match["x"])

    for inputs in ("x", "x low", "x - high", "x low high"):
        apply(model([node("Clip", inputs, "y")], X, constants={"low": 0.0, "high": 1.0}), rule(pattern, rewrite))
    assert seen == [(False, False), (True, False), (False, True), (True, True)]


def test_a_missing_input_does_not_match_a_variable():
    assert not matches(lambda self, op, x, low: op.Clip(x, low), [node("Clip", "x", "y")])


def test_maybe_skips_a_unary_node():
    def pattern(self, op, x):
        return op.Neg(op.maybe("Identity", op.Abs(x)))

    assert matches(pattern, [node("Abs", "x", "a"), node("Neg", "a", "y")])
    assert matches(pattern, [node("Abs", "x", "a"), node("Identity", "a", "b"), node("Neg", "b", "y")])


def test_any_of_gives_alternatives_also_at_the_root():
    def pattern(self, op, x):
        inner = op.Abs(x)
        return op.any_of(op.Relu(inner), op.LeakyRelu(inner, alpha=lambda alpha: alpha > 0.5))

    assert matches(pattern, [node("Abs", "x", "a"), node("Relu", "a", "y")])
    assert matches(pattern, [node("Abs", "x", "a"), node("LeakyRelu", "a", "y", alpha=0.75)])
    assert not matches(pattern, [node("Abs", "x", "a"), node("LeakyRelu", "a", "y", alpha=0.25)])


def test_attributes_are_compared_with_defaults_of_the_standard():
    def pattern(self, op, x):
        return op.Softmax(x, axis=-1)

    assert matches(pattern, [node("Softmax", "x", "y", axis=-1)])
    assert matches(pattern, [node("Softmax", "x", "y")])
    assert not matches(pattern, [node("Softmax", "x", "y", axis=0)])
    assert matches(lambda self, op, x: op.Transpose(x, perm=[1, 0]), [node("Transpose", "x", "y", perm=[1, 0])])
    assert matches(lambda self, op, x: op.Softmax(x, _attrs={"axis": 1}), [node("Softmax", "x", "y", axis=1)])


def test_constants_by_value_have_a_tolerance():
    def nodes(value):
        return {"nodes": [node("Mul", "x k", "y")], "constants": {"k": value}}

    assert matches(lambda self, op, x: op.Mul(x, 0.7071067811865476), **nodes(0.70710677))
    assert matches(lambda self, op, x: op.Mul(x, op.const(0.5, tolerance=0.1)), **nodes([0.52, 0.5, 0.48]))
    assert not matches(lambda self, op, x: op.Mul(x, op.const(0.5)), **nodes([0.5, 0.5, 0.6]))


def test_constant_nodes_count_as_constants():
    constant = helper.make_node("Constant", [], ["k"], value_float=2.0)
    assert matches(lambda self, op, x: op.Mul(x, 2.0), [constant, node("Mul", "x k", "y")])


def test_domains():
    proto = model([node("Gelu", "x", "y", domain="com.microsoft")], X, domains=["com.microsoft"])
    assert ops(apply(proto, rule(lambda self, op, x: op("com.microsoft").Gelu(x)))[0]) == ["Tanh"]
    assert ops(apply(proto, rule(lambda self, op, x: op.Gelu(x)))[0]) == ["Gelu"]


def test_extra_inputs_must_be_allowed():
    nodes = [node("Sum", "x x x x x", "y")]
    assert matches(lambda self, op, x: op.Sum(x, _extra_inputs=True), nodes)
    assert not matches(lambda self, op, x: op.Sum(x, x), nodes)


def test_an_inner_value_used_elsewhere_refuses_with_a_reason():
    nodes = [node("Abs", "x", "a"), node("Neg", "a", "y"), node("Exp", "a", "z")]
    result, context = apply(model(nodes, X, ["y", "z"]), rule(lambda self, op, x: op.Neg(op.Abs(x))))
    assert ops(result) == ["Abs", "Neg", "Exp"]
    assert reasons(context) == "made: Neg_y: its inner value 'a' is used elsewhere"


def test_an_inner_value_that_is_a_graph_output_refuses():
    nodes = [node("Abs", "x", "a"), node("Neg", "a", "y")]
    result, context = apply(model(nodes, X, ["y", "a"]), rule(lambda self, op, x: op.Neg(op.Abs(x))))
    assert ops(result) == ["Abs", "Neg"] and "output of the graph" in reasons(context)


def test_keep_shared_nodes_leaves_them_for_the_others():
    nodes = [node("Abs", "x", "a"), node("Neg", "a", "y"), node("Exp", "a", "z")]
    made = rule(lambda self, op, x: op.Neg(op.Abs(x)), keep_shared_nodes=True)
    assert sorted(ops(apply(model(nodes, X, ["y", "z"]), made)[0])) == ["Abs", "Exp", "Tanh"]


def test_a_node_that_is_kept_keeps_its_name_alone():
    nodes = [node("Abs", "x", "a"), node("Neg", "a", "y"), node("Exp", "a", "z")]

    def rewrite(match, builder):
        return builder.op("Neg", builder.op("Abs", match["x"]))

    made = rule(lambda self, op, x: op.Neg(op.Abs(x)), rewrite, keep_shared_nodes=True, check=_once())
    result, _ = apply(model(nodes, X, ["y", "z"]), made)
    assert sorted(ops(result)) == ["Abs", "Abs", "Exp", "Neg"]
    names = [each.name for each in result.graph.node]
    assert "Abs_a" in names and "Neg_y" in names and len(set(names)) == len(names)


def _once():
    """A check that passes the first time."""
    results = iter([None])
    return lambda match: next(results, NOT_APPLICABLE)


@pytest.mark.parametrize("how", ["return", "raise"])
def test_a_failed_check_is_recorded_once(how):
    def check(match):
        if how == "raise":
            raise Refusal("it is Tuesday")
        return "it is Tuesday"

    made = rule(lambda self, op, x: op.Neg(x), check=check)
    result, context = apply(model([node("Neg", "x", "y")], X), made, made)
    assert ops(result) == ["Neg"] and reasons(context) == "made: Neg_y: it is Tuesday"


def test_not_applicable_is_not_recorded():
    made = rule(lambda self, op, x: op.Neg(x), check=lambda match: NOT_APPLICABLE)
    assert apply(model([node("Neg", "x", "y")], X), made)[1].report.refusals == []


def test_several_outputs_are_replaced_together():
    def pattern(self, op, x):
        return op.Sin(x, _name="sin"), op.Cos(x)

    def rewrite(match, builder):
        half = builder.initializer(np.array(0.5, np.float32), "half")
        both = builder.op("Mul", match["x"], half)
        return builder.op("Exp", both), builder.op("Neg", both)

    nodes = [node("Sin", "x", "s"), node("Abs", "s", "y"), node("Cos", "x", "c"), node("Relu", "c", "z")]
    result, _ = apply(model(nodes, X, ["y", "z"]), rule(pattern, rewrite))
    assert sorted(ops(result)) == ["Abs", "Exp", "Mul", "Neg", "Relu"]
    x = random(2, 3)
    outputs = run(result, {"x": x})
    np.testing.assert_allclose(outputs[0], np.exp(x / 2), rtol=1e-6)
    np.testing.assert_allclose(outputs[1], np.maximum(-x / 2, 0), rtol=1e-6)


def test_several_outputs_that_would_make_a_cycle_are_refused():
    def pattern(self, op, x, z):
        return op.Sin(x), op.Add(op.Cos(x), z)

    nodes = [node("Sin", "x", "s"), node("Cos", "x", "c"), node("Exp", "s", "e"), node("Add", "c e", "y")]
    made = rule(pattern, lambda match, builder: (builder.op("Abs", match["z"]), builder.op("Neg", match["x"])))
    result, context = apply(model(nodes, X), made)
    assert ops(result) == ["Sin", "Cos", "Exp", "Add"] and "computed from another" in reasons(context)


def test_two_outputs_of_one_node():
    def pattern(self, op, x):
        return op.Split(x, _outputs=2)

    def rewrite(match, builder):
        result = builder.op("Exp", match["x"])
        return result, result

    nodes = [node("Split", "x", "a b"), node("Add", "a b", "y")]
    result, _ = apply(model(nodes, {"x": [2, 3]}), rule(pattern, rewrite))
    assert ops(result) == ["Exp", "Add"]
    assert len(set(result.graph.node[1].input)) == 1


def test_returning_an_existing_tensor_rewires_readers_and_keeps_graph_outputs():
    def pattern(self, op, x):
        return op.Neg(op.Neg(x))

    nodes = [node("Exp", "x", "e"), node("Neg", "e", "a"), node("Neg", "a", "b"), node("Abs", "b", "y")]
    made = rule(pattern, lambda match, builder: match["x"])
    assert ops(apply(model(nodes, X), made)[0]) == ["Exp", "Abs"]
    result, _ = apply(model(nodes, X, ["y", "b"]), made)
    assert sorted(ops(result)) == ["Abs", "Exp", "Identity"]
    assert_close(model(nodes, X, ["y", "b"]), result, {"x": random(2, 3)}, 0)


def test_rewrites_go_on_to_a_fixed_point_and_stay_sorted():
    made = rule(lambda self, op, x: op.Neg(op.Neg(x)), lambda match, builder: match["x"])
    nodes = [node("Neg", f"{'x' if i == 0 else f't{i - 1}'}", f"t{i}", name=f"n{i}") for i in range(101)]
    proto = model([*nodes, node("Abs", "t100", "y")], X)
    assert ops(apply(proto, made)[0]) == ["Neg", "Abs"]


def test_rules_that_undo_each_other_end_with_a_warning():
    class There(RewriteRule):
        name = "there"

        def pattern(self, op, x):
            return op.Sin(x)

        def rewrite(self, match, builder):
            return builder.op("Cos", match["x"])

    class Back(There):
        name = "back"

        def pattern(self, op, x):
            return op.Cos(x)

        def rewrite(self, match, builder):
            return builder.op("Sin", match["x"])

    _, context = apply(model([node("Sin", "x", "y")], X), RulePass([There(), Back()], "both"))
    assert "both: stopped" in context.report.warnings[0]


def branches(inner: list, name: str = "out") -> dict:
    graph = helper.make_graph(inner, name, [], [helper.make_tensor_value_info("r", 1, None)])
    other = helper.make_graph([node("Exp", "x", "r2")], "else", [], [helper.make_tensor_value_info("r2", 1, None)])
    return {"then_branch": graph, "else_branch": other}


def conditional(outer: list, inner: list):
    return model([*outer, node("If", "flag", "y", **branches(inner))], X, constants={"flag": np.array(True)})


def test_rules_apply_in_subgraphs_with_outer_values_as_inputs():
    proto = conditional([], [node("Abs", "x", "a"), node("Neg", "a", "r")])
    result, _ = apply(proto, rule(lambda self, op, x: op.Neg(op.Abs(x))))
    branch = next(item.g for item in result.graph.node[0].attribute if item.name == "then_branch")
    assert [item.op_type for item in branch.node] == ["Tanh"] and branch.output[0].name == "r"


def test_a_pattern_does_not_cross_the_border_of_a_subgraph():
    proto = conditional([node("Abs", "x", "a")], [node("Neg", "a", "r")])
    assert ops(apply(proto, rule(lambda self, op, x: op.Neg(op.Abs(x))))[0]) == ["Abs", "If"]


def test_an_inner_value_read_by_a_subgraph_is_used_elsewhere():
    proto = conditional([node("Abs", "x", "a"), node("Neg", "a", "n"), node("Relu", "n", "z")], [node("Neg", "a", "r")])
    result, context = apply(proto, rule(lambda self, op, x: op.Neg(op.Abs(x))))
    assert "Abs" in ops(result) and "used elsewhere" in reasons(context)


def test_equal_new_constants_are_one_initializer():
    def rewrite(match, builder):
        first = builder.op("Mul", match["x"], builder.initializer(np.float32(2), "a"))
        return builder.op("Mul", first, builder.initializer(np.float32(2), "b"))

    proto = model([node("Mul", "x k", "y")], X, constants={"k": 4.0})
    result, _ = apply(proto, rule(lambda self, op, x: op.Mul(x, 4.0), rewrite))
    assert [item.name for item in result.graph.initializer] == ["a"]
    assert_close(proto, result, {"x": random(2, 3)}, 0)


def test_new_names_are_unique_and_names_of_like_ops_are_kept():
    def rewrite(match, builder):
        first = builder.op("Mul", match["x"], builder.initializer(np.float32(2), "x"))
        return builder.op("Mul", first, builder.initializer(np.float32(3), "x"))

    proto = model([node("Mul", "x k", "y", name="scaled")], X, constants={"k": 6.0})
    result, _ = apply(proto, rule(lambda self, op, x: op.Mul(x, 6.0), rewrite))
    names = [item.name for item in result.graph.node]
    assert names[0] == "scaled" and len(set(names)) == 2
    assert len({item.name for item in result.graph.initializer} | {"x"}) == 3
    assert_close(proto, result, {"x": random(2, 3)}, 0)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (lambda self, op, x: x, "must be the output of an op"),
        (lambda self, op, x: op.const(1), "must be the output"),
    ],
)
def test_a_pattern_must_be_a_node(pattern, message):
    with pytest.raises(OnnxfuseError, match=message):
        rule(pattern)


def test_a_rewrite_must_return_what_the_pattern_returns():
    made = rule(lambda self, op, x: op.Neg(x), lambda match, builder: None)
    with pytest.raises(OnnxfuseError, match="rewrite must return 1 tensor"):
        apply(model([node("Neg", "x", "y")], X), made)


def test_a_rule_needs_a_name():
    with pytest.raises(OnnxfuseError, match="has no name"):
        rule(lambda self, op, x: op.Neg(x), name="")


def test_matching_is_linear():
    made = rule(lambda self, op, x: op.Neg(op.Abs(x)))
    nodes = []
    previous = "x"
    for i in range(4000):
        nodes += [
            node("Abs", previous, f"a{i}", name=f"a{i}_n"),
            node("Neg", f"a{i}", f"b{i}", name=f"b{i}_n"),
        ]
        previous = f"b{i}"
    result, _ = apply(model([*nodes, node("Relu", previous, "y")], X), made)
    assert ops(result).count("Tanh") == 4000


def test_what_a_graph_of_some_operators_cannot_have() -> None:
    op, x = Ops(), Variable("x")
    both = op.Mul(x, op.any_of(op.Erf(x), op.Tanh(op.optional(op.Abs(x)))))
    assert may_occur(both, {"Mul", "Erf"}) and may_occur(both, {"Mul", "Tanh"})
    assert not may_occur(both, {"Mul", "Abs"}) and not may_occur(both, {"Erf", "Tanh"})
