"""The same tests on every instruction set, past the caches, and on the oldest ORT; each in a process of its own.

Each runs another tenth of the cases; --exhaustive runs all in each.  How texts are read depends on no instruction set.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from onnxfuse import cpu
from tests.custom_ops.fused import library

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PROGRAMS = ("operators", "division", "chains", "shapes")
NODES = (
    *("fused_conv", "squeeze_excite", "attention", "reductions", "row_groups", "matmul"),
    *("nhwc_conv", "nhwc_parts", "nhwc_pool", "nhwc_concat"),
)
LAUNCHES = ("errors", "modules", "overlap", "parameters", "shapes")
SUITE = [
    *(str(HERE.parent / "programs" / f"test_{name}.py") for name in PROGRAMS),
    *(str(HERE.parent / "nodes" / f"test_{name}.py") for name in NODES),
]
ORT_SUITE = [
    *SUITE,
    str(HERE.parent / "programs" / "test_bad_programs.py"),
    str(HERE / "test_stress.py"),
    f"{HERE / 'test_cpp.py'}::test_every_slot_of_the_ort_abi",
    *(str(ROOT / "tests" / "cuda" / "launch" / f"test_{name}.py") for name in LAUNCHES),
]


def run_suite(
    python: str, environment: dict[str, str], config: pytest.Config, share: str, suite: Sequence[str] = SUITE
) -> None:
    part = ["--exhaustive"] if config.getoption("exhaustive") else ["--share", share]
    command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *part, *suite]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-4000:]


@pytest.mark.parametrize(("isa", "share"), [("baseline", "1/10"), ("avx2", "2/10")])
def test_smaller_instruction_sets(isa: str, share: str, pytestconfig: pytest.Config) -> None:
    if not (cpu.has_avx512() if isa == "avx2" else cpu.has_avx2()):
        pytest.skip("all other tests run on it here")
    run_suite(sys.executable, {"ONNXFUSE_ISA": isa}, pytestconfig, share)


def test_past_the_caches(pytestconfig: pytest.Config) -> None:
    """Where tensors count as larger than the caches, results go past these, and what is read next is fetched."""
    names = ("programs/test_views", "programs/test_chains", "programs/test_parts", "nodes/test_reductions")
    suite = [str(HERE.parent / f"{name}.py") for name in names]
    run_suite(sys.executable, {"ONNXFUSE_CACHE_BYTES": "1"}, pytestconfig, "3/10", suite)


def test_oldest_onnxruntime(pytestconfig: pytest.Config) -> None:
    """ONNXFUSE_ORT_OLDEST is the Python of an environment with ONNX Runtime 1.20, and with the test dependencies."""
    python = os.environ.get("ONNXFUSE_ORT_OLDEST")
    if not python:
        pytest.skip("ONNXFUSE_ORT_OLDEST is not set")
    environment = {"ONNXFUSE_TEST_LIBRARY": library(), "PYTHONPATH": str(ROOT)}
    run_suite(python, environment, pytestconfig, "3/10", ORT_SUITE)
