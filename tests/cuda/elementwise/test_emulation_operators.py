"""Every operator on every type, by every kernel of its source: the bits of the reference and of the CPU kernels."""

from functools import cache

import numpy as np
import pytest

from onnxfuse.cuda.elementwise.access import classify
from onnxfuse.cuda.elementwise.renderer import render
from onnxfuse.cuda.kernel import Source
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program, ProgramBuilder, reference
from onnxfuse.program.ops import OPS, Op
from tests.cuda.elementwise.programs import FUNCTIONS, SMALL, cast_program, linear, operator_programs
from tests.cuda.emulation.emulator import Emulation, check_program
from tests.custom_ops.fused import assert_same_bits, run_fused, sample

COUNT = 1031  # vectors, and a rest
TOLERANCE = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 1e-6, "f64": 1e-13, "i64": 1e-15, "u64": 1e-15}
FLOATS = ("f16", "bf16", "f32", "f64")
ACTIVATIONS = ("elu", "sigmoid", "softplus", "softsign", "mish", "gelu", "gelu_tanh")


class Compiled:
    """The operators of a type, the cast from it, and the library of their kernels."""

    def __init__(self, dtype: str) -> None:
        self.parts: list[tuple[Program, Source, list[Op]]] = []
        for program, ops in [*operator_programs(dtype), (cast_program(dtype), [])]:
            self.parts.append((program, render(program, [linear(program)], SMALL), ops))
        self.emulation = Emulation(source for _, source, _ in self.parts)


compiled = cache(Compiled)


def compare(actual: np.ndarray, expected: np.ndarray, dtype: str, exact: bool, message: str) -> None:
    if exact:
        try:
            assert_same_bits(actual, expected)
        except AssertionError as error:
            raise AssertionError(f"{message}: {error}") from None
    else:
        a, b = actual.astype(np.float64), expected.astype(np.float64)
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(a, b, rtol=TOLERANCE[dtype], atol=1e-37, err_msg=message)


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators(dtype: str) -> None:
    library = compiled(dtype)
    arrays = [sample(dtype, COUNT, seed) for seed in range(3)] + [sample("bool", COUNT)]
    for program, source, ops in library.parts:
        inputs = arrays[: len(program.inputs)] if ops else arrays[:1]
        # Powers beyond 2^53 need not be rounded alike.
        rounded = FUNCTIONS if dtype in FLOATS else {"pow"} if dtype in ("i64", "u64") else set()
        exact = [not ops or ops[i].name not in rounded for i in range(len(program.outputs))]
        names = [op.name for op in ops] or [f"cast to {target}" for target in DTYPES]
        expected = reference.run(program, inputs)
        # On the CPU a run in which an integer is divided by zero fails.
        safe = [
            np.where(array == 0, 1, array).astype(array.dtype) if place == 1 else array
            for place, array in enumerate(inputs)
        ]
        safe = inputs if dtype in FLOATS else safe
        for output, (mine, native) in enumerate(
            zip(reference.run(program, safe), run_fused(str(program), safe), strict=True)
        ):
            if exact[output]:
                compare(native, mine, dtype, True, f"CPU kernel of {names[output]}")

        def check(actual: np.ndarray, wanted: np.ndarray, output: int, kernel: str) -> None:
            compare(actual, wanted, dtype, exact[output], f"{names[output]} by {kernel}")  # noqa: B023

        ran = check_program(library.emulation, source, program, inputs, expected, check)
        assert ran == {kernel.name for kernel in source.kernels}


@pytest.mark.parametrize("target", ["f16", "bf16"])
def test_conversions_of_half_precision_are_exact(target: str) -> None:
    numpy_type = DTYPES[target].numpy
    halves = np.arange(1 << 16, dtype=np.uint16).view(numpy_type)
    # All values, what lies in the middle of two, and the neighbours of that.
    values = np.sort(halves[np.isfinite(halves.astype(np.float32))].astype(np.float32))
    middle = (values[:-1] / 2 + values[1:] / 2).astype(np.float32)
    overflow = np.float32([65519.996, 65520, 3.3961775e38, 3.3961776e38, np.inf, np.nan])
    singles = [middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf), overflow, -overflow]
    for dtype, to, array in ((target, "f32", halves), ("f32", target, np.concatenate(singles))):
        program, source, _ = compiled(dtype).parts[-1]
        output = list(DTYPES).index(to)
        layout = classify(program, [array.shape])
        result = compiled(dtype).emulation.run(source.kernels[0], program, layout, [array])[output]
        with np.errstate(all="ignore"):
            assert_same_bits(result, array.astype(DTYPES[to].numpy))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_as_precise_as_the_table_says(name: str) -> None:
    """Those that the prelude has in place of the CUDA library."""
    spread = np.random.default_rng(0).uniform(-1, 1, 20000)
    scales = [110.0, 15.0, 3.0, 0.5, 1e-5, 1e-40]
    x = np.concatenate([(spread * scale).astype(np.float32) for scale in scales])
    other = {"elu": [np.float32(1)]}.get(name, [])
    program, source, ops = next(p for p in compiled("f32").parts if name in [op.name for op in p[2]])
    inputs = [x, *(np.full(x.shape, 1, spec.numpy) for spec in (DTYPES[i.dtype] for i in program.inputs[1:]))]
    layout = classify(program, [array.shape for array in inputs])
    results = compiled("f32").emulation.run(source.kernels[0], program, layout, inputs)
    actual = results[[op.name for op in ops].index(name)]
    builder = ProgramBuilder()
    operands = [builder.input("f64"), *(builder.const("f64", value) for value in other)]
    double = builder.build([builder.emit(name, "f64", *operands)])
    (expected,) = reference.run(double, [x.astype(np.float64)])
    error = np.abs(actual - expected) / np.spacing(np.abs(expected).astype(np.float32))
    worst = int(np.argmax(error))
    assert error[worst] <= OPS[name].ulp, (x[worst], actual[worst], expected[worst])
