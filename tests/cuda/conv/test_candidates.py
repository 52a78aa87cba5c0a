"""The tilings that are offered can be rendered and launched."""

import random

import pytest

from onnxfuse.cuda.conv.candidates import MULTIPROCESSORS, candidates
from onnxfuse.cuda.conv.kernel import ConvAccess
from onnxfuse.cuda.conv.recipe import ConvRecipe
from onnxfuse.cuda.conv.renderer import render_conv
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.cuda.conv.tiling import Tiling, shared_bytes
from onnxfuse.program.figures import SHARED_BYTES
from tests.cuda.conv.convolutions import convolution, raw

SAME = (1, 1, 1, 1)


def random_conv(rng: random.Random) -> Convolution:
    rank = rng.choice((1, 2, 2, 3))
    size = rng.choice((1, 3, 5, 7))
    inside = rng.choice((1, 3, 16, 64, 512))
    group = rng.choice((1, inside))
    return convolution(
        rng.choice(("f32", "f16", "bf16")),
        (inside, inside if group > 1 else rng.choice((8, 24, 64, 1000))),
        (size,) * rank,
        group=group,
        strides=(rng.choice((1, 2)),) * rank,
        pads=rng.choice(("SAME_UPPER", (size // 2,) * 2 * rank)),
        transposed=rng.random() < 0.2,
    )


@pytest.mark.parametrize("seed", range(60))
def test_candidates_are_valid(seed: int) -> None:
    rng = random.Random(seed)
    conv = random_conv(rng)
    spatial = [rng.choice((None, 7, 14, 56, 112, 200)) for _ in range(conv.rank)]
    found = candidates(conv, (rng.choice((None, 1, 16)), conv.in_channels, *spatial), rng.random() < 0.5)
    assert found
    for own in found:
        source = render_conv(conv, raw(conv.dtype), None, ConvAccess("", ""), own)
        ConvRecipe.of(source)
        assert [kernel.family for kernel in source.kernels] == [*(tiling.family for tiling in own), "any"]
        assert own[-1].vector == 1
        for tiling in own:
            if tiling.family == "gemm":
                assert tiling.block % (tiling.tile[1] // tiling.vector) == 0
            else:
                assert shared_bytes(conv, tiling) <= SHARED_BYTES
                assert conv.static_pads is not None or tiling.vector == 1


def first(conv: Convolution, *x_shape: int | None, tf32: bool = False) -> Tiling:
    return candidates(conv, x_shape, tf32)[0][0]


def test_the_family_follows_from_the_convolution() -> None:
    assert first(convolution("f32", (32, 32), (3, 3), group=32, pads=SAME), None, 32, None, None).family == "depthwise"
    assert first(convolution("f32", (3, 32), (3, 3), pads=SAME), None, 3, 224, 224).family == "direct"
    assert first(convolution("f16", (3, 64), (7, 7)), 1, 3, 224, 224).tensor_cores
    assert not first(convolution("f32", (64, 64), (3, 3), pads=SAME), 1, 64, 56, 56).tensor_cores
    assert first(convolution("f32", (64, 64), (3, 3), pads=SAME), 1, 64, 56, 56, tf32=True).tensor_cores


def test_vectors_divide_the_sizes_that_are_known() -> None:
    conv = convolution("f16", (32, 32), (3, 3), group=32, pads=SAME)
    assert [first(conv, 1, 32, None, width).vector for width in (None, 64, 28, 14, 7)] == [8, 8, 4, 2, 1]
    pointwise = convolution("f32", (32, 32), (1, 1))
    assert [first(pointwise, 1, 32, size, size).vector for size in (14, 7)] == [4, 1]


def test_a_large_depthwise_kernel_is_left_to_others() -> None:
    assert candidates(convolution("f32", (8, 8), (9, 9), group=8), (1, 8, 56, 56)) == []


def test_little_work_is_shared_by_more_threads() -> None:
    """For one image of small planes a multiprocessor gets eight warps where the work is for so many, and two blocks."""
    conv = Convolution(False, "f32", 120, 120, 120, (5, 5), (1, 1), (1, 1), (2, 2, 2, 2), "NOTSET", (0, 0))
    for batch, rows in ((1, 1), (16, 4)):
        tiling = candidates(conv, (batch, 120, 28, 28))[0][0]
        assert tiling.thread[0] == rows
        planes, height, width = tiling.tile
        blocks = -(-batch * 120 // planes) * -(-28 // height) * -(-28 // width)
        assert blocks >= 2 * MULTIPROCESSORS
