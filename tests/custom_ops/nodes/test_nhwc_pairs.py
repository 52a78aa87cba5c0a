"""Convolutions of single channels and the product behind each, in one node with the channels last."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cuda.conv.convolutions import TAILS, Fused, convolution
from tests.custom_ops.nodes.nhwc_nodes import (
    CHAINS,
    PAIRS,
    Nhwc,
    Sizes,
    chain,
    check,
    depthwise,
    of_several_stages,
    pair,
)


@pytest.mark.parametrize("y_last", (True, False))
@pytest.mark.parametrize("kind", ("bias, relu", "bias", "gate", "affine"))
@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str, kind: str, y_last: bool) -> None:
    before, filters, x_shape = PAIRS[name]
    check(pair(before, filters, x_shape, kind, y_last=y_last), threads=(1, 2))


@pytest.mark.parametrize("y_last", (True, False))
@pytest.mark.parametrize("kind", TAILS)
def test_epilogues_of_pairs(kind: str, y_last: bool) -> None:
    check(pair(*PAIRS["strides"], epilogue=kind, y_last=y_last))


@pytest.mark.parametrize("channels", (2, *range(5, 80, 6), 79, 80))
def test_pairs_of_channels_that_end_anywhere_in_a_vector(channels: int) -> None:
    check(pair(depthwise(channels, (3, 3), pads=(1,) * 4), 81 - channels, (1, channels, 5, 6)))


def test_a_pair_whose_epilogue_gets_the_whole_result() -> None:
    node = pair(*PAIRS["strides"])
    vectors = (node.fused.conv.out_channels,), (node.fused.conv.out_channels,)
    for y_last in (True, False):
        fused = replace(node.fused, epilogue=of_several_stages(row=False), operands=vectors)
        check(replace(node, fused=fused, y_last=y_last))


# ---------------------------------------------------------------------------------------------------------- all nodes


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("channels", (12, 16, 23, 48))
@pytest.mark.parametrize("shape", ((2, 5, 3), (1, 4, 61), (1, 14, 14)))
def test_chains_of_pairs(shape: Sizes, channels: int, kind: str) -> None:
    """The other chains are between the two convolutions."""
    x_shape = (shape[0], channels, *shape[1:])
    before = depthwise(channels, (3, 3), pads=(1,) * 4)
    product = convolution("f32", (channels, 32), (1, 1))
    own = chain(kind, (shape[0], 32, *shape[1:]))
    inner = chain(CHAINS[CHAINS.index(kind) - 1], x_shape)
    node = Nhwc(Fused(product, x_shape, *own, *inner), before)
    arrays = node.arrays()
    (wanted,) = node.expected(arrays)
    (result,) = node.run(arrays)
    np.testing.assert_allclose(result, wanted, 2e-5, 2e-5 * float(np.abs(wanted).max()))


def test_a_pair_of_no_images() -> None:
    check(pair(depthwise(40, (3, 3)), 8, (0, 40, 8, 8)))
