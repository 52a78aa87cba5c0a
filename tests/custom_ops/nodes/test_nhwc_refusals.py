"""What convolutions with the channels last refuse."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from tests.cuda.conv.convolutions import convolution, raw
from tests.custom_ops.fused import (
    NODE_NAME,
    assert_refused,
    new_session,
    run,
    session_options,
)
from tests.custom_ops.nodes.nhwc_nodes import Nhwc, Sizes, depthwise, of_several_stages, pair, plain, with_tail

NODE = f"onnxfuse::FusedNhwcConv node '{NODE_NAME}': "


GOOD = with_tail(convolution("f32", (6, 18), (3, 3), pads=(1,) * 4), (1, 6, 5, 5), "bias, hard swish, residual")
GOOD_PAIR = pair(depthwise(16, (3, 3), pads=(1,) * 4), 18, (1, 16, 5, 5))
RAW = "onnxfuse 1\ninput {0} broadcast\noutput 0\n"
WRONG_PAIR = "the depthwise convolution is not before a product with prologue and channels last"


def refuse(model: onnx.ModelProto, reason: str) -> None:
    with pytest.raises(Exception, match=reason) as caught:
        new_session(model, session_options())
    assert NODE in str(caught.value) or "FusedNhwcConv" in str(caught.value)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"nhwc_inputs": None}, "it has no attribute nhwc_inputs with 0 or 1 for each input"),
        ({"nhwc_inputs": [1, 0, 0]}, "it has no attribute nhwc_inputs with 0 or 1 for each input"),
        ({"nhwc_inputs": [1, 0, 0, 2]}, "it has no attribute nhwc_inputs with 0 or 1 for each input"),
        ({"nhwc_inputs": [1, 1, 0, 1]}, "the attribute nhwc_inputs names weights"),
        ({"nhwc_output": None}, "it has no attribute nhwc_output that is 0 or 1"),
        ({"nhwc_output": 2}, "it has no attribute nhwc_output that is 0 or 1"),
        (
            {"nhwc_output": 0},
            "the attribute nhwc_inputs names weights, or an operand of what has the channels first",
        ),
        (
            {"operator": "ConvTranspose", "output_padding": [0, 0], "weight_shape": [6, 18, 3, 3]},
            "operator is not Conv",
        ),
        ({"operator": None}, "it has no attribute operator"),
        ({"group": 9, "weight_shape": [18, 1, 3, 3]}, "the attribute group leaves a group fewer than 4 filters"),
        ({"group": 6, "weight_shape": [18, 1, 3, 3]}, "the attribute group leaves a group fewer than 4 filters"),
        (
            {
                "kernel_shape": [3] * 3,
                "weight_shape": [18, 6, 3, 3, 3],
                "strides": [1] * 3,
                "dilations": [1] * 3,
                "pads": [1] * 6,
            },
            "the attribute kernel_shape has more than 2 elements",
        ),
        ({"weight_shape": [18, 6, 3, 1]}, "the attribute weight_shape does not end with kernel_shape"),
        ({"program": None}, "it has no attribute program"),
        ({"program": "nonsense"}, "the program attribute is not valid"),
        ({"program": RAW.format("f32")}, "inputs, but its programs take"),
        ({"prologue": RAW.format("f16")}, "the prologue does not make one tensor of the program's type"),
    ],
)
def test_attributes_that_are_refused(more: dict[str, Any], reason: str) -> None:
    refuse(GOOD.model(**more), reason)


def test_other_types_than_float32_are_refused() -> None:
    node = plain(convolution("f32", (6, 18), (3, 3)), (1, 6, 5, 5))
    refuse(node.model(program=RAW.format("f16")), "the program is not for a convolution of f32")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        *(
            ({f"depthwise_{name}": None}, f"of the depthwise convolution: it has no attribute {name}")
            for name in ("kernel_shape", "weight_shape", "strides", "dilations", "group", "auto_pad", "pads")
        ),
        ({"depthwise_operator": "Pool"}, "of the depthwise convolution: the attribute operator is not Conv"),
        ({"depthwise_operator": None}, "inputs, but its programs take"),
        ({"depthwise_group": 1, "depthwise_weight_shape": [16, 16, 3, 3]}, WRONG_PAIR),
        ({"depthwise_group": 8, "depthwise_weight_shape": [8, 1, 3, 3]}, WRONG_PAIR),
        ({"strides": [2, 2]}, WRONG_PAIR),
        ({"pads": [0, 0, 0, 1]}, WRONG_PAIR),
        ({"kernel_shape": [1, 3], "weight_shape": [18, 16, 1, 3]}, WRONG_PAIR),
        ({"nhwc_inputs": [0, 0, 0, 0, 0, 1]}, WRONG_PAIR),
        ({"nhwc_inputs": [1, 0, 1, 0, 0, 1]}, "the attribute nhwc_inputs names weights"),
    ],
)
def test_attributes_of_pairs_that_are_refused(more: dict[str, Any], reason: str) -> None:
    refuse(GOOD_PAIR.model(**more), reason)


def test_a_pair_without_a_prologue_is_refused() -> None:
    before, fused = GOOD_PAIR.before, replace(GOOD_PAIR.fused, prologue=raw("f32"), x_operands=())
    refuse(Nhwc(fused, before).model(prologue=None), WRONG_PAIR)


def test_a_pair_with_a_prologue_of_several_shapes_is_refused() -> None:
    fused = replace(GOOD_PAIR.fused, prologue=of_several_stages(row=False), x_operands=((16,), (16,)))
    node = replace(GOOD_PAIR, fused=fused)
    with pytest.raises(Exception, match="the prologue computes values of several shapes") as caught:
        node.run(node.arrays())
    assert NODE in str(caught.value)


@pytest.mark.parametrize(
    ("node", "place", "shape", "reason"),
    [
        (GOOD, 0, (1, 5, 5, 7), r"input \[1,7,5,5\] is not for weights \[18,6,3,3\]"),
        (GOOD, 0, (1, 5, 6), r"input 0 of shape \[1,5,6\] does not have 4 dimensions"),
        (GOOD, 1, (18, 6, 3, 3), r"the weights are of shape \[18,6,3,3\], not \[2,3,3,6,16\]"),
        (GOOD, 1, (2, 3, 3, 6, 8), r"the weights are of shape \[2,3,3,6,8\], not \[2,3,3,6,16\]"),
        (GOOD, 2, (17,), "the program: "),
        (GOOD, 3, (5, 5, 18), r"input 3 of shape \[5,5,18\] does not have 4 dimensions"),
        (GOOD, 3, (1, 18, 5, 5), "the program: "),
        (GOOD, 3, (2, 5, 5, 18), "the program: "),
        (GOOD_PAIR, 0, (1, 5, 5, 18), r"input \[1,18,5,5\] is not for weights \[16,1,3,3\]"),
        (GOOD_PAIR, 1, (18, 16), r"the weights are of shape \[18,16\], not \[2,1,1,16,16\]"),
        (GOOD_PAIR, 2, (9, 16), r"the weights are of shape \[9,16\], not \[3,3,16\]"),
        (GOOD_PAIR, 3, (18,), "the prologue: "),
    ],
)
def test_shapes_that_are_refused(node: Nhwc, place: int, shape: Sizes, reason: str) -> None:
    arrays, _ = node.inputs(node.arrays())
    arrays[place] = np.zeros(shape, np.float32)
    assert_refused(node.model(), arrays, reason, NODE)


def test_an_operand_that_is_said_to_be_plain_has_no_two_dimensions_to_exchange() -> None:
    arrays, _ = GOOD.inputs(GOOD.arrays())
    with pytest.raises(Exception, match=r"input 3 of shape \[1,5,5,18\] does not have the channels last") as caught:
        run(new_session(GOOD.model(nhwc_inputs=[1, 0, 0, 0]), session_options()), arrays)
    assert NODE in str(caught.value)


@pytest.mark.parametrize("place", range(6))
def test_types_that_are_refused(place: int) -> None:
    arrays, _ = GOOD_PAIR.inputs(GOOD_PAIR.arrays())
    arrays[place] = arrays[place].astype(np.float64)
    model = GOOD_PAIR.model()
    model.graph.input[place].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    with pytest.raises(Exception, match=f"input {place} has the ONNX element type 11, not 1") as caught:
        run(new_session(model, session_options()), arrays)
    assert NODE in str(caught.value)
