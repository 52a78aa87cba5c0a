"""Biases of matrix products on CUDA: added with what follows, else in a Gemm, and the same results."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.passes.rules import budget
from tests.passes.models import apply, assert_close, model, node, ops, random, reasons

SPLIT, JOIN = "split-product-bias", "join-product-bias"
SHAPES = {"w": (8, 6), "wt": (6, 8), "b": (6,), "row": (1, 6), "one": (1,), "column": (5, 1)}
CONSTANTS = {name: random(*shape, seed=place) for place, (name, shape) in enumerate(SHAPES.items())}


def gemm(*after, inputs="x w b", dtype=np.float32, outputs=("y",), shape=("n", 8), **attributes):
    """y of a Gemm of x and what comes after it."""
    constants = {name: value.astype(dtype) for name, value in CONSTANTS.items() if name in inputs.split()}
    return model([node("Gemm", inputs, "g", **attributes), *after], {"x": shape}, outputs, constants, dtype=dtype)


AFTER = {
    "activation": ([node("Relu", "g", "y")], ["Relu"]),
    "GELU": ([node("Gelu", "g", "y")], ["Gelu"]),
    "normalization": ([node("ReduceMean", "g", "m", axes=[-1]), node("Sub", "g m", "y")], ["ReduceMean", "Sub"]),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("inputs", ["x w b", "x wt b", "x w row"])
@pytest.mark.parametrize("kind", ["activation", "normalization"])
def test_a_bias_before_what_is_fused(kind, inputs, dtype):
    after, left = AFTER[kind]
    proto = gemm(*after, inputs=inputs, dtype=dtype, transB=int("wt" in inputs))
    result, _ = apply(proto, SPLIT, target="cuda")
    assert ops(result) == ["MatMul", "Add", *left]
    assert_close(proto, result, {"x": random(5, 8, dtype=dtype)}, 16)


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        *[("x w b", {"alpha": 2.0}), ("x w b", {"beta": 0.5}), ("x w one", {}), ("x w column", {}), ("x w", {})],
        ("x w b", {"transA": 1}),
    ],
)
def test_what_is_no_bias_of_columns_stays(inputs, attributes):
    shape = (8, 5) if "transA" in attributes else (5, 8)
    proto = gemm(node("Relu", "g", "y"), inputs=inputs, shape=shape, **attributes)
    assert ops(apply(proto, SPLIT, target="cuda")[0]) == ["Gemm", "Relu"]


def test_where_nothing_that_is_fused_reads_it():
    for after in ([node("Transpose", "g", "y")], [node("Relu", "g", "r"), node("Transpose", "g", "y")]):
        outputs = ["y", "r"] if len(after) > 1 else ["y"]
        assert ops(apply(gemm(*after, outputs=outputs), SPLIT, target="cuda")[0])[0] == "Gemm"
    assert ops(apply(gemm(node("Relu", "g", "y"), outputs=("y", "g")), SPLIT, target="cuda")[0]) == ["Gemm", "Relu"]


def test_the_target_cpu_keeps_both_forms():
    assert ops(apply(gemm(node("Relu", "g", "y")), SPLIT, JOIN)[0]) == ["Gemm", "Relu"]
    assert ops(apply(product(("n", 8)), JOIN)[0]) == ["MatMul", "Add"]


def test_shared_weights_are_transposed_within_a_budget(monkeypatch):
    nodes = [node("Relu", "g", "r"), node("MatMul", "r wt", "y")]
    proto = gemm(*nodes, inputs="x wt b", transB=1)
    assert ops(apply(proto, SPLIT, target="cuda")[0]) == ["MatMul", "Add", "Relu", "MatMul"]
    monkeypatch.setattr(budget, "_LIMIT", 100)
    result, context = apply(proto, SPLIT, target="cuda")
    assert ops(result) == ["Gemm", "Relu", "MatMul"]
    assert "the weights are shared" in reasons(context)


def product(shape, dtype=np.float32, bias="b", weights="w"):
    constants = {name: CONSTANTS[name].astype(dtype) for name in (weights, bias)}
    nodes = [node("MatMul", f"x {weights}", "p"), node("Add", f"{bias} p", "y")]
    return model(nodes, {"x": shape}, constants=constants, dtype=dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize(
    "shape", [(5, 8), ("n", 8), ("n", "m"), (3, 5, 8), ("n", 5, 8), (2, "n", 3, 8), ("n", "l", 8), ("n", 2, "l", "m")]
)
def test_a_bias_that_nothing_takes(shape, dtype):
    proto = product(shape, dtype)
    result, _ = apply(proto, JOIN, target="cuda")
    unknown = [] if sum(isinstance(size, str) for size in shape) < 2 else ["Shape", "Concat"]
    between = ["Reshape", "Gemm", *unknown, "Reshape"]
    assert sorted(ops(result)) == sorted(["Gemm"] if len(shape) == 2 else between)
    sizes = [size if isinstance(size, int) else 8 if size == "m" else 4 for size in shape]
    assert_close(proto, result, {"x": random(*sizes, dtype=dtype)}, 16)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        *[((3, 5, 8), {"bias": "one"}), ((3, 5, 8), {"bias": "column"}), ((8,), {})],
        *[((0, 5, 8), {}), ((5, 8), {"bias": "row"})],
    ],
)
def test_products_that_stay(shape, options):
    assert ops(apply(product(shape, **options), JOIN, target="cuda")[0]) == ["MatMul", "Add"]


@pytest.mark.parametrize("length", [5, "l"])
def test_of_no_rows(length):
    proto = product(("n", length, 8))
    result, _ = apply(proto, JOIN, target="cuda")
    for shape in [(0, 5, 8), (5, 0, 8)] if length == "l" else [(0, 5, 8)]:
        assert_close(proto, result, {"x": random(*shape)}, 1)


@pytest.mark.parametrize("shape", [(1, 7, 8), ("n", 7, 8), ("n", "l", 8)])
def test_rows_of_addmm(shape):
    """Reshape, Gemm with a bias and Reshape, as PyTorch exports the layers of GPT-2: one region with what follows."""
    constants = {"w": CONSTANTS["w"], "b": CONSTANTS["b"], "rows": np.array([-1, 8])}
    if shape[1] == "l":
        sizes = [node("Shape", "x", "s", start=0, end=2), node("Concat", "s six", "back", axis=0)]
        constants["six"] = np.array([6])
    else:
        sizes = []
        constants["back"] = np.array([-1 if size == "n" else size for size in (*shape[:2], 6)])
    nodes = [node("Reshape", "x rows", "m"), node("Gemm", "m w b", "g"), *sizes, node("Reshape", "g back", "h")]
    nodes += [node("Tanh", "h", "t"), node("Mul", "h t", "y")]
    proto = model(nodes, {"x": shape}, constants=constants)
    result, _ = apply(proto, "fold-shapes", "fuse-elementwise", target="cuda")
    assert ops(result) == ["MatMul", "FusedElementwise"]
    names = [size if isinstance(size, int) else 2 for size in shape]
    plain, _ = apply(proto, "fold-shapes", target="cuda")
    assert_close(proto, plain, {"x": random(*names)}, 16)
    kept, _ = apply(proto, "fold-shapes")
    assert "Gemm" in ops(kept)
