"""Functions of a model: which become nodes, which stay, and the same results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import onnxfuse
from onnxfuse.model.graph import Model
from onnxfuse.passes import PassContext
from onnxfuse.passes.inline_functions import InlineFunctions
from tests.passes.models import apply, ops, random, run

HEAD = '<ir_version: 10, opset_import: ["": 20, "my": 1]>'
FUNCTIONS = """
    <domain: "my", opset_import: ["": 20]> Half (a) => (b) { c = Constant<value_float = 0.5>() b = Mul(a, c) }
    <domain: "my", opset_import: ["": 20, "my": 1]> Act <slope> (a) => (b) {
        t = LeakyRelu<alpha: float = @slope>(a) u = my.Half(t) b = Add(u, a) }
"""


def inlined(text: str, *constants: onnx.TensorProto) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A model and what the pass makes of it."""
    proto = parser.parse_model(text)
    proto.graph.initializer.extend(constants)
    after, _ = apply(proto, InlineFunctions())
    return proto, after


def assert_same_results(proto: onnx.ModelProto, after: onnx.ModelProto, **feeds: np.ndarray) -> None:
    for expected, actual in zip(run(proto, feeds), run(after, feeds), strict=True):
        np.testing.assert_array_equal(actual, expected, strict=True)


def test_functions_that_call_others_with_attributes():
    weights = numpy_helper.from_array(random(6), "t")  # a name that a function has too
    proto, after = inlined(
        f"""{HEAD} g (float[n, 6] x) => (float[n, 6] y) {{
        s = my.Act<slope = 0.25>(x) r = my.Act<slope = 0.75>(s) y = Mul(r, t) }} {FUNCTIONS}""",
        weights,
    )
    assert sorted(ops(after)) == sorted(["LeakyRelu", "Constant", "Mul", "Add"] * 2 + ["Mul"])
    assert not after.functions and list(after.graph.initializer) == [weights]
    assert_same_results(proto, after, x=random(3, 6))


def test_calls_in_bodies():
    proto, after = inlined(
        f"""{HEAD} g (float[n] x, bool c) => (float[n] y) {{ y = If(c) <
            then_branch = a () => (float[n] u) {{ u = my.Half(x) }},
            else_branch = b () => (float[n] v) {{ h = my.Half(x) v = my.Act<slope = 0.5>(h) }}> }} {FUNCTIONS}"""
    )
    assert ops(after) == ["If"] and not after.functions
    for flag in (True, False):
        assert_same_results(proto, after, x=random(4), c=np.array(flag))


def test_a_function_with_a_body_of_its_own():
    proto, after = inlined(
        f"""{HEAD} g (float[n] x, bool c) => (float[n] y) {{ t = Neg(x) z = my.Choose(t, c) y = Add(z, t) }}
        <domain: "my", opset_import: ["": 20]> Choose (a, c) => (b) {{ b = If(c) <
            then_branch = f () => (float[] t) {{ t = Add(a, a) }},
            else_branch = g () => (float[] t) {{ t = Neg(a) }}> }}"""
    )
    assert ops(after) == ["Neg", "If", "Add"]
    for flag in (True, False):
        assert_same_results(proto, after, x=random(4), c=np.array(flag))


def test_overloads_are_functions_of_their_own():
    proto = parser.parse_model(
        f"""{HEAD} g (float[n] x) => (float[n] y) {{ a = my.F(x) y = my.F(a) }}
        <domain: "my", opset_import: ["": 20]> F (a) => (b) {{ b = Neg(a) }}
        <domain: "my", opset_import: ["": 20]> F (a) => (b) {{ b = Abs(a) }}"""
    )
    proto.graph.node[1].overload = proto.functions[1].overload = "second"
    after, _ = apply(proto, InlineFunctions())
    assert ops(after) == ["Neg", "Abs"]


@pytest.mark.parametrize(
    ("call", "function"),
    [
        ("my.Old(x)", '<domain: "my", opset_import: ["": 12]> Old (a) => (b) { b = Sin(a) }'),
        ("HardSwish(x)", '<domain: "", opset_import: ["": 20]> HardSwish (a) => (b) { b = Neg(a) }'),
        ("com.microsoft.Gelu(x)", '<domain: "com.microsoft", opset_import: ["": 20]> Gelu (a) => (b) { b = Neg(a) }'),
    ],
)
def test_functions_that_stay(call: str, function: str):
    proto = parser.parse_model(f"{HEAD} g (float[n] x) => (float[n] y) {{ y = {call} }} {function}")
    proto.opset_import.add(domain="com.microsoft", version=1)
    after, context = apply(proto, InlineFunctions(), infer=False)
    assert after == proto and not context.report.rewrites


def test_functions_that_call_themselves_stay():
    text = f"""{HEAD} g (float[n] x) => (float[n] y) {{ y = my.F(x) }}
        <domain: "my", opset_import: ["": 20, "my": 1]> F (a) => (b) {{ b = my.G(a) }}
        <domain: "my", opset_import: ["": 20, "my": 1]> G (a) => (b) {{ b = my.F(a) }}"""
    model = Model.from_proto(parser.parse_model(text))  # the checker would refuse it
    InlineFunctions().run(model, PassContext())
    assert model.to_proto() == parser.parse_model(text)


def test_functions_that_a_function_that_stays_calls_stay():
    _, after = inlined(
        f"""{HEAD} g (float[n] x) => (float[n] y) {{ a = my.Half(x) b = my.Act<slope = 0.5>(a) y = my.Old(b) }}
        {FUNCTIONS}
        <domain: "my", opset_import: ["": 12, "my": 1]> Old (a) => (b) {{ b = my.Half(a) }}"""
    )
    assert ops(after)[-1] == "Old" and [function.name for function in after.functions] == ["Half", "Old"]


def test_defaults_of_attributes():
    """Of what a call leaves out, in functions that others call too, whether these hand an attribute on or not."""
    text = f"""{HEAD} g (float[n] x) => (float[n] y) {{
        a = my.F(x) b = my.F<alpha = 0.25>(a) c = my.G(b) d = my.G<alpha = 0.75>(c) y = my.H(d) }}
        <domain: "my", opset_import: ["": 20]> F <alpha: float = 0.5> (a) => (b) {{
            b = LeakyRelu<alpha: float = @alpha>(a) }}
        <domain: "my", opset_import: ["": 20, "my": 1]> G <alpha> (a) => (b) {{ b = my.F<alpha: float = @alpha>(a) }}
        <domain: "my", opset_import: ["": 20, "my": 1]> H (a) => (b) {{ b = my.F(a) }}"""
    proto, after = inlined(text)
    alphas = [helper.get_attribute_value(item.attribute[0]) for item in after.graph.node]
    assert ops(after) == ["LeakyRelu"] * 5 and alphas == [0.5, 0.25, 0.5, 0.75, 0.5]
    assert_same_results(proto, after, x=random(9))


def test_functions_that_stand_for_too_many_nodes_stay():
    levels = "".join(
        f"""<domain: "my", opset_import: ["": 20, "my": 1]> F{level} (a) => (c) {{
        b = {call}(a) c = {call}(b) }}"""
        for level in range(18)
        for call in ["Neg" if level == 0 else f"my.F{level - 1}"]
    )
    text = f"{HEAD} g (float[n] x) => (float[n] y) {{ y = my.F17(x) }} {levels}"
    after, _ = apply(parser.parse_model(text), InlineFunctions(), infer=False)
    assert ops(after) == ["F17"]


def test_a_domain_that_functions_alone_import():
    proto, after = inlined(
        f"""{HEAD} g (float[n] x) => (float[n] y) {{ y = my.F(x) }}
        <domain: "my", opset_import: ["ai.onnx.ml": 3]> F (a) => (b) {{
            b = ai.onnx.ml.Scaler<offset = [1.0], scale = [2.0]>(a) }}"""
    )
    assert {entry.domain: entry.version for entry in after.opset_import}["ai.onnx.ml"] == 3
    assert_same_results(proto, after, x=random(4))


def test_what_functions_compute_is_fused(tmp_path):
    text = f"""{HEAD} g (float[n, 6] x) => (float[n, 6] y) {{ s = my.Act<slope = 0.25>(x) y = my.Act<slope = 0.75>(s) }}
        {FUNCTIONS}"""
    result = onnxfuse.optimize(parser.parse_model(text), output=tmp_path / "fused.onnx")
    assert result.report.before.nodes == 8 and result.report.after.nodes == 1
    assert ops(result.model) == ["FusedElementwise"]
    kept = onnxfuse.optimize(parser.parse_model(text), passes=["fuse-elementwise"])
    assert ops(kept.model) == ["Act", "Act"]


def test_weights_keep_their_place(tmp_path):
    """What the inliner is given has no weights."""
    weights = numpy_helper.from_array(random(2000), "w")
    proto = parser.parse_model(
        f"{HEAD} g (float[2000] x) => (float[2000] y) {{ a = my.Half(x) y = Mul(a, w) }} {FUNCTIONS}"
    )
    proto.graph.initializer.append(weights)
    expected = run(proto, {"x": np.ones(2000, np.float32)})
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    onnxfuse.optimize(tmp_path / "m.onnx", output=tmp_path / "o.onnx")
    np.testing.assert_array_equal(run(onnx.load(tmp_path / "o.onnx"), {"x": np.ones(2000, np.float32)})[0], expected[0])


def test_a_function_of_another_opset_is_left_to_onnx_runtime():
    """onnx's checker refuses one whose operators changed; ONNX Runtime takes it as of the model's opset."""
    proto = parser.parse_model(
        f"""{HEAD} g (float[2, 3] x) => (float[2, 3] y) {{ a = my.Old(x) b = Neg(a) c = Mul(b, x) y = Exp(c) }}
        <domain: "my", opset_import: ["": 11]> Old (a) => (b) {{ b = Softmax(a) }}"""
    )
    after = onnxfuse.optimize(proto).model
    assert ops(after) == ["Old", "FusedElementwise"] and proto.functions[0] in after.functions
