"""Models timed each in a process of its own, as its user runs it.

A session has ONNX Runtime's own settings, with threads that spin while they wait for work.  Sessions are created side
by side, which takes less time; from then on only one process at a time is alive for the processor: they take turns,
A B … B A, and one that is not its turn is stopped, or idle on Windows, so that its threads take no core from another
(bench_turns.py).
"""

import json
import pickle
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxfuse.bench_turns import MIN_BLOCKS, Worker, WorkerError, take_turns
from onnxfuse.core_distance import CoreDistance
from onnxfuse.errors import OnnxfuseError
from onnxfuse.files.model_io import read_outline
from onnxfuse.model.replacing import scratch
from onnxfuse.run.given_shapes import Shapes
from onnxfuse.run.inputs import InputSet
from onnxfuse.run.sessions import has_fused_nodes

TURN_SECONDS = 0.05
SECONDS = 2.0
"""Of timing the original beside the result, if a run takes less than SLOW_RUN."""
SLOW_RUN = 0.1
SLOW_BLOCKS = 4
"""Of four runs, for models whose run takes longer: 18 runs with those that warm up."""
_TIMEOUT = 3600.0


@dataclass(frozen=True)
class Timed:
    """Seconds of a model on ``inputs``: of a run in each block's two turns, of shape (blocks, 2), and of creating its
    session; and how far two cores were from each other, in nanoseconds (core_distance.py), None if not known."""

    times: np.ndarray
    load: float
    inputs: InputSet
    distance: float | None = None


def time_models(
    models: Mapping[str, Path],
    inputs: InputSet | None,
    *,
    shapes: Shapes | None = None,
    threads: int = 0,
    target: str = "cpu",
    seconds: float | None = None,
    loads: int = 1,
) -> dict[str, Timed]:
    """Time models, by names, on the same inputs for about ``seconds``.

    Without ``inputs`` they are made up of the sizes of benchmarks, and of ``shapes``, for the first model.  Without
    ``seconds``: for SECONDS each pair, or a few runs each where a run takes long.  ``threads`` are the intra-op threads
    of a session, 0 for ONNX Runtime's choice.  The library is registered for a model that has fused nodes.  The best of
    ``loads`` sessions counts for the time of creating one; with more than one, processes create theirs one after the
    other.  Raises OnnxfuseError, naming the file, if a model does not run, or if no inputs can be made up.
    """
    workers: dict[str, Worker] = {}
    with scratch() as folder, ExitStack() as stack:
        for number, (name, path) in enumerate(models.items()):
            request = folder / f"{number}.json"
            content: dict[str, Any] = {"model": str(path.resolve()), "threads": threads, "target": target}
            content |= {"library": has_fused_nodes(read_outline(path)), "loads": loads}
            request.write_text(json.dumps(content), encoding="utf-8")
            command = [sys.executable, "-P", "-m", "onnxfuse.bench_worker", str(request)]
            workers[name] = Worker(command, folder / f"{number}.log", {}, _TIMEOUT, wait=False)
            stack.callback(workers[name].close)
            if loads > 1:
                _until_ready(workers[name], path)
        for name, worker in workers.items():
            _until_ready(worker, models[name])
        values = folder / "inputs.pickle"
        if inputs is None:
            sizes = folder / "shapes.pickle"
            sizes.write_bytes(pickle.dumps(shapes or {}))
            try:
                next(iter(workers.values())).ask({"make": str(values), "shapes": str(sizes)})
            except WorkerError as error:
                raise OnnxfuseError(str(error)) from error
            inputs = InputSet("made up", pickle.loads(values.read_bytes()))
        else:
            values.write_bytes(pickle.dumps(inputs.feeds, protocol=pickle.HIGHEST_PROTOCOL))
        longest = 0.0
        for name, worker in workers.items():
            try:
                longest = max(longest, float(worker.ask({"inputs": str(values)})["run"]))
            except WorkerError as error:
                raise OnnxfuseError(f"ONNX Runtime cannot run {models[name]}: {error}") from error
        least = MIN_BLOCKS
        if seconds is None:
            slow = longest >= SLOW_RUN
            seconds, least = (0.0, SLOW_BLOCKS) if slow else (SECONDS * len(models) / 2, MIN_BLOCKS)
        found = take_turns(workers, seconds, TURN_SECONDS, least, stack.enter_context(CoreDistance()))
        for name, reason in found.failed.items():
            raise OnnxfuseError(f"ONNX Runtime cannot run {models[name]}: {reason}")
        loaded = {name: float(worker.ready["load"]) for name, worker in workers.items()}
        return {name: Timed(found.times[name], loaded[name], inputs, found.distance) for name in models}


def _until_ready(worker: Worker, path: Path) -> None:
    try:
        worker.until_ready()
    except WorkerError as error:
        raise OnnxfuseError(f"ONNX Runtime cannot load {path}: {error}") from error
