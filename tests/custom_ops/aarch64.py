"""What some operators of Programs are on AArch64, in NumPy: there the library does what ONNX Runtime does there."""

import numpy as np

from onnxfuse.program import reference


def install() -> None:
    """Let the reference compute as on AArch64."""
    reference._HELPERS.update(
        minimum=lambda a, b: -_maximum(-a, -b) if a.dtype.kind == "f" else np.minimum(a, b),
        maximum=lambda a, b: _maximum(a, b) if a.dtype.kind == "f" else np.maximum(a, b),
        hard_sigmoid=_hard_sigmoid,
        hard_swish=_hard_swish,
        inverse=_inverse,
    )
    for name, text in (("relu", "np.where(a <= 0, T(0), a)"), ("reciprocal", "inverse(a)")):
        reference._CODE[name] = compile(text, f"<{name}>", "eval")


def _maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of zeros of both signs 0, which their sum is."""
    return np.where(a != a, a, np.where(a > b, a, np.where((a == 0) & (b == 0), a + b, b)))


def _rounded_once(a: np.ndarray, slope: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """``a * slope + offset`` of float32; the product of two is a float64."""
    if a.dtype != np.float32:
        return a * slope + offset
    return (a.astype(np.float64) * slope.astype(np.float64) + offset.astype(np.float64)).astype(np.float32)


def _hard_sigmoid(a: np.ndarray, slope: np.ndarray, offset: np.ndarray) -> np.ndarray:
    line = _rounded_once(a, slope, offset)
    low = np.where(line > 1, a.dtype.type(1), line)
    return np.where(low < 0, a.dtype.type(0), low)


def _hard_swish(a: np.ndarray) -> np.ndarray:
    sixth, half = (np.asarray(np.float32(number), a.dtype) for number in (1 / 6, 0.5))
    return a * _hard_sigmoid(a, sixth, half)


def _estimate(a: np.ndarray) -> np.ndarray:
    """FRECPE of float32: of the inverse 8 bits, by a table that the architecture defines."""
    fraction, exponent = np.frexp(a.astype(np.float64))
    leading = (np.abs(np.nan_to_num(fraction)) * 512).astype(np.int64)  # 256 to 511
    table = ((1 << 19) // (2 * leading + 1) + 1) // 2
    inverse = np.copysign(np.ldexp(table / 256.0, -exponent), a)
    inverse = np.where(np.abs(a) < np.float32(2.0**-128), np.copysign(np.inf, a), inverse)
    return np.where(np.isinf(a), np.copysign(0, a), np.where(np.isnan(a), a, inverse)).astype(np.float32)


def _inverse(a: np.ndarray) -> np.ndarray:
    """An estimate and two of Newton's steps in float32, as ONNX Runtime's; a quotient in float64."""
    if a.dtype != np.float32:
        return a.dtype.type(1) / a
    result = _estimate(a)
    for _ in range(2):
        step = 2 - a.astype(np.float64) * result.astype(np.float64)
        step = np.where((np.isinf(a) & (result == 0)) | ((a == 0) & np.isinf(result)), 2, step)
        result = step.astype(np.float32) * result
    return result
