"""``static``: a model for given shapes alone computes what the dynamic one does, with fewer nodes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

import onnxfuse
from onnxfuse.errors import OnnxfuseError
from tests.support.fusing import run

HEADER = '<ir_version: 8, opset_import: ["": 17]>\ng '
HEADS = (
    HEADER
    + """(float[batch, length, 8] x, float[batch, length] mask) => (float[batch, 2, length, length] y)
<int64[1] two = {2}, int64[1] last = {-1}, int64 first = {0}, int64 second = {1}, int64[1] axis = {0},
 int64[2] axes = {1, 2}>
{
  s = Shape(x)
  b = Gather(s, first)
  n = Gather(s, second)
  bs = Unsqueeze(b, axis)
  ns = Unsqueeze(n, axis)
  heads = Concat <axis = 0> (bs, ns, two, last)
  r = Reshape(x, heads)
  q = Transpose <perm = [0, 2, 1, 3]> (r)
  k = Transpose <perm = [0, 2, 3, 1]> (r)
  scores = MatMul(q, k)
  t = Shape(scores)
  m = Unsqueeze(mask, axes)
  wide = Expand(m, t)
  y = Add(scores, wide)
}
"""
)


def heads() -> onnx.ModelProto:
    return parser.parse_model(HEADS)


def dims(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]


@given(batch=st.integers(1, 3), length=st.integers(1, 5))
@settings(max_examples=10)
def test_shape_computations_go_and_results_stay(batch: int, length: int) -> None:
    model = heads()
    shapes = {"x": (batch, length, 8), "mask": (batch, length)}
    static = onnxfuse.optimize(model, target="cpu", shapes=shapes, static=True, check=False).model
    onnx.checker.check_model(static, full_check=True)
    left = {node.op_type for node in static.graph.node}
    assert not left & {"Shape", "Gather", "Concat"} and len(static.graph.node) <= 7
    assert [dims(value) for value in static.graph.input] == [[batch, length, 8], [batch, length]]
    assert dims(static.graph.output[0]) == [batch, 2, length, length]
    random = np.random.default_rng(batch * 8 + length)
    feeds = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    (expected,), (found,) = run(model, feeds, library=False), run(static, feeds, library=True)
    np.testing.assert_array_equal(found, expected)


def test_a_symbol_has_its_size_in_every_input_and_the_rest_stays_dynamic() -> None:
    static = onnxfuse.optimize(heads(), target="cpu", shapes={"mask": (2, 3)}, static=True).model
    assert [dims(value) for value in static.graph.input] == [[2, 3, 8], [2, 3]]
    text = HEADER + "(float[n, 4] a, float[m, 4] b) => (float[n, 4] y, float[m, 4] z) { y = Abs(a) z = Abs(b) }"
    half = onnxfuse.optimize(parser.parse_model(text), target="cpu", shapes={"a": (3, 4)}, static=True).model
    assert [dims(value) for value in (*half.graph.input, *half.graph.output)] == [[3, 4], ["m", 4], [3, 4], ["m", 4]]


def test_sizes_of_symbols_alone() -> None:
    static = onnxfuse.optimize(heads(), target="cpu", shapes={"batch": 2, "length": 3}, static=True).model
    whole = onnxfuse.optimize(heads(), target="cpu", shapes={"x": (2, 3, 8), "mask": (2, 3)}, static=True).model
    assert static == whole
    part = onnxfuse.optimize(heads(), target="cpu", shapes={"batch": 2}, static=True).model
    assert [dims(value) for value in part.graph.input] == [[2, "length", 8], [2, "length"]]


def test_inputs_with_a_default_have_no_say() -> None:
    """Nobody needs to give them, and none of their shapes and dimensions."""
    text = HEADER + "(float[n, 4] x, float[n, 4] d, float[k] e) => (float[n, 4] y) { y = Add(x, d) }"
    model = parser.parse_model(text)
    model.ir_version = 10
    model.graph.initializer.append(numpy_helper.from_array(np.ones((3, 4), np.float32), "d"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "e"))
    for shapes in ({"x": (3, 4)}, {"n": 3}):
        for static in (False, True):
            assert onnxfuse.optimize(model, target="cpu", shapes=shapes, static=static).report.parity is not None
    for name in "dek":
        with pytest.raises(OnnxfuseError, match=f"no input or dimension '{name}'; its inputs are: x; its named dimen"):
            onnxfuse.optimize(model, target="cpu", shapes={name: 3}, check=False)


def test_sequences_stay_as_they_are() -> None:
    text = HEADER + "(seq(float[m, 4]) s, float[n, 4] x) => (float[n, 4] y) { i = Constant<value = int64 {0}>() "
    model = parser.parse_model(text + "t = SequenceAt(s, i) y = Add(t, x) }")
    static = onnxfuse.optimize(model, target="cpu", shapes={"n": 3, "m": 3}, static=True, check=False).model
    assert static.graph.input[0] == model.graph.input[0]
    assert dims(static.graph.input[1]) == [3, 4]


def test_outputs_keep_the_ranks_that_nothing_tells() -> None:
    """Of parts without the dimension along which they were taken ONNX and ONNX Runtime have different shapes."""
    model = parser.parse_model(
        HEADER + "(float[n, 4] x) => (float[k] y) <int64 parts = {1}, int64 first = {0}> {"
        " a = Relu(x) s = SplitToSequence <keepdims = 0> (a, parts) y = SequenceAt(s, first) }"
    )
    static = onnxfuse.optimize(model, "cpu", shapes={"x": (3, 4)}, static=True).model
    onnx.checker.check_model(static)
    assert len(static.graph.output[0].type.tensor_type.shape.dim) == 1


def test_the_given_model_stays_dynamic() -> None:
    model = heads()
    before = model.SerializeToString(deterministic=True)
    result = onnxfuse.optimize(model, target="cpu", shapes={"x": (1, 3, 8)}, static=True)
    assert model.SerializeToString(deterministic=True) == before
    assert result.report.parity is not None and result.report.parity.ok
    assert result.report.after.nodes < result.report.before.nodes


def test_a_shape_that_cannot_be_is_refused() -> None:
    for shapes, message in (
        (None, "needs the shapes"),
        ({"x": (1, 3, 9)}, "does not fit"),
        ({"x": (1, 3, 8), "mask": (1, 4)}, "both 3 and 4"),
    ):
        with pytest.raises(OnnxfuseError, match=message):
            onnxfuse.optimize(heads(), target="cpu", shapes=shapes, static=True)


def test_what_would_make_the_model_large_stays_a_node() -> None:
    body = "s = Shape(x) l = Gather(s, zero) t = Concat <axis = 0> (l, wide) z = ConstantOfShape(t) y = Add(x, z)"
    model = parser.parse_model(
        HEADER + f"(float[n, 1] x) => (float[n, 4096] y) <int64[1] zero = {{0}}, int64[1] wide = {{4096}}> {{ {body} }}"
    )
    static = onnxfuse.optimize(model, target="cpu", shapes={"x": (64, 1)}, static=True).model
    assert "ConstantOfShape" in [node.op_type for node in static.graph.node]
    assert static.ByteSize() < model.ByteSize() + 4096


def test_initializers_that_lie_in_a_file_are_taken_along(tmp_path: Path) -> None:
    model = parser.parse_model(HEADER + "(float[n, 512] x) => (float[n, 512] y) { y = MatMul(x, w) }")
    weights = np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True, location="in.bin", size_threshold=0)
    (tmp_path / "there").mkdir()
    onnxfuse.optimize(tmp_path / "in.onnx", output=tmp_path / "there" / "o.onnx", shapes={"x": (2, 512)}, static=True)
    onnx.checker.check_model(tmp_path / "there" / "o.onnx", full_check=True)
