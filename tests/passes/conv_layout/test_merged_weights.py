"""The weights of one product in place of two: of the types that they have, and rounded once."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from onnxfuse.passes.rules.conv_layout.merged_weights import merged
from onnxfuse.rewrite.rule import Refusal
from tests.passes.models import random

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16, np.dtype(np.float32)], ids=str)
def test_the_float64_result_is_rounded_once(dtype):
    v, c, w, b = (random(*shape).astype(dtype) for shape in ((32, 8), (32,), (16, 32), (16,)))
    wide = [values.astype(np.float64) for values in (v, c, w, b)]
    weights, bias = merged((v, c), (w, b), "product", at_any_cost=False)
    assert weights.dtype == bias.dtype == dtype
    np.testing.assert_array_equal(weights, (wide[2] @ wide[0]).astype(dtype))
    np.testing.assert_array_equal(bias, (wide[2] @ wide[1] + wide[3]).astype(dtype))


REFUSED = {
    "two types": (np.float16, np.float32, 1.0, "not float16, bfloat16 or float32"),
    "float64": (np.float64, np.float64, 1.0, "not float16, bfloat16 or float32"),
    "larger than float16": (np.float16, np.float16, 3e2, "finite"),
    "less than float16": (np.float16, np.float16, 1e-3, "denormal"),
    "larger than bfloat16": (BFLOAT16, BFLOAT16, 1e20, "finite"),
    "less than bfloat16": (BFLOAT16, BFLOAT16, 1e-20, "denormal"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    first, second, scale, reason = REFUSED[case]
    v, w = (random(32, 8) * scale).astype(first), (random(16, 32) * scale).astype(second)
    with pytest.raises(Refusal, match=reason):
        merged((v, None), (w, None), "product", at_any_cost=False)
