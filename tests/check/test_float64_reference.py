"""The computation in float64, and what the check makes of it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.check import float64_reference, parity
from onnxfuse.check.float64_reference import Float64Model
from onnxfuse.check.parity import compare
from onnxfuse.run.inputs import InputSet
from onnxfuse.run.sessions import Session
from tests.support.parity_models import save


def parsed(signature: str, body: str, *, opset: int = 18, functions: str = "", **arrays: np.ndarray) -> onnx.ModelProto:
    text = f'<ir_version: 9, opset_import: ["" : {opset}, "own" : 1]> g {signature} {{ {body} }} {functions}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in arrays.items())
    return model


def computed(model: onnx.ModelProto, folder: Path = Path(), **feeds: np.ndarray) -> dict[str, Any]:
    reference = Float64Model(model, folder, 60.0)
    found = reference.outputs(feeds)
    assert found is not None, reference.reason
    return found


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        ("y = Conv(x, w)", (6, 4, 3, 3)),
        ("y = Conv<strides = [2, 3], pads = [1, 2, 0, 1], dilations = [2, 1]>(x, w)", (6, 4, 3, 2)),
        ("y = Conv<group = 4, pads = [1, 1, 1, 1]>(x, w)", (8, 1, 3, 3)),
        ("y = Conv<group = 2>(x, w, b)", (6, 2, 1, 1)),
        ('y = Conv<auto_pad = "SAME_UPPER">(x, w)', (6, 4, 3, 3)),
        ("y = ConvTranspose(x, w)", (4, 5, 3, 3)),
        ("y = ConvTranspose<strides = [2, 3], pads = [1, 0, 0, 2], output_padding = [1, 2]>(x, w)", (4, 5, 3, 3)),
        ("y = ConvTranspose<group = 2, dilations = [2, 1]>(x, w)", (4, 3, 2, 2)),
        ("y = AveragePool<kernel_shape = [3, 2], strides = [2, 1], pads = [1, 1, 0, 1]>(x)", None),
        ("y = AveragePool<kernel_shape = [3, 2], pads = [1, 1, 0, 1], count_include_pad = 1>(x)", None),
        ("y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(x)", None),
        ("y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 0, 0, 1], ceil_mode = 1>(x)", None),
        ("y = AveragePool<kernel_shape=[3, 4], pads=[1, 2, 0, 1], ceil_mode=1, count_include_pad=1>(x)", None),
        (
            "y = AveragePool<kernel_shape = [900, 900], strides = [900, 900], ceil_mode = 1, count_include_pad = 1>(x)",
            None,
        ),
        ("y = GlobalAveragePool(x)", None),
        ("y = Erf(x)", None),
        ("y = LRN<size = 3>(x)", None),
        ("y = LRN<size = 5, alpha = 0.5, beta = 0.6, bias = 2.0>(x)", None),
        ("y = InstanceNormalization(x, s, s)", None),
        ("q = QuantizeLinear<axis = 1>(x, s, z) y = DequantizeLinear<axis = 1>(q, s, z)", None),
        ("q = QuantizeLinear(x, t) y = DequantizeLinear(q, t)", None),
        ("y = Softmax<axis = 1>(x)", None),
        ("y = PRelu(x, b)", None),
    ],
)
def test_operators_are_those_of_onnx_runtime_with_more_digits(body: str, weights: tuple[int, ...] | None) -> None:
    arrays = {"b": normal(6) if "Conv" in body else normal(1)} if ", b)" in body else {}
    arrays |= {
        **({"s": np.float32([0.02, 0.03, 0.04, 0.05])} if ", s" in body else {}),
        **({"z": np.int8([0, 3, -5, 7])} if ", z)" in body else {}),
        **({"t": np.float32(0.03)} if ", t)" in body else {}),
        **({"w": normal(*weights)} if weights else {}),
    }
    model = parsed("(float[2, 4, 9, 11] x) => (float[?, ?, ?, ?] y)", body, **arrays)
    x = normal(2, 4, 9, 11)
    (expected,) = Session(model.SerializeToString(), optimized=False).run({"x": x})
    y = computed(model, x=x)["y"]
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_what_float32_loses_is_kept() -> None:
    model = parsed("(float[9] x) => (float[9] y) <float c = {65536}>", "a = Add(x, c) y = Sub(a, c)")
    x = normal(9)
    np.testing.assert_allclose(computed(model, x=x)["y"], x, rtol=1e-9)
    half = parsed("(float16[9] x) => (float[9] y)", "a = Exp(x) b = Cast<to = 10>(a) y = Cast<to = 1>(b)")
    np.testing.assert_allclose(computed(half, x=x.astype(np.float16))["y"], np.exp(x.astype(np.float16).astype(float)))


def test_branches_loops_and_functions() -> None:
    branches = "then_branch = t () => (float[3] o) { o = Mul(x, k) }, else_branch = e () => (float[3] q) { q = Neg(x) }"
    model = parsed("(bool c, float[3] x) => (float[3] y) <float k = {0.1}>", f"y = If(c) <{branches}>")
    x = normal(3)
    for flag, wanted in ((True, x * float(np.float32(0.1))), (False, -x)):
        np.testing.assert_allclose(computed(model, c=np.array(flag), x=x)["y"], wanted.astype(np.float64), rtol=1e-7)
    body = "b (int64 i, bool c, float[3] a) => (bool d, float[3] z) { d = Identity(c) z = Mul(a, k) }"
    loop = parsed(
        "(float[3] x) => (float[3] y) <int64 n = {3}, bool yes = {1}, float k = {0.1}>",
        f"y = Loop(n, yes, x) <body = {body}>",
    )
    np.testing.assert_allclose(computed(loop, x=x)["y"], x.astype(float) * float(np.float32(0.1)) ** 3, rtol=1e-12)
    function = '<domain: "own", opset_import: ["" : 18]> twice (a) => (b) { b = Add(a, a) }'
    called = parsed("(float[3] x) => (float[3] y)", "y = own.twice(x)", functions=function)
    np.testing.assert_array_equal(computed(called, x=x)["y"], 2 * x.astype(np.float64))


def test_external_data_is_read(tmp_path: Path) -> None:
    model = parsed("(float[3, 300] x) => (float[3, 300] y)", "y = MatMul(x, w)", w=normal(300, 300))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    light, x = onnx.load(tmp_path / "m.onnx", load_external_data=False), normal(3, 300)
    np.testing.assert_allclose(computed(light, tmp_path, x=x)["y"], x.astype(float) @ normal(300, 300))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = RandomNormalLike(x)", "random"),
        ("y = own.Unheard(x)", "has no implementation"),
        ("y = Resize<mode = \"linear\">(x, , s)", "too long"),
    ],
)  # fmt: skip
def test_why_there_is_no_result(body: str, reason: str) -> None:
    model = parsed("(float[1, 1, ?, ?] x) => (float[?, ?, ?, ?] y) <float[4] s = {1, 1, 2, 2}>", body)
    reference = Float64Model(model, Path(), 60.0)
    size = 300 if "Resize" in body else 3
    assert reference.outputs({"x": normal(1, 1, size, size)}) is None and reason in reference.reason


def test_there_is_an_end() -> None:
    model = parsed("(float[3] x) => (float[3] y)", "y = Neg(x)")
    reference = Float64Model(model, Path(), -1.0)
    assert reference.outputs({"x": normal(3)}) is None and reference.reason == "it takes too long"


def test_what_is_understood_otherwise_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float64_reference._Run, "_evaluated", lambda self, node, feeds: [feeds["x"]])
    reference = Float64Model(parsed("(float[3] x) => (float[3] y)", "y = Hardmax(x)"), Path(), 60.0)
    assert reference.outputs({"x": normal(3)}) is None and reference.reason == "Hardmax is understood otherwise"


# --- the check ---

SIGNATURE = (
    "(float[64, 256] x) => (float[64, 256] y) "
    "<float far = {300000}, float half = {0.5}, int64[1] last = {1}, float eps = {0.00001}>"
)
MOVED = "b = Add(x, far) "
REST = "q = Mul(d, d) v = ReduceMean(q, last) w = Add(v, eps) s = Sqrt(w) y = Div(d, s)"
NORMALIZED = f"{MOVED} m = ReduceMean(b, last) d = Sub(b, m) {REST}"
HALVES = (
    f"{MOVED} f, g = Split<axis = 1, num_outputs = 2>(b) h = ReduceMean(f, last) i = ReduceMean(g, last) t = Add(h, i) "
    f"m = Mul(t, half) d = Sub(b, m) {REST}"
)
SQUARES = (
    f"{MOVED} m = ReduceMean(b, last) q = Mul(b, b) u = ReduceMean(q, last) r = Mul(m, m) e = Sub(u, r) v = Abs(e) "
    "w = Add(v, eps) s = Sqrt(w) d = Sub(b, m) y = Div(d, s)"
)


def files(folder: Path, *bodies: str) -> Iterator[Path]:
    for number, body in enumerate(bodies):
        model = parsed(SIGNATURE, body, near=np.array(1 + 2.0**-21, np.float32))
        yield save(model, folder / f"{number}.onnx")


def test_an_ill_conditioned_output_passes_where_it_is_no_further_off_than_the_original(tmp_path: Path) -> None:
    """A mean of large numbers, of which few digits are left, computed in another order."""
    original, optimized = files(tmp_path, NORMALIZED, HALVES)
    result = compare(original, optimized)
    assert result.ok, result.failure()
    worst = result.worst()
    assert worst is not None and worst.unstable and worst.off is not None and worst.original_off is not None
    assert worst.off < 5 * worst.original_off
    warning, advice = result.warnings
    assert "--inputs" in advice
    assert re.search(r"against float64 it is off by [\d.e-]+ and ONNX Runtime's original by [\d.e-]+, of", warning)
    assert re.search(r": (the original|the optimized model|none) is nearer$", warning)


def test_what_is_further_off_than_the_original_fails(tmp_path: Path) -> None:
    """The variance by the squares of large numbers."""
    original, optimized = files(tmp_path, NORMALIZED, SQUARES)
    result = compare(original, optimized)
    assert not result.ok
    assert re.search(
        r"differ by more than allowed, .*; against float64 it is off by .*: the original is nearer", result.failure()
    )


def test_instability_does_not_excuse_what_is_much_further_off(tmp_path: Path) -> None:
    """The inputs rounded otherwise change the output as much, and ONNX Runtime's own result is near all the same."""
    start = "a = Mul(x, far) e = Mul(a, half)"
    original, optimized = files(tmp_path, f"{start} y = Sin(e)", f"{start} n = Mul(e, near) y = Sin(n)")
    result = compare(original, optimized)
    assert not result.ok and "the original is nearer" in result.failure()


@pytest.mark.parametrize(
    ("body", "passes"), [("d = Add(a, c) s = Add(d, b)", True), ("d = Add(a, a) s = Add(c, d)", False)]
)
def test_a_gate_that_is_open_by_chance(tmp_path: Path, body: str, passes: bool) -> None:
    """The sum is exact in the order of the original; on the same numbers in other places it is not."""
    signature = "(float[1, 3] x) => (float[1, 128] y) <float steep = {1000000000.0}>"
    paths = [
        save(
            parsed(
                signature,
                f"a, b, c = Split<axis = 1, num_outputs = 3>(x) {sum_} t = Mul(s, steep) g = Sigmoid(t) y = Mul(g, w)",
                w=np.full((1, 128), 1 if number == 0 or passes else 8, np.float32),
            ),
            tmp_path / f"{number}.onnx",
        )
        for number, sum_ in enumerate(("d = Add(a, b) s = Add(d, c)", body))
    ]
    inputs = [InputSet("given", {"x": np.array([[1, -1, 2.0**-25]], np.float32)})]
    result = compare(*paths, inputs=inputs)
    assert result.ok == passes
    if passes:
        assert "with its inputs in another order ONNX Runtime's own is off by 0.5" in result.warnings[0]


def test_inputs_in_another_order_that_onnx_runtime_refuses_tell_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "inputs_shuffled", lambda feeds, _seed: {name: feeds[name][:0, 0] for name in feeds})
    monkeypatch.setattr(Float64Model, "outputs", lambda *_unused: {"y": np.zeros((64, 256))})
    original, optimized = files(tmp_path, "y = Sub(x, x)", "y = Add(x, x)")
    result = compare(original, optimized)
    assert not result.ok and "the original is nearer" in result.failure()


def test_without_a_result_in_float64_noise_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(self: Float64Model, feeds: object) -> None:
        self.reason = "it takes too long"

    monkeypatch.setattr(parity.Float64Model, "outputs", without)
    original, optimized = files(
        tmp_path, "a = Mul(x, far) e = Mul(a, far) y = Sin(e)", "a = Mul(far, far) e = Mul(a, x) y = Sin(e)"
    )
    result = compare(original, optimized)
    assert result.ok
    assert (
        "change it as much" in result.warnings[0]
        and "no result in float64 to tell more: it takes too long" in result.warnings[0]
    )
