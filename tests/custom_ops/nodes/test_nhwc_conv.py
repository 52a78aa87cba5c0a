"""Convolutions with the channels last, against ONNX Runtime's own Conv."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.program import ProgramBuilder
from tests.cuda.conv.convolutions import Fused, convolution, integers, random_fused
from tests.cuda.conv.nodes import node_case
from tests.custom_ops.fused import (
    ON_AARCH64,
    assert_same_bits,
    check_in_threads,
    new_session,
    run,
    session_options,
)
from tests.custom_ops.nodes.nhwc_nodes import (
    LAYOUTS,
    SHAPES,
    Nhwc,
    Sizes,
    check,
    depthwise,
    last,
    packed,
    pair,
    plain,
    with_tail,
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: str, layout: tuple[bool, bool]) -> None:
    check(plain(*SHAPES[shape], layout), threads=(1, 2))


@pytest.mark.parametrize("channels", (*range(1, 42), 47, 48, 49, 63, 64, 65, 79, 80))
def test_single_channels_that_end_anywhere_in_a_vector(channels: int) -> None:
    conv = depthwise(channels, (3, 3), pads=(1,) * 4)
    check(with_tail(conv, (2, channels, 5, 9), "bias, hard swish, residual", LAYOUTS[channels % 4]))


@pytest.mark.parametrize("filters", (*range(1, 36), 47, 48, 49, 64, 65, 95, 97, 112, 144))
def test_filters_that_end_anywhere_in_a_vector(filters: int) -> None:
    conv = convolution("f32", (filters % 23 + 1, filters), (2, 2))
    check(with_tail(conv, (1, filters % 23 + 1, 4, 7), "bias, hard swish, residual", LAYOUTS[filters % 4]))


@pytest.mark.parametrize("dilation", (1, 2))
@pytest.mark.parametrize("stride", (1, 2, 3))
@pytest.mark.parametrize("width", range(1, 8))
def test_widths_of_kernels(width: int, stride: int, dilation: int) -> None:
    """Of single channels, of few and of many."""
    more = {"strides": (1, stride), "dilations": (1, dilation), "pads": (1, width // 2, 1, width // 2)}
    check(plain(depthwise(40, (3, width), **more), (1, 40, 4, 41)))
    for channels in (3, 18):
        check(plain(convolution("f32", (channels, 17), (3, width), **more), (1, channels, 4, 25)))


@pytest.mark.parametrize("pixels", range(1, 30))
def test_pixels_that_end_anywhere_in_a_tile(pixels: int) -> None:
    check(plain(convolution("f32", (9, 49), (1, 1)), (1, 9, 1, pixels)))
    check(plain(depthwise(17, (3, 3), pads=(1,) * 4), (1, 17, 2, pixels)))


@pytest.mark.parametrize("filters", (1, 8, 9, 16, 17, 24, 33, 40, 48, 57, 64, 65, 100, 128, 129, 161, 258))
def test_few_pixels(filters: int) -> None:
    """Of any number of filters, whose sums have one part, or several."""
    for pixels in (1, 2, 3, 4, 5, 7, 9):
        for channels in (5, 100, 300):
            conv = convolution("f32", (channels, filters), (3,), pads=(1, 1))
            check(with_tail(conv, (1, channels, pixels), "bias, hard swish, residual", LAYOUTS[pixels % 4]))


GROUPS = [
    *((4, 4, 5), (4, 4, 9), (8, 8, 2), (8, 8, 3), (4, 4, 1), (16, 16, 3), (32, 32, 2), (48, 48, 2), (80, 80, 2)),
    *((24, 24, 4), (40, 40, 3), (3, 5, 7), (1, 4, 6), (12, 12, 5), (17, 33, 3), (2, 8, 5), (6, 13, 4), (9, 4, 8)),
    (5, 36, 4),
]
"""Channels and filters of a group, and how many there are: in vectors of their own, or of two to four groups."""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("channels", "filters", "groups"), GROUPS)
def test_groups(channels: int, filters: int, groups: int, layout: tuple[bool, bool]) -> None:
    conv = convolution("f32", (channels * groups, filters * groups), (3, 3), group=groups, pads=(1,) * 4)
    check(with_tail(conv, (2, channels * groups, 7, 9), "bias, hard swish, residual", layout), threads=(1, 2))
    check(rectified(conv, (1, channels * groups, 9, 20)), threads=(1, 2))


@pytest.mark.parametrize("pixels", range(1, 27))
def test_groups_of_pixels_that_end_anywhere_in_a_tile(pixels: int) -> None:
    for channels, filters, groups in GROUPS:
        conv = convolution("f32", (channels * groups, filters * groups), (1, 1), group=groups)
        check(plain(conv, (1, channels * groups, 1, pixels), LAYOUTS[pixels % 4]))


@pytest.mark.parametrize(("channels", "filters"), [(4, 4), (8, 8), (16, 16), (40, 24)])
def test_long_sums_of_groups(channels: int, filters: int) -> None:
    """Which have parts; and what is read of strides and dilations."""
    more = {"strides": (2, 1), "dilations": (1, 2), "pads": (4, 4, 4, 4)}
    conv = convolution("f32", (channels * 6, filters * 6), (9, 9), group=6, **more)
    check(rectified(conv, (1, channels * 6, 17, 13)), threads=(1, 2))


@pytest.mark.parametrize(("channels", "filters", "groups"), GROUPS)
def test_groups_do_not_read_each_other(channels: int, filters: int, groups: int) -> None:
    """What is no number stays in its group, though a vector may be of several."""
    for bad in {0, groups // 2, groups - 1}:
        conv = convolution("f32", (channels * groups, filters * groups), (3, 3), group=groups, pads=(1,) * 4)
        node = plain(conv, (1, channels * groups, 5, 8))
        arrays = node.arrays()
        arrays[0][:, channels * bad : channels * (bad + 1)] = np.nan
        (result,) = node.run(arrays)
        of_group = np.zeros(filters * groups, bool)
        of_group[filters * bad : filters * (bad + 1)] = True
        assert np.array_equal(np.isnan(result), np.broadcast_to(of_group, result.shape))


def rectified(conv: Convolution, x_shape: Sizes, with_bias: bool = True) -> Nhwc:
    """A convolution with Relu: where its filters are whole vectors, the sums go to the output without an epilogue."""
    b = ProgramBuilder()
    value = b.input("f32")
    if with_bias:
        value = b.emit("add", "f32", value, b.input("f32", 1))
    shapes = ((conv.out_channels,),) if with_bias else ()
    return Nhwc(Fused(conv, tuple(x_shape), b.build([b.emit("relu", "f32", value)]), shapes))


@pytest.mark.parametrize("filters", (8, 16, 17, 32, 48, 64, 80, 160))
def test_sums_that_are_the_results(filters: int) -> None:
    """With and without Relu, of which the parts of long sums must see nothing; pixels end anywhere in a tile."""
    for pixels in (1, 2, 5, 6, 7, 8, 9, 11, 12, 13, 25, 40):
        conv = convolution("f32", (37, filters), (3, 3), pads=(1,) * 4)
        check(plain(conv, (2, 37, 1, pixels)), threads=(1, 2))
        check(rectified(conv, (2, 37, 1, pixels)), threads=(1, 2))
    check(rectified(convolution("f32", (700, filters), (1, 1)), (1, 700, 9, 33), with_bias=False))


def test_relu_of_sums_that_are_no_numbers() -> None:
    """As ONNX Runtime's own Relu; of a sum of -0 with a bias of -0 alone, for the sums begin with 0 otherwise.

    But numbers that are denormal are zeros.  On AArch64 Relu makes 0 of -0.
    """
    conv = convolution("f32", (1, 16), (1, 1))
    x = np.array([[[[np.nan, -np.inf, np.inf, -0.0, 0.0, -1.0, 2.0, 1e-40] * 2]]], np.float32)
    arrays = [x, np.ones((16, 1, 1, 1), np.float32), np.full(16, -0.0, np.float32)]
    (result,) = rectified(conv, x.shape).run(arrays)
    expected = np.where((x < 0) | (x == np.float32(1e-40)) | (ON_AARCH64 & (x == 0)), np.float32(0), x)
    assert_same_bits(result, last(np.repeat(expected, 16, axis=1)))


def random_node(seed: int) -> Nhwc:
    """Any attributes, Programs and layouts."""
    rng = random.Random(seed)
    while True:
        rank = rng.choice((1, 2, 2))
        kernel = [rng.randint(1, 7) for _ in range(rank)]
        single = rng.random() < 0.4
        groups = rng.choice((2, 3, 5)) if not single and rng.random() < 0.3 else 1
        channels, filters = (rng.choice((1, 2, 3, 8, 15, 16, 17, 31, 40, 70)) for _ in range(2))
        if single:
            filters = groups = channels
        elif groups > 1:
            channels, filters = channels * groups, max(filters, 4) * groups
        pads: Sizes | str = [rng.choice((0, 0, 1, 2, 5)) for _ in range(2 * rank)]
        dilations = [rng.choice((1, 1, 1, 2, 3)) for _ in range(rank)]
        if rng.random() < 0.3:
            pads = rng.choice(("VALID", "SAME_UPPER", "SAME_LOWER"))
            dilations = dilations if pads == "VALID" else [1] * rank  # ONNX Runtime refuses others
        conv = convolution(
            "f32",
            (channels, filters),
            kernel,
            group=groups,
            strides=[rng.choice((1, 1, 2, 3)) for _ in range(rank)],
            dilations=dilations,
            pads=pads,
        )
        spatial = [rng.choice((1, 2, 5, 7, 9, 16, 20, 33)) for _ in range(rank)]
        if 0 < np.prod(conv.output_shape((1, channels, *spatial))) < 30_000:
            break
    fused = node_case(lambda number: random_fused(random.Random(number), conv, spatial, ()), seed)
    return Nhwc(fused, None, *rng.choice(LAYOUTS))


@pytest.mark.parametrize("seed", range(120))
def test_random_nodes(seed: int) -> None:
    check(random_node(seed), seed, (1, 2))


# ------------------------------------------------------------------------------- with a convolution of single channels


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_images(layout: tuple[bool, bool]) -> None:
    for conv in (convolution("f32", (40, 40), (3, 3), pads=(1,) * 4), depthwise(40, (3, 3), pads=(1,) * 4)):
        check(with_tail(conv, (0, 40, 8, 8), "bias, hard swish, residual", layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", (3, 16))
@pytest.mark.parametrize("single", (False, True))
def test_images_without_rows(channels: int, single: bool, layout: tuple[bool, bool]) -> None:
    """All that is read of them is padding."""
    group = channels if single else 1
    conv = convolution("f32", (channels, channels), (3, 3), group=group, pads=(4, 1, 4, 1))
    node = plain(conv, (1, channels, 0, 5), layout)
    (result,) = node.run(node.arrays())
    wanted = np.zeros((1, channels, 6, 5), np.float32)
    assert_same_bits(result, last(wanted) if node.y_last else wanted)


SEVERAL: dict[str, Nhwc] = {
    "many": with_tail(convolution("f32", (17, 33), (3, 3), pads=(1,) * 4), (1, 17, 8, 8), "quantize"),
    "few channels": plain(convolution("f32", (3, 33), (3, 3), pads="SAME_UPPER", strides=(2, 2)), (1, 3, 8, 8)),
    "channels first": plain(convolution("f32", (16, 33), (3, 3), pads=(1,) * 4), (1, 16, 8, 8), (False, False)),
    "single": plain(depthwise(33, (3, 3), pads=(1,) * 4), (1, 33, 8, 8)),
    "pair": pair(depthwise(33, (3, 3), pads=(1,) * 4), 18, (1, 33, 8, 8), epilogue=""),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_one_session_takes_any_shapes_and_threads(name: str) -> None:
    node = SEVERAL[name]
    sizes = ((1, 3, 5), (2, 16, 16), (3, 1, 1), (1, 40, 37))
    nodes = [
        replace(node, fused=replace(node.fused, x_shape=(batch, node.fused.x_shape[1], *size)))
        for batch, *size in sizes
    ]
    _, *own = node.arrays()
    arrays = [[other.arrays(seed)[0], *own] for seed, other in enumerate(nodes)]
    cases = [node.inputs(case)[0] for case in arrays]
    wanted = [node.expected(case)[0] for case in arrays]
    check_in_threads(new_session(node.model(), session_options()), cases, wanted, 0.0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_threads_change_no_bit(shape: str, layout: tuple[bool, bool]) -> None:
    node = plain(*SHAPES[shape], layout)
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal(array.shape).astype(np.float32) for array in node.arrays()]
    (alone,), (together,) = node.run(arrays, 1), node.run(arrays, 3)
    assert_same_bits(together, alone)
    np.testing.assert_allclose(alone, node.expected(arrays)[0], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("filters", (1, 5, 40))
@pytest.mark.parametrize("kernel", (1, 3))
def test_long_sums_are_as_exact_as_sums_of_parts(kernel: int, filters: int) -> None:
    """Of 18,000 positive products: added up one after the other, their rounding would reach 1e-5."""
    channels = 18_432 // kernel**2
    node = plain(convolution("f32", (channels, filters), (kernel, kernel)), (1, channels, 8, 9))
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(0, 1, array.shape).astype(np.float32) for array in node.arrays()]
    (result,) = node.run(arrays)
    x, weights = (array.astype(np.float64) for array in arrays)
    windows = np.lib.stride_tricks.sliding_window_view(x[0], (kernel, kernel), axis=(1, 2))
    np.testing.assert_allclose(result[0], np.einsum("chwij,mcij->hwm", windows, weights), rtol=2e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [name for name, (conv, _) in SHAPES.items() if conv.rank == 2])
def test_what_is_not_finite_stays_where_it_belongs(shape: str, layout: tuple[bool, bool]) -> None:
    """At the ends of rows and of the tensor, where vectors read more than they need."""
    conv, x_shape = SHAPES[shape]
    node = plain(conv, x_shape, layout)
    session = new_session(node.model(), session_options())
    x, w = (np.random.default_rng(3).uniform(1, 2, array.shape).astype(np.float32) for array in node.arrays())
    (clean,) = run(session, node.inputs([x, w])[0])
    for place in ((0, 0, 0, 0), (-1, -1, -1, -1), (0, conv.in_channels // 2, -1, 0)):
        spoilt, touching = x.copy(), np.zeros_like(x)
        spoilt[place], touching[place] = np.nan, 1
        (result,) = run(session, node.inputs([spoilt, w])[0])
        touched = node.expected([touching, w])[0] > 0
        assert np.isnan(result[touched]).all()
        assert_same_bits(result[~touched], clean[~touched])


def test_what_is_not_finite_stays_in_its_filter() -> None:
    node = plain(convolution("f32", (18, 37), (3, 3), pads=(1,) * 4), (1, 18, 6, 7))
    x, w = node.arrays()
    (clean,) = node.run([x, w])
    w[36, 17], w[16, 0] = np.nan, np.inf
    (result,) = node.run([x, w])
    own = [16, 36]
    assert not np.isfinite(result[:, 1:-1, 1:-1, own]).any()
    assert_same_bits(np.delete(result, own, axis=-1), np.delete(clean, own, axis=-1))


def test_the_planner_packs_weights_as_the_library_reads_them() -> None:
    pytest.importorskip("onnx_graphsurgeon")
    from onnxfuse.fused.nhwc.nhwc_node import pack_weights

    for conv in (SHAPES["dense"][0], SHAPES["one dimension"][0], SHAPES["single channels"][0]):
        weights = integers("f32", conv.weight_shape, 0)
        np.testing.assert_array_equal(pack_weights(weights, conv), packed(conv, weights), strict=True)


def test_shapes_of_results_are_known_before_the_node_runs() -> None:
    def shape_of(node: Nhwc, x_shape: Sequence[int | str]) -> list[int | str | None]:
        others = [array.shape for array in node.inputs(node.arrays())[0][1:]]
        return list(new_session(node.model([x_shape, *others]), session_options()).get_outputs()[0].shape)

    conv = convolution("f32", (16, 33), (3, 3), pads=(1,) * 4)
    assert shape_of(plain(conv, (1, 16, 8, 9)), ["n", "h", 9, 16]) == ["n", "h", 9, 33]
    assert shape_of(plain(conv, (1, 16, 8, 9), (True, False)), ["n", "h", 9, 16]) == ["n", 33, "h", 9]
    assert shape_of(plain(conv, (1, 16, 8, 9), (False, True)), ["n", 16, "h", 9]) == ["n", "h", 9, 33]
    halves = pair(depthwise(16, (3, 3), pads=(1,) * 4, strides=(2, 2)), 5, (1, 16, 8, 9), epilogue="")
    assert shape_of(halves, [1, 8, 9, 16]) == [1, 4, 5, 5]


# ---------------------------------------------------------------------------------------------------------- bad nodes
