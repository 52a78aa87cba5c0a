#!/usr/bin/env python3
"""Write benchmarks/kinds.md: what each kind of fused node is worth on the CPU, on models of deployed size.

Each model is optimized as by default and, for every kind of fused node that its result has, once more by a planner
that has no such kind, so that others, or ONNX Runtime, compute what it would.  All run in processes of their own, in
turns (onnxfuse.bench_processes).  A cell is the time without the kind over that with it, with its 95 % interval: where
it is 1 in every model, nobody would miss the kind, and its code could go.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

os.environ["PYTHONSAFEPATH"] = "1"
sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python


import numpy as np

import onnxfuse
from onnxfuse.bench import machine
from onnxfuse.bench_processes import time_models
from onnxfuse.errors import OnnxfuseError
from onnxfuse.files.model_io import read_outline
from onnxfuse.fused.kinds import DOMAIN, KINDS, Kind, kind_of
from onnxfuse.fused.target import CPU, TARGETS
from onnxfuse.run.inputs import InputSet
from onnxfuse.speed import RESULT, ratio_of
from onnxfuse.zoo.fetching import fetch
from onnxfuse.zoo.manifest import StoredModel, read_manifest, select
from onnxfuse.zoo.model_inputs import make_inputs
from tools.markdown_table import table
from tools.messages import Parser, say

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks" / "kinds.md"
MODELS = (
    *("bert_base", "minilm_l6", "gpt2_small_cached", "llama_160m_cached", "deberta_v3_small", "swin_t"),
    *("mobilenet_v3_large", "efficientnet_b0", "convnext_tiny", "segformer_b0", "shufflenet_v2_x1", "detr_r50"),
)


Subject = tuple[Path, Mapping[str, np.ndarray]]
"""A model, and its inputs."""


@contextmanager
def without(kind: Kind) -> Iterator[None]:
    """Planners for the CPU do not have the kind."""
    TARGETS[CPU.name] = replace(CPU, kinds=CPU.kinds - {kind})
    try:
        yield
    finally:
        TARGETS[CPU.name] = CPU


def kinds_of(path: Path) -> list[Kind]:
    """The kinds of fused nodes that a model has, in the order of the table."""
    found = {kind_of(node.op_type) for node in read_outline(path).graph.node if node.domain == DOMAIN}
    return [kind for kind in KINDS if kind in found]


def subjects(models: Sequence[str], made: Path | None) -> Iterator[tuple[str, Callable[[Path], Subject]]]:
    """The names of what is measured, and what makes its file in a folder, with inputs: the models, or MODELS if none is
    named.  Raises FetchError for a pattern that no model matches."""

    def of_zoo(model: StoredModel, folder: Path) -> Subject:
        path = fetch(model.name, folder=folder, made=made)
        return path, make_inputs(model, path)

    for model in select(read_manifest(), models or MODELS):
        yield model.name, partial(of_zoo, model)


def measure(make: Callable[[Path], Subject], seconds: float) -> dict[str, str]:
    """The cells of a subject, by the names of kinds.  Raises OnnxfuseError if it cannot be had, or does not run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, feeds = make(folder)
        shapes = {name: array.shape for name, array in feeds.items()}

        def optimized(file: str) -> Path:
            onnxfuse.optimize(path, "cpu", output=folder / file, shapes=shapes, check=False)
            return folder / file

        paths = {RESULT: optimized("result.onnx")}
        for kind in kinds_of(paths[RESULT]):
            with without(kind):
                paths[kind.name] = optimized(f"{kind.name}.onnx")
        timed = time_models(paths, InputSet("random", dict(feeds)), seconds=seconds * len(paths))
        cells = {}
        for kind_name, times in timed.items():
            if kind_name != RESULT:
                ratio, low, high = ratio_of(times, timed[RESULT])
                cells[kind_name] = f"{ratio:.2f} ({low:.2f} to {high:.2f})"
        return cells


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and write the page."""
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="these of models/manifest.toml, without a page (default: twelve)")
    add("--made", type=Path, metavar="DIR", help="keep what recipes make there, and take what is there")
    add("--seconds", type=float, default=3.0, metavar="S", help="for timing each of a model's variants (default: 3)")
    add("--no-page", action="store_true", help="print, and leave the page as it is")
    arguments = parser.parse_args(given)
    rows: dict[str, dict[str, str]] = {}
    try:
        for name, make in subjects(arguments.models, arguments.made):
            say(name)
            rows[name] = measure(make, arguments.seconds)
    except OnnxfuseError as error:
        print(f"kind_gains.py: {error}", file=sys.stderr)
        return 2
    columns = [kind.name for kind in KINDS if any(kind.name in cells for cells in rows.values())]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    lines = [(name, *(cells.get(kind, "") for kind in columns)) for name, cells in rows.items()]
    text = table(("what", *columns), lines)
    print(text)
    if not (arguments.no_page or arguments.models):
        about = (__doc__ or "").split("\n\n", 1)[1]
        head = f"# What kinds of fused nodes are worth\n\nMade by `scripts/kind_gains.py`.\n\n{about}"
        where = f"{machine(0)}; {date.today()}; commit {commit.stdout.strip()}."
        PAGE.write_text(f"{head}\n{where}\n\n{text}\n", "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
