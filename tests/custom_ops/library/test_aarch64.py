"""The library as it is for AArch64, under QEMU, where scripts/aarch64.sh has set up what that takes."""

import platform
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts/aarch64.sh"
PYTEST = ["pytest", "-q", "-p", "no:cacheprovider"]
RUNS = {
    "native tests": [*PYTEST, "tests/custom_ops/library/test_cpp.py"],
    "operators": [*PYTEST, "tests/custom_ops/programs/test_operators.py", "-k", "agrees_with_ort"],
    "what ONNX Runtime does by itself": [*PYTEST, "tests/ort/test_ort_layout.py", "-k", "inside"],
    "fuzz drivers": ["fuzz", "200"],
}


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _missing() -> str:
    if platform.machine() == "aarch64":
        return "this processor is an AArch64"
    current = _run("current")
    return current.stderr.strip() if current.returncode else ""


@pytest.mark.parametrize("name", RUNS)
def test_on_aarch64(name: str) -> None:
    if reason := _missing():
        pytest.skip(reason)
    result = _run(*RUNS[name])
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]


def test_a_command_that_does_not_exist() -> None:
    result = _run("nonsense")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "error: tools, wheel, setup, fuzz, pytest, python or current is wanted\n"
