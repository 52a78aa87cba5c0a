"""Values of inputs follow from what the graph does with them."""

import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import onnxfuse
from onnxfuse.check import shape_wants
from onnxfuse.check.made_up_inputs import generate
from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.inputs import InputSet, input_specs
from onnxfuse.run.sessions import Session, SessionError, Value

TABLE = "<float[7, 2] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}>"


def parsed(signature: str, body: str, opset: int = 18) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> g {signature} {{ {body} }}')


def made(model: onnx.ModelProto) -> list[tuple[InputSet, list[Value]]]:
    """The inputs that are made up for a model, and what ONNX Runtime makes of them."""
    session = Session(model.SerializeToString(), threads=1)
    return list(generate(input_specs(model), session.run, {}, model=model))


def first(signature: str, body: str, opset: int = 18) -> tuple[dict[str, Value], list[Value]]:
    inputs, outputs = made(parsed(signature, body, opset))[0]
    return inputs.feeds, outputs


SHAPES = [
    # A shape, as it is, and of several parts.
    ("(float[2, 3, 4] x, int64[2] s) => (float[6, 4] y)", "y = Reshape(x, s)"),
    ("(float[2, 3, 4] x, int64[2] s) => (float[6, 4] y)", "r = Reshape(x, s) y = Relu(r)"),
    ("(float[2, 3, 4] x, int32[2] s) => (float[6, 4] y)", "c = Cast<to = 7>(s) y = Reshape(x, c)"),
    ("(float[2, 3, 4] x, float[2] s) => (float[6, 4] y)", "c = Cast<to = 7>(s) y = Reshape(x, c)"),
    (
        "(float[2, 3, 4] x, int64 n) => (float[6, 4] y) <int64[1] rest = {4}, int64[1] zero = {0}>",
        "u = Unsqueeze(n, zero) s = Concat<axis = 0>(u, rest) y = Reshape(x, s)",
    ),
    (
        "(float[2, 3, 4] x, int64 n) => (float[6, 4] y) <int64[1] rest = {4}, int64[1] two = {2}>",
        "m = Mul(n, two) s = Concat<axis = 0>(m, rest) y = Reshape(x, s)",
    ),
    (
        "(float[2, 3, 4] x, int64[3] n) => (float[6, 4] y) <int64[2] places = {2, 0}>",
        "s = Gather(n, places) y = Reshape(x, s)",
    ),
    (
        "(float[2, 3, 4] x, int64[4] n) => (float[6, 4] y) <int64[1] one = {1}, int64[1] three = {3}>",
        "t = Slice(n, one, three) s = Sub(t, one) y = Reshape(x, s)",
    ),
    (
        "(float[2, 3, 4] x, int64[2] n) => (float[6, 4] y)",
        "a, b = Split<axis = 0, num_outputs = 2>(n) s = Concat<axis = 0>(b, a) y = Reshape(x, s)",
    ),
    ("(float[batch, 3, 4] x, int64[2] s) => (float[batch, 12] y)", "y = Reshape(x, s)"),
    ("(float[2, 3, 4] x, int64[3] s) => (float[a, b, c] y)", "y = Reshape(x, s)"),
    ("(float[3, 1] x, int64[3] s) => (float[2, 3, 6] y)", "y = Expand(x, s)"),
    ("(float[3, 1] x, int64[3] s) => (float[a, b, c] y)", "y = Expand(x, s)"),
    ("(int64[3] s) => (float[2, 3, 6] y)", "y = ConstantOfShape(s)"),
    ("(float[2, 3] x, int64[2] n) => (float[4, 9] y)", "y = Tile(x, n)"),
    ("(float[1, 1, 4, 4] x, int64[4] n) => (float[1, 1, 7, 9] y)", 'y = Resize<mode = "linear">(x, , , n)'),
    ("(float[1, 1, 4, 4] x, int64[2] n) => (float[a, b, c, d] y)", "y = Resize<axes = [2, 3]>(x, , , n)"),
    ("(float[1, 2, 4, 4] x, float[4] f) => (float[1, 2, 9, 3] y)", 'y = Resize<mode = "linear">(x, , f)'),
    ("(float[1, 2, 4, 4] x, double[4] d) => (float[a, b, c, e] y)", "f = Cast<to = 1>(d) y = Resize(x, , f)"),
    (
        "(float[1, 1, 4, 4] x, float[8] roi, int64[4] n) => (float[1, 1, 3, 3] y)",
        'y = Resize<mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize">(x, roi, , n)',
    ),
    ("(float[2, 3] x, int64[4] p) => (float[5, 3] y)", "y = Pad(x, p)"),
    ("(float[2, 3] x, int64[4] p) => (float[a, b] y)", 'y = Pad<mode = "reflect">(x, p)'),
    ("(float[2, 3] x, int64[2] p, int64[1] axes) => (float[2, 5] y)", "y = Pad(x, p, , axes)"),
    ("(float[9, 9] x, int64[2] n) => (float[4, 12] y)", "y = CenterCropPad(x, n)"),
]
INDICES = [
    (f"(int64[n] i) => (float[n, 2] y) {TABLE}", "y = Gather(table, i)"),
    (
        f"(int32[n] i) => (float[n, 2] y) {TABLE[:-1]}, int64[1] two = {{2}}>",
        "c = Cast<to = 7>(i) a = Add(c, two) y = Gather(table, a)",
    ),
    (f"(int64[n] i) => (float[n, 2] y) {TABLE[:-1]}, int64[1] last = {{6}}>", "a = Sub(last, i) y = Gather(table, a)"),
    (f"(int64[n, 2] i) => (float[n, 2] y) {TABLE}", "y = GatherElements(table, i)"),
    (f"(int64[n, 2] i) => (float[n] y) {TABLE}", "y = GatherND(table, i)"),
    ("(float[2, 9] x, int64[4, 2] i, float[4] u) => (float[2, 9] y)", "y = ScatterND(x, i, u)"),
    ("(float[5, 3] x, int64[2, 3] i, float[2, 3] u) => (float[5, 3] y)", "y = ScatterElements(x, i, u)"),
    ("(int64[4] i, int64 n) => (float[4, 5] y) <float[2] v = {0, 1}>", "y = OneHot(i, n, v)"),
    ("(float[n, 5] x, int64 i) => (float[n] y)", "y = Gather<axis = 1>(x, i)"),
    (
        f"(int64 n) => (float[m, 2] y) {TABLE[:-1]}, int64 zero = {{0}}, int64 one = {{1}}>",
        "p = Range(zero, n, one) y = Gather(table, p)",
    ),
    (
        "(float[2, 1, 8, 8] x, float[3, 4] boxes, int64[3] i) => (float[3, 1, 2, 2] y)",
        "y = RoiAlign<output_height = 2, output_width = 2>(x, boxes, i)",
    ),
    ("(float[2, 9] x, int64 p) => (float[9] y)", "s = SplitToSequence<axis = 0, keepdims = 0>(x) y = SequenceAt(s, p)"),
]
AXES = [
    ("(float[2, 3, 4] x, int64[1] a) => (float[2, 1, 4] y)", "y = ReduceSum(x, a)"),
    ("(float[2, 3, 4] x, int64[2] a) => (float[3] y)", "y = ReduceMax<keepdims = 0>(x, a)"),
    ("(float[2, 3, 4] x, int64[2] a) => (float[p, q, r] y)", "y = ReduceMean(x, a)"),
    ("(float[2, 1, 4, 1] x, int64[1] a) => (float[2, 1, 4] y)", "y = Squeeze(x, a)"),
    ("(float[3, 4] x, int64[2] a) => (float[3, 1, 4, 1] y)", "y = Unsqueeze(x, a)"),
    ("(float[3, 4] x, int64 a) => (float[3, 4] y)", "y = CumSum(x, a)"),
    ("(float[3, 4] x, int64[1] s, int64[1] e, int64[1] a, int64[1] t) => (float[3, 2] y)", "y = Slice(x, s, e, a, t)"),
    ("(float[n, 4] x, int64[2] s, int64[2] e) => (float[m, 3] y)", "y = Slice(x, s, e)"),
    (
        "(float[9] x, int32 s, int32 e) => (float[m] y) <int64[1] shape = {1}>",
        "t = Reshape(s, shape) u = Reshape(e, shape) y = Slice(x, t, u)",
    ),
]
LENGTHS = [
    ("(float[6, 2] x, int64[2] s) => (float[2, 2] a, float[4, 2] b)", "a, b = Split(x, s)"),
    ("(float[6, 2] x, int64[2] s) => (float[p, 2] a, float[q, 2] b)", "a, b = Split(x, s)"),
    ("(float[3, 9] x, int64[1] k) => (float[3, 4] v, int64[3, 4] i)", "v, i = TopK(x, k)"),
    ("(float[3, n] x, int64[1] k) => (float[3, m] v, int64[3, m] i)", "v, i = TopK(x, k)"),
    ("(int64 a, int64 b, int64 c) => (int64[5] y)", "y = Range(a, b, c)"),
    ("(float a, float b, float c) => (float[n] y)", "y = Range(a, b, c)"),
    ("(float[4, 4] x, int64 k) => (float[4, 4] y)", "y = Trilu(x, k)"),
    ("(float[5, 3, 2] x, int64[3] n) => (float[5, 3, 2] y)", "y = ReverseSequence(x, n)"),
    (
        "(float[5, 3, 2] x, float[1, 4, 2] w, float[1, 4, 4] r, int32[3] n) => (float[5, 1, 3, 4] y)",
        "y = RNN<hidden_size = 4>(x, w, r, , n)",
    ),
    ("(int64 n) => (float[9] y)", "y = HannWindow(n)"),
    ("(uint8[9] x, uint8[9] n) => (uint8[9] y)", 'y = BitShift<direction = "LEFT">(x, n)'),
    ("(int64[40] a, int64[40] b) => (int64[40] y)", "y = Div(a, b)"),
    ("(int64[40] a, int32[40] b) => (int64[40] y)", "c = Cast<to = 7>(b) y = Mod(a, c)"),
    ("(int32[40] a, int32[40] b) => (int32[40] y)", "y = Pow(a, b)"),
    (
        "(float[1, 6, 4] b, float[1, 1, 6] s, int64[1] n, float[1] i, float[1] t) => (int64[m, 3] y)",
        "y = NonMaxSuppression(b, s, n, i, t)",
    ),
    (
        "(int64 n, float[3] x) => (float[3] y) <bool yes = {1}>",
        "y = Loop(n, yes, x) <body = b (int64 i, bool c, float[3] a) => (bool d, float[3] z) "
        "{ d = Identity(c) z = Add(a, a) }>",
    ),
]


@pytest.mark.parametrize(("signature", "body"), [*SHAPES, *INDICES, *AXES, *LENGTHS])
def test_what_readers_need_is_made_up(signature: str, body: str) -> None:
    model = parsed(signature, body)
    sets = made(model)
    assert len(sets) == 3
    for _, outputs in sets:
        for declared, value in zip(model.graph.output, outputs, strict=True):
            dims = [dim.dim_value for dim in declared.type.tensor_type.shape.dim]
            assert value.size > 0 and len(dims) == value.ndim
            assert all(size in (0, got) for size, got in zip(dims, value.shape, strict=True)), (dims, value.shape)


def test_indices_reach_all_rows_of_a_table_and_no_more() -> None:
    body = "c = Cast<to = 7>(i) s = Sub(c, two) y = Gather(table, s)"
    feeds, _ = first(f"(int32[200] i) => (float[200, 2] y) {TABLE[:-1]}, int64 two = {{2}}>", body)
    assert sorted(set(feeds["i"].tolist())) == [2, 3, 4, 5, 6, 7, 8]


def test_the_axis_of_a_transform_and_its_length() -> None:
    _, (y,) = first("(float[1, 8, 6, 1] x, int64 n, int64 a) => (float[1, 8, 5, 2] y)", "y = DFT(x, n, a)", 20)
    assert y.shape == (1, 8, 5, 2)


def test_places_that_are_written_to_differ() -> None:
    feeds, _ = first("(float[3, 3] x, int64[9, 2] i, float[9] u) => (float[3, 3] y)", "y = ScatterND(x, i, u)")
    assert len({tuple(row) for row in feeds["i"].tolist()}) == 9


@pytest.mark.parametrize(
    ("kind", "condition"),
    [
        ("int64", "c = Equal(n, limit)"),
        ("int64", "l = Less(n, limit) c = Not(l)"),
        ("float", "f = Cast<to = 7>(n) c = Greater(limit, f)"),
        ("bool", "i = Cast<to = 7>(n) c = Equal(i, one)"),
    ],
)
def test_a_condition_goes_both_ways(kind: str, condition: str) -> None:
    branches = "then_branch = t () => (float[2] o) { o = Neg(x) }, else_branch = e () => (float[2] q) { q = Exp(x) }"
    signature = f"({kind} n, float[2] x) => (float[2] y) <int64 limit = {{300}}, int64 one = {{1}}>"
    sets = made(parsed(signature, f"{condition} y = If(c) <{branches}>"))
    (one, negated), (other, raised) = ((inputs.feeds["x"], outputs[0]) for inputs, outputs in sets[:2])
    np.testing.assert_array_equal(negated, -one)
    np.testing.assert_allclose(raised, np.exp(other), rtol=1e-5)


def test_what_only_one_branch_reads_counts_where_it_is_taken() -> None:
    branches = (
        "then_branch = t () => (float[a, b] o) { o = Reshape(x, s) }, "
        "else_branch = e () => (float[c, d] q) { u = Sub(s, two) q = Reshape(x, u) }"
    )
    signature = "(bool c, float[6, 4] x, int64[2] s) => (float[8, 3] y) <int64[2] two = {2, 2}>"
    sets = made(parsed(signature, f"y = If(c) <{branches}>"))
    assert [inputs.feeds["s"].tolist() for inputs, _ in sets[:2]] == [[8, 3], [10, 5]]


def test_functions_of_the_model_are_looked_into() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18, "own" : 1]> g (float[2, 3] x, int64[1] s) => (float[6] y) '
        '{ y = own.flat(x, s) } <domain: "own", opset_import: ["" : 18]> flat (a, b) => (c) { c = Reshape(a, b) }'
    )
    assert made(model)[0][0].feeds["s"].tolist() == [6]


def test_values_outside_of_a_function_are_not_made_up() -> None:
    feeds, (y,) = first("(float[50] x) => (float[50] y)", "y = Acosh(x)", 22)
    assert feeds["x"].min() >= 1 and len(np.unique(feeds["x"])) > 40 and not np.isnan(y).any()


def test_wrong_nodes_are_onnx_runtimes_to_refuse() -> None:
    """Nothing is made up of attributes that make no sense, and no error of Python's comes of them."""
    for body in (
        "y = Col2Im<strides = [0, 0]>(x, s, s)",
        "y = Gather<axis = 9>(x, s)",
        "y = Split<axis = -7>(x, s)",
        "y = Reshape(x, s, s)",
        "y = TopK<axis = 5>(x, s)",
    ):
        model = parsed("(float[1, 4, 5] x, int64[2] s) => (float[n] y)", body)

        def refuse(feeds: dict[str, Any]) -> list[Value]:
            raise SessionError("no")

        with pytest.raises(OnnxfuseError, match="could not run the original"):
            next(generate(input_specs(model), refuse, {}, model=model))


def test_a_length_of_columns_may_be_any_number() -> None:
    """Of which the factors are looked for, up to sizes that a block may have."""
    numbers = shape_wants._factors(1_000_000_007 * 12, 2)
    assert [first for first, _ in numbers] == [1, 2, 3, 4, 6, 12]


# --- onnx's own cases ---


@cache
def cases() -> dict[str, Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    return {case.name: case for case in found if case.model is not None}


def runnable() -> Iterator[tuple[str, onnx.ModelProto, Session]]:
    """The cases of opsets and types that ONNX Runtime takes, on inputs that it runs them on."""
    for name, case in cases().items():
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        model.ir_version = min(model.ir_version, 13)
        for opset in model.opset_import:
            opset.version = min(opset.version, 26)
        try:
            session = Session(model.SerializeToString(), threads=1)
            for inputs, _ in case.data_sets:
                names = [value.name for value in model.graph.input]
                pairs = zip(names, map(_array, inputs), strict=False)
                session.run({key: value for key, value in pairs if value is not None})
        except SessionError:
            continue
        yield name, model, session


def _array(value: Value) -> Value:
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


@pytest.mark.filterwarnings("ignore")
def test_inputs_are_made_up_for_every_case_of_onnx_that_onnx_runtime_runs() -> None:
    failed, count = {}, 0
    for name, model, session in runnable():
        count += 1
        try:
            next(generate(input_specs(model), session.run, {}, model=model))
        except OnnxfuseError as error:
            failed[name] = str(error)
    assert not failed and count > 1000


def test_a_model_that_needs_a_shape_is_optimized_without_help(tmp_path: Path) -> None:
    model = parsed(
        "(float[2, 3, 4] x, int64[2] s) => (float[6, 4] y)", "a = Add(x, x) b = Sigmoid(a) y = Reshape(b, s)"
    )
    report = onnxfuse.optimize(model, "cpu").report
    assert report.parity is not None and report.parity.ok and len(report.parity.sets) == 6
