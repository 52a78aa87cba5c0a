"""Fused matrix products for the tests: convolutions of single positions with the channels last."""

import random
from collections.abc import Sequence

from onnxfuse.cuda.conv.spec import product
from onnxfuse.cuda.conv.tiling import Tiling
from onnxfuse.program import Program, ProgramBuilder
from tests.cuda.conv.convolutions import Fused, Shape, random_tail


def tail(dtype: str, kind: str, y_shape: Sequence[int]) -> tuple[Program, tuple[Shape, ...]]:
    """An epilogue as transformers have them, and the shapes of its operands."""
    b = ProgramBuilder()
    x = b.input(dtype)
    columns = y_shape[-1]
    match kind:
        case "bias, activation, residual":
            biased = b.emit("add", dtype, x, b.input(dtype))
            total = b.emit("add", dtype, b.emit("hard_swish", dtype, biased), b.input(dtype))
            return b.build([total]), ((columns,), tuple(y_shape))
        case "vector, gate and raw result":
            gated = b.emit("mul", dtype, b.emit("add", dtype, x, b.input(dtype, -1)), b.input(dtype))
            return b.build([gated, x]), ((columns,), (*y_shape[:-1], 1))
        case "cast":
            return b.build([b.cast(b.emit("mul", dtype, x, b.input(dtype)), "f32")]), ((),)
        case "gate of each image":
            return b.build([b.emit("mul", dtype, x, b.input(dtype))]), ((*(1,) * (len(y_shape) - 1), columns),)
        case _:
            return b.build([x]), ()


TAILS = ("bias, activation, residual", "vector, gate and raw result", "cast", "gate of each image", "")


def head(dtype: str, kind: str, x_shape: Sequence[int]) -> tuple[Program | None, tuple[Shape, ...]]:
    """A prologue, and the shapes of its operands."""
    b = ProgramBuilder()
    x = b.input(dtype)
    match kind:
        case "affine":
            scaled = b.emit("mul", dtype, x, b.input(dtype))
            return b.build([b.emit("add", dtype, scaled, b.input(dtype))]), ((x_shape[-1],), (x_shape[-1],))
        case "of rows":
            return b.build([b.emit("sub", dtype, x, b.input(dtype))]), ((*x_shape[:-1], 1),)
        case "sum":
            return b.build([b.emit("add", dtype, x, b.input(dtype))]), (tuple(x_shape),)
        case _:
            return None, ()


HEADS = ("", "", "affine", "of rows", "sum")


_ROWS = ((1,), (5,), (33,), (3, 7), (2, 40), (1, 1, 9), (2, 3, 5), (2, 1, 3, 4))
_INNER = (1, 5, 16, 40, 72, 136)
_COLUMNS = (1, 3, 8, 40, 64, 72, 130)


def product_case(seed: int, dtype: str = "", tilings: Sequence[Tiling] = ()) -> Fused:
    """A product with Programs, of sizes and of a type at random."""
    rng = random.Random(seed)
    dtype = dtype or ("f32", "f16", "bf16")[seed % 3]
    sizes = rng.choice(_INNER), rng.choice(_COLUMNS)
    conv = product(dtype, sizes, by_rows=rng.random() < 0.5)
    x_shape = (*rng.choice(_ROWS), sizes[0])
    y_shape = conv.output_shape(x_shape)
    kind = rng.choice((*TAILS, "random"))
    epilogue, operands = random_tail(rng, dtype, y_shape) if kind == "random" else tail(dtype, kind, y_shape)
    prologue, x_operands = head(dtype, rng.choice(HEADS), x_shape)
    return Fused(conv, x_shape, epilogue, operands, prologue, x_operands, tuple(tilings))
