"""``optimize`` for CUDA of what reduces, on a machine without a GPU: one node with code, its report and its source."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnxfuse
from onnxfuse.cuda.compile.cache import Cache
from onnxfuse.cuda.compile.compiled import Compiled
from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.compile.resources import Resources
from onnxfuse.cuda.elementwise.fitting import LOG_OPTION
from onnxfuse.cuda.elementwise.renderer import compile_options
from onnxfuse.cuda.nest.fitting import TUNINGS, NestFitter
from onnxfuse.cuda.nest.recipe import NestRecipe
from onnxfuse.cuda.tuned import Choice
from onnxfuse.planning.inspection import inspect
from tests.cuda.command_line import bytes_attributes
from tests.cuda.compilers import MadeUpCompiler
from tests.cuda.nest.programs import chains
from tests.support import fusing

MASKED = (
    "g (float[n, 12, l, l] x, float[n, 1, 1, l] mask) => (float[n, 12, l, l] y) {"
    " a = Mul(x, s) b = Add(a, mask) y = Softmax(b) }"
)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in ("onnxfuse.cuda.arch", "onnxfuse.cuda.compile.compiler"):
        monkeypatch.setattr(f"{module}.devices", tuple)
    yield


def _model() -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]>\n{MASKED}')
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.125), "s"))
    return model


def test_a_node_that_reduces_carries_a_recipe_and_code(compiler: MadeUpCompiler) -> None:
    result = onnxfuse.optimize(_model(), "cuda", arch="sm_90,sm_80")
    onnx.checker.check_model(result.model, full_check=True)
    (node,) = fusing.fused_nodes(result.model)
    found = bytes_attributes(node)
    assert node.op_type == "FusedReduction"
    assert set(found) >= {"program", "cuda_recipe", "cuda_sm_80", "cuda_sm_90", "cuda_ptx"}
    recipe = NestRecipe.parse(found["cuda_recipe"].decode())
    assert recipe.kernels[0].vector == 4 and str(recipe.kernels[0].access) in ("ll::l", "ls::l", "lg::l")
    assert {sha256(source.encode()).hexdigest() for source, _ in compiler.calls} == {recipe.source}
    feeds = {
        "x": np.random.default_rng(0).normal(size=(2, 12, 5, 5)).astype(np.float32),
        "mask": np.zeros((2, 1, 1, 5), np.float32),
    }
    expected = fusing.run(_model(), feeds, library=False)
    for library in (True, False):
        np.testing.assert_allclose(fusing.run(result.model, feeds, library)[0], expected[0], 1e-5, 1e-6)


def test_the_report_has_what_its_kernels_take(compiler: MadeUpCompiler) -> None:
    compiler.registers = 72
    report = onnxfuse.optimize(_model(), "cuda", arch="sm_90").report
    (region,) = json.loads(json.dumps(report.to_json()))["fused"]
    kernel = region["cuda"]
    assert (kernel["family"], kernel["moves"], kernel["choice"]) == ("rows", 1.0, "heuristic")
    assert kernel["uses"]["sm_90"]["registers"] == 72
    assert region["after"]["launches"] == 1 < region["before"]["launches"]


def test_its_code_need_not_be_compiled_again(compiler: MadeUpCompiler) -> None:
    from onnxfuse.cuda.complete import complete

    model = onnxfuse.optimize(_model(), "cuda", arch="sm_90", check=False).model
    assert complete(model, None, ("sm_90",)) is None
    completed = complete(onnxfuse.optimize(_model(), "cpu", check=False).model, None, ("sm_90",))
    assert completed is not None
    (node,) = fusing.fused_nodes(onnx.load_model_from_string(completed))
    assert "cuda_sm_90" in bytes_attributes(node)


def test_inspect_shows_its_source(compiler: MadeUpCompiler, tmp_path: Path) -> None:
    onnxfuse.optimize(_model(), "cuda", arch="sm_90", check=False, output=tmp_path / "fused.onnx")
    (node,) = fusing.fused_nodes(onnx.load(tmp_path / "fused.onnx"))
    text = inspect(tmp_path / "fused.onnx", "cuda").cuda_source(node.name)
    assert "reduce_max f32" in text and "__global__" in text
    assert NestRecipe.parse(bytes_attributes(node)["cuda_recipe"].decode()).source in text


class _ByItems(MadeUpCompiler):
    """Kernels that spill where a thread keeps more than ``most`` elements."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def compile(self, source: str, architecture: str, options: tuple[str, ...]) -> Compiled:
        compiled = super().compile(source, architecture, options)
        resources = {}
        for name in compiled.resources:
            body = source[source.index(f"\n{name}(") :].split("__global__")[0]
            items = int(body.split("first < ")[1].split(";")[0]) if "first < " in body else 0
            vector = int(body.split("j < ")[1].split(";")[0]) if "j < " in body else 1
            resources[name] = Resources(40, spill_stores=4 * max(0, items * vector - self.most))
        return Compiled(compiled.cubin, compiled.ptx, resources)


class _Spilling(MadeUpCompiler):
    """Every kernel spills as much, and more on the later architecture."""

    def compile(self, source: str, architecture: str, options: tuple[str, ...]) -> Compiled:
        compiled = super().compile(source, architecture, options)
        spilled = Resources(64, spill_stores=8 if architecture == "sm_90" else 4)
        return Compiled(compiled.cubin, compiled.ptx, dict.fromkeys(compiled.resources, spilled))


def test_what_spills_no_less_is_compiled_for_one_architecture(tmp_path: Path) -> None:
    options = (*compile_options(False), LOG_OPTION)
    compiler = _Spilling()
    fitter = NestFitter(CompilerCache(compiler, Cache(tmp_path)), options, ("sm_75", "sm_80", "sm_90"))
    fit = fitter.fit(chains("f32")["l2 normalize"].program, [("n", "m")])
    assert (fit.tuning.share, fit.spills) == (0, (8, "sm_90"))
    others = [architecture for source, architecture in compiler.calls if source != fit.source.text]
    assert len(compiler.calls) - len(others) == 3 and others == ["sm_90"] * (len(TUNINGS) - 1)


@pytest.mark.parametrize(("most", "share"), [(16, 0), (8, 1), (5, 2), (1, 3)])
def test_a_thread_keeps_less_where_registers_run_out(tmp_path: Path, most: int, share: int) -> None:
    options = (*compile_options(False), LOG_OPTION)
    fitter = NestFitter(CompilerCache(_ByItems(most), Cache(tmp_path)), options, ("sm_80", "sm_90"))
    fit = fitter.fit(chains("f32")["l2 normalize"].program, [("n", "m")])
    assert fit.tuning.share == share
    assert fit.choice is (Choice.REGISTERS if share else Choice.HEURISTIC)
    assert fit.is_good == (most > 1)
    assert max(kernel.capacity for kernel in fit.source.kernels) == 16384 >> share
    assert fitter.fit(chains("f32")["l2 normalize"].program, [("k", "m")]) is fit
    looping = next(kernel for kernel in fit.source.kernels if not kernel.items and not kernel.steps)
    assert fit.traffic(fit.source.kernels[0]) == 1 and fit.traffic(looping) == 1.5
