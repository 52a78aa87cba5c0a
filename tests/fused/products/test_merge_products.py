"""Which products of one tensor become one, where fused nodes read its parts, and the same results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxfuse.passes.rules import budget
from tests.passes.models import apply, assert_close, model, node, ops, random, reasons
from tests.support import fusing

PASS = "merge-products"
GATED = [node("MatMul", "x g", "a"), node("MatMul", "x u", "b")]
SILU = [node("Sigmoid", "a", "s"), node("Mul", "a s", "t"), node("Mul", "t b", "y")]
WEIGHTS = {"g": (8, 6), "u": (8, 6), "v": (8, 6), "wide": (8, 9)}
CONSTANTS = {name: random(*shape, seed=place) for place, (name, shape) in enumerate(WEIGHTS.items())}
CONSTANTS |= {"c": random(6, seed=8), "d": random(6, seed=9)}


def gated(*nodes, outputs=("y",), shape=("n", "l", 8), dtype=np.float32, opset=17):
    used = {name for one in nodes for name in one.input}
    constants = {name: value.astype(dtype) for name, value in CONSTANTS.items() if name in used}
    return model(nodes, {"x": shape}, outputs, constants, dtype=dtype, opset=opset)


FORMS = {
    "SiLU": SILU,
    "biases": [
        *(node("Add", "a c", "a1"), node("Add", "d b", "b1")),
        *(node("Tanh", "a1", "t"), node("Mul", "t b1", "y")),
    ],
    "one function": [node("Tanh", "a", "t"), node("Mul", "t b", "y")],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [("n", "l", 8), ("n", 8), (1, 5, 8)])
@pytest.mark.parametrize("form", FORMS)
def test_gate_and_values(form, shape, dtype):
    proto = gated(*GATED, *FORMS[form], shape=shape, dtype=dtype)
    result, context = apply(proto, PASS)
    if form == "biases" and len(shape) == 2:  # ONNX Runtime makes a Gemm of each
        assert ops(result).count("MatMul") == 2
        return
    assert ops(result)[:2] == ["MatMul", "Split"] and ops(result).count("MatMul") == 1
    assert [rewrite.rule for rewrite in context.report.rewrites] == [PASS]
    feeds = {"x": random(*(size if isinstance(size, int) else 3 for size in shape), dtype=dtype)}
    assert_close(proto, result, feeds, 16)
    fused, _ = apply(proto, PASS, "fuse-elementwise")
    assert ops(fused) == ["MatMul", "FusedElementwise"]
    fusing.assert_same_everywhere(fused, proto, feeds)


def test_three_of_several_sizes():
    nodes = [node("MatMul", "x v", "e"), node("MatMul", "x wide", "f"), node("Exp", "f", "i"), node("Neg", "i", "z")]
    proto = gated(*GATED, *nodes, *SILU[:-1], node("Mul", "b e", "k"), node("Mul", "t k", "y"), outputs=("y", "z"))
    result, _ = apply(proto, PASS)
    assert ops(result).count("MatMul") == 1
    assert_close(proto, result, {"x": random(2, 3, 8)}, 16)


STAY = {
    "a reader of another kind": ([*GATED, *SILU, node("Transpose", "b", "z")], ("y", "z")),
    "an output": ([*GATED, *SILU], ("y", "b")),
    "one node, which is not fused": ([*GATED, node("Add", "a b", "y")], ("y",)),
    "a reduction behind": ([*GATED, *SILU[:-1], node("Mul", "t b", "p"), node("ReduceMax", "p", "y")], ("y",)),
    "another tensor": ([node("Abs", "x", "w"), GATED[0], node("MatMul", "w u", "b"), *SILU], ("y",)),
}


@pytest.mark.parametrize("kind", STAY)
def test_what_stays(kind):
    nodes, outputs = STAY[kind]
    assert ops(apply(gated(*nodes, outputs=outputs), PASS)[0]).count("MatMul") == 2


def test_reasons():
    assert "what reads it is not known to be fused" in reasons(
        apply(gated(*STAY["a reader of another kind"][0]), PASS)[1]
    )


def test_shared_weights_are_copied_within_a_budget(monkeypatch):
    proto = gated(*GATED, *SILU, node("ReduceMax", "u", "z"), outputs=("y", "z"))
    assert ops(apply(proto, PASS)[0]).count("MatMul") == 1
    monkeypatch.setattr(budget, "_LIMIT", 8 * 6 * 4 - 1)
    result, context = apply(proto, PASS)
    assert ops(result).count("MatMul") == 2 and "the weights are shared" in reasons(context)


def test_every_target_reads_parts():
    assert ops(apply(gated(*GATED, *SILU), PASS, target="cuda")[0]).count("MatMul") == 1


def test_in_a_body():
    inner = gated(*GATED, *SILU).graph
    then = onnx.helper.make_graph(list(inner.node), "then", [], list(inner.output), list(inner.initializer))
    other = onnx.helper.make_graph([node("Slice", "x zero six last", "y")], "else", [], list(inner.output))
    for name, value in {"zero": 0, "six": 6, "last": 2}.items():
        other.initializer.append(onnx.numpy_helper.from_array(np.array([value]), name))
    proto = model([], {"x": ["n", "l", 8]}, ())
    proto.graph.input.append(onnx.helper.make_tensor_value_info("on", onnx.TensorProto.BOOL, []))
    proto.graph.node.append(onnx.helper.make_node("If", ["on"], ["z"], then_branch=then, else_branch=other))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["n", "l", 6]))
    result, _ = apply(proto, PASS)
    (body,) = (one.g for one in result.graph.node[0].attribute if one.name == "then_branch")
    assert [one.op_type for one in body.node].count("MatMul") == 1
    for on in (False, True):
        assert_close(proto, result, {"x": random(2, 3, 8), "on": np.array(on)}, 16)


ROTARY = {"cos": random(1, 1, 1, 4, seed=3), "sin": random(1, 1, 1, 4, seed=4), "wq": random(8, 16, seed=5)}
ROTARY |= {"wk": random(8, 8, seed=6), "q_heads": np.array([1, 1, 4, 4]), "k_heads": np.array([1, 1, 2, 4])}
OF_SIX = {"wk": random(8, 6, seed=6), "k_heads": np.array([1, 1, 1, 6]), "cos": random(1), "sin": random(1)}


def rotary(heads, result):
    """The embedding of heads by their halves, as exporters write it."""
    nodes = [node("Split", heads, f"{heads}_low {heads}_high", axis=-1)]
    nodes += [node("Neg", f"{heads}_high", f"{heads}_minus")]
    nodes += [node("Concat", f"{heads}_minus {heads}_low", f"{heads}_turned", axis=-1)]
    nodes += [node("Mul", f"{heads} cos", f"{heads}_one"), node("Mul", f"{heads}_turned sin", f"{heads}_other")]
    return [*nodes, node("Add", f"{heads}_one {heads}_other", result)]


def decoding(constants=ROTARY, shape=(1, 1, 8), outputs=("y", "z")):
    nodes = [node("MatMul", "x wq", "a"), node("Reshape", "a q_heads", "q")]
    nodes += [node("Transpose", "q", "qt", perm=[0, 2, 1, 3]), *rotary("qt", "y")]
    nodes += [node("MatMul", "x wk", "b"), node("Reshape", "b k_heads", "k"), *rotary("k", "z")]
    return model(nodes, {"x": shape}, outputs, constants)


def test_queries_and_keys_of_one_row():
    """Heads are parts of one row in any shape; one fused node reads them where they lie."""
    proto = decoding()
    assert ops(apply(proto, PASS)[0]).count("MatMul") == 2  # on the CPU
    fused, _ = apply(proto, "slow-operators", PASS, "gather-rows", "fuse-elementwise", target="cuda")
    assert [op for op in ops(fused) if op != "Reshape"] == ["MatMul", "FusedElementwise"]
    fusing.assert_same_everywhere(fused, proto, {"x": random(1, 1, 8)})


@pytest.mark.parametrize(
    ("changes", "shape", "outputs"),
    [
        ({"q_heads": np.array([2, 1, 4, 4]), "k_heads": np.array([2, 1, 2, 4])}, (2, 1, 8), ("y", "z")),
        (OF_SIX, (1, 1, 8), ("y", "z")),
        ({}, (1, 1, 8), ("y", "z", "a")),
        ({}, (1, 1, 8), ("y", "z", "qt_low")),
    ],
)
def test_rows_that_stay_apart(changes, shape, outputs):
    """Several rows, heads that do not begin where those of others do, and what is read elsewhere."""
    result, _ = apply(decoding(ROTARY | changes, shape, outputs), "slow-operators", PASS, target="cuda")
    assert ops(result).count("MatMul") == 2
