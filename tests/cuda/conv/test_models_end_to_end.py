"""From ``optimize --target cuda`` to convolution kernels that run: a network, launched by the native library.

The planner's nodes, the renderer's kernels in the emulation of CUDA, and the library's launches on a stand-in driver.
"""

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import onnxfuse
from onnxfuse.cuda.conv.fitting import render_case, tilings_of
from onnxfuse.cuda.conv.node import fused_convolutions
from onnxfuse.shapes.inference import infer
from tests.cuda.conv.convolutions import Fused
from tests.cuda.conv.nodes import rendered_object
from tests.cuda.stand_in import AVAILABLE, REASON, StandIn, cubin
from tests.support import fusing

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)

# An inverted residual block with a squeeze-and-excite gate, then a quantized head; sizes are open.
TEXT = """<ir_version: 9, opset_import: ["" : 20]>
g (float[n, 4, h, w] x) => (float[n, 4, a, b] y, uint8[n, 6, c, d] q, float[n, 4, a, b] raw) {
    e = Conv <kernel_shape = [1, 1]> (x, expand, bias) r = HardSwish(e)
    s = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 8> (r, depthwise) t = Relu(s)
    p = GlobalAveragePool(t) g = Sigmoid(p) m = Mul(t, g)
    raw = Conv <kernel_shape = [1, 1]> (m, project) y = Add(raw, x)
    f = Conv <kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER"> (y, head) l = LeakyRelu(f)
    q = QuantizeLinear(l, scale, zero) }"""


def _model() -> onnx.ModelProto:
    model = parser.parse_model(TEXT)
    random = np.random.default_rng(0)
    shapes = {"expand": (8, 4, 1, 1), "bias": (8,), "depthwise": (8, 1, 3, 3), "project": (4, 8, 1, 1)}
    constants = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    constants |= {"head": random.normal(size=(6, 4, 3, 3)).astype(np.float32)}
    constants |= {"scale": np.asarray(0.1, np.float32), "zero": np.asarray(100, np.uint8)}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return model


@cache
def _fused() -> onnx.ModelProto:
    """The optimized network, with machine code of the stand-in's."""
    options = {"arch": "sm_90", "embed": False, "check": False, "conv": "all"}
    model = onnxfuse.optimize(_model(), "cuda", ["fuse-conv"], **options).model  # type: ignore[arg-type]
    loaded = onnxfuse.Model.from_proto(model)
    infer(loaded)
    cases = []
    for found in fused_convolutions(loaded):
        case = found.case
        fused = Fused(case.conv, case.sizes(1, 8), case.epilogue, prologue=case.prologue)
        cases.append((fused, render_case(case, tilings_of(case)[0])))
    code = cubin(rendered_object(cases), 90)
    for node in fusing.fused_nodes(model):
        node.attribute.append(helper.make_attribute("cuda_sm_90", code))
    for function in model.functions:
        function.attribute.append("cuda_sm_90")
    return model


def test_all_that_stands_around_convolutions_is_in_them() -> None:
    operators = [node.op_type for node in _fused().graph.node if node.domain != "onnxfuse"]
    assert operators == ["GlobalAveragePool", "Sigmoid"]


@pytest.mark.parametrize("shape", [(2, 4, 8, 8), (1, 4, 5, 7), (3, 4, 1, 1), (1, 4, 16, 12), (0, 4, 6, 6)], ids=str)
def test_a_network_runs_its_convolutions_as_kernels(shape: tuple[int, ...], tmp_path: Path) -> None:
    driver = StandIn(tmp_path / "driver")
    session = driver.session(_fused())
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    driver.launches()
    results = session.run(None, {"x": x})
    launched = {call["kernel"].rsplit("_", 1)[-1] for call in driver.launches()}
    assert launched >= {"depthwise", "gemm"} if x.size else not launched
    for actual, wanted in zip(results, fusing.run(_model(), {"x": x}, library=False), strict=True):
        assert actual.shape == wanted.shape and actual.dtype == wanted.dtype
        np.testing.assert_allclose(
            actual.astype(np.float32), wanted.astype(np.float32), 1e-4, 1 if actual.dtype == np.uint8 else 1e-4
        )
