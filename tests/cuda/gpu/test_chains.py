"""Chains that scripts/gpu_suite.py times, and the systems that it times them in, without a GPU."""

import math
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_suite
import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxfuse
from onnxfuse.cuda.compile.compiled import Compiled
from onnxfuse.cuda.pycuda_tools import Gpu
from tests.cuda.compilers import MadeUpCompiler
from tests.cuda.fake_pycuda import FakeGpu, install
from tests.cuda.stand_in import AVAILABLE, REASON
from tools.gpu import chains as gpu_chains
from tools.gpu import kernels as gpu_kernels
from tools.gpu import peers as gpu_peers
from tools.gpu import report as gpu_report
from tools.gpu import sessions as gpu_sessions
from tools.gpu.chains import CHAINS, ArrayOps, Chain

ERF = np.vectorize(math.erf, otypes=[np.float32])


def _is_installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


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


def _emulated(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU that computes in the emulation what it is given as machine code."""
    gpu = FakeGpu()
    install(monkeypatch, gpu)
    monkeypatch.setattr("onnxfuse.cuda.compile.compiler.find_compiler", _TextCompiler)
    return gpu


@pytest.mark.skipif(not AVAILABLE, reason=REASON)
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_kernels_are_timed_and_what_fails_is_written_down(
    compiler: MadeUpCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = _emulated(monkeypatch)
    gpu.cost = lambda name: 1e-3
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
    _emulated(monkeypatch).wrong = _All()
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


def test_a_peer_answers_jobs_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(chain: Chain, arrays: Any, dtype: str) -> tuple[Any, Any, int]:
        return lambda: _numpy(chain, arrays, dtype), lambda: None, 2

    monkeypatch.setitem(gpu_peers.SYSTEMS, "numpy", prepare)
    job = {"chain": "GELU", "dtype": "float32", "megabytes": 0.1}
    assert gpu_peers.measure("numpy", job)["seconds"] > 0
    assert "KeyError" in gpu_peers.measure("numpy", {**job, "chain": "none"})["error"]


def test_torch_compiles_each_job_anew_and_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its limit for one code object is reached after eight jobs, and the rest run as they are."""
    calls: list[Any] = []
    torch: Any = types.ModuleType("torch")
    torch.compiler = types.SimpleNamespace(reset=lambda: calls.append("reset"))
    torch._dynamo = types.SimpleNamespace(config=types.SimpleNamespace(fail_on_recompile_limit_hit=False))
    torch.float32 = np.dtype("float32")
    torch.relu, torch.clamp, torch.sigmoid, torch.erf = abs, np.clip, np.tanh, ERF
    torch.amax, torch.cat = np.amax, np.concatenate
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


def script(folder: Path, text: str) -> str:
    path = folder / "script"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_what_a_peer_says_when_it_ends_is_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", script(tmp_path, "echo 'no such GPU' >&2; exit 3"))
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


class _Timed:
    """Stands for pycuda.driver: what is enqueued on its stream takes ``clock`` along, what is done at once does not."""

    def __init__(self) -> None:
        self.clock, self.log = 0.0, list[str]()

    def Stream(self, flags: int) -> Any:  # noqa: N802
        self.log.append(f"stream {flags}")
        return SimpleNamespace(handle=77)

    def Event(self) -> Any:  # noqa: N802
        event = SimpleNamespace(at=0.0, synchronize=lambda: None)
        event.record = lambda stream: setattr(event, "at", self.clock)
        event.time_till = lambda end: end.at - event.at
        return event

    def memcpy_dtod_async(self, target: Any, source: Any, size: int, stream: Any) -> None:
        self.log.append("copy")
        self.clock += 0.2

    def mem_alloc(self, size: int) -> Any:
        return size


def test_the_clock_tells_what_a_run_takes_without_the_copy_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, closing = _Timed(), list[Any]()

    @contextmanager
    def opened() -> Iterator[Gpu]:
        yield Gpu("GPU", "sm_90", 132, driver)
        driver.log.append("closed")

    monkeypatch.setattr(gpu_sessions, "open_gpu", opened)
    monkeypatch.setattr(gpu_sessions.atexit, "register", closing.append)
    clock = gpu_sessions._DeviceClock()

    def enqueue() -> None:
        driver.log.append("run")
        driver.clock += 3.0

    assert clock.stream == 77 and clock.seconds(enqueue) == pytest.approx(3e-3)
    assert driver.log[:5] == ["stream 1", "run", "copy", "run", "copy"]
    closing[0]()
    assert driver.log[-1] == "closed" and clock._memory is None
