"""A copy of the input into another buffer: what an elementwise chain costs at least."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tools.bench.peers.job import Job, Prepared, zeros

_ONE_THREAD = 1 << 18
"""Bytes below which two threads get into each other's way."""
_ROUND = 1 << 25
"""Bytes that a thread copies before it waits for the others: so that waking a thread is no part of the limit."""


def prepare(job: Job) -> Prepared:
    """Each thread, the caller too, copies an equal part, as often as a round asks for."""
    (source,) = job.feeds().values()
    target = zeros(source.shape, source.dtype)
    threads = 1 if source.nbytes < _ONE_THREAD else job.threads
    targets, sources = (np.array_split(array.reshape(-1), threads) for array in (target, source))
    parts = list(zip(targets, sources, strict=True))
    pool = ThreadPoolExecutor(max(threads - 1, 1))
    repeats = max(1, _ROUND // source.nbytes)

    def copy(to: np.ndarray, what: np.ndarray) -> None:
        for _ in range(repeats):
            np.copyto(to, what)

    def run() -> None:
        others = [pool.submit(copy, *part) for part in parts[1:]]
        copy(*parts[0])
        for other in others:
            other.result()

    return Prepared(run, lambda: [target], repeats=repeats)
