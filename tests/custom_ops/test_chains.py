"""An instruction gives the same bits in a chain, where values stay in registers, as on its own."""

import numpy as np
import pytest

from tests.custom_ops.fused import NUMPY_TYPES, assert_same_bits, run_fused, sample

SCALARS = {"nan": np.nan, "0": 0.0, "-0": -0.0, "3": 3.0, "-0.5": -0.5, "inf": np.inf}
UNARY = ["neg", "abs", "reciprocal", "relu", "hard_swish"]
FUNCTIONS = ["exp", "log", "tanh", "erf", "sigmoid", "softplus", "mish", "gelu"]
HEADER = "onnxfuse 1\ninput {0} broadcast\ninput {0} broadcast\n"


def in_chain(instruction: str, dtype: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The instruction on value 3, which is x after two negations."""
    program = HEADER + "neg {0} 0\nneg {0} 2\n" + instruction + "\noutput 4\n"
    return run_fused(program.format(dtype), [x, y])[0]


def alone(instruction: str, dtype: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return run_fused((HEADER + instruction.replace(" 3", " 0") + "\noutput 2\n").format(dtype), [x, y])[0]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "min", "max"])
def test_binary(op: str, swapped: bool, dtype: str) -> None:
    """With a vector of the same values in another order, and with scalars that NaN and signed zeros meet."""
    x = sample(dtype, 700)
    instruction = f"{op} {{0}} 1 3" if swapped else f"{op} {{0}} 3 1"
    for y in (sample(dtype, 700, 1), *(np.array(value, NUMPY_TYPES[dtype]) for value in SCALARS.values())):
        assert_same_bits(in_chain(instruction, dtype, x, y), alone(instruction, dtype, x, y))


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("op", UNARY + FUNCTIONS)
def test_unary(op: str, dtype: str) -> None:
    x = sample(dtype, 700)
    instruction = f"{op} {{0}} 3"
    assert_same_bits(in_chain(instruction, dtype, x, x), alone(instruction, dtype, x, x))
