"""The command line: what each command prints and writes."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse import passes
from tests.cli.command_line import assert_one_line, run
from tests.support.parity_models import CHAIN, chain, model_file, save


def test_help_of_every_command_has_no_heavy_import() -> None:
    code = (
        "import sys\nfrom onnxfuse.cli.cli import main\nassert main(sys.argv[1:]) == 0\n"
        "heavy = {'numpy', 'onnx', 'onnxruntime', 'rich'} & set(sys.modules)\nassert not heavy, heavy"
    )
    for command in ([], ["optimize"], ["check"], ["bench"], ["inspect"]):
        done = subprocess.run([sys.executable, "-c", code, *command, "--help"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("usage: onnxfuse")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--version")
    assert status == 0 and out.startswith("onnxfuse ")


def test_optimize_checks_writes_and_ends_with_the_table(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.onnx"
    status, text, err = run(capsys, "optimize", model, out, "--report", tmp_path / "r.json", "--target", "cpu", "-v")
    assert status == 0, err
    onnx.checker.check_model(out, full_check=True)
    assert any(node.domain == "onnxfuse" for node in onnx.load(out).graph.node)
    for row in (
        "nodes",
        "kernel launches",
        "intermediate tensors",
        "bytes moved",
        "largest error",
        "Bytes are counted for x=1x4x",
    ):
        assert row in text
    assert "running the original" in err
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["parity"]["ok"] and report["after"]["launches"] < report["before"]["launches"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "out.onnx", "r.json"]


@pytest.mark.parametrize("body", ["a = Mul(x, x) b = Tanh(a) y = Add(b, x)", "a = Mul(x, x) y = Softmax(a)"])
def test_optimize_without_check_does_without_onnxruntime(body: str, tmp_path: Path) -> None:
    model = model_file(tmp_path / "m.onnx", "(float[batch, seq] x) => (float[batch, seq] y)", body)
    code = (
        "import sys\nfrom onnxfuse.cli.cli import main\nassert main(sys.argv[1:]) == 0\n"
        "assert 'onnxruntime' not in sys.modules"
    )
    command = [sys.executable, "-c", code, "optimize", model, tmp_path / "o.onnx", "--no-check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "Not checked: nothing was run and compared with the original."


def test_optimize_ends_with_what_was_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = model_file(
        tmp_path / "m.onnx", "(float[batch, seq] x) => (float[batch, seq] y)", "a = Mul(x, x) b = Tanh(a) y = Add(b, x)"
    )
    status, out, err = run(capsys, "optimize", source, tmp_path / "o.onnx", "--report", tmp_path / "r.html")
    assert status == 0, err
    sizes = "Checked on 3 sets of made-up inputs of sizes batch 1 and 2, seq 32, with and without the library: "
    assert out.splitlines()[-1].startswith(sizes)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert sizes in page and "uniform values (batch 2, seq 32)" in page


def test_quiet_commands_say_one_line(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "o.onnx"
    for arguments, line in (
        (["optimize", model, out, "--no-bench"], r"kernel launches 4 → 1 \(-75 %\).*"),
        (["inspect", model], r".*: 4 nodes; optimize would fuse 4 nodes into 1, with 0 rewrites"),
        (["inspect", out], r".*: 1 node, 1 of them fused; optimize would fuse nothing, with 0 rewrites"),
        (["check", model, out], r"The models agree\. Checked on .*"),
        (["bench", model, out, "--seconds", "0.1"], r"[\d.]+ times as fast \([\d.]+ to [\d.]+\)"),
    ):
        status, shown, err = run(capsys, *arguments, "-q")
        assert (status, err) == (0, "") and re.fullmatch(f"{line}\n", shown), shown


def test_shapes_make_the_counts_numbers(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--shape", "x=2x4x1000")
    status, out, _ = run(capsys, "optimize", model, tmp_path / "o.onnx", "--no-check", *shape)
    assert status == 0
    assert "kB" in out and "batch" not in out
    symbols = onnx.load(tmp_path / "o.onnx").graph.input[0].type.tensor_type.shape.dim
    assert symbols[0].dim_param == "batch"


def test_static_makes_a_model_for_the_shapes_alone(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, *_ = run(capsys, "optimize", model, tmp_path / "s.onnx", "--static", "--shape", "x=2x4x1000")
    static = onnx.load(tmp_path / "s.onnx").graph
    for value in (*static.input, *static.output):
        assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [2, 4, 1000]
    status, out, _ = run(capsys, "check", model, tmp_path / "s.onnx")
    assert status == 0 and "The models agree." in out
    status, _, err = run(capsys, "check", model, tmp_path / "s.onnx", "--shape", "x=1x4x9")
    assert status == 1 and "Expected: 2" in assert_one_line(err)


def test_report_as_html(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, *_ = run(capsys, "optimize", model, tmp_path / "o.onnx", "--report", tmp_path / "r.html", "--no-check")
    assert status == 0
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


def test_check_equal_and_different(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "check", model, model, "--shape", "x=1x4x9")
    assert status == 0 and "identical" in out and "The models agree." in out
    wrong = save(chain(CHAIN.replace("half = {0.5}", "half = {0.6}")), tmp_path / "wrong.onnx")
    status, out, err = run(capsys, "check", model, wrong)
    assert status == 1 and "DIFFERS" in out and "The models differ." in out
    assert "output 'y' differs" in assert_one_line(err)


def test_check_with_inputs_regions_and_json(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "optimize", model, tmp_path / "o.onnx", "--no-check")[0] == 0
    np.savez(tmp_path / "in.npz", x=np.ones((1, 4, 5), np.float32))
    arguments = ("--inputs", tmp_path / "in.npz", "--regions", "--json")
    status, out, _ = run(capsys, "check", model, tmp_path / "o.onnx", *arguments)
    found = json.loads(out)
    assert status == 0 and found["ok"] and len(found["regions"]) == 1
    assert [item["library"] for item in found["sets"]] == [True, False]


def test_guesses_are_the_same_and_said(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """optimize and bench time on the same sizes; whoever guesses says so, and what to give."""
    out, guess = tmp_path / "o.onnx", "Sizes of x are guesses: give those that matter with --shape"
    monkeypatch.delenv("ONNXFUSE_NO_BENCH")
    _, said, _ = run(capsys, "optimize", model, out, "--target", "cpu")
    assert guess in said
    _, checked, _ = run(capsys, "check", model, out)
    assert guess in checked
    short = ("--seconds", "0.1", "--json")
    _, timed, _ = run(capsys, "bench", model, out, *short)
    found = json.loads(timed)
    assert found["guessed"] == ["x"]
    shape = "x".join(map(str, found["inputs"]["x"]))
    assert f"Bytes are counted, and the models timed, for x={shape}." in said
    _, checked, _ = run(capsys, "check", model, out, "--shape", f"x={shape}")
    assert "guesses" not in checked


def test_bench_prints_one_ratio(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "bench", model, model, "--threads", 1, "--seconds", "0.05")
    assert status == 0 and "original / optimized" in out and "ONNX Runtime" in out
    status, out, _ = run(capsys, "bench", model, model, "--seconds", "0.05", "--json")
    assert json.loads(out)["ratio"] > 0


def test_inspect_says_what_is_fused_and_why_the_rest_is_not(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, "inspect", model)
    assert status == 0 and "optimize would fuse" in out and "x: float[batch, 4, width]" in out
    run(capsys, "optimize", model, tmp_path / "o.onnx", "--no-check")
    status, out, _ = run(capsys, "inspect", tmp_path / "o.onnx", "--json")
    found = json.loads(out)
    name = found["fused"][0]["name"]
    assert found["fused"][0]["ops"] == ["Mul", "Add", "Sigmoid", "Mul"]
    nothing: dict[str, object] = {what: [] for what in ("rewrites", "fused", "left_alone", "convolutions", "refusals")}
    assert found["plan"] == {**nothing, "not_captured": None}
    status, out, _ = run(capsys, "inspect", tmp_path / "o.onnx", "--program", name)
    assert status == 0 and out.startswith("onnxfuse 1\n")
    alone = model_file(tmp_path / "alone.onnx", "(float[2] x) => (float[2] y)", "[lonely] y = Abs(x)")
    status, out, _ = run(capsys, "inspect", alone, "--all")
    assert status == 0 and "lonely" in out and "no neighbour" in out
    status, _, err = run(capsys, "inspect", alone, "--program", "none")
    assert status == 2 and "no fused node 'none'" in assert_one_line(err)


def test_inspect_says_how_what_reduces_is_computed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "c = Mul(x, x) y = ReduceSum<keepdims = 1>(c)"
    model = model_file(tmp_path / "sum.onnx", "(float[2, 8] x) => (float[1, 1] y)", body)
    status, out, _ = run(capsys, "inspect", model)
    assert status == 0 and "1 pass over rows along axes -2, -1" in out and "64 B, 4 B" in out


def test_a_model_without_outputs_is_optimized_unchecked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silent = chain()
    del silent.graph.output[:]
    path = save(silent, tmp_path / "silent.onnx")
    assert run(capsys, "optimize", path, tmp_path / "o.onnx", "--no-check")[0] == 0
    assert run(capsys, "inspect", path)[0] == 0


def test_a_report_goes_where_a_link_leads_and_keeps_permissions(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, link = tmp_path / "r.html", tmp_path / "link.html"
    report.write_text("old")
    report.chmod(0o600)
    link.symlink_to("r.html")
    status, *_ = run(capsys, "optimize", model, tmp_path / "o.onnx", "--no-check", "--report", link)
    assert status == 0 and link.is_symlink()
    assert report.read_text().startswith("<!doctype html>") and report.stat().st_mode & 0o777 == 0o600


def test_inspect_plans_what_optimize_does(
    real_model: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = real_model("ch_ppocr_mobile_v2.0_cls")
    plans = []
    for shapes in ({}, {"x": (1, 3, 16, 16)}):  # images of the second are so small that other convolutions are fused
        options = [f"--shape={name}={'x'.join(map(str, shape))}" for name, shape in shapes.items()]
        _, out, _ = run(capsys, "inspect", path, "--json", *options)
        plan = json.loads(out)["plan"]
        report = onnxfuse.optimize(path, shapes=shapes, check=False).report.to_json()
        assert plan["rewrites"]
        assert plan == {what: report[what] for what in plan}
        plans.append(plan)
    assert plans[0]["convolutions"] != plans[1]["convolutions"]
    status, _, err = run(capsys, "inspect", path, "--shape", "y=1")
    assert status == 2 and "no input or dimension 'y'" in assert_one_line(err)
    _, out, _ = run(capsys, "inspect", path)
    assert "optimize would rewrite" in out and len(out.splitlines()) < 100


def test_operators_of_unknown_domains_are_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = model_file(
        tmp_path / "m.onnx", "(float[2] x) => (float[2] y)", "f = acme.Foo(x) s = Mul(x, x) t = Add(s, x) y = Sub(f, t)"
    )
    proto = onnx.load(path)
    proto.opset_import.add(domain="acme", version=1)
    save(proto, path)
    status, out, err = run(capsys, "optimize", path, tmp_path / "o.onnx")
    assert status == 0, err
    assert "not checked" in out and "operators of acme" in out
    assert out.splitlines()[-1] == "Not checked: nothing was run and compared with the original."
    assert [node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node].count("Foo") == 1


def test_optimize_compares_on_given_inputs(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((1, 4, 5), np.float32))
    arguments = ("--inputs", tmp_path / "in.npz")
    status, out, _ = run(capsys, "optimize", model, tmp_path / "o.onnx", *arguments)
    assert status == 0 and "Checked on 1 set of inputs" in out and "x=1x4x5" in out


def test_inputs_without_a_check_are_for_tuning(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((1, 4, 5), np.float32))
    arguments = ("--inputs", tmp_path / "in.npz", "--no-check", "--target", "cpu", "--tune")
    status, out, _ = run(capsys, "optimize", model, tmp_path / "o.onnx", *arguments)
    assert status == 0 and "Nothing to tune" in out


def test_passes_can_be_chosen(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = passes.default_registry().names()
    assert names[-1] == "join-product-bias"
    status, _, err = run(
        capsys, "optimize", model, tmp_path / "o.onnx", "-v", "--no-check", "--passes", ", ".join(names)
    )
    assert status == 0 and "pass fuse-elementwise" in err
    status, *_ = run(capsys, "optimize", model, tmp_path / "p.onnx", "--no-check", "--passes", names[0])
    assert status == 0
    assert not any(node.domain == "onnxfuse" for node in onnx.load(tmp_path / "p.onnx").graph.node)


def test_the_input_may_be_overwritten_on_request(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, *_ = run(capsys, "optimize", model, model, "--overwrite")
    assert status == 0
    assert any(node.domain == "onnxfuse" for node in onnx.load(model).graph.node)
