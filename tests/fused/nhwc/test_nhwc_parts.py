"""Slice, Split and Shape of tensors that have the channels last."""

import numpy as np
import pytest

from tests.fused.conv.test_cpu_convolutions import array
from tests.fused.nhwc.test_nhwc import (
    STATIC_HEAD,
    _every_kernel_is_worth_it,  # noqa: F401  (a fixture for all tests)
    channels_last,
    check,
    network,
    operators,
)

PARTS = {
    "of channels": ("s = Slice (r, zero, eight, one) t = Slice (r, eight, far, minus_three)", 8, 24),
    "of rows": ("s = Slice (r, one, far, two) t = Slice (r, minus_far, last, minus_two)", 32, 32),
    "of all axes": ("s = Slice (r, starts, ends) t = Slice (r, starts, ends, , steps)", 16, 8),
    "of images": ("s = Slice (r, zero, one, zero) t = Slice (r, one, two, zero)", 32, 32),
    "of parts": ("o = Slice (r, zero, six, three) s = Slice (o, one, eight, one) t = Slice (o, one, six, two)", 7, 32),
    "Split": ("s, t = Split <axis = 1> (r, sizes)", 24, 8),
    "Split in equal parts": ("s, t = Split <axis = -3, num_outputs = 2> (r)", 16, 16),
    "Split of columns": ("s, o, t = Split <axis = 3, num_outputs = 3> (r)", 32, 32),
}
"""What makes s and t of parts of r, and how many channels they have."""

INTEGERS = {
    **{"zero": [0], "one": [1], "two": [2], "three": [3], "six": [6], "eight": [8], "last": [-1], "minus_two": [-2]},
    **{"minus_three": [-3], "far": [10**9], "minus_far": [-(10**9)], "sizes": [24, 8]},
    **{"starts": [0, 8, 1, 0], "ends": [9, 24, 9, -1], "steps": [1, 2, 3, 2]},
}


@pytest.mark.parametrize("kind", PARTS)
def test_parts_of_tensors(kind: str) -> None:
    """Slice and Split take the same parts, wherever the channels are."""
    parts, of_s, of_t = PARTS[kind]
    text = f"a = C3 (x, w) r = Relu(a) {parts} c = Conv (s, ws) d = Conv (t, wt) y = Relu(c) z = Relu(d)"
    head = "(float[2, 32, 9, 7] x) => (float[n, c, hh, ww] y, float[m, d, ii, vv] z)"
    values = {name: np.array(value) for name, value in INTEGERS.items()}
    result = check(network(text, head, ws=array(20, of_s, 1, 1), wt=array(20, of_t, 1, 1), **values))
    assert channels_last(result) == {"r", "s", "t"} and "Transpose" not in operators(result)


def test_parts_in_old_opsets() -> None:
    """The axes are an attribute of Slice and Split there."""
    text = """a = C3 (x, w) r = Relu(a) u = Slice <axes = [1, 3], starts = [4, 1], ends = [20, 9]> (r)
        s, t = Split <axis = 1, split = [4, 12]> (u) y = Conv (t, k)"""
    result = check(network(text, STATIC_HEAD, opset=9, k=array(20, 12, 1, 1)))
    assert channels_last(result) == {"r", "t"} and operators(result).count("Slice") == 1


def test_elementwise_nodes_on_parts() -> None:
    """The magnitude of a spectrum, whose real and imaginary parts one convolution computes."""
    text = """a = C3 (x, w) o = Slice (a, one, far, two)
        s = Slice (o, zero, half_of, one) t = Slice (o, half_of, far, one)
        e = Mul(s, s) f = Mul(t, t) g = Add(e, f) m = Sqrt(g) c = Conv (m, k) y = Relu(c)"""
    values = {k: np.array(v) for k, v in INTEGERS.items()} | {"half_of": np.array([16])}
    result = check(network(text, k=array(20, 16, 1, 1), **values))
    assert operators(result) == ["FusedNhwcConv", "FusedElementwise", "FusedNhwcConv"]
    assert channels_last(result) == {"a", "m"}


def test_parts_that_others_read_are_plain() -> None:
    text = "a = C3 (x, w) r = Relu(a) s, t = Split <axis = 1> (r, sizes) c = Conv (s, k) m = ReduceMax(t) y = Mul(c, m)"
    result = check(network(text, k=array(20, 24, 1, 1), sizes=np.array([24, 8])))
    assert "r" not in channels_last(result) and "s" not in channels_last(result)


@pytest.mark.parametrize("part", ["", "<start = 1>", "<start = -2, end = 9>", "<end = -1>", "<start = 3, end = 2>"])
def test_shapes_of_tensors(part: str) -> None:
    """The sizes are those of the tensor in ONNX's order."""
    head = "(float[n, 32, h, w] x) => (int64[k] sizes, float[n, c, hh, ww] y)"
    result = check(network(f"a = C3 (x, w) r = Relu(a) sizes = Shape {part} (r) y = C3 (r, w2)", head))
    assert channels_last(result) == {"r"} and operators(result).count("Gather") == 1


def test_shapes_of_one_dimension() -> None:
    text = """a = Conv (x, k) r = Relu(a) sizes = Shape(r) zeros = ConstantOfShape(sizes) s = Add(r, zeros)
        y = Conv (s, k)"""
    made = network(text, "(float[n, 32, l] x) => (float[n, c, m] y)", k=array(32, 32, 3))
    check(made, {"x": array(2, 32, 20)}, {"x": array(1, 32, 5)})
