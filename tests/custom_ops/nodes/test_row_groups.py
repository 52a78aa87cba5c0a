"""Reductions of rows that go through all phases in groups: what each row comes to, alone and beside others."""

import numpy as np
import pytest

from tests.custom_ops.nodes.test_reductions import check, normal, run_reduction

HEAD = ("onnxfuse 2", "input f32 broadcast")

PROGRAMS = {
    "a Softmax": ("reduce_max f32 0 -1", "sub f32 0 1", "exp f32 2", "reduce_sum f32 3 -1", "div f32 3 4", "output 5"),
    "a LayerNorm of a sum, which is a result too": (
        "input f32 broadcast",
        "add f32 0 1",
        "reduce_mean f32 2 -1",
        "sub f32 2 3",
        "reduce_mean f32 4 -1",
        "mul f32 4 4",
        "reduce_mean f32 6 -1",
        "mul f32 5 5",
        "sub f32 7 8",
        "const f32 3727c5ac",
        "add f32 9 10",
        "sqrt f32 11",
        "reciprocal f32 12",
        "sub f32 4 5",
        "mul f32 14 13",
        "output 15",
        "output 2",
        "output 3",
    ),
    "squares beside a sum": (
        "mul f32 0 0",
        "reduce_sum f32 1 -1",
        "reduce_sum f32 0 -1",
        "sqrt f32 2",
        "add f32 4 3",
        "mul f32 0 5",
        "output 6",
        "output 3",
    ),
    "what has no product": (
        "abs f32 0",
        "reduce_max f32 1 -1",
        "div f32 0 2",
        "reduce_min f32 3 -1",
        "sub f32 3 4",
        "output 5",
    ),
    "a value of each row that is given": (
        "input f32 broadcast",
        "mul f32 0 1",
        "reduce_sum f32 2 -1",
        "add f32 3 1",
        "mul f32 2 4",
        "reduce_mean f32 5 -1",
        "output 6",
        "output 5",
    ),
    "one that two phases read": (
        "tanh f32 0",
        "reduce_mean f32 1 -1",
        "mul f32 1 2",
        "exp f32 3",
        "reduce_max f32 4 -1",
        "add f32 4 1",
        "sub f32 6 5",
        "output 7",
    ),
    "nothing but reductions": (
        "reduce_min f32 0 -1",
        "sub f32 0 1",
        "mul f32 2 2",
        "reduce_sum f32 3 -1",
        "log f32 4",
        "output 5",
    ),
}


def text(program: str) -> str:
    return "\n".join((*HEAD, *PROGRAMS[program], ""))


def operands(program: str, rows: int, n: int) -> list[np.ndarray]:
    """Inputs of which sums that are results, or factors of these, do not cancel."""
    if "given" in program:
        return [np.abs(normal((rows, n))), np.abs(normal((rows, 1), 1))]
    if "squares" in program:
        return [np.abs(normal((rows, n)))]
    return [normal((rows, n), seed) for seed in range(1 + PROGRAMS[program].count("input f32 broadcast"))]


@pytest.mark.parametrize("n", [64, 65, 127, 128, 200, 256, 511, 768, 1024, 4095, 4096])
@pytest.mark.parametrize("program", PROGRAMS)
def test_rows_of_many_lengths(program: str, n: int) -> None:
    for rows in (1, 3, 16, 17, 150):
        check(text(program), operands(program, rows, n), 2e-5)


@pytest.mark.parametrize("n", [70, 256, 768])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_row_does_not_depend_on_the_others(program: str, n: int) -> None:
    arrays = operands(program, 39, n)
    together = run_reduction(text(program), arrays)
    for row in (0, 4, 15, 16, 38):
        alone = run_reduction(text(program), [array[row : row + 1].copy() for array in arrays])
        for one, others in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one[0], others[row])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, 1e-42])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_one_row_has_stays_in_it(program: str, value: float) -> None:
    arrays = operands(program, 21, 256)
    without = run_reduction(text(program), arrays)
    arrays[0][7, 200] = value
    for one, other in zip(without, run_reduction(text(program), arrays), strict=True):
        np.testing.assert_array_equal(np.delete(one, 7, 0), np.delete(other, 7, 0))


@pytest.mark.parametrize("n", [768, 1001])
@pytest.mark.parametrize("program", ["a Softmax", "a LayerNorm of a sum, which is a result too"])
def test_rows_past_the_caches(program: str, n: int) -> None:
    """Results are streamed, and the next rows fetched."""
    check(text(program), operands(program, 9000, n), 2e-5)
