"""Slice, Split and Concat before a region become part of it: the fused node reads views of what they read."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import onnxfuse
from onnxfuse.cuda.complete import complete, read
from onnxfuse.fused.elementwise.fuse_elementwise import FuseElementwise
from onnxfuse.passes import PassContext
from onnxfuse.shapes.inference import infer
from tests.support import fusing

RANDOM = np.random.default_rng(0)


def _model(text: str, opset: int = 21, **constants: object) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]>\n{text}')
    for name, value in constants.items():
        array = value if isinstance(value, np.ndarray) else np.array(value, np.int64)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def _fuse(model: onnx.ModelProto, target: str = "cpu") -> onnx.ModelProto:
    loaded = onnxfuse.Model.from_proto(model)
    infer(loaded)
    FuseElementwise().run(loaded, PassContext(target=target))
    fused = loaded.to_proto()
    onnx.checker.check_model(fused, full_check=True)
    return fused


def _assert_same(model: onnx.ModelProto, fused: onnx.ModelProto, **feeds: np.ndarray) -> None:
    """With the library and without, and in the reference."""
    expected = fusing.run(model, feeds, library=False)
    results = [fusing.run(fused, feeds, library) for library in (False, True)]
    for found in (*results, ReferenceEvaluator(fused).run(None, feeds)):
        for actual, wanted in zip(found, expected, strict=True):
            assert fusing.same_bits(np.asarray(actual), wanted)


def _array(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


MAGNITUDE = """g (float[n, 10, 5] x) => (float[n, u, v] y) {
    a = Slice(x, zero, five, one, one)  re = Slice(a, one, end, two, one)
    b = Slice(x, five, end, one, one)   im = Slice(b, one, end, two, one)
    p = Mul(re, re)  q = Mul(im, im)  s = Add(p, q)  y = Sqrt(s)
}"""
NUMBERS = {"zero": [0], "one": [1], "two": [2], "five": [5], "end": [(1 << 63) - 1]}


def test_slices_of_slices() -> None:
    model = _model(MAGNITUDE, **NUMBERS)
    fused = _fuse(model)
    (node,) = fused.graph.node
    assert list(node.input) == ["x", "x"]
    assert sum(inner.op_type == "Slice" for inner in fused.functions[0].node) == 4
    for batch in (3, 1, 0):
        _assert_same(model, fused, x=_array(batch, 10, 5))


@pytest.mark.parametrize(
    ("split", "opset"),
    [
        ("a, b = Split <axis = 1> (x)", 11),
        ("a, b = Split <axis = 1, split = [4, 4]> (x)", 11),
        ("a, b = Split <axis = -2> (x)", 17),
        ("a, b = Split <axis = 1> (x, halves)", 17),
        ("a, b = Split <axis = 1, num_outputs = 2> (x)", 21),
    ],
)
def test_gated_linear_units(split: str, opset: int) -> None:
    model = _model(
        f"g (float[n, 8, 30] x) => (float[n, 4, 30] y) {{ {split} g = Sigmoid(b) y = Mul(a, g) }}", opset, halves=[4, 4]
    )
    fused = _fuse(model)
    (node,) = fused.graph.node
    assert node.domain == "onnxfuse"
    expected = fusing.run(model, {"x": (x := _array(2, 8, 30))}, library=False)
    for library in (False, True):
        np.testing.assert_allclose(fusing.run(fused, {"x": x}, library)[0], expected[0], rtol=2e-6)


def test_uneven_parts() -> None:
    model = _model(
        "g (float[7, 3] x) => (float[4, 3] y, float[3, 3] z) {"
        " a, b = Split <axis = 0, num_outputs = 2> (x) c = Abs(a) y = Neg(c) d = Abs(b) z = Neg(d) }"
    )
    fused = _fuse(model)
    _assert_same(model, fused, x=_array(7, 3))
    # Each part goes to a chain of its own, which become one region, for a Split cannot be part of two.
    assert [node.op_type for node in fused.graph.node] == ["FusedElementwise"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("z = Transpose(a) y = Neg(b)", 1),
        ("z = Neg(a) y = Neg(b)", 0),  # two regions, which become one
        ("y = Neg(b) z = Mul(a, y)", 0),  # the same region
    ],
)
def test_parts_that_others_read(text: str, kept: int) -> None:
    model = _model(
        f"g (float[9, 4] x) => (float[p, q] y, float[r, s] z) {{ a = Slice(x, one, end, zero) b = Abs(a) {text} }}",
        **NUMBERS,
    )
    fused = _fuse(model)
    assert sum(node.op_type == "Slice" for node in fused.graph.node) == kept
    _assert_same(model, fused, x=_array(9, 4))


def test_a_part_that_is_an_output_stays_one() -> None:
    model = _model(
        "g (float[9, 4] x) => (float[p, q] y, float[r, s] a) { a = Slice(x, one, end, zero) b = Abs(a) y = Neg(b) }",
        **NUMBERS,
    )
    fused = _fuse(model)
    assert [node.op_type for node in fused.graph.node] == ["Slice", "FusedElementwise"]
    _assert_same(model, fused, x=_array(9, 4))


@pytest.mark.parametrize(
    "slice_node",
    [
        "a = Slice(x, start, end, zero)",  # not constant
        "a = Slice(x, end, zero, zero, back)",  # backwards
    ],
)
def test_what_is_left_alone(slice_node: str) -> None:
    model = _model(
        f"g (float[9, 4] x, int64[1] start) => (float[p, q] y) {{ {slice_node} b = Abs(a) y = Neg(b) }}",
        **NUMBERS,
        back=[-1],
    )
    fused = _fuse(model)
    assert [node.op_type for node in fused.graph.node] == ["Slice", "FusedElementwise"]
    feeds = {"x": _array(9, 4), "start": np.array([2])}
    for actual, wanted in zip(fusing.run(fused, feeds, True), fusing.run(model, feeds, False), strict=True):
        assert fusing.same_bits(actual, wanted)


def test_a_split_of_what_may_not_fit_is_left_to_onnx_runtime() -> None:
    model = _model(
        "g (float[n, 3] x) => (float[p, 3] y) { a, b = Split <axis = 0> (x, halves) c = Abs(a) y = Add(c, b) }",
        halves=[2, 2],
    )
    fused = _fuse(model)
    assert [node.op_type for node in fused.graph.node] == ["Split", "FusedElementwise"]
    with pytest.raises(Exception, match="Split"):
        fusing.run(fused, {"x": _array(5, 3)}, True)


def test_vectors_along_an_axis_are_parts_too() -> None:
    """The scale of a BatchNormalization has no place in NumPy's broadcasting, but one in the region's space."""
    model = _model(
        "g (float[2, 3, 4] x, float[6] t) => (float[2, 3, 4] y) {"
        " s, b = Split <axis = 0, num_outputs = 2> (t) n = BatchNormalization(x, s, b, m, v) y = Neg(n) }",
        m=_array(3),
        v=np.ones(3, np.float32),
    )
    fused = _fuse(model)
    assert [node.op_type for node in fused.graph.node] == ["FusedElementwise"]
    feeds = {"x": _array(2, 3, 4), "t": _array(6)}
    np.testing.assert_allclose(fusing.run(fused, feeds, True)[0], fusing.run(model, feeds, False)[0], rtol=1e-6)


def test_bodies() -> None:
    body = parser.parse_graph(
        "body (int64 i, bool go, float[2, 8] s) => (bool on, float[2, 8] t) {"
        " a, b = Split <axis = 1, num_outputs = 2> (s) c = Tanh(a) d = Mul(c, b) e = Neg(d)"
        " t = Concat <axis = 1> (e, e) on = Identity(go) }"
    )
    loop = helper.make_node("Loop", ["times", "", "x"], ["y"], body=body)
    model = _model("g (float[2, 8] x) => (float[2, 8] y) { y = Identity(x) }", times=np.array(3, np.int64))
    model.graph.node[0].CopyFrom(loop)
    fused = _fuse(model)
    inner = fused.graph.node[0].attribute[0].g.node
    assert sorted(node.op_type for node in inner) == ["FusedElementwise", "Identity"]
    x = _array(2, 8)
    for library in (False, True):
        found = fusing.run(fused, {"x": x}, library)[0]
        np.testing.assert_allclose(found, fusing.run(model, {"x": x}, False)[0], rtol=1e-5)


def test_what_the_body_of_an_outer_node_reads_stays() -> None:
    branches = {
        name: parser.parse_graph(f"{name} () => (float[4, 4] r) {{ r = {op} }}")
        for name, op in (("then_branch", "Neg(a)"), ("else_branch", "Abs(a)"))
    }
    model = _model(
        "g (float[9, 4] x, bool c) => (float[4, 4] y, float[4, 4] z) {"
        " a = Slice(x, five, end, zero) b = Abs(a) y = Neg(b) z = Identity(y) }",
        **NUMBERS,
    )
    model.graph.node[3].CopyFrom(helper.make_node("If", ["c"], ["z"], **branches))
    fused = _fuse(model)
    assert fused.graph.node[0].op_type == "Slice"
    _assert_same(model, fused, x=_array(9, 4), c=np.array(True))


def test_kernels_for_cuda_read_parts_too() -> None:
    fused = _fuse(_model(MAGNITUDE, **NUMBERS), "cuda")
    assert not any(node.op_type == "Slice" for node in fused.graph.node)


def test_bytes_of_what_is_read() -> None:
    """The report counts the parts that are read, not the tensors."""
    loaded = onnxfuse.Model.from_proto(
        _model(
            "g (float[100, 4] x) => (float[1, 4] y) { a = Slice(x, zero, one, zero) b = Abs(a) y = Neg(b) }", **NUMBERS
        )
    )
    infer(loaded)
    context = PassContext(everything=True)
    FuseElementwise().run(loaded, context)
    (region,) = context.report.fused
    assert region.after.reads.constant() == 16


def test_no_more_slices_than_an_input_may_have() -> None:
    """Those that are too many stay before the fused node."""
    count = 40
    chain = " ".join(f"s{i + 1} = Slice(s{i}, one, end, one)" for i in range(count))
    model = _model(f"g (float[2, 50] s0) => (float[2, u] y) {{ {chain} a = Abs(s{count}) y = Neg(a) }}", **NUMBERS)
    fused = _fuse(model)
    assert [node.op_type for node in fused.graph.node] == ["Slice"] * (count - 32) + ["FusedElementwise"]
    _assert_same(model, fused, s0=_array(2, 50))


@pytest.mark.parametrize("text", ["a = Slice(x, scalar, end)", "a, b = Split <num_outputs = 3> (x)"])
def test_what_onnx_runtime_refuses_is_left_to_it(text: str) -> None:
    model = _model(f"g (float[9, 4] x) => (float[p, q] y) {{ {text} c = Abs(a) y = Neg(c) }}", **NUMBERS, scalar=1)
    loaded = onnxfuse.Model.from_proto(model)
    infer(loaded)
    FuseElementwise().run(loaded, PassContext(everything=True))
    for proto in (model, loaded.to_proto()):
        with pytest.raises(Exception, match=r"1-D|num_outputs"):
            fusing.run(proto, {"x": _array(9, 4)}, True)


def test_a_slice_along_no_axis_stays() -> None:
    text = "g (float[9, 4] x) => (float[9, 4] y) { a = Slice <starts = [0], ends = [9]> (x) b = Abs(a) y = Neg(b) }"
    model = _model(text, opset=9)
    none = [onnx.helper.make_attribute(name, [], attr_type=onnx.AttributeProto.INTS) for name in ("starts", "ends")]
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.extend(none)
    fused = _fuse(model)
    assert [node.op_type for node in fused.graph.node] == ["Slice", "FusedElementwise"]
    x = _array(9, 4)
    (y,) = fusing.run(fused, {"x": x}, library=True)  # onnx's reference does not know such a Slice
    assert np.array_equal(y, -np.abs(x))


def test_slices_alone_are_worth_no_library() -> None:
    """A Slice reads no more than it writes, and is not among the elementwise nodes that are left alone."""
    turns = " ".join(f"m{i + 1} = Transpose <perm = [1, 0]> (m{i})" for i in range(60))
    model = _model(
        "g (float[1000, 100] x, float[4, 4] m0) => (float[1, 100] y, float[4, 4] m60) {"
        f" a = Slice(x, zero, one, zero) b = Abs(a) y = Neg(b) {turns} }}",
        **NUMBERS,
    )
    loaded = onnxfuse.Model.from_proto(model)
    infer(loaded)
    context = PassContext()
    FuseElementwise().run(loaded, context)
    assert not context.report.fused
    assert [left.op for left in context.report.left_alone] == ["Abs", "Neg"]


def test_kernels_for_cuda_are_compiled_for_parts() -> None:
    fused = _fuse(_model(MAGNITUDE, **NUMBERS))
    assert complete(*read(fused.SerializeToString()), ("sm_90",)) is not None


ROTARY = """g (float[b, 4, t, 8] x, float[t, 8] c, float[t, 8] s) => (float[b, 4, t, 8] y) {
    HALVES  m = Neg(second)  r = Concat <axis = -1> (m, first)
    p = Mul(x, c)  q = Mul(r, s)  y = Add(p, q)
}"""
HALVES = {
    "slices": "first = Slice(x, zero, half, last)  second = Slice(x, half, end, last)",
    "slices to the size": "second = Slice(x, half, size, last)  first = Slice(x, zero, half, last)",
    "slices from the back": "first = Slice(x, zero, back, three)  second = Slice(x, back, end, three)",
    "a split": "first, second = Split <axis = -1> (x, halves)",
    "a split into equal parts": "first, second = Split <axis = 3, num_outputs = 2> (x)",
}
PLACES = {**NUMBERS, "half": [4], "size": [8], "last": [-1], "three": [3], "back": [-4], "halves": [4, 4]}


def _optimized(model: onnx.ModelProto) -> onnx.ModelProto:
    fused = onnxfuse.optimize(model, check=False).model
    onnx.checker.check_model(fused, full_check=True)
    return fused


def _rotary_feeds(batch: int, length: int) -> dict[str, np.ndarray]:
    feeds = {"x": _array(batch, 4, length, 8), "c": _array(length, 8), "s": _array(length, 8)}
    feeds["x"].reshape(-1)[:4] = [0.0, -0.0, np.inf, -np.inf][: feeds["x"].size]
    return feeds


@pytest.mark.parametrize("halves", HALVES.values(), ids=HALVES.keys())
def test_rotary_embeddings(halves: str) -> None:
    model = _model(ROTARY.replace("HALVES", halves), **PLACES)
    fused = _optimized(model)
    (node,) = fused.graph.node
    assert node.op_type == "FusedElementwise"
    for batch, length in ((2, 5), (1, 1), (3, 700)):
        _assert_same(model, fused, **_rotary_feeds(batch, length))


@pytest.mark.parametrize(
    ("text", "swaps"),
    [
        ("y = Concat <axis = -1> (second, first) a = Abs(y) z = Neg(a)", False),  # an output
        (
            "d = Concat <axis = -1> (second, first) a = Abs(d) z = Neg(a) y = Transpose(first)",
            False,
        ),  # a half has readers
        ("d = Concat <axis = -1> (first, second) a = Abs(d) z = Neg(a) y = Neg(z)", False),  # in their order
        ("d = Concat <axis = -2> (second, first) a = Abs(d) z = Neg(a) y = Neg(z)", False),  # along another axis
        ("d = Concat <axis = 1> (second, first) a = Abs(d) z = Neg(a) y = Neg(z)", True),
    ],
)
def test_halves_that_stay(text: str, swaps: bool) -> None:
    model = _model(
        "g (float[6, 8] x) => (float[p, q] y, float[r, s] z) {"
        f" first = Slice(x, zero, half, last) second = Slice(x, half, end, last) {text} }}",
        **PLACES,
    )
    fused = _fuse(model)
    programs = b"".join(own.s for node in fusing.fused_nodes(fused) for own in node.attribute)
    assert (b" halves" in programs) == swaps
    _assert_same(model, fused, x=_array(6, 8))


@pytest.mark.parametrize(
    ("part", "operators"),
    [
        ("part = Slice(x, five, thirteen, last)", ["FusedElementwise"]),
        ("some = Slice(x, one, five, zero) all, part = Split <axis = 1> (some, sizes)", ["FusedElementwise"]),
        ("part = Slice(x, five, twenty, last, two)", ["Slice", "FusedElementwise"]),  # not side by side
    ],
)
def test_halves_of_a_part(part: str, operators: list[str]) -> None:
    model = _model(
        f"g (float[6, 20] x) => (float[p, 8] y) {{ {part}"
        " first = Slice(part, zero, half, last) second = Slice(part, half, end, last)"
        " d = Concat <axis = 1> (second, first) a = Abs(d) b = Add(a, part) y = Neg(b) }",
        **{"thirteen": [13], "twenty": [20], "sizes": [12, 8]},
        **PLACES,
    )
    fused = _fuse(model)
    assert [node.op_type for node in fused.graph.node] == operators
    _assert_same(model, fused, x=_array(6, 20))


def test_part_of_swapped_halves() -> None:
    model = _model(
        "g (float[6, 8] x) => (float[6, 2] y) {"
        " first = Slice(x, zero, half, last) second = Slice(x, half, end, last) d = Concat <axis = 1> (second, first)"
        " part = Slice(d, one, three, last) a = Abs(part) y = Neg(a) }",
        **PLACES,
    )
    _assert_same(model, _fuse(model), x=_array(6, 8))


@pytest.mark.parametrize(
    ("sizes", "sines"),
    [("float[2, 9]", "float[2, 9]"), ("float[2, 8]", "float[2, 1]"), ("float[2, d]", "float[2, d]")],
)
def test_rotary_embeddings_of_unknown_sizes_and_of_parts_that_are_no_halves(sizes: str, sines: str) -> None:
    model = _model(
        f"g ({sizes} x, {sines} s) => ({sizes} y) {{"
        " first = Slice(x, zero, half, last) second = Slice(x, half, end, last)"
        " m = Neg(second) r = Concat <axis = 1> (m, first) q = Mul(r, s) y = Abs(q) }",
        **PLACES,
    )
    feeds = {"x": _array(2, 9 if "9" in sizes else 8)}
    feeds["s"] = _array(2, 1) if sines.endswith("1]") else _array(*feeds["x"].shape)
    _assert_same(model, _optimized(model), **feeds)
