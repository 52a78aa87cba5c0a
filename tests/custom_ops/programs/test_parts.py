"""Outputs that are written in parts, one behind the other along an axis of a tensor."""

import numpy as np
import pytest

from onnxfuse.program import Program, reference
from tests.custom_ops.fused import (
    assert_same_bits,
    fused_model,
    new_session,
    run_fused,
    sample,
    session_options,
)

# The shapes of two tensors, and the axis along which what is made of them is joined.
JOINED = {
    "whole halves": ([1, 4, 30, 20], [1, 5, 30, 20], -3),
    "channels": ([3, 4, 30, 20], [3, 4, 30, 20], -3),
    "channels of other numbers": ([2, 3, 40, 9], [2, 1, 40, 9], -3),
    "long rows": ([5, 700], [5, 300], -1),
    "short rows": ([300, 5], [300, 3], -1),
    "single elements": ([3000, 1], [3000, 1], -1),
    "rows": ([3, 100, 64], [3, 1, 64], -2),
    "the front": ([30, 70], [2, 70], -2),
    "vectors": ([5000], [3], -1),
    "nothing and something": ([3, 0, 4], [3, 2, 4], -2),
    "nothing": ([0, 3], [0, 3], -1),
    "rank 8": ([2, 1, 3, 1, 2, 1, 2, 3], [2, 1, 3, 1, 2, 5, 2, 3], -3),
}


def joined(program: str, arrays: list[np.ndarray], threads: int = 2) -> None:
    for actual, expected in zip(
        run_fused(program, arrays, threads), reference.run(Program.parse(program), arrays), strict=True
    ):
        assert actual.shape == expected.shape
        if actual.dtype == np.float32:
            assert_same_bits(actual, expected)
        else:
            np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("dtype", ("f32", "f16", "i8", "f64"))
@pytest.mark.parametrize("case", JOINED.values(), ids=JOINED.keys())
def test_parts(case: tuple[list[int], list[int], int], dtype: str) -> None:
    """A value, an input as it is, a value again, which also is an output of its own, and one of another tensor."""
    first, second, axis = case
    arrays = [sample(dtype, int(np.prod(shape)), seed).reshape(shape) for seed, shape in enumerate((first, second))]
    joined(
        f"onnxfuse 2\ninput {dtype} broadcast\ninput {dtype} broadcast\n"
        f"max {dtype} 0 0\nmin {dtype} 1 1\nmin {dtype} 2 0\n"
        f"output 2\nappend 1 {axis}\nappend 4 {axis}\nappend 3 {axis}\nappend 0 {axis}\n"
        f"output 4\noutput 1\nappend 1 {axis}\n",
        arrays,
    )


@pytest.mark.parametrize("channels", (3, 40))
@pytest.mark.parametrize("columns", (7, 300, 1100))
def test_parts_beside_what_is_broadcast(channels: int, columns: int) -> None:
    """Tiles end with a row, or operands are repeated in them, or columns lie side by side."""
    shapes = ([4, channels, columns], [channels, 1], [4, 1, columns], [4, columns, channels])
    arrays = [sample("f32", int(np.prod(shape)), seed).reshape(shape) for seed, shape in enumerate(shapes)]
    program = (
        "onnxfuse 2\ninput f32 broadcast\ninput f32 broadcast\ninput f32 broadcast\ninput f32 view permute:0.2.1\n"
    )
    for axis in (-2, -1):
        joined(f"{program}mul f32 0 1\nadd f32 4 2\noutput 5\nappend 0 {axis}\nappend 4 {axis}\n", arrays)
        joined(f"{program}mul f32 3 1\nadd f32 4 0\noutput 5\nappend 3 {axis}\nappend 0 {axis}\n", arrays)


def test_parts_that_are_views() -> None:
    """Axes that are split or merged on their way into the tensor, also in the midst of an axis of what is computed."""
    arrays = [sample("f32", 4 * 6 * 50, seed).reshape(4, 6, 50) for seed in range(2)]
    head = "onnxfuse 2\ninput f32 broadcast\ninput f32 broadcast\nadd f32 0 1\nneg f32 2\n"
    for view, axis in (
        ("merge:-3", -1),
        ("merge:-2", -1),
        ("split:-1:2:25", -1),
        ("split:-2:2:3", -2),
        ("unsqueeze:-3", -3),
        ("unsqueeze:-1", -1),
    ):
        joined(f"{head}output 2 view {view}\nappend 3 {axis} view {view}\nappend 1 {axis} view {view}\n", arrays)
    joined(f"{head}output 2\nappend 3 -1 view merge:-3,split:-2:4:6\noutput 3 view merge:-2\n", arrays)


def test_large_parts_on_threads() -> None:
    shapes = ([2, 30, 2000], [2, 10, 2000])
    arrays = [sample("f32", int(np.prod(shape)), seed).reshape(shape) for seed, shape in enumerate(shapes)]
    program = "onnxfuse 2\ninput f32 broadcast\ninput f32 broadcast\nsqrt f32 0\noutput 2\nappend 1 -2\nappend 0 -2\n"
    for threads in (1, 2, 4):
        joined(program, arrays, threads)


def test_the_shape_of_parts_is_inferred() -> None:
    program = "onnxfuse 2\ninput f32 broadcast\ninput f32 broadcast\nneg f32 0\noutput 2\nappend 1 -1\n"
    cases = (
        ([["n", 10], ["n", 5]], ["n", 15]),
        ([["n", 10], [3, 5]], [3, 15]),
        ([["n", "m"], ["n", 5]], ["n", None]),
    )
    for shapes, expected in cases:
        result = new_session(fused_model(program, shapes), session_options()).get_outputs()[0].shape
        assert [size if isinstance(size, int) or size in ("n", "m") else None for size in result] == expected


@pytest.mark.parametrize("shapes", [([1, 0], [3, 4]), ([3, 4], [1, 0]), ([1, 0], [2, 0]), ([0, 0], [3, 4])])
def test_a_part_of_nothing_has_whatever_other_sizes(shapes: tuple[list[int], list[int]]) -> None:
    """As ONNX Runtime's Concat takes them: a cache that is empty yet, of another batch."""
    program = "onnxfuse 2\ninput f32 broadcast\ninput f32 broadcast\nneg f32 0\noutput 2\nappend 1 -1\n"
    session = new_session(fused_model(program, [None, None]), session_options())
    feeds = {f"x{i}": np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for i, shape in enumerate(shapes)}
    parts = [-feeds["x0"], feeds["x1"]]
    expected = next((part for part in parts if part.shape[1]), parts[0])
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)


@pytest.mark.parametrize("shapes", [([2, 3], [3, 3]), ([2, 3], [3]), ([3], [3])])
def test_parts_that_do_not_fit(shapes: tuple[list[int], list[int]]) -> None:
    program = "onnxfuse 2\ninput f32 broadcast\ninput f32 broadcast\nneg f32 0\noutput 2\nappend 1 "
    axis = -1 if len(shapes[0]) == 2 else -2
    model = fused_model(f"{program}{axis}\n", [None, None])
    session = new_session(model, session_options())
    feeds = {f"x{i}": np.zeros(shape, np.float32) for i, shape in enumerate(shapes)}
    with pytest.raises(Exception, match="does not lie along axis"):
        session.run(None, feeds)
