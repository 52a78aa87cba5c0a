"""The command line: exit statuses, one line for every error, and nothing left behind."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onnxfuse.targets import request
from tests.cli.command_line import assert_one_line, process, run
from tests.support.parity_models import Breaks, chain, save


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
    assert done.returncode == 2 and "'pip install onnxruntime'" in assert_one_line(done.stderr)
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
