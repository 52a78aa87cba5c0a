"""Dynamic dimensions: the sizes that weights ask for, and sizes beyond what the graph compares them with."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfuse
from onnxfuse.check.dynamic_sizes import DynamicSizes
from onnxfuse.check.larger_sizes import limits_of
from onnxfuse.check.made_up_inputs import generate
from onnxfuse.check.parity import compare
from onnxfuse.check.tensor_facts import Graph
from onnxfuse.errors import OnnxfuseError
from onnxfuse.report.report import describe_parity
from onnxfuse.run.given_shapes import Shapes
from onnxfuse.run.inputs import input_specs
from onnxfuse.run.sessions import Session
from tests.support.parity_models import save

ATTENTION = "s = MatMul(x, t) m = Where(keep, s, low) p = Softmax<axis = -1>(m) y = MatMul(p, x)"
START = (
    "t = Transpose<perm = [0, 2, 1]>(x) h = Shape<start = 1, end = 2>(x) n = Squeeze(h, first) "
    "q = Range(zero, n, one) rows = Unsqueeze(q, second) d = Sub(rows, q)"
)
CONSTANTS = (
    "int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] second = {1}, float low = {-10000.0}, "
    "int64 window = {128}"
)


def parsed(signature: str, body: str, *, opset: int = 18, **arrays: np.ndarray) -> onnx.ModelProto:
    text = f'<ir_version: 9, opset_import: ["" : {opset}, "com.microsoft" : 1]> g {signature} {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in arrays.items())
    return model


def attention(keep: str, more: str = "") -> onnx.ModelProto:
    signature = f"(float[batch, seq, 8] x) => (float[batch, seq, 8] y) <{CONSTANTS}{more}>"
    return parsed(signature, f"{START} {keep} {ATTENTION}")


def shapes_of(model: onnx.ModelProto, given: Shapes | None = None) -> tuple[list[dict[str, list[int]]], list[str]]:
    """The shapes that a model is run with, and what is said of them."""
    session, told = Session(model.SerializeToString(), threads=1), []
    sets = generate(input_specs(model), session.run, given or {}, model=model, tell=told.append)
    return [inputs.shapes() for inputs, _ in sets], told


@pytest.mark.parametrize(
    ("keep", "more"),
    [
        ("keep = Less(d, window)", ""),
        ("e = Abs(d) keep = LessOrEqual(e, window)", ""),
        ("f = Cast<to = 1>(d) keep = Greater(wide, f)", ", float wide = {128.0}"),
        ("e = Sub(window, d) keep = Greater(e, zero)", ""),
        ("e = Clip(d, zero, window) keep = Less(e, window)", ""),
        (
            "b = Expand(wide, h) c = Unsqueeze(b, first) k = CumSum(c, one) keep = Less(k, window)",
            ", int64[1] wide = {1}",
        ),
        ("e = Shape(x) i = Gather(e, one) j = Min(i, window) keep = Less(d, j)", ""),
        (
            "e = Concat<axis = 0>(h, h) b = ConstantOfShape<value = int64[1] {1}>(e) c = Trilu<upper = 1>(b, back) "
            "keep = Cast<to = 9>(c)",
            ", int64 back = {-128}",
        ),
    ],
)
def test_a_window_is_run_with_a_length_beyond_it(keep: str, more: str) -> None:
    shapes, told = shapes_of(attention(keep, more))
    assert [shape["x"] for shape in shapes] == [[1, 32, 8], [2, 32, 8], [1, 32, 8], [1, 200, 8]] and not told


def test_a_wrong_window_is_caught_and_the_sizes_are_named(tmp_path: Path) -> None:
    right = save(attention("keep = Less(d, window)"), tmp_path / "right.onnx")
    wrong = save(attention("keep = Less(d, far)", ", int64 far = {4096}"), tmp_path / "wrong.onnx")
    result = compare(right, right)
    assert result.ok and result.sizes() == {"batch": [1, 2], "seq": [32, 200]}
    assert result.sets[-1].sizes == {"batch": 1, "seq": 200} and result.sets[-1].label == "normal values, larger sizes"
    assert "on 4 sets of made-up inputs of sizes batch 1 and 2, seq 32 and 200: every" in describe_parity(result)
    result = compare(right, wrong)
    assert [all(output.ok for output in found.outputs) for found in result.sets] == [True, True, True, False]


def test_the_report_names_the_sizes(tmp_path: Path) -> None:
    report = onnxfuse.optimize(attention("keep = Less(d, window)"), "cpu").report
    assert "seq 32 and 200, with and without the library" in report.summary()
    written = report.to_json()["parity"]
    assert written["made_up"] and written["sizes"] == {"batch": [1, 2], "seq": [32, 200]}
    assert written["sets"][3]["sizes"] == {"batch": 1, "seq": 200}


def test_given_shapes_stay() -> None:
    shapes, told = shapes_of(attention("keep = Less(d, window)"), {"seq": (40,)})
    assert {shape["x"][1] for shape in shapes} == {40} and not told
    shapes, told = shapes_of(attention("keep = Less(d, window)"), {"x": (1, 40, 8)})
    assert {shape["x"][1] for shape in shapes} == {40} and not told


def test_what_is_too_large_to_run_is_said() -> None:
    shapes, told = shapes_of(attention("keep = Less(d, far)", ", int64 far = {1000000}"))
    reached = shapes[-1]["x"][1]
    assert 32 < reached < 1_000_000
    assert told == [
        f"the model compares seq with 1000000, and was run with {reached} at most: "
        "give a larger one where the command has --shape"
    ]


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ("q = Range(zero, n, one) e = Gather(table, q) y = Add(x, e)", 96),
        ("q = Range(zero, n, one) r = Add(q, two) e = Gather(table, r) y = Add(x, e)", 94),
        ("e = Slice(table, first, h, first) y = Add(x, e)", 96),
        ("e = Slice(table, two, end, first) y = Add(x, e)", 94),
    ],
)
def test_a_table_is_used_to_its_end(body: str, size: int) -> None:
    table = np.random.default_rng(0).normal(size=(96, 4)).astype(np.float32)
    start = "h = Shape<start = 1, end = 2>(x) n = Squeeze(h, first) end = Add(h, two)"
    signature = (
        "(float[batch, seq, 4] x) => (float[batch, seq, 4] y) "
        "<int64 zero = {0}, int64 one = {1}, int64[1] two = {2}, int64[1] first = {0}>"
    )
    shapes, told = shapes_of(parsed(signature, f"{start} {body}", table=table))
    assert shapes[-1]["x"] == [1, size, 4] and not told


def test_the_rows_of_a_mask_in_the_file_are_a_table() -> None:
    mask = np.tril(np.ones((1, 96, 96), bool))
    body = f"{START} h2 = Concat<axis = 0>(h, h) keep = Slice(mask, start, h2, axes) {ATTENTION}"
    more = ", int64[2] start = {0, 0}, int64[2] axes = {1, 2}"
    model = parsed(f"(float[1, seq, 8] x) => (float[1, seq, 8] y) <{CONSTANTS}{more}>", body, mask=mask)
    assert shapes_of(model)[0][-1]["x"] == [1, 96, 8]


def test_inputs_without_named_dimensions_grow_together() -> None:
    body = f"a = Add(x, z) {START.replace('Shape<start = 1, end = 2>(x)', 'Shape<start = 1, end = 2>(a)')} "
    body += f"keep = Less(d, window) {ATTENTION}"
    model = parsed(f"(float[1, ?, 8] x, float[?, ?, 8] z) => (float[?, ?, 8] y) <{CONSTANTS}>", body)
    shapes, _ = shapes_of(model)
    assert shapes[-1] == {"x": [1, 200, 8], "z": [1, 200, 8]}


def test_whole_blocks_are_taken_where_others_do_not_run() -> None:
    body = (
        "h = Shape<start = 1, end = 2>(x) b = Div(h, block) s = Concat<axis = 0>(minus, block, b) u = Reshape(x, s) "
        "c = Sigmoid(u) k = Shape(x) v = Reshape(c, k) m = Min(h, far) i = Cast<to = 1>(m) y = Add(v, i)"
    )
    signature = (
        "(float[1, seq] x) => (float[1, seq] y) <int64[1] block = {16}, int64[1] minus = {-1}, int64[1] far = {100}>"
    )
    shapes, _ = shapes_of(parsed(signature, body))
    assert shapes[-1]["x"] == [1, 192]


def test_values_of_positions_go_beyond_what_they_are_compared_with() -> None:
    body = "r = Unsqueeze(position_ids, last) d = Sub(r, position_ids) b = Less(d, window)"
    body += " c = Cast<to = 1>(b) y = Mul(c, x)"
    model = parsed(
        "(int64[40] position_ids, float[40, 40] x) => (float[40, 40] y) <int64 window = {128}, int64[1] last = {1}>",
        body,
    )
    session = Session(model.SerializeToString(), threads=1)
    sets = [inputs.feeds for inputs, _ in generate(input_specs(model), session.run, {}, model=model)]
    assert max(feeds["position_ids"].max() for feeds in sets[:3]) < 16
    assert np.ptp(sets[3]["position_ids"]) > 128


@pytest.mark.parametrize(
    "node",
    [
        "y = Attention<left_window_size = 128, q_num_heads = 2, kv_num_heads = 2>(x, x, x)",
        "y = com.microsoft.Own<local_window_size = 128>(x)",
        "y = Conv<kernel_shape = [43], dilations = [3], pads = [63, 63]>(x, w)",
    ],
)
def test_windows_in_attributes_are_known(node: str) -> None:
    signature = "(float[batch, chan, seq] x, float[8, chan, 43] w) => (float[batch, a, b] y)"
    model = parsed(signature, node, opset=25)
    limits = limits_of(DynamicSizes(Graph(model), input_specs(model)))
    assert any("seq" in limit.sizes and limit.value in (127, 128) for limit in limits)


@pytest.mark.parametrize(
    ("signature", "body", "wanted"),
    [
        ("(float[a, b] x) => (float[a, 5] y)", "y = MatMul(x, w)", (None, 48)),
        ("(float[a, b] x) => (float[a, 5] y)", "r = Relu(x) y = Gemm(r, w)", (None, 48)),
        ("(float[?, ?] x) => (float[5, ?] y)", "y = Gemm<transA = 1, transB = 1>(w, x)", (None, 48)),
        ("(float[n, c, h, k] x) => (float[n, 6, ?, ?] y)", "y = Conv(x, filters)", (None, 7, None, None)),
        ("(float[n, c, h, k] x) => (float[n, ?, ?, ?] y)", "y = ConvTranspose(x, filters)", (None, 6, None, None)),
        ("(float[p, q] x) => (float[48, 5] y)", "s = Sigmoid(x) y = Mul(s, w)", (48, 5)),
        ("(float[a, b] x) => (float[a, b] y)", "y = LayerNormalization(x, gamma)", (None, 5)),
        ("(float[n] x) => (float[7, 11] y) <int64[2] s = {7, 11}>", "y = Reshape(x, s)", (77,)),
        ("(float[2, n] x) => (float[?, 11] y) <int64[2] s = {-1, 22}>", "y = Reshape(x, s)", (2, 11)),
        ("(float[a, b] x) => (float[a, c] y)", "y = Concat<axis = 1>(x, w)", (48, None)),
        ("(float[a, b] x) => (float[3, ?] p, float[10, ?] q) <int64[2] s = {3, 10}>", "p, q = Split(x, s)", (13, None)),
    ],
)
def test_sizes_that_weights_ask_for_are_found(signature: str, body: str, wanted: tuple[int | None, ...]) -> None:
    arrays = {"w": (48, 5), "filters": (6, 7, 3, 3), "gamma": (5,)}
    made = {name: np.ones(shape, np.float32) for name, shape in arrays.items() if name in body}
    shapes, _ = shapes_of(parsed(signature, body, **made))
    assert all(want in (None, size) for want, size in zip(wanted, shapes[0]["x"], strict=True)), shapes[0]


def test_sizes_of_what_recurs_are_those_of_its_weights() -> None:
    arrays = {"w": (1, 16, 9), "r": (1, 16, 4)}
    made = {name: np.ones(shape, np.float32) for name, shape in arrays.items()}
    signature = "(float[t, b, k] x, float[a, c, d] h, float[e, f, g] s) => (float[t, a, b, 4] y)"
    model = parsed(signature, "y = LSTM<hidden_size = 4>(x, w, r, , , h, s)", **made)
    shape = shapes_of(model)[0][0]
    assert shape["x"][2] == 9 and shape["h"] == shape["s"] == [1, shape["x"][1], 4]


@pytest.mark.parametrize("length", ["seq", "1"])
def test_the_length_of_all_keys_is_that_of_cached_and_new_ones(length: str) -> None:
    """And stays so where there are more of them than a window has."""
    body = (
        "k = Concat<axis = 1>(past, x) t = Transpose<perm = [0, 2, 1]>(k) s = MatMul(x, t) m = Add(s, mask) "
        "h = Shape<start = 1, end = 2>(k) n = Squeeze(h, first) q = Range(zero, n, one) keep = Less(q, window) "
        "w = Where(keep, m, low) p = Softmax<axis = -1>(w) y = MatMul(p, k)"
    )
    signature = (
        f"(float[1, {length}, 8] x, float[1, cached, 8] past, float[1, 1, total] mask) => (float[1, {length}, 8] y)"
    )
    shapes, told = shapes_of(parsed(f"{signature} <{CONSTANTS}>", body))
    for shape in shapes:
        assert shape["mask"][2] == shape["x"][1] + shape["past"][1]
    assert shapes[0]["past"][1] == 32 and shapes[-1]["mask"][2] > 128 and len(shapes) == 4 and not told


def test_given_sizes_are_not_overridden_by_what_weights_ask_for() -> None:
    model = parsed("(float[p, q] x) => (float[p, 5] y)", "y = MatMul(x, w)", w=np.ones((48, 5), np.float32))
    with pytest.raises(OnnxfuseError, match="could not run"):
        shapes_of(model, {"q": (40,)})


@pytest.mark.parametrize(
    ("signature", "body", "told"),
    [
        (
            "(float[n, m] x) => (float[7, 11] y) <int64[2] s = {7, 11}>",
            "y = Reshape(x, s)",
            r"for x: float\[n, m\] such as --shape x=\d+x\d+ \(",
        ),
        (
            "(float[4] x, int64[1] i) => (float[1] y) <int64[1] five = {5}>",
            "s = Mul(i, i) j = Add(s, five) y = Gather(x, j)",
            r'for i: int64\[1\] as --inputs inputs.npz, which numpy.savez\("inputs.npz", '
            r'i=numpy.ones\(\(1,\), "int64"\), x=numpy.ones\(\(4,\), "float32"\)\) writes \(',
        ),
    ],
)
def test_what_cannot_be_made_up_is_named_with_an_example(tmp_path: Path, signature: str, body: str, told: str) -> None:
    model = parsed(signature, body)
    path = save(model, tmp_path / "m.onnx")
    where = "give others where the command has --shape or --inputs, "
    with pytest.raises(OnnxfuseError, match=where + told) as caught:
        compare(path, path)
    assert "\n" not in str(caught.value)
