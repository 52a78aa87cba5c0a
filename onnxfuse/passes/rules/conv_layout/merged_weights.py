"""The weights of one product in place of two, one after the other."""

from __future__ import annotations

from collections.abc import Iterable

import ml_dtypes
import numpy as np

from onnxfuse.model.constants import Array
from onnxfuse.rewrite.rule import Refusal

_FLOATS = {np.dtype(name) for name in (np.float16, ml_dtypes.bfloat16, np.float32)}
"""What float64 holds with so many digits more that weights are rounded once."""


def are_rounded_once(constants: Iterable[Array]) -> bool:
    """Whether all are of one type that new weights, computed in float64, are rounded to."""
    types = {values.dtype for values in constants}
    return len(types) == 1 and types <= _FLOATS


def merged(
    first: tuple[Array, Array | None], second: tuple[Array, Array | None], what: str, *, at_any_cost: bool
) -> tuple[Array, Array | None]:
    """The weights (outputs, inputs) and the bias (outputs,) of one product in place of two, each a matrix (outputs,
    inputs) and a bias (outputs,) or None, all of one type, which the result has too.  It is computed in float64.

    Raises Refusal, which calls the products ``what``, for other types; where the one has more weights than the two,
    unless ``at_any_cost``; and where what is made is not finite, or all that an output has is denormal.
    """
    constants = [values for values in (*first, *second) if values is not None]
    if not are_rounded_once(constants):
        raise Refusal("the weights are not float16, bfloat16 or float32")
    dtype = constants[0].dtype
    (inner, inputs), outputs = first[0].shape, second[0].shape[0]
    if inputs * outputs > inner * (inputs + outputs) and not at_any_cost:
        raise Refusal(f"one {what} from {inputs} to {outputs} channels is more work than two by way of {inner}")
    right, offset, left, bias = (None if values is None else values.astype(np.float64) for values in (*first, *second))
    assert left is not None and right is not None
    total = None
    with np.errstate(all="ignore"):
        product = left @ right
        weights = product.astype(dtype)
        if offset is not None or bias is not None:
            moved = np.zeros(outputs) if offset is None else left @ offset
            total = (moved if bias is None else moved + bias).astype(dtype)
    if not all(np.all(np.isfinite(values)) for values in (weights, total) if values is not None):
        raise Refusal(f"the weights of one {what} in place of two would not be finite")
    tiny = float(ml_dtypes.finfo(dtype).smallest_normal)  # type: ignore[no-untyped-call]
    if _vanishes(product, tiny, left, right):
        raise Refusal(f"the weights of one {what} in place of two would be denormal")
    return weights, total


def _vanishes(weights: Array, tiny: float, *factors: Array) -> bool:
    """Whether an output of the product has nothing but denormal numbers left, and the factors had others."""
    largest = np.abs(weights).max(axis=1, initial=0.0)
    normal = all(np.abs(factor).max(initial=0.0) >= tiny for factor in factors)
    return bool(normal and np.any((largest > 0) & (largest < tiny)))
