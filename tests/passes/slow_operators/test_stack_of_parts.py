"""Parts that are joined along one axis and moved to another, as channels are shuffled: joined where they shall be."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.passes.models import apply, assert_close, model, node, ops, random


def shuffled(
    apart: list[int], perm: list[int], shape: tuple[Any, ...] = ("n", 6, 4, 4), parts: int = 2, opset: int = 17
) -> onnx.ModelProto:
    names = "abc"[:parts]
    nodes = [
        node("Concat", " ".join(names), "j", axis=1),
        node("Reshape", "j apart", "r"),
        node("Transpose", "r", "t", perm=perm),
        node("Reshape", "t whole", "y"),
    ]
    constants = {"apart": np.array(apart), "whole": np.array([4, -1])}
    return model(nodes, dict.fromkeys(names, shape), constants=constants, opset=opset)


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("perm", [[0, 2, 1, 3, 4], [1, 0, 2, 3, 4], [0, 2, 3, 4, 1]])
def test_parts_are_joined_along_an_axis_of_their_own(perm: list[int], parts: int, opset: int) -> None:
    proto = shuffled([0, parts, 6, 4, 4], perm, parts=parts, opset=opset)
    feeds = {name: random(2, 6, 4, 4, seed=seed) for seed, name in enumerate("abc"[:parts])}
    for target in ("cpu", "cuda"):
        result, _ = apply(proto, "slow-operators", target=target)
        assert "Transpose" not in ops(result) and ops(result).count("Unsqueeze") == parts
        assert_close(proto, result, feeds, 0)


@pytest.mark.parametrize("opset", [11, 18])
def test_halves_are_taken_before_axes_become_one(opset: int) -> None:
    nodes = [
        node("Concat", "a b", "j", axis=1),
        node("Reshape", "j apart", "r"),
        node("Transpose", "r", "t", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "t whole", "s"),
        node("Split", "s", "y z", axis=1, **({"num_outputs": 2} if opset >= 18 else {})),
    ]
    constants = {"apart": np.array([0, 2, 6, 4, 4]), "whole": np.array([0, 12, 4, 4])}
    shapes = dict.fromkeys("ab", ("n", 6, 4, 4))
    proto = model(nodes, shapes, outputs=("y", "z"), constants=constants, opset=opset)
    feeds = {name: random(2, 6, 4, 4, seed=seed) for seed, name in enumerate("ab")}
    result, _ = apply(proto, "slow-operators", target="cuda")
    assert ops(result) == ["Unsqueeze", "Unsqueeze", "Concat", "Split", "Reshape", "Reshape"]
    assert_close(proto, result, feeds, 0)


@pytest.mark.parametrize(
    ("apart", "perm", "shape"),
    [
        ([0, 2, 6, 4, 4], [0, 2, 1, 4, 3], ("n", 6, 4, 4)),
        ([0, 4, 3, 4, 4], [0, 2, 1, 3, 4], ("n", 6, 4, 4)),
        ([0, 2, 6, 4, 4], [0, 2, 1, 3, 4], ("n", "c", 4, 4)),
        ([0, 2, 6, 16, 1], [0, 2, 1, 3, 4], ("n", 6, 4, 4)),
    ],
    ids=["other axes move too", "half a part each", "of unknown sizes", "another axis is split too"],
)
def test_what_stays(apart: list[int], perm: list[int], shape: tuple[Any, ...]) -> None:
    result, _ = apply(shuffled(apart, perm, shape), "slow-operators")
    assert "Transpose" in ops(result) and "Unsqueeze" not in ops(result)
