"""How fast the result of ``optimize`` is: measured as users run it, said first, and what loses is taken back."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse import bench_processes, speed
from onnxfuse.bench import bench
from onnxfuse.bench_processes import Timed, time_models
from onnxfuse.bench_turns import ratio_with_spread
from onnxfuse.cli.cli import main
from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.graph import Model
from onnxfuse.passes import PassContext, registry
from onnxfuse.run.inputs import InputSet
from onnxfuse.run.sessions import has_fused_nodes
from onnxfuse.speed import Speed, file_bytes
from tests.support.parity_models import chain, model_file, save

FIRST_LINE = re.compile(r"\d+\.\d\d times as fast \(\d+\.\d\d to \d+\.\d\d\), [\d.]+ → [\d.]+ (bytes|[kMG]B)")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_processes, "SECONDS", 0.1)
    monkeypatch.setattr(bench_processes, "TURN_SECONDS", 0.01)


@pytest.fixture
def activations(tmp_path: Path) -> Path:
    """A chain over so much memory that one pass is a good deal faster than six."""
    text = "a = Mul(x, x) b = Sigmoid(a) c = Mul(b, x) d = Abs(c) e = Add(d, x) y = Neg(e)"
    return model_file(tmp_path / "model.onnx", "(float[256, 1024] x) => (float[256, 1024] y)", text)


@pytest.fixture
def slowed() -> Iterator[None]:
    """A pass that makes models slower on purpose: beside the output, a tower of tangents that is never chosen."""

    def slow(model: Model, context: PassContext) -> None:
        proto = model.to_proto()
        last = proto.graph.node[-1].output[0]
        proto.graph.node[-1].output[0] = "kept"
        name = "kept"
        for index in range(8):
            proto.graph.node.append(helper.make_node("Tan", [name], [f"tower_{index}"], name=f"tower_{index}"))
            name = f"tower_{index}"
        proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "never"))
        proto.graph.node.append(helper.make_node("Where", ["never", "kept", name], [last], name="choose"))
        made = Model.from_proto(proto)
        model.graph = made.graph

    onnxfuse.register_pass(slow, name="slow-on-purpose", after="fuse-elementwise")
    yield
    registry.REGISTRY.remove("slow-on-purpose")


def test_what_is_slower_is_taken_back_to_the_nodes_of_the_original(
    activations: Path, tmp_path: Path, slowed: None, quick: None
) -> None:
    result = onnxfuse.optimize(activations, "cpu", output=tmp_path / "out.onnx")
    assert any(node.op_type == "Tan" for node in onnx.load(tmp_path / "out.onnx").graph.node)  # nobody has timed it
    assert result.report.speed is None
    result = onnxfuse.optimize(activations, "cpu", bench=True, output=tmp_path / "out.onnx")
    original, written = onnx.load(activations), onnx.load(tmp_path / "out.onnx")
    assert [node.op_type for node in written.graph.node] == [node.op_type for node in original.graph.node]
    found = result.report.speed
    assert found is not None and not found.slower
    assert found.taken_back.startswith("Taken back: the nodes are the original's; as planned it ran 0.")
    assert result.report.parity is not None and result.report.parity.ok


def test_what_is_asked_for_is_kept_with_a_warning(activations: Path, tmp_path: Path, slowed: None, quick: None) -> None:
    result = onnxfuse.optimize(activations, "cpu", "slow-on-purpose", bench=True, output=tmp_path / "out.onnx")
    assert result.report.speed is not None and result.report.speed.slower
    assert any(warning.startswith("the result is slower than the original: 0.") for warning in result.report.warnings)


def test_a_slower_choice_gives_way_to_one_that_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of the choices is taken, by times that are made up: those of elementwise nodes alone are the best."""
    from onnxfuse.targets.request import request

    candidates = speed.choices(request("cpu"))
    assert len({choice.words for choice in candidates}) == len(candidates) == 7
    assert candidates[-1].request.steps == ()
    seconds = {speed.ORIGINAL: 1.0, **{choice.words: 1.1 for choice in candidates}}
    seconds["elementwise nodes alone are fused"] = 0.8
    seconds["nothing is fused"] = 0.9
    path = save(chain(), tmp_path / "a.onnx")
    written: list[object] = []

    def write(asked: object, target: Path) -> None:
        written.append(asked)
        target.write_bytes(path.read_bytes() + onnx.ModelProto(producer_name=str(len(written))).SerializeToString())

    def timed(models: dict[str, Path], *_unused: object, **_more: object) -> dict[str, Timed]:
        noise = 1 + 0.001 * np.arange(12).reshape(6, 2)
        return {name: Timed(seconds[name] * noise, 0.0, InputSet("x", {})) for name in models}

    monkeypatch.setattr(speed, "time_models", timed)
    first = Speed(0.9, 0.89, 0.91, (1.0, 1.1), (10, 10))
    taken, found = speed.choose(candidates, write, path, InputSet("x", {}), first, "cpu")
    assert taken is candidates[4].request and len(written) == 6
    assert found.ratio == pytest.approx(1.25, rel=0.01)
    assert found.taken_back.startswith("Taken back: elementwise nodes alone are fused; as planned it ran 0.91 times")
    seconds[candidates[0].words] = 0.7  # in another process the plan is not slower
    taken, found = speed.choose(candidates, write, path, InputSet("x", {}), first, "cpu")
    assert taken is candidates[0].request and found.taken_back == ""


def test_the_first_line_is_how_fast_the_result_is(
    activations: Path, tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    assert main(["optimize", str(activations), str(out), "--target", "cpu"]) == 0
    assert "times as fast" not in capsys.readouterr().out  # for ONNXFUSE_NO_BENCH
    monkeypatch.delenv("ONNXFUSE_NO_BENCH")
    assert main(["optimize", str(activations), str(out), "--target", "cpu", "--report", str(report)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert FIRST_LINE.fullmatch(first), first
    said = json.loads(report.read_text())["speed"]
    assert has_fused_nodes(onnx.load(out)) or said["taken_back"]
    assert 0 < said["low"] <= said["ratio"] <= said["high"]
    assert said["sizes"] == [activations.stat().st_size, out.stat().st_size]
    for option in ("--no-bench", "--no-check"):
        assert main(["optimize", str(activations), str(out), "--target", "cpu", option]) == 0
        assert "times as fast" not in capsys.readouterr().out


def test_what_is_the_original_is_not_timed_but_said_to_be_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ONNXFUSE_NO_BENCH")
    path = model_file(tmp_path / "a.onnx", "(float[2, 3] x, float[3, 4] w) => (float[2, 4] y)", "y = MatMul(x, w)")
    assert main(["optimize", str(path), str(tmp_path / "b.onnx"), "--target", "cpu"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "Not timed: the result is the original, nothing was changed."


def test_few_blocks_say_less() -> None:
    """Of two models that are equal, few blocks claim that one is faster as rarely as many do."""
    generator = np.random.default_rng(3)
    for count in (4, 6, 40):
        wrong = 0
        for _ in range(100):
            _, low, high = ratio_with_spread(1 + 0.03 * generator.exponential(1, (count, 2, 2)))
            wrong += not low <= 1 <= high
        assert wrong < 100 * 0.1, count


def test_without_a_gpu_nothing_is_timed_nor_claimed_for_cuda(
    activations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxfuse.targets.request.why_no_cuda", lambda: "there is no CUDA GPU here")
    monkeypatch.setattr(speed, "time_models", lambda *_a, **_k: pytest.fail("there is nothing to time it on"))
    result = onnxfuse.optimize(activations, "cuda", bench=True, embed=False, arch="sm_80", output=tmp_path / "out.onnx")
    assert result.report.speed is None and result.report.describe_speed() == ["Not timed: there is no CUDA GPU here."]


def test_a_model_in_memory_and_inputs_of_the_user_are_timed(activations: Path, tmp_path: Path, quick: None) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((256, 1024), np.float32))
    result = onnxfuse.optimize(onnx.load(activations), "cpu", bench=True, check=False, inputs=tmp_path / "x.npz")
    assert result.report.speed is not None and result.report.parity is None


def test_a_model_that_does_not_run_is_not_timed_and_says_why(tmp_path: Path, quick: None) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Abs", ["x"], ["a"]),
            helper.make_node("Exp", ["a"], ["b"]),
            helper.make_node("Mystery", ["b"], ["y"], domain="elsewhere"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("elsewhere", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    result = onnxfuse.optimize(model, "cpu", bench=True)
    assert result.report.speed is None
    assert result.report.not_timed.startswith("Not timed: ONNX Runtime cannot load ")


def test_each_model_has_a_process_with_threads_that_spin_and_the_library_if_it_needs_it(
    activations: Path, tmp_path: Path
) -> None:
    fused = tmp_path / "fused.onnx"
    onnxfuse.optimize(activations, "cpu", output=fused)
    feeds = {"x": np.ones((256, 1024), np.float32)}
    times = time_models({"a": fused, "b": fused}, InputSet("x", feeds), seconds=0.5)
    ratio, low, high = ratio_with_spread(np.stack([times["a"].times, times["b"].times], axis=1))
    assert 0.5 < ratio < 2 and low <= ratio <= high  # other work shares the processor
    found = bench(fused, fused, seconds=0.2)
    assert 0.5 < found.ratio < 2
    with pytest.raises(OnnxfuseError, match=rf"ONNX Runtime cannot run {fused}: .*x"):
        time_models({"a": fused}, InputSet("x", {"x": np.ones((2, 2), np.float32)}))


def test_sizes_count_external_data(tmp_path: Path) -> None:
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4096])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4096])],
            [numpy_helper.from_array(np.ones(4096, np.float32), "w")],
        ),
        ir_version=8,
    )
    onnx.save(model, tmp_path / "a.onnx", save_as_external_data=True, location="a.data", size_threshold=0)
    assert file_bytes(tmp_path / "a.onnx") == (tmp_path / "a.onnx").stat().st_size + 4 * 4096


def test_what_a_speed_says() -> None:
    found = Speed(1.342, 1.3, 1.379, (10.0, 7.5), (21_000_000, 20_400_000))
    assert found.describe() == "1.34 times as fast (1.30 to 1.38), 21 → 20.4 MB" and not found.slower
    assert found.describe_cores() == replace(found, distance=215.0).describe_cores() == ""
    said = replace(found, distance=645.0).describe_cores()
    assert "645 ns from each other" in said and len(said) < 120  # a line
    assert Speed(0.97, 0.95, 0.99, (1, 1), (900, 4000)).slower
    assert Speed(0.97, 0.95, 0.99, (1, 1), (900, 4000)).describe().endswith(", 900 → 4000 bytes")
    assert not Speed(0.97, 0.9, 1.01, (1, 1), (1, 1)).slower  # chance
    assert not Speed(0.995, 0.991, 0.999, (1, 1), (1, 1)).slower  # too little to matter
