"""Convolutions of one tensor whose results are added: what becomes one, and what stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse.passes import RulePass
from onnxfuse.passes.rules.fold_affine.merge_parallel_convs import MergeParallelConvs
from tests.passes.models import apply, assert_close, model, node, ops, random, reasons

CHANNELS = 6
SIZES = (9, 8, 7)


def conv(result: str, weight: str, bias: str = "", data: str = "x", **attributes: Any) -> onnx.NodeProto:
    return node("Conv", f"{data} {weight} {bias}".strip(), result, **attributes)


def merge(
    nodes: list[onnx.NodeProto],
    constants: Mapping[str, np.ndarray[Any, Any]],
    rank: int = 2,
    *,
    outputs: tuple[str, ...] = ("y",),
) -> tuple[onnx.ModelProto, str]:
    """The model after the rule, whose results are those of the original, and the reasons not to apply it."""
    names = ["n", CHANNELS, *"dhw"[-rank:]]
    used = {name for item in nodes for name in item.input}
    proto = model(nodes, {"x": names}, outputs, {name: constants[name] for name in constants if name in used})
    after, context = apply(proto, RulePass([MergeParallelConvs()], "branches"))
    assert_close(proto, after, {"x": random(2, CHANNELS, *SIZES[:rank], seed=5)}, 64.0)
    return after, reasons(context)


NORMALIZATION = {
    "scale": random(CHANNELS, seed=11),
    "shift": random(CHANNELS, seed=12),
    "mean": random(CHANNELS, seed=13),
    "variance": np.abs(random(CHANNELS, seed=14)) + 0.5,
}


def normalized(result: str, data: str = "x") -> onnx.NodeProto:
    return node("BatchNormalization", f"{data} scale shift mean variance", result)


def test_a_block_with_all_kinds_of_branches() -> None:
    constants = {
        "v": random(CHANNELS, CHANNELS, 3, 3, seed=1),
        "w": random(CHANNELS, CHANNELS, 1, 1, seed=2),
        "b": random(CHANNELS, seed=3),
        "c": random(CHANNELS, seed=4),
        "f": random(CHANNELS, 1, 1, seed=6),
        **NORMALIZATION,
    }
    nodes = [
        conv("p", "w", "c"),
        conv("q", "v", "b", pads=[1, 1, 1, 1]),
        normalized("r"),
        node("Mul", "x f", "s"),
        node("Add", "p q", "pq"),
        node("Add", "r s", "rs"),
        node("Add", "pq rs", "all"),
        node("Add", "x all", "sum"),
        node("Relu", "sum", "y"),
    ]
    after, _ = merge(nodes, constants)
    assert ops(after) == ["Conv", "Relu"]


@pytest.mark.parametrize(
    ("rank", "first", "second"),
    [
        (1, ((6, 6, 5), {"pads": [4, 4], "dilations": [2]}), ((6, 6, 3), {"pads": [2, 2], "dilations": [2]})),
        (1, ((6, 6, 5), {"pads": [2, 2]}), ((6, 6, 3), {"pads": [2, 2], "dilations": [2]})),
        (1, ((6, 6, 4), {"pads": [0, 3]}), ((6, 6, 1), {})),
        (2, ((8, 6, 3, 3), {"pads": [1, 1, 1, 1]}), ((8, 6, 1, 3), {"pads": [0, 1, 0, 1]})),
        (
            2,
            ((4, 6, 3, 3), {"pads": [2] * 4, "strides": [2, 2]}),
            ((4, 6, 1, 1), {"pads": [0, 1, 2, 1], "strides": [2, 2]}),
        ),
        (2, ((4, 6, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}), ((4, 6, 1, 1), {"strides": [2, 2]})),
        (2, ((6, 6, 3, 3), {"auto_pad": "VALID"}), ((6, 6, 3, 3), {})),
        (2, ((6, 1, 5, 5), {"pads": [2] * 4, "group": 6}), ((6, 1, 3, 3), {"pads": [1] * 4, "group": 6})),
        (2, ((12, 1, 3, 3), {"pads": [1] * 4, "group": 6}), ((12, 1, 1, 1), {"group": 6})),
        (2, ((8, 3, 3, 3), {"pads": [1] * 4, "group": 2}), ((8, 3, 1, 1), {"group": 2})),
        (2, ((12, 6, 3, 3), {"pads": [1] * 4}), ((12, 2, 1, 1), {"group": 3})),
        (2, ((12, 3, 3, 3), {"pads": [1] * 4, "group": 2}), ((12, 1, 3, 3), {"pads": [1] * 4, "group": 6})),
        (3, ((6, 6, 3, 1, 3), {"pads": [1, 0, 1] * 2}), ((6, 6, 1, 1, 3), {"pads": [0, 0, 1] * 2})),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_two_kernels(
    rank: int,
    first: tuple[tuple[int, ...], dict[str, Any]],
    second: tuple[tuple[int, ...], dict[str, Any]],
    swapped: bool,
) -> None:
    constants = {"v": random(*first[0], seed=1), "w": random(*second[0], seed=2), "b": random(second[0][0], seed=3)}
    nodes = [conv("p", "v", **first[1]), conv("q", "w", "b", **second[1])]
    after, _ = merge([*nodes, node("Add", "q p" if swapped else "p q", "y")], constants, rank)
    assert ops(after) == ["Conv"]


def test_other_terms_stay() -> None:
    constants = {
        "v": random(6, 6, 3, 3, seed=1),
        "w": random(6, 6, 1, 1, seed=2),
        "b": random(6, seed=3),
        "k": random(6, 1, 1, seed=4),
    }
    nodes = [
        conv("p", "v", pads=[1, 1, 1, 1]),
        node("Sigmoid", "x", "s"),
        node("Add", "p s", "ps"),
        node("Add", "ps k", "psk"),
        conv("q", "w", "b"),
        node("Add", "psk q", "y"),
    ]
    after, _ = merge(nodes, constants)
    assert sorted(ops(after)) == ["Add", "Add", "Conv", "Sigmoid"]


def test_depthwise_branches_with_the_tensor_itself() -> None:
    constants = {"v": random(6, 1, 3, 3, seed=1), "w": random(6, 1, 1, 1, seed=2), **NORMALIZATION}
    nodes = [
        conv("p", "v", pads=[1, 1, 1, 1], group=6),
        conv("q", "w", group=6),
        node("Add", "p q", "pq"),
        node("Add", "pq x", "y"),
    ]
    after, _ = merge(nodes, constants)
    assert ops(after) == ["Conv"]


V, W = random(6, 6, 3, 3, seed=1), random(6, 6, 1, 1, seed=2)
PADDED: dict[str, Any] = {"pads": [1, 1, 1, 1]}


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        pytest.param([conv("p", "v", **PADDED), conv("q", "w", data="z")], ("y",), id="other data"),
        pytest.param([conv("p", "v", pads=[2, 2, 0, 0]), conv("q", "v", **PADDED)], ("y",), id="taps elsewhere"),
        pytest.param([conv("p", "v", pads=[1, 0, 1, 2]), conv("q", "v", pads=[0, 1, 2, 1])], ("y",), id="no largest"),
        pytest.param([conv("p", "v", **PADDED), conv("q", "one")], ("y",), id="one channel, broadcast"),
        pytest.param([conv("p", "v", **PADDED), conv("q", "deep", group=2)], ("y", "p"), id="one is an output"),
        pytest.param([conv("p", "v", auto_pad="SAME_UPPER"), conv("q", "w")], ("y",), id="unknown padding"),
        pytest.param([conv("p", "deep", group=2), conv("q", "deep2", group=3)], ("y",), id="groups that are no parts"),
    ],
)
def test_what_stays(nodes: list[onnx.NodeProto], outputs: tuple[str, ...]) -> None:
    constants = {
        **{"v": V, "w": W, "one": random(1, 6, 1, 1, seed=3)},
        **{"deep": random(6, 3, 1, 1, seed=4), "deep2": random(6, 2, 1, 1, seed=6)},
    }
    before = [node("Relu", "x", "z")] if any("z" in item.input for item in nodes) else []
    after, _ = merge([*before, *nodes, node("Add", "p q", "y")], constants, outputs=outputs)
    assert ops(after).count("Conv") == 2 and "Add" in ops(after)


@pytest.mark.parametrize(
    "attributes",
    [{"pads": [1, 1, 1, 1], "strides": [2, 2]}, {}, {"pads": [1, 1, 1, 1], "dilations": [2, 2]}],
    ids=["strides", "no padding", "no tap in the middle"],
)
def test_the_tensor_itself_where_the_kernel_cannot_copy_it(attributes: dict[str, Any]) -> None:
    # A tensor with one row and one column is added to whatever comes out.
    nodes = [conv("p", "v", **attributes), node("Add", "p x", "y")]
    proto = model(nodes, {"x": ["n", 6, "h", "w"]}, ("y",), {"v": V})
    after, _ = apply(proto, RulePass([MergeParallelConvs()], "branches"))
    assert ops(after) == ["Conv", "Add"]


def test_what_others_read_stays() -> None:
    nodes = [conv("p", "v", **PADDED), conv("q", "w"), node("Add", "p q", "s"), node("Mul", "s q", "y")]
    after, _ = merge(nodes, {"v": V, "w": W})
    assert ops(after) == ["Conv", "Conv", "Add", "Mul"]


def test_a_convolution_added_to_itself_stays() -> None:
    after, _ = merge([conv("p", "v", **PADDED), node("Add", "p p", "y")], {"v": V})
    assert ops(after) == ["Conv", "Add"]


def test_values_that_do_not_fit() -> None:
    nodes = [conv("p", "v", **PADDED), conv("q", "w"), node("Add", "p q", "y")]
    large = np.full_like(V, 6e4)
    large16 = {name: value.astype(np.float16) for name, value in {"v": large, "w": large[:, :, :1, :1]}.items()}
    proto = model(nodes, {"x": ["n", 6, "h", "w"]}, ("y",), large16, dtype=np.float16)
    after, context = apply(proto, RulePass([MergeParallelConvs()], "branches"))
    assert len(ops(after)) == 3 and "would overflow float16" in reasons(context)
    infinite = V.copy()
    infinite[0, 0, 0, 0] = np.inf
    proto = model(nodes, {"x": ["n", 6, "h", "w"]}, ("y",), {"v": infinite, "w": W})
    after, context = apply(proto, RulePass([MergeParallelConvs()], "branches"))
    assert len(ops(after)) == 3 and "not finite" in reasons(context)


def test_steps_after_the_branches_are_folded_too() -> None:
    constants = {"v": V, "w": W, "f": random(6, 1, 1, seed=7), **NORMALIZATION}
    nodes = [
        conv("a", "v", **PADDED),
        normalized("p", "a"),
        conv("q", "w"),
        node("Add", "p q", "pq"),
        node("Mul", "pq f", "y"),
    ]
    proto = model(nodes, {"x": ["n", 6, "h", "w"]}, ("y",), constants)
    after, _ = apply(proto, "fold-affine")
    assert ops(after) == ["Conv"]
    assert_close(proto, after, {"x": random(2, 6, 9, 8, seed=5)}, 64.0)


def test_shared_weights_are_copied_within_bounds() -> None:
    wide = random(512, 512, 3, 3, seed=8)  # 9 MB, more than the budget for copies
    nodes = [
        conv("p", "v", data="z", **PADDED),
        conv("q", "w", data="z"),
        node("Add", "p q", "s"),
        conv("r", "v", data="t", **PADDED),
        node("Add", "s r", "y"),
    ]
    proto = model(
        nodes, {"z": ["n", 512, 4, 4], "t": ["n", 512, 4, 4]}, ("y",), {"v": wide, "w": random(512, 512, 1, 1, seed=9)}
    )
    after, context = apply(proto, RulePass([MergeParallelConvs()], "branches"))
    assert ops(after).count("Conv") == 3 and "the weights are shared" in reasons(context)
