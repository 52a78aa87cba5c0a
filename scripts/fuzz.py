#!/usr/bin/env python3
"""Look for inputs on which onnxfuse fails.

graphs: random models, optimized, run, and compared with plain ONNX Runtime.
bytes: damaged model files given to the commands.
native: mutated programs and shapes given to the native library, built with sanitizers.

Every failure is printed in one line and saved under --out, made small where that is possible.  Exit status 1 if
anything fails.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["PYTHONSAFEPATH"] = "1"  # this process and those that it starts take onnxfuse as it is installed
sys.path.insert(0, str(Path(__file__).resolve().parent))

import fuzz_graphs
from fuzz_check import FAILED
from fuzz_pool import Job, run_shards

ROOT = Path(__file__).resolve().parent.parent
SHARD = 250


def graphs(arguments: argparse.Namespace) -> int:
    """Random models: those of the seeds from --seed on that an earlier run with the same --out has not done."""
    out: Path = arguments.out / "graphs"
    out.mkdir(parents=True, exist_ok=True)
    log = out / "shards.jsonl"
    done = fuzz_graphs.read_results(log)
    finished = {(result["start"], result["stop"]) for result in done}
    end = arguments.seed + arguments.count
    starts = range(arguments.seed, end, SHARD)
    shards = (range(start, min(start + SHARD, end)) for start in starts)
    left = (numbers for numbers in shards if (numbers.start, numbers.stop) not in finished)
    deadline = None if arguments.seconds is None else time.monotonic() + arguments.seconds
    job = Job("fuzz_graphs", "run_seeds", {"reproducers": str(out / "reproducers")})
    with log.open("a", encoding="utf-8") as file:
        for result in _merged(run_shards(job, left, arguments.jobs, deadline)):
            done.append(result)
            file.write(json.dumps(result) + "\n")
            file.flush()
            for failure in result["failures"]:
                print(failure, flush=True)
            _progress(done)
    mine = [result for result in done if arguments.seed <= result["start"] < end]
    return _report(fuzz_graphs.summary(mine))


def _merged(shards: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """One result a shard; a number at which a process was lost is a failure."""
    for shard in shards:
        merged = fuzz_graphs.summary(shard.results)
        merged["failures"] += [f"seed {number}: {how}" for number, how in shard.lost]
        merged["counts"].update({"graphs": len(shard.lost), fuzz_graphs.LOST: len(shard.lost)})
        yield {"start": shard.numbers.start, "stop": shard.numbers.stop, **merged}


def _progress(done: list[dict[str, Any]]) -> None:
    counts = fuzz_graphs.summary(done)["counts"]
    print(f"{counts['graphs']} graphs, {counts[FAILED]} failed", file=sys.stderr, flush=True)


def _report(result: dict[str, Any]) -> int:
    counts, seconds = result["counts"], result["seconds"]
    print(f"{counts['graphs']} graphs of {counts['nodes']} nodes, {counts['fused']} fused nodes")
    print(f"{counts['graphs'] / max(seconds, 1e-9):.1f} graphs a second of processor time")
    for outcome in fuzz_graphs.OUTCOMES:
        print(f"{outcome}: {counts[outcome]}")
    print(f"outputs compared to the last bit: {counts['exact']}; through the command line: {counts['command line']}")
    print("operators: " + ", ".join(f"{name} {number}" for name, number in sorted(result["operators"].items())))
    for failure in result["failures"]:
        print(f"FAILED {failure}")
    return 1 if result["failures"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    random = commands.add_parser("graphs", help="random models", allow_abbrev=False)
    random.add_argument("--count", type=int, default=2000, metavar="N", help="how many (default: 2000)")
    random.add_argument("--seed", type=int, default=0, metavar="S", help="the first (default: 0)")
    random.add_argument("--jobs", type=int, default=1, metavar="J", help="processes (default: 1)")
    random.add_argument("--seconds", type=float, metavar="T", help="begin nothing new after this time")
    random.set_defaults(command=graphs)
    for command in (random,):
        command.add_argument(
            "--out", type=Path, default=ROOT / "build" / "fuzz", metavar="DIR", help="results (default: build/fuzz)"
        )
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
