"""Shapes for Reshape that follow from its data: every way to compute them, what stays, and the same results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfuse.graph import Model
from onnxfuse.passes import PassContext
from onnxfuse.passes.fold_shapes import FoldShapes

from .models import apply, model, node, ops, random, run

SEQUENCE = {"x": ["n", "t", 12]}
CONSTANTS = {
    "zero": np.array(0),
    "one": np.array(1),
    "two": np.array(2),
    "first": np.array([0]),
    "second": np.array([1]),
    "third": np.array([2]),
    "pair": np.array([0, 1]),
    "end": np.array([2]),
    "rest": np.array([-1]),
    "heads": np.array([3]),
    "head": np.array(3),
    "size": np.array([4]),
    "twelve": np.array([12]),
    "most": np.array([np.iinfo(np.int64).max]),
}
SHAPE = node("Shape", "x", "s")
RESHAPE = node("Reshape", "x v", "y")
SIZES = ((2, 5), (1, 1), (0, 3), (3, 0))


def rewrite(nodes, inputs=SEQUENCE, sizes=SIZES, **fields):
    """Applies the pass, checks that results agree for several sizes, and returns the model."""
    used = {name for item in nodes for name in item.input}
    constants = {name: value for name, value in CONSTANTS.items() if name in used}
    proto = model(nodes, inputs, constants=constants, **fields)
    after, _ = apply(proto, FoldShapes(), infer=False)
    for n, t in sizes:
        feeds = {
            name: random(*({"n": n, "t": t}.get(dim, dim) for dim in shape), seed=seed)
            for seed, (name, shape) in enumerate(inputs.items())
        }
        for expected, actual in zip(run(proto, feeds), run(after, feeds), strict=True):
            np.testing.assert_array_equal(actual, expected, strict=True)
    assert [(item.name, item.type) for item in after.graph.input] == [
        (item.name, item.type) for item in proto.graph.input
    ]
    return after


def target(proto):
    """The shape that the one Reshape gets; None if it is no constant."""
    (reshape,) = [item for item in proto.graph.node if item.op_type == "Reshape"]
    found = [item for item in proto.graph.initializer if item.name == reshape.input[1]]
    return numpy_helper.to_array(found[0]).tolist() if found else None


def axes(op, source, result, opset, axis=0):
    """Unsqueeze or Squeeze."""
    return node(op, f"{source} first", result) if opset >= 13 else node(op, source, result, axes=[axis])


def viewed(opset):
    """How PyTorch exports ``x.view(x.size(0), x.size(1), 3, 4)``."""
    return [
        SHAPE, node("Gather", "s zero", "a"), axes("Unsqueeze", "a", "au", opset),
        node("Shape", "x", "s2"), node("Gather", "s2 one", "b"), axes("Unsqueeze", "b", "bu", opset),
        node("Concat", "au bu heads size", "v", axis=0), RESHAPE,
    ]  # fmt: skip


@pytest.mark.parametrize("opset", (5, 9, 11, 13, 18, 21))
def test_sizes_of_the_data_are_copied(opset):
    after = rewrite(viewed(opset), opset=opset)
    assert ops(after) == ["Reshape"] and target(after) == [0, 0, 3, 4]


WAYS = {
    "a slice": (17, [SHAPE, node("Slice", "s first end", "v0"), node("Concat", "v0 heads size", "v", axis=0)]),
    "a slice by attributes": (
        9, [SHAPE, node("Slice", "s", "v0", starts=[0], ends=[-1]), node("Concat", "v0 heads size", "v", axis=0)]
    ),
    "a slice with a step": (
        17,
        [
            SHAPE, node("Slice", "s first most first second", "v0"), node("Slice", "v0 first end first second", "v1"),
            node("Concat", "v1 heads size", "v", axis=-1),
        ],
    ),
    "a part of a shape": (
        15, [node("Shape", "x", "v0", start=-3, end=2), node("Concat", "v0 heads size", "v", axis=0)]
    ),
    "several at once": (17, [SHAPE, node("Gather", "s pair", "v0"), node("Concat", "v0 heads size", "v", axis=0)]),
    "by way of int32": (
        17,
        [
            SHAPE, node("Cast", "s", "s32", to=onnx.TensorProto.INT32), node("Slice", "s32 first end", "v32"),
            node("Cast", "v32", "v0", to=onnx.TensorProto.INT64), node("Concat", "v0 heads size", "v", axis=0),
        ],
    ),
    "a quotient of a known size": (
        17,
        [
            SHAPE, node("Gather", "s two", "c"), node("Div", "c head", "d"), node("Unsqueeze", "d first", "du"),
            node("Slice", "s first end", "v0"), node("Concat", "v0 heads du", "v", axis=0),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_compute_a_shape(way):
    opset, nodes = WAYS[way]
    after = rewrite([*nodes, RESHAPE], opset=opset)
    assert ops(after) == ["Reshape"] and target(after) == [0, 0, 3, 4]


def test_the_shape_of_another_tensor_of_equal_sizes():
    nodes = [*viewed(17)[:-1], node("Exp", "x", "e"), node("Reshape", "e v", "y")]
    assert target(rewrite(nodes)) == [0, 0, 3, 4]


def test_what_is_left_follows_from_the_others():
    nodes = [
        node("Transpose", "x", "m", perm=[2, 0, 1]),
        SHAPE,
        node("ReduceProd", "s", "all", keepdims=1),
        node("Div", "all twelve", "many"),
        node("Concat", "many twelve", "v", axis=0),
        node("Reshape", "m v", "y"),
    ]
    assert target(rewrite(nodes, sizes=((2, 5), (1, 1)))) == [-1, 12]


def test_what_follows_from_a_shape_that_the_pass_made_known():
    nodes = [
        *viewed(17)[:-1], node("Reshape", "x v", "r"), node("Shape", "r", "rs"), node("Slice", "rs first end", "r0"),
        node("Concat", "r0 twelve", "rv", axis=0), node("Reshape", "r rv", "y"),
    ]  # fmt: skip
    after = rewrite(nodes)
    assert ops(after) == ["Reshape", "Reshape"]


def test_a_computed_minus_one_stays_one():
    nodes = [SHAPE, node("Slice", "s first end", "v0"), node("Concat", "v0 rest", "v", axis=0), RESHAPE]
    assert target(rewrite(nodes, sizes=((2, 5), (1, 1)))) == [0, 0, -1]


HALVES = [SHAPE, node("Gather", "s third", "size_x"), node("Div", "size_x two", "half")]


def test_bounds_of_slices_that_are_numbers():
    """As PyTorch exports ``chunk``: the size of the axis is known, but comes from the shape."""
    after = rewrite([*HALVES, node("Slice", "x first half third", "y"), node("Slice", "x half size_x third", "z")],
                    outputs=("y", "z"))  # fmt: skip
    assert ops(after) == ["Slice", "Slice"]


def test_sizes_of_parts_that_are_numbers():
    after = rewrite([*HALVES, node("Concat", "half half", "sizes", axis=0), node("Split", "x sizes", "y z", axis=2)],
                    outputs=("y", "z"))  # fmt: skip
    assert ops(after) == ["Split"]


def test_bounds_of_the_wrong_rank_stay_computed():
    nodes = [SHAPE, node("Gather", "s two", "size_x"), node("Slice", "x first size_x third", "y")]
    assert ops(rewrite(nodes, sizes=())) == ["Shape", "Gather", "Slice"]


def test_bounds_that_depend_on_sizes_stay_computed():
    nodes = [SHAPE, node("Gather", "s second", "last"), node("Slice", "x first last second", "y")]
    assert ops(rewrite(nodes)) == ["Shape", "Gather", "Slice"]


def test_nodes_with_other_readers_stay():
    after = rewrite([*viewed(17), node("Identity", "s", "z")], outputs=("y", "z", "v"))
    assert target(after) == [0, 0, 3, 4] and ops(after).count("Concat") == 1


STAYS = {
    "two sizes that are not copied": [
        SHAPE, node("Gather", "s second", "b"), node("Gather", "s first", "a"),
        node("Concat", "b a twelve", "v", axis=0), RESHAPE,
    ],
    "one left beside one that may be zero": [
        SHAPE, node("Gather", "s first", "a"), node("Gather", "s second", "b"),
        node("Concat", "a twelve b", "v", axis=0), RESHAPE,
    ],
    "a zero that is none to copy": [*viewed(17)[:-1], node("Reshape", "x v", "y", allowzero=1)],
}  # fmt: skip


@pytest.mark.parametrize("case", STAYS)
def test_shapes_that_stay_computed(case):
    nodes = STAYS[case]
    after = rewrite(nodes, sizes=((2, 5), (1, 1)))
    assert ops(after) == [item.op_type for item in nodes] and target(after) is None


def test_inputs_that_share_a_symbol_may_differ_in_size():
    nodes = [
        node("Shape", "z", "s"), node("Gather", "s first", "a"), node("Concat", "a rest", "v", axis=0), RESHAPE
    ]  # fmt: skip
    inputs = {"x": ["?", 6], "z": ["?", 2]}
    proto = model(nodes, inputs, constants={"first": CONSTANTS["first"], "rest": CONSTANTS["rest"]})
    after, _ = apply(proto, FoldShapes(), infer=False)
    (result,) = run(after, {"x": random(4, 6), "z": random(3, 2)})
    assert result.shape == (3, 8)


@pytest.mark.parametrize("has_rank", [False, True])
def test_declared_shapes_of_what_inference_does_not_know_may_share_a_symbol(has_rank):
    nodes = [
        node("Gelu", "x", "g", domain="com.microsoft"), node("Shape", "g", "s"), node("Gather", "s second", "a"),
        node("Gather", "s first", "b"), node("Concat", "a b", "v", axis=0), node("Reshape", "g v", "y"),
    ]  # fmt: skip
    used = {name: CONSTANTS[name] for name in ("first", "second")}
    proto = model(nodes, {"x": ["n", "n"]}, constants=used, domains=["com.microsoft"])
    proto.graph.value_info.append(helper.make_tensor_value_info("g", onnx.TensorProto.FLOAT, ["n", "n"]))
    if not has_rank:
        proto.graph.input[0].type.tensor_type.ClearField("shape")
    loaded = Model.from_proto(proto)
    FoldShapes().run(loaded, PassContext())
    feeds = {"x": random(2, 3)}
    np.testing.assert_array_equal(run(loaded.to_proto(), feeds)[0], run(proto, feeds)[0])


def test_bodies_stay_as_they_are():
    used = {name: CONSTANTS[name] for name in ("zero", "one", "first", "heads", "size")}
    info = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * 4)
    bodies = [helper.make_graph(viewed(17), name, [], [info]) for name in ("yes", "no")]
    choice = helper.make_node("If", ["c"], ["r"], then_branch=bodies[0], else_branch=bodies[1])
    proto = model([node("ReduceSum", "x", "sum", keepdims=0), node("Cast", "sum", "c", to=9), choice],
                  SEQUENCE, outputs=("r",), constants=used)  # fmt: skip
    after, _ = apply(proto, FoldShapes(), infer=False)
    assert [item.op_type for item in after.graph.node[-1].attribute[0].g.node].count("Concat") == 1
    feeds = {"x": random(2, 5, 12)}
    np.testing.assert_array_equal(run(after, feeds)[0], run(proto, feeds)[0])
