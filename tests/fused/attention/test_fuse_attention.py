"""Which attention becomes one node, and that it stays what it is."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.fused.attention.fuse_attention import FuseAttention
from onnxfuse.passes import PassContext
from onnxfuse.planning.inspection import inspect
from tests.fused.conv.test_cpu_convolutions import array, model, operators
from tests.support import fusing

PROJECTED = """g (float[n, l, 24] x{more}) => (float[n, l, 24] y) {{
    q = MatMul(x, w1) q3 = Reshape(q, apart) q4 = Transpose <perm = [0, 2, 1, 3]> (q3)
    k = MatMul(x, w2) k3 = Reshape(k, apart) k4 = Transpose <perm = [0, 2, 3, 1]> (k3)
    v = MatMul(x, w3) v3 = Reshape(v, apart) v4 = Transpose <perm = [0, 2, 1, 3]> (v3)
    s = MatMul(q4, k4) {scores} p = Softmax <axis = -1> (t)
    o = MatMul(p, v4) {after} y = Reshape(o2, joined) }}"""
AFTER = "o2 = Transpose <perm = [0, 2, 1, 3]> (o)"
CONSTANTS = {
    **{f"w{number}": array(24, 24) + 0.02 * number for number in (1, 2, 3)},
    **{"apart": np.array([0, -1, 4, 6]), "joined": np.array([0, 0, 24]), "c": np.float32(6**0.5)},
    **{"m1": array(4, 1, 9), "m2": array(9, 9), "d": array(24)},
}
FEEDS = {"x": array(2, 9, 24) * 10}


def projected(
    scores: str = "t = Div(s, c)", after: str = AFTER, more: str = "", opset: int = 17, **constants: np.ndarray
) -> onnx.ModelProto:
    text = PROJECTED.format(scores=scores, after=after, more=more)
    return of_text(text, opset, **constants)


def of_text(text: str, opset: int = 17, **constants: np.ndarray) -> onnx.ModelProto:
    known = {**CONSTANTS, **constants}
    return model(text, opset, **{name: value for name, value in known.items() if re.search(rf"\b{name}\b", text)})


def fused(made: onnx.ModelProto) -> tuple[onnx.ModelProto, PassContext]:
    """The model after this pass alone."""
    return fusing.rewritten_by(FuseAttention(), made)


def blocks(made: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in fusing.fused_nodes(made) if node.op_type.startswith("FusedAttention")]


def check(made: onnx.ModelProto, feeds: dict[str, np.ndarray], count: int = 1) -> list[str]:
    """So many blocks are one node each, which computes the same with the library, without it and in the reference.

    Returns the operators of the model.
    """
    result, _ = fused(made)
    assert len(blocks(result)) == count
    fusing.assert_same_everywhere(result, made, feeds)
    return [node.op_type for node in result.graph.node]


def test_what_splits_and_joins_heads_is_part_of_the_node() -> None:
    assert check(projected(), FEEDS) == ["MatMul", "FusedAttention"]


SCORES = {
    "no scale": "",
    "multiplied": "t = Mul(c, s)",
    "a mask": "u = Div(s, c) t = Add(u, m1)",
    "a mask first": "t = Add(m2, s)",
}


@pytest.mark.parametrize("kind", SCORES)
def test_scales_and_masks(kind: str) -> None:
    made = projected(SCORES[kind])
    for node in made.graph.node:
        node.input[:] = ["s" if name == "t" and not SCORES[kind] else name for name in node.input]
    assert check(with_sizes(made, 2, 9), FEEDS) == ["MatMul", "FusedAttention"]


@pytest.mark.parametrize("place", ("q", "k", "v"))
@pytest.mark.parametrize("split", (False, True))
def test_scales_of_q_k_and_v(place: str, split: bool) -> None:
    """Those of Q and K are the scores'; that of V is not."""
    made = projected()
    name = f"{place}4" if split else place
    for node in made.graph.node:
        node.input[:] = [f"{name}_scaled" if own == name else own for own in node.input]
    index = next(i for i, node in enumerate(made.graph.node) if node.output[0] == name)
    made.graph.node.insert(index + 1, onnx.helper.make_node("Mul", ["r", name], [f"{name}_scaled"]))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.3), "r"))
    assert ("Mul" in check(made, FEEDS)) == (place == "v")


def with_sizes(made: onnx.ModelProto, batch: int, length: int) -> onnx.ModelProto:
    """The model for inputs of one size, so that it is known which masks fit."""
    for dim, size in zip(made.graph.input[0].type.tensor_type.shape.dim, (batch, length, 24), strict=True):
        dim.dim_value = size
    return made


@pytest.mark.parametrize("sizes", [(1, 1), (1, 40), (3, 7), (5, 130)])
def test_any_sizes(sizes: tuple[int, int]) -> None:
    check(projected(), {"x": array(*sizes, 24)})


@pytest.mark.parametrize("shape", [(1, 1, 1, 9), (3, 1, 9, 9), (3, 4, 1, 9), (9, 9), (1,), (4, 1, 9, 9)])
@pytest.mark.parametrize("length", (1, 9))
def test_masks_of_any_size(shape: tuple[int, ...], length: int) -> None:
    """They may have more than the scores, as for Add: a batch, rows, or keys."""
    sizes = ", ".join(["a", "4" if shape[1:2] == (4,) else "1", "b", "c1"][4 - len(shape) :])
    made = projected("t = Add(s, z)", more=f", float[{sizes}] z", joined=np.array([0, -1, 24]))
    rows = of_text(ONE_ROW.replace("SIZES", sizes))
    batch = 1 if shape[0] == 4 else 3
    check(made, {"x": array(batch, 9, 24), "z": array(*shape)})
    heads = {"q": array(batch, 4, length, 6), "k": array(batch, 4, length, 6), "v": array(batch, 4, 9, 5)}
    if length == 9 or shape[-1] == 9:
        check(rows, {**heads, "z": array(*shape)})


ONE_ROW = """g (float[n, 4, l, 6] q, float[n, 4, m, 6] k, float[n, 4, e, 5] v, float[SIZES] z) =>
    (float[f, 4, h, i] y) {
    kt = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul(q, kt) t = Add(s, z) p = Softmax(t) y = MatMul(p, v) }"""


def test_a_mask_that_is_computed() -> None:
    made = projected("u = Div(s, c) t = Add(u, z)", more=", float[n, 1, 1, l] z", c=np.array([[2.5]], np.float32))
    mask = np.where(array(2, 1, 1, 9) > 0.3, np.float32(-1e4), np.float32(0))
    assert check(with_sizes(made, 2, 9), {**FEEDS, "z": mask}) == ["MatMul", "FusedAttention"]


DIRECT = """g (float[n, 6, 7, 8] q, float[n, 6, m, 8] k, float[n, 6, m, 5] v) => (float[n, a, b, c1] y) {{
    {keys} s = MatMul(q, kt) p = Softmax <axis = 3> (s) {after} }}"""
KEYS = "kt = Transpose <perm = [0, 1, 3, 2]> (k)"
DIRECT_FEEDS = {"q": array(2, 6, 7, 8) * 5, "k": array(2, 6, 11, 8) * 5, "v": array(2, 6, 11, 5)}


@pytest.mark.parametrize(
    "after",
    [
        "y = MatMul(p, v)",
        "o = MatMul(p, v) y = Transpose <perm = [0, 2, 1, 3]> (o)",
        "o = MatMul(p, v) r = Relu(o) y = Transpose <perm = [0, 2, 1, 3]> (r)",
        "o = MatMul(p, v) t = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape(t, other)",
    ],
)
def test_heads_that_come_first(after: str) -> None:
    made = of_text(DIRECT.format(keys=KEYS, after=after), other=np.array([0, 6, -1, 5]))
    assert check(made, DIRECT_FEEDS)[0] == "FusedAttention"


GROUPED = """g (float[2, 6, 7, 8] q, float[2, 2, 11, 8] k, float[2, 2, 11, 5] v) => (float[2, 6, 7, 5] y) {{
    k1 = Unsqueeze(k, two) k2 = {repeat} k3 = Reshape(k2, {joined}) kt = Transpose <perm = [0, 1, 3, 2]> (k3)
    v1 = Unsqueeze(v, two) v2 = Tile(v1, times) v3 = Reshape(v2, joined)
    s = MatMul(q, kt) p = Softmax(s) y = MatMul(p, v3) }}"""
GROUPED_FEEDS = {"q": array(2, 6, 7, 8) * 5, "k": array(2, 2, 11, 8) * 5, "v": array(2, 2, 11, 5)}
GROUPS = {"two": np.array([2]), "times": np.array([1, 1, 3, 1, 1])}


@pytest.mark.parametrize("repeat", ("Tile(k1, times)", "Expand(k1, times)"))
def test_heads_of_keys_that_serve_several_of_q_are_not_copied(repeat: str) -> None:
    joined = {**GROUPS, "joined": np.array([2, -1, 11, 8]), "other": np.array([2, -1, 11, 5])}
    text = GROUPED.format(repeat=repeat, joined="joined").replace("Reshape(v2, joined)", "Reshape(v2, other)")
    assert check(of_text(text, **joined), GROUPED_FEEDS) == ["FusedAttention"]


def test_heads_that_are_repeated_for_k_alone_stay_so() -> None:
    text = GROUPED.format(repeat="Tile(k1, times)", joined="joined").replace(
        "float[2, 2, 11, 5] v", "float[2, 6, 11, 5] v"
    )
    text = re.sub(r"v1 = .*\n", "\n", text).replace("v3", "v")
    made = of_text(text, **{**GROUPS, "joined": np.array([2, 6, 11, 8])})
    assert check(made, {**GROUPED_FEEDS, "v": array(2, 6, 11, 5)})[-1] == "FusedAttention"
    assert [list(own.ints) for own in blocks(fused(made)[0])[0].attribute if own.name == "heads"] == [[6, 6]]


SHARED = """g (float[n, 6, l, 8] q, float[n, 2, m, 8] k, float[n, 2, m, 8] v, float[n, 1, l, m] z) =>
    (float[n, 6, l, 8] y) {{
    k1 = Unsqueeze(k, two) {sizes} k2 = {repeat} k3 = Reshape(k2, whole) {turned}
    v1 = Unsqueeze(v, two) v2 = {repeat} v3 = Reshape(v2, whole)
    s = MatMul(q, kt) t = Add(s, z) p = Softmax <axis = -1> (t) y = MatMul(p, v3) }}"""
SIZES = (
    "sh = Shape({of}) b = Gather(sh, at0) h = Gather(sh, at1) e = Gather(sh, at3)"
    " mh = Shape({mask}) long = Gather(mh, {at})"
)
REPEATS = {
    "as Hugging Face's models do": (
        "wide = Concat <axis = 0> (b, h, three, long, e) all = Mul(h, three)"
        " whole = Concat <axis = 0> (b, all, long, e)",
        "Expand({}1, wide)",
    ),
    "as PyTorch's repeat_interleave does": ("whole = Concat <axis = 0> (b, rest, long, e)", "Tile({}1, times)"),
}
TURNS = {
    "transposed": "kt = Transpose <perm = [0, 1, 3, 2]> (k3)",
    "as PyTorch exports scaled_dot_product_attention": (
        "flat = Concat <axis = 0> (rest, long, e) k4 = Reshape(k3, flat) k5 = Transpose <perm = [0, 2, 1]> (k4)"
        " six = Mul(h, three) back = Concat <axis = 0> (b, six, e, long) kt = Reshape(k5, back)"
    ),
}
TURNS["as torch.export folds the Reshapes between"] = TURNS["as PyTorch exports scaled_dot_product_attention"].replace(
    "k3", "k2"
)


@pytest.mark.parametrize("length_of", ("the keys", "the mask"))
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("repeat", REPEATS)
def test_heads_are_repeated_and_transposed_to_computed_shapes(repeat: str, turn: str, length_of: str) -> None:
    """For any batch and length, of which the latter may come from another tensor."""
    sizes = SIZES.format(
        of="k", mask="k" if length_of == "the keys" else "z", at="at2" if length_of == "the keys" else "at3"
    )
    computed, how = REPEATS[repeat]
    text = SHARED.format(sizes=f"{sizes} {computed}", repeat=how, turned=TURNS[turn])
    text = text.replace("{}1", "k1", 1).replace("{}1", "v1", 1)
    if text.count("k3") == 1:
        text = text.replace("k3 = Reshape(k2, whole)", "")
    constants = {**GROUPS, **{f"at{place}": np.array([place]) for place in range(4)}, "rest": np.array([-1])}
    made = of_text(text, **constants, three=np.array([3]))
    for batch, queries, keys in ((2, 7, 11), (1, 1, 1), (3, 1, 40)):
        feeds = {"q": array(batch, 6, queries, 8), "k": array(batch, 2, keys, 8), "v": array(batch, 2, keys, 8)}
        found = check(made, {**feeds, "z": array(batch, 1, queries, keys)})
        assert "FusedAttention" in found and not {"Softmax", "Gather_1", "Expand", "Tile", "Reshape"} & {*found}


def test_heads_that_are_split_otherwise_are_no_repetition() -> None:
    """(b, 3, h, l, s) has the elements of (b, h · 3, l, s), in another order."""
    swapped = {"two": np.array([1]), "times": np.array([1, 3, 1, 1, 1])}
    constants = {**swapped, **{f"at{place}": np.array([place]) for place in range(4)}, "rest": np.array([-1])}
    sizes = SIZES.format(of="k", mask="k", at="at2")
    computed, how = REPEATS["as PyTorch's repeat_interleave does"]
    text = SHARED.format(sizes=f"{sizes} {computed}", repeat=how, turned=TURNS["transposed"])
    made = of_text(text.replace("{}1", "k1", 1).replace("{}1", "v1", 1), **constants, three=np.array([3]))
    feeds = {"q": array(2, 6, 7, 8), "k": array(2, 2, 11, 8), "v": array(2, 2, 11, 8), "z": array(2, 1, 7, 11)}
    assert check(made, feeds).count("Tile") == 2


def test_heads_that_alternate_are_copied() -> None:
    """(b, 1, h, l, s) → (b, repeats, h, l, s) is another order."""
    swapped = {"two": np.array([1]), "times": np.array([1, 3, 1, 1, 1])}
    text = GROUPED.format(repeat="Tile(k1, times)", joined="joined").replace(
        "Reshape(v2, joined)", "Reshape(v2, other)"
    )
    made = of_text(text, **swapped, joined=np.array([2, 6, 11, 8]), other=np.array([2, 6, 11, 5]))
    assert check(made, GROUPED_FEEDS).count("Tile") == 2


def test_blocks_share_a_function() -> None:
    text = PROJECTED.format(scores="t = Div(s, c)", after=AFTER, more="").replace("y = Reshape(o2, joined) }", "")
    again = re.search(r"q = .*", text, re.DOTALL)
    assert again is not None
    second = re.sub(r"\b(q|k|v|s|t|p|o)(\d?)\b(?= =|[,)])", r"\g<1>\g<2>b", again[0]).replace("(x,", "(z,")
    made = of_text(text + "z = Reshape(o2, joined) " + second + " y = Reshape(o2b, joined) }")
    result, _ = fused(made)
    assert len(blocks(result)) == 2 and len(result.functions) == 1
    check(made, FEEDS, 2)


def test_values_that_are_read_elsewhere_are_kept() -> None:
    """The node begins after them."""
    made = projected(after=f"{AFTER} e = ReduceSum <keepdims = 0> (q4)".replace("o2 =", "o1 =") + " o2 = Add(o1, e)")
    assert check(made, FEEDS).count("Transpose") == 2
    made = projected(after="a = Transpose <perm = [0, 2, 1, 3]> (o) b = ReduceSum <keepdims = 0> (o) o2 = Add(a, b)")
    assert check(made, FEEDS).count("FusedAttention") == 1


CHOICES = {
    "keeps": "t = Where(z, s, low)",
    "fills": "u = Div(s, c) t = Where(z, low, u)",
    "a mask after it": "u = Mul(c, s) w = Where(z, u, low) t = Add(w, m1)",
    "a mask before the result": "u = Div(s, c) w = Where(z, low, u) t = Add(m2, w)",
}


@pytest.mark.parametrize("low", (-1e4, np.finfo(np.float32).min, -np.inf))
@pytest.mark.parametrize("kind", CHOICES)
def test_scores_in_whose_place_a_number_comes(kind: str, low: float) -> None:
    """A row of which nothing is left is one of equal weights, but for -inf, which leaves no number."""
    made = projected(CHOICES[kind], more=", bool[n, 1, l, l] z", low=np.float32(low))
    choices = np.tri(9, dtype=bool)[None, None].repeat(2, axis=0) ^ (kind in ("fills", "a mask before the result"))
    if np.isfinite(low):
        choices[1, 0, 4] = choices[1, 0, 4, -1]
    assert check(with_sizes(made, 2, 9), {**FEEDS, "z": choices}) == ["MatMul", "FusedAttention"]


def test_a_triangle_of_the_longest_text() -> None:
    """As GPT-2 and its likes have it: the mask of a step is a part of a constant, by lengths that are computed."""
    text = (
        "ks = Shape <start = 1, end = 2> (x) qs = Shape <start = 1, end = 2> (q) d0 = Sub(ks, qs)"
        " rows = Slice(triangle, d0, ks, at2) z = Slice(rows, zero, ks, at3) u = Div(s, c) t = Where(z, u, low)"
    )
    made = projected(
        text,
        **{"triangle": np.tri(32, dtype=bool)[None, None], "low": np.float32(-1e4), "zero": np.array([0])},
        **{"at2": np.array([2]), "at3": np.array([3])},
    )
    for length in (1, 9, 32):
        assert "FusedAttention" in check(made, {"x": array(2, length, 24)})


@pytest.mark.parametrize("low", (np.float32(np.nan), array(9)))
def test_what_is_no_number_takes_no_place(low: np.ndarray) -> None:
    made = projected("t = Where(z, s, low)", more=", bool[n, 1, l, l] z", low=low)
    result, _ = fused(with_sizes(made, 2, 9))
    assert not blocks(result)


@pytest.mark.parametrize(
    ("apart", "left"),
    [
        ([-1, 9, 4, 6], 0),
        ([2, 9, 4, 6], 0),
        ([2, -1, 4, 6], 0),
        ([0, 0, 4, -1], 0),
        ([0, 0, -1, 6], 0),
        ([0, 27, 4, 2], 4),  # three positions of each
    ],
)
def test_reshapes_that_keep_batch_and_length_are_taken_in(apart: list[int], left: int) -> None:
    made = with_sizes(projected(apart=np.array(apart), joined=np.array([2, 9, 24])), 2, 9)
    assert check(made, FEEDS).count("Reshape") == left


def test_heads_whose_number_is_left_to_be_found() -> None:
    """As Hugging Face's models split them, for any batch and length."""
    check(projected(apart=np.array([0, 0, -1, 6])), FEEDS)


def test_heads_that_are_split_and_joined_by_the_length_of_a_mask() -> None:
    """As torch.export does where a model takes the length from another input, declared to be the same."""
    made = projected("t = Add(s, z)", more=", float[n, 1, 1, l] z")
    for name in ("apart", "joined"):
        del made.graph.initializer[[tensor.name for tensor in made.graph.initializer].index(name)]
    helper = onnx.helper
    computed = [
        helper.make_node("Shape", ["x"], ["xs"], start=0, end=1),
        helper.make_node("Shape", ["z"], ["zs"], start=3),
        helper.make_node("Concat", ["xs", "zs", "rest", "size"], ["apart"], axis=0),
        helper.make_node("Concat", ["xs", "zs", "rest"], ["joined"], axis=0),
    ]
    for place, node in enumerate(computed):
        made.graph.node.insert(place, node)
    for name, value in (("rest", -1), ("size", 6)):
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.array([value]), name))
    for node in made.graph.node:
        if node.op_type == "Reshape" and node.input[1] in ("apart", "joined"):
            node.attribute.append(helper.make_attribute("allowzero", 1))
    for batch, length in ((2, 9), (1, 1), (3, 40)):
        feeds = {"x": array(batch, length, 24), "z": array(batch, 1, 1, length)}
        assert check(made, feeds) == ["MatMul", "FusedAttention"]


def guarded(zero: str = "z", weights: str = "p0") -> onnx.ModelProto:
    """How PyTorch exports scaled_dot_product_attention with a mask."""
    made = projected("t = Add(s, m)", more=", float[n, 1, l, l] m")
    softmax = next(node for node in made.graph.node if node.op_type == "Softmax")
    place = list(made.graph.node).index(softmax) + 1
    softmax.output[0] = "p0"
    made.graph.node.insert(place, onnx.helper.make_node("IsNaN", ["p0"], ["nan"]))
    made.graph.node.insert(place + 1, onnx.helper.make_node("Where", ["nan", zero, weights], ["p"]))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0), "z"))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1), "ones"))
    return made


def test_rows_of_which_the_mask_leaves_nothing_are_zero() -> None:
    mask = np.where(np.arange(9) < np.arange(9)[:, None], 0, -np.inf).astype(np.float32)
    feeds = {**FEEDS, "m": np.tile(mask, (2, 1, 1, 1))}
    result, _ = fused(guarded())
    assert check(guarded(), feeds) == ["MatMul", "FusedAttention"]
    found = fusing.run(result, feeds, True)[0]
    assert not found[:, 0].any() and found[:, 1:].all()


@pytest.mark.parametrize(("zero", "weights"), [("ones", "p0"), ("z", "s")])
def test_another_choice_behind_the_softmax_is_left_alone(zero: str, weights: str) -> None:
    result, _ = fused(guarded(zero, weights))
    assert not blocks(result)


@pytest.mark.parametrize(("indices", "repeated"), [([0, 0, 1, 1], True), ([0, 1, 0, 1], False), ([1, 1, 0, 0], False)])
def test_heads_that_a_gather_repeats(indices: list[int], repeated: bool) -> None:
    text = """g (float[b, 4, 3, 6] q, float[b, 2, m, 6] k, float[b, 2, m, 5] v) => (float[b, 4, 3, 5] y) {
        k1 = Gather <axis = 1> (k, places) k2 = Transpose <perm = [0, 1, 3, 2]> (k1) v1 = Gather <axis = 1> (v, places)
        s = MatMul(q, k2) p = Softmax <axis = -1> (s) y = MatMul(p, v1) }"""
    made = of_text(text, places=np.array(indices))
    feeds = {"q": array(2, 4, 3, 6), "k": array(2, 2, 7, 6), "v": array(2, 2, 7, 5)}
    assert check(made, feeds).count("Gather") == (0 if repeated else 2)


def test_a_reshape_in_which_zero_would_be_a_size() -> None:
    """As torch.export writes it, where there is none."""
    made = with_sizes(projected(apart=np.array([2, -1, 4, 6]), joined=np.array([2, 9, 24])), 2, 9)
    for node in made.graph.node:
        if node.op_type == "Reshape":
            node.attribute.append(onnx.helper.make_attribute("allowzero", 1))
    assert check(made, FEEDS) == ["MatMul", "FusedAttention"]


def test_a_softmax_of_old_models() -> None:
    """Its axis says where to flatten, and it is the last one."""
    made = of_text(DIRECT.format(keys=KEYS, after="y = MatMul(p, v)"), opset=11)
    check(made, DIRECT_FEEDS)


def test_a_softmax_of_old_models_over_several_dimensions() -> None:
    """Its axis is 1 where none is given."""
    text = DIRECT.format(keys=KEYS, after="y = MatMul(p, v)").replace("Softmax <axis = 3>", "Softmax")
    result, _ = fused(of_text(text, opset=12))
    assert not blocks(result)


@pytest.mark.parametrize("opset", [7, 8, 9])
def test_functions_of_old_models_have_no_shapes(opset: int) -> None:
    """A Constant of integers, as that of a Reshape, is known from opset 9 on; the function could not be loaded."""
    made = projected(opset=opset)
    for node in made.graph.node:
        if node.op_type == "Softmax":
            node.attribute[0].i = 3
    check(made, FEEDS, count=int(opset >= 9))


def test_all_targets_have_the_node() -> None:
    assert "FusedAttention" in operators(onnxfuse.optimize(projected(), "cpu", shapes={"x": (2, 9, 24)}))
    assert "FusedAttention" in operators(onnxfuse.optimize(projected(), "cuda", embed=False, arch="sm_90", check=False))


def test_the_report_and_inspect_know_the_block(tmp_path: Path) -> None:
    result = onnxfuse.optimize(projected(), "cpu", shapes={"x": (2, 9, 24)})
    (region,) = (region for region in result.report.fused if "Softmax" in region.ops)
    assert region.before is not None and region.after is not None
    assert region.before.launches > region.after.launches == 1
    path = tmp_path / "attention.onnx"
    onnx.save(result.model, path)
    assert region.ops in [found.ops for found in inspect(path).fused]
