"""float16 nodes on the CPU, where ORT converts around them or widens them: every way gives the same within rounding."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.support import fusing

BODIES = {
    "between products": "a = MatMul(x, w) b = Mul(a, k) c = Add(b, v) s = Sigmoid(c) y = MatMul(s, w)",
    "at the start": "b = Mul(x, k) c = Add(b, v) s = Sigmoid(c) y = MatMul(s, w)",
    "at the end": "a = MatMul(x, w) b = Mul(a, k) c = Add(b, v) y = Sigmoid(c)",
    "alone": "b = Mul(x, k) c = Add(b, v) y = Sigmoid(c)",
    "with a rounding inside": "a = MatMul(x, w) f = Cast <to = 1> (a) g = Exp(f) h = Cast <to = 10> (g) i = Mul(h, k)"
    " y = MatMul(i, w)",
    "with two outputs": "a = MatMul(x, w) b = Mul(a, k) c = Exp(b) d = MatMul(b, w) y = Add(c, d)",
    "with a float and a half output": "a = MatMul(x, w) b = Mul(a, k) f = Cast <to = 1> (b) g = Exp(f)"
    " h = Cast <to = 10> (g) d = MatMul(b, w) y = Add(h, d)",
}


@pytest.mark.parametrize("optimize", [False, True], ids=["as written", "optimized by ORT"])
@pytest.mark.parametrize("name", BODIES)
def test_half_nodes_run_wherever_they_stand(name: str, optimize: bool) -> None:
    text = f'<ir_version: 9, opset_import: ["" : 18]> g (float16[n, 8] x) => (float16[n, 8] y) {{ {BODIES[name]} }}'
    model = parser.parse_model(text)
    random = np.random.default_rng(0)
    constants = {"w": random.normal(size=(8, 8)) / 3, "k": np.array(0.7), "v": random.normal(size=8)}
    used = {value for node in model.graph.node for value in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(value.astype(np.float16), key) for key, value in constants.items() if key in used
    )
    fused = fusing.fuse_everything(model)
    onnx.checker.check_model(fused, full_check=True)
    feeds = {"x": random.normal(size=(3, 8)).astype(np.float16)}
    (expected,) = fusing.run(model, feeds, library=False)
    for library in (False, True):
        (actual,) = fusing.run(fused, feeds, library, optimize)
        assert actual.dtype == np.float16
        np.testing.assert_allclose(actual.astype(np.float32), expected.astype(np.float32), 4e-3, 4e-3)
