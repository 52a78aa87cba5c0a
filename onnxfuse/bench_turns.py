"""Several programs timed side by side, each in a process of its own, in turns: A B C … C B A, again and again.

Other processes and the clock of the CPU disturb all of them alike only if the turns alternate closely.  A process
is stopped (SIGSTOP) while it is not its turn, so that threads that spin while they wait, which is the fastest
setting of some, take no core from the one that is timed.
"""

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

MIN_BLOCKS = 6
SLOW = 8.0
"""A program of which a run takes that many turns, and that many times the fastest's, is timed in a few blocks only."""
SLOW_BLOCKS = 3
_RESAMPLES = 1000

Ratio = tuple[float, float, float]
"""A ratio, and the bounds of its 95 % interval."""


class WorkerError(Exception):
    """A worker cannot do what it was asked for; the message is one line."""


class Worker:
    """A process that answers one line of JSON for each line that it gets.

    First, by itself, with what is known once it is ready; then to requests of its own kind; with ``{"times": [seconds,
    …]}`` for ``{"seconds": …}``; and, if its outputs are asked for, with ``{}`` for ``{"save": FILE}``, which writes
    them as an .npz file.  An answer ``{"error": …}`` says why it cannot go on.
    """

    def __init__(
        self, command: list[str], log: Path, settings: dict[str, str], timeout: float, *, wait: bool = True
    ) -> None:
        """Start it and, with ``wait``, wait until it is ready: for ``timeout`` seconds at most, as for every answer.

        ``settings`` are environment variables.  Raises WorkerError if it does not become ready.
        """
        self._timeout = timeout
        self._buffer = b""
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
        if wait:
            self.until_ready()

    def until_ready(self) -> None:
        """Wait until it has said that it is ready, if it has not yet, and stop it.  Raises WorkerError as above."""
        if self.ready:
            return
        try:
            self.ready = self._answer()
            self._signal(signal.SIGSTOP)
        except BaseException:  # a signal too must leave nobody behind
            self.close()
            raise

    def time(self, seconds: float) -> float:
        """The lower quartile of the seconds that runs take, in a turn of about ``seconds``."""
        times = self.ask({"seconds": seconds})["times"]
        return float(np.percentile(times, 25))

    def outputs(self, file: Path) -> list[np.ndarray]:
        """What the last run computed; ``file`` is where it passes through."""
        self.ask({"save": str(file)})
        with np.load(file) as arrays:
            return [arrays[f"output_{index}"] for index in range(len(arrays.files))]

    def close(self) -> None:
        """End the process, and what it has started."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Its answer to a request, for which it runs.  Raises WorkerError for an answer that is an error."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            return self._answer()
        except BrokenPipeError:
            raise WorkerError(self._death()) from None
        finally:
            self._signal(signal.SIGSTOP)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        end = time.monotonic() + self._timeout
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._process.stdout], [], [], max(end - time.monotonic(), 0))
            if not ready:
                raise WorkerError(f"no answer after {self._timeout:g} s")
            piece = os.read(self._process.stdout.fileno(), 1 << 16)
            if not piece:
                raise WorkerError(self._death())
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        content: dict[str, Any] = json.loads(line)
        if "error" in content:
            raise WorkerError(str(content["error"]))
        return content

    def _death(self) -> str:
        """Why the process is gone: how it ended, and the last that it said."""
        self._process.wait()
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        code = self._process.returncode
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        return f"ended early ({how}): {lines[-1][:200]}" if lines else f"ended early ({how})"

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(self._process.pid, number)


def take_turns(
    workers: dict[str, Worker], seconds: float, turn: float, least: int = MIN_BLOCKS
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The times of all workers, and the reasons of those that failed.

    A worker's times are seconds, of shape (blocks, 2 turns).  A block is one turn of about ``turn`` seconds of each
    worker in the order given, then one of each in the opposite order.  There are blocks for about ``seconds``, and
    ``least`` at least; one that is much too slow takes part in the first three only.
    """
    blocks: dict[str, list[tuple[float, float]]] = {name: [] for name in workers}
    failed: dict[str, str] = {}
    end = time.monotonic() + seconds
    count = 0
    while count < least or time.monotonic() < end:
        slow = _slow(blocks, turn)
        names = [name for name in workers if name not in failed and not (name in slow and count >= SLOW_BLOCKS)]
        turns: dict[str, list[float]] = {name: [] for name in names}
        for name in (*names, *reversed(names)):
            try:
                turns[name].append(workers[name].time(turn))
            except WorkerError as error:
                failed.setdefault(name, str(error))
        for name, times in turns.items():
            if len(times) == 2:
                blocks[name].append((times[0], times[1]))
        count += 1
        if len(failed) == len(workers):
            break
    return {name: np.array(times) for name, times in blocks.items() if name not in failed}, failed


def _slow(blocks: dict[str, list[tuple[float, float]]], turn: float) -> set[str]:
    best = {name: min(map(min, times)) for name, times in blocks.items() if times}
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
