"""A Pad by nothing and a Resize to the same size go; others stay."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.models import apply, assert_close, model, node, ops, random, run


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


def resized(scales=(), sizes=(), opset=18, **attributes):
    constants = {"scales": np.array(scales, np.float32)} | ({"sizes": np.array(sizes)} if sizes else {})
    inputs = f"x - {'-' if sizes else 'scales'} {'sizes' if sizes else ''}" if opset > 10 else "x scales"
    nodes = [node("Resize", inputs, "t", **attributes), node("Neg", "t", "y")]
    return model(nodes, {"x": (1, 2, 3, 4)}, constants=constants, opset=opset)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("how", [{"scales": [1, 1, 1, 1]}, {"sizes": [1, 2, 3, 4]}])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric"])
def test_a_resize_to_the_same_size(mode, how, coordinates):
    nearest = {"nearest_mode": "floor"} if coordinates == "asymmetric" else {}
    proto = resized(**how, mode=mode, coordinate_transformation_mode=coordinates, **nearest)
    result, _ = apply(proto, "fold-shapes")
    assert ops(result) == ["Neg"]
    x = random(1, 2, 3, 4)
    x[0, 0, 1] = [np.inf, np.nan, -np.inf, -0.0]
    np.testing.assert_array_equal(run(result, {"x": x})[0], run(proto, {"x": x})[0])


def test_other_resizes_stay():
    crop = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    for proto in (
        resized(scales=[1, 1, 1, 1.2], mode="linear"),
        resized(scales=[1, 1, 1, 1], mode="cubic"),
        resized(sizes=[1, 2, 4, 3], mode="linear"),
    ):
        assert ops(apply(proto, "fold-shapes")[0]) == ["Resize", "Neg"]
    assert ops(apply(resized(scales=[1, 1, 1, 1], **crop), "fold-shapes")[0]) == ["Resize", "Neg"]
