"""The rendered text: kernels, names, literals and limits."""

import re

import numpy as np
import pytest

from onnxfuse.cuda.arguments import grid_size, pack, parameter_bytes
from onnxfuse.cuda.elementwise.access import choose, classify
from onnxfuse.cuda.elementwise.renderer import Tuning, render
from onnxfuse.cuda.kernel import Access, Kernel
from onnxfuse.cuda.prelude import FILES, prelude
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Const, Program, ProgramBuilder, ProgramError, reference
from onnxfuse.program.figures import MAX_PARAMETER_BYTES
from tests.cuda.elementwise.programs import SMALL
from tests.cuda.emulation.emulator import Emulation, check_program
from tests.custom_ops.fused import assert_same_bits


def many_inputs(count: int) -> Program:
    builder = ProgramBuilder()
    total, *rest = [builder.input("f32") for _ in range(count)]
    for value in rest:
        total = builder.emit("add", "f32", total, value)
    return builder.build([total])


def chain(dtype: str, length: int, op: str = "add") -> Program:
    builder = ProgramBuilder()
    value = builder.input(dtype)
    for i in range(length):
        value = builder.emit(op, dtype, *([value, builder.const(dtype, i)] if op == "add" else [value]))
    return builder.build([value])


def test_the_kernels_of_an_access() -> None:
    kernels = render(many_inputs(2), [Access.parse("lc:l"), Access.parse("ll:l")]).kernels
    assert [(str(k.access), k.vector, k.index) for k in kernels] == [
        ("lc:l", 4, 32),
        ("lc:l", 1, 32),
        ("ll:l", 4, 32),
        ("ll:l", 1, 32),
        ("gg:l", 1, 32),
        ("gg:w", 1, 64),
    ]
    assert len({kernel.name for kernel in kernels}) == len(kernels)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,200}", kernel.name) for kernel in kernels)


SHAPES = {"lc": ((2, 3), (3, 1)), "li": ((2,), ()), "lo": ((3,), (3, 1))}
"""By access, the sizes of the first operand but for its last, and those of the second: none for that last one alone."""


@pytest.mark.parametrize("letters", SHAPES)
def test_operands_that_repeat_have_smaller_vectors_too(letters: str) -> None:
    builder = ProgramBuilder()
    program = builder.build([builder.emit("add", "f16", builder.input("f16"), builder.input("f16"))])
    kernels = render(program, [Access(letters, "l")]).kernels
    first, second = SHAPES[letters]
    for size, vector in ((16, 8), (12, 4), (7, 1)):
        layout = classify(program, [(*first, size), second or (size,)])
        assert layout.access == Access(letters, "l")
        assert choose(kernels, layout, [0] * 3).vector == vector


def test_names_and_hash_follow_from_what_is_rendered() -> None:
    program, access = many_inputs(2), Access.parse("ll:l")
    first = render(program, [access])
    assert render(program, [access]) == first
    others = [
        render(many_inputs(3), [Access.parse("lll:l")]),
        render(program, [Access.parse("lc:l")]),
        render(program, [access], Tuning(block=128)),
    ]
    assert len({source.sha256 for source in (first, *others)}) == 4
    assert len({source.kernels[-1].name for source in (first, *others)}) == 4
    assert f"{first.text}".startswith(prelude())
    assert f"// {program.instructions[0]}" in first.body


@pytest.mark.parametrize(
    ("dtypes", "vector"),
    [
        (["f32"], 4),
        (["f16", "f16"], 8),
        (["f64"], 2),
        (["u8", "u8"], 16),
        (["f32", "bool"], 4),
        (["f16", "f16", "f16", "f32"], 8),
        (["u8", "u8", "u8", "u8", "u8", "f32"], 8),
        (["u8", "f64"], 2),
    ],
)
def test_vectors_are_16_bytes_of_the_type_with_most_traffic(dtypes: list[str], vector: int) -> None:
    builder = ProgramBuilder()
    values = [builder.cast(builder.input(dtype), dtypes[0]) for dtype in dtypes]
    total = values[0]
    for value in values[1:]:
        total = builder.emit("max", dtypes[0], total, value)
    program = builder.build([total])
    assert render(program, [Access("l" * len(dtypes), "l")]).kernels[0].vector == vector


def test_of_long_programs_a_thread_computes_one_element() -> None:
    assert render(chain("f32", 400, "mish"), [Access("l", "l")]).kernels[0].vector == 1


def test_tuning_is_kept() -> None:
    kernel = render(many_inputs(2), [Access("ll", "l")], Tuning(vector=2, block=512)).kernels[0]
    assert (kernel.vector, kernel.block) == (2, 512)


def test_what_cannot_be_rendered() -> None:
    with pytest.raises(ProgramError, match="does not fit 2 inputs and 1 outputs"):
        render(many_inputs(2), [Access("l", "l")])
    with pytest.raises(ProgramError, match=r"41 operands take \d+ bytes of kernel parameters"):
        render(many_inputs(40), [Access("l" * 40, "l")])
    letters = [Access(a + b, "l") for a in "lsioc" for b in "ls"]
    with pytest.raises(ProgramError, match="22 kernels for 10 access patterns"):
        render(many_inputs(2), letters)
    render(many_inputs(23), [Access("l" * 23, "l")])


@pytest.mark.parametrize("text", ["", "l", "l:", "x:l", "l:g", "l:l:l", ":"])
def test_a_wrong_access_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an access pattern"):
        Access.parse(text)


def test_parameters_are_counted_as_they_are_packed() -> None:
    program = many_inputs(5)
    layout = classify(program, ([2, 3, 4], [3, 1], [4], [2, 1, 1], [2, 1, 4]))
    for kernel in render(program, [Access("lciog", "l")]).kernels:
        packed = pack(kernel, layout, range(6))
        # All lengths are multiples of 4; with 32-bit indices nothing but pointers, which come first, needs more.
        assert parameter_bytes(kernel) == sum(map(len, packed)) <= MAX_PARAMETER_BYTES


def test_the_grid_has_a_thread_a_group() -> None:
    kernel = Kernel("k", 4, 256, 32, Access("l", "l"))
    sizes = (0, 1, 1024, 1025, 1 << 30)
    assert [grid_size(kernel, classify(many_inputs(1), ([size],))) for size in sizes] == [0, 1, 1, 2, 1 << 20]


def test_constants_are_exact() -> None:
    values = {
        "f32": [0.0, -0.0, 0.1, 1e-45, 3.4028235e38, np.inf, -np.inf, np.nan, 16777217],
        "f64": [0.0, -0.0, 0.1, 5e-324, 1.7976931348623157e308, np.inf, -np.inf, np.nan],
        "f16": [-0.0, 0.1, 6e-8, 65504, np.inf, np.nan],
        "bf16": [-0.0, 0.1, 1e-40, np.inf, np.nan],
        "bool": [False, True],
    }
    for dtype in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"):
        limits = np.iinfo(DTYPES[dtype].numpy)
        values[dtype] = [limits.min, limits.max, 0, 1]
    sources, programs = [], []
    for dtype, own in values.items():
        program = Program((*(Const.of(dtype, value) for value in own),), tuple(range(len(own))))
        programs.append(program)
        sources.append(render(program, [Access("", "l" * len(own))], SMALL))
    emulation = Emulation(sources)

    def check(actual: np.ndarray, wanted: np.ndarray, output: int, kernel: str) -> None:
        assert_same_bits(actual, wanted)

    for program, source in zip(programs, sources, strict=True):
        assert check_program(emulation, source, program, [], reference.run(program, []), check)


def test_the_prelude_includes_nothing() -> None:
    assert not re.search(r"^\s*#\s*include", prelude(), re.MULTILINE)
    assert all(f"ONNXFUSE_{name.removesuffix('.cuh').upper()}_CUH_" in prelude() for name in FILES)
