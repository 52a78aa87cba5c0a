"""Every operator on every type against plain ONNX Runtime, and against the NumPy reference where ORT has no kernel."""

import itertools

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from onnxfuse.program import Program, reference
from onnxfuse.program.ops import OPS, Op, Rule
from tests.custom_ops.fused import (
    NUMPY_TYPES,
    ON_AARCH64,
    ONNX_TYPES,
    assert_same_bits,
    run_fused,
    run_nodes,
    sample,
)

# Rows that are an ONNX operator with attributes.
WITH_ATTRIBUTES = {
    "mod": ("Mod", {}),
    "fmod": ("Mod", {"fmod": 1}),
    "pow": ("Pow", {}),
    "min": ("Min", {}),
    "max": ("Max", {}),
    "shift_left": ("BitShift", {"direction": "LEFT"}),
    "shift_right": ("BitShift", {"direction": "RIGHT"}),
}
FLOATS = ("f16", "bf16", "f32", "f64")
# The same bits as ORT: softsign too, which ORT computes in another order than the reference.
EXACT = {op.name for op in OPS.values() if op.ulp == 0} | {"softsign"}
# ORT 1.20 differs from the newest here: approximate square roots, +0 for -0, slopes times infinities, shifts that wrap.
CHANGED_SINCE_1_20 = {"sqrt", "floor", "ceil", "leaky_relu", "shift_left", "shift_right"}
OLD_ORT = ort.__version__.startswith("1.20.")
FUNCTIONS = [op.name for op in OPS.values() if op.ulp]
COUNT = 208 if ON_AARCH64 else 203  # whole vectors where ORT makes something else of what is left behind them


def types_of(op: Op) -> list[str]:
    return [*op.types, *(("f16", "bf16") if "f32" in op.types else ())]


def operand_types(op: Op, dtype: str) -> list[str]:
    return ["bool", dtype, dtype] if op.rule is Rule.SELECT else [dtype] * op.arity


def program_of(op: Op, dtype: str, inputs: list[str]) -> str:
    lines = ["onnxfuse 1", *inputs, f"{op.name} {dtype} {' '.join(map(str, range(op.arity)))}", f"output {op.arity}"]
    return "\n".join(lines) + "\n"


def bits(value: np.ndarray) -> str:
    return value.tobytes()[::-1].hex()


def nonzero(array: np.ndarray) -> np.ndarray:
    return np.where((array == 0) | (array == np.array(-1).astype(array.dtype)), array.dtype.type(3), array)


CASES = [(op.name, t) for op in OPS.values() if op.rule is not Rule.CAST for t in types_of(op)]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_operator_agrees_with_ort(name: str, dtype: str) -> None:
    op = OPS[name]
    onnx_op, attributes = WITH_ATTRIBUTES.get(name, (op.onnx, {}))
    exact = name in EXACT or dtype not in FLOATS or op.rule is Rule.COMPARE
    if not onnx_op or not exact or (name == "pow" and dtype in ("u32", "u64")):
        pytest.skip("a function: see the tests of accuracy")
    arrays = [sample(t, COUNT, i) for i, t in enumerate(operand_types(op, dtype))]
    if name in ("div", "mod", "fmod") and dtype not in FLOATS:
        arrays[1] = nonzero(arrays[1])  # ORT refuses or traps
        if name == "fmod":
            arrays = [array % array.dtype.type(100) for array in arrays]  # ORT goes through double
            arrays[1] = nonzero(arrays[1])
    program = program_of(op, dtype, [f"input {t} broadcast" for t in operand_types(op, dtype)])
    (actual,) = run_fused(program, arrays)
    if OLD_ORT and name in CHANGED_SINCE_1_20:
        assert_same_bits(actual, reference.run(Program.parse(program), arrays)[0])
        return
    node = helper.make_node(onnx_op, [f"x{i}" for i in range(op.arity)], ["y0"], **attributes)
    try:
        (expected,) = run_nodes([node], arrays, ["bool" if op.rule is Rule.COMPARE else dtype])
    except Exception as error:
        assert "NOT_IMPLEMENTED" in str(error) or "INVALID_GRAPH" in str(error)
        (expected,) = reference.run(Program.parse(program), arrays)
        expected = np.abs(expected) if name in ("relu", "where") and dtype == "bf16" else expected
        actual = np.abs(actual) if name in ("relu", "where") and dtype == "bf16" else actual
        if name == "softsign":
            np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=1e-15)
            return
        if ON_AARCH64 and name == "pow" and dtype not in FLOATS:  # NumPy's own are of the place, too, beyond the type
            fits = np.abs(np.power(*(array.astype(np.float64) for array in arrays))) <= np.iinfo(expected.dtype).max
            actual, expected = actual[fits], expected[fits]
    if ON_AARCH64 and name == "hard_swish" and dtype == "f16":  # of which ORT rounds the gate
        np.testing.assert_allclose(actual.astype(np.float32), expected.astype(np.float32), rtol=2.0**-10, atol=1e-7)
        return
    assert_same_bits(actual, expected)


@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"])
@pytest.mark.parametrize("name", ["div", "mod", "fmod"])
def test_integer_division_overflows(name: str, dtype: str) -> None:
    limits = np.iinfo(NUMPY_TYPES[dtype])
    a = np.array([limits.min, 7, 0] * 21, NUMPY_TYPES[dtype])
    b = np.full(63, -1 if limits.min < 0 else 1, NUMPY_TYPES[dtype])
    (actual,) = run_fused(program_of(OPS[name], dtype, [f"input {dtype} broadcast"] * 2), [a, b])
    quotients = [limits.min, -7 if limits.min < 0 else 7, 0]
    np.testing.assert_array_equal(actual, np.array((quotients if name == "div" else [0] * 3) * 21, NUMPY_TYPES[dtype]))


@pytest.mark.parametrize("count", [1, 63, 100_000])
@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"])
@pytest.mark.parametrize("name", ["div", "mod", "fmod"])
def test_integers_divided_by_zero_fail_the_run(name: str, dtype: str, count: int) -> None:
    """As in ONNX Runtime, wherever the zero is, on whatever thread."""
    program = program_of(OPS[name], dtype, [f"input {dtype} broadcast"] * 2)
    a, b = (np.full(count, value, NUMPY_TYPES[dtype]) for value in (7, 3))
    run_fused(program, [a, b])
    for place in {0, count // 2, count - 1}:
        zero = b.copy()
        zero[place] = 0
        with pytest.raises(Exception, match="divided by zero"):
            run_fused(program, [a, zero])
    with pytest.raises(Exception, match="divided by zero"):
        run_fused(program, [a, np.zeros((), a.dtype)])


@pytest.mark.parametrize("name", ["div", "mod", "fmod"])
def test_integers_divided_by_the_constant_zero_fail_the_run(name: str) -> None:
    for divisor in (0, 3):
        program = f"onnxfuse 1\ninput i32 broadcast\nconst i32 {divisor:08x}\n{name} i32 0 1\noutput 2\n"
        if divisor:
            run_fused(program, [np.arange(5, dtype=np.int32)])
        else:
            with pytest.raises(Exception, match="divided by zero"):
                run_fused(program, [np.arange(5, dtype=np.int32)])


@pytest.mark.parametrize("dtype", ["u8", "u16", "u32", "u64"])
@pytest.mark.parametrize("name", ["shift_left", "shift_right"])
def test_shift_by_the_width_or_more_is_zero(name: str, dtype: str) -> None:
    width = 8 * NUMPY_TYPES[dtype].itemsize
    a = np.full(67, 255, NUMPY_TYPES[dtype])
    b = np.full(67, width, NUMPY_TYPES[dtype])
    (actual,) = run_fused(program_of(OPS[name], dtype, [f"input {dtype} broadcast"] * 2), [a, b])
    assert not actual.any()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_as_precise_as_the_table_says(name: str) -> None:
    values = np.concatenate([sample("f32", 500, 1, special=False), np.linspace(-1, 1, 500, dtype=np.float32)])
    arrays = [np.random.default_rng(index).permutation(values) for index in range(OPS[name].arity)]
    (actual,) = run_fused(program_of(OPS[name], "f32", ["input f32 broadcast"] * len(arrays)), arrays)
    double = Program.parse(program_of(OPS[name], "f64", ["input f64 broadcast"] * len(arrays)))
    expected = reference.run(double, [array.astype(np.float64) for array in arrays])[0]
    rounded = expected.astype(np.float32)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(actual[~finite], rounded[~finite])
    error = np.abs(actual[finite] - expected[finite]) / np.spacing(np.abs(rounded[finite]))
    assert error.max() <= OPS[name].ulp


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_on_other_floats(name: str, dtype: str) -> None:
    arrays = [
        np.abs(sample(dtype, 203, i, special=False)) + NUMPY_TYPES[dtype].type(0.25) for i in range(OPS[name].arity)
    ]
    program = program_of(OPS[name], dtype, [f"input {dtype} broadcast"] * OPS[name].arity)
    (actual,) = run_fused(program, arrays)
    (expected,) = reference.run(Program.parse(program), arrays)
    tolerance = 4 * float(ml_dtypes.finfo(NUMPY_TYPES[dtype]).eps)
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=1e-12)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("name", "parameters"), [("elu", [1.5]), ("hard_sigmoid", [0.25, 0.5])])
def test_operators_with_parameters(name: str, parameters: list[float], dtype: str) -> None:
    constants = [np.array(p).astype(NUMPY_TYPES[dtype]) for p in parameters]
    lines = [f"input {dtype} broadcast", *(f"const {dtype} {bits(c)}" for c in constants)]
    program = program_of(OPS[name], dtype, lines)
    arrays = [sample(dtype, 203)]
    (actual,) = run_fused(program, arrays)
    (expected,) = reference.run(Program.parse(program), arrays)
    np.testing.assert_allclose(
        actual.astype(np.float64),
        expected.astype(np.float64),
        rtol=4 * float(ml_dtypes.finfo(NUMPY_TYPES[dtype]).eps),
        atol=float(ml_dtypes.finfo(NUMPY_TYPES[dtype]).smallest_subnormal),
    )


@pytest.mark.parametrize(("source", "target"), list(itertools.product(ONNX_TYPES, ONNX_TYPES)))
def test_cast_agrees_with_ort(source: str, target: str) -> None:
    array = sample(source, 203)
    if source in FLOATS:
        powers = [s * (2.0**k + d) for k in (7, 8, 15, 16, 31, 32, 63, 64) for s in (1, -1) for d in (-1, 0, 0.5, 300)]
        with np.errstate(over="ignore"):
            array = np.concatenate([array, np.array([*powers, 65519, 65520, 6e-8]).astype(array.dtype)])
    elif source != "bool":
        limits = np.iinfo(array.dtype)
        whole = np.random.default_rng(0).integers(limits.min, limits.max, 300, dtype=array.dtype)
        array = np.concatenate([array, whole])
    if source in FLOATS and target == "u32":
        # What ORT makes of other values depends on their place, in a vector or in the remainder, and on the source.
        array = array[(array > -1) & (array < 2.0**32)]
    if source in FLOATS and ON_AARCH64:
        array = np.resize(array, len(array) // 64 * 64 + 64)
    program = f"onnxfuse 1\ninput {source} broadcast\ncast {target} 0\noutput 1\n"
    node = helper.make_node("Cast", ["x0"], ["y0"], to=ONNX_TYPES[target])
    assert_same_bits(run_fused(program, [array])[0], run_nodes([node], [array], [target])[0])
