"""Damaged model files given to the commands, each in a process of its own with limits on memory and time.

The processes are forked from one that has imported everything, which makes them a hundred times faster to start.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import onnx

from onnxfuse import optimize
from onnxfuse.cli import cli
from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.sessions import Session
from tools.fuzz.models import random_model
from tools.fuzz.mutate import mutated

MAX_FILE = 12 << 20
ADDRESS_SPACE = 12 << 30
MAX_RESIDENT_MB = 3000
CPU_SECONDS = 60
WALL_SECONDS = 1200.0
RANDOM_MODELS = 60
SENTINEL = b"what was there before"
MAX_SAVED = 3
"""How many files with the same failure are kept."""


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status, or the signal as a negative number; None if it took too long."""

    status: int | None
    error: str
    resident_mb: int


def corpus(request: dict[str, Any], folder: Path) -> list[tuple[str, bytes, bytes | None]]:
    """Models to damage: name, contents, and for an optimized model its original.

    They are the ``models`` of the request, random ones, those of onnx's tests unless ``own`` is false, and all of
    these optimized.
    """
    paths = [Path(path) for path in request["models"]]
    if request.get("own", True):
        paths += sorted(Path(onnx.__file__).parent.glob("backend/test/data/*/*/model.onnx"))
    models = [(str(path.parent.name if path.name == "model.onnx" else path.name), path.read_bytes()) for path in paths]
    models = [(name, data) for name, data in models if len(data) <= MAX_FILE]
    models += [
        (f"random {seed}", random_model(Random(seed)).model.SerializeToString()) for seed in range(RANDOM_MODELS)
    ]
    found: list[tuple[str, bytes, bytes | None]] = []
    for name, data in models:
        found.append((name, data, None))
        path = folder / "model.onnx"
        path.write_bytes(data)
        with contextlib.suppress(OnnxfuseError):
            result = optimize(path, check=False)
            if result.report.fused:
                found.append((f"{name}, optimized", result.model.SerializeToString(), data))
    return found


def run_cases(numbers: range, begin: Callable[[int], None], request: dict[str, Any]) -> dict[str, Any]:
    """Damage and run the files of ``numbers``; the counts as JSON takes them."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    most = 0
    with tempfile.TemporaryDirectory(prefix="onnxfuse-fuzz-") as name:
        folder = Path(name)
        models = _corpus(request, folder)
        for number in numbers:
            begin(number)
            choose = Random(number)
            base, data, original = choose.choice(models)
            data, what = mutated(data, choose.choice(models)[1], choose)
            counts["files"] += 1
            for failure, ended in run_case(data, original, folder, counts):
                most = max(most, ended.resident_mb)
                if failure:
                    saved = _save(data, original, number, failure, request)
                    failures.append(f"{number}, {base} ({what}): {failure}{saved}")
    return {"counts": dict(counts), "failures": failures, "most_mb": most, "seconds": 0.0, "operators": {}}


_CORPUS: list[tuple[str, bytes, bytes | None]] = []


def _corpus(request: dict[str, Any], folder: Path) -> list[tuple[str, bytes, bytes | None]]:
    if not _CORPUS:
        _CORPUS.extend(corpus(request, folder))
    return _CORPUS


def run_case(data: bytes, original: bytes | None, folder: Path, counts: Counter[str]) -> list[tuple[str, Ended]]:
    """Give one file to the commands; for each what is wrong, empty if nothing is, and how it ended."""
    model, output, first = (folder / name for name in ("model.onnx", "output.onnx", "first.onnx"))
    model.write_bytes(data)
    output.write_bytes(SENTINEL)
    commands = [["inspect", str(model)], ["optimize", str(model), str(output), "--no-bench"]]
    if original is not None:
        first.write_bytes(original)
        commands.append(["check", str(first), str(model)])
    results = []
    for command in commands:
        before = set(folder.iterdir())
        ended = run_command(command, folder)
        counts[f"{command[0]} {_kind(ended)}"] += 1
        wrong = judge(ended)
        if command[0] == "optimize" and ended.status != 0:
            if output.read_bytes() != SENTINEL:
                wrong = wrong or "the output was changed"
            left = {path.name for path in set(folder.iterdir()) - before}
            if left and ended.status in (1, 2):
                wrong = wrong or f"it left {', '.join(sorted(left))}"
        if wrong and not (ended.status or 0) >= 0 and ort_crashes(model, folder):
            counts["ONNX Runtime itself ends the process"] += 1
            wrong = ""
        results.append((f"{command[0]}: {wrong}" if wrong else "", ended))
    for path in folder.iterdir():  # what a killed process left
        _remove(path)
    return results


def _remove(path: Path) -> None:
    if path.is_dir():
        for inner in path.iterdir():
            _remove(inner)
        path.rmdir()
    else:
        path.unlink()


def _kind(ended: Ended) -> str:
    if ended.status is None:
        return "stuck"
    return f"status {ended.status}" if ended.status >= 0 else signal.Signals(-ended.status).name


def judge(ended: Ended) -> str:
    """What is wrong about how a command ended; empty if nothing is."""
    lines = [line for line in ended.error.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("onnxfuse: error: ")]
    if ended.status is None:
        return f"not done after {CPU_SECONDS} s of processor time"
    if ended.status < 0:
        return f"ended by {signal.Signals(-ended.status).name}"
    if ended.status not in (0, 1, 2):
        return f"status {ended.status}"
    if "Traceback" in ended.error or "this is a bug" in ended.error:
        return (errors or lines)[-1]
    if (ended.status == 0) != (not errors) or len(errors) > 1 or (errors and lines[-1] != errors[0]):
        return f"status {ended.status}, and on standard error: {' | '.join(lines[-3:])}"
    if any(not _PROGRESS.match(line) for line in lines if line not in errors):
        return "unexpected on standard error: " + next(line for line in lines if not _PROGRESS.match(line))
    if ended.resident_mb > MAX_RESIDENT_MB:
        return f"it took {ended.resident_mb} MB"
    return ""


_PROGRESS = re.compile(
    r"(reading|writing|running|pass|inspecting|planning|fused nodes|looking|inferring|onnxfuse: error)"
)


def run_command(command: list[str], folder: Path) -> Ended:
    """Run the command line in a forked process."""
    return _forked(lambda: cli.main(command), folder)


def ort_crashes(model: Path, folder: Path) -> bool:
    """Whether ONNX Runtime alone, without any of onnxfuse's changes, ends the process on loading or running it."""

    def load() -> int:
        from onnxfuse.check.parity import compare

        Session(model)
        compare(model, model)
        return 0

    ended = _forked(load, folder)
    return ended.status is None or ended.status < 0


def _forked(function: Callable[[], int], folder: Path) -> Ended:
    log = folder.parent / f"{folder.name}.log"
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _become_command(function, log)
    started = time.monotonic()
    status: int | None = None
    while True:
        done, code, usage = os.wait4(pid, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(code)
            break
        if time.monotonic() - started > WALL_SECONDS:
            os.kill(pid, signal.SIGKILL)
            _, code, usage = os.wait4(pid, 0)
            break
        time.sleep(0.002)
    if status in (-signal.SIGXCPU, -signal.SIGKILL) and usage.ru_utime + usage.ru_stime > 0.9 * CPU_SECONDS:
        status = None
    error = log.read_text(encoding="utf-8", errors="replace")
    log.unlink()
    return Ended(status, error, usage.ru_maxrss // 1024)


def _become_command(function: Callable[[], int], log: Path) -> None:
    """In the forked process: the limits, standard error to a file, and nothing of the parent afterwards."""
    status = 99
    try:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        error = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(error, 2)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        status = function()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:
        os.write(2, f"Traceback: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def _save(data: bytes, original: bytes | None, number: int, failure: str, request: dict[str, Any]) -> str:
    folder = Path(request["reproducers"])
    folder.mkdir(parents=True, exist_ok=True)
    kind = re.sub(r"[^a-z]+", "-", re.sub(r"'[^']*'|\d+|/\S+", "", failure.lower()))[:80].strip("-")
    if len(list(folder.glob(f"{kind}.*.onnx"))) >= MAX_SAVED:
        return ""
    path = folder / f"{kind}.{number}.onnx"
    path.write_bytes(data)
    if original is not None:
        path.with_suffix(".original").write_bytes(original)
    path.with_suffix(".txt").write_text(f"{failure}\n", encoding="utf-8")
    return f" ({path})"
