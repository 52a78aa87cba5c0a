"""Which of two models is faster: each in a process of its own, as its user runs it, in turns, and one ratio (speed.py).

Other processes and the clock of the CPU disturb both models alike only if they alternate closely.  So turns go in the
order A B B A, each block gives both models the same neighbours, and the lower quartile of each model's times is
compared: disturbances only ever add time.  Beside it, how much memory a model takes, and turns of any two calls in one
process.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from onnxfuse import cpu
from onnxfuse.bench_processes import Timed, time_models
from onnxfuse.check.parity import Progress
from onnxfuse.errors import OnnxfuseError
from onnxfuse.files.model_io import read_outline
from onnxfuse.profiling import profile
from onnxfuse.report.profile import Profile
from onnxfuse.report.report_file import TraceFile
from onnxfuse.run.given_shapes import Shapes, fit_shapes_of, guessed_inputs
from onnxfuse.run.inputs import InputSet, input_specs
from onnxfuse.run.runtime import load_onnxruntime
from onnxfuse.run.sessions import has_fused_nodes
from onnxfuse.speed import ORIGINAL, RESULT, ratio_of, timing_inputs
from onnxfuse.wording import plural

WARM_UP_SECONDS = 0.5
MIN_BLOCKS = 8
MAX_BLOCKS = 2000


@dataclass(frozen=True)
class PeakMemory:
    """The most memory, in bytes, of a process that loads and runs a model and does nothing else.

    ``own`` is what it adds for the model of memory of the process alone: heap, stacks and arenas.  ``resident`` is all
    that it adds in memory, with the pages of files, such as the code of libraries, which processes share.  ``process``
    is all of the process, Python and ONNX Runtime included.
    """

    own: int
    resident: int
    process: int


@dataclass
class Timing:
    """The times of one model in milliseconds: of turns, each the lower quartile of its runs."""

    quartile: float
    median: float
    best: float
    load: float
    peak_memory: PeakMemory | None = None


@dataclass
class BenchResult:
    """``ratio`` is the original's time over the optimized model's: above 1 the optimized model is faster.

    ``low`` and ``high`` enclose it in 95 of 100 resamplings of the blocks (bootstrap).  ``guessed`` names the inputs
    whose sizes are guesses.
    """

    original: Timing
    optimized: Timing
    ratio: float
    low: float
    high: float
    blocks: int
    machine: str
    inputs: dict[str, list[int]] = field(default_factory=dict)
    profile: Profile | None = None
    guessed: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """The fields as JSON takes them."""
        return asdict(self)


def bench(
    original: Path,
    optimized: Path,
    *,
    threads: int = 0,
    shapes: Shapes | None = None,
    inputs: Path | None = None,
    target: str = "cpu",
    seconds: float = 10.0,
    memory: bool = False,
    trace: Path | None = None,
    progress: Progress = lambda message: None,
) -> BenchResult:
    """Time both models for about ``seconds`` on the same inputs, each in a process of its own, in turns.

    ``threads`` is the number of intra-op threads of each session, 0 for ONNX Runtime's choice.  ``inputs`` is an
    ``.npz`` file or a directory, of which the first set is taken (``read_inputs``); without it inputs are made up, and
    ``shapes`` gives those with dynamic dimensions a shape, unless the optimized model does.  ``memory`` also measures
    the peak memory of each model in a process of its own; ``trace`` is where to write a trace of a run of each, and
    asks for the times of their nodes.
    Raises OnnxfuseError if a model cannot be run, or has other inputs.
    """
    model = read_outline(original)
    specs = input_specs(model)
    shapes = fit_shapes_of(specs, input_specs(read_outline(optimized)), shapes or {})
    progress("creating the sessions")
    values = timing_inputs(original, shapes, inputs, target)
    progress(f"timing both models in turns for {seconds:g} s")
    models = {ORIGINAL: original, RESULT: optimized}
    timed = time_models(models, values, threads=threads, target=target, seconds=seconds, loads=2)
    ratio, low, high = ratio_of(timed[ORIGINAL], timed[RESULT])
    peaks: list[PeakMemory | None] = [None, None]
    if memory:
        progress("measuring memory")
        peaks = [
            peak_memory(path, values, has_fused_nodes(read_outline(path)), threads, target)
            for path in (original, optimized)
        ]
    found = None
    if trace is not None:
        progress("profiling both models")
        with TraceFile(trace, original, optimized) as file:
            found, content = profile(original, optimized, values, target, threads)
            file.write(content)
    return BenchResult(
        original=_timing(timed[ORIGINAL], peaks[0]),
        optimized=_timing(timed[RESULT], peaks[1]),
        ratio=ratio,
        low=low,
        high=high,
        blocks=len(timed[ORIGINAL].times),
        machine=machine(threads),
        inputs=values.shapes(),
        profile=found,
        guessed=[] if inputs is not None else guessed_inputs(specs, shapes),
    )


def time_in_turns(a: Callable[[], object], b: Callable[[], object], seconds: float) -> np.ndarray:
    """Times in seconds, of shape (blocks, 2 models, 2 calls), for calls in the order A B B A after a
    warm-up."""
    warm = time.perf_counter() + min(WARM_UP_SECONDS, seconds / 4)
    while True:
        a()
        b()
        if time.perf_counter() >= warm:
            break
    blocks: list[tuple[tuple[float, float], tuple[float, float]]] = []
    end = time.perf_counter() + seconds
    while len(blocks) < MIN_BLOCKS or (time.perf_counter() < end and len(blocks) < MAX_BLOCKS):
        first, second, third, fourth = _timed(a), _timed(b), _timed(b), _timed(a)
        blocks.append(((first, fourth), (second, third)))
    return np.array(blocks)


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _timing(timed: Timed, peak: PeakMemory | None) -> Timing:
    quartile, median = np.percentile(timed.times, [25, 50]) * 1000
    return Timing(float(quartile), float(median), float(timed.times.min() * 1000), timed.load * 1000, peak)


def machine(threads: int) -> str:
    """One line: the CPU, the threads in use, and the version of ONNX Runtime."""
    count = plural(threads, "thread") if threads else f"default threads of {os.cpu_count()} CPUs"
    return f"{cpu.describe()}, {count}, ONNX Runtime {load_onnxruntime().__version__}"


# --- peak memory, in a process that does nothing else ---


_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}
"""glibc begins with this threshold and raises it as the process frees large blocks.  Such blocks then come from its
heap, which keeps more or less of them by chance: as much as 10 % of a model's peak, and 0.5 % with this setting."""


def peak_memory(path: Path, inputs: InputSet, library: bool, threads: int, target: str) -> PeakMemory | None:
    """What a process that does nothing else takes for a model; None where it cannot be told.

    Blocks from 128 KiB on go back to the system when they are freed.
    """
    request = {
        "path": str(path.resolve()),
        "inputs": {name: [str(value.dtype), list(value.shape)] for name, value in _arrays(inputs).items()},
        "library": library,
        "threads": threads,
        "target": target,
    }
    arrays = b"".join(np.ascontiguousarray(value).tobytes() for value in _arrays(inputs).values())
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "onnxfuse.bench_memory"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | _MALLOC,
        )
        assert process.stdin is not None and process.stdout is not None
        before, peak, after = b"", 0, b""
        with contextlib.suppress(BrokenPipeError), process:  # to close its input writes what is left
            process.stdin.write(json.dumps(request).encode() + b"\n" + arrays)
            process.stdin.close()
            before = process.stdout.readline()
            peak = _watch(process)
            after = process.stdout.readline()
        if process.returncode != 0:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            raise OnnxfuseError(f"measuring the memory of {path} failed: {lines[-1] if lines else process.returncode}")
    own, resident = json.loads(before)
    last_own, peak_resident = json.loads(after)
    if None in (own, resident, last_own, peak_resident):
        return None
    return PeakMemory(max(peak, last_own) - own, peak_resident - resident, peak_resident)


def _watch(process: "subprocess.Popen[bytes]") -> int:
    """The most memory of its own that a process has until it ends; the kernel keeps only the peak with its files."""
    peak = 0
    while process.poll() is None:
        peak = max(peak, process_memory("RssAnon", process.pid) or 0)
    return peak


def process_memory(field: str, pid: int | None = None) -> int | None:
    """Bytes of a field of a process's status, by default of this one's; None where there is none."""
    try:
        lines = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), None)


def _arrays(inputs: InputSet) -> dict[str, np.ndarray]:
    if any(not isinstance(value, np.ndarray) or value.dtype.hasobject for value in inputs.feeds.values()):
        raise OnnxfuseError("the memory of models with sequence or string inputs cannot be measured")
    return inputs.feeds
