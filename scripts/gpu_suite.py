#!/usr/bin/env python3
"""Everything that only a GPU can prove, in one command and under 8 minutes: ``gpu_suite.py --out DIR``.

1. Parity: the op matrix, random Programs, large ones, random convolutions of every family of kernels, and the models of
   --models on ONNX Runtime's CUDA provider, with and without CUDA graphs, and once under compute-sanitizer.
2. Kernels: ten chains of 1 to 512 MB, float32 and float16, as a share of a copy's bandwidth, against ONNX Runtime
   unfused, and against torch.compile, JAX and CuPy where they are installed.
3. Reductions: ten chains and ten single operators that reduce, of 1 to 512 MB, float32 and float16, in the same way,
   against ONNX Runtime, torch.compile and JAX.
4. Transposes: eight orders of a tensor's dimensions, of 64 and 512 MB, float32 and float16, as a share of a copy's
   bandwidth, and against ONNX Runtime's Transpose with the operations behind it.
5. Parts: Concats of two activations, of 1 to 512 MB, and 16 small maps, as one launch each, float32 and float16, as
   a share of a copy's bandwidth, and against ONNX Runtime's nodes.
6. Attention: of 128 to 4096 tokens, with and without masks, and of one token after others, float32 and float16, against
   ONNX Runtime's nodes and torch's scaled_dot_product_attention.
7. Products of one and of four rows, as steps of decoding have them, float32 and float16, and with weights of 4 and
   8 bits, as a share of a copy's bandwidth, and against ONNX Runtime's nodes.
8. Convolutions: layers of MobileNetV3, PP-OCR and ResNet-50 with their tails, batch 1 and 16, float32 and float16: the
   faster one of a fused node and ONNX Runtime's convolution with a fused tail, against ONNX Runtime.  With --tune the
   best kernels are found first, which takes longer than the suite has; what is found is kept for models.
9. Models: ONNX Runtime's CUDA provider in its best setting against ours, batch 1 and 16, with and without CUDA graphs,
   and convolutional ones in float16 too.

Writes results.json, results.md and plots.  Each part has its share of the time; what fails is written down and the rest
goes on.  A model for which too little time is left is left out, and one that takes too long is given up; a minute after
its time the suite ends by force.  A fused node that cannot run on the GPU fails (ONNXFUSE_REQUIRE_GPU).  Exit status 0
if all that was measured meets its target, 1 if not, 2 if nothing can be measured.  With --dry-run nothing needs a GPU:
programs and models run on the CPU, chains are only built and optimized, and no number of the table is measured.
"""

import argparse
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

if find_spec("pytest") is None:  # the tests have the cases of the parity
    print("gpu_suite.py: error: pytest is not installed: take 'pip install pytest'", file=sys.stderr)
    sys.exit(2)

import numpy as np

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.zoo.fetching import cache
from onnxfuse.zoo.manifest import read_manifest
from onnxfuse.zoo.model_inputs import make_inputs
from tools.gpu import attention as gpu_attention
from tools.gpu import conv_parity as gpu_conv_parity
from tools.gpu import convolutions as gpu_convolutions
from tools.gpu import kernels as gpu_kernels
from tools.gpu import models as gpu_models
from tools.gpu import parity as gpu_parity
from tools.gpu import parts as gpu_parts
from tools.gpu import products as gpu_products
from tools.gpu import reductions as gpu_reductions
from tools.gpu import transposes as gpu_transposes
from tools.gpu.chains import CHAINS
from tools.gpu.limits import OutOfTime, at_most, otherwise
from tools.gpu.machine import describe, missing, why_nothing_giant
from tools.gpu.reduction_chains import SUBJECTS
from tools.gpu.report import Results, targets, write
from tools.messages import Parser, one_line, say

PARTS = ("parity", "kernels", "reductions", "transposes", "parts", "attention", "products", "convolutions", "models")
SHARES = {
    **{"parity": 0.22, "kernels": 0.15, "reductions": 0.15, "transposes": 0.05, "parts": 0.03},
    **{"attention": 0.1, "products": 0.04, "convolutions": 0.14, "models": 0.12},
}
"""Of the whole time, for each part; what one leaves over the next one gets."""
OWN_SHARE = 0.45
"""Of the time for kernels, for ours and ONNX Runtime; the rest is for the other systems."""
SANITIZED = ("f32", "f16")
SANITIZER_SECONDS = 45.0
GIANT_SECONDS = 20.0
"""With less left the case of more than 2^31 elements is not begun."""
GRACE_SECONDS = 60.0
"""After the whole time, until the suite ends by force."""
REQUIRE_GPU = "ONNXFUSE_REQUIRE_GPU"
"""With 1 a fused node on the CUDA provider fails where it would be computed on the CPU."""
Models = list[tuple[Path, Mapping[str, np.ndarray]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.dry_run:
        os.environ.setdefault(REQUIRE_GPU, "1")
    if options.sanitized:
        return _sanitized_child()
    parts = options.only.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    if not options.dry_run and (reasons := missing(parts)):
        for reason in reasons:
            print(f"gpu_suite.py: error: {reason}", file=sys.stderr)
        return 2
    results = Results(machine=describe(options.dry_run))
    started = time.monotonic()
    on_gpu = not options.dry_run
    try:
        models = find_models(options.models, options.model)
    except OnnxfuseError as error:
        models = []
        results.errors.append(f"models: {error}")
    if not models and "models" in parts:
        results.errors.append(f"models: there are none of the zoo's in {options.models or cache()}")
    share, all_shares = 0.0, sum(SHARES[part] for part in parts)
    run = dict(_RUN)
    if options.tune:
        run["convolutions"] = partial(_convolutions, tune=True)
    longest = options.seconds + GRACE_SECONDS
    with nullcontext() if options.tune else otherwise(longest, partial(_end, results, options)):
        for part in PARTS:
            if part not in parts:
                continue
            share += SHARES[part] / all_shares
            deadline = started + share * options.seconds
            _guard(results, part, partial(run[part], results, models, deadline, on_gpu))
            results.seconds = time.monotonic() - started
            write(results, options.out)  # after each part, so that there is something whatever happens
    print(f"{options.out / 'results.md'}: {results.seconds:.0f} s")
    missed = [target for target in targets(results) if target.met is False]
    for target in missed:
        print(f"missed: {target.name}: {target.measured:.3g}, wanted {target.wanted} ({target.where})")
    return 1 if missed or results.errors else 0


def _parser() -> Parser:
    parser = Parser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), metavar="DIR", help="where results go")
    parser.add_argument("--models", type=Path, metavar="DIR", help="models of the zoo (default: those in its cache)")
    parser.add_argument("--model", default="*", metavar="GLOB", help="which of them (default: all)")
    parser.add_argument("--only", default=",".join(PARTS), metavar="A,B", help=f"parts: {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=450.0, metavar="S", help="time in all (default: 450)")
    parser.add_argument("--tune", action="store_true", help="find the best convolution kernels, however long it takes")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, to try the script")
    parser.add_argument("--sanitized", action="store_true", help=argparse.SUPPRESS)
    return parser


def find_models(folder: Path | None, pattern: str) -> Models:
    """The models of the manifest that lie in ``folder``, with the inputs that it describes; small ones first."""
    place = cache() if folder is None else folder
    known = read_manifest()
    found: Models = []
    for path in sorted(place.glob("*.onnx"), key=lambda path: path.stat().st_size):
        if path.stem in known and fnmatchcase(path.stem, pattern):
            found.append((path, make_inputs(known[path.stem], path)))
    ocr = [model for model in found if model[0].stem.startswith("ch_")]
    return ocr + [model for model in found if model not in ocr]


def _end(results: Results, options: argparse.Namespace) -> None:
    """End the process, whatever runs, with the results that there are."""
    results.errors.append(f"the suite did not end within {options.seconds + GRACE_SECONDS:.0f} s, and was made to")
    try:
        write(results, options.out)
    finally:
        os._exit(1)


def _guard(results: Results, part: str, run: Callable[[], None]) -> None:
    try:
        run()
    except (Exception, OutOfTime) as error:  # one part that fails leaves the others; an alarm may come a moment late
        results.errors.append(f"{part}: {one_line(error)}")


# ------------------------------------------------------------------------------------------------ parts


def _parity(results: Results, models: Models, deadline: float, on_gpu: bool) -> None:
    dtypes = list(DTYPES) if on_gpu else ["f32", "f16"]  # of integers, a division by zero fails on the CPU
    cases = list(gpu_parity.program_cases(dtypes, randoms=100 if on_gpu else 4))
    say(f"parity: {len(cases)} programs")
    with gpu_kernels.compiling_ahead() if on_gpu else nullcontext():
        _check(results, models, cases, deadline, on_gpu)


def _check(results: Results, models: Models, cases: Sequence[gpu_parity.Case], deadline: float, on_gpu: bool) -> None:
    end = deadline - (SANITIZER_SECONDS if on_gpu else 0)
    for verdict in _comparisons(results, cases, end, on_gpu):
        results.parity.append(verdict)
        if time.monotonic() > end:
            results.errors.append(f"parity: out of time after {len(results.parity)} comparisons")
            break
    _check_models(results, models, end, on_gpu)
    if on_gpu:
        results.sanitizer, failed = _sanitize(max(SANITIZER_SECONDS, deadline - time.monotonic()))
        if failed:
            results.errors.append(f"parity: compute-sanitizer: {results.sanitizer}")


def _comparisons(
    results: Results, cases: Sequence[gpu_parity.Case], end: float, on_gpu: bool
) -> Iterator[gpu_parity.Verdict]:
    """All but those of models, the most telling first."""
    yield from gpu_parity.check_programs(cases, on_gpu)
    if on_gpu:
        yield from _check_large(results, end)
    convolutions = list(gpu_conv_parity.conv_cases(gpu_conv_parity.SEEDS if on_gpu else range(1)))
    say(f"parity: {len(convolutions)} convolutions")
    yield from gpu_conv_parity.check_convolutions(convolutions, on_gpu)
    if on_gpu:
        say("parity: programs in CUDA graphs")
        yield from gpu_parity.check_programs(cases, on_gpu, graph=True)


def _check_large(results: Results, end: float) -> Iterator[gpu_parity.Verdict]:
    say("parity: large programs")
    yield from gpu_parity.check_programs(list(gpu_parity.large_cases()), on_gpu=True)
    reason = why_nothing_giant()
    if not reason and end - time.monotonic() < GIANT_SECONDS:
        reason = "too little time is left"
    if reason:
        results.notes.append(f"parity: a program of more than 2^31 elements: {reason}")
    else:
        say("parity: a program of more than 2^31 elements")
        yield from gpu_parity.check_programs([gpu_parity.giant_case()], on_gpu=True)


def _check_models(results: Results, models: Models, end: float, on_gpu: bool) -> None:
    for count, (path, feeds) in enumerate(models):
        left = end - time.monotonic()
        if left < gpu_models.LEAST_SECONDS:
            names = ", ".join(path.stem for path, _ in models[count:])
            results.notes.append(f"parity: too little time is left for {names}")
            return
        limit = min(left, gpu_models.MOST_SECONDS)
        say(f"parity: {path.stem}")
        try:
            with TemporaryDirectory() as scratch, at_most(limit):
                for verdict in gpu_parity.check_model(path, Path(scratch), on_gpu, dict(feeds)):
                    results.parity.append(verdict)
                if path.stem.startswith(gpu_models.CONVOLUTIONAL):
                    results.parity += gpu_parity.check_half_model(path, Path(scratch), on_gpu, feeds)
        except OutOfTime:
            results.notes.append(f"parity: {path.stem} was given up after {limit:.0f} s")


def _sanitize(limit: float) -> tuple[str, bool]:
    """What compute-sanitizer's memcheck says of some Programs and convolutions, and whether that is an error."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return "not installed, so not run", False
    say("parity: compute-sanitizer")
    command = [tool, "--tool", "memcheck", "--error-exitcode", "9"]
    command += ["--report-api-errors", "no"]  # the library asks for a kernel's parameters until there are no more
    command += [sys.executable, __file__, "--sanitized"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit)
    except subprocess.TimeoutExpired:
        return f"did not end within {limit:.0f} s", False
    telling = ("ERROR SUMMARY", "Invalid", "Program hit")
    lines = [line.strip("= ") for line in done.stdout.splitlines() if any(word in line for word in telling)]
    said = f"exit status {done.returncode}: {'; '.join([*lines[:3], *lines[3:][-1:]]) or 'no summary'}"
    failed = done.returncode != 0
    return (f"{said}; {gpu_kernels.tail(done.stderr)}" if failed else said), failed


def _sanitized_child() -> int:
    cases = list(gpu_parity.program_cases(SANITIZED, randoms=5))
    verdicts = list(gpu_parity.check_programs(cases, on_gpu=True))
    verdicts += gpu_conv_parity.check_convolutions(list(gpu_conv_parity.conv_cases(range(2))), on_gpu=True)
    failed = [verdict for verdict in verdicts if not verdict.ok]
    for verdict in failed[:3]:
        say(f"{verdict.name}: {verdict.detail}")
    return 0 if verdicts and not failed else 1


def _kernels(results: Results, models: Models, deadline: float, on_gpu: bool) -> None:
    results.kernels = list(gpu_kernels.jobs())
    if not on_gpu:
        for chain in CHAINS:
            say(f"kernels: {chain.name}")
            gpu_kernels.try_on_cpu(chain)
        return
    time_left = deadline - time.monotonic()
    gpu_kernels.measure_all(results.kernels, time.monotonic() + OWN_SHARE * time_left, say)
    _measure_peers(results, "kernels", results.kernels, gpu_kernels.PEERS, deadline)


def _measure_peers(
    results: Results,
    part: str,
    jobs: Sequence[gpu_kernels.Measured],
    peers: Mapping[str, int],
    deadline: float,
) -> None:
    """Have the other systems measure the jobs too, with these shares of the time; write down what went wrong."""
    weights = dict(peers)
    while weights:
        system = next(iter(weights))
        say(f"{part}: {system}")
        limit = (deadline - time.monotonic()) * weights[system] / sum(weights.values())
        answered = gpu_kernels.measure_peer(system, jobs, limit)
        if answered < len(jobs):
            results.notes.append(f"{part}: {system} has {answered} of {len(jobs)}: its time was over")
        del weights[system]
    ours = [job for job in jobs if {"kernel", "onnxfuse"} & job.errors.keys()]
    if ours:
        results.errors.append(f"{part}: {len(ours)} of {len(jobs)} fail, or give wrong results")
    late = sum("onnxfuse" not in job.seconds and not job.errors for job in jobs)
    if late:
        results.errors.append(f"{part}: out of time for {late} of {len(jobs)}")


def _reductions(results: Results, models: Models, deadline: float, on_gpu: bool) -> None:
    results.reductions = list(gpu_reductions.jobs())
    if not on_gpu:
        for subject in SUBJECTS.values():
            say(f"reductions: {subject.name}")
            gpu_reductions.try_on_cpu(subject)
        return
    time_left = deadline - time.monotonic()
    gpu_reductions.measure_all(results.reductions, time.monotonic() + OWN_SHARE * time_left, say)
    _measure_peers(results, "reductions", results.reductions, {"jax": 4, "torch": 5}, deadline)


def _transposes(results: Results, models: Models, deadline: float, on_gpu: bool) -> None:
    results.transposes = list(gpu_transposes.jobs())
    _measure_alone(results, "transposes", results.transposes, gpu_transposes, deadline, on_gpu)


def _parts(results: Results, models: Models, deadline: float, on_gpu: bool) -> None:
    results.parts = list(gpu_parts.jobs())
    _measure_alone(results, "parts", results.parts, gpu_parts, deadline, on_gpu)


def _measure_alone(
    results: Results, part: str, jobs: Sequence[Any], suite: ModuleType, deadline: float, on_gpu: bool
) -> None:
    """Measure a part that no other program is timed beside; without a GPU try each of its subjects."""
    if not on_gpu:
        for subject in suite.SUBJECTS.values():
            say(f"{part}: {subject.name}")
            suite.try_on_cpu(subject)
        return
    suite.measure_all(jobs, deadline, say)
    _note_missing(results, part, jobs)


def _note_missing(results: Results, part: str, jobs: Sequence[gpu_kernels.Measured]) -> None:
    """Write down how many kernels gave no time."""
    failed = sum("kernel" in job.errors for job in jobs)
    if failed:
        results.errors.append(f"{part}: {failed} of {len(jobs)} fail, or give wrong results")
    late = sum("kernel" not in job.seconds and not job.errors for job in jobs)
    if late:
        results.errors.append(f"{part}: out of time for {late} of {len(jobs)}")


def _attention(results: Results, models: Models, deadline: float, on_gpu: bool) -> None:
    results.attention = list(gpu_attention.jobs())
    if not on_gpu:
        for subject in gpu_attention.SUBJECTS.values():
            say(f"attention: {subject.name}")
            gpu_attention.try_on_cpu(subject)
        return
    time_left = deadline - time.monotonic()
    gpu_attention.measure_all(results.attention, time.monotonic() + OWN_SHARE * time_left, say)
    _measure_peers(results, "attention", results.attention, {"torch": 1}, deadline)


def _products(results: Results, models: Models, deadline: float, on_gpu: bool) -> None:
    results.products = list(gpu_products.jobs())
    _measure_alone(results, "products", results.products, gpu_products, deadline, on_gpu)


def _convolutions(results: Results, models: Models, deadline: float, on_gpu: bool, tune: bool = False) -> None:
    todo = list(gpu_convolutions.jobs())
    results.convolutions = [job for _, job in todo]
    if on_gpu:
        gpu_convolutions.measure_all(todo, math.inf if tune else deadline, say, tune)
        late = sum(not job.seconds and not job.errors for job in results.convolutions)
        if late:
            results.errors.append(f"convolutions: out of time for {late} of {len(todo)}")
        return
    for layer in gpu_convolutions.LAYERS:
        say(f"convolutions: {layer.name}")
        gpu_convolutions.layer_model(layer, 1, "float32")


def _models(results: Results, models: Models, deadline: float, on_gpu: bool) -> None:
    for model in gpu_models.measure_all(models, deadline, say, on_gpu):
        if not on_gpu:
            model.seconds.clear()  # those of the CPU are not for the table
        results.models.append(model)
    late = len(gpu_models.rounds(models)) - len(results.models)
    if late:
        results.notes.append(f"models: too little time is left for {late}, each batch size and type counted")


_RUN: dict[str, Callable[..., None]] = {
    "parity": _parity,
    "kernels": _kernels,
    "reductions": _reductions,
    "transposes": _transposes,
    "parts": _parts,
    "attention": _attention,
    "products": _products,
    "convolutions": _convolutions,
    "models": _models,
}


if __name__ == "__main__":
    sys.exit(main())
