"""The passes over a row in which a Program that reduces is computed, and what they keep."""

import random

import numpy as np
import pytest

from onnxfuse.program import Input, Program, ProgramBuilder, ProgramError
from onnxfuse.program.nests import describe, leaves, needed, nest
from onnxfuse.program.strides import dense, output_shape, read_by
from onnxfuse.program.view_steps import parse_steps, viewed
from tests.cuda.nest.programs import chains, integers, random_nest


def _softmax(dtype: str) -> Program:
    return chains(dtype)["log softmax"].program


def _layer_norm(dtype: str) -> Program:
    return chains(dtype)["layer norm, residual, gelu"].program


def test_softmax_takes_three_passes_and_keeps_what_is_less() -> None:
    b = ProgramBuilder()
    x, mask = b.input("f32"), b.input("f32")
    scaled = b.emit("add", "f32", b.emit("mul", "f32", x, b.const("f32", 0.125)), mask)
    power = b.emit("exp", "f32", b.emit("sub", "f32", scaled, b.reduce("reduce_max", scaled, [-1])))
    y = b.emit("div", "f32", power, b.reduce("reduce_sum", power, [-1]))
    found = nest(b.build([y]))
    assert [one.reads for one in found.passes] == [(0, 1), (), ()]
    assert len(found.kept) == 2 and found.kept_bytes == 4  # the sum, and later in its place the exponential
    assert (found.read_bytes, found.input_bytes, found.written_bytes) == (8, 8, 4)
    again = nest(found.program, keeps=False)
    assert again.kept == () and again.read_bytes == 24
    assert [one.reads for one in again.passes] == [(0, 1)] * 3


def test_a_nest_in_a_line() -> None:
    assert (
        describe(_softmax("f32")) == "3 passes over rows along the last axis; 4 bytes of an element kept between them"
    )
    b = ProgramBuilder()
    assert describe(b.build([b.reduce("reduce_sum", b.input("f32"), [-3])])) == "1 pass over columns along axis -3"
    b = ProgramBuilder()
    assert describe(b.build([b.emit("exp", "f32", b.input("f32"))])) == ""


@pytest.mark.parametrize(("dtype", "kept_bytes"), [("f32", 4), ("f16", 2)])
def test_what_is_cheap_is_computed_again_from_what_lies_in_memory(dtype: str, kept_bytes: int) -> None:
    """Of an L2 norm the input as it is stored, not its value in float32."""
    found = nest(chains(dtype)["l2 normalize"].program)
    assert found.kept == (0,) and found.kept_bytes == kept_bytes


def test_what_only_the_last_pass_needs_is_read_there() -> None:
    program = _layer_norm("f32")
    found = nest(program, rows=())
    assert [one.reads for one in found.passes] == [(0, 1), (), (2, 3)]
    assert [one.writes for one in found.passes] == [(1,), (), (0,)]  # the sum as soon as it is known


def test_values_of_rows_are_computed_once_a_row() -> None:
    program = chains("f32")["deviation of rows"].program
    found = nest(program)
    assert found.passes[-1].is_empty and found.passes[-1].row_writes == (0, 1)
    assert all(value in found.row_values for value in program.outputs)
    scaled = nest(chains("f32")["instance norm, relu"].program, rows=(1, 2))
    assert {1, 2} <= scaled.row_values and {1, 2} <= set(scaled.passes[0].rows)


def test_a_value_of_rows_is_not_reduced() -> None:
    with pytest.raises(ProgramError, match="line 3: 'reduce_max f32 0 -1' reduces a value of rows"):
        nest(_softmax("f32"), rows=(0,))


def test_indices_are_not_kept() -> None:
    program = integers("i32").program
    found = nest(program)
    (index,) = (value for value in leaves(program) if value)
    assert index in needed(program) and index not in found.kept
    assert [index in one.reads for one in found.passes] == [False, True, False]


@pytest.mark.parametrize("seed", range(200))
def test_every_value_is_known_before_it_is_used(seed: int) -> None:
    program, _ = random_nest(seed)
    for keeps in (True, False):
        found = nest(program, keeps=keeps)
        seen: set[int] = set()  # of elements
        rows: set[int] = set()
        reduced: set[int] = set()
        for one in found.passes:
            for value in one.rows:
                operands = () if value in leaves(program) else getattr(program.values[value], "operands", ())
                assert all(operand in rows or value in reduced for operand in operands)
                rows.add(value)
            known = {*one.reads, *one.uses}
            assert set(one.uses) <= seen & set(found.kept)
            for value in one.computes:
                assert set(program.values[value].operands) <= known | rows  # type: ignore[union-attr]
                known.add(value)
            assert {program.values[value].operand for value in one.reduces} <= known  # type: ignore[union-attr]
            assert {program.outputs[place] for place in one.writes} <= known
            assert {program.outputs[place] for place in one.row_writes} <= rows
            reduced |= set(one.reduces)
            seen |= known
        written = [place for one in found.passes for place in (*one.writes, *one.row_writes)]
        assert sorted(written) == list(range(len(program.outputs)))
        assert keeps or not found.kept


def _random_steps(rng: random.Random, array: np.ndarray) -> str:
    steps = []
    for _ in range(rng.randint(1, 5)):
        rank = array.ndim
        choices = ["permute"] * (rank > 1) + ["split", "slice"] * (rank > 0) + ["unsqueeze"] + ["merge"] * (rank > 1)
        axis = -rng.randint(1, max(rank, 1))
        size = array.shape[axis] if rank else 1
        match rng.choice(choices):
            case "permute":
                step = "permute:" + ".".join(map(str, rng.sample(range(rank), rank)))
            case "split":
                inner = rng.choice([part for part in range(1, size + 1) if size % part == 0] or [1])
                step = f"split:{axis}:-1:{inner}"
            case "slice":
                step = f"slice:{axis}:{rng.randint(-3, 3)}:{rng.randint(-2, 9)}:{rng.randint(1, 3)}"
            case "merge":
                step = f"merge:{-rng.randint(2, rank)}"
            case _:
                step = f"unsqueeze:{axis}"
        try:
            array = viewed(array, parse_steps(step))
        except ValueError:
            continue
        steps.append(step)
    return ",".join(steps) or "unsqueeze:-1"


@pytest.mark.parametrize("seed", range(300))
def test_views_are_strides(seed: int) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.choice((1, 2, 3, 4, 6)) for _ in range(rng.randint(1, 4)))
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    spec = Input("f32", view=parse_steps(_random_steps(rng, array)))
    wanted = viewed(array, spec.view)
    try:
        found = read_by(spec, shape)
    except ProgramError as error:
        assert "does not step evenly" in str(error)
        return
    assert found.sizes == wanted.shape
    places = sum(
        (np.arange(size).reshape([-1 if d == dim else 1 for d in range(wanted.ndim)]) * found.steps[dim])
        for dim, size in enumerate(found.sizes)
    )
    if wanted.size:
        np.testing.assert_array_equal(np.broadcast_to(array.reshape(-1)[places + found.offset], wanted.shape), wanted)


@pytest.mark.parametrize(
    ("view", "shape", "problem"),
    [
        ("permute:1.0,merge:-2", (2, 3), "'merge:-2' does not step evenly through memory"),
        ("split:-1:4:-1", (2, 6), "6 elements does not split into 4 and -1"),
        ("squeeze:-1", (2, 6), "'squeeze:-1' of an axis of 6 elements"),
        ("merge:-3", (2, 6), "there is no axis -3 of 2"),
        ("permute:1.0", (2,), "'permute:1.0' of a tensor of 1 dimensions"),
    ],
)
def test_views_that_are_no_strides(view: str, shape: tuple[int, ...], problem: str) -> None:
    with pytest.raises(ProgramError, match=problem):
        read_by(Input("f32", view=parse_steps(view)), shape)


def test_halves_are_no_strides() -> None:
    with pytest.raises(ProgramError, match="halves"):
        read_by(Input("f32", swaps_halves=True), (4,))


def test_shapes_of_outputs() -> None:
    assert output_shape((2, 3, 4), parse_steps("merge:-2")) == (2, 12)
    assert dense((2, 3)).steps == (3, 1)
    with pytest.raises(ProgramError, match="of an output"):
        output_shape((2, 3), parse_steps("split:-1:2:-1"))
