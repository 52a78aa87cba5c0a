"""Several programs timed side by side, each in a process of its own, in turns: A B C … C B A, again and again.

Other processes and the clock of the CPU disturb all of them alike only if the turns alternate closely.  A process
is stopped (SIGSTOP) while it is not its turn, so that threads that spin while they wait, which is the fastest
setting of some, take no core from the one that is timed.  Where a process cannot be stopped, on Windows, a turn
ends only when such threads have given up.
"""

import contextlib
import json
import math
import os
import queue
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxfuse.core_distance import CoreDistance
from onnxfuse.system import STOPS_PROCESSES

MIN_BLOCKS = 6
SLOW = 8.0
"""A program of which a run takes that many turns, and that many times the fastest's, is timed in a few blocks only."""
SLOW_BLOCKS = 3
_RESAMPLES = 1000

PROCESS_SPREAD = 0.01
"""The standard deviation of the logarithm of a model's time between processes that run the same file, whatever the
number of turns: the memory that they get differs.  Of five models, six processes each: 0.003 to 0.013."""

Ratio = tuple[float, float, float]
"""A ratio, and the bounds of its 95 % interval."""


class WorkerError(Exception):
    """A worker cannot do what it was asked for; the message is one line."""


class Worker:
    """A process that answers one line of JSON for each line that it gets.

    First, by itself, with what is known once it is ready; then to requests of its own kind; with ``{"times": [seconds,
    …]}`` for ``{"seconds": …}``, with ``"idle": true`` only when none of its threads spins any more; and, if its
    outputs are asked for, with ``{}`` for ``{"save": FILE}``, which writes them as an .npz file.  An answer
    ``{"error": …}`` says why it cannot go on.
    """

    def __init__(
        self, command: list[str], log: Path, settings: dict[str, str], timeout: float, *, wait: bool = True
    ) -> None:
        """Start it and, with ``wait``, wait until it is ready: for ``timeout`` seconds at most, as for every answer.

        ``settings`` are environment variables.  Raises WorkerError if it does not become ready.
        """
        self._timeout = timeout
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.ready: dict[str, Any] = {}
        """What it said of itself when it was ready."""
        environment = {**os.environ, **settings}
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,  # its children are stopped with it
            )
        self._log = log
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if wait:
            self.until_ready()

    def until_ready(self) -> None:
        """Wait until it has said that it is ready, if it has not yet, and stop it.  Raises WorkerError as above."""
        if self.ready:
            return
        try:
            self.ready = self._answer()
            self._stop()
        except BaseException:  # a signal too must leave nobody behind
            self.close()
            raise

    def time(self, seconds: float) -> float:
        """The lower quartile of the seconds that runs take, in a turn of about ``seconds``."""
        times = self.ask({"seconds": seconds, "idle": not STOPS_PROCESSES})["times"]
        return float(np.percentile(times, 25))

    def outputs(self, file: Path) -> list[np.ndarray]:
        """What the last run computed; ``file`` is where it passes through."""
        self.ask({"save": str(file)})
        with np.load(file) as arrays:
            return [arrays[f"output_{index}"] for index in range(len(arrays.files))]

    def close(self) -> None:
        """End the process, and what it has started."""
        if STOPS_PROCESSES:
            self._signal(signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Its answer to a request, for which it runs.  Raises WorkerError for an answer that is an error."""
        assert self._process.stdin is not None
        if STOPS_PROCESSES:
            self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            return self._answer()
        except BrokenPipeError:
            raise WorkerError(self._death()) from None
        finally:
            self._stop()

    def _read(self) -> None:
        """Lines as they come, then an empty one; in a thread, for Windows waits for no pipe with a limit."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=self._timeout)
        except queue.Empty:
            raise WorkerError(f"no answer after {self._timeout:g} s") from None
        if not line:
            raise WorkerError(self._death())
        content: dict[str, Any] = json.loads(line)
        if "error" in content:
            raise WorkerError(str(content["error"]))
        return content

    def _death(self) -> str:
        """Why the process is gone: how it ended, and the last that it said."""
        self._process.wait()
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        code = self._process.returncode
        how = signal.Signals(-code).name if code < 0 and STOPS_PROCESSES else f"status {code}"
        return f"ended early ({how}): {lines[-1][:200]}" if lines else f"ended early ({how})"

    def _stop(self) -> None:
        if STOPS_PROCESSES:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(self._process.pid, number)


@dataclass(frozen=True)
class Turns:
    """What ``take_turns`` has found.

    ``times`` are seconds, of shape (blocks, 2 turns) for each worker, ``failed`` the reasons of those that failed.
    ``distance`` is how far two cores were from each other meanwhile, in nanoseconds there and back, None where that is
    not known.
    """

    times: dict[str, np.ndarray]
    failed: dict[str, str]
    distance: float | None = None


def take_turns(
    workers: dict[str, Worker],
    seconds: float,
    turn: float,
    least: int = MIN_BLOCKS,
    cores: CoreDistance | None = None,
    patience: float = 0.0,
) -> Turns:
    """The times of all workers.

    A block is one turn of about ``turn`` seconds of each worker in the order given, then one of each in the opposite
    order.  There are blocks for about ``seconds``, and ``least`` at least; one that is much too slow takes part in the
    first three only.

    With ``cores`` only blocks of one distance count, which makes as much of a difference to one program as to another
    only by chance: those in which the cores were near, as near as ``cores`` has ever seen them, or if these are fewer
    than the others, those in which they were not.  While there are not ``seconds`` of the former, more blocks are
    taken, for ``patience`` seconds at most.
    """
    blocks: list[dict[str, tuple[float, float]]] = []
    failed: dict[str, str] = {}
    distances: list[float] = []
    near_seconds = 0.0
    end = time.monotonic() + seconds
    while len(failed) < len(workers) and (
        len(blocks) < least or time.monotonic() < end or (near_seconds < seconds and time.monotonic() < end + patience)
    ):
        began = time.monotonic()
        distance = None if cores is None else cores.nanoseconds()
        slow = _slow(blocks, turn)
        names = [name for name in workers if name not in failed and not (name in slow and len(blocks) >= SLOW_BLOCKS)]
        turns: dict[str, list[float]] = {name: [] for name in names}
        for name in (*names, *reversed(names)):
            try:
                turns[name].append(workers[name].time(turn))
            except WorkerError as error:
                failed.setdefault(name, str(error))
        blocks.append({name: (times[0], times[1]) for name, times in turns.items() if len(times) == 2})
        distances.append(math.nan if distance is None else distance)
        if cores is None or cores.is_near(distance):
            near_seconds += time.monotonic() - began
    chosen = _of_one_distance(distances, cores)
    times = {}
    for name in workers:
        taken = [block[name] for block, wanted in zip(blocks, chosen, strict=True) if wanted and name in block]
        if name not in failed:
            times[name] = np.array(taken or [block[name] for block in blocks if name in block])
    known = [distance for distance, wanted in zip(distances, chosen, strict=True) if wanted and distance > 0]
    return Turns(times, failed, float(np.median(known)) if known else None)


def _of_one_distance(distances: list[float], cores: CoreDistance | None) -> list[bool]:
    """Which blocks count."""
    near = [cores is None or cores.is_near(distance) for distance in distances]
    return near if 2 * sum(near) >= len(near) or sum(near) >= MIN_BLOCKS else [not one for one in near]


def _slow(blocks: list[dict[str, tuple[float, float]]], turn: float) -> set[str]:
    best: dict[str, float] = {}
    for block in blocks:
        for name, times in block.items():
            best[name] = min(best.get(name, math.inf), *times)
    limit = SLOW * max(turn, min(best.values(), default=0.0))
    return {name for name, value in best.items() if value > limit}


def ratio_with_spread(blocks: np.ndarray) -> Ratio:
    """The ratio of the lower quartiles of ``blocks``, of shape (blocks, 2 models, …): model 0 over model 1, and the
    bounds of its 95 % interval.

    That is the bootstrap's, symmetric about the ratio by the farther of its bounds and wider by what Student's t is
    wider than the normal distribution: of a few blocks the bootstrap sees too little of what chance can do (Hesterberg,
    What Teachers Should Know About the Bootstrap, 2015).
    """
    times = blocks.reshape(len(blocks), 2, -1)
    rows = np.random.default_rng(0).integers(0, len(times), (_RESAMPLES, len(times)))
    ratio = float(_ratios(times[None])[0])
    low, high = np.percentile(_ratios(times[rows]), [2.5, 97.5])
    spread = max(high / ratio, ratio / low) ** _widening(len(times))
    return ratio, float(ratio / spread), float(ratio * spread)


def ratio_of_processes(first: np.ndarray, second: np.ndarray) -> Ratio:
    """The ratio of the times of two processes, each of shape (blocks, turns), with an interval for other processes too.

    A slow one has the first blocks only, and then only these count.
    """
    count = min(len(first), len(second))
    ratio, _, high = ratio_with_spread(np.stack([first[:count], second[:count]], axis=1))
    spread = math.exp(math.hypot(math.log(high / ratio), 1.96 * math.sqrt(2) * PROCESS_SPREAD))
    return ratio, ratio / spread, ratio * spread


def _ratios(samples: np.ndarray) -> np.ndarray:
    """The ratio of the lower quartiles of each sample, of shape (samples, blocks, 2 models, turns)."""
    quartiles = np.percentile(samples, 25, axis=(1, 3))
    return quartiles[:, 0] / quartiles[:, 1]


def _widening(count: int) -> float:
    """The 97.5 % point of Student's t over the normal distribution's for ``count`` values, by the first terms of its
    expansion (Abramowitz and Stegun 26.7.5), and the bootstrap's division by n where it should be n - 1."""
    z, freedom = 1.96, max(count - 1, 1)
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return t / z * math.sqrt(count / freedom)
