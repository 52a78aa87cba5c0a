"""Products of few rows with matrices of 4 and 8 bits in blocks, ONNX Runtime's MatMulNBits, on CUDA."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import onnxfuse
from tests.support import fusing


def _model(rows: int = 1, tail: str = "Relu", dtype: type = np.float32, **given: Any) -> onnx.ModelProto:
    """A product and what follows it; ``given`` are attributes, and whether there is a ``bias``, which ``zeros``, …"""
    known = {"K": 96, "N": 20, "bits": 4, "block_size": 32}
    facts = {
        **known,
        **{name: value for name, value in given.items() if name not in ("bias", "zeros", "flat", "order")},
    }
    inner, columns, bits, block = (int(facts[name]) for name in known)
    rng = np.random.default_rng(0)
    blocks = -(-inner // block)
    shape = (columns * blocks,) if given.get("flat") else (columns, blocks)
    constants: dict[str, np.ndarray] = {
        "w": rng.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8),
        "s": rng.uniform(0.01, 0.02, shape).astype(dtype),
    }
    names = ["x", "w", "s", "", "", ""]
    if given.get("zeros") == "packed":
        constants["z"] = rng.integers(0, 256, (columns, -(-blocks * bits // 8))).astype(np.uint8)
        constants["z"] = constants["z"].reshape(-1) if given.get("flat") else constants["z"]
    elif given.get("zeros"):
        constants["z"] = rng.uniform(6, 9, shape).astype(dtype)
    if "order" in given:
        constants["g"] = np.repeat(np.arange(blocks, dtype=np.int32), block)
    if "bias" in given:
        constants["b"] = rng.standard_normal(columns).astype(dtype)
    names[3:] = [name if name in constants else "" for name in "zgb"]
    while not names[-1]:
        names.pop()
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [
            helper.make_node("MatMulNBits", names, ["p"], name="product", domain="com.microsoft", **facts),
            helper.make_node(tail, ["p"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", element, [rows, inner])],
        [helper.make_tensor_value_info("y", element, [rows, columns])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _optimized(proto: onnx.ModelProto) -> onnxfuse.Result:
    return onnxfuse.optimize(proto, "cuda", arch="sm_90", embed=False)


def _reasons(result: onnxfuse.Result) -> Mapping[str, str]:
    return {one.node: one.reason for one in result.report.refusals if one.rule == "fuse-row-products"}


@pytest.mark.parametrize(
    "given",
    [
        {"block_size": 16, "zeros": "packed"},
        {"zeros": "scale", "bias": True},
        {"zeros": "packed", "flat": True, "bias": True, "rows": 4},
        {"bits": 8, "zeros": "packed", "flat": True},
        {"dtype": np.float16, "zeros": "packed", "K": 64, "accuracy_level": 2},
        {"K": 32, "N": 1, "zeros": "packed"},
        {"K": 256, "block_size": 256},
    ],
)
def test_matrices_of_blocks_are_read_as_they_lie(given: dict[str, Any]) -> None:
    """Each byte of them once; as ONNX Runtime computes them, by the library on the CPU and by the function."""
    proto = _model(**given)
    result = _optimized(proto)
    onnx.checker.check_model(result.model, full_check=True)
    assert [node.op_type for node in result.model.graph.node] == ["FusedReduction"]
    (region,) = result.report.fused
    stored = sum(len(tensor.raw_data) for tensor in proto.graph.initializer)
    (x,) = proto.graph.input
    shape = [dim.dim_value for dim in x.type.tensor_type.shape.dim]
    dtype = given.get("dtype", np.float32)
    assert region.after.reads.terms[()] == stored + shape[0] * shape[1] * np.dtype(dtype).itemsize
    feeds = {"x": np.random.default_rng(1).standard_normal(shape).astype(dtype)}
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, feeds)
    for library in (True, False):
        (actual,) = fusing.run(result.model, feeds, library)
        np.testing.assert_allclose(actual, expected, 2e-3 if dtype is np.float16 else 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"accuracy_level": 4}, "round what it multiplies to 8 bits"),
        ({"accuracy_level": 5}, "quantized in a way that is not known"),
        ({"order": True}, "quantized in a way that is not known"),
        ({"K": 80, "zeros": "packed"}, "quantized in a way that is not known"),
        ({"rows": 9}, "of 9 rows, more than 8 of f32"),
        ({"tail": "Softmax"}, "no launch is saved"),
    ],
)
def test_what_is_left_to_onnx_runtime(given: dict[str, Any], reason: str) -> None:
    result = _optimized(_model(**given))
    assert "MatMulNBits" in [node.op_type for node in result.model.graph.node]
    assert reason in _reasons(result)["product"]


def _gated(target: str, blocks: tuple[int, int], zeros: bool = True) -> tuple[onnx.ModelProto, onnxfuse.Result]:
    """A gated unit of two products, of blocks of these sizes, of one tensor; and the same optimized."""
    rng = np.random.default_rng(0)
    constants = {}
    nodes = []
    for name, columns, block in (("a", 48, blocks[0]), ("b", 48, blocks[1])):
        count = 64 // block
        constants[f"{name}w"] = rng.integers(0, 256, (columns, count, block // 2)).astype(np.uint8)
        constants[f"{name}s"] = rng.uniform(0.01, 0.02, (columns, count)).astype(np.float32)
        constants[f"{name}z"] = rng.integers(0, 256, (columns, -(-count // 2))).astype(np.uint8)
        names = ["x", f"{name}w", f"{name}s", *([f"{name}z"] if zeros else [])]
        facts = {"K": 64, "N": columns, "bits": 4, "block_size": block, "accuracy_level": 4}
        nodes.append(helper.make_node("MatMulNBits", names, [name], domain="com.microsoft", **facts))
    nodes += [helper.make_node("Sigmoid", ["a"], ["g"]), helper.make_node("Mul", ["a", "g"], ["h"])]
    nodes.append(helper.make_node("Mul", ["h", "b"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 9, 64])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 9, 48])],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if zeros or name[1] != "z"],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    more = {"arch": "sm_90", "embed": False} if target == "cuda" else {}
    return proto, onnxfuse.optimize(proto, target, **more)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("zeros", [True, False])
def test_products_of_one_tensor_are_one(target: str, zeros: bool) -> None:
    """The gate and the values of a gated unit, whose columns are rounded each by itself."""
    proto, result = _gated(target, (32, 32), zeros)
    assert [node.op_type.split("_")[0] for node in result.model.graph.node] == ["MatMulNBits", "FusedElementwise"]
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 9, 64)).astype(np.float32)}
    (expected,) = fusing.run(proto, feeds, library=False)
    for library in (True, False):
        np.testing.assert_allclose(fusing.run(result.model, feeds, library)[0], expected, 1e-5, 1e-5)


def test_products_of_other_blocks_stay_apart() -> None:
    _, result = _gated("cpu", (32, 16))
    assert [node.op_type for node in result.model.graph.node].count("MatMulNBits") == 2
