"""Quantized models: activations of int8 become uint8 where ONNX Runtime then has integer kernels, and rows of quantized
tables are taken before they are dequantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxfuse
from onnxfuse import cpu
from onnxfuse.passes.rules.slow_operators.unsigned_activations import NO_INSTRUCTIONS
from tests.passes.models import apply, model, node, ops, random, reasons, run

_SHAPE = (1, 8, 9, 9)


@pytest.fixture(autouse=True)
def _vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "has_vnni", lambda: True)


def pair(name: str, source: str = "", zero: str = "z", **attributes: Any) -> list[onnx.NodeProto]:
    """What quantizes a tensor, and what dequantizes it again, as ``NAME_d``."""
    return [
        node("QuantizeLinear", f"{source or name} s {zero}", f"{name}_q", **attributes),
        node("DequantizeLinear", f"{name}_q s {zero}", f"{name}_d", **attributes),
    ]


def quantized(
    nodes: list[onnx.NodeProto], outputs: tuple[str, ...] = ("y",), **constants: np.ndarray
) -> onnx.ModelProto:
    weights = np.random.default_rng(0).integers(-99, 99, (8, 8, 1, 1)).astype(np.int8)
    known = {
        "s": np.float32(0.05),
        "z": np.int8(3),
        "w": weights,
        "ws": np.float32(0.01),
        "wz": np.int8(0),
        **constants,
    }
    used = {name for item in nodes for name in item.input}
    wanted = {name: np.asarray(value) for name, value in known.items() if name in used}
    return model(nodes, {"x": _SHAPE}, outputs=outputs, constants=wanted)


def residual_block() -> onnx.ModelProto:
    """Of int8, whose input both the convolution and the sum read."""
    return quantized(
        [
            *pair("x"),
            node("DequantizeLinear", "w ws wz", "wd"),
            node("Conv", "x_d wd", "c"),
            *pair("c"),
            node("Add", "c_d x_d", "a"),
            *pair("a"),
            node("Identity", "a_d", "y"),
        ]
    )


def zero_points(proto: onnx.ModelProto) -> list[str]:
    """The types of those of activations, in the order of the nodes."""
    types = {item.name: onnx.helper.tensor_dtype_to_np_dtype(item.data_type).name for item in proto.graph.initializer}
    return [types[item.input[2]] for item in proto.graph.node if item.op_type == "QuantizeLinear"]


def kernels(proto: onnx.ModelProto, path: Path) -> list[str]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return ops(onnx.load(path))


def assert_same(before: onnx.ModelProto, after: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    for expected, actual in zip(run(before, feeds), run(after, feeds), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_what_several_nodes_read_is_unsigned(tmp_path: Path) -> None:
    proto = residual_block()
    after, _ = apply(proto, "slow-operators")
    assert zero_points(after) == ["uint8", "int8", "int8"]
    assert ops(after) == ops(proto)
    assert_same(proto, after, {"x": 4 * random(*_SHAPE)})
    if cpu.has_blocked_images():  # x86-64
        assert "Conv" in kernels(proto, tmp_path / "before.onnx")
        assert {"QLinearConv", "QLinearAdd"} <= set(kernels(after, tmp_path / "after.onnx"))
    assert apply(after, "slow-operators")[0] == after


def test_a_type_that_the_model_declares_is_no_obstacle() -> None:
    proto = residual_block()
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("x_q", onnx.TensorProto.INT8, _SHAPE))
    result = onnxfuse.optimize(proto, "cpu", check=False).model
    assert zero_points(result)[0] == "uint8"
    run(result, {"x": random(*_SHAPE)})


def test_every_node_that_dequantizes_it_is_changed() -> None:
    proto = quantized(
        [
            *pair("x"),
            node("DequantizeLinear", "x_q s z", "x_e"),
            node("DequantizeLinear", "w ws wz", "wd"),
            node("Conv", "x_d wd", "c"),
            node("Mul", "c x_e", "y"),
        ]
    )
    after, _ = apply(proto, "slow-operators")
    assert zero_points(after) == ["uint8", "uint8"]
    assert_same(proto, after, {"x": 100 * random(*_SHAPE)})


def test_zero_points_of_channels_move_too() -> None:
    channels = {"s": np.linspace(0.01, 0.2, 8, dtype=np.float32), "z": np.arange(-128, 128, 34, dtype=np.int8)}
    nodes = [*pair("x", axis=1), node("DequantizeLinear", "w ws wz", "wd"), node("Conv", "x_d wd", "c")]
    proto = quantized([*nodes, node("Add", "c x_d", "y")], **channels)
    after, _ = apply(proto, "slow-operators")
    assert zero_points(after) == ["uint8"]
    assert_same(proto, after, {"x": 10 * random(*_SHAPE)})


def test_without_exact_products_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "has_vnni", lambda: False)
    after, context = apply(residual_block(), "slow-operators")
    assert set(zero_points(after)) == {"int8"} and NO_INSTRUCTIONS in reasons(context)


CONVOLVED = [*pair("x"), node("DequantizeLinear", "w ws wz", "wd"), node("Conv", "x_d wd", "c")]
SUMMED = [*CONVOLVED, node("Add", "c x_d", "a")]


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (CONVOLVED, ("c",)),  # ONNX Runtime makes uint8 of what one node reads
        ([*pair("x"), node("IsNaN", "x_d", "n"), node("Where", "n x x_d", "y")], ("y",)),  # no integer kernel
        (SUMMED, ("a", "x_q")),
        ([*SUMMED, node("Flatten", "x_q", "f"), node("Cast", "f", "y", to=1)], ("y", "a")),
        ([*pair("x", zero="u"), *SUMMED[2:]], ("a",)),  # unsigned already
    ],
    ids=["one reader", "no product", "returned", "another reader", "unsigned"],
)
def test_others_stay(nodes: list[onnx.NodeProto], outputs: tuple[str, ...]) -> None:
    proto = quantized(nodes, outputs, u=np.uint8(3))
    after, _ = apply(proto, "slow-operators")
    assert zero_points(after) == zero_points(proto)


TABLE = np.random.default_rng(1).integers(-128, 128, (600, 8)).astype(np.int8)


def gathered(zero: bool = True, places: int = 5, rows: int = 600, axis: int = 0, **constants: Any) -> onnx.ModelProto:
    nodes = [
        node("DequantizeLinear", "t ts tz" if zero else "t ts", "d"),
        node("Gather", "d i", "g", axis=axis),
        node("Add", "g x", "y"),
    ]
    table = TABLE[:rows] if axis == 0 else np.ascontiguousarray(TABLE[:rows].T)
    known = {"t": table, "ts": np.float32(0.02), "tz": np.int8(-5), "i": np.arange(-places, 0), **constants}
    used = {name for item in nodes for name in item.input}
    return model(
        nodes, {"x": [1]}, constants={name: np.asarray(value) for name, value in known.items() if name in used}
    )


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
def test_rows_are_taken_before_they_are_dequantized(axis: int, zero: bool, target: str) -> None:
    proto = gathered(zero, axis=axis)
    after, _ = apply(proto, "slow-operators", target=target)
    assert ops(after) == ["Gather", "DequantizeLinear", "Add"]
    assert_same(proto, after, {"x": random(1)})


@pytest.mark.parametrize(
    "proto",
    [
        gathered(places=8, rows=8),
        gathered(ts=np.full(8, 0.02, np.float32), tz=np.zeros(8, np.int8)),
    ],
    ids=["as many", "scales of columns"],
)
def test_other_tables_stay(proto: onnx.ModelProto) -> None:
    assert ops(apply(proto, "slow-operators")[0]) == ops(proto)


def test_a_table_that_a_product_reads_too_is_there_for_it() -> None:
    nodes = [
        node("DequantizeLinear", "t ts tz", "d"),
        node("Gather", "d i", "g"),
        node("Transpose", "d", "dt", perm=[1, 0]),
        node("MatMul", "g dt", "m"),
        node("Add", "m x", "y"),
    ]
    known = {"t": TABLE, "ts": np.float32(0.02), "tz": np.int8(-5), "i": np.arange(5)}
    proto = model(nodes, {"x": [1]}, constants={name: np.asarray(value) for name, value in known.items()})
    after, _ = apply(proto, "slow-operators")
    assert ops(after).count("DequantizeLinear") == 2
    assert_same(proto, after, {"x": random(1)})
