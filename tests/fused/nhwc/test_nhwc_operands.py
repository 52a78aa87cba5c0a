"""Operands of the Programs of convolutions that have the channels last."""

import numpy as np
import pytest

from tests.fused.conv.test_cpu_convolutions import array
from tests.fused.nhwc.test_nhwc import (
    FEEDS,
    STATIC_HEAD,
    _every_kernel_is_worth_it,  # noqa: F401  (a fixture for all tests)
    channels_last,
    check,
    network,
    pairs,
)

SAME_IN_BOTH = [
    (),
    (1,),
    (32, 1, 1),
    (1, 32, 1, 1),
    (2, 32, 1, 1),
    (7,),
    (9, 1),
    (9, 7),
    (1, 1, 9, 7),
    (2, 1, 9, 7),
    (2, 1, 1, 1),
]
OTHERS = [(2, 32, 9, 7), (1, 32, 9, 7), (32, 9, 7), (32, 1, 7), (2, 32, 9, 1)]


@pytest.mark.parametrize("shape", [*SAME_IN_BOTH, *OTHERS], ids=str)
def test_operands(shape: tuple[int, ...]) -> None:
    """What has channels and positions is in one order alone: the convolution beside it reads or writes that."""
    operand = array(*shape) if shape else np.array(0.75, np.float32)
    tail = "a = C3 (x, w, b) r = Relu(a) s = Add(r, o) t = Tanh(s) y = C3 (t, w)"
    assert channels_last(check(network(tail, STATIC_HEAD, o=operand))) == ({"t"} if shape in SAME_IN_BOTH else set())
    head = "a = C3 (x, w) t = Tanh(a) m = Mul(t, o) c = Conv (m, p) s = Add(c, t) y = C3 (s, w)"
    assert bool(channels_last(check(network(head, STATIC_HEAD, o=operand)))) == (shape in SAME_IN_BOTH)
    pair = "a = C3 (x, w) d = D3 (a, v, b) m = Mul(d, o) c = Conv (m, p, b) q = Sub(c, o) y = C3 (q, w)"
    assert len(pairs(check(network(pair, STATIC_HEAD, o=operand)))) == (shape in SAME_IN_BOTH)


def test_equal_sizes_say_nothing_of_the_layout() -> None:
    head = "(float[16, 16, 16, 16] x, float[16, 16, 16] u) => (float[16, 16, 16, 16] y)"
    text = """a = C3 (x, k) b1 = Add(a, o1) r = PRelu(b1, o2) c = C3 (r, k) d = Mul(c, o3) e = Tanh(d) f = C3 (e, k)
        i = Add(f, o4) j = C3 (i, k) l = Add(j, u) y = C3 (l, k)"""
    shapes = {"k": (16, 16, 3, 3), "o1": (16, 16), "o2": (16, 1, 1), "o3": (16,), "o4": (16, 16, 16, 16)}
    made = network(text, head, **{name: array(*shape) for name, shape in shapes.items()})
    result = check(made, {"x": array(16, 16, 16, 16), "u": array(16, 16, 16)})
    assert channels_last(result) == {"r", "e"}


def test_operands_of_the_models_inputs() -> None:
    """The sizes are open; what has those of the whole is plain, for the model says so."""
    for kind, last in (("n, 32, 1, 1", {"t", "s"}), ("n, 1, h, w", {"t", "s"}), ("n, 32, h, w", {"t"})):
        head = f"(float[n, 32, h, w] x, float[{kind}] o) => (float[n, 32, hh, ww] y)"
        made = network("a = C3 (x, w) t = Tanh(a) c = C3 (t, w2) s = Mul(c, o) y = C3 (s, w)", head)
        shape = [{"n": 2, "h": 9, "w": 7}.get(dim) or int(dim) for dim in kind.split(", ")]
        assert channels_last(check(made, {**FEEDS, "o": array(*shape)})) == last
