"""Images made of sequences: which transposes a convolution is spared, and the same results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxfuse.passes import RulePass
from onnxfuse.passes.rules.conv_layout.transpose_before_conv import TransposeBeforeConv
from tests.passes.models import apply, model, node, ops, random, reasons, run

CONV = node("Conv", "i w", "y", pads=[1] * 4, group=4)
SWAP = node("Transpose", "x", "f", perm=[0, 2, 1])
WEIGHTS = random(4, 1, 3, 3)


def rewrite(nodes, shape, length=15, batch="n", counts=(1, 3, 0), outputs=("y",), channels=4):
    """Applies the rule and checks that results agree for each number of images."""
    proto = model(nodes, {"x": [batch, length, channels]}, outputs, {"w": WEIGHTS, "s": np.array(shape)})
    after, context = apply(proto, RulePass([TransposeBeforeConv()]))
    for n in counts:
        feeds = {"x": random(n, 15, 4, seed=n)}
        for expected, actual in zip(run(proto, feeds), run(after, feeds), strict=True):
            np.testing.assert_array_equal(actual, expected, strict=True)
    return after, reasons(context)


@pytest.mark.parametrize(
    ("shape", "more"),
    [
        ([0, 4, 3, 5], {}),
        ([0, 0, 3, 5], {}),
        ([0, 4, 3, -1], {"counts": (1, 3)}),
        ([0, 4, 3, 5], {"length": "l"}),
        ([-1, 4, 3, 5], {}),
        ([2, 4, 3, 5], {"batch": 2, "counts": (2,)}),
    ],
)
def test_an_image_of_a_sequence(shape, more):
    after, _ = rewrite([SWAP, node("Reshape", "f s", "i"), CONV], shape, **more)
    assert ops(after) == ["Reshape", "Transpose", "Conv"]
    assert onnx.helper.get_node_attr_value(after.graph.node[1], "perm") == [0, 3, 1, 2]


def test_zeros_that_copy_nothing():
    """As PyTorch's exporter writes it: without a zero in the shape it says nothing."""
    image = node("Reshape", "f s", "i", allowzero=1)
    after, _ = rewrite([SWAP, image, CONV], [2, 4, 3, 5], batch=2, counts=(2,))
    assert ops(after) == ["Reshape", "Transpose", "Conv"]
    after, refused = rewrite([SWAP, image, CONV], [0, 4, 3, 5], counts=(0,))
    assert ops(after) == ["Transpose", "Reshape", "Conv"] and "images and channels" in refused


@pytest.mark.parametrize(
    ("nodes", "shape", "more", "reason"),
    [
        ([SWAP, node("Reshape", "f s", "i"), CONV], [2, 4, 3, 5], {"counts": (2,)}, "images and channels"),
        ([SWAP, node("Reshape", "f s", "i"), CONV], [-1, 4, 3, 5], {"length": "l"}, "images and channels"),
        ([SWAP, node("Reshape", "f s", "i"), CONV], [0, 4, 3, 5], {"channels": "c"}, "images and channels"),
        ([SWAP, node("Reshape", "f s", "y")], [0, 4, 3, 5], {}, ""),
        (
            [SWAP, node("Reshape", "f s", "i"), CONV, node("Exp", "f", "z")],
            [0, 4, 3, 5],
            {"outputs": "yz"},
            "elsewhere",
        ),
        ([node("Transpose", "x", "f", perm=[0, 1, 2]), node("Reshape", "f s", "i"), CONV], [0, 4, 3, 5], {}, ""),
    ],
    ids=["fixed images", "images of the rest", "unknown channels", "no convolution", "another reader", "another order"],
)
def test_transposes_that_stay(nodes, shape, more, reason):
    after, refused = rewrite(nodes, shape, **more)
    assert ops(after) == [item.op_type for item in nodes]
    assert reason in refused if reason else not refused
