"""Sessions on the CUDA provider: what a model does not carry for the GPU here is compiled in memory."""

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

import onnxfuse
from onnxfuse.cuda import arch
from onnxfuse.cuda.compile import compiler as compilers
from onnxfuse.cuda.complete import complete, read
from onnxfuse.cuda.recipe import Recipe
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.kinds import PREFERS_NHWC
from onnxfuse.run import runtime, sessions
from tests.cuda.compilers import MadeUpCompiler
from tests.support import fusing

TEXT = "g (float[n, 8] x) => (float[n, 8] y) { a = Mul(x, k) b = Relu(a) y = Add(b, x) }"


@pytest.fixture
def bare(compiler: MadeUpCompiler, tmp_path: Path) -> Path:
    """A model with external data that was optimized for CUDA, without machine code."""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]>\n{TEXT}')
    model.graph.initializer.append(numpy_helper.from_array(np.arange(8, dtype=np.float32), "k"))
    (tmp_path / "models").mkdir()
    options = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    onnx.save(model, tmp_path / "models" / "original.onnx", **options)
    path = tmp_path / "models" / "bare.onnx"
    onnxfuse.optimize(tmp_path / "models" / "original.onnx", "cuda", embed=False, check=False, output=path)
    compiler.calls.clear()
    return path


def _attributes(model: onnx.ModelProto) -> dict[str, bytes]:
    (node,) = fusing.fused_nodes(model)
    return {attribute.name: attribute.s for attribute in node.attribute}


def test_what_is_missing_is_compiled(bare: Path, compiler: MadeUpCompiler) -> None:
    completed = complete(*read(str(bare)), ("sm_90",))
    assert completed is not None
    before, after = onnx.load(bare, load_external_data=False), onnx.load_model_from_string(completed)
    found = _attributes(after)
    assert set(found) == {"program", "cuda_recipe", "cuda_sm_90", "cuda_ptx"}
    assert found["cuda_recipe"] == _attributes(before)["cuda_recipe"]
    assert len(Recipe.parse(found["cuda_recipe"].decode()).kernels) > 1
    assert after.graph.initializer == before.graph.initializer
    assert complete(*read(completed), ("sm_90",)) is None


@pytest.mark.parametrize(
    ("carried", "device", "enough"),
    [
        ("sm_80", "sm_86", True),  # a later minor version
        ("sm_86", "sm_80", False),
        ("sm_80", "sm_90", True),  # PTX
        ("sm_90", "sm_86", False),
    ],
)
def test_code_that_runs_here_is_enough(
    carried: str, device: str, enough: bool, bare: Path, compiler: MadeUpCompiler
) -> None:
    embedded = onnxfuse.optimize(bare, "cuda", arch=carried, check=False).model.SerializeToString()
    assert (complete(*read(embedded, bare.parent), (device,)) is None) == enough


def test_what_needs_nothing_is_not_touched(bare: Path, compiler: MadeUpCompiler) -> None:
    assert complete(*read(str(bare)), ()) is None
    assert complete(*read(str(bare.with_name("original.onnx"))), ("sm_90",)) is None
    assert not compiler.calls


def test_fast_math_is_compiled_as_the_model_was_made(bare: Path, compiler: MadeUpCompiler) -> None:
    fast = onnxfuse.optimize(bare.with_name("original.onnx"), "cuda", embed=False, fast_math=True, check=False).model
    for model, option in ((fast, b"--use_fast_math"), (onnx.load(bare, load_external_data=False), b"--fmad=false")):
        completed = complete(*read(model.SerializeToString(), bare.parent), ("sm_90",))
        assert completed is not None
        assert option in _attributes(onnx.load_model_from_string(completed))["cuda_sm_90"]


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_session_gets_the_completed_model(
    bare: Path, compiler: MadeUpCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CUDA provider is not here, so ONNX Runtime falls back to the CPU, on which the model has to run too."""
    monkeypatch.setattr(arch, "devices", lambda: ("sm_90",))
    monkeypatch.setattr(runtime, "load_cuda_libraries", lambda: None)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = onnxfuse.InferenceSession(
        bare, options, providers=[("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"]
    )
    assert {name for _, name in compiler.calls} == {"sm_90"}
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    (y,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, np.maximum(x * np.arange(8, dtype=np.float32), 0) + x)


def test_a_session_on_the_cpu_compiles_nothing(
    bare: Path, compiler: MadeUpCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arch, "devices", lambda: ("sm_90",))
    onnxfuse.InferenceSession(str(bare), providers=["CPUExecutionProvider"])
    assert not compiler.calls


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_without_a_compiler_a_session_says_so_and_runs(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> MadeUpCompiler:
        raise OnnxfuseError("no CUDA compiler")

    monkeypatch.setattr(compilers, "find_compiler", none)
    monkeypatch.setattr(arch, "devices", lambda: ("sm_90",))
    monkeypatch.setattr(runtime, "load_cuda_libraries", lambda: None)
    with pytest.warns(UserWarning, match="not compiled for this GPU: no CUDA compiler"):
        session = onnxfuse.InferenceSession(bare, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones((1, 8), np.float32)})[0].shape == (1, 8)


def test_cuda_libraries_are_found_in_every_folder_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime looks beside itself, which its own folder of an installation to another place does not have."""
    ort_site, other_site = tmp_path / "ort", tmp_path / "other"
    for folder in ("ort/nvidia/cudnn/lib", "other/nvidia/cu13/lib", "other/nvidia/cudnn/lib", "other/nvidia/cu13/bin"):
        (tmp_path / folder).mkdir(parents=True)
    asked: list[str | None] = []
    package = types.SimpleNamespace(
        __file__=str(ort_site / "onnxruntime" / "__init__.py"),
        preload_dlls=lambda directory=None: print("not found") or asked.append(directory),
    )
    monkeypatch.setattr(sys, "path", [str(ort_site), str(other_site)])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    monkeypatch.setattr(runtime, "load_onnxruntime", lambda: package)
    monkeypatch.setattr(runtime, "why_no_cuda", lambda: "")
    runtime.load_cuda_libraries()
    assert asked == [str(other_site / "nvidia" / name / "lib") for name in ("cu13", "cudnn")] + [None]
    monkeypatch.setattr(runtime, "why_no_cuda", lambda: "there is no CUDA GPU here")
    runtime.load_cuda_libraries()
    assert len(asked) == 3


@pytest.mark.parametrize("tf32", [False, True])
def test_results_are_compared_without_tf32(tf32: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the CUDA provider takes for products of float32 unless told otherwise."""
    asked: list[list[tuple[str, dict[str, str]]]] = []

    def create(model: bytes, options: ort.SessionOptions, providers: list[tuple[str, dict[str, str]]]) -> object:
        asked.append(providers)
        names = [name for name, _ in providers]
        return types.SimpleNamespace(get_providers=lambda: names, get_outputs=list)

    package = types.SimpleNamespace(SessionOptions=ort.SessionOptions, InferenceSession=create)
    monkeypatch.setattr(sessions, "load_onnxruntime", lambda: package)
    monkeypatch.setattr(sessions, "load_cuda_libraries", lambda: None)
    sessions.Session(b"", providers=("CUDAExecutionProvider", "CPUExecutionProvider"), tf32=tf32)
    assert asked == [[("CUDAExecutionProvider", {} if tf32 else {"use_tf32": "0"}), ("CPUExecutionProvider", {})]]


@pytest.mark.parametrize(("reason", "first"), [("", "CUDAExecutionProvider"), ("no GPU", "CPUExecutionProvider")])
def test_providers_that_nobody_asked_for(reason: str, first: str, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of ONNX Runtime's package for GPUs, of which TensorRT cannot be loaded without libraries of its own."""
    asked: list[list[str]] = []
    everything = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(ort, "get_available_providers", lambda: everything)
    monkeypatch.setattr(ort, "InferenceSession", lambda model, sess_options, providers: asked.append(providers))
    monkeypatch.setattr(runtime, "load_cuda_libraries", lambda: None)
    monkeypatch.setattr(runtime, "why_no_cuda", lambda: reason)
    onnxfuse.InferenceSession(bare)
    assert asked == [everything[everything.index(first) :]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]}, [{"prefer_nhwc": "1"}, {}]),
        ({"providers": [("CUDAExecutionProvider", {"device_id": 0})]}, [{"prefer_nhwc": "1", "device_id": 0}]),
        ({"providers": [("CUDAExecutionProvider", {"prefer_nhwc": "0"})]}, [{"prefer_nhwc": "0"}]),
        (
            {"providers": ["CUDAExecutionProvider", "CPUExecutionProvider"], "provider_options": [{"x": 1}, {}]},
            [{"prefer_nhwc": "1", "x": 1}, {}],
        ),
        ({"providers": ["CUDAExecutionProvider"], "provider_options": [{}, {}]}, [{}, {}]),
    ],
    ids=["names", "options", "theirs", "apart", "too many"],
)
def test_a_model_written_for_prefer_nhwc_gets_it(
    arguments: dict[str, Any], expected: list[dict[str, Any]], bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load(bare)
    model.metadata_props.add(key=PREFERS_NHWC, value="1")
    monkeypatch.setattr(arch, "devices", lambda: ("sm_90",))
    monkeypatch.setattr(runtime, "load_cuda_libraries", lambda: None)
    monkeypatch.setattr("onnxfuse.cuda.complete.complete", lambda *_: None)
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(ort, "InferenceSession", lambda *_, **given: asked.append(given))
    onnxfuse.InferenceSession(model.SerializeToString(), **arguments)
    given = asked[0]
    names = [one if isinstance(one, str) else one[0] for one in given["providers"]]
    assert names == [one if isinstance(one, str) else one[0] for one in arguments["providers"]]
    assert given.get("provider_options", [one[1] for one in given["providers"] if len(one) == 2]) == expected
