"""Folding constants: what is folded, to the last bit, and what is left."""

from __future__ import annotations

import builtins
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper, parser

from onnxfuse.model.graph import Model
from onnxfuse.passes import PassContext, resolve
from tests.passes.models import apply, model, node, ops, random, reasons, run

X = {"x": [2, 3]}
FOLD = "fold-constants"


def fold(nodes, inputs=X, outputs=("y",), **fields):
    proto = model(nodes, inputs, outputs, **fields)
    result, context = apply(proto, FOLD)
    return proto, result, context


def same_bits(before: onnx.ModelProto, after: onnx.ModelProto, **feeds) -> None:
    for expected, actual in zip(run(before, feeds), run(after, feeds), strict=True):
        assert expected.dtype == actual.dtype and expected.shape == actual.shape
        assert expected.tobytes() == actual.tobytes()


def initializers(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {item.name: numpy_helper.to_array(item) for item in proto.graph.initializer}


@pytest.mark.parametrize(
    "attribute",
    [
        {"value": numpy_helper.from_array(np.array([1.5, 2, 3], np.float32))},
        {"value_float": 1.5},
        {"value_floats": [1.0, 2.0, 3.0]},
        {"value_int": 3},
        {"value_ints": [1, 2, 3]},
    ],
)
def test_constant_nodes_become_initializers(attribute):
    constant = helper.make_node("Constant", [], ["k"], **attribute)
    to_float = node("Cast", "k", "f", to=1)
    before, after, _ = fold([constant, to_float, node("Add", "x f", "y")])
    assert ops(after) == ["Add"]
    same_bits(before, after, x=random(2, 3))


def test_constant_node_in_a_graph_output_stays():
    constant = helper.make_node("Constant", [], ["y"], value_float=1.5)
    _, after, _ = fold([constant, node("Relu", "x", "z")], outputs=["y", "z"])
    assert ops(after) == ["Constant", "Relu"]


def test_constant_subgraphs_are_folded_to_the_bit_in_one_session(monkeypatch):
    sessions = []
    real = onnxruntime.InferenceSession

    def counting(*args, **kwargs):
        sessions.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(onnxruntime, "InferenceSession", counting)
    nodes = [
        node("Exp", "a", "e"),
        node("Softmax", "e", "s"),
        node("MatMul", "s b", "m"),
        node("Erf", "m", "r"),
        node("Tanh", "r", "t"),
        node("Add", "x t", "y"),
    ]
    constants = {"a": random(2, 5), "b": random(5, 3, seed=1)}
    proto = model(nodes, X, constants=constants)
    after, context = apply(proto, FOLD)
    assert len(sessions) == 1 and ops(after) == ["Add"] and set(initializers(after)) == {"t"}
    assert len(context.report.rewrites) == 5
    same_bits(proto, after, x=random(2, 3))


def test_one_op_that_the_runtime_lacks_spoils_nothing_else():
    nodes = [
        node("Exp", "a", "e"),
        node("BitwiseNot", "e", "n"),
        node("Neg", "a", "m"),
        node("Add", "x m", "y"),
    ]
    proto = model([*nodes[:1], *nodes[2:]], X, constants={"a": 1.0})
    proto.graph.node.insert(0, node("Bernoulli", "a", "unused"))
    after, _ = apply(proto, FOLD)
    assert "Bernoulli" in ops(after) and "Neg" not in ops(after)


def test_a_failing_evaluation_is_recorded_and_the_rest_folded():
    nodes = [
        node("Reshape", "a bad", "r"),
        node("Neg", "a", "n"),
        node("Sum", "x r", "z"),
        node("Add", "z n", "y"),
    ]
    proto = model(nodes, {"x": ["n", "m"]}, constants={"a": [1.0, 2.0], "bad": np.array([3, 5])})
    after, context = apply(proto, FOLD, infer=False)
    assert ops(after) == ["Reshape", "Sum", "Add"]
    assert "cannot be evaluated" in reasons(context) and "\n" not in reasons(context)


@pytest.mark.parametrize("op_type", ["RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"])
def test_random_ops_stay(op_type):
    attrs = {"dtype": 1} if op_type != "Multinomial" else {"dtype": 6}
    nodes = [node(op_type, "a", "r", **attrs), node("Cast", "r", "f", to=1), node("Add", "x f", "y")]
    _, after, _ = fold(nodes, constants={"a": [[0.5, 0.5, 0.5]]}, inputs={"x": [1, 1]})
    assert op_type in ops(after)


def test_quantization_stays():
    constants = {"w": np.array([1, 2, 3], np.int8), "s": 0.5, "z": np.array(0, np.int8), "a": [1.0, 2.0, 3.0]}
    nodes = [
        node("DequantizeLinear", "w s z", "d"),
        node("QuantizeLinear", "a s z", "q"),
        node("DequantizeLinear", "q s z", "e"),
        node("Add", "x d", "p"),
        node("Add", "p e", "y"),
    ]
    _, after, _ = fold(nodes, constants=constants)
    assert sorted(ops(after)) == ["Add", "Add", "DequantizeLinear", "DequantizeLinear", "QuantizeLinear"]


def test_other_domains_and_functions_stay():
    nodes = [node("Gelu", "a", "g", domain="com.microsoft"), node("Add", "x g", "y")]
    _, after, _ = fold(nodes, constants={"a": 1.0}, domains=["com.microsoft"])
    assert ops(after) == ["Gelu", "Add"]


def test_overridable_initializers_are_not_constants():
    proto = model([node("Neg", "a", "n"), node("Add", "x n", "y")], X, constants={"a": 1.0})
    proto.graph.input.append(helper.make_tensor_value_info("a", 1, []))
    assert ops(apply(proto, FOLD)[0]) == ["Neg", "Add"]


def test_a_node_that_makes_a_graph_output_stays():
    _, after, _ = fold([node("Neg", "a", "n"), node("Add", "x n", "y")], outputs=["y", "n"], constants={"a": 1.0})
    assert ops(after) == ["Neg", "Add"]


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("ConstantOfShape", "s", "g")], {"s": np.array([1024, 1024])}),
        ([node("Expand", "a s", "g")], {"a": 1.0, "s": np.array([1024, 1024])}),
        ([node("Tile", "a s", "g")], {"a": [[1.0]], "s": np.array([1024, 1024])}),
        ([node("Range", "b e d", "g")], {"b": 0.0, "e": 1e6, "d": 1.0}),
        (
            [node("Reshape", "a p", "c"), node("Add", "a c", "g")],
            {"a": [1.0] * 1024, "p": np.array([1024, 1])},
        ),
    ],
)
@pytest.mark.parametrize("infer", [True, False])
def test_what_would_grow_the_model_stays(nodes, constants, infer):
    proto = model([*nodes, node("ReduceMax", "g", "m", keepdims=0), node("Add", "x m", "y")], X, constants=constants)
    after, context = apply(proto, FOLD, infer=infer)
    assert nodes[-1].op_type in ops(after) and "would make the model larger" in reasons(context)
    assert sum(item.ByteSize() for item in after.graph.initializer) < 1 << 20


@pytest.mark.parametrize("limit", [np.inf, np.nan, 1e12])
@pytest.mark.parametrize("infer", [True, False])
def test_a_range_without_an_end_stays(limit, infer):
    nodes = [node("Range", "s l d", "r"), node("ReduceSum", "r", "q", keepdims=0), node("Add", "x q", "y")]
    proto = model(nodes, X, constants={"s": 0.0, "l": limit, "d": 1.0})
    after, _ = apply(proto, FOLD, infer=infer)
    assert ops(after) == ["Range", "ReduceSum", "Add"]


def test_what_takes_long_to_compute_stays():
    constants = {name: np.ones(20_000, np.float32) for name in "abc"}
    nodes = [node("Einsum", "a b c", "q", equation="i,j,k->"), node("Add", "x q", "y")]
    started = time.perf_counter()
    after, context = apply(model(nodes, X, constants=constants), FOLD)
    assert ops(after) == ["Einsum", "Add"] and "too long to compute" in reasons(context)
    assert time.perf_counter() - started < 10


def test_large_constants_may_be_replaced_by_as_large_ones_once():
    weight = random(1024, 512)
    nodes = [node("Transpose", "w", "t"), node("MatMul", "x t", "y")]
    _, after, _ = fold(nodes, {"x": [1, 512]}, constants={"w": weight})
    assert ops(after) == ["MatMul"]
    twice = [*nodes, node("Neg", "w", "n"), node("MatMul", "x2 n", "z")]
    _, after, context = fold(twice, {"x": [1, 512], "x2": [1, 1024]}, ["y", "z"], constants={"w": weight})
    assert len(ops(after)) == 4 and "larger" in reasons(context)
    kept = [*nodes, node("MatMul", "x2 w", "z")]
    _, after, context = fold(kept, {"x": [1, 512], "x2": [1, 1024]}, ["y", "z"], constants={"w": weight})
    assert "Transpose" in ops(after)


@pytest.mark.parametrize(
    ("op", "inputs", "constant", "kept"),
    [
        ("Add", "x c", 0.0, False),
        ("Add", "c x", [[0.0]], False),
        ("Sub", "x c", 0.0, False),
        ("Mul", "x c", [1.0], False),
        ("Mul", "c x", 1.0, False),
        ("Div", "x c", 1.0, False),
        ("Sub", "c x", 0.0, True),
        ("Div", "c x", 1.0, True),
        ("Add", "x c", 1.0, True),
        ("Mul", "x c", 0.0, True),
        ("Mul", "x c", np.nan, True),
        ("Mul", "x c", [1.0, 1.0], True),
        ("Mul", "x c", [[[1.0]]], True),  # it adds a dimension
    ],
)
def test_what_changes_nothing_is_dropped(op, inputs, constant, kept):
    """As ONNX Runtime drops it: scales and shifts as they are before any training."""
    nodes = [node("Relu", "x", "r"), node(op, inputs.replace("x", "r"), "s"), node("Neg", "s", "y")]
    before, after, _ = fold(nodes, {"x": [3, 2]}, constants={"c": np.array(constant, np.float32)})
    assert (op in ops(after)) is kept
    same_bits(before, after, x=random(3, 2))


@pytest.mark.parametrize(
    ("op", "zero", "kept"), [("Add", 0.0, True), ("Add", -0.0, False), ("Sub", 0.0, False), ("Sub", -0.0, True)]
)
def test_the_sign_of_zero_in_an_input(op, zero, kept):
    """ONNX Runtime, too, drops none of these there, but of what nodes make."""
    nodes = [node(op, "x c", "s"), node("Reciprocal", "s", "y")]
    before, after, _ = fold(nodes, {"x": [3]}, constants={"c": np.float32(zero)})
    assert (op in ops(after)) is kept
    same_bits(before, after, x=np.array([-0.0, 0.0, 2.0], np.float32))


@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("divisor", [0, -1])
@pytest.mark.parametrize("computed", [False, True])
def test_integers_that_no_processor_divides_stay(op, dtype, divisor, computed):
    """The process would die."""
    given = node("Neg", "b", "c") if computed else node("Identity", "b", "c")
    nodes = [given, node(op, "a c", "d"), node("Cast", "d", "e", to=1), node("Add", "x e", "y")]
    constants = {"a": np.array(np.iinfo(dtype).min, dtype), "b": np.array(-divisor if computed else divisor, dtype)}
    _, after, _ = fold(nodes, constants=constants)
    assert op in ops(after)


def test_unequal_parts_of_a_constant_are_no_larger_than_it():
    """As PyTorch's MultiheadAttention splits its weights where keys are of another tensor than queries."""
    weight = random(768, 256)
    nodes = [
        node("Split", "w s", "a b", axis=0),
        node("Transpose", "a", "c"),
        node("Transpose", "b", "d"),
        node("Add", "x c", "y"),
        node("Add", "x d", "z"),
    ]
    constants = {"w": weight, "s": np.array([256, 512])}
    before, after, _ = fold(nodes, {"x": [256, 1]}, ["y", "z"], constants=constants)
    assert ops(after) == ["Add", "Add"]
    assert sum(item.ByteSize() for item in after.graph.initializer) < weight.nbytes + 100
    same_bits(before, after, x=random(256, 1))


def test_the_parts_of_a_constant_are_put_together_anew():
    """As exporters order the gates of an LSTM: each part is as large as a part of the constant, all are as it."""
    weight = random(1024, 512)
    bounds = {f"b{i}": np.array([256 * i]) for i in range(5)}
    slices = [node("Slice", f"w b{i} b{i + 1}", f"p{i}") for i in range(4)]
    nodes = [*slices, node("Concat", "p2 p0 p1 p3", "g", axis=0), node("Add", "x g", "y")]
    before, after, _ = fold(nodes, {"x": [1024, 512]}, constants={"w": weight, **bounds})
    assert ops(after) == ["Add"]
    assert sum(item.ByteSize() for item in after.graph.initializer) < weight.nbytes + 100
    same_bits(before, after, x=random(1024, 512))
    again = [*nodes, node("Slice", "w b0 b3", "q"), node("Add", "q x2", "z")]
    _, after, context = fold(again, {"x": [1024, 512], "x2": [1, 512]}, ["y", "z"], constants={"w": weight, **bounds})
    assert "larger" in reasons(context)
    assert sum(item.ByteSize() for item in after.graph.initializer) < weight.nbytes + 1000


def test_many_small_constants_are_folded_at_once():
    """Whatever others were folded before: a second run finds none that the first one has left."""
    sizes = {f"s{i}": np.array([1000]) for i in range(100)}
    nodes = []
    for i in range(100):
        nodes.append(node("ConstantOfShape", f"s{i}", f"c{i}", value=numpy_helper.from_array(np.float32([i + 1]))))
        nodes.append(node("Add", f"{'x' if i == 0 else f'y{i - 1}'} c{i}", "y" if i == 99 else f"y{i}"))
    _, after, context = fold(nodes, {"x": [1000]}, constants=sizes)
    assert set(ops(after)) == {"Add"} and "larger" not in reasons(context)


@pytest.mark.parametrize(("attrs", "expected"), [({}, [2, 3]), ({"start": 1}, [3]), ({"end": -1}, [2])])
def test_shape_of_a_known_shape(attrs, expected):
    nodes = [node("Relu", "x", "r"), node("Shape", "r", "s", **attrs), node("Cast", "s", "f", to=1)]
    before, after, _ = fold([*nodes, node("ReduceSum", "f", "t"), node("Add", "x t", "y")])
    assert ops(after) == ["Add"]
    assert [value.item() for value in initializers(after).values()] == [sum(expected)]
    same_bits(before, after, x=random(2, 3))


def test_shape_of_a_dynamic_shape_stays():
    nodes = [node("Shape", "x", "s"), node("Cast", "s", "f", to=1), node("Add", "x f", "y")]
    _, after, _ = fold(nodes, {"x": ["n", 2]})
    assert ops(after) == ["Shape", "Cast", "Add"]


def test_nodes_that_do_nothing_go():
    nodes = [
        node("Identity", "x", "i"),
        node("Cast", "i", "c", to=1),
        node("Dropout", "c ratio", "d"),
        node("Dropout", "d ratio training", "e"),
        node("Relu", "e", "y"),
    ]
    before, after, context = fold(nodes, constants={"ratio": 0.5, "training": np.array(False)})
    assert ops(after) == ["Relu"] and len(context.report.rewrites) == 4
    same_bits(before, after, x=random(2, 3))


def test_nodes_that_do_something_stay():
    nodes = [
        node("Dropout", "x ratio training", "d"),
        node("Dropout", "x", "e mask"),
        node("Cast", "mask", "m", to=1),
        node("Sum", "d e m", "s"),
        node("Cast", "s", "h", to=10),
        node("Identity", "h", "y"),
    ]
    _, after, _ = fold(nodes, constants={"ratio": 0.5, "training": np.array(True)})
    assert ops(after) == [item.op_type for item in nodes]


def test_dead_nodes_that_appear_go_and_others_stay():
    nodes = [
        node("Exp", "x", "e"),
        node("Shape", "e", "s"),
        node("Cast", "s", "f", to=1),
        node("Add", "x f", "y"),
        node("Log", "x", "unused"),
    ]
    _, after, _ = fold(nodes, {"x": [2, 2]})
    assert ops(after) == ["Add", "Log"]


def test_bodies_are_folded_with_the_constants_around_them():
    inner = [
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        node("Mul", "two outer", "k"),
        node("Identity", "x", "i"),
        node("Mul", "i k", "r"),
    ]
    then = helper.make_graph(inner, "then", [], [helper.make_tensor_value_info("r", 1, [2, 3])])
    other = helper.make_graph([node("Neg", "two", "q")], "else", [], [helper.make_tensor_value_info("q", 1, None)])
    other.node.insert(0, helper.make_node("Constant", [], ["two"], value_floats=[2.0]))
    conditional = node("If", "flag", "y", then_branch=then, else_branch=other)
    nodes = [
        node("Exp", "a", "outer"),
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s a", "flag"),
    ]
    before, after, _ = fold([*nodes, conditional], constants={"a": 0.0})
    graphs = {item.name: item.g for item in after.graph.node[-1].attribute}
    assert [item.op_type for item in graphs["then_branch"].node] == ["Mul"]
    assert [item.op_type for item in graphs["else_branch"].node] == ["Neg"]
    same_bits(before, after, x=np.abs(random(2, 3)))
    same_bits(before, after, x=-np.abs(random(2, 3)))


def test_a_constant_that_both_branches_read_stays_one():
    weights = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(random(64, 64), "w"))
    branches = {
        name: helper.make_graph([node(op, "w", out)], name, [], [helper.make_tensor_value_info(out, 1, [64, 64])])
        for name, op, out in (("then_branch", "Neg", "r"), ("else_branch", "Abs", "q"))
    }
    branches["then_branch"].node.insert(0, node("Add", "w x", "w2"))
    branches["then_branch"].node[1].input[0] = "w2"
    branches["else_branch"].node.insert(0, node("Sub", "w x", "w3"))
    branches["else_branch"].node[1].input[0] = "w3"
    nodes = [weights, node("ReduceSum", "x", "s", keepdims=0), node("Greater", "s k", "flag"), node("If", "flag", "y")]
    nodes[-1].attribute.extend(helper.make_attribute(name, graph) for name, graph in branches.items())
    before, after, _ = fold(nodes, inputs={"x": [1, 64]}, constants={"k": 0.0})
    assert after.ByteSize() < before.ByteSize() + 1000
    assert [item.name for item in after.graph.initializer if item.name == "w"] == ["w"]
    same_bits(before, after, x=np.abs(random(1, 64)))
    same_bits(before, after, x=-np.abs(random(1, 64)))


LOOP = "y = Loop(n, c, x) <body = body (int64 i, bool before, float[3] {input}) => (bool after, float[3] r)"
LIKE_NAMED = {
    "what Identity passes on, and an input": "w = Identity(x) "
    + LOOP.format(input="x")
    + "{ after = Identity(before) p = Mul(x, w) r = Neg(p) }>",
    "what Identity passes on, and an initializer": "w = Identity(a) "
    + LOOP.format(input="s")
    + "<float[3] a = {5, 6, 7}> { after = Identity(before) k = Sub(w, a) r = Mul(s, k) }>",
    "a shared constant, and an input": "k = Add(a, b) z = Mul(x, k) "
    + LOOP.format(input="k")
    + "{ after = Identity(before) m = Add(a, b) r = Mul(k, m) }>",
    "a constant of the other branch, and one of this": """y = If(c) <
        then_branch = then () => (float[3] r) { k = Add(a, b) r = Mul(x, k) },
        else_branch = other () => (float[3] q) { k = Sub(a, b) m = Add(a, b) p = Mul(x, k) q = Add(p, m) }>""",
}


@pytest.mark.parametrize("case", LIKE_NAMED)
def test_tensors_of_one_name_stay_apart(case):
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (int64 n, bool c, float[3] x) => (float[3] y) '
        f"<float[3] a = {{1, 2, 3}}, float[3] b = {{3, 2, 0}}> {{ {LIKE_NAMED[case]} }}"
    )
    after, _ = apply(proto, "fold-constants")
    for condition in (True, False):
        feeds = {"n": np.array(2), "c": np.array(condition), "x": random(3)}
        np.testing.assert_array_equal(run(after, feeds)[0], run(proto, feeds)[0])


def test_without_onnxruntime_only_exact_ops_are_evaluated(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "onnxruntime":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    proto = model(
        [
            node("Transpose", "a", "t"),
            node("Exp", "a", "e"),
            node("Add", "x t", "p"),
            node("Add", "p e", "y"),
        ],
        {"x": [3, 3]},
        constants={"a": random(3, 3)},
    )
    monkeypatch.setattr(builtins, "__import__", without)
    after, context = apply(proto, FOLD)
    monkeypatch.undo()
    assert ops(after) == ["Exp", "Add", "Add"] and "ONNX Runtime is not installed" in reasons(context)
    same_bits(proto, after, x=random(3, 3))


def test_strings_and_sequences_are_left():
    constants = {"t": np.array(["a", "b"], dtype=object)}
    nodes = [node("StringNormalizer", "t", "u", case_change_action="UPPER"), node("Identity", "x", "i")]
    nodes += [node("SequenceConstruct", "k k", "q"), node("ConcatFromSequence", "q", "c", axis=0)]
    nodes += [node("Add", "i c", "y")]
    proto = model(nodes, {"x": [4]}, ["y", "u"], constants={"k": [1.0, 2.0], **constants})
    proto.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.STRING
    after, _ = apply(proto, FOLD)
    assert ops(after) == ["StringNormalizer", "SequenceConstruct", "ConcatFromSequence", "Add"]


def test_a_long_chain_of_constants_is_quick():
    nodes = [node("Add", f"{f'c{i - 1}' if i else 'a'} a", f"c{i}", name=f"n{i}") for i in range(3000)]
    proto = model([*nodes, node("Add", "x c2999", "y")], X, constants={"a": 1.0})
    work = Model.from_proto(proto)
    started = time.perf_counter()
    resolve([FOLD])[0].run(work, PassContext())
    assert time.perf_counter() - started < 5
    assert ops(work.to_proto()) == ["Add"]


BACKEND = sorted(Path(onnx.__path__[0]).glob("backend/test/data/light/light_*.onnx"))


@pytest.mark.parametrize("path", BACKEND, ids=lambda path: path.stem)
def test_real_models_keep_their_declared_outputs(path):
    proto = onnx.load(path)
    after, _ = apply(proto, FOLD, "fold-affine")
    assert list(after.graph.output) == list(proto.graph.output)
    assert len(after.graph.node) <= len(proto.graph.node)
