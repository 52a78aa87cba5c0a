"""Which Concats are never made, which are nodes of the library's, and that the results are the same."""

import numpy as np
import onnx
import pytest
from onnx import helper

import onnxfuse
from tests.fused.conv.test_cpu_convolutions import array
from tests.fused.nhwc.test_nhwc import (
    STATIC_HEAD,
    _every_kernel_is_worth_it,  # noqa: F401  (a fixture for all tests)
    channels_last,
    check,
    network,
    operators,
)
from tests.support import fusing

BRANCHES = "a = C3 (x, w) r = Relu(a) c = C3 (r, w2) t = Tanh(c)"
NORM = "BatchNormalization (m, g, g, g, v1)"
VECTORS = {"g": array(64), "v1": np.abs(array(64)) + 0.5}


def joined(made: onnx.ModelProto) -> list[list[int]]:
    """The parts of each node that reads some."""
    found = (helper.get_node_attr_value(node, "joined_channels") for node in made.graph.node if _reads_parts(node))
    return [list(parts) for parts in found]


def _reads_parts(node: onnx.NodeProto) -> bool:
    return any(item.name == "joined_channels" for item in node.attribute)


@pytest.mark.parametrize("head", (STATIC_HEAD, "(float[n, 32, h, w] x) => (float[n, c, hh, ww] y)"))
def test_a_product_reads_parts(head: str) -> None:
    result = check(network(f"{BRANCHES} m = Concat <axis = 1> (r, t) y = Conv (m, k)", head, k=array(20, 64, 1, 1)))
    assert operators(result) == ["FusedNhwcConv"] * 3 and joined(result) == [[32, 32]]


def test_a_product_with_a_head_and_a_tail_reads_parts() -> None:
    text = f"{BRANCHES} m = Concat <axis = 1> (r, t) n = {NORM} q = Relu(n) e = Conv (q, k) y = Relu(e)"
    result = check(network(text, k=array(20, 64, 1, 1), **VECTORS))
    assert operators(result) == ["FusedNhwcConv"] * 3 and joined(result) == [[32, 32]]


def test_two_products_do_not_both_copy_parts() -> None:
    text = f"""{BRANCHES} m = Concat <axis = 1> (r, t) n = {NORM} q = Relu(n) d = Conv (m, k) e = Conv (q, k)
        s = Add(d, e) y = Relu(s)"""
    result = check(network(text, k=array(20, 64, 1, 1), **VECTORS))
    assert operators(result).count("FusedNhwcConcat") == 1 and joined(result) == []


@pytest.mark.parametrize("opset", (9, 12, 13, 20))
def test_a_dense_block(opset: int) -> None:
    """Every layer reads what all before have made."""
    text = f"""a = C3 (x, w) r = Relu(a) m1 = Concat <axis = 1> (r, r) n1 = {NORM.replace("m,", "m1,")} q1 = Relu(n1)
        d1 = Conv (q1, k) p1 = C3 (d1, w2) m2 = Concat <axis = 1> (m1, p1) d2 = Conv (m2, k2) p2 = C3 (d2, w2)
        m3 = Concat <axis = 1> (m2, p2) d3 = Conv (m3, k3) y = Relu(d3)"""
    values = {"k": array(32, 64, 1, 1), "k2": array(32, 96, 1, 1), "k3": array(32, 128, 1, 1), **VECTORS}
    result = check(network(text, opset=opset, **values))
    assert "FusedNhwcConcat" not in operators(result) and "Concat" not in operators(result)
    assert joined(result) == [[32] * 2, [32] * 3, [32] * 4]


def test_what_others_read_is_made() -> None:
    """From the parts of what is not."""
    text = f"""{BRANCHES} m = Concat <axis = 1> (r, t) d = Conv (m, k) n = Concat <axis = 1> (m, d)
        e = C3 (n, k3) y = Relu(e)"""
    result = check(network(text, k=array(32, 64, 1, 1), k3=array(20, 96, 3, 3)))
    assert operators(result).count("FusedNhwcConcat") == 1 and joined(result) == [[32, 32]]
    (concat,) = (node for node in result.graph.node if node.op_type.startswith("FusedNhwcConcat"))
    assert len(concat.input) == 3


@pytest.mark.parametrize("reader", ("z = Identity(m)", "z = ReduceMax(m)", "u = C3 (m, k3) z = Relu(u)"))
def test_a_product_reads_what_is_made_anyway(reader: str) -> None:
    head = "(float[n, 32, h, w] x) => (float[n, c, hh, ww] y, float[n1, c1, h1, w1] z)"
    text = f"{BRANCHES} m = Concat <axis = 1> (r, t) y = Conv (m, k) {reader}"
    assert joined(check(network(text, head, k=array(20, 64, 1, 1), k3=array(20, 64, 3, 3)))) == []


def test_a_product_that_reads_it_twice() -> None:
    text = f"{BRANCHES} m = Concat <axis = 1> (r, t) d = Conv (m, k) s = Mul(d, m) y = Relu(s)"
    assert joined(check(network(text, k=array(64, 64, 1, 1)))) == []


def test_a_tensor_that_is_joined_with_itself() -> None:
    text = "a = C3 (x, w) r = Relu(a) m = Concat <axis = 1> (r, r) d = C3 (m, k3) y = Relu(d)"
    result = check(network(text, k3=array(20, 64, 3, 3)))
    assert operators(result).count("FusedNhwcConcat") == 1 and channels_last(result) == {"r", "m"}


def test_a_concat_of_one_tensor() -> None:
    text = f"{BRANCHES} o = Concat <axis = 1> (r) m = Concat <axis = 1> (o, t) d = Conv (m, k) y = Relu(d)"
    result = check(network(text, k=array(20, 64, 1, 1)))
    assert operators(result) == ["FusedNhwcConv"] * 3 and joined(result) == [[32, 32]]


def test_parts_of_a_single_channel_are_joined_once() -> None:
    parts = " ".join(f"p{i} = Slice (r, s{i}, s{i + 1}, axes)" for i in range(32))
    text = f"""a = C3 (x, w) r = Relu(a) {parts} m = Concat <axis = 1> ({", ".join(f"p{i}" for i in range(32))})
        n = Concat <axis = 1> (m, r) d = Conv (n, k) y = Relu(d)"""
    values = {f"s{i}": np.array([i]) for i in range(33)}
    result = check(network(text, **values, k=array(20, 64, 1, 1)))
    assert joined(result) == [[32, 32]] and operators(result).count("FusedNhwcConcat") == 1


def test_no_more_parts_than_one_node_reads() -> None:
    names = ", ".join(["r"] * 32)
    text = f"""a = C3 (x, w) r = Relu(a) m = Concat <axis = 1> ({names}) n = Concat <axis = 1> (m, m)
        o = Concat <axis = 1> (n, r) d = Conv (n, k2) e = Conv (o, k3) y = Add(d, e)"""
    result = check(network(text, k2=array(20, 2048, 1, 1), k3=array(20, 2080, 1, 1)))
    assert sorted(map(len, joined(result))) == [64] and operators(result).count("FusedNhwcConcat") == 1


def test_regions_of_parts_agree_alone() -> None:
    """Each node on what the original model gives it."""
    text = f"{BRANCHES} m = Concat <axis = 1> (r, t) n = {NORM} q = Relu(n) d = Conv (q, k) y = Relu(d)"
    made = network(text, STATIC_HEAD, k=array(20, 64, 1, 1), **VECTORS)
    result = onnxfuse.optimize(made, "cpu", conv="all")
    assert joined(result.model) == [[32, 32]]
    fusing.assert_same_everywhere(result.model, made, {"x": array(2, 32, 9, 7)})
