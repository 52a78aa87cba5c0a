"""The command line: exit statuses, one line for every error, and nothing left behind."""

import json
import os
import pty
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
from onnxfuse.cli import cli
from onnxfuse.targets import request
from tests.support.parity_models import CHAIN, chain, model_file, save


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(chain(), tmp_path / "model.onnx")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


def assert_one_line(err: str) -> str:
    """The one error of a run: the last line of standard error, perhaps after lines of progress."""
    errors = [line for line in err.splitlines() if line.startswith("onnxfuse: error: ")]
    assert len(errors) == 1 and err.endswith(errors[0] + "\n") and "Traceback" not in err, err
    return errors[0]


def process(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onnxfuse", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


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
    status, text, err = run(capsys, "optimize", model, out, "--report", tmp_path / "r.json", "--target", "cpu")
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


def test_optimize_without_check_does_without_onnxruntime(model: Path, tmp_path: Path) -> None:
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
    assert found["plan"] == {what: [] for what in ("rewrites", "fused", "left_alone", "convolutions", "refusals")}
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optimize", "IN"], "OUT"),
        (["optimize", "IN", "OUT", "--shape", "x"], "--shape"),
        (["optimize", "IN", "OUT", "--shape", "x=1xtwo"], "--shape"),
        (["optimize", "IN", "OUT", "--shape", "z=1"], "no input or dimension 'z'"),
        (["optimize", "IN", "OUT", "--shape", "batch=1x5"], "dimension 'batch' has one size, not 1x5"),
        (["optimize", "IN", "OUT", "--shape", "x=1x5x7"], "does not fit"),
        (["optimize", "IN", "OUT", "--shape", f"x={1 << 63}x4x1"], "sizes are whole numbers from 0 to 2**63 - 1"),
        (["optimize", "IN", "OUT", "--shape", "x=" + "9" * 5000], "a size of too many digits"),
        (["optimize", "IN", "OUT", "--static"], "--shape"),
        (["optimize", "IN", "OUT", "--no-check", "--inputs", "none.npz"], "nothing is run on the inputs"),
        (["optimize", "IN", "OUT", "--passes", "nothing-such"], "nothing-such"),
        (["optimize", "IN", "OUT", "--passes", ""], "pass"),
        (["optimize", "IN", "OUT", "--target", "tpu"], "tpu"),
        (["optimize", "IN", "OUT", "--target", "cuda", "--arch", "sm_9000"], "unknown architecture 'sm_9000'"),
        (["optimize", "IN", "OUT", "--target", "cpu", "--no-embed"], "for the target cuda"),
        (["optimize", "IN", "OUT", "--report", "r.txt"], ".html or .json"),
        (["optimize", "IN", "OUT", "--report", "missing/r.html"], "missing/r.html: there is no directory"),
        (["optimize", "IN", "OUT", "--report", "fifo.html"], "fifo.html: it exists and is not a regular file"),
        (["optimize", "IN", "OUT", "--report", "link.html"], "link.html: it exists and is not a regular file"),
        (["optimize", "IN", "fifo.html"], "fifo.html: it exists and is not a regular file"),
        (["optimize", "IN", "link.html"], "link.html: it exists and is not a regular file"),
        (["optimize", "IN", "OUT", "--report", "/proc/r.html"], "/proc/r.html: cannot be written"),
        (["optimize", "IN", "\udcff.onnx", "--no-check"], "not UTF-8"),
        (["optimize", "silent.onnx", "OUT"], "the model has no outputs to check"),
        (["optimize", "IN", "IN"], "the output is the input"),
        (["optimize", "IN", "missing/OUT"], "missing"),
        (["optimize", "IN", "."], "names no file"),
        (["optimize", "none.onnx", "OUT"], "none.onnx"),
        (["optimize", "junk.onnx", "OUT"], "junk.onnx"),
        (["optimize", "empty.onnx", "OUT"], "empty.onnx"),
        (["optimize", "half.onnx", "OUT"], "half.onnx"),
        (["optimize", ".", "OUT"], "directory"),
        (["check", "IN", "none.onnx"], "none.onnx"),
        (["check", "IN", "junk.onnx"], "not an ONNX model"),
        (["check", "IN", "."], "directory"),
        (["check", "IN", "IN", "--inputs", "none.npz"], "none.npz"),
        (["check", "IN", "IN", "--inputs", "junk.npz"], "junk.npz is not an .npz archive"),
        (["check", "IN", "fifo.html"], "fifo.html: it is not a file"),
        (["check", "IN", "empty.onnx"], "empty.onnx: it is empty"),
        (["check", "IN", "half.onnx"], "half.onnx: not an ONNX model, or a damaged or truncated one"),
        (
            ["check", "IN", "IN", "--inputs", "none.npz", "--shape", "x=1x4x9"],
            "--shape: not allowed with argument --in",
        ),
        (["check", "silent.onnx", "silent.onnx"], "no outputs"),
        (["check", "IN", "IN", "--inputs", "fifo.html"], "fifo.html is not a regular file"),
        (["check", "IN", "IN", "--inputs", "/dev/zero"], "/dev/zero is not a regular file"),
        (["check", "IN", "IN", "--inputs", "sets"], "input_0.pb is not a regular file"),
        (["bench", "IN", "fifo.html"], "fifo.html: it is not a file"),
        (["bench", "/dev/zero", "IN"], "/dev/zero: it is not a file"),
        (["bench", "IN", "IN", "--threads", "0"], "threads"),
        (["bench", "IN", "none.onnx"], "none.onnx"),
        (["inspect", "junk.onnx"], "junk.onnx"),
        (["inspect", "IN", "--program", "gated", "--json"], "--json: not allowed with argument --program"),
        (["inspect", "IN", "--cuda", "gated", "--json"], "--json: not allowed with argument --cuda"),
        (["inspect", "IN", "--program", "gated", "--cuda", "gated"], "--cuda: not allowed with argument --program"),
        (["frobnicate"], "frobnicate"),
        ([], "COMMAND"),
    ],
)
def test_bad_usage_is_one_line_and_leaves_nothing(
    arguments: list[str],
    message: str,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("IN").write_bytes(model.read_bytes())
    for name in ("junk.onnx", "junk.npz"):
        Path(name).write_bytes(b"this is not what it should be\n" * 9)
    Path("empty.onnx").write_bytes(b"")
    Path("half.onnx").write_bytes(model.read_bytes()[: model.stat().st_size // 2])
    silent = chain()
    del silent.graph.output[:]
    save(silent, Path("silent.onnx"))
    os.mkfifo("fifo.html")
    Path("link.html").symlink_to("fifo.html")
    Path("sets").mkdir()
    os.mkfifo("sets/input_0.pb")
    before = content(tmp_path)
    status, out, err = run(capsys, *arguments)
    assert status == 2, err
    assert message in assert_one_line(err)
    assert out == ""
    assert content(tmp_path) == before


def content(folder: Path) -> dict[str, bytes | int]:
    """What there is in a folder: the bytes of files, the kinds of others."""
    return {
        path.name: path.read_bytes() if path.is_file() else path.lstat().st_mode for path in sorted(folder.rglob("*"))
    }


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


def test_a_report_that_fails_to_be_written_says_that_out_was(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxfuse.report.report_html.render", lambda report: "\n")
    monkeypatch.setattr("onnxfuse.model.replacing.os.fsync", failing_on("new"))
    out, report = tmp_path / "o.onnx", tmp_path / "r.html"
    status, _, err = run(capsys, "optimize", model, out, "--no-check", "--report", report)
    assert status == 2
    assert f"{out} was written, but then: {report}: cannot be written: No space left" in assert_one_line(err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "o.onnx"]


def failing_on(name: str) -> Callable[[int], None]:
    """An ``os.fsync`` for which the disk is full where a file has this name."""
    original = os.fsync

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == name:
            raise OSError(28, "No space left on device")
        original(descriptor)

    return fsync


@pytest.mark.usefixtures("breaking_pass")
def test_a_pass_that_breaks_is_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "optimize", model, tmp_path / "o.onnx")
    assert status == 2 and "this is a bug in pass 'mine' (ValueError: no such thing)" in assert_one_line(err)


def test_a_parity_failure_leaves_the_old_output(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Breaks:
        name = "breaks"
        description = "adds where the model multiplies"

        def run(self, loaded: object, context: object) -> None:
            next(node for node in loaded.graph.nodes if node.name == "gated").op = "Add"

    monkeypatch.setattr(request, "resolve", lambda names: [Breaks()])
    out = tmp_path / "out.onnx"
    out.write_bytes(b"the old one")
    status, text, err = run(capsys, "optimize", model, out)
    assert status == 1 and "output 'y' differs" in assert_one_line(err) and text == ""
    assert out.read_bytes() == b"the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "out.onnx"]


def failing_with(error: BaseException) -> object:
    def resolve(names: object) -> object:
        raise error

    return resolve


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ZeroDivisionError("a\nb"), 2, "this is a bug in onnxfuse (ZeroDivisionError: a b)"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 2, "out of memory"),
        (OSError(28, "No space left on device"), 2, "No space left on device"),
        (RecursionError("too deep"), 2, "RecursionError"),
    ],
)
def test_what_nobody_expects_is_one_line_too(
    error: BaseException,
    status: int,
    message: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request, "resolve", failing_with(error))
    monkeypatch.delenv("ONNXFUSE_DEBUG", raising=False)
    found, _, err = run(capsys, "optimize", model, tmp_path / "o.onnx")
    assert found == status and message in assert_one_line(err)
    monkeypatch.setenv("ONNXFUSE_DEBUG", "1")
    if status == 2:
        assert "Traceback" in run(capsys, "optimize", model, tmp_path / "o.onnx")[2]


def test_names_in_a_model_cannot_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = chain()
    proto.graph.node[0].name = "\x1b[31m[bold]red[/bold]\x07"
    path = save(proto, tmp_path / "m.onnx")
    for arguments in (["inspect", path, "--all"], ["optimize", path, tmp_path / "o.onnx"]):
        status, out, err = run(capsys, *arguments)
        assert status == 0 and "\x1b" not in out + err and "\x07" not in out + err


def test_a_reader_that_leaves_is_no_error(model: Path) -> None:
    command = [sys.executable, "-m", "onnxfuse", "inspect", str(model)]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0 and "error" not in done.stderr and "Broken pipe" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_standard_output_is_an_error(model: Path) -> None:
    with Path("/dev/full").open("w") as full:
        for arguments in (("inspect", model), ("zoo", "list", "--json")):  # less and more than a buffer
            command = [sys.executable, "-m", "onnxfuse", *map(str, arguments)]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
            assert done.returncode == 2 and "No space left" in assert_one_line(done.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_standard_output_comes_after_out_was_written(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "onnxfuse", "optimize", str(model), str(out), "--no-check"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        version = subprocess.run([*command[:3], "--version"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and f"{out} was written, but then: No space left" in assert_one_line(done.stderr)
    onnx.checker.check_model(out)
    assert version.returncode == 2 and version.stderr == assert_one_line(version.stderr) + "\n"


def shell(redirections: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A process under a shell, which can close streams."""
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-m", "onnxfuse", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_closed_stream_takes_nothing(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    for arguments in (["--help"], ["--version"], ["zoo", "list"], ["inspect", model], ["check", model, model]):
        done = shell(">&-", *arguments)
        assert done.returncode == 0 and "error" not in done.stderr, (arguments, done.stderr)
    done = shell("<&- >&- 2>&-", "optimize", model, out)
    assert done.returncode == 0
    onnx.checker.check_model(out)
    done = shell("2>&-", "inspect", model, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["nodes"] == 4
    done = shell("2>&-", "inspect", tmp_path / "none.onnx")
    assert done.returncode == 2 and done.stdout == ""


def test_progress_that_nobody_reads_stops_nothing(model: Path, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        command = [sys.executable, "-m", "onnxfuse", "optimize", str(model), str(tmp_path / "out.onnx")]
        done = subprocess.run(command, stdout=closed, stderr=closed)
    assert done.returncode == 0
    onnx.checker.check_model(tmp_path / "out.onnx")


def test_onnxruntime_adds_nothing_to_the_one_line(model: Path, tmp_path: Path) -> None:
    """Its default logger, which no session's options reach, would tell of a tensor too large to allocate."""
    broken = chain()
    broken.graph.initializer[1].dims[:] = [(1 << 63) - 1]
    done = process("check", model, save(broken, tmp_path / "broken.onnx"))
    progress = [line for line in done.stderr.splitlines() if not line.startswith("running the ")]
    assert done.returncode == 1 and progress == [assert_one_line(done.stderr)]


def test_colours_that_are_forced_make_no_terminal_of_a_file(model: Path) -> None:
    done = process("inspect", model.parent / "none.onnx", env={**os.environ, "FORCE_COLOR": "1"})
    assert done.returncode == 2 and "\x1b" not in done.stderr
    assert done.stderr.splitlines()[1:] == [assert_one_line(done.stderr)]  # the first is of progress


def on_a_terminal(*arguments: object, **environment: str) -> str:
    """What a process shows on a terminal, without what moves the cursor."""
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "onnxfuse", *map(str, arguments)]
    running = subprocess.Popen(command, stdout=its, stderr=its, env=os.environ | environment)
    os.close(its)
    shown = b""
    try:
        while part := os.read(ours, 1 << 16):
            shown += part
    except OSError:  # Linux says so when the other side is closed
        pass
    os.close(ours)
    assert running.wait(60) == 0, shown
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


@pytest.mark.parametrize("columns", ["0", "1", "100"])
def test_a_terminal_that_has_no_width_is_written_to(columns: str, model: Path) -> None:
    shown = on_a_terminal("inspect", model, COLUMNS=columns, TERM="xterm")
    assert "input  x: float[batch, 4, width]" in shown and "Sig" in shown


def test_output_in_an_encoding_without_the_characters(model: Path) -> None:
    done = process("inspect", model, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    table = next(line for line in done.stdout.splitlines() if "optimize would fuse" in line)
    assert "\\u" not in done.stdout and "|" in table


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


def test_a_bad_output_path_is_refused_before_any_work(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((model,), (model.parent / "missing" / "o.onnx",), ("/dev/null",)):
        status, _, err = run(capsys, "optimize", model, *arguments)
        assert status == 2 and err == assert_one_line(err) + "\n"


@pytest.mark.parametrize("command", ["optimize", "check", "bench"])
def test_without_onnxruntime_the_error_names_the_extra(command: str, model: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nsys.modules['onnxruntime'] = None\nfrom onnxfuse.cli.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    other = model if command != "optimize" else tmp_path / "o.onnx"
    done = subprocess.run([sys.executable, "-c", code, command, model, other], capture_output=True, text=True)
    assert done.returncode == 2 and "onnxfuse[cpu]" in assert_one_line(done.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("option", ["OUT", "--report"])
def test_a_directory_is_no_file_to_write(
    option: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{tmp_path / 'new.html'}{os.sep}"
    arguments = [name] if option == "OUT" else [tmp_path / "o.onnx", "--report", name]
    status, _, err = run(capsys, "optimize", model, *arguments)
    assert status == 2 and "is the name of a directory" in assert_one_line(err)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_a_pipe_is_no_file_to_write(model: Path) -> None:
    done = process("optimize", model, "/dev/stdout", "--no-check")
    assert done.returncode == 2
    assert assert_one_line(done.stderr).endswith("/dev/stdout: it exists and is not a regular file")


def test_an_input_that_cannot_be_read_is_what_the_error_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / ("x" * 300)
    status, _, err = run(capsys, "optimize", missing, tmp_path / "o.onnx")
    assert status == 2 and f"{missing}: cannot be read: File name too long" in err


def test_passes_can_be_chosen(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = passes.default_registry().names()
    assert names[-1] == "join-product-bias"
    status, _, err = run(capsys, "optimize", model, tmp_path / "o.onnx", "--no-check", "--passes", ", ".join(names))
    assert status == 0 and "pass fuse-elementwise" in err
    status, *_ = run(capsys, "optimize", model, tmp_path / "p.onnx", "--no-check", "--passes", names[0])
    assert status == 0
    assert not any(node.domain == "onnxfuse" for node in onnx.load(tmp_path / "p.onnx").graph.node)


def test_the_input_may_be_overwritten_on_request(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, *_ = run(capsys, "optimize", model, model, "--overwrite")
    assert status == 0
    assert any(node.domain == "onnxfuse" for node in onnx.load(model).graph.node)
