"""Which of the library's convolutions and tensors have the channels last, and that the results are the same."""

import math
import re
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

import onnxfuse
from onnxfuse.cli import cli
from onnxfuse.fused.conv import conv_times
from onnxfuse.fused.conv.conv_figures import NODE_CALL, Layout
from onnxfuse.fused.conv.conv_times import ConvTimes
from onnxfuse.ort import ort_layout
from tests.fused.conv.test_cpu_convolutions import array, model
from tests.support import fusing

WEIGHTS = {
    **{"w": array(32, 32, 3, 3), "p": array(32, 32, 1, 1), "b": array(32), "v": array(32, 1, 3, 3)},
    **{"w2": array(32, 32, 5, 5)[:, :, :3, :3], "half": np.array(0.5, np.float32), "axes": np.array([1])},
    **{"g1": array(8, 32, 1, 1), "g2": array(32, 8, 1, 1)},
}
FEEDS = {"x": array(2, 32, 9, 7)}
DEFAULT_HEAD = "(float[n, 32, h, w] x) => (float[n, c, hh, ww] y)"
STATIC_HEAD = "(float[2, 32, 9, 7] x) => (float[2, c, hh, ww] y)"

FREE = {"Concat", "Identity", "FusedElementwise", "Add", "Slice", "Split", "Shape", "Gather"}
"""Operators of nodes that do not care where the channels are."""

_nanoseconds = ConvTimes.of


@pytest.fixture(autouse=True)
def _every_kernel_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the estimates are, convolutions have the channels last where the nodes around them let them."""
    set_gain(monkeypatch, 1e12)
    for module in (conv_times, ort_layout):
        monkeypatch.setattr(module, "block_size", lambda: 8)


def set_gain(monkeypatch: pytest.MonkeyPatch, gain: float) -> None:
    """Make a convolution that can have its channels last so many nanoseconds slower if it has not."""

    def of(times: ConvTimes, node: gs.Node, layout: Layout) -> float:
        found = _nanoseconds(times, node, layout)
        if layout is Layout.BLOCKED or math.isinf(found):
            return found
        return gain if layout is Layout.PLAIN else 0.0

    monkeypatch.setattr(ConvTimes, "of", of)


def network(body: str, head: str = DEFAULT_HEAD, opset: int = 20, **more: np.ndarray) -> onnx.ModelProto:
    """A model in which C3 and D3 are 3x3 convolutions that keep the size, of all channels and of single ones."""
    keeps = "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"
    body = body.replace("C3", f"Conv <{keeps}>").replace("D3", f"Conv <{keeps}, group = 32>")
    used = {name: value for name, value in {**WEIGHTS, **more}.items() if re.search(rf"\b{name}\b", body)}
    return model(f"g {head} {{ {body} }}", opset, **used)


def optimized(made: onnx.ModelProto) -> onnx.ModelProto:
    """The whole of optimize, with all convolutions the library's."""
    result = onnxfuse.optimize(made, "cpu", conv="all", check=False).model
    onnx.checker.check_model(result, full_check=True)
    return result


def check(made: onnx.ModelProto, *feeds: dict[str, np.ndarray]) -> onnx.ModelProto:
    """What optimize makes computes the same with the library, without it and in the reference."""
    result = optimized(made)
    for values in feeds or (FEEDS,):
        fusing.assert_same_everywhere(result, made, values)
        wanted = fusing.run(made, values, library=False)
        for own, one in zip(fusing.run(result, values, library=True, optimize=True), wanted, strict=True):
            fusing.assert_close(own, one)
    return result


def operators(made: onnx.ModelProto | onnx.GraphProto) -> list[str]:
    graph = made.graph if isinstance(made, onnx.ModelProto) else made
    return [re.sub(r"_\d+$", "", node.op_type) for node in graph.node]


def channels_last(made: onnx.ModelProto | onnx.GraphProto) -> set[str]:
    """The tensors that have the channels last, by their old names; everyone who reads or writes them agrees."""
    graph = made.graph if isinstance(made, onnx.ModelProto) else made
    last: set[str] = set()
    plain: set[str] = {value.name for value in (*graph.input, *graph.output)}
    for node in graph.node:
        if node.op_type in FREE:
            continue
        if node.op_type == "Transpose":
            for name in (*node.input, *node.output):
                (last if name.endswith("_nhwc") else plain).add(name)
            continue
        if node.op_type.startswith(("FusedMatMul", "MatMul")):
            continue  # of rows, wherever they come from
        if node.op_type.startswith(("FusedNhwcPool", "FusedNhwcConcat")):
            last.update((*node.input, *node.output))
            continue
        known = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        reads = known.get("nhwc_inputs", [known.get("nhwc", 0)])
        for index, name in enumerate(node.input):
            (last if index < len(reads) and reads[index] else plain).add(name)
        (last if known.get("nhwc_output") else plain).update(node.output)
    assert not last & plain
    assert all(name.endswith("_nhwc") for name in last)
    return {name.removesuffix("_nhwc") for name in last}


def pairs(made: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in made.graph.node if any(item.name == "depthwise_operator" for item in node.attribute)]


GATE = (
    "{q} = GlobalAveragePool({x}) {q}1 = Conv ({q}, g1) {q}2 = {op} ({q}1) {q}3 = Conv ({q}2, g2) {q}4 = Sigmoid({q}3) "
)


def gate(name: str, of: str, operator: str = "Relu") -> str:
    return GATE.format(q=name, x=of, op=operator)


CHAIN = """a = C3 (x, w, b) r = Relu(a) c = C3 (r, w2, b) s = Add(c, r) t = HardSwish(s) u = Conv (t, p)
    k = Tanh(u) y = Conv <kernel_shape = [3, 3], strides = [2, 1]> (k, w, b)"""


@pytest.mark.parametrize("shape", [(2, 32, 9, 7), (1, 32, 3, 3), (1, 32, 32, 32), (0, 32, 9, 7)])
def test_tensors_between_convolutions_have_the_channels_last(shape: tuple[int, ...]) -> None:
    made = network(CHAIN)
    result = check(made, {"x": array(*shape)}) if shape[0] else optimized(made)
    assert operators(result) == ["FusedNhwcConv"] * 4
    assert channels_last(result) == {"r", "t", "k"}
    if not shape[0]:
        (empty,) = fusing.run(result, {"x": array(*shape)}, library=True)
        assert empty.shape == (0, 32, 4, 5)


def test_one_pixel() -> None:
    check(
        network("a = C3 (x, w, b) r = Relu(a) d = D3 (r, v, b) c = Conv (d, p) y = C3 (c, w)"),
        {"x": array(1, 32, 1, 1)},
    )


@pytest.mark.parametrize("opset", [8, 9, 11, 12, 13, 17, 21])
def test_opsets(opset: int) -> None:
    """Functions put weights in ONNX's order by what their opset has; before 9 that has no constants of integers."""
    text = """a = C3 (x, w, b) r = Relu(a) d = D3 (r, v, b) e = Tanh(d) c = Conv (e, p, b) s = Add(c, r)
        y = C3 (s, w3, b3)"""
    result = check(network(text, opset=opset, w3=array(20, 32, 3, 3), b3=array(20)))
    assert operators(result) == (["FusedConv"] * 4 if opset < 9 else ["FusedNhwcConv"] * 3)
    assert len(pairs(result)) == (opset >= 9)


def test_a_gain_has_to_be_worth_the_change_of_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a = C3 (x, w) r = Relu(a) c = C3 (r, w2) t = Tanh(c) y = C3 (t, w)"
    head = "(float[1, 32, 9, 7] x) => (float[1, 32, 9, 7] y)"
    least = 2 * NODE_CALL / 3  # x and y are changed for three convolutions, besides what their elements take
    found = {}
    for gain in (least, 100 * NODE_CALL):
        set_gain(monkeypatch, gain)
        found[gain] = operators(optimized(network(text, head)))
    assert found == {least: ["FusedConv"] * 3, 100 * NODE_CALL: ["FusedNhwcConv"] * 3}


WITHOUT = {
    "groups of few filters": ("Conv <group = 16> (r, k)", array(32, 2, 3, 3)),
    "few filters for a channel": ("Conv <group = 32> (r, k)", array(64, 1, 3, 3)),
    "transposed": ("ConvTranspose (r, k)", array(32, 32, 2, 2)),
}


@pytest.mark.parametrize("kind", WITHOUT)
def test_convolutions_without_a_kernel_are_plain(kind: str) -> None:
    text, kernel = WITHOUT[kind]
    filters = kernel.shape[1] if "Transpose" in text else kernel.shape[0]
    result = check(network(f"r = C3 (x, w) m = {text} y = C3 (m, l)", k=kernel, l=array(32, filters, 3, 3)))
    assert operators(result) == ["FusedNhwcConv", "FusedConv", "FusedNhwcConv"] and not channels_last(result)


@pytest.mark.parametrize("opset", [9, 11, 17])
@pytest.mark.parametrize(("groups", "channels", "filters"), [(2, 16, 16), (8, 4, 4), (4, 8, 24), (32, 1, 4), (4, 8, 5)])
def test_groups(groups: int, channels: int, filters: int, opset: int) -> None:
    """Of any number of filters from 4 on; functions put the weights in ONNX's order as those of one group."""
    text = f"r = C3 (x, w, b) m = Conv <group = {groups}, pads = [1, 1, 1, 1]> (r, k, d) n = Relu(m) y = C3 (n, l)"
    all_filters = groups * filters
    result = check(
        network(
            text,
            opset=opset,
            k=array(all_filters, channels, 3, 3),
            d=array(all_filters),
            l=array(32, all_filters, 3, 3),
        )
    )
    assert operators(result) == ["FusedNhwcConv"] * 3 and channels_last(result) == {"r", "n"}


def test_three_dimensions_are_plain() -> None:
    made = network(
        "a = Conv (x, k) r = Relu(a) y = Conv (r, k)",
        "(float[n, 8, d, h, w] x) => (float[n, c, dd, hh, ww] y)",
        k=array(8, 8, 2, 3, 3),
    )
    assert operators(check(made, {"x": array(1, 8, 4, 7, 6)})) == ["FusedConv"] * 2


def test_one_dimension() -> None:
    made = network(
        """a = Conv <pads = [1, 1]> (x, k1, b) r = Relu(a) d = Conv <group = 32, pads = [1, 1]> (r, k2, b) e = Tanh(d)
        c = Conv (e, k3) s = Add(c, r) q = GlobalAveragePool(s) i = Conv (q, h1) j = Relu(i) k = Conv (j, h2)
        l = Sigmoid(k) m = Mul(s, l) n = Conv (m, k3) y = Conv <strides = [3]> (n, k1)""",
        "(float[n, 32, l] x) => (float[n, 32, ll] y)",
        **{"k1": array(32, 32, 3), "k2": array(32, 1, 3), "k3": array(32, 32, 1)},
        **{"h1": array(8, 32, 1), "h2": array(32, 8, 1)},
    )
    result = check(made, {"x": array(2, 32, 20)}, {"x": array(1, 32, 3)})
    assert len(pairs(result)) == 1 and {"r", "s"} <= channels_last(result)


@pytest.mark.parametrize("channels", [(3, 20, 5), (1, 17, 40), (16, 15, 1), (64, 24, 48), (5, 33, 100)])
def test_filters_that_fill_no_vectors(channels: tuple[int, int, int]) -> None:
    read, made, last = channels
    text = f"""a = C3 (x, k1, c) r = Relu(a) d = Conv <group = {made}, pads = [1, 1, 1, 1]> (r, k2, c) e = Relu(d)
        f = Conv (e, k3) y = C3 (f, k4)"""
    known = {"k1": array(made, read, 3, 3), "c": array(made), "k2": array(made, 1, 3, 3)}
    known |= {"k3": array(last, made, 1, 1), "k4": array(7, last, 3, 3)}
    head = f"(float[n, {read}, h, w] x) => (float[n, 7, hh, ww] y)"
    result = check(network(text, head, **known), {"x": array(2, read, 9, 7)})
    assert operators(result) == ["FusedNhwcConv"] * 3 and len(pairs(result)) == 1


READERS = {
    "pooling": "m = LpPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r) n = Add(c, m) y = C3 (n, w)",
    "Softmax": "m = Softmax <axis = 1> (r) n = Mul(c, m) y = C3 (n, w)",
    "a body": """m = Cast <to = 9> (half) y = If (m) <
        then_branch = then () => (float[n, 32, hh, ww] e1) { e1 = Add(r, c) },
        else_branch = other () => (float[n, 32, hh, ww] e2) { e2 = Neg(r) }>""",
    "a convolution in a body": """m = Cast <to = 9> (half) i = If (m) <
        then_branch = then () => (float[n, 32, hh, ww] e1) { e1 = C3 (r, w) },
        else_branch = other () => (float[n, 32, hh, ww] e2) { e3 = C3 (r, w2) e2 = Tanh(e3) }> y = Add(i, c)""",
    "a convolution without a kernel": "m = Conv <group = 16> (r, k) n = ReduceMax(m) y = Mul(c, n)",
}


@pytest.mark.parametrize("kind", READERS)
def test_what_others_read_is_plain(kind: str) -> None:
    made = network(f"a = C3 (x, w) r = Relu(a) c = C3 (r, w2) {READERS[kind]}", k=array(32, 2, 3, 3))
    result = check(made)
    assert "r" not in channels_last(result) and "FusedNhwcConv" in operators(result)


def test_a_concat_of_channels() -> None:
    text = """a = C3 (x, w) r = Relu(a) c = C3 (r, w2) t = Tanh(c) m = Concat <axis = AXIS> (r, t, r)
        y = Conv (m, k)"""
    for axis in ("1", "-3"):
        result = check(network(text.replace("AXIS", axis), k=array(20, 96, 1, 1)))
        assert channels_last(result) == {"r", "t"} and operators(result) == ["FusedNhwcConv"] * 3
    result = check(network(text.replace("AXIS", "1"), opset=9, k=array(20, 96, 1, 1)))
    assert channels_last(result) == {"r", "t"}
    result = check(network(text.replace("AXIS", "2"), k=array(20, 32, 1, 1)))
    assert channels_last(result) == set()


def test_a_concat_of_both_layouts() -> None:
    """What is in the other one is transposed, once for all that read it so."""
    text = """a = C3 (x, w) r = Relu(a) c = C3 (r, w2) m = Concat <axis = 1> (c, x) n = Concat <axis = 1> (x, m, x)
        y = Conv (n, k)"""
    result = check(network(text, k=array(20, 128, 1, 1)))
    assert channels_last(result) == {"r", "c", "x"} and operators(result).count("Transpose") == 1
    text = "a = C3 (x, w) r = Relu(a) c = C3 (r, w2) m = Concat <axis = 1> (r, x) q = ReduceMax(m) y = Mul(c, q)"
    result = check(network(text))
    assert channels_last(result) == {"r"} and operators(result).count("Transpose") == 1


def test_elementwise_nodes_between() -> None:
    """Those that no convolution takes in, for what they read is elsewhere too: of one shape in any layout."""
    text = """a = C3 (x, w) r = Relu(a) c = C3 (r, w2) m = Concat <axis = 1> (r, c) t = Tanh(m) h = Mul(t, half)
        s = Add(h, m) d = Conv (s, k) e = Conv (s, k) y = Add(d, e)"""
    result = check(network(text, k=array(20, 64, 1, 1)))
    assert channels_last(result) == {"r", "c", "m", "s"} and "FusedElementwise" in operators(result)


def test_a_normalization_of_a_single_channel() -> None:
    """Its vectors have one element, but lie along the channels."""
    text = """a = Conv (x, one) m = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a) s = Add(m, a)
        n = BatchNormalization (s, g, g, g, g) u = Slice (n, from, far, last) c = Conv (u, k) y = Relu(c)"""
    values = {"from": np.array([1]), "far": np.array([7]), "last": np.array([3]), "g": np.array([0.5], np.float32)}
    check(network(text, one=array(1, 32, 1, 1), k=array(20, 1, 1, 1), **values))


def test_elementwise_nodes_with_a_vector_of_channels() -> None:
    text = """a = C3 (x, w) r = Relu(a) c = C3 (r, w2) m = Concat <axis = 1> (r, c) t = Mul(m, f) s = Tanh(t)
        d = Conv (s, k) e = Conv (s, k) y = Add(d, e)"""
    result = check(network(text, k=array(20, 64, 1, 1), f=array(64, 1, 1)))
    assert channels_last(result) == {"r"}


def test_transposes_between_the_layouts() -> None:
    """What computes with the channels last reads what convolutions make as it is, and the other way round."""
    text = """a = C3 (x, w) r = Relu(a) u = Transpose <perm = [0, 2, 3, 1]> (r) m = MatMul(u, f)
        t = Transpose <perm = [0, 3, 1, 2]> (m) s = Add(t, r) y = C3 (s, w2)"""
    result = check(network(text, STATIC_HEAD, f=array(32, 32)))
    assert "Transpose" not in operators(result) and channels_last(result) == {"r", "s"}
    other = text.replace("[0, 3, 1, 2]", "[0, 3, 2, 1]").replace("Add(t, r)", "Neg(t)")
    kept = check(network(other, "(float[2, 32, 9, 7] x) => (float[a, b, c, d] y)", f=array(32, 32)))
    assert operators(kept).count("Transpose") == 1 and channels_last(kept) == {"r"}


def test_transposes_that_are_none_between_the_layouts() -> None:
    """What is between two Transposes has the channels last in itself, and may not have them in another place still."""
    turn = "Transpose <perm = [0, 2, 3, 1]>"
    head = "(float[2, 32, 32, 32] x) => (float[a, b, c, d] y)"
    for text in (
        f"a = {turn} (x) t = {turn} (a) c = C3 (t, w) y = Relu(c)",
        f"a = C3 (x, w) r = Relu(a) u = {turn} (r) c = C3 (u, w2) y = Relu(c)",
        f"a = C3 (x, w) r = Relu(a) u = {turn} (r) t = HardSwish(u) z = {turn} (t) c = C3 (z, w2) y = Relu(c)",
        f"a = C3 (x, w) r = Relu(a) u = {turn} (r) m = MaxPool <kernel_shape = [2, 2]> (u) c = C3 (m, w2) y = Relu(c)",
    ):
        check(network(text, head), {"x": array(2, 32, 32, 32)})


def test_a_transpose_of_what_the_model_returns() -> None:
    head = "(float[n, 32, h, w] x) => (float[n, hh, ww, 32] u, float[n, 32, hh, ww] y)"
    text = "a = C3 (x, w) r = Relu(a) u = Transpose <perm = [0, 2, 3, 1]> (r) y = C3 (r, w2)"
    result = check(network(text, head))
    assert channels_last(result) == {"r"} and [value.name for value in result.graph.output] == ["u", "y"]


def test_what_the_model_returns_is_plain() -> None:
    head = "(float[n, 32, h, w] x) => (float[n, 32, hh, ww] y, float[n, 32, hh, ww] r)"
    result = check(network("a = C3 (x, w) r = Relu(a) c = C3 (r, w2) t = Tanh(c) y = C3 (t, w)", head))
    assert channels_last(result) == {"t"} and [value.name for value in result.graph.output] == ["y", "r"]


def test_convolutions_in_bodies() -> None:
    text = """l = Loop (three, true, x) <body = step (int64 i, bool go, float[n, 32, h, w] s)
        => (bool on, float[n, 32, h, w] last) { on = Identity(go) a = C3 (s, w, b) r = Tanh(a) d = D3 (r, v)
        c = Conv (d, p) e = Add(c, r) last = C3 (e, w2) }> y = Relu(l)"""
    result = check(network(text, three=np.array(3), true=np.array(True)))
    (body,) = (item.g for node in result.graph.node for item in node.attribute if item.name == "body")
    assert channels_last(body) == {"r", "d", "e"}


def test_whole_values_of_other_types() -> None:
    """A mask between convolutions is in their layout too."""
    text = """a = C3 (x, w, b) t = Abs(a) m = Greater(t, half) c = C3 (t, w2) s = Where(m, c, t) i = Cast <to = 1> (m)
        k = Mul(s, i) y = C3 (k, w)"""
    assert channels_last(check(network(text))) == {"t", "m", "i", "k"}


def test_a_tensor_is_data_and_operand() -> None:
    """All that a node adds up is in one layout, and the model's input is in ONNX's."""
    text = "a = C3 (x, w) r = Relu(a) c = C3 (r, w2) s = Add(c, r) m = Mul(s, r) q = {} y = C3 (q, w)"
    assert channels_last(check(network(text.format("Tanh(m)")))) == {"r", "q"}
    assert channels_last(check(network(text.format("Mul(m, x)")))) == set()


def test_weights_that_others_have_too() -> None:
    head = "(float[n, 32, h, w] x) => (float[n, 32, hh, ww] y, float[32, 32, 1, 1] p)"
    text = "a = C3 (x, w) r = Conv (a, p) c = C3 (r, w) s = Add(c, a) m = ReduceMax(w) q = Max(s, m) y = C3 (q, w)"
    result = check(network(text, head))
    names = [tensor.name for tensor in result.graph.initializer]
    assert names.count("w_nhwc") == 1 and "p" in names
    assert [node.input[1] for node in result.graph.node if "Nhwc" in node.op_type] == [
        "w_nhwc",
        "p_nhwc",
        "w_nhwc",
        "w_nhwc",
    ]


def test_weights_are_operands_of_their_own_convolution() -> None:
    made = network(
        "a = Conv (x, p, b) s = Add(a, p) r = Relu(s) y = Conv (r, p)",
        "(float[32, 32, 1, 1] x) => (float[32, 32, 1, 1] y)",
    )
    assert not channels_last(check(made, {"x": array(32, 32, 1, 1)}))


def test_many_functions() -> None:
    kinds = (
        "Relu",
        "Tanh",
        "Sigmoid",
        "Softplus",
        "Elu",
        "Softsign",
        "HardSigmoid",
        "Abs",
        "Neg",
        "Sin",
        "Cos",
        "Erf",
        "Selu",
    )
    steps = [f"u{n} = {kind}(t{n}) t{n + 1} = Conv (u{n}, p, b)" for n, kind in enumerate(kinds)]
    made = network(f"t0 = C3 (x, w) {' '.join(steps)} y = Neg(t{len(kinds)})")
    result = optimized(made)
    names = {function.name for function in result.functions}
    assert len(names) == len(result.functions) > 12 and operators(result) == ["FusedNhwcConv"] * 14
    (wanted,) = fusing.run(made, FEEDS, library=False)
    for library in (False, True):
        fusing.assert_close(fusing.run(result, FEEDS, library)[0], wanted)


def test_names_that_are_taken() -> None:
    made = network(
        "a = C3 (x, w) r = Relu(a) d = D3 (r, v, b) e = Tanh(d) c = Conv (e, p, b) s = Add(c, r) y = C3 (s, w2)"
    )
    taken = {
        "r": "a b",
        "a": " ",
        "w": "a b_nhwc",
        "s": "w_nhwc",
        "v": "by_filter",
        "e": "input_0",
        "p": "value_3_channels_first",
    }
    for node in made.graph.node:
        for names in (node.input, node.output):
            names[:] = [taken.get(name, name) for name in names]
    for tensor in made.graph.initializer:
        tensor.name = taken.get(tensor.name, tensor.name)
    assert operators(check(made)) == ["FusedNhwcConv"] * 3


def test_values_are_described_as_they_are() -> None:
    result = optimized(network(CHAIN, STATIC_HEAD))
    made = {name for node in result.graph.node for name in node.output}
    described = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in result.graph.value_info
    }
    assert described.keys() <= made
    assert all(shape == [2, 9, 7, 32] for shape in described.values())


@pytest.mark.parametrize("gated", [False, True])
def test_the_report_names_the_nodes_tensors(gated: bool) -> None:
    text = f"a = C3 (x, w) r = Relu(a) {gate('q', 'r')} m = Mul(r, q4) y = Conv (m, p)" if gated else CHAIN
    result = onnxfuse.optimize(network(text), "cpu", conv="all", check=False)
    inputs = {node.name: list(node.input) for node in result.model.graph.node}
    outputs = {node.name: list(node.output) for node in result.model.graph.node}
    assert {region.name: list(region.inputs) for region in result.report.fused} == inputs
    assert {region.name: list(region.outputs) for region in result.report.fused} == outputs


def test_again_changes_nothing() -> None:
    once = optimized(
        network(f"a = C3 (x, w) r = Relu(a) {gate('q', 'r')} m = Mul(r, q4) c = Conv (m, p) d = D3 (c, v) y = Neg(d)")
    )
    again = check(once)
    assert [node.SerializeToString() for node in again.graph.node] == [
        node.SerializeToString() for node in once.graph.node
    ]


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With weights in a file of their own."""
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    text = f"""a = C3 (x, w) r = Relu(a) {gate("q", "r")} m = Mul(r, q4) c = Conv (m, p) d = D3 (c, v, b)
        e = Conv (d, p) y = C3 (e, w)"""
    onnx.save(network(text, STATIC_HEAD), source, save_as_external_data=True, location="data", size_threshold=64)
    assert cli.main(["optimize", str(source), str(target), "--conv", "all"]) == 0
    assert cli.main(["inspect", str(target)]) == 0
    assert cli.main(["check", str(source), str(target), "--regions"]) == 0
    shown = capsys.readouterr().out
    assert "FusedNhwcConv" in shown and "r_fused" in shown
