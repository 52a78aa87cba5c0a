"""Products of transposed matrices, and transposed products, without the Transposes; what stays; the same results."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.models import apply, assert_close, model, node, ops, random

PASS = "turn-products"
W, BIAS = random(8, 5), random(5)


def rewrite(nodes, shapes, sizes=None, *, outputs=("y",), opset=20, target="cuda", **constants):
    """The operators after the pass, which computes the same."""
    proto = model(nodes, shapes, outputs, constants, opset=opset)
    after, _ = apply(proto, PASS, target=target)
    feeds = {name: random(*(sizes or {}).get(name, shape)) for name, shape in shapes.items()}
    assert_close(proto, after, feeds, 32)
    return ops(after)


RESULT = [node("MatMul", "x w", "p"), node("Add", "p b", "s"), node("Transpose", "s", "y", perm=[0, 2, 1])]
TURNED = ["Reshape", "Gemm", "Reshape"]


@pytest.mark.parametrize(
    ("shape", "perm", "size"),
    [
        ((1, 6, 8), [0, 2, 1], None),
        ((1, 2, 3, 8), [0, 3, 1, 2], None),
        ((1, "n", 8), [0, 2, 1], (1, 7, 8)),
        ((1, 6, 1, 8), [3, 0, 1, 2], None),
        ((6, 8), None, None),
    ],
)
def test_transposed_results(shape, perm, size):
    sizes = None if size is None else {"x": size}
    transpose = node("Transpose", "s", "y") if perm is None else node("Transpose", "s", "y", perm=perm)
    after = rewrite([*RESULT[:2], transpose], {"x": shape}, sizes, w=W, b=BIAS)
    assert [op for op in after if op != "Reshape"] == ["Gemm"]


def test_a_transposed_result_without_a_bias():
    assert rewrite([node("MatMul", "x w", "s"), RESULT[2]], {"x": (1, 6, 8)}, w=W) == TURNED


def test_the_bias_is_added_with_what_follows():
    """As in ConvNeXt, whose residuals have the channels first."""
    nodes = [*RESULT[:2], node("Transpose", "s", "t", perm=[0, 3, 1, 2]), node("Add", "t r", "y")]
    after = rewrite(nodes, {"x": (1, 2, 3, 8), "r": (1, 5, 2, 3)}, w=W, b=BIAS)
    assert after == [*TURNED, "Add", "Add"]


def test_both_transposed():
    nodes = [node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "t w", "p"), *RESULT[1:]]
    assert rewrite(nodes, {"x": (1, 8, 6)}, w=W, b=BIAS) == TURNED


RESULTS_THAT_STAY = {
    "several matrices": ((2, 6, 8), [0, 2, 1], {}),
    "rows in another order": ((1, 2, 3, 8), [0, 3, 2, 1], {}),
    "columns between rows": ((1, 2, 3, 8), [0, 1, 3, 2], {}),
    "two sizes that are not known": ((1, "n", "m", 8), [0, 3, 1, 2], {"x": (1, 2, 3, 8)}),
}


@pytest.mark.parametrize("case", RESULTS_THAT_STAY)
def test_results_that_stay(case):
    shape, perm, sizes = RESULTS_THAT_STAY[case]
    after = rewrite([*RESULT[:2], node("Transpose", "s", "y", perm=perm)], {"x": shape}, sizes, w=W, b=BIAS)
    assert after == ["MatMul", "Add", "Transpose"]


def test_a_result_that_others_read_stays():
    assert "Transpose" in rewrite([*RESULT, node("Neg", "s", "z")], {"x": (1, 6, 8)}, outputs="yz", w=W, b=BIAS)


def test_the_cpu_keeps_its_products():
    assert rewrite(RESULT, {"x": (1, 6, 8)}, target="cpu", w=W, b=BIAS) == ["MatMul", "Add", "Transpose"]


SOURCE = [node("Transpose", "x", "t", perm=[0, 2, 1])]


def test_transposed_sources():
    assert rewrite([*SOURCE, node("MatMul", "t w", "y")], {"x": (1, 8, 6)}, w=W) == TURNED
    after = rewrite([node("Transpose", "x", "t", perm=[0, 2, 3, 1]), node("MatMul", "t w", "y")],
                    {"x": (1, 8, 2, 3)}, w=W)  # fmt: skip
    assert after == TURNED


def test_several_products_read_one_transposed_source():
    nodes = [*SOURCE, node("MatMul", "t w", "y"), node("MatMul", "t v", "z")]
    after = rewrite(nodes, {"x": (1, 8, 6)}, outputs="yz", w=W, v=random(8, 3))
    assert after.count("Gemm") == 2 and "Transpose" not in after


@pytest.mark.parametrize("convolved", (True, False))
def test_elementwise_nodes_are_computed_before_the_transpose(convolved):
    """Where a convolution takes them; what is transposed otherwise they read where it lies."""
    first = node("Conv", "x k", "c") if convolved else node("Softmax", "x", "c", axis=1)
    nodes = [
        first, node("Transpose", "c", "t", perm=[0, 2, 1]), node("Add", "t v", "a"), node("Sigmoid", "a", "g"),
        node("Mul", "a g", "f"), node("MatMul", "f w", "y"),
    ]  # fmt: skip
    constants = {"k": random(8, 8, 1)} if convolved else {}
    after = rewrite(nodes, {"x": (1, 8, 6)}, w=W, v=random(8), **constants)
    assert after[1:] == (["Add", "Sigmoid", "Mul", *TURNED] if convolved else [one.op_type for one in nodes[1:]])


SOURCES_THAT_STAY = {
    "several matrices": ([*SOURCE, node("MatMul", "t w", "y")], {"x": (2, 8, 6)}),
    "rows in another order": (
        [node("Transpose", "x", "t", perm=[0, 3, 2, 1]), node("MatMul", "t w", "y")], {"x": (1, 8, 2, 3)},
    ),
    "another operand": (
        [*SOURCE, node("Add", "t u", "a"), node("MatMul", "a w", "y")], {"x": (1, 8, 6), "u": (1, 6, 8)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SOURCES_THAT_STAY)
def test_sources_that_stay(case):
    nodes, shapes = SOURCES_THAT_STAY[case]
    assert rewrite(nodes, shapes, w=W) == [one.op_type for one in nodes]


def test_an_activation_is_computed_where_the_convolution_is():
    """As in SegFormer: (N, C, H, W) → (N, C, L) → (N, L, C), an activation and a product."""
    nodes = [
        node("Conv", "x k", "c", group=8, pads=[1, 1, 1, 1]), node("Reshape", "c flat", "r"),
        node("Transpose", "r", "t", perm=[0, 2, 1]), node("Gelu", "t", "g"), node("MatMul", "g w", "y"),
    ]  # fmt: skip
    after = rewrite(nodes, {"x": (1, 8, 2, 3)}, w=W, k=random(8, 1, 3, 3), flat=np.array([1, 8, 6]))
    assert after[:2] == ["Conv", "Gelu"] and "Transpose" not in after and after.count("Gemm") == 1


def test_types_that_gemm_has_not_stay():
    proto = model([node("MatMul", "x w", "s"), RESULT[2]], {"x": (1, 6, 8)}, constants={"w": W.astype(np.int32)},
                  dtype=np.int32)  # fmt: skip
    after, _ = apply(proto, PASS, target="cuda")
    assert ops(after) == ["MatMul", "Transpose"]
