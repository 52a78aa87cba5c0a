"""The same tests on every instruction set, and on the oldest ORT; each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.custom_ops.fused import library

ROOT = Path(__file__).parents[2]
SUITE = [str(Path(__file__).parent / f"test_{name}.py") for name in ("operators", "shapes", "bad_programs")]


def run_suite(python: str, environment: dict[str, str]) -> None:
    command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *SUITE]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-4000:]


@pytest.mark.parametrize("isa", ["baseline", "avx2"])
def test_smaller_instruction_sets(isa: str) -> None:
    run_suite(sys.executable, {"ONNXFUSE_ISA": isa})


def test_oldest_onnxruntime() -> None:
    """ONNXFUSE_ORT_OLDEST is the Python of an environment with ONNX Runtime 1.20, and with the test dependencies."""
    python = os.environ.get("ONNXFUSE_ORT_OLDEST")
    if not python:
        pytest.skip("ONNXFUSE_ORT_OLDEST is not set")
    run_suite(python, {"ONNXFUSE_TEST_LIBRARY": library(), "PYTHONPATH": str(ROOT)})
