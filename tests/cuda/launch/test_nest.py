"""FusedReduction nodes of the CUDA provider: rendered kernels behind the stand-in driver, and errors."""

import struct
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from onnxfuse.cuda.compile.nvrtc import Nvrtc
from onnxfuse.cuda.elementwise.renderer import compile_options
from onnxfuse.cuda.nest.kernel import NestSource
from onnxfuse.cuda.nest.renderer import case_of, render_nest
from onnxfuse.errors import OnnxfuseError
from onnxfuse.program import Program, reference
from tests.cuda.elementwise.test_end_to_end import declared_parameters
from tests.cuda.launch.test_overlap import bound
from tests.cuda.nest.nodes import (
    MULTIPROCESSORS,
    NODE,
    check_launches,
    nest_kernel,
    places,
    recipe,
    reduction_model,
    rendered_model,
    rendered_object,
    stub_model,
)
from tests.cuda.nest.product_programs import product
from tests.cuda.nest.programs import arrays, chains, integers, random_nest
from tests.cuda.stand_in import AVAILABLE, REASON, StandIn
from tests.custom_ops.fused import run

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)

SUM = "onnxfuse 2\ninput f32 broadcast\nreduce_sum f32 0 -1\nadd f32 0 1\noutput 2\noutput 1\n"
VIEWS = (
    "onnxfuse 2\ninput f32 view permute:0.2.1\ninput f32 view slice:-1:1:17:2\nadd f32 0 1\n"
    "reduce_max f32 2 -1\nsub f32 2 3\noutput 4 view merge:-2\noutput 3\n"
)
RANDOM = 12


def all_cases() -> dict[str, tuple[Program, list[list[tuple[int, ...]]]]]:
    """Programs, and the shapes of their inputs in some runs."""
    found = {name: (chain.program, [chain.shapes(size) for size in (7, 40)]) for name, chain in chains("f32").items()}
    found["long rows"] = chains("f32")["log softmax"].program, [[(1, 20000)], [(2, 17001)]]
    found["long columns"] = chains("f32")["channels last mean"].program, [[(1, 700, 12)], [(1, 701, 9)]]
    half = chains("f16")["softmax, scale, mask"]
    found["half precision"] = half.program, [half.shapes(24)]
    found["integers"] = integers("i32").program, [integers("i32").shapes(size) for size in (1, 50)]
    found["views"] = Program.parse(VIEWS), [[(2, 8, 4), (4, 17)], [(1, 8, 4), (1, 18)]]
    rows, shapes = product("f32", 4, 64, 40, "residual")
    found["rows that share a matrix"] = rows, [shapes, [(2, 64), (40, 64), (2, 40)]]
    found["no elements"] = Program.parse(SUM), [[(3, 0)], [(0, 3)]]
    for seed in range(RANDOM):
        program, shapes = random_nest(seed)
        found[f"random {seed}"] = program, [shapes]
    return found


@cache
def source_of(name: str) -> NestSource:
    program, runs = all_cases()[name]
    if name == "rows that share a matrix":
        return render_nest(case_of(program, runs[0]))
    shapes = [[size if size == 1 else f"d{i}_{d}" for d, size in enumerate(own)] for i, own in enumerate(runs[0])]
    return render_nest(case_of(program, shapes))


@cache
def code() -> Path:
    return rendered_object([(program, source_of(name)) for name, (program, _) in all_cases().items()])


@pytest.mark.parametrize("name", all_cases())
def test_the_results_are_the_reference(name: str, tmp_path: Path) -> None:
    program, runs = all_cases()[name]
    source = source_of(name)
    stand_in = StandIn(tmp_path, [(9, 0, MULTIPROCESSORS)])
    dynamic = [[f"d{i}_{d}" for d in range(len(shape))] for i, shape in enumerate(runs[0])]
    session = stand_in.session(rendered_model(program, dynamic, source, code()))
    stand_in.use_stream(0)
    tolerance = 4e-3 if name == "half precision" else 1e-4
    for shapes in runs:
        inputs = arrays(program, shapes)
        stand_in.launches()
        stand_in.scratch()
        results = run(session, inputs)
        calls = stand_in.launches()
        for result, wanted in zip(results, reference.run(program, inputs), strict=True):
            assert result.shape == wanted.shape
            np.testing.assert_allclose(result.astype(float), wanted.astype(float), tolerance, tolerance)
        if shapes == [(0, 3)]:
            assert not calls
            continue
        kernel = check_launches(calls, stand_in.scratch(), program, shapes, source.kernels)
        assert (kernel.steps > 0) == (name in ("long rows", "long columns"))
        assert kernel.tile == (4 if name == "rows that share a matrix" and shapes[0] == (4, 64) else 1)


def test_a_graph_captures_it(tmp_path: Path) -> None:
    program, runs = all_cases()["long rows"]
    stand_in = StandIn(tmp_path, [(9, 0, MULTIPROCESSORS)])
    session = stand_in.session(rendered_model(program, [("n", "m")], source_of("long rows"), code()))
    stand_in.check_captured(session, arrays(program, runs[0]))


@pytest.mark.parametrize("behind", [0, 16, -16])
def test_overlapping_memory(behind: int, tmp_path: Path) -> None:
    """An input in the memory of an output is copied, and outputs that share memory are written one after the other."""
    program, runs = all_cases()["layer norm, residual, gelu"]
    stand_in = StandIn(tmp_path, [(9, 0, MULTIPROCESSORS)])
    name = "layer norm, residual, gelu"
    dynamic = [[f"d{i}_{d}" for d in range(len(shape))] for i, shape in enumerate(runs[0])]
    session = stand_in.session(rendered_model(program, dynamic, source_of(name), code()))
    inputs = arrays(program, runs[1])
    results = run(session, inputs)
    for i in range(len(inputs)):
        memory, expected = bound(session, inputs, {i: 256 + behind}, [256, 320], results)
        np.testing.assert_array_equal(memory, expected, err_msg=f"input {i}")
    assert stand_in.calls("cuMemcpyDtoDAsync")
    stand_in.scratch()


def test_without_kernels_the_cpu_computes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stand_in = StandIn(tmp_path)
    session = stand_in.session(reduction_model(SUM, [("n", "m")]))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    results = run(session, [x])
    np.testing.assert_array_equal(results[1], x.sum(1, keepdims=True))
    np.testing.assert_array_equal(results[0], x + x.sum(1, keepdims=True))
    assert not stand_in.launches()
    assert "it carries no CUDA kernels" in capfd.readouterr().err


ANY = nest_kernel("any", "g::gs", index=64)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("rows 1", "rows 2", "line 1: the first line is not 'onnxfuse-cuda-rows 1'"),
        ("kernel k ", "kernel 1 ", "line 3: the kernel's name is not an identifier"),
        ("along rows threads 32 items 2", "along rooms threads 32 items 2", "line 3: it is not along rows or columns"),
        ("threads 32 items 2", "threads 24 items 2", "line 3: the threads do not share a block"),
        ("threads 32 items 2", "threads 0 items 2", "line 3: the threads do not share a block"),
        ("threads 32 items 2", "threads 128 items 2", "line 3: the threads do not share a block"),
        ("along rows threads 32 items 2", "along columns threads 4 items 2", "line 3: the threads do not share"),
        ("items 2", "items 65", "line 3: more than 64 items"),
        ("items 2", "items -1", "line 3: more than 64 items"),
        ("vector 4", "vector 3", "line 3: the vector is not 1, 2, 4, 8, 16 or 32"),
        ("vector 4", "vector 0", "line 3: the vector is not 1, 2, 4, 8, 16 or 32"),
        ("block 64 index 32", "block 65 index 32", "line 3: the block is not a multiple of 32"),
        ("index 32", "index 31", "line 3: the index is not 32 or 64"),
        ("steps 0 access l", "steps 17 access l", "line 3: more than 16 steps"),
        ("steps 0 access l", "steps 2 access l", "line 3: a kernel in steps that keeps rows"),
        ("access l::ls", "access l:ls", "line 3: there is not one access letter for each tensor and index"),
        ("access l::ls", "access l:l:ls", "line 3: there is not one access letter for each tensor and index"),
        ("access l::ls", "access l::lx", "line 3: an access letter is not one of s l g"),
        ("access l::ls", "access L::ls", "line 3: an access letter is not one of s l b g"),
        ("access l::ls", "access L::Ls tile 2", "line 3: an access letter is not one of s l g"),
        ("access l::ls", "access L::ls tile 9", "line 3: the tile is not from 2 to 8"),
        ("access l::ls", "access L::ls tile 1", "line 3: the tile is not from 2 to 8"),
        ("access l::ls", "access l::bs", "line 3: an access letter is not one of s l g"),
        ("access l::ls", "access l::gs", "line 3: access g with a vector"),
        ("index 64", "index 32", "line 4: the last kernel does not take tensors of every shape"),
        ("access g::gs", "access l::gs", "line 4: the last kernel does not take tensors of every shape"),
        (" access l::ls", "", "line 3: expected 'kernel <name> along"),
    ],
)
def test_hostile_recipes_are_refused(old: str, new: str, problem: str, tmp_path: Path) -> None:
    kernels = [nest_kernel("k", "l::ls", items=2, vector=4), ANY]
    text = recipe(kernels)
    assert old in text
    model = stub_model(SUM, [("n", "m")], kernels, cuda_recipe=text.replace(old, new, 1))
    with pytest.raises(Exception, match=problem) as caught:
        StandIn(tmp_path).session(model)
    assert NODE in str(caught.value) and "the cuda_recipe attribute is not valid" in str(caught.value)


@pytest.mark.parametrize(
    ("along", "access", "tile"), [("columns threads 2", "gg::gs", ""), ("rows threads 32", "GG::gs", " tile 2")]
)
def test_recipes_in_which_rows_would_share_a_number_are_refused(
    along: str, access: str, tile: str, tmp_path: Path
) -> None:
    program = SUM.replace("2\ninput", "3\ninput i64 broadcast\ninput").replace("broadcast\nreduce", "row 0\nreduce")
    program = program.replace("f32 0 -1\nadd f32 0 1\noutput 2\noutput 1", "f32 1 -1\nadd f32 1 2\noutput 3\noutput 2")
    text = recipe([nest_kernel("k", "gg::gs"), nest_kernel("any", "gg::gs", index=64)])
    wrong = text.replace("rows threads 32", along, 1).replace("gg::gs", access + tile, 1)
    with pytest.raises(Exception, match="line 3: rows are named of a tile or along columns"):
        StandIn(tmp_path).session(reduction_model(program, [("n", 1), ("v", "m")], cuda_recipe=wrong))


def test_kernels_of_other_parameters_are_refused(tmp_path: Path) -> None:
    kernels = [nest_kernel("k", "l::ls"), ANY]
    text = recipe([nest_kernel("k", "l::ls", index=64), ANY])
    with pytest.raises(Exception, match="k"):
        StandIn(tmp_path).session(stub_model(SUM, [("n", "m")], kernels, cuda_recipe=text))


def test_programs_that_read_halves_have_no_kernels(tmp_path: Path) -> None:
    program = SUM.replace("broadcast", "halves")
    with pytest.raises(Exception, match="reads no halves in another order"):
        StandIn(tmp_path).session(stub_model(program, [("n", "m")], [ANY]))


def test_shapes_that_do_not_fit_fail(tmp_path: Path) -> None:
    program = SUM.replace("reduce", "input f32 broadcast\nreduce").replace("add f32 0 1", "add f32 2 1")
    program = program.replace("output 2\noutput 1", "output 3\noutput 2")
    kernels = [nest_kernel("any", "gg::gs", index=64)]
    session = StandIn(tmp_path).session(stub_model(program, [("n", "m"), ("o", "p")], kernels))
    for shapes in ([(2, 1), (2, 4)], [(2, 3), (2, 4)]):
        with pytest.raises(Exception, match="shape"):
            run(session, [np.zeros(shape, np.float32) for shape in shapes])


def test_numbers_of_a_launch(tmp_path: Path) -> None:
    """Byte for byte, of a row of 6 out of 10, through a view."""
    program = "onnxfuse 2\ninput f32 view slice:-1:2:8:1\nreduce_sum f32 0 -1\noutput 1\n"
    stand_in = StandIn(tmp_path, [(9, 0, MULTIPROCESSORS)])
    kernels = [nest_kernel("k", "l::s", threads=8), nest_kernel("any", "g::s", index=64)]
    session = stand_in.session(stub_model(program, [("n", "m")], kernels))
    run(session, [np.zeros((5, 10), np.float32)])
    (call,) = stand_in.launches()
    parameters = bytes.fromhex(call["parameters"])[8 * 2 :]
    by_6, by_5, by_1 = (6, 0x55555556, 3), (5, 0x9999999A, 3), (1, 1, 0)
    space = [1, 2, *by_6, *by_5, *by_1 * 14]
    steps = [2, 1, 10, *[0] * 14], [0, 0, 1, *[0] * 14]
    numbers = [5, 6, 1, 6, *space, *steps[0], *steps[1]]
    assert parameters == struct.pack(f"<Q{len(numbers)}I", 0, *numbers)
    assert (call["kernel"], call["grid"], call["block"]) == ("k", 1, 64)


def test_the_compiler_lays_parameters_out_as_the_launcher() -> None:
    try:
        nvrtc = Nvrtc()
    except OnnxfuseError as error:
        pytest.skip(str(error))
    program = integers("i8").program
    source = render_nest(case_of(program, [(8, 40)]))
    compiled = nvrtc.compile(source.text, "sm_90", compile_options(False))
    for kernel in source.kernels:
        for name in kernel.functions:
            assert declared_parameters(compiled.ptx.decode(), name) == places(kernel), kernel
    assert {kernel.index for kernel in source.kernels} == {32, 64}
