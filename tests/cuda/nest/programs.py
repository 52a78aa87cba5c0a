"""Programs that reduce, as models have them, and at random, for the tests of their kernels."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Input, Program, ProgramBuilder
from onnxfuse.program.view_steps import has_nibbles, parse_steps

Shapes = list[tuple[int, ...]]


@dataclass(frozen=True)
class Chain:
    """A Program and, for rows of a length, the shapes of its inputs."""

    program: Program
    shapes: Callable[[int], Shapes]


def _softmax(b: ProgramBuilder, dtype: str, x: int, axes: Sequence[int] = (-1,), log: bool = False) -> int:
    wide = b.cast(x, "f64" if dtype == "f64" else "f32")
    own = b.dtype(wide)
    shifted = b.emit("sub", own, wide, b.reduce("reduce_max", wide, axes))
    power = b.emit("exp", own, shifted)
    total = b.reduce("reduce_sum", power, axes)
    if log:
        return b.cast(b.emit("sub", own, shifted, b.emit("log", own, total)), dtype)
    return b.cast(b.emit("div", own, power, total), dtype)


def _normalized(b: ProgramBuilder, dtype: str, x: int, axes: Sequence[int]) -> int:
    wide = b.cast(x, "f64" if dtype == "f64" else "f32")
    own = b.dtype(wide)
    centred = b.emit("sub", own, wide, b.reduce("reduce_mean", wide, axes))
    variance = b.reduce("reduce_mean", b.emit("mul", own, centred, centred), axes)
    root = b.emit("sqrt", own, b.emit("add", own, variance, b.const(own, 1e-5)))
    return b.cast(b.emit("div", own, centred, root), dtype)


def chains(dtype: str) -> dict[str, Chain]:
    """Chains of a float type."""
    found: dict[str, Chain] = {}

    b = ProgramBuilder()
    x, mask = b.input(dtype), b.input(dtype)
    scaled = b.emit("add", dtype, b.emit("mul", dtype, x, b.const(dtype, 0.125)), mask)
    found["softmax, scale, mask"] = Chain(b.build([_softmax(b, dtype, scaled)]), lambda n: [(2, 3, 5, n), (2, 1, 5, n)])

    b = ProgramBuilder()
    found["log softmax"] = Chain(b.build([_softmax(b, dtype, b.input(dtype), log=True)]), lambda n: [(7, n)])

    b = ProgramBuilder()
    x, residual, scale, bias = (b.input(dtype) for _ in range(4))
    total = b.cast(b.emit("add", dtype, x, residual), dtype)
    normal = _normalized(b, dtype, total, (-1,))
    affine = b.emit("add", dtype, b.emit("mul", dtype, normal, scale), bias)
    found["layer norm, residual, gelu"] = Chain(
        b.build([b.cast(b.emit("gelu", dtype, affine), dtype), total]), lambda n: [(3, 3, n), (3, 3, n), (n,), (n,)]
    )

    b = ProgramBuilder()
    x = b.view(Input(dtype, view=parse_steps("split:-3:2:-1")))
    scale = b.view(Input(dtype, view=parse_steps("split:-3:2:-1")))
    bias = b.view(Input(dtype, view=parse_steps("split:-3:2:-1")))
    normal = _normalized(b, dtype, x, (-3, -2, -1))
    affine = b.emit("add", dtype, b.emit("mul", dtype, normal, scale), bias)
    silu = b.emit("mul", dtype, affine, b.emit("sigmoid", dtype, affine))
    found["group norm, silu"] = Chain(
        b.build([silu], [parse_steps("merge:-4")]), lambda n: [(2, 6, 1, n), (6, 1, 1), (6, 1, 1)]
    )

    b = ProgramBuilder()
    x, scale, bias = b.input(dtype), b.input(dtype, -3), b.input(dtype, -3)
    affine = b.emit("add", dtype, b.emit("mul", dtype, _normalized(b, dtype, x, (-2, -1)), scale), bias)
    found["instance norm, relu"] = Chain(b.build([b.emit("relu", dtype, affine)]), lambda n: [(2, 3, 2, n), (3,), (3,)])

    b = ProgramBuilder()
    x = b.input(dtype)
    wide = b.cast(x, "f32" if dtype != "f64" else "f64")
    own = b.dtype(wide)
    norm = b.emit("sqrt", own, b.reduce("reduce_sum", b.emit("mul", own, wide, wide), (-1,)))
    floor = b.emit("max", own, norm, b.const(own, 1e-12))
    found["l2 normalize"] = Chain(b.build([b.cast(b.emit("div", own, wide, floor), dtype)]), lambda n: [(6, n)])

    b = ProgramBuilder()
    x = b.input(dtype)
    silu = b.emit("mul", dtype, x, b.emit("sigmoid", dtype, x))
    found["mean over channels"] = Chain(b.build([b.reduce("reduce_mean", silu, (-3,))]), lambda n: [(2, n, 5, 8)])

    b = ProgramBuilder()
    x = b.input(dtype)
    found["channels last mean"] = Chain(b.build([b.reduce("reduce_mean", x, (-2,))]), lambda n: [(2, n, 12)])

    b = ProgramBuilder()
    x = b.input(dtype)
    found["softmax over channels"] = Chain(b.build([_softmax(b, dtype, x, (-2,))]), lambda n: [(2, n, 36)])

    b = ProgramBuilder()
    word = b.view(Input("i64", view=parse_steps("unsqueeze:-1")))
    kind = b.view(Input("i32"))
    words, kinds, places = b.view(Input(dtype, row=word)), b.view(Input(dtype, row=kind)), b.input(dtype)
    total = b.cast(b.emit("add", dtype, b.emit("add", dtype, words, kinds), places), dtype)
    found["words, kinds, places, layer norm"] = Chain(
        b.build([_normalized(b, dtype, total, (-1,)), total]),
        lambda n: [(2, 5), (5, 1), (13, n), (11, n), (5, n)],
    )

    b = ProgramBuilder()
    x = b.input(dtype)
    centred = b.emit("sub", dtype, x, b.reduce("reduce_mean", x, (-1,)))
    variance = b.reduce("reduce_mean", b.emit("mul", dtype, centred, centred), (-1,))
    found["deviation of rows"] = Chain(b.build([b.emit("sqrt", dtype, variance), variance]), lambda n: [(5, n)])
    return found


def integers(dtype: str) -> Chain:
    """Sums, products and extremes of integers, with the coordinate of the first extreme."""
    b = ProgramBuilder()
    x = b.input(dtype)
    largest, smallest = b.reduce("reduce_max", x, (-1,)), b.reduce("reduce_min", x, (-1,))
    place = b.index("i64", x, -1)
    first = b.emit("where", "i64", b.emit("equal", dtype, x, largest), place, b.const("i64", 1 << 40))
    outputs = [largest, smallest, b.reduce("reduce_min", first, (-1,))]
    if dtype in ("i32", "i64"):
        outputs += [b.reduce("reduce_sum", x, (-1,)), b.reduce("reduce_prod", x, (-1,))]
    return Chain(b.build(outputs), lambda n: [(5, n)])


_OPERATORS = {"f32": ("add", "sub", "mul", "max", "abs", "relu"), "i32": ("add", "sub", "mul", "max", "bitwise_xor")}


def random_nest(seed: int) -> tuple[Program, Shapes]:
    """A Program that reduces once to three times along random axes, with operands that broadcast in random ways."""
    rng = random.Random(seed)
    dtype = rng.choice(sorted(_OPERATORS))
    rank = rng.randint(1, 4)
    shape = [rng.choice((1, 2, 3, 4, 6, 8, 17)) for _ in range(rank)]
    axes = sorted(rng.sample(range(-rank, 0), rng.randint(1, rank)))
    b = ProgramBuilder()
    shapes: Shapes = [tuple(shape)]
    values = [b.input(dtype)]
    for _ in range(rng.randint(0, 3)):
        own = tuple(size if rng.random() < 0.6 else 1 for size in shape)
        shapes.append(own[rng.randint(0, rank - 1) :] if rng.random() < 0.4 else own)
        values.append(b.input(dtype))
    whole = [values[0]]
    if rng.random() < 0.4:
        place = b.index(dtype, values[0], rng.choice(range(-rank, 0)))
        whole.append(b.emit("add", dtype, values[0], place))
    outputs = []
    for _ in range(rng.randint(1, 3)):
        for _ in range(rng.randint(0, 3)):
            op = rng.choice(_OPERATORS[dtype])
            one = rng.choice(whole)
            operands = (one,) if op in ("abs", "relu") else (one, rng.choice(whole + values))
            whole.append(b.emit(op, dtype, *operands))
        reduction = b.reduce(rng.choice(("reduce_sum", "reduce_max", "reduce_min")), rng.choice(whole), axes)
        values.append(reduction)
        whole.append(b.emit("sub", dtype, rng.choice(whole), reduction))
        if rng.random() < 0.4:
            outputs.append(reduction)
    outputs += rng.sample(whole[1:], min(len(whole) - 1, rng.randint(1, 2)))
    return b.build(outputs), shapes


def arrays(program: Program, shapes: Shapes, seed: int = 0) -> list[np.ndarray]:
    """Inputs of moderate numbers."""
    random_numbers = np.random.default_rng(seed)
    found = []
    for spec, shape in zip(program.inputs, shapes, strict=True):
        numpy_type = DTYPES[spec.dtype].numpy
        if numpy_type.kind in "iu":
            most = 256 if has_nibbles(spec.view) else 10
            found.append(random_numbers.integers(0 if numpy_type.kind == "u" else -9, most, shape).astype(numpy_type))
        elif numpy_type.kind == "b":
            found.append(random_numbers.integers(0, 2, shape).astype(bool))
        else:
            found.append(random_numbers.standard_normal(shape).astype(numpy_type))
    return found
