#!/usr/bin/env python3
"""Write benchmarks/reductions.md: chains that reduce and single reductions on the CPU, beside ONNX Runtime.

The subjects are those of tools/gpu/reduction_chains.py, at several sizes of their first input. Each is optimized as by
default; the original and the result run in processes of their own, in turns, with all processors (onnxfuse.speed). A
ratio is the time of the original over that of the result, with its 95 % interval.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

os.environ["PYTHONSAFEPATH"] = "1"
sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

import onnx

import onnxfuse
from onnxfuse.bench import machine
from onnxfuse.run.inputs import InputSet
from onnxfuse.speed import ORIGINAL, RESULT, ratio_of, time_models
from tools.gpu.reduction_chains import CHAINS, OPERATORS, Reducing, onnx_model
from tools.markdown_table import table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks" / "reductions.md"
MEGABYTES = (0.1, 2, 64)
LEFT = "left to ONNX Runtime"


def measure(subject: Reducing, megabytes: float, folder: Path) -> tuple[str, str]:
    """The nodes of the original and of the result, and the ratio of their times."""
    model = onnx_model(subject, "float32")
    result = onnxfuse.optimize(model, "cpu", check=False).model
    nodes = f"{len(model.graph.node)} → {len(result.graph.node)}"
    if not any(node.domain == "onnxfuse" for node in result.graph.node):
        return nodes, LEFT
    paths = {ORIGINAL: folder / "original.onnx", RESULT: folder / "result.onnx"}
    for name, proto in ((ORIGINAL, model), (RESULT, result)):
        onnx.save(proto, paths[name])
    arrays = subject.arrays(megabytes, "float32")
    names = {value.name for value in model.graph.input}
    feeds = {f"x{index}": array for index, array in enumerate(arrays) if f"x{index}" in names}
    timed = time_models(paths, InputSet("random", feeds))
    ratio, low, high = ratio_of(timed[ORIGINAL], timed[RESULT])
    return nodes, f"{ratio:.2f} ({low:.2f} to {high:.2f})"


def main() -> int:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-page", action="store_true", help="print, and leave the page as it is")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for subject in (*CHAINS, *OPERATORS):
            found = [measure(subject, megabytes, Path(folder)) for megabytes in MEGABYTES]
            rows.append((subject.name, found[0][0], *(ratio for _, ratio in found)))
            print(*rows[-1], sep=" | ", flush=True)
    if not arguments.no_page:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        columns = ("what", "nodes", *(f"{megabytes:g} MB" for megabytes in MEGABYTES))
        about = (__doc__ or "").split("\n\n", 1)[1]
        text = (
            f"# Reductions on the CPU\n\nMade by `scripts/bench_reductions.py`.\n\n{about}\n"
            f"{machine(0)}; {date.today()}; commit {commit.stdout.strip()}.\n\n{table(columns, rows)}\n"
        )
        PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
