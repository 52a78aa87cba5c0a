"""How near the kernels of the chains come to a copy, and how they compare with other systems.

A kernel alone is launched through PyCUDA and captured in a CUDA graph of many launches, so that what is timed is the
device.  In ONNX Runtime, the chain unfused and fused run in sessions that are captured too.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar

import numpy as np
import onnx

import onnxfuse
from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.elementwise.fitting import Fit, Fitter
from onnxfuse.cuda.elementwise.launch import LoadedSource
from onnxfuse.cuda.embed import elementwise_nodes
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.cuda.pycuda_tools import Gpu, copy_bandwidth, launch_seconds, open_gpu
from onnxfuse.cuda.tuned import TunedKernels
from onnxfuse.model.graph import Model
from onnxfuse.passes import PassContext, resolve
from onnxfuse.program import Program
from onnxfuse.program.reference import run as reference
from onnxfuse.shapes.inference import infer
from tools.gpu.chains import CHAINS, Chain, bytes_moved, feeds, full_shape, onnx_model
from tools.gpu.sessions import BoundSession
from tools.messages import one_line

SIZES = (64, 512, 16, 1)
"""10^6 bytes of the first input, the most telling first, for time may run out."""
DTYPES = ("float32", "float16")
TOLERANCE = {"float32": 1e-4, "float16": 2e-2}
"""How far results may be off: in float16 ONNX Runtime rounds after each of ten operations, and we once."""
PEERS = {"cupy": 2, "jax": 4, "torch": 5}
"""Other systems, with their shares of the time; the one that compiles longest is last, and gets what others leave."""


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
    (node,) = elementwise_nodes(loaded)
    return options.fitter(fast_math=False).fit(node.program, node.shapes)


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
    with _peer("torch") as (child, _):
        with suppress(BrokenPipeError):  # it did not start
            for job in jobs():
                _ask(child, job)
            child.stdin.flush()
        yield


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
            fits += [fitter.fit(node.program, node.shapes) for node in elementwise_nodes(planned)]
    options.compiler.compile({fit.source.text for fit in fits}, options.architectures, fitter.options)


@dataclass
class _Ready:
    """A chain of one type, ready to be measured.  ``unchecked``: the systems whose results nothing was held against."""

    chain: Chain
    original: onnx.ModelProto
    fused: onnx.ModelProto
    unchecked: set[str] = field(default_factory=lambda: {"kernel", "ort", "onnxfuse"})


def measure_all(todo: Sequence[Measured], deadline: float, progress: Callable[[str], None]) -> None:
    """Fill in what can be measured until the deadline (of ``time.monotonic``).

    Of each chain and type the results at the first size are held against NumPy's.  What gives wrong ones is not timed.
    """
    if time.monotonic() > deadline:
        return
    progress("kernels: compiling")
    _compile_chains()

    def ready(job: Measured) -> _Ready:
        chain = chain_of(job)
        return _Ready(chain, *prepare(chain, job.dtype))

    systems = {"kernel": _kernel, "ort": _session, "onnxfuse": _session}
    measure_each("kernels", todo, deadline, ready, systems, progress)


Ready = TypeVar("Ready")


def measure_each(
    part: str,
    todo: Sequence[Measured],
    deadline: float,
    prepared: Callable[[Measured], Ready],
    systems: Mapping[str, Callable[[Gpu, Ready, Measured, str], None]],
    progress: Callable[[str], None],
) -> None:
    """Have each of the ``systems`` measure each job until the deadline, with what is ``prepared`` once for its chain
    and type."""
    ready: dict[tuple[str, str], Ready] = {}
    with open_gpu() as gpu:
        for job in todo:
            if time.monotonic() > deadline:
                return
            progress(f"{part}: {job.chain}, {job.dtype}, {job.megabytes} MB")
            for system, run in systems.items():
                try:
                    key = job.chain, job.dtype
                    if key not in ready:
                        ready[key] = prepared(job)
                    run(gpu, ready[key], job, system)
                except Exception as error:  # one that fails leaves the others
                    job.errors[system] = one_line(error)


def _kernel(gpu: Gpu, ready: _Ready, job: Measured, system: str) -> None:
    options = CudaOptions((gpu.architecture,))
    fit = fit_of(ready.fused, options)
    fitter_options = options.fitter(fast_math=False).options
    code = options.compiler.compile([fit.source.text], (gpu.architecture,), fitter_options)
    cubin = code[fit.source.sha256, gpu.architecture].cubin
    full = full_shape(job.megabytes, job.dtype)
    arrays = _operands(ready.chain, ready.fused, full, job.dtype)
    memory = [gpu.allocate(array.nbytes) for array in arrays]
    for place, array in zip(memory, arrays, strict=True):
        gpu.driver.memcpy_htod(place, np.require(array, requirements="C"))
    size = int(np.prod(full)) * np.dtype(job.dtype).itemsize
    memory += [gpu.allocate(size) for _ in fit.program.outputs]
    loaded = LoadedSource(gpu, fit.program, fit.source, cubin)
    launch = loaded.prepare([array.shape for array in arrays], [int(place) for place in memory])
    if system in ready.unchecked:
        launch()
        results = {}
        for name, place in zip(ready.fused.graph.node[0].output, memory[len(arrays) :], strict=True):
            raw = np.empty(size, np.uint8)
            gpu.driver.memcpy_dtoh(raw, place)
            results[name] = raw.view(job.dtype).reshape(full)
        _check(ready, job, system, results)
    job.seconds[system] = launch_seconds(gpu, launch)
    job.seconds["copy"] = job.bytes / copy_bandwidth(gpu, job.bytes // 2)


def _session(_gpu: Gpu, ready: _Ready, job: Measured, system: str) -> None:
    """ONNX Runtime with the chain as it is, or fused."""
    values = _feeds(ready.chain, full_shape(job.megabytes, job.dtype), job.dtype)
    model = ready.original if system == "ort" else ready.fused
    session = BoundSession(model.SerializeToString(), values, library=system == "onnxfuse", graph=True)
    if system in ready.unchecked:
        session.run()
        names = [output.name for output in session.session.get_outputs()]
        _check(ready, job, system, dict(zip(names, session.results(), strict=True)))
    job.seconds[system] = session.seconds()


def _check(ready: _Ready, job: Measured, system: str, results: Mapping[str, np.ndarray]) -> None:
    """Hold results against NumPy's, in the first, middle and last rows.  Raises ValueError if they differ."""
    full = full_shape(job.megabytes, job.dtype)
    rows = sorted({min(row, full[0] - 1) for row in (0, 1, full[0] // 2, full[0] - 1)})
    arrays = _operands(ready.chain, ready.fused, full, job.dtype)
    (node,) = ready.fused.graph.node
    program = Program.parse(next(each.s.decode() for each in node.attribute if each.name == "program"))
    chosen = [array[rows] if array.ndim == len(full) and array.shape[0] == full[0] else array for array in arrays]
    allowed = TOLERANCE[job.dtype]
    for name, wanted in zip(node.output, reference(program, chosen), strict=True):
        actual, expected = results[name][rows].astype(np.float64), wanted.astype(np.float64)
        wrong = int(np.count_nonzero(~np.isclose(actual, expected, allowed, allowed, equal_nan=True)))
        if wrong:
            raise ValueError(f"wrong results: {wrong} of {actual.size} elements of output {name}")
    ready.unchecked.discard(system)


@lru_cache(maxsize=1)
def _feeds(chain: Chain, full: tuple[int, int, int], dtype: str) -> dict[str, np.ndarray]:
    """Those of one job, for all systems: to make half a gigabyte of them takes longer than to measure."""
    return feeds(chain, full, dtype)


def _operands(chain: Chain, fused: onnx.ModelProto, full: tuple[int, int, int], dtype: str) -> list[np.ndarray]:
    """The inputs of the fused node, in its order: the graph's and constants."""
    given = _feeds(chain, full, dtype)
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in fused.graph.initializer}
    (node,) = fused.graph.node
    return [given[name] if name in given else constants[name] for name in node.input]


def measure_peer(system: str, todo: Sequence[Measured], limit: float) -> int:
    """Have ``peers.py`` measure the jobs, in order, in a process of its own, for ``limit`` seconds at most.

    Gives how many of them it answered, with a time or an error.
    """
    deadline = time.monotonic() + limit
    with _peer(system) as (child, said):
        for answered, job in enumerate(todo):
            try:
                _ask(child, job)
                child.stdin.flush()
            except BrokenPipeError:
                job.errors[system] = _why_it_ended(child, said)
                return answered + 1
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return answered
            line = child.stdout.readline()
            if not line:
                job.errors[system] = _why_it_ended(child, said)
                return answered + 1
            answer = json.loads(line)
            if "seconds" in answer:
                job.seconds[system] = answer["seconds"]
            else:
                job.errors[system] = answer["error"]
    return len(todo)


@contextmanager
def _peer(system: str) -> Iterator[tuple[Any, IO[bytes]]]:
    """``peers.py``, which is killed in the end, and what it writes to standard error."""
    script = Path(__file__).with_name("peers.py")
    environment = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", **os.environ}  # JAX takes all at once; sessions have some
    with TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, "-P", str(script), system],  # what lies beside it has names that packages may have
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=environment,
        )
        try:
            yield child, said
        finally:
            child.kill()
            with suppress(BrokenPipeError):
                child.communicate()


def _ask(child: Any, job: Measured) -> None:
    question = {"chain": job.chain, "dtype": job.dtype, "megabytes": job.megabytes}
    child.stdin.write(json.dumps(question).encode() + b"\n")


def tail(text: str) -> str:
    """The end of what a process said, on one line."""
    return " ".join(text.split())[-300:] or "it said nothing"


def _why_it_ended(child: Any, said: IO[bytes]) -> str:
    status = child.wait()
    said.seek(0)
    return f"its process ended with status {status}: {tail(said.read().decode(errors='replace'))}"
