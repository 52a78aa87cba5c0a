"""The script that goes through every tiling: what it takes, what it finds, and that it goes on where it was."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import conv_instances
import pytest
from conv_instances import Instance

from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.conv.tiling import Tiling, shared_bytes
from onnxfuse.errors import OnnxfuseError
from onnxfuse.program.figures import SHARED_BYTES
from tests.cuda.compilers import MadeUpCompiler
from tools.fuzz.pool import Shard

DEPTHWISE = conv_instances.SMALL
TENSOR = Instance("bf16", False, "gemm", (Tiling("gemm", (32, 64, 16), (32, 32), 8, 16, True),), True, 4)


@pytest.fixture
def small_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_instances, "HEIGHTS", (7, 64))
    monkeypatch.setattr(conv_instances, "WIDTHS", (6, 12, 33, 64))


def test_all_tiles_of_matrix_products_are_taken(small_grid: None) -> None:
    todo = conv_instances.instances(False)
    assert {instance.group for instance in todo} == {
        *("gemm f32", "gemm tf32", "gemm f16", "gemm bf16"),
        *("depthwise f32", "depthwise f16", "depthwise bf16", "direct f32", "direct f16", "direct bf16"),
    }
    for group, vectors in (("gemm f32", 3), ("gemm tf32", 3), ("gemm f16", 4), ("gemm bf16", 4)):
        tilings = {tiling for instance in todo if instance.group == group for tiling in instance.tilings}
        assert len(tilings) == 6 * vectors * 2  # tiles, vectors, split or not
    everything = conv_instances.instances(True)
    assert {tiling for instance in everything for tiling in instance.tilings} > {
        tiling for instance in todo for tiling in instance.tilings
    }
    for kind in (True, False):
        halves = [instance for instance in todo if instance.dtype in ("f16", "bf16") and instance.pointwise is kind]
        assert len({tiling for instance in halves for tiling in instance.tilings if tiling.tensor_cores}) == 48


def test_a_cover_has_every_value_and_the_pairs_that_count(small_grid: None) -> None:
    tilings = conv_instances.offered("f16", False)["depthwise"]
    cover = conv_instances.chosen(tilings)
    assert len(cover) < len(tilings) / 2
    for trait in (lambda own: own.tile[0], lambda own: own.block, lambda own: own.thread, lambda own: own.tile[1]):
        assert set(map(trait, cover)) == set(map(trait, tilings))


@pytest.mark.parametrize("seed", range(30))
def test_the_tilings_compute_their_convolutions(seed: int) -> None:
    rng = random.Random(seed)
    for instance in (DEPTHWISE, TENSOR, replace(TENSOR, pointwise=False)):
        made = replace(instance, seed=rng.randint(0, 1 << 20))
        batches = [case.x_shape[0] for case in made.cases()]
        source = made.source()
        assert batches == list(conv_instances.BATCHES) and source.kernels[0].vector == made.tilings[0].vector
        conv = made.cases()[0].conv
        assert made.family == "gemm" or shared_bytes(conv, made.tilings[0]) <= SHARED_BYTES
        assert made.family != "gemm" or conv.pointwise or not made.pointwise


@pytest.mark.parametrize("instance", [DEPTHWISE, TENSOR], ids=lambda own: own.group)
def test_an_instance_is_compiled_for_all_architectures_and_emulated(instance: Instance) -> None:
    compiler = MadeUpCompiler()
    found = conv_instances.result_of(instance, compiler)
    assert found["failures"] == [] and found["worst"][0]["registers"] == 40
    assert [name for _, name in compiler.calls] == list(COMMON)
    assert found["emulated"] >= (6 if instance is TENSOR else 4)


class _Broken(MadeUpCompiler):
    def compile(self, source: str, architecture: str, options: tuple[str, ...]) -> Any:
        if architecture == "sm_90":
            raise OnnxfuseError("too much\nshared data")
        return super().compile(source, architecture, options)


def test_what_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_arguments: object, **_options: object) -> list[object]:
        raise AssertionError("other\nbits")

    monkeypatch.setattr(conv_instances, "Emulation", lambda *_arguments: None)
    monkeypatch.setattr(conv_instances, "check", wrong)
    failures = conv_instances.result_of(DEPTHWISE, _Broken())["failures"]
    assert failures == ["sm_90: too much shared data", "emulated as sm_80: other bits"]


def test_a_run_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conv_instances, "Nvrtc", MadeUpCompiler)
    monkeypatch.setattr(conv_instances, "instances", lambda everything: [DEPTHWISE, TENSOR])
    monkeypatch.setattr(conv_instances, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(conv_instances, "ROOT", tmp_path)
    state, ran = tmp_path / "new" / "state", list[int]()

    def run_shards(job: object, shards: Any, jobs: int, deadline: None) -> Any:
        for numbers in shards:
            ran.append(numbers.start)
            shard = Shard(numbers)
            worst = {"registers": 40, "spills": 0, "stack": 0, "occupancy": 0.5}
            result = {"group": [DEPTHWISE, TENSOR][numbers.start].group, "tilings": ["k"], "emulated": 3}
            failures = ["wrong"] if len(ran) == 2 else []
            shard.results.append({"results": [{**result, "failures": failures, "worst": [worst]}]})
            yield shard

    monkeypatch.setattr(conv_instances, "run_shards", run_shards)
    monkeypatch.setattr("sys.argv", ["conv_instances.py", "--state", str(state), "--page"])
    assert conv_instances.main() == 1 and ran == [0, 1]
    assert "1 (gemm bf16): wrong\n" in capsys.readouterr().out
    with state.open("a") as file:
        file.write('{"key": "cut off')
    assert conv_instances.main() == 0 and ran == [0, 1, 1]
    out, err = capsys.readouterr()
    assert out == f"2 kernels in 2 sources for {len(COMMON)} architectures, 6 launches, 0 failed\n"
    assert err == "2 sources, 1 done before\n"
    assert "| depthwise f16 | 1 | 3 | 40 | 0 | 50 % | 0 |" in (tmp_path / "page.md").read_text()
    lines = [line for line in state.read_text().splitlines() if line and "cut off" not in line]
    assert [json.loads(line)["failures"] for line in lines] == [[], ["wrong"], []]
    monkeypatch.setattr("sys.argv", ["conv_instances.py", "--jobs", "0"])
    with pytest.raises(SystemExit, match="2"):
        conv_instances.main()
