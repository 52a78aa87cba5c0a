"""Signals that end a command: one line, the right exit status, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import onnx
import pytest

from onnxfuse.files import model_io
from onnxfuse.model import replacing
from onnxfuse.report.report_file import ReportFile
from tests.cli.command_line import assert_one_line
from tests.files.test_output_safety import external_model, snapshot
from tests.support.parity_models import chain, save


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(chain(), tmp_path / "model.onnx")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("afterwards", ["raise ImportError('initialization failed')", ""])
def test_a_signal_during_an_import_ends_it_without_harm(
    number: signal.Signals, status: int, afterwards: str, model: Path, tmp_path: Path
) -> None:
    """Compiled modules make an ImportError of an exception, or abort."""
    (tmp_path / "onnxruntime.py").write_text(
        f"import os, time\ntry:\n    os.kill(os.getpid(), {int(number)})\n    time.sleep(0.2)\n"
        f"except BaseException:\n    os.abort()\n{afterwards}\n"
    )
    code = (
        f"import signal, sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom onnxfuse.cli.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\nsys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", code, "check", model, model], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert "initialization" not in assert_one_line(done.stderr)


def test_an_interrupt_while_the_command_line_is_imported_ends_the_script_in_silence() -> None:
    """What pip makes of the entry point imports a module and calls a function: the guard must be in there."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    module, _, function = project["project"]["scripts"]["onnxfuse"].partition(":")
    interrupting = (
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'onnxfuse.cli.cli_arguments':\n            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
    )
    for start in (
        f"from {module} import {function} as main\nsys.exit(main())",
        "import onnxfuse.__main__ as m\nsys.exit(m.run())",
    ):
        done = subprocess.run(
            [sys.executable, "-c", f"import sys\n{interrupting}{start}"], capture_output=True, text=True
        )
        assert (done.returncode, done.stdout, done.stderr) == (130, "", ""), done.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_it_with_one_line_and_no_litter(
    number: signal.Signals, status: int, model: Path, tmp_path: Path
) -> None:
    code = (
        "import signal, sys, time\n"
        "from onnxfuse.check import parity\nfrom onnxfuse.cli import cli\n"
        # A job in the background inherits that SIGINT is ignored, and one under nohup that SIGHUP is.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "def stuck(*args, **options):\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "parity.compare = stuck\nsys.exit(cli.main(sys.argv[1:]))"
    )
    out = tmp_path / "out.onnx"
    command = [sys.executable, "-c", code, "optimize", str(model), str(out)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "ready\n"
    time.sleep(0.1)
    running.send_signal(number)
    _, err = running.communicate(timeout=30)
    assert running.returncode == status
    assert_one_line(err)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def signalled(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command line in a process that runs ``code`` before, and whose SIGINT is not ignored."""
    start = "import os, signal, sys, time\nfrom onnxfuse.cli import cli\nfrom onnxfuse.model import replacing\n"
    code = f"{start}signal.signal(signal.SIGINT, signal.default_int_handler)\n{code}\nsys.exit(cli.main(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.parametrize("before", ["none", "another"])
def test_a_signal_once_the_output_is_in_place_says_so(before: str, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    if before == "another":
        out.write_bytes(b"old")
    code = (
        "from onnxfuse.report import tables\n"
        "def stuck(*args, **options):\n    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(9)\n"
        "tables.render_optimization = stuck"
    )
    done = signalled(code, "optimize", model, out, "--no-check")
    assert done.returncode == 143
    assert assert_one_line(done.stderr) == f"onnxfuse: error: {out} was written, but then: terminated"
    assert onnx.load(out).graph.node


def test_more_signals_do_not_stop_the_cleanup(model: Path, tmp_path: Path) -> None:
    """Whenever they come: two within a second, as of Ctrl-C and of what ends a session, are one."""
    code = (
        "from onnxfuse import optimization\nended = []\n"
        "def stuck(*args, **options):\n    ended.append(1)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(9)\n"
        "optimization._compare = stuck\n"
        "enter = replacing.undisturbed.__wrapped__\n"
        "def late():\n    if ended:\n        os.kill(os.getpid(), signal.SIGTERM)\n    yield from enter()\n"
        "import contextlib\nreplacing.undisturbed = contextlib.contextmanager(late)"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    code = f"import tempfile\ntempfile.tempdir = {str(scratch)!r}\n{code}"
    done = signalled(code, "optimize", model, tmp_path / "out.onnx")
    assert done.returncode in (130, 143)
    assert_one_line(done.stderr)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "scratch"]
    assert not [path.name for path in scratch.iterdir() if path.name.startswith("onnxfuse-")]


# --- the removal of temporary files ---


class Ended(BaseException):
    """What a handler of a termination signal may raise."""


@pytest.fixture
def ending_on_signals() -> None:
    def end(number: int, _frame: object) -> None:
        raise Ended(number)

    previous = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in previous.items():
        assert signal.getsignal(number) is end, "handlers are put back"
        signal.signal(number, handler)


@pytest.mark.usefixtures("ending_on_signals")
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_stop_the_cleanup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: signal.Signals
) -> None:
    source = external_model(tmp_path / "in.onnx", "weights.bin")
    model = model_io.load(source)
    before = snapshot(tmp_path)
    original = replacing.shutil.rmtree

    def interrupted(*arguments: object, **options: object) -> None:
        os.kill(os.getpid(), second)
        original(*arguments, **options)
        os.kill(os.getpid(), second)

    monkeypatch.setattr(replacing.shutil, "rmtree", interrupted)

    def check(_candidate: Path) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(Ended):
        model_io.save(model, tmp_path / "out.onnx", check=check)
    assert snapshot(tmp_path) == before
    with pytest.raises(Ended), ReportFile(tmp_path / "r.json", source):
        signal.raise_signal(signal.SIGINT)
    assert snapshot(tmp_path) == before


@pytest.mark.usefixtures("ending_on_signals")
def test_a_signal_that_was_held_back_is_not_lost() -> None:
    done = []
    with pytest.raises(Ended), replacing.undisturbed():
        signal.raise_signal(signal.SIGTERM)
        done.append(True)
    assert done


@pytest.mark.usefixtures("ending_on_signals")
def test_a_signal_while_the_scratch_is_made_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.mkdir

    def interrupted(*arguments: object, **options: object) -> None:
        original(*arguments, **options)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(os, "mkdir", interrupted)
    with pytest.raises(Ended), replacing.scratch_beside(tmp_path / "f", tmp_path / "f"):
        raise AssertionError("it was held back too long")
    assert not list(tmp_path.iterdir())
