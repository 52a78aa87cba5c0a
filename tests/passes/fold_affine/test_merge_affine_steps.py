"""Chains of affine steps that fast math makes one product and one sum of: results, and every refusal."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

import onnxfuse
from tests.passes.models import apply, assert_close, model, node, ops, random, reasons, run

IMAGE = {"x": [2, 3, 8, 6]}
MEAN = np.array([0.485, 0.456, 0.406]).reshape(3, 1, 1)
DEVIATION = np.array([0.229, 0.224, 0.225]).reshape(3, 1, 1)


def chain(*steps, inputs=IMAGE, dtype=np.float32, **fields):
    """A model of steps one on the other: the operator, and its constant, behind the data or, in a tuple, before."""
    nodes, constants, value = [], {}, "x"
    for index, (op_type, constant) in enumerate(steps):
        name, result = f"k{index}", "y" if index == len(steps) - 1 else f"t{index}"
        before = isinstance(constant, tuple)
        constants[name] = np.asarray(constant[0] if before else constant, dtype)
        nodes.append(node(op_type, f"{name} {value}" if before else f"{value} {name}", result))
        value = result
    return model(nodes, inputs, fields.pop("outputs", ("y",)), constants=constants, dtype=dtype, **fields)


def merge(proto, ulps=16.0, dtype=np.float32, fast_math=True):
    """Applies the pass; checks that the results agree; returns the operators and the reasons."""
    after, context = apply(proto, "fold-affine", fast_math=fast_math)
    shapes = {
        i.name: [d.dim_value if d.HasField("dim_value") else 2 for d in i.type.tensor_type.shape.dim]
        for i in proto.graph.input
    }
    assert_close(proto, after, {name: random(*shape, seed=3, dtype=dtype) for name, shape in shapes.items()}, ulps)
    return ops(after), reasons(context)


def test_the_standardization_of_an_image_is_two_operations():
    proto = chain(("Div", 255.0), ("Sub", MEAN), ("Div", DEVIATION))
    assert merge(proto)[0] == ["Mul", "Add"]
    image = np.random.default_rng(1).integers(0, 256, IMAGE["x"]).astype(np.float32)
    after, _ = apply(proto, "fold-affine", fast_math=True)
    exact = (image.astype(np.float64) / 255 - MEAN) / DEVIATION
    errors = [np.abs(run(made, {"x": image})[0] - exact).max() for made in (proto, after)]
    assert errors[1] < 2 * errors[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_chain_is_one_product_and_one_sum(dtype):
    steps = [
        ("Mul", 0.9),
        ("Add", 0.1),
        ("Mul", MEAN),
        ("Sub", (0.3,)),
        ("Div", 1.1),
        ("Add", (MEAN[None],)),
        ("Mul", [3.0]),
    ]
    assert merge(chain(*steps, dtype=dtype), dtype=dtype)[0] == ["Mul", "Add"]


def test_a_sum_before_the_first_product_stays():
    """x - m has all digits where x is near m."""
    proto = chain(("Sub", 1e6), ("Mul", 0.3), ("Add", 0.1), ("Mul", 0.7))
    after, _ = apply(proto, "fold-affine", fast_math=True)
    assert ops(after) == ["Sub", "Mul", "Add"]
    assert_close(proto, after, {"x": random(*IMAGE["x"]) + 1e6}, 4.0)


def test_a_product_that_rounds_nothing_begins_no_chain():
    assert merge(chain(("Mul", 2.0), ("Sub", 1.0), ("Mul", 0.3)))[0] == ["Mul", "Sub", "Mul"]


def test_what_comes_before_a_linear_operator_is_folded_into_it():
    proto = chain(("Div", 255.0), ("Sub", MEAN), ("Div", DEVIATION))
    proto.graph.node.append(node("Conv", "y w", "z"))
    proto.graph.initializer.append(numpy_helper.from_array(random(4, 3, 3, 3), "w"))
    proto.graph.output[0].name = "z"
    assert merge(proto)[0] == ["Conv"]


@pytest.mark.parametrize("divisor", [3.0, MEAN, np.full((3, 1, 1), 3.0)])
def test_a_division_alone_becomes_a_product(divisor):
    assert merge(chain(("Div", divisor)))[0] == ["Mul"]


def test_a_power_of_two_divides():
    assert merge(chain(("Div", 4.0)))[0] == ["Div"]


def test_what_cancels_keeps_its_shape():
    """A scale of one is left out, and so is an offset of zero; x is broadcast all the same."""
    inputs = {"x": [2, 1, 1, 5]}
    assert merge(chain(("Mul", 3.0 * np.ones((3, 1, 1))), ("Add", 0.5), ("Div", 3.0), inputs=inputs))[0] == ["Add"]
    assert merge(chain(("Mul", 3.0), ("Add", np.zeros((3, 1, 1))), ("Mul", 0.3), inputs=inputs))[0] == ["Mul"]


def test_not_without_fast_math():
    proto = chain(("Div", 255.0), ("Sub", MEAN), ("Div", DEVIATION))
    assert merge(proto, ulps=0.0, fast_math=False) == (["Div", "Sub", "Div"], "")


TAKES_BACK = "its offset takes back one before it"
LARGER = "the constants together have more elements than each"
REFUSED = [
    # How to round to integers, and to multiples of 1/256, without Round.
    ([("Mul", 0.3), ("Add", 12582912.0), ("Sub", 12582912.0)], TAKES_BACK),
    ([("Mul", 0.3), ("Add", 49152.0), ("Sub", 49151.0)], TAKES_BACK),
    ([("Mul", 0.3), ("Add", MEAN), ("Mul", np.ones((8, 1)))], LARGER),
    ([("Mul", 3e-30), ("Mul", 3e-12)], "its constants together overflow or are denormal"),
    ([("Mul", 3e30), ("Mul", 3e12)], "its constants together overflow or are denormal"),
    ([("Mul", 0.3), ("Add", 12582912.0), ("Sub", 4194304.0), ("Sub", 8388608.0)], TAKES_BACK),
    ([("Mul", 0.3), ("Add", 0.1), ("Mul", np.full((40, 8, 6), 0.7))], "its offset would have more elements"),
    ([("Mul", 0.3), ("Add", np.ones(6)), ("Mul", np.ones(5))], "the constants cannot be broadcast together"),
    ([("Mul", 0.3), ("Add", np.inf), ("Mul", 0.1)], "Add scales or shifts by a value that is not finite"),
    ([("Mul", 0.3), ("Div", 0.0)], "Div divides by zero"),
    ([("Mul", 0.3), ("Div", (0.7,))], "Div divides a constant by the data"),
]


@pytest.mark.parametrize(("steps", "reason"), REFUSED)
def test_left_alone(steps, reason):
    proto = chain(*steps)
    after, context = apply(proto, "fold-affine", fast_math=True)
    assert ops(after) == [op_type for op_type, _ in steps] and reason in reasons(context)


def test_float64_does_not_underflow_on_the_way():
    steps = [("Mul", 1e-160), ("Mul", 1e-160), ("Mul", 1.5e160)]
    after, context = apply(chain(*steps, dtype=np.float64), "fold-affine", fast_math=True)
    assert ops(after) == ["Mul"] * 2 and "denormal" in reasons(context)
    x = np.full(IMAGE["x"], 1e200)
    np.testing.assert_allclose(run(after, {"x": x})[0], 1.5e40, rtol=1e-12)


@pytest.mark.parametrize("op_type", ["Floor", "Ceil", "Round", "Cast"])
def test_what_is_rounded_to_integers_is_divided(op_type):
    """41 / 41 is 1, and 41 times the reciprocal less."""
    proto = chain(("Div", 41.0))
    proto.graph.node.append(node(op_type, "y", "z", **({"to": onnx.TensorProto.FLOAT} if op_type == "Cast" else {})))
    proto.graph.output[0].name = "z"
    assert merge(proto, ulps=0.0)[0] == ["Div", op_type]


def test_shared_constants_are_not_copied_without_end():
    large = random(256, 256)
    nodes, constants = [], {"large": large}
    for index in range(200):
        constants[f"k{index}"] = 0.3 + index / 1000
        nodes += [node("Mul", f"x k{index}", f"a{index}"), node("Mul", f"a{index} large", f"y{index}")]
    proto = model(nodes, {"x": [1, 256, 256]}, [f"y{index}" for index in range(200)], constants=constants)
    after, _ = apply(proto, "fold-affine", fast_math=True)
    assert after.ByteSize() < 100 * large.nbytes


def test_a_value_that_is_read_elsewhere_ends_the_chain():
    steps = [("Mul", 0.3), ("Mul", 0.7), ("Add", 0.1), ("Add", 0.2), ("Mul", 0.7)]
    after, reason = merge(chain(*steps, outputs=("y", "t2")))
    assert after == ["Mul", "Add", "Add", "Mul"] and "is an output of the graph" in reason


@pytest.mark.parametrize("dtype", [np.float16, np.int32])
def test_other_types_stay(dtype):
    proto = chain(("Mul", 3), ("Mul", 5), ("Add", 1), ("Add", 2), dtype=dtype)
    assert ops(apply(proto, "fold-affine", fast_math=True)[0]) == ["Mul", "Mul", "Add", "Add"]


def test_a_gelu_is_left_to_the_kernel_that_knows_it():
    nodes = [
        node("Div", "x r", "a"),
        node("Erf", "a", "b"),
        node("Add", "b one", "c"),
        node("Mul", "x c", "d"),
        node("Mul", "d half", "y"),
    ]
    proto = model(nodes, IMAGE, ("y",), constants={"r": 2**0.5, "one": 1.0, "half": 0.5})
    assert merge(proto)[0] == ["Div", "Erf", "Add", "Mul", "Mul"]
    nodes[1] = node("Tanh", "a", "b")  # no GELU
    assert merge(model(nodes, IMAGE, ("y",), constants={"r": 2**0.5, "one": 1.0, "half": 0.5}))[0][0] == "Mul"


numbers = st.floats(-4, 4).filter(lambda x: abs(x) > 1e-2).map(lambda x: round(x, 3))
shapes = st.sampled_from([(), (1,), (3, 1, 1), (1, 3, 1, 1), (6,), (8, 1), (2, 1, 1, 1)])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["Mul", "Add", "Sub", "Div"]), numbers, shapes, st.booleans()), min_size=1, max_size=7
    )
)
def test_random_chains_compute_what_they_did(drawn):
    steps = []
    for index, (op_type, value, shape, before) in enumerate(drawn):
        constant = value * (1 + 0.1 * np.abs(random(*shape, seed=index)))
        steps.append((op_type, (constant,) if before and op_type in ("Mul", "Add", "Sub") else constant))
    proto = chain(*steps)
    after, _ = apply(proto, "fold-affine", fast_math=True)
    assert len(after.graph.node) <= len(proto.graph.node)
    x = random(*IMAGE["x"], seed=5)
    # In float64, to the size of the largest value on the way.
    value, largest = x.astype(np.float64), 1.0
    for op_type, constant in steps:
        k = np.asarray(constant[0] if isinstance(constant, tuple) else constant, np.float32).astype(np.float64)
        pair = (k, value) if isinstance(constant, tuple) else (value, k)
        function = {"Mul": np.multiply, "Add": np.add, "Sub": np.subtract, "Div": np.divide}[op_type]
        value = function(*pair)
        scaled = largest * (np.abs(k).max() if op_type == "Mul" else 1 / np.abs(k).min() if op_type == "Div" else 1)
        largest = max(scaled, np.abs(value).max())
    np.testing.assert_allclose(run(after, {"x": x})[0], value, rtol=0, atol=1e-5 * largest)


def test_the_optimized_model_has_one_link():
    """The chain of the benchmark: ten operators, of which fast math leaves two, which are one instruction."""
    steps = [(("Mul", 0.9 + 0.05 * i), ("Add", 0.1 - 0.03 * i)) for i in range(5)]
    proto = chain(*(step for pair in steps for step in pair))
    result = onnxfuse.optimize(proto, "cpu", fast_math=True)
    assert result.report.parity is not None and result.report.parity.ok
    (fused,) = result.model.graph.node
    (program,) = (onnx.helper.get_attribute_value(a) for a in fused.attribute if a.name == "program")
    operations = [line.split()[0] for line in program.decode().splitlines()]
    assert [op for op in operations if op in ("mul", "add")] == ["mul", "add"]
