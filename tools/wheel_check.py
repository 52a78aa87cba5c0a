"""Run by scripts/wheels.sh in a fresh environment: the installed wheel optimizes a model, and its library runs it."""

import platform
import shutil

import numpy as np
import onnx
import onnxruntime

import onnxfuse

_MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 8] x) => (float[n, 8] y) { a = Sigmoid(x) b = Mul(a, x) y = Add(b, x) }"""


def main() -> None:
    """Raises AssertionError where something is not as it should be."""
    assert not any(map(shutil.which, ("c++", "g++", "clang++", "cc", "gcc"))), "a compiler is on the PATH"
    assert "site-packages" in onnxfuse.__file__
    result = onnxfuse.optimize(onnx.parser.parse_model(_MODEL), output="fused.onnx")
    assert "3 nodes fused into 1" in result.report.summary(), result.report.summary()
    session = onnxfuse.InferenceSession("fused.onnx", providers=["CPUExecutionProvider"])
    x = np.linspace(-4, 4, 24, dtype=np.float32).reshape(3, 8)
    (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y, x / (1 + np.exp(-x)) + x, rtol=1e-5)
    (executed,) = onnxfuse.Executable("fused.onnx", threads=1).run(None, {"x": x})
    np.testing.assert_array_equal(executed, y)
    print(f"onnxfuse {onnxfuse.__version__}, Python {platform.python_version()}, {onnxruntime.__version__}: right")


if __name__ == "__main__":
    main()
