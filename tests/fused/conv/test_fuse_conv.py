"""Convolutions with their elementwise neighbours: what is taken in, what is left, and the same results."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import onnxfuse
from onnxfuse.cuda.conv.choice import RuleChooser
from onnxfuse.fused.choices import ConvPolicy
from onnxfuse.fused.conv.choosers import CudaChooser
from onnxfuse.fused.conv.fuse_conv import NO_NEIGHBOUR, FuseConv
from onnxfuse.fused.elementwise.fuse_elementwise import FuseElementwise
from onnxfuse.passes import PassContext
from onnxfuse.report.report import Report
from onnxfuse.shapes.inference import infer
from tests.support import fusing

ALL = RuleChooser(ConvPolicy.ALL)


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def model(text: str, opset: int = 20, **constants: np.ndarray) -> onnx.ModelProto:
    made = parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]>\n{text}')
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return made


def fuse(
    made: onnx.ModelProto, chooser: Any = ALL, rest: bool = False, prefer_nhwc: bool = False
) -> tuple[onnx.ModelProto, Report]:
    """The model with fused convolutions, and with ``rest`` other regions fused too."""
    loaded = onnxfuse.Model.from_proto(made)
    infer(loaded)
    context = PassContext(target="cuda", convolutions=CudaChooser(chooser or RuleChooser()), prefer_nhwc=prefer_nhwc)
    FuseConv().run(loaded, context)
    if rest:
        FuseElementwise().run(loaded, context)
    fused = loaded.to_proto()
    onnx.checker.check_model(fused, full_check=True)
    return fused, context.report


def regions(report: Report) -> list[str]:
    """The operators of each fused convolution."""
    return [" ".join(region.ops) for region in report.fused]


def why(report: Report, node: str) -> str:
    (found,) = (item for item in report.convolutions if item.node == node)
    assert not found.fused
    return found.reason


def assert_same(made: onnx.ModelProto, fused: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> None:
    """Without the library the nodes are their function bodies; with it the sums have their own order."""
    expected = fusing.run(made, feeds, library=False)
    for actual, wanted in zip(fusing.run(fused, feeds, library=False), expected, strict=True):
        assert fusing.same_bits(actual, wanted)
    for actual, wanted in zip(fusing.run(fused, feeds, library=True), expected, strict=True):
        fusing.assert_close(actual, wanted)


CHAIN = """g (float[n, 8, h, w] x) => (float[n, 8, hh, ww] y) {
    a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w1, b1) b = HardSwish(a)
    c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 8> (b, w2, b2) d = HardSwish(c)
    e = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d, w1) y = Add(e, x) }"""


def chain() -> onnx.ModelProto:
    return model(CHAIN, w1=array(8, 8, 3, 3), b1=array(8), w2=array(8, 1, 3, 3), b2=array(8))


def test_tails_are_taken_in_and_the_results_are_the_same() -> None:
    fused, report = fuse(chain())
    assert [node.op_type for node in fused.graph.node] == ["FusedConv", "FusedConv", "FusedConv_2"]
    assert regions(report) == ["Conv HardSwish", "Conv HardSwish", "Conv Add"]
    assert_same(chain(), fused, {"x": array(2, 8, 5, 7)})
    x = array(1, 8, 4, 4)
    (expected,) = fusing.run(chain(), {"x": x}, library=False)
    np.testing.assert_allclose(ReferenceEvaluator(fused).run(None, {"x": x})[0], expected, 1e-4, 1e-4)


def test_the_node_says_what_it_computes() -> None:
    fused, _ = fuse(chain())
    first, second, third = fused.graph.node
    assert (list(first.input), list(third.input)) == (["x", "w1", "b1"], ["d", "w1", "x"])
    found = {attribute.name: helper.get_attribute_value(attribute) for attribute in second.attribute}
    assert found.pop("program").decode() == (
        "onnxfuse 1\ninput f32 broadcast\ninput f32 axis 1\nadd f32 0 1\nhard_swish f32 2\noutput 3\n"
    )
    assert found == {
        "operator": b"Conv",
        "weight_shape": [8, 1, 3, 3],
        "kernel_shape": [3, 3],
        "strides": [1, 1],
        "dilations": [1, 1],
        "group": 8,
        "auto_pad": b"NOTSET",
        "pads": [1, 1, 1, 1],
    }
    assert {entry.key: entry.value for entry in second.metadata_props}["onnxfuse.nodes"] == "Conv,HardSwish"
    for node, function in zip(fused.graph.node[1:], fused.functions, strict=True):
        assert (function.name, function.overload) == (node.op_type, node.overload)
        assert set(function.attribute) == {attribute.name for attribute in node.attribute}


def test_equal_convolutions_share_a_function() -> None:
    made = model(
        "g (float[1, 4, 9] x) => (float[1, 4, 9] y) { a = Conv <pads = [1, 1]> (x, w) b = Relu(a)"
        " c = Conv <pads = [1, 1]> (b, w) y = Relu(c) }",
        w=array(4, 4, 3),
    )
    fused, _ = fuse(made)
    assert len(fused.functions) == 1 and [node.op_type for node in fused.graph.node] == ["FusedConv"] * 2
    assert_same(made, fused, {"x": array(1, 4, 9)})


def test_by_the_rule_only_depthwise_ones_are_taken_with_the_cheap_work_before_them() -> None:
    fused, report = fuse(chain(), None, rest=True)
    assert [node.op_type for node in fused.graph.node] == ["Conv", "FusedConv", "Conv", "Add"]
    assert regions(report) == ["HardSwish Conv HardSwish"]
    assert report.fused[0].prologue == "onnxfuse 1\ninput f32 broadcast\nhard_swish f32 0\noutput 1\n"
    assert [item.fused for item in report.convolutions] == [False, True, False]
    assert "cuDNN is hard to beat" in why(report, "a")
    assert_same(chain(), fused, {"x": array(1, 8, 6, 5)})


@pytest.mark.parametrize(
    ("inputs", "prefer_nhwc", "fused"), [("x, w, b", False, 1), ("x, w, b", True, 0), ("x, w", False, 0)]
)
def test_a_bias_is_a_neighbour_in_the_default_layout(inputs: str, prefer_nhwc: bool, fused: int) -> None:
    """ONNX Runtime adds it in a kernel of its own."""
    made = model(
        "g (float[n, 8, h, w] x) => (float[n, 8, hh, ww] y)"
        f" {{ c = Conv <kernel_shape = [3, 3], group = 8> ({inputs}) y = MaxPool <kernel_shape = [1, 1]> (c) }}",
        w=array(8, 1, 3, 3),
        b=array(8),
    )
    after, report = fuse(made, None, prefer_nhwc=prefer_nhwc)
    assert len(report.fused) == fused
    assert_same(made, after, {"x": array(1, 8, 6, 5)})


def test_none_are_taken_if_none_are_asked_for() -> None:
    fused, report = fuse(chain(), RuleChooser(ConvPolicy.NONE))
    assert not fused.functions and {item.reason for item in report.convolutions} == {"none were asked for"}


CASES = {
    "1-D": ("[1, 4, 20]", "Conv <strides = [2], pads = [2, 1], dilations = [2]>", (6, 4, 3), "Relu Sqrt"),
    "3-D in groups": ("[2, 4, 5, 6, 7]", 'Conv <group = 2, auto_pad = "SAME_UPPER">', (6, 2, 3, 3, 3), "Sigmoid Neg"),
    "three groups in strips": ("[1, 72, 28, 28]", "Conv <group = 3, pads = [1, 1, 1, 1]>", (72, 24, 3, 3), "Tanh Abs"),
    "same, strided": ("[1, 3, 7, 8]", 'Conv <strides = [2, 2], auto_pad = "SAME_LOWER">', (5, 3, 4, 4), "Tanh Abs"),
    "same, skipping": ("[1, 3, 8, 9]", 'Conv <strides = [3, 2], auto_pad = "SAME_UPPER">', (5, 3, 1, 1), "Tanh Abs"),
    "valid": ("[1, 3, 9, 9]", 'Conv <auto_pad = "VALID">', (5, 3, 3, 3), "Elu"),
    "transposed": (
        "[1, 4, 5, 5]",
        "ConvTranspose <strides = [2, 2], pads = [1, 1, 0, 1], output_padding = [1, 0], group = 2>",
        (4, 3, 3, 3),
        "HardSigmoid",
    ),
    "transposed, valid": ("[1, 4, 5]", 'ConvTranspose <auto_pad = "VALID">', (4, 3, 3), "Relu"),
}


@pytest.mark.parametrize("name", CASES)
def test_kinds_of_convolutions(name: str) -> None:
    shape, conv, weights, tail = CASES[name]
    body, last = f"a = {conv} (x, w)", "a"
    for index, op in enumerate(tail.split()):
        body, last = f"{body} t{index} = {op}({last})", f"t{index}"
    made = model(
        f"g (float{shape} x) => (float{[f'd{i}' for i in range(len(weights))]} {last}) {{ {body} }}".replace("'", ""),
        w=array(*weights),
    )
    fused, report = fuse(made)
    assert regions(report) == [f"{conv.split()[0]} {tail}"]
    dims = [int(dim) for dim in shape.strip("[]").split(",")]
    assert_same(made, fused, {"x": array(*dims)})


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18, 22, 24])
def test_all_opsets(opset: int) -> None:
    """Also constants of the tail, which are part of the function's body."""
    made = model(
        "g (float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) { a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1],"
        " group = 4> (x, w, b) c = Mul(a, k) d = LeakyRelu <alpha = 0.2> (c) y = Add(d, x) }",
        opset,
        w=array(4, 1, 3, 3),
        b=array(4),
        k=np.float32(0.3).reshape(()),
    )
    fused, report = fuse(made)
    assert regions(report) == ["Conv Mul LeakyRelu Add"]
    assert_same(made, fused, {"x": array(1, 4, 6, 6)})


@pytest.mark.parametrize(
    ("dtype", "name", "opset"), [(np.float16, "float16", 20), (ml_dtypes.bfloat16, "bfloat16", 22)]
)
def test_half_types(dtype: Any, name: str, opset: int) -> None:
    made = model(
        f"g ({name}[1, 4, 6] x) => ({name}[1, 4, 6] y) {{ a = Conv <pads = [1, 1]> (x, w, b) y = Relu(a) }}",
        opset,
        w=array(4, 4, 3, dtype=dtype),
        b=array(4, dtype=dtype),
    )
    fused, report = fuse(made)
    assert regions(report) == ["Conv Relu"]
    if dtype is np.float16:  # ONNX Runtime has no convolution of bfloat16 on the CPU
        assert_same(made, fused, {"x": array(1, 4, 6, dtype=dtype)})


def test_several_outputs_the_raw_result_and_another_type() -> None:
    made = model(
        "g (float[2, 4, 6, 6] x) => (float[2, 4, 6, 6] a, uint8[2, 4, 6, 6] q, float[2, 4, 1, 1] p) {"
        " a = Conv (x, w, b) r = Relu(a) p = GlobalAveragePool(r) s = Add(r, x) q = QuantizeLinear(s, scale, zero) }",
        w=array(4, 4, 1, 1),
        b=array(4),
        scale=np.float32(0.05),
        zero=np.uint8(3),
    )
    fused, report = fuse(made)
    assert regions(report) == ["Conv Relu Add QuantizeLinear"]
    assert report.fused[0].outputs == ["a", "r", "q"]
    assert_same(made, fused, {"x": array(2, 4, 6, 6)})


def test_batch_normalization_gates_and_what_stands_beside_the_tail() -> None:
    made = model(
        "g (float[2, 4, 6, 6] x, float[2, 4, 1, 1] gate, float[2, 4, 6, 6] r) => (float[2, 4, 6, 6] y) {"
        " a = Conv (x, w) n = BatchNormalization(a, s, s, s, v) h = HardSigmoid(gate) z = Sigmoid(gate) e = Exp(r)"
        " m = Mul(n, h) o = Mul(m, z) y = Add(o, e) }",
        w=array(4, 4, 1, 1),
        s=array(4),
        v=np.abs(array(4)),
    )
    fused, report = fuse(made)
    # A sigmoid for each channel is not worth one for each element.
    assert regions(report) == ["Conv HardSigmoid Exp BatchNormalization Mul Mul Add"]
    assert_same(made, fused, {"x": array(2, 4, 6, 6), "gate": array(2, 4, 1, 1), "r": array(2, 4, 6, 6)})


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("y = Add(a, big)", ""),  # a batch of one becomes two
        ("r = Relu(a) y = Add(r, big)", "Conv Relu"),
        ("y = Add(a, long)", ""),  # a dimension more
        ("r = Relu(a) s = Shape(r) t = Cast <to = 1> (s) u = Expand(r, s) y = Neg(u)", "Conv Relu"),
    ],
)
def test_a_tail_does_not_enlarge_the_result(tail: str, expected: str) -> None:
    made = model(
        "g (float[1, 4, h, w] x, float[2, 4, h, w] big, float[3, 1, 1, 1, 1] long) => (float[k, m] z)"
        f" {{ a = Conv (x, w) {tail} z = Flatten <axis = 0> (y) }}",
        w=array(4, 4, 1, 1),
    )
    _, report = fuse(made)
    assert regions(report) == ([expected] if expected else [])
    if not expected:
        assert why(report, "a") == NO_NEIGHBOUR


def test_a_residual_of_unknown_sizes_is_taken_if_the_sizes_must_be_equal() -> None:
    """Shape inference has a name of its own for every size that a convolution computes."""
    block = """g (float[n, 4, h, w] x) => (float[n, 4, a0, b0] y) {{
        s = Conv <kernel_shape = [1, 1], strides = [2, 2]> (x, w1)
        c = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = {pads}> (x, w3)
        r = Relu(c) d = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r, w3)
        t = Add(d, s) y = Relu(t) }}"""
    constants = {"w1": array(4, 4, 1, 1), "w3": array(4, 4, 3, 3)}
    made = model(block.format(pads="[1, 1, 1, 1]"), **constants)
    fused, report = fuse(made)
    assert regions(report) == ["Conv Relu", "Conv Add Relu"]
    assert_same(made, fused, {"x": array(2, 4, 7, 10)})
    _, report = fuse(model(block.format(pads="[1, 1, 0, 0]"), **constants))
    assert regions(report) == ["Conv Relu"]  # 7 rows become 3 and 4, 8 become 4 and 4


def test_what_takes_the_type_of_a_result_alone_is_no_tail() -> None:
    """The result of CastLike has the shape of its first input, and a computed one has no other way into the region."""
    made = model(
        "g (float[1, 1, 1, 1] x, float[1, 1, 1, 1] other) => (bool[1, 1, 1, 1] y, float[1, 4, 1, 1] z) {"
        " a = Conv <pads = [1, 1, 1, 1]> (x, w) t = CastLike(other, a) y = Cast <to = 9> (t)"
        " c = Conv <pads = [1, 1, 1, 1]> (x, w) u = CastLike(c, other) z = Relu(u) }",
        w=array(4, 1, 3, 3),
    )
    fused, report = fuse(made)
    assert regions(report) == ["Conv CastLike Relu"]
    assert_same(made, fused, {"x": array(1, 1, 1, 1), "other": array(1, 1, 1, 1)})


def test_windows_that_end_otherwise_where_sizes_are_rounded_up_are_of_other_sizes() -> None:
    """The last window has to begin before the padding behind the image: of two rows and columns p has two, q one."""
    made = model(
        "g (float[1, 4, h, w] x) => (float[1, 4, hh, ww] y) {"
        " p = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1> (x)"
        " q = MaxPool <kernel_shape = [1, 1], strides = [2, 2], ceil_mode = 1> (x)"
        " c = Conv <group = 4> (q, w) r = Relu(c) y = Add(r, p) }",
        w=array(4, 1, 1, 1),
    )
    fused, report = fuse(made)
    assert regions(report) == ["Conv Relu"]
    assert_same(made, fused, {"x": array(1, 4, 2, 2)})


def test_two_regions_do_not_wait_for_each_other() -> None:
    made = model(
        "g (float[1, 4, 6] x) => (float[1, 4, 6] y, float[1, 4, 6] z) { a = Conv (x, w) b = Conv (x, v)"
        " p = Relu(a) q = Relu(b) y = Add(p, b) z = Add(a, q) }",
        w=array(4, 4, 1),
        v=array(4, 4, 1),
    )
    fused, report = fuse(made)  # raises for a cycle
    assert regions(report) == ["Conv Relu", "Conv Relu Add Add"]
    assert_same(made, fused, {"x": array(1, 4, 6)})


def test_a_path_that_leaves_the_tail_does_not_come_back() -> None:
    """A squeeze-and-excite block: the gate is computed from what it gates."""
    made = model(
        "g (float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) { a = Conv <pads = [1, 1, 1, 1], group = 4> (x, w)"
        " r = Relu(a) p = GlobalAveragePool(r) h = HardSigmoid(p) m = Mul(r, h) y = Conv (m, v) }",
        w=array(4, 1, 3, 3),
        v=array(4, 4, 1, 1),
    )
    fused, report = fuse(made)
    assert regions(report) == ["Conv Relu", "HardSigmoid Mul Conv"]
    assert report.fused[1].inputs == ["r", "v", "p"]
    assert_same(made, fused, {"x": array(1, 4, 6, 6)})


@pytest.mark.parametrize(
    ("before", "taken"),
    [
        ("b = Relu(x)", "Relu"),
        ("b = Add(x, k)", "Add"),
        ("t = Relu(x) b = Mul(t, x)", "Relu Mul"),
        ("b = Exp(x)", ""),  # dear
        ("b = Add(k1, gate)", ""),  # nothing of the shape of the input
        ("b = Relu(x) z = Neg(b)", ""),  # read elsewhere
        ("t = Cast <to = 10> (x) b = Cast <to = 1> (t)", "Cast Cast"),
        ("b = Add(x, gate)", "Add"),
    ],
)
def test_what_stands_before(before: str, taken: str) -> None:
    outputs = "float[1, 4, 6] y" + (", float[1, 4, 6] z" if "z =" in before else "")
    made = model(
        f"g (float[1, 4, 6] x, float[1, 4, 1] gate) => ({outputs}) {{ {before} a = Conv (b, w) y = Sqrt(a) }}",
        w=array(4, 4, 1),
        k=array(4, 1),
        k1=array(4, 6),
    )
    fused, report = fuse(made)
    assert regions(report) == [f"{taken} Conv Sqrt".strip()]
    assert_same(made, fused, {"x": array(1, 4, 6), "gate": array(1, 4, 1)})


def test_padding_is_zero_after_the_prologue() -> None:
    made = model(
        "g (float[1, 2, 5] x) => (float[1, 2, 5] y) { b = Add(x, one) a = Conv <pads = [1, 1]> (b, w) y = Relu(a) }",
        w=array(2, 2, 3),
        one=np.float32(1),
    )
    fused, report = fuse(made)
    assert regions(report) == ["Add Conv Relu"]
    assert_same(made, fused, {"x": array(1, 2, 5)})


REFUSALS: Sequence[tuple[str, str]] = [
    ("g (double[1, 4, 6] x, double[4, 4, 1] w) => (double[1, 4, 6] y) { a = Conv (x, w) y = Relu(a) }", "this type"),
    ("g (float[1, 4, 6] x, float[m, 4, 1] w) => (float[1, 4, 6] y) { a = Conv (x, w) y = Relu(a) }", "its weights"),
    (
        "g (float[6] v, int64[r] s, float[4, 4, 1] w) => (float[k, l] y)"
        " { x = Reshape (v, s) a = Conv (x, w) b = Relu(a) y = Flatten (b) }",
        "its rank is not known",
    ),
    (
        "g (float[1, 4, 2, 2, 2, 2] x, float[4, 4, 1, 1, 1, 1] w) => (float[1, 4, 2, 2, 2, 2] y)"
        " { a = Conv (x, w) y = Relu(a) }",
        "4 spatial dimensions",
    ),
    (
        "g (float[1, 4, 6] x, float[4, 4, 2] w) => (float[1, 4, 12] y)"
        " { a = ConvTranspose <output_shape = [12], strides = [2]> (x, w) y = Relu(a) }",
        "the size of its output is given",
    ),
    (
        "g (float[1, 4, 6] x, float[4, 4, 2] w) => (float[1, 4, 12] y)"
        ' { a = ConvTranspose <auto_pad = "SAME_UPPER", strides = [2]> (x, w) y = Relu(a) }',
        "follows from the size",
    ),
    (
        "g (float[1, 4, 8] x, float[4, 4, 1] w) => (float[1, 4, 2] y)"
        ' { a = Conv <auto_pad = "SAME_UPPER", strides = [4]> (x, w) y = Relu(a) }',
        "begins inside of the image",
    ),
    (
        "g (float[1, 4, 6] x, float[4, 4, 1] w, float[m] b) => (float[1, 4, 6] y) { a = Conv (x, w, b) y = Relu(a) }",
        "bias",
    ),
    ("g (float[1, 4, 6] x, float[4, 4, 1] w) => (float[1, 4, 6] y) { a = Conv (x, w) y = Softmax(a) }", NO_NEIGHBOUR),
    ("g (float[1, 4, 6] x, float[4, 4, 1] w) => (float[1, 4, 6] a) { a = Conv (x, w) }", NO_NEIGHBOUR),
]
