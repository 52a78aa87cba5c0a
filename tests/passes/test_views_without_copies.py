"""A Pad by nothing goes, and a Transpose that moves dimensions of 1 alone is a Reshape; any other stays."""

from __future__ import annotations

import numpy as np
import pytest

from .models import apply, assert_close, model, node, ops, random


def transposed(shape, perm=None):
    attributes = {} if perm is None else {"perm": perm}
    return model([node("Transpose", "x", "t", **attributes), node("Neg", "t", "y")], {"x": shape})


@pytest.mark.parametrize(
    ("declared", "perm", "shape"),
    [
        ((1, 1, 12, 64), [0, 2, 1, 3], (1, 1, 12, 64)),
        (("n", 1, 12, 64), [0, 2, 1, 3], (3, 1, 12, 64)),
        ((1, "past", 1, 4), [0, 2, 1, 3], (1, 5, 1, 4)),
        ((2, 1, "n", 3, 1), [1, 0, 2, 4, 3], (2, 1, 3, 3, 1)),
        ((1, 7), None, (1, 7)),
    ],
)
def test_moved_units(declared, perm, shape):
    proto = transposed(declared, perm)
    result, _ = apply(proto, "fold-shapes")
    assert "Transpose" not in ops(result)
    assert_close(proto, result, {"x": random(*shape)}, 0)


@pytest.mark.parametrize(
    ("declared", "perm"),
    [
        ((1, 2, 12, 64), [0, 2, 1, 3]),
        ((1, 1, 2, 3), [0, 1, 3, 2]),
        ((1, "n", "m", 1), [0, 3, 1, 2]),  # two sizes at other places
        ((1, 0, 3), [1, 0, 2]),
        ((2, 1, "n", "n", 1), [1, 0, 2, 4, 3]),  # of which one may be zero
        ((7, 3), None),
    ],
)
def test_other_transposes_stay(declared, perm):
    result, _ = apply(transposed(declared, perm), "fold-shapes")
    assert "Transpose" in ops(result)


def padded(pads, opset=18, **attributes):
    constants = {"p": np.array(pads, np.int64)} if opset >= 11 else {}
    inputs = "x p" if constants else "x"
    more = {} if constants else {"pads": pads}
    nodes = [node("Pad", inputs, "t", **more, **attributes), node("Neg", "t", "y")]
    return model(nodes, {"x": ("n", 3)}, constants=constants, opset=opset)


@pytest.mark.parametrize(("opset", "mode"), [(18, "constant"), (18, "reflect"), (10, "constant")])
def test_a_pad_by_nothing(opset, mode):
    proto = padded([0, 0, 0, 0], opset, mode=mode)
    result, _ = apply(proto, "fold-shapes")
    assert ops(result) == ["Neg"]
    assert_close(proto, result, {"x": random(2, 3)}, 0)


@pytest.mark.parametrize("pads", [[0, 0, 0, 1], [0, 1, 0, -1]])
def test_other_pads_stay(pads):
    result, _ = apply(padded(pads), "fold-shapes")
    assert ops(result) == ["Pad", "Neg"]
