"""An instruction gives the same bits in a chain, where values stay in registers, as on its own."""

from fractions import Fraction

import numpy as np
import pytest

from onnxfuse.program.ops import OPS
from tests.custom_ops.fused import NUMPY_TYPES, assert_same_bits, rounds_once, run_fused, sample

SCALARS = {"nan": np.nan, "0": 0.0, "-0": -0.0, "3": 3.0, "-0.5": -0.5, "inf": np.inf}
UNARY = [op.name for op in OPS.values() if op.chained and op.arity == 1]
BINARY = [op.name for op in OPS.values() if op.chained and op.arity == 2]
HEADER = "onnxfuse 1\ninput {0} broadcast\ninput {0} broadcast\n"


def in_chain(instruction: str, dtype: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The instruction on value 3, which is x after two negations."""
    program = HEADER + "neg {0} 0\nneg {0} 2\n" + instruction + "\noutput 4\n"
    return run_fused(program.format(dtype), [x, y])[0]


def alone(instruction: str, dtype: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return run_fused((HEADER + instruction.replace(" 3", " 0") + "\noutput 2\n").format(dtype), [x, y])[0]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("op", BINARY)
def test_binary(op: str, swapped: bool, dtype: str) -> None:
    """With a vector of the same values in another order, and with scalars that NaN and signed zeros meet."""
    x = sample(dtype, 700)
    instruction = f"{op} {{0}} 1 3" if swapped else f"{op} {{0}} 3 1"
    for y in (sample(dtype, 700, 1), *(np.array(value, NUMPY_TYPES[dtype]) for value in SCALARS.values())):
        assert_same_bits(in_chain(instruction, dtype, x, y), alone(instruction, dtype, x, y))


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("op", UNARY)
def test_unary(op: str, dtype: str) -> None:
    x = sample(dtype, 700)
    instruction = f"{op} {{0}} 3"
    assert_same_bits(in_chain(instruction, dtype, x, x), alone(instruction, dtype, x, x))


@pytest.mark.parametrize("function", ["exp", "tanh", "sigmoid"])
def test_functions_among_values_that_stay_in_registers(function: str) -> None:
    """The same bits at every place: in whole blocks, single vectors, and what is left at the end."""
    lines = ["add f32 0 1", f"{function} f32 2", "sub f32 3 2", "mul f32 4 3", "add f32 5 2"]
    program = HEADER.format("f32") + "\n".join(lines) + "\noutput 6\n"
    x, y = (np.random.default_rng(seed).uniform(-9, 9, 777).astype(np.float32) for seed in range(2))
    whole = run_fused(program, [x, y])[0]
    function_of = run_fused(HEADER.format("f32") + f"{function} f32 0\noutput 2\n", [x + y, y])[0]
    assert_same_bits(whole, (function_of - (x + y)) * function_of + (x + y))
    for start in (1, 15, 400, 776):
        assert_same_bits(whole[start:], run_fused(program, [x[start:], y[start:]])[0])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "min", "max"])
def test_a_value_that_is_read_again_later(op: str, swapped: bool, dtype: str) -> None:
    """Value 3 is kept while the chain goes on, read twice, and another value is kept across it."""
    x, y = sample(dtype, 700), sample(dtype, 700, 1)
    read = f"{op} {dtype} 3 {{0}}" if swapped else f"{op} {dtype} {{0}} 3"
    lines = [f"add {dtype} 0 1", f"neg {dtype} 2", f"abs {dtype} 3", read.format(4), read.format(5), f"mul {dtype} 6 2"]
    program = HEADER.format(dtype) + "\n".join(lines) + "\noutput {}\n"
    steps = [run_fused(program.format("\noutput ".join(map(str, range(2, 8)))), [x, y])[index] for index in range(6)]
    assert_same_bits(run_fused(program.format(7), [x, y])[0], steps[-1])
    two = HEADER.format(dtype) + "{} {} 0 1\noutput 2\n"
    for name, a, b, result in ((op, 2, 1, 3), (op, 3, 1, 4)):
        operands = [steps[b], steps[a]] if swapped else [steps[a], steps[b]]
        assert_same_bits(steps[result], run_fused(two.format(name, dtype), operands)[0])
    assert_same_bits(steps[5], run_fused(two.format("mul", dtype), [steps[4], steps[0]])[0])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("later", ["", "value", "sigmoid", "output"])
@pytest.mark.parametrize("gated", ["input", "computed"])
@pytest.mark.parametrize("function", ["hard_sigmoid", "sigmoid"])
def test_gate(function: str, gated: str, later: str, swapped: bool, dtype: str) -> None:
    """x Sigmoid(x), where x or its Sigmoid may be read again, and x may be a result too.

    Of float32 it is one function where nothing else reads the Sigmoid, within 4 ulp as others are."""
    x, y = sample(dtype, 700), sample(dtype, 700, 1)
    first, of = (f"neg {dtype} 1", 0) if gated == "input" else (f"neg {dtype} 0", 2)
    bits = ("3e4ccccd", "3f000000") if dtype == "f32" else ("3fc999999999999a", "3fe0000000000000")
    constants = [f"const {dtype} {value}" for value in bits]
    scale, alone = (" 3 4", " 2 3") if function == "hard_sigmoid" else ("", "")
    gate = f"mul {dtype} 5 {of}" if swapped else f"mul {dtype} {of} 5"
    last = {"value": [f"add {dtype} 6 {of}"], "sigmoid": [f"add {dtype} 6 5"]}.get(later, [f"sub {dtype} 6 1"])
    lines = [first, *constants, f"{function} {dtype} {of}{scale}", gate, *last]
    outputs = "output 7\n" + ("output 2\n" if later == "output" else "")
    results = run_fused(HEADER.format(dtype) + "\n".join(lines) + "\n" + outputs, [x, y])
    value = x if gated == "input" else -x
    lines = [*constants, f"{function} {dtype} 0{alone}", f"mul {dtype} 0 4"]
    program = HEADER.format(dtype) + "\n".join(lines) + "\n"
    sigmoid = run_fused(program + "output 4\n", [value, y])[0]
    with np.errstate(invalid="ignore", over="ignore"):
        product = value * sigmoid
        if function == "sigmoid" and dtype == "f32" and later != "sigmoid":
            alike, product = product, run_fused(program + "output 5\n", [value, y])[0]
            ordinary = np.abs(alike) > 1e-30
            np.testing.assert_allclose(product[ordinary], alike[ordinary], rtol=1e-6)
            np.testing.assert_allclose(product[~ordinary], alike[~ordinary], rtol=0, atol=1e-30)
        expected = product + value if later == "value" else product + sigmoid if later == "sigmoid" else product - y
    assert_same_bits(results[0], expected)
    if later == "output":
        assert_same_bits(results[1], -y if gated == "input" else -x)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("bound_first", [False, True])
@pytest.mark.parametrize("high", SCALARS)
@pytest.mark.parametrize("low", SCALARS)
def test_clip(low: str, high: str, bound_first: bool, dtype: str) -> None:
    """Signed zeros tell which operand comes first."""
    x = np.concatenate([sample(dtype, 700), np.array([0.0, -0.0, np.nan, np.inf, -np.inf], NUMPY_TYPES[dtype])])
    bounds = [np.array(SCALARS[name], NUMPY_TYPES[dtype]) for name in (low, high)]
    larger_of, smaller_of, alone_of = ("1 3", "2 4", "1 0") if bound_first else ("3 1", "4 2", "0 1")
    header = HEADER.format(dtype) + f"input {dtype} broadcast\nneg {dtype} 0\nmax {dtype} {larger_of}\n"
    clipped = run_fused(header + f"min {dtype} {smaller_of}\noutput 5\n", [x, *bounds])[0]
    larger = run_fused(header + "output 4\n", [x, *bounds])[0]
    wanted = run_fused(HEADER.format(dtype) + f"min {dtype} {alone_of}\noutput 2\n", [larger, bounds[1]])[0]
    assert_same_bits(clipped, wanted)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("columns", [256, 257, 300, 511, 777, 2025])
def test_rows_that_begin_anywhere_in_memory(columns: int, dtype: str) -> None:
    """Blocks of aligned vectors begin in the midst of a row; a value in the midst of the chain is a result too."""
    lines = ["mul {0} 0 1", "add {0} 2 0", "abs {0} 3", "sub {0} 4 1"]
    program = (HEADER + "\n".join(lines) + "\noutput 3\noutput 5\n").format(dtype)
    x = np.random.default_rng(columns).normal(size=(9, columns)).astype(NUMPY_TYPES[dtype])
    scale = np.linspace(-2, 2, 9, dtype=x.dtype)[:, None]
    middle, last = run_fused(program, [x, scale])
    assert_same_bits(middle, x * scale + x)
    assert_same_bits(last, abs(x * scale + x) - scale)


@pytest.mark.parametrize("shape", [(64,), (3, 5, 7)])
def test_what_sigmoid_gates_is_never_denormal(shape: tuple[int, ...]) -> None:
    """ONNX Runtime's convolutions, or anyone's, would take some hundred cycles for each such number."""
    x = np.linspace(-110, -80, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    program = HEADER.format("f32") + "sigmoid f32 0\nmul f32 0 2\noutput 2\noutput 3\n"
    for result in run_fused(program, [x, x]):
        least = np.finfo(np.float32).smallest_normal
        assert np.all((result == 0) | (np.abs(result) >= least)) and np.any(result == 0) and np.any(result != 0)


def fused_multiply_add(x: np.ndarray, factor: np.ndarray, addend: np.ndarray) -> np.ndarray:
    """x * factor + addend without rounding the product.  (To float32 by way of double, which no sample can tell.)"""
    operands = (values.flat for values in np.broadcast_arrays(x, factor, addend))
    exact = [Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)) for a, b, c in zip(*operands, strict=True)]
    return np.array([float(value) for value in exact]).astype(x.dtype).reshape(x.shape)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("addend_shape", [(777,), ()])
@pytest.mark.parametrize("factor_shape", [(777,), ()])
def test_contraction(factor_shape: tuple[int], addend_shape: tuple[int], swapped: bool, dtype: str) -> None:
    """A program that contracts rounds a product with its sum, in whole blocks, single vectors, and what is left."""
    random = np.random.default_rng(5)
    x, factor, addend = (random.normal(size=s).astype(NUMPY_TYPES[dtype]) for s in ((777,), factor_shape, addend_shape))
    lines = [
        "input {0} broadcast",
        "neg {0} 0",
        *(("mul {0} 1 3", "add {0} 2 4") if swapped else ("mul {0} 3 1", "add {0} 4 2")),
    ]
    program = (HEADER + "\n".join(lines) + "\noutput 5\n").format(dtype)
    twice = -x * factor + addend
    assert_same_bits(run_fused(program, [x, factor, addend])[0], twice)
    contracted = run_fused(program.replace("\n", "\ncontract\n", 1), [x, factor, addend])[0]
    once = fused_multiply_add(-x, factor, addend)
    assert np.any(once != twice)
    assert_same_bits(contracted, once if rounds_once() else twice)


def test_a_product_that_is_a_result_too_is_not_contracted() -> None:
    lines = ["contract", "input f32 broadcast", "input f32 broadcast", "mul f32 0 1", "add f32 2 0"]
    program = "\n".join(["onnxfuse 1", *lines, "output 2", "output 3"]) + "\n"
    x, y = (np.random.default_rng(seed).normal(size=500).astype(np.float32) for seed in range(2))
    product, total = run_fused(program, [x, y])
    assert_same_bits(product, x * y)
    assert_same_bits(total, x * y + x)
