"""What the renderer writes compiles for every architecture, and reads memory as it is meant to."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context

import pytest

from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.compile.compiled import Compiled
from onnxfuse.cuda.elementwise.renderer import Tuning, compile_options, render
from onnxfuse.cuda.kernel import Access, Source
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program
from tests.cuda.compilers import nvrtc
from tests.cuda.elementwise.programs import SMALL, cast_program, chains, linear, operator_programs, view_chains
from tests.cuda.elementwise.test_emulation_random import PROGRAMS, random_source

VERBOSE = "--ptxas-options=-v"
ONE_BY_ONE = Tuning(vector=1)  # each operator once: what differs between kernels is in the chains


@pytest.fixture(scope="module")
def compile_quickly() -> Iterator[Callable[[str, str], bytes]]:
    """What makes machine code that is hardly optimized, for it makes no difference to whether a kernel compiles.

    It runs in a process of its own: after --Ofast-compile, NVRTC 13.5 compiles other kernels of its process so too.
    """
    nvrtc()
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield lambda text, architecture: pool.submit(_compile_quickly, text, architecture).result()


def _compile_quickly(text: str, architecture: str) -> bytes:
    return nvrtc().compile(text, architecture, (*compile_options(False), "--Ofast-compile=max")).cubin


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", COMMON)
def test_operators_compile(architecture: str, dtype: str, compile_quickly: Callable[[str, str], bytes]) -> None:
    programs = [*(program for program, _ in operator_programs(dtype)), cast_program(dtype)]
    accesses = [Access("g" * len(program.inputs), "l" * len(program.outputs)) for program in programs]
    sources = [render(program, [own], ONE_BY_ONE) for program, own in zip(programs, accesses, strict=True)]
    cubin = compile_quickly("\n".join(source.text for source in sources), architecture)
    assert all(kernel.name.encode() in cubin for source in sources for kernel in source.kernels)


def all_chains(dtype: str) -> dict[str, tuple[Program, list[Access]]]:
    return chains(dtype) | {name: own[:2] for name, own in view_chains(dtype).items()}


@cache
def chain(dtype: str, name: str, architecture: str) -> tuple[Source, Compiled]:
    source = render(*all_chains(dtype)[name])
    return source, nvrtc().compile(source.text, architecture, (*compile_options(False), VERBOSE))


@pytest.mark.parametrize("name", all_chains("f32"))
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_chains_compile_without_spills(dtype: str, name: str) -> None:
    source, compiled = chain(dtype, name, "sm_90")
    for kernel in source.kernels:
        resources = compiled.resources[kernel.name]
        assert (resources.spills, resources.stack) == (0, 0)
        assert resources.registers <= 64, kernel  # at most that leaves half of the device's threads


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("architecture", COMMON)
def test_chains_compile(architecture: str, dtype: str, compile_quickly: Callable[[str, str], bytes]) -> None:
    rendered = [render(*own).text for own in all_chains(dtype).values()]
    compile_quickly("\n".join(rendered), architecture)


SHARDS = 4


@cache
def emulated() -> list[Source]:
    """The operators in vectors, and the random Programs."""
    rendered = [
        render(program, [linear(program)], SMALL) for dtype in DTYPES for program, _ in operator_programs(dtype)
    ]
    return rendered + [random_source(seed) for seed in range(PROGRAMS)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("architecture", COMMON)
def test_what_runs_in_the_emulation_compiles(
    architecture: str, shard: int, compile_quickly: Callable[[str, str], bytes]
) -> None:
    own = [source.text for source in emulated()[shard::SHARDS]]
    compile_quickly("\n".join(own), architecture)


def test_fast_math_compiles() -> None:
    rendered = [render(*own).text for own in all_chains("f32").values()]
    nvrtc().compile("\n".join(rendered), "sm_90", compile_options(True))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_a_thread_loads_and_stores_16_bytes_at_once(dtype: str) -> None:
    source, compiled = chain(dtype, "scale, relu, add", "sm_90")
    kernel = source.kernels[0]
    assert kernel.vector * DTYPES[dtype].itemsize == 16
    accesses = re.findall(r"(?:ld|st)\.global\.v[24]\.\w+|(?:ld|st)\.global\S*", entry(compiled, kernel.name))
    vectors = ["load" if word.startswith("ld") else "store" for word in accesses if ".v" in word]
    assert vectors == ["load", "load", "store"]


def entry(compiled: Compiled, name: str) -> str:
    """The PTX of one kernel."""
    return compiled.ptx.decode().split(f".entry {name}(")[1].split(".entry ")[0]
