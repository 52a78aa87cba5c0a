"""Where the time of a model goes, before and after: ONNX Runtime's profiler on both, one after the other.

The profiler takes time itself, some microseconds a node: how much faster a model is, ``bench`` tells.
"""

import json
import time
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import onnx

from onnxfuse.check.parity import PROVIDERS
from onnxfuse.errors import OnnxfuseError
from onnxfuse.files.model_io import read_outline
from onnxfuse.fused.kinds import DOMAIN, NODES_KEY, reported_name
from onnxfuse.model.protos import onnx_graphs
from onnxfuse.model.replacing import scratch
from onnxfuse.report.profile import NodeTime, Profile
from onnxfuse.run.inputs import InputSet
from onnxfuse.run.sessions import Session, SessionError

_WARM_UPS = 2
_LEAST_RUNS, _MOST_RUNS = 3, 50
_SECONDS = 1.0
_SUFFIX = "_kernel_time"
_TITLES = ("original", "optimized")

Event = dict[str, Any]
"""One of a trace, in the Trace Event Format of Chromium's tools."""


def profile(
    original: Path, result: Path, inputs: InputSet, target: str = "cpu", threads: int = 0
) -> tuple[Profile, bytes]:
    """The times of the nodes of both models, and the last run of each as a trace that Chrome and Perfetto show.

    Each model runs on ``inputs`` for about a second, three to fifty times, after two runs that are not counted.
    ``threads`` are the intra-op threads, 0 for ONNX Runtime's choice.  Raises OnnxfuseError, naming the file, if
    a model does not run.
    """
    times, runs, trace = [], [], list[Event]()
    for number, path in enumerate((original, result), 1):
        model = read_outline(path)
        fused = {node.name for graph in onnx_graphs(model.graph) for node in graph.node if node.domain == DOMAIN}
        profiled = _run(path, bool(fused), inputs, target, threads)
        for event in (event for run in profiled for event in run):
            event["op"] = _operator(event, fused)
        stands_for = _originals(model)
        times.append(_times(profiled, stands_for))
        runs.append(len(profiled))
        trace += _traced(profiled[-1], number, stands_for)
    found = Profile(tuple(times[0]), tuple(times[1]), (runs[0], runs[1]))
    return found, json.dumps({"traceEvents": trace, "displayTimeUnit": "ms"}).encode()


def _run(path: Path, library: bool, inputs: InputSet, target: str, threads: int) -> list[list[Event]]:
    """The events of the nodes of each run that counts."""
    with scratch() as folder:
        try:
            session = Session(
                path, providers=PROVIDERS[target], library=library, threads=threads, profile=folder / "profile"
            )
            end, count = time.perf_counter() + _SECONDS, 0
            while count < _WARM_UPS + _LEAST_RUNS or (time.perf_counter() < end and count < _WARM_UPS + _MOST_RUNS):
                session.run(inputs.feeds)
                count += 1
            events: list[Event] = json.loads(session.end_profiling().read_bytes())
        except SessionError as error:
            raise OnnxfuseError(f"ONNX Runtime cannot run {path}: {error}") from error
    runs: list[list[Event]] = []
    starts = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("name") == "model_run")
    nodes = sorted(
        (e for e in events if e.get("cat") == "Node" and str(e.get("name")).endswith(_SUFFIX)), key=lambda e: e["ts"]
    )
    position = 0
    for _start, finish in starts:
        first = position
        while position < len(nodes) and nodes[position]["ts"] <= finish:
            position += 1
        runs.append(nodes[first:position])
    if len(runs) <= _WARM_UPS:
        raise OnnxfuseError(f"ONNX Runtime's profile of {path} has {len(runs)} runs of {count}")
    return runs[_WARM_UPS:]


def _originals(model: onnx.ModelProto) -> dict[str, tuple[str, ...]]:
    """For each fused node, by its name, the names of the original nodes that it stands for."""
    found = {}
    for node in model.graph.node:
        names = next((entry.value for entry in node.metadata_props if entry.key == NODES_KEY), "")
        if names:
            found[node.name] = tuple(names.split(","))
    return {name: tuple(_resolved(names, found)) for name, names in found.items()}


def _resolved(names: Iterable[str], found: dict[str, tuple[str, ...]]) -> list[str]:
    """With the names of fused nodes that another took in replaced by theirs, where these are known."""
    return [inner for name in names for inner in (found.get(name, ()) or (name,))]


def _times(runs: list[list[Event]], stands_for: dict[str, tuple[str, ...]]) -> list[NodeTime]:
    sums: dict[tuple[str, str], float] = {}
    for event in (event for run in runs for event in run):
        key = (event["name"].removesuffix(_SUFFIX), event["op"])
        sums[key] = sums.get(key, 0.0) + event["dur"]
    found = [NodeTime(name, op, total / len(runs), stands_for.get(name, ())) for (name, op), total in sums.items()]
    return sorted(found, key=lambda one: (-one.microseconds, one.name))


def _operator(event: Event, fused: Container[str]) -> str:
    """What the operator of an event is called; ``fused`` are the names of fused nodes, for a profile has no domains."""
    op = str(event.get("args", {}).get("op_name", ""))
    return reported_name(op, event["name"].removesuffix(_SUFFIX) in fused)


def _traced(run: list[Event], number: int, stands_for: dict[str, tuple[str, ...]]) -> list[Event]:
    """The events of a run from 0 on, as those of the process ``number``."""
    start = run[0]["ts"] if run else 0
    title = {"name": "process_name", "ph": "M", "pid": number, "tid": 0, "args": {"name": _TITLES[number - 1]}}
    found: list[Event] = [title]
    for event in run:
        name = event["name"].removesuffix(_SUFFIX)
        args = {"op": event["op"], "shapes": event.get("args", {}).get("output_type_shape", [])}
        if name in stands_for:
            args["stands_for"] = list(stands_for[name])
        at = {"ts": event["ts"] - start, "dur": event["dur"], "pid": number, "tid": 0}
        found.append({"name": name, "cat": "Node", "ph": "X", **at, "args": args})
    return found
