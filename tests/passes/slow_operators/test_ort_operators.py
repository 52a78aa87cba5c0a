"""Operators that ONNX Runtime's transformer optimizer writes, in nodes of ONNX: which forms, and the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxfuse
from tests.passes.models import apply, assert_close, ops, random, reasons
from tests.support import fusing

CONTRIB = "com.microsoft"
SHAPE = ["b", "l", 64]
VECTORS = {name: random(64, seed=seed) for seed, name in enumerate(("scale", "shift", "bias"))}


def made(
    op: str, inputs: str, outputs: str = "h", opset: int = 17, dtype: Any = np.float32, **attributes: Any
) -> onnx.ModelProto:
    """The operator, whose missing tensors are ``-``, between elementwise nodes; y is of its result, z of its sum."""
    names = [["" if name == "-" else name for name in text.split()] for text in (inputs, outputs)]
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node(op, *names, domain=CONTRIB, **attributes)]
    nodes.append(helper.make_node("Tanh", ["h"], ["y"]))
    results = ["y"] + [name for name in names[1][1:] if name]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, SHAPE) for name in ("x", "skip") if name in ("x", *names[0])],
        [helper.make_tensor_value_info(name, kind, SHAPE if name in "yz" else ["b", "l", 1]) for name in results],
        [numpy_helper.from_array(VECTORS[name].astype(dtype), name) for name in VECTORS if name in names[0]],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def feeds_of(proto: onnx.ModelProto, scale: float = 1) -> dict[str, np.ndarray]:
    return {value.name: scale * random(2, 5, 64, seed=seed) for seed, value in enumerate(proto.graph.input)}


FORMS = {
    "BiasGelu": ("a bias", {}),
    "FastGelu": ("a", {}),
    "FastGelu with a bias": ("a bias", {}),
    "Gelu": ("a", {}),
    "QuickGelu": ("a", {}),
    "QuickGelu of another slope": ("a", {"alpha": 1.5}),
    "SkipLayerNormalization": ("a skip scale", {}),
    "SkipLayerNormalization with a shift": ("a skip scale shift", {"epsilon": 1e-5}),
    "SkipLayerNormalization with a bias": ("a skip scale - bias", {"epsilon": 1e-3}),
    "SkipLayerNormalization and its sum": ("a skip scale shift bias", {}),
    "SkipSimplifiedLayerNormalization": ("a skip scale", {"epsilon": 1e-6}),
    "SkipSimplifiedLayerNormalization and its sum": ("a skip scale", {}),
}


@pytest.mark.parametrize("opset", [13, 17, 20])
@pytest.mark.parametrize("form", FORMS)
def test_it_is_written_out(form: str, opset: int) -> None:
    inputs, attributes = FORMS[form]
    proto = made(form.split()[0], inputs, "h - - z" if "sum" in form else "h", opset, **attributes)
    for target in ("cpu", "cuda"):
        result, _ = apply(proto, "slow-operators", target=target)
        assert not any(node.domain == CONTRIB for node in result.graph.node)
        for scale in (1, 1e-4):  # where epsilon counts
            assert_close(proto, result, feeds_of(proto, scale), 16)


@pytest.mark.parametrize("form", ["FastGelu with a bias", "SkipLayerNormalization and its sum"])
def test_it_is_fused_with_what_is_around_it(form: str) -> None:
    inputs, attributes = FORMS[form]
    proto = made(form.split()[0], inputs, "h - - z" if "sum" in form else "h", **attributes)
    result = onnxfuse.optimize(proto, "cpu", check=False).model
    assert len(result.graph.node) == 1 and result.graph.node[0].op_type.startswith("Fused")
    fusing.assert_same_everywhere(result, proto, feeds_of(proto))


@pytest.mark.parametrize(
    ("op", "inputs", "options", "reason"),
    [
        ("SkipLayerNormalization", "a skip scale", {"outputs": "h m v"}, "its mean or its deviation is a result"),
        ("SkipSimplifiedLayerNormalization", "a skip scale bias", {}, "it adds a bias"),
        ("SkipLayerNormalization", "a skip scale", {"dtype": np.float16}, "it is not of float32"),
        ("SkipLayerNormalization", "a skip scale", {"other": 1}, "it has an attribute that is not known"),
        ("QuickGelu", "a", {"other": 1}, "it has an attribute that is not known"),
        ("FastGelu", "a", {"dtype": np.float16}, "it is not of float32"),
        ("BiasGelu", "a", {}, ""),
        ("QuickGelu", "a bias", {}, ""),
    ],
)
def test_what_stays(op: str, inputs: str, options: dict[str, Any], reason: str) -> None:
    result, context = apply(made(op, inputs, **options), "slow-operators")
    assert op in ops(result) and reason in reasons(context)


def of_bias_softmax(bias: list[Any], shape: list[Any] | None = None, **attributes: Any) -> onnx.ModelProto:
    shape = shape or [2, 3, "l", 8]
    node = helper.make_node("BiasSoftmax", ["x", "bias"], ["y"], domain=CONTRIB, **attributes)
    inputs = [("x", shape), ("bias", bias)]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, size) for name, size in inputs],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
    )
    opsets = [helper.make_opsetid("", 12), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("bias", "attributes", "written"),
    [
        ([2, 1, 1, 8], {"axis": 3, "is_inner_broadcast": 1}, True),
        ([1, 1, "l", 8], {"axis": -1, "is_inner_broadcast": 0}, True),
        (["l", 8], {"axis": 3, "is_inner_broadcast": 0}, True),
        ([2, 1, 1, 8], {"axis": 3, "is_inner_broadcast": 0}, False),
        ([1, 3, 1, 8], {"axis": 3, "is_inner_broadcast": 1}, False),
        ([2, 1, "k", 8], {"axis": 3, "is_inner_broadcast": 1}, False),
        ([2, 1, 1, 1], {"axis": 3, "is_inner_broadcast": 1}, False),
        ([2, 1, 1, 8], {"is_inner_broadcast": 1}, False),
    ],
)
def test_a_softmax_of_a_sum(bias: list[Any], attributes: dict[str, Any], written: bool) -> None:
    """ONNX Runtime has it on GPUs alone: its rows are counted here as they are there."""
    proto = of_bias_softmax(bias, **attributes)
    result, context = apply(proto, "slow-operators", target="cuda")
    assert ops(result) == (["Add", "Softmax"] if written else ["BiasSoftmax"])
    assert written or reasons(context)
    if not written:
        return
    sizes = [5 if size == "l" else size for size in bias]
    x, added = random(2, 3, 5, 8), random(*sizes, seed=1)
    rows, of_bias = x.reshape(-1, 8), added.reshape(-1, 8)
    each = len(rows) // len(of_bias)
    places = [row // each if attributes["is_inner_broadcast"] else row % len(of_bias) for row in range(len(rows))]
    powers = np.exp(rows + of_bias[places])
    (y,) = fusing.run(result, {"x": x, "bias": added}, library=False)
    np.testing.assert_allclose(y.reshape(-1, 8), powers / powers.sum(-1, keepdims=True), rtol=1e-5)


def test_a_model_of_onnx_runtimes_is_fused() -> None:
    """A projection, its activation, and the normalization of a residual are two nodes, as if ORT had not seen them."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("BiasGelu", ["m", "bias"], ["g"], domain=CONTRIB),
        helper.make_node("SkipLayerNormalization", ["g", "x", "scale", "shift"], ["y"], domain=CONTRIB),
    ]
    values = {**VECTORS, "w": random(64, 64, seed=5)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 128, 64])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 128, 64])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(CONTRIB, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    result = onnxfuse.optimize(model, "cpu")
    assert [node.op_type for node in result.model.graph.node] == ["MatMul", "FusedReduction"]
