#!/usr/bin/env python3
"""Optimize the models of the zoo and compare each with its original, for every size that the manifest lists.

Each model is handled in a process of its own.  It is optimized, run with the onnxfuse library and without it
on the same inputs as the original, timed against the original in turns, and profiled; the optimized file also
runs in onnx's ReferenceEvaluator where that does not take too long.  A model that differs is reduced to the
smallest region that shows it, which is saved as a reproducer.

Writes results.json, index.html, summary.md and the reproducers under --out, and prints a table.  Exit status 1 if a
model fails, 2 if a model cannot be had or for bad usage.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

# This process and those that it starts take onnxfuse as it is installed, whatever folder they are started in.
os.environ["PYTHONSAFEPATH"] = "1"
sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

from rich.console import Console

from onnxfuse.bench import machine
from onnxfuse.errors import OnnxfuseError
from onnxfuse.report.tables import add_row, simple_table
from onnxfuse.zoo.fetching import fetch
from onnxfuse.zoo.manifest import MANIFEST, FetchError, StoredModel, chosen_models, read_manifest
from tools.messages import Parser, say
from tools.parity import page as parity_page
from tools.parity import worker as parity_worker
from tools.parity.rows import COLUMNS, plain_row
from tools.parity.summary import summary


def run_models(models: list[StoredModel], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The result of every model, in order."""
    with ThreadPoolExecutor(arguments.jobs) as pool:
        return list(pool.map(lambda model: _run_model(model, arguments), models))


def _run_model(model: StoredModel, arguments: argparse.Namespace) -> dict[str, Any]:
    started = time.perf_counter()
    say(model.name)
    with tempfile.TemporaryDirectory(prefix="onnxfuse-parity-") as folder:
        result = Path(folder) / "result.json"
        request = {
            "name": model.name,
            "manifest": str(arguments.manifest),
            "target": arguments.target,
            "regions": arguments.regions,
            "seconds": arguments.seconds,
            "threads": arguments.threads,
            "reference_seconds": arguments.reference_seconds,
            "reproducers": str(arguments.out.resolve() / "reproducers"),
            "scratch": folder,
            "result": str(result),
            "made": arguments.made and str(arguments.made.resolve()),
        }
        command = [sys.executable, str(Path(parity_worker.__file__)), json.dumps(request)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=arguments.timeout)
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no message"]
            reason = f"status {done.returncode}: {lines[-1]}"
        except subprocess.TimeoutExpired:
            reason = f"not done after {arguments.timeout:g} s"
        try:
            found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = parity_worker.empty_result(model, f"the process ended early ({reason})")
    found["seconds"] = round(time.perf_counter() - started, 1)
    say(f"{model.name}: {'ok' if found['ok'] else found['reason']} ({found['seconds']} s)")
    return found


def print_table(results: list[dict[str, Any]]) -> None:
    """The table of all models, on standard output."""
    table = simple_table(*COLUMNS, "result")
    for item in results:
        add_row(table, *plain_row(item))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 220)
    console.print(table)
    failed = [item["name"] for item in results if not item["ok"]]
    fused = sum(item["fused"] for item in results)
    ratios = [item["time"]["ratio"] for item in results if item["time"]]
    console.print(f"{len(results) - len(failed)} of {len(results)} models pass, {fused} regions fused")
    if ratios:
        console.print(f"geometric mean of ORT / onnxfuse: {parity_page.geometric_mean(ratios):.3f}")
    for item in results:
        if not item["ok"]:
            console.print(f"FAILED {item['name']}: {item['reason']}", soft_wrap=True, markup=False)


def environment(threads: int) -> dict[str, str]:
    """What the results were made with."""
    packages = ("onnxfuse", "onnx", "onnxruntime", "numpy")
    versions = {}
    for name in packages:
        with contextlib.suppress(ImportError):  # onnxruntime may be onnxruntime-gpu
            versions[name] = version(name)
    return {
        "machine": f"{machine(threads)}, {os.cpu_count()} CPUs",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "date": str(datetime.date.today()),
    }


def main() -> int:
    """Run the command line and return the exit status."""
    parser = Parser(description=__doc__)
    parser.add_argument("--models", metavar="GLOB", action="append", help="only these, as * and ? match (repeat)")
    parser.add_argument("--set", metavar="NAME", help="unless models are named: those of a set, such as full")
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--jobs", type=_positive, default=1, metavar="N", help="models at a time (default: 1; times need 1)"
    )
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    parser.add_argument(
        "--made", type=Path, metavar="DIR", help="keep large models there, and take what is there as it is"
    )
    parser.add_argument("--regions", action="store_true", help="also run every fused node alone")
    parser.add_argument(
        "--seconds", type=float, default=2.0, metavar="S", help="time for timing a model, 0 for none (default: 2)"
    )
    parser.add_argument("--threads", type=_positive, default=1, metavar="N", help="threads to time with (default: 1)")
    parser.add_argument(
        "--reference-seconds", type=float, default=20.0, metavar="S", help="limit of ReferenceEvaluator (default: 20)"
    )
    parser.add_argument("--timeout", type=float, default=900.0, metavar="S", help="limit of one model (default: 900)")
    parser.add_argument("--note", default="", metavar="TEXT", help="a sentence for the summary")
    parser.add_argument("--manifest", type=Path, default=MANIFEST, metavar="FILE", help="another than the project's")
    arguments = parser.parse_args()
    try:
        manifest = read_manifest(arguments.manifest)
        models = chosen_models(manifest, arguments.models, arguments.set)
        recipes = arguments.manifest.resolve().parent / "recipes"
        for model in models:  # one after the other: models share packages and environments
            if model.kept:
                fetch(model.name, manifest, recipes=recipes, progress=say)
        arguments.out.mkdir(parents=True, exist_ok=True)
    except (FetchError, OnnxfuseError) as error:
        print(f"parity: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"parity: error: {arguments.out}: {error.strerror or error}", file=sys.stderr)
        return 2
    results = run_models(models, arguments)
    content = {"schema": 1, "target": arguments.target, **environment(arguments.threads), "models": results}
    (arguments.out / "results.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (arguments.out / "index.html").write_text(parity_page.render(content), encoding="utf-8")
    (arguments.out / "summary.md").write_text(summary(content, arguments.note), encoding="utf-8")
    print_table(results)
    print("written:", *(arguments.out / name for name in ("results.json", "index.html", "summary.md")))
    return 1 if any(not item["ok"] for item in results) else 0


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 256):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 256")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
