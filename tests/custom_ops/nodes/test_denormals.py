"""Convolutions and products take denormal numbers for zeros, but not those that what follows them computes with."""

import numpy as np
import pytest
from onnx import numpy_helper, parser

import onnxfuse
from tests.support import fusing

SUMS = {
    "channels": ("float[1,32,16,16] x", "float[n,c,h,k] y", "Conv<group=32, pads=[1, 1, 1, 1]>(x, w)", (32, 1, 3, 3)),
    "product": ("float[64,256] x", "float[m,n] y", "MatMul(x, w)", (256, 512)),
}
TAILS = {
    "a bound": "d = Clip(c, least) y = Log(d)",
    "an addend": "d = Abs(c) e = Add(d, least) y = Log(e)",
    "a divisor": "d = Add(c, less) y = Div(d, least)",
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("sums", SUMS)
def test_what_follows_computes_with_denormals(sums: str, tail: str) -> None:
    x, y, operation, size = SUMS[sums]
    text = f'<ir_version: 9, opset_import: ["" : 17]> g ({x}) => ({y}) {{ c = {operation} {TAILS[tail]} }}'
    model = parser.parse_model(text)
    constants = {"w": np.random.default_rng(1).normal(size=size), "least": 1e-38, "less": 0.25e-38}
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
    result = onnxfuse.optimize(model, "cpu", check=False).model
    assert fusing.fused_nodes(result)
    inputs = {"x": np.zeros([dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim], np.float32)}
    (wanted,) = fusing.run(model, inputs, library=False)
    (actual,) = fusing.run(result, inputs, library=True)
    np.testing.assert_allclose(actual, wanted, rtol=1e-5)
