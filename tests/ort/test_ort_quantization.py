"""Quantized models keep ONNX Runtime's integer kernels; dequantized arithmetic of one's own is fused."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import onnxfuse
from onnxfuse.ort.ort_quantization import UNTYPED
from tests.support import fusing

PAIR = "{0}q = QuantizeLinear({0}, s, z) {0}d = DequantizeLinear({0}q, s, z)"


def _model(text: str) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{text}')
    weights = np.random.default_rng(0).integers(-99, 99, (8, 8, 3, 3)).astype(np.int8)
    constants = {"s": np.float32(0.05), "z": np.uint8(128), "w": weights, "ws": np.float32(0.01), "wz": np.int8(0)}
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items() if name in used
    )
    return model


def _kernels(model: onnx.ModelProto, path: Path) -> list[str]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path)
    onnxfuse.register(options)
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return sorted(node.op_type for node in onnx.load(path).graph.node)


def test_quantized_kernels_stay(tmp_path: Path) -> None:
    model = _model(
        "g (float[1, 8, 9, 9] x) => (float[1, 8, 9, 9] y) {"
        f" {PAIR.format('x')} wd = DequantizeLinear(w, ws, wz)"
        f" c = Conv <pads = [1, 1, 1, 1]> (xd, wd) r = Relu(c) {PAIR.format('r')}"
        f" a = Add(rd, xd) {PAIR.format('a')} m = Sigmoid(ad) {PAIR.format('m')}"
        f" b = Add(md, xd) t = Relu(b) {PAIR.format('t')}"
        " n = Conv <pads = [1, 1, 1, 1]> (td, wd) yq = QuantizeLinear(n, s, z) y = DequantizeLinear(yq, s, z) }"
    )
    result = onnxfuse.optimize(model, "cpu")
    assert not fusing.fused_nodes(result.model)
    kernels = _kernels(result.model, tmp_path / "optimized.onnx")
    assert kernels == _kernels(model, tmp_path / "original.onnx")
    assert {"QLinearConv", "QLinearAdd", "QLinearSigmoid"} <= set(kernels)


def test_arithmetic_between_integers_is_fused() -> None:
    model = _model(
        "g (uint8[n, 16] x) => (uint8[n, 16] y) {"
        " d = DequantizeLinear(x, s, z) a = Abs(d) b = Sqrt(a) y = QuantizeLinear(b, s, z) }"
    )
    result = onnxfuse.optimize(model, "cpu")
    assert [region.ops for region in result.report.fused] == [["DequantizeLinear", "Abs", "Sqrt", "QuantizeLinear"]]


SCALARS = {
    "a scalar": ("float[] x", "a = Elu(x) b = Mul(a, x)"),
    "an unknown rank": ("float x", "a = Elu(x) b = Mul(a, x)"),
    "a scalar beside others": ("float[n, 4] x, float[] high", "a = Elu(x) b = Min(a, high)"),
}


@pytest.mark.parametrize("movers", ["c = Reshape(b, t)", "d = Unsqueeze(b, axis) c = Reshape(d, t)"])
@pytest.mark.parametrize("inputs", SCALARS)
def test_what_onnx_runtime_would_rename_without_its_type_is_left_alone(inputs: str, movers: str) -> None:
    declared, nodes = SCALARS[inputs]
    model = _model(f"g ({declared}) => (uint8[k] y) {{ {nodes} {movers} y = QuantizeLinear(c, s, z) }}")
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "t"))
    if "axis" in movers:
        model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axis"))
    result = onnxfuse.optimize(model, "cpu")
    assert {node.reason for node in result.report.left_alone if node.op != "QuantizeLinear"} == {UNTYPED}


def test_a_known_rank_before_a_quantization_is_fused() -> None:
    model = _model(
        "g (float[n, 4] x) => (uint8[k] y) { a = Elu(x) b = Mul(a, x) c = Reshape(b, t) y = QuantizeLinear(c, s, z) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "t"))
    assert [region.ops for region in onnxfuse.optimize(model, "cpu").report.fused] == [["Elu", "Mul"]]


LAYER = """{1}q, {1}s, {1}z = DynamicQuantizeLinear({0}) {1}p = MatMulInteger({1}q, w{1}, {1}z, z{1})
    {1}c = Cast <to = 1> ({1}p) {1}f = Mul({1}s, s{1}) {1}m = Mul({1}c, {1}f) {1} = Add({1}m, b{1})"""
AFTER = {
    "nothing": ("y = Identity(a)", [], ["DynamicQuantizeMatMul"]),
    "a Relu": ("y = Relu(a)", [], ["DynamicQuantizeMatMul", "Relu"]),
    "more": ("t = Tanh(a) y = Mul(a, t)", [["Add", "Tanh", "Mul"]], ["DynamicQuantizeMatMul", "FusedElementwise"]),
    "another product of what is quantized": (
        LAYER.format("x", "d").replace("dq, ds, dz = DynamicQuantizeLinear(x)", "")
        .replace("dq", "aq").replace("ds", "as").replace("dz", "az") + " y = Mul(a, d)",
        [["Add", "Add", "Cast", "Cast", "Mul", "Mul", "Mul", "Mul"]],
        ["DynamicQuantizeLinear", "FusedElementwise", "MatMulInteger", "MatMulInteger"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", AFTER)
def test_products_that_are_quantized_while_they_run(case: str, tmp_path: Path) -> None:
    """ONNX Runtime computes a product, its scales and a bias in one kernel, which quantizes anew for each product."""
    after, fused, kernels = AFTER[case]
    text = f"g (float[n, 16] x) => (float[n, 16] y) {{ {LAYER.format('x', 'a')} {after} }}"
    model = _model(text)
    random = np.random.default_rng(0)
    read = {name for node in model.graph.node for name in node.input}
    for name in "ad":
        constants = {
            f"w{name}": random.integers(-99, 99, (16, 16)).astype(np.int8),
            f"z{name}": np.int8(3),
            f"s{name}": np.float32(0.01),
            f"b{name}": random.normal(size=16).astype(np.float32),
        }
        model.graph.initializer.extend(
            numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items() if key in read
        )
    result = onnxfuse.optimize(model, "cpu")
    assert [sorted(region.ops) for region in result.report.fused] == [sorted(ops) for ops in fused]
    assert _kernels(result.model, tmp_path / "optimized.onnx") == kernels
    x = {"x": random.normal(size=(3, 16)).astype(np.float32)}
    (expected,), (actual,) = (fusing.run(each, x, library=True) for each in (model, result.model))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_quantized_softmax_with_a_guard_stays_what_it_was(tmp_path: Path) -> None:
    """PyTorch guards the weights of an attention against rows of which a mask leaves nothing."""
    model = _model(
        "g (float[2, 8] x) => (float[2, 16] y) {"
        f" {PAIR.format('x')} p = Softmax(xd) {PAIR.format('p')}"
        f" n = IsNaN(pd) c = Constant <value_float = 0.0> () k = Where(n, c, pd) y = Concat <axis = 1> (k, xd) }}"
    )
    result = onnxfuse.optimize(model, "cpu")
    assert _kernels(result.model, tmp_path / "optimized.onnx") == _kernels(model, tmp_path / "original.onnx")


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_sum_that_keeps_a_product_from_being_quantized_stays_with_it(target: str, tmp_path: Path) -> None:
    """ONNX Runtime's Gemm is exact; alone, the product of the same factors would be one of 8 bits."""
    rng = np.random.default_rng(0)
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]>\n'
        "g (float[9, 40] x) => (float[9, 40] y) {"
        " a = Tanh(x) w = DequantizeLinear <axis = 1> (q, s) p = MatMul(a, w) t = Add(p, x) r = Tanh(t) y = Mul(t, r) }"
    )
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(rng.integers(-99, 99, (40, 40)).astype(np.int8), "q"),
            numpy_helper.from_array(rng.standard_normal(40).astype(np.float32), "s"),
        ]
    )
    assert "MatMulNBits" not in _kernels(model, tmp_path / "original.onnx")
    result = onnxfuse.optimize(model, target, **({"embed": False, "arch": "sm_90"} if target == "cuda" else {}))
    assert "MatMulNBits" not in _kernels(result.model, tmp_path / "optimized.onnx")
    assert ["Tanh", "Mul"] in [region.ops for region in result.report.fused]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("bounding", ["Relu(p)", "Clip(p, low, high)"])
def test_a_bound_that_keeps_a_product_from_being_quantized_stays_with_it(
    bounding: str, target: str, tmp_path: Path
) -> None:
    """Behind a Relu or Clip that one node reads ONNX Runtime expects a QuantizeLinear, and leaves the product exact."""
    rng = np.random.default_rng(0)
    text = (
        "g (float[2, 90, 40] x) => (float[2, 90, 48] y) {"
        f" w = DequantizeLinear <axis = 1> (q, s) p = MatMul(x, w) b = {bounding} e = Exp(b) y = Mul(e, e) }}"
    )
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]>\n{text}')
    constants = {
        "q": rng.integers(-99, 99, (40, 48)).astype(np.int8),
        "s": rng.standard_normal(48).astype(np.float32) * np.float32(1e-3),
        "low": np.float32(-1),
        "high": np.float32(1),
    }
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    assert "MatMulNBits" not in _kernels(model, tmp_path / "original.onnx")
    result = onnxfuse.optimize(model, target, **({"embed": False, "arch": "sm_90"} if target == "cuda" else {}))
    assert result.report.fused
    assert "MatMulNBits" not in _kernels(result.model, tmp_path / "optimized.onnx")


@pytest.mark.parametrize("before", ["Tanh", "Softmax"])
@pytest.mark.parametrize("moved", ["", "Transpose <perm = [1, 0]>", "Flatten"])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_product_of_dequantized_factors_stays_exact_where_one_is_fused(
    weights: str, moved: str, before: str, tmp_path: Path
) -> None:
    """Of a product that reads one dequantized constant alone ONNX Runtime rounds the other factor to 8 bits."""
    rng = np.random.default_rng(0)
    shape = {"": "9, 40", "Flatten": "9, 4, 10"}.get(moved, "40, 9")
    text = (
        f"g (float[{shape}] x) => (float[9, 48] y) {{ a = {before}(x) {PAIR.format('a')}"
        f" m = {moved or 'Identity'}(ad)"
        " f = DequantizeLinear <axis = 1> (k, ks)"
        f" p = MatMul(m, f) {PAIR.format('p')} t = Tanh(pd) y = Mul(t, pd) }}"
    )
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')
    stored = TensorProto.INT4 if weights == "int4" else TensorProto.INT8
    scales = rng.random(48).astype(np.float32)
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.array(0.05, np.float32), "s"),
            numpy_helper.from_array(np.array(128, np.uint8), "z"),
            helper.make_tensor("k", stored, [40, 48], rng.integers(0, 8, 40 * 48)),
            numpy_helper.from_array(scales, "ks"),
        ]
    )
    assert "MatMulNBits" not in _kernels(model, tmp_path / "original.onnx")
    result = onnxfuse.optimize(model, "cuda", embed=False, arch="sm_90")
    assert result.report.fused
    assert "MatMulNBits" not in _kernels(result.model, tmp_path / "optimized.onnx")


def test_a_constant_of_a_body_is_dequantized(tmp_path: Path) -> None:
    """What makes it is a node without inputs there."""
    model = _model(
        """g (bool c) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] a) {
                    q = Constant <value = uint8[2] {130, 120}> ()
                    d = DequantizeLinear (q, s, z)
                    a = Softmax (d)
                },
                else_branch = e () => (float[2] b) {
                    q = Constant <value = float[2] {1, 2}> ()
                    b = Identity (q)
                }
            >
        }"""
    )
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in (("s", np.float32(0.05)), ("z", np.uint8(128)))
    )
    onnxfuse.optimize(model, passes=["fuse-elementwise"], output=tmp_path / "fused.onnx")
    (y,) = onnxfuse.InferenceSession(tmp_path / "fused.onnx").run(None, {"c": np.array(True)})
    np.testing.assert_allclose(y, np.array([1, np.exp(-0.5)]) / (1 + np.exp(-0.5)), rtol=1e-6)
