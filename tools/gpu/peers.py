#!/usr/bin/env python3
"""Times the chains of chains.py, what reduces of reduction_chains.py, and attention, in another system.

``peers.py torch|jax|cupy`` is run by scripts/gpu_suite.py.

Reads jobs from standard input, one JSON object a line (chain, dtype, megabytes), and writes one line for each: the job
with ``seconds``, or with ``error``.  A system is timed as it is meant to be called, compiled or fused once beforehand;
PyTorch's calls are captured in a CUDA graph where that works, so that its launches cost what ours cost there.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # tools/, behind the packages of this Python

import numpy as np

from tools.gpu.attention import SUBJECTS as ATTENTION
from tools.gpu.attention import Attending
from tools.gpu.chains import CHAINS, Chain
from tools.gpu.reduction_chains import SUBJECTS, Reducing

_ROUNDS = 5
_CALLS_IN_A_GRAPH = 20
Subject = Chain | Reducing | Attending
Prepare = Callable[[Subject, Sequence[np.ndarray], str], tuple[Callable[[], Any], Callable[[], Any], int]]
"""Gives a call to time, what waits for it, and the number of chains that the call computes."""


def prepare_torch(chain: Subject, arrays: Sequence[np.ndarray], dtype: str) -> tuple[Any, Any, int]:
    """torch.compile, its kernel replayed from a CUDA graph.

    Dynamo keeps what it compiled by the code object of the lambda, which all jobs share, and after eight of them runs
    the rest as it is: so each begins anew, and what is not compiled as a whole is an error.
    """
    import torch

    torch.compiler.reset()
    if hasattr(torch._dynamo.config, "fail_on_recompile_limit_hit"):
        torch._dynamo.config.fail_on_recompile_limit_hit = True
    kind = getattr(torch, dtype)
    special = {
        "relu": torch.relu,
        "clip": torch.clamp,
        "sigmoid": torch.sigmoid,
        "erf": torch.erf,
        "amax": torch.amax,
        "concat": torch.cat,
        "cast": lambda a: a.to(kind),
    }
    ops = chain.ops(torch, kind, special)
    inputs = [torch.from_numpy(array).cuda() for array in arrays]
    compiled = torch.compile(lambda *values: chain.build(ops, *values), dynamic=False, fullgraph=True)
    compiled(*inputs)
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(_CALLS_IN_A_GRAPH):
                compiled(*inputs)
        return graph.replay, torch.cuda.synchronize, _CALLS_IN_A_GRAPH
    except RuntimeError:
        return lambda: compiled(*inputs), torch.cuda.synchronize, 1


def prepare_jax(chain: Subject, arrays: Sequence[np.ndarray], dtype: str) -> tuple[Any, Any, int]:
    """jax.jit; the time of a call from Python is in it."""
    import jax
    import jax.numpy as jnp

    if jax.default_backend() == "cpu":  # it takes the CPU without a word where its plugin for CUDA is missing
        raise RuntimeError("JAX finds no GPU")
    ops = chain.ops(jnp, jnp.dtype(dtype), {"erf": jax.lax.erf, "sigmoid": jax.nn.sigmoid, "relu": jax.nn.relu})
    inputs = [jnp.asarray(array) for array in arrays]
    compiled = jax.jit(lambda *values: chain.build(ops, *values))
    last: list[Any] = [compiled(*inputs)]

    def call() -> None:
        last[0] = compiled(*inputs)

    return call, lambda: jax.block_until_ready(last[0]), 1


def prepare_cupy(chain: Subject, arrays: Sequence[np.ndarray], dtype: str) -> tuple[Any, Any, int]:
    """cupy.fuse; the time of a call from Python is in it."""
    import cupy
    from cupyx.scipy.special import erf

    ops = chain.ops(cupy, np.dtype(dtype), {"erf": erf})
    inputs = [cupy.asarray(array) for array in arrays]
    # The kernel's name, which would be that of the function: a lambda's is none in CUDA.
    fused = cupy.fuse(kernel_name="chain")(lambda *values: chain.build(ops, *values))
    return lambda: fused(*inputs), cupy.cuda.get_current_stream().synchronize, 1


SYSTEMS: dict[str, Prepare] = {"torch": prepare_torch, "jax": prepare_jax, "cupy": prepare_cupy}


def _subjects() -> dict[str, Subject]:
    return {**{chain.name: chain for chain in CHAINS}, **SUBJECTS, **ATTENTION}


def measure(system: str, job: dict[str, Any]) -> dict[str, Any]:
    """The job with its time or its error."""
    try:
        chain = _subjects()[job["chain"]]
        arrays = chain.arrays(job["megabytes"], job["dtype"])
        call, wait, chains = SYSTEMS[system](chain, arrays, job["dtype"])
        return {**job, "seconds": _seconds(call, wait) / chains}
    except Exception as error:  # one job that fails, in whatever way, leaves the others
        return {**job, "error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}


def _seconds(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    def a_round(count: int) -> float:
        wait()
        started = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        return time.perf_counter() - started

    for _ in range(3):
        call()
    count = max(1, min(1000, int(0.02 / max(a_round(1), 1e-6))))
    return median(a_round(count) / count for _ in range(_ROUNDS))


def main() -> int:
    """Answers jobs until there are no more.  What a system prints itself goes to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            print(json.dumps(measure(sys.argv[1], json.loads(line))), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
