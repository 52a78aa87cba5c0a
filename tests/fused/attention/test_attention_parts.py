"""Attention whose Q, K and V are parts of what one projection makes: the node reads them where they lie."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.fused.attention.test_fuse_attention import FEEDS, blocks, check, fused, of_text, with_sizes
from tests.fused.conv.test_cpu_convolutions import array

NODES = """g (float[n, l, 24] x{more}) => (float[n, l, 24] y) {{ h = MatMul(x, w) {parts}
    kt = Transpose <perm = [0, 1, 3, 2]> (k) {scaled} s = MatMul(q, kt) u = Mul(s, c) p = Softmax(u) o = MatMul(p, v)
    o2 = Transpose <perm = [0, 2, 1, 3]> (o) {after} y = Reshape(o3, joined) }}"""
INTEGERS = {
    **{f"i{number}": np.array(number) for number in range(3)},
    **{f"x{number}": np.array([number]) for number in range(4)},
    **{"b1": np.array([-1]), "b3": np.array(-3), "x24": np.array([24]), "x48": np.array([48])},
    **{"end": np.array([2**62]), "begin": np.array([-(2**62)])},
    **{"apart": np.array([0, -1, 3, 4, 6]), "four": np.array([0, -1, 4, 6]), "all": np.array([0, -1, 12, 6])},
    **{"ones": np.array([1, 1, 1]), "thirds": np.array([24, 24, 24])},
    **{"half": np.float32(0.5), "three": np.array([[[3]]], np.float32)},
}


def packed(
    parts: str, scaled: str = "", after: str = "", more: str = "", text: str = NODES, **constants: np.ndarray
) -> onnx.ModelProto:
    """``parts`` makes q, k and v, heads first, of h, the projection; ``after`` makes o3, which is o2 without it."""
    text = text.format(parts=parts, scaled=scaled, after=after or "o3 = Identity(o2)", more=more)
    made = of_text(text, **{"w": array(24, 72) + 0.01, **INTEGERS, **constants})
    if not after:
        (copy,) = (node for node in made.graph.node if node.op_type == "Identity")
        made.graph.node.remove(copy)
        made.graph.node[-1].input[0] = "o2"
    return made


PARTS_FIRST = "r = Reshape(h, apart) t = Transpose <perm = [2, 0, 3, 1, 4]> (r) "
GATHERED = PARTS_FIRST + "q = Gather <axis = 0> (t, i0) k = Gather <axis = 0> (t, i1) v = Gather <axis = 0> (t, i2)"
SQUEEZED = "q = Squeeze(a, x0) k = Squeeze(b, x0) v = Squeeze(e, x0)"
SLICED = PARTS_FIRST + "a = Slice(t, x0, x1, x0) b = Slice(t, x1, x2, x0, x1) e = Slice(t, b1, end) " + SQUEEZED
SWAPPED = """q = Transpose <perm = [0, 2, 1, 3]> (q1) k = Transpose <perm = [0, 2, 1, 3]> (k1)
    v = Transpose <perm = [0, 2, 1, 3]> (v1)"""
HEADS = "q1 = Reshape(q0, four) k1 = Reshape(k0, four) v1 = Reshape(v0, four) " + SWAPPED

FORMS = {
    "Gather": GATHERED,
    "Gather from behind": GATHERED.replace("i0", "b3"),
    "Gather of one in a vector": GATHERED.replace(
        "k = Gather <axis = 0> (t, i1)", "b = Gather(t, x1) k = Squeeze(b, x0)"
    ),
    "Slice": SLICED,
    "Slice from beyond": SLICED.replace("(t, x0, x1, x0)", "(t, begin, x1, x0)"),
    "Split": PARTS_FIRST + "a, b, e = Split <axis = 0> (t, ones) " + SQUEEZED,
    "Gather of the third axis": """r = Reshape(h, apart) q1 = Gather <axis = 2> (r, i0) k1 = Gather <axis = 2> (r, i1)
        v1 = Gather <axis = 2> (r, i2) """
    + SWAPPED,
    "Split of heads": "r = Reshape(h, all) q1, k1, v1 = Split <axis = 2> (r) " + SWAPPED,
    "Split of the projection": "q0, k0, v0 = Split <axis = -1> (h, thirds) " + HEADS,
    "Slice of the projection": "q0 = Slice(h, x0, x24, x2) k0 = Slice(h, x24, x48, x2) v0 = Slice(h, x48, end, b1) "
    + HEADS,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_node_reads_the_projection(form: str) -> None:
    made = packed(FORMS[form])
    assert check(made, FEEDS) == ["MatMul", "FusedAttention"]
    check(made, {"x": array(3, 70, 24) * 10})
    check(made, {"x": array(1, 1, 24) * 10})


def test_old_slices_and_squeezes() -> None:
    """Their numbers are attributes."""
    text = NODES.format(
        parts=PARTS_FIRST
        + """a = Slice <axes = [0], starts = [0], ends = [1]> (t) b = Slice <axes = [0], starts = [1], ends = [-1]> (t)
        e = Slice <starts = [-1], ends = [9]> (t) q = Squeeze <axes = [0]> (a) k = Squeeze <axes = [0]> (b)
        v = Squeeze <axes = [0]> (e)""",
        scaled="",
        after="o3 = Relu(o2)",
        more="",
    ).replace("Softmax(", "Softmax <axis = 3> (")
    assert check(of_text(text, 9, w=array(24, 72), **INTEGERS), FEEDS)[:2] == ["MatMul", "FusedAttention"]


@pytest.mark.parametrize(("order", "first"), [("qkv", [0, 4, 8]), ("vqk", [4, 8, 0]), ("kvq", [8, 0, 4])])
def test_parts_in_any_order(order: str, first: list[int]) -> None:
    parts = [f"{name} = Gather <axis = 0> (t, i{place})" for place, name in enumerate(order)]
    made = packed(PARTS_FIRST + " ".join(parts))
    assert check(made, FEEDS) == ["MatMul", "FusedAttention"]
    assert attributes(made)["first_head"] == first and attributes(made)["input_heads"] == [12, 12, 12]


def attributes(made: onnx.ModelProto) -> dict[str, Any]:
    (node,) = blocks(fused(made)[0])
    return {own.name: helper.get_attribute_value(own) for own in node.attribute}


def test_parts_of_k_and_v_alone() -> None:
    """As in attention across two sequences."""
    parts = """r = Reshape(h, apart) t = Transpose <perm = [2, 0, 3, 1, 4]> (r) k = Gather <axis = 0> (t, i0)
        v = Gather <axis = 0> (t, i1) q0 = MatMul(z, w2) q1 = Reshape(q0, four)
        q = Transpose <perm = [0, 2, 1, 3]> (q1)"""
    two = {"w": array(24, 48), "w2": array(24, 24), "apart": np.array([0, -1, 2, 4, 6])}
    made = packed(parts, more=", float[n, l, 24] z", **two)
    assert check(made, {**FEEDS, "z": array(2, 9, 24) * 5}) == ["MatMul", "MatMul", "FusedAttention"]


def test_one_part_for_both_k_and_v() -> None:
    made = packed(GATHERED)
    next(node for node in made.graph.node if "v" in node.input).input[1] = "k"
    made.graph.node.remove(next(node for node in made.graph.node if "v" in node.output))
    assert check(made, FEEDS) == ["MatMul", "FusedAttention"]


def test_fewer_heads_of_k_and_v() -> None:
    """(batch, length, 8 heads): four of Q, two of each of the others, of which each serves two."""
    parts = """r = Reshape(h, eight) q1, k1, v1 = Split <axis = 2> (r, sizes) q = Transpose <perm = [0, 2, 1, 3]> (q1)
        k2 = Transpose <perm = [0, 2, 1, 3]> (k1) k3 = Unsqueeze(k2, x2) k4 = Expand(k3, times)
        k = Reshape(k4, heads) v2 = Transpose <perm = [0, 2, 1, 3]> (v1) v3 = Unsqueeze(v2, x2) v4 = Expand(v3, times)
        v = Reshape(v4, heads)"""
    sizes = {"eight": np.array([0, -1, 8, 6]), "sizes": np.array([4, 2, 2]), "times": np.array([1, 1, 2, 1, 1])}
    made = with_sizes(packed(parts, w=array(24, 48), heads=np.array([2, 4, 9, 6]), **sizes), 2, 9)
    assert check(made, FEEDS) == ["MatMul", "FusedAttention"]
    assert attributes(made)["first_head"] == [0, 4, 6] and attributes(made)["heads"] == [4, 2]


TURNED = "m = Reshape(k, merged) turned = Transpose <perm = [0, 2, 1]> (m) kt = Reshape(turned, unmerged)"


@pytest.mark.parametrize(
    ("merged", "unmerged", "count"),
    [
        ([-1, 9, 6], [2, 4, 6, 9], 1),
        ([8, 9, 6], [-1, 4, 6, 9], 1),
        ([-1, 6, 9], [2, 4, 6, 9], 0),  # another transpose
    ],
)
def test_keys_that_are_transposed_as_matrices(merged: list[int], unmerged: list[int], count: int) -> None:
    """As torch.export has it."""
    constants = {"merged": np.array(merged), "unmerged": np.array(unmerged)}
    text = NODES.replace("kt = Transpose <perm = [0, 1, 3, 2]> (k)", TURNED)
    made = with_sizes(packed(GATHERED, text=text, **constants), 2, 9)
    assert check(made, FEEDS, count).count("FusedAttention") == count


SCALES = {
    "of Q": ("q9 = Mul(q, half)", 0.5),
    "of Q, divided": ("q9 = Div(q, three)", 1 / 3),
    "of K": ("k9 = Mul(half, kt)", 0.5),
    "of both": ("q9 = Mul(three, q) k9 = Div(kt, half)", 6),
}


@pytest.mark.parametrize("kind", SCALES)
def test_scales_of_q_and_k(kind: str) -> None:
    scaled, factor = SCALES[kind]
    made = packed(GATHERED, scaled)
    (product,) = (node for node in made.graph.node if node.output[0] == "s")
    product.input[:] = ["q9" if "q9" in scaled else "q", "k9" if "k9" in scaled else "kt"]
    assert check(made, FEEDS) == ["MatMul", "FusedAttention"]
    bits = np.array(attributes(made)["scale_bits"], np.uint32)
    np.testing.assert_allclose(bits.view(np.float32), factor * 6**0.5, rtol=1e-6)


def test_a_scale_that_is_too_large() -> None:
    made = packed(GATHERED, "q9 = Mul(q, large)", large=np.float32(3e38))
    next(node for node in made.graph.node if node.output[0] == "s").input[0] = "q9"
    result, context = fused(made)
    assert not blocks(result)
    assert "scale is not finite" in context.report.refusals[0].reason


ELSEWHERE = "largest = ReduceMax <keepdims = 0> ({0}) o3 = Add(o2, largest)"
WITHOUT = {
    "a part that is read elsewhere": (
        with_sizes(packed(GATHERED, after=ELSEWHERE.format("k")), *FEEDS["x"].shape[:2]),
        "Gather",
        3,
    ),
    "parts that are": (with_sizes(packed(GATHERED, after=ELSEWHERE.format("t")), *FEEDS["x"].shape[:2]), "Gather", 3),
    "a Slice that is": (with_sizes(packed(SLICED, after=ELSEWHERE.format("b")), *FEEDS["x"].shape[:2]), "Slice", 3),
    "a part of a Split that is": (packed(FORMS["Split of heads"], after=ELSEWHERE.format("v1")), "Split", 1),
    "another order of dimensions": (
        packed(GATHERED.replace("[2, 0, 3, 1, 4]", "[2, 1, 3, 0, 4]"), joined=np.array([0, -1, 24])),
        "Gather",
        3,
    ),
    "a part that is not known": (packed(GATHERED.replace("i1", "z"), more=", int64 z"), "Gather", 3),
    "a Slice backwards": (packed(SLICED.replace("x1, x2, x0, x1", "x1, x0, x0, b1")), "Slice", 3),
    "a Slice of every other element": (
        packed(FORMS["Slice of the projection"].replace("(h, x0, x24, x2)", "(h, x0, x48, x2, x2)")),
        "Slice",
        1,
    ),
    "a Slice across heads": (
        packed(FORMS["Slice of the projection"].replace("(h, x0, x24, x2)", "(h, x3, x27, x2)"), x27=np.array([27])),
        "Slice",
        1,
    ),
}


@pytest.mark.parametrize("kind", WITHOUT)
def test_the_node_begins_after_the_parts(kind: str) -> None:
    made, operator, count = WITHOUT[kind]
    known = {**FEEDS, "z": np.array(1)}
    assert check(made, {value.name: known[value.name] for value in made.graph.input}).count(operator) == count


def test_a_mask_that_is_a_part_of_the_projection() -> None:
    """It is read from outside, so all that makes it stays."""
    made = with_sizes(packed(GATHERED), 2, 6)
    (softmax,) = (node for node in made.graph.node if node.op_type == "Softmax")
    made.graph.node.insert(list(made.graph.node).index(softmax), helper.make_node("Add", ["u", "v"], ["masked"]))
    (softmax,) = (node for node in made.graph.node if node.op_type == "Softmax")
    softmax.input[0] = "masked"
    assert check(made, {"x": array(2, 6, 24)}).count("Gather") == 3


def test_parts_without_a_reshape_of_known_sizes() -> None:
    """The node reads (batch, length, 3, heads, size)."""
    parts = GATHERED.replace("Reshape(h, apart)", "Reshape(h, sizes)").replace(
        "r =", "sizes = Concat <axis = 0> ({0}) r ="
    )
    lengths = "n = Shape <start = 0, end = 2> (x) "
    made = packed(lengths + parts.format("n, rest"), rest=np.array([3, 4, 6]))
    operators = check(made, FEEDS)
    assert "Reshape" in operators and "Gather" not in operators and "Transpose" not in operators
