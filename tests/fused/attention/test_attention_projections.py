"""Which projections of Q, K and V become one product, and that it is the same."""

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.passes.rules import budget
from tests.fused.attention.test_fuse_attention import FEEDS, blocks, check, fused, of_text, projected
from tests.fused.conv.test_cpu_convolutions import array
from tests.support import fusing

BODY = """q3 = Reshape(q, apart) q4 = Transpose <perm = [0, 2, 1, 3]> (q3)
    k3 = Reshape(k, apart) k4 = Transpose <perm = [0, 2, 3, 1]> (k3)
    v3 = Reshape(v, apart) v4 = Transpose <perm = [0, 2, 1, 3]> (v3)
    s = MatMul(q4, k4) p = Softmax <axis = -1> (s) o = MatMul(p, v4)
    o2 = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape(o2, joined)"""
PLAIN = "q = MatMul(x, w1) k = MatMul(x, w2) v = MatMul(x, w3)"
BIASES = {f"b{number}": array(24) + number for number in (1, 2, 3)}


def attention(
    projections: str, more: str = "", returned: str = "", opset: int = 17, **constants: np.ndarray
) -> onnx.ModelProto:
    """The attention of what ``projections`` make of x and of ``more``."""
    text = f"g (float[n, l, 24] x{more}) => (float[n, l, 24] y{returned}) {{ {projections} {BODY} }}"
    return of_text(text, opset, **BIASES, **constants)


def attributes(made: onnx.ModelProto) -> dict[str, list[int]]:
    (node,) = blocks(fused(made)[0])
    return {own.name: list(own.ints) for own in node.attribute}


MERGED = {
    "without biases": (PLAIN, ["MatMul"]),
    "biases": (
        "a = MatMul(x, w1) q = Add(a, b1) b = MatMul(x, w2) k = Add(b2, b) e = MatMul(x, w3) v = Add(e, b3)",
        ["MatMul", "Add"],
    ),
    "a bias of some": (
        "a = MatMul(x, w1) q = Add(a, b1) k = MatMul(x, w2) b = MatMul(x, w3) v = Add(b, b3)",
        ["MatMul", "Add"],
    ),
    "in another order": ("v = MatMul(x, w3) q = MatMul(x, w1) k = MatMul(x, w2)", ["MatMul"]),
}


@pytest.mark.parametrize("opset", (11, 17, 21))
@pytest.mark.parametrize("kind", MERGED)
def test_three_projections_are_one_product(kind: str, opset: int) -> None:
    projections, left = MERGED[kind]
    made = attention(projections, opset=opset)
    assert check(made, FEEDS) == [*left, "FusedAttention"]
    assert (attributes(made)["input_heads"], attributes(made)["first_head"]) == ([12] * 3, [0, 4, 8])
    result, context = fused(made)
    assert [rewrite.rule for rewrite in context.report.rewrites] == ["merge-projections"]
    assert max(np.prod(tensor.dims) for tensor in result.graph.initializer) == 24 * 72
    assert not {"w1", "w2", "w3"} & {tensor.name for tensor in result.graph.initializer}


def test_keys_and_values_of_another_tensor() -> None:
    made = attention("q = MatMul(x, w1) k = MatMul(z, w2) v = MatMul(z, w3)", ", float[n, m, 24] z")
    assert check(made, {**FEEDS, "z": array(2, 13, 24)}) == ["MatMul", "MatMul", "FusedAttention"]
    assert (attributes(made)["input_heads"], attributes(made)["first_head"]) == ([4, 8, 8], [0, 0, 4])


def test_values_of_another_size() -> None:
    made = attention(PLAIN, w3=array(24, 20), joined=np.array([0, 0, 20]))
    for place, name in enumerate(("apart", "wide")):
        for node in made.graph.node:
            if node.output[0] == "v3" and place:
                node.input[1] = name
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, -1, 4, 5]), "wide"))
    made.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 20
    assert check(made, FEEDS) == ["MatMul", "MatMul", "FusedAttention"]
    assert attributes(made)["input_heads"] == [8, 8, 4]


@pytest.mark.parametrize(
    ("projections", "more", "returned", "products"),
    [
        (PLAIN + " e = ReduceMax(k)", "", ", float[1, 1, 1] e", 2),
        (PLAIN, "", ", float[n, l, 24] k", 2),
        ("q = MatMul(x, w1) k = MatMul(x, z) v = MatMul(x, w3)", ", float[24, 24] z", "", 2),
        ("a = MatMul(x, w1) q = Add(a, z) k = MatMul(x, w2) v = MatMul(x, w3)", ", float[24] z", "", 2),
        ("a = MatMul(x, w1) q = Add(a, wide) k = MatMul(x, w2) v = MatMul(x, w3)", "", "", 2),
        ("q = MatMul(x, w1) k = Relu(x) v = MatMul(x, w3)", "", "", 1),
        ("q = MatMul(x, w1) e = ReduceMax(q) k = MatMul(x, w2) f = Mul(k, e) v = Add(f, b3)", "", "", 2),
    ],
)
def test_projections_that_others_need_are_kept(projections: str, more: str, returned: str, products: int) -> None:
    made = attention(projections, more, returned, wide=array(9, 24))
    feeds = {**FEEDS, "z": array(24) if "[24] z" in more else array(24, 24)}
    names = {value.name for value in made.graph.input}
    assert check(made, {name: feeds[name] for name in names}).count("MatMul") == products


@pytest.mark.parametrize(
    ("projections", "returned"),
    [("q = MatMul(x, w1) k = MatMul(x, w1) v = MatMul(x, w1)", ""), (PLAIN + " e = ReduceMax(w1)", ", float[1, 1] e")],
)
def test_shared_weights_are_copied_within_a_budget(
    projections: str, returned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = attention(projections, returned=returned)
    assert check(made, FEEDS).count("MatMul") == 1
    monkeypatch.setattr(budget, "_LIMIT", 24 * 24 * 4 - 1)
    assert check(made, FEEDS).count("MatMul") == 3
    reasons = {refusal.reason for refusal in fused(made)[1].report.refusals}
    assert reasons == {"the weights are shared, and another copy of 2304 bytes is too much"}


def test_in_a_body() -> None:
    text = f"""g (float[n, l, 24] x, bool on) => (float[n, l, 24] y1) {{ y1 = If (on)
        <then_branch = t () => (float[n, l, 24] y) {{
            parts = Constant <value = int64[4] {{0, -1, 4, 6}}> () whole = Constant <value = int64[3] {{0, 0, 24}}> ()
            {PLAIN} {BODY.replace("apart", "parts").replace("joined", "whole")} }},
         else_branch = e () => (float[n, l, 24] f) {{ f = Neg(x) }}> }}"""
    made = of_text(text)
    result = onnxfuse.optimize(made, "cpu", passes=["fold-constants", "fuse-attention"], check=False).model
    then = result.graph.node[0].attribute[0].g
    assert [node.op_type for node in then.node] == ["MatMul", "FusedAttention"]
    for on in (False, True):
        fusing.assert_same_everywhere(result, made, {**FEEDS, "on": np.array(on)})


def test_what_was_not_in_the_model_does_not_count() -> None:
    apart, together = projected(more=", float[24, 24] w2, float[24, 24] w3"), projected()
    for name in ("w2", "w3"):
        del apart.graph.initializer[[tensor.name for tensor in apart.graph.initializer].index(name)]
    (region,), (other,) = (fused(made)[1].report.fused for made in (together, apart))
    assert (region.before, region.bytes_saved) == (other.before, other.bytes_saved)
    assert "Split" in region.ops and "Split" not in other.ops
