"""Products with the channels last that read parts of their data, as if these were joined."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cuda.conv.convolutions import HEADS, TAILS, Fused, convolution, head, tail
from tests.custom_ops.fused import NODE_NAME, new_session, run, session_options
from tests.custom_ops.nodes.nhwc_nodes import Nhwc, check

NODE = f"onnxfuse::FusedNhwcConv node '{NODE_NAME}': "
PARTS = {
    "two": (32, 16),
    "ends of vectors": (1, 15, 16, 17, 3, 33),
    "alike": (16, 16, 16, 16),
    "many": (64, *(5, 11) * 12),
    "long sums": (300, 20),
}
SHAPES = {
    "image": (2, 9, 7),
    "one pixel": (1, 1, 1),
    "a line": (1, 4, 61),
    "pixels for threads": (1, 40, 41),
    "none": (0, 3, 3),
}


def product(parts: tuple[int, ...], *shape: int, prologue: str = "", epilogue: str = "", filters: int = 40) -> Nhwc:
    conv = convolution("f32", (sum(parts), filters), (1,) * (len(shape) - 1))
    x_shape = (shape[0], sum(parts), *shape[1:])
    own = tail("f32", epilogue, conv.output_shape(x_shape))
    return Nhwc(Fused(conv, x_shape, *own, *head("f32", prologue, x_shape)), parts=parts)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prologue", HEADS)
@pytest.mark.parametrize("parts", PARTS)
def test_parts(parts: str, prologue: str, shape: str) -> None:
    for y_last in (True, False):
        node = product(PARTS[parts], *SHAPES[shape], prologue=prologue)
        check(replace(node, y_last=y_last), threads=(1, 2))


@pytest.mark.parametrize("filters", (1, 7, 16, 33, 130))
def test_filters(filters: int) -> None:
    """Some are computed by units of their own, each of which joins the parts."""
    check(product((20, 13), 1, 31, 30, prologue="affine", filters=filters), threads=(1, 2))


def test_one_dimension() -> None:
    check(product((20, 13), 3, 50, prologue="affine"))
    check(product((20, 13), 3, 50))


@pytest.mark.parametrize("kind", TAILS)
def test_epilogues(kind: str) -> None:
    for y_last in (True, False):
        check(replace(product((20, 13), 2, 8, 9, prologue="affine", epilogue=kind), y_last=y_last))


GOOD = product((4, 5), 1, 6, 7, filters=8)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([9], "the attribute joined_channels has fewer than 2 elements"),
        ([4, 4], "the attribute joined_channels does not add up to the channels"),
        ([5, 5], "the attribute joined_channels does not add up to the channels"),
        ([-1, 10], "the attribute joined_channels does not add up to the channels"),
        ([0, 9], "the attribute joined_channels does not add up to the channels"),
        ([1 << 62, 1 << 62], "the attribute joined_channels does not add up to the channels"),
        ([3] * 3, "inputs, but its programs take"),
        ([3] * 30, "the node has too few inputs"),
    ],
)
def test_attributes_that_are_refused(parts: list[int], reason: str) -> None:
    with pytest.raises(Exception, match=reason) as caught:
        new_session(GOOD.model(joined_channels=parts), session_options())
    assert NODE in str(caught.value) or "FusedNhwcConv" in str(caught.value)


def test_parts_that_have_the_channels_first_are_refused() -> None:
    for flags in ([1, 0, 0], [0, 0, 1]):
        with pytest.raises(Exception, match="nhwc_inputs does not name all parts of X"):
            new_session(GOOD.model(nhwc_inputs=flags), session_options())


def test_parts_of_others_than_products_are_refused() -> None:
    more = {"kernel_shape": [3, 3], "weight_shape": [8, 9, 3, 3]}
    with pytest.raises(Exception, match="the attribute joined_channels is not of a product alone"):
        new_session(GOOD.model(**more), session_options())


@pytest.mark.parametrize("shape", ((1, 6, 7, 4), (1, 6, 6, 5), (2, 6, 7, 5), (1, 6, 7, 5, 1), (6, 7, 5)))
def test_shapes_that_are_refused(shape: tuple[int, ...]) -> None:
    arrays = GOOD.inputs(GOOD.arrays())[0]
    arrays[2] = np.zeros(shape, np.float32)
    model = GOOD.model()
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")
    with pytest.raises(Exception, match=r"input 2 of shape .* is not a part of shape") as caught:
        run(new_session(model, session_options()), arrays)
    assert NODE in str(caught.value)
