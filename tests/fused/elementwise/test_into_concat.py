"""Fused nodes that write what a Concat would join as parts of one tensor."""

import numpy as np
import pytest
from onnx import parser

from tests.fused.space.test_through_views import assert_same, fuse, operators, programs
from tests.support import fusing

Shapes = list[tuple[int, ...]]
ONE_NODE: dict[str, tuple[str, Shapes]] = {
    "two activations": (
        "g (float[n, 3, 8] x, float[n, 5, 8] y) => (float[n, 8, 8] z) {"
        " a = HardSwish(x) b = HardSwish(y) z = Concat <axis = 1> (a, b) }",
        [(2, 3, 8), (2, 5, 8)],
    ),
    "regions and an input": (
        "g (float[n, 3, 8] x, float[n, 5, 8] y) => (float[n, 16, 8] z) {"
        " a = Abs(x) b = Floor(a) c = Neg(y) d = Relu(c) z = Concat <axis = -2> (b, y, d, x) }",
        [(2, 3, 8), (2, 5, 8)],
    ),
    "a part that is read elsewhere too": (
        "g (float[4, 6] x, float[4, m] y) => (float[4, k] z, float[4, 6] a, float[4, m] d) {"
        " a = Abs(x) b = Neg(a) c = Floor(y) d = Add(c, y) z = Concat <axis = -1> (a, b, d, a) }",
        [(4, 6), (4, 3)],
    ),
    "two Concats": (
        "g (float[4, 6] x, float[4, 2] y) => (float[8, 6] z, float[4, 14] w) {"
        " a = Abs(x) b = Neg(a) z = Concat <axis = 0> (a, b) w = Concat <axis = 1> (x, b, y) }",
        [(4, 6), (4, 2)],
    ),
    "a Concat of a Concat": (
        "g (float[4, 6] x, float[4, 2] y) => (float[4, 14] z, float[4, 12] b) {"
        " a = Abs(x) b = Concat <axis = 1> (a, x) c = Neg(y) z = Concat <axis = -1> (c, b) }",
        [(4, 6), (4, 2)],
    ),
    "a region behind another": (
        "g (float[4, 6] x, float[6] s) => (float[8, 6] z) {"
        " a = Abs(x) b = PRelu(a, s) c = Neg(b) z = Concat <axis = 0> (a, c) }",
        [(4, 6), (6,)],
    ),
    "parts of an input": (
        "g (float[5, 20] x, float[5, 2] y) => (float[5, 20] z) { p, q, r = Split <axis = 1> (x, sizes)"
        " a = Ceil(p) b = Mul(a, y) c = Ceil(q) d = Mul(c, c) e = Ceil(r) z = Concat <axis = 1> (b, d, e) }",
        [(5, 20), (5, 2)],
    ),
    "in another order": (
        "g (float[3, 24, 16] x, float[3, 16, 24] y) => (float[3, 16, 48] z) {"
        " t = Transpose <perm = [0, 2, 1]> (x) a = Relu(t) b = Add(a, y) z = Concat <axis = 2> (b, y) }",
        [(3, 24, 16), (3, 16, 24)],
    ),
    "in another shape": (
        "g (float[n, 6, 4] x, float[n, 3, 8] y) => (float[n, 3, 3, 8] z) {"
        " a = Abs(x) b = Floor(a) r = Reshape(b, apart) q = Unsqueeze(r, one) c = Neg(y) d = Relu(c)"
        " s = Unsqueeze(d, one) z = Concat <axis = 1> (q, s, q) }",
        [(2, 6, 4), (2, 3, 8)],
    ),
    "a region behind, with what meets the parts": (
        "g (float[2, 3, 8] x, float[2, 5, 8] y, float[8, 1] s, float[2, 1, 8] t)"
        " => (float[2, 8, 8] z, float[2, 8, 8] w) {"
        " c = Concat <axis = 1> (x, y) a = Mul(c, s) w = Add(a, t) z = Relu(w) }",
        [(2, 3, 8), (2, 5, 8), (8, 1), (2, 1, 8)],
    ),
    "a region behind, of parts of unknown sizes": (
        "g (float[2, n] x, float[2, m] y, float[3, 2, 1] s) => (float[3, 2, k] z) {"
        " c = Concat <axis = -1> (x, y, x) a = Mul(c, s) z = Abs(a) }",
        [(2, 3), (2, 5), (3, 2, 1)],
    ),
    "a Split along another axis": (
        "g (float[n, 6, 4] x, float[n, 6, 4] y, float[6, 1] s) => (float[n, 2, 2, 4] z, float[n, 4, 2, 4] w) {"
        " a = Abs(x) b = Mul(a, s) p = Unsqueeze(b, two) d = Neg(y) e = Relu(d) q = Unsqueeze(e, two)"
        " c = Concat <axis = 2> (p, q) z, w = Split <axis = 1> (c, halves) }",
        [(2, 6, 4), (2, 6, 4), (6, 1)],
    ),
    "a single node behind, and one behind that": (
        "g (float[1, 1, 6] x, float[1, 9, 6] y, float[1, 10, 6] p) => (float[1, 20, 6] z) {"
        " c = Concat <axis = 1> (x, y) a = Add(c, p) z = Concat <axis = 1> (a, p) }",
        [(1, 1, 6), (1, 9, 6), (1, 10, 6)],
    ),
}


@pytest.mark.parametrize("case", ONE_NODE.values(), ids=ONE_NODE.keys())
def test_one_node(case: tuple[str, Shapes]) -> None:
    text, shapes = case
    model, fused, _ = fuse(text, sizes=[2, 2, 16], apart=[0, 3, 8], one=[1], two=[2], halves=[2, 4])
    assert operators(fused) == ["FusedElementwise"]
    assert "append" in programs(fused)
    assert_same(model, fused, *shapes)


@pytest.mark.parametrize(("axis", "vector"), [(1, 6), (2, 3)])
def test_vectors_along_an_axis(axis: int, vector: int) -> None:
    """Of the parts, or of another one."""
    model, fused, _ = fuse(
        f"g (float[2, 3, 5] x, float[2, 3, 5] y, float[{vector}] s) => (float[a, b, c] z) {{"
        f" n = Neg(x) w = Concat <axis = {axis}> (n, y) b = BatchNormalization(w, s, s, s, ones) z = Relu(b) }}",
        ones=np.ones(vector, np.float32),
    )
    assert operators(fused) == ["FusedElementwise"]
    random = np.random.default_rng(0)
    feeds = {name: random.normal(size=(2, 3, 5)).astype(np.float32) for name in ("x", "y")}
    feeds["s"] = random.normal(size=vector).astype(np.float32)
    (expected,) = fusing.run(model, feeds, library=False)
    for library in (True, False):
        np.testing.assert_allclose(fusing.run(fused, feeds, library)[0], expected, rtol=1e-5, atol=1e-6)


def test_what_other_nodes_make_is_copied() -> None:
    model, fused, report = fuse(
        "g (float[4, 6] x, float[6, 6] w) => (float[4, 12] z) {"
        " a = Abs(x) b = Neg(a) m = MatMul(x, w) z = Concat <axis = 1> (m, b) }"
    )
    assert sorted(operators(fused)) == ["FusedElementwise", "MatMul"]
    (region,) = report.fused
    assert region.bytes_saved.constant() == 4 * 6 * 4 * 4  # Abs and Neg are neither written nor read again
    assert_same(model, fused, (4, 6), (6, 6))


LEFT_ALONE = {
    "most is made elsewhere": (
        "g (float[4, 6] x, float[4, 600] y) => (float[4, 606] z) {"
        " a = Abs(x) b = Neg(a) z = Concat <axis = 1> (b, y) }",
        "most of what it joins is made by nodes that are not fused",
    ),
    "a node between": (
        "g (float[4, 4] x, float[4, 4] w) => (float[4, 8] z) {"
        " a = Abs(x) b = Neg(a) m = MatMul(b, w) z = Concat <axis = 1> (b, m) }",
        "a node outside of it would wait for it, and it for that node",
    ),
    "what is joined is read by others too": (
        "g (float[4, 6] x, float[4, 6] y, float[12, 3] w) => (float[4, 12] z, float[4, 3] v) {"
        " c = Concat <axis = 1> (x, y) v = MatMul(c, w) a = Abs(c) z = Floor(a) }",
        "",
    ),
    "another shape that is read elsewhere too": (
        "g (float[4, 6] x, float[4, 1, 6] y) => (float[4, 2, 6] z, float[4, 1, 6] v) {"
        " a = Abs(x) b = Neg(a) v = Unsqueeze(b, one) z = Concat <axis = 1> (v, y) }",
        "",
    ),
    "what meets parts of unknown sizes": (
        "g (float[4, n] x, float[4, m] y, float[k] s) => (float[4, k] z) {"
        " c = Concat <axis = 1> (x, y) a = Mul(c, s) z = Floor(a) }",
        "",
    ),
    "parts of parts along another axis": (
        "g (float[4, 6] x, float[8, 2] y) => (float[8, 8] z) {"
        " a = Abs(x) b = Concat <axis = 0> (a, x) c = Neg(y) z = Concat <axis = 1> (c, b) }",
        "parts of parts along another axis",
    ),
}


@pytest.mark.parametrize("case", LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
def test_left_alone(case: tuple[str, str]) -> None:
    text, reason = case
    _, fused, report = fuse(text, one=[1])
    assert "Concat" in operators(fused)
    assert reason in str(report.to_json())


def test_alone_where_all_is_to_be_fused() -> None:
    model, _, _ = fuse("g (float[4, 6] x, float[4, 2] y) => (float[4, 8] z) { z = Concat <axis = -1> (x, y) }")
    fused = fusing.fuse_everything(model)
    assert operators(fused) == ["FusedElementwise"]
    assert_same(model, fused, (4, 6), (4, 2))


def test_a_part_whose_maker_does_not_say_its_type() -> None:
    """As operators of other domains: it is that of the rest."""
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 21, "com.microsoft" : 1]>'
        " g (float[2, 3, 3] x, float[2, 3, 3] y) => (float[4, 3, 3] z) {"
        " a = Abs(x) b = Neg(a) c = com.microsoft.Inverse(y) z = Concat <axis = 0> (b, c) }"
    )
    fused = fusing.fuse_everything(model)
    assert operators(fused) == ["Inverse", "FusedElementwise"]
    feeds = {name: np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32) for name in "xy"}
    for library in (True, False):
        (found,) = fusing.run(fused, feeds, library)
        assert fusing.same_bits(found, fusing.run(model, feeds, library=False)[0])


def test_arithmetic_of_shapes_is_left_alone() -> None:
    _, fused, _ = fuse(
        "g (float[n, 6] x) => (int64[4] z) {"
        " s = Shape(x) a = Mul(s, two) b = Add(a, two) z = Concat <axis = 0> (s, b) }",
        two=2,
    )
    assert operators(fused) == ["Shape", "Mul", "Add", "Concat"]


def test_on_cuda() -> None:
    _, fused, _ = fuse(ONE_NODE["regions and an input"][0], target="cuda")
    assert operators(fused) == ["FusedElementwise"]


@pytest.mark.parametrize("dtype", ["float16", "int8", "bool", "double"])
def test_types(dtype: str) -> None:
    operator = "Not" if dtype == "bool" else "Abs"
    model, fused, _ = fuse(
        f"g ({dtype}[3, 4] x, {dtype}[3, 300] y) => ({dtype}[3, 604] z) {{"
        f" a = {operator}(x) b = {operator}(y) z = Concat <axis = 1> (b, a, b) }}"
    )
    assert operators(fused) == ["FusedElementwise"]
    random = np.random.default_rng(0)
    types = {"float16": np.float16, "int8": np.int8, "bool": np.bool_, "double": np.float64}
    feeds = {
        name: random.integers(-3, 3, shape).astype(types[dtype]) for name, shape in (("x", (3, 4)), ("y", (3, 300)))
    }
    for library in (True, False):
        (found,) = fusing.run(fused, feeds, library)
        assert fusing.same_bits(found, fusing.run(model, feeds, library=False)[0])


@pytest.mark.parametrize("read", ["c", "b"])
def test_what_is_split_and_read_as_a_whole_is_written_as_a_whole(read: str) -> None:
    model, fused, _ = fuse(
        "g (float[4, 6] x, float[4, 6] y, float[k, 3] m) => (float[i, 12] z, float[j, 12] w, float[4, 3] v) {"
        " a = Abs(x) b = Neg(a) c = Concat <axis = 1> (b, y) z, w = Split <axis = 0> (c, halves)"
        f" v = MatMul({read}, m) }}",
        halves=[1, 3],
    )
    assert sorted(operators(fused)) == ["FusedElementwise", "MatMul", "Split"]
    assert_same(model, fused, (4, 6), (4, 6), (12 if read == "c" else 6, 3))


def test_what_a_node_between_reads_is_copied() -> None:
    """It is made before the node, and the other part behind it."""
    model, fused, _ = fuse(
        "g (float[4, 4] x, float[4, 4] w) => (float[4, 8] z) {"
        " a = Abs(x) b = Neg(a) m = MatMul(b, w) c = Abs(m) d = Floor(c) z = Concat <axis = 1> (b, d) }"
    )
    assert operators(fused) == ["FusedElementwise", "MatMul", "FusedElementwise"]
    assert "append" in programs(fused)
    assert_same(model, fused, (4, 4), (4, 4))


def check_everywhere(text: str, feeds: dict[str, np.ndarray]) -> None:
    """What all is fused of a model gives what the model does, with the library and without it."""
    model = parser.parse_model(text)
    fusing.assert_same_everywhere(fusing.fuse_everything(model), model, feeds)


def test_a_reshape_before_functions_may_have_integers() -> None:
    """Its shape would be a constant of the function, which of opset 7 may be of floats alone."""
    random = np.random.default_rng(0)
    check_everywhere(
        '<ir_version: 8, opset_import: ["" : 7]> g (float[4, 6] x, float[4, 1, 6] y) =>'
        " (float[4, 2, 6] z) <int64[3] apart = {4, 1, 6}>"
        " { a = Abs(x) b = Neg(a) r = Reshape(b, apart) z = Concat <axis = 1> (r, y) }",
        {name: random.normal(size=shape).astype(np.float32) for name, shape in (("x", (4, 6)), ("y", (4, 1, 6)))},
    )


def test_sizes_that_are_not_known_are_not_the_same() -> None:
    """Nobody infers the shape of a PRelu of integers: dimensions before and behind the Reshape are unknown."""
    random = np.random.default_rng(0)
    shapes = {"x": (1, 6), "s": (1, 6), "y": (1, 1, 6)}
    check_everywhere(
        '<ir_version: 8, opset_import: ["" : 17]> g (int64[h, w] x, int64[1, 6] s, int64[1, 1, 6] y) =>'
        " (int64[a, b, c] z) <int64[3] apart = {1, 1, 6}>"
        " { p = PRelu(x, s) q = Abs(p) r = Reshape(q, apart) z = Concat <axis = 1> (y, r) }",
        {name: random.integers(-9, 9, shape) for name, shape in shapes.items()},
    )


def test_parts_of_nothing_on_cuda() -> None:
    """No kernel of a part takes such shapes: planning ended with a RuntimeError."""
    model, fused, _ = fuse(
        "g (float[7, 0] x, float[1, 0] y, float[8, 1] s) => (float[8, 0] z, float[7, 0] v) {"
        " a = Exp(x) v = Neg(a) b = Exp(y) c = Concat <axis = 0> (a, b) z = Sub(c, s) }",
        target="cuda",
    )
    assert "FusedElementwise" in operators(fused)
    assert_same(model, fused, (7, 0), (1, 0), (8, 1))
