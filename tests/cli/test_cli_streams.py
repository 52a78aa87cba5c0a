"""The command line on terminals, and on streams that are full, closed, or left by their reader."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from rich.console import Group
from rich.text import Text

from onnxfuse.cli.output import print_content
from tests.cli.command_line import assert_one_line, process, run
from tests.support.parity_models import chain, save


def test_names_in_a_model_cannot_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = chain()
    proto.graph.node[0].name = "\x1b[31m[bold]red[/bold]\x07"
    path = save(proto, tmp_path / "m.onnx")
    for arguments in (["inspect", path, "--all"], ["optimize", path, tmp_path / "o.onnx"]):
        status, out, err = run(capsys, *arguments)
        assert status == 0 and "\x1b" not in out + err and "\x07" not in out + err


def test_a_sentence_is_one_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = " ".join(["word"] * 100)
    print_content(Group(Text(sentence), Text("[b]end[/b]")))
    print_content(Text(sentence))
    assert capsys.readouterr().out.splitlines() == [sentence, "[b]end[/b]", sentence]


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
    assert done.returncode == 1 and done.stderr.splitlines() == [assert_one_line(done.stderr)]


def test_colours_that_are_forced_make_no_terminal_of_a_file(model: Path) -> None:
    done = process("inspect", model.parent / "none.onnx", env={**os.environ, "FORCE_COLOR": "1"})
    assert done.returncode == 2 and "\x1b" not in done.stderr
    assert done.stderr.splitlines() == [assert_one_line(done.stderr)]


def on_a_terminal(*arguments: object, command: Sequence[str] = ("-m", "onnxfuse"), **environment: str) -> str:
    """What a process shows on a terminal, without what moves the cursor, unless that is asked for as ``raw``."""
    ours, its = pty.openpty()
    command = [sys.executable, *command, *map(str, arguments)]
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
    return shown.decode() if "raw" in environment else re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def test_steps_are_told_where_they_are_wanted(model: Path, tmp_path: Path) -> None:
    """Piped, nothing is said unless it is asked for; on a terminal what took long is; NO_COLOR is heeded."""
    for option, told in (("-v", True), ("--verbose", True), ("-q", False), ("--quiet", False), (None, False)):
        done = process("inspect", model, *(() if option is None else (option,)))
        lines = done.stderr.splitlines()
        assert done.returncode == 0 and bool(lines) == told
        assert not told or all(re.fullmatch(r"\S.*: \d+\.\d s", line) for line in lines)
    code = (
        "import sys, time\nfrom onnxfuse.cli import output\noutput._LONG_SECONDS = 0.05\n"
        "with output.Progress(int(sys.argv[1])) as progress:\n"
        "    progress('quick')\n    progress('slow')\n    time.sleep(0.1)\n    progress('last')\n"
    )
    shown = on_a_terminal("0", command=["-c", code], NO_COLOR="1", TERM="xterm", raw="1")
    assert "slow: 0.1 s" in shown and "quick: " not in shown and not re.search(r"\x1b\[[0-9;]*3[0-9]m", shown)
    assert on_a_terminal("-1", command=["-c", code], TERM="xterm") == ""


@pytest.mark.parametrize("columns", ["0", "1", "70", "100"])
def test_a_terminal_that_has_no_width_is_written_to(columns: str, model: Path) -> None:
    shown = on_a_terminal("inspect", model, COLUMNS=columns, TERM="xterm")
    assert "input  x: float[batch, 4, width]" in shown and "Sig" in shown
    assert len(columns) == 1 or "FusedElementwise" in shown  # no name of a kind is broken


def test_output_in_an_encoding_without_the_characters(model: Path) -> None:
    done = process("inspect", model, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    table = next(line for line in done.stdout.splitlines() if "optimize would fuse" in line)
    assert "\\u" not in done.stdout and "|" in table
