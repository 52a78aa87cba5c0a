"""Which convolutions the library computes on the CPU, and that the results are the same."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnxfuse
from onnxfuse import cpu
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.conv import conv_figures, conv_times
from onnxfuse.fused.conv.conv_figures import Layout
from onnxfuse.fused.conv.cpu_convolutions import WEIGHED_BEFORE
from onnxfuse.fused.elementwise.fuse_elementwise import UNUSED
from onnxfuse.fused.likely_shapes import LikelyShapes
from onnxfuse.ort import ort_layout
from onnxfuse.shapes.inference import infer
from tests.support import fusing

BETWEEN = """g (float[1, 96, 160, 160] a, float[1, 96, 160, 160] b) => (float[1, 12, 160, 160] y) {
    x = Mul(a, b) c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w) p = GlobalAveragePool(c)
    s = Sigmoid(p) y = Mul(c, s) }"""
"""A convolution whose channels ONNX Runtime would fill up, between nodes that know the plain layout alone."""

RESIDUAL = """g (float[1, 64, 56, 56] x) => (float[1, 64, 56, 56] y) {
    a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w) b = Relu(a)
    c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (b, w) d = Add(c, a) e = Relu(d)
    f = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (e, w) g = Relu(f)
    h = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (g, w) i = Add(h, e) y = Relu(i) }"""

LEARNED = """g (float[n, 8, h, w] x) => (float[n, 8, hh, ww] y) {
    a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 8> (x, v, bias) b = HardSwish(a) c = Mul(b, s1)
    d = Add(c, o1) e = Conv <kernel_shape = [1, 1]> (d, w1, bias) f = HardSwish(e) k = Mul(f, s2) l = Add(k, o2)
    p = GlobalAveragePool(l) q = Conv <kernel_shape = [1, 1]> (p, w1) r = HardSigmoid(q) t = Mul(l, r)
    y = Conv <kernel_shape = [1, 1]> (t, w1, bias) }"""


@pytest.fixture(params=[8, 16], ids=["blocks of 8", "blocks of 16"], autouse=True)
def _block_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice depends on how many channels are in a block, which differs from processor to processor."""
    for module in (conv_times, ort_layout):
        monkeypatch.setattr(module, "block_size", lambda: request.param)


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    scale = 1 / np.sqrt(max(np.prod(shape[1:]), 1))
    return (np.random.default_rng(sum(shape)).normal(size=shape) * scale).astype(dtype)


def model(text: str, opset: int = 20, **constants: np.ndarray) -> onnx.ModelProto:
    made = parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}')
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return made


def learned() -> onnx.ModelProto:
    scalars = {name: np.float32(value) for name, value in (("s1", 1.5), ("o1", 0.25), ("s2", 0.75), ("o2", -0.5))}
    return model(LEARNED, v=array(8, 1, 3, 3), w1=array(8, 8, 1, 1), bias=array(8), **scalars)


def reasons(result: onnxfuse.Result) -> list[tuple[bool, str]]:
    return [(item.fused, item.reason) for item in result.report.convolutions]


def operators(result: onnxfuse.Result) -> list[str]:
    return [node.op_type.split("_")[0] for node in result.model.graph.node]


def test_a_convolution_between_plain_nodes_is_the_librarys() -> None:
    made = model(BETWEEN, w=array(12, 96, 3, 3))
    result = onnxfuse.optimize(made, "cpu", shapes={})
    assert "FusedConv" in operators(result)
    ((fused, reason),) = reasons(result)
    assert fused and "plain layout" in reason


@pytest.mark.parametrize(
    ("text", "short"),
    [
        *[(text, True) for text in ("Clip(x, k, k)", "Max(x, k)", "Abs(x)", "Sqrt(x)", "Identity(x)", "Pow(x, k)")],
        *[(text, False) for text in ("Sigmoid(x)", "Pow(x, x)", "Elu(x)", "Celu(x)", "Div(x, k)")],
        ("Mod(x, x)", False),  # which floats have not
    ],
)
def test_a_node_is_short_in_a_tail_if_each_of_its_instructions_is(text: str, short: bool) -> None:
    loaded = onnxfuse.Model.from_proto(model(f"g (float[4] x) => (float[4] y) {{ y = {text} }}", k=np.array(2, "f")))
    infer(loaded)
    (node,) = loaded.graph.nodes
    assert conv_times.is_short(node, 20) == short


@pytest.mark.parametrize("policy", ["auto", "all"])
def test_a_convolution_that_nobody_reads_is_left_alone(policy: str) -> None:
    text = "g (float[1, 8, 9, 9] x) => (float[1, 8, 9, 9] y) { c = Conv (x, w) y = Relu(x) }"
    made = model(text, w=array(8, 8, 3, 3))
    result = onnxfuse.optimize(made, "cpu", conv=policy, passes=["fuse-conv"])
    assert [(choice.fused, choice.reason) for choice in result.report.convolutions] == [(False, UNUSED)]


def test_a_convolution_that_only_a_body_reads_is_not_unused() -> None:
    text = """g (float[1, 8, 9, 9] x, bool b) => (float[1, 8, n, m] y) { c = Conv (x, w)
        y = If (b) <
            then_branch = then () => (float[1, 8, n, m] t) { t = Relu(c) },
            else_branch = other () => (float[1, 8, n, m] e) { e = Neg(x) }> }"""
    made = model(text, w=array(8, 8, 3, 3))
    result = onnxfuse.optimize(made, "cpu", conv="all", passes=["fuse-conv"])
    assert [choice.fused for choice in result.report.convolutions] == [True]


def test_beside_a_fused_convolution_any_fusion_is_worth_the_library() -> None:
    text = """g (float[1, 96, 160, 160] x, float[1, 96, 1, 1] z) => (float[1, 12, 1, 160] y, float[1, 96, 1, 1] v) {
        a = Abs(x) c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a, w) r = Relu(c)
        y = ReduceSum <keepdims = 1> (r, axes) v = Sin(z) }"""
    made = model(text, w=array(12, 96, 3, 3), axes=np.array([2]))
    beside, alone = (onnxfuse.optimize(made, "cpu", conv=conv, shapes={}) for conv in ("auto", "none"))
    assert {"FusedConv", "FusedElementwise"} <= set(operators(beside)) and "Sin" not in operators(beside)
    assert "Sin" in operators(alone)


def test_beside_convolutions_that_onnx_runtime_has_fused_all_are_its_own() -> None:
    """As in a model that it has optimized and saved: these have its blocked layout."""
    made = model(BETWEEN, w=array(12, 96, 3, 3))
    assert reasons(onnxfuse.optimize(made, "cpu"))[0][0]
    relu = onnx.helper.make_node(
        "FusedConv", ["a", "w"], ["z"], domain="com.microsoft", activation="Relu", kernel_shape=[3, 3], pads=[1] * 4
    )
    made.graph.node.append(relu)
    made.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [1, 12, 160, 160]))
    made.opset_import.add(domain="com.microsoft", version=1)
    ((fused, reason),) = reasons(onnxfuse.optimize(made, "cpu"))
    assert not fused and "ONNX Runtime has fused" in reason
    assert reasons(onnxfuse.optimize(made, "cpu", conv="all"))[0][0]


def test_what_was_left_beside_fused_nodes_is_left_again() -> None:
    """Of these neither what they take nor the sizes of what they make are known any more."""
    made = model(
        """g (float[1, 96, h, w] a, float[1, 96, h, w] b, float[1, 64, 4, 4] t) =>
        (float[1, 12, i, j] y, float[1, 16, k, l] z) {
        x = Mul(a, b) c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w) p = GlobalAveragePool(c)
        s = Sigmoid(p) y = Mul(c, s) u = Abs(t) z = ConvTranspose <kernel_shape = [2, 2], strides = [2, 2]> (u, v) }""",
        w=array(12, 96, 3, 3),
        v=array(64, 16, 2, 2),
    )
    once = onnxfuse.optimize(made, "cpu", check=False)
    assert [fused for fused, _ in reasons(once)] == [True, False]
    twice = onnxfuse.optimize(once.model, "cpu", check=False)
    assert reasons(twice) == [(False, WEIGHED_BEFORE.reason)]
    assert twice.model.SerializeToString(deterministic=True) == once.model.SerializeToString(deterministic=True)
    assert "ConvTranspose" not in operators(onnxfuse.optimize(once.model, "cpu", conv="all", check=False))


def test_what_stays_blocked_is_onnx_runtimes() -> None:
    result = onnxfuse.optimize(model(RESIDUAL, w=array(64, 64, 3, 3)), "cpu")
    assert "FusedConv" not in operators(result)
    assert {reason for _, reason in reasons(result)} == {"ONNX Runtime's blocked layout is cheaper here"}


@pytest.mark.parametrize("vectors", [False, True])
def test_an_activation_that_onnx_runtime_would_compute_by_itself_counts(
    vectors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "has_avx512", lambda: vectors)
    text = """g (float[32, 3, 24, 24] x) => (float[32, 48, 9, 9] y) {
        a = Conv <kernel_shape = [3, 3]> (x, v) b = PRelu(a, s)
        c = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (b)
        y = Conv <kernel_shape = [3, 3]> (c, w) }"""
    made = model(text, v=array(28, 3, 3, 3), s=array(28, 1, 1), w=array(48, 28, 3, 3))
    found = operators(onnxfuse.optimize(made, "cpu", check=False))
    assert found == ["FusedNhwcConv", "FusedNhwcPool", "FusedNhwcConv"]


@pytest.mark.parametrize("vectors", [False, True])
def test_a_tensor_a_little_larger_than_the_caches_costs_little_more(
    vectors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MTCNN's network for faces: its first result has a million elements, and pools between its convolutions."""
    monkeypatch.setattr(cpu, "has_avx512", lambda: vectors)
    text = """g (float[16, 48, 48, 3] x) => (float[16, 3, 3, 128] y) {
        x0 = Transpose <perm = [0, 3, 1, 2]> (x) a = Conv <kernel_shape = [3, 3]> (x0, w0) b = PRelu(a, s0)
        c = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (b)
        d = Conv <kernel_shape = [3, 3]> (c, w1) e = PRelu(d, s1)
        f = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (e)
        h = Conv <kernel_shape = [3, 3]> (f, w2) i = PRelu(h, s1)
        j = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (i)
        k = Conv <kernel_shape = [2, 2]> (j, w3) l = PRelu(k, s2) y = Transpose <perm = [0, 2, 3, 1]> (l) }"""
    weights = {"w0": (32, 3, 3, 3), "w1": (64, 32, 3, 3), "w2": (64, 64, 3, 3), "w3": (128, 64, 2, 2)}
    slopes = {"s0": (32, 1, 1), "s1": (64, 1, 1), "s2": (128, 1, 1)}
    made = model(text, **{name: array(*shape) for name, shape in {**weights, **slopes}.items()})
    found = [name for name in operators(onnxfuse.optimize(made, "cpu", check=False)) if name != "Identity"]
    assert found == ["FusedNhwcConv", "FusedNhwcPool"] * 3 + ["FusedNhwcConv"]


def pretend(monkeypatch: pytest.MonkeyPatch, least_gain: float = 0.09, **costs: Any) -> None:
    """Lets nothing take time but what ``costs`` say, the products of the plain, the blocked and the last layout."""
    nothing = conv_figures.Cost(0, 0)
    kinds = dict.fromkeys(("pointwise", "depthwise", "others", "pool"), (0, 0, 0)) | costs
    reorder = kinds.pop("reorder", 0.0)
    times = conv_figures.Times(
        **{kind: tuple(conv_figures.Cost(product, 0) for product in products) for kind, products in kinds.items()},
        **{"strided": nothing, "rows": (1, 1.0), "far": (0,) * 3, "call": (0,) * 3, "reorder": reorder, "weight": 0.0},
        **{"node": 0.0, "affine": 0.0, "silu": 0.0, "gelu": (0.0, 0.0), "tail": (0.0, 0.0), "pool_row": 0.0},
        least_gain=least_gain,
    )
    monkeypatch.setattr(conv_times, "times", lambda: times)


def test_between_blocked_channels_and_channels_last_there_are_two_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first convolution is faster blocked, the second with the channels last, by more than one change takes, but
    not by more than two."""
    pretend(monkeypatch, pointwise=(9, 1, 1.1), others=(9, 1, 0.8), reorder=4.8)
    text = """g (float[1, 48, 64, 64] x) => (float[1, 128, 64, 64] y) {
        a = Conv <kernel_shape = [1, 1]> (x, v) b = Relu(a)
        c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (b, w) y = Relu(c) }"""
    made = model(text, v=array(48, 48, 1, 1), w=array(128, 48, 3, 3))
    assert operators(onnxfuse.optimize(made, "cpu", check=False)) == ["FusedNhwcConv", "FusedNhwcConv"]


def test_each_convolution_has_the_layout_that_it_is_fastest_in(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, least_gain=0.0, pointwise=(2, 2, 1), depthwise=(1, 2, 2), others=(2, 1, 2))
    text = """g (float[1, 64, 64, 64] x) => (float[1, 64, 64, 64] y) {
        a = Conv <kernel_shape = [1, 1]> (x, p) b = Relu(a)
        c = Conv <kernel_shape = [5, 5], pads = [2, 2, 2, 2], group = 64> (b, d) e = Relu(c)
        f = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (e, w) h = Relu(f)
        i = Conv <kernel_shape = [1, 1]> (h, p) j = Relu(i)
        k = Conv <kernel_shape = [1, 1]> (j, p) l = Relu(k)
        m = Conv <kernel_shape = [1, 1]> (l, p) n = Relu(m)
        o = Conv <kernel_shape = [1, 1]> (n, p) y = Relu(o) }"""
    made = model(text, p=array(64, 64, 1, 1), d=array(64, 1, 5, 5), w=array(64, 64, 3, 3) / 24)
    found = [name for name in operators(onnxfuse.optimize(made, "cpu", check=False)) if name != "Relu"]
    assert found == ["FusedNhwcConv", "FusedConv", "Conv", *["FusedNhwcConv"] * 4]


@pytest.mark.parametrize(("activation", "own"), [("Relu", False), ("HardSwish", True)])
def test_activations_that_onnx_runtime_computes_inside_count(
    activation: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocked convolutions are a little faster without them."""
    pretend(monkeypatch, pointwise=(1.1e-3, 1e-3, 9), reorder=1e-4)
    steps = [f"c{i} = Conv <kernel_shape = [1, 1]> (a{i}, w) a{i + 1} = {activation}(c{i})" for i in range(3)]
    text = f"g (float[1, 64, 32, 32] a0) => (float[1, 64, 32, 32] a3) {{ {' '.join(steps)} }}"
    made = model(text, w=array(64, 64, 1, 1))
    assert ("FusedConv" in operators(onnxfuse.optimize(made, "cpu", check=False))) == own


def test_all_and_none() -> None:
    everything = onnxfuse.optimize(learned(), "cpu", conv="all")
    assert set(operators(everything)) == {"FusedConv", "GlobalAveragePool"}
    assert reasons(everything) == [(True, "all were asked for")] * 4
    nothing = onnxfuse.optimize(learned(), "cpu", conv="none")
    assert "FusedConv" not in operators(nothing)
    with pytest.raises(OnnxfuseError, match="unknown choice of convolutions 'some'"):
        onnxfuse.optimize(learned(), "cpu", conv="some")


@pytest.mark.parametrize("shape", [(1, 8, 5, 7), (3, 8, 16, 16), (1, 8, 1, 1), (2, 8, 33, 40)])
def test_the_results_are_the_same(shape: tuple[int, ...]) -> None:
    made = learned()
    fused = onnxfuse.optimize(made, "cpu", conv="all", check=False).model
    feeds = {"x": array(*shape)}
    (expected,) = fusing.run(made, feeds, library=False)
    for library in (False, True):
        fusing.assert_close(fusing.run(fused, feeds, library)[0], expected)


def test_nodes_that_differ_in_constants_and_attributes_share_functions() -> None:
    padded = """g (float[n, 8, h, w] x) => (float[n, 8, hh, ww] y) {
        a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 8> (x, v, bias) b = Relu(a) c = Mul(b, s1)
        d = Add(c, o1) e = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 1]> (d, w, bias) f = Relu(e)
        k = Mul(f, s2) l = Add(k, o2) y = Conv <kernel_shape = [3, 3], pads = [2, 1, 0, 1]> (l, w, bias) }"""
    scalars = {name: np.float32(value) for name, value in (("s1", 1.5), ("o1", 0.25), ("s2", 0.75), ("o2", -0.5))}
    made = model(padded, v=array(8, 1, 3, 3), w=array(8, 8, 3, 3), bias=array(8), **scalars)
    result = onnxfuse.optimize(made, "cpu", conv="all")
    assert [node.op_type for node in result.model.graph.node] == ["FusedConv", "FusedConv", "FusedConv_2"]
    assert len(result.model.functions) == 2


@pytest.mark.parametrize(("channels", "size", "own"), [(64, 8, False), (64, 16, False), (32, 32, True)])
def test_a_transposed_convolution_of_a_small_image_is_onnx_runtimes(channels: int, size: int, own: bool) -> None:
    """It was measured at 0.5 to 0.9 of the library's time: weights are in another order than the sums take them."""
    made = model(
        f"g (float[1, {channels}, {size}, {size}] x) => (float[1, 16, h, w] y) {{"
        " a = ConvTranspose <kernel_shape = [4, 4], pads = [1, 1, 1, 1], strides = [2, 2]> (x, w) y = Relu(a) }",
        w=array(channels, 16, 4, 4),
    )
    ((fused, reason),) = reasons(onnxfuse.optimize(made, "cpu"))
    assert fused == own
    assert own or reason == "its image is so small that ONNX Runtime's is as fast"
    assert reasons(onnxfuse.optimize(made, "cpu", conv="all")) == [(True, "all were asked for")]


@pytest.mark.parametrize("size", [4, 48])
def test_the_choice_is_for_the_shapes_that_are_given(size: int) -> None:
    made = model(
        "g (float[n, 64, h, w] x) => (float[n, 16, hh, ww] y) {"
        " a = ConvTranspose <kernel_shape = [4, 4], pads = [1, 1, 1, 1], strides = [2, 2]> (x, w) y = Relu(a) }",
        w=array(64, 16, 4, 4),
    )
    ((fused, _),) = reasons(onnxfuse.optimize(made, "cpu", shapes={"x": (1, 64, size, size)}))
    assert fused == (size == 48)


@pytest.mark.parametrize("given", [False, True], ids=["in the model", "given"])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("group", [1, 16])
@pytest.mark.parametrize("axis", [0, 2, 3])
def test_sizes_of_0_are_no_error(axis: int, group: int, kernel: int, given: bool) -> None:
    shape = [1, 16, 8, 8]
    shape[axis] = 0
    dims = "n, 16, h, w" if given else str(shape)[1:-1]
    made = model(
        f"g (float[{dims}] x) => (float[a, b, c, d] y) {{ c0 = Conv <pads = [{str([kernel // 2] * 4)[1:-1]}],"
        f" kernel_shape = [{kernel}, {kernel}], group = {group}> (x, w) y = Relu(c0) }}",
        w=array(16, 16 // group, kernel, kernel),
    )
    onnxfuse.optimize(made, "cpu", shapes={"x": shape} if given else None, check=False)


def test_a_small_matrix_product_is_the_librarys_if_it_is_the_only_one_left() -> None:
    """A process that runs no convolution of ONNX Runtime's maps none of its code for them."""
    text = """g (float[1, 8, 64] x, float[8, 8, 1] fed) => (float[1, 8, 1] y, float[1, 8, 64] z) {{
        a = Conv <kernel_shape = [3], pads = [1, 1]> (x, w) b = Relu(a) p = GlobalAveragePool(b)
        q = Conv <kernel_shape = [1]> (p, w1) y = Sigmoid(q) z = {} }}"""
    weights = {"w": array(8, 8, 3), "w1": array(8, 8, 1)}
    alone, beside = (model(text.format(last), **weights) for last in ("Neg(x)", "Conv(x, fed)"))
    (first, first_reason), (second, second_reason) = reasons(onnxfuse.optimize(alone, "cpu"))
    assert first and second and "plain layout" in first_reason and "for this alone" in second_reason
    assert [fused for fused, _ in reasons(onnxfuse.optimize(beside, "cpu"))] == [True, False, False]


@pytest.mark.parametrize(
    ("body", "alone"),
    [
        ("c = Conv (x, w) y = MaxPool <kernel_shape = [1]> (c)", True),
        ("c = Conv (x, w) a = Relu(c) y = MaxPool <kernel_shape = [1]> (a)", True),
        ("c = Conv (x, w) s = Sigmoid(c) a = Mul(c, s) y = MaxPool <kernel_shape = [1]> (a)", True),
        ("c = Conv (x, w) s = Sigmoid(c) a = Mul(x, s) y = MaxPool <kernel_shape = [1]> (a)", False),
        ("c = Conv (x, w) a = Sqrt(c) y = MaxPool <kernel_shape = [1]> (a)", False),
        ("a = Relu(x) c = Conv (a, w) y = MaxPool <kernel_shape = [1]> (c)", False),
        ("a = Relu(x) c = Conv (a, w) b = MaxPool <kernel_shape = [1]> (c) y = Add(b, a)", True),
        ("c = Conv (x, w) a = Relu(c) b = Neg(c) y = Concat <axis = 1> (a, b)", False),
        ("a = Sin(x) c = Conv (a, w) y = MaxPool <kernel_shape = [1]> (c)", True),
        ("c = Conv <group = 2> (x, grouped) y = MaxPool <kernel_shape = [1]> (c)", False),
        ("c = Conv <pads = [2, 2]> (x, long) y = MaxPool <kernel_shape = [1]> (c)", False),
    ],
    ids=[
        *("alone", "activation", "silu", "gate", "tail", "prologue", "input read again", "two tails"),
        *("costly input", "groups", "many taps"),
    ],
)
@pytest.mark.parametrize(
    ("avx512", "intel"), [(False, False), (True, False), (True, True)], ids=["AVX2", "AVX-512", "Intel's AVX-512"]
)
def test_over_one_dimension_a_convolution_needs_something_to_fuse(
    body: str, alone: bool, avx512: bool, intel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "has_avx512", lambda: avx512)
    monkeypatch.setattr(cpu, "is_intel", lambda: intel)
    weights = {"w": array(64, 64, 1), "grouped": array(64, 32, 1), "long": array(64, 64, 5)}
    made = model(f"g (float[1, 64, 500] x) => (float[1, m, 500] y) {{ {body} }}", **weights)
    result = onnxfuse.optimize(made, "cpu", check=False)
    ours = (avx512 and not intel) or not alone
    assert reasons(result)[0][0] == ours
    assert ours or "nothing beside it" in reasons(result)[0][1]
    feeds = {"x": array(1, 64, 500)}
    fusing.assert_close(fusing.run(result.model, feeds, library=True)[0], fusing.run(made, feeds, library=False)[0])


@pytest.mark.parametrize(("avx512", "ours"), [(False, False), (True, True)], ids=["AVX2", "AVX-512"])
def test_over_one_dimension_three_taps_are_faster_with_avx512(
    avx512: bool, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "has_avx512", lambda: avx512)
    monkeypatch.setattr(cpu, "is_intel", lambda: avx512)
    body = "c = Conv <pads = [1, 1]> (x, w) y = Relu(c)"
    made = model(f"g (float[1, 64, 500] x) => (float[1, m, 500] y) {{ {body} }}", w=array(64, 64, 3))
    assert reasons(onnxfuse.optimize(made, "cpu", check=False))[0][0] == ours


def test_vectors_that_end_behind_the_tensor() -> None:
    """Of a product in the plain layout that reads its data where they are, in rows that are no whole vectors."""
    for channels, length in ((64, 500), (20, 33), (7, 5), (1, 17), (130, 1001), (40, 9000)):
        text = "g (float[n, c, l] x) => (float[n, m, l] y) { c1 = Conv (x, w, b) y = Sqrt(c1) }"
        made = model(text, w=np.abs(array(24, channels, 1)), b=np.abs(array(24)))
        result = onnxfuse.optimize(made, "cpu", conv="all", shapes={"x": (2, channels, length)}, check=False)
        feeds = {"x": np.abs(array(2, channels, length))}
        fusing.assert_close(fusing.run(result.model, feeds, library=True)[0], fusing.run(made, feeds, library=False)[0])


def test_the_gate_of_a_matrix_product_is_its_prologue() -> None:
    fused = onnxfuse.optimize(learned(), "cpu", conv="all", check=False).model
    last = fused.graph.node[-1]
    assert any(attribute.name == "prologue" for attribute in last.attribute)


def test_other_types_and_weights_that_may_change_are_left() -> None:
    half = model(
        "g (float16[1, 8, 9, 9] x) => (float16[1, 8, 9, 9] y) { a = Conv <kernel_shape = [1, 1]> (x, w) y = Relu(a) }",
        w=array(8, 8, 1, 1, dtype=np.float16),
    )
    left = onnxfuse.optimize(half, "cpu", conv="all", passes=["fuse-conv"])  # without widen-float16
    assert reasons(left) == [(False, "the CPU has kernels of float32 alone")]
    volume = model(
        "g (float[1, 4, 5, 6, 7] x) => (float[1, 8, 5, 6, 7] y) { a = Conv (x, w) y = Relu(a) }",
        w=array(8, 4, 1, 1, 1),
    )
    ((fused, reason),) = reasons(onnxfuse.optimize(volume, "cpu"))
    assert not fused and "three dimensions" in reason
    assert reasons(onnxfuse.optimize(volume, "cpu", conv="all")) == [(True, "all were asked for")]
    fed = model(
        "g (float[1, 8, 9, 9] x, float[8, 8, 1, 1] w) => (float[1, 8, 9, 9] y) {"
        " a = Conv <kernel_shape = [1, 1]> (x, w) y = Relu(a) }"
    )
    assert reasons(onnxfuse.optimize(fed, "cpu", conv="all")) == [(False, "its weights are no constant of the model")]


@pytest.mark.parametrize(
    ("vendor", "family", "halves", "dear"),
    [("AuthenticAMD", "25", True, True), ("AuthenticAMD", "26", False, False), ("GenuineIntel", "6", False, True)],
)
def test_processors_differ_in_what_shuffles_cost(
    vendor: str, family: str, halves: bool, dear: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A depthwise convolution of stride 2 takes its columns apart with shuffles in the plain layout."""
    monkeypatch.setattr(cpu, "_info", lambda: {"vendor": vendor, "family": family, "features": "avx2 avx512"})
    assert cpu.halves_avx512() is halves
    made = model(
        """g (float[1, 16, 80, 80] x) => (float[1, 16, 40, 40] y) {
            y = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], group = 16> (x, v) }""",
        v=array(16, 1, 3, 3),
    )
    graph = onnxfuse.Model.from_proto(made).graph
    times = conv_times.ConvTimes(LikelyShapes(graph, {}))
    plain, blocked = (times.of(graph.nodes[0], layout) for layout in (Layout.PLAIN, Layout.BLOCKED))
    assert (plain > 2.2 * blocked) is dear


def test_what_never_is_in_memory_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strided block of an EfficientNet: its wide tensor is made some rows at a time, and the caches hold these."""
    monkeypatch.setattr(conv_times, "times", lambda: conv_figures._AVX512)
    made = model(
        """g (float[1, 3, 224, 224] x) => (float[1, 24, 56, 56] y) {
            a = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x, u) b = HardSwish(a)
            c = Conv (b, e) d = HardSwish(c)
            f = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], group = 96> (d, v) h = HardSwish(f)
            p = GlobalAveragePool(h) q = Conv (p, g1) r = Relu(q) s = Conv (r, g2) t = Sigmoid(s) m = Mul(h, t)
            y = Conv (m, w) }""",
        **{"u": array(16, 3, 3, 3), "e": array(96, 16, 1, 1), "v": array(96, 1, 3, 3), "w": array(24, 96, 1, 1)},
        **{"g1": array(4, 96, 1, 1), "g2": array(96, 4, 1, 1)},
    )
    result = onnxfuse.optimize(made, "cpu", check=False).model
    names = [attribute.name for node in result.graph.node for attribute in node.attribute]
    assert "expansion_operator" in names
