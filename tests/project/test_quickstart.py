"""scripts/quickstart.sh, with stand-ins for Python and for what it installs: which of both ways it takes."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onnxfuse

ROOT = Path(__file__).parents[2]
WHEEL = f"onnxfuse-{onnxfuse.__version__}-py3-none-manylinux_2_28_{platform.machine()}.whl"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the script is for Linux")


def stand_in(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder that looks as a clone does to the script."""
    for name in ("quickstart.sh", "venv.sh"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts" / name)
    for name in (
        "pyproject.toml",
        "CMakeLists.txt",
        "README.md",
        "tests/constraints.txt",
        "custom_ops/a.cc",
        "models/a",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "onnxfuse").mkdir()
    shutil.copy(ROOT / "onnxfuse" / "__init__.py", tmp_path / "onnxfuse" / "__init__.py")
    log = tmp_path / "log"
    stand_in(tmp_path / ".venv/bin/python", f'echo "python $*" >>"{log}"')
    stand_in(
        tmp_path / ".venv/bin/onnxfuse", f'echo "onnxfuse $*" >>"{log}"; [ "$1" = zoo ] && echo model.onnx || true'
    )
    return tmp_path


def run(clone: Path, **environment: str) -> list[str]:
    """What the script has called."""
    command = ["bash", str(clone / "scripts/quickstart.sh")]
    found = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True, check=False, timeout=60
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return (clone / "log").read_text(encoding="utf-8").splitlines()


def test_without_a_wheel_it_compiles(clone: Path) -> None:
    called = run(clone)
    assert called[0].endswith("install --quiet --disable-pip-version-check .[cpu]")
    assert [line.split()[1] for line in called if line.startswith("onnxfuse")] == ["zoo", "optimize", "bench"]
    assert called[-1].endswith(" -q")  # the last line is the gain


def test_a_wheel_in_dist_is_installed(clone: Path) -> None:
    (clone / "dist").mkdir()
    (clone / "dist" / WHEEL).touch()
    assert any(WHEEL in line for line in run(clone)[:2])


def test_the_wheel_that_is_named_is_installed(clone: Path) -> None:
    assert any("other.whl" in line for line in run(clone, ONNXFUSE_WHEEL="other.whl")[:2])
