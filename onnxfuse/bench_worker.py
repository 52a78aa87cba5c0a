"""The process in which one model is timed, as its user runs it: ``python -m onnxfuse.bench_worker REQUEST.json``.

The request has ``model``, ``library``, ``threads``, ``target`` and ``loads``, how often the session is created: the
best time counts.  Answers one line of JSON for each line that it reads (bench_turns.py):

- by itself, when the session is there, ``{"load": seconds}``;
- to ``{"make": FILE, "shapes": FILE}``, after it has made up inputs of the shapes in one pickle file and written them,
  a dict, to the other, ``{}``;
- to ``{"inputs": FILE}``, of such a dict, ``{"run": seconds}``, of a run on these inputs after those that warm up;
- to ``{"seconds": …}``, ``{"times": [seconds, …]}``, with ``"idle": true`` once none of its threads spins any more.

An answer ``{"error": …}`` is the last.  Ends at the end of its input.
"""

import ctypes
import gc
import json
import mmap
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onnxfuse.check.made_up_inputs import BENCHMARK_SIZES, generate
from onnxfuse.check.parity import PROVIDERS
from onnxfuse.files.model_io import read_outline
from onnxfuse.run.inputs import input_specs
from onnxfuse.run.runtime import load_onnxruntime, silence_onnxruntime
from onnxfuse.run.sessions import Session, Value

WARM_UP_SECONDS = 0.1
LONG = 0.05
"""A run of so many seconds counts even if it is the first of a turn, which finds cold caches: they are a small part."""
_IDLE_SECONDS = 0.04
"""Without work, for a process to be idle: more than two ticks of the clock by which Windows counts processor time."""
_SPIN_SECONDS = 2.0
"""After which threads that spin still are left alone: they do so for ever."""
_PR_SET_PDEATHSIG = 1


def main(request: dict[str, Any]) -> None:
    """Serve requests until there are none."""
    if sys.platform == "linux":  # a worker that is stopped would not see that the one who stopped it is gone
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(content: dict[str, Any]) -> None:
        print(json.dumps(content), file=answers, flush=True)

    try:
        silence_onnxruntime()
        load_onnxruntime()
        loads = [_seconds(lambda: _session(request)) for _ in range(request["loads"] - 1)]
        started = time.perf_counter()
        session = _session(request)
        loads.append(time.perf_counter() - started)
        answer({"load": min(loads)})
        run = partial(session.run, {})
        for line in sys.stdin:
            asked = json.loads(line)
            if "make" in asked:
                _make_up(request, session, asked)
                answer({})
            elif "inputs" in asked:
                feeds = pickle.loads(Path(asked["inputs"]).read_bytes())
                run = partial(session.run, {name: _on_a_page(value) for name, value in feeds.items()})
                last = _warm_up(run)
                gc.collect()
                gc.disable()  # a collection in the middle of a run would be counted
                answer({"run": last})
            else:
                times = time_runs(run, float(asked["seconds"]))
                if asked.get("idle"):
                    _until_idle()
                answer({"times": times})
    except Exception as error:  # whatever it is, it is why this model is not timed
        answer({"error": " ".join(str(error).split()) or type(error).__name__})


def _on_a_page(value: Value) -> Value:
    """An input in memory that begins on a page.  ONNX Runtime has its own tensors begin on a line of the caches, and
    NumPy large ones 16 bytes behind one, from where no vector can be read at once."""
    if not isinstance(value, np.ndarray) or value.dtype.hasobject or value.size == 0:
        return value
    memory = np.empty(value.nbytes + mmap.PAGESIZE, np.uint8)
    start = -memory.ctypes.data % mmap.PAGESIZE
    placed = memory[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    placed[...] = value
    return placed


def _make_up(request: dict[str, Any], session: Session, asked: dict[str, str]) -> None:
    """Inputs of the sizes of benchmarks, which the model takes."""
    model = read_outline(request["model"])
    shapes = pickle.loads(Path(asked["shapes"]).read_bytes())
    inputs, _ = next(generate(input_specs(model), session.run, shapes, BENCHMARK_SIZES, model))
    Path(asked["make"]).write_bytes(pickle.dumps(inputs.feeds, protocol=pickle.HIGHEST_PROTOCOL))


def _session(request: dict[str, Any]) -> Session:
    model, providers = Path(request["model"]), PROVIDERS[request["target"]]
    return Session(model, providers=providers, library=request["library"], threads=request["threads"], tf32=True)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _warm_up(call: Callable[[], object]) -> float:
    """Runs until there are no firsts any more; the seconds of the last."""
    end = time.perf_counter() + WARM_UP_SECONDS
    last = _seconds(call)
    while time.perf_counter() < end:
        last = _seconds(call)
    return last


def time_runs(call: Callable[[], object], seconds: float) -> list[float]:
    """The seconds of each run, for about that long, at least one; a first one that is short does not count."""
    first, end = _seconds(call), time.perf_counter() + seconds
    if first > LONG:
        return [first]
    times: list[float] = []
    while not times or time.perf_counter() < end:
        times.append(_seconds(call))
    return times


def _until_idle() -> None:
    """Wait until the threads that spin for work have given up, as ONNX Runtime's do after some time."""
    end = time.perf_counter() + _SPIN_SECONDS
    while time.perf_counter() < end:
        used = time.process_time()
        time.sleep(_IDLE_SECONDS)
        if time.process_time() - used < _IDLE_SECONDS / 4:
            return


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
