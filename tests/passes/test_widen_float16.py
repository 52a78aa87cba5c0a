"""Models of float16 in float32: which are, what stays, and results that ONNX Runtime's own agree with."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import onnxfuse
from onnxfuse import cpu
from onnxfuse.passes import widen_float16
from onnxfuse.passes.widen_float16 import WidenFloat16
from tests.passes.models import apply, ops, random
from tests.support import fusing

HEAD = '<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1, "acme": 1]>'
PRODUCT = "g (float16[n, 8] x) => (float16[n, 8] y) { a = MatMul(x, w) b = Tanh(a) y = Add(b, x) }"
CONSTANTS = {
    "w": random(8, 8, dtype=np.float16),
    "k": random(4, 8, 3, 3, dtype=np.float16) / 8,
    "o": random(4, dtype=np.float16),
    "half": np.float16(0.5),
    "one": np.float16(1),
    "low": np.float16(-65504),
    "times": np.array([2, 1]),
    "start": np.array([0]),
    "end": np.array([8]),
}

pytestmark = pytest.mark.skipif(cpu.has_float16(), reason="ONNX Runtime has kernels of float16 here")


def half_model(text: str) -> onnx.ModelProto:
    """A model of the constants that it reads."""
    made = parser.parse_model(f"{HEAD} {text}")
    nodes = [node for graph in onnxfuse.model.protos.onnx_graphs(made.graph) for node in graph.node]
    read = {name for node in nodes for name in node.input}
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items() if name in read
    )
    return made


def widened(proto: onnx.ModelProto, **feeds: np.ndarray) -> onnx.ModelProto:
    """What the pass makes of a model: it computes the same, to within what rounding to float16 does twice."""
    after, context = apply(proto, WidenFloat16())
    assert context.report.rewrites
    for expected, actual in zip(fusing.run(proto, feeds, False), fusing.run(after, feeds, False), strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual.astype(np.float32), expected.astype(np.float32), rtol=2e-3, atol=2e-3)
    return after


def halves(proto: onnx.ModelProto) -> list[str]:
    """The tensors that are of float16."""
    model = onnx.shape_inference.infer_shapes(proto)
    infos = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    typed = [info.name for info in infos if info.type.tensor_type.elem_type == TensorProto.FLOAT16]
    return typed + [tensor.name for tensor in model.graph.initializer if tensor.data_type == TensorProto.FLOAT16]


@pytest.mark.parametrize("rows", (3, 1, 0))
def test_all_but_inputs_and_outputs(rows):
    after = widened(half_model(PRODUCT), x=random(rows, 8, dtype=np.float16))
    assert ops(after) == ["Cast", "MatMul", "Tanh", "Add", "Cast"] and halves(after) == ["x", "y"]


def test_types_that_nodes_name():
    """Casts, constants and what has a type as an attribute, and a float32 that comes in between."""
    text = """g (float16[n, 8] x, float[n, 8] z) => (float[n, 8] y, float16[n, 8] u) {
        a = MatMul(x, w) b = Cast<to = 1>(a) c = Add(b, z) d = Cast<to = 10>(c) s = Shape(d)
        e = ConstantOfShape(s) l = Constant()
        i = EyeLike<dtype = 10>(d) f = Mul(d, e) g = Mul(f, l) h = Add(g, i) u = Mul(h, half) y = Cast<to = 1>(h) }"""
    proto = half_model(text)
    for node in proto.graph.node:
        if node.op_type in ("Constant", "ConstantOfShape"):
            value = numpy_helper.from_array(np.full([1] if node.input else [], 2, np.float16))
            node.attribute.append(helper.make_attribute("value", value))
    after = widened(proto, x=random(8, 8, dtype=np.float16), z=random(8, 8))
    assert set(halves(after)) == {"x", "u"}


def test_a_value_that_the_model_returns_and_reads():
    text = """g (float16[n, 8] x) => (float16[n, 8] y, float16[n, 8] a) { a = MatMul(x, w) y = Tanh(a) }"""
    after = widened(half_model(text), x=random(2, 8, dtype=np.float16))
    assert ops(after) == ["Cast", "MatMul", "Tanh", "Cast", "Cast"] and set(halves(after)) == {"x", "y", "a"}


def test_a_value_that_the_model_returns_twice():
    text = "g (float16[n, 8] x) => (float16[n, 8] y, float16[n, 8] y) { a = MatMul(x, w) y = Tanh(a) }"
    after = widened(half_model(text), x=random(2, 8, dtype=np.float16))
    assert ops(after) == ["Cast", "MatMul", "Tanh", "Cast"]


DECIDED = {
    "flags of a mask": (
        """g (float16[n, 8] x, int64[n, 8] m) => (float16[n, 8] y) {
        f = Cast<to = 10>(m) i = Sub(one, f) b = Cast<to = 9>(i) g = Where(b, low, i) a = MatMul(x, w)
        y = Add(a, g) }""",
        ["Cast", "Cast", "Sub", "Cast", "Cast", "Where", "MatMul", "Add", "Cast"],
    ),
    "buckets, of a weight that others read": (
        """g (float16[n, 8] x) => (float16[n, 8] y, float16[n, 8] r) {
        e = Abs(x) l = Log(e) r = Mul(l, half) i = Cast<to = 7>(r) c = Cast<to = 10>(i) a = MatMul(x, w)
        d = Mul(a, half) s = Add(d, c) y = Add(s, r) }""",
        ["Cast", "Abs", "Log", "Mul", "Cast", "Cast", "Cast", "MatMul", "Mul", "Add", "Add", "Cast"],
    ),
    "steps of an input": (
        "g (float16[n, 8] x) => (float16[n, 8] y) { f = Floor(x) a = MatMul(f, w) y = Tanh(a) }",
        ["Floor", "Cast", "MatMul", "Tanh", "Cast"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DECIDED)
def test_what_the_last_digit_decides_is_computed_as_it_was(case):
    text, operators = DECIDED[case]
    feeds = {"x": random(3, 8, dtype=np.float16) * 3, "m": np.arange(24).reshape(3, 8) % 2}
    proto = half_model(text)
    after = widened(proto, **{name: feeds[name] for name in (info.name for info in proto.graph.input)})
    assert ops(after) == operators


def test_what_stays_in_float16_and_a_body_reads():
    text = """g (float16[n, 8] x, bool c) => (float16[n, 8] y) { f = Floor(x) a = MatMul(x, w)
        y = If (c) <then_branch = t () => (p) { p = Add(f, a) }, else_branch = e () => (q) { q = Sub(a, f) }> }"""
    after, context = apply(half_model(text), WidenFloat16())
    assert "MatMul" in ops(after) and "a body reads" in context.report.refusals[0].reason


def test_bodies():
    text = """g (float16[n, 8] x, bool c) => (float16[n, 8] y) { a = MatMul(x, w) d = If(c) <
        then_branch = t () => (float16[n, 8] p) { p = MatMul(a, w) },
        else_branch = e () => (float16[n, 8] q) { q = Add(a, half) }> y = Tanh(d) }"""
    for flag in (True, False):
        widened(half_model(text), x=random(3, 8, dtype=np.float16), c=np.array(flag))


def test_what_was_said_of_types():
    proto = half_model(PRODUCT)
    said = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, ["n", 8]) for name in ("x", "a", "y")]
    proto.graph.value_info.extend(said)
    after = widened(proto, x=random(3, 8, dtype=np.float16))
    assert [(info.name, info.type.tensor_type.elem_type) for info in after.graph.value_info] == [
        ("a", TensorProto.FLOAT)
    ]


def test_weights_in_other_files(tmp_path):
    proto = half_model(PRODUCT)
    onnx.save(half_model(PRODUCT), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    onnxfuse.optimize(tmp_path / "m.onnx", output=tmp_path / "o.onnx")
    x = {"x": random(3, 8, dtype=np.float16)}
    expected, actual = (fusing.run(each, x, False)[0] for each in (proto, onnx.load(tmp_path / "o.onnx")))
    np.testing.assert_allclose(actual.astype(np.float32), expected.astype(np.float32), rtol=2e-3, atol=2e-3)


def test_islands_of_float32_between_convolutions_are_fused():
    """Converters write them around what they are told not to convert: ONNX Runtime drops the Casts."""
    text = """g (float16[1, 8, 9, 9] x) => (float16[1, 4, 9, 9] y) {
        a = Conv<pads = [1, 1, 1, 1]>(x, k, o) c = Cast<to = 1>(a) d = Sigmoid(c) e = Mul(c, d)
        y = Cast<to = 10>(e) }"""
    proto = half_model(text)
    result = onnxfuse.optimize(proto, "cpu", conv="none")
    assert [region.ops for region in result.report.fused] == [["Sigmoid", "Mul", "Cast"]]
    # A sum beyond the range of float16 stays finite until the end, as in ONNX Runtime.
    x = {"x": np.full((1, 8, 9, 9), 6e4, np.float16)}
    (expected,), (actual,) = (fusing.run(each, x, True, optimize=True) for each in (proto, result.model))
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))


STAY = {
    "no product": ("g (float16[n, 8] x) => (float16[n, 8] y) { a = Tanh(x) y = Add(a, x) }", None),
    "float32": ("g (float[n, 8] x, float[8, 8] v) => (float[n, 8] y) { y = MatMul(x, v) }", None),
    "an operator of another domain": (
        "g (float16[n, 8] x) => (float16[n, 8] y) { a = MatMul(x, w) b = acme.Thing(a) y = Tanh(b) }",
        "it has a node of type Thing on float16",
    ),
    "a body that reads an input": (
        """g (float16[n, 8] x, bool c) => (float16[n, 8] y) { a = MatMul(x, w) d = If(c) <
        then_branch = t () => (float16[n, 8] p) { p = Add(a, x) },
        else_branch = e () => (float16[n, 8] q) { q = Tanh(a) }> y = Tanh(d) }""",
        widen_float16._CAPTURED,
    ),
    "an input that is returned": (
        "g (float16[n, 8] x) => (float16[n, 8] y, float16[n, 8] x) { y = MatMul(x, w) }", widen_float16._CAPTURED
    ),
    "a cache that is given": (
        """g (float16[n, 8] x, float16[m, 8] past) => (float16[n, l] y, float16[l, 8] present) {
        a = MatMul(x, w) present = Concat<axis = 0>(past, a) t = Transpose(present) y = MatMul(a, t) }""",
        "it moves an input in float16",
    ),
    "grouped queries": (
        """g (float16[1, 2, 8] x, int32[1] s, int32 t) => (float16[1, 2, 8] y) { a = MatMul(x, w)
        y, pk, pv = com.microsoft.GroupQueryAttention<num_heads = 1, kv_num_heads = 1>(a, x, x, , , s, t) }""",
        "ONNX Runtime computes GroupQueryAttention in float16",
    ),
    "more moving than computing": (
        """g (float16[8, 8] x) => (float16[8, 8] y) { a = MatMul(x, w) b = Transpose(a) c = Tile(b, times)
        d = Slice(c, start, end) y = Concat<axis = 0>(d) }""",
        "most of its nodes in float16 move data",
    ),
    "integers that the last digit decides": (
        "g (float16[n, 8] x) => (int64[n, 8] y) { a = MatMul(x, w) y = Cast<to = 7>(a) }",
        "the result of a node of type Cast may depend on the last digit of float16",
    ),
    "flags that the last digit decides": (
        "g (float16[n, 8] x) => (bool[n, 8] y) { a = MatMul(x, w) b = Mul(a, a) y = IsInf(b) }",
        "the result of a node of type IsInf may depend on the last digit of float16",
    ),
    "scores that are returned": (
        """g (float16[1, 2, 3, 8] x) => (float16[1, 2, 3, 8] y, float16[1, 2, 3, 3] s) {
        y, a, b, s = Attention<is_causal = 1, qk_matmul_output_mode = 2>(x, x, x) }""",
        "it returns the scores of an Attention, which are the lowest float16 where they are masked",
    ),
    "a sequence": (
        "g (float16[n, 8] x) => (seq(float16[n, 8]) y) { a = MatMul(x, w) y = SequenceConstruct(a, x) }",
        "it has inputs or outputs that hold several tensors of float16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STAY)
def test_models_that_stay(case):
    text, reason = STAY[case]
    proto = half_model(text)
    after, context = apply(proto, WidenFloat16())
    assert after == proto and [refusal.reason for refusal in context.report.refusals] == ([reason] if reason else [])


def test_a_weight_that_the_caller_may_replace_stays():
    proto = half_model(PRODUCT)
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT16, [8, 8]))
    after, context = apply(proto, WidenFloat16())
    assert after == proto and "replace" in context.report.refusals[0].reason


def test_large_weights_stay(monkeypatch):
    monkeypatch.setattr(widen_float16, "_MOST_BYTES", 100)
    after, context = apply(half_model(PRODUCT), WidenFloat16())
    assert ops(after) == ["MatMul", "Tanh", "Add"] and "MiB in float16" in context.report.refusals[0].reason


@pytest.mark.parametrize(("target", "native"), [("cuda", False), ("cpu", True)])
def test_where_there_are_kernels_of_float16(target, native, monkeypatch):
    monkeypatch.setattr(cpu, "has_float16", lambda: native)
    after, _ = apply(half_model(PRODUCT), WidenFloat16(), target=target)
    assert ops(after) == ["MatMul", "Tanh", "Add"]
