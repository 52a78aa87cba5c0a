"""Convolutions with the channels last, against ONNX Runtime's own Conv and the reference of the Programs.

X and W are small integers where bits are compared: then every order of the sums gives the same.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.program import Program, ProgramBuilder, reference
from tests.cuda.conv_nodes import arrays_of, attributes, node_case
from tests.cuda.convolutions import TAILS, Fused, convolution, convolve, head, integers, random_fused, raw, tail
from tests.custom_ops.fused import (
    NODE_NAME,
    NUMPY_TYPES,
    assert_same_bits,
    check_in_threads,
    make_model,
    new_session,
    run,
    session_options,
)

NODE = f"onnxfuse::FusedNhwcConv node '{NODE_NAME}': "
BLOCK = 16
LAYOUTS = ((True, True), (True, False), (False, True), (False, False))
"""Whether X and the results have the channels last."""

Sizes = Sequence[int]


def packed(conv: Convolution, weights: np.ndarray) -> np.ndarray:
    """Weights as the node has them: [blocks, kernel…, channels, filters of a block], or [kernel…, channels]."""
    if conv.group > 1:
        return np.ascontiguousarray(np.moveaxis(weights[:, 0], 0, -1))
    filters, channels = weights.shape[:2]
    made = np.zeros((-(-filters // BLOCK), *conv.kernel, channels, BLOCK), np.float32)
    for m in range(filters):
        made[m // BLOCK, ..., m % BLOCK] = np.moveaxis(weights[m], 0, -1)
    return made


def last(array: np.ndarray) -> np.ndarray:
    """[N, C, spatial…] as [N, spatial…, C]."""
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


@dataclass(frozen=True)
class Nhwc:
    """A node: its convolution, or the last of two; ``before`` is the one of single channels that reads X then."""

    fused: Fused
    before: Convolution | None = None
    x_last: bool = True
    y_last: bool = True

    @property
    def y_shape(self) -> tuple[int, ...]:
        """That of the result in the plain order."""
        x_shape = self.fused.x_shape if self.before is None else self.before.output_shape(self.fused.x_shape)
        return self.fused.conv.output_shape(x_shape)

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        """The inputs in ONNX's order, with the weights of the convolution before behind the node's own."""
        x, w, *operands = arrays_of(self.fused, seed)
        if self.before is None:
            return [x, w, *operands]
        return [x, w, integers("f32", self.before.weight_shape, seed + 50, -3, 3), *operands]

    def programs(self) -> list[tuple[Program, bool]]:
        """Those that read operands, each with whether its first input has the channels last."""
        own = [(self.fused.prologue, self.x_last), (self.fused.epilogue, self.y_last)]
        return [(program, is_last) for program, is_last in own if program is not None]

    def inputs(self, arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
        """What the node reads, and which of it has the channels last."""
        x, w, *rest = arrays
        made, flags = [last(x) if self.x_last else x, packed(self.fused.conv, w)], [int(self.x_last), 0]
        if self.before is not None:
            made.append(packed(self.before, rest.pop(0)))
            flags.append(0)
        for program, is_last in self.programs():
            for spec in program.inputs[1:]:
                array = rest.pop(0)
                whole = array.reshape([1] * (x.ndim - array.ndim) + list(array.shape))
                # Without channels, or without anything else, elements are in one order wherever the channels are.
                turns = spec.axis is None and is_last and whole.shape[1] != 1 and np.prod(whole.shape[2:]) != 1
                made.append(last(whole) if turns else array)
                flags.append(int(turns))
        return made, flags

    def model(self, shapes: Sequence[Sequence[int | str] | None] | None = None, **more: Any) -> onnx.ModelProto:
        """The node on graph inputs x0, x1, … with outputs y0, y1, …

        ``shapes`` are those of the inputs, which else are dynamic; ``more`` are other attributes, None for none.
        """
        arrays, flags = self.inputs(self.arrays())
        dynamic = [[f"d{i}_{axis}" for axis in range(array.ndim)] for i, array in enumerate(arrays)]
        kinds = {dtype: name for name, dtype in NUMPY_TYPES.items()}
        inputs: dict[str, tuple[str, Sequence[int | str] | None]] = {
            f"x{i}": (kinds[array.dtype], dims)
            for i, (array, dims) in enumerate(zip(arrays, shapes or dynamic, strict=True))
        }
        epilogue = self.fused.epilogue
        outputs: dict[str, tuple[str, Sequence[int | str] | None]] = {
            f"y{i}": (epilogue.dtype(output), None) for i, output in enumerate(epilogue.outputs)
        }
        node = helper.make_node("FusedNhwcConv", list(inputs), list(outputs), domain="onnxfuse", name=NODE_NAME)
        known = attributes(self.fused.conv, epilogue, self.fused.prologue)
        if self.before is not None:
            own = attributes(self.before, epilogue)
            known |= {f"depthwise_{name}": value for name, value in own.items() if name != "program"}
        known |= {"nhwc_inputs": flags, "nhwc_output": int(self.y_last), **more}
        node.attribute.extend(helper.make_attribute(name, value) for name, value in known.items() if value is not None)
        return make_model([node], inputs, outputs)

    def expected(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results, with the channels where the node has them."""
        x, w, *rest = arrays
        if self.before is not None:
            x = convolve(self.before, x, rest.pop(0))
        if self.fused.prologue is not None:
            operands = len(self.fused.prologue.inputs) - 1
            (x,) = reference.run(self.fused.prologue, [x, *rest[:operands]])
            del rest[:operands]
        results = reference.run(self.fused.epilogue, [convolve(self.fused.conv, x, w), *rest])
        return [last(result) if self.y_last else result for result in results]

    def run(self, arrays: Sequence[np.ndarray], threads: int = 2) -> list[np.ndarray]:
        return run(new_session(self.model(), session_options(threads)), self.inputs(arrays)[0])


def check(node: Nhwc, seed: int = 0, threads: Sequence[int] = (2,)) -> None:
    """The node's results have the reference's bits, whatever the threads."""
    arrays = node.arrays(seed)
    with np.errstate(all="ignore"):
        wanted = node.expected(arrays)
    for count in threads:
        for result, own in zip(node.run(arrays, count), wanted, strict=True):
            assert_same_bits(result, own)


def plain(conv: Convolution, x_shape: Sizes, layout: tuple[bool, bool] = (True, True)) -> Nhwc:
    """A convolution alone."""
    return Nhwc(Fused(conv, tuple(x_shape), raw("f32")), None, *layout)


def with_tail(conv: Convolution, x_shape: Sizes, kind: str, layout: tuple[bool, bool] = (True, True)) -> Nhwc:
    """With an epilogue."""
    return Nhwc(Fused(conv, tuple(x_shape), *tail("f32", kind, conv.output_shape(tuple(x_shape)))), None, *layout)


def depthwise(channels: int, kernel: Sizes, **more: Any) -> Convolution:
    return convolution("f32", (channels, channels), kernel, group=channels, **more)


SHAPES: dict[str, tuple[Convolution, Sizes]] = {
    "dense": (convolution("f32", (20, 19), (3, 3), pads=(1,) * 4), (2, 20, 13, 11)),
    "asymmetric padding": (convolution("f32", (17, 33), (3, 2), pads=(0, 3, 2, 1)), (1, 17, 9, 8)),
    "dilations": (convolution("f32", (18, 5), (3, 3), pads=(3, 2, 3, 2), dilations=(3, 2)), (1, 18, 10, 12)),
    "strides": (convolution("f32", (16, 40), (3, 3), pads=(1,) * 4, strides=(3, 2)), (2, 16, 13, 14)),
    "even kernel, same upper": (convolution("f32", (21, 9), (4, 2), pads="SAME_UPPER", strides=(2, 1)), (1, 21, 9, 8)),
    "even kernel, same lower": (convolution("f32", (21, 9), (2, 4), pads="SAME_LOWER", strides=(1, 2)), (1, 21, 9, 8)),
    "valid": (convolution("f32", (16, 16), (5, 3), pads="VALID"), (1, 16, 9, 9)),
    "an image": (convolution("f32", (3, 34), (7, 7), pads=(3,) * 4, strides=(2, 2)), (2, 3, 30, 33)),
    "an image that is patches": (convolution("f32", (3, 20), (4, 4), strides=(4, 4)), (1, 3, 18, 19)),
    "few channels, same lower": (convolution("f32", (5, 16), (3, 4), pads="SAME_LOWER", strides=(2, 2)), (2, 5, 9, 11)),
    "few channels, dilated rows": (
        convolution("f32", (15, 17), (3, 3), pads=(2, 1, 2, 1), dilations=(2, 1)),
        (1, 15, 8, 9),
    ),
    "few channels, dilated columns": (
        convolution("f32", (3, 17), (3, 3), pads=(1, 2, 1, 2), dilations=(1, 2)),
        (1, 3, 8, 9),
    ),
    "one column wide": (convolution("f32", (4, 18), (3, 1), pads=(1, 0, 1, 0)), (2, 4, 7, 6)),
    "one channel": (convolution("f32", (1, 16), (3, 3), pads=(1,) * 4), (2, 1, 6, 7)),
    "one filter": (convolution("f32", (37, 1), (3, 3), pads=(1,) * 4), (1, 37, 6, 7)),
    "product": (convolution("f32", (70, 50), (1, 1)), (2, 70, 9, 7)),
    "long sums": (convolution("f32", (300, 21), (1, 1)), (1, 300, 5, 7)),
    "sums longer than parts": (convolution("f32", (129, 20), (3, 2)), (1, 129, 6, 7)),
    "product of every other pixel": (convolution("f32", (24, 33), (1, 1), strides=(2, 2)), (2, 24, 9, 8)),
    "padded product": (convolution("f32", (17, 18), (1, 1), pads=(1, 0, 0, 2)), (1, 17, 5, 4)),
    "one pixel": (convolution("f32", (70, 33), (1, 1), strides=(2, 2)), (3, 70, 1, 1)),
    "fewer pixels than a tile": (convolution("f32", (20, 48), (3, 3), pads=(1,) * 4), (1, 20, 2, 3)),
    "many filters": (convolution("f32", (64, 400), (3, 3), pads=(1,) * 4), (1, 64, 7, 6)),
    "more padding than image": (convolution("f32", (16, 8), (5, 5), pads=(4, 9, 4, 9)), (1, 16, 2, 3)),
    "one dimension": (convolution("f32", (23, 35), (5,), pads=(2, 1), strides=(2,)), (2, 23, 31)),
    "one dimension, few channels": (convolution("f32", (2, 16), (4,), pads="SAME_UPPER"), (3, 2, 40)),
    "one dimension, product": (convolution("f32", (33, 47), (1,)), (2, 33, 19)),
    "single channels": (depthwise(35, (5, 5), pads=(2,) * 4, strides=(2, 2)), (2, 35, 14, 17)),
    "single channels, asymmetric": (depthwise(48, (3, 4), pads=(0, 3, 2, 1), dilations=(2, 1)), (1, 48, 9, 21)),
    "single channels, same lower": (depthwise(33, (4, 4), pads="SAME_LOWER", strides=(2, 2)), (2, 33, 9, 11)),
    "single channels, product": (depthwise(35, (1, 1)), (2, 35, 4, 7)),
    "single channels, small image": (depthwise(75, (5, 5), pads=(2,) * 4), (2, 75, 7, 6)),
    "single channels, small image, same taps apart": (
        depthwise(96, (5, 5), pads=(4,) * 4, strides=(2, 2), dilations=(2, 2)),
        (2, 96, 9, 12),
    ),
    "single channels, small image, other taps apart": (
        depthwise(40, (5, 3), pads=(2, 3, 2, 3), strides=(1, 2), dilations=(1, 3)),
        (1, 40, 6, 10),
    ),
    "single channels, wide kernel": (depthwise(64, (7, 7), pads=(3, 0, 3, 6)), (1, 64, 5, 33)),
    "single channels, one dimension": (depthwise(19, (7,), pads=(3, 3)), (2, 19, 50)),
    "single channels, more padding than image": (depthwise(21, (5, 5), pads=(4, 9, 4, 9)), (1, 21, 2, 20)),
    "single channels, wide rows": (depthwise(160, (3, 3), pads=(1,) * 4), (1, 160, 5, 150)),
    # Of which threads take columns.
    "a line": (convolution("f32", (19, 40), (3, 3), pads=(1,) * 4, strides=(2, 1)), (1, 19, 5, 70)),
    "a line, product": (convolution("f32", (40, 320), (1, 1)), (1, 40, 6, 53)),
    "a line, few columns": (convolution("f32", (16, 20), (1, 1)), (1, 16, 3, 7)),
    "a line, single channels": (depthwise(80, (5, 5), pads=(2,) * 4), (1, 80, 4, 77)),
}


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


EPILOGUES = (
    "dense",
    "an image",
    "product",
    "one dimension",
    "many filters",
    "single channels",
    "single channels, wide rows",
    "a line",
    "a line, product",
    "a line, few columns",
    "a line, single channels",
)


@pytest.mark.parametrize("filters", (1, 8, 9, 16, 17, 24, 33, 40, 48, 57, 64, 65, 100, 128, 129, 161, 258))
def test_few_pixels(filters: int) -> None:
    """Of any number of filters, whose sums have one part, or several."""
    for pixels in (1, 2, 3, 4, 5, 7, 9):
        for channels in (5, 100, 300):
            conv = convolution("f32", (channels, filters), (3,), pads=(1, 1))
            check(with_tail(conv, (1, channels, pixels), "bias, hard swish, residual", LAYOUTS[pixels % 4]))


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
    """As ONNX Runtime's own Relu; of a sum of -0 with a bias of -0 alone, for the sums begin with 0 otherwise."""
    conv = convolution("f32", (1, 16), (1, 1))
    x = np.array([[[[np.nan, -np.inf, np.inf, -0.0, 0.0, -1.0, 2.0, 1e-40] * 2]]], np.float32)
    arrays = [x, np.ones((16, 1, 1, 1), np.float32), np.full(16, -0.0, np.float32)]
    (result,) = rectified(conv, x.shape).run(arrays)
    assert_same_bits(result, last(np.repeat(np.where(x < 0, np.float32(0), x), 16, axis=1)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", TAILS)
@pytest.mark.parametrize("shape", EPILOGUES)
def test_epilogues(shape: str, kind: str, layout: tuple[bool, bool]) -> None:
    check(with_tail(*SHAPES[shape], kind, layout))


def chain(kind: str, y_shape: Sizes) -> tuple[Program, tuple[Sizes, ...]]:
    """A chain of instructions, of scalars and whole tensors, that runs on the results of tiles."""
    b = ProgramBuilder()
    y, shapes = b.input("f32"), []
    for step in kind.split(", "):
        match step:
            case "bias":
                y = b.emit("add", "f32", y, b.input("f32", 1))
                shapes.append((y_shape[1],))
            case "residual":
                y = b.emit("add", "f32", y, b.input("f32"))
                shapes.append(tuple(y_shape))
            case "scale":
                y = b.emit("mul", "f32", y, b.input("f32"))
                shapes.append((1,))
            case "square":
                z = b.emit("add", "f32", y, b.const("f32", 0.5))
                y = b.emit("mul", "f32", z, b.emit("sub", "f32", z, b.const("f32", 2)))
            case "clip":
                y = b.emit("min", "f32", b.emit("max", "f32", y, b.const("f32", -1)), b.const("f32", 6))
            case "silu":
                y = b.emit("mul", "f32", y, b.emit("sigmoid", "f32", y))
            case _:
                y = b.emit(step, "f32", y)
    return b.build([y]), tuple(shapes)


CHAINS = (
    "relu, residual",
    "bias, scale, clip",
    "bias, residual, relu",
    "square, residual",
    "silu",
    "bias, gelu, residual",
)


def check_chain(node: Nhwc) -> None:
    arrays = node.arrays()
    (wanted,) = node.expected(arrays)
    for threads in (1, 2):
        (result,) = node.run(arrays, threads)
        np.testing.assert_allclose(result, wanted, 2e-6, 1e-6)


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


def of_several_stages(row: bool) -> Program:
    """A Program that computes values of the shapes of its vector, and of its row if it has one."""
    b = ProgramBuilder()
    x = b.input("f32")
    y = b.emit("mul", "f32", x, b.emit("mul", "f32", b.input("f32", 1), b.input("f32", 1)))
    return b.build([b.emit("add", "f32", y, b.emit("neg", "f32", b.input("f32"))) if row else y])


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


def random_node(seed: int) -> Nhwc:
    """Any attributes, Programs and layouts."""
    rng = random.Random(seed)
    while True:
        rank = rng.choice((1, 2, 2))
        kernel = [rng.randint(1, 7) for _ in range(rank)]
        single = rng.random() < 0.4
        channels, filters = (rng.choice((1, 2, 3, 8, 15, 16, 17, 31, 40, 70)) for _ in range(2))
        if single:
            filters = channels
        pads: Sizes | str = [rng.choice((0, 0, 1, 2, 5)) for _ in range(2 * rank)]
        dilations = [rng.choice((1, 1, 1, 2, 3)) for _ in range(rank)]
        if rng.random() < 0.3:
            pads = rng.choice(("VALID", "SAME_UPPER", "SAME_LOWER"))
            dilations = dilations if pads == "VALID" else [1] * rank  # ONNX Runtime refuses others
        conv = convolution(
            "f32",
            (channels, filters),
            kernel,
            group=channels if single else 1,
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


def pair(
    before: Convolution,
    filters: int,
    x_shape: Sizes,
    kind: str = "bias, relu",
    epilogue: str = "bias, hard swish, residual",
    y_last: bool = True,
) -> Nhwc:
    """A product of as many channels, with ``kind`` between the two."""
    inner = before.output_shape(tuple(x_shape))
    b = ProgramBuilder()
    y, operands = b.input("f32"), ((before.out_channels,),)
    match kind:
        case "bias, relu":
            made = b.build([b.emit("relu", "f32", b.emit("add", "f32", y, b.input("f32", 1)))])
        case "bias":
            made = b.build([b.emit("add", "f32", y, b.input("f32", 1))])
        case _:
            made, operands = head("f32", kind, inner)
    product = convolution("f32", (before.out_channels, filters), (1,) * before.rank)
    own = tail("f32", epilogue, product.output_shape(inner))
    return Nhwc(Fused(product, tuple(x_shape), *own, made, operands), before, True, y_last)


PAIRS: dict[str, tuple[Convolution, int, Sizes]] = {
    "plain": (depthwise(32, (3, 3), pads=(1,) * 4), 48, (1, 32, 12, 13)),
    "strides": (depthwise(40, (5, 5), pads=(2,) * 4, strides=(2, 2)), 33, (2, 40, 15, 14)),
    "dilations": (depthwise(17, (3, 3), pads=(2,) * 4, dilations=(2, 2)), 70, (1, 17, 11, 10)),
    "same upper": (depthwise(24, (2, 4), pads="SAME_UPPER", strides=(1, 2)), 5, (3, 24, 7, 9)),
    "fewer channels than a vector": (depthwise(3, (3, 3), pads=(1, 0, 0, 1)), 19, (1, 3, 9, 9)),
    "fewer filters than channels": (depthwise(130, (3, 3), pads=(1,) * 4), 7, (2, 130, 6, 5)),
    "more padding than image": (depthwise(20, (5, 5), pads=(4, 9, 4, 9)), 16, (1, 20, 2, 5)),
    "wide rows": (depthwise(48, (3, 7), pads=(1, 3, 1, 3)), 24, (1, 48, 3, 150)),
    "a line": (depthwise(32, (5, 5), pads=(2,) * 4, strides=(1, 2)), 48, (1, 32, 3, 151)),
    "one dimension": (depthwise(21, (5,), pads=(4, 0)), 35, (2, 21, 60)),
    "many images of few pixels": (depthwise(64, (3, 3)), 96, (19, 64, 4, 3)),
    "larger than the caches": (depthwise(64, (3, 3), pads=(1,) * 4), 128, (1, 64, 60, 61)),
}


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


def test_a_pair_of_no_images() -> None:
    check(pair(depthwise(40, (3, 3)), 8, (0, 40, 8, 8)))


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
    from onnxfuse.planner.nhwc_node import pack_weights

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

GOOD = with_tail(convolution("f32", (6, 18), (3, 3), pads=(1,) * 4), (1, 6, 5, 5), "bias, hard swish, residual")
GOOD_PAIR = pair(depthwise(16, (3, 3), pads=(1,) * 4), 18, (1, 16, 5, 5))
RAW = "onnxfuse 1\ninput {0} broadcast\noutput 0\n"
WRONG_PAIR = "the depthwise convolution is not before a product with prologue and channels last"


def refuse(model: onnx.ModelProto, reason: str) -> None:
    with pytest.raises(Exception, match=reason) as caught:
        new_session(model, session_options())
    assert NODE in str(caught.value) or "FusedNhwcConv" in str(caught.value)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"nhwc_inputs": None}, "it has no attribute nhwc_inputs with 0 or 1 for each input"),
        ({"nhwc_inputs": [1, 0, 0]}, "it has no attribute nhwc_inputs with 0 or 1 for each input"),
        ({"nhwc_inputs": [1, 0, 0, 2]}, "it has no attribute nhwc_inputs with 0 or 1 for each input"),
        ({"nhwc_inputs": [1, 1, 0, 1]}, "the attribute nhwc_inputs names weights"),
        ({"nhwc_output": None}, "it has no attribute nhwc_output that is 0 or 1"),
        ({"nhwc_output": 2}, "it has no attribute nhwc_output that is 0 or 1"),
        (
            {"nhwc_output": 0},
            "the attribute nhwc_inputs names weights, or an operand of what has the channels first",
        ),
        (
            {"operator": "ConvTranspose", "output_padding": [0, 0], "weight_shape": [6, 18, 3, 3]},
            "operator is not Conv",
        ),
        ({"operator": None}, "it has no attribute operator"),
        ({"group": 2, "weight_shape": [18, 3, 3, 3]}, "the attribute group is neither 1 nor that of single channels"),
        ({"group": 6, "weight_shape": [18, 1, 3, 3]}, "the attribute group is neither 1 nor that of single channels"),
        (
            {
                "kernel_shape": [3] * 3,
                "weight_shape": [18, 6, 3, 3, 3],
                "strides": [1] * 3,
                "dilations": [1] * 3,
                "pads": [1] * 6,
            },
            "the attribute kernel_shape has more than 2 elements",
        ),
        ({"weight_shape": [18, 6, 3, 1]}, "the attribute weight_shape does not end with kernel_shape"),
        ({"program": None}, "it has no attribute program"),
        ({"program": "nonsense"}, "the program attribute is not valid"),
        ({"program": RAW.format("f32")}, "inputs, but its programs take"),
        ({"prologue": RAW.format("f16")}, "the prologue does not make one tensor of the program's type"),
    ],
)
def test_attributes_that_are_refused(more: dict[str, Any], reason: str) -> None:
    refuse(GOOD.model(**more), reason)


def test_other_types_than_float32_are_refused() -> None:
    node = plain(convolution("f32", (6, 18), (3, 3)), (1, 6, 5, 5))
    refuse(node.model(program=RAW.format("f16")), "the program is not for a convolution of f32")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        *(
            ({f"depthwise_{name}": None}, f"of the depthwise convolution: it has no attribute {name}")
            for name in ("kernel_shape", "weight_shape", "strides", "dilations", "group", "auto_pad", "pads")
        ),
        ({"depthwise_operator": "Pool"}, "of the depthwise convolution: the attribute operator is not Conv"),
        ({"depthwise_operator": None}, "inputs, but its programs take"),
        ({"depthwise_group": 1, "depthwise_weight_shape": [16, 16, 3, 3]}, WRONG_PAIR),
        ({"depthwise_group": 8, "depthwise_weight_shape": [8, 1, 3, 3]}, WRONG_PAIR),
        ({"strides": [2, 2]}, WRONG_PAIR),
        ({"pads": [0, 0, 0, 1]}, WRONG_PAIR),
        ({"kernel_shape": [1, 3], "weight_shape": [18, 16, 1, 3]}, WRONG_PAIR),
        ({"nhwc_inputs": [0, 0, 0, 0, 0, 1]}, WRONG_PAIR),
        ({"nhwc_inputs": [1, 0, 1, 0, 0, 1]}, "the attribute nhwc_inputs names weights"),
    ],
)
def test_attributes_of_pairs_that_are_refused(more: dict[str, Any], reason: str) -> None:
    refuse(GOOD_PAIR.model(**more), reason)


def test_a_pair_without_a_prologue_is_refused() -> None:
    before, fused = GOOD_PAIR.before, replace(GOOD_PAIR.fused, prologue=raw("f32"), x_operands=())
    refuse(Nhwc(fused, before).model(prologue=None), WRONG_PAIR)


def test_a_pair_with_a_prologue_of_several_shapes_is_refused() -> None:
    fused = replace(GOOD_PAIR.fused, prologue=of_several_stages(row=False), x_operands=((16,), (16,)))
    node = replace(GOOD_PAIR, fused=fused)
    with pytest.raises(Exception, match="the prologue computes values of several shapes") as caught:
        node.run(node.arrays())
    assert NODE in str(caught.value)


@pytest.mark.parametrize(
    ("node", "place", "shape", "reason"),
    [
        (GOOD, 0, (1, 5, 5, 7), r"input \[1,7,5,5\] is not for weights \[18,6,3,3\]"),
        (GOOD, 0, (1, 5, 6), r"input 0 of shape \[1,5,6\] does not have 4 dimensions"),
        (GOOD, 1, (18, 6, 3, 3), r"the weights are of shape \[18,6,3,3\], not \[2,3,3,6,16\]"),
        (GOOD, 1, (2, 3, 3, 6, 8), r"the weights are of shape \[2,3,3,6,8\], not \[2,3,3,6,16\]"),
        (GOOD, 2, (17,), "the program: "),
        (GOOD, 3, (5, 5, 18), r"input 3 of shape \[5,5,18\] does not have 4 dimensions"),
        (GOOD, 3, (1, 18, 5, 5), "the program: "),
        (GOOD, 3, (2, 5, 5, 18), "the program: "),
        (GOOD_PAIR, 0, (1, 5, 5, 18), r"input \[1,18,5,5\] is not for weights \[16,1,3,3\]"),
        (GOOD_PAIR, 1, (18, 16), r"the weights are of shape \[18,16\], not \[2,1,1,16,16\]"),
        (GOOD_PAIR, 2, (9, 16), r"the weights are of shape \[9,16\], not \[3,3,16\]"),
        (GOOD_PAIR, 3, (18,), "the prologue: "),
    ],
)
def test_shapes_that_are_refused(node: Nhwc, place: int, shape: Sizes, reason: str) -> None:
    arrays, _ = node.inputs(node.arrays())
    arrays[place] = np.zeros(shape, np.float32)
    model = node.model()
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")
    with pytest.raises(Exception, match=reason) as caught:
        run(new_session(model, session_options()), arrays)
    assert NODE in str(caught.value)


def test_an_operand_that_is_said_to_be_plain_has_no_two_dimensions_to_exchange() -> None:
    arrays, _ = GOOD.inputs(GOOD.arrays())
    with pytest.raises(Exception, match=r"input 3 of shape \[1,5,5,18\] does not have the channels last") as caught:
        run(new_session(GOOD.model(nhwc_inputs=[1, 0, 0, 0]), session_options()), arrays)
    assert NODE in str(caught.value)


@pytest.mark.parametrize("place", range(6))
def test_types_that_are_refused(place: int) -> None:
    arrays, _ = GOOD_PAIR.inputs(GOOD_PAIR.arrays())
    arrays[place] = arrays[place].astype(np.float64)
    model = GOOD_PAIR.model()
    model.graph.input[place].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    with pytest.raises(Exception, match=f"input {place} has the ONNX element type 11, not 1") as caught:
        run(new_session(model, session_options()), arrays)
    assert NODE in str(caught.value)
