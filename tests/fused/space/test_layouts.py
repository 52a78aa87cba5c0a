"""How dimensions belong together, and the steps between tensors and a region's space."""

import numpy as np
import pytest

from onnxfuse.fused.space.layouts import Atom, LayoutError, broadcast, layout_of, reshaped, settled, unify
from onnxfuse.fused.space.steps import steps_into, steps_out_of
from onnxfuse.program.view_steps import viewed


def sizes(layout: object) -> list[list[object]]:
    """The sizes of a layout's atoms."""
    return [[atom.size for atom in dim] for dim in settled(layout)]  # type: ignore[arg-type]


def test_dimensions_of_one_element_have_no_axis() -> None:
    assert sizes(layout_of((1, 5, "n"))) == [[], [5], ["n"]]


def test_broadcasting_makes_dimensions_one() -> None:
    first, second = layout_of(("n", 1, 5)), layout_of((7, 5))
    result, joins = broadcast([first, second])
    assert not joins
    assert sizes(result) == [["n"], [7], [5]]
    assert settled(first)[2] == settled(second)[1] == result[2]


@pytest.mark.parametrize(("first", "second"), [("n", "m"), ("n", 5), (6, 5), (0, 5)])
def test_sizes_that_are_not_known_to_be_the_same(first: object, second: object) -> None:
    with pytest.raises(LayoutError):
        broadcast([layout_of((first,)), layout_of((second,))])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (("n", 64, "h", "w"), ("n", 8, ("unknown",)), [["n"], [8], [8, "h", "w"]]),
        (("n", 8, 6), (("unknown",), 48), [["n"], [8, 6]]),
        (("n", 12), ("n", 3, 1, 4), [["n"], [3], [], [4]]),
        (("n", "m"), ("n", ("unknown",), 1), [["n"], ["m"], []]),
    ],
)
def test_reshaping_groups_axes_anew(before: tuple, after: tuple, expected: list) -> None:
    assert sizes(reshaped(layout_of(before), after)) == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [(("n", 12), (("unknown", 0), ("unknown", 1))), ((6, 4), (8, 3)), ((0, 4), (4, 0)), ((4, 0), (2, 0))],
)
def test_reshaping_that_is_no_grouping(before: tuple, after: tuple) -> None:
    with pytest.raises(LayoutError):
        reshaped(layout_of(before), after)


def test_one_dimension_as_two_of_another_tensor() -> None:
    whole, parts = layout_of((24,)), layout_of((4, 6))
    unify(whole[0], (parts[0][0], parts[1][0]))
    assert settled(whole) == (settled(parts)[0] + settled(parts)[1],)
    assert sizes(whole) == [[4, 6]]


def test_steps_lead_into_the_space_and_out_of_it() -> None:
    n, g, c, h = (Atom(size) for size in (2, 3, 4, 5))
    space = (n, g, c, h)
    array = np.arange(120).reshape(2, 12, 5)
    layout = ((n,), (g, c), (h,))
    inside = viewed(array, steps_into(layout, space))
    assert inside.shape == (2, 3, 4, 5)
    np.testing.assert_array_equal(viewed(inside, steps_out_of(space, 4, layout)), array)
    vector = viewed(np.arange(12), steps_into(((g, c),), space))
    assert vector.shape == (3, 4, 1)
    other = viewed(array.transpose(2, 0, 1), steps_into(((h,), (n,), (g, c)), space))
    np.testing.assert_array_equal(other, inside)
    row = inside.max((-2, -1), keepdims=True)
    assert viewed(row, steps_out_of(space, 4, ((n,), (g,)))).shape == (2, 3)
    assert viewed(row, steps_out_of(space, 4, ((n,), (), (g,), ()))).shape == (2, 1, 3, 1)


def test_a_tensor_that_broadcasts_as_it_is_takes_no_steps() -> None:
    n, m = Atom("n"), Atom("m")
    assert steps_into(((n,), (m,)), (n, m)) == steps_into(((), (m,)), (n, m)) == steps_into(((m,),), (n, m)) == ()
    assert [str(step) for step in steps_into(((n,),), (n, m))] == ["unsqueeze:-1"]


def test_two_sizes_that_are_not_known_are_not_taken_apart() -> None:
    n, m = Atom("n"), Atom("m")
    with pytest.raises(LayoutError):
        steps_into(((n, m),), (n, m))
    assert [str(step) for step in steps_out_of((n, m), 2, ((n, m),))] == ["merge:-2"]


def test_a_result_in_another_order_is_none() -> None:
    n, m = Atom("n"), Atom("m")
    with pytest.raises(LayoutError):
        steps_out_of((n, m), 2, ((m,), (n,)))
