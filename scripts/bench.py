#!/usr/bin/env python3
"""Time models and chains of elementwise nodes on the CPU in onnxfuse and in its peers, side by side.

The peers are ONNX Runtime alone, after onnxslim and after onnxsim, OpenVINO, IREE, TVM and torch.compile, each in its
best documented setting and in an environment of its own, which is set up at first use. Each runs in a process of its
own, in turns A B C … C B A. The time of a peer counts only if its outputs are ONNX Runtime's within the tolerance; one
that is missing, fails, or is wrong is left out, and the table says why.

Writes peers.md, peers.svg and peers.json under --out, and prints the table. What was timed before an interruption is
taken over by the next run with the same arguments. Exit status 2 if a model cannot be had or for bad usage.
"""

import argparse
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

# This process and those that it starts take onnxfuse as it is installed, whatever folder they are started in.
os.environ["PYTHONSAFEPATH"] = "1"
sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

import numpy as np

from onnxfuse.bench import machine
from onnxfuse.bench_turns import Worker, WorkerError, ratio_of_processes, take_turns
from onnxfuse.core_distance import CoreDistance
from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.sessions import SessionError
from onnxfuse.zoo.manifest import FetchError, chosen_models, read_manifest
from tools.bench import page as bench_page
from tools.bench.chains import CHAINS
from tools.bench.known_peers import (
    ALONE,
    BASE,
    FAST,
    FAST_ALONE,
    OURS,
    PEERS,
    RELU,
    WORKER,
    Peer,
    one_relu,
    settings,
    simplified,
)
from tools.bench.peers.job import Job
from tools.bench.subjects import SIZES, Subject, make_chain, make_model
from tools.messages import Parser, say

TURN = 0.05
"""Seconds of a turn; long enough that the first run, which finds cold caches, is a small part of it."""


@dataclass(frozen=True)
class Task:
    """A subject that is yet to be made, in a folder."""

    name: str
    group: str
    make: Callable[[Path], Subject]


def tasks(arguments: argparse.Namespace) -> list[Task]:
    """What the command line asks to time.  Raises FetchError for a pattern that no model matches."""
    found = []
    if arguments.only in (None, "models"):
        for model in chosen_models(read_manifest(), arguments.models, arguments.set):
            found.append(
                Task(model.name, "models", partial(make_model, model, tuned=arguments.tuned, made=arguments.made))
            )
    if arguments.only in (None, "chains"):
        for chain in CHAINS:
            for size in SIZES:
                name = f"{chain.name}, {size}"
                found.append(Task(name, "chains", partial(make_chain, chain, size)))
    return found


def chosen_peers(names: str | None) -> list[Peer]:
    """Those named, with commas between, and ONNX Runtime and onnxfuse; all without names.

    Raises OnnxfuseError for one that there is not.
    """
    wanted = names.split(",") if names else list(PEERS)
    unknown = [name for name in wanted if name not in PEERS]
    if unknown:
        raise OnnxfuseError(f"no peer {unknown[0]!r}; the peers are: {', '.join(PEERS)}")
    return [peer for name, peer in PEERS.items() if name in {*wanted, BASE, OURS}]


def environments(peers: list[Peer]) -> tuple[dict[str, str], dict[str, str]]:
    """The Python of each peer, and the reasons of those that have none."""
    pythons, missing = {}, {}
    for peer in peers:
        try:
            pythons[peer.name] = peer.python(say)
        except FetchError as error:
            missing[peer.name] = str(error)
    return pythons, missing


def takes_part(peer: Peer, subject: Subject) -> bool:
    """Whether a peer is one for a subject: limits and other settings of onnxfuse are for chains."""
    if peer.name == ALONE:
        return bool(subject.chain or subject.reducing)
    return bool(subject.chain) or not (peer.limit or peer.own)


def run_subject(
    subject: Subject,
    peers: list[Peer],
    pythons: dict[str, str],
    folder: Path,
    arguments: argparse.Namespace,
    cores: CoreDistance,
) -> tuple[dict[str, dict[str, Any]], float | None]:
    """The result of each peer on one subject, its times or the reason why there are none, and how far two cores were
    from each other meanwhile."""
    results: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for peer in peers:
            say(f"  preparing {peer.title}")
            try:
                worker = _start(peer, pythons[peer.name], subject, folder, arguments)
                stack.callback(worker.close)
                difference = "" if peer.limit else subject.difference(worker.outputs(folder / "outputs.npz"))
                if difference:
                    results[peer.name] = {"reason": f"wrong: {difference}"}
                    worker.close()
                else:
                    workers[peer.name] = worker
            except (WorkerError, RuntimeError) as error:
                results[peer.name] = {"reason": str(error)}
        if arguments.prepare or not workers:
            return results, None
        say("  timing")
        found = take_turns(workers, arguments.seconds, TURN, cores=cores, patience=arguments.patience)
        times = found.times
        results |= {name: {"reason": reason} for name, reason in found.failed.items()}
        results |= {name: {**measured(times, name), "note": str(workers[name].ready.get("note", ""))} for name in times}
    return results, found.distance


def _start(peer: Peer, python: str, subject: Subject, folder: Path, arguments: argparse.Namespace) -> Worker:
    extra: dict[str, Any] = {}
    if peer.simplifier:
        extra["file"] = str(simplified(peer, python, subject.static))
        python = sys.executable  # the same ONNX Runtime as for the others
    elif peer.name in (OURS, ALONE):
        extra = {"file": str(subject.optimized), "library": subject.library}
    elif peer.name in (FAST, FAST_ALONE):
        extra = {"file": str(subject.fast), "library": subject.library}
    elif peer.name == RELU:
        extra["file"] = str(one_relu(subject.static, folder / "relu.onnx"))
    elif peer.name == "tvm":
        extra["file"] = str(subject.folded)
    elif peer.name == "torch" and not (subject.recipe or subject.chain or subject.reducing):
        raise WorkerError("no torch module: the model comes as ONNX")
    job = Job(
        name=subject.name,
        model=str(subject.model),
        static=str(subject.static),
        inputs=str(subject.inputs),
        outputs={name: (str(array.dtype), array.shape) for name, array in subject.expected.items()},
        threads=arguments.threads,
        cache=str(peer.folder()),
        recipe=subject.recipe,
        recipes=subject.recipes,
        chain=subject.chain,
        reducing=subject.reducing,
        trials=arguments.chain_trials if subject.chain else arguments.model_trials,
        settings=extra,
    )
    file = folder / f"{peer.name}.json"
    file.write_text(json.dumps(asdict(job)), encoding="utf-8")
    command = [python, str(WORKER), peer.runner, str(file)]
    return Worker(command, folder / f"{peer.name}.log", settings(arguments.threads, peer.folder()), arguments.timeout)


def measured(times: dict[str, np.ndarray], name: str) -> dict[str, Any]:
    """A peer's milliseconds with quartiles, and its time over onnxfuse's with the bounds of its 95 % interval."""
    low, middle, high = (float(value) for value in np.percentile(times[name], [25, 50, 75]) * 1000)
    result: dict[str, Any] = {"ms": low, "median_ms": middle, "upper_ms": high, "blocks": len(times[name])}
    if OURS in times:
        result["ratio"] = (1.0, 1.0, 1.0) if name == OURS else ratio_of_processes(times[name], times[OURS])
    return result


def run_task(
    task: Task, peers: list[Peer], pythons: dict[str, str], arguments: argparse.Namespace, cores: CoreDistance
) -> dict[str, Any]:
    """The record of one task: what it is, and the result of each peer that is there.

    Of one that ONNX Runtime does not run, as some of 16 bits, it says why.
    """
    with tempfile.TemporaryDirectory(prefix="onnxfuse-bench-") as name:
        try:
            subject = task.make(Path(name))
        except SessionError as error:
            say(f"  {PEERS[BASE].title}: {error}")
            reason = {"reason": str(error)}
            return {"name": task.name, "group": task.group, "size": "", "parameters": 0, "peers": {BASE: reason}}
        fitting = [peer for peer in peers if peer.name in pythons and takes_part(peer, subject)]
        results, distance = run_subject(subject, fitting, pythons, Path(name), arguments, cores)
    for peer, result in results.items():
        if "reason" in result:
            say(f"  {PEERS[peer].title}: {result['reason']}")
    about = {"name": task.name, "group": task.group, "size": subject.size, "parameters": subject.parameters}
    printed = None if subject.printed is None else subject.printed.to_json()
    return {**about, "peers": results, "distance": distance, "printed": printed}


def describe(peers: list[Peer], pythons: dict[str, str], missing: dict[str, str], threads: int) -> dict[str, Any]:
    """What the results are made with."""
    return {
        "machine": f"{machine(threads)}, {os.cpu_count()} CPUs",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "date": str(datetime.date.today()),
        "commit": _commit(),
        "peers": {
            peer.name: {
                "title": peer.title,
                "setting": peer.setting,
                "versions": peer.versions(pythons[peer.name]) if peer.name in pythons else "",
                "missing": missing.get(peer.name, ""),
            }
            for peer in peers
        },
    }


def _commit() -> str:
    """The commit of the checkout, with a plus if it was changed since; empty outside of one."""
    folder = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        return git("rev-parse", "--short", "HEAD") + (
            "+" if git("status", "--porcelain", "--untracked-files=no") else ""
        )
    except OSError:  # there is no git
        return ""


def main() -> int:
    """Run the benchmark and return the exit status."""
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # workers are ended on the way out
    try:
        content = run(tasks(arguments), chosen_peers(arguments.peers), arguments)
    except (OnnxfuseError, SessionError) as error:
        print(f"bench: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"bench: error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    if not arguments.prepare:
        text = bench_page.markdown(content)
        (arguments.out / "peers.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        (arguments.out / "peers.svg").write_text(bench_page.svg(content), encoding="utf-8")
        (arguments.out / "peers.md").write_text(
            f"{text}\n\n![time over the time of onnxfuse](peers.svg)\n", encoding="utf-8"
        )
        print(text)
        (arguments.out / "peers.partial.json").unlink(missing_ok=True)
    return 0


def run(chosen: list[Task], peers: list[Peer], arguments: argparse.Namespace) -> dict[str, Any]:
    """Time every task that an interrupted run has not timed; the content of peers.json."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    partial = arguments.out / "peers.partial.json"
    pythons, missing = environments(peers)
    content = {"schema": 1, **describe(peers, pythons, missing, arguments.threads), "subjects": []}
    same = {"seconds": arguments.seconds, "trials": [arguments.chain_trials, arguments.model_trials]}
    same["tuned"] = arguments.tuned
    content["arguments"] = {**same, "threads": arguments.threads}
    try:
        before = json.loads(partial.read_text(encoding="utf-8"))
        if {**before, "subjects": [], "date": ""} == {**json.loads(json.dumps(content)), "date": ""}:
            content = before
    except (OSError, ValueError):  # nothing was interrupted
        pass
    done = {record["name"]: record for record in content["subjects"]}
    left = [task for task in chosen if task.name not in done]
    if done:
        say(f"taken over from {partial}: {len(chosen) - len(left)} of {len(chosen)}")
    with CoreDistance() as cores:
        for number, task in enumerate(left, start=1):
            say(f"[{number}/{len(left)}] {task.name}")
            record = run_task(task, peers, pythons, arguments, cores)
            if not arguments.prepare:
                done[task.name] = record
                content["subjects"] = list(done.values())
                partial.write_text(json.dumps(content), encoding="utf-8")
    content["subjects"] = [done[task.name] for task in chosen if task.name in done]
    return content


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's, or those given."""
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("--only", choices=("models", "chains"), help="one of the two")
    add("--models", metavar="GLOB", action="append", help="these of the zoo, as * and ? match (repeat)")
    add("--set", default="full", metavar="NAME", help="unless models are named: those of a set (default: full)")
    add("--tuned", action="store_true", help="optimize models with --static and --tune, not as by default")
    add("--peers", metavar="A,B,…", help=f"only these beside ort and onnxfuse: {', '.join(PEERS)}")
    add("--seconds", type=float, default=10.0, metavar="S", help="for timing a subject (default: 10)")
    add("--patience", type=float, default=0.0, metavar="S", help="more, until cores are near each other (default: 0)")
    add("--threads", type=int, default=2, metavar="N", help="of every peer (default: 2)")
    add("--chain-trials", type=int, default=16, metavar="N", help="of TVM's tuner, a kernel of a chain (default: 16)")
    add("--model-trials", type=int, default=0, metavar="N", help="of TVM's tuner, a kernel of a model (default: 0)")
    add("--timeout", type=float, default=1800.0, metavar="S", help="limit of preparing one in a peer (default: 1800)")
    add("--prepare", action="store_true", help="set up and compile everything, time nothing")
    add("--out", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    add("--made", type=Path, metavar="DIR", help="keep large models there, and take what is there as it is")
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main())
