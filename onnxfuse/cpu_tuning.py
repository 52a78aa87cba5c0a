"""``optimize --tune`` for the CPU: which convolutions the library computes is measured, not estimated.

The estimate (cpu_convolutions.py) is good to some 9 % of a model's time, and it knows neither the processor nor
the number of threads.  So the model is optimized in each of the ways that ``--conv`` names, and the models are run in
turns, in sessions with ONNX Runtime's own number of threads.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onnxfuse.bench_turns import ratio_with_spread
from onnxfuse.check.made_up_inputs import BENCHMARK_SIZES, generate
from onnxfuse.check.parity import Progress
from onnxfuse.errors import OnnxfuseError
from onnxfuse.files.model_io import read_outline
from onnxfuse.fused.choices import ConvPolicy
from onnxfuse.run.given_shapes import Shapes
from onnxfuse.run.inputs import Given, InputSet, default_specs, input_specs, read_inputs
from onnxfuse.run.sessions import Session, SessionError, has_fused_nodes

SECONDS = 2.0
"""For each candidate, of which a turn takes:"""
TURN_SECONDS = 0.05
LEAST_RATIO = 1.01
"""The estimate's choice stays where another is faster by less, or where chance may have made it so."""
_LEAST_ROUNDS = 4
_LEAST_RUNS = 3


@dataclass(frozen=True)
class Tuned:
    """The way to take, and how many times as fast as the estimate's each other one is that gives another model: the
    ratio, and the bounds of its 95 % interval."""

    policy: ConvPolicy
    ratios: Mapping[ConvPolicy, tuple[float, float, float]]

    def describe(self) -> str:
        """One sentence."""
        if not self.ratios:
            return "Nothing to tune: no choice of convolutions changes the model."
        ratios = ", ".join(
            f"{policy.value} {ratio:.2f} ({low:.2f} to {high:.2f})"
            for policy, (ratio, low, high) in self.ratios.items()
        )
        return f"Tuned: --conv {self.policy.value} is taken; times as fast as auto: {ratios}."


def tune(
    make: Callable[[ConvPolicy, Path], None],
    folder: Path,
    shapes: Shapes,
    inputs: Given | None,
    progress: Progress,
) -> Tuned:
    """The fastest of the models that ``make`` writes to a file for each policy.

    They run on the first set of ``inputs``, an .npz file or a directory, or else on made-up ones of ``shapes``.
    ``folder`` is for the files, which are left there.  Raises OnnxfuseError if they do not run on these inputs.
    """
    files: dict[ConvPolicy, Path] = {}
    for policy in ConvPolicy:
        progress(f"optimizing with --conv {policy.value}")
        path = folder / f"{policy.value}.onnx"
        make(policy, path)
        if all(path.read_bytes() != other.read_bytes() for other in files.values()):
            files[policy] = path
    if len(files) == 1:
        return Tuned(ConvPolicy.AUTO, {})
    try:
        sessions = {policy: _session(path) for policy, path in files.items()}
        feeds = _inputs(files[ConvPolicy.AUTO], sessions[ConvPolicy.AUTO], shapes, inputs)
        progress(f"timing {len(files)} choices of convolutions in turns")
        times = _time_in_turns(sessions, feeds)
    except SessionError as error:
        raise OnnxfuseError(f"the model cannot be tuned, for it does not run: {error}") from error
    others = [policy for policy in files if policy is not ConvPolicy.AUTO]
    ratios: dict[ConvPolicy, tuple[float, float, float]] = {
        policy: ratio_with_spread(np.stack([times[ConvPolicy.AUTO], times[policy]], axis=1)) for policy in others
    }
    faster = [policy for policy, (ratio, low, _) in ratios.items() if ratio >= LEAST_RATIO and low > 1]
    return Tuned(max(faster, key=lambda policy: ratios[policy], default=ConvPolicy.AUTO), ratios)


def _session(path: Path) -> Session:
    return Session(path, library=has_fused_nodes(read_outline(path)), spinning_between_runs=False)


def _inputs(path: Path, session: Session, shapes: Shapes, given: Given | None) -> InputSet:
    model = read_outline(path)
    specs = input_specs(model)
    if given is not None:
        return read_inputs(given, specs, default_specs(model))[0]
    return next(generate(specs, session.run, shapes, BENCHMARK_SIZES, model))[0]


def _time_in_turns(sessions: Mapping[ConvPolicy, Session], inputs: InputSet) -> dict[ConvPolicy, np.ndarray]:
    """The seconds of a run in each session, one value a round, which has the order A B C C B A: the clock of the CPU,
    and other processes, disturb all alike.

    A turn is several runs, of which the first does not count, for it finds in the caches what another session left.
    """
    times: dict[ConvPolicy, list[float]] = {policy: [] for policy in sessions}
    order = list(sessions)
    end = time.perf_counter() + SECONDS * len(sessions)
    while len(times[order[0]]) < _LEAST_ROUNDS or time.perf_counter() < end:
        found: dict[ConvPolicy, list[float]] = {policy: [] for policy in sessions}
        for policy in (*order, *reversed(order)):
            found[policy] += _turn(sessions[policy], inputs)
        for policy, runs in found.items():
            times[policy].append(float(np.median(runs)))
    return {policy: np.array(found) for policy, found in times.items()}


def _turn(session: Session, inputs: InputSet) -> list[float]:
    session.run(inputs.feeds)
    times: list[float] = []
    while len(times) < _LEAST_RUNS or sum(times) < TURN_SECONDS:
        start = time.perf_counter()
        session.run(inputs.feeds)
        times.append(time.perf_counter() - start)
    return times
