"""The benchmark: the order of its calls, its ratio, and its memory measurement."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import numpy as np
import pytest

import onnxfuse
from onnxfuse.bench import MIN_BLOCKS, bench, machine, time_in_turns
from onnxfuse.bench_turns import Worker, ratio_of_processes, ratio_with_spread, take_turns
from onnxfuse.core_distance import CoreDistance
from onnxfuse.errors import OnnxfuseError
from tests.support.parity_models import chain, model_file, save


def test_calls_go_a_b_b_a() -> None:
    calls: list[str] = []
    blocks = time_in_turns(lambda: calls.append("a"), lambda: calls.append("b"), 0.001)
    timed = "".join(calls)[-4 * len(blocks) :]
    assert timed == "abba" * len(blocks)
    assert len(blocks) >= MIN_BLOCKS and blocks.shape[1:] == (2, 2) and (blocks >= 0).all()


def test_the_ratio_ignores_disturbances() -> None:
    generator = np.random.default_rng(1)
    blocks = np.full((60, 2, 2), 1.0)
    blocks[:, 1] = 0.5
    blocks += generator.exponential(0.005, blocks.shape)
    blocks[generator.random(blocks.shape) < 0.2] *= 5  # another process takes the core
    ratio, low, high = ratio_with_spread(blocks)
    assert low <= ratio <= high
    assert ratio == pytest.approx(2.0, rel=0.03)


def test_equal_work_has_an_interval_around_one() -> None:
    blocks = 1 + np.random.default_rng(2).exponential(0.05, (100, 2, 2))
    _, low, high = ratio_with_spread(blocks)
    assert low < 1 < high and high - low < 0.1


def test_an_interval_knows_of_other_processes() -> None:
    """However many turns two processes have, others of the same files differ by a hundredth each."""
    first = 1 + np.random.default_rng(2).exponential(0.001, (1000, 2))
    ratio, low, high = ratio_of_processes(first, first[:500] / 2)
    assert ratio == pytest.approx(2, rel=0.01)
    assert high / ratio == pytest.approx(ratio / low) == pytest.approx(1.028, abs=0.002)


@pytest.mark.skipif(sys.platform != "linux", reason="says on which core a process runs")
def test_how_far_cores_are_from_each_other() -> None:
    cores = os.sched_getaffinity(0)
    with CoreDistance() as distance:
        found = [distance.nanoseconds() for _ in range(10)]  # the other core may have other work for a while
    assert os.sched_getaffinity(0) == cores
    known = [value for value in found if value is not None]
    assert len(cores) < 2 or (known and distance.least == min(known) > 1)
    assert distance.is_near(None) and (not known or (distance.is_near(min(known)) and not distance.is_near(1e9)))


_LEFT_BEHIND = """
import os, signal
from onnxfuse.core_distance import CoreDistance
with CoreDistance() as distance:
    distance.nanoseconds()
    print(distance._process.pid if distance._process else 0, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="says on which core a process runs")
def test_nobody_measures_on_behind_a_process_that_was_killed() -> None:
    done = subprocess.run([sys.executable, "-c", _LEFT_BEHIND], capture_output=True, text=True)
    state = Path(f"/proc/{done.stdout.strip()}/status")

    def runs() -> bool:
        return state.exists() and "State:\tZ" not in state.read_text()

    end = time.monotonic() + 20
    while runs() and time.monotonic() < end:
        time.sleep(0.05)
    assert done.stdout and not runs()


def test_only_blocks_of_one_distance_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cores(CoreDistance):
        def __init__(self, found: list[float | None]) -> None:
            super().__init__()
            self._found = iter(found)

        def nanoseconds(self) -> float | None:
            value = next(self._found)
            self.least = min(value or 1e9, self.least or 1e9)
            return value

    class Told:
        def __init__(self) -> None:
            self.count = 0

        def time(self, _seconds: float) -> float:
            self.count += 1
            return (self.count + 1) // 2  # that of the block

    def blocks(*found: float | None) -> tuple[list[int], float | None]:
        turns = take_turns({"a": cast(Worker, Told())}, 0, 0, len(found), Cores(list(found)))
        return turns.times["a"][:, 0].tolist(), turns.distance

    assert blocks(600, 210, 220, 640, 200, None) == ([2, 3, 5, 6], 210)
    assert blocks(600, 210, 650, 640, 620, 660) == ([1, 3, 4, 5, 6], 640)
    assert blocks(600, 610, 650, 640, 620, 660) == ([1, 2, 3, 4, 5, 6], 630)
    assert blocks(None, None) == ([1, 2], None)


def test_bench_of_a_fused_model(tmp_path: Path) -> None:
    original = save(chain(), tmp_path / "a.onnx")
    onnxfuse.optimize(original, check=False, output=tmp_path / "b.onnx")
    found = bench(original, tmp_path / "b.onnx", threads=1, shapes={"x": (1, 4, 100)}, seconds=0.05)
    assert found.inputs == {"x": [1, 4, 100]}
    assert found.low <= found.ratio <= found.high
    assert found.original.best <= found.original.quartile <= found.original.median
    assert found.original.peak_memory is None
    assert "1 thread," in found.machine and "ONNX Runtime" in found.machine


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_peak_memory_sees_what_a_model_allocates(tmp_path: Path) -> None:
    original, optimized = (
        model_file(
            tmp_path / f"{size}.onnx",
            f"(float[1] x) => (float y) <int64[1] size = {{{size}}}>",
            "e = Expand(x, size) y = ReduceMax <keepdims = 0> (e)",
        )
        for size in (25_000_000, 1000)
    )
    found = bench(original, optimized, threads=1, seconds=0.05, memory=True)
    assert found.original.peak_memory.own > 90e6
    assert found.original.peak_memory.resident > 90e6
    assert found.optimized.peak_memory.own < 20e6 < found.optimized.peak_memory.resident + 20e6
    assert found.optimized.peak_memory.resident < 60e6
    assert found.original.peak_memory.process > found.original.peak_memory.resident + 20e6  # Python itself
    assert found.optimized.peak_memory.process + 50e6 < found.original.peak_memory.process


def test_models_that_do_not_run_are_refused(tmp_path: Path) -> None:
    good = model_file(tmp_path / "a.onnx", "(float[2] x) => (float[2] y)", "y = Abs(x)")
    other = model_file(tmp_path / "b.onnx", "(float[3] x) => (float[3] y)", "y = Abs(x)")
    with pytest.raises(OnnxfuseError, match=r"ONNX Runtime cannot run .*b\.onnx"):
        bench(good, other, seconds=0.01)
    with pytest.raises(OnnxfuseError, match="no such file"):
        bench(good, tmp_path / "none.onnx")


def test_the_machine_is_one_line() -> None:
    assert "\n" not in machine(0) and "2 threads" in machine(2)
