"""The package on an operating system that has not what Linux has."""

import ctypes
import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import onnxfuse
from onnxfuse import system
from onnxfuse.run.library import custom_ops_library
from tools import wheel_inspect

ROOT = Path(onnxfuse.__file__).parent
SCRIPT = Path(__file__).parents[2] / "scripts/wheels.sh"

ELSEWHERE = """
import asyncio, ctypes, multiprocessing, os, signal, subprocess, sys
import ml_dtypes, numpy, onnx, onnx_graphsurgeon, onnxruntime, rich.console
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in {"fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "readline"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
for name in ("SIGHUP", "SIGALRM", "SIGKILL", "SIGSTOP", "SIGCONT"):
    number = getattr(signal, name)
    delattr(signal, name)
    del signal.Signals._member_map_[name], signal.Signals._value2member_map_[number]
subprocess.Popen.kill = subprocess.Popen.terminate  # as on Windows
del signal.setitimer, signal.alarm, os.fork, os.killpg, os.sched_getaffinity, os.sysconf, os.getuid
import importlib, pathlib
root = pathlib.Path(sys.argv[1])
for path in sorted(root.rglob("*.py")):
    parts = path.relative_to(root).with_suffix("").parts
    if path.name != "__main__.py" and "models" not in parts:
        importlib.import_module(".".join(("onnxfuse", *parts)).removesuffix(".__init__"))
from onnxfuse.cli.cli import main
sys.exit(main(["optimize", "in.onnx", "out.onnx"]))
"""
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 8] x) => (float[n, 8] y) { a = Sigmoid(x) b = Mul(a, x) y = Add(b, x) }"""


def test_without_what_windows_has_not(tmp_path: Path) -> None:
    """Every module is imported, and a model optimized, checked and timed, by processes that cannot be stopped."""
    import onnx

    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "in.onnx")
    command = [sys.executable, "-P", "-c", ELSEWHERE, str(ROOT)]
    settings = {name: value for name, value in os.environ.items() if name != "ONNXFUSE_NO_BENCH"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120, env=settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out.onnx").is_file()
    assert " times as fast " in done.stdout.splitlines()[0], done.stdout


@pytest.mark.parametrize(
    ("platform", "library", "driver", "folder"),
    [
        ("linux", "libonnxfuse_ops.so", "libcuda.so.1", ".cache"),
        ("darwin", "libonnxfuse_ops.dylib", "libcuda.so.1", "Library/Caches"),
        ("win32", "onnxfuse_ops.dll", "nvcuda.dll", "Local"),
    ],
)
def test_names_by_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, library: str, driver: str, folder: str
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    monkeypatch.setattr(sys, "platform", platform)
    spec = importlib.util.spec_from_file_location("elsewhere", system.__file__)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    assert (found.LIBRARY, found.CUDA_DRIVER, found.caches()) == (library, driver, tmp_path / folder)


def test_signals_that_there_are() -> None:
    assert system.signals("SIGINT", "SIGNOTHING") == (signal.SIGINT,)


def test_one_folder_knows_the_system() -> None:
    """No other file of the native library includes the system's headers or asks which one it is."""
    native = Path(__file__).parents[2] / "custom_ops"
    found = re.compile(
        r"^\s*#\s*include\s*<(unistd|fcntl|dlfcn|pthread|alloca|malloc|windows|sys/|mach)|_WIN32|__APPLE__|__linux__",
        re.MULTILINE,
    )
    files = [path for path in native.rglob("*") if path.suffix in {".cc", ".h", ".inc"}]
    knowing = {path.relative_to(native).parts[0] for path in files if found.search(path.read_text(encoding="utf-8"))}
    assert knowing <= {"platform", "tests"}
    assert "platform" in knowing


def test_exports_of_the_sources_are_those_of_the_library() -> None:
    library = ctypes.CDLL(custom_ops_library())
    functions = wheel_inspect.exported()
    assert "RegisterCustomOps" in functions and "onnxfuse_version" in functions
    assert [name for name in functions if not hasattr(library, name)] == []


@pytest.mark.parametrize(
    ("suffix", "needed", "foreign"),
    [
        (".dll", ["KERNEL32.dll", "api-ms-win-crt-heap-l1-1-0.dll", "libc++.dll"], ["libc++.dll"]),
        (".dylib", ["/usr/lib/libSystem.B.dylib", "/opt/lib/libomp.dylib"], ["/opt/lib/libomp.dylib"]),
        (".so", ["libc.so.6", "libm.so.6", "ld-linux-aarch64.so.1", "libstdc++.so.6"], ["libstdc++.so.6"]),
    ],
)
def test_libraries_that_not_every_system_has(suffix: str, needed: list[str], foreign: list[str]) -> None:
    assert wheel_inspect.foreign(suffix, needed) == foreign


def test_the_script_knows_its_platforms() -> None:
    done = subprocess.run(["bash", SCRIPT, "build", "plan9"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert done.stderr == "error: linux-x86_64, linux-aarch64, windows-x86_64 or macos-arm64 is wanted\n"
