"""Shapes for Reshape that follow from its data: every way to compute them, what stays, and the same results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.model.graph import Model
from onnxfuse.passes import PassContext
from onnxfuse.passes.fold_shapes import FoldShapes
from tests.passes.models import apply, model, node, ops, random, run

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
    "minus": np.array(-1),
    "heads": np.array([3]),
    "head": np.array(3),
    "size": np.array([4]),
    "twelve": np.array([12]),
    "most": np.array([np.iinfo(np.int64).max]),
}
SHAPE = node("Shape", "x", "s")
RESHAPE = node("Reshape", "x v", "y")
SIZES = ((2, 5), (1, 1), (0, 3), (3, 0))


def rewrite(nodes, inputs=SEQUENCE, sizes=SIZES, more=None, **fields):
    """Applies the pass, checks that results agree for several sizes, and returns the model."""
    used = {name for item in nodes for name in item.input}
    constants = {name: value for name, value in CONSTANTS.items() if name in used}
    proto = model(nodes, inputs, constants=constants, **fields)
    after, _ = apply(proto, FoldShapes(), infer=False)
    for n, t in sizes:
        feeds = {
            name: random(*({"n": n, "t": t, **(more or {})}.get(dim, dim) for dim in shape), seed=seed)
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


def test_sizes_that_zero_would_not_copy():
    """As torch.export has them: 0 stands for itself there, and for a size of the data afterwards."""
    after = rewrite([*viewed(17)[:-1], node("Reshape", "x v", "y", allowzero=1)])
    assert target(after) == [0, 0, 3, 4]
    assert not any(item.attribute for item in after.graph.node if item.op_type == "Reshape")


@pytest.mark.parametrize(("own", "kept"), [(0, [0, 0, -1]), (1, None)])
def test_what_is_left_beside_sizes_that_may_be_zero(own, kept):
    """Where these stand for themselves, ONNX Runtime computes it of the others; where they are copied, it refuses."""
    nodes = [*viewed(17)[:-2], node("Concat", "au bu rest", "v", axis=0), node("Reshape", "x v", "y", allowzero=own)]
    assert target(rewrite(nodes, {"x": ["n", "t", "c", 4]}, sizes=((2, 5), (1, 1)), more={"c": 3})) == kept


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


def test_a_known_size_takes_the_place_of_minus_one():
    """Of which ONNX Runtime can make nothing where another size is zero."""
    nodes = [SHAPE, node("Slice", "s first end", "v0"), node("Concat", "v0 rest", "v", axis=0), RESHAPE]
    assert target(rewrite(nodes, sizes=((2, 5), (1, 1)))) == [0, 0, 12]


def test_what_refuses_an_empty_batch_stays_before_a_recurrent_node():
    """Which ONNX Runtime has end the process."""
    weights = {"w": random(1, 16, 12, seed=1), "r": random(1, 16, 4, seed=2)}
    shaped = [
        SHAPE,
        node("Slice", "s first end", "v0"),
        node("Concat", "v0 rest", "v", axis=0),
        node("Reshape", "x v", "z"),
    ]
    names = ("first", "end", "rest")
    proto = model(
        [*shaped, node("LSTM", "z w r", "y", hidden_size=4)],
        SEQUENCE, constants={**{name: CONSTANTS[name] for name in names}, **weights},
    )  # fmt: skip
    after, _ = apply(proto, FoldShapes(), infer=False)
    assert ops(after) == ["Reshape", "LSTM"] and target(after) == [0, 0, -1]
    feeds = {"x": random(2, 5, 12)}
    np.testing.assert_array_equal(run(after, feeds)[0], run(proto, feeds)[0])


def test_a_size_in_place_of_minus_one_leaves_that_for_another():
    nodes = [
        node("Reshape", "x apart", "h"), node("Transpose", "h", "m", perm=[0, 2, 3, 1]),
        node("Slice", "s first second", "b"), node("Slice", "s second end", "e"),
        node("Concat", "b rest e", "v", axis=0), node("Reshape", "m v", "y"),
    ]  # fmt: skip
    more = {"apart": np.array([0, 0, 3, 4])}
    names = ("first", "second", "rest", "end")
    proto = model([SHAPE, *nodes], SEQUENCE, constants={**{name: CONSTANTS[name] for name in names}, **more})
    after, _ = apply(proto, FoldShapes(), infer=False)
    folded = {item.name: numpy_helper.to_array(item).tolist() for item in after.graph.initializer}
    assert folded[after.graph.node[-1].input[1]] == [0, 12, -1]
    for n, t in ((2, 5), (1, 1)):
        feeds = {"x": random(n, t, 12)}
        np.testing.assert_array_equal(run(after, feeds)[0], run(proto, feeds)[0], strict=True)


@pytest.mark.parametrize("shape", ([0, 0, 12], [0, -1, 12], [-1, 0, 12]))
def test_a_reshape_that_changes_nothing_goes(shape):
    nodes = [node("Abs", "x", "a"), node("Reshape", "a w", "r"), node("Neg", "r", "y")]
    proto = model(nodes, SEQUENCE, constants={"w": np.array(shape)})
    after, _ = apply(proto, FoldShapes(), infer=False)
    assert ops(after) == ["Abs", "Neg"]
    feeds = {"x": random(2, 5, 12)}
    np.testing.assert_array_equal(run(after, feeds)[0], run(proto, feeds)[0], strict=True)


@pytest.mark.parametrize("nodes", (["Abs x a", "Reshape a w y"], ["Reshape x w y"]))
def test_a_reshape_that_makes_an_output_stays(nodes):
    proto = model([node(op, " ".join(names[:-1]), names[-1]) for op, *names in map(str.split, nodes)], SEQUENCE,
                  constants={"w": np.array([0, 0, 12])})  # fmt: skip
    after, _ = apply(proto, FoldShapes(), infer=False)
    assert ops(after) == [text.split()[0] for text in nodes]


EXPANSIONS = {
    "sizes of the data": ([SHAPE, node("Expand", "x s", "y")], [1, 1, 1]),
    "a number in place of one": (
        [SHAPE, node("Slice", "s first end", "b"), node("Concat", "b heads twelve", "v", axis=0),
         node("Unsqueeze", "x end", "u"), node("Expand", "u v", "y")], [1, 1, 3, 1],
    ),
    "as PyTorch exports expand, where -1 stands for a size": (
        [SHAPE, node("Slice", "s first end", "b"), node("Concat", "b heads twelve", "c", axis=0),
         node("Reshape", "c rest", "d"), node("Equal", "d minus", "same"), node("Where", "same ones d", "v"),
         node("Unsqueeze", "x end", "u"), node("Expand", "u v", "y")], [1, 1, 3, 1],
    ),
    "dimensions before those of the data": (
        [SHAPE, node("Concat", "heads s", "v", axis=0), node("Expand", "x v", "y")], [3, 1, 1, 1],
    ),
    "fewer dimensions": (
        [SHAPE, node("Slice", "s second most", "v"), node("Expand", "x v", "y")], [1, 1],
    ),
    "a size that the data may not have": (
        [SHAPE, node("Slice", "s first second", "b"), node("Concat", "b twelve", "v", axis=0),
         node("ReduceSum", "x second", "r", keepdims=1), node("Expand", "r v", "y")], None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", EXPANSIONS)
def test_expansions(case):
    nodes, expected = EXPANSIONS[case]
    used = {name for item in nodes for name in item.input}
    constants = CONSTANTS | {"minus": np.array([-1] * 4), "ones": np.array([1] * 4)}
    proto = model(nodes, SEQUENCE, constants={name: value for name, value in constants.items() if name in used})
    after, _ = apply(proto, FoldShapes(), infer=False)
    folded = {item.name: numpy_helper.to_array(item).tolist() for item in after.graph.initializer}
    assert folded.get(after.graph.node[-1].input[1]) == expected
    for n, t in ((2, 5), (1, 1), (0, 3), (2, 2)) if expected else ((2, 2), (1, 1)):
        feeds = {"x": random(n, t, 12)}
        np.testing.assert_array_equal(run(after, feeds)[0], run(proto, feeds)[0], strict=True)


def test_what_is_broadcast_anyway_is_not_expanded():
    """As PyTorch exports ``masked_fill`` with a mask that is expanded as the scores."""
    inputs = {"x": ["n", "t", 12], "w": [1, "t", 1]}
    spread = [SHAPE, node("Expand", "w s", "e"), node("Add", "e x", "a"), node("Mul", "a e", "b")]
    assert ops(rewrite([*spread[:2], node("Max", "e x", "y")], inputs)) == ["Max"]
    assert ops(
        rewrite([*spread[:2], node("Div", "x e", "y"), node("Pow", "e x", "z")], inputs, outputs=("y", "z"))
    ) == [
        "Div",
        "Pow",
    ]
    left = [*spread, node("Neg", "b", "y")]
    assert "Expand" in ops(rewrite(left, inputs)), "a reader that has not the tensor"
    assert "Expand" in ops(rewrite([*spread[:2], node("Add", "e x", "y")], inputs, outputs=("y", "e")))


def test_a_number_that_fills_a_shape_meets_what_has_it_as_it_is():
    """As PyTorch exports ``full_like``."""
    nine = helper.make_tensor("nine", TensorProto.FLOAT, [1], [9])
    filled = [SHAPE, node("ConstantOfShape", "s", "e", value=nine)]
    assert ops(rewrite([*filled, node("Min", "x e", "y"), node("Sub", "e x", "z")], outputs=("y", "z"))) == [
        "Min",
        "Sub",
    ]
    zeros = [SHAPE, node("ConstantOfShape", "s", "e"), node("Max", "e x", "y")]
    assert ops(rewrite(zeros)) == ["Max"]
    assert "ConstantOfShape" in ops(rewrite([*filled, node("Neg", "e", "y")])), "a reader that has not the tensor"
    assert "ConstantOfShape" in ops(rewrite([*filled, node("Min", "x e", "y")], outputs=("y", "e")))


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


@pytest.mark.parametrize("take", [node("Slice", "s rest most", "z"), node("Gather", "s two", "z")])
def test_numbers_that_are_computed_with(take):
    """As TorchScript exports the scale of scaled_dot_product_attention: the last size is known, others are not."""
    after = rewrite([SHAPE, take, node("Cast", "z", "f", to=1), node("Sqrt", "f", "r"), node("Mul", "x r", "y")])
    assert ops(after) == ["Mul"]
    unknown = node("Gather", "s one", "z")
    after = rewrite([SHAPE, unknown, node("Cast", "z", "f", to=1), node("Sqrt", "f", "r"), node("Mul", "x r", "y")])
    assert ops(after) == ["Shape", "Gather", "Cast", "Sqrt", "Mul"]


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
    "a zero that is none to copy": [
        SHAPE, node("Gather", "s second", "b"), node("Concat", "b first twelve", "v", axis=0),
        node("Slice", "x first first third", "e"), node("Reshape", "e v", "y", allowzero=1),
    ],
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


SCORES = [node("Transpose", "x", "k", perm=[0, 2, 1]), node("MatMul", "x k", "scores")]


@pytest.mark.parametrize(
    "take",
    [
        [node("Shape", "scores", "of_scores"), node("Gather", "of_scores minus", "last", axis=0)],
        [node("Shape", "scores", "of_scores"), node("Slice", "of_scores rest most", "last")],
        [node("Shape", "scores", "last", start=-1)],
    ],
    ids=["gather", "slice", "shape"],
)
def test_sizes_are_taken_of_the_inputs(take):
    """Of scores whose last size a mask is made of nobody reads the shape any more, and they can be fused."""
    nodes = [*SCORES, *take, node("Reshape", "last rest", "sizes"), node("ConstantOfShape", "sizes", "ones"),
             node("Add", "scores ones", "y")]  # fmt: skip
    after = rewrite(nodes)
    (shape,) = [item for item in after.graph.node if item.op_type == "Shape"]
    assert list(shape.input) == (["x"] if len(take) > 1 else ["scores"])


def test_sizes_that_are_none_of_an_inputs_are_taken_where_they_were():
    nodes = [node("Concat", "x x", "c", axis=1), node("Shape", "c", "of_c"), node("Gather", "of_c second", "last"),
             node("ConstantOfShape", "last", "ones"), node("ReduceSum", "ones", "y", keepdims=0)]  # fmt: skip
    (shape,) = [item for item in rewrite(nodes).graph.node if item.op_type == "Shape"]
    assert list(shape.input) == ["c"]


def test_sizes_of_inputs_of_one_symbol_are_told_apart():
    """ONNX Runtime takes sizes that differ where a model declares one symbol."""
    nodes = [node("Abs", "x", "a"), node("Abs", "w", "b"), node("Shape", "b", "of_b"),
             node("Gather", "of_b second", "last"), node("ConstantOfShape", "last", "ones"),
             node("Identity", "a", "y")]  # fmt: skip
    proto = model(nodes, {"x": ["n", "m"], "w": ["k", "k"]}, constants={"second": np.array([1])}, outputs=("ones", "y"))
    after, _ = apply(proto, FoldShapes(), infer=False)
    (shape,) = [item for item in after.graph.node if item.op_type == "Shape"]
    assert list(shape.input) == ["w"]
    feeds = {"x": random(2, 3), "w": random(4, 5)}
    for expected, actual in zip(run(proto, feeds), run(after, feeds), strict=True):
        np.testing.assert_array_equal(actual, expected, strict=True)


BROADCAST = {
    "einsum": (node("Einsum", "x w", "made", equation="ij,ij->ij"), (1, 3), (5, 3)),
    "einsum of dots": (node("Einsum", "x w", "made", equation="...j,...j->...j"), (1, 3), (5, 3)),
    "prelu": (node("PRelu", "x w", "made"), (1, 3), (4, 3)),
    "concat of nothing": (node("Concat", "x w", "made", axis=1), (0, 0), (4, 2)),
}


@pytest.mark.parametrize("kind", BROADCAST)
def test_sizes_that_onnx_runtime_broadcasts_are_no_inputs(kind):
    """Inference says the size of one operand, ONNX Runtime makes the other's."""
    maker, x, w = BROADCAST[kind]
    nodes = [maker, node("Shape", "made", "of_made"), node("Gather", "of_made first", "last"),
             node("ConstantOfShape", "last", "y")]  # fmt: skip
    proto = model(nodes, {"x": ["a", "b"], "w": ["c", "d"]}, constants={"first": np.array([0])})
    after, _ = apply(proto, FoldShapes(), infer=False)
    feeds = {"x": random(*x), "w": random(*w)}
    np.testing.assert_array_equal(run(after, feeds)[0], run(proto, feeds)[0], strict=True)


def test_a_reshape_of_what_is_broadcast_stays_computed():
    nodes = [node("Einsum", "x w", "made", equation="ij,ij->ij"), node("Shape", "x", "s"),
             node("Gather", "s first", "a"), node("Concat", "a rest", "v", axis=0),
             node("Reshape", "made v", "y")]  # fmt: skip
    constants = {"first": np.array([0]), "rest": np.array([-1])}
    proto = model(nodes, {"x": ["a", "b"], "w": ["c", "d"]}, constants=constants)
    after, _ = apply(proto, FoldShapes(), infer=False)
    feeds = {"x": random(1, 3), "w": random(5, 3)}
    np.testing.assert_array_equal(run(after, feeds)[0], run(proto, feeds)[0], strict=True)
