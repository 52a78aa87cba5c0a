"""Regions of elementwise nodes that read and write through views."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import onnxfuse
from onnxfuse.fused.elementwise.fuse_elementwise import FuseElementwise
from onnxfuse.fused.space.blocks import Block, Blocks
from onnxfuse.passes import PassContext
from onnxfuse.shapes.inference import infer
from tests.support import fusing


def fuse(
    text: str, target: str = "cpu", **constants: object
) -> tuple[onnx.ModelProto, onnx.ModelProto, onnxfuse.Report]:
    """A model in ONNX's text syntax with initializers, of int64 for lists, the same fused, and the report."""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 21]>\n{text}')
    for name, value in constants.items():
        array = value if isinstance(value, np.ndarray) else np.array(value, np.int64)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    loaded = onnxfuse.Model.from_proto(model)
    infer(loaded)
    context = PassContext(target=target)
    FuseElementwise().run(loaded, context)
    fused = loaded.to_proto()
    onnx.checker.check_model(fused, full_check=True)
    return model, fused, context.report


def operators(model: onnx.ModelProto) -> list[str]:
    """The operators of its nodes."""
    return [node.op_type.partition("_")[0] for node in model.graph.node]


def programs(model: onnx.ModelProto) -> str:
    """The Programs of its nodes."""
    return "".join(attribute.s.decode() for node in model.graph.node for attribute in node.attribute if attribute.s)


def assert_same(model: onnx.ModelProto, fused: onnx.ModelProto, *shapes: tuple[int, ...]) -> None:
    """With the library and without, and in the reference: the bits of the unfused model."""
    random = np.random.default_rng(0)
    feeds = {
        value.name: random.normal(size=shape).astype(np.float32)
        for value, shape in zip(model.graph.input, shapes, strict=True)
    }
    expected = fusing.run(model, feeds, library=False)
    results = [fusing.run(fused, feeds, library) for library in (False, True)]
    for found in (*results, ReferenceEvaluator(fused).run(None, feeds)):
        for actual, wanted in zip(found, expected, strict=True):
            assert fusing.same_bits(actual, wanted)


ONE_NODE = {
    "transpose before": (
        "g (float[n, 24, 16] x, float[n, 16, 24] r) => (float[n, 16, 24] y) {"
        " t = Transpose <perm = [0, 2, 1]> (x) a = Relu(t) y = Add(a, r) }",
        [(2, 24, 16), (2, 16, 24)],
    ),
    "transpose behind": (
        "g (float[2, 24, 16] x) => (float[16, 2, 24] y) { a = Relu(x) y = Transpose <perm = [2, 0, 1]> (a) }",
        [(2, 24, 16)],
    ),
    "reshape between": (
        "g (float[n, 24, 16] x, float[n, 24, 4, 4] r) => (float[n, 24, 4, 4] y) {"
        " a = Relu(x) b = Reshape(a, images) y = Mul(b, r) }",
        [(2, 24, 16), (2, 24, 4, 4)],
    ),
    "channel shuffle": (
        "g (float[2, 8, 5, 9] x) => (float[2, 8, 5, 9] y) { a = Relu(x) b = Reshape(a, groups)"
        " c = Transpose <perm = [0, 2, 1, 3, 4]> (b) d = Reshape(c, joined) y = Neg(d) }",
        [(2, 8, 5, 9)],
    ),
    "pixel shuffle": (
        "g (float[n, 12, h, w] x) => (float[n, 3, p, q] y) {"
        " a = Relu(x) b = DepthToSpace <blocksize = 2> (a) y = Neg(b) }",
        [(2, 12, 4, 5)],
    ),
    "pixel shuffle, channels first": (
        'g (float[n, 12, h, w] x) => (float[n, 3, p, q] y) { b = DepthToSpace <blocksize = 2, mode = "CRD"> (x)'
        " y = Neg(b) }",
        [(2, 12, 4, 5)],
    ),
    "space to depth, written out": (
        "g (float[n, 3, 8, 10] x) => (float[n, 12, 4, 5] y) { a = Neg(x) b = Reshape(a, blocks)"
        " c = Transpose <perm = [0, 3, 5, 1, 2, 4]> (b) d = Reshape(c, rows) y = Abs(d) }",
        [(2, 3, 8, 10)],
    ),
    "parts of a transposed tensor": (
        "g (float[2, 5, 3, 8] x) => (float[2, 3, 5, 4] y) { t = Transpose <perm = [0, 2, 1, 3]> (x)"
        " a, b = Split <axis = 3, num_outputs = 2> (t) c = Neg(a) y = Mul(b, c) }",
        [(2, 5, 3, 8)],
    ),
    "every other element of a transposed tensor": (
        "g (float[36, 50] x) => (float[50, 18] y) { t = Transpose(x) a = Slice(t, zero, end, one, two) y = Neg(a) }",
        [(36, 50)],
    ),
    "even places": (
        "g (float[n, 8, 5] x) => (float[n, 3, 5] y) { a = Gather <axis = 1> (x, places) y = Neg(a) }",
        [(2, 8, 5)],
    ),
    "repeated": (
        "g (float[2, 1, 8] x, float[2, 3, 8] b) => (float[2, 3, 8] y) {"
        " a = Relu(x) e = Expand(a, shape) y = Mul(e, b) }",
        [(2, 1, 8), (2, 3, 8)],
    ),
    "repeated as a whole": (
        "g (float[n, 1, 4, 8] x, float[n, 3, 8, 8] b) => (float[n, 3, 8, 8] y) {"
        " a = Relu(x) e = Tile(a, counts) y = Mul(e, b) }",
        [(2, 1, 4, 8), (2, 3, 8, 8)],
    ),
    "a view of two branches": (
        "g (float[16, 18] x) => (float[18, 16] y, float[18, 16] z) {"
        " a = Relu(x) t = Transpose(a) y = Neg(t) z = Abs(t) }",
        [(16, 18)],
    ),
}


@pytest.mark.parametrize("name", ONE_NODE)
def test_becomes_one_node(name: str) -> None:
    text, shapes = ONE_NODE[name]
    model, fused, _ = fuse(
        text,
        images=[0, 24, 4, 4],
        groups=[0, 2, 4, 5, 9],
        joined=[0, 8, 5, 9],
        blocks=[0, 3, 4, 2, 5, 2],
        rows=[0, 12, 4, 5],
        shape=[2, 3, 8],
        counts=[1, 3, 2, 1],
        places=[-7, 4, 7],
        zero=[0],
        end=[36],
        one=[1],
        two=[2],
    )
    assert operators(fused) == ["FusedElementwise"]
    assert_same(model, fused, *shapes)


def test_parts_of_one_tensor_are_read_where_they_lie() -> None:
    model, fused, _ = fuse(
        "g (float[n, 5, 24] x) => (float[n, 5, 8] y) { s = Reshape(x, shape) q = Gather <axis = 2> (s, first)"
        " k = Gather <axis = 2> (s, last) c = Neg(q) y = Mul(k, c) }",
        shape=[0, 5, 3, 8],
        first=np.array(0, np.int64),
        last=np.array(-1, np.int64),
    )
    assert operators(fused) == ["Reshape", "FusedElementwise"]
    assert "view slice:-2:2:3:1,squeeze:-2" in programs(fused)
    assert_same(model, fused, (2, 5, 24))


@pytest.mark.parametrize(
    ("text", "expected", "reason"),
    [
        (  # two results in different orders
            "g (float[16, 18] x) => (float[18, 16] y, float[16, 18] z) { a = Relu(x) b = Abs(a)"
            " t = Transpose(b) y = Neg(t) z = Neg(b) }",
            ["FusedElementwise", "FusedElementwise"],  # the Transpose and what is behind it
            "",
        ),
        (  # transposed by the product
            "g (float[2, 6] x, float[2, 5] w) => (float[6, 5] y) { a = Relu(x) b = Abs(a) t = Transpose(b)"
            " y = MatMul(t, w) }",
            ["Transpose", "FusedElementwise", "MatMul"],
            "matrix product",
        ),
        (  # in memory for another
            "g (float[2, 6] x, float[2, 5] w) => (float[6, 2] y, float[6] z) { t = Transpose(x) a = Relu(t) y = Abs(a)"
            " z = ReduceSum <keepdims = 0> (t, one) }",
            ["Transpose", "ReduceSum", "FusedElementwise"],
            "read by others too",
        ),
        (  # with a fast kernel
            "g (float[1, 3, 8, 10] x) => (float[1, 12, 4, 5] y) { a = SpaceToDepth <blocksize = 2> (x) b = Relu(a)"
            " y = Abs(b) }",
            ["SpaceToDepth", "FusedElementwise"],
            "as fast",
        ),
        (  # along several dimensions
            "g (float[2, 3] x, float[4, 6] b) => (float[4, 6] y) { e = Tile(x, counts) a = Relu(e) y = Mul(a, b) }",
            ["Tile", "FusedElementwise"],
            "as fast",
        ),
        (  # nothing to compute
            "g (float[2, 6] x) => (float[6, 2] y) { y = Transpose(x) }",
            ["Transpose"],
            "",
        ),
        (  # a part of what is computed
            "g (float[2, 6] x) => (float[2, 3] y) { a = Relu(x) b = Abs(a) y = Slice(b, zero, three, one) }",
            ["FusedElementwise", "Slice"],
            "a part of what is computed",
        ),
        (  # repeated results
            "g (float[2, 1] x) => (float[2, 6] y) { a = Relu(x) b = Abs(a) y = Expand(b, shape) }",
            ["FusedElementwise", "Expand"],
            "repeats",
        ),
        (  # long rows
            "g (float[5000, 30] x) => (float[30, 5000] y) { t = Transpose(x) a = Relu(t) y = Abs(a) }",
            ["Transpose", "FusedElementwise"],
            "faster",
        ),
        (  # an image of few channels
            "g (float[1, 3, 40, 50] x) => (float[1, 40, 50, 3] y) { t = Transpose <perm = [0, 2, 3, 1]> (x)"
            " a = Relu(t) y = Abs(a) }",
            ["Transpose", "FusedElementwise"],
            "faster",
        ),
    ],
)
def test_what_is_left_to_onnx_runtime(text: str, expected: list[str], reason: str) -> None:
    _, fused, report = fuse(text, one=[1], zero=[0], three=[3], shape=[2, 6], counts=[2, 2])
    assert sorted(operators(fused)) == sorted(expected)
    assert reason in " ".join(refusal.reason for refusal in report.refusals)


@pytest.mark.parametrize(
    ("text", "shapes", "expected"),
    [
        (  # heads
            "g (float[n, 9, 2, 8] x) => (float[n, 2, 9, 8] y) { a = Relu(x) b = Abs(a)"
            " y = Transpose <perm = [0, 2, 1, 3]> (b) }",
            [(2, 9, 2, 8)],
            ["FusedElementwise"],
        ),
        (*ONE_NODE["reshape between"], ["FusedElementwise"]),
        (*ONE_NODE["repeated"], ["FusedElementwise"]),
        (  # turned in shared memory
            "g (float[16, 18] x) => (float[18, 16] y) { a = Relu(x) b = Abs(a) y = Transpose(b) }",
            [(16, 18)],
            ["FusedElementwise"],
        ),
        (  # not one space: each a part of one launch
            "g (float[8, 3] x) => (float[6, 3] y, float[2, 3] z) { a, b = Split <axis = 0> (x, halves) c = Abs(a)"
            " y = Neg(c) d = Abs(b) z = Neg(d) }",
            [(8, 3)],
            ["FusedElementwise", "Split"],
        ),
    ],
)
def test_kernels_for_cuda(text: str, shapes: list[tuple[int, ...]], expected: list[str]) -> None:
    model, fused, _ = fuse(text, "cuda", images=[0, 24, 4, 4], shape=[2, 3, 8], halves=[6, 2])
    assert sorted(operators(fused)) == expected
    assert_same(model, fused, *shapes)


def test_what_nothing_reads_is_no_region() -> None:
    _, fused, _ = fuse("g (float[16, 18] x) => (float[16, 18] y) { a = Relu(x) t = Transpose(a) y = Abs(x) }")
    assert "Transpose" in operators(fused)


def test_two_regions_that_views_join_do_not_wait_for_each_other() -> None:
    """The sum reads what a running sum of the first gives: they are apart, though a Transpose is between."""
    model, fused, _ = fuse(
        "g (float[4, 6] x) => (float[6, 4] y) { a = Abs(x) b = Neg(a) s = CumSum(b, axis) t = Transpose(b)"
        " u = Transpose(s) c = Add(t, u) y = Neg(c) }",
        axis=np.array(1, np.int32),
    )
    assert operators(fused).count("CumSum") == 1
    assert_same(model, fused, (4, 6))


@pytest.mark.parametrize(("opset", "is_fused"), [(8, False), (9, True)])
def test_a_body_before_opset_9_has_no_constants_of_integers(opset: int, is_fused: bool) -> None:
    text = "g (float[3, 4, 5] x) => (float[3, 1, 5] y) { p = Gather <axis = 1> (x, one) y = Relu(p) }"
    model = parser.parse_model(f'<ir_version: 4, opset_import: ["" : {opset}]>\n{text}')
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    loaded = onnxfuse.Model.from_proto(model)
    infer(loaded)
    FuseElementwise().run(loaded, PassContext(everything=True))
    fused = loaded.to_proto()
    assert (operators(fused) == ["FusedElementwise"]) == is_fused
    fusing.run(fused, {"x": np.zeros((3, 4, 5), np.float32)}, library=False)


def test_what_is_read_for_its_type_alone_is_no_view() -> None:
    text = (
        "g (float[2, 3] x, float16[2, 2, 5] t) => (float16[2, 3] y) { v = Transpose(t) n = Neg(x) y = CastLike(n, v) }"
    )
    model, fused, _ = fuse(text)
    assert sorted(operators(fused)) == ["FusedElementwise", "Transpose"]
    feeds = {"x": np.ones((2, 3), np.float32), "t": np.ones((2, 2, 5), np.float16)}
    np.testing.assert_array_equal(*(fusing.run(one, feeds, library=one is fused)[0] for one in (model, fused)))


def test_a_view_that_is_read_for_its_type_alone_is_not_computed() -> None:
    text = "g (uint64[1] x, uint64[5] t) => (uint64[1] y) { v = Gather(t, last) y = CastLike(x, v) }"
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 19]>\n{text}')
    model.graph.initializer.append(numpy_helper.from_array(np.array([4]), "last"))
    fused = onnxfuse.optimize(model, "cpu", check=False).model
    feeds = {"x": np.array([7], np.uint64), "t": np.arange(5, dtype=np.uint64)}
    for library in (True, False):
        np.testing.assert_array_equal(fusing.run(fused, feeds, library=library)[0], feeds["x"])


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_region_does_not_wait_for_halves_that_wait_for_it(target: str) -> None:
    """What is on both sides of the Reshape makes what changes places and reads the CumSum of what that is added to."""
    model, fused, report = fuse(
        "g (float[4, 6, 8] p, float[4, 6, 8] q) => (float[4, 6, 8] y, float[24, 8] z) {"
        " a = Relu(p) b = CumSum(a, last) low, high = Split <axis = -1, num_outputs = 2> (b)"
        " turned = Concat <axis = -1> (high, low) c = Mul(turned, b)"
        " q1 = CumSum(q, last) q2 = CumSum(q1, last) q3 = CumSum(q2, last) q4 = CumSum(q3, last) d = Abs(q4)"
        " e = Add(c, d) y = Neg(e)"
        " f = CumSum(d, last) g = Reshape(f, rows) v = Reshape(a, rows) h = Add(v, g) z = Neg(h) }",
        target,
        rows=[24, 8],
        last=2,
    )
    assert ["Split", "Concat", "Mul", "Abs", "Add", "Neg"] in [region.ops for region in report.fused]
    if target == "cpu":
        assert_same(model, fused, (4, 6, 8), (4, 6, 8))


def test_of_a_long_chain_of_views_few_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of regions that are tried, of chains one twice as long as the other."""
    counts = []
    joined = Blocks.joined

    def counted(self: Blocks, blocks: Sequence[Block]) -> Block | None:
        nonlocal nodes
        nodes += sum(len(block.nodes) for block in blocks)
        return joined(self, blocks)

    monkeypatch.setattr(Blocks, "joined", counted)
    for length in (600, 1200):
        nodes = 0
        chain = " ".join(f"s{place + 1} = Slice(s{place}, zero, end, zero)" for place in range(length))
        fuse(f"g (float[4, 9] x) => (float[a, b] y) {{ s0 = Relu(x) {chain} y = Neg(s{length}) }}", zero=[0], end=[4])
        counts.append(nodes)
    assert 0 < counts[1] <= 1.1 * counts[0]
