"""The operators RotaryEmbedding of ONNX and of ONNX Runtime, written out: which forms, and the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.passes.models import apply, assert_close, ops, random, reasons

CONTRIB = "com.microsoft"
ANGLES = random(12, 4)
SHAPES = {"heads first": ["b", 3, "l", 8], "joined": ["b", "l", 24]}


def rotary(
    domain: str,
    shape: list[Any],
    positions: str = "one by one",
    after: str = "Abs",
    caches: Any = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """y of what rotates x, and of a node behind it."""
    tables = {"cos": np.cos(ANGLES), "sin": np.sin(ANGLES)} if caches is None else caches
    given = {"x": shape, "places": ["b", "l"]}
    inputs = ["x", "places", "cos", "sin"] if domain else ["x", "cos", "sin", "places"]
    if positions == "offset":
        given["places"] = [1]
    elif positions == "none":
        inputs, tables, given = inputs[:3], {}, {"x": shape, "cos": ["b", "l", 4], "sin": ["b", "l", 4]}
    if len(shape) == 3 and not domain:
        attributes["num_heads"] = 3
    nodes = [helper.make_node("RotaryEmbedding", inputs, ["r"], domain=domain, **attributes)]
    nodes.append(helper.make_node(after, ["r"], ["y"], domain=CONTRIB if after == "QuickGelu" else ""))
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(
                name, onnx.TensorProto.INT64 if name == "places" else onnx.TensorProto.FLOAT, size
            )
            for name, size in given.items()
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(values, name) for name, values in tables.items()],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds_of(proto: onnx.ModelProto, batch: int = 2, length: int = 5) -> dict[str, np.ndarray]:
    sizes = {"b": batch, "l": length}
    feeds = {}
    for seed, value in enumerate(proto.graph.input):
        shape = [dim.dim_value or sizes[dim.dim_param] for dim in value.type.tensor_type.shape.dim]
        places = np.random.default_rng(seed).integers(0, 7, shape)
        feeds[value.name] = places if value.name == "places" else random(*shape, seed=seed)
    return feeds


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    ("domain", "positions"), [("", "one by one"), ("", "none"), (CONTRIB, "one by one")], ids=["ONNX", "angles", "ORT"]
)
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_it_is_written_out(target: str, domain: str, positions: str, shape: list[Any], interleaved: int) -> None:
    proto = rotary(domain, shape, positions, interleaved=interleaved)
    result, _ = apply(proto, "slow-operators", target=target)
    assert "RotaryEmbedding" not in ops(result)
    for batch, length in ((2, 5), (1, 1)):
        assert_close(proto, result, feeds_of(proto, batch, length), 4)
    if target == "cpu":
        fused, _ = apply(proto, "slow-operators", "fuse-elementwise")
        assert "Mul" not in ops(fused) and "Slice" not in ops(fused)
        assert_close(proto, fused, feeds_of(proto), 4)


@pytest.mark.parametrize(
    ("domain", "shape", "options", "reason"),
    [
        (CONTRIB, SHAPES["heads first"], {"positions": "offset"}, "its positions are not given one by one"),
        (CONTRIB, SHAPES["joined"], {"scale": 2.0}, "it scales its result"),
        (CONTRIB, SHAPES["heads first"], {"after": "QuickGelu"}, ""),
        (
            "",
            ["b", 3, "l", 8],
            {"rotary_embedding_dim": 4, "caches": {"cos": ANGLES[:, :2], "sin": ANGLES[:, 2:]}},
            "a part",
        ),
        ("", ["b", 3, "l", "s"], {}, "the size of its heads is not known"),
    ],
)
def test_what_stays(domain: str, shape: list[Any], options: dict[str, Any], reason: str) -> None:
    result, context = apply(rotary(domain, shape, **options), "slow-operators")
    assert "RotaryEmbedding" in ops(result) and reason in reasons(context)
