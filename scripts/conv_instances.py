#!/usr/bin/env python3
"""Compile and run the tilings that a convolution's kernel may get, on a machine without a GPU.

Asks onnxfuse.cuda.conv.candidates for its tilings over a grid of convolutions and sizes, for every element type and
with TF32.  All tilings of matrix products are taken.  Those of depthwise and direct kernels follow the sizes of the
image, tens of thousands of them: as many are taken as have every value of every parameter, and every pair of vector and
columns and of vector and rows of a thread (all with --all).  Each is compiled by NVRTC for every common architecture,
and run in the emulation of CUDA against ONNX Runtime and the NumPy reference: bit for bit, on small shapes that are no
multiples of the tile, batch 1 and 3, operands aligned and not, with random convolutions, prologues and tails.

What was done is kept in a file, and a second run goes on from there: only what changed since is done again.  With
--page the results are written to benchmarks/conv_instances.md.  Exit status 1 if anything failed.
"""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for the processes, which import this module
sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, and the cases and helpers of the tests

import onnxfuse
from onnxfuse.cuda.arch import COMMON, architecture
from onnxfuse.cuda.compile.nvrtc import Nvrtc
from onnxfuse.cuda.conv.candidates import candidates
from onnxfuse.cuda.conv.kernel import ConvKernel, ConvSource
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.cuda.conv.tiling import Tiling, shared_bytes
from onnxfuse.cuda.elementwise.fitting import LOG_OPTION
from onnxfuse.cuda.elementwise.renderer import compile_options
from onnxfuse.errors import OnnxfuseError
from onnxfuse.program.figures import SHARED_BYTES
from tests.cuda.conv.convolutions import Fused, check, convolution, fused_of, random_windowed
from tests.cuda.emulation.emulator import HEADERS, Emulation, ViolationError
from tools.fuzz.pool import Job, run_shards
from tools.markdown_table import table
from tools.messages import Parser, say

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks" / "conv_instances.md"
STATE = ROOT / "build" / "conv_instances.jsonl"
OPTIONS = (*compile_options(False), LOG_OPTION)
TYPES = (("f32", False), ("f32", True), ("f16", False), ("bf16", False))
"""The element types, and whether f32 is rounded to TF32."""
FAMILIES = ("gemm", "depthwise", "direct")
TILINGS_OF_A_SOURCE = 4
REGISTERS = 65536
HEIGHTS = (1, 2, 3, 7, 14, 24, 33, 56, 112, 160, 224)
WIDTHS = (1, 3, 5, 7, 8, 12, 14, 16, 19, 24, 28, 33, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""The sizes of the grid."""
BATCHES = (1, 3)


@dataclass(frozen=True)
class Instance:
    """Tilings of one family and vector, for one convolution, which may have to be ``pointwise``."""

    dtype: str
    tf32: bool
    family: str
    tilings: tuple[Tiling, ...]
    pointwise: bool
    seed: int

    @property
    def group(self) -> str:
        """The row of the page's table that it counts for."""
        return f"{self.family} {'tf32' if self.tf32 else self.dtype}"

    def cases(self) -> list[Fused]:
        """The fused convolution for each batch."""
        conv, spatial = _MAKERS[self.family](random.Random(self.seed), self)
        kind = random.Random(self.seed).random()
        return [fused_of(random.Random(kind), conv, spatial, batch, self.tilings) for batch in BATCHES]

    def source(self) -> ConvSource:
        """The kernels: those for the largest batch serve all."""
        return self.cases()[-1].render()


SMALL = Instance("f16", False, "depthwise", (Tiling("depthwise", (2, 4, 8), (2, 4), 4),), False, 3)
"""What --quick takes."""


# ------------------------------------------------------------------------------------------------ which there are


def offered(dtype: str, tf32: bool) -> dict[str, list[Tiling]]:
    """What the grid is offered, by family; of split sums the one with the most parts."""
    found: dict[str, dict[Tiling, None]] = {family: {} for family in FAMILIES}
    for conv in _grid(dtype):
        for height, width, batch in product(HEIGHTS, WIDTHS, (1, 16)):
            for tilings in candidates(conv, (batch, conv.in_channels, height, width), tf32):
                for tiling in tilings:
                    found[tiling.family][replace(tiling, split=16 if tiling.split > 1 else 1)] = None
    return {family: sorted(tilings, key=repr) for family, tilings in found.items()}


def _grid(dtype: str) -> Iterator[Convolution]:
    yield from (convolution(dtype, (channels, 64), (1, 1)) for channels in (16, 512))
    for size, stride in ((3, 1), (3, 2), (5, 1), (5, 2), (7, 1)):
        shared: dict[str, Any] = {"strides": (stride, stride), "pads": (size // 2,) * 4}
        yield convolution(dtype, (3, 32), (size, size), **shared)
        for channels in (16, 96, 960):
            yield convolution(dtype, (channels, channels), (size, size), group=channels, **shared)


def chosen(tilings: Sequence[Tiling]) -> list[Tiling]:
    """As many as it takes to have every value of every parameter, and the pairs that a thread's work depends on."""
    wanted = {trait for tiling in tilings for trait in _traits(tiling)}
    found: list[Tiling] = []
    shuffled = random.Random(0).sample(tilings, len(tilings))
    while wanted:
        best = max(shuffled, key=lambda tiling: len(wanted & _traits(tiling)))
        found.append(best)
        wanted -= _traits(best)
    return found


@cache
def _traits(tiling: Tiling) -> frozenset[tuple[Any, ...]]:
    (first, rows, columns), (own, _), vector = tiling.tile, tiling.thread, tiling.vector
    values = {"first": first, "rows": rows, "columns": columns // vector, "own": own, "block": tiling.block}
    return frozenset(
        {*values.items(), ("columns", columns // vector, vector), ("own", own, vector), ("vector", vector)}
    )


def instances(everything: bool) -> list[Instance]:
    """All that there is to do."""
    found: list[Instance] = []
    for dtype, tf32 in TYPES:
        for family, tilings in offered(dtype, tf32).items():
            if tf32 and family != "gemm":
                continue  # the same as without
            own = tilings if family == "gemm" or everything else chosen(tilings)
            for vector in sorted({tiling.vector for tiling in own}):
                alike = [tiling for tiling in own if tiling.vector == vector]
                for start in range(0, len(alike), TILINGS_OF_A_SOURCE):
                    part = tuple(alike[start : start + TILINGS_OF_A_SOURCE])
                    for pointwise in _kinds(family, dtype, tf32, start // TILINGS_OF_A_SOURCE):
                        found.append(Instance(dtype, tf32, family, part, pointwise, len(found)))
    return found


def _kinds(family: str, dtype: str, tf32: bool, number: int) -> tuple[bool, ...]:
    """Whether matrix products are pointwise: for f32 they are and are not, for f16 one of it and for bf16 the other."""
    if family != "gemm":
        return (False,)
    return (tf32, not tf32) if dtype == "f32" else ((number + (dtype == "bf16")) % 2 == 0,)


# ------------------------------------------------------------------------------------------------ convolutions


Made = tuple[Convolution, list[int]]


def _gemm(rng: random.Random, instance: Instance) -> Made:
    """A pointwise convolution, which reads vectors, or any other; its positions are a multiple of the vector."""
    vector = instance.tilings[0].vector
    if instance.pointwise:
        channels = rng.choice((5, 24, 72, 136)), rng.choice((3, 40, 70))
        return convolution(instance.dtype, channels, (1, 1)), [rng.choice((3, 5)), vector * rng.choice((1, 3, 5))]
    while True:
        transposed, rank, group = rng.random() < 0.3, rng.choice((1, 2, 2, 3)), rng.choice((1, 1, 2, 3))
        kernel = [rng.choice((1, 2, 3, 3, 5)) for _ in range(rank)]
        strides = [rng.choice((1, 1, 2, 3)) for _ in range(rank)]
        conv = convolution(
            instance.dtype,
            (group * rng.choice((1, 7, 16, 32)), group * rng.choice((1, 5, 33))),
            kernel,
            group=group,
            strides=strides,
            dilations=[rng.choice((1, 1, 2)) for _ in range(rank)],
            pads=[rng.randint(0, size - 1) for size in kernel * 2],
            output_padding=[rng.randint(0, stride - 1) for stride in strides] if transposed else (),
            transposed=transposed,
        )
        spatial = [rng.randint(1, {1: 60, 2: 12, 3: 6}[rank]) for _ in range(rank)]
        positions = math.prod(conv.output_shape((1, conv.in_channels, *spatial))[2:])
        if 0 < positions <= 300 and positions % vector == 0:
            return conv, spatial


def _depthwise(rng: random.Random, instance: Instance) -> Made:
    channels = rng.choice((2, 5, 7))
    return _windowed(rng, instance, (channels, channels), channels)


def _direct(rng: random.Random, instance: Instance) -> Made:
    return _windowed(rng, instance, (rng.choice((1, 3, 4)), rng.choice((3, 13, 21))), 1)


def _windowed(rng: random.Random, instance: Instance, channels: tuple[int, int], group: int) -> Made:
    """What every one of the tilings has shared memory for; images that end within a tile, or behind the first."""
    vector = instance.tilings[0].vector
    tall = max(tiling.tile[1] for tiling in instance.tilings)
    wide = max(tiling.tile[2] for tiling in instance.tilings) // vector
    while True:
        conv = random_windowed(rng, instance.dtype, channels, group)
        if any(shared_bytes(conv, tiling) > SHARED_BYTES for tiling in instance.tilings):
            continue
        spatial = [rng.randint(1, 3), rng.randint(1, min(2 * tall, 24)), vector * rng.randint(1, min(wide + 3, 30))]
        spatial = spatial[3 - conv.rank :]
        out = conv.output_shape((1, conv.in_channels, *spatial))
        if min(out) > 0 and out[-1] % vector == 0:
            return conv, spatial


_MAKERS: dict[str, Callable[[random.Random, Instance], Made]] = {
    "gemm": _gemm,
    "depthwise": _depthwise,
    "direct": _direct,
}


# ------------------------------------------------------------------------------------------------ doing it


def key_of(instance: Instance, version: str) -> str:
    """Known by it is a result that still holds: the source, what emulates it, and the compiler."""
    emulation = [path.read_text(encoding="utf-8") for path in sorted(HEADERS.glob("*.h"))]
    return sha256("\n".join((instance.source().text, version, *emulation)).encode()).hexdigest()


def run(numbers: range, begin: Callable[[int], None], todo: Sequence[Instance]) -> dict[str, Any]:
    """What a worker process does: the results of these instances."""
    results = []
    for number in numbers:
        begin(number)
        results.append(result_of(todo[number], Nvrtc()))
    return {"results": results}


def result_of(instance: Instance, compiler: Nvrtc) -> dict[str, Any]:
    """What came of an instance: its ``failures``, how many launches were ``emulated``, and the main kernels' worst."""
    started, failures = time.monotonic(), []
    source = instance.source()
    main = source.kernels[: len(instance.tilings)]
    worst = [{"registers": 0, "spills": 0, "stack": 0, "occupancy": 1.0} for _ in main]
    for name in COMMON:
        try:
            found = compiler.compile(source.text, name, OPTIONS).resources
        except OnnxfuseError as error:
            failures.append(f"{name}: {' '.join(str(error).split())[:300]}")
            continue
        for kernel, own in zip(main, worst, strict=True):
            takes = found[kernel.name]
            share = architecture(name).occupancy(takes.registers, kernel.block, takes.shared)
            own["registers"] = max(own["registers"], takes.registers)
            own["spills"] = max(own["spills"], takes.spills)
            own["stack"] = max(own["stack"], takes.stack)
            own["occupancy"] = min(own["occupancy"], share)
            if takes.registers * kernel.block > REGISTERS:
                failures.append(f"{name}: {kernel} takes {takes.registers} registers")
    emulated = 0
    for older in (False, True) if any(tiling.tensor_cores for tiling in instance.tilings) else (False,):
        try:
            emulated += _emulate(instance, source, 75 if older else 80)
        except (AssertionError, ViolationError) as error:
            failures.append(f"emulated as sm_{75 if older else 80}: {' '.join(str(error).split())[:300]}")
    return {
        "group": instance.group,
        "tilings": [str(kernel) for kernel in main],
        "failures": failures,
        "emulated": emulated,
        "worst": worst,
        "seconds": round(time.monotonic() - started, 1),
    }


def _emulate(instance: Instance, source: ConvSource, number: int) -> int:
    """The launches of kernels, all of which were right.  Raises AssertionError or ViolationError."""
    with tempfile.TemporaryDirectory() as scratch:
        emulation = Emulation([source], number, Path(scratch))
        ran: list[ConvKernel] = []
        for case in instance.cases():
            ran += check(emulation, source, case, instance.seed)
        missing = set(source.kernels) - set(ran)
        assert not missing, f"never ran: {', '.join(map(str, missing))}"
        ran += check(emulation, source, instance.cases()[0], instance.seed, shift=1)
    return len(ran)


# ------------------------------------------------------------------------------------------------ results


def read_state(path: Path) -> dict[str, dict[str, Any]]:
    """What earlier runs have found, by ``key_of``; a line that an interruption has cut off is left out."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        found[entry["key"]] = entry
    return found


def page(results: Sequence[dict[str, Any]], everything: bool, version: str) -> str:
    """The text of benchmarks/conv_instances.md."""
    columns = ("family", "kernels", "launches emulated", "registers", "kernels that spill", "least occupancy", "failed")
    rows = []
    for group in dict.fromkeys(result["group"] for result in results):
        own = [result for result in results if result["group"] == group]
        worst = [kernel for result in own for kernel in result["worst"]]
        rows.append(
            (
                group,
                len(worst),
                sum(result["emulated"] for result in own),
                max(kernel["registers"] for kernel in worst),
                sum(kernel["spills"] + kernel["stack"] > 0 for kernel in worst),
                f"{100 * min(kernel['occupancy'] for kernel in worst):.0f} %",
                sum(bool(result["failures"]) for result in own),
            )
        )
    taken = (
        "every tiling that the grid is offered" if everything else "every tiling of matrix products, a cover of others"
    )
    return "\n".join(
        [
            "# The tilings of convolution kernels, compiled and emulated",
            "",
            "What `scripts/conv_instances.py` went through, without a GPU: each tiling with random convolutions,",
            f"prologues and tails, compiled for {', '.join(COMMON)}, and run in",
            "the emulation of CUDA against ONNX Runtime and the NumPy reference, bit for bit. Registers and spills are",
            "the most on any of the architectures, occupancy the least. A kernel that spills is not chosen. Matrix",
            "products of float32 count twice: each tiling was taken for a pointwise convolution and for another one.",
            "",
            f"{version}; {datetime.now(UTC):%Y-%m-%d}; onnxfuse {onnxfuse.__version__}; {taken}.",
            "",
            table(columns, rows),
            "",
        ]
    )


def main() -> int:
    """Go through what is left to do."""
    parser = Parser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every tiling that the grid is offered")
    parser.add_argument("--quick", action="store_true", help="one small source, to try the command, without a page")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument("--state", type=Path, default=STATE, metavar="FILE", help=f"what was done (default: {STATE})")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)} at the end")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error("--jobs is 1 or more")
    try:
        version = Nvrtc().version
    except OnnxfuseError as error:
        print(f"conv_instances.py: error: {error}", file=sys.stderr)
        return 2
    todo = [SMALL] if arguments.quick else instances(arguments.all)
    keys = [key_of(instance, version) for instance in todo]
    known = read_state(arguments.state)
    numbers = [number for number, key in enumerate(keys) if key not in known or known[key]["failures"]]
    say(f"{len(todo)} sources, {len(todo) - len(numbers)} done before")
    arguments.state.parent.mkdir(parents=True, exist_ok=True)
    shards = (range(number, number + 1) for number in numbers)
    with arguments.state.open("a", encoding="utf-8") as state:
        state.write("\n" if state.tell() else "")  # what was cut off may have no end
        for shard in run_shards(Job("conv_instances", "run", todo), shards, arguments.jobs, None):
            number = shard.numbers.start
            lost = [f"the process was lost: {how}" for _, how in shard.lost]
            empty = {"group": todo[number].group, "tilings": [], "failures": lost, "emulated": 0, "worst": []}
            entry = {"key": keys[number], **(shard.results[0]["results"][0] if shard.results else empty)}
            known[keys[number]] = entry
            state.write(json.dumps(entry) + "\n")
            state.flush()
            for failure in entry["failures"]:
                print(f"{number} ({entry['group']}): {failure}", flush=True)
    results = [known[key] for key in keys]
    failed = sum(bool(result["failures"]) for result in results)
    kernels = sum(len(result["worst"]) for result in results)
    emulated = sum(result["emulated"] for result in results)
    print(
        f"{kernels} kernels in {len(results)} sources for {len(COMMON)} architectures, "
        f"{emulated} launches, {failed} failed"
    )
    if arguments.page and not arguments.quick:
        PAGE.write_text(page(results, arguments.all, version), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
