"""Which products become one node, with what behind them, and that they stay what they are."""

import re

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.fused.matmul import fuse_matmul, matmul_node, tied
from onnxfuse.fused.matmul.fuse_matmul import FuseMatMul
from onnxfuse.fused.worth import TOO_LITTLE
from onnxfuse.model.graph import Model
from onnxfuse.ort import host
from onnxfuse.passes import PassContext
from onnxfuse.passes.rules import budget
from onnxfuse.program import multiplying
from tests.fused.conv.test_cpu_convolutions import array, model
from tests.support import fusing

CONSTANTS = {
    **{"w": array(40, 48), "odd": array(40, 50), "turned": array(48, 40), "odd_turned": array(50, 40)},
    **{"bias": array(48), "odd_bias": array(50), "row": array(1, 48), "one": np.float32(0.5), "half": array(1) + 2},
    **{"scale": array(48) + 1, "stack": array(2, 40, 48), "double": array(40, 48, dtype=np.float64)},
    **{"square": array(40, 40), "column": array(12, 1), "index": np.array([1, 0])},
}
FEEDS = {"x": array(2, 12, 40), "z": array(2, 12, 48), "m": array(12, 40)}
STACK = "g (float[n, l, 40] x, float[n, l, 48] z) => (float[n, l, 48] y{returned}) {{ {body} }}"
MATRIX = "g (float[l, 40] m) => (float[l, k] y) {{ {body} }}"


def of_text(body: str, returned: str = "", opset: int = 20, head: str = STACK) -> onnx.ModelProto:
    text = head.format(body=body, returned=returned)
    return model(text, opset, **{name: value for name, value in CONSTANTS.items() if re.search(rf"\b{name}\b", text)})


def fused(made: onnx.ModelProto, *, everything: bool = True) -> tuple[onnx.ModelProto, PassContext]:
    """The model after this pass alone."""
    loaded = Model.from_proto(made)
    context = PassContext(everything=everything)
    FuseMatMul().run(loaded, context)
    result = loaded.to_proto()
    onnx.checker.check_model(result, full_check=True)
    return result, context


def check(made: onnx.ModelProto) -> list[str]:
    """The operators of the model after this pass, those of this pass by one name; it computes the same everywhere."""
    result, _ = fused(made)
    names = {value.name for value in made.graph.input}
    fusing.assert_same_everywhere(result, made, {name: value for name, value in FEEDS.items() if name in names})
    return [re.sub(r"_\d+$", "", node.op_type) for node in result.graph.node]


@pytest.mark.parametrize(
    "body",
    (
        "y = MatMul(x, w)",
        "p = MatMul(x, w) y = Add(p, bias)",
        "p = MatMul(x, w) y = Add(bias, p)",
        "p = MatMul(x, w) a = Add(p, bias) s = Sigmoid(a) y = Mul(s, a)",
        "p = MatMul(x, w) a = Add(p, bias) y = Add(a, z)",
        "p = MatMul(x, w) a = Mul(p, scale) b = Add(a, row) y = Relu(b)",
        "p = MatMul(x, w) a = Mul(p, one) y = Add(a, half)",
        "p = MatMul(x, w) a = Add(p, p) y = Tanh(a)",
        "p = MatMul(x, w) a = Add(p, bias) y = Clip(a, one)",
        "s = Sigmoid(z) p = MatMul(x, w) y = Mul(p, s)",
    ),
)
def test_what_one_node_computes(body: str) -> None:
    assert check(of_text(body)) == ["FusedMatMul"]


@pytest.mark.parametrize("opset", (13, 20))
@pytest.mark.parametrize(
    "body",
    (
        "y = Gemm(m, w)",
        "y = Gemm(m, w, bias)",
        "y = Gemm(m, w, row)",
        "y = Gemm(m, w, one)",
        "y = Gemm(m, w, column)",
        "p = Gemm <transB = 1> (m, turned, bias) y = Tanh(p)",
        "p = Gemm <transB = 1> (m, odd_turned, odd_bias) y = Relu(p)",
        "y = Gemm <alpha = 1.0, beta = 0.5> (m, odd)",
        "y = MatMul(m, odd)",
    ),
)
def test_matrices(body: str, opset: int) -> None:
    assert check(of_text(body, head=MATRIX, opset=opset)) == ["FusedMatMul"]


def test_weights_are_packed_once() -> None:
    made = of_text("p = MatMul(x, w) q = MatMul(x, w) a = Relu(p) y = Add(a, q)")
    assert check(made) == ["FusedMatMul", "FusedMatMul"]
    result, _ = fused(made)
    assert [tensor.name for tensor in result.graph.initializer] == ["w_packed"]


def test_a_product_that_others_read_too() -> None:
    made = of_text("p = MatMul(x, w) a = Add(p, bias) y = Relu(a)", ", float[n, l, 48] p")
    assert check(made) == ["FusedMatMul"]
    made = of_text("p = MatMul(x, w) a = Add(p, bias) r = ReduceSum(p) b = Relu(a) y = Add(b, r)")
    assert check(made) == ["FusedMatMul", "ReduceSum", "Add"]


def test_a_tail_belongs_to_the_last_product() -> None:
    made = of_text("p = MatMul(x, w) q = MatMul(x, w) a = Add(p, bias) b = Sigmoid(q) y = Mul(a, b)")
    assert check(made) == ["FusedMatMul", "FusedMatMul"]
    result, _ = fused(made)
    assert [len(node.input) for node in result.graph.node] == [3, 3]


def test_in_a_body() -> None:
    head = """g (float[2, 12, 40] x, float[2, 12, 48] z, bool c) => (float[2, 12, 48] y) {{
        y = If (c) <then_branch = t () => (float[2, 12, 48] r) {{ {body} }},
                    else_branch = e () => (float[2, 12, 48] v) {{ v = Relu(z) }}> }}"""
    made = of_text("p = MatMul(x, w) a = Add(p, bias) r = Relu(a)", head=head)
    result, _ = fused(made)
    feeds = {"x": FEEDS["x"], "z": FEEDS["z"]}
    for taken in (True, False):
        fusing.assert_same_everywhere(result, made, {**feeds, "c": np.array(taken)})
    (branch, _) = (attribute.g for attribute in result.graph.node[0].attribute)
    assert [node.op_type for node in branch.node] == ["FusedMatMul"]


@pytest.mark.parametrize(
    ("body", "reason"),
    (
        ("y = MatMul(x, stack)", multiplying.NOT_CONSTANT),
        ("t = Transpose <perm = [0, 2, 1]> (z) y = MatMul(z, t)", multiplying.NOT_CONSTANT),
        ("d = Cast <to = 11> (x) p = MatMul(d, double) y = Cast <to = 1> (p)", matmul_node.NOT_FLOAT32),
        ("a = Neg(w) t = Transpose(a) p = MatMul(t, w) r = ReduceSum(p) y = Add(z, r)", host.CONSTANT_ARITHMETIC),
    ),
)
def test_what_is_left_alone(body: str, reason: str) -> None:
    result, context = fused(of_text(body))
    assert not fusing.fused_nodes(result)
    assert reason in {refusal.reason for refusal in context.report.refusals}


@pytest.mark.parametrize(
    "body",
    (
        "y = Gemm <alpha = 0.5> (m, w)",
        "y = Gemm <beta = 0.5> (m, w, bias)",
        "t = Transpose(m) y = Gemm <transA = 1> (t, w)",
    ),
)
def test_what_is_scaled_is_left_alone(body: str) -> None:
    result, context = fused(of_text(body, head=MATRIX))
    assert not fusing.fused_nodes(result)
    assert {refusal.reason for refusal in context.report.refusals} <= {multiplying.SCALED, multiplying.TRANSPOSED}


def test_columns_to_be_filled_up_need_attributes_in_functions() -> None:
    result, context = fused(of_text("y = MatMul(m, odd)", head=MATRIX, opset=11))
    assert not fusing.fused_nodes(result)
    assert {refusal.reason for refusal in context.report.refusals} == {matmul_node.PADDED}
    assert check(of_text("y = MatMul(m, w)", head=MATRIX, opset=11)) == ["FusedMatMul"]


def test_weights_that_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small copy is made, a large one is not."""
    made = of_text("i = Gather(w, index) r = ReduceSum(i) p = MatMul(x, w) y = Add(p, r)")
    assert check(made)[-1] == "FusedMatMul"
    monkeypatch.setattr(budget, "_LIMIT", 1000)
    result, context = fused(made)
    assert not fusing.fused_nodes(result)
    assert any("the weights are shared" in refusal.reason for refusal in context.report.refusals)


@pytest.mark.parametrize(
    "body",
    (
        "e = Gather(turned, index) r = ReduceSum(e) t = Transpose(turned) p = MatMul(m, t) y = Add(p, r)",
        "e = Gather(odd_turned, index) r = ReduceSum(e) t = Transpose <perm = [1, 0]> (odd_turned) p = MatMul(m, t) "
        "y = Add(p, r)",
        "e = Gather(turned, index) r = ReduceSum(e) p = Gemm <transB = 1> (m, turned) q = Add(p, r) y = Relu(q)",
    ),
    ids=("through a Transpose", "with columns to be filled up", "of a Gemm"),
)
def test_an_embedding_that_is_the_last_layer_is_read_from_its_packed_weights(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_LIMIT", 1000)
    monkeypatch.setattr(tied, "LEAST_PRODUCT_WEIGHTS", 1000)
    made = of_text(body, head=MATRIX)
    operators = check(made)
    assert operators[:2] == ["Transpose", "Reshape"] and "FusedMatMul" in operators
    result, _ = fused(made)
    large = [value.dims for value in result.graph.initializer if np.prod(value.dims) >= 1000]
    assert len(large) == 1 and len(large[0]) == 3  # once, packed


def test_weights_that_a_graph_returns_or_a_body_may_read_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_LIMIT", 1000)
    monkeypatch.setattr(tied, "LEAST_PRODUCT_WEIGHTS", 1000)
    text = "e = Gather(turned, index) t = Transpose(turned) p = MatMul(x, t) r = ReduceSum(e) y = Add(p, r)"
    result, _ = fused(of_text(text, returned=", float[40, 48] t"))
    assert not fusing.fused_nodes(result)
    both = "s = MatMul(z, turned) t = Transpose(turned) p = MatMul(x, t) r = ReduceSum(s) y = Add(p, r)"
    result, _ = fused(of_text(both))  # of the two products that which has the matrix as it is, or none
    assert not any(value.name.endswith("_turned") for value in result.graph.initializer)
    body = "c = Cast <to = 9> (one) u = If (c) <then_branch = g () => (float[48, 40] a) { a = Identity(turned) }, "
    body += "else_branch = g () => (float[48, 40] b) { b = Abs(turned) }> s = ReduceSum(u) z2 = Add(y1, s) "
    made = of_text(text.replace("y = Add", "y1 = Add") + " " + body + "y = Relu(z2)")
    result, _ = fused(made)
    assert not any(value.name.endswith("_turned") for value in result.graph.initializer)


@pytest.mark.parametrize(
    ("body", "fused_products"),
    (
        ("t = Transpose(m) g = Gemm <transA = 1> (t, w) p = MatMul(m, w) y = Add(p, g)", 0),
        ("p = MatMul(m, square) q = Gemm <transB = 1> (p, square) y = Relu(q)", 0),
        ("p = MatMul(m, square) q = MatMul(p, square) y = Relu(q)", 2),
    ),
    ids=("a product that stays", "in both orders", "in one order"),
)
def test_each_copy_of_weights_counts(body: str, fused_products: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for one that takes the place of what nothing reads any more."""
    made = of_text(body, head=MATRIX)
    monkeypatch.setattr(budget, "_LIMIT", 1000)
    result, _ = fused(made)
    assert len(fusing.fused_nodes(result)) == fused_products
    fusing.assert_same_everywhere(result, made, {"m": FEEDS["m"]})


def test_few_weights_without_anything_behind_them_are_left() -> None:
    """ONNX Runtime makes a product and its bias a Gemm, and computes some activations in that."""
    for body in ("y = MatMul(m, w)", "p = MatMul(m, w) y = Add(p, bias)", "p = Gemm(m, w, bias) y = Relu(p)"):
        result, context = fused(of_text(body, head=MATRIX), everything=False)
        assert not fusing.fused_nodes(result)
        assert {refusal.reason for refusal in context.report.refusals} == {fuse_matmul.FEW_WEIGHTS}
    result, _ = fused(of_text("p = MatMul(m, w) a = Add(p, bias) y = Gelu(a)", head=MATRIX), everything=False)
    assert [node.op_type for node in result.graph.node] == ["FusedMatMul"]


def test_a_model_with_too_little() -> None:
    head = "g (float[l, 40] m) => (float[l, k] y) {{ {body} }}"
    rest = " ".join(f"t{i} = Cos(t{i - 1})" for i in range(1, 60))
    made = of_text(f"p = MatMul(m, w) y = Tanh(p) t0 = Cos(m) {rest}", head=head)
    result, context = fused(made, everything=False)
    assert not fusing.fused_nodes(result)
    assert TOO_LITTLE in {refusal.reason for refusal in context.report.refusals}


def test_large_products_alone_are_taken() -> None:
    weights = array(256, 512)
    made = model("g (float[l, 256] m) => (float[l, 512] y) { y = MatMul(m, wide) }", wide=weights)
    result = onnxfuse.optimize(made, "cpu", bench=False).model
    assert [node.op_type for node in result.graph.node] == (["FusedMatMul"] if _fast() else ["MatMul"])


def _fast() -> bool:
    return PassContext().on.fast_products()
