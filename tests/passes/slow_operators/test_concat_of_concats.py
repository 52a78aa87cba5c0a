"""What several Concats join one after the other is joined at once, where elementwise nodes read what is between."""

from __future__ import annotations

import pytest

import onnxfuse
from tests.passes.models import apply, assert_close, model, node, ops, random

SHAPES = {"a": (2, 3, 4, 4), "b": (2, 5, 4, 4), "c": (2, 2, 4, 4)}
FEEDS = {name: random(*shape, seed=seed) for seed, (name, shape) in enumerate(SHAPES.items())}


def dense_block(between: str = "Relu", outer: int = 1, outputs: tuple[str, ...] = ("y", "z")):
    nodes = [
        node("Concat", "a b", "j", axis=1),
        node(between, "j", "y"),
        node("Concat", "j c" if outer == 1 else "j j", "k", axis=outer),
        node("Relu", "k", "z"),
    ]
    return model(nodes, SHAPES, outputs)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_parts_are_joined_at_once_on_cuda(target: str) -> None:
    proto = dense_block()
    result, _ = apply(proto, "slow-operators", target=target)
    joined = sorted(len(one.input) for one in result.graph.node if one.op_type == "Concat")
    assert joined == ([2, 3] if target == "cuda" else [2, 2])
    assert_close(proto, result, FEEDS, 0)


def test_no_launch_joins_what_is_read_in_parts() -> None:
    proto = dense_block()
    result = onnxfuse.optimize(proto, "cuda", check=False, embed=False).model
    assert {one.op_type.partition("_")[0] for one in result.graph.node} == {"FusedElementwise"}


@pytest.mark.parametrize(
    "proto",
    [
        dense_block("Softmax"),  # which reads it in memory
        dense_block(outer=2),
        dense_block(outputs=("y", "z", "j")),
        model([node("Concat", "a a a", "j", axis=1), node("Concat", "j a a", "k", axis=1),
               node("Relu", "k", "y")], {"a": (2, 3, 4, 4)}),
    ],
)  # fmt: skip
def test_others_stay(proto) -> None:
    before = [list(one.input) for one in proto.graph.node]
    result, _ = apply(proto, "slow-operators", target="cuda")
    assert [list(one.input) for one in result.graph.node] == before
    assert "Concat" in ops(result)
