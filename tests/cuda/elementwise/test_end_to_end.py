"""Rendered kernels, launched by the native library in ONNX Runtime, in an emulation of CUDA behind a stand-in driver.

Only the compiler, the driver and the GPU are missing.  That both sides agree on every launch is checked besides: the
launcher's choice, grid and parameters are those of ``onnxfuse.cuda``, and NVRTC lays the parameters out as both do.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxfuse.cuda.arguments import grid_size, pack
from onnxfuse.cuda.elementwise.access import choose, classify
from onnxfuse.cuda.elementwise.renderer import compile_options, render
from onnxfuse.cuda.kernel import Access, Kernel, Source
from onnxfuse.cuda.recipe import Recipe
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program, reference
from tests.cuda import contract
from tests.cuda.compilers import nvrtc
from tests.cuda.elementwise.programs import SMALL, random_program
from tests.cuda.emulation.emulator import FLAGS, HEADERS, cpp_text
from tests.cuda.stand_in import AVAILABLE, NATIVE, REASON, Call, StandIn, compile_shared, cubin, ptx, scratch_folder
from tests.custom_ops.fused import assert_same_bits, fused_model, run, sample

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)

MULTIPROCESSORS = 3
Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Case:
    text: str
    accesses: tuple[str, ...]
    shapes: tuple[Shapes, ...]

    @property
    def program(self) -> Program:
        return Program.parse(self.text)

    @property
    def source(self) -> Source:
        return render(self.program, [Access.parse(access) for access in self.accesses], SMALL)


CASES = {
    "two inputs": Case(
        "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nmul f32 0 1\nsub f32 2 0\noutput 3\n",
        ("ll:l", "li:l", "lc:l"),
        tuple(itertools.product(([4, 3, 8], [1, 3, 8], [4, 1, 8]), ([4, 3, 8], [8], [3, 1], [4, 1, 1], [], [4, 1, 8]))),
    ),
    "mixed types": Case(
        "onnxfuse 1\ninput f16 broadcast\ninput i64 broadcast\ninput bool broadcast\ninput bf16 broadcast\n"
        "cast f16 1\nadd f16 0 4\nwhere f16 2 5 0\ncast u8 1\nadd bf16 3 3\noutput 6\noutput 7\noutput 2\noutput 8\n",
        ("llll:llll", "lcsi:llll"),
        (
            ([515], [515], [515], [515]),
            ([3, 5, 16], [5, 1], [], [16]),
            ([3, 5, 16], [16], [3, 1, 1], [3, 5, 16]),
        ),
    ),
    "along axes": Case(
        "onnxfuse 1\ninput f64 broadcast\ninput f64 axis -3\ninput f64 axis 0\nmul f64 0 1\nadd f64 3 2\noutput 4\n",
        ("loo:l",),
        (([4, 3, 6], [4], [4]), ([4, 3, 5], [1], [4])),
    ),
    "smaller output": Case(
        "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nabs f32 1\nmul f32 0 2\noutput 2\noutput 3\n",
        ("lc:wl",),
        (([3, 5, 8], [5, 1]), ([3, 5, 8], [8]), ([3, 5, 8], []), ([1, 5, 8], [5, 8])),
    ),
    "views": Case(
        "onnxfuse 2\ninput f32 view slice:-1:8:24:1,split:-1:-1:8,permute:1.0.2\ninput f32 slice 0:1:3:1\n"
        "input f32 halves\nmul f32 0 1\nadd f32 3 2\noutput 4 view merge:-3\noutput 3\n",
        ("glg:ll", "gig:ll"),
        (([3, 24], [5, 3, 8], [8]), ([3, 29], [4, 3, 8], [2, 3, 8]), ([1, 24], [3, 5, 8], [1, 8])),
    ),
    "halves of float16": Case(
        "onnxfuse 2\ninput f16 broadcast\ninput f16 slice -1:16:48:1 halves\ninput f16 slice -1:16:48:1\n"
        "input f16 slice -1:0:32:1\nmul f16 1 3\nmul f16 2 0\nadd f16 4 5\noutput 6\n",
        ("gggg:l", "iggg:l"),
        (([5, 32], [5, 64], [5, 64], [5, 64]), ([32], [3, 48], [3, 48], [3, 48]), ([5, 1], [48], [48], [5, 36])),
    ),
    "transposed": Case(
        "onnxfuse 2\ninput f32 view permute:0.2.1\ninput f32 broadcast\ninput f32 halves\nmul f32 0 1\nadd f32 3 2\n"
        "output 4 view merge:-3\noutput 3\n",
        ("tgg:ll",),
        (
            ([2, 32, 64], [64, 32], [32]),
            ([1, 34, 67], [67, 1], [34]),
            ([3, 6, 5], [1, 6], [6]),
            ([1, 160, 8], [], [160]),
        ),
    ),
    "no inputs": Case("onnxfuse 1\nconst f32 40490fdb\noutput 0\n", (":l",), ((),)),
}
RANDOM_SHAPES = ([6, 40], [40], [6, 1], [])


def random_case(seed: int) -> Case:
    program = random_program(seed)
    count = len(program.inputs)
    shapes = tuple(tuple(RANDOM_SHAPES[(i * k) % 4] for i in range(count)) for k in (0, 1, 3))
    accesses = {str(classify(program, own).access) for own in shapes}
    return Case(str(program), tuple(sorted(accesses)), shapes)


def all_cases() -> dict[str, Case]:
    return CASES | {f"random {seed}": random_case(seed) for seed in range(12)}


def as_contract(kernel: Kernel) -> contract.Kernel:
    """The kernel as the tests of the launcher know it, for the places of its parameters."""
    return contract.Kernel(kernel.name, str(kernel.access), index=kernel.index, tile=kernel.tile)


def stand_in_kernel(kernel: Kernel, program: Program) -> str:
    """C++ through which the stand-in driver launches an emulated kernel."""
    places = ", ".join(f"{offset}, {size}" for offset, size in [*as_contract(kernel).parameters, (0, 0)])
    types = [spec.dtype for spec in program.inputs] + [program.dtype(output) for output in program.outputs]
    sizes = ", ".join(str(DTYPES[dtype].itemsize) for dtype in types)
    arguments = f'"{kernel.name}", "{kernel.access.letters}", {len(program.inputs)}, {int(kernel.index == 64)}'
    return (
        f'extern "C" {{ extern const size_t {kernel.name}_parameters[] = {{{places}}}; }}\n'
        f'extern "C" const char* {kernel.name}_emulated(const EmulatedLaunch* launch) {{\n'
        f"  static const size_t sizes[] = {{{sizes}}};\n"
        f"  return rendered::run({arguments}, {kernel.name}_parameters, sizes, launch);\n}}\n"
    )


@cache
def shared_object() -> Path:
    """The kernels of all cases, compiled at once."""
    cases = list(all_cases().values())
    kernels = "".join(stand_in_kernel(kernel, case.program) for case in cases for kernel in case.source.kernels)
    text = cpp_text([case.source for case in cases]) + '\n#include "tests/cuda/rendered_kernel.h"\n' + kernels
    source = scratch_folder() / "rendered.cc"
    source.write_text(text, encoding="utf-8")
    return compile_shared(source.with_suffix(".so"), *FLAGS, f"-I{HEADERS}", f"-I{NATIVE}", str(source))


def fused_node_model(case: Case, code: dict[str, bytes]) -> onnx.ModelProto:
    """A model of one node with dynamic shapes of the ranks that the case has."""
    ranks = [max(len(shapes[i]) for shapes in case.shapes) for i in range(len(case.program.inputs))]
    same = all(len(shapes[i]) == rank for shapes in case.shapes for i, rank in enumerate(ranks))
    shapes = [[f"d{i}_{d}" for d in range(rank)] if same else None for i, rank in enumerate(ranks)]
    model = fused_model(case.text, shapes)
    recipe = str(Recipe.of(case.source)).encode()
    for name, value in {"cuda_recipe": recipe, **code}.items():
        model.graph.node[0].attribute.append(helper.make_attribute(name, value))
    return model


def arrays_of(case: Case, shapes: Shapes) -> list[np.ndarray]:
    return [
        sample(spec.dtype, int(np.prod(shape)), seed, special=False).reshape(shape)
        for seed, (spec, shape) in enumerate(zip(case.program.inputs, shapes, strict=True))
    ]


def check_launch(call: Call, case: Case, shapes: Shapes) -> None:
    """The launch is the one that ``onnxfuse.cuda`` foretells."""
    layout = classify(case.program, shapes)
    parameters = bytes.fromhex(call["parameters"])
    first = [int.from_bytes(parameters[8 * k : 8 * k + 8], "little") for k in range(len(layout.operands))]
    addresses = [at - operand.first(0) for at, operand in zip(first, layout.operands, strict=True)]
    kernel = choose(case.source.kernels, layout, addresses)
    assert call["kernel"] == kernel.name
    assert (call["grid"], call["block"]) == (grid_size(kernel, layout), kernel.block)
    places = as_contract(kernel).parameters
    assert [parameters[offset : offset + size] for offset, size in places] == pack(kernel, layout, addresses)
    assert len(parameters) == sum(places[-1])


@pytest.mark.parametrize("name", all_cases())
def test_the_results_are_the_reference(name: str, tmp_path: Path) -> None:
    case = all_cases()[name]
    stand_in = StandIn(tmp_path, [(9, 0, MULTIPROCESSORS)])
    session = stand_in.session(fused_node_model(case, {"cuda_sm_90": cubin(shared_object(), 90)}))
    stand_in.use_stream(0)
    for shapes in case.shapes:
        inputs = arrays_of(case, shapes)
        stand_in.launches()
        results = run(session, inputs)
        (call,) = stand_in.launches()
        for result, wanted in zip(results, reference.run(case.program, inputs), strict=True):
            assert_same_bits(result, wanted)
        check_launch(call, case, shapes)


def test_through_ptx(tmp_path: Path) -> None:
    case = CASES["two inputs"]
    stand_in = StandIn(tmp_path, [(12, 0, MULTIPROCESSORS)])
    session = stand_in.session(fused_node_model(case, {"cuda_ptx": ptx(shared_object(), 75)}))
    inputs = arrays_of(case, case.shapes[0])
    assert_same_bits(run(session, inputs)[0], reference.run(case.program, inputs)[0])
    assert len(stand_in.launches()) == 1


def declared_parameters(ptx_text: str, kernel: str) -> list[tuple[int, int]]:
    """(offset, bytes) of the parameters of a kernel, as its PTX declares them."""
    declaration = ptx_text.split(f".entry {kernel}(")[1].split("{")[0]
    places, offset = [], 0
    for alignment, kind, array in re.findall(
        r"\.param (?:\.align (\d+) )?\.(\w+) [^\[,\s]+(?:\[(\d+)\])?", declaration
    ):
        size = int(array) if array else int(kind[1:]) // 8
        step = int(alignment) if alignment else size
        offset = -(-offset // step) * step
        places.append((offset, size))
        offset += size
    return places


def test_the_compiler_lays_parameters_out_as_the_launcher() -> None:
    compiler = nvrtc()
    text = "onnxfuse 1\n" + "input f32 broadcast\n" * 3 + "add f32 0 1\nadd f32 3 2\nabs f32 2\noutput 4\noutput 5\n"
    accesses = [Access.parse(access) for access in ("loc:lw", "cig:ll", "sio:ll")]
    source = render(Program.parse(text), accesses)
    compiled = compiler.compile(source.text, "sm_90", compile_options(False))
    for kernel in source.kernels:
        assert declared_parameters(compiled.ptx.decode(), kernel.name) == as_contract(kernel).parameters, kernel
    assert {kernel.index for kernel in source.kernels} == {32, 64}


def test_machine_code_and_ptx_of_the_compiler_are_whole(tmp_path: Path) -> None:
    """The library takes what NVRTC gives for the images that they are."""
    compiler = nvrtc()
    case = CASES["two inputs"]
    for architecture in ("75", "90", "120"):
        compiled = compiler.compile(case.source.text, f"sm_{architecture}", compile_options(False))
        code = {f"cuda_sm_{architecture}": compiled.cubin, "cuda_ptx": compiled.ptx}
        stand_in = StandIn(tmp_path / architecture, [(int(architecture) // 10, int(architecture) % 10, 1)])
        stand_in.fail("cuModuleLoadDataEx", 2)  # the stand-in cannot run them
        with pytest.raises(Exception, match="cuModuleLoadDataEx: CUDA error 2"):
            stand_in.session(fused_node_model(case, code))
        for cut in (compiled.cubin[: len(compiled.cubin) // 2], compiled.cubin[:-1]):
            with pytest.raises(Exception, match="is not valid: it is cut short"):
                stand_in.session(fused_node_model(case, code | {f"cuda_sm_{architecture}": cut}))
