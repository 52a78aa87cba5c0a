"""Scores of relative positions are read where they lie, without the Pad that exporters write."""

from __future__ import annotations

import numpy as np
import pytest

import onnxfuse
from tests.passes.models import apply, assert_close, model, node, ops, random


def shifted(batch: int | str = 2, before: int = 1, start: int = 1, length: int = 5, opset: int = 17):
    """A Conformer's: 5 queries, 9 positions."""
    nodes = [
        node("Pad", "x pads value", "p"), node("Reshape", "p tall", "r"),
        node("Slice", "r start end axis", "s"), node("Reshape", "s wide", "w"),
        node("Slice", "w zero length last", "c"), node("Mul", "c scale", "m"), node("Add", "m z", "t"),
        node("Softmax", "t", "y", axis=-1),
    ]  # fmt: skip
    constants = {
        "pads": np.array([0, 0, 0, before, 0, 0, 0, 1 - before]), "value": np.array(0, np.float32),
        "tall": np.array([0, 0, -1, 5]), "start": np.array([start]), "end": np.array([2**62]), "axis": np.array([2]),
        "wide": np.array([0, 0, 5, -1]), "zero": np.array([0]), "length": np.array([length]), "last": np.array([3]),
        "scale": np.array(0.125, np.float32),
    }  # fmt: skip
    shapes = {"x": (batch, 3, 5, 9), "z": (batch, 3, 5, length)}
    return model(nodes, shapes, constants=constants, opset=opset)


FEEDS = {"x": random(2, 3, 5, 9), "z": random(2, 3, 5, 5, seed=1)}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("batch", [2, "n"])
@pytest.mark.parametrize("opset", [11, 21])
def test_nothing_is_padded(target: str, batch: int | str, opset: int) -> None:
    proto = shifted(batch, opset=opset)
    result, _ = apply(proto, "slow-operators", target=target)
    assert ops(result) == ["Reshape", "Slice", "Reshape", "Slice", "Mul", "Add", "Softmax"]
    assert_close(proto, result, FEEDS, 0)


def test_one_launch_is_left() -> None:
    proto = shifted()
    result = onnxfuse.optimize(proto, "cuda", check=True, embed=False).model
    assert [one.op_type for one in result.graph.node] == ["FusedReduction"]


@pytest.mark.parametrize(
    "case",
    [
        {"before": 0},  # the padded end of the last row but one is read
        {"length": 9},
        {"start": 2, "length": 4},
    ],
)
def test_what_is_padded_is_read(case: dict[str, int]) -> None:
    result, _ = apply(shifted(**case), "slow-operators")
    assert "Pad" in ops(result)


def test_sizes_that_are_not_known_stay() -> None:
    nodes = [node("Pad", "x pads", "p"), node("Reshape", "p tall", "r"), node("Slice", "r one end axis", "y")]
    constants = {"pads": np.array([0, 1, 0, 0]), "tall": np.array([-1, 5]), "one": np.array([1]),
                 "end": np.array([2**62]), "axis": np.array([0])}  # fmt: skip
    result, _ = apply(model(nodes, {"x": ("t", 9)}, constants=constants), "slow-operators")
    assert "Pad" in ops(result)
