"""How many windows fit, held against ONNX Runtime's pooling."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxfuse.shapes.windows import count, extent

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("rounds_up", [False, True])
def test_windows_are_as_many_as_a_pool_has(rounds_up: bool) -> None:
    for _ in range(40):
        kernel, stride, size = (int(RANDOM.integers(1, high)) for high in (6, 5, 20))
        dilation = 1 if rounds_up else int(RANDOM.integers(1, 4))
        begin, end = (int(pad) for pad in RANDOM.integers(0, kernel, 2))
        if size + begin + end < extent(kernel, dilation):
            continue
        settings = f"kernel_shape = [{kernel}], strides = [{stride}], dilations = [{dilation}], pads = [{begin}, {end}]"
        text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1, 1, {size}] x) => (float[1, 1, m] y)
            {{ y = MaxPool <{settings}, ceil_mode = {int(rounds_up)}> (x) }}"""
        session = ort.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
        (y,) = session.run(None, {"x": np.zeros((1, 1, size), np.float32)})
        found = count(size, extent(kernel, dilation), stride, (begin, end), rounds_up=rounds_up)
        assert found == y.shape[-1], settings


def test_nothing_remains_of_a_window_larger_than_its_dimension() -> None:
    assert extent(3, 4) == 9
    assert count(8, extent(3, 4), 1) == 0
