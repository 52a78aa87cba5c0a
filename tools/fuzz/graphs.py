"""Random models through the optimizer: one shard of seeds, its counts, and the reproducers of what fails."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx

from onnxfuse.cli import cli
from onnxfuse.model.protos import onnx_graphs
from tools.fuzz.check import (
    EVERYTHING,
    EXPLAINED,
    FAILED,
    ILL_CONDITIONED,
    NOT_RUN,
    PIPELINES,
    REWRITING,
    SAME,
    UNJUDGED,
    Verdict,
    check,
)
from tools.fuzz.kernels.models import random_kernels
from tools.fuzz.models import random_model
from tools.fuzz.networks import random_network
from tools.fuzz.shrink import Feeds, shrink

NETWORK_EVERY = 6
"""One seed in so many is a convolutional network, for the rules that rewrite around convolutions."""

KERNELS_EVERY = 3
"""One seed in so many, but for these, is a model of operators with kernels of their own, in all their forms."""

COMMAND_EVERY = 40
"""One seed in so many goes through the command line too."""

LOST = "process lost"
OUTCOMES = (SAME, EXPLAINED, ILL_CONDITIONED, FAILED, LOST, UNJUDGED, NOT_RUN)


def model_of(seed: int) -> tuple[onnx.ModelProto, list[Feeds], str]:
    """The model of a seed, its inputs, and the pipeline that it goes through."""
    choose = Random(seed)
    if seed % NETWORK_EVERY == 0:
        network = random_network(choose, special=choose.random() < 0.2)
        return network.model, [network.feeds], REWRITING[seed // NETWORK_EVERY % len(REWRITING)]
    if seed % KERNELS_EVERY == 1:
        kernels, inputs = random_kernels(choose)
        return kernels, [inputs], (EVERYTHING, *REWRITING)[seed // KERNELS_EVERY % (1 + len(REWRITING))]
    made = random_model(choose)
    feeds = [made.feeds, made.resized] if choose.random() < 0.4 else [made.feeds]
    return made.model, feeds, PIPELINES[choose.randrange(len(PIPELINES))]


def run_seeds(seeds: range, begin: Callable[[int], None], request: dict[str, Any]) -> dict[str, Any]:
    """Check the models of ``seeds``; the counts as JSON takes them.  ``request`` names the folder of reproducers."""
    tally = Tally(request)
    for seed in seeds:
        begin(seed)
        model, feeds, pipeline = model_of(seed)
        tally.check(seed, model, feeds, pipeline)
    return tally.result(seeds)


class Tally:
    """What became of the models of a shard, each checked as it comes."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.counts: Counter[str] = Counter()
        self._started = time.process_time()
        self._operators: Counter[str] = Counter()
        self._failures: list[str] = []
        self._notes: list[str] = []
        self._request = request

    def check(self, seed: int, model: onnx.ModelProto, feeds: list[Feeds], pipeline: str) -> None:
        """Check a model by one pipeline, and count."""
        verdict = check(model, feeds, pipeline)
        if verdict.outcome not in (FAILED, NOT_RUN) and seed % COMMAND_EVERY == 1:
            self.counts["command line"] += 1
            verdict = command_line(model, feeds[0]) or verdict
        nodes = [node for graph in onnx_graphs(model.graph) for node in graph.node]
        self.counts.update({verdict.outcome: 1, "graphs": 1, "nodes": len(nodes)})
        self.counts.update({"fused": verdict.fused, "exact": verdict.exact, f"pipeline {pipeline}": 1})
        self._operators.update(node.op_type for node in nodes)
        if verdict.outcome == FAILED:
            reason = report(model, feeds, pipeline, seed, verdict, self._request)
            self._failures.append(f"seed {seed}, {pipeline}: {reason}")
        elif verdict.outcome == UNJUDGED:
            self._failures.append(f"seed {seed}, {pipeline}: cannot be judged: {verdict.reason}")
        elif verdict.outcome == ILL_CONDITIONED:
            self._notes.append(f"seed {seed}, {pipeline}: {verdict.reason}")

    def result(self, seeds: range) -> dict[str, Any]:
        """The counts as JSON takes them."""
        return {
            "start": seeds.start,
            "stop": seeds.stop,
            "counts": dict(self.counts),
            "operators": dict(self._operators),
            "failures": self._failures,
            "notes": self._notes,
            "seconds": time.process_time() - self._started,
        }


def command_line(model: onnx.ModelProto, feeds: Feeds) -> Verdict | None:
    """Optimize, check and inspect with the commands; a verdict if one fails as it must not.

    Status 1, for a difference, is none: a random model may amplify what the tool's tolerance allows.
    """
    with tempfile.TemporaryDirectory(prefix="onnxfuse-fuzz-") as folder:
        source, target, inputs = (str(Path(folder) / name) for name in ("in.onnx", "out.onnx", "inputs.npz"))
        Path(source).write_bytes(model.SerializeToString())
        arguments = []
        if all("/" not in name for name in feeds):
            np.savez(inputs, **feeds)
            arguments = ["--inputs", inputs]
        commands = [["optimize", source, target, "--no-bench", *arguments]]
        commands += [["inspect", source], ["inspect", target, "--json"]]
        commands.append(["check", source, target, *arguments, "--regions"])
        for command in commands:
            if target in command[1:2] and not Path(target).exists():
                continue
            output, error = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
                status = cli.main(command)
            message = error.getvalue().strip().splitlines()[-1:] or [""]
            if command[0] == "optimize" and status == 1:
                return None
            if status not in (0, 1) and not _is_legitimate(message[0]):
                return Verdict(FAILED, f"{command[0]}: status {status}: {message[0]}", f"command {command[0]}")
    return None


def _is_legitimate(message: str) -> bool:
    """Whether the user is told rightly that made-up inputs do not fit the model."""
    return "generated inputs" in message


def report(
    model: onnx.ModelProto, feeds: list[Feeds], pipeline: str, seed: int, verdict: Verdict, request: dict[str, Any]
) -> str:
    """Shrink a failing model and save it with its inputs; a line that says what differs and where it lies."""
    folder = Path(request["reproducers"])
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{seed}-{pipeline}"
    if verdict.kind.startswith("command"):
        save(stem, model, feeds[0], verdict.reason)
        return f"{verdict.reason} ({stem}.onnx)"

    def fails(candidate: onnx.ModelProto, values: Feeds) -> bool:
        found = check(candidate, [values], pipeline, attempts=1)
        return found.outcome == FAILED and found.kind == verdict.kind

    inputs = next((values for values in feeds if fails(model, values)), feeds[0])
    small, small_inputs = shrink(model, inputs, fails)
    reason = check(small, [small_inputs], pipeline).reason
    if not reason:  # it failed by bad luck with the noise
        small, small_inputs, reason = model, inputs, verdict.reason
    save(stem, small, small_inputs, reason)
    return f"{reason} ({stem}.onnx)"


def save(stem: Path, model: onnx.ModelProto, feeds: Feeds, reason: str) -> None:
    """Write ``stem``.onnx, .npz and .txt.  Arrays of types that NumPy files do not know are saved as their bits."""
    stem.with_suffix(".onnx").write_bytes(model.SerializeToString())
    with stem.with_suffix(".npz").open("wb") as file:
        np.savez(file, **feeds)
    stem.with_suffix(".txt").write_text(f"{reason}\n\n{onnx.printer.to_text(model)}\n", encoding="utf-8")


def summary(results: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The sums over all shards, and the most memory that a process took."""
    counts: Counter[str] = Counter()
    operators: Counter[str] = Counter()
    failures: list[str] = []
    notes: list[str] = []
    seconds, most_mb = 0.0, 0
    for result in results:
        most_mb = max(most_mb, result.get("most_mb", 0))
        counts.update(result["counts"])
        operators.update(result["operators"])
        failures += result["failures"]
        notes += result.get("notes", [])
        seconds += result["seconds"]
    return {
        "counts": counts,
        "operators": operators,
        "failures": failures,
        "notes": notes,
        "seconds": seconds,
        "most_mb": most_mb,
    }


def read_results(path: Path) -> list[dict[str, Any]]:
    """The shards that an earlier run has finished."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
