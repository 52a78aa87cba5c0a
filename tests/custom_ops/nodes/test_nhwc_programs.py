"""The Programs of convolutions with the channels last, against their reference."""

from dataclasses import replace

import pytest

from onnxfuse.program import Program, ProgramBuilder
from tests.cuda.conv.convolutions import TAILS, Fused, convolution, head, raw, tail
from tests.custom_ops.nodes.nhwc_nodes import (
    CHAINS,
    EPILOGUES,
    LAYOUTS,
    SHAPES,
    Nhwc,
    Sizes,
    chain,
    check,
    check_chain,
    depthwise,
    of_several_stages,
    pair,
    with_tail,
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", TAILS)
@pytest.mark.parametrize("shape", EPILOGUES)
def test_epilogues(shape: str, kind: str, layout: tuple[bool, bool]) -> None:
    check(with_tail(*SHAPES[shape], kind, layout))


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("filters", (16, 32, 48, 64, 80, 128, 20))
@pytest.mark.parametrize("shape", ((1, 37, 3, 50), (2, 37, 1, 5), (3, 37, 7, 6), (1, 300, 5, 11)))
def test_chains(shape: Sizes, filters: int, kind: str) -> None:
    """Rows end anywhere in tiles; the last tile computes some pixels again."""
    conv = convolution("f32", (shape[1], filters), (3, 1), pads=(1, 0, 1, 0))
    check_chain(Nhwc(Fused(conv, tuple(shape), *chain(kind, conv.output_shape(tuple(shape))))))


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("channels", (12, 16, 23, 32, 40, 64))
@pytest.mark.parametrize("shape", ((2, 5, 3), (1, 4, 61), (1, 14, 14), (1, 1, 9)))
def test_chains_of_single_channels(shape: Sizes, channels: int, kind: str) -> None:
    x_shape = (shape[0], channels, *shape[1:])
    conv = depthwise(channels, (5, 5), pads=(2,) * 4)
    check_chain(Nhwc(Fused(conv, x_shape, *chain(kind, x_shape))))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ("gate", "affine", "sum"))
@pytest.mark.parametrize(
    "shape", ("dense", "an image", "product", "one dimension, product", "single channels", "a line", "a line, product")
)
def test_prologues(shape: str, kind: str, layout: tuple[bool, bool]) -> None:
    """Of X as it is; what is padded stays zero."""
    conv, x_shape = SHAPES[shape]
    before = head("f32", kind, x_shape)
    check(Nhwc(Fused(conv, tuple(x_shape), raw("f32"), (), *before), None, *layout))
    behind = tail("f32", "bias, hard swish, residual", conv.output_shape(tuple(x_shape)))
    check(Nhwc(Fused(conv, tuple(x_shape), *behind, *before), None, *layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", EPILOGUES)
def test_programs_that_compute_values_of_several_shapes(shape: str, layout: tuple[bool, bool]) -> None:
    """They cannot run part by part: they get the whole tensor."""
    conv, x_shape = SHAPES[shape]
    row = (*(1 for _ in x_shape[1:-1]), conv.output_shape(tuple(x_shape))[-1])
    vectors = (conv.out_channels,), (conv.out_channels,)
    check(Nhwc(Fused(conv, tuple(x_shape), of_several_stages(row=True), (*vectors, row)), None, *layout))
    before = of_several_stages(row=False), ((conv.in_channels,), (conv.in_channels,))
    check(Nhwc(Fused(conv, tuple(x_shape), raw("f32"), (), *before), None, *layout))


def slopes(channels: int) -> tuple[Program, tuple[Sizes, ...]]:
    """A PRelu, which reads the sum of result and bias more than once, so that both vectors are operands of it."""
    b = ProgramBuilder()
    y = b.emit("add", "f32", b.input("f32"), b.input("f32", 1))
    slope, zero = b.input("f32", 1), b.const("f32", 0)
    y = b.emit("where", "f32", b.emit("less", "f32", y, zero), b.emit("mul", "f32", y, slope), y)
    return b.build([y]), ((channels,), (channels,))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", ("dense", "product", "single channels"))
def test_slopes_of_channels(shape: str, layout: tuple[bool, bool]) -> None:
    conv, x_shape = SHAPES[shape]
    check(Nhwc(Fused(conv, tuple(x_shape), *slopes(conv.out_channels)), None, *layout))


@pytest.mark.parametrize("channels", (2, 5, 16, 100, 171, 255, 256, 257, 300, 600))
def test_vectors_of_channels_of_any_length(channels: int) -> None:
    """A Program reads them pixel by pixel, or from memory where they are repeated."""
    after = convolution("f32", (3, channels), (1, 1)), (2, 3, 13, 40)
    before = convolution("f32", (channels, 17), (1, 1)), (2, channels, 13, 40)
    check(Nhwc(Fused(*after, *slopes(channels))))
    check(Nhwc(Fused(*before, *slopes(17), *head("f32", "affine", before[1]))))
    for x_shape in ((2, channels, 3, 3), (1, channels, 40, 50)):
        node = pair(depthwise(channels, (3, 3), pads=(1,) * 4), 19, x_shape, "affine")
        check(replace(node, fused=replace(node.fused, epilogue=slopes(19)[0], operands=slopes(19)[1])))
