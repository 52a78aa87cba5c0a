"""Programs for the tests of kernels: every operator on every type, chains as models have them, and random ones."""

import random
from collections.abc import Iterator

from onnxfuse.cuda.elementwise.renderer import Tuning
from onnxfuse.cuda.kernel import Access
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program, ProgramBuilder
from onnxfuse.program.ops import OPS, Op, Rule
from onnxfuse.program.program import AxisSlice, Input
from onnxfuse.program.view_steps import ViewStep

OUTPUTS = 16
"""Operators in one Program: with 4 inputs, as many operands as a kernel takes."""

SMALL = Tuning(block=32)
"""Small blocks, so that a few hundred elements are those of several."""

FUNCTIONS = {op.name for op in OPS.values() if op.ulp}
"""Of all others the bits must agree."""


def linear(program: Program) -> Access:
    """All operands of one shape."""
    return Access("l" * len(program.inputs), "l" * len(program.outputs))


def operators(dtype: str) -> list[Op]:
    """The operators, but cast, that have a kernel for T = ``dtype``."""
    compute = DTYPES[dtype].compute
    return [op for op in OPS.values() if op.rule is not Rule.CAST and compute in op.types]


def operator_programs(dtype: str) -> Iterator[tuple[Program, list[Op]]]:
    """Programs of three inputs of a type and one of bool, with an output for each operator."""
    ops = operators(dtype)
    for start in range(0, len(ops), OUTPUTS):
        builder = ProgramBuilder()
        values = [builder.input(dtype) for _ in range(3)]
        condition = builder.input("bool")
        chosen = ops[start : start + OUTPUTS]
        operands = [[condition, *values[:2]] if op.rule is Rule.SELECT else values[: op.arity] for op in chosen]
        yield (
            builder.build([builder.emit(op.name, dtype, *own) for op, own in zip(chosen, operands, strict=True)]),
            chosen,
        )


def cast_program(dtype: str) -> Program:
    """A Program that casts one input to every type."""
    builder = ProgramBuilder()
    value = builder.input(dtype)
    return builder.build([builder.cast(value, target) for target in DTYPES])


def chains(dtype: str) -> dict[str, tuple[Program, list[Access]]]:
    """Chains as models have them, with the access patterns that their planner would foretell."""
    result: dict[str, tuple[Program, list[Access]]] = {}

    def add(name: str, builder: ProgramBuilder, outputs: list[int], *accesses: str) -> None:
        result[name] = (builder.build(outputs), [Access.parse(access) for access in accesses])

    b = ProgramBuilder()
    x, y = b.input(dtype), b.input(dtype)
    scaled = b.emit("mul", dtype, x, b.const(dtype, 0.5))
    add("scale, relu, add", b, [b.emit("add", dtype, b.emit("relu", dtype, scaled), y)], "ll:l")

    b = ProgramBuilder()
    x, scale, shift = b.input(dtype), b.input(dtype, 1), b.input(dtype, 1)
    affine = b.emit("add", dtype, b.emit("mul", dtype, x, scale), shift)
    add("BatchNorm, HardSwish", b, [b.emit("hard_swish", dtype, affine)], "lcc:l")

    b = ProgramBuilder()
    value = b.input(dtype)
    for i in range(10):
        value = b.emit("add" if i % 2 else "mul", dtype, value, b.const(dtype, 1.5 + i / 8))
    add("ten operations", b, [value], "l:l")

    b = ProgramBuilder()
    x = b.input(dtype)
    gate = b.emit("erf", dtype, b.emit("mul", dtype, x, b.const(dtype, 0.7071067811865476)))
    gate = b.emit("mul", dtype, b.emit("add", dtype, gate, b.const(dtype, 1)), b.const(dtype, 0.5))
    add("GELU", b, [b.emit("mul", dtype, x, gate)], "l:l")

    b = ProgramBuilder()
    x, gate, residual = b.input(dtype), b.input(dtype), b.input(dtype)
    silu = b.emit("mul", dtype, gate, b.emit("sigmoid", dtype, gate))
    add("gate and residual", b, [b.emit("add", dtype, b.emit("mul", dtype, silu, x), residual)], "lll:l")

    b = ProgramBuilder()
    x, mask, scale = b.input(dtype), b.input("bool"), b.input("f32")
    wide = b.emit("mul", "f32", b.cast(x, "f32"), scale)
    kept = b.emit("where", "f32", mask, wide, b.const("f32", float("-inf")))
    add("mixed types", b, [b.cast(kept, dtype), b.emit("tanh", "f32", wide)], "lgs:ll", "lis:ll")

    b = ProgramBuilder()
    x, y = b.input(dtype), b.input(dtype)
    total = b.emit("add", dtype, x, y)
    add("three outputs", b, [total, b.emit("tanh", dtype, total), b.emit("mul", dtype, total, x)], "ll:lll")

    b = ProgramBuilder()
    column, row, cube = b.input(dtype), b.input(dtype), b.input(dtype)
    table = b.emit("mul", dtype, column, row)
    add("outer product", b, [b.emit("max", dtype, table, cube)], "oig:l")

    b = ProgramBuilder()
    x, y = b.input(dtype), b.input(dtype)
    small = b.emit("exp", dtype, y)
    add("smaller output", b, [b.emit("mul", dtype, x, small), small], "lc:lw")
    return result


def view_chains(dtype: str) -> dict[str, tuple[Program, list[Access], list[tuple[int, ...]]]]:
    """The same of what is read through views, and shapes of the inputs."""
    result: dict[str, tuple[Program, list[Access], list[tuple[int, ...]]]] = {}

    b = ProgramBuilder()
    part = (AxisSlice(-1, 0, 64, 1),)
    x, halves = b.view(Input(dtype, slices=part)), b.view(Input(dtype, slices=part, swaps_halves=True))
    turned = b.emit("mul", dtype, halves, b.input(dtype))
    program = b.build([b.emit("add", dtype, b.emit("mul", dtype, x, b.input(dtype)), turned)])
    accesses = [Access.parse("gggg:l"), Access.parse("gggi:l")]
    result["rotary"] = program, accesses, [(2, 12, 33, 96), (2, 12, 33, 96), (33, 64), (33, 64)]

    b = ProgramBuilder()
    order = (ViewStep("permute", (0, 2, 1)),)
    x, y, bias = b.view(Input(dtype, view=order)), b.view(Input(dtype, view=order)), b.input(dtype)
    scaled = b.emit("mul", dtype, b.emit("add", dtype, x, bias), y)
    program = b.build([b.emit("relu", dtype, scaled), scaled])
    result["transposed"] = program, [Access.parse("ttg:ll")], [(3, 72, 130), (3, 72, 130), (72,)]

    b = ProgramBuilder()
    x, y = b.input(dtype), b.view(Input(dtype, view=order))
    program = b.build([b.emit("sub", dtype, x, b.emit("neg", dtype, y))])
    result["transposed, unaligned"] = program, [Access.parse("gt:l")], [(2, 67, 65), (2, 65, 67)]
    return result


BASIC = {
    "f32": (
        "add",
        "sub",
        "mul",
        "div",
        "min",
        "max",
        "neg",
        "abs",
        "sqrt",
        "floor",
        "relu",
        "leaky_relu",
        "hard_swish",
    ),
    "f64": ("add", "sub", "mul", "div", "min", "max", "neg", "sign", "round", "reciprocal", "relu"),
    "f16": ("add", "sub", "mul", "min", "max", "neg", "relu"),
    "bf16": ("add", "mul", "max", "abs"),
    "i32": ("add", "sub", "mul", "div", "mod", "min", "max", "abs", "bitwise_xor"),
    "i8": ("add", "sub", "mul", "div", "fmod", "neg"),
    "u8": ("add", "mul", "div", "shift_right", "bitwise_not"),
    "i64": ("add", "mul", "mod", "sign"),
    "bool": ("and", "or", "xor", "not"),
}


def random_program(seed: int) -> Program:
    """A Program of basic operations on values of several types."""
    rng = random.Random(seed)
    builder = ProgramBuilder()
    kinds = rng.sample(sorted(BASIC), rng.randint(1, 3))
    values = [builder.input(rng.choice(kinds)) for _ in range(rng.randint(1, 4))]
    values += [builder.const(kind, rng.choice((0, 1, 3))) for kind in kinds if rng.random() < 0.5]
    for _ in range(rng.randint(1, 12)):
        dtype = rng.choice(kinds)
        own = [value for value in values if builder.dtype(value) == dtype]
        if not own or rng.random() < 0.2:
            values.append(builder.emit("cast", dtype, rng.choice(values)))
        elif rng.random() < 0.1 and dtype != "bool":
            condition = builder.emit("less", dtype, rng.choice(own), rng.choice(own))
            values += [condition, builder.emit("where", dtype, condition, rng.choice(own), rng.choice(own))]
        else:
            op = rng.choice(BASIC[dtype])
            values.append(builder.emit(op, dtype, *(rng.choice(own) for _ in range(OPS[op].arity))))
    return builder.build([values[-1], *rng.sample(values, rng.randint(0, 2))])
