"""Affine steps and averages: what is taken past them, what stays, and the same results."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.fused.squeeze_excite.fuse_squeeze_excite import FuseSqueezeExcite
from onnxfuse.passes import RulePass
from onnxfuse.passes.conv_layout import ConvLayoutPass
from onnxfuse.passes.rules.conv_layout.affine_after_average_pool import AffineAfterAveragePool
from onnxfuse.passes.rules.fold_affine.fold_affine_before_mean import FoldAffineBeforeMean
from tests.passes.models import apply, assert_close, model, node, ops, random, reasons

IMAGE = {"x": ["n", 8, "h", "w"]}
CONSTANTS = {
    "s": np.array([0.5], np.float32),
    "o": np.array([2.0], np.float32),
    "k": random(8, 1, 1, seed=1),
    "narrow": random(1, 1, 4, seed=2),
    "w1": random(3, 8, 1, 1, seed=3),
    "b1": random(3, seed=4),
    "w2": random(8, 3, 1, 1, seed=5),
    "b2": random(8, seed=6),
    "wide": random(5, 8, 3, 3, seed=7),
}
ACTIVATION = [node("Relu", "x", "r")]
POOL = node("GlobalAveragePool", "t", "p")
STEPS = {
    "scale and shift": [node("Mul", "s r", "u"), node("Add", "u o", "t")],
    "per channel": [node("Add", "r k", "t")],
    "a constant less the data": [node("Sub", "k r", "t")],
    "a quotient": [node("Div", "r s", "u"), node("Sub", "u o", "t")],
}


def gate(pool=POOL, **attrs):
    """The gate of t, and the product of the two."""
    return [
        pool, node("Conv", "p w1 b1", "c", **attrs), node("Relu", "c", "d"), node("Conv", "d w2 b2", "e"),
        node("HardSigmoid", "e", "g"), node("Mul", "t g", "y"),
    ]  # fmt: skip


def rewrite(nodes, *passes, sizes=((1, 5, 4), (3, 4, 4)), inputs=IMAGE, ulps=32.0, **fields):
    """Applies the passes, checks that results agree for several sizes, and returns the model and the reasons."""
    used = {name for item in nodes for name in item.input}
    constants = {name: value for name, value in (CONSTANTS | fields.pop("constants", {})).items() if name in used}
    proto = model(nodes, inputs, constants=constants, **fields)
    after, context = apply(proto, *passes)
    for n, h, w in sizes:
        shape = [{"n": n, "h": h, "w": w}.get(dim, dim) for dim in inputs["x"]]
        assert_close(proto, after, {"x": random(*shape, seed=n)}, ulps)
    return after, reasons(context)


def source_of(proto, op):
    """What the first node of that type reads."""
    return next(item.input[0] for item in proto.graph.node if item.op_type == op)


@pytest.mark.parametrize("steps", STEPS)
def test_a_gate_takes_in_the_steps_before_its_mean(steps):
    nodes = [*ACTIVATION, *STEPS[steps], *gate()]
    after, _ = rewrite(nodes, RulePass([FoldAffineBeforeMean()]))
    assert source_of(after, "GlobalAveragePool") == "r"
    assert sorted(ops(after)) == sorted(item.op_type for item in nodes)  # the product still needs the steps


@pytest.mark.parametrize(
    ("pool", "opset"),
    [
        (node("ReduceMean", "t", "p", axes=[2, -1]), 17),
        (node("ReduceMean", "t axes", "p"), 18),
    ],
)
def test_a_mean_by_reduction(pool, opset):
    constants = {"axes": np.array([-2, 3])} if opset > 17 else {}
    nodes = [*ACTIVATION, *STEPS["scale and shift"], *gate(pool)]
    after, _ = rewrite(nodes, RulePass([FoldAffineBeforeMean()]), opset=opset, constants=constants)
    assert source_of(after, "ReduceMean") == "r"


def test_steps_that_only_the_mean_reads_go():
    nodes = [*ACTIVATION, *STEPS["scale and shift"], POOL, node("Conv", "p w1 b1", "y")]
    after, _ = rewrite(nodes, RulePass([FoldAffineBeforeMean()]))
    assert ops(after) == ["Relu", "GlobalAveragePool", "Conv"]


def test_a_convolution_without_bias_gets_one():
    nodes = [*ACTIVATION, *STEPS["scale and shift"], POOL, node("Conv", "p w1", "y")]
    after, _ = rewrite(nodes, RulePass([FoldAffineBeforeMean()]))
    assert len(after.graph.node[-1].input) == 3


LEFT_ALONE = {
    "a mean that is returned": ([*ACTIVATION, *STEPS["per channel"], *gate()], ("y", "p"), "output of the graph"),
    "a convolution that pads": ([*ACTIVATION, *STEPS["per channel"], *gate(pads=[1] * 4)[:2]], ("c",), "pads"),
    "a step along the width": ([*ACTIVATION, node("Mul", "r narrow", "t"), *gate()], ("y",), "neither a scalar nor"),
    "another reader of the mean": (
        [*ACTIVATION, *STEPS["per channel"], *gate(), node("Relu", "p", "f")], ("y", "f"), ""
    ),
    "a reader that is not elementwise": (
        [*ACTIVATION, *STEPS["per channel"], *gate(), node("Conv", "t wide", "f")], ("y", "f"), "cannot be fused with"
    ),
    "a mean of a part": (
        [*ACTIVATION, *STEPS["per channel"], node("ReduceMean", "t", "p", axes=[2]), node("Conv", "p w1 b1", "y")],
        ("y",), "",
    ),
    "steps that a convolution takes in": (
        [node("Conv", "x wide8", "r", pads=[1] * 4), *STEPS["per channel"], *gate()], ("y",), ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_means_that_stay(case):
    nodes, outputs, reason = LEFT_ALONE[case]
    constants = {"wide8": random(8, 8, 3, 3, seed=8)}
    after, text = rewrite(nodes, RulePass([FoldAffineBeforeMean()]), outputs=outputs, constants=constants)
    assert ops(after) == [item.op_type for item in nodes]
    assert source_of(after, "ReduceMean" if "part" in case else "GlobalAveragePool") == "t"
    assert reason in text if reason else not text


def test_weights_that_would_be_denormal_stay():
    constants = {"s": np.array([1e-30], np.float32), "w1": CONSTANTS["w1"] * np.float32(1e-10)}
    nodes = [*ACTIVATION, node("Mul", "r s", "t"), *gate()]
    after, text = rewrite(nodes, RulePass([FoldAffineBeforeMean()]), constants=constants)
    assert (source_of(after, "GlobalAveragePool") == "t" and "underflow" in text) or "denormal" in text


def test_the_division_of_a_hard_swish_is_not_taken_for_a_step():
    constants = {"three": np.array(3, np.float32), "six": np.array(6, np.float32), "zero": np.array(0, np.float32)}
    swish = [
        node("Add", "x three", "a"), node("Clip", "a zero six", "b"), node("Mul", "x b", "m"), node("Div", "m six", "r")
    ]  # fmt: skip
    after, _ = rewrite([*swish, *STEPS["scale and shift"], *gate()], FuseSqueezeExcite(), constants=constants)
    kinds = ops(after)
    assert kinds.count("HardSigmoid") == 1 and "Div" not in kinds
    (fused,) = [item for item in after.graph.node if item.op_type == "FusedSqueezeExcite"]
    assert fused.input[0] == "r"


AVERAGE = {"kernel_shape": [2, 2], "strides": [2, 2]}
BLOCKED = {"x": ["n", 32, "h", "w"]}
BLOCKS = {
    "v": random(32, 32, 1, 1, seed=1) / 6,
    "k": random(32, 1, 1, seed=2),
    "w": random(32, 32, 3, 3, seed=3) / 17,
    "wide": random(32, 32, 3, 3, seed=4) / 17,
}
SIZES = ((1, 6, 4), (2, 5, 4))


def pooled(steps, end=None, **attrs):
    """Steps between a convolution with its activation and an average, which a convolution that pads reads."""
    pool = node("AveragePool", "t", "p", **{**AVERAGE, **attrs})
    return [node("Conv", "x v", "a"), node("Relu", "a", "r"), *steps, pool, *(end or [CONV_AFTER])]


CONV_AFTER = node("Conv", "p w", "y", pads=[1] * 4)


@pytest.mark.parametrize("steps", STEPS)
def test_steps_are_taken_past_an_average(steps):
    rules = RulePass([AffineAfterAveragePool()])
    after, _ = rewrite(pooled(STEPS[steps]), rules, inputs=BLOCKED, sizes=SIZES, constants=BLOCKS)
    kinds = [item.op_type for item in STEPS[steps]]
    assert ops(after) == ["Conv", "Relu", "AveragePool", *kinds, "Conv"]


def test_the_steps_then_become_a_depthwise_convolution():
    nodes = pooled(STEPS["scale and shift"])
    after, _ = rewrite(nodes, ConvLayoutPass(), inputs=BLOCKED, sizes=SIZES, constants=BLOCKS)
    assert ops(after) == ["Conv", "Relu", "AveragePool", "Conv", "Conv"]


def test_an_average_that_a_graph_returns_keeps_its_name():
    nodes = [*pooled(STEPS["scale and shift"])[:-1]]
    after, _ = rewrite(
        nodes, RulePass([AffineAfterAveragePool()]), outputs=("p",), inputs=BLOCKED, sizes=SIZES, constants=BLOCKS
    )
    assert ops(after) == ["Conv", "Relu", "AveragePool", "Mul", "Add"]
    assert [item.name for item in after.graph.output] == ["p"]


PADDED = "reach beyond its input"
AVERAGES_LEFT_ALONE = {
    "padding": (pooled(STEPS["per channel"], pads=[1] * 4, count_include_pad=1), ("y",), PADDED),
    "padding that is not counted": (pooled(STEPS["per channel"], pads=[0, 0, 1, 1]), ("y",), PADDED),
    "padding by name": (pooled(STEPS["per channel"], auto_pad="SAME_UPPER"), ("y",), PADDED),
    "a window in part": (pooled(STEPS["per channel"], ceil_mode=1), ("y",), PADDED),
    "a step along the width": (pooled([node("Mul", "r narrow", "t")]), ("y",), "neither a scalar nor"),
    "another reader": (pooled(STEPS["per channel"], [CONV_AFTER, node("Relu", "t", "f")]), ("y", "f"), ""),
    "a result that is returned": (pooled(STEPS["per channel"]), ("y", "t"), ""),
    "plain layout": (
        [*ACTIVATION, *STEPS["per channel"], node("AveragePool", "t", "p", **AVERAGE), CONV_AFTER], ("y",), ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", AVERAGES_LEFT_ALONE)
def test_averages_that_stay(case):
    nodes, outputs, reason = AVERAGES_LEFT_ALONE[case]
    after, text = rewrite(
        nodes,
        RulePass([AffineAfterAveragePool()]),
        outputs=outputs,
        inputs=BLOCKED,
        sizes=((1, 6, 4),),
        constants=BLOCKS,
    )
    assert ops(after) == [item.op_type for item in nodes]
    assert reason in text if reason else not text
