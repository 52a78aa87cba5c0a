"""1x1 convolutions of interpolated images: which come before, which stay, and the same results."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.passes import RulePass
from onnxfuse.passes.rules.conv_layout.conv_of_interpolated import ConvOfInterpolated
from tests.passes.models import apply, assert_close, model, node, ops, random, reasons, run

MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
WEIGHTS = random(32, 64, 1, 1) / 8
IMAGE = {"x": ["n", 64, "h", "w"]}
SCALES = np.array([1, 1, 2, 3], np.float32)


def rewrite(nodes, inputs=IMAGE, outputs=("y",), **constants):
    """Applies the rule, checks that results agree for several sizes, and returns the model and the reasons."""
    known = {"k": WEIGHTS, "s": SCALES, "b": random(32)}
    names = {name for item in nodes for name in item.input}
    used = {name: value for name, value in {**known, **constants}.items() if name in names}
    proto = model(nodes, inputs, outputs, used, opset=19)
    after, context = apply(proto, RulePass([ConvOfInterpolated()]))
    for n, h, w in ((1, 5, 7), (2, 1, 3), (0, 2, 2)):
        sizes = {"n": n, "h": h, "w": w, "H": 2 * h, "W": 3 * w}
        feeds = {name: random(*(sizes.get(dim, dim) for dim in shape), seed=n) for name, shape in inputs.items()}
        if n == 0:  # there is nothing to compare but the shape
            assert [a.shape for a in run(after, feeds)] == [a.shape for a in run(proto, feeds)]
        else:
            assert_close(proto, after, feeds, 64.0)
    return after, reasons(context)


def resize(data="x", result="u", by="- s", **attributes):
    return node("Resize", f"{data} {by}", result, **{"mode": "linear", **attributes})


CONV = node("Conv", "u k b", "y")


def test_float16():
    half = {"k": WEIGHTS.astype(np.float16), "b": random(32, dtype=np.float16), "s": SCALES}
    proto = model([resize(), CONV], IMAGE, constants=half, opset=19, dtype=np.float16)
    after, _ = apply(proto, RulePass([ConvOfInterpolated()]))
    assert ops(after) == ["Conv", "Resize"]
    assert_close(proto, after, {"x": random(2, 64, 5, 7, dtype=np.float16)}, 4.0)


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode):
    after, _ = rewrite([resize(coordinate_transformation_mode=mode), CONV])
    assert ops(after) == ["Conv", "Resize"]


def test_sizes_name_the_filters():
    image = {"x": [2, 64, 5, 7]}
    proto = model(
        [resize(by="- - t"), CONV],
        image,
        constants={"k": WEIGHTS, "b": random(32), "t": np.array([2, 64, 10, 21])},
        opset=19,
    )
    after, _ = apply(proto, RulePass([ConvOfInterpolated()]))
    assert ops(after) == ["Conv", "Resize"]
    assert_close(proto, after, {"x": random(2, 64, 5, 7)}, 64.0)


def test_a_concat_becomes_a_sum():
    large = {**IMAGE, "z": ["n", 32, "H", "W"], "v": ["n", 64, "h", "w"]}
    nodes = [resize(), resize("v", "q"), node("Concat", "u z q", "c", axis=1), node("Conv", "c k b", "y")]
    after, _ = rewrite(nodes, large, k=random(32, 160, 1, 1) / 8)
    assert sorted(ops(after)) == ["Add", "Add", "Conv", "Conv", "Conv", "Resize", "Resize"]


def test_a_concat_of_interpolated_images_alone():
    nodes = [resize(), resize("v", "q"), node("Concat", "u q", "c", axis=1), node("Conv", "c k b", "y")]
    after, _ = rewrite(nodes, {**IMAGE, "v": ["n", 64, "h", "w"]}, k=random(32, 128, 1, 1) / 8)
    assert sorted(ops(after)) == ["Add", "Conv", "Conv", "Resize", "Resize"]


def test_other_readers_keep_what_they_read():
    after, _ = rewrite([resize(), CONV, node("Relu", "u", "z")], outputs=("y", "z"))
    assert sorted(ops(after)) == ["Conv", "Relu", "Resize", "Resize"]


REFUSED = {
    "repeated": ([resize(mode="nearest"), CONV], {}, ""),
    "cubic": ([resize(mode="cubic"), CONV], {}, ""),
    "antialias": ([resize(antialias=1), CONV], {"s": np.array([1, 1, 2, 2], np.float32)}, ""),
    "smaller": ([resize(), CONV], {"s": np.array([1, 1, 0.5, 2], np.float32)}, "too few products"),
    "more filters": ([resize(), CONV], {"k": random(80, 64, 1, 1), "b": random(80)}, "too few products"),
    "few channels": ([resize(), CONV], {}, "too few products"),
    "taps": ([resize(), CONV], {"k": random(32, 64, 3, 3)}, "more than a product"),
    "stride": ([resize(), node("Conv", "u k b", "y", strides=[2, 2])], {}, "more than a product"),
    "padding": ([resize(), node("Conv", "u k b", "y", pads=[0, 1, 0, 0])], {}, "more than a product"),
    "groups": ([resize(), node("Conv", "u k b", "y", group=2)], {"k": random(32, 32, 1, 1)}, "more than a product"),
    "no number": ([resize(), CONV], {"k": WEIGHTS * np.inf}, "not finite"),
    "batch": ([resize(), CONV], {"s": np.array([2, 1, 1, 1], np.float32)}, ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    nodes, constants, reason = REFUSED[case]
    image = IMAGE
    if case == "few channels":
        image, constants = {"x": ["n", 8, "h", "w"]}, {"k": random(8, 8, 1, 1), "b": random(8)}
    known = {"k": WEIGHTS, "s": SCALES, "b": random(32), **constants}
    proto = model(nodes, image, constants=known, opset=19)
    after, context = apply(proto, RulePass([ConvOfInterpolated()]))
    assert ops(after) == ["Resize", "Conv"]
    assert reason in reasons(context) if reason else not reasons(context)
