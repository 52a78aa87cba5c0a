"""Shapes around products: what Einsums, MatMuls and Gemms make of sizes, and dimensions of one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxfuse.passes.fold_shapes import FoldShapes
from tests.passes.fold_shapes.test_fold_shapes import CONSTANTS, RESHAPE, SEQUENCE, SHAPE, SIZES, rewrite, target
from tests.passes.models import apply, assert_close, model, node, ops, random, run


def einsum(batch, rest):
    """How tf2onnx merges the first two dimensions of (n, 3, t, 4), and finds the shape to part them again."""
    return [
        SHAPE, node("Gather", "s pair", "nh"), node("ReduceProd", "nh", "p", keepdims=1), node("Max", "nh nh", "m"),
        node("Gather", "s third", "t"), node("Concat", f"{batch} {rest}", "v", axis=0), RESHAPE,
    ]  # fmt: skip


def test_products_and_maxima_of_sizes():
    inputs = {"x": ["n", 3, 5, 4]}
    sizes = ((2, 0), (1, 0), (0, 0))
    assert target(rewrite(einsum("p", "rest size"), inputs, sizes[:2])) == [-1, 5, 4]
    assert target(rewrite(einsum("m", "t size"), inputs, sizes)) == [0, 3, 5, 4]


def test_a_product_over_no_axes_is_none():
    """A vector of one size that is multiplied over no axes stays a vector of all of them."""
    nodes = [
        SHAPE, node("Slice", "s first end", "v0"), node("ReduceProd", "v0", "p", keepdims=1, noop_with_empty_axes=1),
        node("Concat", "p heads size", "v", axis=0), RESHAPE,
    ]  # fmt: skip
    assert target(rewrite(nodes, opset=18)) is None


MATRIX = [
    node("Unsqueeze", "a first", "a1"), node("Unsqueeze", "b first", "b1"), node("Concat", "a1 b1", "ab", axis=1),
]  # fmt: skip
OF_MATRICES = {
    "a row of a matrix": [*MATRIX, node("Gather", "ab first", "r", axis=0), node("Reshape", "r rest", "v0")],
    "a slice of a matrix": [*MATRIX, node("Slice", "ab first second first", "r"), node("Reshape", "r rest", "v0")],
    "columns beside each other": [
        node("Unsqueeze", "a first", "a1"), node("Unsqueeze", "b first", "b1"), node("Concat", "a1 a1", "aa", axis=0),
        node("Concat", "b1 b1", "bb", axis=0), node("Concat", "aa bb", "abab", axis=1),
        node("Reshape", "abab rest", "abab1"), node("Slice", "abab1 first end", "v0"),
    ],
    "which of a row and a column is equal": [
        node("Unsqueeze", "a first", "a1"), node("Concat", "a1 a1", "aa", axis=0),
        node("Concat", "a1 a1", "bb", axis=1), node("Equal", "aa bb", "e"),
        node("Cast", "e", "e1", to=onnx.TensorProto.INT64), node("Mul", "e1 a", "e2"),
        node("Reshape", "e2 rest", "e3"), node("Slice", "e3 first second", "a2"), node("Concat", "a2 b", "v0", axis=0),
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", OF_MATRICES)
def test_matrices_of_sizes(case):
    """Nothing is known of their elements, and never another order of them."""
    nodes = [
        SHAPE, node("Gather", "s first", "a"), node("Gather", "s second", "b"), *OF_MATRICES[case],
        node("Concat", "v0 rest", "v", axis=0), RESHAPE,
    ]  # fmt: skip
    rewrite(nodes, sizes=((2, 5), (1, 1), (4, 3)))


def test_rows_are_multiplied_where_they_are():
    """A dense layer of TensorFlow: tensordot, of any number of dimensions."""
    constants = {"w": random(12, 8), "k": np.array([-1, 12]), "to": np.array([8]), "pair": CONSTANTS["pair"]}
    nodes = [
        SHAPE, node("Gather", "s pair", "v0"), node("Concat", "v0 to", "v", axis=0), node("Reshape", "x k", "m"),
        node("MatMul", "m w", "p"), node("Reshape", "p v", "r"), node("Neg", "r", "y"),
    ]  # fmt: skip
    proto = model(nodes, SEQUENCE, constants=constants)
    after, _ = apply(proto, FoldShapes(), infer=False)
    assert ops(after) == ["MatMul", "Neg"]
    for n, t in SIZES[:3]:
        assert_close(proto, after, {"x": random(n, t, 12)}, 4)


GEMMS = {
    "transposed": ({"transB": 1, "beta": 0.0}, "m w", ["Reshape", "MatMul", "Reshape"]),
    "as it is": ({}, "m u", ["Reshape", "MatMul", "Reshape"]),
    "times two": ({"alpha": 2.0}, "m u", ["Reshape", "Gemm", "Reshape"]),
    "with a bias": ({}, "m u c", ["Reshape", "Gemm", "Reshape"]),
}


@pytest.mark.parametrize("case", GEMMS)
def test_gemms_of_rows(case):
    attributes, operands, expected = GEMMS[case]
    constants = {"w": random(8, 12), "u": random(12, 8), "c": random(8), "k": np.array([-1, 12]), "v": [-1, 5, 2, 4]}
    constants["v"] = np.array(constants["v"])
    used = {name: constants[name] for name in (*operands.split()[1:], "k", "v")}
    nodes = [node("Reshape", "x k", "m"), node("Gemm", operands, "p", **attributes), node("Reshape", "p v", "y")]
    proto = model(nodes, {"x": ["n", 5, 3, 4]}, constants=used)
    after, _ = apply(proto, FoldShapes(), infer=False)
    assert ops(after) == expected
    for n in (2, 1):
        assert_close(proto, after, {"x": random(n, 5, 3, 4)}, 4)


@pytest.mark.parametrize("shape", ([0, 4, 2], [-1, 0]))
def test_rows_whose_size_is_copied_stay(shape):
    constants = {"w": random(12, 8), "k": np.array([-1, 12]), "v": np.array(shape)}
    nodes = [node("Reshape", "x k", "m"), node("MatMul", "m w", "p"), node("Reshape", "p v", "y")]
    after, _ = apply(model(nodes, SEQUENCE, constants=constants), FoldShapes(), infer=False)
    assert ops(after) == ["Reshape", "MatMul", "Reshape"]


UNITS = {
    "inserted": ([node("Unsqueeze", "x second", "u"), node("Reshape", "u v", "y")], [-1, 6], ["Reshape"]),
    "inserted and moved": (
        [
            node("Unsqueeze", "x second", "u"), node("Transpose", "u", "w", perm=[1, 3, 0, 2]),
            node("Reshape", "w v", "y"),
        ],
        [4, -1], ["Transpose", "Reshape"],
    ),
    "inserted and moved alone": (
        [
            node("Unsqueeze", "x second", "u"), node("Transpose", "u", "w", perm=[0, 2, 1, 3]),
            node("Reshape", "w v", "y"),
        ],
        [4, -1], ["Reshape"],
    ),
    "inserted where sizes are copied": (
        [node("Unsqueeze", "x first", "u"), node("Reshape", "u v", "y")], [0, -1, 4], ["Unsqueeze", "Reshape"]
    ),
    "taken away": ([node("Reshape", "x v", "r"), node("Squeeze", "r second", "y")], [0, 1, -1], ["Reshape"]),
    "taken away before a copied size": (
        [node("Reshape", "x v", "r"), node("Squeeze", "r first", "y")], [1, 0, -1], ["Reshape", "Squeeze"]
    ),
    "taken away where it is not known to be 1": (
        [node("Reshape", "x v", "r"), node("Squeeze", "r first", "y")], [-1, 60], ["Reshape", "Squeeze"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNITS)
def test_dimensions_of_one(case):
    nodes, shape, expected = UNITS[case]
    used = {name: CONSTANTS[name] for name in ("first", "second")} | {"v": np.array(shape)}
    read = {name for item in nodes for name in item.input}
    proto = model(nodes, {"x": [3, 5, 4]}, constants={name: used[name] for name in used if name in read})
    after, _ = apply(proto, FoldShapes(), infer=False)
    feeds = {"x": random(3, 5, 4)}
    np.testing.assert_array_equal(run(after, feeds)[0], run(proto, feeds)[0], strict=True)
    assert ops(after) == expected


@pytest.mark.parametrize("static", (False, True))
def test_a_matrix_of_one_row(static):
    """Dense(8) of expand_dims(x, -1), as Keras has it."""
    constants = {"w": random(1, 8), "k": np.array([-1, 1]), "to": np.array([8]), "pair": CONSTANTS["pair"]}
    nodes = [
        node("Unsqueeze", "x axis", "u"), node("Reshape", "u k", "m"), node("MatMul", "m w", "p"),
        node("Shape", "u", "s"), node("Gather", "s pair", "v0"), node("Concat", "v0 to", "v", axis=0),
        node("Reshape", "p v", "r"), node("Neg", "r", "y"),
    ]  # fmt: skip
    proto = model(nodes, {"x": [3, 5] if static else ["n", 5]}, constants={**constants, "axis": np.array([-1])})
    after, _ = apply(proto, FoldShapes(), infer=False)
    assert_close(proto, after, {"x": random(3, 5)}, 4)


def test_a_size_of_rows_that_another_tensor_gives_stays():
    """Where that is empty, 0 copies the size of what is reshaped."""
    constants = {"w": random(4, 5), "k": np.array([-1, 4]), "rest": CONSTANTS["rest"], "five": np.array([5])}
    nodes = [
        node("Shape", "z", "s"), node("Concat", "s rest five", "v", axis=0), node("Reshape", "x k", "m"),
        node("MatMul", "m w", "p"), node("Reshape", "p v", "y"),
    ]  # fmt: skip
    proto = model(nodes, {"x": [2, 3, 4], "z": ["m"]}, constants=constants)
    after, _ = apply(proto, FoldShapes(), infer=False)
    for size in (0, 2, 6):
        feeds = {"x": random(2, 3, 4), "z": random(size)}
        np.testing.assert_allclose(run(after, feeds)[0], run(proto, feeds)[0], rtol=1e-5, strict=True)
