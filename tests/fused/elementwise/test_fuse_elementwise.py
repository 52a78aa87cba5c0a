"""The fusing pass on small models: what is fused, what is left alone and why, and what the result looks like."""

import re
from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import onnxfuse
from onnxfuse.fused.elementwise.fuse_elementwise import INLINED, FuseElementwise
from onnxfuse.passes import PassContext
from onnxfuse.shapes.inference import infer
from tests.support import fusing


def _model(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    """A model in ONNX's text syntax, opset 21, with initializers."""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 21]>\n{text}')
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return model


def _fuse(model: onnx.ModelProto) -> tuple[onnx.ModelProto, onnxfuse.Report]:
    loaded = onnxfuse.Model.from_proto(model)
    infer(loaded)
    context = PassContext()
    FuseElementwise().run(loaded, context)
    fused = loaded.to_proto()
    onnx.checker.check_model(fused, full_check=True)
    return fused, context.report


def _assert_same(model: onnx.ModelProto, fused: onnx.ModelProto, **feeds: np.ndarray) -> None:
    expected = fusing.run(model, feeds, library=False)
    for library in (False, True):
        for actual, wanted in zip(fusing.run(fused, feeds, library), expected, strict=True):
            assert fusing.same_bits(actual, wanted)


X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)


def test_a_chain_becomes_one_node_with_the_original_nodes_as_its_function() -> None:
    model = _model(
        "g (float[n, 3, 4] x) => (float[n, 3, 4] y) { a = Mul(x, k) b = Abs(a) y = Add(b, x) }", k=np.float32(2)
    )
    fused, report = _fuse(model)
    (node,) = fused.graph.node
    assert (node.domain, node.op_type, list(node.input), list(node.output)) == (
        "onnxfuse",
        "FusedElementwise",
        ["x"],
        ["y"],
    )
    (function,) = fused.functions
    assert function.overload == node.overload
    assert node.overload.startswith("Mul_Abs_Add_")
    assert [inner.op_type for inner in function.node] == ["Constant", "Mul", "Abs", "Add"]
    assert fused.ir_version == 10
    assert [region.ops for region in report.fused] == [["Mul", "Abs", "Add"]]
    _assert_same(model, fused, x=X)


def test_a_function_has_each_constant_once() -> None:
    model = _model(
        "g (float[n, 3, 4] x) => (float[n, 3, 4] y) { a = Mul(x, k) b = Add(a, l) c = Div(b, m) y = Sub(c, one) }",
        k=np.float32(2),
        l=np.float32(2),
        m=np.float32(-0.0),
        one=np.float32([2]),
    )
    fused, _ = _fuse(model)
    (function,) = fused.functions
    constants = [inner for inner in function.node if inner.op_type == "Constant"]
    assert len(constants) == 3  # of 2 one alone, and one that is a vector
    assert function.node[1].input[1] == function.node[2].input[1]
    _assert_same(model, fused, x=X)


def test_fused_nodes_name_what_they_stand_for() -> None:
    model = _model("g (float[4] x) => (float[4] y) { [first] a = Abs(x) [second] y = Neg(a) }")
    (node,) = _fuse(model)[0].graph.node
    assert {entry.key: entry.value for entry in node.metadata_props} == {"onnxfuse.nodes": "first,second"}


def test_equal_regions_share_one_function() -> None:
    model = _model(
        "g (float[4] x) => (float[4] y, float[8] z) { a = Abs(x) y = Neg(a) b = MatMul(y, w) c = Abs(b) z = Neg(c) }",
        w=np.ones((4, 8), np.float32),
    )
    fused, _ = _fuse(model)
    assert len(fusing.fused_nodes(fused)) == 2
    assert len(fused.functions) == 1
    _assert_same(model, fused, x=X.reshape(-1)[:4])


def test_values_read_elsewhere_are_outputs_of_the_fused_node() -> None:
    model = _model(
        "g (float[2, 3, 4] x) => (float[2, 3, 4] y, float[2, 3, 4] a, float[4, 3, 2] t) {"
        " a = Abs(x) b = Neg(a) t = Transpose <perm = [2, 1, 0]> (b) y = Exp(b) }"
    )
    fused, _ = _fuse(model)
    (node,) = fusing.fused_nodes(fused)
    assert sorted(node.output) == ["a", "b", "y"]


def test_a_constant_that_raises_the_rank_stays_an_input() -> None:
    model = _model("g (float[4] x) => (float[1, 4] y) { a = Abs(x) y = Add(a, k) }", k=np.ones((1, 1), np.float32))
    fused, _ = _fuse(model)
    assert list(fused.graph.node[0].input) == ["x", "k"]
    _assert_same(model, fused, x=X.reshape(-1)[:4])


def test_a_constant_keeps_its_rank_beside_an_input_that_gives_only_a_type() -> None:
    model = _model("g (uint8[1] t) => (uint8[1] y) { c = CastLike(k, t) y = Clip(c) }", k=np.array([300]))
    fused = fusing.fuse_everything(model)
    assert [node.op_type for node in fused.graph.node] == ["FusedElementwise"]
    _assert_same(model, fused, t=np.array([1], np.uint8))


def test_a_region_crosses_types_and_broadcasts() -> None:
    model = _model(
        "g (float[n, 3, 4] x, int32[3, 1] i, bool[4] m) => (float16[n, 3, 4] y) {"
        " f = Cast <to = 1> (i) a = Mul(x, f) b = Where(m, a, x) y = Cast <to = 10> (b) }"
    )
    fused, report = _fuse(model)
    assert [len(region.ops) for region in report.fused] == [4]
    _assert_same(model, fused, x=X, i=np.array([[1], [-2], [3]], np.int32), m=np.array([True, False, True, False]))


def test_bodies_of_control_flow_are_fused() -> None:
    branch = "{ a = Abs(x) y = Mul(a, k) }"
    model = _model(
        "g (bool c, float[4] x) => (float[4] z) {"
        f" z = If (c) <then_branch = t () => (float[4] y) {branch}, else_branch = e () => (float[4] w)"
        " { b = Neg(x) w = Exp(b) }> }",
        k=np.float32(3),
    )
    fused, report = _fuse(model)
    assert sorted(region.ops for region in report.fused) == [["Abs", "Mul"], ["Neg", "Exp"]]
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": X.reshape(-1)[:4]}
        (expected,) = fusing.run(model, feeds, library=False)
        (actual,) = fusing.run(fused, feeds, library=True)
        np.testing.assert_allclose(actual, expected, 1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "g (bool c, float[4] x) => (float[4] z) { s = SequenceConstruct(x)"
        " r = SequenceMap(s) <body = t (float[4] v) => (float[4] w) {"
        " w = If(c) <then_branch = t () => (float[4] p) { a = Exp(v) b = Mul(a, v) p = Neg(b) },"
        " else_branch = e () => (float[4] q) { a = Exp(v) b = Mul(a, v) q = Sin(b) }> }>"
        " z = ConcatFromSequence<axis=0>(r) }",
        "g (bool c, float[4] x) => (float[4] z) { z = own.choose <branch = t () => (float[4] p)"
        " <float[4] a, float[4] b> { a = Exp(x) b = Mul(a, x) p = Neg(b) }> (c, x) }"
        " <opset_import: ['': 21], domain: 'own'> choose <branch> (c, x) => (z)"
        " { z = If(c) <then_branch: graph = @branch, else_branch = e () => (float[4] q) { q = Identity(x) }> }",
    ],
    ids=["SequenceMap", "function"],
)
def test_graphs_given_to_what_onnx_runtime_inlines_are_left_alone(text: str) -> None:
    model = _model(text.replace("'", '"'))
    model.opset_import.add(domain="own", version=1)
    fused, report = _fuse(model)
    assert not report.fused
    assert {left.reason for left in report.left_alone} == {INLINED}
    for condition in (True, False):
        _assert_same(model, fused, c=np.array(condition), x=X.reshape(-1)[:4])


def test_a_value_captured_by_a_body_is_an_output() -> None:
    model = _model(
        "g (bool c, float[4] x) => (float[4] z, float[4] u) { a = Abs(x) b = Neg(a) u = Sqrt(a)"
        " z = If (c) <then_branch = t () => (float[4] y) { y = Softmax(b) },"
        " else_branch = e () => (float[4] w) { w = Softmax(x) }> }"
    )
    fused, _ = _fuse(model)
    (node,) = fusing.fused_nodes(fused)
    assert "b" in node.output
    _assert_same(model, fused, c=np.array(True), x=X.reshape(-1)[:4])


def test_no_region_waits_for_itself_through_a_body() -> None:
    model = _model(
        "g (bool c, float[4] x) => (float[4] y) { a = Abs(x) b = Neg(a)"
        " z = If (c) <then_branch = t () => (float[4] p) { p = Softmax(b) },"
        " else_branch = e () => (float[4] q) { q = Softmax(x) }>"
        " y = Add(b, z) }"
    )
    fused, _ = _fuse(model)
    _assert_same(model, fused, c=np.array(True), x=X.reshape(-1)[:4])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[4] x) => (float[4] y) { y = Abs(x) }", "no neighbour"),
        ("g (float[n] x) => (int64[1] y) { s = Shape(x) a = Add(s, s) y = Mul(a, s) }", "shapes"),
        ("g (string[4] x) => (bool[4] y) { y = Equal(x, x) }", "type of 'x' is not supported"),
        (
            "g (float[2, 3] x) => (float[2, 3] y) { h = Constant <value_float = 0.5> () s = Sigmoid(x) y = Mul(x, s) }",
            "one kernel",
        ),
        ("g (double[4] x) => (double[4] y) { s = Sin(x) y = Abs(s) }", "faster|no neighbour"),
        ("g (double[4] x) => (double[4] y) { s = Abs(x) c = Cos(s) y = Neg(c) }", "faster|no neighbour"),
    ],
)
def test_what_is_left_alone_has_a_reason(text: str, reason: str) -> None:
    fused, report = _fuse(_model(text))
    assert not fusing.fused_nodes(fused)
    assert report.left_alone
    assert all(re.search(reason, item.reason) for item in report.left_alone)


def test_a_node_whose_result_nobody_reads_is_left_alone() -> None:
    model = _model("g (float[4] x) => (float[4] y) { a = Abs(x) y = Neg(a) b = Exp(a) }")
    fused, report = _fuse(model)
    assert [region.ops for region in report.fused] == [["Abs", "Neg"]]
    assert [item.reason for item in report.left_alone] == ["nothing reads its result"]
    _assert_same(model, fused, x=X.reshape(-1)[:4])


@pytest.mark.parametrize("typed", [False, True])
def test_outputs_of_bodies_get_their_types(typed: bool) -> None:
    branch = "{ a = Abs(x) y = Neg(a) }"
    model = _model(
        "g (bool c, float[4] x) => (float[4] z) {"
        f" z = If (c) <then_branch = t () => (float[4] y) {branch}, else_branch = e () => (float[4] y) {branch}>"
        " }"
    )
    for attribute in model.graph.node[0].attribute:
        attribute.g.output[0].ClearField("type")
        if typed:  # but of unknown rank
            attribute.g.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    fused, _ = _fuse(model)
    _assert_same(model, fused, c=np.array(True), x=X.reshape(-1)[:4])


def test_optimizing_twice_changes_nothing() -> None:
    model = _model("g (float[4] x) => (float[4] y) { a = Abs(x) y = Neg(a) }")
    once, _ = _fuse(model)
    twice, report = _fuse(once)
    assert not report.fused
    assert twice == once


def test_more_tensors_than_a_program_takes_are_split() -> None:
    count = 200
    inputs = [helper.make_tensor_value_info(f"x{index}", TensorProto.FLOAT, [4]) for index in range(count)]
    nodes = [helper.make_node("Sum", [value.name for value in inputs[:100]], ["first"])]
    nodes.append(helper.make_node("Sum", ["first", *(value.name for value in inputs[100:])], ["y"]))
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=9)
    fused = fusing.fuse_everything(model)
    assert len(fusing.fused_nodes(fused)) == 2
    feeds = {value.name: np.full(4, index, np.float32) for index, value in enumerate(inputs)}
    _assert_same(model, fused, **feeds)


def test_a_symbol_that_turns_out_to_be_one_is_broadcast() -> None:
    model = _model("g (float[n, 4] x, float[n, 4] z) => (float[n, 4] y, float[n, 4] a) { a = Abs(x) y = Add(a, z) }")
    fused, _ = _fuse(model)
    one, three = X.reshape(6, 4)[:1], X.reshape(6, 4)[1:4]
    _assert_same(model, fused, x=one, z=three)


def _convolutions_and(tail: str, count: int = 40) -> onnx.ModelProto:
    """``count`` convolutions over 8 channels, which ORT keeps for itself, and elementwise nodes behind them."""
    names = ["x", *(f"c{index}" for index in range(count))]
    body = "".join(
        f"{after} = Conv(p{before}, w) p{after} = MaxPool<kernel_shape=[1, 1]>({after}) "
        for before, after in pairwise(names)
    )
    last = f"p{names[-1]}"
    body = f"px = MaxPool<kernel_shape=[1, 1]>(x) {body}{tail.format(last)}"
    return _model(
        f"g (float[n, 8, 4, 4] x) => (float[n, 8, 4, 4] y) {{ {body} }}",
        w=np.full((8, 8, 1, 1), 0.1, np.float32),
        k=np.float32(2),
    )


def test_a_model_that_gains_too_little_needs_no_library() -> None:
    fused, report = _fuse(_convolutions_and("a = Mul({0}, k) b = Abs(a) y = Sin(b)"))
    assert not report.fused and not fused.functions
    assert {item.reason for item in report.left_alone} >= {
        "the whole model has too little to fuse to load a library for"
    }


def test_many_small_kernels_are_worth_the_library() -> None:
    chain = "a = Mul({0}, k) " + "".join(f"b{index} = Sin({f'b{index - 1}' if index else 'a'}) " for index in range(8))
    _, report = _fuse(_convolutions_and(chain + "y = Abs(b7)"))
    assert [len(region.ops) for region in report.fused] == [10]


def test_what_onnx_runtime_computes_once_is_not_computed_in_every_run() -> None:
    """A constant too large to fold: only ORT's own folding makes it disappear from the run."""
    model = _model(
        "g (float[n, 64, 64] x) => (float[n, 64, 64] y) "
        "{ a = ConstantOfShape(shape) b = Exp(a) c = Add(b, k) d = Mul(x, c) y = Abs(d) }",
        shape=np.array([64, 64]),
        k=np.float32(2),
    )
    _, report = _fuse(model)
    assert [region.ops for region in report.fused] == [["Mul", "Abs"]]
    assert [item.reason for item in report.left_alone] == [
        "ONNX Runtime computes it once, for it depends on no input"
    ] * 2


@pytest.mark.parametrize("between", ("", "e = Exp(s) q = Sub(s, e)"))
def test_a_sigmoid_stays_whose_logarithm_is_infinite_in_onnx_runtime(between: str) -> None:
    """Log(Sigmoid(x)), as PyTorch's LogSigmoid is exported: the exact one is finite as far as -87."""
    text = f"g (float[n, 64] x) => (float[n, 64] y) {{ m = Mul(x, k) s = Sigmoid(m) l = Log(s) {between} y = Neg(l) }}"
    model = _model(text, k=np.float32(2))
    fused, report = _fuse(model)
    assert any("a logarithm reads it" in item.reason for item in report.left_alone)
    x = np.linspace(-100, 100, 128, dtype=np.float32).reshape(2, 64)
    (wanted,) = fusing.run(model, {"x": x}, library=False)
    (found,) = fusing.run(fused, {"x": x}, library=True)
    assert np.isinf(wanted).any()
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
