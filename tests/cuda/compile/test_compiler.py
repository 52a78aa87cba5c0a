"""Compiling: NVRTC, PyCUDA's nvcc (a stand-in where it is not installed), the cache, and clear errors."""

import sys
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.cuda.compile import compiler as compilers
from onnxfuse.cuda.compile import pycuda_compiler
from onnxfuse.cuda.compile.cache import Cache
from onnxfuse.cuda.compile.compiled import Compiled, CompileError
from onnxfuse.cuda.compile.compiler import CompilerCache, find_compiler
from onnxfuse.cuda.compile.nvrtc import Nvrtc
from onnxfuse.cuda.compile.pycuda_compiler import PycudaCompiler
from onnxfuse.cuda.compile.resources import Resources, read_log
from onnxfuse.errors import OnnxfuseError
from tests.cuda.compilers import nvrtc as found_nvrtc

SOURCE = 'extern "C" __global__ void twice(float* a) { a[threadIdx.x] *= 2.0f; }'
OPTIONS = ("--fmad=false", "--ptxas-options=-v")

LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'spilling' for 'sm_90'
ptxas info    : Function properties for spilling
    96 bytes stack frame, 40 bytes spill stores, 56 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 96 bytes cumulative stack size
ptxas info    : Compile time = 11.972 ms
ptxas info    : Compiling entry function 'small' for 'sm_90'
ptxas info    : Function properties for helper
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for small
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 21 registers, 16 bytes smem, 400 bytes cmem[0]
"""


@pytest.fixture
def nvrtc() -> Nvrtc:
    return found_nvrtc()


class _Counting:
    """A compiler that makes up its results and counts."""

    version = "counting 1"

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def compile(self, source: str, architecture: str, options: tuple[str, ...]) -> Compiled:
        self.calls.append((source, architecture))
        if "error" in source:
            raise CompileError(self.version, architecture, "warning: odd\nfile.cu(1): error: no\n")
        return Compiled(f"{source} {architecture}\n".encode(), b"ptx\n", {"k": Resources(32, 4, 8, 16, 0)})


def test_the_log_of_ptxas_has_registers_and_spills() -> None:
    assert read_log(LOG) == {"spilling": Resources(255, 40, 56, 96), "small": Resources(21, shared=16)}
    assert read_log(LOG)["spilling"].spills == 96
    assert read_log("") == {}


@pytest.mark.parametrize("architecture", ["sm_75", "sm_120"])
def test_nvrtc_makes_machine_code_without_a_gpu(nvrtc: Nvrtc, architecture: str) -> None:
    compiled = nvrtc.compile(SOURCE, architecture, OPTIONS)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert f".target {architecture}".encode() in compiled.ptx
    assert not compiled.ptx.endswith(b"\0")
    assert 0 < compiled.resources["twice"].registers < 64
    assert compiled.resources["twice"].spills == 0


def test_an_error_is_one_line_with_the_first_problem(nvrtc: Nvrtc) -> None:
    with pytest.raises(CompileError, match=r"sm_90: .*\"nothing\" is undefined") as error:
        nvrtc.compile("__global__ void k() { nothing(); }", "sm_90", OPTIONS)
    assert "\n" not in str(error.value)
    with pytest.raises(CompileError, match="sm_999"):
        nvrtc.compile(SOURCE, "sm_999", OPTIONS)


def test_what_was_compiled_is_not_compiled_again(tmp_path: Path) -> None:
    fake = _Counting()
    first = CompilerCache(fake, Cache(tmp_path)).compile(["a", "b", "a"], ("sm_80", "sm_90"), ("-x",))
    assert sorted(fake.calls) == [("a", "sm_80"), ("a", "sm_90"), ("b", "sm_80"), ("b", "sm_90")]
    again = CompilerCache(fake, Cache(tmp_path))
    assert again.compile(["b", "a"], ("sm_80", "sm_90"), ("-x",)) == first
    assert (again.compiled, again.found, len(fake.calls)) == (0, 4, 4)


def test_the_key_has_source_architecture_options_and_version(tmp_path: Path) -> None:
    fake = _Counting()

    def calls(source: str, architecture: str, option: str) -> int:
        CompilerCache(fake, Cache(tmp_path)).compile([source], (architecture,), (option,))
        return len(fake.calls)

    assert [calls("a", "sm_80", "-x"), calls("a", "sm_80", "-x")] == [1, 1]
    assert calls("c", "sm_80", "-x") == 2
    assert calls("a", "sm_90", "-x") == 3
    assert calls("a", "sm_80", "-y") == 4
    fake.version = "counting 2"
    assert calls("a", "sm_80", "-x") == 5


def test_a_damaged_or_foreign_entry_is_compiled_again(tmp_path: Path) -> None:
    fake = _Counting()
    cache = CompilerCache(fake, Cache(tmp_path))
    cache.compile(["a"], ("sm_80",), ())
    (path,) = tmp_path.iterdir()
    Cache(tmp_path).store(path.stem, b'{"cubin": "three"}\nabc')
    assert cache.compile(["a"], ("sm_80",), ())
    assert len(fake.calls) == 2


def test_one_source_that_does_not_compile_is_the_error(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"counting 1 cannot compile for sm_80: file.cu\(1\): error: no"):
        CompilerCache(_Counting(), Cache(tmp_path)).compile(["a", "error", "b"], ("sm_80",), ())


def test_without_a_compiler_the_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(OnnxfuseError, match="pip install cuda-bindings nvidia-cuda-nvrtc") as error:
        find_compiler()
    assert "nvcc" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture
def pycuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """A stand-in for PyCUDA, with the interface of version 2026.1; the calls of its compiler."""
    calls: list[dict[str, Any]] = []

    class NvccError(Exception):
        stderr = "kernel.cu(3): error: expected a ;\n"

    def compile(source: str, **arguments: Any) -> bytes:
        calls.append({"source": source, **arguments})
        if "bad" in source:
            raise NvccError("nvcc compilation of kernel.cu failed")
        warnings.warn(f"The CUDA compiler succeeded, but said the following:\n{LOG}{source}", stacklevel=4)
        return f"{arguments['target']} of {source}".encode()

    package, module = types.ModuleType("pycuda"), types.ModuleType("pycuda.compiler")
    package.VERSION_TEXT = "2026.1"  # type: ignore[attr-defined]
    package.compiler = module  # type: ignore[attr-defined]
    module.compile = compile  # type: ignore[attr-defined]
    module.get_nvcc_version = lambda nvcc: "nvcc: NVIDIA (R) Cuda compiler driver\nBuild cuda_13.0\n"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pycuda", package)
    monkeypatch.setitem(sys.modules, "pycuda.compiler", module)
    (tmp_path / "nvcc").write_text("#!/bin/sh\n")
    (tmp_path / "nvcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return calls


def test_pycuda_compiles_with_nvcc_and_gives_its_log(pycuda: list[dict[str, Any]]) -> None:
    compiler = PycudaCompiler()
    assert compiler.version == "nvcc (Build cuda_13.0) by PyCUDA 2026.1"
    with warnings.catch_warnings(record=True) as others:
        compiled = compiler.compile(SOURCE, "sm_90", OPTIONS)
    assert compiled.cubin == f"cubin of {SOURCE}".encode()
    assert compiled.ptx == f"ptx of {SOURCE}".encode()
    assert compiled.resources["spilling"].registers == 255
    assert not others
    assert [call["target"] for call in pycuda] == ["cubin", "ptx"]
    expected = {"options": list(OPTIONS), "arch": "sm_90", "no_extern_c": True, "cache_dir": False, "nvcc": "nvcc"}
    assert expected.items() <= pycuda[0].items()
    with pytest.raises(CompileError, match=r"kernel.cu\(3\): error: expected a ;"):
        compiler.compile("bad", "sm_90", OPTIONS)


def test_logs_of_threads_are_told_apart_and_warnings_stay_as_they_were(pycuda: list[dict[str, Any]]) -> None:
    def log_of(number: int) -> str:
        with pycuda_compiler._what_nvcc_says() as said:
            PycudaCompiler()._compiler.compile(f"source {number}", target="cubin")
        return "".join(said)

    before = (warnings.showwarning, warnings.filters[:])
    with ThreadPoolExecutor(4) as pool:
        logs = list(pool.map(log_of, range(40)))
    assert [log.splitlines()[-1] for log in logs] == [f"source {number}" for number in range(40)]
    assert (warnings.showwarning, warnings.filters[:]) == before


@pytest.mark.parametrize(("gpus", "first"), [((), "NVRTC"), (("sm_90",), "nvcc")])
def test_pycuda_is_for_machines_with_a_gpu(
    gpus: tuple[str, ...], first: str, nvrtc: Nvrtc, pycuda: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilers, "devices", lambda: gpus)
    assert find_compiler().version.startswith(first)


def test_without_nvcc_pycuda_says_so(pycuda: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OnnxfuseError, match="nvcc"):
        PycudaCompiler()


def test_functions_are_for_the_device(nvrtc: Nvrtc) -> None:
    """To NVRTC 13.0 a lambda inside of another is one of the host, as a function without annotation is to all."""
    source = 'int two() { return 2; } extern "C" __global__ void k(int* y) { *y = two(); }'
    assert nvrtc.compile(source, "sm_90", ()).cubin
