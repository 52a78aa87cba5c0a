"""Attributes, shapes and types of attention that are refused."""

from typing import Any

import numpy as np
import onnx
import pytest

from tests.custom_ops.fused import (
    assert_refused,
    new_session,
    run,
    session_options,
)
from tests.custom_ops.nodes.test_attention import NODE, Attention, Sizes

GOOD = Attention(1, 4, 6, 8, key_heads=2, mask=(6, 6))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"heads": None}, "the heads attribute is not two numbers"),
        ({"heads": [4]}, "the heads attribute is not two numbers"),
        ({"heads": [4, 3]}, "the first a multiple of the second"),
        ({"nan_as_zero": 2}, "the nan_as_zero attribute is not 0 or 1"),
        ({"masked_as_zero": -1}, "the masked_as_zero attribute is not 0 or 1"),
        ({"heads": [0, 0]}, "the heads attribute"),
        ({"heads": [-4, -2]}, "the heads attribute"),
        ({"heads": [2**62, 2]}, "the heads attribute"),
        ({"input_heads": None}, "the input_heads and first_head attributes are not heads of three inputs"),
        ({"input_heads": [4, 2]}, "the input_heads and first_head attributes"),
        ({"input_heads": [3, 2, 2]}, "the input_heads and first_head attributes"),
        ({"input_heads": [4, 2, -(2**63)]}, "the input_heads and first_head attributes"),
        ({"input_heads": [2**62, 2, 2]}, "the input_heads and first_head attributes"),
        ({"first_head": None}, "the input_heads and first_head attributes"),
        ({"first_head": [0, 0, 0, 0]}, "the input_heads and first_head attributes"),
        ({"first_head": [0, 1, 0]}, "the input_heads and first_head attributes"),
        ({"first_head": [0, 0, -1]}, "the input_heads and first_head attributes"),
        ({"first_head": [2**63 - 1, 0, 0]}, "the input_heads and first_head attributes"),
        ({"heads_first": [0, 0, 0]}, "the heads_first attribute is not four numbers"),
        ({"heads_first": [0, 0, 0, 2]}, "the heads_first attribute is not four numbers"),
        ({"scale_bits": None}, "the scale_bits attribute"),
        ({"scale_bits": 0x7F800000}, "the scale_bits attribute is not the bits of a finite float32"),
        ({"scale_bits": -1}, "the scale_bits attribute"),
        ({"scale_bits": 2**40}, "the scale_bits attribute"),
        ({"scale_bits": 0.5}, "the scale_bits attribute"),
        ({"windows": 0}, "the windows attribute is not positive"),
        ({"windows": -(2**63)}, "the windows attribute is not positive"),
        ({"fill_bits": 0, "fills": 1, "windows": 2}, "the windows attribute is of a node without a mask"),
        ({"fill_bits": 0, "fills": 1, "heads": [4, 4]}, "input_heads"),
        ({"fill_bits": 0x7FC00000, "fills": 1}, "the fill_bits and fills attributes"),
        ({"fill_bits": -1, "fills": 1}, "the fill_bits and fills attributes"),
        ({"fill_bits": 0, "fills": 2}, "the fill_bits and fills attributes"),
        ({"fill_bits": 0}, "the fill_bits and fills attributes"),
    ],
)
def test_attributes_that_are_refused(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(Exception, match=reason) as caught:
        new_session(GOOD.model(**more), session_options())
    assert NODE in str(caught.value) or "FusedAttention" in str(caught.value)


@pytest.mark.parametrize(
    ("place", "shape", "reason"),
    [
        (0, (1, 6, 31), "input 0 of shape .* is not of 4 heads"),
        (0, (6, 32), "input 0 of shape .* is not of 4 heads"),
        (1, (1, 6, 3, 8), "input 1 of shape .* is not of 2 heads"),
        (0, (1, 6, 3, 2, 8), "input 0 of shape .* is not of 4 heads"),
        (0, (1, 6, 0, 4, 8), "input 0 of shape .* is not of 4 heads"),
        (0, (1, 6, 1, 1, 4, 8), "input 0 of shape .* is not of 4 heads"),
        (1, (1, 6, 18), "do not fit each other"),
        (1, (1, 5, 16), "do not fit each other"),
        (2, (1, 7, 16), "do not fit each other"),
        (2, (1, 6, 15), "input 2 of shape .* is not of 2 heads"),
        (3, (6, 5), "the mask of shape .* does not broadcast"),
        (3, (1, 1, 1, 6, 6), "the mask of shape .* does not broadcast"),
        (3, (1, 2, 6, 6), "the mask of shape .* does not broadcast"),
    ],
)
def test_shapes_that_are_refused(place: int, shape: Sizes, reason: str) -> None:
    arrays = GOOD.laid_out(GOOD.inputs())
    arrays[place] = np.zeros(shape, np.float32)
    assert_refused(GOOD.model(), arrays, reason, NODE)


def test_windows_that_do_not_fit_are_refused() -> None:
    node = Attention(6, 2, 4, 4, mask=(3, 1, 4, 4), windows=3)
    session = new_session(node.model(), session_options())
    arrays = node.laid_out(node.inputs())
    run(session, arrays)
    with pytest.raises(Exception, match="a batch of 5 is not one of images of 3 windows") as caught:
        run(session, [*(array[:5] for array in arrays[:3]), arrays[3]])
    assert NODE in str(caught.value)
    with pytest.raises(Exception, match=r"the mask of shape \[6,1,4,4\] does not broadcast to the scores, \[3,2,4,4\]"):
        run(session, [*arrays[:3], np.tile(arrays[3], (2, 1, 1, 1))])


def test_batches_that_differ_are_refused() -> None:
    node = Attention(2, 2, 4, 4)
    inputs = node.inputs()
    arrays = node.laid_out([inputs[0], np.concatenate([inputs[1], inputs[1][:1]]), inputs[2]])
    with pytest.raises(Exception, match="there are batches of 2 and 3") as caught:
        run(new_session(node.model(), session_options()), arrays)
    assert NODE in str(caught.value)


def test_choices_that_are_refused() -> None:
    """Without one, of another shape, and of another type: the one of float32 is that of GOOD's mask."""
    with pytest.raises(Exception, match="the node has 3 inputs, not Q, K, V, perhaps a mask, and choices"):
        new_session(Attention(1, 2, 3, 4).model(fill_bits=0, fills=1), session_options())
    node = Attention(1, 2, 3, 4, choices=(3, 5))
    with pytest.raises(Exception, match=r"the choice of shape \[3,5\] does not broadcast to the scores"):
        run(new_session(node.model(), session_options()), node.laid_out(node.inputs()))
    with pytest.raises(Exception, match="input 3 has the ONNX element type 1, not 9"):
        run(new_session(GOOD.model(fill_bits=0, fills=1), session_options()), GOOD.laid_out(GOOD.inputs()))


def test_types_that_are_refused() -> None:
    model = GOOD.model()
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    arrays = GOOD.laid_out(GOOD.inputs())
    arrays[0] = arrays[0].astype(np.float64)
    with pytest.raises(Exception, match="input 0 has the ONNX element type 11, not that of float") as caught:
        run(new_session(model, session_options()), arrays)
    assert NODE in str(caught.value)
