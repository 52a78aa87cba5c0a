"""Programs that multiply few rows with matrices, for the tests of their kernels."""

from collections.abc import Sequence

from onnxfuse.program import Input, Program, ProgramBuilder
from onnxfuse.program.view_steps import parse_steps

Shapes = list[tuple[int, ...]]


def product(
    dtype: str, rows: int, inner: int, columns: int, tail: str = "", *, normalized: bool = False, turned: bool = False
) -> tuple[Program, Shapes]:
    """A [rows, inner] times matrices [columns, inner], or [inner, columns] where they are ``turned``.

    ``tail`` is "bias" for a bias and Relu, "residual" for a sum, "gate" for a gated unit of two products, "quantized"
    for a matrix of int8 with a scale for each column.  ``normalized`` divides A by the root of its mean square first.
    """
    b = ProgramBuilder()
    a = b.cast(b.view(Input(dtype, view=parse_steps("unsqueeze:-2"))), "f32")
    shapes: Shapes = [(rows, inner)]
    if normalized:
        scale = b.cast(b.input(dtype), "f32")
        shapes.append((inner,))
        mean = b.reduce("reduce_mean", b.emit("mul", "f32", a, a), (-1,))
        root = b.emit("sqrt", "f32", b.emit("add", "f32", mean, b.const("f32", 1e-5)))
        a = b.emit("mul", "f32", b.emit("mul", "f32", a, b.emit("reciprocal", "f32", root)), scale)

    def multiplied() -> int:
        stored = "i8" if tail == "quantized" else dtype
        steps = parse_steps("permute:1.0") if turned else ()
        shapes.append((inner, columns) if turned else (columns, inner))
        w = b.cast(b.view(Input(stored, view=steps)), "f32")
        if tail == "quantized":
            shapes.append((columns,))
            w = b.emit("mul", "f32", w, b.view(Input("f32", view=parse_steps("unsqueeze:-1"))))
        return b.reduce("reduce_sum", b.emit("mul", "f32", a, w), (-1,))

    def added(shape: tuple[int, ...]) -> int:
        shapes.append(shape)
        return b.cast(b.view(Input(dtype, view=parse_steps("unsqueeze:-1"))), "f32")

    y = multiplied()
    match tail:
        case "bias":
            y = b.emit("relu", "f32", b.emit("add", "f32", y, added((columns,))))
        case "residual":
            y = b.emit("add", "f32", y, added((rows, columns)))
        case "gate":
            y = b.emit("mul", "f32", b.emit("mul", "f32", y, b.emit("sigmoid", "f32", y)), multiplied())
    return b.build([b.cast(y, dtype)], [parse_steps("squeeze:-1")]), shapes


def dequantized(
    dtype: str, rows: int, blocks: int, block: int, columns: int, bits: int = 4, zeros: str = "", tail: str = ""
) -> tuple[Program, Shapes]:
    """A [rows, blocks * block] times a matrix [columns, blocks, block] of ``bits``, with a scale for each block.

    ``zeros`` are of the type of the scales ("scale"), or as the matrix is ("packed").  ``tail`` is "gate" or "".
    """
    b = ProgramBuilder()
    a = b.cast(b.view(Input(dtype, view=parse_steps(f"split:-1:{blocks}:-1,unsqueeze:-3"))), "f32")
    shapes: Shapes = [(rows, blocks * block)]
    nibbles = "nibbles:-1," if bits == 4 else ""

    def multiplied() -> int:
        shapes.append((columns, blocks, block * bits // 8))
        w = b.cast(b.view(Input("u8", view=parse_steps("nibbles:-1") if bits == 4 else ())), "f32")
        scale = b.cast(b.view(Input(dtype, view=parse_steps(f"split:-1:{columns}:-1,unsqueeze:-1"))), "f32")
        shapes.append((columns * blocks,))
        zero = b.const("f32", 1 << (bits - 1))
        if zeros == "scale":
            zero = b.cast(b.view(Input(dtype, view=parse_steps("unsqueeze:-1"))), "f32")
            shapes.append((columns, blocks))
        elif zeros == "packed":
            steps = f"{nibbles}split:-1:{columns}:-1,slice:-1:0:{blocks}:1,unsqueeze:-1"
            zero = b.cast(b.view(Input("u8", view=parse_steps(steps))), "f32")
            shapes.append((columns * (-(-blocks // 2) if bits == 4 else blocks),))
        w = b.emit("mul", "f32", b.emit("sub", "f32", w, zero), scale)
        return b.reduce("reduce_sum", b.emit("mul", "f32", a, w), (-2, -1))

    y = multiplied()
    if tail == "gate":
        y = b.emit("mul", "f32", b.emit("mul", "f32", y, b.emit("sigmoid", "f32", y)), multiplied())
    return b.build([b.cast(y, dtype)], [parse_steps("squeeze:-1,squeeze:-1")]), shapes


def known(shapes: Sequence[Sequence[int]]) -> list[tuple[int | str, ...]]:
    """The same as a node has them."""
    return [tuple(shape) for shape in shapes]
