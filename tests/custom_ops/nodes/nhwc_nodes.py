"""Convolutions with the channels last, for tests: nodes, their inputs, and what ONNX Runtime's own Conv and the
reference of the Programs make of these.

X and W are small integers where bits are compared: then every order of the sums gives the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.program import Program, ProgramBuilder, reference
from tests.cuda.conv.convolutions import Fused, convolution, convolve, head, integers, raw, tail
from tests.cuda.conv.nodes import arrays_of, attributes
from tests.custom_ops.fused import (
    NODE_NAME,
    NUMPY_TYPES,
    assert_same_bits,
    make_model,
    new_session,
    run,
    session_options,
)

BLOCK = 16
LAYOUTS = ((True, True), (True, False), (False, True), (False, False))
"""Whether X and the results have the channels last."""

Sizes = Sequence[int]


def packed(conv: Convolution, weights: np.ndarray) -> np.ndarray:
    """Weights as the node has them: [blocks, kernel…, channels, filters of a block], or [kernel…, channels]."""
    if conv.depthwise:
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
    """A node: its convolution, or the last of two; ``before`` is the one of single channels that reads X then.

    ``parts`` are the channels of each part of X, where it is not whole.
    """

    fused: Fused
    before: Convolution | None = None
    x_last: bool = True
    y_last: bool = True
    parts: tuple[int, ...] = ()

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
        if self.parts:
            first, *others = np.split(made[0], np.cumsum(self.parts)[:-1], axis=-1)
            made, flags = [first, made[1], *others], [*flags, *[1] * len(others)]
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
        if self.parts:
            known["joined_channels"] = list(self.parts)
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


def of_several_stages(row: bool) -> Program:
    """A Program that computes values of the shapes of its vector, and of its row if it has one."""
    b = ProgramBuilder()
    x = b.input("f32")
    y = b.emit("mul", "f32", x, b.emit("mul", "f32", b.input("f32", 1), b.input("f32", 1)))
    return b.build([b.emit("add", "f32", y, b.emit("neg", "f32", b.input("f32"))) if row else y])


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
