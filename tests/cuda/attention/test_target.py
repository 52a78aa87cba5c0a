"""``optimize`` for CUDA of attention, on a machine without a GPU: from a graph to kernels that run in the emulation."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, parser

import onnxfuse
from onnxfuse.cuda.attention.recipe import AttentionRecipe
from onnxfuse.cuda.complete import complete
from onnxfuse.cuda.rerender import source_of_attention
from onnxfuse.planning.inspection import inspect
from tests.cuda.attention.launches import rendered_code
from tests.cuda.command_line import bytes_attributes
from tests.cuda.compilers import MadeUpCompiler
from tests.cuda.stand_in import AVAILABLE, REASON, StandIn, cubin
from tests.support import fusing


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in ("onnxfuse.cuda.arch", "onnxfuse.cuda.compile.compiler"):
        monkeypatch.setattr(f"{module}.devices", tuple)
    yield


SPLIT = "{0}_s = Reshape ({0}, heads) {0}_h = Transpose <perm = {1}> ({0}_s)"
MASKED = " ".join(
    (
        "g ({t}[n, l, 64] q, {t}[n, l, 64] k, {t}[n, l, 64] v, {t}[n, 1, 1, l] mask) => ({t}[n, l, 64] y)",
        "<int64[4] heads = {{0, 0, 4, 16}}, int64[3] joined = {{0, 0, 64}}, {t} scale = {{{s}}}> {{",
        *(SPLIT.format(name, perm) for name, perm in zip("qkv", ("[0,2,1,3]", "[0,2,3,1]", "[0,2,1,3]"), strict=True)),
        "p = MatMul (q_h, k_h) s = Mul (p, scale) m = Add (s, mask) w = Softmax <axis = -1> (m) a = MatMul (w, v_h)",
        "t = Transpose <perm = [0,2,1,3]> (a) y = Reshape (t, joined) }}",
    )
)
QUARTER = "13312"
"""The bits of 0.25 in float16."""
PLAIN = (
    "g (float[n, 4, l, 300] q, float[n, 4, l, 300] k, float[n, 4, l, 300] v) => (float[n, 4, l, 300] y) {"
    " t = Transpose <perm = [0,1,3,2]> (k) p = MatMul (q, t) w = Softmax <axis = -1> (p) y = MatMul (w, v) }"
)


def model_of(text: str) -> onnx.ModelProto:
    """A model of the newest opset that ONNX Runtime has known for long."""
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')


def made_up(dtype: type, n: int = 2, length: int = 9) -> dict[str, np.ndarray]:
    """Inputs of MASKED."""
    rng = np.random.default_rng(0)
    found = {name: rng.normal(size=(n, length, 64)).astype(dtype) for name in "qkv"}
    mask = np.zeros((n, 1, 1, length), dtype)
    mask[..., -2:] = -1e4
    return {**found, "mask": mask}


def test_a_node_carries_a_recipe_and_code(compiler: MadeUpCompiler) -> None:
    original = model_of(MASKED.format(t="float", s="0.25"))
    result = onnxfuse.optimize(original, "cuda", arch="sm_90,sm_80")
    onnx.checker.check_model(result.model, full_check=True)
    (node,) = fusing.fused_nodes(result.model)
    found = bytes_attributes(node)
    assert node.op_type == "FusedAttention" and set(found) >= {"cuda_recipe", "cuda_sm_80", "cuda_sm_90", "cuda_ptx"}
    assert AttentionRecipe.parse(found["cuda_recipe"].decode()).kernels[0].size == 16
    feeds = made_up(np.float32)
    expected = fusing.run(original, feeds, library=False)
    for library in (True, False):
        np.testing.assert_allclose(fusing.run(result.model, feeds, library)[0], expected[0], 1e-5, 1e-6)
    (region,) = json.loads(json.dumps(result.report.to_json()))["fused"]
    assert region["cuda"]["family"] == "attention simt" and region["cuda"]["choice"] == "heuristic"
    assert region["after"]["launches"] == 1 < region["before"]["launches"]


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.skipif(not AVAILABLE, reason=REASON)
def test_its_kernels_compute_it(dtype: str, compiler: MadeUpCompiler, tmp_path: Path) -> None:
    original = model_of(MASKED.format(t=dtype, s="0.25" if dtype == "float" else QUARTER))
    fused = onnxfuse.optimize(original, "cuda", arch="sm_90", embed=False, check=False).model
    (node,) = fused.graph.node
    assert node.op_type == "FusedAttention"
    recipe = AttentionRecipe.parse(bytes_attributes(node)["cuda_recipe"].decode())
    code = cubin(rendered_code(source_of_attention(recipe)), 90)
    node.attribute.append(helper.make_attribute("cuda_sm_90", code))
    fused.functions[0].attribute.append("cuda_sm_90")
    driver = StandIn(tmp_path)
    session = driver.session(fused)
    tolerance = 1e-5 if dtype == "float" else 2e-3
    for n, length in ((2, 9), (1, 1), (1, 140)):
        feeds = made_up(np.float32 if dtype == "float" else np.float16, n, length)
        driver.launches()
        (result,) = session.run(None, feeds)
        assert len(driver.launches()) in (1, 2)
        np.testing.assert_allclose(
            result.astype(float), fusing.run(original, feeds, library=False)[0].astype(float), tolerance, tolerance
        )


def test_float16_is_checked_on_the_cpu(compiler: MadeUpCompiler) -> None:
    """The library computes it there too."""
    original = model_of(MASKED.format(t="float16", s=QUARTER))
    result = onnxfuse.optimize(original, "cuda", arch="sm_90")
    (node,) = fusing.fused_nodes(result.model)
    assert node.op_type == "FusedAttention"
    feeds = made_up(np.float16)
    expected = fusing.run(original, feeds, library=False)[0]
    np.testing.assert_allclose(
        fusing.run(result.model, feeds, True)[0].astype(float), expected.astype(float), 2e-3, 2e-3
    )


def test_what_has_no_kernels_stays(compiler: MadeUpCompiler) -> None:
    """Heads of 300 elements, and double."""
    report = onnxfuse.optimize(model_of(PLAIN), "cuda", arch="sm_90", check=False).report
    assert any("its heads have 300 elements" in refusal.reason for refusal in report.refusals)
    assert all(region.kind != "FusedAttention" for region in report.fused)
    small = onnxfuse.optimize(model_of(PLAIN.replace("300", "256")), "cuda", arch="sm_90", check=False)
    assert [node.op_type for node in small.model.graph.node] == ["FusedAttention"]
    double = PLAIN.replace("300", "16").replace("float", "double")
    report = onnxfuse.optimize(model_of(double), "cuda", arch="sm_90", check=False).report
    assert any("its tensors are of f64" in refusal.reason for refusal in report.refusals)


def test_inspect_shows_its_source(compiler: MadeUpCompiler, tmp_path: Path) -> None:
    onnxfuse.optimize(
        model_of(MASKED.format(t="float", s="0.25")), "cuda", arch="sm_90", check=False, output=tmp_path / "fused.onnx"
    )
    (node,) = fusing.fused_nodes(onnx.load(tmp_path / "fused.onnx"))
    text = inspect(tmp_path / "fused.onnx", "cuda").cuda_source(node.name)
    assert "attend_tiles<" in text and "__global__" in text


def test_its_code_need_not_be_compiled_again(compiler: MadeUpCompiler) -> None:
    original = model_of(MASKED.format(t="float", s="0.25"))
    model = onnxfuse.optimize(original, "cuda", arch="sm_90", check=False).model
    assert complete(model, None, ("sm_90",)) is None
    completed = complete(onnxfuse.optimize(original, "cpu", check=False).model, None, ("sm_90",))
    assert completed is not None
    (node,) = fusing.fused_nodes(onnx.load_model_from_string(completed))
    assert "cuda_sm_90" in bytes_attributes(node)
