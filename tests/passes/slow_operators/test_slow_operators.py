"""Operators that ORT is slow at: every form that is rewritten, every refusal, and the same results."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from onnxfuse.passes import PassContext
from onnxfuse.passes.slow_operators import SlowOperators
from tests.passes.models import apply, assert_close, model, node, ops, random, reasons, run

PASS = "slow-operators"


def rewrite(nodes, inputs, feeds, ulps=16.0, **fields):
    proto = model(nodes, inputs, **fields)
    after, context = apply(proto, PASS)
    for case in feeds:
        assert_close(proto, after, case, ulps)
    return after, reasons(context)


@pytest.mark.parametrize("opset", [7, 10, 11, 13, 21])
@pytest.mark.parametrize("beta", [0.5, 0.75, 0.6])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_lrn(size, beta, opset):
    lrn = node("LRN", "x", "y", size=size, beta=beta, alpha=0.02, bias=1.5)
    feeds = [{"x": 5 * random(n, 7, 5, 3)} for n in (1, 2, 0)]
    after, _ = rewrite([lrn], {"x": ["n", 7, 5, 3]}, feeds, opset=opset)
    assert "LRN" not in ops(after) and ops(after).count("AveragePool") == 1


def test_lrn_keeps_an_infinity_to_its_window():
    """As ONNX has it; ONNX Runtime's sliding sum spreads it to all channels behind."""
    x = random(1, 9, 2, 2)
    proto = model([node("LRN", "x", "y", size=3)], {"x": [1, 9, 2, 2]})
    (expected,) = run(proto, {"x": x})
    x[0, 4, 0, 0] = np.inf
    x[0, 0, 1, 1] = np.nan
    after, _ = apply(proto, PASS)
    (actual,) = run(after, {"x": x})
    far = np.ones((1, 9, 2, 2), bool)
    far[0, 3:6, 0, 0] = far[0, :2, 1, 1] = False
    np.testing.assert_allclose(actual[far], expected[far], rtol=1e-6)
    assert np.isnan(actual[0, 4, 0, 0]) and np.isnan(actual[0, :2, 1, 1]).all()


@pytest.mark.parametrize(
    ("attributes", "shape", "reason"),
    [
        (
            {"size": 3, "bias": 0.1},
            [1, 4, 2, 2],
            "its bias is small, and ONNX Runtime's sums then lose digits that would count as differences",
        ),
        ({"size": 3, "alpha": -1.0}, [1, 4, 2, 2], "the base of its power may not be positive"),
        ({"size": 4}, [1, 40, 2, 2], "its window is not of 1, 3, … 15 channels"),
        ({"size": 3}, [1, 4, 2], "its input is not known to be of rank 4"),
        ({"size": 17}, [1, 40, 2, 2], "its window is not of 1, 3, … 15 channels"),
        ({"size": 3}, [1, 4, "h", 2], "its image may be empty"),
        ({"size": 3}, [1, 0, 2, 2], "its image may be empty"),
    ],
)
def test_lrn_that_stays(attributes, shape, reason):
    after, why = rewrite([node("LRN", "x", "y", **attributes)], {"x": shape}, [])
    assert ops(after) == ["LRN"] and reason in why


@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("axis", [1, -3])
def test_softmax(axis, opset):
    x = 20 * random(2, 6, 9, 8)
    after, _ = rewrite([node("Softmax", "x", "y", axis=axis)], {"x": ["n", 6, 9, "w"]}, [{"x": x}], opset=opset)
    assert ops(after) == ["ReduceMax", "Sub", "Exp", "ReduceSum", "Div"]


def test_softmax_of_special_values():
    x = random(1, 5, 10, 10)
    x[0, :, 0, 0] = -np.inf
    x[0, 1, 1, 1] = np.inf
    x[0, 2, 2, 2] = np.nan
    x[0, 3, 3, 3] = -np.inf
    x[0, 3, 4, 4] = 3e38
    proto = model([node("Softmax", "x", "y", axis=1)], {"x": [1, 5, 10, 10]})
    after, _ = apply(proto, PASS)
    np.testing.assert_allclose(run(after, {"x": x})[0], run(proto, {"x": x})[0], rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize(
    ("axis", "shape", "opset", "reason"),
    [
        (-1, [2, 5, 90], 13, None),
        (2, [2, 5, 90], 13, None),
        (1, [2, 5, 90], 13, "ONNX Runtime transposes two axes fast"),
        (1, [2, 1000, "h", "w"], 13, "few elements lie behind its axis"),
        (1, [2, 100, 9, 9], 13, "few elements lie behind its axis"),
        (1, [2, 5, 90], 11, "before opset 13 it is over all axes behind its own too"),
        (1, [2, "c", 90], 13, "the size of its axis is not known"),
        (1, [2, 5, 3, 3], 13, "few elements lie behind its axis"),
    ],
)
def test_softmax_that_stays(axis, shape, opset, reason):
    after, why = rewrite([node("Softmax", "x", "y", axis=axis)], {"x": shape}, [], opset=opset)
    assert ops(after) == ["Softmax"] and (not why if reason is None else reason in why)


def test_a_reciprocal_in_an_rms_normalization_becomes_a_division():
    constants = {"two": 2.0, "epsilon": 1e-5, "scale": np.linspace(0.5, 1.5, 8, dtype=np.float32)}
    nodes = [
        node("Pow", "x two", "square"),
        helper.make_node("ReduceMean", ["square"], ["mean"], axes=[-1]),
        node("Add", "mean epsilon", "variance"),
        node("Sqrt", "variance", "deviation"),
        node("Reciprocal", "deviation", "inverse"),
        node("Mul", "x inverse", "normal"),
        node("Mul", "normal scale", "y"),
    ]
    after, _ = rewrite(nodes, {"x": ["n", 8]}, [{"x": random(3, 8)}], ulps=0, opset=13, constants=constants)
    assert "Reciprocal" not in ops(after) and ops(after).count("Div") == 1


@pytest.mark.parametrize("size", [0, "c"])
def test_a_reciprocal_of_what_may_be_empty_stays(size):
    """ONNX Runtime refuses rows without elements in its own operator."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[-1]),
        *(node("Add", "mean one", "variance"), node("Sqrt", "variance", "deviation")),
        *(node("Reciprocal", "deviation", "inverse"), node("Mul", "x inverse", "y")),
    ]
    after, _ = rewrite(nodes, {"x": ["n", size]}, [{"x": random(3, 0)}], opset=13, constants={"one": 1.0})
    assert "Reciprocal" in ops(after)


def test_another_reciprocal_stays():
    after, why = rewrite([node("Sqrt", "x", "r"), node("Reciprocal", "r", "y")], {"x": ["n", 8]}, [])
    assert ops(after) == ["Sqrt", "Reciprocal"] and not why


def test_nothing_changes_for_cuda():
    proto = model([node("LRN", "x", "y", size=3)], {"x": [1, 4, 2, 2]})
    from onnxfuse.model.graph import Model

    loaded = Model.from_proto(proto)
    SlowOperators().run(loaded, PassContext(target="cuda"))
    assert ops(loaded.to_proto()) == ["LRN"]


def means(kind, axis=-1):
    """The mean along the last axis, which is 8 long, as exporters have it."""
    if kind == "GlobalAveragePool":
        return lambda source, made: node(kind, source, made)
    if kind == "axes as an input":
        return lambda source, made: node("ReduceMean", f"{source} last", made)
    return lambda source, made: node("ReduceMean", source, made, axes=[axis])


def centered_squares(mean):
    nodes = [mean("x", "m"), node("Sub", "x m", "d"), node("Mul", "d d", "dd"), mean("dd", "v")]
    return [*nodes, node("Add", "v e", "ve"), node("Sqrt", "ve", "s")]


FACTOR = [node("Reciprocal", "s", "r"), node("Mul", "r g", "f")]
NORMALIZED = {
    "Keras": [
        *FACTOR, node("Neg", "m", "nm"), node("Mul", "x f", "xf"), node("Mul", "nm f", "mf"),
        node("Add", "mf b", "o"), node("Add", "xf o", "y"),
    ],
    "tf.nn.batch_normalization": [
        node("Div", "one s", "r"), node("Mul", "r g", "f"), node("Mul", "x f", "xf"), node("Mul", "m f", "mf"),
        node("Sub", "b mf", "o"), node("Add", "xf o", "y"),
    ],
    "a factor of the difference": [*FACTOR, node("Mul", "d f", "df"), node("Add", "df b", "y")],
    "two factors of the difference": [
        FACTOR[0], node("Mul", "d r", "dr"), node("Mul", "dr g", "df"), node("Add", "df b", "y")
    ],
}  # fmt: skip
SHAPES = {"GlobalAveragePool": ["n", 5, 8], "axes": ["n", 5, 3, 8], "axes as an input": ["n", 8]}


def normalization(form, kind="axes", shape=None, vectors=(8,), axis=-1, squares=centered_squares):
    constants = {
        "e": 1e-5, "g": random(*vectors, seed=1), "b": random(*vectors, seed=2), "one": 1.0, "last": np.array([-1]),
        "two": np.full((1, 1, 1, 1, 1), 2, np.float32),
    }  # fmt: skip
    nodes = [*squares(means(kind, axis)), *NORMALIZED[form]]
    used = {name for item in nodes for name in item.input}
    constants = {name: value for name, value in constants.items() if name in used}
    return nodes, {"x": shape or SHAPES[kind]}, constants, 18 if kind == "axes as an input" else 17


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("form", NORMALIZED)
def test_layer_normalization_by_moments(form, kind):
    nodes, inputs, constants, opset = normalization(form, kind, vectors=(1,) * (len(SHAPES[kind]) - 1) + (8,))
    feeds = [{"x": 3 + 2 * random(*(n if dim == "n" else dim for dim in inputs["x"]))} for n in (2, 1)]
    after, _ = rewrite(nodes, inputs, feeds, ulps=16, constants=constants, opset=opset)
    assert ops(after) == ["ReduceMean", "Sub", "Mul", "ReduceMean", "Add", "Sqrt", "Div", "Mul", "Add"]
    fused, _ = apply(after, "fuse-reductions")
    assert ops(fused) == ["FusedReduction"]


def uncentered_squares(mean):
    """As Flax has it, and loses digits."""
    nodes = [
        mean("x", "m"),
        node("Mul", "x x", "xx"),
        mean("xx", "q"),
        node("Mul", "m m", "mm"),
        node("Sub", "q mm", "v"),
    ]
    return [*nodes, node("Sub", "x m", "d"), node("Add", "v e", "ve"), node("Sqrt", "ve", "s")]


def squares_of_more_dimensions(mean):
    """By an exponent of as many dimensions as ``x`` and one more."""
    nodes = centered_squares(mean)
    return [node("Pow", "d two", "dd") if item.output[0] == "dd" else item for item in nodes]


@pytest.mark.parametrize(
    "changes",
    [
        {"axis": 1},
        {"kind": "GlobalAveragePool", "shape": ["n", 5, 2, 8]},
        {"vectors": (1,)},
        {"vectors": (3, 1)},
        {"vectors": (1, 1, 1, 1, 8)},
        {"squares": uncentered_squares},
        {"squares": squares_of_more_dimensions},
    ],
    ids=["another axis", "two axes", "one factor", "columns", "more dimensions", "another variance", "another rank"],
)
def test_other_normalizations_by_moments_stay(changes):
    nodes, inputs, constants, opset = normalization("Keras", **changes)
    feeds = [{"x": random(*(2 if dim == "n" else dim for dim in inputs["x"]))}]
    after, _ = rewrite(nodes, inputs, feeds, constants=constants, opset=opset)
    left = [op.replace("Div", "Reciprocal") for op in ops(after)]  # as another rule writes these for ONNX Runtime
    assert sorted(left) == sorted(item.op_type for item in nodes)
