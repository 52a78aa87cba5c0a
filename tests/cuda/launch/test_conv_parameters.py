"""Which kernel of a convolution's recipe takes which tensors, on how many blocks, and with which parameters.

The native library is held against ``onnxfuse.cuda.conv.arguments``, byte for byte.
"""

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from onnxfuse.cuda.conv.arguments import choose, tightest
from onnxfuse.cuda.conv.kernel import FAMILIES, ConvKernel
from tests.cuda.conv.convolutions import MULTIPROCESSORS, Fused, convolution, raw, tail
from tests.cuda.conv.nodes import (
    any_kernel,
    arrays_of,
    check_launches,
    conv_kernel,
    node_case,
    stub_model,
)
from tests.cuda.conv.products import product_case
from tests.cuda.conv.test_emulation import any_case, depthwise_case
from tests.cuda.stand_in import AVAILABLE, REASON, StandIn
from tests.custom_ops.fused import run

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)


def letters_for(rng: random.Random, fused: Fused) -> str:
    """Access letters, most of which take the operands."""
    layout = fused.layout()
    halves = []
    for operands, space in ((layout.prologue, layout.x_space), (layout.epilogue, layout.y_space)):
        tight = tightest(operands, space, layout.conv.channels_last)
        halves.append("".join(rng.choice((letter, letter, letter, "g", rng.choice("lscog"))) for letter in tight))
    return ";".join(halves)


def random_kernel(rng: random.Random, number: int, fused: Fused) -> ConvKernel:
    family = rng.choice(("gemm", "gemm", "depthwise", "direct", "any"))
    index = rng.choice((32, 32, 64))
    plain = family == "any"
    return conv_kernel(
        f"k{number}",
        family,
        letters_for(rng, fused),
        tile=(1, 1, 1) if plain else (rng.randint(1, 9), rng.randint(1, 40), rng.randint(1, 40)),
        block=32 * rng.randint(1, 8),
        split=rng.randint(2, 9) if family == "gemm" and rng.random() < 0.7 else 1,
        vector=1 if plain or index == 64 else rng.choice((1, 2, 2, 4, 8)),
        index=index,
    )


def random_case(seed: int) -> Fused:
    return node_case((any_case, depthwise_case, product_case)[seed % 3], seed)


def random_recipe(rng: random.Random, fused: Fused) -> list[ConvKernel]:
    kernels = [random_kernel(rng, number, fused) for number in range(6)]
    return [*kernels, any_kernel(str(kernels[0].access))]


def displaced(rng: random.Random, array: np.ndarray) -> np.ndarray:
    """The same values, at an address that is a multiple of 64 bytes, or 1 to 4 elements behind one."""
    memory = np.empty((array.size + 4) * array.itemsize + 64, np.uint8)
    start = -memory.ctypes.data % 64 + rng.choice((0, 0, 0, 1, 2, 4)) * array.itemsize
    view = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


@pytest.mark.parametrize("seed", range(40))
def test_any_recipe(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    fused = random_case(seed)
    kernels = random_recipe(rng, fused)
    stand_in = StandIn(tmp_path, [(9, 0, MULTIPROCESSORS)])
    session = stand_in.session(stub_model(fused, kernels))
    stand_in.launches()
    for _ in range(4):
        run(session, [displaced(rng, array) for array in arrays_of(fused)])
        check_launches(stand_in.launches(), stand_in.scratch(), fused, kernels)


def test_every_family_is_among_them() -> None:
    """Else the test above would prove little."""
    chosen = set()
    for seed in range(40):
        rng = random.Random(seed)
        fused = random_case(seed)
        layout = fused.layout()
        aligned = [0] * (2 + len(layout.prologue) + len(layout.epilogue) + len(layout.outputs))
        chosen.add(choose(random_recipe(rng, fused), layout, aligned).family)
    assert chosen == set(FAMILIES)


SMALL = Fused(convolution("f32", (4, 6), (3, 3), strides=(2, 1), pads=(1, 0, 1, 2)), (2, 4, 9, 8), raw("f32"))


def test_the_shape_of_a_launch(tmp_path: Path) -> None:
    """What ``ConvShape`` holds, written down once more by hand."""
    stand_in = StandIn(tmp_path)
    session = stand_in.session(stub_model(SMALL, [conv_kernel("k", "any", ";"), any_kernel(";")]))
    stand_in.launches()
    x, w = arrays_of(SMALL)
    run(session, [x, w])
    (call,) = stand_in.launches()
    block = bytes.fromhex(call["parameters"])
    pointers = struct.unpack_from("<4Q", block)
    assert pointers[:2] == (x.ctypes.data, w.ctypes.data)
    assert pointers[3] == 0
    sizes = (2, 1, 9, 8, 1, 5, 8, 0, 1, 0, 1)
    dividers = (8, 1, 3, 5, 0x9999999A, 3, 40, 0x9999999A, 6)
    assert struct.unpack_from("<20I", block, 32) == (*sizes, *dividers)
    assert len(block) == 32 + 80
    assert call["grid"] == -(-2 * 6 * 40 // 64)


def test_several_sets_of_shapes_take_turns(tmp_path: Path) -> None:
    epilogue, operands = tail("f32", "gate and raw result", (1, 6, 5, 5))
    sizes = [(1, 9, 8), (2, 9, 8), (3, 5, 5), (1, 12, 4), (2, 7, 7), (1, 9, 8)]
    cases = [Fused(SMALL.conv, (n, 4, h, w), epilogue, ((n, 6, 1, 1), ()), None) for n, h, w in sizes]
    assert operands == cases[0].operands
    kernels = [conv_kernel("k", "gemm", ";os", tile=(2, 8, 4), split=5, vector=2), any_kernel(";gg")]
    stand_in = StandIn(tmp_path, [(9, 0, MULTIPROCESSORS)])
    session = stand_in.session(stub_model(cases[0], kernels))
    stand_in.launches()
    for fused in cases * 2:
        run(session, arrays_of(fused))
        check_launches(stand_in.launches(), stand_in.scratch(), fused, kernels)


def test_splits_depend_on_the_device(tmp_path: Path) -> None:
    kernel = conv_kernel("k", "gemm", ";", tile=(6, 40, 4), split=4)
    stand_in = StandIn(tmp_path, [(9, 0, 1), (9, 0, 6)])
    session = stand_in.session(stub_model(SMALL, [kernel, any_kernel(";")]), device=None)
    for device, names, parts in ((0, ["k"], 1), (1, ["k", "k_sum"], 4), (0, ["k"], 1)):
        stand_in.use_stream(device)
        stand_in.launches()
        run(session, arrays_of(SMALL))
        calls = stand_in.launches()
        assert [call["kernel"] for call in calls] == names
        assert calls[0]["grid"] == 2 * parts
        assert stand_in.scratch() == ([parts * 480 * 4] if parts > 1 else [])


def test_no_elements(tmp_path: Path) -> None:
    """An empty batch is launched as little as it is computed."""
    stand_in = StandIn(tmp_path)
    session = stand_in.session(stub_model(SMALL, [conv_kernel("k", "any", ";"), any_kernel(";")]))
    stand_in.calls()
    x, w = arrays_of(SMALL)
    (y,) = run(session, [x[:0], w])
    assert y.shape == (0, 6, 5, 8)
    assert not stand_in.calls()


def test_a_result_of_nothing_but_padding(tmp_path: Path) -> None:
    """X has no elements, the result has."""
    conv = convolution("f32", (1, 2), (3,), pads=(2, 2))
    fused = Fused(conv, (1, 1, 0), raw("f32"))
    kernels = [conv_kernel("k", "any", ";"), any_kernel(";")]
    stand_in = StandIn(tmp_path, [(9, 0, MULTIPROCESSORS)])
    session = stand_in.session(stub_model(fused, kernels))
    stand_in.launches()
    (y,) = run(session, arrays_of(fused))
    assert y.shape == (1, 2, 2)
    check_launches(stand_in.launches(), stand_in.scratch(), fused, kernels)
