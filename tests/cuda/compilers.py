"""NVRTC, where it is there, and a compiler that makes up its results, for tests of what is around compiling."""

import re
from functools import cache
from pathlib import Path

import pytest

from onnxfuse.cuda.compile import compiler as compilers
from onnxfuse.cuda.compile.compiled import Compiled, CompileError
from onnxfuse.cuda.compile.nvrtc import Nvrtc
from onnxfuse.cuda.compile.resources import Resources
from onnxfuse.errors import OnnxfuseError

_KERNEL = re.compile(r"__launch_bounds__\(\d+(?:, \d+)?\)\n(\w+)\(")


@cache
def nvrtc() -> Nvrtc:
    """A test that asks for it is skipped where NVRTC is not installed, or does not load."""
    try:
        return Nvrtc()
    except OnnxfuseError as error:
        pytest.skip(str(error))


class MadeUpCompiler:
    """Machine code that names source and architecture, and the same resources for every kernel, but that all of a
    source after the first spill ``others_spill`` bytes; counts its calls."""

    version = "made-up 1"

    def __init__(self, registers: int = 40) -> None:
        self.registers = registers
        self.others_spill = 0
        self.calls: list[tuple[str, str]] = []

    def compile(self, source: str, architecture: str, options: tuple[str, ...]) -> Compiled:
        self.calls.append((source, architecture))
        if "error" in source.splitlines()[0]:
            raise CompileError(self.version, architecture, "warning: odd\nfile.cu(1): error: no\n")
        cubin = f"\x7fELF {architecture} {' '.join(options)} {hash(source)}".encode()
        ptx = f".version 8.0\n.target {architecture}\n// {hash(source)}\n".encode()
        first, *others = _KERNEL.findall(source)
        resources = {name: Resources(self.registers, self.others_spill) for name in others}
        return Compiled(cubin, ptx, {first: Resources(self.registers), **resources})


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MadeUpCompiler:
    """The compiler that is found, with an empty cache."""
    made_up = MadeUpCompiler()
    monkeypatch.setattr(compilers, "find_compiler", lambda: made_up)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made_up
