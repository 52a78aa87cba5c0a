"""Rotary position embeddings of heads: which forms are turned before the heads come first, and the same results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnxfuse
from tests.passes.models import apply, ops, random, reasons, run
from tests.support import fusing

PASS = "slow-operators"
HALVES = {
    "slices": "first = Slice(x, zero, half, last) second = Slice(x, half, size, last)",
    "a split": "first, second = Split <axis = 3> (x, halves)",
    "a split from the back": "first, second = Split <axis = -1, num_outputs = 2> (x)",
}
COSINES = {
    "constants": ("", "c, s = Split <axis = 0, num_outputs = 2> (table)"),
    "length and size": ("float[t, 8] c, float[t, 8] s", ""),
    "one head": ("float[1, t, 8] c, float[1, t, 8] s", ""),
    "a batch": ("float[b, 1, t, 8] c, float[b, 1, t, 8] s", ""),
    "each head": ("float[3, t, 8] c, float[3, t, 8] s", ""),
    "one of a batch": ("float[1, 1, t, 8] c, float[b, 1, t, 8] s", ""),
}
ROTATION = """HALVES
    m = Neg(second) r = Concat <axis = -1> (m, first) p = Mul(x, c) q = Mul(s, r) z = Add(q, p)"""
PLACES = {"zero": [0], "half": [4], "size": [8], "last": [3], "halves": [4, 4]}


def rotary(halves="slices", cosines="length and size", after="y = MatMul(z, w)", rotation=ROTATION, opset=18):
    inputs, computed = COSINES[cosines]
    declared = ", ".join(["float[b, t, 3, 8] a", *([inputs] if inputs else [])])
    text = rotation.replace("HALVES", HALVES[halves])
    proto = parser.parse_model(
        f'<ir_version: 9, opset_import: ["": {opset}]> g ({declared}) => (float[b, p, q, r] y)'
        f" {{ {computed} x = Transpose <perm = [0, 2, 1, 3]> (a) {text} {after} }}"
    )
    constants = {name: np.array(value) for name, value in PLACES.items()}
    constants |= {"w": random(8, 5), "table": random(12, 8), "one": np.array(1.0, np.float32)}
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items() if name in used
    )
    return proto


def feeds_of(proto, batch, length):
    sizes = {"b": batch, "t": length}
    return {
        value.name: random(
            *(dim.dim_value or sizes[dim.dim_param] for dim in value.type.tensor_type.shape.dim), seed=seed
        )
        for seed, value in enumerate(proto.graph.input)
    }


def rewritten(proto, sizes=((2, 6), (1, 6), (0, 6))):
    after, context = apply(proto, "fold-constants", PASS)
    for batch, length in sizes:
        feeds = feeds_of(proto, batch, length)
        np.testing.assert_array_equal(run(after, feeds)[0], run(proto, feeds)[0], strict=True)
    return after, reasons(context)


@pytest.mark.parametrize("halves", HALVES)
@pytest.mark.parametrize("cosines", [name for name in COSINES if name != "each head"])
def test_the_transpose_comes_behind(cosines, halves):
    after, _ = rewritten(rotary(halves, cosines))
    found = ops(after)
    assert found.count("Transpose") == (3 if "batch" in cosines or cosines == "one head" else 1)
    assert found[-3:] == ["Add", "Transpose", "MatMul"] and "Neg" not in found


def test_cosines_that_are_constant_are_turned_once():
    after, _ = rewritten(rotary(cosines="constants"))
    shapes = [list(item.dims) for item in after.graph.initializer]
    assert shapes.count([6, 1, 8]) == 2 and not {"Unsqueeze", "Mul_1"} & {*ops(after)}


def test_several_layers_share_what_is_turned():
    proto = rotary(cosines="a batch", after="z1 = Abs(z) z2 = Sum(z, z1) y = MatMul(z2, w)")
    more = rotary(cosines="a batch", after="y = MatMul(z, w)")
    for node in more.graph.node:
        node.output[:] = [f"{name}_2" for name in node.output]
        made = {item for other in more.graph.node for item in other.output}
        node.input[:] = [f"{name}_2" if f"{name}_2" in made else name for name in node.input]
    proto.graph.node.extend(more.graph.node)
    last = proto.graph.node.add(op_type="Add", input=["y", "y_2"], output=["sum"])
    proto.graph.output[0].name = last.output[0]
    after, _ = apply(proto, PASS, "merge-duplicates")
    feeds = feeds_of(proto, 2, 6)
    np.testing.assert_array_equal(run(after, feeds)[0], run(proto, feeds)[0])
    assert ops(after).count("Transpose") == 3, "one for the cosines, one for the sines, and one behind"


@pytest.mark.parametrize(
    "after",
    [
        "y = Concat <axis = 2> (z, z)",  # put together with others
        "u = Add(z, x) y = MatMul(u, w)",  # what is turned is read elsewhere
        "u = Concat <axis = 3> (first, z) v = Slice(u, zero, size, last) y = MatMul(v, w)",  # and so is a half
    ],
)
def test_rotations_that_stay(after):
    result, _ = rewritten(rotary(after=after))
    found = ops(result)
    assert found.count("Transpose") == 1 and found[0] == "Transpose"


def test_cosines_of_each_head_stay():
    result, why = rewritten(rotary(cosines="each head"))
    assert ops(result)[0] == "Transpose" and "its cosines are not known to be the same for all heads" in why


DECODER = """g (float[b, l, 32] x, float[b, 2, p, 8] pk, float[b, 2, p, 8] pv, int64[b, l] places,
       float[b, 1, l, t] mask) => (float[b, l, 32] y, float[b, 2, t, 8] k, float[b, 2, t, 8] v) {
    f = Cast <to = 1> (places) fu = Unsqueeze(f, minus) an = Mul(fu, rates) an2 = Concat <axis = -1> (an, an)
    an4 = Unsqueeze(an2, one) c = Cos(an4) s = Sin(an4)
    q0 = MatMul(x, wq) q1 = Reshape(q0, split) q = Transpose <perm = [0, 2, 1, 3]> (q1)
    k0 = MatMul(x, wk) k1 = Reshape(k0, split) kn = Transpose <perm = [0, 2, 1, 3]> (k1)
    v0 = MatMul(x, wv) v1 = Reshape(v0, split) vn = Transpose <perm = [0, 2, 1, 3]> (v1)
    qa = Slice(q, zero, half, last) qb = Slice(q, half, size, last) qm = Neg(qb) qr = Concat <axis = -1> (qm, qa)
    qc = Mul(q, c) qs = Mul(qr, s) qe = Add(qc, qs)
    ka = Slice(kn, zero, half, last) kb = Slice(kn, half, size, last) km = Neg(kb) kr = Concat <axis = -1> (km, ka)
    kc = Mul(kn, c) ks = Mul(kr, s) ke = Add(kc, ks)
    k = Concat <axis = 2> (pk, ke) v = Concat <axis = 2> (pv, vn)
    ku = Unsqueeze(k, two) sh = Shape(k) sb = Slice(sh, zero, one) st = Slice(sh, two, size)
    sn = Concat <axis = 0> (sb, two, two, st) kx = Expand(ku, sn) kj = Reshape(kx, joined)
    kt = Transpose <perm = [0, 1, 3, 2]> (kj)
    vh = Shape(v) vb = Slice(vh, zero, one) vt = Slice(vh, two, size) vs = Concat <axis = 0> (vb, two, two, vt)
    vu = Unsqueeze(v, two) vx = Expand(vu, vs) vj = Reshape(vx, joined)
    d = MatMul(qe, kt) ds = Mul(d, scale) dm = Add(ds, mask) w = Softmax <axis = -1> (dm) o = MatMul(w, vj)
    ot = Transpose <perm = [0, 2, 1, 3]> (o) oj = Reshape(ot, merged) y = MatMul(oj, wo) }"""


def decoder() -> onnx.ModelProto:
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {DECODER}')
    vectors = {"minus": -1, "zero": 0, "one": 1, "two": 2, "half": 4, "size": 8, "last": 3}
    constants = {name: np.array([value]) for name, value in vectors.items()}
    constants |= {"split": np.array([0, 0, -1, 8]), "joined": np.array([0, 4, -1, 8]), "merged": np.array([0, 0, 32])}
    constants |= {"rates": np.float32([1, 0.3, 0.1, 0.03]), "scale": np.float32(8**-0.5)}
    constants |= {"wq": random(32, 32), "wk": random(32, 16), "wv": random(32, 16), "wo": random(32, 32)}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items())
    return proto


@pytest.mark.parametrize(("batch", "length", "past"), [(1, 1, 40), (2, 1, 0), (3, 5, 7), (1, 12, 0)])
def test_a_step_of_decoding_with_cached_keys(batch, length, past):
    """Grouped heads that meet the keys of all words, of which those before are inputs, for any sizes."""
    proto = decoder()
    result = onnxfuse.optimize(proto, check=False).model
    kinds = ops(result)
    assert "FusedAttention" in kinds and not {"Expand", "Softmax", "Neg", "Slice"} & {*kinds}
    total = past + length
    mask = np.where(np.arange(total) <= past + np.arange(length)[:, None], 0, -1e4).astype(np.float32)
    feeds = {
        "x": random(batch, length, 32),
        "pk": random(batch, 2, past, 8, seed=1),
        "pv": random(batch, 2, past, 8, seed=2),
        "places": np.tile(np.arange(past, total), (batch, 1)),
        "mask": np.tile(mask, (batch, 1, 1, 1)),
    }
    fusing.assert_same_everywhere(result, proto, feeds)
