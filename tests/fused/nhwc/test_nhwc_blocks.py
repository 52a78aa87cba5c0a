"""Inverted residual blocks: 1x1 convolutions that become part of the depthwise ones that read them, and bounds of what
these make."""

import numpy as np
import onnx
import pytest

from onnxfuse.fused.conv import conv_times
from tests.fused.conv.test_cpu_convolutions import array
from tests.fused.nhwc.test_nhwc import (
    FEEDS,
    STATIC_HEAD,
    _every_kernel_is_worth_it,  # noqa: F401
    check,
    gate,
    network,
    operators,
    optimized,
    pairs,
)
from tests.support import fusing

WIDER = {"e": array(96, 32, 1, 1), "eb": array(96), "ev": array(96, 1, 3, 3), "ep": array(32, 96, 1, 1)}
ODD = {"e": array(41, 32, 1, 1), "eb": array(41), "ev": array(41, 1, 3, 3), "ep": array(32, 41, 1, 1)}
LIMITS = {"low": np.array(-0.5, np.float32), "high": np.array(0.75, np.float32)}

NEEDED = "kernel_shape = [3, 3], group = {groups}"
SAME = f"{NEEDED}, pads = [1, 1, 1, 1]"


@pytest.fixture(autouse=True)
def _every_tensor_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """And caches are large."""
    monkeypatch.setattr(conv_times, "WIDE", 1)
    monkeypatch.setattr(conv_times, "ROWS", 1 << 40)


def expansions(made: onnx.ModelProto) -> list[str]:
    """The names of what says that there is one."""
    names = (item.name for node in made.graph.node for item in node.attribute)
    return [name for name in names if name.endswith("expansion_operator")]


def block(text: str, weights: dict[str, np.ndarray], depthwise: str = SAME, **more: np.ndarray) -> onnx.ModelProto:
    """A model in which DW is the depthwise convolution, between others."""
    body = text.replace("DW", f"Conv <{depthwise.format(groups=len(weights['e']))}>")
    return network(f"a = C3 (x, w) {body} y = C3 (c, w)", **weights, **{**LIMITS, **more})


WHOLE = "i = Conv (a, e, eb) j = {first} d = DW (j, ev, eb) f = {second} q = Conv (f, ep, b) c = Add(q, a)"
BETWEEN = {
    "bounds": ("Clip(i, low, high)", "Clip(d, low, high)"),
    "one bound": ("Relu(i)", "Relu(d)"),
    "functions": ("HardSwish(i)", "Tanh(d)"),
    "tails of several nodes": ("Sigmoid(i) k = Mul(j, i)", "Sigmoid(d)"),
    "nothing": ("Identity(i)", "Identity(d)"),
}


@pytest.mark.parametrize("weights", [WIDER, ODD], ids=["vectors", "odd channels"])
@pytest.mark.parametrize("kind", BETWEEN)
def test_blocks(kind: str, weights: dict[str, np.ndarray]) -> None:
    first, second = BETWEEN[kind]
    text = WHOLE.format(first=first, second=second)
    if " k = " in first:
        text = text.replace("DW (j,", "DW (k,")
    made = block(text, weights)
    result = check(made, FEEDS, {"x": array(1, 32, 3, 20)}, {"x": array(3, 32, 1, 1)})
    assert operators(result) == ["FusedNhwcConv"] * 3
    assert expansions(result) == ["depthwise_expansion_operator"]


@pytest.mark.parametrize(
    "depthwise",
    [
        f"{NEEDED}, strides = [2, 2], pads = [1, 1, 1, 1]",
        f"{NEEDED}, strides = [1, 2], dilations = [2, 1], pads = [4, 0, 3, 2]",
        f"{NEEDED}, pads = [0, 5, 0, 5]",
        f'{NEEDED}, auto_pad = "SAME_UPPER", strides = [2, 2]',
    ],
)
def test_rows_that_single_channels_read(depthwise: str) -> None:
    text = "i = Conv (a, e, eb) j = Relu(i) d = DW (j, ev, eb) f = Relu(d) c = Conv (f, ep, b)"
    made = block(text, WIDER, depthwise)
    result = check(made, FEEDS, {"x": array(1, 32, 60, 13)})
    assert expansions(result)


def test_many_rows() -> None:
    """So many that they are made in parts."""
    made = block(WHOLE.format(first="Relu(i)", second="Relu(d)"), WIDER)
    assert expansions(check(made, {"x": array(2, 32, 70, 81)}))


def test_before_a_gate() -> None:
    text = f"i = Conv (a, e, eb) j = HardSwish(i) d = DW (j, ev, eb) f = Relu(d) {gate('z', 'f')} m = Mul(f, z4) "
    made = block(text + "c = Conv (m, ep)", WIDER, g1=array(8, 96, 1, 1), g2=array(96, 8, 1, 1))
    result = check(made)
    assert expansions(result) == ["expansion_operator"] and not pairs(result)


@pytest.mark.parametrize("opset", [9, 11, 13, 17, 21])
def test_opsets(opset: int) -> None:
    text = "i = Conv (a, e, eb) j = Relu(i) d = DW (j, ev, eb) f = Relu(d) c = Conv (f, ep, b)"
    body = f"a = C3 (x, w) {text} y = C3 (c, w)".replace("DW", f"Conv <{SAME.format(groups=41)}>")
    assert expansions(check(network(body, opset=opset, **ODD)))


NONE = {
    "it is read twice": "j = Relu(i) d = DW (j, ev) t = Conv (j, ep) q = Conv (d, ep) c = Add(q, t)",
    "its result is a residual": "j = Relu(i) d = DW (j, ev) r = Mul(d, j) c = Conv (r, ep)",
    "a whole operand is added": "h = Tanh(a) o = Conv (h, e2) s = Add(i, o) d = DW (s, ev) c = Conv (d, ep)",
    "it is a gate's": f"j = Relu(i) {gate('z', 'j')} m = Mul(j, z4) d = DW (m, ev) f = Relu(d) c = Conv (f, ep)",
    "it has strides": "s = Conv <strides = [2, 2]> (a, e) d = DW (s, ev) f = Relu(d) c = Conv (f, ep)",
}


@pytest.mark.parametrize("kind", NONE)
def test_what_is_no_expansion(kind: str) -> None:
    made = block(
        f"i = Conv (a, e, eb) {NONE[kind]}", WIDER, e2=array(96, 32, 1, 1), g1=array(8, 96, 1, 1), g2=array(96, 8, 1, 1)
    )
    assert not expansions(check(made))


def test_each_convolution_is_in_one_pair() -> None:
    """As in MobileNet, where a product is behind a depthwise convolution and before one."""
    text = """d = D3 (a, v, b) f = Relu(d) i = Conv (f, p, b) j = Relu(i) k = D3 (j, v) l = Relu(k) m = Conv (l, p)
        n = Relu(m) o = D3 (n, v, b) q = Relu(o) c = Conv (q, p)"""
    result = check(network(f"a = C3 (x, w) {text} y = C3 (c, w)"))
    assert len(pairs(result)) == 3 and not expansions(result)


def test_operands_of_another_type() -> None:
    text = "i = Conv (a, e, eb) j = Where(mask, i, half) d = DW (j, ev, eb) f = Relu(d) c = Conv (f, ep)"
    made = block(text, WIDER, mask=np.arange(96).reshape(96, 1, 1) % 3 > 0)
    assert not expansions(check(made))


@pytest.mark.parametrize("dilation", [1, 2, 4, 20])
def test_rows_are_not_made_many_times(dilation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_times, "ROWS", 1 << 15)
    pads = [dilation] * 4
    depthwise = f"{NEEDED}, dilations = [{dilation}, {dilation}], pads = {pads}"
    text = "i = Conv (a, e, eb) j = Relu(i) d = DW (j, ev, eb) f = Relu(d) c = Conv (f, ep)"
    body = f"a = C3 (x, w) {text} y = C3 (c, w)".replace("DW", f"Conv <{depthwise.format(groups=96)}>")
    made = network(body, "(float[1, 32, 40, 20] x) => (float[1, c, hh, ww] y)", **WIDER)
    result = check(made, {"x": array(1, 32, 40, 20)})
    assert len(expansions(result)) == (dilation == 1)


def test_a_signal_is_one_row() -> None:
    weights = {name: values[..., 0] for name, values in {**WIDER, "s": array(32, 32, 3, 3)}.items()}
    text = """a = Conv <kernel_shape = [3], pads = [1, 1]> (x, s) i = Conv (a, e, eb) j = Relu(i)
        d = Conv <kernel_shape = [3], pads = [1, 1], group = 96> (j, ev, eb) f = Relu(d) c = Conv (f, ep)
        y = Conv <kernel_shape = [3], pads = [1, 1]> (c, s)"""
    weights["eb"] = WIDER["eb"]
    made = network(text, "(float[n, 32, l] x) => (float[n, c, ll] y)", **weights)
    assert not expansions(check(made, {"x": array(2, 32, 50)}))


def test_small_tensors_stay_between_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_times, "WIDE", 1 << 20)
    text = WHOLE.format(first="Relu(i)", second="Relu(d)").replace("DW", f"Conv <{SAME.format(groups=96)}>")
    result = optimized(network(f"a = C3 (x, w) {text} y = C3 (c, w)", STATIC_HEAD, **WIDER))
    assert not expansions(result) and len(pairs(result)) == 1


NAN = np.float32(np.nan)


@pytest.mark.parametrize("limits", [(1, -1), (NAN, 1), (-1, NAN), (NAN, NAN), (-np.inf, np.inf), (0, 0), (-0.0, 1)])
@pytest.mark.parametrize("kind", ["product", "pair", "single", "block"])
def test_bounds(kind: str, limits: tuple[float, float]) -> None:
    """Of results in registers: a bound that is no number makes all of them so, and a NaN that was there stays."""
    text = {
        "product": "i = Conv (a, p, b) c = Clip(i, low, high)",
        "pair": "d = D3 (a, v, b) f = Clip(d, low, high) c = Conv (f, p)",
        "single": "d = D3 (a, v, b) c = Clip(d, low, high)",
        "block": "i = Conv (a, p, b) j = Clip(i, low, high) d = D3 (j, v) f = Relu(d) c = Conv (f, p)",
    }[kind]
    low, high = (np.array(limit, np.float32) for limit in limits)
    made = network(f"a = Identity(x) {text} y = C3 (c, w)", low=low, high=high)
    values = array(2, 32, 9, 7)
    values[0, 3, 4, 5] = NAN
    result = optimized(made)
    assert all(name == "FusedNhwcConv" for name in operators(result))
    for feeds in (FEEDS, {"x": values}):
        (wanted,) = fusing.run(made, feeds, library=False)
        (own,) = fusing.run(result, feeds, library=True)
        np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=1e-4)
