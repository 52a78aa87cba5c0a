"""Which gates of squeeze-and-excitation blocks become one node, and that they stay what they are."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.check.region_parity import compare_regions
from onnxfuse.fused.squeeze_excite.fuse_squeeze_excite import FuseSqueezeExcite
from onnxfuse.passes import PassContext
from onnxfuse.planning.inspection import inspect
from onnxfuse.run.inputs import InputSet
from tests.fused.conv.test_cpu_convolutions import array, model, operators, reasons
from tests.support import fusing

GATED = """g (float[n, 20, h, w] x) => (float[n, 20, hh, ww] y) {{
    a = Abs(x) {mean} c = Conv (p, w1, b1) d = Relu(c) e = Conv (d, w2, b2) g = HardSigmoid <alpha = 0.2> (e)
    {after} }}"""
POOL = "p = GlobalAveragePool(a)"
WEIGHTS = {"w1": array(5, 20, 1, 1), "b1": array(5), "w2": array(20, 5, 1, 1), "b2": array(20)}
FEEDS = {"x": array(2, 20, 9, 7)}


def gated(mean: str = POOL, after: str = "y = Mul(a, g)", opset: int = 20, **constants: np.ndarray) -> onnx.ModelProto:
    return model(GATED.format(mean=mean, after=after), opset, **{**WEIGHTS, **constants})


def fused(made: onnx.ModelProto) -> tuple[onnx.ModelProto, PassContext]:
    """The model after this pass alone."""
    return fusing.rewritten_by(FuseSqueezeExcite(), made)


def gates(made: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in fusing.fused_nodes(made) if node.op_type.startswith("FusedSqueezeExcite")]


def check(made: onnx.ModelProto, feeds: dict[str, np.ndarray], count: int = 1) -> onnx.ModelProto:
    """So many gates are one node each, which computes the same with the library, without it and in the reference."""
    result, _ = fused(made)
    assert len(gates(result)) == count
    fusing.assert_same_everywhere(result, made, feeds)
    return result


@pytest.mark.parametrize("batch", (0, 1, 3))
def test_a_gate_becomes_one_node(batch: int) -> None:
    made = gated()
    result = check(made, {"x": array(batch, 20, 9, 7)}) if batch else fused(made)[0]
    assert [node.op_type for node in result.graph.node] == ["Abs", "FusedSqueezeExcite", "Mul"]
    if not batch:
        (empty,) = fusing.run(result, {"x": array(0, 20, 9, 7)}, library=True)
        assert empty.shape == (0, 20, 9, 7)


@pytest.mark.parametrize(
    ("mean", "opset"),
    [
        ("p = ReduceMean <axes = [2, 3]> (a)", 13),
        ("p = ReduceMean <axes = [-1, -2], keepdims = 1> (a)", 13),
        ("p = ReduceMean (a, axes)", 18),
    ],
)
def test_means_by_reduction(mean: str, opset: int) -> None:
    """Without the library as well: ONNX Runtime may compute GlobalAveragePool in blocks of channels, less exactly."""
    constants = {"axes": np.array([2, -1])} if opset >= 18 else {}
    result = check(gated(mean, opset=opset, **constants), FEEDS)
    (function,) = result.functions
    assert "ReduceMean" in {node.op_type for node in function.node}


TAILS = {
    "no bias": "c = Conv (p, w1) e = Conv (c, w2) g = Sigmoid(e)",
    "no tails": "c = Conv (p, w1, b1) g = Conv (c, w2, b2)",
    "swish": "c = Conv (p, w1, b1) s = Sigmoid(c) d = Mul(c, s) e = Conv (d, w2, b2) g = Sigmoid(e)",
    "added": "c = Conv (p, w1) d = Add(c, o1) t = Relu(d) e = Conv (t, w2) f = Add(e, o2) g = HardSigmoid(f)",
    "normalized": "c = Conv (p, w1, b1) d = BatchNormalization(c, sc, sc, m, v) t = Clip(d, low, high)"
    " e = Conv (t, w2, b2) f = Add(e, three) k = Clip(f, low, high) g = Div(k, six)",
    "strides and padding that do nothing": "c = Conv <strides = [1, 1], pads = [0, 0, 0, 0], kernel_shape = [1, 1]>"
    " (p, w1) d = PRelu(c, o1) e = Conv <auto_pad = 'SAME_UPPER'> (d, w2) g = Tanh(e)",
}
CONSTANTS = {
    **{"o1": array(1, 5, 1, 1), "o2": array(20, 1, 1), "sc": array(5), "m": array(5), "v": np.abs(array(5)) + 1},
    **{"low": np.float32(0), "high": np.float32(6), "three": np.float32(3), "six": np.array([6], np.float32)},
}


@pytest.mark.parametrize("kind", TAILS)
def test_tails(kind: str) -> None:
    text = f"g (float[n, 20, h, w] x) => (float[n, 20, hh, ww] y) {{ a = Abs(x) {POOL} {TAILS[kind]} y = Mul(a, g) }}"
    used = {name: value for name, value in {**WEIGHTS, **CONSTANTS}.items() if re.search(rf"\b{name}\b", text)}
    result = check(model(text.replace("'", '"'), **used), FEEDS)
    assert [node.op_type for node in result.graph.node] == ["Abs", "FusedSqueezeExcite", "Mul"]


@pytest.mark.parametrize("rank", (3, 5))
def test_other_ranks(rank: int) -> None:
    ones = (1,) * (rank - 2)
    sizes = ", ".join(f"d{axis}" for axis in range(rank - 2))
    text = f"""g (float[n, 20, {sizes}] x) => (float[n, 20, {sizes}] y) {{
        p = GlobalAveragePool(x) c = Conv (p, w1) d = Relu(c) e = Conv (d, w2) g = Sigmoid(e) y = Mul(x, g) }}"""
    made = model(text, w1=array(5, 20, *ones), w2=array(20, 5, *ones))
    check(made, {"x": array(2, 20, *range(4, 2 + rank))})


def test_a_residual_of_the_gated_tensor_is_added_in_the_gate() -> None:
    result = check(gated(after="z = Mul(a, g) y = Add(a, z)"), FEEDS)
    assert [node.op_type for node in result.graph.node] == ["Abs", "FusedSqueezeExcite", "Mul"]


def test_a_gate_with_several_readers() -> None:
    check(gated(after="b = Mul(a, g) c2 = Sub(x, g) y = Add(b, c2)"), FEEDS)


def test_blocks_share_a_function_whatever_their_sizes_and_constants() -> None:
    text = """g (float[n, 20, h, w] x) => (float[n, 20, hh, ww] y) {
        p = GlobalAveragePool(x) c = Conv (p, w1, b1) d = Relu(c) e = Conv (d, w2, b2) f = Add(e, one) g = Sigmoid(f)
        z = Mul(x, g) q = GlobalAveragePool(z) i = Conv <kernel_shape = [1, 1]> (q, w3, b3) j = Relu(i)
        k = Conv <pads = [0, 0, 0, 0]> (j, w4, b2) l = Add(k, b4) m = Sigmoid(l) y = Mul(z, m) }"""
    more = {"one": np.float32(1), "w3": array(7, 20, 1, 1), "b3": array(7), "w4": array(20, 7, 1, 1)}
    result = check(model(text, 13, **WEIGHTS, **more, b4=array(1, 20, 1, 1)), FEEDS, 2)
    assert len(result.functions) == 1


BODY = "c = Conv (p, w1, b1) d = Relu(c) e = Conv (d, w2, b2) g = Sigmoid(e)"
LEFT = {
    "its mean is read elsewhere": (BODY, "k = Mul(a, g) y = Add(k, p)", "read elsewhere"),
    "so is what lies between": (BODY, "k = Mul(a, g) s = ReduceSum(d) y = Add(k, s)", "read elsewhere"),
    "one convolution": ("c = Conv (p, w3) g = Sigmoid(c)", "y = Mul(a, g)", "no other convolution"),
    "an operand of the model's": (BODY.replace("Relu(c)", "Mul(c, z)"), "y = Mul(a, g)", "no other convolution"),
    "groups": ("c = Conv <group = 20> (p, w4) e = Conv (c, w3) g = Sigmoid(e)", "y = Mul(a, g)", "not 1x1 ones"),
    "padding": (
        "c = Conv <pads = [0, 0, 1, 1]> (p, w1) e = Conv (c, w2) s = Sigmoid(e) g = ReduceMax(s)",
        "y = Mul(a, g)",
        "not 1x1 ones",
    ),
    "weights that are computed": (
        "v = Mul(z, w1) c = Conv (p, v) e = Conv (c, w2) g = Relu(e)",
        "y = Mul(a, g)",
        "not 1x1 ones",
    ),
}


@pytest.mark.parametrize("kind", LEFT)
def test_left_alone(kind: str) -> None:
    body, after, reason = LEFT[kind]
    text = f"g (float[n, 20, h, w] x, float[1] z) => (float[n, 20, hh, ww] y) {{ a = Abs(x) {POOL} {body} {after} }}"
    known = {**WEIGHTS, "w3": array(20, 20, 1, 1), "w4": array(20, 1, 1, 1)}
    used = {name: value for name, value in known.items() if re.search(rf"\b{name}\b", text)}
    result, context = fused(model(text, 13, **used))
    assert not gates(result)
    (refusal,) = context.report.refusals
    assert refusal.rule == "fuse-squeeze-excite" and reason in refusal.reason


@pytest.mark.parametrize("mean", ("p = ReduceMean <axes = [3]> (a)", "p = ReduceMean <axes = [1, 2, 3]> (a)"))
def test_other_means_are_left_alone(mean: str) -> None:
    text = f"""g (float[2, 20, 4, 1] x) => (float[n, 20, hh, ww] y) {{
        a = Abs(x) {mean} q = Expand(p, s) c = Conv (q, w1) d = Relu(c) e = Conv (d, w2) y = Mul(a, e) }}"""
    made = model(text, 13, w1=WEIGHTS["w1"], w2=WEIGHTS["w2"], s=np.array([2, 20, 1, 1]))
    result, context = fused(made)
    assert not gates(result) and not context.report.refusals


def test_a_value_that_a_body_reads_is_kept() -> None:
    text = GATED.format(
        mean=POOL,
        after="""t = If (z) <then_branch = one () => (float[n, 5, 1, 1] v) { v = Neg(d) },
        else_branch = two () => (float[n, 5, 1, 1] u) { u = Abs(d) }> s = ReduceSum(t) k = Mul(a, g) y = Add(k, s)""",
    )
    made = model(text.replace("w] x)", "w] x, bool z)"), **WEIGHTS)
    result, context = fused(made)
    assert not gates(result) and "read elsewhere" in context.report.refusals[0].reason


def test_a_constant_as_large_as_an_image_is_no_part_of_the_gate() -> None:
    made = gated(after="k = Add(g, c9) y = Mul(a, k)", c9=array(1, 20, 9, 7))
    result = check(made, FEEDS)
    assert [node.op_type for node in result.graph.node] == ["Abs", "FusedSqueezeExcite", "Add", "Mul"]


def test_a_gate_of_other_data_stays_in_the_blocked_layout() -> None:
    """What it takes the means of would be reordered for the gate alone."""
    text = """g (float[n, 16, h, w] x) => (float[n, 16, hh, ww] y) {
        a = Conv (x, w0) p = GlobalAveragePool(a) c = Conv (p, w1) d = Relu(c) e = Conv (d, w2) g = Sigmoid(e)
        OTHER y = Mul(b, g) }"""
    weights = {"w0": array(16, 16, 1, 1), "w1": array(4, 16, 1, 1), "w2": array(16, 4, 1, 1)}
    result, context = fused(model(text.replace("OTHER", "b = Conv (a, w0)"), **weights))
    assert not gates(result) and "blocked layout" in context.report.refusals[0].reason
    for plain in ("b = Abs(a)", "q = Softmax(a) b = Conv (q, w0)"):
        check(model(text.replace("OTHER", plain), **weights), {"x": array(2, 16, 6, 5)})


def whole(made: onnx.ModelProto, conv: str) -> onnxfuse.Result:
    return onnxfuse.optimize(made, "cpu", conv=conv, shapes={"x": (2, 20, 9, 7)})


def test_what_was_asked_of_convolutions_holds_for_gates() -> None:
    for conv in ("auto", "all"):
        result = whole(gated(), conv)
        assert operators(result).count("FusedSqueezeExcite") == 1
        assert [fused for fused, _ in reasons(result)] == [True, True] and "gate" in reasons(result)[0][1]
    assert "FusedSqueezeExcite" not in operators(whole(gated(), "none"))
    assert "FusedSqueezeExcite" not in operators(
        onnxfuse.optimize(gated(), "cuda", embed=False, arch="sm_90", check=False)
    )


def test_the_gate_that_follows_is_taken_in_by_a_convolution() -> None:
    """The sizes of the gate are known to be those of what it gates, though the model leaves them open."""
    text = """g (float[n, 20, h, w] x) => (float[n, 20, hh, ww] y) {
        a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w3) r = Relu(a) p = GlobalAveragePool(r)
        c = Conv (p, w1) d = Relu(c) e = Conv (d, w2) g = Sigmoid(e) z = Mul(r, g) y = Conv (z, w4) }"""
    made = model(text, w1=WEIGHTS["w1"], w2=WEIGHTS["w2"], w3=array(20, 20, 3, 3), w4=array(20, 20, 1, 1))
    result = whole(made, "all")
    assert operators(result) == ["FusedConv", "FusedSqueezeExcite", "FusedConv"]


def test_the_report_counts_the_gate_as_one_launch() -> None:
    result = whole(gated(), "auto")
    (region,) = result.report.fused
    assert region.ops == ["GlobalAveragePool", "Conv", "Relu", "Conv", "HardSigmoid"]
    assert region.before is not None and region.before.launches == 5 and region.before.buffers == 4
    assert region.after is not None and region.after.launches == 1 and region.after.buffers == 0
    assert region.bytes_saved is not None
    per_image = 2 * 4 * (20 + 5 + 5 + 20)  # the mean, both values behind the first product, the second product
    assert region.bytes_saved.at({"n": 1}).constant() == per_image
    assert result.report.after is not None and result.report.after.launches == 3


def test_inspect_shows_both_programs(tmp_path: Path) -> None:
    path = tmp_path / "gated.onnx"
    result = whole(gated(), "auto")
    onnx.save(result.model, path)
    (region,) = inspect(path).fused
    assert region.ops == ["GlobalAveragePool", "Conv", "Relu", "Conv", "HardSigmoid"]
    assert "relu" in region.prologue and "hard_sigmoid" in region.program
    assert inspect(path).program(region.name) == f"{region.prologue}\n{region.program}"


def test_regions_are_compared_alone(tmp_path: Path) -> None:
    path = tmp_path / "gated.onnx"
    result = whole(gated(), "auto").model
    onnx.save(result, path)
    found = compare_regions(path, result, InputSet("made up", FEEDS), ("CPUExecutionProvider",), lambda line: None)
    (region,) = found
    assert region.comparison.ok and not region.comparison.reason
