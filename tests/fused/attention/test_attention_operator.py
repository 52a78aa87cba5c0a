"""ONNX's operator Attention as part of a fused attention: its masks, its groups of queries, and what stays."""

import numpy as np
import onnx
import pytest

from tests.fused.attention.test_fuse_attention import blocks, fused
from tests.fused.conv.test_cpu_convolutions import array, model
from tests.support import fusing

OPERATOR = """g (float[n, l, 24] x, {mask}float[n, m, {width}] z) => (float[n, l, 24] y) {{
    q = Reshape(x, queries) k = Reshape(z, keys) q1 = Transpose <perm = [0, 2, 1, 3]> (q)
    k1 = Transpose <perm = [0, 2, 1, 3]> (k) v1 = Neg(k1) a = Attention {attributes} (q1, k1, v1{given})
    t = Transpose <perm = [0, 2, 1, 3]> (a) y = Reshape(t, joined) }}"""
MASKS = {
    "none": ("", "", None),
    "numbers": ("float[n, 1, l, m] c, ", ", c", lambda n, rows, m: array(n, 1, rows, m)),
    "numbers for heads": ("float[4, l, m] c, ", ", c", lambda n, rows, m: array(4, rows, m)),
    "flags": ("bool[l, m] c, ", ", c", lambda n, rows, m: np.arange(m) <= np.arange(rows)[:, None] + m // 2),
    "no flag in a row": (
        "bool[l, m] c, ",
        ", c",
        lambda n, rows, m: np.arange(rows)[:, None] + np.zeros(m) > rows // 2,
    ),
}


def of_operator(mask: str = "none", heads: int = 4, attributes: str = "", opset: int = 23) -> onnx.ModelProto:
    declared, given, _ = MASKS[mask]
    text = OPERATOR.format(mask=declared, width=6 * heads, attributes=attributes, given=given)
    shapes = {"queries": np.array([0, 0, 4, 6]), "keys": np.array([0, 0, heads, 6]), "joined": np.array([0, 0, 24])}
    return model(text, opset, **shapes)


@pytest.mark.parametrize("opset", (23, 24))
@pytest.mark.parametrize("heads", (4, 2, 1))
@pytest.mark.parametrize("mask", MASKS)
def test_the_operator(mask: str, heads: int, opset: int) -> None:
    """As torch.export writes scaled_dot_product_attention from opset 23 on."""
    made = of_operator(mask, heads, opset=opset)
    result, _ = fused(made)
    (block,) = blocks(result)
    assert [list(own.ints) for own in block.attribute if own.name == "heads"] == [[4, heads]]
    for batch, queries, keys in ((2, 7, 11), (1, 1, 1), (3, 9, 70)):
        feeds = {"x": array(batch, queries, 24) * 5, "z": array(batch, keys, 6 * heads) * 5}
        make = MASKS[mask][2]
        if make is not None:
            feeds["c"] = make(batch, queries, keys)
        (expected,) = fusing.run(made, feeds, False)
        for library in (True, False):
            (actual,) = fusing.run(result, feeds, library)
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", ((), (7, 7), (7, 11), (11, 7)), ids=str)
@pytest.mark.parametrize("opset", (23, 24))
def test_a_causal_operator(sizes: tuple[int, ...], opset: int) -> None:
    """Its mask is a constant where both lengths are known, and is computed once for all layers where not."""
    made = of_operator(attributes="<is_causal = 1>", opset=opset)
    for tensor, size in zip(made.graph.input, sizes, strict=False):
        tensor.type.tensor_type.shape.dim[1].dim_value = size
    result, _ = fused(made)
    assert len(blocks(result)) == 1 and ("Range" in {node.op_type for node in result.graph.node}) == (not sizes)
    for queries, keys in [sizes] if sizes else [(7, 7), (1, 1), (9, 70), (70, 9)]:
        feeds = {"x": array(2, queries, 24) * 5, "z": array(2, keys, 24) * 5}
        (expected,) = fusing.run(made, feeds, False)
        for library in (True, False):
            (actual,) = fusing.run(result, feeds, library)
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


WINDOWS = ((2, -1), (-1, 1), (3, 2), (0, 0), (128, -1), (-1, 1 << 40), (64, 3))


@pytest.mark.parametrize("causal", (0, 1))
@pytest.mark.parametrize("heads", (4, 2))
@pytest.mark.parametrize("sizes", ((), (70, 9), (150, 150)), ids=str)
@pytest.mark.parametrize(("left", "right"), WINDOWS)
def test_an_operator_with_windows(left: int, right: int, sizes: tuple[int, ...], heads: int, causal: int) -> None:
    """Of keys to the left and to the right, beside a causal mask too; lengths are below and above the windows."""
    attributes = f"<is_causal = {causal}, left_window_size = {left}, right_window_size = {right}>"
    made = of_operator(heads=heads, attributes=attributes, opset=25)
    for tensor, size in zip(made.graph.input, sizes, strict=False):
        tensor.type.tensor_type.shape.dim[1].dim_value = size
    result, _ = fused(made)
    assert len(blocks(result)) == 1
    for queries, keys in [sizes] if sizes else [(7, 7), (1, 1), (200, 300), (70, 9)]:
        feeds = {"x": array(2, queries, 24) * 5, "z": array(2, keys, 6 * heads) * 5}
        (expected,) = fusing.run(made, feeds, False)
        for library in (True, False):
            (actual,) = fusing.run(result, feeds, library)
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_a_window_beside_a_mask_stays() -> None:
    result, context = fused(of_operator("flags", attributes="<left_window_size = 2>", opset=25))
    assert not blocks(result) and "windows" in context.report.refusals[0].reason


def test_causal_operators_of_equal_lengths_share_a_mask() -> None:
    made = of_operator(attributes="<is_causal = 1>")
    nodes = list(made.graph.node)
    nodes[-3].output[0] = "a0"
    again = onnx.helper.make_node("Attention", ["a0", "k1", "v1"], ["a"], is_causal=1)
    del made.graph.node[:]
    made.graph.node.extend([*nodes[:-2], again, *nodes[-2:]])
    result, _ = fused(made)
    assert len(blocks(result)) == 2 and [node.op_type for node in result.graph.node].count("LessOrEqual") == 1
    feeds = {"x": array(2, 7, 24) * 5, "z": array(2, 11, 24) * 5}
    (expected,), (actual,) = (fusing.run(each, feeds, True) for each in (made, result))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("mask", "attributes"),
    [("numbers", "<is_causal = 1>"), ("none", "<softcap = 2.0>"), ("numbers", "<softmax_precision = 1>")],
)
def test_operators_of_other_kinds_stay(mask: str, attributes: str) -> None:
    result, context = fused(of_operator(mask, attributes=attributes))
    assert not blocks(result) and "a cap" in context.report.refusals[0].reason


def test_a_mask_that_may_be_shorter_than_the_keys_stays() -> None:
    made = of_operator("numbers")
    made.graph.input[1].type.tensor_type.shape.dim[3].dim_param = "other"
    assert not blocks(fused(made)[0])
