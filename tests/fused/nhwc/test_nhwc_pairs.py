"""Pairs of a depthwise convolution and a product, and gates, between tensors that have the channels last."""

import numpy as np
import pytest

from tests.fused.nhwc.test_nhwc import (
    FEEDS,
    WEIGHTS,
    _every_kernel_is_worth_it,  # noqa: F401  (a fixture for all tests)
    channels_last,
    check,
    gate,
    network,
    operators,
    optimized,
    pairs,
)
from tests.support import fusing

PAIRS = {
    "nothing between": "d = D3 (a, v, b) c = Conv (d, p)",
    "a step of each channel": "d = D3 (a, v, b) r = HardSwish(d) c = Conv (r, p, b)",
    "normalized": "d = D3 (a, v) e = BatchNormalization(d, f, b, b, f) r = Relu(e) c = Conv (r, p)",
    "strides, dilations and padding": """
        d = Conv <group = 32, strides = [2, 1], dilations = [1, 2], pads = [3, 0, 1, 4]> (a, v, b)
        r = Tanh(d) c = Conv (r, p)""",
    "automatic padding": """d = Conv <group = 32, strides = [2, 2], auto_pad = "SAME_UPPER"> (a, v, b)
        c = Conv <auto_pad = "SAME_LOWER"> (d, p)""",
    "a residual after it": "d = D3 (a, v, b) r = Relu(d) q = Conv (r, p) c = Add(q, a)",
    "a type between": "d = D3 (a, v, b) r = Cast <to = 7> (d) q = Cast <to = 1> (r) c = Conv (q, p)",
}
NO_PAIRS = {
    "the first one's result is a residual": "d = D3 (a, v, b) r = Relu(d) q = Conv (r, p) o = Relu(q) c = Add(o, r)",
    "so is what it is made of": "d = D3 (a, v, b) r = Relu(d) q = Conv (r, p) c = Add(q, d)",
    "it is read twice": "d = D3 (a, v, b) r = Relu(d) q = Conv (r, p) s = C3 (r, w2) c = Add(q, s)",
    "a residual before the product": "d = D3 (a, v, b) e = Relu(d) r = Add(e, a) c = Conv (r, p)",
    "the product has strides": "d = D3 (a, v, b) c = Conv <strides = [2, 2]> (d, p)",
    "the product has padding": "d = D3 (a, v, b) c = Conv <pads = [0, 0, 1, 1]> (d, p)",
    "more than a product": "d = D3 (a, v, b) c = C3 (d, w)",
    "nothing is computed between": "d = D3 (a, v) c = Conv (d, p)",
}


@pytest.mark.parametrize("kind", [*PAIRS, *NO_PAIRS])
def test_pairs_of_a_depthwise_convolution_and_a_product(kind: str) -> None:
    made = network(f"a = C3 (x, w) {({**PAIRS, **NO_PAIRS})[kind]} y = C3 (c, w)", f=np.abs(WEIGHTS["b"]) + 1)
    result = check(made)
    assert len(pairs(result)) == (kind in PAIRS) and "FusedConv" not in operators(result)


def test_a_depthwise_convolution_that_the_model_returns_is_no_part_of_a_pair() -> None:
    head = "(float[n, 32, h, w] x) => (float[n, 32, hh, ww] y, float[n, 32, hh, ww] r)"
    assert not pairs(check(network("a = C3 (x, w) d = D3 (a, v, b) r = Relu(d) c = Conv (r, p) y = C3 (c, w)", head)))


def test_pairs_follow_each_other() -> None:
    text = """a = C3 (x, w) d = D3 (a, v, b) r = Relu(d) c = Conv (r, p, b) e = D3 (c, v, b) f = Relu(e) i = Conv (f, p)
        s = Add(i, c) y = C3 (s, w)"""
    assert len(pairs(check(network(text)))) == 2


def test_a_gate_reads_the_channels_last() -> None:
    result = check(network(f"a = C3 (x, w) r = Relu(a) {gate('q', 'r')} m = Mul(r, q4) y = Conv (m, p)"))
    assert operators(result) == ["FusedNhwcConv", "FusedSqueezeExcite", "FusedNhwcConv"]
    assert channels_last(result) == {"r"}
    assert not [
        key for key in result.functions if key.overload.startswith("GlobalAveragePool")
    ]  # the plain one's is gone


def test_a_gate_with_several_readers() -> None:
    head = "(float[n, 32, h, w] x) => (float[n, 32, hh, ww] y, float[n, 32, 1, 1] q4)"
    text = f"""a = C3 (x, w) r = Relu(a) {gate("q", "r")} m = Mul(r, q4) c = Conv (m, p) d = C3 (r, w2) e = Mul(d, q4)
        f = C3 (e, w) y = Add(c, f)"""
    assert "r" in channels_last(check(network(text, head)))


def test_gates_of_both_layouts() -> None:
    text = f"""a = C3 (x, w) r = Relu(a) {gate("q", "r")} m = Mul(r, q4) c = Conv (m, p)
        k = LpPool <kernel_shape = [3, 3]> (c) {gate("s", "k")} n = Mul(k, s4) y = Conv (n, p)"""
    result = check(network(text))
    assert operators(result).count("FusedSqueezeExcite") == 2
    assert len({(node.op_type, node.overload) for node in result.graph.node if "Squeeze" in node.op_type}) == 2


def test_gates_of_many_kinds() -> None:
    kinds = ("Relu", "Tanh", "Sigmoid", "Softplus", "Elu", "HardSwish")
    text = "a = C3 (x, w) t0 = Relu(a) "
    for number, kind in enumerate(kinds):
        text += gate(f"q{number}_", f"t{number}", kind)
        text += f"m{number} = Mul(t{number}, q{number}_4) t{number + 1} = Conv (m{number}, p) "
    made = network(text + f"y = Neg(t{len(kinds)})")
    result = optimized(made)
    (wanted,) = fusing.run(made, FEEDS, library=False)
    fusing.assert_close(fusing.run(result, FEEDS, library=True)[0], wanted)
