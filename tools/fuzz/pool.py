"""Worker processes that may crash or hang: shards of numbered tasks, and what became of them.

A shard is a range of numbers (the seeds of random models, say).  A worker process runs one after the other; if it dies
or gets stuck, the number that it was at is reported, and another process goes on with the rest.
"""

from __future__ import annotations

import importlib
import multiprocessing
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

TaskFunction = Callable[[range, Callable[[int], None], Any], dict[str, Any]]
"""Runs the numbers of a range, calling its second argument with each before it starts; the third is the request."""

CPU_SECONDS = 300.0
WALL_SECONDS = 3600.0
"""How long one task may take before it counts as stuck.  The wall clock is generous, for processes may be paused."""

MAX_RESIDENT_MB = 2000
"""A worker that has grown beyond this is replaced after its shard."""


@dataclass(frozen=True)
class Job:
    """What workers run: the function ``name`` of the module ``module``, with ``request`` as its last argument."""

    module: str
    name: str
    request: Any


@dataclass
class Shard:
    """A range of numbers, and the results of the parts of it that were run."""

    numbers: range
    results: list[dict[str, Any]] = field(default_factory=list)
    lost: list[tuple[int, str]] = field(default_factory=list)
    """Numbers at which a process died or was stuck, and how."""


def run_shards(job: Job, shards: Iterator[range], jobs: int, deadline: float | None) -> Iterator[Shard]:
    """Run shards on ``jobs`` processes, and yield each when it is done; none is begun after ``deadline``."""
    workers = [_Worker(job) for _ in range(jobs)]
    try:
        for worker in workers:
            worker.next(shards, deadline)
        while any(worker.shard is not None for worker in workers):
            wait([worker.connection for worker in workers if worker.shard is not None], timeout=5.0)
            for worker in workers:
                if worker.shard is not None and (done := worker.poll()):
                    yield done
                    worker.next(shards, deadline)
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    def __init__(self, job: Job) -> None:
        self._job = job
        self.shard: Shard | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._at = context.Value("q", -1)
        self._process = context.Process(target=_serve, args=(self._job, theirs, self._at), daemon=True)
        self._process.start()
        theirs.close()
        self._seen = (-1, 0.0, time.monotonic())

    def stop(self) -> None:
        """End the process."""
        self.connection.close()
        self._process.kill()
        self._process.join()

    def next(self, shards: Iterator[range], deadline: float | None) -> None:
        """Begin another shard, if there is one."""
        numbers = None if deadline is not None and time.monotonic() > deadline else next(shards, None)
        self.shard = None if numbers is None else Shard(numbers)
        if numbers is not None:
            self._send(numbers)

    def _send(self, numbers: range) -> None:
        self._at.value = numbers.start  # if it dies before it begins any, that is the one that is lost
        self.connection.send(numbers)

    def poll(self) -> Shard | None:
        """The shard, if it is done."""
        assert self.shard is not None
        if self.connection.poll():
            try:
                result = self.connection.recv()
            except (EOFError, ConnectionError):
                self._process.join()
                return self._lose(_how_ended(self._process.exitcode))
            self.shard.results.append(result)
            if result["resident_mb"] > MAX_RESIDENT_MB:
                self.stop()
                self._start()
            return self.shard
        number = int(self._at.value)
        cpu, now = _cpu_seconds(self._process.pid), time.monotonic()
        if number != self._seen[0]:
            self._seen = (number, cpu, now)
        elif cpu - self._seen[1] > CPU_SECONDS or now - self._seen[2] > WALL_SECONDS:
            self._process.kill()
            self._process.join()
            return self._lose(f"not done after {cpu - self._seen[1]:.0f} s of processor time")
        return None

    def _lose(self, how: str) -> Shard | None:
        """Another process for what comes after the number at which this one ended."""
        assert self.shard is not None
        number = int(self._at.value)
        self.shard.lost.append((number, how))
        self.stop()
        self._start()
        rest = range(number + 1, self.shard.numbers.stop)
        if not rest:
            return self.shard
        self._send(rest)
        return None


def _how_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with status {code}"


def _cpu_seconds(pid: int | None) -> float:
    """The processor time that a process has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / 100.0


def _serve(job: Job, connection: Connection, at: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    function: TaskFunction = getattr(importlib.import_module(job.module), job.name)

    def begin(number: int) -> None:
        at.value = number

    while True:
        try:
            numbers = connection.recv()
        except (EOFError, OSError):
            return
        result = function(numbers, begin, job.request)
        result["resident_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        connection.send(result)
