"""Sequences made of what convolutions give: which transposes ONNX Runtime is spared, and the same results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxfuse.passes import RulePass
from onnxfuse.passes.rules.conv_layout.transpose_of_blocked import TransposeOfBlocked
from tests.passes.models import apply, model, node, ops, random, reasons, run

LAST = node("Transpose", "f", "y", perm=[0, 2, 1])
WEIGHTS = random(8, 4, 1, 1) / 2


def rewrite(nodes, height="h", sizes=((1, 3, 5), (3, 2, 2)), opset=17, outputs=("y",), batch="n", **constants):
    """Applies the rule after a convolution that makes t of x, and checks that results agree."""
    arrays = {"w": WEIGHTS, **{name: np.array(value) for name, value in constants.items()}}
    made = [node("Conv", "x w", "t"), *nodes]
    proto = model(made, {"x": [batch, 4, height, "w_"]}, outputs=outputs, constants=arrays, opset=opset)
    after, context = apply(proto, RulePass([TransposeOfBlocked()]))
    for n, h, w in sizes:
        feeds = {"x": random(n, 4, h, w, seed=n)}
        for expected, actual in zip(run(proto, feeds), run(after, feeds), strict=True):
            np.testing.assert_array_equal(actual, expected, strict=True)
    return after, reasons(context)


def perm(proto):
    (found,) = [item for item in proto.graph.node if item.op_type == "Transpose"]
    return onnx.helper.get_node_attr_value(found, "perm")


@pytest.mark.parametrize("shape", ([0, 8, -1], [0, 0, -1]))
def test_positions_in_one_dimension(shape):
    after, _ = rewrite([node("Reshape", "t s", "f"), LAST], s=shape)
    assert ops(after) == ["Conv", "Transpose", "Reshape"] and perm(after) == [0, 2, 3, 1]


def test_sizes_that_are_known():
    after, _ = rewrite([node("Reshape", "t s", "f"), LAST], s=[2, 8, 15], batch=2, sizes=((2, 3, 5),))
    assert ops(after) == ["Conv", "Transpose", "Reshape"]


def test_zeros_that_copy_nothing():
    flat = node("Reshape", "t s", "f", allowzero=1)
    after, _ = rewrite([flat, LAST], s=[2, 8, 15], batch=2, sizes=((2, 3, 5),), opset=14)
    assert ops(after) == ["Conv", "Transpose", "Reshape"]
    after, _ = rewrite([flat, LAST], s=[0, 8, 15], sizes=((0, 3, 5),), opset=14)
    assert ops(after) == ["Conv", "Reshape", "Transpose"]


@pytest.mark.parametrize("opset", (12, 13))
@pytest.mark.parametrize("axis", (2, -2))
def test_a_dimension_of_one_that_goes(opset, axis):
    squeezed = node("Squeeze", "t a", "f") if opset >= 13 else node("Squeeze", "t", "f", axes=[axis])
    constants = {"a": [axis]} if opset >= 13 else {}
    after, _ = rewrite([squeezed, LAST], height=1, sizes=((1, 1, 5), (0, 1, 3)), opset=opset, **constants)
    assert ops(after) == ["Conv", "Transpose", "Squeeze"] and perm(after) == [0, 2, 3, 1]


def test_activations_that_are_written_out():
    swish = [node("Mul", "t one", "a"), node("Sigmoid", "a", "b"), node("Mul", "t b", "u")]
    after, _ = rewrite([*swish, node("Reshape", "u s", "f"), LAST], s=[0, 8, -1], one=np.ones(1, np.float32))
    assert ops(after)[-2:] == ["Transpose", "Reshape"]


STAYS = {
    "images that are mixed": ([node("Reshape", "t s", "f"), LAST], {"s": [2, 8, -1]}, ((1, 2, 3),), "images and"),
    "channels that are mixed": ([node("Reshape", "t s", "f"), LAST], {"s": [0, 4, -1]}, ((1, 2, 3),), "images and"),
    "positions by copy": ([node("Reshape", "t s", "f"), LAST], {"s": [0, -1, 0]}, ((1, 2, 3),), "images and"),
    "four dimensions": (
        [node("Reshape", "t s", "q"), node("Squeeze", "q a", "f"), LAST], {"s": [0, 8, -1, 1], "a": [3]},
        ((1, 2, 3),), "",
    ),
    "another order": (
        [node("Reshape", "t s", "f"), node("Transpose", "f", "y", perm=[2, 0, 1])], {"s": [0, 8, -1]}, ((1, 2, 3),), ""
    ),
    "another reader": (
        [node("Reshape", "t s", "f"), LAST, node("Exp", "f", "z")], {"s": [0, 8, -1]}, ((1, 2, 3),), "used elsewhere"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STAYS)
def test_transposes_that_stay(case):
    nodes, constants, sizes, reason = STAYS[case]
    outputs = ("y", "z") if "reader" in case else ("y",)
    after, text = rewrite(nodes, sizes=sizes, outputs=outputs, **constants)
    assert ops(after) == ["Conv", *(item.op_type for item in nodes)]
    assert reason in text if reason else not text


def test_data_that_no_convolution_gives_stays():
    proto = model(
        [node("Softmax", "x", "t"), node("Reshape", "t s", "f"), LAST],
        {"x": ["n", 8, "h", "w"]},
        constants={"s": np.array([0, 8, -1])},
    )
    after, context = apply(proto, RulePass([TransposeOfBlocked()]))
    assert ops(after) == ["Softmax", "Reshape", "Transpose"] and not reasons(context)
