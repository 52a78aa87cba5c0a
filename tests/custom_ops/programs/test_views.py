"""Inputs that are views of tensors: read where they lie, whatever lies between their elements and in which order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from onnxfuse.program import Program, reference
from tests.custom_ops.fused import (
    ONNX_TYPES,
    assert_same_bits,
    fused_model,
    fused_node,
    make_model,
    new_session,
    run_fused,
    sample,
    session_options,
)

END = (1 << 63) - 1

# Slices of two tensors, and the shapes of these.
READS = {
    "half of each row": (("1:0:300:1", [7, 600]), ("1:300:600:1", [7, 600])),
    "half of each short row": (("1:0:5:1", [90, 10]), ("-1:5:10:1", [90, 10])),
    "the first rows": (("0:0:3:1", [9, 400]), ("0:-3:9:1", [9, 400])),
    "some channels": (("1:0:8:1", [2, 16, 9, 11]), (f"-3:8:{END}:1", [2, 16, 9, 11])),
    "the middle of an image": (("2:1:-1:1,3:2:-2:1", [2, 3, 20, 24]), ("", [2, 3, 18, 20])),
    "every second": ((f"0:0:{END}:2", [9000]), (f"0:1:{END}:2", [9000])),
    "every third of long rows": (("1:0:900:3", [5, 901]), ("1:2:900:3", [5, 901])),
    "one column": (("1:3:4:1", [1000, 7]), ("", [1000, 1])),
    "one column that is repeated": (("1:3:4:1", [300, 7]), ("", [300, 400])),
    "one row that is repeated": (("0:-1:9:1", [5, 300]), ("", [40, 300])),
    "one element": (("0:1:2:1,1:2:3:1", [3, 4]), ("", [50, 20])),
    "a slice of a slice": ((f"1:2:{END}:2,1:1:3:1", [6, 11]), ("", [6, 2])),
    "beyond the end": (("0:1:100:1", [5, 6]), ("", [4, 6])),
    "nothing": (("1:3:2:1", [4, 5]), ("", [4, 1])),
    "nothing of nothing": ((f"0:1:{END}:1", [0, 5]), ("", [1, 5])),
    "rank 8": ((f"7:1:{END}:1,0:1:2:1", [2, 1, 3, 1, 2, 1, 2, 3]), ("", [3, 1, 1, 1, 1, 2])),
}


def slice_input(dtype: str, slices: str) -> str:
    return f"input {dtype} slice {slices}" if slices else f"input {dtype} broadcast"


# Shapes of a tensor whose halves are swapped, and of one beside it.
HALVES = {
    "pairs": ([300, 2], [300, 2]),
    "two": ([2], [2]),
    "short rows": ([90, 10], [90, 10]),
    "rows of one length": ([7, 64], [1, 64]),
    "long rows": ([5, 3000], [5, 1]),
    "a long vector": ([20000], [20000]),
    "repeated": ([64], [3, 500, 64]),
    "repeated in between": ([3, 1, 64], [3, 50, 64]),
    "heads": ([2, 4, 30, 32], [30, 32]),
    "a scalar beside it": ([4, 66], []),
    "nothing": ([0, 4], [1, 4]),
    "halves of nothing": ([3, 0], [3, 1]),
    "rank 16": ([2] + [1] * 13 + [3, 6], [6]),
}


@pytest.mark.parametrize("dtype", ONNX_TYPES)
@pytest.mark.parametrize("shapes", HALVES.values(), ids=HALVES.keys())
def test_halves_of_every_type(shapes: tuple[list[int], list[int]], dtype: str) -> None:
    arrays = [sample(dtype, int(np.prod(shape)), seed).reshape(shape) for seed, shape in enumerate(shapes)]
    operation = "xor bool 0 1" if dtype == "bool" else f"min {dtype} 0 1"
    program = f"onnxfuse 1\ninput {dtype} halves\ninput {dtype} broadcast\n{operation}\noutput 2\noutput 0\n"
    for actual, expected in zip(run_fused(program, arrays), reference.run(Program.parse(program), arrays), strict=True):
        assert actual.shape == expected.shape
        np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("shapes", HALVES.values(), ids=HALVES.keys())
def test_chains_of_halves(shapes: tuple[list[int], list[int]]) -> None:
    """The tensor in both orders, as rotary embeddings read it, and with what is computed in another shape."""
    arrays = [sample("f32", int(np.prod(shape)), seed).reshape(shape) for seed, shape in enumerate(shapes)]
    program = (
        "onnxfuse 1\ninput f32 halves\ninput f32 broadcast\ninput f32 broadcast\n"
        "mul f32 2 2\nmul f32 0 3\nmul f32 1 2\nadd f32 5 4\noutput 6\noutput 4\n"
    )
    inputs = [arrays[0], *arrays]
    for actual, expected in zip(run_fused(program, inputs), reference.run(Program.parse(program), inputs), strict=True):
        assert_same_bits(actual, expected)


# Shapes of a tensor of a part of which halves are swapped, that part, and the shape of a tensor beside it.
HALVES_OF_PARTS = {
    "heads": ([2, 5, 20, 16], "-2:3:11:1", [2, 5, 1, 16]),
    "all heads but one": ([3, 200, 4, 32], "2:0:3:1", [3, 200, 3, 32]),
    "columns": ([4, 30, 40], "-1:8:24:1", [16]),
    "two columns": ([300, 7], "1:3:5:1", [300, 1]),
    "every third row": ([90, 64], "0:2:90:3", [1, 64]),
    "rows and columns": ([7, 9, 130], "-1:1:129:1,-2:2:8:2", [7, 3, 128]),
    "a part of a part": ([6, 4000], "1:100:3900:1,1:50:1050:1", [6, 1000]),
    "none": ([4, 8], "0:4:9:1", [1, 8]),
    "one long row": ([3, 30000], "0:1:2:1", []),
}


@pytest.mark.parametrize("dtype", ("f32", "f64", "f16", "i8"))
@pytest.mark.parametrize("case", HALVES_OF_PARTS.values(), ids=HALVES_OF_PARTS.keys())
def test_halves_of_parts(case: tuple[list[int], str, list[int]], dtype: str) -> None:
    """The part in both orders, as rotary embeddings read some of the heads."""
    shape, part, other = case
    arrays = [sample(dtype, int(np.prod(own)), seed).reshape(own) for seed, own in enumerate((shape, other))]
    program = (
        f"onnxfuse 1\ninput {dtype} slice {part} halves\ninput {dtype} slice {part}\ninput {dtype} broadcast\n"
        f"min {dtype} 0 2\nmax {dtype} 1 3\noutput 4\noutput 0\n"
    )
    assert str(Program.parse(program)) == program
    inputs = [arrays[0], *arrays]
    for actual, expected in zip(run_fused(program, inputs), reference.run(Program.parse(program), inputs), strict=True):
        assert actual.shape == expected.shape
        np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize(("part", "problem"), [("1:0:8:2", "side by side"), ("1:0:5:1", "no halves in its last")])
def test_parts_that_have_no_halves(part: str, problem: str) -> None:
    with pytest.raises(Exception, match=problem):
        run_fused(f"onnxfuse 1\ninput f32 slice {part} halves\nneg f32 0\noutput 1\n", [np.zeros((3, 8), np.float32)])


def test_halves_in_the_memory_of_the_tensor() -> None:
    """ONNX Runtime may give the result the memory of an input, which is read in another order than it is written."""
    for size in (8, 3000, 20000):
        node = fused_node("onnxfuse 1\ninput f32 halves\nneg f32 0\noutput 1\n", ["made"], ["z"])
        nodes = [helper.make_node("Add", ["x", "x"], ["made"]), node]
        model = make_model(nodes, {"x": ("f32", [5, size])}, {"z": ("f32", [5, size])})
        x = sample("f32", 5 * size, 0, special=False).reshape(5, size)
        result = new_session(model, session_options()).run(None, {"x": x})[0]
        assert_same_bits(result, -np.roll(x + x, size // 2, axis=1))


def test_the_shape_of_halves_is_inferred() -> None:
    model = fused_model("onnxfuse 1\ninput f32 halves\nneg f32 0\noutput 1\n", [["n", 10]])
    assert new_session(model, session_options()).get_outputs()[0].shape == ["n", 10]


@pytest.mark.parametrize("shape", [(3, 5), (1,), ()])
def test_halves_that_are_none(shape: tuple[int, ...]) -> None:
    with pytest.raises(Exception, match="no halves in its last dimension"):
        run_fused("onnxfuse 1\ninput f32 halves\nneg f32 0\noutput 1\n", [np.zeros(shape, np.float32)])


@pytest.mark.parametrize("dtype", ONNX_TYPES)
@pytest.mark.parametrize("reads", READS.values(), ids=READS.keys())
def test_every_type(reads: tuple[tuple[str, list[int]], ...], dtype: str) -> None:
    arrays = [sample(dtype, int(np.prod(shape)), seed).reshape(shape) for seed, (_, shape) in enumerate(reads)]
    lines = [slice_input(dtype, slices) for slices, _ in reads]
    operation = f"where {dtype} 2 1 0" if dtype == "bool" else f"min {dtype} 0 1"
    condition = "xor bool 0 1" if dtype == "bool" else f"less {dtype} 0 1"
    program = "\n".join(["onnxfuse 1", *lines, condition, operation, "output 2", "output 3", ""])
    for actual, expected in zip(run_fused(program, arrays), reference.run(Program.parse(program), arrays), strict=True):
        assert actual.shape == expected.shape
        np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("reads", READS.values(), ids=READS.keys())
def test_chains(reads: tuple[tuple[str, list[int]], ...]) -> None:
    """Both orders of operands, several outputs, one of them a part as it is."""
    arrays = [sample("f32", int(np.prod(shape)), seed).reshape(shape) for seed, (_, shape) in enumerate(reads)]
    lines = [slice_input("f32", slices) for slices, _ in reads]
    program = "\n".join(
        [
            *("onnxfuse 1", *lines, "const f32 3f000000", "mul f32 0 2", "sub f32 1 3", "mul f32 4 1", "sub f32 5 0"),
            *("output 6", "output 3", "output 0", ""),
        ]
    )
    for actual, expected in zip(run_fused(program, arrays), reference.run(Program.parse(program), arrays), strict=True):
        assert_same_bits(actual, expected)


@settings(max_examples=150)
@given(st.data())
def test_random_slices(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 16, 70]), min_size=1, max_size=4), "shape")
    slices = []
    left = list(shape)
    for _ in range(data.draw(st.integers(1, 3), "slices")):
        axis = data.draw(st.integers(-len(shape), len(shape) - 1))
        start, end = (data.draw(st.integers(-left[axis] - 1, left[axis] + 1)) for _ in range(2))
        step = data.draw(st.sampled_from([1, 1, 1, 2, 3, END]))
        slices.append(f"{axis}:{start}:{end}:{step}")
        left[axis] = len(range(left[axis])[start:end:step])
    other = [dim if data.draw(st.booleans()) else 1 for dim in left]
    arrays = [sample("f32", int(np.prod(s)), i).reshape(s) for i, s in enumerate((shape, other))]
    program = (
        f"onnxfuse 1\ninput f32 slice {','.join(slices)}\ninput f32 broadcast\n"
        "mul f32 0 1\nadd f32 2 0\noutput 3\noutput 2\n"
    )
    for actual, expected in zip(run_fused(program, arrays), reference.run(Program.parse(program), arrays), strict=True):
        assert_same_bits(actual, expected)


@pytest.mark.parametrize("start", [0, 1, 2])
def test_part_of_a_tensor_of_the_results_size_in_its_memory(start: int) -> None:
    """ONNX Runtime may give the result the memory of an input of its size, of which all rows read one."""
    size = 3000
    node = fused_node(
        f"onnxfuse 1\ninput f32 slice 0:{start}:{start + 1}:1\ninput f32 broadcast\nadd f32 0 1\noutput 2\n",
        ["made", "y"],
        ["z"],
    )
    model = make_model(
        [helper.make_node("Add", ["x", "x"], ["made"]), node],
        {"x": ("f32", [3, size]), "y": ("f32", [3, size])},
        {"z": ("f32", [3, size])},
    )
    x, y = (sample("f32", 3 * size, seed, special=False).reshape(3, size) for seed in range(2))
    result = new_session(model, session_options()).run(None, {"x": x, "y": y})[0]
    assert_same_bits(result, (x + x)[start : start + 1] + y)


def test_inferred_shapes() -> None:
    """Sizes that are known come out of a slice, and a name where the slice takes all."""
    program = f"onnxfuse 1\ninput f32 slice 1:0:4:1,2:1:{END}:2,0:0:{END}:1\nneg f32 0\noutput 1\n"
    model = fused_model(program, [["n", 10, 9]])
    shape = new_session(model, session_options()).get_outputs()[0].shape
    assert shape == ["n", 4, 4]


@pytest.mark.parametrize(
    ("slices", "problem"),
    [
        ("", "slices of an axis"),
        ("0", "slices of an axis"),
        ("0:0:1", "slices of an axis"),
        ("0:0:1:0", "slices of an axis"),
        ("0:0:1:-1", "slices of an axis"),
        ("0:0:1:1,", "slices of an axis"),
        ("0:0:1:1;1:0:1:1", "slices of an axis"),
        ("0:00:1:1", "slices of an axis"),
        ("0:+1:1:1", "slices of an axis"),
        ("0:0:9223372036854775808:1", "slices of an axis"),
        ("64:0:1:1", "slices of an axis"),
        (",".join(["0:0:1:1"] * 33), "slices of an axis"),
        ("2:0:1:1", "not all the axes"),
        ("-3:0:1:1", "not all the axes"),
    ],
)
def test_slices_that_are_none(slices: str, problem: str) -> None:
    program = f"onnxfuse 1\ninput f32 slice {slices}\nneg f32 0\noutput 1\n"
    with pytest.raises(Exception, match=problem):
        run_fused(program, [np.zeros((3, 4), np.float32)])


# Steps of a view, the shape of its tensor, and that of a tensor beside it.
STEPS = {
    "transposed": ("permute:1.0", [70, 90], [90, 70]),
    "transposed long rows": ("permute:1.0", [3000, 40], [40, 3000]),
    "transposed longer rows": ("permute:1.0", [9000, 20], [20, 9000]),
    "transposed images": ("permute:0.2.1", [3, 50, 33], [3, 33, 50]),
    "transposed beside a vector": ("permute:0.2.1", [3, 300, 33], [300]),
    "channels last": ("permute:0.2.3.1", [2, 5, 7, 9], [2, 7, 9, 5]),
    "heads": ("split:-1:4:-1,permute:0.2.1.3", [2, 30, 64], [2, 4, 30, 16]),
    "all axes turned": ("permute:3.2.1.0", [5, 6, 7, 8], [8, 7, 6, 5]),
    "split": ("split:-2:-1:3", [4, 12, 5], [4, 4, 3, 5]),
    "merged": ("merge:-2", [4, 12, 5], [4, 60]),
    "merged and split": ("merge:-3,split:-2:6:-1", [4, 12, 5], [6, 8, 5]),
    "squeezed": ("squeeze:-2", [40, 1, 6], [40, 6]),
    "unsqueezed": ("unsqueeze:-1", [40], [40, 300]),
    "a part of a transposed tensor": ("permute:1.0,slice:-1:3:60:2", [70, 40], [40, 1]),
    "one element of an axis merged": ("slice:-2:1:2:1,merge:-2", [6, 5, 7], [6, 7]),
    "repeated": ("permute:1.0,unsqueeze:-2", [30, 20], [20, 25, 30]),
    "nothing": ("permute:1.0", [0, 4], [4, 0]),
}


@pytest.mark.parametrize("dtype", ONNX_TYPES)
@pytest.mark.parametrize("case", STEPS.values(), ids=STEPS.keys())
def test_steps_of_every_type(case: tuple[str, list[int], list[int]], dtype: str) -> None:
    steps, shape, other = case
    arrays = [sample(dtype, int(np.prod(sizes)), seed).reshape(sizes) for seed, sizes in enumerate((shape, other))]
    operation = "xor bool 0 1" if dtype == "bool" else f"min {dtype} 0 1"
    program = f"onnxfuse 2\ninput {dtype} view {steps}\ninput {dtype} broadcast\n{operation}\noutput 2\noutput 0\n"
    for actual, expected in zip(run_fused(program, arrays), reference.run(Program.parse(program), arrays), strict=True):
        assert actual.shape == expected.shape
        np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("case", STEPS.values(), ids=STEPS.keys())
def test_chains_of_steps(case: tuple[str, list[int], list[int]]) -> None:
    steps, shape, other = case
    arrays = [sample("f32", int(np.prod(sizes)), 3, special=False).reshape(sizes) for sizes in (shape, other)]
    program = f"""onnxfuse 2
input f32 view {steps}
input f32 broadcast
hard_swish f32 0
add f32 2 1
output 3
output 2
"""
    for actual, expected in zip(run_fused(program, arrays), reference.run(Program.parse(program), arrays), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_an_output_in_another_shape() -> None:
    steps = "merge:-2,split:-1:5:-1,unsqueeze:-3"
    program = f"onnxfuse 2\ninput f32 broadcast\nneg f32 0\noutput 1 view {steps}\noutput 1\n"
    (x,) = arrays = [sample("f32", 60).reshape(6, 10)]
    viewed, plain = run_fused(program, arrays)
    assert viewed.shape == (1, 5, 12)
    assert_same_bits(viewed.reshape(6, 10), -x)
    assert_same_bits(plain, -x)


@pytest.mark.parametrize("dtype", [name for name in ONNX_TYPES if name != "bool"])
@pytest.mark.parametrize("axis", [-1, -2, -3])
def test_coordinates_of_every_type(axis: int, dtype: str) -> None:
    for shape in ([2, 3, 5], [3, 1, 40], [1, 100, 7], [2, 2, 3000], [0, 3, 4]):
        arrays = [sample(dtype, int(np.prod(shape)), special=False).reshape(shape)]
        program = f"onnxfuse 2\ninput {dtype} broadcast\nindex {dtype} 0 {axis}\nmin {dtype} 0 1\noutput 2\noutput 1\n"
        expected = reference.run(Program.parse(program), arrays)
        for actual, wanted in zip(run_fused(program, arrays), expected, strict=True):
            np.testing.assert_array_equal(actual.astype(np.float64), wanted.astype(np.float64))


def test_shapes_of_views_while_sizes_are_not_known() -> None:
    """ONNX Runtime is told what is certain."""
    program = """onnxfuse 2
input f32 view split:-1:4:-1,permute:0.2.1.3
neg f32 0
output 1 view merge:-4
output 1
"""
    session = new_session(fused_model(program, [["n", "length", 64]]), session_options())
    merged, plain = (value.shape for value in session.get_outputs())
    assert plain == ["n", 4, "length", 16]
    assert merged[1:] == ["length", 16]
