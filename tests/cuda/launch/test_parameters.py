"""What a launch passes to a kernel, byte for byte, and on how many blocks."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.contract import Kernel, node_model
from tests.cuda.stand_in import AVAILABLE, REASON, Call, StandIn
from tests.custom_ops.fused import run, sample

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)

ANY = (Kernel("any", "gg:w", index=64),)
BY_6 = (6, 0x55555556, 3)  # 2^32 · (8 - 6) / 6 + 1, and 2^3 ≥ 6
BY_3 = (3, 0x55555556, 2)
BY_4 = (4, 1, 2)
BY_20 = (20, 0x9999999A, 5)
BY_1 = (1, 1, 0)


def launch(
    stand_in: StandIn,
    kernels: Sequence[Kernel],
    shapes: Sequence[Sequence[int]],
    axes: Sequence[int | None] | None = None,
) -> Call:
    """The one launch of a node with these kernels, whose result is checked too."""
    session = stand_in.session(node_model(kernels, shapes, axes))
    stand_in.launches()
    arrays = [
        sample("f32", int(np.prod(shape)), seed, special=False).reshape(shape) for seed, shape in enumerate(shapes)
    ]
    results = run(session, arrays)
    if axes is None:
        for inputs, result in zip(kernels[0].sums, results, strict=True):
            np.testing.assert_array_equal(result, sum(arrays[int(i)] for i in inputs))
    (only,) = stand_in.launches()
    return only


def after_pointers(call: Call, operands: int) -> bytes:
    return bytes.fromhex(call["parameters"])[8 * operands :]


def words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def longs(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def test_pointers_are_the_tensors(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    session = stand_in.session(node_model([Kernel("k", "ll:l"), *ANY], [[7], [7]]))
    a, b = np.arange(7, dtype=np.float32), np.ones(7, np.float32)
    stand_in.launches()
    run(session, [a, b])
    (call,) = stand_in.launches()
    pointers = struct.unpack_from("<3Q", bytes.fromhex(call["parameters"]))
    assert pointers[:2] == (a.ctypes.data, b.ctypes.data)
    assert pointers[2] not in pointers[:2]
    assert after_pointers(call, 3) == words(7)


@pytest.mark.parametrize(
    ("access", "shapes", "axes", "numbers"),
    [
        ("ls:l", [[4, 6], [1]], None, [24]),
        ("li:l", [[4, 6], [6]], None, [24, *BY_6]),
        ("li:l", [[4, 6], [1, 1]], None, [24, *BY_1]),
        ("lo:l", [[4, 6], [4, 1]], None, [24, *BY_6]),
        ("lo:l", [[4, 6], [4, 6]], None, [24, *BY_1]),
        ("lo:l", [[20], [1]], None, [20, *BY_20]),
        ("lc:l", [[2, 3, 4, 5], [3]], [None, -3], [120, *BY_20, *BY_3]),
        ("lc:l", [[2, 3, 4], [3, 4]], None, [24, *BY_1, 12, 0x55555556, 4]),
        ("lc:l", [[3, 2, 10], [3, 1, 1]], None, [60, *BY_20, *BY_3]),
        ("lc:l", [[20], [1]], None, [20, *BY_20, *BY_1]),
        ("oi:l", [[3, 1], [1, 4]], None, [12, *BY_4, *BY_4]),
        ("cl:l", [[3, 1], [2, 3, 20]], None, [120, *BY_20, *BY_3]),
    ],
)
def test_divisors(
    access: str, shapes: list[list[int]], axes: list[int | None] | None, numbers: list[int], tmp_path: Path
) -> None:
    call = launch(StandIn(tmp_path), [Kernel("k", access), *ANY], shapes, axes)
    assert call["kernel"] == "k"
    assert after_pointers(call, 3) == words(*numbers)


def test_divisors_of_64_bits(tmp_path: Path) -> None:
    call = launch(StandIn(tmp_path), [Kernel("k", "lc:l", index=64), *ANY], [[2, 3, 20], [3, 1]])
    assert after_pointers(call, 3) == longs(120, 20, 3)


def test_strides(tmp_path: Path) -> None:
    call = launch(StandIn(tmp_path), [Kernel("k", "gg:w"), *ANY], [[2, 3, 4], [2, 1, 4]])
    space = [3, *BY_4, *BY_3, 2, 1, 1, *BY_1 * 13]
    steps = [1, 4, 12, *[0] * 13], [1, 0, 4, *[0] * 13], [1, 4, 12, *[0] * 13]
    assert after_pointers(call, 3) == words(24, *space, *steps[0], *steps[1], *steps[2])


def test_strides_of_64_bits(tmp_path: Path) -> None:
    call = launch(StandIn(tmp_path), ANY, [[2, 3, 4], [2, 1, 4]])
    steps = [1, 4, 12, *[0] * 13], [1, 0, 4, *[0] * 13], [1, 4, 12, *[0] * 13]
    assert after_pointers(call, 3) == longs(24) + words(3, 0) + longs(
        4, 3, 2, *[1] * 13, *steps[0], *steps[1], *steps[2]
    )


def test_an_output_smaller_than_the_space(tmp_path: Path) -> None:
    kernels = [Kernel("k", "li:lw", ("01", "1")), Kernel("any", "gg:ww", ("01", "1"), index=64)]
    call = launch(StandIn(tmp_path), kernels, [[3, 4], [4]])
    assert after_pointers(call, 4) == words(12, *BY_4, 2, *BY_4, *BY_3, *BY_1 * 14, 1, 0, *[0] * 14)


def test_one_element(tmp_path: Path) -> None:
    call = launch(StandIn(tmp_path), [Kernel("k", "ss:l"), *ANY], [[1, 1], []])
    assert call["grid"] == 1
    assert after_pointers(call, 3) == words(1)


def test_no_inputs(tmp_path: Path) -> None:
    kernels = [Kernel("k", ":l", ("",)), Kernel("any", ":w", ("",), index=64)]
    model = node_model(kernels, [])
    model.graph.node[0].attribute[0].s = b"onnxfuse 1\nconst f32 00000000\noutput 0\n"
    stand_in = StandIn(tmp_path)
    session = stand_in.session(model)
    stand_in.launches()
    assert run(session, [])[0] == 0
    (call,) = stand_in.launches()
    assert after_pointers(call, 1) == words(1)


@pytest.mark.parametrize(
    ("count", "block", "vector", "grid"),
    [(2, 256, 4, 1), (1024, 256, 4, 1), (1025, 256, 4, 2), (1025, 32, 1, 33), (5000, 32, 1, 157)],
)
def test_grid(count: int, block: int, vector: int, grid: int, tmp_path: Path) -> None:
    """Enough blocks for one vector a thread, however many multiprocessors there are."""
    kernel = Kernel("k", "ll:l", block=block, vector=vector)
    call = launch(StandIn(tmp_path, [(9, 0, 3)]), [kernel, *ANY], [[count], [count]])
    assert (call["grid"], call["block"]) == (grid, block)
