"""Operators whose arithmetic depends on attributes, shapes or the opset in ways that few models show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import onnxfuse

Arrays = dict[str, np.ndarray]


def model(nodes: Sequence[onnx.NodeProto], feeds: Arrays, constants: Arrays, opset: int) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name="y")], initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


def assert_same(nodes: Sequence[onnx.NodeProto], feeds: Arrays, opset: int = 18, **constants: np.ndarray) -> int:
    """How many nodes are fused, with the bits that ONNX Runtime gives without its optimizations."""
    original = model(nodes, feeds, constants, opset)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (expected,) = ort.InferenceSession(original.SerializeToString(), options, ["CPUExecutionProvider"]).run(None, feeds)
    fused = onnxfuse.optimize(original, check=False).model
    session = onnxfuse.InferenceSession(fused.SerializeToString(), providers=["CPUExecutionProvider"])
    (actual,) = session.run(None, feeds)
    np.testing.assert_array_equal(actual, expected, strict=True)
    np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))
    return sum(node.op_type == "FusedElementwise" for node in fused.graph.node)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("exponent", [2, 3])
@pytest.mark.parametrize("type_name", ["int32", "int64"])
def test_integers_to_a_small_power_are_products(
    type_name: str, exponent: int, shape: tuple[int, ...], given: bool
) -> None:
    """In the integers' own arithmetic, which wraps around; through double they would be rounded."""
    x = np.array([100_000_001, 2_147_483_647, -94_906_267, 46_341, 5], type_name)
    e = np.full(shape, exponent, type_name)
    nodes = [helper.make_node("Pow", ["x", "e"], ["p"]), helper.make_node("Neg", ["p"], ["y"])]
    feeds = {"x": x, "e": e} if given else {"x": x}
    fused = assert_same(nodes, feeds, **({} if given else {"e": e}))
    assert fused == (0 if given else 1)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(
    ("base", "exponent"),
    [
        *(((), ()), ((1,), (1,)), ((1,), ()), ((), (1,)), ((4, 1), ()), ((4, 1), (1,)), ((4, 1), (1, 1))),
        *(((4,), (1, 1)), ((3, 4), (1, 1)), ((3, 4), (3, 1)), ((3, 4), (4,)), ((3, 4), (3, 4)), ((3, 1), (4,))),
    ],
)
@pytest.mark.parametrize("type_name", ["int64", "float64"])
def test_powers_of_every_shape(type_name: str, base: tuple[int, ...], exponent: tuple[int, ...], given: bool) -> None:
    """ONNX Runtime multiplies where one exponent serves a row of bases, and rounds integers elsewhere."""
    x = np.resize(np.array([100_000_001, 3_037_000_501, -94_906_267, 46_341]), base).astype(type_name)
    e = np.full(exponent, 2, type_name)
    nodes = [helper.make_node("Pow", ["x", "e"], ["p"]), helper.make_node("Neg", ["p"], ["y"])]
    feeds = {"x": x, "e": e} if given else {"x": x}
    assert_same(nodes, feeds, **({} if given else {"e": e}))


@pytest.mark.parametrize("opset", [21, 23])
@pytest.mark.parametrize("type_name", ["uint8", "int8"])
def test_the_ratio_of_a_quantization_is_rounded_to_the_scale_s_type(type_name: str, opset: int) -> None:
    """Since opset 23, for then the division is that of the scale's type."""
    x = np.random.default_rng(1).normal(0, 60, 2000).astype(np.float16)
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("QuantizeLinear", ["a", "s", "z"], ["y"])]
    fused = assert_same(nodes, {"x": x}, opset, s=np.array(0.7437, np.float16), z=np.array(0, type_name))
    assert fused == 1


@pytest.mark.parametrize("precision", [0, onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16])
def test_the_precision_of_a_quantization(precision: int) -> None:
    x = np.random.default_rng(2).normal(0, 60, 2000).astype(np.float16)
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("QuantizeLinear", ["a", "s", "z"], ["y"], precision=precision),
    ]
    assert assert_same(nodes, {"x": x}, 23, s=np.array(0.7437, np.float16), z=np.array(3, np.uint8)) == 1


@pytest.mark.parametrize("alpha", [-1.0, -0.5, 0.25, 1.0])
@pytest.mark.parametrize("operator", ["Celu", "Elu", "ThresholdedRelu", "LeakyRelu"])
def test_attributes_of_unusual_sign(operator: str, alpha: float) -> None:
    """Of exp only results that are whole are compared bit by bit."""
    x = np.array([-np.inf, -0.0, 0.0, 1.0, 2.0, np.inf], np.float32)
    nodes = [helper.make_node(operator, ["x"], ["a"], alpha=alpha), helper.make_node("Reciprocal", ["a"], ["y"])]
    assert_same(nodes, {"x": x})


@pytest.mark.parametrize("alpha", [-1.0, -0.0, 0.0, np.nan, np.inf])
@pytest.mark.parametrize("operator", ["Celu", "Selu"])
def test_an_alpha_that_is_not_positive_is_left_alone(operator: str, alpha: float) -> None:
    x = np.array([-2, -1, -0.5, 0, 1, 2], np.float32)
    nodes = [helper.make_node(operator, ["x"], ["a"], alpha=alpha), helper.make_node("Add", ["a", "x"], ["y"])]
    assert assert_same(nodes, {"x": x}) == 0


@pytest.mark.parametrize("bias", [-0.0, 0.0, 1.0])
@pytest.mark.parametrize("lambd", [-0.5, 0.0, 0.5])
def test_shrink_keeps_the_sign_of_zero(lambd: float, bias: float) -> None:
    x = np.array([-1, -0.5, -0.0, 0.0, 0.5, 1, np.nan], np.float32)
    nodes = [
        helper.make_node("Shrink", ["x"], ["a"], lambd=lambd, bias=bias),
        helper.make_node("Reciprocal", ["a"], ["y"]),
    ]
    assert assert_same(nodes, {"x": x}) == 1


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("operand", ["l", "h"])
@pytest.mark.parametrize("bound", [-0.0, 0.0, np.nan, -1.5])
@pytest.mark.parametrize("type_name", ["float32", "float64", "float16"])
def test_clip_keeps_the_sign_of_what_it_clips(type_name: str, bound: float, operand: str, given: bool) -> None:
    """Of a zero beside a bound of zero, however long the tensor is."""
    x = np.resize(np.array([-1, -2, -0.0, 0.0, 3, 4, np.nan], type_name), 45)
    inputs = ["x", operand] if operand == "l" else ["x", "", operand]
    nodes = [helper.make_node("Clip", inputs, ["a"]), helper.make_node("Reciprocal", ["a"], ["y"])]
    value = {operand: np.array(bound, type_name)}
    assert assert_same(nodes, {"x": x, **(value if given else {})}, **({} if given else value)) == 1


@pytest.mark.parametrize("bounds", [{"min": 0.0}, {"max": -0.0}, {"min": -0.0, "max": 0.0}])
def test_clip_of_old_models_keeps_the_sign_of_what_it_clips(bounds: dict[str, float]) -> None:
    x = np.resize(np.array([-1, -2, -0.0, 0.0, 3, 4], np.float32), 45)
    nodes = [helper.make_node("Clip", ["x"], ["a"], **bounds), helper.make_node("Reciprocal", ["a"], ["y"])]
    assert assert_same(nodes, {"x": x}, opset=10) == 1


@pytest.mark.parametrize("opset", [10, 11, 12, 13])
@pytest.mark.parametrize("type_name", ["float16", "float32"])
def test_clip_without_bounds_ends_where_that_of_its_opset_does(type_name: str, opset: int) -> None:
    """At the largest number of its type; but at that of float32, before opset 12, whatever its type."""
    x = np.array([np.inf, -np.inf, np.nan, 65504.0, 1.0], type_name)
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Clip", ["a"], ["y"])]
    assert assert_same(nodes, {"x": x}, opset=opset) == 1


@pytest.mark.parametrize("rank", [0, None])
def test_clip_of_what_may_be_a_scalar_by_a_bound_of_unknown_rank_is_left_alone(rank: int | None) -> None:
    """A bound of one dimension, which ONNX Runtime takes too, would give the result one."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[] x, float[] l) => (float[] y) {
        a = Neg(x) b = Clip(a, l) y = Neg(b) }"""
    unknown = onnx.parser.parse_model(text)
    for value in unknown.graph.input[1:] if rank == 0 else unknown.graph.input:
        value.type.tensor_type.ClearField("shape")
    found = onnxfuse.optimize(unknown, check=False)
    assert [node.op_type for node in found.model.graph.node] == ["Neg", "Clip", "Neg"]
    assert any("unknown rank" in entry.reason for entry in found.report.left_alone)


def test_tensors_of_more_dimensions_than_the_library_takes_are_left_alone() -> None:
    x = np.ones([1] * 15 + [2, 3], np.float32)
    nodes = [helper.make_node("Mul", ["x", "x"], ["a"]), helper.make_node("Add", ["a", "x"], ["y"])]
    assert assert_same(nodes, {"x": x}) == 0


@pytest.mark.parametrize("epsilon", [1e-5, 1e-8, 1e-12])
def test_batch_normalization_of_float16_has_the_epsilon_of_float(epsilon: float) -> None:
    """In float16 it would be 0, and a variance of 0 would make infinities and what is no number."""
    x = np.array([[1e-3, -0.5, 0.25, -3.0], [0.0, 2.0, -1e-3, 0.5]], np.float16)[:, :, None]
    zero, one = np.zeros(4, np.float16), np.ones(4, np.float16)
    variance = np.array([0, 1, 0, 4], np.float16)
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["y"], epsilon=epsilon),
    ]
    assert assert_same(nodes, {"x": x}, s=one, b=zero, m=zero, v=variance) == 1


@pytest.mark.parametrize("value", [1e5, 1e-8])
@pytest.mark.parametrize(
    ("operator", "attribute"),
    [
        *(("LeakyRelu", "alpha"), ("Elu", "alpha"), ("ThresholdedRelu", "alpha"), ("Shrink", "bias")),
        *(("HardSigmoid", "alpha"), ("HardSigmoid", "beta"), ("Selu", "alpha"), ("Selu", "gamma")),
    ],
)
def test_attributes_beyond_float16(operator: str, attribute: str, value: float) -> None:
    """They stay those of float: 1e5 would be infinite, 1e-8 zero."""
    x = np.array([-1e-3, -0.5, -3.0, -0.0, 0.25, 3.0, 60000.0, 1e-7], np.float16)
    nodes = [helper.make_node(operator, ["x"], ["a"], **{attribute: value}), helper.make_node("Abs", ["a"], ["y"])]
    assert_same(nodes, {"x": x})


@pytest.mark.parametrize("symbol", ["n", "unk__0", "?unk__0"])
def test_integers_to_a_power_where_one_declared_symbol_is_two_sizes(symbol: str) -> None:
    """tf2onnx declares symbols that begin as those do which inference makes up, and no one makes sure of them."""
    nodes = [helper.make_node("Pow", ["x", "e"], ["p"]), helper.make_node("Neg", ["p"], ["y"])]
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.INT32, [symbol]) for name in "xe"]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.INT32, None)
    graph = helper.make_graph(nodes, "g", infos, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    feeds = {"x": np.array([3, 70_000, -5], np.int32), "e": np.array([2], np.int32)}
    fused = onnxfuse.optimize(model, check=False).model
    (expected,) = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    (actual,) = onnxfuse.InferenceSession(fused.SerializeToString()).run(None, feeds)
    np.testing.assert_array_equal(actual, expected)
