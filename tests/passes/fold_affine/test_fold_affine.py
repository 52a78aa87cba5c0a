"""Folding affine steps into Conv, ConvTranspose, Gemm and MatMul: results, and every refusal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tests.passes.models import apply, assert_close, model, node, ops, random, reasons, run

FOLD = "fold-affine"
IMAGE = {"x": [1, 4, 6, 6]}
W = random(8, 4, 3, 3, seed=1)
CHANNELS = random(8, 1, 1, seed=2)


def fold(nodes, inputs=IMAGE, outputs=("y",), ulps=16.0, infer=True, **fields):
    """Applies the rules; checks that the results agree; returns the model and the reasons."""
    proto = model(nodes, inputs, outputs, **fields)
    after, context = apply(proto, FOLD, infer=infer)
    dtype = fields.get("dtype", np.float32)
    feeds = {
        name: random(*(2 if isinstance(dim, str) else dim for dim in shape), seed=7, dtype=dtype)
        for name, shape in inputs.items()
    }
    assert_close(proto, after, feeds, ulps)
    return after, reasons(context)


def initializers(proto):
    return {item.name: numpy_helper.to_array(item) for item in proto.graph.initializer}


STEPS = [
    ("Mul", "t k", 1.7),
    ("Mul", "k t", CHANNELS),
    ("Add", "t k", CHANNELS),
    ("Add", "k t", [0.5]),
    ("Sub", "t k", CHANNELS[None]),
    ("Sub", "k t", CHANNELS[None]),
    ("Div", "t k", CHANNELS),
    ("Div", "t k", [[[3.0]]]),
]


@pytest.mark.parametrize(("op_type", "inputs", "constant"), STEPS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_step_after_a_conv(op_type, inputs, constant, bias):
    nodes = [
        node("Conv", "x w b" if bias else "x w", "t", pads=[1] * 4, name="conv"),
        node(op_type, inputs, "y"),
    ]
    after, _ = fold(nodes, constants={"w": W, "b": random(8), "k": constant})
    assert ops(after) == ["Conv"] and after.graph.node[0].name == "conv" and list(after.graph.node[0].output) == ["y"]


def test_a_scale_alone_adds_no_bias():
    after, _ = fold([node("Conv", "x w", "t"), node("Mul", "t k", "y")], constants={"w": W, "k": 2.0})
    assert len(after.graph.node[0].input) == 2


def test_a_whole_chain_is_folded_at_once():
    names = ["w2", "k1", "k2", "k3", "k4"]
    constants = {"w": W, **{name: random(8, 1, 1, seed=i) for i, name in enumerate(names)}}
    nodes = [
        node("Conv", "x w", "t0"),
        node("Mul", "t0 k1", "t1"),
        node("Add", "k2 t1", "t2"),
        node("Div", "t2 k3", "t3"),
        node("Sub", "k4 t3", "t4"),
        node("BatchNormalization", "t4 s b m v", "y", epsilon=1e-3),
    ]
    constants |= {
        "s": random(8),
        "b": random(8, seed=1),
        "m": random(8, seed=2),
        "v": np.abs(random(8, seed=3)),
    }
    after, _ = fold(nodes, constants=constants, ulps=256)
    assert ops(after) == ["Conv"]
    assert sum(name.startswith("w_") for name in initializers(after)) == 2


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_conv_transpose(rank, groups, dtype):
    size = [4] * rank
    constants = {
        "w": random(4, 8 // groups, *[3] * rank, dtype=dtype),
        "b": random(8, dtype=dtype),
        "k": random(8, *[1] * rank, dtype=dtype),
        "i": random(4, *[1] * rank, dtype=dtype),
    }
    nodes = [
        node("Mul", "x i", "u"),
        node("ConvTranspose", "u w b", "t", group=groups, strides=[2] * rank),
        node("Mul", "t k", "p"),
        node("Sub", "p k", "y"),
    ]
    after, _ = fold(nodes, {"x": [2, 4, *size]}, constants=constants, dtype=dtype)
    assert ops(after) == ["ConvTranspose"]


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("bias", [None, (), (1,), (5,), (1, 5), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gemm(transposed, bias, dtype):
    shape = (5, 3) if transposed else (3, 5)
    constants = {"w": random(*shape, dtype=dtype), "k": random(5, dtype=dtype), "i": random(3, dtype=dtype)}
    if bias is not None:
        constants["c"] = random(*bias, dtype=dtype)
    nodes = [
        node("Sub", "x i", "u"),
        node("Mul", "u i", "v"),
        node("Gemm", "v w" if bias is None else "v w c", "t", transB=transposed, alpha=0.5, beta=3.0),
        node("Mul", "t k", "p"),
        node("Add", "p k", "y"),
    ]
    after, _ = fold(nodes, {"x": [2, 3]}, constants=constants, dtype=dtype, ulps=64)
    assert ops(after) == ["Gemm"]


def test_gemm_with_transposed_data():
    nodes = [node("Mul", "x i", "u"), node("Gemm", "u w", "y", transA=1)]
    constants = {"w": random(3, 5), "i": random(3, 1)}
    assert ops(fold(nodes, {"x": [3, 2]}, constants=constants)[0]) == ["Gemm"]


@pytest.mark.parametrize("shape", [[3], [2, 3], [2, 4, 3], ["n", "m", 3]])
def test_matmul_becomes_matmul_and_add(shape):
    nodes = [
        node("MatMul", "x w", "t", name="product"),
        node("Mul", "t k", "p"),
        node("Add", "p k", "q"),
        node("Mul", "q s", "y"),
    ]
    constants = {"w": random(3, 5), "k": random(5), "s": [2.0]}
    after, _ = fold(nodes, {"x": shape}, constants=constants)
    assert ops(after) == ["MatMul", "Add"] and after.graph.node[0].name == "product"


def test_matmul_with_batches_of_weights():
    nodes = [node("Mul", "x i", "u"), node("MatMul", "u w", "t"), node("Mul", "t k", "y")]
    constants = {"w": random(2, 3, 5), "k": random(5), "i": random(3)}
    assert ops(fold(nodes, {"x": [2, 4, 3]}, constants=constants)[0]) == ["MatMul"]


def test_matmul_and_one_add_stay_as_they_are():
    after, why = fold(
        [node("MatMul", "x w", "t"), node("Add", "t k", "y")],
        {"x": [2, 3]},
        constants={"w": random(3, 5), "k": random(5)},
    )
    assert ops(after) == ["MatMul", "Add"] and why == ""


def test_an_offset_before_matmul_goes_into_the_add_after_it():
    nodes = [node("Add", "x i", "u"), node("MatMul", "u w", "t"), node("Add", "c t", "y")]
    constants = {"w": random(3, 5), "i": random(3), "c": random(5)}
    assert ops(fold(nodes, {"x": [2, 3]}, constants=constants)[0]) == ["MatMul", "Add"]
    after, why = fold([*nodes[:2], node("Relu", "t", "y")], {"x": [2, 3]}, constants=constants)
    assert ops(after) == ["Add", "MatMul", "Relu"] and "MatMul has no bias" in why


@pytest.mark.parametrize(("mean", "folded"), [(120.0, True), (2020.0, False)])
@pytest.mark.parametrize("linear", ["Gemm", "Conv"])
def test_data_that_a_large_mean_is_taken_from_keeps_its_digits(linear, mean, folded):
    """Years, say: x w - m w would keep three digits of (x - m) w."""
    shape = (1, 3, 1, 1) if linear == "Conv" else (3,)
    weight = random(5, 3, 1, 1) if linear == "Conv" else random(3, 5)
    constants = {"m": np.full(shape, mean, np.float32), "s": np.float32(0.5), "w": weight, "b": random(5)}
    nodes = [node("Sub", "x m", "u"), node("Mul", "u s", "v"), node(linear, "v w b", "y")]
    proto = model(nodes, {"x": [2, 3, 4, 4] if linear == "Conv" else [2, 3]}, constants=constants)
    after, context = apply(proto, FOLD)
    assert ops(after) == ([linear] if folded else ["Sub", "Mul", linear])
    assert folded or "cancel" in reasons(context)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("auto_pad", ["NOTSET", "VALID"])
def test_steps_before_a_conv_without_padding(groups, auto_pad):
    constants = {"w": random(8, 4 // groups, 3, 3), "i": random(4, 1, 1), "s": 0.3}
    nodes = [
        node("Mul", "x s", "a"),
        node("Sub", "i a", "b"),
        node("Div", "b i", "c"),
        node("Conv", "c w", "y", group=groups, auto_pad=auto_pad, dilations=[2, 1], strides=[1, 2]),
    ]
    assert ops(fold(nodes, constants=constants, ulps=64)[0]) == ["Conv"]


@pytest.mark.parametrize("padding", [{"pads": [0, 0, 0, 1]}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}])
def test_before_a_padded_conv_only_scales_fold(padding):
    constants = {"w": W, "i": random(4, 1, 1)}
    nodes = [node("Mul", "x i", "u"), node("Conv", "u w", "y", **padding)]
    assert ops(fold(nodes, constants=constants)[0]) == ["Conv"]
    nodes = [node("Mul", "x i", "t"), node("Add", "t i", "u"), node("Conv", "u w", "y", **padding)]
    after, why = fold(nodes, constants=constants)
    assert ops(after) == ["Mul", "Add", "Conv"] and "pads its input with zeros" in why


def test_an_offset_before_conv_transpose_stays():
    nodes = [node("Add", "x k", "u"), node("ConvTranspose", "u w", "y")]
    after, why = fold(nodes, constants={"w": random(4, 2, 3, 3), "k": 1.0})
    assert ops(after) == ["Add", "ConvTranspose"] and "fewer terms at the border" in why


@pytest.mark.parametrize("scale", [0.5, 0.25])
@pytest.mark.parametrize("more", [False, True])
def test_the_last_step_of_a_gelu_stays(scale, more):
    """Without it ONNX Runtime sees no GELU, and computes each node by itself."""
    gelu = [
        node("Div", "x root", "a"),
        node("Erf", "a", "e"),
        node("Add", "e one", "c"),
        node("Mul", "x c", "d"),
        node("Mul", "d half", "g"),
    ]
    steps = [*gelu, node("Mul", "g k", "h")] if more else gelu
    constants = {"root": np.sqrt(2.0), "one": 1.0, "half": scale, "k": random(4, 1, 1), "w": W}
    after, refused = fold([*steps, node("Conv", "h w" if more else "g w", "y")], constants=constants)
    kept = [*ops(model(gelu, IMAGE, ("g",), constants=constants))]
    assert ops(after) == [*(kept if scale == 0.5 else kept[:-1]), "Conv"]
    assert more or scale != 0.5 or "it ends a GELU, which ONNX Runtime computes in one kernel" in refused


def test_a_scale_read_by_several_linear_ops_goes_into_all_or_none():
    constants = {"w": W, "v": random(3, 4, 1, 1), "i": random(4, 1, 1)}
    both = [node("Mul", "x i", "u"), node("Conv", "u w", "y"), node("Conv", "u v", "z")]
    assert ops(fold(both, outputs=["y", "z"], constants=constants)[0]) == ["Conv", "Conv"]
    after, why = fold([*both[:2], node("Relu", "u", "z")], outputs=["y", "z"], constants=constants)
    assert ops(after) == ["Mul", "Conv", "Relu"] and "cannot take it in (Relu)" in why
    after, why = fold(both[:2], outputs=["y", "u"], constants=constants)
    assert ops(after) == ["Mul", "Conv"] and "output of the graph" in why


def test_data_that_a_constant_broadcasts_is_left():
    nodes = [node("Mul", "x i", "u"), node("Conv", "u w", "y")]
    constants = {"w": W, "i": random(4, 1, 1)}
    after, why = fold(nodes, {"x": [1, 1, 6, 6]}, constants=constants)
    assert ops(after) == ["Mul", "Conv"] and "fewer channels" in why
    constants["i"] = random(1, 4, 1, 1)
    after, why = fold(nodes, {"x": [4, 6, 6]}, constants=constants)
    assert ops(after) == ["Mul", "Conv"] and "may add a dimension" in why


CONV = [node("Conv", "x w", "t")]


@pytest.mark.parametrize(
    ("step", "constants", "reason"),
    [
        (node("Mul", "t k", "y"), {"k": random(4)}, "neither a scalar nor one value a channel"),
        (node("Mul", "t k", "y"), {"k": random(4, 4)}, "neither a scalar nor one value a channel"),
        (node("Add", "t k", "y"), {"k": random(1, 1, 1, 1, 1)}, "may add a dimension"),
        (node("Div", "t k", "y"), {"k": 0.0}, "divides by zero"),
        (node("Div", "k t", "y"), {"k": 1.0}, "divides a constant by the data"),
        (node("Mul", "t k", "y"), {"k": np.inf}, "not finite"),
        (node("Add", "t k", "y"), {"k": np.nan}, "not finite"),
        (node("Mul", "t k", "y"), {"k": 3e38}, "overflow"),
        (node("Mul", "t k", "y"), {"k": 1e-38}, "denormal"),
        (node("Add", "t k", "y"), {"k": 3e38, "w": W}, None),
    ],
)
def test_refusals(step, constants, reason):
    constants = {"w": W * 10 if reason != "denormal" else W * 0.1, **constants}
    with np.errstate(all="ignore"):
        proto = model([*CONV, step], IMAGE, constants=constants)
        after, context = apply(proto, FOLD)
    if reason is None:
        assert ops(after) == ["Conv"]
    else:
        assert ops(after) == ["Conv", step.op_type] and reason in reasons(context)


def test_a_vector_along_the_width_is_not_one_along_the_channels():
    nodes = [node("Conv", "x w", "t"), node("Mul", "t k", "y")]
    after, why = fold(nodes, {"x": [1, 4, 8, 10]}, constants={"w": W, "k": random(8)})
    assert ops(after) == ["Conv", "Mul"] and "neither a scalar nor one value a channel" in why


def test_zero_scale_is_folded():
    after, _ = fold([*CONV, node("Mul", "t k", "y")], constants={"w": W, "k": np.zeros((8, 1, 1), np.float32)})
    assert ops(after) == ["Conv"] and not np.any(initializers(after)["w_folded"])


def test_nan_and_infinite_data_go_the_same_way():
    proto = model([*CONV, node("Mul", "t k", "p"), node("Add", "p k", "y")], IMAGE, constants={"w": W, "k": CHANNELS})
    after, _ = apply(proto, FOLD)
    x = random(1, 4, 6, 6)
    x[0, 0, 0, 0], x[0, 1, 5, 5], x[0, 2, 2, 3] = np.nan, np.inf, -np.inf
    (expected,), (actual,) = run(proto, {"x": x}), run(after, {"x": x})
    np.testing.assert_array_equal(np.isnan(expected), np.isnan(actual))
    np.testing.assert_array_equal(np.isinf(expected), np.isinf(actual))


def test_an_overflow_of_float16_is_refused():
    constants = {"w": np.full((8, 4, 3, 3), 300, np.float16), "k": np.float16(300).reshape(1)}
    proto = model([*CONV, node("Mul", "t k", "y")], IMAGE, constants=constants, dtype=np.float16)
    after, context = apply(proto, FOLD)
    assert ops(after) == ["Conv", "Mul"] and "would overflow float16" in reasons(context)


def test_channels_that_were_denormal_already_do_not_stand_in_the_way():
    weight = W.copy()
    weight[3] = 1e-40
    assert ops(fold([*CONV, node("Mul", "t k", "y")], constants={"w": weight, "k": CHANNELS})[0]) == ["Conv"]


def test_a_value_in_between_that_is_needed_stays():
    constants = {"w": W, "k": CHANNELS}
    after, why = fold([*CONV, node("Mul", "t k", "y"), node("Relu", "t", "z")], outputs=["y", "z"], constants=constants)
    assert ops(after) == ["Conv", "Mul", "Relu"] and "used elsewhere" in why
    after, why = fold([*CONV, node("Mul", "t k", "y")], outputs=["y", "t"], constants=constants)
    assert ops(after) == ["Conv", "Mul"] and "output of the graph" in why


def test_weights_that_are_not_constant_stay():
    proto = model([*CONV, node("Mul", "t k", "y")], IMAGE, constants={"w": W, "k": 2.0})
    proto.graph.input.append(helper.make_tensor_value_info("w", 1, list(W.shape)))
    assert ops(apply(proto, FOLD)[0]) == ["Conv", "Mul"]


def test_gemm_refusals():
    base = {"w": random(3, 5), "k": 2.0}
    nodes = [node("Gemm", "x w c", "t"), node("Mul", "t k", "y")]
    after, why = fold(nodes, {"x": [2, 3]}, constants={**base, "c": random(2, 1)})
    assert ops(after) == ["Gemm", "Mul"] and "differs from row to row" in why
    # As many rows as columns: the size of the bias alone does not tell.
    after, why = fold(nodes, {"x": [5, 3]}, constants={**base, "c": random(5, 1)})
    assert ops(after) == ["Gemm", "Mul"] and "differs from row to row" in why


def test_batch_normalization_in_training_stays():
    constants = {"w": W, "s": random(8), "b": random(8), "m": random(8), "v": np.abs(random(8))}
    proto = model(
        [*CONV, node("BatchNormalization", "t s b m v", "y rm rv", training_mode=1)],
        IMAGE,
        constants=constants,
    )
    after, context = apply(proto, FOLD)
    assert "BatchNormalization" in ops(after) and "training mode" in reasons(context)


def test_shared_weights_are_copied_within_a_budget():
    nodes = [
        node("Conv", "x w", "t"),
        node("Mul", "t k", "y"),
        node("Conv", "x w", "z"),
    ]
    after, _ = fold(nodes, outputs=["y", "z"], constants={"w": W, "k": CHANNELS})
    assert sorted(ops(after)) == ["Conv", "Conv"] and {"w", "w_folded"} <= set(initializers(after))
    np.testing.assert_array_equal(initializers(after)["w"], W)
    large = random(2048, 1024)
    nodes = [node("MatMul", "x w", "t"), node("Mul", "t k", "y"), node("MatMul", "x w", "z")]
    after, why = fold(nodes, {"x": [1, 2048]}, ["y", "z"], constants={"w": large, "k": 2.0})
    assert ops(after) == ["MatMul", "Mul", "MatMul"] and "shared" in why


def test_before_opset_7_broadcasting_is_left():
    proto = model(
        [*CONV, node("Mul", "t k", "y", broadcast=1, axis=1)],
        IMAGE,
        opset=6,
        constants={"w": W, "k": random(8)},
    )
    after, context = apply(proto, FOLD)
    assert ops(after) == ["Conv", "Mul"] and not reasons(context)  # broadcast is no attribute that is known


def test_in_subgraphs_with_weights_from_outside():
    inner = [node("Conv", "x w", "t"), node("Mul", "t k", "r")]
    then = helper.make_graph(inner, "then", [], [helper.make_tensor_value_info("r", 1, None)])
    other = helper.make_graph([node("Conv", "x w", "q")], "else", [], [helper.make_tensor_value_info("q", 1, None)])
    nodes = [node("If", "flag", "y", then_branch=then, else_branch=other)]
    for flag in (True, False):
        constants = {"w": W, "k": CHANNELS, "flag": np.array(flag)}
        after, _ = fold(nodes, constants=constants)
        graphs = {item.name: item.g for item in after.graph.node[0].attribute}
        assert [item.op_type for item in graphs["then_branch"].node] == ["Conv"]


def test_nothing_is_inferred_and_scalars_fold_all_the_same():
    nodes = [node("Mul", "x s", "u"), node("Conv", "u w", "t"), node("Mul", "t k", "y")]
    after, _ = fold(nodes, constants={"w": W, "k": CHANNELS, "s": 3.0}, infer=False)
    assert ops(after) == ["Conv"]


@st.composite
def convolutions(draw):
    """A Conv or ConvTranspose of any rank, groups, padding and bias, with steps before and after it."""
    rank, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    inputs, outputs = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    transposed = draw(st.booleans())
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    first, second = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    dtype = draw(st.sampled_from([np.float32, np.float16]))
    constants = {"w": random(first, second, *kernel, seed=draw(st.integers(0, 99)), dtype=dtype)}
    attrs = {
        "group": groups,
        "strides": [draw(st.integers(1, 2)) for _ in range(rank)],
        "pads": [draw(st.integers(0, 1)) for _ in range(2 * rank)] if draw(st.booleans()) else [0] * 2 * rank,
    }
    bias = draw(st.booleans())
    if bias:
        constants["b"] = random(outputs, dtype=dtype)

    nodes = []

    def steps(value, channels, prefix):
        for index in range(draw(st.integers(0, 2))):
            name, op_type = f"{prefix}{index}", draw(st.sampled_from(["Mul", "Add", "Sub", "Div"]))
            shape = draw(
                st.sampled_from([(), (1,), (channels, *[1] * rank), (1, channels, *[1] * rank), (1,) * (rank + 1)])
            )
            constant = np.random.default_rng(index).uniform(0.5, 2.0, shape).astype(dtype)
            constants[f"k{name}"] = constant * dtype(draw(st.sampled_from([1, -1])))
            operands = [value, f"k{name}"]
            if op_type != "Div" and draw(st.booleans()):
                operands.reverse()
            nodes.append(node(op_type, " ".join(operands), name))
            value = name
        return value

    value = steps("x", inputs, "before")
    nodes.append(
        node(
            "ConvTranspose" if transposed else "Conv",
            f"{value} w b" if bias else f"{value} w",
            "conv",
            **attrs,
        )
    )
    value = steps("conv", outputs, "after")
    nodes.append(node("Relu", value, "y"))
    return nodes, {"x": [draw(st.integers(1, 2)), inputs, *[5] * rank]}, constants, dtype


@settings(max_examples=120)
@given(convolutions())
def test_any_convolution(case):
    nodes, inputs, constants, dtype = case
    after, _ = fold(nodes, inputs, constants=constants, dtype=dtype, ulps=512 if dtype == np.float32 else 32)
    left = ops(after)
    assert not any(op in ("Mul", "Div") for op in left[left.index(next(op for op in left if "Conv" in op)) :])
