"""What one chain makes of columns is reduced in registers, and rows of several runs are one chain."""

import numpy as np
import pytest

from tests.custom_ops.nodes.test_reductions import check, normal, run_reduction

HEAD = ("onnxfuse 2", "input f32 broadcast")

COLUMNS = {
    "a mean of SiLU": ("sigmoid f32 0", "mul f32 0 1", "reduce_mean f32 2 -2", "output 3"),
    "squares of differences from a vector": (
        "input f32 broadcast",
        "sub f32 0 1",
        "mul f32 2 2",
        "reduce_sum f32 3 -2",
        "sqrt f32 4",
        "output 5",
    ),
    "magnitudes": ("exp f32 0", "sub f32 1 0", "abs f32 2", "reduce_sum f32 3 -2", "output 4"),
    "the greatest, with a factor for each row": (
        "input f32 broadcast",
        "mul f32 0 1",
        "reduce_max f32 2 -2",
        "output 3",
    ),
    "the least of two tensors": ("input f32 broadcast", "add f32 0 1", "reduce_min f32 2 -2", "output 3"),
    "a product": ("tanh f32 0", "const f32 3f800000", "add f32 1 2", "reduce_prod f32 3 -2", "output 4"),
    "what is a result too": ("sigmoid f32 0", "mul f32 0 1", "reduce_mean f32 2 -2", "output 3", "output 2"),
    "what a later phase reads": ("exp f32 0", "reduce_sum f32 1 -2", "div f32 1 2", "output 3"),
}


def text(program: str) -> str:
    return "\n".join((*HEAD, *COLUMNS[program], ""))


def operands(program: str, batch: int, rows: int, columns: int) -> list[np.ndarray]:
    others = {"a vector": (1, 1, columns), "each row": (batch, rows, 1), "two tensors": (batch, rows, columns)}
    shapes = [shape for name, shape in others.items() if name in program]
    return [normal(shape, seed) for seed, shape in enumerate([(batch, rows, columns), *shapes])]


@pytest.mark.parametrize("columns", [128, 131, 784, 1000, 3136, 4100])
@pytest.mark.parametrize("program", COLUMNS)
def test_columns(program: str, columns: int) -> None:
    for batch, rows in ((1, 2), (3, 15), (2, 16), (1, 17), (2, 100)):
        check(text(program), operands(program, batch, rows, columns), 2e-5)


@pytest.mark.parametrize(
    "program", ["a mean of SiLU", "the greatest, with a factor for each row", "the least of two tensors"]
)
def test_numbers_that_are_none_and_infinities_stay_in_their_columns(program: str) -> None:
    arrays = operands(program, 2, 40, 300)
    clean = run_reduction(text(program), arrays)[0]
    arrays[0][0, 17, 5] = np.nan
    arrays[0][1, 39, 299] = np.inf
    arrays[0][1, 0, 0] = -np.inf
    (result,) = run_reduction(text(program), arrays)
    touched = [(0, 0, 5), (1, 0, 299), (1, 0, 0)]
    assert np.isnan(result[touched[0]])
    for place in touched:
        result[place] = clean[place]
    np.testing.assert_array_equal(result, clean)


GROUP_NORM = """onnxfuse 2
input f32 view split:-3:{groups}:-1
input f32 view split:-1:{groups}:-1,unsqueeze:-1,unsqueeze:-2
input f32 view split:-1:{groups}:-1,unsqueeze:-1,unsqueeze:-2
reduce_mean f32 0 -3,-2,-1
sub f32 0 3
reduce_mean f32 4 -3,-2,-1
mul f32 4 4
reduce_mean f32 6 -3,-2,-1
mul f32 5 5
sub f32 7 8
sub f32 4 5
const f32 3727c5ac
add f32 9 11
sqrt f32 12
reciprocal f32 13
mul f32 10 14
mul f32 15 1
add f32 16 2
sigmoid f32 17
mul f32 17 18
output 19 view merge:-4
"""


@pytest.mark.parametrize("size", [(8, 16), (32, 32), (56, 56), (64, 65)])
@pytest.mark.parametrize(("batch", "channels", "groups"), [(1, 320, 32), (3, 48, 2), (40, 12, 3)])
def test_group_normalization_with_a_factor_and_a_shift_for_each_channel(
    batch: int, channels: int, groups: int, size: tuple[int, int]
) -> None:
    """A row has the runs of several channels; where rows are few, threads share each."""
    arrays = [normal((batch, channels, *size)) + 3, normal((channels,), 1), normal((channels,), 2)]
    check(GROUP_NORM.format(groups=groups), arrays, 2e-5)


NORMALIZED = """onnxfuse 2
input f32 broadcast
input f32 broadcast
reduce_mean f32 0 -2,-1
sub f32 0 2
mul f32 3 3
reduce_mean f32 4 -2,-1
const f32 3c23d70a
add f32 5 6
sqrt f32 7
div f32 3 8
mul f32 9 1
output 10
"""


@pytest.mark.parametrize("scale", [(1, 1), (1, "n"), ("c", 1), ("c", "n")])
@pytest.mark.parametrize("sizes", [(3, 200), (3, 9000), (10, 1000), (64, 784)])
@pytest.mark.parametrize("batch", [1, 2, 20])
def test_rows_of_runs_that_share_an_operand(batch: int, sizes: tuple[int, int], scale: tuple[int | str, ...]) -> None:
    """A vector that each run of a row reads, and a number of each run, also where there is one row alone."""
    shape = [{"c": sizes[0], "n": sizes[1]}.get(size, 1) for size in scale]
    arrays = [normal((batch, *sizes)) + 1, normal((1, *shape), 1)]
    check(NORMALIZED, arrays, 2e-5)
