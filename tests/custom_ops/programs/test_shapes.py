"""Broadcasting, stages of different shapes, sharing of memory, and shape inference."""

import itertools

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from onnxfuse.program import Program, reference
from tests.custom_ops.fused import (
    NODE_NAME,
    ON_AARCH64,
    assert_same_bits,
    fused_model,
    fused_node,
    make_model,
    new_session,
    run,
    run_fused,
    sample,
    session_options,
)
from tests.support.threads import run_in_threads

SHAPES = {
    "same": ([2, 3, 5, 7], [2, 3, 5, 7]),
    "scalar": ([2, 3, 5, 7], []),
    "one element": ([2, 3, 5, 7], [1, 1]),
    "per channel, short rows": ([2, 3, 5, 7], [3, 1, 1]),
    "per channel, long rows": ([2, 3, 17, 33], [3, 1, 1]),
    "per channel, several tiles": ([2, 3, 100, 131], [3, 1, 1]),
    "last axis, short": ([11, 5, 7], [7]),
    "last axis, long": ([5, 3001], [3001]),
    "last axis, longer than a period": ([3, 7, 211], [7, 211]),
    "middle": ([4, 1, 6], [1, 5, 1]),
    "outer": ([7, 1], [1, 300]),
    "outer, short": ([9, 1], [1, 3]),
    "rank 8": ([2, 1, 3, 1, 2, 1, 2, 3], [1, 2, 3, 2, 1, 2, 2, 1]),
    "empty": ([0, 3], [1, 3]),
    "empty and one": ([2, 0, 3], [1, 1, 1]),
    "both scalars": ([], []),
}


@pytest.mark.parametrize("dtype", ["f32", "f16", "i8", "f64"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES.keys())
def test_broadcasting(shapes: tuple[list[int], list[int]], swapped: bool, dtype: str) -> None:
    arrays = [sample(dtype, int(np.prod(s)), i).reshape(s) for i, s in enumerate(shapes)]
    if swapped:
        arrays.reverse()
    program = (
        f"onnxfuse 1\ninput {dtype} broadcast\ninput {dtype} broadcast\n"
        f"sub {dtype} 0 1\nless {dtype} 0 1\nwhere {dtype} 3 0 2\nmin {dtype} 4 1\noutput 5\noutput 3\n"
    )
    expected = reference.run(Program.parse(program), arrays)
    for actual, wanted in zip(run_fused(program, arrays), expected, strict=True):
        assert actual.shape == wanted.shape
        np.testing.assert_array_equal(actual.astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize("axis", [1, -2, -1, 0])
@pytest.mark.parametrize("one", [False, True])
def test_axis_inputs(axis: int, one: bool) -> None:
    shape = [3, 4, 5]
    arrays = [sample("f32", 60).reshape(shape), sample("f32", 1 if one else shape[axis], 1, special=False)]
    program = f"onnxfuse 1\ninput f32 broadcast\ninput f32 axis {axis}\nmul f32 0 1\noutput 2\n"
    assert_same_bits(run_fused(program, arrays)[0], reference.run(Program.parse(program), arrays)[0])


MIXED = """onnxfuse 1
input f32 broadcast
input f32 axis 1
input f32 axis 1
input f16 broadcast
const f32 3727c5ac
add f32 2 4
sqrt f32 5
div f32 1 6
mul f32 0 7
cast f32 3
add f32 9 4
mul f32 8 10
less f32 11 9
where f32 12 7 11
output 7
output 11
output 13
output 10
output 4
output 3
"""


@pytest.mark.parametrize("gate", [[2, 8, 1, 1], [8, 1, 1], [], [2, 1, 20, 1], [1, 1, 1, 30]])
def test_stages_of_different_shapes(gate: list[int]) -> None:
    arrays = [
        sample("f32", 2 * 8 * 20 * 30).reshape(2, 8, 20, 30),
        sample("f32", 8, 1, special=False),
        np.abs(sample("f32", 8, 2, special=False)),
        sample("f16", int(np.prod(gate)), 3, special=False).reshape(gate),
    ]
    for actual, expected in zip(run_fused(MIXED, arrays), reference.run(Program.parse(MIXED), arrays), strict=True):
        assert_same_bits(actual, expected)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "mul", "sub", "max", "div", "relu", "hard_swish", "neg"]),
        st.integers(0, 999),
        st.integers(0, 999),
    ),
    min_size=1,
    max_size=12,
)
DIMS = st.lists(st.sampled_from([1, 2, 3]), max_size=3)


@settings(max_examples=60)
@given(
    OPERATIONS,
    st.lists(st.tuples(*[st.booleans()] * 3), min_size=1, max_size=4),
    st.sampled_from([(2, 3, 5), (3, 2, 300)]),
    st.lists(st.integers(0, 999), min_size=1, max_size=4),
)
def test_random_programs(
    operations: list[tuple[str, int, int]], wide: list[tuple[bool, ...]], full: tuple[int, ...], results: list[int]
) -> None:
    """Programs with any graph of operators, outputs and broadcast inputs give the bits of NumPy."""
    lines = ["onnxfuse 1", *["input f32 broadcast"] * len(wide)]
    for index, (op, a, b) in enumerate(operations):
        count = len(wide) + index
        operands = f"{a % count}" if op in ("relu", "hard_swish", "neg") else f"{a % count} {b % count}"
        lines.append(f"{op} f32 {operands}")
    total = len(wide) + len(operations)
    lines += [f"output {total - 1}", *(f"output {r % total}" for r in results)]
    program = "\n".join(lines) + "\n"
    shapes = [[n if keep else 1 for n, keep in zip(full, flags, strict=True)] for flags in wide]
    arrays = [sample("f32", int(np.prod(s)), i, special=False).reshape(s) for i, s in enumerate(shapes)]
    for actual, expected in zip(run_fused(program, arrays), reference.run(Program.parse(program), arrays), strict=True):
        np.testing.assert_array_equal(actual, expected)


# Programs whose outputs ORT may place in the memory of x, as a node before makes x a value of the run.
SHARING = {
    "one output": "add f32 0 1\noutput 2\n",
    "read after the first output": "add f32 0 1\nmul f32 0 1\noutput 2\noutput 3\n",
    "passed through": "add f32 0 1\noutput 2\noutput 0\n",
    "exchanged": "output 1\noutput 0\n",
    "two stages": "reciprocal f32 1\nmul f32 0 2\nadd f32 3 1\noutput 2\noutput 4\n",
    "another type of the same size": "cast i32 0\nadd f32 0 1\noutput 2\noutput 3\n",
    "many outputs": "add f32 0 1\nmul f32 0 1\nsub f32 0 1\nmax f32 0 1\nmul f32 2 0\n"
    "output 2\noutput 3\noutput 4\noutput 5\noutput 6\n",
}


@pytest.mark.parametrize(
    "shapes", [([4, 300], [4, 300]), ([4, 300], [300]), ([4, 300], [4, 1]), ([2, 70000], [2, 70000])], ids=str
)
@pytest.mark.parametrize("body", SHARING.values(), ids=SHARING.keys())
def test_outputs_may_share_memory_with_inputs(body: str, shapes: tuple[list[int], list[int]]) -> None:
    program = "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\n" + body
    outputs = [f"y{i}" for i in range(program.count("output "))]
    types = {o: ("i32" if i == 0 and "cast" in body else "f32", None) for i, o in enumerate(outputs)}
    # Sigmoid is not in place for graph inputs; its results die in the fused node, whose outputs may take their memory.
    nodes = [
        helper.make_node("Sigmoid", ["x0"], ["a"]),
        helper.make_node("Sigmoid", ["x1"], ["b"]),
        fused_node(program, ["a", "b"], [f"t{i}" for i in range(len(outputs))]),
        *(helper.make_node("Abs", [f"t{i}"], [o]) for i, o in enumerate(outputs)),
    ]
    inputs = {f"x{i}": ("f32", s) for i, s in enumerate(shapes)}
    arrays = [sample("f32", int(np.prod(s)), i).reshape(s) for i, s in enumerate(shapes)]
    actual = run(new_session(make_model(nodes, inputs, types), session_options()), arrays)
    types = {"a": ("f32", None), "b": ("f32", None)}
    middle = run(new_session(make_model(nodes[:2], inputs, types), session_options(ops=False)), arrays)
    expected = [np.abs(e) for e in reference.run(Program.parse(program), middle)]
    for result, wanted in zip(actual, expected, strict=True):
        assert_same_bits(result, wanted)


def test_one_session_on_several_threads() -> None:
    program = "onnxfuse 1\ninput f32 broadcast\ninput f32 axis 1\nmul f32 0 1\ntanh f32 2\nadd f32 3 0\noutput 4\n"
    session = new_session(fused_model(program, [["n", 3, "w"], [3]]), session_options())
    failures: list[str] = []

    def work(seed: int) -> None:
        for repeat in range(40):
            shape = [1 + (seed + repeat) % 3, 3, 10 + 97 * ((seed * repeat) % 50)]
            arrays = [
                sample("f32", int(np.prod(shape)), seed, special=False).reshape(shape),
                sample("f32", 3, seed, special=False),
            ]
            (actual,) = run(session, arrays)
            scaled = (arrays[0] * arrays[1][None, :, None]).astype(np.float64)
            if not np.allclose(actual, np.tanh(scaled) + arrays[0], rtol=1e-5, atol=1e-6):
                failures.append(str(shape))

    run_in_threads(work, range(4))
    assert not failures


def test_large_tensors_run_on_all_threads_and_past_the_cache() -> None:
    program = (
        "onnxfuse 1\ninput f32 broadcast\ninput f32 axis 1\nmul f32 0 1\nrelu f32 2\nadd f32 3 0\ncast f16 4\n"
        "output 4\noutput 5\noutput 2\n"
    )
    arrays = [sample("f32", 3 * 5 * 999983).reshape(3, 5, 999983), sample("f32", 5, 1, special=False)]
    expected = reference.run(Program.parse(program), arrays)
    for actual, wanted in zip(run_fused(program, arrays), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("odd", [1, 2, 3])
def test_unaligned_memory(odd: int) -> None:
    array = sample("f32", 100001 + odd)[odd:]
    program = "onnxfuse 1\ninput f32 broadcast\nneg f32 0\nabs f32 1\noutput 2\n"
    session = new_session(fused_model(program, [[None]]), session_options())
    binding = session.io_binding()
    memory = np.zeros(4 * array.size + 8, np.uint8)
    result = memory[odd : odd + 4 * array.size].view(np.float32)
    binding.bind_cpu_input("x0", array)
    binding.bind_output("y0", "cpu", 0, np.float32, array.shape, result.ctypes.data)
    session.run_with_iobinding(binding)
    assert_same_bits(result.copy(), np.abs(array))


INFERENCE = [
    ([["n", 3, "h"], ["n", 3, "h"]], ["n", 3, "h"]),
    ([["n", 3, "h"], [1, "h"]], ["n", 3, "h"]),
    ([["n", 1], ["n", 4]], ["n", 4]),
    ([["n", 4], ["m", 4]], [None, 4]),
    ([[2, 3], [3]], [2, 3]),
    ([["n"], [5]], [5]),
]


@pytest.mark.parametrize(("shapes", "expected"), INFERENCE)
def test_shape_inference(shapes: list[list[int | str]], expected: list[int | str | None]) -> None:
    program = "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nless f32 0 1\noutput 2\n"
    session = new_session(fused_model(program, shapes), session_options())
    (output,) = session.get_outputs()
    assert output.type == "tensor(bool)"
    shape = [None if isinstance(d, str) and d.startswith(("unk__", "onnxfuse_")) else d for d in output.shape]
    assert shape == expected


def test_inputs_of_unknown_rank() -> None:
    program = "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nadd f32 0 1\nneg f32 2\noutput 3\n"
    model = make_model(
        [fused_node(program, ["x0", "x1"], ["t"]), helper.make_node("Abs", ["t"], ["y0"])],
        {"x0": ("f32", None), "x1": ("f32", None)},
        {"y0": ("f32", None)},
    )
    # ORT's interface cannot give a type without a shape, so the model states the type.
    model.graph.value_info.append(helper.make_tensor_value_info("t", 1, None))
    session = new_session(model, session_options())
    for shape in ([2, 3], [], [5], [1, 2, 3]):
        arrays = [np.ones(shape, np.float32), np.ones((), np.float32)]
        (actual,) = run(session, arrays)
        np.testing.assert_array_equal(actual, np.full(shape, 2, np.float32))


@pytest.mark.parametrize(
    ("program", "shapes", "message"),
    [
        ("input f32 broadcast\ninput f32 broadcast\nadd f32 0 1\noutput 2\n", ([2, 3], [4]), r"\[2,3\] and \[4\]"),
        ("input f32 broadcast\ninput f32 axis 1\nadd f32 0 1\noutput 2\n", ([2, 3], [4]), "along axis 1"),
        ("input f32 broadcast\ninput f32 axis 2\nadd f32 0 1\noutput 2\n", ([2, 3], [3]), "along axis 2"),
        ("input f32 broadcast\ninput f32 axis 1\nadd f32 0 1\noutput 2\n", ([2, 3], [3, 1]), "along axis 1"),
    ],
)
def test_shapes_that_do_not_fit(program: str, shapes: tuple[list[int], list[int]], message: str) -> None:
    model = fused_model("onnxfuse 1\n" + program, [["a"] * len(s) if len(s) > 1 else ["b"] for s in shapes])
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.input[1].type.tensor_type.ClearField("shape")
    session = new_session(model, session_options())
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match=f"{NODE_NAME}.*{message}"):
        run(session, [np.ones(s, np.float32) for s in shapes])


@pytest.mark.parametrize(
    "count", list(itertools.chain(range(1, 20), [63, 64, 65, 127, 128, 129, 255, 4095, 4096, 4097, 20001]))
)
def test_every_remainder(count: int) -> None:
    array = sample("f32", count, special=count > 50)
    program = "onnxfuse 1\ninput f32 broadcast\nrelu f32 0\nmul f32 1 0\nsub f32 0 2\noutput 3\n"
    positive = np.where(array <= 0 if ON_AARCH64 else array < 0, np.float32(0), array)
    assert_same_bits(run_fused(program, [array])[0], array - positive * array)


@pytest.mark.parametrize("dtype", ["i8", "f16", "f32", "f64"])
def test_short_rows_with_a_scalar_each(dtype: str) -> None:
    """Of every length, so that each begins and ends anywhere in the vectors with which scalars are repeated."""
    for columns in range(1, 150):
        _assert_difference(dtype, [5, columns], [5, 1])


@pytest.mark.parametrize("dtype", ["i8", "f16", "f32", "f64"])
@pytest.mark.parametrize("rows", [1, 2, 3, 20, 700])
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 8, 13, 40])
def test_rows_within_repeated_images(columns: int, rows: int, dtype: str) -> None:
    """Elements repeated along rows, rows repeated, and both; tiles begin within rows and images."""
    shape = [3, 7, rows, columns]
    for small in ([3, 1, rows, 1], [3, 1, 1, columns], [7, 1, columns], [3, 1, rows, columns], [3, 7, 1, 1]):
        _assert_difference(dtype, shape, small)


def _assert_difference(dtype: str, *shapes: list[int]) -> None:
    inputs = f"input {dtype} broadcast\ninput {dtype} broadcast"
    program = Program.parse(f"onnxfuse 1\n{inputs}\nsub {dtype} 0 1\noutput 2\n")
    arrays = [sample(dtype, int(np.prod(shape)), i).reshape(shape) for i, shape in enumerate(shapes)]
    assert_same_bits(run_fused(str(program), arrays)[0], reference.run(program, arrays)[0])


def test_vectors_along_an_axis_where_branches_have_other_sizes() -> None:
    """What a dimension of the region is then depends on the branch; the vector meets one that fits it."""
    program = (
        "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\ninput f32 axis -2\n"
        "mul f32 0 2\nneg f32 1\noutput 3\noutput 4\n"
    )
    x, other, scale = sample("f32", 6).reshape(3, 2, 1), sample("f32", 21).reshape(3, 7), sample("f32", 2, 1)
    first, second = run_fused(program, [x, other, scale])
    assert_same_bits(first, x * scale[:, None])
    assert_same_bits(second, -other)


def test_a_vector_that_fits_no_branch_is_refused() -> None:
    program = (
        "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\ninput f32 axis -2\n"
        "mul f32 0 2\nneg f32 1\noutput 3\noutput 4\n"
    )
    arrays = [sample("f32", 6).reshape(3, 2, 1), sample("f32", 21).reshape(3, 7), sample("f32", 4)]
    with pytest.raises(Exception, match=r"\[3,2,1\]"):
        run_fused(program, arrays)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("op", ["pow", "add", "div", "fmod", "less", "elu"])
def test_long_rows_with_a_scalar_each(op: str, dtype: str, swapped: bool) -> None:
    """The result may take the memory that the scalar was converted into."""
    rows, scalars = sample(dtype, 2 * 777).reshape(2, 777), sample(dtype, 2, 1).reshape(2, 1)
    program = f"onnxfuse 1\ninput {dtype} broadcast\ninput {dtype} broadcast\n{op} {dtype} 0 1\noutput 2\n"
    arrays = [scalars, rows] if swapped else [rows, scalars]
    whole = run_fused(program, arrays)[0]
    full = [np.ascontiguousarray(np.broadcast_to(array, rows.shape)) for array in arrays]
    assert_same_bits(whole, run_fused(program, full)[0])
