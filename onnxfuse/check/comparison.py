"""How far one value is from another: the tolerance of the parity check and the numbers that it reports.

An output is equal if its type and shape are, NaN stands in the same places, infinities have the same places
and signs, and every finite element ``b`` of it is as near to the original's ``a`` as

    |a - b| <= absolute * scale + relative * |a|          (scale: max|a| over the finite elements of the output)

with, for eps the distance from 1 to the next number of the coarsest floating type that the model computes in,
absolute = 84 eps (1e-5 in float32) and relative = 840 eps (1e-4 in float32), for 8- and 16-bit types 2 eps
and 10 eps. Sums over thousands of products, and weights that an affine was folded into, round differently by
some tens of eps of the largest partial sum; a wrong formula is off by more than 1e-4.  The scale of a probability
(an output of Sigmoid or Softmax) is at least 1: one of 1e-7 is as good a zero as any.  And a zero is as good as a
number that is denormal in float32, but for types of more bits.  Integers, booleans and strings must be equal.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from onnxfuse.run.sessions import Value


@dataclass(frozen=True)
class Numbers:
    """What is known of an output besides its values: the coarsest floating type that the model computes in (None: the
    output's own), and the least scale that it has by nature."""

    coarsest: np.dtype | None = None
    scale: float = 0.0


NOTHING_KNOWN = Numbers()

_LEAST_NORMAL = float(np.finfo(np.float32).smallest_normal)
"""Of float32: fused nodes that sum up products have zeros for what is less."""
_PART = 1 << 18
"""Elements that are compared at a time."""


@dataclass
class Tolerance:
    """The two factors of the allowed error; see the module's text."""

    absolute: float
    relative: float


def tolerance(dtype: np.dtype, coarsest: np.dtype | None = None) -> Tolerance:
    """The tolerance of an output of ``dtype`` in a model that computes in ``coarsest``."""
    eps = precision(dtype)
    if coarsest is not None:
        eps = max(eps, precision(coarsest))
    if eps >= 2.0**-11:
        return Tolerance(2 * eps, 10 * eps)
    return Tolerance(84 * eps, 840 * eps)


def precision(dtype: np.dtype) -> float:
    """The distance from 1 to the next number of a floating type; 0 for any other type."""
    if dtype.kind == "c":
        return float(np.finfo(dtype).eps)
    try:
        return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    except (ValueError, TypeError):
        return 0.0


@dataclass
class Comparison:
    """One output compared.

    ``reason`` is empty if it is equal within the tolerance.  ``largest`` is the largest finite magnitude in the
    original's output, which the errors are to be seen against.  ``excess`` is the largest error as a multiple of
    the allowed error, infinite where type, shape, length or keys differ, and ``mean_excess`` the root of the mean
    square of these; ``mismatches`` counts the elements that differ where no error is allowed (integers, NaN,
    infinities).
    ``unstable`` marks an output that differs, but by no more than ONNX Runtime's own optimizations make it differ.
    ``off`` and ``original_off`` are by how much it and the original are off a result in float64, where that was
    computed.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    reason: str = ""
    largest: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: int = 0
    mismatches: int = 0
    excess: float = 0.0
    unstable: bool = False
    mean_excess: float = 0.0
    off: float | None = None
    original_off: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the output passes."""
        return not self.reason or self.unstable

    def within(self, times: float) -> bool:
        """Whether the output passes with so many times the allowed error."""
        return self.ok or (self.mismatches == 0 and 0 < self.excess <= times)

    def to_json(self) -> dict[str, object]:
        """The fields; numbers that JSON cannot hold are strings."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": None if self.shape is None else list(self.shape),
            "ok": self.ok,
            "reason": self.reason,
            "largest": self.largest,
            "max_abs": _json_number(self.max_abs),
            "max_rel": _json_number(self.max_rel),
            "max_ulp": self.max_ulp,
            "excess": _json_number(self.excess),
            "mismatches": self.mismatches,
            "unstable": self.unstable,
            "off_float64": None if self.off is None else _json_number(self.off),
            "original_off_float64": None if self.original_off is None else _json_number(self.original_off),
        }

    def merge(self, other: "Comparison") -> None:
        """Take over the worse of both numbers (the elements of a sequence, or the outputs of one region)."""
        self.reason = self.reason or other.reason
        self.largest = max(self.largest, other.largest)
        self.max_abs = max(self.max_abs, other.max_abs)
        self.max_rel = max(self.max_rel, other.max_rel)
        self.max_ulp = max(self.max_ulp, other.max_ulp)
        self.excess = max(self.excess, other.excess)
        self.mean_excess = max(self.mean_excess, other.mean_excess)
        self.mismatches += other.mismatches


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def compare_values(name: str, expected: Value, actual: Value, numbers: Numbers = NOTHING_KNOWN) -> Comparison:
    """Compare what the original gives (``expected``) with what the optimized model gives (``actual``)."""
    if expected is None or actual is None:
        reason = "" if expected is None and actual is None else "only one of the models gives a value"
        return _of_other_kind(Comparison(name, "none"), reason) if reason else Comparison(name, "none")
    if isinstance(expected, list) or isinstance(actual, list):
        return _compare_lists(name, expected, actual, numbers)
    if isinstance(expected, dict) or isinstance(actual, dict):
        return _compare_maps(name, expected, actual, numbers)
    return _compare_arrays(name, np.asarray(expected), np.asarray(actual), numbers)


def _of_other_kind(result: Comparison, reason: str) -> Comparison:
    """What differs before any element is compared, and more than any elements do."""
    result.reason, result.mismatches = reason, 1
    result.excess = result.mean_excess = math.inf
    return result


def _compare_lists(name: str, expected: Value, actual: Value, numbers: Numbers) -> Comparison:
    result = Comparison(name, "sequence")
    if not isinstance(expected, list) or not isinstance(actual, list) or len(expected) != len(actual):
        return _of_other_kind(result, "the sequences differ in length")
    for index, (left, right) in enumerate(zip(expected, actual, strict=True)):
        item = compare_values(f"{name}[{index}]", left, right, numbers)
        if item.reason:
            item.reason = f"element {index}: {item.reason}"
        result.merge(item)
    return result


def _compare_maps(name: str, expected: Value, actual: Value, numbers: Numbers) -> Comparison:
    result = Comparison(name, "map")
    if not isinstance(expected, dict) or not isinstance(actual, dict) or expected.keys() != actual.keys():
        return _of_other_kind(result, "the maps differ in their keys")
    for key, value in expected.items():
        # Maps hold float32, which Python's float holds exactly: it is no more precise than that.
        left, right = (np.float32(x) if isinstance(x, float) else x for x in (value, actual[key]))
        item = compare_values(f"{name}[{key}]", left, right, numbers)
        if item.reason:
            item.reason = f"key {key}: {item.reason}"
        result.merge(item)
    return result


def _compare_arrays(name: str, expected: np.ndarray, actual: np.ndarray, numbers: Numbers) -> Comparison:
    result = Comparison(name, str(expected.dtype), expected.shape)
    if expected.dtype != actual.dtype:
        _of_other_kind(result, f"type {actual.dtype} instead of {expected.dtype}")
    elif expected.shape != actual.shape:
        _of_other_kind(result, f"shape {list(actual.shape)} instead of {list(expected.shape)}")
    elif precision(expected.dtype) > 0:
        _compare_floats(result, expected, actual, numbers)
    else:
        _compare_exact(result, expected, actual)
    return result


def _compare_exact(result: Comparison, expected: np.ndarray, actual: np.ndarray) -> None:
    differ = expected != actual
    result.mismatches = int(np.count_nonzero(differ))
    if result.mismatches:
        result.reason = f"{result.mismatches} of {expected.size} elements differ"
        if expected.dtype.kind in "iu":
            left, right = (values[differ].astype(np.float64) for values in (expected, actual))
            result.max_abs = float(np.max(np.abs(left - right)))


@np.errstate(over="ignore", divide="ignore", invalid="ignore")  # the error of large numbers may be infinite
def _compare_floats(result: Comparison, expected: np.ndarray, actual: np.ndarray, numbers: Numbers) -> None:
    if expected.dtype.kind == "c":
        expected = np.stack([expected.real, expected.imag])
        actual = np.stack([actual.real, actual.imag])
    limits = tolerance(expected.dtype, numbers.coarsest)
    nans = sum(_measure(result, left, right) for left, right in _parts(expected, actual))
    if result.mismatches:
        kind = f"NaN in {nans} other places" if nans else f"infinities in {result.mismatches} other places"
        result.reason = f"{kind} of {expected.size}"
    if result.max_abs == 0:
        return
    absolute = limits.absolute * max(result.largest, numbers.scale)
    if expected.dtype.itemsize < 8:
        absolute = max(absolute, _LEAST_NORMAL)
    outside = finite = 0
    squares = 0.0
    for left, right in _parts(expected, actual):
        size, error = _errors(*_finite_ones(left, right))
        excess = np.where(error == 0, 0.0, error / (absolute + limits.relative * size))
        result.excess = max(result.excess, float(excess.max(initial=0.0)))
        squares += float(np.square(excess).sum())
        outside += int(np.count_nonzero(excess > 1))
        finite += size.size
    result.mean_excess = math.sqrt(squares / max(finite, 1))
    if result.excess > 1 and not result.reason:
        result.reason = f"{outside} of {finite} elements differ by more than allowed, {result.max_abs:.3g} at most"


def _parts(expected: np.ndarray, actual: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Both as vectors, a part of them at a time: what is computed from one takes twenty times its memory."""
    left, right = expected.reshape(-1), actual.reshape(-1)
    for start in range(0, left.size, _PART):
        yield left[start : start + _PART], right[start : start + _PART]


def _measure(result: Comparison, expected: np.ndarray, actual: np.ndarray) -> int:
    """Take the mismatches and errors of a part into the result; how many NaN of it are in one array alone."""
    nans = _mismatches(result, expected, actual)
    expected, actual = _finite_ones(expected, actual)
    size, error = _errors(expected, actual)
    if size.size:
        result.largest = max(result.largest, float(size.max()))
        result.max_abs = max(result.max_abs, float(error.max()))
        relative = np.divide(error, size, out=np.zeros_like(error), where=size > 0)
        result.max_rel = max(result.max_rel, float(relative.max()))
        result.max_ulp = max(result.max_ulp, int(ulp_distance(expected, actual).max()))
    return nans


def _mismatches(result: Comparison, expected: np.ndarray, actual: np.ndarray) -> int:
    """Count where not both are finite and neither both are NaN nor the same infinity; how many NaN are in one alone."""
    others = ~(np.isfinite(expected) & np.isfinite(actual))
    if not others.any():
        return 0
    left, right = expected[others], actual[others]
    left_nan, right_nan = np.isnan(left), np.isnan(right)
    result.mismatches += int(np.count_nonzero(~((left_nan & right_nan) | (left == right))))
    return int(np.count_nonzero(left_nan != right_nan))


def _finite_ones(expected: np.ndarray, actual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The elements that are finite in both."""
    finite = np.isfinite(expected) & np.isfinite(actual)
    return (expected, actual) if finite.all() else (expected[finite], actual[finite])


def _errors(expected: np.ndarray, actual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of finite elements the magnitude of the expected, and the error."""
    left, right = expected.astype(np.float64), actual.astype(np.float64)
    return np.abs(left), np.abs(left - right)


def ulp_distance(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """How many representable numbers lie between two finite arrays of one floating type (integers; -0 equals 0)."""
    first, second = _ordered(left), _ordered(right)
    return np.abs(first - second) if left.dtype.itemsize < 8 else _difference(first, second)


def _ordered(values: np.ndarray) -> np.ndarray:
    """Integers in the order of the floating-point numbers: sign and magnitude to two's complement."""
    bits = np.ascontiguousarray(values).view(f"i{values.dtype.itemsize}").astype(np.int64)
    lowest = np.int64(-(2 ** (8 * values.dtype.itemsize - 1)))
    return np.where(bits < 0, lowest - bits, bits)


def _difference(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    high, low = np.maximum(left, right), np.minimum(left, right)
    difference: np.ndarray = high.astype(np.uint64) - low.astype(np.uint64)  # wraps to the distance across zero
    return difference
