"""``optimize`` for CUDA of models with convolutions, without a GPU: code in the nodes, report, options, errors."""

import json
import types
from hashlib import sha256
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

import onnxfuse
from onnxfuse.check.numerics import has_tf32, with_tf32
from onnxfuse.check.parity import PROVIDERS
from onnxfuse.cuda.complete import complete, read
from onnxfuse.cuda.conv.fitting import tilings_of
from onnxfuse.cuda.conv.node import fused_convolutions
from onnxfuse.cuda.conv.recipe import ConvRecipe
from onnxfuse.cuda.conv.tunings import OURS, TuningEntry, Tunings, key_of, write_tunings
from onnxfuse.planning.inspection import inspect
from onnxfuse.report.report_html import render
from onnxfuse.run import sessions
from onnxfuse.run.sessions import Session, SessionError
from onnxfuse.shapes.inference import infer
from tests.cuda.command_line import bytes_attributes, run_cli
from tests.cuda.compilers import MadeUpCompiler, nvrtc
from tests.support import fusing

TEXT = """<ir_version: 9, opset_import: ["" : 20]>
g (float[n, 8, h, w] x) => (float[n, 8, a, b] y, float[n, 8, a, b] z) {
    e = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w1, b1) r = HardSwish(e)
    d = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 8> (r, w3, b1) s = Sigmoid(d) t = Mul(d, s)
    y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (t, w1) o = Exp(y) z = Add(o, x) }"""


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("onnxfuse.cuda.arch", "onnxfuse.cuda.compile.compiler"):
        monkeypatch.setattr(f"{module}.devices", tuple)


def _model() -> onnx.ModelProto:
    model = parser.parse_model(TEXT)
    random = np.random.default_rng(0)
    for name, shape in (("w1", (8, 8, 3, 3)), ("b1", (8,)), ("w3", (8, 1, 3, 3))):
        model.graph.initializer.append(
            numpy_helper.from_array((0.2 * random.normal(size=shape)).astype(np.float32), name)
        )
    return model


def test_nodes_carry_a_recipe_and_code_and_the_model_runs_anywhere(compiler: MadeUpCompiler) -> None:
    result = onnxfuse.optimize(_model(), "cuda", arch="sm_90,sm_80")
    onnx.checker.check_model(result.model, full_check=True)
    conv, rest = fusing.fused_nodes(result.model)
    assert (conv.op_type, rest.op_type) == ("FusedConv", "FusedElementwise")
    found = bytes_attributes(conv)
    assert {"cuda_recipe", "cuda_sm_80", "cuda_sm_90", "cuda_ptx", "program", "prologue"} <= set(found)
    recipe = ConvRecipe.parse(found["cuda_recipe"].decode())
    assert [kernel.family for kernel in recipe.kernels] == ["depthwise", "depthwise", "any"]
    assert recipe.source in {sha256(source.encode()).hexdigest() for source, _ in compiler.calls}
    assert "--fmad=false" in found["cuda_sm_90"].decode()
    (function,) = (each for each in result.model.functions if each.name == "FusedConv")
    assert {attribute.name for attribute in conv.attribute} <= set(function.attribute)
    assert [node.op_type for node in function.node] == ["Add", "HardSwish", "Conv", "Add", "Sigmoid", "Mul"]
    feeds = {"x": np.random.default_rng(1).normal(size=(2, 8, 5, 6)).astype(np.float32)}
    expected = fusing.run(_model(), feeds, library=False)
    for library in (True, False):
        for actual, wanted in zip(fusing.run(result.model, feeds, library), expected, strict=True):
            np.testing.assert_allclose(actual, wanted, 1e-5, 1e-5)


def test_the_report_says_which_and_why(compiler: MadeUpCompiler) -> None:
    report = onnxfuse.optimize(_model(), "cuda", arch="sm_90").report
    data = json.loads(json.dumps(report.to_json()))
    assert [(item["node"], item["fused"]) for item in data["convolutions"]] == [
        ("e_Conv", False),
        ("d_Conv", True),
        ("y", False),
    ]
    region = next(region for region in data["fused"] if "Conv" in region["ops"])
    assert region["prologue"].endswith("hard_swish f32 2\noutput 3\n")
    assert (region["before"]["launches"], region["after"]["launches"]) == (6, 1)
    assert (region["cuda"]["family"], region["cuda"]["choice"]) == ("depthwise", "heuristic")
    assert region["cuda"]["tile"].count("x") == 2
    page = render(report)
    assert "Convolutions" in page and "depthwise: memory is what counts" in page and "cuDNN is hard to beat" in page
    assert report.before is not None and report.after is not None
    before, after = report.before.bytes_elementwise, report.after.bytes_elementwise
    assert set(before.terms) >= set(after.terms)  # convolutions, fused or not, are none of the elementwise nodes


def test_all_and_none(compiler: MadeUpCompiler) -> None:
    everything = onnxfuse.optimize(_model(), "cuda", arch="sm_90", conv="all")
    assert [node.op_type for node in everything.model.graph.node] == ["FusedConv", "FusedConv_2", "FusedConv_3"]
    assert {kernel.family for kernel in everything.report.cuda.kernels.values()} == {"depthwise", "gemm"}  # type: ignore[union-attr]
    nothing = onnxfuse.optimize(_model(), "cuda", arch="sm_90", conv="none").model
    assert "FusedConv" not in {node.op_type for node in nothing.graph.node}


def test_inspect_shows_choices_programs_and_the_source(
    compiler: MadeUpCompiler, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(_model(), tmp_path / "m.onnx")
    status, out, _ = run_cli(capsys, "inspect", "--target", "cuda", tmp_path / "m.onnx")
    assert status == 0 and "ONNX Runtime" in out and "cuDNN is hard to beat" in out and "depthwise: memory" in out
    for conv in ("auto", "all"):
        fused = tmp_path / f"{conv}.onnx"
        result = onnxfuse.optimize(_model(), "cuda", arch="sm_90", conv=conv, check=False, output=fused)
        for node in fusing.fused_nodes(result.model):
            status, out, _ = run_cli(capsys, "inspect", "--cuda", node.name, fused)
            recipe = bytes_attributes(node)["cuda_recipe"].decode()
            assert status == 0 and recipe.splitlines()[1].removeprefix("source ") in out.splitlines()[0]
            assert "__global__" in out
    name = fusing.fused_nodes(onnx.load(tmp_path / "auto.onnx"))[0].name
    assert inspect(tmp_path / "auto.onnx").program(name).count("onnxfuse 1\n") == 2
    status, out, _ = run_cli(capsys, "inspect", "--json", tmp_path / "auto.onnx")
    assert json.loads(out)["fused"][0]["prologue"]


def test_inspect_plans_by_the_options_that_optimize_has(
    compiler: MadeUpCompiler, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, tuning = tmp_path / "m.onnx", tmp_path / "tuning.json"
    onnx.save(_model(), path)
    loaded = onnxfuse.Model.from_proto(
        onnxfuse.optimize(_model(), "cuda", arch="sm_90", conv="all", tf32=True, check=False).model
    )
    infer(loaded)
    measured = Tunings()
    for fused in fused_convolutions(loaded):
        key = key_of(fused.case, "sm_90", False)
        measured.add(TuningEntry(key, "made-up GPU", "1.31.1", OURS, tilings_of(fused.case)[0], ()))
    write_tunings(tuning, measured)

    def planned(*options: str | Path) -> list[bool]:
        status, out, _ = run_cli(capsys, "inspect", "--json", "--target", "cuda", path, *options)
        assert status == 0
        return [item["fused"] for item in json.loads(out)["plan"]["convolutions"]]

    assert planned() == [False, True, False]
    assert planned("--conv", "all") == [True] * 3
    assert planned("--conv", "none") == [False] * 3
    assert planned("--tuning", tuning, "--arch", "sm_90") == [False, True, False]  # measured with TF32
    assert planned("--tuning", tuning, "--tf32", "--arch", "sm_90,sm_120") == [True] * 3
    assert planned("--tuning", tuning, "--tf32", "--arch", "sm_120") == [False, True, False]
    for options in (["--tuning", tmp_path / "none.json"], ["--arch", "sm_9"], ["--target", "cpu", "--tf32"]):
        status, _, err = run_cli(capsys, "inspect", "--target", "cuda", path, *options)
        assert status == 2 and "\n" not in err and err.startswith("onnxfuse: error: "), options


def test_a_damaged_node_is_one_line(
    compiler: MadeUpCompiler, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnxfuse.optimize(_model(), "cuda", arch="sm_90", check=False).model
    name = fusing.fused_nodes(model)[0].name
    damages = {"operator": b"Pool", "program": b"onnxfuse 1\n", "auto_pad": b"", "cuda_recipe": b"onnxfuse-conv 1\n"}
    for attribute, value in damages.items():
        damaged = onnx.ModelProto()
        damaged.CopyFrom(model)
        for entry in fusing.fused_nodes(damaged)[0].attribute:
            if entry.name == attribute:
                entry.s = value
        onnx.save(damaged, tmp_path / "damaged.onnx")
        status, _, err = run_cli(capsys, "inspect", "--cuda", name, tmp_path / "damaged.onnx")
        assert status == 2 and err.startswith("onnxfuse: error: "), attribute
        if attribute != "cuda_recipe":
            out = tmp_path / "out.onnx"
            arguments = [
                "optimize",
                tmp_path / "damaged.onnx",
                out,
                "--target",
                "cuda",
                "--arch",
                "sm_90",
                "--no-check",
            ]
            status, _, err = run_cli(capsys, *arguments)
            assert status == 2 and err.startswith(f"onnxfuse: error: fused convolution '{name}': "), err
            assert not out.exists()


def test_without_code_the_session_compiles(compiler: MadeUpCompiler, tmp_path: Path) -> None:
    bare = onnxfuse.optimize(_model(), "cuda", arch="sm_90", embed=False, check=False).model
    assert not any(name.startswith("cuda_sm") for name in bytes_attributes(fusing.fused_nodes(bare)[0]))
    completed = complete(*read(bare.SerializeToString()), ("sm_90",))
    assert completed is not None
    node = fusing.fused_nodes(onnx.load_model_from_string(completed))[0]
    assert "cuda_sm_90" in bytes_attributes(node)
    assert bytes_attributes(node)["cuda_recipe"] == bytes_attributes(fusing.fused_nodes(bare)[0])["cuda_recipe"]
    assert complete(*read(completed), ("sm_90",)) is None


def test_optimizing_twice_gives_code_for_other_architectures(compiler: MadeUpCompiler) -> None:
    first = onnxfuse.optimize(_model(), "cuda", arch="sm_90", check=False).model
    again = onnxfuse.optimize(first, "cuda", arch="sm_100", check=False)
    onnx.checker.check_model(again.model, full_check=True)
    found = bytes_attributes(fusing.fused_nodes(again.model)[0])
    assert "cuda_sm_100" in found and "cuda_sm_90" not in found
    assert [item.fused for item in again.report.convolutions] == [False, False]  # the fused one is none any more


def test_sources_are_kept(compiler: MadeUpCompiler, tmp_path: Path) -> None:
    model = onnxfuse.optimize(_model(), "cuda", arch="sm_90", check=False, keep_source=tmp_path / "src").model
    kept = {sha256(file.read_bytes()).hexdigest() for file in (tmp_path / "src").iterdir()}
    recipes = [bytes_attributes(node)["cuda_recipe"].decode() for node in fusing.fused_nodes(model)]
    assert kept == {recipe.splitlines()[1].removeprefix("source ") for recipe in recipes}


def test_real_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = onnxfuse.optimize(_model(), "cuda", arch="sm_75", conv="all", check=False)
    for node in fusing.fused_nodes(result.model):
        found = bytes_attributes(node)
        assert found["cuda_sm_75"].startswith(b"\x7fELF")
        for line in found["cuda_recipe"].decode().splitlines()[2:]:
            name = line.split(" ")[1].encode()
            assert name in found["cuda_sm_75"] and name in found["cuda_ptx"]
    uses = [kernel.uses["sm_75"] for kernel in result.report.cuda.kernels.values()]  # type: ignore[union-attr]
    assert all(0 < use.registers <= 255 and 0 < use.occupancy <= 1 for use in uses)


LIGHT = Path(onnx.__path__[0]) / "backend/test/data/light"


def test_a_real_model_on_the_cpu_is_what_it_was() -> None:
    """With convolutions in groups, depthwise ones, and a Gemm; the check before returning compares with and without
    library."""
    result = onnxfuse.optimize(LIGHT / "light_shufflenet.onnx", "cuda", arch="sm_90", embed=False, conv="all")
    assert sum(item.fused for item in result.report.convolutions) == 50
    assert result.report.describe_check().endswith("with and without the library: every output is identical.")


def test_models_are_compared_without_tf32_and_timed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA provider rounds to it by default, and exact kernels would seem to differ."""
    asked: list[object] = []

    class Refuses:
        def __init__(self, model: bytes, options: object, providers: object) -> None:
            asked.append(providers)
            raise RuntimeError("no GPU")

    fake = types.SimpleNamespace(SessionOptions=ort.SessionOptions, InferenceSession=Refuses)
    monkeypatch.setattr(sessions, "load_onnxruntime", lambda: fake)
    monkeypatch.setattr(sessions, "load_cuda_libraries", lambda: None)
    for tf32 in (False, True):
        with pytest.raises(SessionError, match="no GPU"):
            Session(b"", providers=PROVIDERS["cuda"], tf32=tf32)
    cuda, cpu = PROVIDERS["cuda"]
    assert asked == [[(cuda, {"use_tf32": "0"}), (cpu, {})], [(cuda, {}), (cpu, {})]]


def test_tensor_cores_are_for_float32_only_where_tf32_is_allowed(compiler: MadeUpCompiler, tmp_path: Path) -> None:
    for tf32, engine, other in ((False, "SimtEngine<", "TensorEngine<"), (True, "TensorEngine<", "SimtEngine<")):
        out = tmp_path / f"{tf32}.onnx"
        options = {"arch": "sm_90", "conv": "all", "tf32": tf32, "check": False}
        bare = onnxfuse.optimize(_model(), "cuda", embed=False, output=out, **options).model  # type: ignore[arg-type]
        sources = [inspect(out).cuda_source(node.name) for node in fusing.fused_nodes(bare)]
        assert any(f"using Engine = {engine}" in source for source in sources)
        assert not any(f"using Engine = {other}" in source for source in sources)
        assert has_tf32(bare) == tf32
        completed = complete(*read(str(out)), ("sm_90",))
        assert completed is not None
        for node, again in zip(
            fusing.fused_nodes(bare), fusing.fused_nodes(onnx.load_model_from_string(completed)), strict=True
        ):
            assert bytes_attributes(node)["cuda_recipe"] == bytes_attributes(again)["cuda_recipe"]


def test_with_tf32_models_are_compared_as_those_of_float16() -> None:
    assert with_tf32(None) == with_tf32(np.dtype(np.float32)) == np.float16
    assert with_tf32(np.dtype(ml_dtypes.bfloat16)) == ml_dtypes.bfloat16
