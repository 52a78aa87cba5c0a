#!/usr/bin/env python3
"""Write benchmarks/reductions.md: chains that reduce and single reductions on the CPU, beside ONNX Runtime.

The subjects are those of tools/gpu/reduction_chains.py, in a shape that deployed models have, and at several sizes of
their first input. Each is optimized as by default; the original and the result run in processes of their own, in
turns, with all processors (onnxfuse.bench_processes). A ratio is the time of the original over that of the result: the
median of three pairs of processes, with the least and the greatest, for two processes lay the same tensors out in
memory in ways that differ by more than chance does within one. Over a copy, likewise: the time of the result at 64 MB
over that in which as many threads as there are processors copy as many bytes as its inputs and outputs have together,
half of them to the other half, before and after.

With --peers the ten chains are run in these shapes by other programs too, each in a process and an environment of its
own as scripts/bench.py has them, and the table is benchmarks/reductions_peers.md. What was timed before an interruption
is taken over by the next run.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from statistics import median

os.environ["PYTHONSAFEPATH"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

import bench
import numpy as np
import onnx

import onnxfuse
from onnxfuse import cpu
from onnxfuse.bench import machine
from onnxfuse.bench_processes import time_models
from onnxfuse.run.inputs import InputSet
from onnxfuse.speed import ORIGINAL, RESULT, ratio_of
from tools.bench.page import markdown
from tools.bench.subjects import make_reducing
from tools.gpu.reduction_chains import CHAINS, OPERATORS, Reducing, onnx_model, output_shape
from tools.markdown_table import table
from tools.messages import Parser

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks" / "reductions.md"
PEERS_PAGE = PAGE.with_name("reductions_peers.md")
PARTIAL = ROOT / "build" / "reductions_peers"
"""Where a run beside peers keeps what it has timed."""
SETTINGS = "The ten chains are planned as by default, TVM runs its default schedules, and torch.compile is as it is."
MEGABYTES = (None, 0.1, 2, 64)
"""Of the first input; None for that of the usual shape."""
PEERS_MEGABYTES: tuple[float | None, ...] = (None,)
LEFT = "left to ONNX Runtime"
COPIES = 15
PAIRS = 3
"""Of processes, for each subject of one size."""


def copy_seconds(size: int) -> float:
    """The time in which all processors copy half of so many bytes to the other half."""
    count = cpu.usable()
    pairs = [(np.ones(size // 2 // count, np.uint8), np.ones(size // 2 // count, np.uint8)) for _ in range(count)]
    start = threading.Barrier(count + 1)

    def copy(pair: tuple[np.ndarray, np.ndarray]) -> None:
        for _ in range(COPIES):
            start.wait()
            np.copyto(*pair)
            start.wait()

    threads = [threading.Thread(target=copy, args=(pair,)) for pair in pairs]
    for thread in threads:
        thread.start()
    found = []
    for _ in range(COPIES):
        begin = time.perf_counter()
        start.wait()
        start.wait()
        found.append(time.perf_counter() - begin)
    for thread in threads:
        thread.join()
    return float(np.quantile(found, 0.25))


@dataclass(frozen=True)
class Measured:
    """What a subject of one size takes: the nodes of the original and of the result, for each pair of processes the
    ratio of their times, and the result's time over that of a copy.  Empty where it is left to ONNX Runtime."""

    nodes: str
    ratios: tuple[float, ...] = ()
    overs: tuple[float, ...] = ()

    def __str__(self) -> str:
        return in_range(self.ratios) if self.ratios else LEFT


def in_range(values: Sequence[float]) -> str:
    """Their median, with the least and the greatest."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else f"{values[0]:.2f}"


def measure(subject: Reducing, megabytes: float | None, folder: Path, pairs: int, seconds: float) -> Measured:
    """Times a subject whose first input has so many 10^6 bytes, or its usual shape, in so many pairs of processes, each
    for so many seconds."""
    model = onnx_model(subject, "float32")
    result = onnxfuse.optimize(model, "cpu", check=False).model
    nodes = f"{len(model.graph.node)} → {len(result.graph.node)}"
    if not any(node.domain == "onnxfuse" for node in result.graph.node):
        return Measured(nodes)
    paths = {ORIGINAL: folder / "original.onnx", RESULT: folder / "result.onnx"}
    for name, proto in ((ORIGINAL, model), (RESULT, result)):
        onnx.save(proto, paths[name])
    arrays = subject.arrays(megabytes, "float32")
    names = {value.name for value in model.graph.input}
    feeds = {f"x{index}": array for index, array in enumerate(arrays) if f"x{index}" in names}
    written = 4 * math.prod(output_shape(subject, [array.shape for array in arrays]))
    moved = sum(array.nbytes for array in arrays) + written
    ratios, overs = [], []
    for _ in range(pairs):
        before = copy_seconds(moved)
        timed = time_models(paths, InputSet("random", feeds), seconds=seconds)
        copy = (before + copy_seconds(moved)) / 2
        ratios.append(ratio_of(timed[ORIGINAL], timed[RESULT])[0])
        overs.append(float(np.quantile(timed[RESULT].times, 0.25)) / copy)
    return Measured(nodes, tuple(ratios), tuple(overs))


def geometric_mean(found: Sequence[Measured]) -> str:
    """That of ratios."""
    return f"{math.exp(sum(math.log(median(one.ratios)) for one in found) / len(found)):.2f}"


def beside_peers(arguments: argparse.Namespace) -> int:
    """Time the chains in every program that is asked for; print and write their page."""
    given = ["--peers", arguments.peers, "--seconds", str(arguments.seconds), "--out", str(PARTIAL)]
    asked = bench.parse_arguments([*given, *(["--prepare"] if arguments.prepare else [])])
    tasks = [
        bench.Task(f"{one.name}, {one.size(megabytes)}", "reductions", partial(make_reducing, one, megabytes))
        for one in CHAINS
        if fnmatchcase(one.name, arguments.only)
        for megabytes in (arguments.megabytes if arguments.quick else PEERS_MEGABYTES)
    ]
    content = bench.run(tasks, bench.chosen_peers(arguments.peers), asked)
    if arguments.prepare:
        return 0
    text = markdown(content)
    print(text)
    if not arguments.no_page:
        about = "# Chains that reduce, beside other programs\n\nMade by `scripts/bench_reductions.py --peers "
        PEERS_PAGE.write_text(f"{about}{arguments.peers}`. {SETTINGS}\n\n{text}\n", "utf-8")
        (PARTIAL / "peers.partial.json").unlink()
    return 0


def parse_arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line's, or those given."""
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("--no-page", action="store_true", help="print, and leave the page as it is")
    add("--only", default="*", metavar="GLOB", help="those whose name matches, without a page")
    add("--quick", action="store_true", help="at 0.1 MB alone, half a second each, without a page")
    add("--peers", metavar="A,B,…", help="the chains beside these, by the names of scripts/bench.py")
    add("--seconds", type=float, default=2.0, metavar="S", help="for timing a chain beside peers (default: 2)")
    add("--prepare", action="store_true", help="compile in the peers, time nothing")
    arguments = parser.parse_args(given)
    if not any(fnmatchcase(subject.name, arguments.only) for subject in (*CHAINS, *OPERATORS)):
        parser.error(f"nothing is called {arguments.only}")
    arguments.no_page |= arguments.only != "*" or arguments.quick
    arguments.megabytes = (0.1,) if arguments.quick else MEGABYTES
    return arguments


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and write the page."""
    arguments = parse_arguments(given)
    if arguments.peers:
        return beside_peers(arguments)
    measured: dict[str, list[Measured]] = {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for subject in (*CHAINS, *OPERATORS):
            if not fnmatchcase(subject.name, arguments.only):
                continue
            pairs, seconds = (1, 0.5) if arguments.quick else (PAIRS, 1.5)
            found = [measure(subject, megabytes, Path(folder), pairs, seconds) for megabytes in arguments.megabytes]
            measured[subject.name] = found
            over = in_range(found[-1].overs) if found[-1].overs else ""
            rows.append((f"{subject.name}, {subject.size(None)}", found[0].nodes, *found, over))
            print(*rows[-1], sep=" | ", flush=True)
    if not arguments.no_page:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        sizes = (f"{megabytes:g} MB" if megabytes else "in this shape" for megabytes in MEGABYTES)
        columns = ("what", "nodes", *sizes, "over a copy")
        chains = [measured[one.name] for one in CHAINS]
        rows.insert(len(CHAINS), ("geometric mean", "", *map(geometric_mean, zip(*chains, strict=True)), ""))
        about = (__doc__ or "").split("\n\n", 1)[1]
        text = (
            f"# Reductions on the CPU\n\nMade by `scripts/bench_reductions.py`.\n\n{about}\n"
            f"{machine(0)}; {date.today()}; commit {commit.stdout.strip()}.\n\n{table(columns, rows)}\n"
        )
        PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
