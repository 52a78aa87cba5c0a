"""What makes writing a rule pleasant: numbers as constants, defaults of attributes, mistakes that are explained."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from onnxfuse.errors import OnnxfuseError
from onnxfuse.passes import RewriteRule, RulePass
from tests.passes.models import apply, assert_close, model, node, ops, random, reasons

X = {"x": [2, 3]}
RELU = model([node("Relu", "x", "y")], X)


def rule(**members) -> RulePass:
    return RulePass([type("Made", (RewriteRule,), {"name": "made", **members})()])


def relu(self, op, x):
    return op.Relu(x)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_numbers_become_constants_of_the_type_of_the_tensors(dtype):
    proto = model([node("Relu", "x", "y")], X, dtype=dtype)
    after, _ = apply(proto, rule(pattern=relu, rewrite=lambda self, match, builder: builder.op("Max", 0, match["x"])))
    assert ops(after) == ["Max"]
    if dtype != np.int32:
        assert_close(proto, after, {"x": random(2, 3, dtype=dtype)}, 0)


def test_a_number_needs_a_known_type():
    made = rule(pattern=relu, rewrite=lambda self, match, builder: builder.op("Max", match["x"], 0.0))
    nodes = [node("Unknown", "x", "u", domain="other"), node("Relu", "u", "y")]
    after, context = apply(model(nodes, X, domains=["other"]), made)
    assert ops(after) == ["Unknown", "Relu"] and "the type of the number 0.0 is not known" in reasons(context)


def test_a_fraction_is_no_integer():
    made = rule(pattern=relu, rewrite=lambda self, match, builder: builder.op("Max", match["x"], 0.5))
    with pytest.raises(OnnxfuseError, match=r"0\.5 is no int32"):
        apply(model([node("Relu", "x", "y")], X, dtype=np.int32), made)


def test_attributes_have_their_defaults():
    seen = []

    def check(self, match):
        seen.append([match.attribute("soft", name) for name in ("axis", "nothing")])
        return None

    made = rule(
        pattern=lambda self, op, x: op.Softmax(x, _name="soft"),
        check=check,
        rewrite=lambda self, match, builder: match["x"],
    )
    for opset, axis in ((11, 1), (13, -1)):
        apply(model([node("Softmax", "x", "y")], X, opset=opset), made)
        assert seen.pop() == [axis, None]


@pytest.mark.parametrize("answer", [True, False, ["why"]])
def test_a_check_must_answer_none_or_a_reason(answer):
    made = rule(pattern=relu, check=lambda self, match: answer, rewrite=lambda self, match, builder: match["x"])
    with pytest.raises(OnnxfuseError, match="rewrite rule made: check must return None or the reason not to"):
        apply(RELU, made)


def test_a_rule_without_a_rewrite_is_named():
    with pytest.raises(OnnxfuseError, match="rewrite rule made has no method rewrite"):
        rule(pattern=relu)


def test_a_rule_without_a_pattern_is_named():
    with pytest.raises(OnnxfuseError, match="rewrite rule made has no method pattern"):
        rule(rewrite=lambda self, match, builder: match["x"])


def test_an_operator_in_the_wrong_case_is_corrected():
    with pytest.raises(OnnxfuseError, match="rewrite rule made: there is no operator relu; did you mean Relu"):
        rule(pattern=lambda self, op, x: op.relu(x), rewrite=lambda self, match, builder: match["x"])


def test_what_is_no_part_of_a_pattern_is_named():
    with pytest.raises(OnnxfuseError, match=r"rewrite rule made: a pattern is built from .*, not from 'x'"):
        rule(pattern=lambda self, op, x: op.Relu("x"), rewrite=lambda self, match, builder: match["x"])


def test_an_error_in_a_rule_tells_the_rule_and_the_node():
    made = rule(pattern=relu, rewrite=lambda self, match, builder: builder.op("Relu", match["z"]))
    with pytest.raises(KeyError, match="no variable 'z'; there is x") as caught:
        apply(RELU, made)
    assert caught.value.__notes__ == ["in rewrite rule made at node 'Relu_y'"]


def test_a_rule_that_raises_anywhere_is_named():
    """In its pattern, before a model, and where it may end."""

    def fail(self, *_unused):
        raise KeyError("here")

    good = {"pattern": relu, "rewrite": lambda self, match, builder: match["x"]}
    for method in ("pattern", "begin", "may_end_at", "check"):
        with pytest.raises(KeyError, match="here") as caught:
            apply(RELU, rule(**{**good, method: lambda self, *rest: fail(self)}))
        assert any("rewrite rule made" in note for note in caught.value.__notes__), method


USER = '''
"""What a user writes, after docs/passes.md."""

import onnxfuse
from onnxfuse.passes import NOT_APPLICABLE, Builder, Match, Ops, PassContext, Variable, register_pass


@register_pass
class Silu(onnxfuse.RewriteRule):
    name = "silu"

    def pattern(self, op: Ops, x: Variable) -> object:
        return op.Div(x, op.Add(1.0, op.Exp(op.Neg(x))), _name="end")

    def check(self, match: Match) -> str | None:
        return NOT_APPLICABLE if match.attribute("end", "none") or match.get("x") is None else None

    def rewrite(self, match: Match, builder: Builder) -> object:
        return builder.op("Mul", match["x"], builder.op("Sigmoid", match["x"]))


@register_pass(after=["silu"])
def count_nodes(model: onnxfuse.Model, context: PassContext) -> None:
    context.progress(f"{sum(len(graph.nodes) for graph in model.graphs())} nodes")


class Count:
    name = "count"
    description = "counts"

    def run(self, model: onnxfuse.Model, context: PassContext) -> None:
        context.refused("count", model.graph.nodes[0], model.unique_name("none"))


result = onnxfuse.optimize("model.onnx", passes=["silu"], shapes={"x": (1, 3)}, bench=True)
print(result.report.summary(), result.model.ir_version)
'''


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_a_rule_of_a_user_is_typed(tmp_path):
    """What the documents name passes mypy's strict mode."""
    path = tmp_path / "user.py"
    path.write_text(USER)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
