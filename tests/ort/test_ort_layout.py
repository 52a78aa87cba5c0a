"""The planner's picture of ONNX Runtime is held against ONNX Runtime: what it says is free must vanish there."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

import onnxfuse
from onnxfuse import cpu
from onnxfuse.fused.target import CPU
from onnxfuse.model.returned import Returned
from onnxfuse.ort.ort_fusions import OrtFusions, find_gelus
from onnxfuse.ort.ort_layout import ConvLayout, block_size
from onnxfuse.shapes.inference import infer

CHANNELS = 32
NEWEST_ONLY = {"hard swish", "residual hard swish"}


def _conv_model(body: str, source: str = "x", stem: str = "") -> onnx.ModelProto:
    """Conv → ``body`` (which makes z of r and may read the blocked s) → Conv; ``stem`` makes ``source``."""
    weights = np.random.default_rng(0).normal(size=(CHANNELS, CHANNELS, 3, 3)).astype(np.float32)
    text = (
        '<ir_version: 9, opset_import: ["" : 21]>\n'
        f"g (float[1, {CHANNELS}, 16, 16] x) => (float[1, {CHANNELS}, a, b] y) {{\n {stem}"
        f" r = Conv <pads = [1, 1, 1, 1]> ({source}, w) s = Conv <pads = [1, 1, 1, 1]> ({source}, w2)\n {body}\n"
        " q = Conv <pads = [1, 1, 1, 1]> (z, w3) y = Conv <pads = [1, 1, 1, 1]> (s, w4) }"
    )
    model = parser.parse_model(text.replace("=> (float", "=> (float[1, 32, c, d] q, float", 1))
    constants = {f"w{index or ''}": weights + index for index in (0, 2, 3, 4)}
    constants |= {"k": weights[:, :1, :1, 0], "k4": weights[:1, :, :1, :1], "scalar": np.float32(0.5)}
    constants |= {"low": np.float32(0), "high": np.float32(6), "v": np.abs(weights[:, 0, 0, 0])}
    constants |= {"root": np.float32(2**0.5), "one": np.float32(1)}
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value, np.float32), name)
        for name, value in constants.items()
        if name in used
    )
    return model


def _optimized_by_ort(model: onnx.ModelProto, path: Path, library: bool = False) -> Counter[str]:
    options = ort.SessionOptions()
    if library:
        onnxfuse.register(options)
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path)
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def _layout(model: onnx.ModelProto) -> tuple[onnxfuse.Model, ConvLayout]:
    loaded = onnxfuse.Model.from_proto(model)
    infer(loaded)
    return loaded, ConvLayout(loaded.graph.nodes, Returned([loaded.graph]), gelus=find_gelus(loaded))


INSIDE = {
    "relu": "z = Relu(r)",
    "sigmoid": "z = Sigmoid(r)",
    "tanh": "z = Tanh(r)",
    "leaky relu": "z = LeakyRelu(r)",
    "hard sigmoid": "z = HardSigmoid(r)",
    "clip": "z = Clip(r, low, high)",
    "per-channel affine": "a = Mul(r, k) z = Add(a, k)",
    "per-channel affine of rank 4": "a = Mul(r, k4) z = Add(a, k4)",
    "scalar factor": "z = Mul(r, scalar)",
    "batch normalization and relu": "a = BatchNormalization(r, v, v, v, v) z = Relu(a)",
    "residual": "z = Add(r, s)",
    "residual and relu": "a = Add(r, s) z = Relu(a)",
    "hard swish": "g = HardSigmoid <alpha = 0.16666667, beta = 0.5> (r) z = Mul(r, g)",
    "residual hard swish": "a = Add(r, s) g = HardSigmoid <alpha = 0.16666667, beta = 0.5> (a) z = Mul(a, g)",
}


def _check_inside(name: str) -> bool:
    """Whether all between the convolutions, or nothing, is inside them, by what the processor has."""
    loaded, layout = _layout(_conv_model(INSIDE[name]))
    inside = cpu.has_blocked_images() or not ("residual" in name or "hard swish" in name)
    between = [node for node in loaded.graph.nodes if node.op != "Conv"]
    assert [id(node) in layout.inside_conv for node in between] == [inside] * len(between)
    return inside


@pytest.mark.parametrize("name", INSIDE)
def test_what_is_said_to_be_inside_the_convolution_is(name: str, tmp_path: Path) -> None:
    inside = _check_inside(name)
    if name in NEWEST_ONLY and tuple(map(int, ort.__version__.split(".")[:2])) < (1, 31):
        pytest.skip("this ONNX Runtime computes HardSwish by itself")
    left = _optimized_by_ort(_conv_model(INSIDE[name]), tmp_path / "optimized.onnx")
    assert (set(left) <= {"Conv", "FusedConv", "ReorderInput", "ReorderOutput"}) == inside


@pytest.mark.skipif(not cpu.has_blocked_images(), reason="residuals are inside convolutions over blocks alone")
def test_a_residual_of_unknown_size_is_inside_the_convolution(tmp_path: Path) -> None:
    model = _conv_model("a = Add(r, s) z = Relu(a)", "p", "p = Conv <pads = [1, 1, 1, 1]> (x, w3)")
    for name, dim in zip("hw", model.graph.input[0].type.tensor_type.shape.dim[2:], strict=True):
        dim.dim_param = name
    loaded, layout = _layout(model)
    between = [node for node in loaded.graph.nodes if node.op != "Conv"]
    assert all(id(node) in layout.inside_conv for node in between)
    assert set(_optimized_by_ort(model, tmp_path / "optimized.onnx")) <= {"Conv", "ReorderInput", "ReorderOutput"}


_TWICE = "t = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()"
BLOCKED = {
    "silu": "g = Sigmoid(r) z = Mul(r, g)",
    "gate of equal shape": "a = Relu(r) b = Relu(s) z = Mul(a, b)",
    "late batch normalization": "a = Relu(r) z = BatchNormalization(a, v, v, v, v)",
    "gelu": "a = Div(r, root) b = Erf(a) c = Add(b, one) d = Mul(r, c) z = Mul(d, scalar)",
    "gelu as one node": "z = Gelu(r)",
    "approximate gelu": 'z = Gelu <approximate = "tanh"> (r)',
    **{
        f"twice as large, {name}": f"{_TWICE} z = Resize <{modes}> (r, , t)"
        for name, modes in {
            "nearest": 'coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"',
            "linear": 'mode = "linear"',
            "linear, asymmetric": 'mode = "linear", coordinate_transformation_mode = "asymmetric"',
            "linear between corners": 'mode = "linear", coordinate_transformation_mode = "align_corners"',
        }.items()
    },
    "linear to sizes": 't = Constant <value_ints = [1, 32, 64, 32]> () z = Resize <mode = "linear"> (r, , , t)',
}
NOT_BLOCKED = {
    "nearest by halves": f"{_TWICE} z = Resize (r, , t)",
    "cubic": f'{_TWICE} z = Resize <mode = "cubic"> (r, , t)',
    "by a fraction": 't = Constant <value_floats = [1.0, 1.0, 1.5, 2.0]> () z = Resize <mode = "linear"> (r, , t)',
    "to sizes by a fraction": 't = Constant <value_ints = [1, 32, 24, 32]> () z = Resize <mode = "linear"> (r, , , t)',
    "smaller": 't = Constant <value_floats = [1.0, 1.0, 0.5, 1.0]> () z = Resize <mode = "linear"> (r, , t)',
    "offset after an activation": "a = Relu(r) z = Add(a, k)",
    "exponential": "z = Exp(r)",
    "softplus": "z = Softplus(r)",
    "half a gelu": "a = Div(r, root) b = Erf(a) c = Add(b, one) z = Mul(r, c)",
    "broadcast gate": "p = GlobalAveragePool(s) z = Mul(r, p)",
}


@pytest.mark.skipif(
    not cpu.has_blocked_images() or CHANNELS % block_size() > 0,
    reason="there are no blocks on this machine, or the channels do not fill them",
)
@pytest.mark.parametrize("name", [*BLOCKED, *NOT_BLOCKED])
def test_what_is_said_to_stay_blocked_does(name: str, tmp_path: Path) -> None:
    model = _conv_model({**BLOCKED, **NOT_BLOCKED}[name])
    loaded, layout = _layout(model)
    (result,) = (tensor for node in loaded.graph.nodes for tensor in node.outputs if tensor.name == "z")
    assert layout.is_blocked(result) == (name in BLOCKED)
    reorders = _optimized_by_ort(model, tmp_path / "optimized.onnx")
    plain = _optimized_by_ort(_conv_model("z = Relu(r)"), tmp_path / "plain.onnx")
    more = sum(reorders[op] - plain[op] for op in ("ReorderInput", "ReorderOutput"))
    assert (more == 0) == (name in BLOCKED)


LAYER_NORM = (
    "m = ReduceMean <keepdims = 1> (x, axes) d = Sub(x, m) p = Pow(d, two) v = ReduceMean <keepdims = 1> (p, axes)"
    " e = Add(v, eps) q = Sqrt(e) n = Div(d, q) t = Mul(n, gamma) y = Add(t, beta)"
)
FUSED_BY_ORT = {
    "layer normalization": (LAYER_NORM, "LayerNormalization"),
    "gelu": ("a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)", "Gelu"),
    "gelu with a bias": (
        "x1 = Add(x, beta) a = Div(x1, root) b = Erf(a) c = Add(b, one) d = Mul(x1, c) y = Mul(d, half)",
        "BiasGelu",
    ),
    "gelu with a bias, of a product": (
        "o = MatMul(x, w) x1 = Add(beta, o) a = Div(x1, root) b = Erf(a) c = Add(b, one) d = Mul(x1, c)"
        " y = Mul(d, half)",
        "Gelu",
    ),
    "quick gelu": ("a = Mul(x, alpha) b = Sigmoid(a) y = Mul(x, b)", "QuickGelu"),
    "bias": ("a = MatMul(x, w) y = Add(a, beta)", "Gemm"),
    "scale": ("a = MatMul(x, w) y = Mul(a, half)", "FusedMatMul"),
}


@pytest.mark.parametrize("name", FUSED_BY_ORT)
def test_what_is_said_to_be_fused_by_ort_is(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "has_avx512", lambda: False)  # with which one of them is not worth leaving to it
    body, expected = FUSED_BY_ORT[name]
    text = f'<ir_version: 9, opset_import: ["" : 18]>\ng (float[4, 16] x) => (float[4, 16] y) {{ {body} }}'
    model = parser.parse_model(text)
    constants = {
        **{"two": 2.0, "eps": 1e-5, "root": 2**0.5, "one": 1.0, "half": 0.5, "alpha": 1.702},
        **{"gamma": np.ones(16), "beta": np.ones(16), "w": np.ones((16, 16))},
    }
    used = {value for node in model.graph.node for value in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value, np.float32), key) for key, value in constants.items() if key in used
    )
    if "axes" in used:
        model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "axes"))
    loaded = onnxfuse.Model.from_proto(model)
    infer(loaded)
    fusions = OrtFusions(loaded, CPU)
    elementwise = [node for node in loaded.graph.nodes if node.op not in ("ReduceMean", "MatMul")]
    assert all(id(node) in fusions.reasons for node in elementwise) or fusions.keeps(elementwise)
    left = _optimized_by_ort(model, tmp_path / "optimized.onnx")
    assert expected in left
    assert not set(left) & {"Add", "Mul", "Div", "Sub", "Pow", "Sqrt", "Erf", "Sigmoid"}


ONE_ELEMENT_AT_A_TIME = {
    "static": ("float[1, 64, 512]", "float[1, 64, 512]", "s = Add(x, z)"),
    "named": ("float[batch, n, 512]", "float[batch, n, 512]", "s = Add(x, z)"),
    "after a bias": ("float[1, 64, 512]", "float[1, 64, 512]", "o = MatMul(x, w) b = Add(o, beta) s = Add(b, z)"),
}
QUICK = {
    "broadcast": ("float[2, 64, 512]", "float[1, 64, 512]", "s = Add(x, z)"),
    "of unknown size": ("float[batch, n, 512]", "float[batch, other, 512]", "s = Add(x, z)"),
    "of a matrix": ("float[64, 512]", "float[64, 512]", "s = Add(x, z)"),
    "read twice": ("float[1, 64, 512]", "float[1, 64, 512]", "s = Add(x, z) r = Abs(s)"),
}


@pytest.mark.parametrize(("approximate", "bias"), [("tanh", "gamma"), ("none", "matrix")])
def test_what_ort_does_not_fuse_with_a_gelu_is(approximate: str, bias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "has_avx512", lambda: False)
    text = f'a = Add(x, {bias}) y = Gelu <approximate = "{approximate}"> (a)'
    head = '<ir_version: 9, opset_import: ["" : 20]>\ng (float[64, 512] x) => (float[64, 512] y)'
    model = parser.parse_model(f"{head} {{ {text} }}")
    values = np.ones((64, 512) if bias == "matrix" else 512, np.float32)
    model.graph.initializer.append(numpy_helper.from_array(values, bias))
    assert [node.op_type for node in onnxfuse.optimize(model, "cpu").model.graph.node] == ["FusedElementwise"]


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("name", [*ONE_ELEMENT_AT_A_TIME, *QUICK])
def test_an_addition_that_ort_would_make_a_slow_normalization_is_fused(
    name: str, decomposed: bool, tmp_path: Path
) -> None:
    first, second, body = {**ONE_ELEMENT_AT_A_TIME, **QUICK}[name]
    norm = "y = LayerNormalization(s, gamma, beta)" if not decomposed else LAYER_NORM.replace("x,", "s,")
    outputs = f"{first} y" + (f", {first} r" if "Abs" in body else "")
    text = f'<ir_version: 9, opset_import: ["": 18]>\ng ({first} x, {second} z) => ({outputs}) {{ {body} {norm} }}'
    model = parser.parse_model(text)
    constants = {"two": 2.0, "eps": 1e-5, "gamma": np.ones(512), "beta": np.ones(512), "w": np.eye(512)}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value, np.float32), key) for key, value in constants.items()
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "axes"))
    slow = name in ONE_ELEMENT_AT_A_TIME
    assert ("SkipLayerNormalization" in _optimized_by_ort(model, tmp_path / "before.onnx")) == slow
    optimized = onnxfuse.optimize(model, target="cpu", passes=["fuse-elementwise"]).model
    fused = [node.op_type for node in optimized.graph.node if node.domain == "onnxfuse"]
    if slow:
        assert fused
        assert "SkipLayerNormalization" not in _optimized_by_ort(optimized, tmp_path / "after.onnx", library=True)
    elif name != "read twice":
        assert not fused


@pytest.mark.parametrize("name", INSIDE)
def test_no_blocks_on_aarch64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations and affine steps are inside convolutions there, residuals are not; nothing is blocked."""
    monkeypatch.setattr(cpu, "has_blocked_images", lambda: False)
    _check_inside(name)
    assert not _layout(_conv_model(INSIDE[name]))[1].blocked_nodes
