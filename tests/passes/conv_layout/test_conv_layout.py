"""What lies between convolutions: every form that is rewritten, every refusal, and the same results."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxfuse.model.graph import Model
from onnxfuse.passes import PassContext, RulePass
from onnxfuse.passes.conv_layout import ConvLayoutPass
from onnxfuse.passes.rules.conv_layout.affine_as_depthwise_conv import AffineAsDepthwiseConv
from onnxfuse.passes.rules.conv_layout.gated_residual import GatedResidual
from onnxfuse.passes.rules.conv_layout.hard_sigmoid import RecogniseHardSigmoid
from onnxfuse.passes.rules.conv_layout.hard_swish import RecogniseHardSwish
from onnxfuse.passes.rules.conv_layout.merge_pointwise_convs import MergePointwiseConvs
from tests.passes.models import apply, assert_close, model, node, ops, random, reasons, run

IMAGE = {"x": ["n", 4, "h", "w"]}
NUMBERS = {
    "zero": 0.0, "half": 0.5, "one": 1.0, "three": 3.0, "minus_three": -3.0, "six": 6.0, "sixth": 1 / 6
}  # fmt: skip


def rewrite(nodes, *passes, inputs=IMAGE, ulps=8.0, numbers=True, sizes=((1, 5, 7), (3, 4, 2)), **fields):
    """Applies the passes, checks that results agree for several sizes, and returns the model and the reasons.

    All convolutions are ONNX Runtime's: which would be the library's depends on the processor.
    """
    constants = {**(NUMBERS if numbers else {}), **fields.pop("constants", {})}
    used = {name for item in nodes for name in item.input}
    constants = {name: value for name, value in constants.items() if name in used}
    proto = model(nodes, inputs, constants=constants, **fields)
    after, context = apply(proto, *passes, conv="none")
    dtype = fields.get("dtype", np.float32)
    for n, h, w in sizes:
        symbols = {"n": n, "h": h, "w": w}
        feeds = {
            name: 4 * random(*(symbols.get(dim, dim) for dim in shape), seed=n, dtype=dtype)
            for name, shape in inputs.items()
        }
        assert_close(proto, after, feeds, ulps)
    return after, reasons(context)


def attributes(proto, op):
    found = next(item for item in proto.graph.node if item.op_type == op)
    return {item.name: onnx.helper.get_attribute_value(item) for item in found.attribute}


# Bounds 0 and 6 of the value t, as the value b.
BOUNDS = {
    "clip": [node("Clip", "t zero six", "b")],
    "min of max": [node("Max", "zero t", "m"), node("Min", "m six", "b")],
    "max of min": [node("Min", "t six", "m"), node("Max", "m zero", "b")],
    "min of relu": [node("Relu", "t", "m"), node("Min", "six m", "b")],
    "relu of min": [node("Min", "t six", "m"), node("Relu", "m", "b")],
}
SHIFTS = {
    "x + 3": node("Add", "x three", "t"),
    "3 + x": node("Add", "three x", "t"),
    "x - -3": node("Sub", "x minus_three", "t"),
}
# The rest of HardSwish, from x and the bounded value b.
SWISHES = {
    "(x b) / 6": [node("Mul", "x b", "p"), node("Div", "p six", "y")],
    "(b x) / 6": [node("Mul", "b x", "p"), node("Div", "p six", "y")],
    "(x b) sixth": [node("Mul", "x b", "p"), node("Mul", "p sixth", "y")],
    "sixth (x b)": [node("Mul", "x b", "p"), node("Mul", "sixth p", "y")],
    "x (b / 6)": [node("Div", "b six", "p"), node("Mul", "x p", "y")],
    "(b sixth) x": [node("Mul", "b sixth", "p"), node("Mul", "p x", "y")],
    "(x / 6) b": [node("Div", "x six", "p"), node("Mul", "p b", "y")],
    "b (sixth x)": [node("Mul", "sixth x", "p"), node("Mul", "b p", "y")],
}


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("swish", SWISHES)
def test_every_form_of_hard_swish_becomes_x_times_hard_sigmoid(bound, swish):
    nodes = [SHIFTS["x + 3"], *BOUNDS[bound], *SWISHES[swish]]
    after, _ = rewrite(nodes, RulePass([RecogniseHardSwish()]))
    assert sorted(ops(after)) == ["HardSigmoid", "Mul"]
    assert attributes(after, "HardSigmoid") == {"alpha": pytest.approx(1 / 6), "beta": 0.5}


@pytest.mark.parametrize("shift", SHIFTS)
def test_three_may_be_added_in_any_way(shift):
    nodes = [SHIFTS[shift], *BOUNDS["clip"], *SWISHES["(x b) / 6"]]
    after, _ = rewrite(nodes, RulePass([RecogniseHardSwish()]))
    assert sorted(ops(after)) == ["HardSigmoid", "Mul"]


@pytest.mark.parametrize("opset", [7, 8, 10, 11, 12, 13, 14, 18, 22, 24])
def test_hard_swish_at_every_opset(opset):
    clip = node("Clip", "t", "b", min=0.0, max=6.0) if opset < 11 else BOUNDS["clip"][0]
    nodes = [SHIFTS["x + 3"], clip, *SWISHES["(x b) / 6"]]
    after, _ = rewrite(nodes, RulePass([RecogniseHardSwish()]), opset=opset)
    assert sorted(ops(after)) == ["HardSigmoid", "Mul"]


def test_hard_swish_of_scaled_input_and_bounds_of_one():
    nodes = [
        node("Div", "x six", "s"), node("Add", "s half", "t"), node("Clip", "t zero one", "b"), node("Mul", "x b", "y")
    ]  # fmt: skip
    after, _ = rewrite(nodes, RulePass([RecogniseHardSwish()]))
    assert sorted(ops(after)) == ["HardSigmoid", "Mul"]


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("division", ["Div", "Mul"])
def test_hard_sigmoid_alone(bound, division):
    end = node("Div", "b six", "y") if division == "Div" else node("Mul", "sixth b", "y")
    after, _ = rewrite([SHIFTS["x + 3"], *BOUNDS[bound], end], RulePass([RecogniseHardSigmoid()]))
    assert ops(after) == ["HardSigmoid"]


@pytest.mark.parametrize("opset", [7, 10, 11, 13, 22])
def test_hard_sigmoid_at_every_opset(opset):
    clip = node("Clip", "t", "b", min=0.0, max=6.0) if opset < 11 else BOUNDS["clip"][0]
    nodes = [SHIFTS["x + 3"], clip, node("Div", "b six", "y")]
    after, _ = rewrite(nodes, RulePass([RecogniseHardSigmoid()]), opset=opset)
    assert ops(after) == ["HardSigmoid"]


def test_hard_swish_keeps_what_is_not_a_number_and_infinities():
    proto = model(
        [SHIFTS["x + 3"], *BOUNDS["clip"], *SWISHES["x (b / 6)"]],
        {"x": ["n"]},
        constants={name: NUMBERS[name] for name in ("zero", "three", "six")},
    )
    after, _ = apply(proto, RulePass([RecogniseHardSwish()]))
    assert sorted(ops(after)) == ["HardSigmoid", "Mul"]
    feeds = {"x": np.array([np.nan, np.inf, -np.inf, -0.0, 1e38, -1e38, 1e-45], np.float32)}
    np.testing.assert_allclose(run(after, feeds)[0], run(proto, feeds)[0], rtol=1e-6)


CANONICAL = [node("HardSigmoid", "x", "b", alpha=1 / 6, beta=0.5), node("Mul", "x b", "y")]


@pytest.mark.parametrize("nodes", [CANONICAL, [node("HardSwish", "x", "y")]], ids=["canonical", "operator"])
def test_what_is_canonical_stays(nodes):
    after, _ = rewrite(nodes, ConvLayoutPass())
    assert ops(after) == [item.op_type for item in nodes]


NOT_HARD_SWISH = {
    "a shift of two": {"three": 2.0},
    "a bound of seven": {"six": 7.0},
    "a lower bound that is not zero": {"zero": 0.01},
    "three, nearly": {"three": 3.0001},
}


@pytest.mark.parametrize("case", NOT_HARD_SWISH)
def test_other_numbers_are_no_hard_swish(case):
    nodes = [SHIFTS["x + 3"], *BOUNDS["clip"], *SWISHES["(x b) / 6"]]
    after, text = rewrite(nodes, RulePass([RecogniseHardSwish()]), constants=NOT_HARD_SWISH[case])
    assert "HardSigmoid" not in ops(after) and not text


def test_another_tensor_than_the_shifted_one_is_no_hard_swish():
    nodes = [SHIFTS["x + 3"], *BOUNDS["clip"], node("Mul", "z b", "p"), node("Div", "p six", "y")]
    after, _ = rewrite(nodes, RulePass([RecogniseHardSwish()]), inputs={**IMAGE, "z": IMAGE["x"]})
    assert "HardSigmoid" not in ops(after)


def test_doubles_are_refused():
    nodes = [SHIFTS["x + 3"], *BOUNDS["clip"], *SWISHES["(x b) / 6"]]
    after, text = rewrite(nodes, RulePass([RecogniseHardSwish()]), dtype=np.float64)
    assert "HardSigmoid" not in ops(after)
    assert "float32, not in float64" in text


def test_a_number_that_adds_a_dimension_is_refused():
    nodes = [SHIFTS["x + 3"], *BOUNDS["clip"], *SWISHES["(x b) / 6"]]
    constants = {"three": np.full((1, 1, 1, 1, 1), 3, np.float32)}
    after, text = rewrite(nodes, RulePass([RecogniseHardSwish()]), constants=constants)
    assert "HardSigmoid" not in ops(after)
    assert "[1, 1, 1, 1, 1] in it may broadcast" in text


def test_a_number_that_is_a_vector_is_refused():
    nodes = [SHIFTS["x + 3"], *BOUNDS["clip"], *SWISHES["(x b) / 6"]]
    constants = {"three": np.full((2, 1, 1), 3, np.float32)}
    after, text = rewrite(
        nodes, RulePass([RecogniseHardSwish()]), constants=constants, inputs={"x": ["n", 1, "h", "w"]}
    )
    assert "HardSigmoid" not in ops(after)
    assert "may broadcast" in text


def test_an_inner_value_that_is_returned_is_refused():
    nodes = [SHIFTS["x + 3"], *BOUNDS["clip"], *SWISHES["(x b) / 6"]]
    after, text = rewrite(nodes, RulePass([RecogniseHardSwish()]), outputs=("y", "b"))
    assert "HardSigmoid" not in ops(after)
    assert "'b' is an output" in text


GATE = [node("GlobalAveragePool", "x", "m"), node("Sigmoid", "m", "g")]


@pytest.mark.parametrize("product", ["x g", "g x"])
@pytest.mark.parametrize("first", [True, False])
def test_the_gate_of_a_residual_takes_the_one(product, first):
    nodes = [*GATE, node("Mul", product, "p"), node("Add", "x p" if first else "p x", "y")]
    after, _ = rewrite(nodes, RulePass([GatedResidual()]), ulps=32)
    assert ops(after) == ["GlobalAveragePool", "Sigmoid", "Add", "Mul"]


def test_one_gate_for_an_image():
    nodes = [*GATE, node("ReduceMax", "g", "r", axes=[1], keepdims=1), node("Mul", "x r", "p"), node("Add", "x p", "y")]
    after, _ = rewrite(nodes, RulePass([GatedResidual()]), ulps=32)
    assert ops(after)[-2:] == ["Add", "Mul"]


REFUSED_GATES = {
    "as large": ([node("Sigmoid", "x", "g")], {}, "not known to be one value a channel"),
    "unknown": ([node("Identity", "z", "g")], {"z": ["n", 4, "a", "b"]}, "not known to be one value a channel"),
    "both small": ([node("Sigmoid", "x", "g")], {"x": ["n", 4, 1, 1]}, "as large as what it gates"),
    "of any size": ([node("Identity", "z", "g")], {"z": ["n", 4, 1, 1]}, "not known to lie between 0 and 1"),
    "a vector": ([node("Identity", "z", "g")], {"z": [1]}, "not known to be one value a channel"),
}


@pytest.mark.parametrize("case", REFUSED_GATES)
def test_refused_gates(case):
    before, inputs, reason = REFUSED_GATES[case]
    nodes = [*before, node("Mul", "x g", "p"), node("Add", "x p", "y")]
    proto = model(nodes, {**IMAGE, **inputs})
    after, context = apply(proto, RulePass([GatedResidual()]))
    assert ops(after) == ops(proto)
    assert reason in reasons(context)


def test_a_gated_product_that_is_used_elsewhere_is_refused():
    nodes = [*GATE, node("Mul", "x g", "p"), node("Add", "x p", "s"), node("Mul", "s p", "y")]
    after, text = rewrite(nodes, RulePass([GatedResidual()]))
    assert "'p' is used elsewhere" in text
    assert ops(after)[-2:] == ["Add", "Mul"]


def conv(source, weights, result, **attrs):
    return node("Conv", f"{source} {weights}", result, **attrs)


# A pair of pointwise convolutions, 4 -> 8 -> 6 channels.
PAIR = {"v": random(8, 4, 1, 1, seed=1), "w": random(6, 8, 1, 1, seed=2), "c": random(8), "b": random(6, seed=3)}


@pytest.mark.parametrize("first", ["v", "v c"])
@pytest.mark.parametrize("second", ["w", "w b"])
def test_two_pointwise_convolutions_become_one(first, second):
    nodes = [conv("x", first, "t"), conv("t", second, "y", kernel_shape=[1, 1], strides=[1, 1], pads=[0] * 4)]
    after, _ = rewrite(nodes, RulePass([MergePointwiseConvs()]), constants=PAIR, ulps=64)
    assert ops(after) == ["Conv"]
    has_bias = "c" in first or "b" in second
    assert len(after.graph.node[0].input) == 2 + has_bias


KEPT_PAIRS = {
    "bottleneck": (PAIR | {"v": random(1, 4, 1, 1), "w": random(6, 1, 1, 1)}, {}, {}, "is more work"),
    "stride": (PAIR, {"strides": [2, 2]}, {}, ""),
    "padding": (PAIR, {}, {"pads": [1, 1, 1, 1]}, ""),
    "groups": (PAIR | {"v": random(8, 2, 1, 1)}, {"group": 2}, {}, ""),
    "kernel": (PAIR | {"w": random(6, 8, 3, 3)}, {}, {"pads": [1, 1, 1, 1]}, ""),
    "overflow": (
        PAIR | {"v": np.full((8, 4, 1, 1), 1e30, np.float32), "w": np.full((6, 8, 1, 1), 1e30, np.float32)},
        {}, {}, "not be finite",
    ),
    "underflow": (
        PAIR | {"v": np.full((8, 4, 1, 1), 1e-30, np.float32), "w": np.full((6, 8, 1, 1), 1e-30, np.float32)},
        {}, {}, "would be denormal",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT_PAIRS)
def test_pairs_that_are_kept(case):
    constants, first, second, reason = KEPT_PAIRS[case]
    proto = model(
        [conv("x", "v", "t", **first), conv("t", "w", "y", **second)],
        IMAGE,
        constants={name: constants[name] for name in ("v", "w")},
    )
    after, context = apply(proto, RulePass([MergePointwiseConvs()]))
    assert ops(after) == ["Conv", "Conv"]
    assert reason in reasons(context)


def test_an_activation_between_keeps_a_pair():
    nodes = [conv("x", "v", "t"), node("Relu", "t", "r"), conv("r", "w", "y")]
    after, _ = rewrite(nodes, RulePass([MergePointwiseConvs()]), constants=PAIR, ulps=64)
    assert ops(after) == ["Conv", "Relu", "Conv"]


# conv -> Relu -> steps -> padded conv, 32 channels between: an offset there cannot be folded.
BETWEEN = {
    "v": random(32, 4, 1, 1, seed=1) / 2, "w": random(8, 32, 3, 3, seed=2) / 16,
    "s": 1.7, "o": 0.3, "d": random(32, 1, 1, seed=3) + 3, "e": random(1, 32, 1, 1, seed=4),
}  # fmt: skip
STEPS = {
    "add a scalar": [node("Add", "r o", "t")],
    "a scalar less the data": [node("Sub", "o r", "t")],
    "per channel": [node("Div", "r d", "q"), node("Sub", "q e", "t")],
    "a chain": [node("Mul", "s r", "p"), node("Add", "p e", "q"), node("Mul", "q d", "u"), node("Add", "o u", "t")],
}


def between(steps, end=None, **fields):
    nodes = [conv("x", "v", "a"), node("Relu", "a", "r"), *steps, *(end or [conv("t", "w", "y", pads=[1] * 4)])]
    rules = RulePass([AffineAsDepthwiseConv()])
    return rewrite(nodes, rules, constants=BETWEEN | fields.pop("constants", {}), ulps=64, **fields)


@pytest.mark.parametrize("steps", STEPS)
def test_steps_between_convolutions_become_one_depthwise_convolution(steps):
    after, _ = between(STEPS[steps])
    assert ops(after) == ["Conv", "Relu", "Conv", "Conv"]
    assert onnx.helper.get_node_attr_value(after.graph.node[2], "group") == 32


def test_the_result_may_have_other_readers():
    end = [conv("t", "w", "c", pads=[1] * 4), node("ReduceSum", "t", "f", keepdims=0), node("Add", "c f", "y")]
    after, _ = between(STEPS["add a scalar"], end)
    assert ops(after).count("Conv") == 3


def test_ort_reorders_nothing_around_the_depthwise_convolution(tmp_path):
    nodes = [conv("x", "v", "a"), node("Relu", "a", "r"), *STEPS["a chain"], conv("t", "w", "y", pads=[1] * 4)]
    proto = model(nodes, IMAGE, constants=BETWEEN)
    after, _ = apply(proto, ConvLayoutPass(), conv="none")
    kinds = optimized_by_ort(after, tmp_path)
    if "Conv" in kinds:
        pytest.skip("ONNX Runtime has no blocked layout on this machine")
    assert set(kinds) == {"com.microsoft.nchwc.Conv", "com.microsoft.nchwc.ReorderOutput"}
    assert kinds.count("com.microsoft.nchwc.ReorderOutput") == 1


REFUSED_STEPS = {
    "no convolution after": (STEPS["add a scalar"], [node("Sigmoid", "t", "y")], {}, "no convolution reads"),
    "not per channel": (
        [node("Add", "r e", "t")], None,
        {"e": random(1, 32, 1, 1)[:, :, :, :].repeat(5, 2).repeat(7, 3)}, "neither a scalar nor one value a channel",
    ),
    "a zero divisor": ([node("Div", "r s", "t")], None, {"s": 0.0}, "divides by zero"),
    "overflow": ([node("Mul", "r s", "q"), node("Mul", "q o", "t")], None, {"s": 1e30, "o": 1e30}, "overflow"),
    "channels": (
        STEPS["add a scalar"], None, {"v": random(18, 4, 1, 1), "w": random(8, 18, 3, 3)}, "18 channels",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_STEPS)
def test_refused_steps(case):
    steps, end, constants, reason = REFUSED_STEPS[case]
    nodes = [conv("x", "v", "a"), node("Relu", "a", "r"), *steps, *(end or [conv("t", "w", "y", pads=[1] * 4)])]
    used = {name for item in nodes for name in item.input}
    values = {name: value for name, value in (BETWEEN | constants).items() if name in used}
    proto = model(nodes, {"x": [1, 4, 5, 7]}, constants=values)
    after, context = apply(proto, RulePass([AffineAsDepthwiseConv()]))
    assert ops(after) == ops(proto)
    assert reason in reasons(context)


def test_steps_on_a_tensor_in_the_plain_layout_stay():
    nodes = [node("Relu", "x", "r"), *STEPS["add a scalar"], conv("t", "w", "y", pads=[1] * 4)]
    after, text = rewrite(
        nodes, RulePass([AffineAsDepthwiseConv()]), constants=BETWEEN, inputs={"x": ["n", 32, "h", "w"]}, ulps=64
    )
    assert ops(after) == ["Relu", "Add", "Conv"] and not text


def test_a_step_that_widens_one_channel_to_many_stays():
    nodes = [conv("x", "v", "a"), node("Relu", "a", "r"), node("Add", "r k", "t"), conv("t", "w", "y", pads=[1] * 4)]
    constants = {"v": random(1, 16, 1, 1), "k": random(16, 1, 1), "w": random(16, 16, 3, 3)}
    after, text = rewrite(
        nodes, RulePass([AffineAsDepthwiseConv()]), constants=constants, inputs={"x": ["n", 16, "h", "w"]}, ulps=64
    )
    assert ops(after) == ["Conv", "Relu", "Add", "Conv"] and "1 channels cannot be blocked" in text


def test_steps_are_folded_rather_than_made_a_convolution():
    nodes = [conv("x", "v", "a"), node("Relu", "a", "r"), *STEPS["a chain"], conv("t", "w", "y")]
    after, _ = rewrite(nodes, ConvLayoutPass(), constants=BETWEEN, ulps=64, sizes=((2, 5, 7),))
    assert ops(after) == ["Conv", "Relu", "Conv"]


def paddle_blocks(count, channels):
    """Convolutions with learned scale and shift, decomposed HardSwish, and scale and shift once more."""
    nodes, constants, source = [conv("x", "stem", "v0")], {"stem": random(channels, 4, 3, 3) / 3}, "v0"
    constants |= {"three": 3.0, "zero": 0.0, "six": 6.0}
    for i in range(count):
        names = {name: f"{name}{i}" for name in "abcdefgh"}
        deep = i % 2 == 0
        shape = (channels, 1, 3, 3) if deep else (channels, channels, 1, 1)
        constants[f"w{i}"] = random(*shape, seed=i + 1) / (3 if deep else channels**0.5)
        for j, name in enumerate(("s", "o", "t", "p")):
            constants[f"{name}{i}"] = np.array([0.5 + (i + j) % 3 / 4], np.float32)
        nodes += [
            conv(source, f"w{i}", names["a"], group=channels if deep else 1, pads=[1] * 4 if deep else [0] * 4),
            node("Mul", f"s{i} {names['a']}", names["b"]), node("Add", f"{names['b']} o{i}", names["c"]),
            node("Add", f"{names['c']} three", names["d"]), node("Clip", f"{names['d']} zero six", names["e"]),
            node("Mul", f"{names['c']} {names['e']}", names["f"]), node("Div", f"{names['f']} six", names["g"]),
            node("Mul", f"t{i} {names['g']}", names["h"]), node("Add", f"{names['h']} p{i}", f"v{i + 1}"),
        ]  # fmt: skip
        source = f"v{i + 1}"
    constants["head"] = random(3, channels, 1, 1) / channels
    return [*nodes, conv(source, "head", "y")], constants


def optimized_by_ort(proto, tmp_path):
    """The op types, with domains, of what ONNX Runtime makes of a model."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(tmp_path / "optimized.onnx", load_external_data=False).graph.node
    return [f"{item.domain}.{item.op_type}" if item.domain else item.op_type for item in nodes]


def test_a_network_as_paddle_writes_it_becomes_convolutions():
    nodes, constants = paddle_blocks(6, 32)
    after, _ = rewrite(nodes, ConvLayoutPass(), constants=constants, ulps=256, sizes=((1, 12, 9), (2, 8, 8)))
    kinds = ops(after)
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"Conv": 10, "HardSigmoid": 6, "Mul": 6}
    again, _ = apply(after, ConvLayoutPass(), "fold-affine", conv="none")
    assert ops(again) == kinds  # one run is enough


def test_the_pass_is_for_the_cpu():
    nodes, constants = paddle_blocks(2, 16)
    proto = model(nodes, IMAGE, constants=constants)
    loaded = Model.from_proto(proto)
    ConvLayoutPass().run(loaded, PassContext(target="cuda"))
    assert ops(loaded.to_proto()) == ops(proto)


def test_the_pass_is_registered_before_folding():
    nodes, constants = paddle_blocks(2, 16)
    after, _ = rewrite(nodes, "conv-layout", "fold-affine", constants=constants, ulps=256, sizes=((1, 9, 9),))
    assert ops(after).count("HardSigmoid") == 2
