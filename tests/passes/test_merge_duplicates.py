"""Nodes that compute the same: which become one, which stay, and the same results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxfuse.passes.merge_duplicates import MergeDuplicates
from tests.passes.models import apply, model, node, ops, random, run

SHAPE = {"x": ["n", 6]}


def merged(nodes, constants=None, inputs=SHAPE, outputs=("y",), opset=17):
    """What is left, and that it computes the same."""
    proto = model(nodes, inputs, outputs=outputs, constants=constants, opset=opset)
    after, _ = apply(proto, MergeDuplicates())
    feeds = {name: random(*(3 if dim == "n" else dim for dim in shape)) for name, shape in inputs.items()}
    for expected, actual in zip(run(proto, feeds), run(after, feeds), strict=True):
        np.testing.assert_array_equal(actual, expected, strict=True)
    return ops(after)


def test_chains_that_are_the_same():
    nodes = [
        *(
            node(op, f"{source}{i}" if source != "x" else "x", f"{made}{i}")
            for i in (1, 2, 3)
            for op, source, made in (("Sin", "x", "a"), ("Abs", "a", "b"))
        ),
        node("Sum", "b1 b2 b3", "y"),
    ]
    assert merged(nodes) == ["Sin", "Abs", "Sum"]


def test_a_later_node_may_come_first():
    nodes = [node("Neg", "a", "b"), node("Sin", "x", "a"), node("Sin", "x", "c"), node("Add", "b c", "y")]
    proto = model([nodes[1], nodes[0], *nodes[2:]], SHAPE)
    after, _ = apply(proto, MergeDuplicates())
    assert ops(after) == ["Sin", "Neg", "Add"]


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        ({"alpha": 0.1}, {"alpha": 0.1}, 1),
        ({"alpha": 0.1}, {"alpha": 0.2}, 2),
        ({"alpha": 0.0}, {"alpha": -0.0}, 2),
        ({"alpha": 0.01}, {}, 2),  # the default, which is not looked up
    ],
)
def test_attributes(first, second, count):
    nodes = [node("LeakyRelu", "x", "a", **first), node("LeakyRelu", "x", "b", **second), node("Add", "a b", "y")]
    assert merged(nodes).count("LeakyRelu") == count


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        (np.float32([1, 2, 3, 4, 5, 6]), np.float32([1, 2, 3, 4, 5, 6]), 1),
        (np.float32([1, 2, 3, 4, 5, 6]), np.float32([1, 2, 3, 4, 5, 7]), 2),
        (np.float32([1, 1, 1, 1, 1, 0]), np.float32([1, 1, 1, 1, 1, -0.0]), 2),
        (np.float32([1]), np.float32(1), 2),  # of other shapes
        (np.ones((12, 6), np.float32), np.ones((12, 6), np.float32), 2),  # long: compared by name
    ],
)
def test_constants(first, second, count):
    nodes = [node("Mul", "x c", "a"), node("Mul", "x d", "b"), node("Add", "a b", "y")]
    inputs = {"x": [1, 6]}
    assert merged(nodes, {"c": first, "d": second}, inputs).count("Mul") == count


def test_an_input_left_out_is_not_one_of_another_place():
    nodes = [
        node("Clip", "x low -", "a"),
        node("Clip", "x - low", "b"),
        node("Clip", "x low", "c"),
        node("Sum", "a b c", "y"),
    ]
    assert merged(nodes, {"low": 0.25}).count("Clip") == 3


def test_outputs_of_the_graph_stay():
    nodes = [node("Sin", "x", "y"), node("Sin", "x", "z"), node("Sin", "x", "a"), node("Neg", "a", "w")]
    assert merged(nodes, outputs=("y", "z", "w")) == ["Sin", "Sin", "Neg"]


def test_nodes_with_outputs_left_out():
    pool = {"kernel_shape": [2], "strides": [2]}
    nodes = [
        node("MaxPool", "x", "a i", **pool),
        node("MaxPool", "x", "b", **pool),
        node("MaxPool", "x", "c j", **pool),
        node("Cast", "i", "p", to=1),
        node("Cast", "j", "q", to=1),
        node("Sum", "a b c p q", "y"),
    ]
    found = merged(nodes, inputs={"x": ["n", 2, 6]})
    assert found.count("MaxPool") == 2 and found.count("Cast") == 1


def test_random_numbers_are_drawn_for_each():
    nodes = [
        node("RandomUniformLike", "x", "a", seed=1.0),
        node("RandomUniformLike", "x", "b", seed=1.0),
        node("Sub", "a b", "y"),
    ]
    after, _ = apply(model(nodes, SHAPE), MergeDuplicates())
    assert ops(after).count("RandomUniformLike") == 2


def test_dequantized_tensors_stay_for_each_reader():
    nodes = [
        node("QuantizeLinear", "x scale", "q"),
        node("DequantizeLinear", "q scale", "a"),
        node("DequantizeLinear", "q scale", "b"),
        node("Add", "a b", "y"),
    ]
    assert merged(nodes, {"scale": 0.1}).count("DequantizeLinear") == 2


def test_nodes_with_graphs_and_of_other_domains_stay():
    text = """<ir_version: 8, opset_import: ["": 17, "other": 1]> g (float[n] x, bool c) => (float[n] y) {
        a = If (c) <then_branch = t () => (float[n] u) { u = Neg(x) },
                    else_branch = e () => (float[n] v) { v = Abs(x) }>
        b = If (c) <then_branch = t () => (float[n] u) { u = Neg(x) },
                    else_branch = e () => (float[n] v) { v = Abs(x) }>
        p = other.Op(x) q = other.Op(x) y = Sum(a, b, p, q) }"""
    after, _ = apply(parser.parse_model(text), MergeDuplicates(), infer=False)
    assert ops(after) == ["If", "If", "Op", "Op", "Sum"]


def test_bodies_are_graphs_of_their_own():
    """A body computes anew what the graph around it computes: it may not run."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n] x, bool c) => (float[n] y) {
        a = Exp(x)
        b = If (c) <then_branch = t () => (float[n] u) { d = Exp(x) f = Exp(x) u = Add(d, f) },
                    else_branch = e () => (float[n] v) { v = Abs(x) }>
        y = Add(a, b) }"""
    proto = parser.parse_model(text)
    after, _ = apply(proto, MergeDuplicates(), infer=False)
    (branch,) = [item.attribute for item in after.graph.node if item.op_type == "If"]
    body = next(item.g for item in branch if item.name == "then_branch")
    assert [item.op_type for item in body.node] == ["Exp", "Add"] and list(body.node[1].input) == ["d", "d"]
    for flag in (True, False):
        feeds = {"x": random(4), "c": np.array(flag)}
        np.testing.assert_array_equal(run(after, feeds)[0], run(proto, feeds)[0])


def test_a_function_of_a_standard_name_stays():
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[n] x) => (float[n] y) {
        a = HardSwish(x) b = HardSwish(x) y = Add(a, b) }
        <domain: "", opset_import: ["": 20]> HardSwish (x) => (y) { y = RandomUniformLike(x) }"""
    after, _ = apply(parser.parse_model(text), MergeDuplicates(), infer=False)
    assert ops(after) == ["HardSwish", "HardSwish", "Add"]


def test_tensors_in_attributes():
    def filled(value, made):
        return node("ConstantOfShape", "s", made, value=numpy_helper.from_array(np.float32([value])))

    nodes = [node("Shape", "x", "s"), filled(1, "a"), filled(1, "b"), filled(2, "c"), node("Sum", "a b c", "y")]
    assert merged(nodes).count("ConstantOfShape") == 2


def test_a_body_that_names_the_merged_tensor():
    """What reads a duplicate in a body reads the first, even where a body has another tensor of its name."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n] x, bool c) => (float[n] y) {
        a = Exp(x) b = Exp(x)
        d = If (c) <then_branch = t () => (float[n] u) { u = Neg(b) },
                    else_branch = e () => (float[n] v) { a = Sin(x) v = Add(a, b) }>
        y = Add(a, d) }"""
    proto = parser.parse_model(text)
    for flag in (True, False):
        after, _ = apply(onnx.ModelProto.FromString(proto.SerializeToString()), MergeDuplicates(), infer=False)
        assert ops(after).count("Exp") == 1
        feeds = {"x": random(4), "c": np.array(flag)}
        expected = np.exp(feeds["x"]) + (-np.exp(feeds["x"]) if flag else np.sin(feeds["x"]) + np.exp(feeds["x"]))
        np.testing.assert_allclose(run(after, feeds)[0], expected, rtol=1e-5)
