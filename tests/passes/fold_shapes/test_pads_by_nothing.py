"""A Pad by nothing goes; any other stays."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.models import apply, assert_close, model, node, ops, random


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
