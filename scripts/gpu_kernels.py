"""How near the kernels of the chains come to a copy, and how they compare with other systems.

A kernel alone is launched through PyCUDA and captured in a CUDA graph of many launches, so that what is timed is the
device.  In ONNX Runtime, the chain unfused and fused run in sessions that are captured too.
"""

import ctypes
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from gpu_chains import CHAINS, Chain, bytes_moved, feeds, full_shape, onnx_model
from gpu_sessions import BoundSession

import onnxfuse
from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.embed import fused_nodes
from onnxfuse.cuda.fitting import Fit, Fitter
from onnxfuse.cuda.launch import LoadedSource
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.cuda.pycuda_tools import Gpu, open_gpu, seconds
from onnxfuse.cuda.tuned import TunedKernels
from onnxfuse.graph import Model
from onnxfuse.inference import infer
from onnxfuse.passes import PassContext, resolve

SIZES = (64, 512, 16, 1)
"""10^6 bytes of the first input, the most telling first, for time may run out."""
DTYPES = ("float32", "float16")
PEERS = {"torch": 5, "jax": 4, "cupy": 2}
"""Other systems, with their shares of the time."""
_LAUNCHES = 20
_CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


@dataclass
class Measured:
    """One chain at one size: bytes that it moves, and seconds by system; ``errors`` by system say why there are none.

    The systems: ``kernel`` is ours alone, ``copy`` a copy of as many bytes, ``onnxfuse`` and ``ort`` are sessions.
    """

    chain: str
    dtype: str
    megabytes: float
    bytes: int
    seconds: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def ratio(self, system: str, to: str = "kernel") -> float | None:
        """The time of ``system`` over that of ``to``; above 1, ``to`` is faster."""
        if self.seconds.get(system) and self.seconds.get(to):
            return self.seconds[system] / self.seconds[to]
        return None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return asdict(self)


def jobs() -> Iterator[Measured]:
    """What is to be measured, the most telling first."""
    for megabytes in SIZES:
        for dtype in DTYPES:
            for chain in CHAINS:
                full = full_shape(megabytes, dtype)
                yield Measured(chain.name, dtype, megabytes, bytes_moved(chain, full, dtype))


def chain_of(job: Measured) -> Chain:
    """The chain of a job."""
    return next(chain for chain in CHAINS if chain.name == job.chain)


def prepare(chain: Chain, dtype: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The chain as ONNX nodes, and optimized for CUDA with the code for the GPU here."""
    model = onnx_model(chain, dtype)
    return model, onnxfuse.optimize(model, "cuda", check=False).model


def fit_of(model: onnx.ModelProto, options: CudaOptions) -> Fit:
    """What the one fused node of an optimized chain launches."""
    loaded = Model.from_proto(model)
    infer(loaded)
    (node,) = fused_nodes(loaded)
    return node.fit(options.fitter(fast_math=False))


def try_on_cpu(chain: Chain) -> None:
    """The chain in both sessions on the CPU, small: what of the measuring needs no GPU.  Raises what goes wrong."""
    original, fused = prepare(chain, "float32")
    fit_of(fused, CudaOptions(COMMON[-1:], embed=False))
    values = feeds(chain, full_shape(0.1, "float32"), "float32")
    for model, library in ((original, False), (fused, True)):
        BoundSession(model.SerializeToString(), values, library=library, on_gpu=False).run()


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Meanwhile torch.compile, which takes longest, fills its cache on disk; its times then are not taken."""
    child = _start_peer("torch")
    assert child.stdin is not None
    for job in jobs():
        child.stdin.write(_question(job))
    try:
        with suppress(BrokenPipeError):  # it is not installed
            child.stdin.flush()
        yield
    finally:
        _end(child)


def _compile_chains() -> None:
    """Compile all chains at once, on all processors; later their code comes from the cache."""
    options = CudaOptions()
    fitter = Fitter(None, options.architectures, False, TunedKernels(()))
    fits = []
    for chain in CHAINS:
        for dtype in DTYPES:
            planned = Model.from_proto(onnx_model(chain, dtype))
            infer(planned)
            for step in resolve(None):
                step.run(planned, PassContext(target="cuda"))  # which has no compiler, so that planning waits for none
            fits += [node.fit(fitter) for node in fused_nodes(planned)]
    options.compiler.compile({fit.source.text for fit in fits}, options.architectures, fitter.options)


def measure_all(todo: Sequence[Measured], deadline: float, progress: Callable[[str], None]) -> None:
    """Fill in what can be measured until the deadline (of ``time.monotonic``)."""
    models: dict[tuple[str, str], tuple[onnx.ModelProto, onnx.ModelProto]] = {}
    if time.monotonic() > deadline:
        return
    progress("kernels: compiling")
    _compile_chains()
    with open_gpu() as gpu:
        for job in todo:
            if time.monotonic() > deadline:
                return
            progress(f"kernels: {job.chain}, {job.dtype}, {job.megabytes} MB")
            chain = chain_of(job)
            for system, run in (("kernel", _kernel), ("ort", _sessions)):
                try:
                    key = chain.name, job.dtype
                    if key not in models:
                        models[key] = prepare(chain, job.dtype)
                    run(gpu, chain, job, *models[key])
                except Exception as error:  # one chain that fails leaves the others
                    job.errors[system] = " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _kernel(gpu: Gpu, chain: Chain, job: Measured, _original: onnx.ModelProto, fused: onnx.ModelProto) -> None:
    options = CudaOptions((gpu.architecture,))
    fit = fit_of(fused, options)
    fitter_options = options.fitter(fast_math=False).options
    code = options.compiler.compile([fit.source.text], (gpu.architecture,), fitter_options)
    cubin = code[fit.source.sha256, gpu.architecture].cubin
    full = full_shape(job.megabytes, job.dtype)
    arrays = _operands(chain, fused, full, job.dtype)
    memory = [gpu.allocate(array.nbytes) for array in arrays]
    for place, array in zip(memory, arrays, strict=True):
        gpu.driver.memcpy_htod(place, np.ascontiguousarray(array))
    size = int(np.prod(full)) * np.dtype(job.dtype).itemsize
    memory += [gpu.allocate(size) for _ in fit.program.outputs]
    loaded = LoadedSource(gpu, fit.program, fit.source, cubin)
    launch = loaded.prepare([array.shape for array in arrays], [int(place) for place in memory])
    job.seconds["kernel"] = graph_seconds(gpu, launch)
    half = job.bytes // 2
    source, target = gpu.allocate(half), gpu.allocate(half)
    job.seconds["copy"] = graph_seconds(
        gpu, lambda stream: gpu.driver.memcpy_dtod_async(target, source, half, stream)
    ) * (job.bytes / (2 * half))


def _operands(chain: Chain, fused: onnx.ModelProto, full: Sequence[int], dtype: str) -> list[np.ndarray]:
    """The inputs of the fused node, in its order: the graph's and constants."""
    given = feeds(chain, full, dtype)
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in fused.graph.initializer}
    (node,) = fused.graph.node
    return [given[name] if name in given else constants[name] for name in node.input]


def _sessions(_gpu: Gpu, chain: Chain, job: Measured, original: onnx.ModelProto, fused: onnx.ModelProto) -> None:
    values = feeds(chain, full_shape(job.megabytes, job.dtype), job.dtype)
    for system, model, library in (("ort", original, False), ("onnxfuse", fused, True)):
        job.seconds[system] = BoundSession(model.SerializeToString(), values, library=library, graph=True).seconds()


def graph_seconds(gpu: Gpu, launch: Callable[[Any], None]) -> float:
    """Seconds a launch or copy takes, of many in a CUDA graph; launched one by one where that does not work."""
    driver = _driver()
    if driver is None:
        return seconds(gpu, lambda: launch(None))
    stream = gpu.driver.Stream()
    launch(stream)  # what a first launch loads cannot be captured
    stream.synchronize()
    handle = ctypes.c_void_p(int(stream.handle))
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    if driver.cuStreamBeginCapture_v2(handle, _CAPTURE_RELAXED) != 0:
        return seconds(gpu, lambda: launch(None))
    for _ in range(_LAUNCHES):
        launch(stream)
    captured = driver.cuStreamEndCapture(handle, ctypes.byref(graph)) == 0
    if not captured or driver.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_uint64(0)) != 0:
        return seconds(gpu, lambda: launch(None))
    found = seconds(gpu, lambda: driver.cuGraphLaunch(executable, None)) / _LAUNCHES
    driver.cuGraphExecDestroy(executable)
    driver.cuGraphDestroy(graph)
    return found


def _driver() -> Any:
    """The CUDA driver's library, or None; PyCUDA has no graphs."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def measure_peer(system: str, todo: Sequence[Measured], limit: float) -> None:
    """Have ``gpu_peers.py`` measure the jobs in a process of its own, for ``limit`` seconds at most."""
    deadline = time.monotonic() + limit
    child = _start_peer(system)
    assert child.stdin is not None and child.stdout is not None
    try:
        for job in todo:
            child.stdin.write(_question(job))
            child.stdin.flush()
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
            line = child.stdout.readline() if ready else b""
            if not line:
                job.errors[system] = "out of time" if not ready else "its process ended"
                return
            answer = json.loads(line)
            if "seconds" in answer:
                job.seconds[system] = answer["seconds"]
            else:
                job.errors[system] = answer["error"]
    except BrokenPipeError:
        job.errors[system] = "its process ended"
    finally:
        _end(child)


def _start_peer(system: str) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("gpu_peers.py")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")  # JAX takes all at once; sessions here have some
    return subprocess.Popen(
        [sys.executable, str(script), system],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,  # the script imports what lies beside it
    )


def _question(job: Measured) -> bytes:
    return json.dumps({"chain": job.chain, "dtype": job.dtype, "megabytes": job.megabytes}).encode() + b"\n"


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    with suppress(BrokenPipeError):
        child.communicate()
