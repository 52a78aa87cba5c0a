"""Fused convolutions on the CPU provider, against ONNX Runtime's own Conv and ConvTranspose.

X and W are small integers where bits are compared: then every order of the sums gives the same.
"""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.program import ProgramBuilder
from tests.cuda.conv.convolutions import TAILS, Fused, convolution, head, random_fused, raw, tail
from tests.cuda.conv.nodes import NODE, arrays_of, conv_model, expected, node_case
from tests.custom_ops.fused import assert_same_bits, new_session, run, session_options

Sizes = Sequence[int]
AUTO_PADS = ("VALID", "SAME_UPPER", "SAME_LOWER")


def run_node(fused: Fused, arrays: Sequence[np.ndarray], threads: int = 2) -> list[np.ndarray]:
    return run(new_session(conv_model(fused), session_options(threads)), arrays)


def check(fused: Fused, seed: int = 0) -> None:
    """The node's results have the reference's bits, whatever the threads."""
    arrays = arrays_of(fused, seed)
    with np.errstate(all="ignore"):
        wanted = expected(fused, arrays)
    for threads in (1, 2):
        for result, own in zip(run_node(fused, arrays, threads), wanted, strict=True):
            assert_same_bits(result, own)


def random_convolution(rng: random.Random, dtype: str = "f32") -> tuple[Convolution, Sizes]:
    """Any attributes, and spatial sizes of an input for which there is an output."""
    rank = rng.choice((1, 2, 2, 2, 2, 3))
    while True:
        several = [rng.choice((1, 1, 2, 3)) for _ in range(rank)]
        strides = several if rng.random() < 0.5 else [several[0]] * rank
        kernel = [rng.randint(1, 7 if rank < 3 else 3) for _ in range(rank)]
        dilations = [rng.choice((1, 1, 1, 2, 3)) for _ in range(rank)]
        transposed = rng.random() < 0.3
        if transposed and rng.random() < 0.3:
            strides = [rng.choice((2, 4, 8)) for _ in range(rank)]
        group = rng.choice((1, 1, 2, 3, 5, 17, 33))
        channels, filters = rng.choice((1, 1, 2, 3, 8, 19)), rng.choice((1, 1, 2, 7, 9, 20))
        if group > 5:
            channels, filters = rng.choice(((1, 1), (1, 1), (1, 3), (2, 1)))
        pads: Sizes | str = [rng.choice((0, 0, 1, 2, 5)) for _ in range(2 * rank)]
        if rng.random() < 0.3:
            pads = rng.choice(AUTO_PADS)
            dilations = dilations if pads == "VALID" else [1] * rank  # ONNX Runtime refuses others
        extra = [rng.randint(0, stride - 1) for stride in strides]
        spatial = [rng.choice((1, 2, 5, 7, 9, 16, 20, 33, 40) if rank < 3 else (1, 2, 5, 9)) for _ in range(rank)]
        conv = convolution(
            dtype,
            (channels * group, filters * group),
            kernel,
            group=group,
            strides=strides,
            dilations=dilations,
            pads=pads,
            output_padding=extra if transposed and rng.random() < 0.5 else (),
            transposed=transposed,
        )
        try:
            shape = conv.output_shape((1, conv.in_channels, *spatial))
        except Exception:
            continue
        if 0 < np.prod(shape) < 300_000:
            return conv, spatial


@pytest.mark.parametrize("seed", range(80))
def test_random_convolutions(seed: int) -> None:
    def make(number: int) -> Fused:
        rng = random.Random(number)
        conv, spatial = random_convolution(rng, rng.choice(("f32", "f32", "f32", "f16", "bf16")))
        return random_fused(rng, conv, spatial, ())

    check(node_case(make, seed), seed)


SHAPES: dict[str, tuple[Convolution, Sizes]] = {
    "dense": (convolution("f32", (5, 19), (3, 3), pads=(1, 1, 1, 1)), (2, 5, 23, 21)),
    "short rows": (convolution("f32", (12, 20), (3, 3), pads=(1, 1, 1, 1)), (1, 12, 7, 7)),
    "pointwise": (convolution("f32", (11, 18), (1, 1)), (2, 11, 13, 9)),
    "many of both": (convolution("f32", (70, 67), (3, 3), pads=(1, 1, 1, 1)), (1, 70, 9, 13)),
    "wide product": (convolution("f32", (300, 131), (1, 1)), (1, 300, 5, 7)),
    "one position": (convolution("f32", (70, 33), (1, 1)), (3, 70, 1, 1)),
    "few positions": (convolution("f32", (6, 9), (3, 3), pads=(1, 1, 1, 1)), (1, 6, 2, 3)),
    "depthwise": (convolution("f32", (35, 35), (5, 5), group=35, pads=(2,) * 4, strides=(2, 2)), (2, 35, 14, 17)),
    "depthwise product": (convolution("f32", (35, 35), (1, 1), group=35), (2, 35, 4, 7)),
    "long rows": (convolution("f32", (9, 9), (3, 3), group=9, pads=(1,) * 4), (1, 9, 31, 70)),
    "rows in place": (convolution("f32", (21, 21), (5, 5), group=21, pads=(2,) * 4, strides=(2, 1)), (2, 21, 13, 40)),
    "far taps": (
        convolution("f32", (5, 5), (7, 7), group=5, pads=(3, 6, 2, 5), dilations=(1, 2)),
        (1, 5, 30, 150),
    ),
    "skipped columns": (
        convolution("f32", (9, 9), (5, 5), group=9, strides=(2, 2), pads=(2, 1, 3, 0)),
        (2, 9, 23, 151),
    ),
    "skipped columns, far taps": (
        convolution("f32", (5, 5), (1, 4), group=5, strides=(2, 2), pads=(0, 5, 0, 6), dilations=(1, 3)),
        (1, 5, 9, 170),
    ),
    "single rows": (convolution("f32", (18, 18), (1, 9), group=18, pads=(0, 4, 0, 4)), (2, 18, 1, 200)),
    "strips the last of which is a row": (
        convolution("f32", (3, 3), (5, 5), group=3, pads=(2,) * 4, strides=(2, 1)),
        (1, 3, 13, 1200),
    ),
    "strips of single rows": (
        convolution("f32", (2, 2), (3, 3), group=2, pads=(1,) * 4, strides=(2, 1)),
        (2, 2, 7, 4200),
    ),
    "more padding than image": (convolution("f32", (6, 6), (5, 5), group=6, pads=(4, 9, 4, 9)), (1, 6, 2, 20)),
    "transposed": (convolution("f32", (6, 9), (2, 2), strides=(2, 2), transposed=True), (1, 6, 11, 18)),
    "overlapping": (convolution("f32", (6, 9), (4, 3), strides=(2, 2), pads=(1,) * 4, transposed=True), (2, 6, 8, 9)),
    "transposed with holes": (convolution("f32", (7, 13), (2, 2), strides=(3, 3), transposed=True), (1, 7, 9, 20)),
    "four phases": (
        convolution("f32", (20, 36), (6, 6), strides=(4, 4), pads=(1,) * 4, transposed=True),
        (1, 20, 9, 19),
    ),
    "eight phases": (
        convolution("f32", (3, 10), (10, 9), strides=(8, 8), pads=(1,) * 4, transposed=True),
        (2, 3, 5, 21),
    ),
    "many of both, overlapping": (
        convolution("f32", (40, 37), (4, 4), strides=(2, 2), pads=(1,) * 4, transposed=True),
        (1, 40, 12, 13),
    ),
    "many taps, overlapping": (
        convolution("f32", (5, 19), (18, 17), strides=(4, 3), pads=(3,) * 4, transposed=True),
        (1, 5, 6, 17),
    ),
    "half": (convolution("f16", (8, 16), (3, 3), pads=(1,) * 4), (1, 8, 12, 12)),
}


@pytest.mark.parametrize("kind", TAILS)
@pytest.mark.parametrize("shape", SHAPES)
def test_epilogues(shape: str, kind: str) -> None:
    conv, x_shape = SHAPES[shape]
    epilogue, operands = tail(conv.dtype, kind, conv.output_shape(tuple(x_shape)))
    check(Fused(conv, tuple(x_shape), epilogue, operands))


@pytest.mark.parametrize("shape", ("dense", "pointwise", "one position", "depthwise product"))
@pytest.mark.parametrize("kind", ("gate", "affine"))
def test_prologues(kind: str, shape: str) -> None:
    conv, x_shape = SHAPES[shape]
    prologue, operands = head(conv.dtype, kind, x_shape)
    check(Fused(conv, tuple(x_shape), raw("f32"), (), prologue, operands))


def of_several_shapes(shape: str) -> Fused:
    """A node whose epilogue computes vectors before it reads the result."""
    conv, x_shape = SHAPES[shape]
    b = ProgramBuilder()
    x = b.input(conv.dtype)
    scale = b.emit("mul", conv.dtype, b.input(conv.dtype, 1), b.const(conv.dtype, 0.5))
    shift = b.emit("neg", conv.dtype, b.input(conv.dtype))
    y = b.emit("add", conv.dtype, b.emit("mul", conv.dtype, x, scale), shift)
    row = (*(1 for _ in x_shape[1:-1]), conv.output_shape(tuple(x_shape))[-1])
    return Fused(conv, tuple(x_shape), b.build([y]), ((conv.out_channels,), row))


@pytest.mark.parametrize("shape", SHAPES)
def test_an_epilogue_that_computes_values_of_several_shapes(shape: str) -> None:
    """It cannot run part by part: it gets the whole result."""
    check(of_several_shapes(shape))


def float_case(conv: Convolution, x_shape: Sizes) -> tuple[Fused, list[np.ndarray]]:
    random_floats = np.random.default_rng(7)
    x = random_floats.standard_normal(x_shape).astype(np.float32)
    w = random_floats.standard_normal(conv.weight_shape).astype(np.float32)
    return Fused(conv, tuple(x_shape), raw("f32")), [x, w]


FLOAT_SHAPES = [name for name, (conv, _) in SHAPES.items() if conv.dtype == "f32"]


@pytest.mark.parametrize("shape", FLOAT_SHAPES)
def test_sums_are_as_exact_as_float_is(shape: str) -> None:
    """Against sums in float64: the error of a sum is less than its count of products in ulps of what was added."""
    fused, (x, w) = float_case(*SHAPES[shape])
    (result,) = run_node(fused, [x, w])
    exact, absolute = sums(fused.conv, x, w), sums(fused.conv, abs(x), abs(w))
    products = w[0].size if not fused.conv.transposed else x.shape[1] * w[0, 0].size
    assert (abs(result - exact) <= absolute * products * np.finfo(np.float32).eps).all()


def sums(conv: Convolution, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """A two-dimensional convolution in float64: each tap is added where it takes the input."""
    out = np.zeros(conv.output_shape(x.shape))
    image, (x, w) = out.shape[0], (x.astype(np.float64), w.astype(np.float64))
    top, left = conv.pads[:2] if conv.pads else (0, 0)
    (height, width), (down, right) = out.shape[2:], conv.strides
    padded = np.pad(x, ((0, 0), (0, 0), (top, 40), (left, 40)))
    whole = np.zeros((image, conv.out_channels, height + 80, width + 80))
    channels, filters = conv.in_channels // conv.group, conv.out_channels // conv.group
    for g, kh, kw in np.ndindex(conv.group, *conv.kernel):
        own, of = slice(g * channels, (g + 1) * channels), slice(g * filters, (g + 1) * filters)
        if conv.transposed:
            rows, columns = x.shape[2] * down, x.shape[3] * right
            taken = np.einsum("nchw,cm->nmhw", x[:, own], w[own, :, kh, kw])
            whole[:, of, kh : kh + rows : down, kw : kw + columns : right] += taken
        else:
            first, begin = kh * conv.dilations[0], kw * conv.dilations[1]
            seen = padded[:, own, first : first + height * down : down, begin : begin + width * right : right]
            out[:, of] += np.einsum("nchw,mc->nmhw", seen, w[of, :, kh, kw])
    return whole[:, :, top : top + height, left : left + width] if conv.transposed else out


@pytest.mark.parametrize("shape", FLOAT_SHAPES)
def test_threads_change_no_bit(shape: str) -> None:
    fused, arrays = float_case(*SHAPES[shape])
    (alone,) = run_node(fused, arrays, 1)
    for threads in (2, 3):
        (together,) = run_node(fused, arrays, threads)
        assert_same_bits(together, alone)


@pytest.mark.parametrize("shape", FLOAT_SHAPES)
@pytest.mark.parametrize("value", (np.nan, np.inf))
def test_what_is_not_finite_stays_where_it_belongs(shape: str, value: float) -> None:
    """At the ends of rows and of the tensor, where vectors read more than they need."""
    fused, (x, w) = float_case(*SHAPES[shape])
    for place in ((0, 0, 0, 0), (-1, -1, -1, -1), (0, x.shape[1] // 2, -1, 0), (0, 0, 0, -1)):
        spoilt = x.copy()
        spoilt[place] = value
        (result,), (clean,) = run_node(fused, [spoilt, w]), run_node(fused, [x, w])
        with np.errstate(all="ignore"):
            touched = sums(fused.conv, (np.isfinite(spoilt) ^ True).astype(np.float32), abs(w)) > 0
        assert not np.isfinite(result[touched]).any()
        assert_same_bits(result[~touched], clean[~touched])


def test_tensors_larger_than_the_caches() -> None:
    check(Fused(convolution("f32", (3, 20), (1, 1)), (1, 3, 701, 1023), raw("f32")))
    check(Fused(convolution("f32", (20, 20), (3, 3), group=20, pads=(1,) * 4), (1, 20, 701, 523), raw("f32")))
    check(Fused(convolution("f32", (9, 17), (3, 3), pads=(1,) * 4), (1, 9, 203, 411), raw("f32")))
    check(Fused(convolution("f32", (5, 9), (2, 2), strides=(2, 2), transposed=True), (1, 5, 203, 211), raw("f32")))


def test_a_slice_with_what_vectors_write_behind_it_is_as_long_as_a_channel() -> None:
    conv = convolution("f32", (2, 1), (1, 5, 1), strides=(1, 5, 1), pads=(0, 2, 0, 0, 0, 0))
    check(Fused(conv, (1, 2, 2, 8, 8), raw("f32")))


def test_more_filters_than_a_unit_of_work() -> None:
    check(Fused(convolution("f32", (96, 200), (3, 3), pads=(1,) * 4), (1, 96, 9, 9), raw("f32")))


@pytest.mark.parametrize("group", (1, 40))
def test_no_images(group: int) -> None:
    conv = convolution("f32", (40, 40), (3, 3), group=group, pads=(1,) * 4)
    epilogue, operands = tail("f32", "bias, hard swish, residual", (0, 40, 8, 8))
    check(Fused(conv, (0, 40, 8, 8), epilogue, operands))


def test_taps_far_apart() -> None:
    """A kernel that reaches over 32768 rows, almost all of them padding, needs no memory for them."""
    conv = convolution("f32", (1, 1), (2, 2), dilations=(32767, 32767), pads=(32767, 32767, 0, 0))
    fused = Fused(conv, (1, 1, 1, 1), raw("f32"))
    (result,) = run_node(
        fused, [np.full((1, 1, 1, 1), 2, np.float32), np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)]
    )
    np.testing.assert_array_equal(result, np.full((1, 1, 1, 1), 6, np.float32))


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "message"),
    [
        ((1, 5, 8, 8), (19, 5, 3, 1), "the weights are of shape [19,5,3,1], not [19,5,3,3]"),
        ((1, 4, 8, 8), (19, 5, 3, 3), "input [1,4,8,8] is not for weights [19,5,3,3] in 1 groups"),
        ((1, 5, 8), (19, 5, 3, 3), "input [1,5,8] is not for weights [19,5,3,3] in 1 groups"),
    ],
)
def test_shapes_that_do_not_fit(x_shape: Sizes, w_shape: Sizes, message: str) -> None:
    fused = Fused(SHAPES["dense"][0], (1, 5, 8, 8), raw("f32"))
    shapes = [[f"a{i}" for i in range(len(x_shape))], [f"b{i}" for i in range(4)]]
    session = new_session(conv_model(fused, shapes), session_options())
    with pytest.raises(Exception) as caught:
        run(session, [np.zeros(x_shape, np.float32), np.zeros(w_shape, np.float32)])
    assert f"{NODE}{message}" in str(caught.value)


@pytest.mark.parametrize("filters", [1, 5, 40])
@pytest.mark.parametrize("kernel", [1, 3])
def test_long_sums_are_as_exact_as_sums_of_parts(kernel: int, filters: int) -> None:
    """Of 18,000 positive products: added up one after the other, their rounding would reach 1e-5."""
    channels = 18_432 // kernel**2
    conv = convolution("f32", (channels, filters), [kernel, kernel])
    fused = Fused(conv, (1, channels, 8, 9), raw("f32"))
    arrays = [np.random.default_rng(0).uniform(0, 1, array.shape).astype(np.float32) for array in arrays_of(fused, 0)]
    (result,) = run_node(fused, arrays)
    x, weights = (array.astype(np.float64) for array in arrays[:2])
    windows = np.lib.stride_tricks.sliding_window_view(x[0], (kernel, kernel), axis=(1, 2))
    wanted = np.einsum("chwij,mcij->mhw", windows, weights)
    np.testing.assert_allclose(result[0], wanted, rtol=2e-6)
