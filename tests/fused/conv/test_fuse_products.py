"""Matrix products on CUDA with what is around them: what is taken in, what is left and why, and the same results."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import onnxfuse
from onnxfuse.cuda.conv.candidates import candidates
from onnxfuse.cuda.conv.choice import PRODUCT, RuleChooser
from onnxfuse.cuda.conv.node import fused_convolutions
from onnxfuse.cuda.conv.tuning import made_up, sizes_of
from onnxfuse.cuda.conv.tunings import OURS, THEIRS, Times, TuningEntry, Tunings, key_of, known_dims
from onnxfuse.fused.choices import SWITCHED_OFF, ConvPolicy
from onnxfuse.fused.conv.choosers import CudaChooser
from onnxfuse.fused.conv.fuse_conv import NAME, NO_NEIGHBOUR, FuseConv
from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.passes import PassContext
from onnxfuse.report.report import Report
from onnxfuse.shapes.inference import infer
from onnxfuse.targets.cuda.baseline import OrtBaseline, baseline_model
from tests.support import fusing

ALL = RuleChooser(ConvPolicy.ALL)
MLP = """g (float[n, 12, 16] x) => (float[n, 12, 16] y) {
    a = MatMul(x, up) b = Add(a, bias) c = Gelu(b) d = MatMul(c, down) e = Add(d, small) y = Add(e, x) }"""
GATED = """g (float[3, 12, 16] x) => (float[3, 12, 16] y, float[3, 12, 40] u) {
    u = MatMul(x, up) v = MatMul(x, gate) s = Sigmoid(v) t = Mul(v, s) w = Mul(t, u)
    d = MatMul(w, down) y = Add(d, x) }"""
ROWS = """g (float[n, 16] x, float[n, 1] scale) => (float[n, 40] y) {
    s = Mul(x, scale) a = Gemm <transB = 1> (s, turned, bias) y = Relu(a) }"""
WEIGHTS = {"up": (16, 40), "gate": (16, 40), "down": (40, 16), "turned": (40, 16), "bias": (40,), "small": (16,)}


def model(text: str, dtype: Any = np.float32, opset: int = 20) -> onnx.ModelProto:
    made = parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]>\n{text}')
    random = np.random.default_rng(0)
    read = {name for node in made.graph.node for name in node.input}
    for name, shape in WEIGHTS.items():
        if name in read:
            values = (random.normal(size=shape) / 4).astype(dtype)
            made.graph.initializer.append(numpy_helper.from_array(values, name))
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return made


def fuse(made: onnx.ModelProto, chooser: Any = ALL, **options: Any) -> tuple[onnx.ModelProto, Report]:
    loaded = onnxfuse.Model.from_proto(made)
    infer(loaded)
    context = PassContext(target="cuda", convolutions=CudaChooser(chooser), **options)
    FuseConv().run(loaded, context)
    fused = loaded.to_proto()
    onnx.checker.check_model(fused, full_check=True)
    return fused, context.report


def operators(made: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in made.graph.node]


def feeds(made: onnx.ModelProto, batch: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    found = {}
    for value in made.graph.input:
        shape = [dim.dim_value or batch for dim in value.type.tensor_type.shape.dim]
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        found[value.name] = random.normal(size=shape).astype(kind)
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    ("text", "left"), [(MLP, []), (GATED, ["MatMul"]), (ROWS, [])], ids=["an MLP", "a gated MLP", "Gemm after a scale"]
)
def test_all_that_is_around_products_is_in_them(text: str, left: list[str], dtype: Any) -> None:
    """Of two products that are multiplied with each other one is the other's operand."""
    made = model(text, dtype)
    fused, report = fuse(made)
    assert [name for name in operators(fused) if not name.startswith("FusedConv")] == left
    assert all(item.fused for item in report.convolutions)
    if dtype == ml_dtypes.bfloat16:
        return  # ONNX Runtime has no kernels of it to compare with on the CPU
    inputs, tolerance = feeds(made, 2), 2e-2 if dtype == np.float16 else 1e-5
    wanted = fusing.run(made, inputs, False)
    for library in (True, False):
        for result, own in zip(fusing.run(fused, inputs, library), wanted, strict=True):
            np.testing.assert_allclose(result.astype(np.float32), own.astype(np.float32), tolerance, tolerance)


def test_two_outputs_where_others_read_the_product() -> None:
    both = "g (float[3, 12, 16] x) => (float[3, 12, 40] a, float[3, 12, 40] y) { a = MatMul(x, up) y = Relu(a) }"
    made = model(both)
    fused, _ = fuse(made)
    (node,) = fusing.fused_nodes(fused)
    assert len(node.output) == 2
    fusing.assert_same_everywhere(fused, made, feeds(made, 1))


def test_a_scale_before_a_product_is_its_prologue() -> None:
    fused, _ = fuse(model(ROWS))
    (case,) = (found.case for found in fused_convolutions(_loaded(fused)))
    assert case.prologue is not None and case.access.prologue == "g"
    assert not case.conv.transposed and case.access.epilogue == "c"


def _loaded(made: onnx.ModelProto) -> onnxfuse.Model:
    loaded = onnxfuse.Model.from_proto(made)
    infer(loaded)
    return loaded


def test_by_default_every_product_is_left_and_the_reason_names_tune() -> None:
    made = model(MLP)
    fused, report = fuse(made, RuleChooser())
    assert operators(fused) == operators(made) and not report.convolutions
    refused = [item for item in report.refusals if item.rule == NAME]
    assert {item.reason for item in refused} == {PRODUCT.reason} and len(refused) == 2 and "--tune" in PRODUCT.reason
    _, report = fuse(made, RuleChooser(ConvPolicy.NONE))
    assert {item.reason for item in report.refusals} == {SWITCHED_OFF.reason}
    assert FuseConv.name == NAME


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[n, 16] x) => (float[n, 40] y) { y = MatMul(x, up) }", NO_NEIGHBOUR),
        ("g (float[n, 16] x, float[16, k] w) => (float[n, k] y) { a = MatMul(x, w) y = Relu(a) }", "is not known"),
        ("g (float[n, 16] x) => (float[n, 40] y) { a = Gemm <alpha = 2.0> (x, up) y = Relu(a) }", "it scales"),
        ("g (float[16] x) => (float[40] y) { a = MatMul(x, up) y = Relu(a) }", "fewer than two dimensions"),
        (
            "g (float[1, 1, 1, 2, 3, 16] x) => (float[1, 1, 1, 2, 3, 40] y) { a = MatMul(x, up) y = Relu(a) }",
            "2 to 5 dimensions",
        ),
        ("g (float[n, 9, 16] x, float[n, 16, 9] w) => (float[n, 9, 9] y) { a = MatMul(x, w) y = Relu(a) }", "fewer"),
    ],
    ids=["alone", "unknown columns", "alpha", "a vector", "six dimensions", "batches of matrices"],
)
def test_what_is_left_alone(text: str, reason: str) -> None:
    made = model(text)
    fused, report = fuse(made)
    assert operators(fused) == operators(made)
    assert any(reason in item.reason for item in report.refusals)


def test_a_matrix_that_is_computed() -> None:
    made = model("g (float[n, 5, 16] x, float[16, 7] w) => (float[n, 5, 7] y) { a = MatMul(x, w) y = Relu(a) }")
    fused, _ = fuse(made)
    assert operators(fused) == ["FusedConv"]
    inputs = feeds(made, 3)
    for library in (True, False):
        (result,), (wanted,) = fusing.run(fused, inputs, library), fusing.run(made, inputs, False)
        np.testing.assert_allclose(result, wanted, 1e-5, 1e-5)


def test_what_was_measured_decides_and_goes_through_a_file() -> None:
    """Of a GPU's measurements none is here; what they would say is made up."""
    made = model(MLP)
    cases = [found.case for found in fused_convolutions(_loaded(fuse(made)[0]))]
    entries = []
    for case, winner in zip(cases, (OURS, THEIRS), strict=True):
        tilings = candidates(case.conv, known_dims(case))[0]
        times = (Times(case.sizes(1, 12), 2e-5, 1e-5 if winner == OURS else 4e-5),)
        entries.append(TuningEntry(key_of(case, "sm_90", False), "made-up GPU", "1.32.0", winner, tilings, times))
    known = Tunings.parse(str(Tunings(entries)).encode(), "it")
    assert [entry.key for entry in known] == [entry.key for entry in entries]
    fused, report = fuse(made, RuleChooser(tunings=known, architectures=("sm_90",)))
    assert sum(name.startswith("FusedConv") for name in operators(fused)) == 1 and "MatMul" in operators(fused)
    assert [item.reason for item in report.convolutions] == [
        "measured on made-up GPU: ONNX Runtime takes 2.00 times as long"
    ]
    assert [item.reason for item in report.refusals] == [PRODUCT.reason]
    other = RuleChooser(tunings=known, architectures=("sm_80",))
    assert not other.choose(cases[0]).fused
    assert all(known.find(replace(case, tf32=True), "sm_90", False) is None for case in cases)


@pytest.mark.parametrize("text", [MLP, ROWS], ids=["MatMul", "Gemm"])
def test_what_a_product_is_measured_against_runs(text: str) -> None:
    for found in fused_convolutions(_loaded(fuse(model(text))[0])):
        case = found.case
        shape = sizes_of(case)[0]
        values = made_up(case, shape)
        built = baseline_model(case, shape, values[1:], 2)
        assert next(node.op_type for node in built.graph.node if node.domain != DOMAIN) in ("MatMul", "Gemm")
        assert 0 < OrtBaseline(on_gpu=False).seconds(case, shape, values) < 1
