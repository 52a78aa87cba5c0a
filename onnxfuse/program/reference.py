"""The NumPy reference: what a Program means, slowly and plainly."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from onnxfuse.model.dtypes import DTYPES
from onnxfuse.model.slices import AxisSlice
from onnxfuse.program.ops import OPS, REDUCTIONS
from onnxfuse.program.program import Const, Index, Input, Instruction, Program, Reduction
from onnxfuse.program.view_steps import viewed


def run(program: Program, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Evaluate ``program`` on arrays of the types of its inputs; returns an array for each tensor that it makes.

    f16 and bf16 values are kept in float32 and rounded by casts and in the outputs.  Floats are reduced in float64.
    Raises ValueError for shapes that do not broadcast, and where a view or a part of an output does not fit.
    """
    inputs = _read(program, inputs)
    rank = max((array.ndim for array, spec in zip(inputs, program.inputs, strict=True) if spec.axis is None), default=0)
    arrays = iter(inputs)
    values: list[np.ndarray] = []
    with np.errstate(all="ignore"):
        for value in program.values:
            match value:
                case Input(dtype, axis):
                    array = next(arrays)
                    if axis is not None:
                        array = _along_axis(array, axis, rank)
                    values.append(_to_compute(array, dtype))
                case Const(dtype):
                    values.append(_to_compute(value.value, dtype))
                case Instruction():
                    values.append(_evaluate(value, [values[operand] for operand in value.operands]))
                case Reduction():
                    values.append(_reduce(value, values[value.operand]))
                case Index(dtype, operand, axis):
                    values.append(_coordinates(values[operand], axis, dtype))
        results = [values[output].astype(DTYPES[program.dtype(output)].numpy) for output in program.outputs]
        parts = [viewed(result, program.steps_of(place)) for place, result in enumerate(results)]
    return [_joined([parts[place] for place in places], program, places) for places in program.tensors]


def _read(program: Program, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the inputs are as they are read."""
    found: list[np.ndarray] = []
    for array, spec in zip(arrays, program.inputs, strict=True):
        found.append(_viewed(array, spec) if spec.row is None else _rows(array, found[spec.row], spec, program.axes))
    return found


def _rows(table: np.ndarray, numbers: np.ndarray, spec: Input, axes: Sequence[int]) -> np.ndarray:
    """The rows of a table that have these numbers, each seen through a view and broadcast with the numbers."""
    if table.ndim == 0:
        raise ValueError("rows of a tensor without dimensions")
    if any(numbers.ndim >= -axis and numbers.shape[axis] != 1 for axis in axes):
        raise ValueError("numbers of rows that differ along the axes that are reduced")
    if any(not -len(table) <= number < len(table) for number in numbers.ravel()):
        raise ValueError(f"the number of a row that is none of {len(table)}")
    row_shape = viewed(np.empty(table.shape[1:], table.dtype), spec.view).shape
    shape = np.broadcast_shapes(numbers.shape, row_shape)
    whole = np.broadcast_to(numbers, shape)
    found = np.empty(shape, table.dtype)
    for number in np.unique(numbers):
        row = np.broadcast_to(viewed(table[int(number)], spec.view), shape)
        found[whole == number] = row[whole == number]
    return found


def _joined(parts: list[np.ndarray], program: Program, places: Sequence[int]) -> np.ndarray:
    if len(parts) == 1:
        return parts[0]
    axis = program.appends[places[1]]
    if parts[0].ndim < -axis:
        raise ValueError(f"shape {parts[0].shape} has no axis {axis}")
    # What is nothing along the axis adds nothing, whatever its other sizes are.
    return np.concatenate([part for part in parts if part.shape[axis]] or parts[:1], axis)


def _viewed(array: np.ndarray, spec: Input) -> np.ndarray:
    if spec.view:
        return viewed(array, spec.view)
    array = _sliced(array, spec.slices)
    if not spec.swaps_halves:
        return array
    if array.ndim == 0 or array.shape[-1] % 2:
        raise ValueError(f"shape {array.shape} has no halves in its last dimension")
    return np.roll(array, array.shape[-1] // 2, axis=-1)


def _sliced(array: np.ndarray, slices: Sequence[AxisSlice]) -> np.ndarray:
    for part in slices:
        if not -array.ndim <= part.axis < array.ndim:
            raise ValueError(f"there is no axis {part.axis} of {array.ndim}")
        index = [slice(None)] * array.ndim
        index[part.axis] = slice(part.start, part.end, part.step)
        array = array[tuple(index)]
    return array


def _along_axis(vector: np.ndarray, axis: int, rank: int) -> np.ndarray:
    shape = [1] * (rank if axis >= 0 else -axis)
    shape[max(axis, 0)] = vector.size
    return vector.reshape(shape)


def _to_compute(array: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(array).astype(DTYPES[DTYPES[dtype].compute].numpy)


def _reduce(reduction: Reduction, array: np.ndarray) -> np.ndarray:
    if array.ndim < -reduction.axes[0]:
        raise ValueError(f"shape {array.shape} has no axis {reduction.axes[0]}")
    kernel = array.dtype
    is_float = kernel.kind == "f"
    limits = None if is_float else np.iinfo(kernel)
    names = {
        "np": np,
        "a": array.astype(np.float64) if is_float else array,
        "axes": reduction.axes,
        "count": math.prod(array.shape[axis] for axis in reduction.axes),
        "lowest": -np.inf if limits is None else limits.min,
        "highest": np.inf if limits is None else limits.max,
    }
    return np.asarray(eval(_REDUCTION_CODE[reduction.op], names)).astype(kernel)


def _coordinates(array: np.ndarray, axis: int, dtype: str) -> np.ndarray:
    if array.ndim < -axis:
        raise ValueError(f"shape {array.shape} has no axis {axis}")
    shape = [1] * array.ndim
    shape[axis] = array.shape[axis]
    places = np.arange(array.shape[axis]).astype(DTYPES[DTYPES[dtype].compute].numpy)
    return np.broadcast_to(places.reshape(shape), array.shape)


def _evaluate(instruction: Instruction, operands: list[np.ndarray]) -> np.ndarray:
    if instruction.op == "cast":
        target = DTYPES[instruction.dtype]
        return _to_compute(_cast(operands[0], target.numpy), instruction.dtype)
    names = dict(zip("abc", operands, strict=False))
    kernel = DTYPES[DTYPES[instruction.dtype].compute].numpy.type
    result = eval(_CODE[instruction.op], {**_HELPERS, **names, "T": kernel})
    return np.asarray(result)


def _cast(array: np.ndarray, target: np.dtype) -> np.ndarray:
    """Float to a narrow integer goes through int32, as x86 converts; to half precision through float32."""
    if array.dtype.kind == "f":
        if target.kind in "iu" and target.itemsize < 4:
            return array.astype(np.int32).astype(target)
        if target.itemsize == 2 and array.dtype == np.float64:
            return array.astype(np.float32).astype(target)
    return array.astype(target)


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return a / b
    quotient = np.fmod(a, b)
    safe = np.where(b == 0, np.ones_like(b), b)
    return np.where(b == 0, np.zeros_like(a), (a - quotient) // safe).astype(a.dtype)


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.power(a, b)
    return np.power(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)


def _where(condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(condition, np.where(a == 0, a.dtype.type(0), a), b)


def _elementwise(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    """A float64 function of one number over an array of float32 or float64."""
    vectorized = np.vectorize(function, otypes=[np.float64])
    return lambda a: np.asarray(vectorized(a.astype(np.float64))).astype(a.dtype)


def _minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of 0 and -0, which np.minimum leaves open, the second."""
    return np.where(a != a, a, np.where(a < b, a, b))


def _maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(a != a, a, np.where(a > b, a, b))


def _hard_sigmoid(a: np.ndarray, slope: np.ndarray, offset: np.ndarray) -> np.ndarray:
    line = a * slope + offset
    low = np.where(line > 1, a.dtype.type(1), line)
    return np.where(low < 0, a.dtype.type(0), low)


def _sigmoid(a: np.ndarray) -> np.ndarray:
    x = a.astype(np.float64)
    decay = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + decay), decay / (1 + decay)).astype(a.dtype)


def _hard_swish(a: np.ndarray) -> np.ndarray:
    sixth, half = (a.dtype.type(np.float32(number)) for number in (1 / 6, 0.5))
    return a * _hard_sigmoid(a, sixth, half)


def _softplus(a: np.ndarray) -> np.ndarray:
    x = a.astype(np.float64)
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))).astype(a.dtype)


def _gelu_tanh(a: np.ndarray) -> np.ndarray:
    x = a.astype(np.float64)
    # 0.5 (1 + tanh(u)) is the logistic function of 2u, which does not cancel for negative u.
    return (x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))).astype(a.dtype)


def _shift(shift: Callable[..., np.ndarray]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def shifted(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        width = 8 * a.dtype.itemsize
        return np.where(b < width, shift(a, np.minimum(b, b.dtype.type(width - 1))), a.dtype.type(0))

    return shifted


_HELPERS: dict[str, object] = {
    "np": np,
    "divide": _divide,
    "modulo": np.mod,
    "fmod": np.fmod,
    "minimum": _minimum,
    "maximum": _maximum,
    "power": _power,
    "where": _where,
    "erf": _elementwise(math.erf),
    "sigmoid": _sigmoid,
    "hard_swish": _hard_swish,
    "hard_sigmoid": _hard_sigmoid,
    "softplus": _softplus,
    "gelu": _elementwise(lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2))),
    "gelu_tanh": _gelu_tanh,
    "shift_left": _shift(np.left_shift),
    "shift_right": _shift(np.right_shift),
}

_CODE = {name: compile(op.numpy, f"<{name}>", "eval") for name, op in OPS.items() if name != "cast"}
_REDUCTION_CODE = {name: compile(one.numpy, f"<{name}>", "eval") for name, one in REDUCTIONS.items()}
