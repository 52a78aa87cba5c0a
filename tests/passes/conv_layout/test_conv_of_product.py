"""1x1 convolutions of images that products of sequences make: one product in their place, and the same results."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.passes import RulePass
from onnxfuse.passes.rules.conv_layout.conv_of_product import ConvOfProduct
from tests.passes.models import apply, assert_close, model, node, ops, random, reasons

SEQUENCE = {"x": [2, 12, 8]}
CONSTANTS = {
    "v": random(8, 32) / 4,
    "c": random(32, seed=1),
    "w": random(16, 32, 1, 1, seed=2) / 8,
    "b": random(16, seed=3),
    "s": np.array([2, 32, 3, 4]),
}
PRODUCT, SUM = node("MatMul", "x v", "p"), node("Add", "p c", "a")
TURNED, IMAGE = node("Transpose", "a", "t", perm=[0, 2, 1]), node("Reshape", "t s", "i")
CONV = node("Conv", "i w b", "y")
CHAIN = [PRODUCT, SUM, TURNED, IMAGE, CONV]


def rewrite(nodes, inputs=SEQUENCE, outputs=("y",), dtype=np.float32, **constants):
    """The operators after the rule, and its reasons; results agree, within as many units in the last place as terms are
    rounded."""
    names = {name for item in nodes for name in item.input}
    known = {name: value for name, value in {**CONSTANTS, **constants}.items() if name in names}
    known = {name: value if value.dtype.kind == "i" else value.astype(dtype) for name, value in known.items()}
    proto = model(nodes, inputs, outputs, known, dtype=dtype)
    after, context = apply(proto, RulePass([ConvOfProduct()]))
    if np.all([np.all(np.isfinite(value)) for value in known.values()]):
        assert_close(proto, after, {"x": random(2, 12, 8).astype(dtype)}, 64 if dtype is np.float32 else 8)
    return ops(after), reasons(context)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_with_and_without_biases(dtype):
    one = ["MatMul", "Add", "Transpose", "Reshape"]
    assert rewrite(CHAIN, dtype=dtype) == (one, "")
    without = node("Transpose", "p", "t", perm=[0, 2, 1])
    assert rewrite([PRODUCT, without, IMAGE, CONV], dtype=dtype) == (one, "")
    assert rewrite([PRODUCT, SUM, TURNED, IMAGE, node("Conv", "i w", "y")], dtype=dtype) == (one, "")
    assert rewrite([PRODUCT, without, IMAGE, node("Conv", "i w", "y")], dtype=dtype) == ([one[0], *one[2:]], "")


REFUSED = {
    "another reader": ([*CHAIN, node("Relu", "a", "z")], SEQUENCE, {}, "used elsewhere"),
    "any batch": (CHAIN, {"x": ["n", 12, 8]}, {}, ""),
    "channels mixed": (CHAIN, SEQUENCE, {"s": np.array([1, 32, 6, 4])}, ""),
    "taps": (
        [*CHAIN[:-1], node("Conv", "i w b", "y", pads=[1, 1, 1, 1])],
        SEQUENCE,
        {"w": random(16, 32, 3, 3)},
        "",
    ),
    "padding": ([*CHAIN[:-1], node("Conv", "i w b", "y", pads=[0, 1, 0, 0])], SEQUENCE, {}, ""),
    "stride": ([*CHAIN[:-1], node("Conv", "i w b", "y", strides=[2, 1])], SEQUENCE, {}, ""),
    "groups": ([*CHAIN[:-1], node("Conv", "i w b", "y", group=2)], SEQUENCE, {"w": random(16, 16, 1, 1)}, ""),
    "a mask": (CHAIN, SEQUENCE, {"c": random(2, 12, 32)}, "no vector"),
    "more work": (
        CHAIN,
        {"x": [2, 12, 8]},
        {"v": random(8, 4), "c": random(4), "s": np.array([2, 4, 3, 4]), "w": random(16, 4, 1, 1)},
        "more work",
    ),
    "no number": (CHAIN, SEQUENCE, {"w": CONSTANTS["w"] * np.inf}, "finite"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    nodes, inputs, constants, reason = REFUSED[case]
    outputs = ("y", "z") if case == "another reader" else ("y",)
    after, said = rewrite(nodes, inputs, outputs, **constants)
    assert "Conv" in after and reason in said


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_heads_of_networks_for_segmentation_on_cuda(dtype):
    """As in SegFormer: products at each scale, interpolated, joined and convolved."""
    nodes, inputs = [], {}
    for name, side in (("l", 4), ("m", 2)):
        inputs[f"x{name}"] = [1, side * side, 8]
        nodes += [
            node("MatMul", f"x{name} v", f"p{name}"),
            node("Add", f"p{name} c", f"a{name}"),
            node("Transpose", f"a{name}", f"t{name}", perm=[0, 2, 1]),
            node("Reshape", f"t{name} s{name}", f"i{name}"),
        ]
    nodes += [
        node("Resize", "im - - sizes", "r", mode="linear"),
        node("Concat", "il r", "j", axis=1),
        node("Conv", "j k", "y"),
    ]
    constants = {
        **{"v": random(8, 64) / 4, "c": random(64), "k": random(32, 128, 1, 1) / 8},
        **{"sl": np.array([1, 64, 4, 4]), "sm": np.array([1, 64, 2, 2]), "sizes": np.array([1, 64, 4, 4])},
    }
    constants = {name: value if value.dtype.kind == "i" else value.astype(dtype) for name, value in constants.items()}
    proto = model(nodes, inputs, constants=constants, dtype=dtype)
    after, _ = apply(proto, "conv-layout", target="cuda")
    assert sorted(ops(after)) == sorted([*["MatMul", "Add", "Transpose", "Reshape"] * 2, "Resize", "Add"])
    feeds = {name: random(*shape).astype(dtype) for name, shape in inputs.items()}
    assert_close(proto, after, feeds, 64 if dtype is np.float32 else 8)
