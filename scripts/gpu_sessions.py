"""ONNX Runtime sessions with their inputs and outputs on the device, and how long a run takes."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort
from messages import one_line

from onnxfuse.runtime import CUDA_PROVIDER, load_cuda_libraries, register, with_kernels

SETTINGS: tuple[Mapping[str, str], ...] = ({}, {"prefer_nhwc": "1"})
"""What ONNX Runtime's documentation recommends to try; the faster one counts, for ONNX Runtime and for ours."""
_ROUNDS = 5
_SECONDS_A_ROUND = 0.02
_MOST_RUNS = 2000


def new_session(
    model: str | bytes,
    *,
    library: bool,
    graph: bool = False,
    on_gpu: bool = True,
    settings: Mapping[str, str] | None = None,
    profile: str | None = None,
    severity: int = 4,
) -> ort.InferenceSession:
    """A session on the CUDA provider, or on the CPU.  Raises RuntimeError if ONNX Runtime does not load the former."""
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
        model = with_kernels(model, options) if library else model
        providers.insert(0, (CUDA_PROVIDER, {**(settings or {}), "enable_cuda_graph": str(int(graph))}))
    session = ort.InferenceSession(model, options, providers=providers)
    if on_gpu and CUDA_PROVIDER not in session.get_providers():
        raise RuntimeError("ONNX Runtime could not load its CUDA provider")
    return session


class BoundSession:
    """A session on the CUDA provider (or on the CPU, to try the script without a GPU), bound to its inputs.

    ``settings`` are options of the CUDA provider.  With ``graph`` the second run is captured as a CUDA graph, which the
    later ones replay.
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
        self.session = new_session(
            model, library=library, graph=graph, on_gpu=on_gpu, settings=settings, profile=profile
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
        """A run's time, of many that are enqueued one after the other."""
        return time_calls(
            lambda: self.session.run_with_iobinding(self._binding, self._quick), self._binding.synchronize_outputs
        )


def best_seconds(
    model: str | bytes,
    feeds: Mapping[str, np.ndarray],
    errors: dict[str, str],
    name: str,
    *,
    library: bool,
    graph: bool,
    on_gpu: bool = True,
) -> float | None:
    """A run's time in the best of SETTINGS, None if it runs in none; ``errors`` gets by ``name`` what went wrong."""
    times = []
    for settings in SETTINGS if on_gpu else SETTINGS[:1]:
        try:
            session = BoundSession(model, feeds, library=library, graph=graph, on_gpu=on_gpu, settings=settings)
            times.append(session.seconds())
        except Exception as error:  # of ONNX Runtime, whose exceptions share no base class
            errors[name + "".join(f", {key}={value}" for key, value in settings.items())] = one_line(error)
    return min(times, default=None)


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
