"""Which kernel of a recipe takes which tensors, and that the right results come out of it."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.contract import Kernel, node_model
from tests.cuda.stand_in import AVAILABLE, REASON, StandIn
from tests.custom_ops.fused import run, sample

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)

ANY = Kernel("any", "gg:w", index=64)
NARROW = Kernel("narrow", "gg:w")


def float_array(shape: list[int], seed: int = 0) -> np.ndarray:
    return sample("f32", int(np.prod(shape)), seed, special=False).reshape(shape)


def unaligned(array: np.ndarray) -> np.ndarray:
    """The same values, one element beyond an aligned address."""
    memory = np.empty(array.size + 16, np.float32)
    start = (-memory.ctypes.data // 4) % 16 + 1
    view = memory[start : start + array.size].reshape(array.shape)
    view[...] = array
    return view


RECIPES = {
    "vectors": [Kernel("v4", "ll:l", vector=4), Kernel("v1", "ll:l"), NARROW, ANY],
    "rows": [Kernel("v4", "li:l", vector=4), Kernel("v1", "li:l"), NARROW, ANY],
    "columns": [Kernel("v4", "lo:l", vector=4), Kernel("v1", "lo:l"), NARROW, ANY],
    "channels": [Kernel("v2", "lc:l", vector=2), Kernel("v1", "lc:l"), NARROW, ANY],
    "scalars": [Kernel("v4", "ls:l", vector=4), Kernel("v1", "ls:l"), NARROW, ANY],
    "outer product": [Kernel("v4", "oi:l", vector=4), Kernel("v1", "oi:l"), NARROW, ANY],
    "general vectors": [Kernel("v4", "gg:l", vector=4), Kernel("v1", "gg:l"), NARROW, ANY],
}


@pytest.mark.parametrize("name", RECIPES)
def test_any_broadcast(name: str, tmp_path: Path) -> None:
    """Dynamic shapes of rank 3: whatever kernel is chosen, the results are NumPy's."""
    stand_in = StandIn(tmp_path)
    session = stand_in.session(node_model(RECIPES[name], [["a", "b", "c"], ["d", "e", "f"]]))
    stand_in.launches()
    for sizes in itertools.product((1, 3), (1, 4), (1, 8), (1, 3), (1, 4), (1, 8)):
        a, b = float_array(list(sizes[:3]), 1), float_array(list(sizes[3:]), 2)
        (result,) = run(session, [a, b])
        np.testing.assert_array_equal(result, a + b, err_msg=f"{sizes} {stand_in.launches()}")
    assert not stand_in.launches()


@pytest.mark.parametrize(
    ("name", "shapes", "kernel"),
    [
        ("vectors", [[3, 4], [3, 4]], "v4"),
        ("vectors", [[3, 4], [4]], "narrow"),
        ("rows", [[3, 4], [4]], "v4"),
        ("rows", [[3, 5], [5]], "v1"),
        ("rows", [[3, 4], [3, 4]], "v4"),
        ("rows", [[3, 4], [1]], "v1"),
        ("rows", [[3, 4], [3, 1]], "narrow"),
        ("columns", [[3, 4], [3, 1]], "v4"),
        ("columns", [[3, 5], [3, 1]], "v1"),
        ("columns", [[3, 4], [1]], "v4"),
        ("columns", [[5], [1]], "v1"),
        ("columns", [[3, 4], [3, 4]], "v1"),
        ("columns", [[3, 4], [4]], "narrow"),
        ("channels", [[2, 3, 4], [3, 1]], "v2"),
        ("channels", [[2, 3, 5], [3, 1]], "v1"),
        ("channels", [[2, 3, 4], [4]], "v1"),
        ("channels", [[2, 3, 4], [2, 1, 1]], "v2"),
        ("channels", [[2, 3, 4], [2, 1, 4]], "narrow"),
        ("scalars", [[3, 4], []], "v4"),
        ("scalars", [[3, 4], [1, 4]], "narrow"),
        ("outer product", [[3, 1], [1, 4]], "v4"),
        ("outer product", [[3, 1], [1, 5]], "v1"),
        ("general vectors", [[2, 3, 4], [2, 1, 4]], "v4"),
        ("general vectors", [[2, 3, 5], [2, 1, 5]], "v1"),
        ("general vectors", [[2, 1, 4], [2, 3, 1]], "v4"),
        ("general vectors", [[1], [1]], "v1"),
    ],
)
def test_choice(name: str, shapes: list[list[int]], kernel: str, tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    session = stand_in.session(node_model(RECIPES[name], shapes))
    stand_in.launches()
    arrays = [float_array(shape, seed) for seed, shape in enumerate(shapes)]
    np.testing.assert_array_equal(run(session, arrays)[0], arrays[0] + arrays[1])
    assert [call["kernel"] for call in stand_in.launches()] == [kernel]


def test_unaligned_tensors_fall_through_to_a_kernel_without_vectors(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    kernels = [
        Kernel("v8", "li:l", vector=8),
        Kernel("v2", "li:l", vector=2),
        Kernel("v4s", "lo:l", vector=4),
        Kernel("v1", "li:l"),
        ANY,
    ]
    session = stand_in.session(node_model(kernels, [["n", "m"], ["k", "l"]]))
    stand_in.launches()

    def chosen(a: np.ndarray, b: np.ndarray) -> str:
        np.testing.assert_array_equal(run(session, [a, b])[0], a + b)
        (call,) = stand_in.launches()
        return call["kernel"]

    a, b = float_array([4, 8], 1), float_array([1, 8], 2)
    apart = np.empty(40, np.float32)
    by_8 = apart[(-apart.ctypes.data // 4) % 4 + 2 :][:8].reshape(1, 8)  # 8 bytes beyond an address of 16
    by_8[...] = b
    assert chosen(a, b) == "v8"
    assert chosen(a, by_8) == "v2"
    assert chosen(a, unaligned(b)) == "v1"
    assert chosen(unaligned(a), b) == "v1"
    column = float_array([4, 1], 3)
    assert chosen(a, unaligned(column)) == "v4s"
    assert chosen(a, b) == "v8"


def test_unaligned_tensors_of_general_access(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    session = stand_in.session(node_model(RECIPES["general vectors"], [[2, 3, 4], [2, 1, 4]]))
    a, b = float_array([2, 3, 4], 1), float_array([2, 1, 4], 2)
    for x, y, kernel in ((a, b, "v4"), (unaligned(a), b, "v1"), (a, unaligned(b), "v1")):
        stand_in.launches()
        np.testing.assert_array_equal(run(session, [x, y])[0], a + b)
        assert [call["kernel"] for call in stand_in.launches()] == [kernel]


def test_outputs_of_different_shapes(tmp_path: Path) -> None:
    sums = ("01", "1", "0")
    kernels = [Kernel("k", "li:lwl", sums), Kernel("n", "gg:www", sums), Kernel("any", "gg:www", sums, index=64)]
    stand_in = StandIn(tmp_path)
    session = stand_in.session(node_model(kernels, [["n", "m"], ["k", "l"]]))
    for shape in ([1, 4], [3, 1], [1, 1], [3, 4]):
        a, b = float_array([3, 4], 1), float_array(shape, 2)
        both, second, first = run(session, [a, b])
        np.testing.assert_array_equal(both, a + b)
        np.testing.assert_array_equal(second, b)
        np.testing.assert_array_equal(first, a)


def test_no_elements(tmp_path: Path) -> None:
    """Nothing is launched for nothing; what has elements all the same is computed on the CPU."""
    sums = ("01", "1")
    stand_in = StandIn(tmp_path)
    kernels = [Kernel("any", "gg:ww", sums, index=64)]
    session = stand_in.session(node_model(kernels, [["n", 3], ["m", 3]]))
    stand_in.calls()
    nothing, row = np.zeros((0, 3), np.float32), float_array([1, 3])
    both, second = run(session, [nothing, nothing])
    assert both.shape == second.shape == (0, 3)
    assert not stand_in.calls()
    both, second = run(session, [nothing, row])
    assert both.shape == (0, 3)
    np.testing.assert_array_equal(second, row)
    assert not stand_in.launches()


def test_shapes_without_a_common_space_are_refused(tmp_path: Path) -> None:
    """Inputs that meet in no output need not fit each other on the CPU; kernels have one space for all."""
    sums = ("0", "1")
    stand_in = StandIn(tmp_path)
    session = stand_in.session(node_model([Kernel("any", "gg:ww", sums, index=64)], [["n"], ["m"]]))
    with pytest.raises(Exception, match=r"the_fused_node'.*input 1 of shape \[3\] does not broadcast"):
        run(session, [float_array([2]), float_array([3])])
    with pytest.raises(Exception, match=r"the_fused_node'.*do not broadcast"):
        run(stand_in.session(node_model([ANY], [["n"], ["m"]])), [float_array([2]), float_array([3])])


def test_more_elements_than_a_launch_has_threads_for_are_refused(tmp_path: Path) -> None:
    """A grid has less than 2^31 blocks, here of 128 threads; both outputs are small."""
    session = StandIn(tmp_path).session(
        node_model([Kernel("any", "gg:ww", ("0", "1"), index=64)], [["n", 1], [1, "m"]])
    )
    a, b = np.zeros((1 << 19, 1), np.float32), np.zeros((1, 1 << 19), np.float32)
    with pytest.raises(Exception, match=rf"the_fused_node'.*{1 << 38} elements are too many for one launch"):
        run(session, [a, b])
