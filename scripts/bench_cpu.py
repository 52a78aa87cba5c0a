#!/usr/bin/env python3
"""Measure everything that docs/measured.md claims about speed and memory on the CPU, and print it as Markdown.

A figure is the ratio of two things timed in turns (A B B A) in this process, lower quartile over lower
quartile, by the method of onnxfuse.bench; a turn is one run, and of a chain over 6.6 MB, which fits a cache, as
many as TURN_BYTES of tools/bench/chains.py says; peak memory is that of several processes of each model, in turns.
A figure meets its target as it is printed. Exit status 0 if all targets are met, 1 if one is missed, 2 if a model
cannot be had.
"""

import argparse
import datetime
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from pathlib import Path

# This process and those that it starts take onnxfuse as it is installed, whatever folder they are started in.
os.environ["PYTHONSAFEPATH"] = "1"
sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

import numpy as np
import onnx

import onnxfuse
from onnxfuse.bench import PeakMemory, machine, peak_memory, time_in_turns
from onnxfuse.bench_turns import ratio_with_spread
from onnxfuse.run.inputs import InputSet
from onnxfuse.run.sessions import Session, SessionError, has_fused_nodes
from onnxfuse.zoo.fetching import fetch
from onnxfuse.zoo.manifest import StoredModel, read_manifest
from onnxfuse.zoo.model_inputs import make_inputs
from tools.bench.chains import CHAINS, LARGE, SMALL, long_chain, measure
from tools.markdown_table import table as markdown
from tools.messages import Parser, say

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "measured.md"
BEGIN, END = "<!-- bench_cpu.py: begin -->", "<!-- bench_cpu.py: end -->"
THREADS = 2
MEMORY_RUNS, QUICK_MEMORY_RUNS = 9, 2
FASTER = ("ch_PP-OCRv4_det", "ch_PP-OCRv4_rec", "ch_ppocr_mobile_v2.0_cls")
"""The models that must gain; no other may lose."""
SECTIONS = ("chains", "models", "optimize")


@dataclass(frozen=True)
class Figure:
    """One measured number and what it is to reach: at least or at most a bound, or nothing."""

    value: float
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether the number, as it is printed, reaches its target."""
        value = round(self.value, 2)
        enough = self.at_least is None or value >= self.at_least
        return enough and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        """``1.21 (≤ 1.3)``; one that misses its target is in bold and says so."""
        text = f"{self.value:.2f}{self.unit}" if self.met else f"**{self.value:.2f}{self.unit}**"
        bound = f"≥ {self.at_least:g}" if self.at_least is not None else ""
        bound = f"≤ {self.at_most:g}{self.unit}" if self.at_most is not None else bound
        return text + (f" ({bound}{'' if self.met else ', missed'})" if bound else "")


@dataclass
class Table:
    """A Markdown table whose cells are text or figures."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str | Figure, ...]] = field(default_factory=list)

    def __str__(self) -> str:
        """The title and the table."""
        return f"{self.title}\n\n{markdown(self.columns, self.rows)}"

    def missed(self) -> int:
        """How many figures miss their target."""
        return sum(isinstance(cell, Figure) and not cell.met for row in self.rows for cell in row)


def bench_chains(seconds: float) -> Table:
    """Elementwise chains over one tensor that fits no cache, and one that does."""
    table = Table(
        f"Chains of elementwise nodes over one float32 tensor ({THREADS} threads, buffers bound in advance):",
        ("chain", "67 MB: time over a copy", "67 MB: ORT over onnxfuse", "6.6 MB: ORT over onnxfuse"),
    )
    for chain in CHAINS:
        say(f"chain {chain.name}")
        large, small = (measure(chain, shape, THREADS, seconds) for shape in (LARGE, SMALL))
        table.rows.append(
            (
                chain.name,
                Figure(large.over_copy, at_most=chain.over_copy),
                Figure(large.ort_over_ours),
                Figure(small.ort_over_ours, at_least=chain.speedup),
            )
        )
    return table


def bench_models(models: list[StoredModel], seconds: float, memory_runs: int) -> Table:
    """The time of a run, of creating a session, and the peak memory, original against optimized."""
    table = Table(
        f"Models ({THREADS} threads), optimized for these inputs (`--shape`); the last columns are onnxfuse over ORT. "
        "Peak memory is that of a process that loads and runs the model and does nothing else: all of it; what it "
        "takes of its own (heap, stacks, arenas) for the model; and that with the pages of files, such as libraries' "
        "code, which processes share and the system may drop:",
        (
            *("model", "inputs", "ORT", "onnxfuse", "speed: ORT over onnxfuse"),
            *("new session", "peak memory", "its own", "with pages of files"),
        ),
    )
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            say(f"model {model.name}")
            table.rows.append(_bench_model(model, Path(folder) / "optimized.onnx", seconds, memory_runs))
        if models:
            table.rows.append(_noise(models[0], seconds))
    return table


def _bench_model(model: StoredModel, optimized: Path, seconds: float, memory_runs: int) -> tuple[str | Figure, ...]:
    original = fetch(model.name)
    feeds = make_inputs(model, original)
    shapes = {name: array.shape for name, array in feeds.items()}
    result = onnxfuse.optimize(original, shapes=shapes, output=optimized, check=False)
    library = has_fused_nodes(result.model)

    def create(path: Path) -> Session:
        return Session(path, library=library and path == optimized, threads=THREADS, spinning=False)

    blocks = _time_runs(create(original), create(optimized), feeds, seconds)
    speed = Figure(ratio_with_spread(blocks)[0], at_least=1.25 if model.name in FASTER else 0.98)
    loads = time_in_turns(lambda: create(optimized), lambda: create(original), seconds / 2)
    sizes = ", ".join("x".join(map(str, shape)) for shape in shapes.values() if shape)
    theirs, ours = _quartiles(blocks)
    creating = Figure(ratio_with_spread(loads)[0], at_most=1.3)
    memory = _memory_ratios(original, optimized, library, InputSet(model.name, feeds), memory_runs)
    peaks = (Figure(memory["process"], at_most=1.0), Figure(memory["own"], at_most=1.0), Figure(memory["resident"]))
    return (model.name, sizes, theirs, ours, speed, creating, *peaks)


def _noise(model: StoredModel, seconds: float) -> tuple[str | Figure, ...]:
    """A model against itself: how far from 1 a ratio is by chance."""
    path = fetch(model.name)
    first, second = (Session(path, threads=THREADS, spinning=False) for _ in range(2))
    blocks = _time_runs(first, second, make_inputs(model, path), seconds)
    return (
        f"{model.name}, ORT twice (noise)",
        "",
        *_quartiles(blocks),
        Figure(ratio_with_spread(blocks)[0]),
        *("", "", "", ""),
    )


def _time_runs(a: Session, b: Session, feeds: dict[str, np.ndarray], seconds: float) -> np.ndarray:
    return time_in_turns(lambda: a.run(feeds), lambda: b.run(feeds), seconds)


def _quartiles(blocks: np.ndarray) -> list[str]:
    return [f"{np.percentile(blocks[:, index], 25) * 1000:.2f} ms" for index in (0, 1)]


def _memory_ratios(original: Path, optimized: Path, library: bool, inputs: InputSet, runs: int) -> dict[str, float]:
    """The ratios of the medians of ``runs`` processes of each, in turns: how much memory is taken at the same time
    depends on the order in which threads come to it.  A ratio for each field of PeakMemory.

    Both models lie in one folder under names of one length: how long a path is moves what the heap has behind it, which
    made 0.6 % between two equal files.
    """
    original = Path(shutil.copy(original, optimized.with_name("unchanged.onnx")))
    pairs = [
        (peak_memory(optimized, inputs, library, THREADS, "cpu"), peak_memory(original, inputs, False, THREADS, "cpu"))
        for _ in range(runs)
    ]
    known = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    kinds = [field.name for field in fields(PeakMemory)]
    if not known:
        return dict.fromkeys(kinds, math.nan)
    return {
        kind: statistics.median(getattr(ours, kind) for ours, _ in known)
        / statistics.median(getattr(theirs, kind) for _, theirs in known)
        for kind in kinds
    }


def bench_optimize(length: int) -> Table:
    """How long ``onnxfuse optimize --no-check`` takes as a process of its own."""
    table = Table("`onnxfuse optimize --no-check`, the whole process:", ("model", "time"))
    with tempfile.TemporaryDirectory() as folder:
        chains = {}
        for count in (length // 2, length):
            chains[count] = Path(folder) / f"{count}.onnx"
            onnx.save(long_chain(count), chains[count])
        seconds = {count: _optimize_seconds(path, 2) for count, path in chains.items()}
        det = _optimize_seconds(fetch(FASTER[0]), 3)
    table.rows.append((FASTER[0], Figure(det, at_most=3, unit=" s")))
    for count in chains:
        table.rows.append((f"chain of {count:,} nodes", Figure(seconds[count], at_most=30, unit=" s")))
    growth = Figure(seconds[length] / seconds[length // 2], at_most=2.2)
    table.rows.append((f"chain of {length:,} nodes over chain of {length // 2:,}", growth))
    return table


def _optimize_seconds(path: Path, runs: int) -> float:
    """The best of some runs: the first one also brings the files into memory."""
    times = []
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "onnxfuse",
            "optimize",
            "--no-check",
            str(path),
            f"{folder}/out.onnx",
        ]
        for _ in range(runs):
            say(f"optimize {path.name}")
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            times.append(time.perf_counter() - start)
    return min(times)


def machine_line() -> str:
    """What the figures were measured on, and when."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("onnxfuse", "onnx", "numpy"))
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    today = datetime.date.today()
    return f"Machine: {machine(THREADS)}, {os.cpu_count()} CPUs, {packages}, {system}, {today}."


def put_into_page(text: str, page: Path = PAGE) -> None:
    """Replace what is between the markers in the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page} has no markers {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> int:
    """Run the benchmark and return the exit status."""
    parser = Parser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a second a figure, and fewer models and processes")
    parser.add_argument("--seconds", type=float, metavar="S", help="for a figure (default: 8, or 1)")
    parser.add_argument("--only", choices=SECTIONS, help="one of the tables")
    parser.add_argument("--models", metavar="A,B,…", help="these models instead of all that packages carry")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the result there")
    parser.add_argument("--page", action="store_true", help="also write the result into docs/measured.md")
    arguments = parser.parse_args()
    manifest = read_manifest()
    packaged = [name for name, model in manifest.items() if model.package is not None]
    names = arguments.models.split(",") if arguments.models else list(FASTER if arguments.quick else packaged)
    try:
        for name in names:
            fetch(name)
        tables = list(_tables(arguments, [manifest[name] for name in names]))
    except (onnxfuse.OnnxfuseError, SessionError) as error:
        print(f"bench_cpu: error: {error}", file=sys.stderr)
        return 2
    text = "\n\n".join([*map(str, tables), machine_line()])
    print(text)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text + "\n", encoding="utf-8")
    if arguments.page:
        put_into_page(text)
    return 1 if any(table.missed() for table in tables) else 0


def _tables(arguments: argparse.Namespace, models: list[StoredModel]) -> Iterator[Table]:
    seconds = arguments.seconds
    if seconds is None:
        seconds = 1.0 if arguments.quick else 8.0
    memory_runs = QUICK_MEMORY_RUNS if arguments.quick else MEMORY_RUNS
    sections: dict[str, Callable[[], Table]] = {
        "chains": lambda: bench_chains(seconds / 2),
        "models": lambda: bench_models(models, seconds, memory_runs),
        "optimize": lambda: bench_optimize(10_000 if arguments.quick else 50_000),
    }
    for name, section in sections.items():
        if arguments.only in (None, name):
            yield section()


if __name__ == "__main__":
    sys.exit(main())
