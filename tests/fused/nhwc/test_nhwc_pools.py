"""Which MaxPool and AveragePool nodes have the channels last, and that the results are the same."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

import onnxfuse
from onnxfuse import cpu
from onnxfuse.cli import cli
from onnxfuse.fused.conv import conv_times
from onnxfuse.fused.conv.conv_figures import NODE_CALL, Layout
from onnxfuse.fused.conv.conv_times import ConvTimes
from onnxfuse.fused.likely_shapes import LikelyShapes
from onnxfuse.fused.nhwc.pools import Pool, find_pool
from tests.fused.conv.test_cpu_convolutions import array
from tests.fused.nhwc.test_nhwc import (
    STATIC_HEAD,
    _every_kernel_is_worth_it,  # noqa: F401  (a fixture for all tests)
    channels_last,
    check,
    network,
    operators,
    optimized,
)
from tests.support import fusing

BETWEEN = "a = C3 (x, w, b) r = Relu(a) m = {} (r) y = C3 (m, w2)"
"""A pool between two convolutions."""

ONE_DIMENSION = "(float[n, 32, l] x) => (float[n, 32, ll] y)"


def node(
    operator: str,
    shape: tuple[Any, ...] = (1, 32, 9, 7),
    dtype: Any = np.float32,
    made: tuple[int, ...] | None = None,
    **attributes: Any,
) -> gs.Node:
    """A node of a tensor of this shape; its result has the shape ``made``, or as many sizes that are not known."""
    data = gs.Variable("x", dtype, list(shape))
    return gs.Node(operator, "pool", attributes, [data], [gs.Variable("y", dtype, list(made or [None] * len(shape)))])


POOLS = {
    "greatest": "MaxPool <kernel_shape = [2, 2], strides = [2, 2]>",
    "overlapping": "MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 0, 1, 1]>",
    "rounded up": "MaxPool <kernel_shape = [3, 2], strides = [2, 2], pads = [0, 0, 1, 1], ceil_mode = 1>",
    "dilations": "MaxPool <kernel_shape = [2, 2], dilations = [2, 3]>",
    "without padding": 'MaxPool <kernel_shape = [2, 3], auto_pad = "VALID">',
    "the same size": 'MaxPool <kernel_shape = [2, 4], auto_pad = "SAME_UPPER">',
    "the same size, more at the begin": 'AveragePool <kernel_shape = [4, 2], auto_pad = "SAME_LOWER">',
    "means": "AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]>",
    "means of padding": "AveragePool <kernel_shape = [3, 2], strides = [2, 1], pads = [1, 1, 2, 0], "
    "count_include_pad = 1>",
    "means, rounded up": "AveragePool <kernel_shape = [2, 2], strides = [2, 2], pads = [1, 0, 0, 1], ceil_mode = 1>",
}


@pytest.mark.parametrize("kind", POOLS)
def test_pools_between_convolutions_have_the_channels_last(kind: str) -> None:
    result = check(network(BETWEEN.format(POOLS[kind])))
    assert operators(result) == ["FusedNhwcConv", "FusedNhwcPool", "FusedNhwcConv"]
    assert channels_last(result) == {"r", "m"}


@pytest.mark.parametrize("how", ["SAME_UPPER", "SAME_LOWER"])
def test_padding_that_depends_on_the_size(how: str) -> None:
    """It is known where the size is.  (onnx's ReferenceEvaluator computes another size with SAME_LOWER.)"""
    text = BETWEEN.format(f'MaxPool <kernel_shape = [3, 2], strides = [2, 2], auto_pad = "{how}">')
    assert operators(check(network(text, STATIC_HEAD))).count("FusedNhwcPool") == 1
    assert "MaxPool" in operators(optimized(network(text)))


def test_a_face_network() -> None:
    """As MTCNN's: convolutions with a PRelu, and pools between them."""
    text = """a = Conv (x, w) f = PRelu(a, s) m = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (f)
        c = Conv (m, w2) q = PRelu(c, s) o = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (q) d = C3 (o, w)
        y = PRelu(d, s)"""
    result = check(network(text, s=array(32, 1, 1)), {"x": array(3, 32, 24, 23)})
    assert operators(result) == ["FusedNhwcConv", "FusedNhwcPool"] * 2 + ["FusedNhwcConv"]
    assert channels_last(result) == {"f", "m", "q", "o"}


def test_an_inception_block() -> None:
    """The pool of what all branches read, and a Concat of them and of another pool."""
    text = """a = C3 (x, w) r = Relu(a) b1 = Conv (r, p) c1 = Relu(b1) b2 = C3 (r, w2) c2 = Relu(b2)
        m = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r) b3 = Conv (m, p) c3 = Relu(b3)
        n = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r) j = Concat <axis = 1> (c1, c2, c3, n)
        e = Conv (j, k) y = Relu(e)"""
    result = check(network(text, k=array(20, 128, 1, 1)))
    assert channels_last(result) == {"r", "c1", "c2", "m", "c3", "n"}
    assert operators(result).count("FusedNhwcPool") == 2 and "Concat" not in operators(result)


def test_pools_follow_each_other() -> None:
    text = """a = C3 (x, w) r = Relu(a) m = MaxPool <kernel_shape = [2, 2]> (r)
        o = AveragePool <kernel_shape = [2, 2]> (m) y = C3 (o, w2)"""
    assert channels_last(check(network(text))) == {"r", "m", "o"}


def test_one_dimension() -> None:
    text = """a = Conv <pads = [1, 1]> (x, k) r = Relu(a)
        m = MaxPool <kernel_shape = [3], strides = [2], pads = [1, 0]> (r)
        n = AveragePool <kernel_shape = [2]> (m) y = Conv (n, k)"""
    result = check(network(text, ONE_DIMENSION, k=array(32, 32, 3)), {"x": array(2, 32, 20)})
    assert channels_last(result) == {"r", "m", "n"}


READERS = {
    "a reduction": "m = {} (r) q = ReduceMax(m) y = Mul(c, q)",
    "a convolution of groups": "m = {} (r) n = Conv <group = 16> (m, g) q = ReduceMax(n) y = Mul(c, q)",
    "a reduction of what it reads": "m = {} (r) s = ReduceMax(r) y = Mul(m, s)",
}


@pytest.mark.parametrize("kind", READERS)
def test_what_others_read_or_made_is_plain(kind: str) -> None:
    body = READERS[kind].format(POOLS["greatest"])
    result = check(
        network(f"a = C3 (x, w) r = Relu(a) c = C3 (r, w2) {body}", g=array(32, 2, 3, 3)), {"x": array(2, 32, 9, 7)}
    )
    assert "MaxPool" in operators(result) and "FusedNhwcPool" not in operators(result)


def test_what_the_model_returns_or_gives_is_plain() -> None:
    head = "(float[n, 32, h, w] x) => (float[n, 32, hh, ww] y, float[n, 32, hm, wm] m)"
    assert "MaxPool" in operators(check(network(BETWEEN.format(POOLS["greatest"]), head)))
    assert "MaxPool" in operators(
        check(network(f"m = {POOLS['greatest']} (x) a = C3 (m, w) r = Relu(a) y = C3 (r, w)"))
    )


@pytest.mark.parametrize("slow", [False, True])
def test_a_pool_that_is_slower_so_is_plain(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By more than all convolutions beside it gain."""
    monkeypatch.setattr(ConvTimes, "of_pool", lambda _, __, layout: 1e14 * slow if layout is Layout.NHWC else 0.0)
    result = check(network(BETWEEN.format(POOLS["greatest"])))
    assert ("FusedNhwcPool" in operators(result)) == (not slow)


def test_none_of_them_if_convolutions_are_onnx_runtimes() -> None:
    made = network(BETWEEN.format(POOLS["greatest"]), STATIC_HEAD)
    assert operators(onnxfuse.optimize(made, "cpu", conv="none").model) == ["Conv", "Relu", "MaxPool", "Conv"]


@pytest.mark.parametrize("opset", [8, 9, 10, 11, 12, 18, 19, 21, 22])
def test_opsets(opset: int) -> None:
    """Some attributes are new in some: a function has none that its opset does not know."""
    text = (
        f"a = C3 (x, w) r = Relu(a) m = {POOLS['overlapping']} (r) n = {POOLS['means of padding']} (m) y = C3 (n, w2)"
    )
    found = operators(check(network(text, opset=opset)))
    assert found.count("FusedNhwcPool") == (2 if opset >= 9 else 0)


def test_pools_that_differ_in_their_windows_share_a_function() -> None:
    steps = [POOLS["greatest"], POOLS["without padding"], POOLS["means"], POOLS["the same size, more at the begin"]]
    body = " ".join(f"c{i} = C3 (t{i}, w) m{i} = {step} (c{i}) t{i + 1} = Relu(m{i})" for i, step in enumerate(steps))
    result = check(network(f"t0 = Identity(x) {body} y = C3 (t4, w2)"), {"x": array(1, 32, 20, 20)})
    pools = [one for one in result.graph.node if one.op_type.startswith("FusedNhwcPool")]
    assert len(pools) == 4 and len({(one.op_type, one.overload) for one in pools}) == 2


def test_many_kinds() -> None:
    flags = [f"ceil_mode = {ceil}, count_include_pad = {count}" for ceil in (0, 1) for count in (0, 1)]
    kinds = [f"AveragePool <kernel_shape = [2, 2], {flag}>" for flag in flags]
    kinds += [f"MaxPool <kernel_shape = [2, 2], ceil_mode = {ceil}>" for ceil in (0, 1)]
    kinds += [
        "MaxPool <kernel_shape = [2, 2], dilations = [2, 2]>",
        "MaxPool <kernel_shape = [2, 2], dilations = [1, 2]>",
    ]
    body = " ".join(f"m{i} = {kind} (t{i}) t{i + 1} = C3 (m{i}, w)" for i, kind in enumerate(kinds))
    made = network(f"t0 = C3 (x, w2) {body} y = Relu(t{len(kinds)})")
    result, feeds = optimized(made), {"x": array(1, 32, 20, 20)}
    assert operators(result).count("FusedNhwcPool") == len(kinds)
    assert len({function.name for function in result.functions}) == len(result.functions)
    (wanted,) = fusing.run(made, feeds, library=False)
    for library in (False, True):
        fusing.assert_close(fusing.run(result, feeds, library)[0], wanted)


def test_pools_in_bodies() -> None:
    text = f"""l = Loop (three, true, x) <body = step (int64 i, bool go, float[n, 32, h, w] s)
        => (bool on, float[n, 32, h, w] last) {{ on = Identity(go) a = C3 (s, w, b) r = Tanh(a)
        m = {POOLS["means"]} (r) last = C3 (m, w2) }}> y = Relu(l)"""
    result = check(network(text, three=np.array(3), true=np.array(True)))
    (body,) = (item.g for one in result.graph.node for item in one.attribute if item.name == "body")
    assert channels_last(body) == {"r", "m"}


def test_what_a_body_reads_is_plain() -> None:
    text = f"""a = C3 (x, w) r = Relu(a) m = {POOLS["means"]} (r) c = C3 (m, w2) t = Cast <to = 9> (half) y = If (t) <
        then_branch = then () => (float[n, 32, hh, ww] e1) {{ e1 = Add(m, c) }},
        else_branch = other () => (float[n, 32, hh, ww] e2) {{ e2 = Neg(c) }}>"""
    assert "AveragePool" in operators(check(network(text)))


def test_images_of_no_element_and_of_one() -> None:
    made = network(BETWEEN.format(POOLS["means"]))
    check(made, {"x": array(1, 32, 1, 1)})
    (empty,) = fusing.run(optimized(made), {"x": array(0, 32, 9, 7)}, library=True)
    assert empty.shape == (0, 32, 9, 7)


def test_the_report_and_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = network(BETWEEN.format(POOLS["overlapping"]), STATIC_HEAD)
    result = onnxfuse.optimize(made, "cpu", conv="all")
    (pool,) = (one for one in result.model.graph.node if one.op_type == "FusedNhwcPool")
    (region,) = (one for one in result.report.fused if one.name == pool.name)
    assert (list(region.ops), list(region.inputs), list(region.outputs)) == (["MaxPool"], ["r_nhwc"], ["m_nhwc"])
    assert pool.name == "m_fused" and tuple(region.shape or ()) == (2, 5, 3, 32)
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    onnx.save(made, source)
    assert cli.main(["optimize", str(source), str(target), "--conv", "all"]) == 0
    assert cli.main(["inspect", str(target)]) == 0
    assert cli.main(["check", str(source), str(target), "--regions"]) == 0
    shown = capsys.readouterr().out
    assert "FusedNhwcPool" in shown and "m_fused" in shown


def test_again_changes_nothing() -> None:
    once = optimized(network(BETWEEN.format(POOLS["rounded up"])))
    again = check(once)
    assert [one.SerializeToString() for one in again.graph.node] == [one.SerializeToString() for one in once.graph.node]


def nanoseconds(pool: gs.Node, layout: Layout) -> float:
    graph = gs.Graph([pool], inputs=pool.inputs, outputs=pool.outputs)
    return ConvTimes(LikelyShapes(graph)).of_pool(pool, layout)


@pytest.mark.parametrize("vectors", [False, True])
def test_times_in_each_layout(vectors: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime reorders whole blocks for its pools of two dimensions, and computes others slowly."""
    monkeypatch.setattr(cpu, "has_avx512", lambda: vectors)
    monkeypatch.setattr(conv_times, "block_size", lambda: 16 if vectors else 8)
    windows = {"kernel_shape": [3, 3], "strides": [2, 2]}
    for channels, blocks in ((64, True), (60, False)):
        pool = node("MaxPool", (1, channels, 57, 57), made=(1, channels, 28, 28), **windows)
        plain, blocked, last = (nanoseconds(pool, layout) for layout in Layout)
        assert blocked < last < plain
        reorders = ConvTimes(LikelyShapes(gs.Graph())).ns.reorder * channels * (57**2 + 28**2) + 2 * NODE_CALL
        assert (plain == pytest.approx(blocked + reorders)) == blocks
    assert nanoseconds(node("MaxPool", (0, 64, 9, 9), made=(0, 64, 4, 4), **windows), Layout.NHWC) == 0.0


def test_what_a_pool_is() -> None:
    found = find_pool(node("MaxPool", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 2, 1], ceil_mode=1))
    assert found == Pool("MaxPool", (3, 2), (2, 1), (1, 1), (1, 0, 2, 1), 1, 0)
    upper, lower = (
        find_pool(node("AveragePool", kernel_shape=[3, 2], strides=[2, 3], auto_pad=f"SAME_{how}", count_include_pad=1))
        for how in ("UPPER", "LOWER")
    )
    assert upper == Pool("AveragePool", (3, 2), (2, 3), (1, 1), (1, 0, 1, 1), 0, 1)
    assert lower == Pool("AveragePool", (3, 2), (2, 3), (1, 1), (1, 1, 1, 0), 0, 1)


@pytest.mark.parametrize(
    "other",
    [
        node("LpPool", kernel_shape=[2, 2]),
        node("GlobalMaxPool"),
        node("MaxPool", (1, 4, 5, 6, 7), kernel_shape=[2, 2, 2]),
        node("MaxPool", dtype=np.float64, kernel_shape=[2, 2]),
        node("MaxPool", kernel_shape=[2]),
        node("MaxPool"),
        node("MaxPool", kernel_shape=[2, 0]),
        node("MaxPool", kernel_shape=[2, 2], strides=[0, 1]),
        node("MaxPool", kernel_shape=[2, 1 << 15]),
        node("MaxPool", kernel_shape=[2, 2], pads=[0, 2, 0, 0]),
        node("MaxPool", kernel_shape=[2, 2], pads=[0, -1, 0, 0]),
        node("MaxPool", kernel_shape=[2, 2], pads=[1, 0, 0, 0], dilations=[2, 2]),
        node("AveragePool", kernel_shape=[2, 2], dilations=[2, 2]),
        node("MaxPool", (1, 32, "h", 7), kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
        node("MaxPool", kernel_shape=[2, 2], strides=[5, 2], auto_pad="SAME_UPPER"),
        node("MaxPool", kernel_shape=[2, 2], auto_pad="SAME_UPPER", ceil_mode=1),
        node("MaxPool", kernel_shape=[2, 2], auto_pad="VALID", ceil_mode=1),
        node("MaxPool", kernel_shape=[2, 2], auto_pad="OTHER"),
    ],
    ids=str,
)
def test_what_is_none(other: gs.Node) -> None:
    assert find_pool(other) is None


def test_a_pool_with_indices_is_none() -> None:
    both = node("MaxPool", kernel_shape=[2, 2])
    both.outputs.append(gs.Variable("indices", np.int64))
    assert find_pool(both) is None
    head = "(float[n, 32, h, w] x) => (float[n, 32, hh, ww] y, int64[n, 32, hi, wi] i)"
    made = network("a = C3 (x, w) r = Relu(a) m, i = MaxPool <kernel_shape = [2, 2]> (r) y = C3 (m, w2)", head)
    assert "MaxPool" in operators(optimized(made))
