"""Normalizations before a product or a convolution, which become its scale and offset."""

from __future__ import annotations

import numpy as np
import pytest

import onnxfuse
from onnxfuse.passes.conv_layout import ConvLayoutPass
from tests.passes.conv_layout.test_conv_layout import IMAGE, conv
from tests.passes.models import apply, assert_close, model, node, ops, random, reasons

# A block that normalizes and activates first.
FIRST = {
    "scale": random(32, seed=5) / 2, "bias": random(32, seed=6), "mean": random(32, seed=7),
    "variance": random(32, seed=8) ** 2, "v": random(32, 4, 1, 1, seed=1) / 2, "w": random(8, 32, 1, 1, seed=2) / 8,
}  # fmt: skip
NORMALIZED = node("BatchNormalization", "r scale bias mean variance", "n", epsilon=0.01)


def normalized_first(*last, conv_policy="all", **constants):
    nodes = [conv("x", "v", "a"), node("Relu", "a", "r"), *last]
    used = {name for item in nodes for name in item.input}
    values = {name: value for name, value in (FIRST | constants).items() if name in used}
    proto = model(nodes, IMAGE, constants=values)
    after, context = apply(proto, ConvLayoutPass(), conv=conv_policy)
    return proto, after, context


def test_a_normalization_before_a_product_is_a_scale_and_an_offset():
    proto, after, _ = normalized_first(NORMALIZED, node("Relu", "n", "t"), conv("t", "w", "y"))
    assert ops(after) == ["Conv", "Relu", "Mul", "Add", "Relu", "Conv"]
    feeds = {"x": random(2, 4, 5, 7)}
    assert_close(proto, after, feeds, ulps=4)
    # In which layout they run depends on the processor.
    whole = onnxfuse.optimize(proto, "cpu", conv="all").model
    assert [item.op_type.startswith(("FusedConv", "FusedNhwcConv")) for item in whole.graph.node] == [True, True]


LEFT = {
    "a larger kernel": ([NORMALIZED, node("Relu", "n", "t"), conv("t", "w", "y")], {"w": random(8, 32, 3, 3)}),
    "several readers": (
        [NORMALIZED, node("Relu", "n", "t"), node("ReduceMax", "n", "m"), conv("t", "w", "c"), node("Mul", "c m", "y")],
        {},
    ),
    "other steps": ([NORMALIZED, node("Softmax", "n", "t", axis=1), conv("t", "w", "y")], {}),
    "no reader": ([node("BatchNormalization", "r scale bias mean variance", "y")], {}),
}


@pytest.mark.parametrize("case", LEFT)
def test_normalizations_that_stay(case):
    last, constants = LEFT[case]
    _, after, _ = normalized_first(*last, **constants)
    assert "BatchNormalization" in ops(after) and "Mul" not in ops(after)[:4]


def test_a_normalization_before_a_convolution_of_onnx_runtime_stays():
    _, after, _ = normalized_first(NORMALIZED, node("Relu", "n", "t"), conv("t", "w", "y"), conv_policy="none")
    assert "BatchNormalization" in ops(after)


def test_a_normalization_that_is_not_finite_stays():
    huge = {"scale": np.full(32, 3e38, np.float32)}
    _, after, context = normalized_first(NORMALIZED, node("Relu", "n", "t"), conv("t", "w", "y"), **huge)
    assert "BatchNormalization" in ops(after) and "not finite" in reasons(context)


def test_a_normalization_before_a_product_of_every_other_pixel_stays():
    last = conv("t", "w", "y", strides=[2, 2])
    _, after, _ = normalized_first(NORMALIZED, node("Relu", "n", "t"), last)
    assert "BatchNormalization" in ops(after)
