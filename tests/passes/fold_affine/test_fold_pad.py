"""A Pad before a Conv: what the Conv does in its place, and what stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse.passes import RulePass
from onnxfuse.passes.rules.fold_affine.fold_pad_before_conv import FoldPadBeforeConv
from tests.passes.models import apply, assert_close, model, node, ops, random, reasons

WEIGHTS = {1: random(6, 4, 3, seed=1), 2: random(6, 4, 3, 2, seed=2), 3: random(6, 4, 2, 3, 1, seed=3)}
IMAGES = {1: ["n", 4, "w"], 2: ["n", 4, "h", "w"], 3: ["n", 4, "d", "h", "w"]}
SIZES = {"n": 2, "d": 3, "h": 5, "w": 9}


def rewrite(
    pad: onnx.NodeProto, rank: int = 2, opset: int = 18, readers: tuple[onnx.NodeProto, ...] = (), **more: Any
) -> tuple[onnx.ModelProto, str]:
    """The model after the rule, whose results are those of the original, and the reasons not to apply it."""
    attributes = more.pop("conv", {})
    constants = {"w": WEIGHTS[rank], "b": random(6, seed=4), "zero": np.zeros((), np.float32), **more}
    nodes = [pad, node("Conv", "p w b", "y", **attributes), *readers]
    used = {name for item in nodes for name in item.input}
    constants = {name: value for name, value in constants.items() if name in used}
    outputs = ["y", *(name for item in readers for name in item.output)]
    proto = model(nodes, {"x": IMAGES[rank]}, outputs, constants, opset)
    after, context = apply(proto, RulePass([FoldPadBeforeConv()], "pads"))
    assert_close(proto, after, {"x": random(*(SIZES.get(size, size) for size in IMAGES[rank]), seed=5)}, 8.0)
    return after, reasons(context)


def pads_of(proto: onnx.ModelProto) -> list[int]:
    (conv,) = (item for item in proto.graph.node if item.op_type == "Conv")
    return next(list(attribute.ints) for attribute in conv.attribute if attribute.name == "pads")


@pytest.mark.parametrize(
    ("rank", "sizes", "conv", "wanted"),
    [
        (1, [0, 0, 4, 0, 0, 0], {}, [4, 0]),
        (1, [0, 0, 4, 0, 0, 0], {"pads": [1, 2], "dilations": [2]}, [5, 2]),
        (2, [0, 0, 1, 2, 0, 0, 3, 0], {"pads": [1, 0, 0, 1], "strides": [2, 1]}, [2, 2, 3, 1]),
        (2, [0, 0, 1, 2, 0, 0, 3, 0], {"auto_pad": "VALID"}, [1, 2, 3, 0]),
        (3, [0, 0, 1, 0, 2, 0, 0, 0, 1, 0], {}, [1, 0, 2, 0, 1, 0]),
    ],
)
def test_a_conv_pads_by_as_much_more(rank: int, sizes: list[int], conv: dict[str, Any], wanted: list[int]) -> None:
    after, _ = rewrite(node("Pad", "x sizes", "p"), rank, conv=conv, sizes=np.array(sizes))
    assert ops(after) == ["Conv"] and pads_of(after) == wanted


def test_every_form_of_a_pad() -> None:
    axes = {"sizes": np.array([2, 1, 0, 3]), "axes": np.array([-1, 2])}
    after, _ = rewrite(node("Pad", "x sizes zero axes", "p", mode="constant"), **axes)
    assert ops(after) == ["Conv"] and pads_of(after) == [1, 2, 3, 0]
    after, _ = rewrite(node("Pad", "x sizes - axes", "p"), **axes)
    assert ops(after) == ["Conv"] and pads_of(after) == [1, 2, 3, 0]
    after, _ = rewrite(node("Pad", "x", "p", pads=[0, 0, 1, 0, 0, 0, 0, 2]), opset=9)
    assert ops(after) == ["Conv"] and pads_of(after) == [1, 0, 0, 2]


BAD_WEIGHTS = WEIGHTS[2].copy()
BAD_WEIGHTS[0, 0, 0, 0] = np.inf


@pytest.mark.parametrize(
    ("pad", "more", "reason"),
    [
        (node("Pad", "x sizes", "p", mode="reflect"), {}, "it does not pad with zeros"),
        (node("Pad", "x sizes one", "p"), {"one": np.ones((), np.float32)}, "it does not pad with zeros"),
        (node("Pad", "x sizes", "p"), {"sizes": np.array([0, 0, 1, 1, 0, 1, 0, 0])}, "it pads the batch or channels"),
        (node("Pad", "x sizes", "p"), {"sizes": np.array([0, 0, 1, -1, 0, 0, 0, 0])}, "it takes something away"),
        (node("Pad", "x sizes", "p"), {"conv": {"auto_pad": "SAME_UPPER"}}, "the Conv finds out its padding by itself"),
        (node("Pad", "x sizes", "p"), {"w": BAD_WEIGHTS}, "the weights of Conv are not finite"),
    ],
)
def test_what_stays(pad: onnx.NodeProto, more: dict[str, Any], reason: str) -> None:
    fields = {"sizes": np.array([0, 0, 1, 1, 0, 0, 0, 0]), **more}
    if fields["sizes"][5]:  # one channel more than it is given
        fields["w"] = random(6, 5, 3, 2, seed=6)
    after, found = rewrite(pad, **fields)
    assert ops(after) == ["Pad", "Conv"] and found == f"fold-pad-before-conv: Conv_y: {reason}"


def test_what_others_read_stays() -> None:
    after, _ = rewrite(
        node("Pad", "x sizes", "p"), readers=(node("Relu", "p", "z"),), sizes=np.array([0, 0, 1, 1, 0, 0, 0, 0])
    )
    assert ops(after) == ["Pad", "Conv", "Relu"]
