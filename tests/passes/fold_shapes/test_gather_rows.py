"""Rows that several nodes move are gathered once, or are a Reshape where all stay in their place; what else stays."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.passes.registry import REGISTRY
from tests.passes.models import apply, assert_close, model, node, ops, random

PASS = "gather-rows"
PASSES_BEFORE = REGISTRY.names()[: REGISTRY.names().index(PASS) + 1]


def transposed(shape, perm=None):
    attributes = {} if perm is None else {"perm": perm}
    return model([node("Transpose", "x", "t", **attributes), node("Neg", "t", "y")], {"x": shape})


@pytest.mark.parametrize(
    ("declared", "perm", "shape"),
    [
        ((1, 1, 12, 64), [0, 2, 1, 3], (1, 1, 12, 64)),
        (("n", 1, 12, 64), [0, 2, 1, 3], (3, 1, 12, 64)),
        ((1, "past", 1, 4), [0, 2, 1, 3], (1, 5, 1, 4)),
        ((2, 1, "n", 3, 1), [1, 0, 2, 4, 3], (2, 1, 3, 3, 1)),
        ((1, 7), None, (1, 7)),
    ],
)
def test_moved_units(declared, perm, shape):
    proto = transposed(declared, perm)
    result, _ = apply(proto, PASS)
    assert "Transpose" not in ops(result)
    assert_close(proto, result, {"x": random(*shape)}, 0)


@pytest.mark.parametrize(
    ("declared", "perm"),
    [
        ((1, 2, 12, 64), [0, 2, 1, 3]),
        ((1, 1, 2, 3), [0, 1, 3, 2]),
        ((1, "n", "m", 1), [0, 3, 1, 2]),  # two sizes at other places
        ((1, 0, 3), [1, 0, 2]),
        ((2, 1, "n", "n", 1), [1, 0, 2, 4, 3]),  # of which one may be zero
        ((7, 3), None),
    ],
)
def test_other_transposes_stay(declared, perm):
    result, _ = apply(transposed(declared, perm), PASS)
    assert "Transpose" in ops(result)


def test_the_layout_of_what_a_convolution_makes_is_left_to_it():
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "r"), node("Transpose", "r", "t", perm=[0, 2, 1])]
    proto = model([*nodes, node("Neg", "t", "y")], {"x": (3, 4, 1)}, constants={"w": random(8, 4, 1)})
    assert "Transpose" in ops(apply(proto, PASS)[0])
    assert "Transpose" not in ops(apply(proto, PASS, target="cuda")[0])


def moved(nodes, shape, constants=None, outputs=("y",), dtype=np.float32):
    """A model of nodes between x and t, of which a Softmax reads the result, and the same after the pass."""
    proto = model([*nodes, node("Softmax", "t", "y", axis=-1)], {"x": shape}, outputs, constants, dtype=dtype)
    result, _ = apply(proto, PASS)
    assert_close(proto, result, {"x": random(*shape).astype(dtype)}, 0)
    return ops(result)[:-1]


def roll(axis, tensor, result, cut):
    """torch.roll along an axis, as it is exported."""
    constants = {f"{result}_{name}": np.array([value]) for name, value in
                 {"zero": 0, "cut": cut, "end": 2**31, "axis": axis}.items()}  # fmt: skip
    nodes = [
        node("Slice", f"{tensor} {result}_cut {result}_end {result}_axis", f"{result}_1"),
        node("Slice", f"{tensor} {result}_zero {result}_cut {result}_axis", f"{result}_2"),
        node("Concat", f"{result}_1 {result}_2", result, axis=axis),
    ]
    return nodes, constants


WINDOWS = np.array([1, 2, 4, 2, 4, 16])
PARTITION = [node("Reshape", "r windows", "w"), node("Transpose", "w", "m", perm=[0, 1, 3, 2, 4, 5])]


def test_rolled_windows_are_gathered_once():
    first, constants = roll(1, "x", "a", 3)
    second, more = roll(-3 + 1, "a", "r", 5)
    nodes = [*first, *second, *PARTITION, node("Reshape", "m tokens", "t")]
    constants |= more | {"windows": WINDOWS, "tokens": np.array([4, 16, 16])}
    assert moved(nodes, (1, 8, 8, 16), constants) == ["Reshape", "Gather", "Reshape"]


def test_merged_patches_are_gathered_once():
    """Every second row and column, put together along the channels."""
    nodes, constants = [], {"axes": np.array([1, 2]), "end": np.array([99, 99]), "two": np.array([2, 2])}
    for place, first in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
        constants[f"f{place}"] = np.array(first)
        nodes.append(node("Slice", f"x f{place} end axes two", f"s{place}"))
    nodes.append(node("Concat", "s0 s1 s2 s3", "t", axis=-1))
    assert moved(nodes, (2, 6, 4, 16), constants) == ["Reshape", "Gather", "Reshape"]


def test_rows_of_a_matrix_are_gathered_without_a_reshape():
    """Which a second run would take away again, and which the file has not then."""
    nodes = [node("Gather", "x i", "a", axis=0), node("Gather", "a i", "t", axis=0)]
    assert moved(nodes, (4, 16), {"i": np.array([2, 0, 3, 1])}) == ["Gather"]


def test_views_that_undo_others_go():
    """A window as large as the image: nothing moves, and the second run has no views to take away."""
    nodes = [
        node("Reshape", "x image", "i"), node("Reshape", "i windows", "w"),
        node("Transpose", "w", "m", perm=[0, 1, 3, 2, 4, 5]), node("Reshape", "m tokens", "t"),
    ]  # fmt: skip
    constants = {"image": np.array([0, 4, 4, 16]), "windows": np.array([-1, 1, 4, 1, 4, 16])}
    assert moved(nodes, (1, 16, 16), constants | {"tokens": np.array([-1, 16, 16])}) == []


def test_rows_that_others_read_before_the_last_step_stay():
    nodes = [node("Transpose", "x", "a", perm=[1, 0, 2]), node("Gather", "a i", "t", axis=0)]
    proto = model([*nodes, node("Softmax", "t", "y"), node("Neg", "a", "z")], {"x": (2, 3, 16)}, ("y", "z"),
                  {"i": np.array([2, 0, 1])})  # fmt: skip
    result, _ = apply(proto, PASS)
    assert ops(result).count("Transpose") == 1


STAYS = {
    "one step": ([node("Transpose", "x", "t", perm=[1, 0, 2])], (2, 3, 16)),
    "rows that come apart": (
        [node("Transpose", "x", "a", perm=[1, 0, 2]), node("Transpose", "a", "t", perm=[0, 2, 1])], (2, 3, 16),
    ),
    "short rows": (
        [node("Transpose", "x", "a", perm=[1, 0, 2, 3]), node("Gather", "a i", "t", axis=2)], (2, 3, 4, 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STAYS)
def test_what_stays(case):
    nodes, shape = STAYS[case]
    constants = {"i": np.array([3, 0, 1, 2])} if case == "short rows" else {}
    assert moved(nodes, shape, constants) == [one.op_type for one in nodes]


def test_sizes_that_are_not_known_stay():
    nodes = [node("Transpose", "x", "a", perm=[1, 0, 2]), node("Gather", "a i", "t", axis=1)]
    proto = model([*nodes, node("Softmax", "t", "y")], {"x": ("n", 3, 16)}, constants={"i": np.array([0, 0])})
    result, _ = apply(proto, PASS)
    assert ops(result) == ["Transpose", "Gather", "Softmax"]


def test_views_of_fused_nodes_stay():
    """An elementwise node reads a transposed part where it lies."""
    constants = {"one": np.array([1]), "two": np.array([2]), "axis": np.array([0])}
    nodes = [node("Transpose", "x", "a", perm=[1, 0, 2]), node("Slice", "a one two axis", "t"), node("Neg", "t", "y")]
    result, _ = apply(model(nodes, {"x": (2, 3, 16)}, constants=constants), PASS)
    assert ops(result) == ["Transpose", "Slice", "Neg"]


def test_what_returns_to_its_place_is_a_reshape():
    """Channels first for a convolution, and last again for a product: of other readers nothing changes."""
    nodes = [
        node("Transpose", "x", "c", perm=[0, 3, 1, 2]), node("Reshape", "c flat", "f"),
        node("Transpose", "f", "t", perm=[0, 2, 1]), node("Softmax", "t", "y"), node("Neg", "c", "z"),
    ]  # fmt: skip
    proto = model(nodes, {"x": (1, 4, 6, 3)}, ("y", "z"), {"flat": np.array([1, 3, 24])})
    result, _ = apply(proto, PASS)
    assert sorted(ops(result)) == ["Neg", "Reshape", "Softmax", "Transpose"]
    assert_close(proto, result, {"x": random(1, 4, 6, 3)}, 0)


def test_a_chain_that_is_longer_than_pythons_stack():
    nodes = [node("Transpose", f"a{step}" if step else "x", f"a{step + 1}", perm=[1, 0, 2]) for step in range(1201)]
    assert moved([*nodes, node("Transpose", "a1201", "t", perm=[1, 0, 2])], (2, 3, 16)) == []


def test_what_is_large_only_between_stays():
    """Places of 2⁴⁰ rows are not held, although one of them is left in the end."""
    nodes = [node("Concat", f"a{step} a{step}" if step else "x x", f"a{step + 1}", axis=0) for step in range(40)]
    constants = {"zero": np.array([0]), "one": np.array([1])}
    result, _ = apply(model([*nodes, node("Slice", "a40 zero one", "t"), node("Softmax", "t", "y")], {"x": (1, 16)},
                            constants=constants), PASS)  # fmt: skip
    assert ops(result).count("Concat") == 40


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_attention_of_one_head_is_found_before(target):
    """Its Transposes move nothing but dimensions of 1, and are what it is known by."""
    heads = [node("Reshape", f"{name} split", f"{name}4") for name in "qkv"]
    heads += [node("Transpose", f"{name}4", f"{name}h", perm=[0, 2, 1, 3]) for name in "qv"]
    nodes = [
        *heads, node("Transpose", "k4", "kh", perm=[0, 2, 3, 1]), node("MatMul", "qh kh", "s"),
        node("Softmax", "s", "p", axis=-1), node("MatMul", "p vh", "o"),
        node("Transpose", "o", "oh", perm=[0, 2, 1, 3]), node("Reshape", "oh joined", "y"),
    ]  # fmt: skip
    proto = model(nodes, dict.fromkeys("qkv", (1, 64, 32)),
                  constants={"split": np.array([1, 64, 1, 32]), "joined": np.array([1, 64, 32])})  # fmt: skip
    result, _ = apply(proto, *PASSES_BEFORE, target=target)
    assert "FusedAttention" in "".join(ops(result))
