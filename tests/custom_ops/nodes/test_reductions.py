"""Programs that reduce, in one node, against the reference and ONNX Runtime's own nodes."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program, reference
from onnxfuse.program.ops import REDUCTIONS
from tests.custom_ops.fused import NODE_NAME, NUMPY_TYPES, make_model, new_session, run, sample, session_options

NODE = f"onnxfuse::FusedReduction node '{NODE_NAME}': "
Sizes = Sequence[int]

SOFTMAX = """onnxfuse 2
input f32 broadcast
reduce_max f32 0 {axes}
sub f32 0 1
exp f32 2
reduce_sum f32 3 {axes}
div f32 3 4
output 5
"""

LOG_SOFTMAX = """onnxfuse 2
input f32 broadcast
const f32 3f000000
mul f32 0 1
reduce_max f32 2 {axes}
sub f32 2 3
exp f32 4
reduce_sum f32 5 {axes}
log f32 6
sub f32 4 7
output 8
"""

MASKED_SOFTMAX = """onnxfuse 2
input f32 broadcast
input f32 broadcast
const f32 3e000000
mul f32 0 2
add f32 3 1
reduce_max f32 4 {axes}
sub f32 4 5
exp f32 6
reduce_sum f32 7 {axes}
div f32 7 8
output 9
"""

# x - mean, then the mean of its squares.
LAYER_NORM = """onnxfuse 2
input f32 broadcast
input f32 broadcast
input f32 broadcast
input f32 broadcast
const f32 3727c5ac
add f32 0 1
reduce_mean f32 5 {axes}
sub f32 5 6
mul f32 7 7
reduce_mean f32 8 {axes}
add f32 9 4
sqrt f32 10
div f32 7 11
mul f32 12 2
add f32 13 3
gelu f32 14
output 15
output 5
output 6
"""

# The mean of squares less the square of the mean, in one pass.
MOMENTS = """onnxfuse 2
input f32 broadcast
const f32 3727c5ac
reduce_mean f32 0 {axes}
mul f32 0 0
reduce_mean f32 3 {axes}
mul f32 2 2
sub f32 4 5
add f32 6 1
sqrt f32 7
sub f32 0 2
div f32 9 8
output 10
output 8
"""

L2_NORM = """onnxfuse 2
input f32 broadcast
const f32 2b8cbccc
mul f32 0 0
reduce_sum f32 2 {axes}
sqrt f32 3
max f32 4 1
div f32 0 5
output 6
"""

DEVIATION = """onnxfuse 2
input f32 broadcast
reduce_mean f32 0 {axes}
sub f32 0 1
mul f32 2 2
reduce_mean f32 3 {axes}
sqrt f32 4
output 5
"""

MEAN_OF_SILU = """onnxfuse 2
input f32 broadcast
sigmoid f32 0
mul f32 0 1
reduce_mean f32 2 {axes}
output 3
"""

L1_AND_LARGEST = """onnxfuse 2
input f32 broadcast
abs f32 0
reduce_sum f32 1 {axes}
reduce_max f32 1 {axes}
output 2
output 3
"""

# The first place of the greatest element, as ArgMax has it.
ARG_MAX = """onnxfuse 2
input f32 broadcast
const i64 7fffffffffffffff
reduce_max f32 0 -1
equal f32 0 2
index i64 0 -1
where i64 3 4 1
reduce_min i64 5 -1
output 6 view squeeze:-1
"""

PROGRAMS = {
    "softmax": SOFTMAX,
    "log softmax": LOG_SOFTMAX,
    "moments": MOMENTS,
    "l2 norm": L2_NORM,
    "deviation": DEVIATION,
    "mean of silu": MEAN_OF_SILU,
    "l1 and largest": L1_AND_LARGEST,
}

# Shapes and the axes that are reduced.
SHAPES: dict[str, tuple[Sizes, str]] = {
    "rows": ((30, 70), "-1"),
    "short rows": ((1000, 8), "-1"),
    "rows of whole vectors": ((330, 96), "-1"),
    "long rows": ((3, 20000), "-1"),
    "a vector": ((77,), "-1"),
    "one long row": ((1, 300000), "-1"),
    "rows of two axes": ((5, 9, 6, 11), "-2,-1"),
    "all axes": ((4, 5, 6), "-3,-2,-1"),
    "columns": ((50, 300), "-2"),
    "columns of planes": ((3, 37, 1111), "-2"),
    "few columns": ((5000, 7), "-2"),
    "many columns": ((9, 7000), "-2"),
    "a middle axis": ((3, 40, 33), "-2"),
    "a middle axis of long rows": ((3, 40, 1000), "-2"),
    "two axes in the middle": ((3, 4, 5, 77), "-3,-2"),
    "batch and pixels": ((6, 10, 50), "-3,-1"),
    "batch and short rows": ((60, 10, 3), "-3,-1"),
    "every other axis": ((3, 4, 5, 6, 7), "-5,-3,-1"),
    "every other axis but the last": ((3, 4, 5, 6, 7), "-4,-2"),
    "an axis of one element": ((20, 1, 30), "-2"),
    "rows of one element": ((20, 1), "-1"),
    "an axis of one element beside others": ((20, 1, 30), "-2,-1"),
    "no row": ((0, 5), "-1"),
    "rank 16": ((2, 1, 3, 1, 1, 1, 2, 1, 1, 1, 1, 1, 3, 1, 2, 5), "-12,-4,-1"),
}


def node_model(program: str, shapes: Sequence[Sequence[int | str] | None]) -> onnx.ModelProto:
    """A model of one node on graph inputs x0, x1, … with graph outputs y0, y1, …"""
    parsed = Program.parse(program)
    inputs = {f"x{i}": (spec.dtype, shape) for i, (spec, shape) in enumerate(zip(parsed.inputs, shapes, strict=True))}
    outputs: dict[str, tuple[str, Sequence[int | str] | None]] = {
        f"y{i}": (parsed.dtype(value), None) for i, value in enumerate(parsed.outputs)
    }
    node = helper.make_node(
        "FusedReduction", list(inputs), list(outputs), domain="onnxfuse", name=NODE_NAME, program=program
    )
    return make_model([node], inputs, outputs)


def run_reduction(program: str, arrays: Sequence[np.ndarray], threads: int = 2) -> list[np.ndarray]:
    model = node_model(program, [array.shape for array in arrays])
    return run(new_session(model, session_options(threads)), arrays)


def assert_close(actual: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    assert actual.dtype == wanted.dtype
    assert actual.shape == wanted.shape
    if actual.dtype.kind in "iub":
        np.testing.assert_array_equal(actual, wanted)
        return
    a, b = actual.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def check(program: str, arrays: Sequence[np.ndarray], tolerance: float, threads: Sequence[int] = (1, 2)) -> None:
    """The results are the reference's up to rounding, and the same bits whatever the threads."""
    wanted = reference.run(Program.parse(program), arrays)
    results = [run_reduction(program, arrays, count) for count in threads]
    for actual, expected in zip(results[0], wanted, strict=True):
        assert_close(actual, expected, tolerance)
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


def normal(shape: Sizes, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, shape: str) -> None:
    sizes, axes = SHAPES[shape]
    check(PROGRAMS[name].format(axes=axes), [normal(sizes)], 1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_normalizations_with_what_is_around_them(shape: str) -> None:
    sizes, axes = SHAPES[shape]
    scale = [size if -(len(sizes) - place) in map(int, axes.split(",")) else 1 for place, size in enumerate(sizes)]
    arrays = [normal(sizes), normal(sizes, 1), normal(scale, 2), normal(scale, 3)]
    check(LAYER_NORM.format(axes=axes), arrays, 3e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_with_a_mask(shape: str) -> None:
    sizes, axes = SHAPES[shape]
    mask = normal([1 if place == 0 and len(sizes) > 1 else size for place, size in enumerate(sizes)], 1)
    check(MASKED_SOFTMAX.format(axes=axes), [normal(sizes), mask], 1e-5)


# What a chain makes of rows, as it is or mapped, is reduced; and read again if the phase behind it needs it.
OF_A_CHAIN = """onnxfuse 2
input f32 broadcast
input f32 broadcast
const f32 3f000000
mul f32 0 2
add f32 3 1
{mapped}
{name} f32 5 -1
{last}output 6
"""
READ_AGAIN = "max f32 4 6\noutput 7\n"


@pytest.mark.parametrize("mapped", ["abs f32 4", "mul f32 4 4", "neg f32 4"])
@pytest.mark.parametrize("name", [name for name, reduction in REDUCTIONS.items() if "f32" in reduction.types])
def test_what_a_chain_makes_is_reduced(name: str, mapped: str) -> None:
    """Of rows that end in a block of vectors, in one, or in the third of their parts.

    An operand is of one row, of several or of all.
    """
    once, again = (OF_A_CHAIN.format(name=name, mapped=mapped, last=last) for last in ("", READ_AGAIN))
    for size in (128, 129, 207, 333, 1000, 8300):
        for sizes in ((2, 1, 1, size), (2, 3, 5, 1), (1, 3, 5, size), (2, 3, 5, size)):
            x, other = normal((2, 3, 5, size)), normal(sizes, 1)
            if name == "reduce_prod":
                x, other = 2 + x / 64, other / 64
            check(once, [x, other], 1e-4, (1,))
            check(again, [x, other], 1e-4, (1,))


@pytest.mark.parametrize("program", [SOFTMAX, LOG_SOFTMAX, MASKED_SOFTMAX])
@pytest.mark.parametrize("size", [128, 200, 5000, 70000])
def test_rows_with_numbers_that_are_none(program: str, size: int) -> None:
    x = normal((9, size))
    for row, values in enumerate([(np.nan,), (np.inf,), (-np.inf,), (np.inf, -np.inf), (np.nan, np.inf)]):
        x[row, [7 * row + 3 + 40 * place for place in range(len(values))]] = values
    x[5] = -np.inf
    x[6] = np.inf
    x[7] *= np.float32(1e-39)
    x[8, -1] = np.nan
    with np.errstate(all="ignore"):
        check(program.format(axes="-1"), [x, np.zeros((1, size), np.float32)][: program.count("input")], 1e-5, (1,))


def cases_of_types() -> list[tuple[str, str]]:
    return [
        (name, dtype)
        for name, reduction in REDUCTIONS.items()
        for dtype in DTYPES
        if DTYPES[dtype].compute in reduction.types
    ]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "dtype"), cases_of_types())
def test_reductions_of_every_type(name: str, dtype: str, shape: str) -> None:
    sizes, axes = SHAPES[shape]
    program = f"onnxfuse 2\ninput {dtype} broadcast\n{name} {dtype} 0 {axes}\noutput 1\n"
    array = sample(dtype, int(np.prod(sizes)), special=False).reshape(sizes)
    if name == "reduce_prod":
        array = np.clip(np.abs(array.astype(np.float64)) / 8 + 0.5, 0.9, 1.1).astype(array.dtype)
        array = (
            array if np.dtype(NUMPY_TYPES[dtype]).kind not in "iu" else np.where(array == 0, 1, -1).astype(array.dtype)
        )
    tolerance = {"f32": 2e-4, "f64": 1e-11, "f16": 2e-3, "bf16": 2e-2}.get(dtype, 0)
    check(program, [array], tolerance if name == "reduce_prod" else max(tolerance / 2, 0), (1,))


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axes", ["-1", "-2", "-2,-1"])
def test_numbers_that_are_none(name: str, dtype: str, axes: str) -> None:
    program = f"onnxfuse 2\ninput {dtype} broadcast\n{name} {dtype} 0 {axes}\noutput 1\n"
    array = np.ones((12, 37), NUMPY_TYPES[dtype])
    for row, value in enumerate((np.nan, np.inf, -np.inf, 0.0, -0.0)):
        array[row, 7 * row + 3] = value
    array[6, 4], array[6, 20] = np.inf, -np.inf
    array[7, 36] = np.nan
    array[8, :] = -np.inf
    check(program, [array], 1e-2, (1,))


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["f32", "i32"])
@pytest.mark.parametrize(("shape", "axes"), [((3, 0), "-1"), ((0, 3), "-2"), ((2, 0, 3), "-2"), ((0, 0), "-2,-1")])
def test_nothing_reduced_is_the_identity(name: str, dtype: str, shape: Sizes, axes: str) -> None:
    if DTYPES[dtype].compute not in REDUCTIONS[name].types:
        pytest.skip("the reduction has no such type")
    program = f"onnxfuse 2\ninput {dtype} broadcast\n{name} {dtype} 0 {axes}\noutput 1\n"
    with np.errstate(all="ignore"):
        check(program, [np.zeros(shape, NUMPY_TYPES[dtype])], 0, (1,))


@pytest.mark.parametrize("size", [*range(1, 71), *range(128, 146), 191, 193, 255])
def test_rows_that_end_anywhere_in_a_vector(size: int) -> None:
    rows = 1 + size * 7 % 50
    check(SOFTMAX.format(axes="-1"), [normal((rows, size))], 1e-5, (1,))
    check(L1_AND_LARGEST.format(axes="-1"), [normal((rows, size))], 1e-5, (1,))
    check(DEVIATION.format(axes="-2"), [normal((rows + 1, size))], 1e-5, (1,))


@pytest.mark.parametrize("shape", [(4400, 752), (2200, 1501), (800, 4099)])
def test_rows_of_more_than_the_caches_hold(shape: Sizes) -> None:
    check(MASKED_SOFTMAX.format(axes="-1"), [normal(shape), normal(shape[1:], 1)], 1e-5)
    check(LOG_SOFTMAX.format(axes="-1"), [normal(shape)], 1e-5)


def test_one_row_of_millions() -> None:
    for program in (L2_NORM, SOFTMAX, DEVIATION):
        check(program.format(axes="-1"), [normal((1, 3_000_001))], 1e-5)


@pytest.mark.parametrize("shape", [(3, 41), (40, 1), (1, 1), (200, 300), (2, 40000)])
def test_the_place_of_the_greatest(shape: Sizes) -> None:
    check(ARG_MAX, [np.round(normal(shape) * 4)], 0)


GROUP_NORM = """onnxfuse 2
input f32 view {split}
input f32 view split:-1:{groups}:-1,unsqueeze:-1,unsqueeze:-1
input f32 view split:-1:{groups}:-1,unsqueeze:-1,unsqueeze:-1
const f32 3727c5ac
reduce_mean f32 0 -3,-2,-1
sub f32 0 4
mul f32 5 5
reduce_mean f32 6 -3,-2,-1
add f32 7 3
sqrt f32 8
div f32 5 9
mul f32 10 1
add f32 11 2
sigmoid f32 12
mul f32 12 13
output 14 view merge:-4
"""


@pytest.mark.parametrize("shape", [(2, 32, 9, 7), (1, 8, 1, 1), (3, 8, 40, 50), (0, 8, 2, 2)])
def test_groups_of_channels(shape: Sizes) -> None:
    channels = shape[1]
    arrays = [normal(shape), normal((channels,), 1), normal((channels,), 2)]
    check(GROUP_NORM.format(split="split:-3:4:-1", groups=4), arrays, 2e-5)


def test_rows_of_a_transposed_tensor() -> None:
    program = SOFTMAX.format(axes="-1").replace("broadcast", "view permute:0.2.1")
    check(program, [normal((3, 40, 50))], 1e-5)


def test_a_part_of_a_tensor() -> None:
    program = SOFTMAX.format(axes="-1").replace("broadcast", "view slice:-1:3:40:1,slice:-2:0:9:2")
    check(program, [normal((5, 12, 50))], 1e-5)


def test_values_that_repeat_beside_the_rows() -> None:
    """What is reduced has one row, and what it meets has many."""
    program = """onnxfuse 2
input f32 broadcast
input f32 broadcast
exp f32 0
reduce_sum f32 2 -1
div f32 2 3
mul f32 4 1
reduce_max f32 5 -1
output 4
output 5
output 6
output 3
"""
    check(program, [normal((1, 60)), normal((50, 60))], 1e-5)
    check(program, [normal((50, 60)), normal((1, 60))], 1e-5)
    check(program, [normal((50, 1, 60)), normal((40, 1))], 1e-5)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_halves_are_reduced_in_float32(dtype: str) -> None:
    program = (
        LAYER_NORM.format(axes="-1").replace("f32", dtype).replace("3727c5ac", "0010" if dtype == "f16" else "3728")
    )
    arrays = [normal((7, 300)), normal((7, 300), 1), normal((300,), 2), normal((300,), 3)]
    check(program, [array.astype(NUMPY_TYPES[dtype]) for array in arrays], 2e-3 if dtype == "f16" else 2e-2)


def test_one_session_takes_any_shapes() -> None:
    program = SOFTMAX.format(axes="-1")
    session = new_session(node_model(program, [["rows", "columns"]]), session_options())
    for shape in ((3, 4), (100, 30), (1, 100000), (0, 3), (7, 1), (3, 4)):
        (result,) = run(session, [normal(shape)])
        assert_close(result, reference.run(Program.parse(program), [normal(shape)])[0], 1e-5)


WORDS = """onnxfuse 3
input i64 view unsqueeze:-1
input i32 broadcast
input {dtype} row 0
input {dtype} row 1 view {view}
add {dtype} 2 3
reduce_max {dtype} 4 -1
sub {dtype} 4 5
output 6
output 2
"""


@pytest.mark.parametrize("dtype", ["f32", "f16", "i8", "f64"])
@pytest.mark.parametrize(
    ("view", "shape"), [("merge:-2", (5, 2, 4)), ("permute:1.0", (5, 8, 3)), ("squeeze:-1", (5, 8, 1))]
)
def test_rows_that_are_named(dtype: str, view: str, shape: Sizes) -> None:
    """Of two tables, by numbers from both ends; what is read of a row of the second one lies in another order."""
    words, kinds = np.array([[6, 0, -7], [3, 3, -1]]), np.array([[-5], [4], [0]], np.int32)
    tables = [normal((7, 8)), normal(shape)]
    numpy_type = DTYPES[dtype].numpy
    arrays = [words, kinds, *((9 * table).astype(numpy_type) for table in tables)]
    check(WORDS.format(dtype=dtype, view=view), arrays, 1e-3 if dtype == "f16" else 1e-6)


_ROWS = "onnxfuse 3\ninput i64 broadcast\ninput f32 row 0\nreduce_sum f32 1 -1\noutput 2\n"


@pytest.mark.parametrize(("number", "rows"), [(3, 3), (-4, 3), (1 << 40, 3), (-(1 << 63), 3), (0, 0), (-1, 0)])
def test_a_row_that_there_is_not_is_an_error(number: int, rows: int) -> None:
    session = new_session(node_model(_ROWS, [None, None]), session_options())
    with pytest.raises(Exception, match=f"input 1 has {rows} rows, and row {number} is named"):
        run(session, [np.array([[0], [number]][rows == 0 :]), np.zeros((rows, 4), np.float32)])


@pytest.mark.parametrize(
    ("program", "shapes", "reason"),
    [
        (SOFTMAX.format(axes="-2"), [(3,)], "line 3: shape \\[3\\] has no axis -2"),
        (
            SOFTMAX.format(axes="-1").replace("broadcast", "view split:-1:4:-1"),
            [(3, 6)],
            "line 2: input 0 .*does not divide",
        ),
        (SOFTMAX.format(axes="-1").replace("broadcast", "view permute:1.0,merge:-2"), [(3, 6)], "do not lie together"),
        (SOFTMAX.format(axes="-1").replace("broadcast", "view squeeze:-1"), [(3, 6)], "more or less than one element"),
        (SOFTMAX.format(axes="-1").replace("output 5", "output 5 view squeeze:-1"), [(3, 6)], "more or less than one"),
        (_ROWS, [(3, 2), (5, 4)], "line 3: input 1: numbers of rows, of shape \\[3,2\\], that differ along the axes"),
        (_ROWS, [(3, 1), (5, 2, 4)], "rows of shape \\[2,4\\] do not broadcast"),
        (_ROWS, [(3, 1), ()], "line 3: input 1 of shape \\[\\]: it has no rows"),
    ],
)
def test_shapes_that_do_not_fit(program: str, shapes: Sequence[Sizes], reason: str) -> None:
    model = node_model(program, [None] * len(shapes))
    types = [DTYPES[spec.dtype].numpy for spec in Program.parse(program).inputs]
    with pytest.raises(Exception, match=reason) as caught:
        run(new_session(model, session_options()), list(map(np.zeros, shapes, types)))
    assert NODE in str(caught.value)
