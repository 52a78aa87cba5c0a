"""``optimize`` for CUDA on a machine without a GPU: code in the nodes, report, sources, options, errors."""

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import onnxfuse
from onnxfuse.cuda import arch
from onnxfuse.cuda.compile import compiler as compilers
from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.recipe import Recipe
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.kinds import DOMAIN, FAST_MATH_KEY
from onnxfuse.planning.inspection import inspect
from onnxfuse.report.report_html import render
from onnxfuse.targets import request
from tests.cuda.command_line import bytes_attributes, run_cli
from tests.cuda.compilers import MadeUpCompiler, nvrtc
from tests.support import fusing

OPERATORS = ("Sigmoid", "Tanh", "Exp", "Erf", "Neg")
TWO_CHAINS = (
    "g (float[n, 4, h, w] x, float[n, 4, h, w] r) => (float[n, 4, h, w] y, float[n, 4, h, w] z) {"
    " a = Mul(x, s) b = Relu(a) y = Add(b, r) t = Trilu(y) c = Mul(t, s) d = Relu(c) e = Add(d, r)"
    " z = Trilu(e) }"
)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("onnxfuse.cuda.arch", "onnxfuse.cuda.compile.compiler"):
        monkeypatch.setattr(f"{module}.devices", tuple)


def _model() -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]>\n{TWO_CHAINS}')
    scale = np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1)
    model.graph.initializer.append(numpy_helper.from_array(scale, "s"))
    return model


def test_nodes_carry_a_recipe_and_code(compiler: MadeUpCompiler) -> None:
    result = onnxfuse.optimize(_model(), "cuda", arch="sm_90,sm_80")
    onnx.checker.check_model(result.model, full_check=True)
    first, second = fusing.fused_nodes(result.model)
    found = bytes_attributes(first)
    assert set(found) == {"program", "cuda_recipe", "cuda_sm_80", "cuda_sm_90", "cuda_ptx"}
    assert found["cuda_sm_90"].startswith(b"\x7fELF sm_90") and b".target sm_80" in found["cuda_ptx"]
    assert "--fmad=false" in found["cuda_sm_80"].decode()
    recipe = Recipe.parse(found["cuda_recipe"].decode())
    assert recipe.kernels[0].vector > 1
    assert bytes_attributes(second) == found
    assert [source for source, name in compiler.calls if sha256(source.encode()).hexdigest() != recipe.source] == []
    assert sorted(name for _, name in compiler.calls) == ["sm_80", "sm_90"]
    (function,) = result.model.functions
    assert set(found) <= set(function.attribute)


def test_the_model_still_runs_anywhere(compiler: MadeUpCompiler) -> None:
    model, fused = _model(), onnxfuse.optimize(_model(), "cuda", arch="sm_90").model
    feeds = {name: np.random.default_rng(0).normal(size=(2, 4, 3, 3)).astype(np.float32) for name in ("x", "r")}
    expected = fusing.run(model, feeds, library=False)
    for library in (True, False):
        for actual, wanted in zip(fusing.run(fused, feeds, library), expected, strict=True):
            assert fusing.same_bits(actual, wanted)
    for actual, wanted in zip(ReferenceEvaluator(fused).run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, 1e-6)


def test_without_architectures_it_is_the_gpu_here_or_the_common_ones(
    compiler: MadeUpCompiler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for here, expected in (((), arch.COMMON), (("sm_86",), ("sm_86",))):
        monkeypatch.setattr(arch, "devices", lambda here=here: here)
        monkeypatch.setattr(request, "why_no_cuda", lambda: "no")
        result = onnxfuse.optimize(_model(), "cuda", check=False)
        names = set(bytes_attributes(fusing.fused_nodes(result.model)[0]))
        assert {f"cuda_{name}" for name in expected} == {name for name in names if name.startswith("cuda_sm")}


def test_code_is_compiled_once_and_then_comes_from_the_cache(compiler: MadeUpCompiler) -> None:
    first = onnxfuse.optimize(_model(), "cuda", arch="sm_80,sm_90", check=False)
    calls = len(compiler.calls)
    second = onnxfuse.optimize(_model(), "cuda", arch="sm_80,sm_90", check=False)
    assert first.model == second.model
    assert len(compiler.calls) == calls
    assert first.report.cuda is not None and first.report.cuda.compiled == 2
    assert second.report.cuda is not None and second.report.cuda.compiled == 0


def test_optimizing_for_the_cpu_first_gives_code_all_the_same(compiler: MadeUpCompiler) -> None:
    for_cpu = onnxfuse.optimize(_model(), "cpu", check=False).model
    assert set(bytes_attributes(fusing.fused_nodes(for_cpu)[0])) == {"program"}
    both = onnxfuse.optimize(for_cpu, "cuda", arch="sm_90", check=False).model
    assert "cuda_sm_90" in bytes_attributes(fusing.fused_nodes(both)[0])
    again = onnxfuse.optimize(both, "cuda", arch="sm_100", check=False).model
    found = bytes_attributes(fusing.fused_nodes(again)[0])
    assert "cuda_sm_100" in found and "cuda_sm_90" not in found
    onnx.checker.check_model(again, full_check=True)


def test_the_report_has_what_kernels_for_other_shapes_spill(compiler: MadeUpCompiler) -> None:
    compiler.others_spill = 24
    report = onnxfuse.optimize(_model(), "cuda", arch="sm_90", check=False).report
    assert report.cuda is not None
    assert "no spills but up to 24 bytes by kernels of other shapes, occupancy" in report.cuda.describe()
    uses = [use for kernel in report.cuda.kernels.values() for use in kernel.uses.values()]
    assert "0 B spilled (24 B by kernels of other shapes)" in {use.describe_spills() for use in uses}


def test_the_report_has_what_each_region_takes(compiler: MadeUpCompiler, tmp_path: Path) -> None:
    compiler.registers = 72
    report = onnxfuse.optimize(_model(), "cuda", arch="sm_75,sm_90").report
    assert report.cuda is not None
    assert "for sm_75, sm_90 by made-up 1" in report.cuda.describe()
    assert "Up to 72 registers, no spills, occupancy 38 % at least" in report.cuda.describe()
    assert report.cuda.describe().endswith("Sizes: 2 heuristic.")
    assert "on the CPU (there is no CUDA GPU here)" in report.describe_check()
    data = json.loads(json.dumps(report.to_json()))
    region = data["fused"][0]
    assert (region["before"]["launches"], region["after"]["launches"]) == (3, 1)
    assert (region["before"]["buffers"], region["after"]["buffers"]) == (2, 0)
    assert region["before"]["reads"]["text"] != region["after"]["reads"]["text"]
    assert region["cuda"]["uses"]["sm_90"] == {"registers": 72, "spill_bytes": 0, "occupancy": 0.375, "others_spill": 0}
    assert region["cuda"]["uses"]["sm_75"]["occupancy"] == 0.75
    assert region["cuda"]["access"] == "lcl:l" and region["cuda"]["times"] is None
    assert data["cuda"]["architectures"] == ["sm_75", "sm_90"] and data["checked_on"].startswith("on the CPU")
    page = render(report)
    assert "CUDA kernels" in page and "72 registers" in page and "3 → 1" in page


def test_no_embed_leaves_the_code_out_and_needs_no_compiler(
    compiler: MadeUpCompiler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none() -> MadeUpCompiler:
        raise OnnxfuseError("no CUDA compiler")

    result = onnxfuse.optimize(_model(), "cuda", arch="sm_90", embed=False)
    monkeypatch.setattr(compilers, "find_compiler", none)
    without = onnxfuse.optimize(_model(), "cuda", arch="sm_90", embed=False)
    for found in (result, without):
        assert set(bytes_attributes(fusing.fused_nodes(found.model)[0])) == {"program", "cuda_recipe"}
        assert "carries no machine code" in found.report.cuda.describe()  # type: ignore[union-attr]
    with pytest.raises(OnnxfuseError, match="no CUDA compiler"):
        onnxfuse.optimize(_model(), "cuda", arch="sm_90")


def test_fast_math_is_in_the_options_and_the_node_remembers(compiler: MadeUpCompiler) -> None:
    result = onnxfuse.optimize(_model(), "cuda", arch="sm_90", fast_math=True, check=False)
    node = fusing.fused_nodes(result.model)[0]
    assert b"--use_fast_math" in bytes_attributes(node)["cuda_sm_90"]
    assert FAST_MATH_KEY in {entry.key for entry in node.metadata_props}


def test_sources_are_kept(compiler: MadeUpCompiler, tmp_path: Path) -> None:
    result = onnxfuse.optimize(_model(), "cuda", arch="sm_90", check=False, keep_source=tmp_path / "new" / "src")
    (file,) = (tmp_path / "new" / "src").iterdir()
    recipe = Recipe.parse(bytes_attributes(fusing.fused_nodes(result.model)[0])["cuda_recipe"].decode())
    assert sha256(file.read_bytes()).hexdigest() == recipe.source
    assert file.suffix == ".cu" and recipe.source.startswith(file.stem)
    with pytest.raises(OnnxfuseError, match="no directory"):
        onnxfuse.optimize(_model(), "cuda", arch="sm_90", check=False, keep_source=file)


def test_inspect_shows_the_source_and_checks_its_hash(
    compiler: MadeUpCompiler,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = onnxfuse.optimize(_model(), "cuda", arch="sm_90", check=False, output=tmp_path / "m.onnx")
    name = fusing.fused_nodes(result.model)[0].name
    status, out, _ = run_cli(capsys, "inspect", tmp_path / "m.onnx", "--cuda", name)
    recipe = Recipe.parse(bytes_attributes(fusing.fused_nodes(result.model)[0])["cuda_recipe"].decode())
    assert status == 0 and recipe.source in out.splitlines()[0]
    assert f"{recipe.kernels[0].name}(" in out
    for node in result.model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "cuda_recipe":
                attribute.s = attribute.s.replace(recipe.source.encode(), b"0" * 64)
    onnx.save(result.model, tmp_path / "other.onnx")
    for file, node_name, message in (
        ("other.onnx", name, "another version of onnxfuse"),
        ("m.onnx", "nothing", "no fused node 'nothing'"),
        ("cpu.onnx", name, "no CUDA kernels"),
    ):
        if file == "cpu.onnx":
            onnxfuse.optimize(_model(), "cpu", check=False, output=tmp_path / file)
        status, _, err = run_cli(capsys, "inspect", tmp_path / file, "--cuda", node_name)
        assert status == 2 and err.startswith("onnxfuse: error: ") and message in err


@pytest.mark.parametrize("registers", [40, 72, 200])
def test_a_source_that_registers_changed_is_shown_too(
    registers: int,
    compiler: MadeUpCompiler,
    tmp_path: Path,
) -> None:
    compiler.registers = registers
    onnxfuse.optimize(_model(), "cuda", arch="sm_90", check=False, output=tmp_path / "m.onnx")
    found = inspect(tmp_path / "m.onnx", "cuda")
    assert "__global__" in found.cuda_source(found.fused[0].name)


def test_auto_is_the_cpu_here(compiler: MadeUpCompiler) -> None:
    result = onnxfuse.optimize(_model(), check=False)
    assert result.report.target == "cpu" and result.report.cuda is None
    assert not compiler.calls


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optimize", "IN", "OUT", "--target", "cuda", "--tune"], "tuning needs a GPU"),
        (["optimize", "IN", "OUT", "--target", "cuda", "--arch", "sm_90,90"], "unknown architecture '90'"),
        (["optimize", "IN", "OUT", "--arch", "sm_90"], "for the target cuda"),
        (["optimize", "IN", "OUT", "--target", "cpu", "--keep-source", "src"], "for the target cuda"),
        (["optimize", "IN", "OUT", "--target", "cuda", "--conv", "some"], "no 'some'; there are auto, all, none"),
        (["optimize", "IN", "OUT", "--target", "cuda", "--tuning", "none"], "none cannot be read"),
        (["optimize", "IN", "OUT", "--target", "cuda", "--tuning", "IN"], "is no tuning file"),
        (["optimize", "IN", "OUT", "--target", "cpu", "--tuning", "IN"], "for the target cuda"),
        (["optimize", "IN", "OUT", "--tf32"], "for the target cuda"),
        (["check", "IN", "IN", "--target", "cuda"], "there is no CUDA GPU here"),
        (["bench", "IN", "IN", "--target", "cuda"], "there is no CUDA GPU here"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str],
    message: str,
    compiler: MadeUpCompiler,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    onnx.save(_model(), tmp_path / "IN")
    places = [str(tmp_path / word) if word in ("IN", "OUT", "src", "none") else word for word in arguments]
    status, _, err = run_cli(capsys, *places)
    assert status == 2 and err.startswith("onnxfuse: error: ") and message in err
    assert not (tmp_path / "OUT").exists()


def test_real_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = onnxfuse.optimize(_model(), "cuda", arch="sm_75", output=tmp_path / "m.onnx")
    found = bytes_attributes(fusing.fused_nodes(result.model)[0])
    assert found["cuda_sm_75"].startswith(b"\x7fELF")
    for kernel in Recipe.parse(found["cuda_recipe"].decode()).kernels:
        assert kernel.name.encode() in found["cuda_sm_75"] and kernel.name.encode() in found["cuda_ptx"]
    uses = [kernel.uses["sm_75"] for kernel in result.report.cuda.kernels.values()]  # type: ignore[union-attr]
    assert all(0 < use.registers <= 255 and use.spill_bytes == 0 for use in uses)
    assert {node.domain for node in onnx.load(tmp_path / "m.onnx").graph.node} == {"", DOMAIN}


def test_kernels_of_several_regions_are_compiled_together(
    compiler: MadeUpCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with many processors a model waits for the slowest kernel, not for all."""
    batches: list[int] = []
    compile_all = CompilerCache.compile

    def counted(self: CompilerCache, sources: Iterable[str], *more: Any) -> Any:
        sources = list(sources)
        batches.append(len(sources))
        return compile_all(self, sources, *more)

    monkeypatch.setattr(CompilerCache, "compile", counted)
    nodes = " ".join(
        f"a{i} = Relu(y{i}) b{i} = {op}(a{i}) y{i + 1} = MatMul(b{i}, w)" for i, op in enumerate(OPERATORS)
    )
    made = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> g (float[n, 4] y0, float[4, 4] w) => '
        f"(float[n, 4] y{len(OPERATORS)}) {{ {nodes} }}"
    )
    report = onnxfuse.optimize(made, "cuda", check=False, arch="sm_90").report
    assert len(report.fused) == len(OPERATORS)
    assert batches[0] == len(OPERATORS)
    assert len(compiler.calls) == len(OPERATORS)
