"""Operators that ONNX Runtime is slow at on CUDA: every form that is rewritten, what stays, and the same results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.passes.models import apply, assert_close, model, node, ops, random

PASS = "slow-operators"


def rewrite(proto, *feeds):
    after, _ = apply(proto, PASS, target="cuda")
    for case in feeds:
        assert_close(proto, after, case, 16)
    return ops(after)


@pytest.mark.parametrize("opset", [9, 13, 17, 18, 21])
@pytest.mark.parametrize("shape", [["n", 3, "h", "w"], [2, 3, 9, 8], ["n", 3, 65], ["n", "c", 5, 5, 5]])
def test_means_of_channels(shape, opset):
    proto = model([node("GlobalAveragePool", "x", "y")], {"x": shape}, opset=opset)
    sizes = [size if isinstance(size, int) else 2 + place for place, size in enumerate(shape)]
    assert rewrite(proto, {"x": random(*sizes)}) == ["ReduceMean"]


def test_means_in_float16_are_those_of_float32():
    """ONNX Runtime's reduction on CUDA writes the sum before it divides: of 160x160 elements of 3 that is infinite."""
    proto = model([node("GlobalAveragePool", "x", "y")], {"x": [1, 4, 160, 160]}, dtype=np.float16)
    feeds = {"x": 3 + random(1, 4, 160, 160, dtype=np.float16)}
    after, _ = apply(proto, PASS, target="cuda")
    assert ops(after) == ["Cast", "ReduceMean", "Cast"]
    summed = next(one for one in after.graph.node if one.op_type == "ReduceMean").input[0]
    (cast,) = (one for one in after.graph.node if summed in one.output)
    assert cast.attribute[0].i == onnx.TensorProto.FLOAT
    assert_close(proto, after, feeds, 1)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *[([1, 960, 7, 7], np.float32), ([1, 4, 64], np.float32), (["n", 4], np.float32)],
        *[([1, 4, 20, 20], np.float64), ([1, 4, 20, 20], np.float16)],
    ],
)
def test_means_that_stay(shape, dtype):
    """As fast in cuDNN, of no spatial dimension, and of a type that was not measured."""
    assert rewrite(model([node("GlobalAveragePool", "x", "y")], {"x": shape}, dtype=dtype)) == ["GlobalAveragePool"]


def slices(*bounds, size=7, axis=1, opset=17, **attributes):
    """A Concat of Slices of x: (start, end) or (start, end, axis, step) of each."""
    nodes, constants = [], {}
    for index, given in enumerate(bounds):
        names = [f"b{index}_{place}" for place in range(len(given))]
        constants |= {name: np.array([value], np.int64) for name, value in zip(names, given, strict=True)}
        nodes.append(node("Slice", " ".join(["x", *names]), f"s{index}"))
    parts = " ".join(f"s{index}" for index in range(len(bounds)))
    nodes.append(node("Concat", parts, "y", axis=axis, **attributes))
    return model(nodes, {"x": ["n", size, 3]}, constants=constants, opset=opset)


_END = 2**63 - 1


@pytest.mark.parametrize("opset", [10, 13, 21])
@pytest.mark.parametrize(
    "bounds",
    [
        [(3, _END, 1), (0, 3, 1)],
        [(-2, _END, 1, 1), (0, -2, 1, 1)],
        [(0, 3, -2), (5, 9, -2), (1, 2, -2)],
        [(1, _END, 1, 2), (0, _END, 1, 2)],
        [(-99, 4, 1), (4, 4, 1)],
    ],
)
def test_slices_that_are_put_together(bounds, opset):
    proto = slices(*bounds, axis=-2 if opset == 13 else 1, opset=opset)
    assert rewrite(proto, {"x": random(2, 7, 3)}, {"x": random(0, 7, 3)}) == ["Gather"]


def test_slices_along_the_first_axis_need_not_name_it():
    names = {"a": np.array([1], np.int64), "b": np.array([4], np.int64), "z": np.array([0], np.int64)}
    nodes = [node("Slice", "x a b", "s"), node("Slice", "x z a", "t"), node("Concat", "s t", "y", axis=0)]
    proto = model(nodes, {"x": [4, "k"]}, constants=names)
    assert rewrite(proto, {"x": random(4, 5)}) == ["Gather"]


def test_slices_that_others_read_too_stay_for_them():
    proto = slices((3, _END, 1), (0, 3, 1))
    proto.graph.node.append(node("Neg", "s0", "z"))
    proto.graph.output.add().CopyFrom(proto.graph.output[0])
    proto.graph.output[1].name = "z"
    proto.graph.output[1].type.tensor_type.shape.dim[1].dim_value = 4
    assert sorted(rewrite(proto, {"x": random(2, 7, 3)})) == ["Gather", "Neg", "Slice"]


@pytest.mark.parametrize(
    "proto",
    [
        slices((3, _END, 1), (0, 3, 1), size="h"),  # of how many elements?
        slices((3, _END, 1), (0, 3, 2)),  # along two axes
        slices((6, 2, 1, -1), (0, 3, 1, 1)),  # backwards
        slices((3, _END, 2), (0, _END, 2)),  # along another axis than they are put together
        slices((3, _END, 1)),
        slices((5000, _END, 1), (0, 5000, 1), size=5001),  # the indices would be many
    ],
    ids=range(6),
)
def test_slices_that_stay(proto):
    assert "Gather" not in rewrite(proto)


def test_slices_of_two_tensors_stay():
    names = {"a": np.array([1], np.int64), "b": np.array([4], np.int64), "i": np.array([1], np.int64)}
    nodes = [node("Slice", "x a b i", "s"), node("Slice", "w a b i", "t"), node("Concat", "s t", "y", axis=1)]
    proto = model(nodes, {"x": [2, 4], "w": [2, 4]}, constants=names)
    assert "Gather" not in rewrite(proto)


def test_bounds_that_are_computed_stay():
    proto = slices((3, _END, 1), (0, 3, 1))
    extra = model([], {"b0_0": [1]}, outputs=(), dtype=np.int64).graph.input[0]
    proto.graph.input.append(extra)
    del proto.graph.initializer[0]
    assert "Gather" not in rewrite(proto)


def test_slices_of_strings_stay():
    """Of which ONNX Runtime's Gather gives wrong ones on the CPU."""
    proto = slices((3, _END, 1), (0, 3, 1))
    for info in (*proto.graph.input, *proto.graph.output):
        info.type.tensor_type.elem_type = onnx.TensorProto.STRING
    assert "Gather" not in ops(apply(proto, PASS, target="cuda")[0])


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_nothing_is_inferred_where_there_is_nothing_to_write(target, monkeypatch):
    """Inference makes symbols of its own for sizes that passes before knew to be equal."""
    monkeypatch.setattr("onnxfuse.passes.slow_operators.infer", lambda model: pytest.fail("inferred"))
    apply(
        model([node("Slice", "x a b", "y")], {"x": [4, "k"], "a": [1], "b": [1]}, dtype=np.int64), PASS, target=target
    )
