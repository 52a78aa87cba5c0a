"""The shell scripts, with stand-ins for Python, compilers, and what is installed: the ways they take, to their end."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onnxfuse
from tests.project.commands import TABLE

ROOT = Path(__file__).parents[2]
WHEEL = f"onnxfuse-{onnxfuse.__version__}-py3-none-manylinux_2_28_{platform.machine()}.whl"
PROGRAMS = (
    *("python3", "python3.11", "python3.12", "python3.13", "python3.14"),
    *("g++", "apt-get", "dpkg", "dpkg-deb", "wine", "setarch"),
)
ENVIRONMENT = ("python", "pytest", "ruff", "mypy", "onnxfuse", "auditwheel", "ninja")
STAND_IN = r"""#!/bin/bash
echo "$(basename "$0") $*" >>"LOG"
link() { mkdir -p "$1"; for name in ENVIRONMENT; do ln -sf "STAND_IN" "$1/$name"; done; }
case "$(basename "$0") $*" in
python*" -m venv "*) link "${@: -1}/bin" ;;
"python -m pip wheel "*)
    while [ "$1" != --wheel-dir ]; do shift; done
    mkdir -p "$2" && touch "$2/onnxfuse-VERSION-py3-none-linux_any.whl" ;;
"python -m pip install "*" --target "*)
    while [ "$1" != --target ]; do shift; done
    mkdir -p "$2" ;;
"python -m wheel tags "*) mv "$7" "${7%-*}-$6.whl" ;;
auditwheel*) echo "manylinux_2_24_x86_64 manylinux_2_24_aarch64" ;;
"onnxfuse zoo "*) echo model.onnx ;;
dpkg*print-architecture) echo amd64 ;;
dpkg-deb*)
    mkdir -p "$3/usr/bin"
    for name in qemu-aarch64-static aarch64-linux-gnu-g++-12; do ln -sf "STAND_IN" "$3/usr/bin/$name"; done ;;
esac
"""
ORDER = (
    *("scripts/test.sh", "scripts/test.sh --quick", "scripts/test.sh --newest", "scripts/quickstart.sh"),
    *("scripts/wheels.sh build linux-x86_64", "scripts/wheels.sh build windows-x86_64"),
    *("scripts/wheels.sh build macos-arm64", "scripts/wheels.sh build linux-aarch64"),
    *("scripts/wheels.sh build", "scripts/wheels.sh test", "scripts/wheels.sh speed MODEL", "scripts/wheels.sh speed"),
    *("scripts/wheels.sh test linux-aarch64", "scripts/wheels.sh test windows-x86_64"),
    *("scripts/aarch64.sh tools", "scripts/aarch64.sh setup", "scripts/aarch64.sh fuzz", "scripts/aarch64.sh pytest"),
)
"""Commands of which later ones take what earlier ones have made."""
CALLS = {
    "scripts/test.sh": "pytest -n 2",
    "scripts/test.sh --newest": "pip install --quiet --disable-pip-version-check .[cpu,dev,docs,nvrtc]",
    "scripts/wheels.sh build macos-arm64": "--platform-tag macosx_11_0_arm64",
    "scripts/wheels.sh test": "tools/wheel_check.py",
    "scripts/wheels.sh speed MODEL": "tools/wheel_speed.py",
    "scripts/wheels.sh test linux-aarch64": "tools/wheel_check.py",
    "scripts/wheels.sh test windows-x86_64": "tools/wheel_wine.py",
    "scripts/aarch64.sh setup": "--config-settings build-dir=build/aarch64/native .",
    "scripts/aarch64.sh fuzz": "native/fuzz_program 300 1",
    "scripts/aarch64.sh pytest": "-m pytest tests/custom_ops",
}
"""What a command must have called."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the scripts are for Linux")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks as a clone does to the scripts, with programs that do nothing but say what they were told."""
    clone = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "scripts", clone / "scripts", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for name in ("pyproject.toml", "CMakeLists.txt", "README.md", "custom_ops/a.cc", "models/a"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).touch()
    for name in ("tests/constraints.txt", "onnxfuse/__init__.py"):
        (clone / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    program = clone / "programs" / "stand-in"
    program.parent.mkdir()
    given = {"LOG": clone / "log", "ENVIRONMENT": " ".join(ENVIRONMENT), "VERSION": onnxfuse.__version__}
    text = STAND_IN.replace("STAND_IN", str(program))
    for name, value in given.items():
        text = text.replace(name, str(value))
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    for name in PROGRAMS:
        (clone / "programs" / name).symlink_to(program)
    (clone / "build/aarch64/native").mkdir(parents=True)
    (clone / "build/aarch64/native/fuzz_program").symlink_to(program)
    return clone


def run(clone: Path, command: str = "scripts/quickstart.sh", **environment: str) -> list[str]:
    """What the command has called."""
    log = clone / "log"
    log.write_text("", encoding="utf-8")
    settings = {"PATH": f"{clone / 'programs'}:/usr/bin:/bin", "PYTHON": "python3", **environment}
    found = subprocess.run(
        ["bash", "-c", command], cwd=clone, env=settings, capture_output=True, text=True, check=False, timeout=60
    )
    assert found.returncode == 0, found.stdout + found.stderr + log.read_text(encoding="utf-8")
    return log.read_text(encoding="utf-8").splitlines()


def test_every_command_for_stand_ins_runs_to_its_end(clone: Path) -> None:
    assert {command for command, how in TABLE.items() if how.stand_ins} <= set(ORDER)
    for command in ORDER:
        called = run(clone, command)
        assert any(CALLS.get(command, "") in line for line in called), (command, called)
    assert len(list((clone / "dist").iterdir())) == 4


def test_without_a_wheel_it_compiles(clone: Path) -> None:
    for name in (".venv", "dist"):
        shutil.rmtree(clone / name, ignore_errors=True)
    called = run(clone)
    assert any(line.endswith("install --quiet --disable-pip-version-check .[cpu]") for line in called)
    assert [line.split()[1] for line in called if line.startswith("onnxfuse")] == ["zoo", "optimize", "bench"]
    assert called[-1].endswith(" -q")  # the last line is the gain


def test_a_wheel_in_dist_is_installed(clone: Path) -> None:
    shutil.rmtree(clone / "dist", ignore_errors=True)
    (clone / "dist").mkdir()
    (clone / "dist" / WHEEL).touch()
    assert any(WHEEL in line for line in run(clone))


def test_the_wheel_that_is_named_is_installed(clone: Path) -> None:
    assert any("other.whl" in line for line in run(clone, ONNXFUSE_WHEEL="other.whl"))
