"""Products of few rows on CUDA: what is computed with them, and what is left alone and why."""

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

import onnxfuse
from tests.fused.reduction.models import model
from tests.support import fusing

_RNG = np.random.default_rng(0)


def _matrix(*shape: int) -> np.ndarray:
    return (_RNG.standard_normal(shape) / 8).astype(np.float32)


def _optimized(proto: onnx.ModelProto) -> onnxfuse.Result:
    return onnxfuse.optimize(proto, "cuda", arch="sm_90", embed=False)


def _ops(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type.split("_")[0] for node in proto.graph.node]


def _reasons(result: onnxfuse.Result) -> Mapping[str, str]:
    return {one.node: one.reason for one in result.report.refusals if one.rule == "fuse-row-products"}


BLOCK = """g (float[1,1,96] x0, float[1,1,64] r) => (float[1,1,50] y) {
  o = MatMul(r, wo) x = Add(x0, o)
  p = Mul(x, x) m = ReduceMean<keepdims=1>(p, ax) e = Add(m, eps) q = Sqrt(e) f = Div(one, q)
  s = Mul(x, f) n = Mul(s, g0)
  a = MatMul(n, wg) b = MatMul(n, wu) c = Sigmoid(a) d = Mul(a, c) h = Mul(d, b)
  k = MatMul(h, wd) z = Add(k, x)
  l = LayerNormalization<axis=-1>(z, g0, b0) t = MatMul(l, wv) u = Add(t, bv) y = Relu(u) }"""


def test_a_block_of_a_transformer_is_a_launch_a_product() -> None:
    """Normalizations go into the products that read them, sums and the gate behind those that make them."""
    proto = model(
        BLOCK,
        wo=_matrix(64, 96),
        wg=_matrix(96, 200),
        wu=_matrix(96, 200),
        wd=_matrix(200, 96),
        wv=_matrix(96, 50),
        bv=_matrix(50),
        g0=_matrix(96) + 1,
        b0=_matrix(96),
        ax=np.array([-1]),
        eps=np.float32(1e-5),
        one=np.float32(1),
    )
    result = _optimized(proto)
    onnx.checker.check_model(result.model, full_check=True)
    assert _ops(result.model) == ["FusedReduction"] * 4
    assert not _reasons(result)
    weights = [tensor for tensor in result.model.graph.initializer if len(tensor.dims) == 2]
    assert sorted(tuple(tensor.dims) for tensor in weights) == [(50, 96), (96, 64), (96, 200), (200, 96), (200, 96)]
    gate = next(region for region in result.report.fused if "Sigmoid" in region.ops)
    assert gate.after.reads.terms[()] == 4 * (96 + 96 + 2 * 96 * 200)  # each byte of the weights once


def test_a_product_of_no_rows_is_left_alone() -> None:
    proto = model("g (float[0,64] x) => (float[0,24] y) { a = MatMul(x, w) y = Relu(a) }", w=_matrix(64, 24))
    assert list(_reasons(_optimized(proto)).values()) == ["it multiplies no rows"]


@pytest.mark.parametrize("rows", [2, 8])
def test_several_rows_share_a_matrix(rows: int) -> None:
    """Normalizations before them stay apart: they would be computed again for each column of every row."""
    text = (
        f"g (float[{rows},1,64] x, float[{rows},1,24] r) => (float[{rows},1,24] y) {{"
        " n = LayerNormalization<axis=-1>(x, g0) e = Relu(n) a = MatMul(e, w) c = Add(a, b) d = Tanh(c) y = Mul(d, r) }"
    )
    result = _optimized(model(text, w=_matrix(64, 24), b=_matrix(24), g0=_matrix(64)))
    first, second = result.report.fused
    assert ("LayerNormalization" in first.ops, first.ops.count("MatMul")) == (False, 1)
    assert second.ops == ["LayerNormalization", "Relu"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[n,64] x) => (float[n,24] y) { a = MatMul(x, w) y = Relu(a) }", "not known in advance"),
        ("g (float[9,64] x) => (float[9,24] y) { a = MatMul(x, w) y = Relu(a) }", "of 9 rows, more than 8 of f32"),
        ("g (float[64,1] x) => (float[1,24] y) { a = Gemm<transA=1>(x, w) y = Relu(a) }", "it transposes what it"),
        ("g (float[1,64] x, float[64,24] v) => (float[1,24] y) { a = MatMul(x, v) y = Relu(a) }", "no constant matrix"),
        ("g (float[1,64] x) => (float[1,24] y) { y = MatMul(x, w) }", "nothing is around it"),
        (
            "g (float[1,64] x, float[1,24] r) => (float[1,24] y) { a = MatMul(x, w) b = Add(a, r) y = Softmax(b) }",
            "no launch is saved",
        ),
        ("g (double[1,64] x) => (double[1,24] y) { a = MatMul(x, d) y = Relu(a) }", "it is of f64"),
    ],
)
def test_what_is_left_to_onnx_runtime(text: str, reason: str) -> None:
    given = {"w": _matrix(64, 24)} if "(x, w)" in text else {}
    given |= {"d": _matrix(64, 24).astype(np.float64)} if "(x, d)" in text else {}
    result = _optimized(model(text, **given))
    assert any(op in ("MatMul", "Gemm") for op in _ops(result.model))
    assert any(reason in found for found in _reasons(result).values())


@pytest.mark.parametrize(("size", "fused"), [(1000, True), (1100, False)])
def test_weights_that_others_read_are_copied_within_a_budget(size: int, fused: bool) -> None:
    """A matrix [N, K] is read as it lies; one of [K, N] is turned, which is a copy where others read it too."""
    text = f"g (float[1,{size}] x, float[9,{size}] t) => (float[1,{size}] y, float[9,{size}] z) {{"
    text += " a = MatMul(x, w) y = Relu(a) z = MatMul(t, w) }"
    result = _optimized(model(text, w=np.full((size, size), 1e-3, np.float32)))
    assert ("FusedReduction" in _ops(result.model)) == fused
    assert any("weights are shared" in reason for reason in _reasons(result).values()) == (not fused)


def test_gemms_that_scale() -> None:
    text = "g (float[2,64] x) => (float[2,24] y) { a = Gemm<alpha=0.5, beta=-1.5>(x, w, b) y = Tanh(a) }"
    proto = model(text, w=_matrix(64, 24), b=_matrix(24))
    fused = _optimized(proto).model
    assert _ops(fused) == ["FusedReduction"]
    x = _RNG.standard_normal((2, 64)).astype(np.float32)
    expected = fusing.run(proto, {"x": x}, library=False)[0]
    for library in (True, False):
        np.testing.assert_allclose(fusing.run(fused, {"x": x}, library)[0], expected, 1e-5, 1e-5)


def test_halves_are_summed_in_float() -> None:
    text = "g (float16[1,512] x) => (float16[1,32] y) { a = MatMul(x, w) y = Relu(a) }"
    fused = _optimized(model(text, w=np.ones((512, 32), np.float16))).model
    assert _ops(fused) == ["FusedReduction"]
    x = np.full((1, 512), 9, np.float16)
    for library in (True, False):
        np.testing.assert_array_equal(fusing.run(fused, {"x": x}, library)[0], np.full((1, 32), 4608, np.float16))


@pytest.mark.parametrize("transposed", [False, True])
def test_weights_of_eight_bits_are_dequantized_as_they_are_read(transposed: bool) -> None:
    shape = (24, 64) if transposed else (64, 24)
    weights = _RNG.integers(-127, 128, shape).astype(np.int8)
    text = (
        "g (float[1,64] x) => (float[1,24] y) {"
        f" w = DequantizeLinear<axis={int(not transposed)}>(q, s, z)"
        f" a = Gemm<transB={int(transposed)}>(x, w) y = Relu(a) }}"
    )
    zeros = _RNG.integers(-9, 9, 24).astype(np.int8)
    proto = model(text, q=weights, s=_RNG.uniform(0.01, 0.02, 24).astype(np.float32), z=zeros)
    result = _optimized(proto)
    assert _ops(result.model) == ["FusedReduction"]
    (region,) = result.report.fused
    assert region.after.reads.terms[()] == 64 * 24 + 4 * 64 + 4 * 24 + 24
    x = _RNG.standard_normal((1, 64)).astype(np.float32)
    expected = fusing.run(proto, {"x": x}, library=False)[0]
    for library in (True, False):
        np.testing.assert_allclose(fusing.run(result.model, {"x": x}, library)[0], expected, 1e-5, 1e-5)
