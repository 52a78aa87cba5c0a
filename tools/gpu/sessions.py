"""ONNX Runtime sessions with their inputs and outputs on the device, and how long a run takes."""

import atexit
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort

from onnxfuse.cuda.pycuda_tools import open_gpu
from onnxfuse.run.runtime import CUDA_PROVIDER, load_cuda_libraries, register, with_kernels
from tools.messages import one_line

SETTINGS: tuple[Mapping[str, str], ...] = ({}, {"prefer_nhwc": "1"}, {"prefer_nhwc": "1", "fuse_conv_bias": "1"})
"""What ONNX Runtime's documentation recommends to try; the fastest one counts, for ONNX Runtime and for ours."""
_OCCUPYING_BYTES = 1 << 28
"""A copy of so many takes 0.2 ms on an H100, several times what the host takes to enqueue a graph."""
_ROUNDS = 5
_SECONDS_A_ROUND = 0.02
_MOST_RUNS = 2000
_DEVICE_ROUNDS = 25
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: what is captured must not wait for the default stream


def new_session(
    model: str | bytes,
    *,
    library: bool,
    graph: bool = False,
    on_gpu: bool = True,
    settings: Mapping[str, str] | None = None,
    profile: str | None = None,
    severity: int = 4,
    stream: int | None = None,
) -> ort.InferenceSession:
    """A session on the CUDA provider, on a ``stream`` of CUDA if one is given, or on the CPU.

    Raises RuntimeError if ONNX Runtime does not load the provider.
    """
    options = ort.SessionOptions()
    options.log_severity_level = severity
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    if library:
        register(options)
    providers: list[Any] = ["CPUExecutionProvider"]
    if on_gpu:
        load_cuda_libraries()
        chosen = {"enable_cuda_graph": str(int(graph))}
        if library:
            model, wanted = with_kernels(model, options)
            chosen |= wanted
        chosen |= settings or {}
        if stream is not None:
            chosen["user_compute_stream"] = str(stream)
        providers.insert(0, (CUDA_PROVIDER, chosen))
    session = ort.InferenceSession(model, options, providers=providers)
    if on_gpu and CUDA_PROVIDER not in session.get_providers():
        raise RuntimeError("ONNX Runtime could not load its CUDA provider")
    return session


class BoundSession:
    """A session on the CUDA provider (or on the CPU, to try the script without a GPU), bound to its inputs.

    ``settings`` are options of the CUDA provider.  With ``graph`` the second run is captured as a CUDA graph, which the
    later ones replay, and ``seconds`` is the time on the device alone.
    """

    def __init__(
        self,
        model: str | bytes,
        feeds: Mapping[str, np.ndarray],
        *,
        library: bool,
        graph: bool = False,
        on_gpu: bool = True,
        settings: Mapping[str, str] | None = None,
        profile: str | None = None,
    ) -> None:
        self._clock = _clock() if graph and on_gpu else None
        stream = self._clock.stream if self._clock else None
        self.session = new_session(
            model, library=library, graph=graph, on_gpu=on_gpu, settings=settings, profile=profile, stream=stream
        )
        device = "cuda" if on_gpu else "cpu"
        self._quick = ort.RunOptions()
        if on_gpu:
            self._quick.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._binding = self.session.io_binding()
        self._inputs = {
            name: ort.OrtValue.ortvalue_from_numpy(np.require(array, requirements="C"), device, 0)
            for name, array in feeds.items()
        }
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for output in self.session.get_outputs():
            self._binding.bind_output(output.name, device, 0)
        if graph and on_gpu:  # a captured graph needs outputs that stay where they are
            self.run()
            for output, value in zip(self.session.get_outputs(), self._binding.get_outputs(), strict=True):
                self._binding.bind_ortvalue_output(output.name, value)
            self.run()

    def run(self) -> None:
        """One run, to its end."""
        self.session.run_with_iobinding(self._binding)
        self._binding.synchronize_outputs()

    def results(self) -> list[np.ndarray]:
        """The outputs of the last run."""
        return list(self._binding.copy_outputs_to_cpu())

    def seconds(self) -> float:
        """A run's time: on the device, of a graph; else of many that are enqueued one after the other."""

        def enqueue() -> None:
            self.session.run_with_iobinding(self._binding, self._quick)

        if self._clock:
            return self._clock.seconds(enqueue)
        return time_calls(enqueue, self._binding.synchronize_outputs)


class _DeviceClock:
    """Times on the device what is enqueued on its ``stream``, without the host that enqueues it.

    A copy keeps the device busy meanwhile, so that between the two events there is nothing to wait for.
    """

    def __init__(self) -> None:
        self._open = ExitStack()
        gpu = self._open.enter_context(open_gpu())
        self._driver = gpu.driver
        self._stream: Any = gpu.driver.Stream(_NON_BLOCKING)
        self._memory: Any = gpu.allocate(_OCCUPYING_BYTES), gpu.allocate(_OCCUPYING_BYTES)
        self._open.callback(self._release)
        atexit.register(self._open.close)  # PyCUDA aborts where a context is left for its own end

    def _release(self) -> None:
        self._stream = self._memory = None

    @property
    def stream(self) -> int:
        """The handle of the stream."""
        return int(self._stream.handle)

    def seconds(self, enqueue: Callable[[], None]) -> float:
        """The median of many."""
        enqueue()
        target, source = self._memory
        times = []
        for _ in range(_DEVICE_ROUNDS):
            start, end = self._driver.Event(), self._driver.Event()
            self._driver.memcpy_dtod_async(target, source, _OCCUPYING_BYTES, self._stream)
            start.record(self._stream)
            enqueue()
            end.record(self._stream)
            end.synchronize()
            times.append(start.time_till(end) / 1000)
        return median(times)


@cache
def _clock() -> _DeviceClock:
    """One for the process."""
    return _DeviceClock()


@dataclass(frozen=True)
class Best:
    """How long a run takes in the fastest of the provider's settings, and the names of those that are on in it."""

    seconds: float
    settings: str


def best_of_settings(
    model: str | bytes,
    feeds: Mapping[str, np.ndarray],
    errors: dict[str, str],
    name: str,
    *,
    library: bool,
    graph: bool,
    on_gpu: bool = True,
    nhwc: str | bytes | None = None,
) -> Best | None:
    """A run in the best of SETTINGS; None if it runs in none, and ``errors`` gets by ``name`` why.

    ``nhwc`` is the model for those with ``prefer_nhwc`` if it is another one.
    """
    found, failures = [], []
    for settings in SETTINGS if on_gpu and graph else SETTINGS[:1]:  # without a graph it is the host that counts
        meant = nhwc if nhwc is not None and "prefer_nhwc" in settings else model
        try:
            session = BoundSession(meant, feeds, library=library, graph=graph, on_gpu=on_gpu, settings=settings)
            found.append(Best(session.seconds(), ", ".join(settings)))
        except Exception as error:  # of ONNX Runtime, whose exceptions share no base class
            failures.append(one_line(error))
    if not found:
        errors[name] = failures[0]
    return min(found, key=lambda best: best.seconds, default=None)


def time_calls(enqueue: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Seconds a call: the median of several rounds of many calls, each round to its end."""

    def a_round(count: int) -> float:
        wait()
        started = time.perf_counter()
        for _ in range(count):
            enqueue()
        wait()
        return time.perf_counter() - started

    for _ in range(3):
        enqueue()
    count = max(1, min(_MOST_RUNS, int(_SECONDS_A_ROUND / max(a_round(1), 1e-6))))
    return median(a_round(count) / count for _ in range(_ROUNDS))
