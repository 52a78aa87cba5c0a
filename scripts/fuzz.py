#!/usr/bin/env python3
"""Look for inputs on which onnxfuse fails.

graphs: random models, optimized, run, and compared with plain ONNX Runtime.
nnsmith: the same with models of NNSmith's, another generator, which gets an environment of its own at first use.
bytes: damaged model files given to the commands.
native: mutated programs given to the native library, built with sanitizers.

Every failure is printed in one line and saved under --out, made small where that is possible.  Exit status 1 if
anything fails.
"""

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

os.environ["PYTHONSAFEPATH"] = "1"  # this process and those that it starts take onnxfuse as it is installed
sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

from onnxfuse.zoo.fetching import cache
from tools.fuzz import bytes as fuzz_bytes
from tools.fuzz import graphs as fuzz_graphs
from tools.fuzz import native as fuzz_native
from tools.fuzz import nnsmith_models as fuzz_nnsmith
from tools.fuzz.pool import Job, run_shards
from tools.messages import Parser, say

ROOT = Path(__file__).resolve().parent.parent
GRAPH_SHARD, FILE_SHARD = 250, 50


def graphs(arguments: argparse.Namespace) -> int:
    """Random models: those of the seeds from --seed on that an earlier run with the same --out has not done."""
    result = _numbers(
        arguments, "graphs", GRAPH_SHARD, Job(fuzz_graphs.__name__, "run_seeds", _request(arguments, "graphs"))
    )
    return _say_models(result)


def nnsmith(arguments: argparse.Namespace) -> int:
    """Models that NNSmith makes of the seeds from --seed on that an earlier run with the same --out has not done, each
    by all passes and in one of the other ways.  A seed makes the same model again as far as NNSmith's solver is done in
    time.
    """
    python = arguments.python or fuzz_nnsmith.environment()
    request = {**_request(arguments, "nnsmith"), "python": python}
    result = _numbers(arguments, "nnsmith", GRAPH_SHARD, Job(fuzz_nnsmith.__name__, "run_seeds", request))
    made, not_made = (result["counts"][name] for name in (fuzz_nnsmith.MADE, fuzz_nnsmith.NOT_MADE))
    print(f"{made} models of {made + not_made} seeds; each counts twice, once for each way")
    return _say_models(result)


def _say_models(result: dict[str, Any]) -> int:
    counts, seconds = result["counts"], result["seconds"]
    print(f"{counts['graphs']} graphs of {counts['nodes']} nodes, {counts['fused']} fused nodes")
    print(f"{counts['graphs'] / max(seconds, 1e-9):.1f} graphs a second of processor time")
    for outcome in fuzz_graphs.OUTCOMES:
        print(f"{outcome}: {counts[outcome]}")
    for note in result["notes"]:
        print(f"NOTE {note}")
    print(f"outputs compared to the last bit: {counts['exact']}; through the command line: {counts['command line']}")
    print("operators: " + ", ".join(f"{name} {number}" for name, number in sorted(result["operators"].items())))
    return _failed(result)


def files(arguments: argparse.Namespace) -> int:
    """Damaged files: those of the numbers from --seed on that an earlier run with the same --out has not done."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # or forked processes would wait for threads that they lack
    stored = [path for path in arguments.models.glob("*.onnx") if path.stat().st_size <= fuzz_bytes.MAX_FILE]
    request = {**_request(arguments, "bytes"), "models": [str(path) for path in sorted(stored)]}
    result = _numbers(arguments, "bytes", FILE_SHARD, Job(fuzz_bytes.__name__, "run_cases", request))
    for what, count in sorted(result["counts"].items()):
        print(f"{what}: {count}")
    print(f"most memory: {result['most_mb']} MB")
    return _failed(result)


def native(arguments: argparse.Namespace) -> int:
    """The native library under sanitizers."""
    seconds = 60.0 if arguments.seconds is None else arguments.seconds
    result = fuzz_native.fuzz(arguments.out / "native", seconds, arguments.jobs, arguments.seed)
    print(result.counts())
    print(f"{result.seconds:.0f} s of processor time; edges covered: {result.coverage or 'not counted'}")
    for finding in result.findings:
        print(f"FAILED {finding}")
    return 1 if result.findings else 0


def _request(arguments: argparse.Namespace, kind: str) -> dict[str, Any]:
    return {"reproducers": str(arguments.out / kind / "reproducers")}


def _numbers(arguments: argparse.Namespace, kind: str, size: int, job: Job) -> dict[str, Any]:
    """Run a job on the numbers that are left, with a line of JSON for each shard that is done; the sums over all."""
    out: Path = arguments.out / kind
    out.mkdir(parents=True, exist_ok=True)
    log = out / "shards.jsonl"
    done = fuzz_graphs.read_results(log)
    finished = {(result["start"], result["stop"]) for result in done}
    first, end = arguments.seed, arguments.seed + arguments.count
    shards = (range(start, min(start + size, end)) for start in range(first, end, size))
    left = (numbers for numbers in shards if (numbers.start, numbers.stop) not in finished)
    deadline = None if arguments.seconds is None else time.monotonic() + arguments.seconds
    with log.open("a", encoding="utf-8") as file:
        for shard in run_shards(job, left, arguments.jobs, deadline):
            merged = fuzz_graphs.summary(shard.results)
            merged["failures"] += [f"{number}: {how}" for number, how in shard.lost]
            merged["counts"].update({fuzz_graphs.LOST: len(shard.lost)})
            done.append({"start": shard.numbers.start, "stop": shard.numbers.stop, **merged})
            file.write(json.dumps(done[-1]) + "\n")
            file.flush()
            for failure in merged["failures"]:
                print(failure, flush=True)
            failed = sum(len(result["failures"]) for result in done)
            numbers = sum(result["stop"] - result["start"] for result in done)
            say(f"{numbers} {kind}, {failed} failed")
    return fuzz_graphs.summary(result for result in done if first <= result["start"] < end)


def _failed(result: dict[str, Any]) -> int:
    for failure in result["failures"]:
        print(f"FAILED {failure}")
    return 1 if result["failures"] else 0


def _parser() -> Parser:
    parser = Parser(description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command, count, summary in (
        ("graphs", graphs, 2000, "random models"),
        ("nnsmith", nnsmith, 300, "models of NNSmith's"),
        ("bytes", files, 500, "damaged model files"),
        ("native", native, 0, "the native library under sanitizers"),
    ):
        one = commands.add_parser(
            name,
            help=summary,
            description=command.__doc__,
            formatter_class=argparse.HelpFormatter,
            allow_abbrev=False,
        )
        if count:
            one.add_argument("--count", type=int, default=count, metavar="N", help=f"how many (default: {count})")
        one.add_argument("--seed", type=int, default=0, metavar="S", help="the first number (default: 0)")
        one.add_argument("--jobs", type=int, default=1, metavar="J", help="processes (default: 1)")
        limit = "begin nothing new after this time" if count else "processor time to spend (default: 60)"
        one.add_argument("--seconds", type=float, metavar="T", help=limit)
        one.add_argument(
            "--out", type=Path, default=ROOT / "build" / "fuzz", metavar="DIR", help="results (default: build/fuzz)"
        )
        if name == "bytes":
            folder = cache()
            one.add_argument(
                "--models", type=Path, default=folder, metavar="DIR", help="models to damage, besides onnx's own"
            )
        if name == "nnsmith":
            one.add_argument("--python", metavar="FILE", help="that of an environment with NNSmith, torch and onnx")
        one.set_defaults(command=command)
    return parser


def main() -> int:
    """Run the command line and return the exit status."""
    warnings.simplefilter("ignore")  # random numbers overflow on purpose
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    arguments = _parser().parse_args()
    status: int = arguments.command(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
