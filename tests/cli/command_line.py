"""Runs of the command line, in this process and in others."""

import subprocess
import sys

import pytest

from onnxfuse.cli import cli


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
