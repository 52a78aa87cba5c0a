"""Elementwise nodes between Transposes that undo each other."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper, parser

from onnxfuse.model.graph import Model
from onnxfuse.passes.cancel_transposes import CancelTransposes
from onnxfuse.rewrite.base import PassContext

LAST, FIRST = "Transpose <perm = [0, 2, 3, 1]>", "Transpose <perm = [0, 3, 1, 2]>"
RANDOM = np.random.default_rng(0)
CONSTANTS = {
    "half": np.float32(0.5),
    "one": np.full((1, 1, 1, 1), 1.5, np.float32),
    "channels": RANDOM.standard_normal(4).astype(np.float32),
    "rows": RANDOM.standard_normal((3, 1, 1)).astype(np.float32),
    "whole": RANDOM.standard_normal((2, 3, 5, 4)).astype(np.float32),
    "low": np.float32(-1),
}


def model(body: str, outputs: str = "float[n, c, h, w] y", inputs: str = "float[2, 4, 3, 5] x") -> onnx.ModelProto:
    body = body.replace("LAST", LAST).replace("FIRST", FIRST)
    made = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => ({outputs}) {{ {body} }}')
    used = {name: value for name, value in CONSTANTS.items() if re.search(rf"\b{name}\b", body)}
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in used.items())
    return made


def cancelled(made: onnx.ModelProto) -> list[str]:
    """The operators that the pass leaves; what they compute stays the same to the bit, and so do declared shapes."""
    before = onnx.shape_inference.infer_shapes(made, data_prop=True)
    changed = Model.from_proto(before)
    CancelTransposes().run(changed, PassContext(target="cpu"))
    after = changed.to_proto()
    onnx.checker.check_model(after, full_check=True)
    feeds = {
        item.name: np.zeros([dim.dim_value for dim in item.type.tensor_type.shape.dim]) for item in made.graph.input
    }
    feeds = {name: RANDOM.standard_normal(value.shape).astype(np.float32) for name, value in feeds.items()}
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    results = [ort.InferenceSession(m.SerializeToString(), options).run(None, feeds) for m in (made, after)]
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    return [node.op_type for node in after.graph.node]


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = LAST(x) b = Relu(a) y = FIRST(b)", ["Relu"]),
        ("a = LAST(x) b = Sigmoid(a) c = Mul(a, b) y = FIRST(c)", ["Sigmoid", "Mul"]),
        ("a = LAST(x) b = Mul(a, half) c = Add(one, b) y = FIRST(c)", ["Mul", "Add"]),
        ("a = LAST(x) b = Mul(a, channels) c = Add(b, rows) d = Sub(whole, c) y = FIRST(d)", ["Mul", "Add", "Sub"]),
        ("a = LAST(x) b = PRelu(a, channels) y = FIRST(b)", ["PRelu"]),
        ("a = LAST(x) b = Clip(a, low, half) y = FIRST(b)", ["Clip"]),
        ("r = Abs(x) a = LAST(x) b = LAST(r) c = Add(a, b) y = FIRST(c)", ["Abs", "Add"]),
    ],
)
def test_between_two(body: str, left: list[str]) -> None:
    assert cancelled(model(body)) == left


def test_several_before_and_behind() -> None:
    """As residual connections have it: each result is read by the next sum and by what wants it the other way round."""
    body = """a = LAST(x) b = Relu(a) p = FIRST(b) s = Softmax <axis = 1> (p) t = LAST(s) c = Add(b, t) d = Exp(c)
        y = FIRST(d) z = FIRST(c)"""
    left = cancelled(model(body, "float[n, c, h, w] y, float[n, c, h, w] z"))
    assert left.count("Transpose") == 0


def test_one_result_of_two_names() -> None:
    body = "a = LAST(x) b = Relu(a) y = FIRST(b) c = FIRST(b) z = Neg(c)"
    assert sorted(cancelled(model(body, "float[n, c, h, w] y, float[n, c, h, w] z"))) == ["Neg", "Relu"]


def test_a_transpose_that_others_read_stays_for_them() -> None:
    body = "a = LAST(x) b = Relu(a) y = FIRST(b) z = Softmax <axis = 3> (a)"
    left = cancelled(model(body, "float[n, c, h, w] y, float[n, h, w, c] z"))
    assert sorted(left) == ["Relu", "Softmax", "Transpose"]


def test_the_order_that_is_the_default_one() -> None:
    assert cancelled(model("a = Transpose(x) b = Relu(a) y = Transpose(b)")) == ["Relu"]


LEFT = {
    "they do not undo each other": "a = LAST(x) b = Relu(a) y = LAST(b)",
    "another tensor is read": "a = LAST(x) b = Add(a, other) y = FIRST(b)",
    "a result is read elsewhere": "a = LAST(x) b = Relu(a) y = FIRST(b) z = Softmax <axis = 3> (b)",
    "a result is returned": "a = LAST(x) z = Relu(a) y = FIRST(z)",
    "two results are one tensor": "a = LAST(x) b = Relu(a) y = FIRST(b) z = FIRST(b)",
    "nothing is between them": "a = LAST(x) y = FIRST(a)",
    "an operator has an axis": "a = LAST(x) b = Softmax <axis = 3> (a) y = FIRST(b)",
    "more dimensions": "a = LAST(x) b = Add(a, five) c = Squeeze(b) y = FIRST(c)",
}


@pytest.mark.parametrize("kind", LEFT)
def test_what_is_left_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONSTANTS, "five", np.ones((1, 1, 1, 1, 1), np.float32))
    outputs = "float[n, c, h, w] y" + (", float[n, h, w, c] z" if "z = " in LEFT[kind] else "")
    made = model(LEFT[kind], outputs, "float[2, 4, 3, 5] x, float[2, 3, 5, 4] other")
    assert cancelled(made) == [node.op_type for node in made.graph.node]


def test_a_body_that_reads_a_result_keeps_it() -> None:
    result = helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, None)
    inner = helper.make_graph([helper.make_node("Neg", ["b"], ["r"])], "t", [], [result])
    made = model("a = LAST(x) b = Relu(a) y = FIRST(b)", "float[n, c, h, w] y, float[n, h, w, c] z")
    choice = helper.make_node("If", ["yes"], ["z"], then_branch=inner, else_branch=inner)
    made.graph.node.append(choice)
    made.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    assert cancelled(made) == ["Transpose", "Relu", "Transpose", "If"]
