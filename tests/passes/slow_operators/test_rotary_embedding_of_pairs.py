"""Rotary position embeddings of neighbouring elements: which forms are rewritten, and the same results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.passes.models import apply, ops, random, run
from tests.support import fusing

ROTATION = """even = Slice(x, zero, end, last, two) odd = Slice(x, one, end, last, two) minus = Neg(odd)
    a = Unsqueeze(minus, back) b = Unsqueeze(even, back) s = Concat <axis = -1> (a, b) r = Reshape(s, whole)
    p = Mul(x, c) q = Mul(r, n) y = Add(p, q)"""
PLACES = {"zero": [0], "one": [1], "two": [2], "last": [3], "back": [-1], "end": [2**63 - 1], "whole": [0, 0, 0, 8]}
ANGLES = {"inputs": ", float[b, l, 1, 8] c, float[b, l, 1, 8] n", "of all": ", float[l, 1, 8] c, float[8] n"}


def rotary(rotation: str = ROTATION, angles: str = ANGLES["inputs"], opset: int = 17) -> onnx.ModelProto:
    text = f"g (float[b, l, 3, 8] x{angles}) => (float[b, l, 3, 8] y) {{ {rotation} }}"
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {text}')
    constants = {name: np.array(value) for name, value in PLACES.items()}
    constants |= {"three": np.array([3]), "c": random(6, 1, 8), "n": random(6, 1, 8, seed=1)}
    inputs = {value.name for value in proto.graph.input}
    used = {name for node in proto.graph.node for name in node.input} - inputs
    proto.graph.initializer.extend(numpy_helper.from_array(constants[name], name) for name in used & constants.keys())
    return proto


def feeds_of(proto: onnx.ModelProto, batch: int, length: int) -> dict[str, np.ndarray]:
    sizes = {"b": batch, "l": length}
    dims = {value.name: value.type.tensor_type.shape.dim for value in proto.graph.input}
    return {
        name: random(*(dim.dim_value or sizes[dim.dim_param] for dim in own), seed=seed)
        for seed, (name, own) in enumerate(dims.items())
    }


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("angles", [*ANGLES.values(), ""], ids=[*ANGLES, "constants"])
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_pairs_change_places(target: str, angles: str, opset: int) -> None:
    proto = rotary(angles=angles, opset=opset)
    result, _ = apply(proto, "slow-operators", target=target)
    assert not {"Neg", "Unsqueeze"} & {*ops(result)}
    for batch, length in ((2, 6), (1, 6), (0, 6)):
        feeds = feeds_of(proto, batch, length)
        np.testing.assert_array_equal(run(result, feeds)[0], run(proto, feeds)[0], strict=True)


@pytest.mark.parametrize("angles", [*ANGLES.values(), ""], ids=[*ANGLES, "constants"])
def test_one_node_rotates(angles: str) -> None:
    proto = rotary(angles=angles)
    result, _ = apply(proto, "slow-operators", "fuse-elementwise")
    computing = [op for op in ops(result) if op != "Reshape"]
    assert computing in (["FusedElementwise"], ["Mul", "FusedElementwise"])
    fusing.assert_same_everywhere(result, proto, feeds_of(proto, 2, 6))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("odd = Slice(x, one, end, last, two)", "odd = Slice(x, zero, end, last, two)"),
        ("even = Slice(x, zero, end, last, two)", "even = Slice(x, one, end, last, two)"),
        ("Concat <axis = -1> (a, b)", "Concat <axis = -1> (b, a)"),
        ("Concat <axis = -1>", "Concat <axis = 3>"),
        ("minus = Neg(odd)", "minus = Abs(odd)"),
        ("p = Mul(x, c)", "x2 = Abs(x) p = Mul(x2, c)"),
    ],
)
def test_what_is_no_rotation_of_pairs_stays(before: str, after: str) -> None:
    proto = rotary(ROTATION.replace(before, after))
    result, context = apply(proto, "slow-operators")
    assert "rotary-embedding-of-pairs" not in {one.rule for one in context.report.rewrites}
    feeds = feeds_of(proto, 2, 6)
    np.testing.assert_array_equal(run(result, feeds)[0], run(proto, feeds)[0])
