"""scripts/gpu_suite.py without a GPU: its chains, its report, what it does when things fail, and a dry run."""

import inspect
import json
import math
import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gpu_chains
import gpu_conv_parity
import gpu_convolutions
import gpu_half
import gpu_kernels
import gpu_limits
import gpu_machine
import gpu_models
import gpu_parity
import gpu_peers
import gpu_report
import gpu_sessions
import gpu_suite
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from gpu_chains import CHAINS, ArrayOps, Chain

import onnxfuse
from onnxfuse import runtime
from onnxfuse.cuda.access import choose, classify
from onnxfuse.cuda.compiled import Compiled
from onnxfuse.cuda.pycuda_tools import open_gpu
from onnxfuse.cuda.renderer import render
from onnxfuse.errors import OnnxfuseError
from onnxfuse.program import reference
from tests.cuda.compilers import MadeUpCompiler
from tests.cuda.emulator import Emulation
from tests.cuda.fake_pycuda import FakeGpu, install
from tests.cuda.stand_in import AVAILABLE, REASON

SUITE = Path(gpu_suite.__file__)
ERF = np.vectorize(math.erf, otypes=[np.float32])


def _numpy(chain: Chain, arrays: list[np.ndarray], dtype: str) -> tuple[np.ndarray, ...]:
    result = chain.build(ArrayOps(np, np.dtype(dtype), {"erf": lambda a: ERF(a).astype(dtype)}), *arrays)
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain.name)
def test_a_chain_is_the_same_for_every_system_and_one_fused_node(chain: Chain) -> None:
    full = gpu_chains.full_shape(0.2, "float32")
    model = gpu_chains.onnx_model(chain, "float32")
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = session.run(None, gpu_chains.feeds(chain, full, "float32"))
    arrays = gpu_chains.make_inputs(chain, full, "float32")
    constants = gpu_chains.make_inputs(chain, (1, *full[1:]), "float32")
    for index, spec in enumerate(chain.inputs):
        if spec.shape in ("channel", "row"):
            arrays[index] = constants[index]
    expected = _numpy(chain, arrays, "float32")
    for actual, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, 1e-4, 1e-5)
    moved = sum(array.nbytes for array in (*arrays, *expected))
    assert gpu_chains.bytes_moved(chain, full, "float32") == moved
    for dtype in ("float32", "float16"):
        fused = onnxfuse.optimize(gpu_chains.onnx_model(chain, dtype), "cuda", embed=False, check=False).model
        assert [node.domain for node in fused.graph.node] == ["onnxfuse"]


@pytest.mark.parametrize("dtype", gpu_convolutions.DTYPES)
@pytest.mark.parametrize("layer", gpu_convolutions.LAYERS[::4], ids=lambda layer: layer.name)
def test_a_layer_is_one_fused_node_and_runs(layer: gpu_convolutions.Layer, dtype: str) -> None:
    small = replace(layer, size=(8, 12))
    model = gpu_convolutions.layer_model(small, 1, dtype)
    onnx.checker.check_model(model, full_check=True)
    feeds = gpu_convolutions.feeds(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for result in session.run(None, feeds):
        assert result.shape == (1, layer.channels[1], *small.output_size) and result.dtype == dtype
    fused = onnxfuse.optimize(model, "cuda", embed=False, check=False, conv="all").model
    assert [node.op_type for node in fused.graph.node] == ["FusedConv"] * gpu_convolutions.COPIES


def test_the_layers_are_those_of_the_table() -> None:
    jobs = [job for _, job in gpu_convolutions.jobs()]
    assert len({job.name for job in jobs}) == len(jobs) == len(gpu_convolutions.LAYERS) * 4
    kinds = {(job.kind, job.network.split(" ")[0]) for job in jobs}
    assert kinds == {
        *(("depthwise", "MobileNetV3"), ("depthwise", "PP-OCR"), ("pointwise", "MobileNetV3"), ("pointwise", "PP-OCR")),
        ("dense", "ResNet-50"),
    }
    assert {layer.kernel for layer in gpu_convolutions.LAYERS if layer.kind == "depthwise"} == {3, 5}


@pytest.mark.parametrize(
    ("channels", "size", "batch", "dtype", "count"),
    [
        ((16, 32), (8, 8), 1, "float32", 8),  # small: as often as any
        ((16, 64), (512, 512), 1, "float32", 4),  # 64 MiB a tensor, and 256 MiB in all
        ((16, 64), (512, 512), 1, "float16", 8),
        ((64, 16), (512, 512), 16, "float32", 1),  # more than that once
    ],
)
def test_large_layers_are_in_their_model_fewer_times(
    channels: tuple[int, int], size: tuple[int, int], batch: int, dtype: str, count: int
) -> None:
    layer = replace(gpu_convolutions.LAYERS[0], channels=channels, size=size)
    assert gpu_convolutions.copies(layer, batch, dtype) == count


def test_a_layer_is_measured_and_what_fails_is_written_down() -> None:
    layer, job = next(gpu_convolutions.jobs())
    small = replace(layer, size=(8, 8), channels=(4, 4))
    gpu_convolutions.measure(small, job, on_gpu=False)
    assert set(job.seconds) == {"ort", "tail", "fused"} and not job.errors
    assert job.choice in ("tail", "fused") and job.ratio is not None
    _, broken = next(gpu_convolutions.jobs())
    gpu_convolutions.measure(replace(small, tail="NoSuchOperator"), broken, on_gpu=False)
    assert set(broken.errors) == {"ort", "tail", "fused"} and not broken.seconds and broken.ratio is None


def test_the_kernels_of_all_layers_are_compiled_at_once(
    compiler: MadeUpCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = [(layer, job) for layer, job in gpu_convolutions.jobs() if layer.kind == "depthwise"][:3]
    monkeypatch.setattr(gpu_convolutions, "measure", lambda layer, job, tune: pytest.fail("it is late"))
    gpu_convolutions.measure_all(todo, -math.inf, lambda message: None)
    assert len({source for source, _ in compiler.calls if "convolve_depthwise" in source}) == 3


def test_convolutions_of_the_parity_are_those_of_the_emulation() -> None:
    cases = list(gpu_conv_parity.conv_cases(range(2)))
    assert {case.name.split(" ")[0] for case in cases} >= {"any", "gemm", "depthwise", "direct"}
    assert list(gpu_conv_parity.check_convolutions(cases, on_gpu=False)) == []
    for case in cases[:4]:
        expected = case.expected()
        assert {result.shape for result in expected} == {case.fused.conv.output_shape(case.fused.x_shape)}


def test_convolutions_run_with_their_code_and_one_that_fails_is_found(
    compiler: MadeUpCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = list(gpu_conv_parity.conv_cases(range(3), ("gemm",)))

    def run(session: onnx.ModelProto, arrays: list[np.ndarray]) -> list[np.ndarray]:
        names = [node.name for node in session.graph.node]
        for node in session.graph.node:
            assert {"cuda_recipe", "cuda_ptx", "program"} <= {attribute.name for attribute in node.attribute}
        if "gemm 1" in names:
            raise RuntimeError("launch failed")
        results = [result for case in cases if case.name in names for result in case.expected()]
        return [result + 1 for result in results] if names == ["gemm 2"] else results

    monkeypatch.setattr(gpu_conv_parity, "new_session", lambda model, library: onnx.load_model_from_string(model))
    monkeypatch.setattr(gpu_conv_parity, "run", run)
    verdicts = {verdict.name: verdict for verdict in gpu_conv_parity.check_convolutions(cases, on_gpu=True)}
    assert [verdict.ok for verdict in verdicts.values()] == [True, False, False]
    assert "launch failed" in verdicts["gemm 1"].detail and "other bits" in verdicts["gemm 2"].detail


def test_a_model_in_half_precision_runs(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2, 4, 4] x) => (float[1, 2, 8, 8] y)'
        " <float[2, 2, 1, 1] w = {1, 2, 3, 1e6}, float[4] s = {1, 1, 2, 2}, float[0] r = {}>"
        " { c = Conv (x, w) k = Constant <value = float {0.5}> () m = Mul (c, k) i = Cast <to = 7> (m)"
        " f = Cast <to = 1> (i) a = Add (m, f) y = Resize (a, r, s) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    half = onnx.load(gpu_half.half_model(tmp_path / "m.onnx", tmp_path / "half.onnx"))
    onnx.checker.check_model(half, full_check=True)
    feeds = gpu_half.half_values({"x": np.ones((1, 2, 4, 4), np.float32)})
    session = ort.InferenceSession(half.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, feeds)
    assert result.dtype == np.float16 and np.isfinite(result[0, 0]).all() and result[0, 0, 0, 0] == 2.5


def test_there_are_ten_chains_and_every_size() -> None:
    jobs = list(gpu_kernels.jobs())
    assert len(CHAINS) == 10 and len({(job.chain, job.dtype, job.megabytes) for job in jobs}) == 10 * 2 * 4
    assert gpu_chains.TEN_OPS in {chain.name for chain in CHAINS}
    assert [job.megabytes for job in jobs[::20]] == [64, 512, 16, 1]  # the most telling first
    for job in jobs:
        full = gpu_chains.full_shape(job.megabytes, job.dtype)
        assert math.prod(full) * np.dtype(job.dtype).itemsize == pytest.approx(job.megabytes * 1e6, rel=0.04)


@pytest.mark.parametrize("chain", CHAINS[::3], ids=lambda chain: chain.name)
def test_a_dry_run_tries_the_sessions_of_a_chain(chain: Chain, compiler: MadeUpCompiler) -> None:
    gpu_kernels.try_on_cpu(chain)


def test_chains_are_compiled_at_once(compiler: MadeUpCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one process a kernel and the planning of the next do not take turns."""
    monkeypatch.setattr("onnxfuse.cuda.arch.devices", lambda: ("sm_90",))
    gpu_kernels._compile_chains()
    assert len(compiler.calls) == 20
    gpu_kernels.prepare(CHAINS[1], "float16")
    assert len(compiler.calls) == 20


class _TextCompiler(MadeUpCompiler):
    """Its machine code is the source."""

    def compile(self, source: str, architecture: str, options: tuple[str, ...]) -> Compiled:
        compiled = super().compile(source, architecture, options)
        return Compiled(source.encode(), compiled.ptx, compiled.resources)


@pytest.mark.skipif(not AVAILABLE, reason=REASON)
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_kernels_are_timed_and_what_fails_is_written_down(
    compiler: MadeUpCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = FakeGpu()
    gpu.cost = lambda name: 1e-3
    install(monkeypatch, gpu)
    monkeypatch.setattr("onnxfuse.cuda.compiler.find_compiler", _TextCompiler)
    monkeypatch.setattr(gpu_kernels, "_driver", lambda: None)
    jobs = [job for job in gpu_kernels.jobs() if job.chain in ("BatchNorm, relu", "three outputs")][-2:]
    jobs[0].megabytes = jobs[1].megabytes = 0.1
    gpu_kernels.measure_all(jobs, math.inf, lambda message: None)
    for job in jobs:
        assert "kernel" not in job.errors, job.errors
        assert job.seconds["kernel"] == pytest.approx(1e-3) and job.seconds["copy"] > 0
        assert set(job.errors) == {"ort", "onnxfuse"}  # for want of the CUDA provider
    gpu_kernels.measure_all(jobs, -math.inf, lambda message: pytest.fail("it is late"))
    assert any("_v4" in name or "_v8" in name for name in gpu.launched)


class _All(set[str]):
    def __contains__(self, item: object) -> bool:
        return True


@pytest.mark.skipif(not AVAILABLE, reason=REASON)
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_kernel_with_wrong_results_is_an_error_and_not_timed(
    compiler: MadeUpCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = FakeGpu()
    gpu.wrong = _All()
    install(monkeypatch, gpu)
    monkeypatch.setattr("onnxfuse.cuda.compiler.find_compiler", _TextCompiler)
    monkeypatch.setattr(gpu_kernels, "_driver", lambda: None)
    jobs = [job for job in gpu_kernels.jobs() if job.chain == "GELU"][:1]
    jobs[0].megabytes = 0.1
    gpu_kernels.measure_all(jobs, math.inf, lambda message: None)
    assert not jobs[0].seconds and "wrong results: 1 of " in jobs[0].errors["kernel"]
    monkeypatch.setattr(gpu_kernels, "measure_all", lambda *_: None)
    monkeypatch.setattr(gpu_kernels, "measure_peer", lambda system, todo, limit: len(todo))
    monkeypatch.setattr(gpu_kernels, "jobs", lambda: iter(jobs))
    results = gpu_report.Results()
    gpu_suite._kernels(results, [], math.inf, on_gpu=True)
    assert results.errors == ["kernels: 1 of 1 fail, or give wrong results"]


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain.name)
def test_results_of_a_chain_are_held_against_numpy(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of ONNX Runtime, as it is and with the fused node, in float16 too: on the CPU, which rounds as a GPU."""

    class OnCpu(gpu_sessions.BoundSession):
        def __init__(self, model: bytes, feeds: Any, *, library: bool, graph: bool) -> None:
            super().__init__(model, feeds, library=library, on_gpu=False)

    monkeypatch.setattr(gpu_kernels, "BoundSession", OnCpu)
    for dtype in gpu_kernels.DTYPES:
        original = gpu_chains.onnx_model(chain, dtype)
        fused = onnxfuse.optimize(original, "cuda", embed=False, check=False).model
        job = gpu_kernels.Measured(chain.name, dtype, 0.3, 0)
        ready = gpu_kernels._Ready(chain, original, fused)
        gpu_kernels._session(None, ready, job, "ort")
        gpu_kernels._session(None, ready, job, "onnxfuse")
        assert set(job.seconds) == {"ort", "onnxfuse"} and ready.unchecked == {"kernel"}


class _Driver:
    """A driver whose launches of a graph take 0.2 ms; the call ``fails`` gives an error."""

    def __init__(self, gpu: FakeGpu, fails: str = "") -> None:
        self.calls: list[str] = []
        self._gpu, self._fails = gpu, fails

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object) -> int:
            self.calls.append(name)
            if name == "cuGraphLaunch":
                self._gpu.now += 2e-4
            return 700 if name == self._fails else 0

        return call


class _Stream:
    handle = 7

    def synchronize(self) -> None:
        pass


def test_with_a_driver_launches_are_captured_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu()
    install(monkeypatch, gpu)
    driver = _Driver(gpu)
    monkeypatch.setattr(gpu_kernels, "_driver", lambda: driver)
    with open_gpu() as opened:
        opened.driver.Stream = _Stream
        launched: list[object] = []
        assert gpu_kernels.graph_seconds(opened, launched.append) == pytest.approx(1e-5)
    assert len(launched) == 21 and all(isinstance(stream, _Stream) for stream in launched)
    assert driver.calls[:3] == ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"]
    assert driver.calls[-2:] == ["cuGraphExecDestroy", "cuGraphDestroy"]


@pytest.mark.parametrize(
    "name",
    [
        "cuStreamBeginCapture_v2",
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
        "cuGraphExecDestroy",
        "cuGraphDestroy",
    ],
)
def test_a_call_of_the_driver_that_fails_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu()
    install(monkeypatch, gpu)
    monkeypatch.setattr(gpu_kernels, "_driver", lambda: _Driver(gpu, name))
    with open_gpu() as opened:
        opened.driver.Stream = _Stream
        with pytest.raises(RuntimeError, match=f"^{name} fails with error 700 of CUDA$"):
            gpu_kernels.graph_seconds(opened, lambda stream: None)


def test_a_peer_answers_jobs_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(chain: Chain, arrays: Any, dtype: str) -> tuple[Any, Any, int]:
        return lambda: _numpy(chain, arrays, dtype), lambda: None, 2

    monkeypatch.setitem(gpu_peers.SYSTEMS, "numpy", prepare)
    job = {"chain": "GELU", "dtype": "float32", "megabytes": 0.1}
    assert gpu_peers.measure("numpy", job)["seconds"] > 0
    assert "StopIteration" in gpu_peers.measure("numpy", {**job, "chain": "none"})["error"]


def test_torch_compiles_each_job_anew_and_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its limit for one code object is reached after eight jobs, and the rest run as they are."""
    calls: list[Any] = []
    torch: Any = types.ModuleType("torch")
    torch.compiler = types.SimpleNamespace(reset=lambda: calls.append("reset"))
    torch._dynamo = types.SimpleNamespace(config=types.SimpleNamespace(fail_on_recompile_limit_hit=False))
    torch.float32 = np.dtype("float32")
    torch.relu, torch.clamp, torch.sigmoid, torch.erf = abs, np.clip, np.tanh, ERF
    torch.from_numpy = lambda array: types.SimpleNamespace(cuda=lambda: array)

    def compile_(function: Any, **options: Any) -> Any:
        calls.append(options)
        return function

    def capture(graph: object) -> None:
        raise RuntimeError("not captured")

    torch.compile = compile_
    torch.cuda = types.SimpleNamespace(synchronize=lambda: None, CUDAGraph=object, graph=capture)
    monkeypatch.setitem(sys.modules, "torch", torch)
    for _ in range(2):
        answer = gpu_peers.measure("torch", {"chain": "GELU", "dtype": "float32", "megabytes": 0.1})
        assert answer["seconds"] > 0
    assert calls == ["reset", {"dynamic": False, "fullgraph": True}] * 2
    assert torch._dynamo.config.fail_on_recompile_limit_hit is True


def test_a_peer_that_is_not_installed_is_an_error_of_each_job() -> None:
    missing = [name for name in gpu_kernels.PEERS if not _is_installed(name)]
    if not missing:
        pytest.skip("all of them are installed")
    jobs = list(gpu_kernels.jobs())[-2:]
    for job in jobs:
        job.megabytes = 0.1
    gpu_kernels.measure_peer(missing[0], jobs, 60)
    assert ["No module named" in job.errors[missing[0]] for job in jobs] == [True, True], [job.errors for job in jobs]
    late = list(gpu_kernels.jobs())[:3]
    assert gpu_kernels.measure_peer(missing[0], late, 0) == 0
    assert not any(job.errors for job in late)


def _script(folder: Path, text: str) -> str:
    path = folder / "script"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_what_a_peer_says_when_it_ends_is_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", _script(tmp_path, "echo 'no such GPU' >&2; exit 3"))
    jobs = list(gpu_kernels.jobs())[:2]
    assert gpu_kernels.measure_peer("torch", jobs, 60) == 1
    assert jobs[0].errors == {"torch": "its process ended with status 3: no such GPU"} and not jobs[1].errors


def test_what_a_peer_prints_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cupy.py").write_text("import os\nprint('hello')\nos.write(1, b'hello')\nraise ImportError('broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    jobs = list(gpu_kernels.jobs())[-1:]
    assert gpu_kernels.measure_peer("cupy", jobs, 60) == 1
    assert jobs[0].errors == {"cupy": "ImportError: broken"}


def test_what_a_peer_has_no_time_for_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_kernels, "measure_all", lambda *_: None)
    monkeypatch.setattr(gpu_kernels, "measure_peer", lambda system, todo, limit: 80 if system == "jax" else 7)
    results = gpu_report.Results()
    gpu_suite._kernels(results, [], math.inf, on_gpu=True)
    assert results.errors == ["kernels: out of time for 80 of 80"]
    assert results.notes == [f"kernels: {system} has 7 of 80: its time was over" for system in ("cupy", "torch")]
    assert "## Left out\n\n- kernels: cupy has 7 of 80" in gpu_report.markdown(results)


def test_compiling_ahead_leaves_no_process_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = subprocess.Popen
    monkeypatch.setattr(
        gpu_kernels.subprocess, "Popen", lambda *given, **named: started.append(start(*given, **named)) or started[-1]
    )
    with gpu_kernels.compiling_ahead():
        assert started[0].poll() is None
    assert started[0].returncode is not None


@pytest.mark.parametrize(
    ("says", "status", "found"),
    [
        ("echo '= ERROR SUMMARY: 0 errors'", 0, "exit status 0: ERROR SUMMARY: 0 errors"),
        ("echo '= ERROR SUMMARY: 3 errors'", 9, "exit status 9: ERROR SUMMARY: 3 errors; it said nothing"),
        ("echo 'add f32: wrong' >&2", 1, "exit status 1: no summary; add f32: wrong"),
    ],
)
def test_a_sanitizer_that_fails_is_an_error(
    says: str, status: int, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = _script(tmp_path, f"{says}; exit {status}")
    monkeypatch.setattr(gpu_suite.shutil, "which", lambda name: tool)
    monkeypatch.setattr(gpu_suite, "_comparisons", lambda *_: iter(()))
    results = gpu_report.Results()
    gpu_suite._check(results, [], [], time.monotonic() + 600, on_gpu=True)
    assert results.sanitizer == found
    assert results.errors == ([f"parity: compute-sanitizer: {found}"] if status else [])


def _is_installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def test_programs_of_the_parity_are_those_of_the_emulation_and_agree_on_the_cpu() -> None:
    cases = [case for case in gpu_parity.program_cases(["f16"], 6) if "bf16" not in case.name]
    assert {"casts f16", "GELU f16", "random 5"} < {case.name for case in cases}
    verdicts = list(gpu_parity.check_programs(cases, on_gpu=False))
    assert len(verdicts) == len(cases)
    assert [verdict for verdict in verdicts if not verdict.ok] == []


@pytest.mark.parametrize("dtype", ["f64", "i64", "u64"])
def test_the_parity_finds_the_emulated_operators_right_and_a_wrong_one_wrong(dtype: str) -> None:
    """In these types the kernels and the reference are both rounded where functions are."""
    cases = [case for case in gpu_parity.program_cases([dtype], 0) if case.name.startswith(f"operators {dtype}")]
    layouts = [classify(case.program, [array.shape for array in case.inputs]) for case in cases]
    sources = [render(case.program, [layout.access]) for case, layout in zip(cases, layouts, strict=True)]
    emulation = Emulation(sources)
    for case, layout, source in zip(cases, layouts, sources, strict=True):
        expected = reference.run(case.program, case.inputs)
        results = emulation.run(source.kernels[-1], case.program, layout, case.inputs, 4)
        shaped = [result.reshape(wanted.shape) for result, wanted in zip(results, expected, strict=True)]
        assert gpu_parity._compare(shaped, expected, case) == (True, "")
        shaped[-1] = shaped[-1].copy()
        shaped[-1][..., -1] += np.ones((), shaped[-1].dtype)
        assert not gpu_parity._compare(shaped, expected, case)[0]


def test_inputs_have_special_values_and_what_is_exact_no_slack() -> None:
    cases = {case.name: case for case in gpu_parity.program_cases(["f16"], 0)}
    first = cases["operators f16 0"]
    (x,) = (array for array in first.inputs[:1])
    wide = x.astype(np.float32)
    assert np.isnan(x).any() and np.isinf(x).any() and (np.abs(wide) == 65504).any()
    assert (np.signbit(x) & (x == 0)).any() and ((wide != 0) & (np.abs(wide) < 2**-14)).any()
    assert set(first.ulps) == {0, gpu_parity.FUNCTION_ULP + gpu_parity.REFERENCE_ULP}
    assert len(first.ulps) == len(first.program.outputs)
    assert all(np.isfinite(array).all() for array in cases["GELU f16"].inputs)


def test_without_slack_the_zeros_are_told_apart_and_nans_are_not() -> None:
    case = next(case for case in gpu_parity.large_cases(1) if case.name == "large f32")
    left = np.array([0.0, np.nan, 1.0], np.float32)
    right = np.array([-0.0, -np.nan, 1.0], np.float32)
    assert gpu_parity._compare([left], [left], case) == (True, "")
    assert not gpu_parity._compare([left], [right], case)[0]
    assert gpu_parity._compare([left[1:]], [right[1:]], case) == (True, "")


def test_large_cases_have_every_vector_and_agree_on_the_cpu() -> None:
    cases = list(gpu_parity.large_cases(1 << 10))
    vectors = set()
    for case in cases:
        layout = classify(case.program, [array.shape for array in case.inputs])
        kernels = render(case.program, [layout.access]).kernels
        kernel = choose(kernels, layout, [0] * len(layout.operands))
        vectors.add(kernel.vector)
        assert kernel.unroll > 1 and layout.count // kernel.vector >= 1 << 10
    assert vectors == {1, 2, 4, 8, 16}
    assert all(verdict.ok for verdict in gpu_parity.check_programs(cases, on_gpu=False))


def test_of_a_giant_case_some_rows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    case = gpu_parity.giant_case(50, 7)
    assert case.rows == (0, 1, 25, 48, 49) and [len(array) for array in case.expected()] == [5]
    assert [verdict.ok for verdict in gpu_parity.check_programs([case], on_gpu=False)] == [True]
    wrong = case.inputs[0] + case.inputs[1]
    wrong[48, 3] += 1
    assert not gpu_parity._compare([case.compared(wrong)], case.expected(), case)[0]
    rows, columns = inspect.signature(gpu_parity.giant_case).parameters.values()
    assert rows.default * columns.default > 1 << 31


def test_a_machine_of_little_memory_leaves_the_giant_case_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_machine, "_gpu_memory", lambda: 8_000_000_000)
    monkeypatch.setattr(gpu_parity, "giant_case", lambda: pytest.fail("there is no room for it"))
    monkeypatch.setattr(gpu_parity, "check_programs", lambda *_, **__: iter(()))
    monkeypatch.setattr(gpu_parity, "large_cases", lambda: iter(()))
    results = gpu_report.Results()
    assert list(gpu_suite._check_large(results, math.inf)) == []
    (note,) = results.notes
    assert note == "parity: a program of more than 2^31 elements: the GPU has 8 GB of memory, and it takes 16"
    monkeypatch.setattr(gpu_suite, "why_nothing_giant", lambda: "")
    assert list(gpu_suite._check_large(results, -math.inf)) == [] and "too little time" in results.notes[1]


def test_scalars_stay_scalars_where_inputs_are_bound() -> None:
    cases = [case for case in gpu_parity.program_cases([], 40) if case.name.startswith("random")]
    scalars = [case for case in cases if case.inputs[0].shape == () and not case.has_bf16]
    assert len(scalars) > 1
    verdicts = list(gpu_parity.check_programs(scalars, on_gpu=False, graph=True))
    assert [verdict for verdict in verdicts if not verdict.ok] == []


def test_a_program_that_fails_is_found_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [case for case in gpu_parity.program_cases([], 4) if case.name.startswith("random")]
    original = gpu_parity._run

    def run(batch: Any, code: bytes, on_gpu: bool, graph: bool) -> list[np.ndarray]:
        if cases[1] in batch:
            raise RuntimeError("launch failed")
        results = original(batch, code, on_gpu, graph)
        return [np.zeros_like(result) + 77 for result in results] if batch == [cases[2]] else results

    monkeypatch.setattr(gpu_parity, "_run", run)
    verdicts = {verdict.name: verdict for verdict in gpu_parity.check_programs(cases, on_gpu=False)}
    assert {name for name, verdict in verdicts.items() if not verdict.ok} == {cases[1].name, cases[2].name}
    assert "launch failed" in verdicts[cases[1].name].detail and "output 0" in verdicts[cases[2].name].detail


def _results() -> gpu_report.Results:
    """Made-up measurements, some of which miss their targets."""
    results = gpu_report.Results(machine={"GPU": "made-up | GPU"}, seconds=12.0)
    results.kernels = list(gpu_kernels.jobs())
    for job in results.kernels:
        job.seconds = {"copy": 0.95e-4, "kernel": 1e-4, "torch": 1.1e-4, "jax": 0.9e-4, "ort": 9e-4, "onnxfuse": 1.5e-4}
    results.kernels[0].errors["cupy"] = "No module named 'cupy'"
    seconds = {"ort": 2e-3, "onnxfuse": 1e-3, "ort, graph": 1.5e-3, "onnxfuse, graph": 1e-3}
    results.models = [
        gpu_models.ModelTimes(
            "ch_det",
            1,
            {},
            "float32",
            dict(seconds),
            launches={"ort": 90, "onnxfuse": 30},
            copies={"ort": 2, "onnxfuse": 3},
            elementwise={"ort": 60, "onnxfuse": 15},
        ),
        gpu_models.ModelTimes(
            "other", 16, {}, seconds={"ort": 1e-3, "onnxfuse": 2e-3}, errors={"ort, graph": "not captured"}
        ),
        gpu_models.ModelTimes("yolo", 1, {}, "float16", {"ort": 1.8e-3, "onnxfuse": 2e-3}),
    ]
    ours = {gpu_convolutions.DEPTHWISE: 1e-5, gpu_convolutions.POINTWISE: 2e-5, gpu_convolutions.DENSE: 3e-5}
    for layer, job in gpu_convolutions.jobs():
        job.seconds = {"ort": 2.4e-5, "tail": 2.2e-5, "fused": ours[layer.kind]}
        results.convolutions.append(job)
    results.convolutions[-1].seconds["ort"] = 2.1e-5
    results.convolutions[0].errors["ort, prefer_nhwc=1"] = "no such kernel"
    results.parity = [gpu_parity.Verdict("program", "add f32", True), gpu_parity.Verdict("model", "other", False, "x")]
    results.sanitizer = "exit status 0: ERROR SUMMARY: 0 errors"
    return results


def test_targets_are_held_against_the_worst() -> None:
    found = {target.name: target for target in gpu_report.targets(_results())}
    assert [(target.measured, target.met) for target in found.values()] == [
        (pytest.approx(0.95), True),
        (pytest.approx(1.1), True),
        (pytest.approx(0.9), False),
        (pytest.approx(6), True),
        (pytest.approx(1.5), True),
        (pytest.approx(0.5), False),
        (pytest.approx(2.4), True),
        (pytest.approx(1.2), True),
        (pytest.approx(1.0818, abs=1e-4), True),
        (pytest.approx(2.1 / 2.2), False),
        (pytest.approx((2 * 0.9) ** 0.5), True),
        (pytest.approx(0.9), False),
        (pytest.approx(0.25), True),
        (1.0, False),
        (1.0, False),
    ]
    assert found["any zoo model against ORT CUDA"].where == "other, batch 16"
    assert found["convolutional models, batch 1"].where == "yolo, float16"
    assert found["3x3 dense convolutions with tail"].where.endswith("512 at 7x7, Relu, float16, batch 16")


def test_nothing_measured_is_said_to_be_nothing_measured() -> None:
    results = gpu_report.Results(kernels=list(gpu_kernels.jobs()))
    results.convolutions = [job for _, job in gpu_convolutions.jobs()]
    assert all(target.measured is None and target.met is None for target in gpu_report.targets(results))
    assert gpu_report.markdown(results).count("not measured") == len(gpu_report.targets(results))


def test_the_report_is_json_markdown_and_plots(tmp_path: Path) -> None:
    gpu_report.write(_results(), tmp_path / "new")
    data = json.loads((tmp_path / "new" / "results.json").read_text())
    assert len(data["kernels"]) == 80 and data["targets"][0]["met"] is True
    text = (tmp_path / "new" / "results.md").read_text()
    assert "**missed**" in text and "No module named 'cupy'" in text and "90 → 30" in text
    assert "no such kernel" in text and "| PP-OCR det | depthwise 5x5, 256 at 40x40, HardSwish |" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") - line.count("\\|") for line in lines if "made-up" not in line}) <= 5
    for name in ("bandwidth.svg", "models.svg"):
        assert f"![{name}]({name})" in text
        ElementTree.parse(tmp_path / "new" / name)


def test_a_dry_run_measures_nothing_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(gpu_chains.onnx_model(CHAINS[0], "float32"), tmp_path / "chain.onnx")
    models = [(tmp_path / "chain.onnx", {"x0": np.ones((1, 64, 256), np.float32)})]
    monkeypatch.setattr(gpu_suite, "find_models", lambda *_: models)
    monkeypatch.setattr(gpu_suite, "SHARES", {"parity": 0.3, "kernels": 0.2, "convolutions": 0.2, "models": 0.3})
    tried: list[Chain] = []
    monkeypatch.setattr(gpu_kernels, "try_on_cpu", tried.append)
    monkeypatch.setattr(gpu_models, "onnxfuse", _without_embedding())
    monkeypatch.setattr(gpu_parity, "onnxfuse", _without_embedding())
    assert gpu_suite.main(["--dry-run", "--out", str(tmp_path / "out")]) == 0
    data = json.loads((tmp_path / "out" / "results.json").read_text())
    measured = {target["name"] for target in data["targets"] if target["measured"] is not None}
    assert measured == {"launches in fused parts of a model, share of the original's"}
    assert "dry run" in data["machine"] and data["errors"] == [] and tried == list(CHAINS)
    assert {verdict["kind"] for verdict in data["parity"]} == {"program", "model"}
    assert all(verdict["ok"] for verdict in data["parity"])
    assert [model["launches"] for model in data["models"]] == [{"ort": 3, "onnxfuse": 1}] * 2
    assert [model["copies"] for model in data["models"]] == [{"ort": 0, "onnxfuse": 0}] * 2


def _without_embedding() -> types.SimpleNamespace:
    """The package, whose ``optimize`` leaves machine code out, which takes time to make."""

    def optimize(*arguments: Any, **options: Any) -> Any:
        return onnxfuse.optimize(*arguments, **{**options, "embed": False})

    return types.SimpleNamespace(optimize=optimize)


def test_a_part_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("of no use")

    ran: list[str] = []
    monkeypatch.setattr(gpu_suite, "find_models", lambda *_: [])
    run = {"parity": fail, "kernels": lambda *_: ran.append("kernels"), "models": lambda *_: ran.append("models")}
    run["convolutions"] = run["kernels"]
    monkeypatch.setattr(gpu_suite, "_RUN", run)
    assert gpu_suite.main(["--dry-run", "--out", str(tmp_path), "--only", "parity,models"]) == 1
    assert ran == ["models"]
    empty, failed = json.loads((tmp_path / "results.json").read_text())["errors"]
    assert failed == "parity: ValueError: of no use" and empty.startswith("models: there are none of the zoo's in ")


def test_without_a_gpu_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_machine, "why_no_cuda", lambda: "there is no CUDA GPU here")
    monkeypatch.setenv(gpu_suite.REQUIRE_GPU, "")
    monkeypatch.delenv(gpu_suite.REQUIRE_GPU)
    assert gpu_suite.main(["--out", str(tmp_path / "out")]) == 2
    assert os.environ[gpu_suite.REQUIRE_GPU] == "1"
    assert capsys.readouterr().err == "gpu_suite.py: error: there is no CUDA GPU here\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_all_that_is_missing_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU without a CUDA compiler and PyCUDA, and with an ONNX Runtime whose CUDA provider does not load."""

    def none() -> None:
        raise OnnxfuseError("no CUDA compiler")

    for name in ("pycuda", "pycuda.driver"):
        monkeypatch.setitem(sys.modules, name, None)
    for module in (gpu_machine, runtime):
        monkeypatch.setattr(module, "why_no_cuda", lambda: "")
    monkeypatch.setattr(gpu_machine, "find_compiler", none)
    monkeypatch.setattr(runtime, "load_cuda_libraries", lambda: None)
    found = gpu_machine.missing(["parity", "kernels"])
    assert found[0] == "no CUDA compiler" and "could not load its CUDA provider" in found[1]
    assert found[2].startswith("PyCUDA cannot be used") and len(found) == 3
    assert len(gpu_machine.missing(["parity"])) == 2
    assert gpu_machine.describe(dry_run=True)["CUDA compiler"] == "none (no CUDA compiler)"


def test_what_there_was_no_time_for_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [(tmp_path / "a.onnx", {}), (tmp_path / "b.onnx", {})]
    monkeypatch.setattr(gpu_suite, "find_models", lambda *_: models)
    monkeypatch.setattr(gpu_parity, "program_cases", lambda *_, **__: [])
    verdicts = [gpu_parity.Verdict("program", "one", True), gpu_parity.Verdict("program", "two", True)]
    monkeypatch.setattr(gpu_parity, "check_programs", lambda *_: iter(verdicts))
    assert gpu_suite.main(["--dry-run", "--out", str(tmp_path), "--only", "parity,models", "--seconds", "0"]) == 1
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["errors"] == ["parity: out of time after 1 comparisons"]
    assert found["notes"] == [
        "parity: too little time is left for a, b",
        "models: too little time is left for 4, each batch size and type counted",
    ]


def _slow(*_: object) -> Iterator[gpu_parity.Verdict]:
    yield gpu_parity.Verdict("model", "a", True)
    time.sleep(30)


def test_a_model_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_models, "MOST_SECONDS", 0.05)
    monkeypatch.setattr(gpu_models, "LEAST_SECONDS", 0)
    monkeypatch.setattr(gpu_parity, "check_model", _slow)
    models = [(tmp_path / "a.onnx", {}), (tmp_path / "b.onnx", {})]
    results = gpu_report.Results()
    gpu_suite._check_models(results, models, math.inf, on_gpu=False)
    assert [verdict.ok for verdict in results.parity] == [True, True]
    assert [note.partition(" after ")[0] for note in results.notes] == [
        "parity: a was given up",
        "parity: b was given up",
    ]
    monkeypatch.setattr(gpu_models, "_optimize", lambda *_: time.sleep(30))
    for model in gpu_models.measure_all(models, math.inf, lambda message: None, on_gpu=False):
        assert set(model.errors) == {"time"} and not model.seconds


def test_a_limit_ends_with_what_it_limits() -> None:
    with gpu_limits.at_most(0.05):
        pass
    time.sleep(0.1)
    with pytest.raises(gpu_limits.OutOfTime), gpu_limits.at_most(0.05):
        try:
            time.sleep(30)
        except Exception:
            pytest.fail("it is none")


def test_a_suite_that_does_not_end_is_ended_with_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    status: list[int] = []

    def end(code: int) -> None:
        status.append(code)
        ended.set()

    monkeypatch.setattr(gpu_suite.os, "_exit", end)
    monkeypatch.setattr(gpu_suite, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(gpu_suite, "find_models", lambda *_: [])

    def hang(results: gpu_report.Results, *_: object) -> None:
        results.notes.append("so far")
        assert ended.wait(30)
        found = json.loads((tmp_path / "results.json").read_text())
        assert found["notes"] == ["so far"] and found["errors"] == ["the suite did not end within 0 s, and was made to"]

    monkeypatch.setitem(gpu_suite._RUN, "kernels", hang)
    gpu_suite.main(["--dry-run", "--only", "kernels", "--seconds", "0", "--out", str(tmp_path)])
    assert status == [1]


def _like_a_user() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}


def test_started_as_a_script_a_dry_run_has_no_problem(tmp_path: Path) -> None:
    """With the library of the installed package, and not the checkout's modules, which have none."""
    arguments = ["--dry-run", "--only", "parity", "--models", str(tmp_path), "--out", str(tmp_path / "out")]
    command = [sys.executable, str(SUITE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=_like_a_user(), cwd=SUITE.parent.parent)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["errors"] == [] and [verdict for verdict in found["parity"] if not verdict["ok"]] == []
    assert "Problems" not in (tmp_path / "out" / "results.md").read_text()


def test_without_pytest_it_says_so() -> None:
    code = (
        "import importlib.util, runpy; find = importlib.util.find_spec;"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'pytest' else find(name, *rest);"
        f"runpy.run_path({str(SUITE)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_like_a_user())
    assert done.returncode == 2
    assert done.stderr == "gpu_suite.py: error: pytest is not installed: take 'pip install pytest'\n"


def test_a_part_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        gpu_suite.main(["--dry-run", "--only", "parity,speed"])
    assert "no part 'speed'; the parts are parity, kernels, convolutions, models" in capsys.readouterr().err


def test_models_are_found_by_their_names(tmp_path: Path) -> None:
    model = gpu_chains.onnx_model(CHAINS[0], "float32", (1, 64, 256))
    onnx.save(model, tmp_path / "unknown.onnx")
    assert gpu_suite.find_models(tmp_path, "*") == []


def test_batches_repeat_the_inputs() -> None:
    feeds = {"x": np.ones((1, 3)), "y": np.zeros((1, 2, 2))}
    assert {name: array.shape for name, array in gpu_models.with_batch(feeds, 16).items()} == {
        "x": (16, 3),
        "y": (16, 2, 2),
    }
    with pytest.raises(ValueError, match="batch"):
        gpu_models.with_batch({"x": np.ones(())}, 16)
