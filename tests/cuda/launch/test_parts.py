"""What the library launches of Programs in several parts: the launches that ``onnxfuse.cuda`` foretells, byte for byte.

The kernels behind the stand-in driver do nothing; test_parts.py runs the rendered ones on the same parameters.
"""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.arguments import grid_size, joint_places, pack, pack_joint, parameter_places
from onnxfuse.cuda.elementwise.access import choose
from onnxfuse.cuda.elementwise.fitting import Fitter
from onnxfuse.cuda.elementwise.parts import choose_joint, classify_parts
from onnxfuse.cuda.elementwise.renderer import compile_options
from onnxfuse.cuda.parts_recipe import PartsRecipe
from onnxfuse.cuda.tuned import TunedKernels
from onnxfuse.program import Program
from tests.cuda.compilers import nvrtc
from tests.cuda.elementwise.test_end_to_end import declared_parameters
from tests.cuda.elementwise.test_parts import CASES, Case, Shapes, arrays_of, fitted
from tests.cuda.stand_in import AVAILABLE, NATIVE, REASON, Call, StandIn, compile_shared, cubin, scratch_folder
from tests.custom_ops.fused import fused_model, run

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)


def places_of(name: str) -> dict[str, list[tuple[int, int]]]:
    """For each kernel of a case where its parameters are."""
    _, source = fitted(name)
    found = {kernel.name: parameter_places(kernel) for kernel in source.kernels}
    return found | {one.name: joint_places([source.kernels[member] for member in one.members]) for one in source.joint}


@cache
def shared_object() -> Path:
    """Functions that take the places of all kernels and do nothing."""
    lines = ["#include <cstddef>", '#include "tests/cuda/emulated_launch.h"']
    for kernel, places in {key: value for name in CASES for key, value in places_of(name).items()}.items():
        numbers = ", ".join(f"{offset}, {size}" for offset, size in [*places, (0, 0)])
        lines.append(f'extern "C" {{ extern const size_t {kernel}_parameters[] = {{{numbers}}}; }}')
        lines.append(f'extern "C" const char* {kernel}_emulated(const EmulatedLaunch*) {{ return nullptr; }}')
    source = scratch_folder() / "parts.cc"
    source.write_text("\n".join(lines), encoding="utf-8")
    return compile_shared(source.with_suffix(".so"), f"-I{NATIVE}", str(source))


def session_of(case: Case, recipe: str, stand_in: StandIn) -> object:
    ranks = [{len(shapes[place]) for shapes in case.shapes} for place in range(len(case.program.inputs))]
    known = all(len(own) == 1 for own in ranks)
    model = fused_model(
        case.text, [[f"d{i}_{d}" for d in range(min(own))] if known else None for i, own in enumerate(ranks)]
    )
    for name, value in {"cuda_recipe": recipe.encode(), "cuda_sm_90": cubin(shared_object(), 90)}.items():
        model.graph.node[0].attribute.append(helper.make_attribute(name, value))
    return stand_in.session(model)


def check(calls: list[Call], name: str, shapes: Shapes) -> bool:
    """Whether all parts were launched at once; that they were as they should be."""
    case, (parts, source) = CASES[name], fitted(name)
    layouts = classify_parts(case.program, parts, shapes)
    if not any(layout.count for layout in layouts):
        assert not calls
        return False
    by_name = {one.name: one for one in source.joint}
    if calls[0]["kernel"] in by_name:
        (call,) = calls
        joint = by_name[call["kernel"]]
        members = [source.kernels[member] for member in joint.members]
        parameters = bytes.fromhex(call["parameters"])
        places = joint_places(members)
        own, at = [], len(members)
        for member, layout in zip(members, layouts, strict=True):
            pointers = places[at : at + len(layout.operands)]
            first = [int.from_bytes(parameters[offset : offset + size], "little") for offset, size in pointers]
            own.append([where - operand.first(0) for where, operand in zip(first, layout.operands, strict=True)])
            at += len(parameter_places(member))
        if all(layout.count for layout in layouts):
            arguments, blocks = pack_joint(members, layouts, own)
            assert [parameters[offset : offset + size] for offset, size in places] == arguments
            assert (call["grid"], call["block"]) == (blocks, members[0].block)
            assert choose_joint(source, layouts, own) == joint
        return True
    wanted = [(part, layout) for part, layout in zip(source.parts, layouts, strict=True) if layout.count]
    for call, (part, layout) in zip(calls, wanted, strict=True):
        parameters = bytes.fromhex(call["parameters"])
        first = [int.from_bytes(parameters[8 * k : 8 * k + 8], "little") for k in range(len(layout.operands))]
        addresses = [where - operand.first(0) for where, operand in zip(first, layout.operands, strict=True)]
        kernel = choose(source.kernels[part.first : part.end], layout, addresses)
        assert call["kernel"] == kernel.name
        assert call["grid"] == grid_size(kernel, layout)
        places = parameter_places(kernel)
        assert [parameters[offset : offset + size] for offset, size in places] == pack(kernel, layout, addresses)
    return False


@pytest.mark.parametrize("name", CASES)
def test_the_launches_are_those_foretold(name: str, tmp_path: Path) -> None:
    case, (_, source) = CASES[name], fitted(name)
    stand_in = StandIn(tmp_path, [(9, 0, 3)])
    session = session_of(case, str(PartsRecipe.of(source)), stand_in)
    stand_in.use_stream(0)
    at_once = []
    for shapes in case.shapes:
        stand_in.launches()
        run(session, arrays_of(case.program, shapes))
        at_once.append(check(stand_in.launches(), name, shapes))
    assert any(at_once)


def test_without_a_joint_kernel_each_part_is_launched(tmp_path: Path) -> None:
    name = "two activations"
    case, (_, source) = CASES[name], fitted(name)
    recipe = re.sub(r"joint .*\n", "", str(PartsRecipe.of(source)))
    stand_in = StandIn(tmp_path, [(9, 0, 3)])
    session = session_of(case, recipe, stand_in)
    stand_in.launches()
    run(session, arrays_of(case.program, case.shapes[0]))
    calls = stand_in.launches()
    assert len(calls) == 2
    assert not check(calls, name, case.shapes[0])


RECIPE = str(PartsRecipe.of(fitted("two activations")[1]))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("part 1\n", "part 0\n", "not an output of the program, or one of another part"),
        ("part 1\n", "part 2\n", "not an output of the program"),
        ("part 1\n", "part 1,\n", "not an output of the program"),
        ("part 1\n", "", "more than|does not take|there is not|in no part"),
        ("part 0\n", "part 0,1\n", "a part of a tensor beside another output"),
        ("part 0\n", "", "a kernel of no part"),
        ("_joint0 0 ", "_joint0 1 1 ", "one kernel of each part"),
        ("_joint0 0 ", "_joint0 9999 ", "one kernel of each part"),
        ("_joint0 0 ", "_joint0 -1 ", "one kernel of each part"),
        ("joint fused", "joint 9fused", "not an identifier"),
        ("access g:p", "access g:w", "does not take tensors of every shape"),
        ("access l:p", "access lg:p", "one access letter a tensor"),
        ("block 256", "block 128", "blocks are of different sizes"),
        ("onnxfuse-cuda 3", "onnxfuse-cuda 4", "without parts|first line"),
        ("\njoint", "\npart 1\njoint", "not an output"),
    ],
)
def test_a_recipe_that_is_not_valid(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in RECIPE
    stand_in = StandIn(tmp_path, [(9, 0, 3)])
    with pytest.raises(Exception, match=f"cuda_recipe attribute is not valid.*({message})"):
        session_of(CASES["two activations"], RECIPE.replace(old, new, 1), stand_in)


def test_the_compiler_lays_parameters_out_as_the_launcher() -> None:
    compiler = nvrtc()
    for name in ("copies, views and a map", "transposed", "maps of different shapes"):
        _, source = fitted(name)
        compiled = compiler.compile(source.text, "sm_90", compile_options(False))
        for kernel, places in places_of(name).items():
            assert declared_parameters(compiled.ptx.decode(), kernel) == places, kernel


@cache
def compiled_ahead() -> str:
    """One source of the cases that differ most, and of the same with elements of two bytes."""
    fitter = Fitter(None, ("sm_90",), False, TunedKernels(()))
    sources = []
    for name in ("maps of different shapes", "two activations", "along the first axis", "transposed"):
        case = CASES[name]
        for text in (case.text, case.text.replace("f32", "f16")):
            sources.append(fitter.fit(Program.parse(text), case.expected or case.shapes[0]).source)
    assert all(source.joint for source in sources)
    return "\n".join({source.sha256: source.text for source in sources}.values())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("architecture", COMMON)
def test_no_kernel_of_parts_spills(architecture: str) -> None:
    compiled = nvrtc().compile(compiled_ahead(), architecture, (*compile_options(False), "--ptxas-options=-v"))
    assert sum("joint" in name for name in compiled.resources) >= 8
    assert {name: one for name, one in compiled.resources.items() if (one.spills, one.stack) != (0, 0)} == {}


def test_shapes_that_do_not_fit(tmp_path: Path) -> None:
    case, (_, source) = CASES["two activations"], fitted("two activations")
    stand_in = StandIn(tmp_path, [(9, 0, 3)])
    session = session_of(case, str(PartsRecipe.of(source)), stand_in)
    with pytest.raises(Exception, match="does not lie along axis -2"):
        run(session, [np.zeros((2, 3, 8), np.float32), np.zeros((2, 4, 9), np.float32)])
