"""Mutated programs given to the native library, built with AddressSanitizer and UndefinedBehaviorSanitizer.

Two ways in: the parser, the planner and the executor alone, driven by libFuzzer where there is Clang and by the
driver's own mutations otherwise; and ONNX Runtime, which loads the sanitized library and is given models of one fused
node each.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from onnx import helper

from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.model.protos import onnx_graphs
from tools.fuzz.check import optimize
from tools.fuzz.models import random_model
from tools.messages import say

ROOT = Path(__file__).resolve().parents[2]
SANITIZERS = "address,undefined"
ROUND_SECONDS = 240.0
DRIVER_RUNS = 400
"""Runs a second that are asked for of the driver where there is no libFuzzer."""

OPERATOR_DRIVERS = {
    "fuzz_launch": 8000,
    "fuzz_rows": 4000,
    "fuzz_conv": 10000,
    "fuzz_conv_cpu": 350,
    "fuzz_squeeze_excite": 4000,
    "fuzz_attention": 2700,
    "fuzz_cuda_attention": 20000,
    "fuzz_matmul": 3500,
    "fuzz_reduction": 3500,
    "fuzz_nhwc_conv": 1800,
    "fuzz_nhwc_pool": 15000,
    "fuzz_nhwc_concat": 15000,
    "fuzz_listed_operators": 40000,
    "fuzz_executable": 1500,
}
"""What fuzzes the CUDA operators, those of elementwise nodes, of reductions, of convolutions and of attention,
convolutions, gates, attention, products, and what has the channels last, convolutions, pooling and
Concats, on the CPU, the reader of a model's functions, and the C functions for models without ONNX Runtime; and how
many runs a second each is asked for, about what it does."""

SEED_MODELS = 300
ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {},
    {"ONNXFUSE_CACHE_BYTES": "1", "ONNXFUSE_FUZZ_THREADS": "2"},
    {"ONNXFUSE_ISA": "avx2", "ONNXFUSE_FUZZ_THREADS": "2"},
    {"ONNXFUSE_ISA": "baseline"},
)
"""What runs differ in: the defaults, stores past the caches, threads, instruction sets."""

KINDS = ("engine", "engine", "sessions", "engine", "engine", "operators")
"""The kinds of round, in turns: parser, planner and executor; ONNX Runtime; what the other operators read and plan."""


@dataclass
class NativeResult:
    """Programs run, processor time in seconds, how they were driven, and what was found."""

    engine: str
    runs: int = 0
    sessions: int = 0
    operators: int = 0
    coverage: int = 0
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)

    def counts(self) -> str:
        """What was run so far, in words."""
        return (
            f"{self.runs} programs by {self.engine}, {self.sessions} through ONNX Runtime, "
            f"{self.operators} runs of the other operators"
        )


def clang() -> str | None:
    """A Clang that can link libFuzzer."""
    for name in ("clang++", *(f"clang++-{version}" for version in range(25, 10, -1))):
        path = shutil.which(name)
        if path and _links_libfuzzer(path):
            return path
    return None


def _links_libfuzzer(compiler: str) -> bool:
    source = "#include <cstddef>\n#include <cstdint>\n"
    source += 'extern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t) { return 0; }\n'
    command = [compiler, "-xc++", "-", "-fsanitize=fuzzer,address", "-o", os.devnull]
    return subprocess.run(command, input=source, text=True, capture_output=True, check=False).returncode == 0


def build(folder: Path, *targets: str, options: Sequence[str] = ()) -> Path:
    """Build targets with the sanitizers; the folder that they lie in."""
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-DONNXFUSE_BUILD_TESTS=ON"]
    configure += [f"-DONNXFUSE_SANITIZE={SANITIZERS}", f"-DPython_EXECUTABLE={sys.executable}", *options]
    jobs = str(os.cpu_count() or 1)
    say(f"building {', '.join(targets)} with sanitizers (minutes, the first time)")
    for command in (configure, ["cmake", "--build", str(folder), "--parallel", jobs, "--target", *targets]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"fuzz.py: cannot build {targets[0]}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return folder


def fuzz(out: Path, seconds: float, jobs: int, seed: int) -> NativeResult:
    """Fuzz for about ``seconds`` of processor time, in rounds that differ in their environment."""
    out.mkdir(parents=True, exist_ok=True)
    compiler = clang()
    result = NativeResult("libFuzzer" if compiler else "the driver's own mutations")
    options = [f"-DCMAKE_CXX_COMPILER={compiler}", "-DONNXFUSE_LIBFUZZER=ON"] if compiler else []
    program = build(out / ("libfuzzer" if compiler else "driver"), "fuzz_program", options=options)
    library = build(out / "library", "onnxfuse_ops", *OPERATOR_DRIVERS)
    (out / "corpus").mkdir(exist_ok=True)
    for number, text in enumerate(seed_programs()):
        (out / "corpus" / f"seed-{number}").write_bytes(text.encode() + bytes([0, *Random(number).randbytes(24)]))
    started = _children_seconds()
    turn = 0
    while (spent := _children_seconds() - started) < seconds and not result.findings:
        say(f"{spent:.0f} s of processor time, {result.counts()}")
        left = min(ROUND_SECONDS, (seconds - spent) / jobs / 3 + 1)
        kind = KINDS[turn % len(KINDS)]
        run = {"engine": _engine, "sessions": _sessions, "operators": _operators}[kind]
        folder = program if kind == "engine" else library
        with ThreadPoolExecutor(jobs) as pool:
            rounds = [pool.submit(run, folder, out, left, seed + turn * jobs + job, result) for job in range(jobs)]
            for item in rounds:
                item.result()
        turn += 1
    result.seconds = _children_seconds() - started
    return result


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seed_programs() -> list[str]:
    """The programs of random models and of networks, each once."""
    found: dict[str, None] = {}
    for seed in range(SEED_MODELS):
        model = optimize(random_model(Random(seed)).model, "everything")
        for graph in onnx_graphs(model.graph):
            for node in graph.node:
                if node.domain == DOMAIN and any(own.name == "program" for own in node.attribute):
                    found.setdefault(helper.get_node_attr_value(node, "program").decode())
    return list(found)


def _environment(*names: object) -> dict[str, str]:
    """The environment of a run, by its names: in turns, some would never meet some of the kinds of rounds."""
    return {**os.environ, **Random(" ".join(map(str, names))).choice(ENVIRONMENTS)}


def _engine(folder: Path, out: Path, seconds: float, seed: int, result: NativeResult) -> None:
    """One round of the parser, the planner and the executor."""
    environment = _environment("engine", seed)
    artifacts = out / "findings" / f"{seed}-"
    artifacts.parent.mkdir(exist_ok=True)
    if result.engine == "libFuzzer":
        command = [
            str(folder / "fuzz_program"),
            str(out / "corpus"),
            f"-max_total_time={seconds:.0f}",
            f"-seed={seed + 1}",
        ]
        command += ["-max_len=4096", "-timeout=120", "-rss_limit_mb=3000", "-print_final_stats=1", "-verbosity=1"]
        command += [f"-artifact_prefix={artifacts}"]
    else:
        command = [str(folder / "fuzz_program"), str(round(seconds * DRIVER_RUNS)), str(seed + 1)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    text = done.stdout + done.stderr
    counted = re.search(r"number_of_executed_units:\s*(\d+)|^(\d+) runs$", text, re.MULTILINE)
    result.runs += int(counted[1] or counted[2]) if counted else 0
    covered = re.findall(r"cov: (\d+)", text)
    result.coverage = max(result.coverage, int(covered[-1]) if covered else 0)
    if done.returncode != 0:
        _found(result, out, seed, f"{' '.join(command)} ended with {done.returncode}", text)


def _compiler_file(name: str) -> str:
    """The path of a library of the compiler's."""
    found = subprocess.run(["c++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def _sessions(folder: Path, out: Path, seconds: float, seed: int, result: NativeResult) -> None:
    """One round through ONNX Runtime, in a Python whose allocator AddressSanitizer watches."""
    # AddressSanitizer looks for the C++ library's functions when it starts; Python itself does not load that.
    libraries = [_compiler_file("libasan.so"), _compiler_file("libstdc++.so.6")]
    environment = _environment("sessions", seed)
    environment |= {"LD_PRELOAD": ":".join(libraries), "ASAN_OPTIONS": "detect_leaks=0"}
    script = Path(__file__).with_name("sessions.py")
    command = [sys.executable, str(script), str(folder / "libonnxfuse_ops.so"), str(seed), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    counted = re.search(r"^(\d+) sessions", done.stdout, re.MULTILINE)
    result.sessions += int(counted[1]) if counted else 0
    if done.returncode != 0:
        _found(result, out, seed, f"{' '.join(command)} ended with {done.returncode}", done.stdout + done.stderr)


def _operators(folder: Path, out: Path, seconds: float, seed: int, result: NativeResult) -> None:
    """One round of what the other operators read from a model and plan, and of the small ones' kernels."""
    for driver, rate in OPERATOR_DRIVERS.items():
        runs = round(seconds / len(OPERATOR_DRIVERS) * rate)
        command = [str(folder / driver), str(runs), str(seed + 1)]
        environment = _environment(driver, seed)
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
        counted = re.search(r"^(\d+) runs", done.stdout, re.MULTILINE)
        result.operators += int(counted[1]) if counted else 0
        if done.returncode != 0:
            _found(result, out, seed, f"{' '.join(command)} ended with {done.returncode}", done.stdout + done.stderr)


def _found(result: NativeResult, out: Path, seed: int, what: str, text: str) -> None:
    (out / "findings").mkdir(exist_ok=True)
    log = out / "findings" / f"{seed}.log"
    log.write_text(text, encoding="utf-8")
    lines = [line for line in text.splitlines() if "ERROR" in line or "runtime error" in line or "Error" in line]
    result.findings.append(f"{(lines or ['no message'])[0].strip()} ({what}; {log})")
