"""What queries and keys go through alike behind one product is computed of both at once, and stays what it is."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxfuse.passes.rules import budget
from tests.passes.models import apply, ops, random, reasons
from tests.support import fusing

PASSES = ("fold-constants", "slow-operators", "merge-duplicates", "fuse-attention")
HEADS = {"q": 4, "k": 2, "v": 2}
PLAIN = "{p}1 = MatMul(x, w{p}) {p}2 = Reshape({p}1, split_{p})"
BIASED = "{p}0 = MatMul(x, w{p}) {p}1 = Add({p}0, b{p}) {p}2 = Reshape({p}1, split_{p})"
NORMALIZED = """{p}1 = MatMul(x, w{p}) {p}h = Reshape({p}1, split_{p}) {p}p = Pow({p}h, square)
    {p}m = ReduceMean <axes = [-1]> ({p}p) {p}t = Add({p}m, tiny) {p}d = Sqrt({p}t) {p}n = Div({p}h, {p}d)
    {p}2 = Mul({p}n, n{p})"""
ROTATED = """{p}a = Slice({x}, zero, half, last) {p}b = Slice({x}, half, size, last) {p}g = Neg({p}b)
    {p}r = Concat <axis = -1> ({p}g, {p}a) {p}c = Mul({x}, c) {p}s = Mul({p}r, s) {p}e = Add({p}c, {p}s)"""
SPLIT = """{p}a, {p}b = Split <axis = -1> ({x}, halves) {p}g = Neg({p}b)
    {p}r = Concat <axis = -1> ({p}g, {p}a) {p}c = Mul({x}, c) {p}s = Mul({p}r, s) {p}e = Add({p}c, {p}s)"""
PAIRS = """{p}a = Slice({x}, zero, size, last, two) {p}b = Slice({x}, one, size, last, two) {p}g = Neg({p}b)
    {p}i = Unsqueeze({p}g, back) {p}j = Unsqueeze({p}a, back) {p}k = Concat <axis = -1> ({p}i, {p}j)
    {p}r = Reshape({p}k, whole) {p}c = Mul({x}, c) {p}s = Mul({p}r, s) {p}e = Add({p}c, {p}s)"""
TURN = "{p}T = Transpose <perm = [0, 2, 1, 3]> ({y})"
ATTENTION = """keys = Gather <axis = 1> (KEYS, twice) turned = Transpose <perm = [0, 1, 3, 2]> (keys)
    values = Gather <axis = 1> (vT, twice) scores = MatMul(QUERIES, turned) weights = Softmax <axis = -1> (scores)
    o = MatMul(weights, values) heads = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape(heads, merged)"""


def decoder(
    before: str = PLAIN, rotation: str = ROTATED, of_keys: str = "", first: bool = False, more: str = "", out: str = ""
) -> onnx.ModelProto:
    """Attention of grouped heads whose queries and keys are rotated before, or after, they come ``first``."""
    text = [BIASED.format(p="v") if "{p}0" in before else PLAIN.format(p="v"), TURN.format(p="v", y="v2")]
    for part in ("q", "k"):
        text.append((of_keys if of_keys and part == "k" else before).format(p=part))
        turned, turn = (f"{part}T", f"{part}2") if first else (f"{part}2", f"{part}e")
        steps = [rotation.format(p=part, x=turned), TURN.format(p=part, y=turn)]
        text += reversed(steps) if first else steps
    names = ("qe", "ke") if first else ("qT", "kT")
    text.append(ATTENTION.replace("QUERIES", names[0]).replace("KEYS", names[1]))
    angles = "b, 1, l, 8" if first else "b, l, 1, 8"
    proto = parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17]> g (float[b, l, 32] x, float[{angles}] c, float[{angles}] s) =>'
        f" (float[b, l, 32] y{out}) {{ {' '.join(text)} {more} }}"
    )
    vectors = {"zero": 0, "one": 1, "two": 2, "half": 4, "size": 8, "last": 3, "back": -1}
    constants = {name: np.array([value]) for name, value in vectors.items()} | {"whole": np.array([0, 0, 0, 8])}
    constants |= {"halves": np.array([4, 4]), "twice": np.array([0, 0, 1, 1]), "merged": np.array([0, 0, 32])}
    constants |= {"square": np.float32(2), "tiny": np.float32(1e-5)}
    for seed, (part, heads) in enumerate(HEADS.items()):
        constants |= {f"w{part}": random(32, 8 * heads, seed=seed) / 4, f"b{part}": random(8 * heads, seed=seed + 3)}
        constants |= {f"n{part}": random(8, seed=seed + 6), f"split_{part}": np.array([0, 0, heads, 8])}
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items() if name in used
    )
    return proto


def check(proto: onnx.ModelProto, batch: int = 2, length: int = 9, target: str = "cpu") -> tuple[list[str], str]:
    """The operators and the reasons, after it has been seen that results are the same."""
    result, context = apply(proto, *PASSES, target=target)
    angles = [tensor.type.tensor_type.shape.dim for tensor in proto.graph.input[1:]]
    sizes = [[dim.dim_value or {"b": batch, "l": length}[dim.dim_param] for dim in dims] for dims in angles]
    feeds = {"x": random(batch, length, 32), "c": random(*sizes[0], seed=1), "s": random(*sizes[1], seed=2)}
    fusing.assert_same_everywhere(result, proto, feeds)
    return ops(result), reasons(context)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("rotation", [ROTATED, SPLIT], ids=["slices", "a split"])
@pytest.mark.parametrize("before", [PLAIN, BIASED, NORMALIZED], ids=["plain", "biased", "normalized"])
def test_queries_and_keys_are_rotated_together(before: str, rotation: str, first: bool) -> None:
    found, _ = check(decoder(before, rotation, first=first))
    assert found.count("Transpose") == 2 * first  # of the cosines and the sines, which are inputs
    assert found.count("MatMul") == found.count("Concat") == 1 and "FusedAttention" in found
    assert found.count("Pow") == (before is NORMALIZED)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("before", [PLAIN, BIASED, NORMALIZED], ids=["plain", "biased", "normalized"])
def test_on_cuda(before: str, first: bool) -> None:
    """There slices that are put together again may be a Gather by then."""
    found, _ = check(decoder(before, first=first), target="cuda")
    assert found.count("MatMul") == found.count("Concat") + found.count("Gather") == 1
    assert found.count("Transpose") == 2 * first and "FusedAttention" in found


@pytest.mark.parametrize("before", [PLAIN, NORMALIZED], ids=["plain", "normalized"])
def test_pairs_of_queries_and_keys_are_rotated_together(before: str) -> None:
    found, _ = check(decoder(before, PAIRS))
    assert found.count("MatMul") == found.count("Concat") == 1 and not {"Unsqueeze", "Neg"} & {*found}


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 17)])
def test_of_any_size(batch: int, length: int) -> None:
    assert check(decoder(), batch, length)[0].count("Concat") == 1


OTHER_KEYS = {
    "an operator more": (PLAIN, PLAIN.replace("{p}2", "{p}3") + " {p}2 = Abs({p}3)"),
    "a normalization": (PLAIN, NORMALIZED),
    "another operator": (NORMALIZED, NORMALIZED.replace("Pow({p}h, square)", "Mul({p}h, {p}h)")),
    "another attribute": (NORMALIZED, NORMALIZED.replace("axes = [-1]", "axes = [-1, -2]")),
}


@pytest.mark.parametrize("kind", OTHER_KEYS)
def test_what_differs_is_computed_apart(kind: str) -> None:
    before, of_keys = OTHER_KEYS[kind]
    found, why = check(decoder(before, of_keys=of_keys))
    assert found.count("Concat") == 2 and found.count("MatMul") == 3
    assert "queries and keys go through different nodes behind the products" in why


@pytest.mark.parametrize(
    ("more", "out"),
    [("e = ReduceMax(q2)", ", float[1, 1, 1, 1] e"), ("", ", float[b, l, 4, 8] q2"), ("", ", float[b, l, 16] k1")],
)
def test_what_others_read_is_computed_apart(more: str, out: str) -> None:
    assert check(decoder(more=more, out=out))[0].count("Concat") == 2


def test_shared_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    made = decoder(more="e = ReduceMax(wq)", out=", float[1, 1] e")
    assert check(made)[0].count("MatMul") == 1
    monkeypatch.setattr(budget, "_LIMIT", 100)
    found, why = check(made)
    assert found.count("MatMul") == 3 and "the weights are shared" in why


PACKED = """all = MatMul(x, wall) parts = Reshape(all, five)
    q0 = Slice(parts, zero, one, axis) q2 = Squeeze(q0, axis) k0 = Slice(parts, one, two, axis) k2 = Squeeze(k0, axis)
    v0 = Slice(parts, two, last, axis) v2 = Squeeze(v0, axis)"""
COLUMNS = """all = MatMul(x, wall) q1, k1, v1 = Split <axis = 2> (all, columns)
    q2 = Reshape(q1, split) k2 = Reshape(k1, split) v2 = Reshape(v1, split)"""
HEADS_OF_ALL = """all = MatMul(x, wall) heads_of_all = Reshape(all, twelve)
    q2, k2, v2 = Split <axis = 2> (heads_of_all, fours)"""


@pytest.mark.parametrize("packed", [PACKED, COLUMNS, HEADS_OF_ALL], ids=["parts", "columns", "heads"])
def test_parts_of_one_projection_are_rotated_together(packed: str) -> None:
    """The values are read where they lie, and nothing takes the projection apart."""
    text = [packed, *(ROTATED.format(p=part, x=f"{part}2") for part in "qk")]
    text += [TURN.format(p="q", y="qe"), TURN.format(p="k", y="ke"), TURN.format(p="v", y="v2")]
    attention = ATTENTION.replace("QUERIES", "qT").replace("KEYS", "kT")
    proto = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[b, l, 32] x, float[b, l, 1, 8] c, float[b, l, 1, 8] s) =>'
        f" (float[b, l, 32] y) {{ {' '.join(text)} {attention} }}"
    )
    vectors = {"zero": 0, "one": 1, "two": 2, "axis": 2, "half": 4, "size": 8, "last": 3}
    constants = {name: np.array([value]) for name, value in vectors.items()}
    constants |= {"twice": np.arange(4), "merged": np.array([0, 0, 32]), "five": np.array([0, 0, 3, 4, 8])}
    constants |= {"columns": np.array([32, 32, 32]), "split": np.array([0, 0, 4, 8]), "twelve": np.array([0, 0, 12, 8])}
    constants |= {"fours": np.array([4, 4, 4]), "wall": random(32, 96) / 4}
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items() if name in used
    )
    found, _ = check(proto)
    assert found.count("MatMul") == found.count("Concat") == 1 and not {"Squeeze", "Transpose", "Split"} & {*found}
    result, _ = apply(proto, *PASSES, "fuse-elementwise")
    assert set(ops(result)) == {"MatMul", "Reshape", "FusedElementwise", "FusedAttention"}


def test_factors_that_differ_are_put_together() -> None:
    result, _ = apply(decoder(NORMALIZED), *PASSES)
    assert sum(list(item.dims) == [6, 8] for item in result.graph.initializer) == 1
