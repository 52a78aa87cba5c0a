"""A process that prepares one model in one peer and times runs of it when it is asked to: ``worker.py KIND JOB.json``.

Answers one line of JSON for each line that it reads: first, by itself, ``{"note": …}`` when it is ready, or
``{"error": …}``; then ``{"times": [seconds, …]}`` for ``{"seconds": …}``, after one run that does not count; and
``{}`` for ``{"save": FILE}``, which writes the outputs as an .npz file.  Ends at the end of its input.
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[3]))  # tools/, behind the packages of this Python

import numpy as np

from tools.bench.peers.job import Job, Prepared

MAX_RUNS = 2000
LONG = 0.25
_PR_SET_PDEATHSIG = 1


def main(kind: str, job: Job) -> None:
    """Serve requests until there are none."""
    if sys.platform == "linux":  # a worker that is stopped would not see that the one who stopped it is gone
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # What libraries print goes to standard error: standard output is for answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    def answer(content: dict[str, Any]) -> None:
        print(json.dumps(content), file=answers, flush=True)

    try:
        prepared: Prepared = importlib.import_module(f"tools.bench.peers.run_{kind}").prepare(job)
        prepared.run()
    except Exception as error:  # whatever the peer raises is the reason why it is left out
        answer({"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]})
        return
    gc.collect()
    gc.disable()  # a collection in the middle of a run would be counted
    answer({"note": prepared.note})
    for line in sys.stdin:
        request = json.loads(line)
        if "save" in request:
            arrays: dict[str, Any] = {f"output_{index}": array for index, array in enumerate(prepared.outputs())}
            np.savez(request["save"], **arrays)
            answer({})
        else:
            answer({"times": time_runs(prepared, float(request["seconds"]))})


def time_runs(prepared: Prepared, seconds: float) -> list[float]:
    """The seconds of each run, for about that long, at least one.

    A first run does not count, since it finds in the caches what others left there; unless it is long enough for
    that to be a small part of it.
    """
    times: list[float] = []
    first, end = _timed(prepared), time.perf_counter() + seconds
    if first > LONG:
        return [first]
    while True:
        times.append(_timed(prepared))
        if time.perf_counter() >= end or len(times) >= MAX_RUNS:
            return times


def _timed(prepared: Prepared) -> float:
    start = time.perf_counter()
    prepared.run()
    return (time.perf_counter() - start) / prepared.repeats


if __name__ == "__main__":
    main(sys.argv[1], Job(**json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))))
