"""Attention whose products have batch and heads in one dimension, as PyTorch's bmm has them."""

import re

import numpy as np
import onnx
import pytest

import onnxfuse
from tests.fused.attention.test_fuse_attention import check, fused
from tests.fused.conv.test_cpu_convolutions import array, model
from tests.support import fusing

SPLIT = """
    {0} = MatMul(x, {1}) {0}2 = {2} {0}3 = Reshape({0}2, split) {0}4 = Transpose <perm = [0, 2, 1, 3]> ({0}3)
    {0}5 = Reshape({0}4, all)"""
MERGED = """g (float[n, l, 24] x{more}) => (float[n, l, 24] y) {{
    sh = Shape(x) b = Gather(sh, at0) t = Gather(sh, at1) bh = {times}
    split = Concat <axis = 0> (b, rest, four, six) all = Concat <axis = 0> (bh, rest, six)
    {split} k6 = Transpose <perm = [0, 2, 1]> (k5) s = MatMul(q5, k6) {scores} p = Softmax <axis = -1> (m)
    o = MatMul(p, v5) apart = Concat <axis = 0> (b, four, t, six) o4 = Reshape(o, apart) {after}
    o5 = Transpose <perm = [0, 2, 1, 3]> (o4) y = Reshape(o5, joined) }}"""
UNMASKED = "m = Identity(s)"
MASKED = """wide = Concat <axis = 0> (b, four, t, t) s4 = Reshape(s, wide) s5 = Add(s4, z)
    flat = Concat <axis = 0> (bh, t, t) m = Reshape(s5, flat)"""
CONSTANTS = {
    **{f"w{number}": array(24, 24) + 0.02 * number for number in (1, 2, 3)},
    **{f"at{place}": np.array([place]) for place in range(2)},
    **{"rest": np.array([-1]), "four": np.array([4]), "six": np.array([6]), "c": np.float32(6**-0.5)},
    **{"one": np.array([[[0.5]]], np.float32), "joined": np.array([0, 0, 24])},
}


def merged(
    scores: str = UNMASKED,
    queries: str = "Mul(q, c)",
    times: str = "Mul(b, four)",
    after: str = "",
    more: str = ", float[n, 1, l, l] z",
    opset: int = 17,
) -> onnx.ModelProto:
    parts = [
        SPLIT.format(*part) for part in (("q", "w1", queries), ("k", "w2", "Identity(k)"), ("v", "w3", "Identity(v)"))
    ]
    text = MERGED.format(split="".join(parts), scores=scores, times=times, after=after, more=more)
    for made, copied in re.findall(r"(\w+) = Identity\((\w+)\)", text):  # no node of its own
        text = re.sub(rf"\b{made}\b", copied, text.replace(f"{made} = Identity({copied})", ""))
    return model(text, opset, **{name: value for name, value in CONSTANTS.items() if re.search(rf"\b{name}\b", text)})


def feeds(batch: int, length: int) -> dict[str, np.ndarray]:
    return {"x": array(batch, length, 24) * 10, "z": array(batch, 1, length, length)}


@pytest.mark.parametrize("sizes", [(2, 9), (1, 1), (3, 70), (4, 4)])
@pytest.mark.parametrize("times", ("Mul(b, four)", "Mul(four, b)"))
@pytest.mark.parametrize("scores", ("", "m = Mul(one, s)", MASKED))
def test_all_of_it_is_one_node(scores: str, times: str, sizes: tuple[int, int]) -> None:
    made = merged(scores or UNMASKED, times=times)
    assert check(made, feeds(*sizes)) == ["MatMul", "FusedAttention"]


def test_sizes_that_are_numbers() -> None:
    made = merged(MASKED)
    for tensor in (*made.graph.input, *made.graph.output):
        for dim, size in zip(tensor.type.tensor_type.shape.dim, (2, 9), strict=False):
            dim.dim_value = size if tensor.name != "z" or dim.dim_param == "n" else dim.dim_value
    made.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 1
    for dim in made.graph.input[1].type.tensor_type.shape.dim[2:]:
        dim.dim_value = 9
    assert check(made, feeds(2, 9)) == ["MatMul", "FusedAttention"]


def test_a_softmax_of_old_models() -> None:
    """Its axis is the first of those that it takes together, the last of three or of four."""
    assert "FusedAttention" in check(merged(MASKED, opset=12), feeds(2, 9))


@pytest.mark.parametrize("returned", ("p", "r"))
def test_weights_that_a_model_returns_are_computed_once(returned: str) -> None:
    made = merged(MASKED, after="r = Neg(p)")
    made.graph.output.append(onnx.helper.make_tensor_value_info(returned, onnx.TensorProto.FLOAT, ["m", "l", "l"]))
    result, _ = fused(made)
    assert [node.op_type for node in result.graph.node].count("Softmax") == 1
    fusing.assert_same_everywhere(result, made, feeds(2, 9))


def test_scores_of_all_texts_together_are_left_alone() -> None:
    """A Softmax over (rows, columns), as it was before opset 13 without an axis."""
    made = merged(opset=12)
    for node in made.graph.node:
        if node.op_type == "Softmax":
            del node.attribute[:]
    result, _ = fused(made)  # which onnx's reference takes for one over columns
    assert "Softmax" in {node.op_type for node in result.graph.node}
    for library in (False, True):
        (found,), (wanted,) = (fusing.run(each, feeds(2, 9), library) for each in (result, made))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", ("n", "l"), ids=("sizes that are declared to be one", "sizes that are not"))
def test_batches_that_are_merged_with_another_size(length: str) -> None:
    """(l · heads, batch, size) has the elements of (batch · heads, l, size), for other heads."""
    made = merged(times="Mul(t, four)", more="")
    for tensor in made.graph.input:
        tensor.type.tensor_type.shape.dim[1].dim_param = length
    result, _ = fused(made)
    assert "Softmax" in {node.op_type for node in result.graph.node}
    fusing.assert_same_everywhere(result, made, {"x": array(4, 4, 24)})


EINSUM = """g (float[n, l, 24] x) => (float[n, l, 24] y) {
    q = MatMul(x, w1) k = MatMul(x, w2) v = MatMul(x, w3)
    q1 = Reshape(q, split) k1 = Reshape(k, split) v1 = Reshape(v, split)
    q2 = Unsqueeze(q1, at3) k2 = Unsqueeze(k1, at1) v2 = Unsqueeze(v1, at2)
    q3 = Transpose <perm = [0, 2, 1, 3, 4]> (q2) k3 = Transpose <perm = [0, 3, 1, 2, 4]> (k2)
    v3 = Transpose <perm = [0, 3, 2, 4, 1]> (v2)
    qs = Shape(q3) ks = Shape(k3) vs = Shape(v3)
    qa = Gather(qs, at01) qb = ReduceProd <keepdims = 1> (qa) ql = Gather(qs, at2) qd = Gather(qs, at4)
    ka = Gather(ks, at01) kb = ReduceProd <keepdims = 1> (ka) kl = Gather(ks, at3) kd = Gather(ks, at4)
    va = Gather(vs, at01) vb = ReduceProd <keepdims = 1> (va) vd = Gather(vs, at3) vl = Gather(vs, at4)
    qt = Concat <axis = 0> (qb, rest, qd) kt = Concat <axis = 0> (kb, rest, kd) vt = Concat <axis = 0> (vb, rest, vl)
    q4 = Reshape(q3, qt) k4 = Reshape(k3, kt) v4 = Reshape(v3, vt)
    k5 = Transpose <perm = [0, 2, 1]> (k4) v5 = Transpose <perm = [0, 2, 1]> (v4) s = MatMul(q4, k5)
    sa = Max(qa, ka) st = Concat <axis = 0> (sa, ql, kl, at1) s1 = Reshape(s, st) s2 = Squeeze(s1, at4)
    s3 = Mul(s2, c) p = Softmax <axis = -1> (s3) p1 = Unsqueeze(p, at3)
    ps = Shape(p1) pa = Gather(ps, at01) pb = ReduceProd <keepdims = 1> (pa) pl = Gather(ps, at2) pd = Gather(ps, at4)
    pt = Concat <axis = 0> (pb, rest, pd) p2 = Reshape(p1, pt) o = MatMul(p2, v5)
    oa = Max(pa, va) ot = Concat <axis = 0> (oa, pl, vd, at1) o1 = Reshape(o, ot) o2 = Squeeze(o1, at4)
    o3 = Transpose <perm = [0, 2, 1, 3]> (o2) y = Reshape(o3, joined) }"""


def einsum() -> onnx.ModelProto:
    """How tf2onnx exports the attention of Keras, einsums over sizes that are not known."""
    places = {f"at{place}": np.array([place]) for place in (1, 2, 3, 4)} | {"at01": np.array([0, 1])}
    weights = {name: CONSTANTS[name] for name in ("w1", "w2", "w3", "c", "rest", "joined")}
    return model(EINSUM, 17, **places, **weights, split=np.array([0, 0, 4, 6]))


@pytest.mark.parametrize("sizes", [(2, 9), (1, 1), (3, 70), (4, 4)])
def test_einsums_as_tf2onnx_exports_them(sizes: tuple[int, int]) -> None:
    made = einsum()
    assert "FusedAttention" in check(made, {"x": array(*sizes, 24) * 10})
    result = onnxfuse.optimize(made)
    assert [node.op_type for node in result.model.graph.node] == ["MatMul", "FusedAttention"]


def test_a_bias_of_merged_heads() -> None:
    """(b · h, l, l) that something else than products of heads makes, as the position biases of DeBERTa."""
    text = """g (float[2, 9, 24] x, float[8, 9, 9] z) => (float[2, 9, 24] y) {
        q = MatMul(x, w1) q3 = Reshape(q, split) q4 = Transpose <perm = [0, 2, 1, 3]> (q3) q5 = Reshape(q4, all)
        k = MatMul(x, w2) k3 = Reshape(k, split) k4 = Transpose <perm = [0, 2, 1, 3]> (k3) k5 = Reshape(k4, all)
        v = MatMul(x, w3) v3 = Reshape(v, split) v4 = Transpose <perm = [0, 2, 1, 3]> (v3) v5 = Reshape(v4, all)
        k6 = Transpose <perm = [0, 2, 1]> (k5) s = MatMul(q5, k6) b = Softmax <axis = 0> (z) a = Add(b, s)
        p = Softmax <axis = -1> (a) o = MatMul(p, v5) o4 = Reshape(o, apart)
        o5 = Transpose <perm = [0, 2, 1, 3]> (o4) y = Reshape(o5, joined) }"""
    shapes = {"split": [0, 0, 4, 6], "all": [8, 9, 6], "apart": [2, 4, 9, 6], "joined": [0, 0, 24]}
    weights = {name: CONSTANTS[name] for name in ("w1", "w2", "w3")}
    made = model(text, 17, **{name: np.array(shape) for name, shape in shapes.items()}, **weights)
    assert check(made, {"x": array(2, 9, 24) * 10, "z": array(8, 9, 9) * 5})[-1] == "FusedAttention"
