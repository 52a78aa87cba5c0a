"""Convolutions of repeated elements: which become transposed ones, which stay, and the same results."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.model.graph import Model
from onnxfuse.passes import RulePass
from onnxfuse.passes.rules.conv_layout.conv_of_upsampled import ConvOfUpsampled
from onnxfuse.passes.rules.conv_layout.upsampling import repeats
from onnxfuse.shapes.inference import infer
from tests.passes.models import apply, assert_close, model, node, ops, random, reasons, run

FLOOR = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
WEIGHTS = random(6, 8, 3, 3) / 8
IMAGE = {"x": ["n", 8, "h", "w"]}
SIZES = ((1, 5, 7), (2, 1, 3))


def scales(*spatial):
    return np.array([1, 1, *spatial], np.float32)


def rewrite(nodes, inputs=IMAGE, sizes=SIZES, ulps=16.0, **fields):
    """Applies the rule, checks that results agree for several sizes, and returns the operators and the reasons."""
    proto = model(nodes, inputs, **fields)
    after, context = apply(proto, RulePass([ConvOfUpsampled()]))
    for n, h, w in sizes:
        known = {"n": n, "h": h, "w": w, "H": 2 * h, "W": 2 * w}
        feeds = {name: random(*(known.get(dim, dim) for dim in shape), seed=n) for name, shape in inputs.items()}
        assert_close(proto, after, feeds, ulps)
    return ops(after), reasons(context)


def conv(data="u", result="y", **attributes):
    return node("Conv", f"{data} k", result, **{"pads": [1, 1, 1, 1], **attributes})


def resize(data="x", result="u", by="s", **attributes):
    return node("Resize", f"{data} - {by}", result, **{**FLOOR, **attributes})


@pytest.mark.parametrize("scale", (2, 3, 4, 8))
@pytest.mark.parametrize("kernel", (2, 3, 5))
def test_scales_and_kernels(scale, kernel):
    weights = random(6, 8, kernel, kernel) / 8
    pads = [kernel // 2] * 2 + [(kernel - 1) // 2] * 2
    found, _ = rewrite([resize(), conv(pads=pads)], constants={"k": weights, "s": scales(scale, scale)})
    assert found == ["ConvTranspose"]


@pytest.mark.parametrize(
    "attributes",
    (
        {"pads": [0, 0, 0, 0]},
        {"pads": [2, 0, 1, 2]},
        {"pads": None, "auto_pad": "VALID"},
        {"pads": None, "auto_pad": "SAME_UPPER"},
        {"pads": None, "auto_pad": "SAME_LOWER"},
    ),
)
@pytest.mark.parametrize("kernel", ((3, 3), (2, 4)))
def test_padding(attributes, kernel):
    attributes = {name: value for name, value in attributes.items() if value is not None}
    if "pads" in attributes:
        attributes["pads"] = [min(pad, size - 1) for pad, size in zip(attributes["pads"], kernel * 2, strict=True)]
    made = node("Conv", "u k", "y", **attributes)
    constants = {"k": random(6, 8, *kernel) / 8, "s": scales(2, 2)}
    found, _ = rewrite([resize(), made], constants=constants, sizes=((1, 5, 7), (2, 3, 3)))
    assert found == ["ConvTranspose"]


def test_a_bias_and_one_axis():
    nodes = [resize(), node("Conv", "u k b", "y", pads=[1, 1, 1, 1])]
    found, _ = rewrite(nodes, constants={"k": WEIGHTS, "s": scales(1, 4), "b": random(6)})
    assert found == ["ConvTranspose"]


def test_one_dimension():
    nodes = [resize(), node("Conv", "u k", "y", pads=[3, 3])]
    constants = {"k": random(6, 8, 7) / 8, "s": np.array([1, 1, 4], np.float32)}
    found, _ = rewrite(nodes, inputs={"x": ["n", 8, "w"]}, constants=constants)
    assert found == ["ConvTranspose"]


FORMS = {
    "Upsample 7": (8, node("Upsample", "x", "u", scales=[1.0, 1.0, 2.0, 2.0])),
    "Upsample 9": (9, node("Upsample", "x s", "u", mode="nearest")),
    "Resize 10": (10, node("Resize", "x s", "u", mode="nearest")),
    "Resize 11": (11, node("Resize", "x r s", "u", **FLOOR)),
    "Resize 13": (13, resize()),
    "Resize 18": (18, node("Resize", "x - t", "u", axes=[3, 2], **FLOOR)),
    "Resize 19": (19, node("Resize", "x - t", "u", axes=[-1, -2], antialias=0, **FLOOR)),
    "its own modes": (17, node("Resize", "x - s", "u")),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_repeating(form):
    opset, made = FORMS[form]
    constants = {"k": WEIGHTS, "s": scales(2, 2), "t": np.full(2, 2, np.float32), "r": np.zeros(0, np.float32)}
    constants = {name: value for name, value in constants.items() if name in {*made.input, "k"}}
    found, _ = rewrite([made, conv()], constants=constants, opset=opset)
    assert found == ["ConvTranspose"]


def test_sizes_in_place_of_scales():
    constants = {"k": WEIGHTS, "s": np.array([1, 8, 10, 21], np.int64)}
    nodes = [node("Resize", "x - - s", "u", **FLOOR), conv()]
    found, _ = rewrite(nodes, inputs={"x": [1, 8, 5, 7]}, constants=constants, sizes=((1, 5, 7),))
    assert found == ["ConvTranspose"]
    found, _ = rewrite(nodes, inputs={"x": [1, 8, 5, 9]}, constants=constants, sizes=((1, 5, 9),))
    assert found == ["Resize", "Conv"]
    found, _ = rewrite(nodes, constants=constants, sizes=((1, 5, 7),))
    assert found == ["Resize", "Conv"]


MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@pytest.mark.parametrize(("mode", "rounding"), list(itertools.product(MODES, ROUNDINGS)))
def test_what_repeats_elements_does_so_in_onnx_runtime(mode, rounding):
    attributes = {"coordinate_transformation_mode": mode, "nearest_mode": rounding, "mode": "nearest"}
    x = np.arange(1, 38, dtype=np.float32)
    for scale in (2, 3, 4, 5, 7, 8, 16):
        proto = model(
            [node("Resize", "x - s", "y", **attributes)], {"x": [37]}, constants={"s": scale_of(scale)}, opset=19
        )
        loaded = Model.from_proto(proto)
        infer(loaded)
        if repeats(loaded.graph.nodes[0], loaded.opsets) is not None:
            np.testing.assert_array_equal(run(proto, {"x": x})[0], np.repeat(x, scale))
        else:
            assert (mode, rounding) not in {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")}


def scale_of(scale):
    return np.array([scale], np.float32)


def test_a_concat_becomes_a_sum():
    inputs = {"x": ["n", 8, "h", "w"], "a": ["n", 3, "H", "W"], "b": ["n", 5, "H", "W"]}
    nodes = [resize(), node("Concat", "a u b", "c", axis=1), node("Conv", "c k b_", "y", pads=[1, 1, 1, 1])]
    constants = {"k": random(6, 16, 3, 3) / 16, "s": scales(2, 2), "b_": random(6)}
    found, _ = rewrite(nodes, inputs=inputs, constants=constants)
    assert sorted(found) == ["Add", "Concat", "Conv", "ConvTranspose"]


def test_a_concat_of_repeated_tensors_alone():
    inputs = {"x": ["n", 8, "h", "w"], "a": ["n", 8, "h", "w"]}
    nodes = [resize(), resize("a", "v"), node("Concat", "u v", "c", axis=-3), conv("c")]
    found, _ = rewrite(nodes, inputs=inputs, constants={"k": random(6, 16, 3, 3) / 16, "s": scales(2, 2)})
    assert sorted(found) == ["Add", "ConvTranspose", "ConvTranspose"]


def test_the_same_tensor_twice_in_a_concat():
    nodes = [resize(), node("Concat", "u u", "c", axis=1), conv("c")]
    found, _ = rewrite(nodes, constants={"k": random(6, 16, 3, 3) / 16, "s": scales(2, 2)})
    assert sorted(found) == ["Add", "ConvTranspose", "ConvTranspose"]


def test_other_readers_keep_what_they_read():
    inputs = {"x": ["n", 8, "h", "w"], "a": ["n", 3, "H", "W"]}
    nodes = [resize(), node("Concat", "a u", "c", axis=1), conv("c"), node("Relu", "c", "z"), node("Neg", "u", "v")]
    constants = {"k": random(6, 11, 3, 3) / 11, "s": scales(2, 2)}
    found, _ = rewrite(nodes, inputs=inputs, constants=constants, outputs=("y", "z", "v"))
    assert sorted(found) == ["Add", "Concat", "Conv", "ConvTranspose", "Neg", "Relu", "Resize"]


def test_channels_too_few_to_be_worth_a_pass_over_memory_stay_in_the_concat():
    inputs = {"x": ["n", 2, "h", "w"], "a": ["n", 14, "H", "W"]}
    nodes = [resize(), node("Concat", "a u", "c", axis=1), conv("c")]
    found, why = rewrite(nodes, inputs=inputs, constants={"k": random(6, 16, 3, 3) / 16, "s": scales(2, 2)})
    assert found == ["Resize", "Concat", "Conv"] and "too few products" in why


REFUSED = {
    "a 1x1 kernel": ({"k": random(6, 8, 1, 1)}, {}, {"pads": [0, 0, 0, 0]}, "too few products"),
    "weights that grow": ({"k": random(600, 8, 3, 3), "s": scales(16, 16)}, {}, {}, "too few products"),
    "groups": ({"k": random(8, 2, 3, 3)}, {}, {"group": 4}, "groups"),
    "strides": ({}, {}, {"strides": [2, 1]}, "strides or dilations"),
    "dilations": ({}, {}, {"dilations": [1, 2]}, "strides or dilations"),
    "more padding than the kernel": ({}, {}, {"pads": [3, 1, 1, 1]}, "pads by more"),
    "infinite weights": ({"k": np.full((6, 8, 3, 3), np.inf, np.float32)}, {}, {}, "not finite"),
    "large weights": ({"k": np.full((6, 8, 3, 3), 3e38, np.float32)}, {}, {}, "add up to more than float32"),
    "interpolation": ({}, {"mode": "linear"}, {}, ""),
    "other elements": ({}, {"coordinate_transformation_mode": "align_corners"}, {}, ""),
    "the next element": ({}, {"nearest_mode": "ceil"}, {}, ""),
    "a fraction": ({"s": scales(1.5, 2)}, {}, {}, ""),
    "nothing repeated": ({"s": scales(1, 1)}, {}, {}, ""),
    "channels repeated": ({"s": np.array([1, 2, 2, 2], np.float32), "k": random(6, 16, 3, 3)}, {}, {}, ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    constants, of_resize, of_conv, reason = REFUSED[case]
    constants = {"k": WEIGHTS, "s": scales(2, 2), **constants}
    proto = model([resize(**of_resize), conv(**of_conv)], IMAGE, constants=constants)
    after, context = apply(proto, RulePass([ConvOfUpsampled()]))
    assert ops(after) == ["Resize", "Conv"]
    assert reason in reasons(context) and bool(reason) == bool(reasons(context))


@pytest.mark.parametrize("dtype", (np.float64, np.float16))
def test_other_types_are_refused(dtype):
    proto = model([resize(), conv()], IMAGE, constants={"k": WEIGHTS.astype(dtype), "s": scales(2, 2)}, dtype=dtype)
    after, context = apply(proto, RulePass([ConvOfUpsampled()]))
    assert ops(after) == ["Resize", "Conv"] and "not float32" in reasons(context)


def test_channels_that_are_not_known_are_refused():
    inputs = {"x": ["n", 8, "h", "w"], "a": ["n", "c", "H", "W"]}
    nodes = [resize(), node("Concat", "a u", "c_", axis=1), conv("c_")]
    proto = model(nodes, inputs, constants={"k": random(6, 11, 3, 3), "s": scales(2, 2)})
    after, context = apply(proto, RulePass([ConvOfUpsampled()]))
    assert ops(after) == ["Resize", "Concat", "Conv"] and "channels of what is concatenated" in reasons(context)


def test_a_body_that_reads_what_is_repeated_outside_is_left_alone():
    body = onnx.helper.make_graph([conv(result="inner")], "body", [], [onnx.ValueInfoProto(name="inner")])
    nodes = [resize(), node("If", "on", "y", then_branch=body, else_branch=body)]
    proto = model(nodes, IMAGE, constants={"k": WEIGHTS, "s": scales(2, 2), "on": np.array(True)})
    after, _ = apply(proto, RulePass([ConvOfUpsampled()]))
    assert ops(after) == ["Resize", "If"]


def test_sums_of_sizes_that_are_not_known_are_fused():
    """That the terms of the sum have one shape is known from the Concat, which is gone."""
    inputs = {"x": ["n", 32, "h", "w"], "a": ["n", 32, "H", "W"]}
    nodes = [resize(), node("Concat", "a u", "c", axis=1), conv("c", "p"), node("Relu", "p", "y")]
    proto = model(nodes, inputs, constants={"k": random(24, 64, 3, 3) / 20, "s": scales(2, 2)})
    after = onnxfuse.optimize(proto, target="cpu", check=False).model
    assert not {"Add", "Relu", "Concat", "Resize"} & set(ops(after))
    feeds = {"x": random(2, 32, 20, 24), "a": random(2, 32, 40, 48)}
    (actual,) = onnxfuse.InferenceSession(after.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(actual, run(proto, feeds)[0], rtol=0, atol=1e-5)
