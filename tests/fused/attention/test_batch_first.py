"""The attention of PyTorch's nn.MultiheadAttention, in which rows come before the batch."""

import re

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.fused.attention.batch_first import put_batch_first
from onnxfuse.passes import PassContext
from onnxfuse.shapes.inference import infer
from tests.fused.attention.test_fuse_attention import check, fused
from tests.fused.conv.test_cpu_convolutions import array, model
from tests.support import fusing

PACKED = """
    w0 = MatMul(xt, packed) w1 = Add(w0, biases) w2 = Reshape(w1, parts) w3 = Unsqueeze(w2, first)
    w4 = Transpose <perm = [3, 1, 2, 0, 4]> (w3) w5 = Squeeze(w4, fourth)
    q = Gather(w5, {0}) k = Gather(w5, {1}) v = Gather(w5, {2})"""
APART = """
    qa = MatMul(xt, wq) q = Add(bias, qa) k = MatMul(xt, wk) va = MatMul(xt, wv) v = Mul(va, c)"""
HEADS = """
    sh = Shape(xt) l = Gather(sh, at0) b = Gather(sh, at1) bh = Mul(b, four) rows = Concat <axis = 0> (l, bh, six)
    q3 = Reshape(q, rows) q4 = Transpose <perm = [1, 0, 2]> (q3)
    k3 = Reshape(k, rows) v3 = Reshape(v, rows) v4 = Transpose <perm = [1, 0, 2]> (v3)"""
PRODUCTS = {
    "four dimensions": """
    k4 = Transpose <perm = [1, 0, 2]> (k3) apart = Concat <axis = 0> (b, four, l, six)
    q5 = Reshape(q4, apart) k5 = Reshape(k4, apart) v5 = Reshape(v4, apart)
    k6 = Transpose <perm = [0, 1, 3, 2]> (k5) q6 = Mul(q5, c) k7 = Mul(k6, c) s = MatMul(q6, k7)
    p = Softmax <axis = -1> (s) o = MatMul(p, v5) ot = Transpose <perm = [2, 0, 1, 3]> (o)""",
    "three dimensions": """
    k4 = Transpose <perm = [1, 2, 0]> (k3) q5 = Mul(q4, c) s = MatMul(q5, k4)
    p = Softmax <axis = -1> (s) o = MatMul(p, v4) ot = Transpose <perm = [1, 0, 2]> (o)""",
    "three dimensions and a mask": """
    k4 = Transpose <perm = [1, 2, 0]> (k3) q5 = Mul(q4, c) s = MatMul(q5, k4)
    z2 = Expand(z, heads) flat_z = Concat <axis = 0> (bh, one, l) z3 = Reshape(z2, flat_z) t = Add(z3, s)
    p = Softmax <axis = -1> (t) o = MatMul(p, v4) ot = Transpose <perm = [1, 0, 2]> (o)""",
}
RESULT = """
    flat = Reshape(ot, joined) g = Gemm <{attributes}> (flat, wo, bias) back = Concat <axis = 0> (l, b, all)
    made = Reshape(g, back)"""
CONSTANTS = {
    **{f"w{name}": array(24, 24) + 0.02 * place for place, name in enumerate("qkvo")},
    **{"packed": array(24, 72), "biases": array(72), "bias": array(24), "parts": np.array([0, 0, 3, 24])},
    **{
        "first": np.array([0]),
        "fourth": np.array([3]),
        "zero": np.array(0),
        "second": np.array(1),
        "third": np.array(2),
    },
    **{"at0": np.array([0]), "at1": np.array([1]), "one": np.array([1]), "four": np.array([4]), "six": np.array([6])},
    **{"c": np.float32(6**-0.5), "joined": np.array([-1, 24]), "all": np.array([24]), "heads": np.array([1, 4, 1, 1])},
}


def module(
    products: str = "four dimensions",
    projections: str = PACKED.format("zero", "second", "third"),
    attributes: str = "transB = 1",
    outer: str = "batch",
    end: str = "",
    opset: int = 17,
) -> onnx.ModelProto:
    """With the batch or rows first outside of it; ``end`` is what follows."""
    swapped = "y = Transpose <perm = [1, 0, 2]> (made)" if outer == "batch" else "y = Identity(made)"
    begin = "xt = Transpose <perm = [1, 0, 2]> (x)" if outer == "batch" else "xt = Identity(x)"
    sizes = "n, l" if outer == "batch" else "l, n"
    text = "".join((begin, projections, HEADS, PRODUCTS[products], RESULT.format(attributes=attributes), swapped, end))
    head = f"g (float[{sizes}, 24] x, float[n, 1, 1, l] z) => (float[{sizes}, 24] y)"
    for made, copied in re.findall(r"(\w+) = Identity\((\w+)\)", text):  # no node of its own
        text = text.replace(f"{made} = Identity({copied})", "")
        text = re.sub(rf"\b{copied}\b", made, text) if made == "y" else re.sub(rf"\b{made}\b", copied, text)
    used = {name: value for name, value in CONSTANTS.items() if re.search(rf"\b{name}\b", text)}
    return model(f"{head} {{ {text} }}", opset, **used)


def feeds(batch: int, length: int, outer: str = "batch") -> dict[str, np.ndarray]:
    sizes = (batch, length) if outer == "batch" else (length, batch)
    return {"x": array(*sizes, 24) * 10, "z": array(batch, 1, 1, length)}


@pytest.mark.parametrize("sizes", [(2, 9), (1, 1), (3, 70), (4, 4)])
@pytest.mark.parametrize("projections", (PACKED.format("zero", "second", "third"), APART), ids=("packed", "apart"))
@pytest.mark.parametrize("products", PRODUCTS)
def test_nothing_is_transposed(products: str, projections: str, sizes: tuple[int, int]) -> None:
    found = check(module(products, projections), feeds(*sizes))
    assert "FusedAttention" in found and not {"Transpose", "Gemm", "Softmax", "Squeeze"} & {*found}


@pytest.mark.parametrize("products", PRODUCTS)
def test_a_model_of_rows_first_is_transposed_once_on_each_side(products: str) -> None:
    for batch, length in ((2, 9), (1, 5), (4, 4)):
        found = check(module(products, outer="rows"), feeds(batch, length, "rows"))
        assert found.count("Transpose") == 2 and "Squeeze" not in found


@pytest.mark.parametrize("order", [("second", "zero", "third"), ("third", "second", "zero")])
def test_parts_in_another_order(order: tuple[str, ...]) -> None:
    assert "Transpose" not in check(module(projections=PACKED.format(*order)), feeds(2, 9))


def test_one_part_for_all() -> None:
    """Which no Split makes twice."""
    check(module(projections=PACKED.format("zero", "zero", "third")), feeds(2, 9))


def test_parts_that_are_read_elsewhere() -> None:
    made = module(end="y2 = Relu(k)")
    made.graph.output.append(onnx.helper.make_tensor_value_info("y2", onnx.TensorProto.FLOAT, ["l", "n", 24]))
    assert "Squeeze" in check(made, feeds(2, 9))


def test_a_result_whose_one_head_stays_a_dimension() -> None:
    """A Reshape may copy it, the third size of what is transposed."""
    text = """g (float[n, 1, l, 6] q, float[n, 1, l, 6] k) => (float[l, n, 1, 6] y) {
        kt = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul(q, kt) p = Softmax <axis = -1> (s) o = MatMul(p, k)
        ot = Transpose <perm = [2, 0, 1, 3]> (o) y = Reshape(ot, same) }"""
    made = model(text, 17, same=np.array([0, 0, 0, 6]))
    result, _ = fused(made)
    fusing.assert_same_everywhere(result, made, {"q": array(2, 1, 9, 6), "k": array(2, 1, 9, 6)})


@pytest.mark.parametrize("attributes", ("transB = 0", "alpha = 0.5", "beta = 2.0, transB = 1"))
def test_products_of_other_kinds(attributes: str) -> None:
    found = check(module(attributes=attributes), feeds(2, 9))
    assert ("Gemm" in found) == (attributes != "transB = 0")


def test_a_product_that_is_read_elsewhere() -> None:
    made = module(end="y2 = Relu(g)")
    made.graph.output.append(onnx.helper.make_tensor_value_info("y2", onnx.TensorProto.FLOAT, ["m", 24]))
    assert "Gemm" in check(made, feeds(2, 9))


def test_old_operators_split_by_an_attribute() -> None:
    """Unsqueeze and Squeeze have axes as attributes before opset 13."""
    made = module(opset=12)
    for node in made.graph.node:
        if node.op_type in ("Unsqueeze", "Squeeze"):
            axis = 0 if node.op_type == "Unsqueeze" else 3
            node.CopyFrom(onnx.helper.make_node(node.op_type, node.input[:1], node.output, axes=[axis]))
    del made.graph.initializer[:]
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(value), name)
        for name, value in CONSTANTS.items()
        if any(name in node.input for node in made.graph.node)
    )
    assert "Transpose" not in check(made, feeds(2, 9))


def test_sizes_that_are_declared_to_be_one_and_are_not() -> None:
    made = module()
    for tensor in (*made.graph.input, *made.graph.output):
        for dim in tensor.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = "n"
    result, _ = fused(made)
    assert "Squeeze" in {node.op_type for node in result.graph.node}
    fusing.assert_same_everywhere(result, made, feeds(2, 9))


def test_a_long_chain_between_two_transposes() -> None:
    """Longer than Python's recursion goes."""
    length = 1200
    chain = " ".join(f"a{place + 1} = Add(a{place}, bias)" for place in range(length))
    text = f"""g (float[n, l, 24] x) => (float[n, l, 24] y) {{ a0 = Transpose <perm = [1, 0, 2]> (x) {chain}
        y = Transpose <perm = [1, 0, 2]> (a{length}) }}"""
    loaded = onnxfuse.Model.from_proto(model(text, 17, bias=CONSTANTS["bias"]))
    infer(loaded)
    put_batch_first(loaded, PassContext())
    assert [node.op for node in loaded.graph.nodes] == ["Add"] * length
