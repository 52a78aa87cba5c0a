"""The Program: text form, validation, builder and NumPy reference."""

import random

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Const, Program, ProgramBuilder, ProgramError, reference
from onnxfuse.program.ops import OPS, Rule

TEXT = """onnxfuse 1
input f32 broadcast
input f32 axis -3
const f32 3f000000
mul f32 0 2
add f32 3 1
less f32 4 2
where f32 5 4 0
output 6
output 5
"""


def test_text_is_read_and_written_back() -> None:
    program = Program.parse(TEXT)
    assert str(program) == TEXT
    assert [program.dtype(value) for value in range(7)] == ["f32"] * 5 + ["bool", "f32"]


def test_a_program_that_contracts_says_so_in_its_second_line() -> None:
    text = TEXT.replace("\n", "\ncontract\n", 1)
    program = Program.parse(text)
    assert program.contracts and not Program.parse(TEXT).contracts
    assert str(program) == text
    assert program.values == Program.parse(TEXT).values
    with pytest.raises(ProgramError, match=r"line 6: .* not an earlier value"):
        Program.parse(text.replace("mul f32 0 2", "mul f32 0 3"))


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ("onnxfuse 1", "onnxfuse 4", "line 1"),
        ("onnxfuse 1", "onnxfuse 1\ncontract\ncontract", "line 3"),
        ("const", "contract\nconst", "line 4"),
        ("output 5\n", "output 5", "not ended"),
        ("output 6\noutput 5\n", "", "no output"),
        ("mul f32 0 2", "mul f32 0 3", "line 5: .* not an earlier value"),
        ("mul f32 0 2", "mul f32 0", "line 5: .* takes 2 operands"),
        ("mul f32 0 2", "mul f64 0 2", "line 5: .* operand 0 is f32, not f64"),
        ("mul f32 0 2", "and f32 0 2", "line 5: .* not defined for f32"),
        ("mul f32 0 2", "mul f32 0 02", "line 5"),
        ("mul f32 0 2", "mul f32 0 -1", "line 5"),
        ("mul f32 0 2", "mul f32 0 \uff12", "line 5"),
        ("mul f32 0 2", "mul  f32 0 2", "line 5"),
        ("mul f32 0 2", "frobnicate f32 0 2", "line 5"),
        ("mul f32 0 2", "input f32 broadcast", "line 5: .* inputs come first"),
        ("const f32 3f000000", "const f32 3f00000", "line 4"),
        ("const f32 3f000000", "const f32 3F000000", "line 4"),
        ("const f32 3f000000", "const q8 3f000000", "line 4"),
        ("const f32 3f000000", "const bool 02", "line 4"),
        ("input f32 axis -3", "input f32 axis 1000", "line 3: .* axis"),
        ("input f32 axis -3", "input f32 axis +3", "line 3"),
        ("input f32 axis -3", "input f128 broadcast", "line 3: .* unknown type"),
        ("output 6", "output 60", "output 60"),
        ("output 6", "output 6 6", "line 9"),
        ("where f32 5 4 0", "output 5\nwhere f32 5 4 0", "outputs come last"),
    ],
)
def test_a_wrong_text_is_refused_by_line(wrong: str, right: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        Program.parse(TEXT.replace(wrong, right, 1))


def test_limits_are_enforced() -> None:
    with pytest.raises(ProgramError, match="129 inputs"):
        Program.parse("onnxfuse 1\n" + "input f32 broadcast\n" * 129 + "output 0\n")
    with pytest.raises(ProgramError, match="65 outputs"):
        Program.parse("onnxfuse 1\ninput f32 broadcast\n" + "output 0\n" * 65)
    with pytest.raises(ProgramError, match="values"):
        Program.parse("onnxfuse 1\ninput f32 broadcast\n" + "neg f32 0\n" * 4096 + "output 0\n")


@given(st.integers(0, 2**32 - 1))
def test_damaged_texts_are_refused_or_still_valid(seed: int) -> None:
    generator = random.Random(seed)
    text = list(TEXT)
    for _ in range(generator.randint(1, 4)):
        text[generator.randrange(len(text))] = generator.choice("0123456789abf \n-inputadd")
    try:
        program = Program.parse("".join(text))
    except ProgramError:
        return
    assert Program.parse(str(program)) == program


def test_builder_shares_equal_values_and_drops_unused_ones() -> None:
    builder = ProgramBuilder()
    x = builder.input("f32")
    first = builder.emit("mul", "f32", x, builder.const("f32", 0.5))
    second = builder.emit("mul", "f32", x, builder.const("f32", 0.5))
    builder.emit("exp", "f32", x)
    late = builder.input("f32", -1)
    total = builder.emit("add", "f32", second, late)
    program = builder.build([total, first])
    assert first == second
    assert str(program) == (
        "onnxfuse 1\ninput f32 broadcast\ninput f32 axis -1\nconst f32 3f000000\n"
        "mul f32 0 2\nadd f32 3 1\noutput 4\noutput 3\n"
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_constants_keep_their_value(dtype: str) -> None:
    for value in (0, 1, 3):
        const = Const.of(dtype, value)
        assert const.value.dtype == DTYPES[dtype].numpy
        assert const.value == np.asarray(value).astype(DTYPES[dtype].numpy)
        assert Program.parse(f"onnxfuse 1\n{const}\noutput 0\n").values[0] == const


def test_constants_out_of_range_become_infinite() -> None:
    assert Const.of("f16", 1e6).value == np.inf
    assert Const.of("bf16", -np.inf).value == -np.inf


def test_every_operator_has_a_reference() -> None:
    for op in OPS.values():
        for dtype in op.types:
            types = {
                Rule.SELECT: ("bool", dtype, dtype),
                Rule.CAST: ("f32",),
            }.get(op.rule, (dtype,) * op.arity)
            arrays = [np.array([0, 1, 1, 0]).astype(DTYPES[kind].numpy) for kind in types]
            builder = ProgramBuilder()
            operands = [builder.input(kind) for kind in types]
            (result,) = reference.run(builder.build([builder.emit(op.name, dtype, *operands)]), arrays)
            assert result.shape == (4,)
            assert result.dtype == DTYPES["bool" if op.rule is Rule.COMPARE else dtype].numpy


def test_vectors_lie_along_their_axis() -> None:
    program = Program.parse("onnxfuse 1\ninput f32 broadcast\ninput f32 axis 1\nadd f32 0 1\noutput 2\n")
    x = np.zeros((2, 3, 4), np.float32)
    (result,) = reference.run(program, [x, np.arange(3, dtype=np.float32)])
    assert np.array_equal(result, np.broadcast_to(np.arange(3)[:, None], (2, 3, 4)))


def test_half_precision_is_rounded_once() -> None:
    builder = ProgramBuilder()
    x, y = builder.input("bf16"), builder.input("bf16")
    program = builder.build([builder.emit("sub", "bf16", builder.emit("add", "bf16", x, y), x)])
    big, small = (np.array([value], ml_dtypes.bfloat16) for value in (256.0, 0.5))
    (result,) = reference.run(program, [big, small])
    assert result[0] == 0.5  # rounding the sum to bfloat16 would have lost it


def test_fast_math_contracts() -> None:
    builders = [ProgramBuilder(fast_math) for fast_math in (False, True)]
    assert [builder.build([builder.input("f32")]).contracts for builder in builders] == [False, True]


def test_fast_math_adds_what_is_subtracted() -> None:
    """So that a product before it is rounded with the difference."""
    builder = ProgramBuilder(fast_math=True)
    x, n = builder.input("f32"), builder.input("i32")
    less = builder.emit("sub", "f32", builder.emit("mul", "f32", x, x), builder.const("f32", 1))
    from_one = builder.emit("sub", "f32", builder.const("f32", 1), x)
    exact = builder.emit("sub", "i32", n, builder.const("i32", 6))
    program = builder.build([less, from_one, exact])
    assert [instruction.op for instruction in program.instructions] == ["mul", "add", "sub", "sub"]
    results = reference.run(program, [np.float32([3.0]), np.int32([13])])
    assert [float(result[0]) for result in results] == [8, -2, 7]


@pytest.mark.parametrize(
    ("dtype", "divisor"),
    [("f32", 0), ("f32", np.inf), ("f32", np.nan), ("f32", 1e-39), ("f32", 2e38), ("f16", 3), ("bf16", 3)],
)
def test_fast_math_divides_where_the_reciprocal_is_no_normal_number(dtype: str, divisor: float) -> None:
    builder = ProgramBuilder(fast_math=True)
    quotient = builder.emit("div", dtype, builder.input(dtype), builder.const(dtype, divisor))
    assert [instruction.op for instruction in builder.build([quotient]).instructions] == ["div"]


def test_fast_math_multiplies_by_the_reciprocal() -> None:
    builder = ProgramBuilder(fast_math=True)
    x, n = builder.input("f32"), builder.input("i32")
    fast = builder.emit("div", "f32", x, builder.const("f32", 6))
    exact = builder.emit("div", "i32", n, builder.const("i32", 6))
    program = builder.build([fast, exact])
    assert [str(instruction).split()[0] for instruction in program.instructions] == ["mul", "div"]
    (result, _) = reference.run(program, [np.float32([3.0]), np.int32([13])])
    np.testing.assert_allclose(result, [0.5], 1e-6)


NIBBLES = "onnxfuse 3\ninput u8 view nibbles:-1,slice:-1:0:3:1\nreduce_max u8 0 -1\noutput 1\n"


def test_halves_of_bytes_are_elements() -> None:
    """The low half first; none is of what is no byte, or no tensor."""
    program = Program.parse(NIBBLES)
    assert str(program) == NIBBLES and program.inputs[0].bits == 4
    (result,) = reference.run(program, [np.array([[0x21, 0x43], [0x9A, 0xF0]], np.uint8)])
    np.testing.assert_array_equal(result, [[3], [10]])
    for wrong, right in (
        ("onnxfuse 3", "onnxfuse 2"),
        ("input u8", "input i8"),
        ("nibbles:-1,", "slice:-1:0:2:1,nibbles:-1,"),
        ("nibbles:-1", "nibbles:-2"),
        ("output 1", "output 1 view nibbles:-1"),
    ):
        with pytest.raises(ProgramError):
            Program.parse(NIBBLES.replace(wrong, right))
