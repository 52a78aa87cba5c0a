"""The native unit tests, compiled with the system's C++ compiler and run."""

import ctypes
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from onnxfuse import cpu
from tests.custom_ops.fused import library
from tests.custom_ops.library.test_rooms import LIBRARY, includes

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "custom_ops"
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
KERNEL_FLAGS = ["-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]
SKIPPED = 77  # exit status of a program whose machine lacks what it needs

pytestmark = pytest.mark.skipif(not COMPILER, reason="there is no C++ compiler")


def instruction_sets() -> dict[str, list[str]]:
    """The instruction sets that this machine can run, with their compiler flags."""
    if platform.machine() != "x86_64":
        return {"neon" if platform.machine() == "aarch64" else "baseline": []}
    features = cpu.read(library())["features"].split()
    result: dict[str, list[str]] = {"baseline": []}
    result |= {name: flags for name, flags in (("avx2", AVX2), ("avx512", AVX512)) if name in features}
    return result


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """The headers that the build generates, and objects, for all tests of this process."""
    made = tempfile.TemporaryDirectory(prefix="onnxfuse_cpp_")
    generator: list[str | Path] = [sys.executable, NATIVE / "generate_opcodes.py"]
    tables = [ROOT / "onnxfuse" / path for path in ("program/ops.py", "fused/kinds.py", "program/figures.py")]
    folder = Path(made.name)
    subprocess.run([*generator, *tables, folder / "program" / "opcodes.inc", folder / "figures"], check=True)
    return made


def _run_compiler(*arguments: str | Path) -> None:
    command = [*(COMPILER or "").split(), "-std=gnu++17", "-Wall", "-Wextra", "-pthread", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]


@functools.cache
def compiled(source: Path, *flags: str) -> Path:
    """The object of a source, which tests with the same flags share."""
    folder = Path(_scratch().name)
    target = folder / f"{len(list(folder.glob('*.o')))}_{source.stem}.o"
    _run_compiler(f"-I{NATIVE}", f"-I{folder}", *flags, "-c", source, "-o", target)
    return target


def compile_cpp(target: Path, sources: Sequence[Path], flags: Sequence[str], link: Sequence[str] = ()) -> Path:
    """A program, of sources and libraries; ``link`` are flags for the linker alone."""
    objects = [compiled(source, *flags) if source.suffix == ".cc" else source for source in sources]
    _run_compiler(*flags, *link, *objects, "-ldl", "-o", target)
    return target


def parts(*names: str) -> list[Path]:
    """The sources of the library of those names, without their rooms and suffix, and what they ask of the system."""
    return [next(path for path in LIBRARY if path.name == f"{name}.cc") for name in (*names, "system_posix")]


def run_program(program: Path, *arguments: str) -> None:
    result = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if result.returncode == SKIPPED:
        pytest.skip(result.stdout)
    if "ThreadSanitizer: unexpected memory mapping" in result.stderr or "execve failed" in result.stderr:
        pytest.skip("this ThreadSanitizer cannot run where addresses are as random as here")
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]


@pytest.mark.parametrize("isa", instruction_sets())
def test_vector_math(isa: str, tmp_path: Path) -> None:
    """Functions within 4 ulp, conversions exact, in every instruction set."""
    flags = [*KERNEL_FLAGS, *instruction_sets()[isa], f"-DONNXFUSE_ISA={isa}"]
    run_program(compile_cpp(tmp_path / "test", [NATIVE / "tests/vector_math_test.cc"], flags), "quick")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="there is one instruction set")
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_kernels_share_no_inline_function(isa: str, tmp_path: Path) -> None:
    """Of those outside its namespace the linker would keep one copy for all, perhaps that of the newest processors.

    Without optimization each that is called is there to be seen.
    """
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("there is no nm")
    flags = {"avx2": AVX2, "avx512": AVX512}[isa]
    included = {name for path in LIBRARY for name in includes(path)}
    files = [path for path in LIBRARY if path.suffix == ".inc"]
    kernels = [path for path in files if path.relative_to(NATIVE).as_posix() not in included]
    assert len(kernels) > 5
    for kernel in kernels:
        source = tmp_path / f"{kernel.stem}.cc"
        source.write_text(f'#include "simd/isa_{isa}.h"\n#include "{kernel}"\n', encoding="utf-8")
        kernel_object = compiled(source, "-O0", *flags)
        symbols = subprocess.run([nm, "-C", kernel_object], capture_output=True, text=True, check=True).stdout
        weak = [found[1] for found in re.finditer(r"^\S* *[WVu] (.*)$", symbols, re.MULTILINE)]
        foreign = [name for name in weak if f"onnxfuse::{isa}::" not in name and not name.startswith("DW.ref.")]
        assert not foreign, source.name


def test_indices_beyond_31_bits(tmp_path: Path) -> None:
    names = [
        "shape",
        "plan",
        "program",
        "program_shapes",
        "view_steps",
        "executor",
        "gather",
        "caches",
        "constant_division",
        "cost",
        "forks",
        "workspace",
        *("stage_builder", "stage_chain", "stage_layout"),
    ]
    sources = [NATIVE / "tests/index_test.cc", *parts(*names)]
    run_program(compile_cpp(tmp_path / "test", sources, ["-O1"]))


def test_plans_of_attention_over_any_number_of_rows(tmp_path: Path) -> None:
    """How the work is divided is found in a few steps, however many rows there are, and too much memory is refused."""
    names = ("attention", "attention_layout", "caches", "cost", "forks", "shape", "workspace")
    sources = [NATIVE / "tests/attention_plan_test.cc", *parts(*names)]
    run_program(compile_cpp(tmp_path / "test", sources, ["-O1"]))


def test_workspace(tmp_path: Path) -> None:
    """Threads get the smallest block of memory that is large enough, and no more is kept than they had at once."""
    sources = [NATIVE / "tests/workspace_test.cc", *parts("workspace", "forks")]
    run_program(compile_cpp(tmp_path / "test", sources, ["-O1"], ["-Wl,--wrap=aligned_alloc,--wrap=free"]))


@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_plan_cache(sanitizer: str, tmp_path: Path) -> None:
    """A plan that a thread uses is not forgotten by another, and none is kept for ever."""
    flags = ["-O1", f"-fsanitize={sanitizer}"]
    sources = [NATIVE / "tests/plan_cache_test.cc", *parts("forks")]
    run_program(compile_cpp(tmp_path / "test", sources, flags))


@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_thread_pool(sanitizer: str, tmp_path: Path) -> None:
    """Each part of a run is done once, by whatever threads, and ends before the run does."""
    names = ("thread_pool", "forks")
    sources = [NATIVE / "tests/thread_pool_test.cc", *parts(*names)]
    run_program(compile_cpp(tmp_path / "test", sources, ["-O1", f"-fsanitize={sanitizer}"]), sanitizer)


def test_bad_calls_of_the_functions_for_models_without_ort(tmp_path: Path) -> None:
    """Ranks, numbers of values, sizes, the order of nodes, and calls while another thread runs."""
    sources = [NATIVE / "tests/executable_api_test.cc", Path(library())]
    run_program(compile_cpp(tmp_path / "test", sources, ["-O1"]))


def test_memory_of_a_run(tmp_path: Path) -> None:
    """Much of it is the host's and is given back to it, whatever happens."""
    names = ("host", "workspace", "forks")
    sources = [NATIVE / "tests/host_test.cc", *parts(*names)]
    run_program(compile_cpp(tmp_path / "test", sources, ["-O1"]))


def test_forks(tmp_path: Path) -> None:
    """A child of a fork finds no lock taken, and nothing half made, by a thread that it does not have."""
    names = ("forks", "workspace", "block_pool", "thread_pool")
    sources = [NATIVE / "tests/forks_test.cc", *parts(*names)]
    run_program(compile_cpp(tmp_path / "test", sources, ["-O1"]))


@pytest.mark.parametrize(
    "driver",
    (
        "fuzz_program",
        "fuzz_conv_cpu",
        "fuzz_squeeze_excite",
        "fuzz_attention",
        "fuzz_matmul",
        "fuzz_reduction",
        "fuzz_nhwc_conv",
        "fuzz_nhwc_pool",
        "fuzz_nhwc_concat",
        "fuzz_executable",
    ),
)
def test_drivers_that_only_the_fuzzer_runs(driver: str) -> None:
    """They keep up with the library: the fuzzer would find out late that it cannot build them."""
    compiled(NATIVE / f"tests/fuzz/{driver}.cc", "-fsyntax-only")


_CUDA = (
    *(f"cuda_{name}" for name in ("context", "driver", "image", "kernels", "module", "recipe_text")),
    *("program", "program_shapes", "shape", "view_steps"),
)
FUZZED = {
    "fuzz_listed_operators": ("listed_operators", "operator_names"),
    "fuzz_launch": (
        *("cuda_access", "cuda_launch", "cuda_parameters", "cuda_recipe", "cuda_tiles"),
        *("cuda_node_launch", "cuda_node_recipe", "cuda_parts", *_CUDA),
    ),
    "fuzz_rows": ("cuda_nest_launch", "cuda_nest_layout", "cuda_nest_parameters", "cuda_nest_recipe", *_CUDA),
    "fuzz_cuda_attention": (
        *("attention_layout", "cuda_attention_launch", "cuda_attention_parameters", "cuda_attention_recipe"),
        *("conv", "conv_node", *_CUDA),
    ),
    "fuzz_conv": (
        "conv",
        "conv_node",
        "cuda_conv_launch",
        "cuda_conv_layout",
        "cuda_conv_parameters",
        "cuda_conv_recipe",
        *_CUDA,
    ),
}
"""Drivers that fuzz what models and the CUDA operators are read from, and the sources of the library that they need."""


@pytest.mark.parametrize("driver", FUZZED)
def test_hostile_models(driver: str, tmp_path: Path) -> None:
    """Files, recipes and machine code that nobody should trust, and launches for any shapes, under the sanitizers."""
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    empty = tmp_path / "empty.cc"
    empty.write_text("int main() {}\n", encoding="ascii")
    command = [*(COMPILER or "").split(), *sanitizers, str(empty), "-o", str(tmp_path / "empty")]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("the compiler has no sanitizers")
    sources = [NATIVE / f"tests/fuzz/{driver}.cc", *parts(*FUZZED[driver])]
    run_program(compile_cpp(tmp_path / "test", sources, [*sanitizers, "-O0"]), "4000", "1")


def test_nodes_call_no_function_of_onnx_runtime() -> None:
    """They run without it too; those of a session are called where it is known."""
    header = (NATIVE / "ort/ort_abi.h").read_text(encoding="utf-8")
    slots = set(re.findall(r"^ONNXFUSE_SLOT\(\d+, (\w+)\)", header, re.MULTILINE))
    called: dict[str, set[str]] = {}
    for source in LIBRARY:
        room = source.relative_to(NATIVE).parts[0]
        found = slots & set(re.findall(r"api_?->(\w+)\(", source.read_text(encoding="utf-8")))
        called.setdefault(room, set()).update(found)
    assert {room for room, found in called.items() if found} == {"cuda", "operators", "ort"}
    assert {"KernelContext_GetOutput", "KernelInfo_GetNodeName"} <= called["ort"]


def test_every_slot_of_the_ort_abi(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each function of ort_abi.h does in the running ONNX Runtime what the library takes it for."""
    probe = compile_cpp(tmp_path / "libprobe.so", [NATIVE / "tests/abi_probe.cc"], ["-O1", "-fPIC"], ["-shared"])
    attributes = {"program": "the text", "count": 7, "sizes": [3, 1, 2]}
    node = helper.make_node("Probe", ["a", "b"], ["c"], name="the_probe", domain="onnxfuse_probe", **attributes)
    inputs = [helper.make_tensor_value_info(*v) for v in (("a", TensorProto.FLOAT, ["n", 3]), ("b", 1, [3]))]
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name="c")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("onnxfuse_probe", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 4
    options.add_session_config_entry("probe.entry", "set")
    options.register_custom_ops_library(str(probe))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert "the probe's log line" in capfd.readouterr().err
    assert session.get_outputs()[0].shape == ["n", 3]
    assert session.get_outputs()[0].type == "tensor(float)"

    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    (c,) = session.run(None, {"a": a, "b": a[0]})
    np.testing.assert_array_equal(c, a)
    a[0, 0] = -1
    with pytest.raises(Exception, match="the probe's message") as caught:
        session.run(None, {"a": a, "b": a[0]})
    assert "INVALID_ARGUMENT" in str(caught.value)

    handle = ctypes.CDLL(str(probe))
    results = []
    for function in (handle.onnxfuse_probe_passed, handle.onnxfuse_probe_failed):
        function.restype = ctypes.c_char_p
        results.append(set(function().decode().split()))
    passed, failed = results
    header = (NATIVE / "ort/ort_abi.h").read_text(encoding="utf-8")
    slots = set(re.findall(r"^ONNXFUSE_SLOT\(\d+, (\w+)\)", header, re.MULTILINE))
    assert not failed
    if tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 24):
        slots.add("GetTensorElementTypeAndShapeDataReference")
    assert passed == slots | {"GetApi", "GetVersionString"}
