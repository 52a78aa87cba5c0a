"""Scaled dot-product attention in one node, against NumPy in float64 and ONNX Runtime's own nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.custom_ops.fused import (
    NODE_NAME,
    check_in_threads,
    make_model,
    new_session,
    run,
    run_code,
    run_nodes,
    session_options,
)

NODE = f"onnxfuse::FusedAttention node '{NODE_NAME}': "
Sizes = Sequence[int]


@dataclass
class Attention:
    """A node: (batch, heads, length, size) of Q, the heads and the length of K, the size of V, and the shapes of the
    mask and of the choices, with what takes a score's place where one is ``fills``.

    ``first`` says of Q, K, V and the output whether heads come before the length; ``merged`` whether they are one
    dimension with the size where they do not.
    """

    batch: int
    heads: int
    length: int
    size: int
    key_heads: int | None = None
    keys: int | None = None
    value_size: int | None = None
    mask: Sizes | None = None
    first: tuple[int, int, int, int] = (0, 0, 0, 0)
    merged: bool = True
    scale: float = 0.25
    choices: Sizes | None = None
    fill: float = -10000.0
    fills: bool = False
    windows: int = 0

    def inputs(self, seed: int = 0) -> list[np.ndarray]:
        """Q, K, V as (batch, heads, length, size), the mask and the choices."""
        rng = np.random.default_rng([seed, self.length, self.size])
        key_heads, keys = self.key_heads or self.heads, self.length if self.keys is None else self.keys
        value_size = self.size if self.value_size is None else self.value_size
        shapes = [(self.heads, self.length, self.size), (key_heads, keys, self.size), (key_heads, keys, value_size)]
        made = [rng.standard_normal((self.batch, *shape)) for shape in shapes]
        if self.mask is not None:
            made.append(rng.standard_normal(self.mask) * 3)
        arrays = [array.astype(np.float32) for array in made]
        return arrays if self.choices is None else [*arrays, rng.random(self.choices) < 0.6]

    def laid_out(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The node's inputs."""
        tensors = [self._lay_out(array, first) for array, first in zip(inputs[:3], self.first, strict=False)]
        return [*tensors, *inputs[3:]]

    def expected(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The output, in float64."""
        q, k, v, *masks = (array if array.dtype == bool else array.astype(np.float64) for array in inputs)
        k, v = (np.repeat(array, self.heads // array.shape[1], axis=1) for array in (k, v))
        with np.errstate(all="ignore"):
            scores = q @ k.swapaxes(2, 3) * self.scale
            if self.choices is not None:
                scores = np.where(masks.pop() == self.fills, np.float32(self.fill), scores)
            for mask in masks:
                images = self.batch // self.windows if self.windows and mask.ndim == 4 else 1
                scores = scores + np.tile(mask, (images, *[1] * (mask.ndim - 1)))
            scores = np.exp(scores - scores.max(axis=3, keepdims=True, initial=-np.inf))
            result = scores / scores.sum(axis=3, keepdims=True) @ v
        if self.first[3]:
            return np.asarray(result)
        return np.asarray(result.swapaxes(1, 2).reshape(*result.shape[::2], self.heads * v.shape[3]))

    def model(self, static: bool = False, **more: Any) -> onnx.ModelProto:
        """The node on graph inputs x0, x1, … with output y0; ``more`` are other attributes, None for none."""
        arrays = self.laid_out(self.inputs())
        shapes = [array.shape if static else [f"d{i}_{k}" for k in range(array.ndim)] for i, array in enumerate(arrays)]
        kinds = ["bool" if array.dtype == bool else "f32" for array in arrays]
        inputs = {f"x{i}": (kind, shape) for i, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))}
        node = helper.make_node("FusedAttention", list(inputs), ["y0"], domain="onnxfuse", name=NODE_NAME)
        heads = [self.heads, self.key_heads or self.heads]
        bits = int(np.float32(self.scale).view(np.uint32))
        own = {"input_heads": [heads[0], heads[1], heads[1]], "first_head": [0, 0, 0]}
        known = {"heads": heads, **own, "heads_first": list(self.first), "scale_bits": bits}
        if self.choices is not None:
            known |= {"fill_bits": int(np.float32(self.fill).view(np.uint32)), "fills": int(self.fills)}
        known |= ({"windows": self.windows} if self.windows else {}) | more
        node.attribute.extend(helper.make_attribute(name, value) for name, value in known.items() if value is not None)
        return make_model([node], inputs, {"y0": ("f32", None)})

    def _lay_out(self, array: np.ndarray, first: int) -> np.ndarray:
        if first:
            return array
        swapped = np.ascontiguousarray(array.swapaxes(1, 2))
        return swapped.reshape(*swapped.shape[:2], array.shape[1] * array.shape[3]) if self.merged else swapped


def check(node: Attention, threads: Sequence[int] = (1, 2)) -> None:
    """The results are those of float64 up to float32's rounding, and the same bits whatever the threads."""
    inputs = node.inputs()
    results = [run(new_session(node.model(), session_options(n)), node.laid_out(inputs))[0] for n in threads]
    np.testing.assert_allclose(results[0], node.expected(inputs), rtol=1e-5, atol=1e-5)
    assert results[0].dtype == np.float32
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("merged", (False, True))
@pytest.mark.parametrize("first", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 0, 1), (1, 0, 1, 0)])
def test_layouts(first: tuple[int, int, int, int], merged: bool) -> None:
    check(Attention(2, 3, 10, 7, keys=13, value_size=9, first=first, merged=merged))


SHAPES = {
    "one of each": Attention(1, 1, 1, 1),
    "one query": Attention(1, 8, 1, 64, keys=200),
    "one key": Attention(2, 3, 20, 16, keys=1),
    "windows": Attention(16, 3, 16, 16),
    "threads": Attention(1, 4, 150, 24),
    "more rows than at once": Attention(1, 2, 200, 40, keys=77),
    "more keys than a panel": Attention(1, 2, 65, 64, keys=197),
    "many keys": Attention(1, 1, 9, 8, keys=5000),
    "no batch": Attention(0, 2, 4, 4),
    "no query": Attention(1, 2, 0, 4, keys=4),
    "fewer heads of keys": Attention(2, 6, 12, 8, key_heads=2),
    "one head of keys": Attention(1, 5, 12, 8, key_heads=1, first=(1, 1, 1, 1)),
    "values of no size": Attention(1, 2, 4, 4, value_size=0),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: str) -> None:
    check(SHAPES[shape])


WINDOWS = {
    "of one image": Attention(6, 2, 9, 8, mask=(6, 1, 9, 9), windows=6),
    "of several images": Attention(12, 3, 9, 8, mask=(4, 1, 9, 9), windows=4),
    "with a bias for each head": Attention(12, 3, 10, 8, keys=13, mask=(4, 3, 10, 13), windows=4),
    "with another number for some scores": Attention(6, 2, 9, 8, mask=(3, 1, 9, 9), choices=(6, 1, 9, 9), windows=3),
    "that are all alike": Attention(6, 2, 9, 8, mask=(2, 9, 9), windows=3),
    "of few rows": Attention(6, 2, 2, 16, keys=33, mask=(3, 2, 1, 33), windows=3),
    "of no image": Attention(0, 2, 9, 8, mask=(3, 1, 9, 9), windows=3),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_masks_of_windows(kind: str) -> None:
    check(WINDOWS[kind])
    # Whatever the mask has first, the result has the batch of Q.
    session = new_session(WINDOWS[kind].model(static=True), session_options())
    assert session.get_outputs()[0].shape[0] in (WINDOWS[kind].batch, "")


FEW_ROWS = {
    "one row of many heads": Attention(2, 8, 1, 64, keys=300, first=(1, 1, 1, 1)),
    "one row of heads that share keys": Attention(1, 32, 1, 32, key_heads=8, keys=77, first=(0, 1, 1, 0)),
    "heads that share keys in parts of the work": Attention(1, 12, 1, 16, key_heads=1, keys=40),
    "heads of no common part": Attention(1, 14, 1, 16, key_heads=2, keys=40, mask=(14, 1, 40)),
    "some rows": Attention(3, 4, 5, 48, key_heads=2, keys=130, first=(0, 1, 0, 1)),
    "as many rows as are few": Attention(2, 2, 8, 16, keys=9, mask=(8, 9)),
    "one more": Attention(2, 2, 9, 16, keys=9, mask=(9, 9)),
    "values that are no whole vectors": Attention(2, 6, 1, 16, key_heads=3, keys=50, value_size=23),
    "keys that are no whole vectors": Attention(2, 6, 2, 23, key_heads=3, keys=51, value_size=16),
    "a mask for each head": Attention(2, 6, 1, 16, key_heads=2, keys=33, mask=(2, 6, 1, 33)),
    "a mask for all heads": Attention(2, 6, 1, 16, key_heads=2, keys=33, mask=(2, 1, 1, 33)),
    "a mask of one element a row": Attention(2, 6, 3, 16, key_heads=2, keys=33, mask=(6, 3, 1)),
    "more keys than a sum has parts": Attention(1, 4, 1, 16, key_heads=2, keys=3000),
}


@pytest.mark.parametrize("shape", FEW_ROWS)
def test_few_rows_meet_keys_where_these_lie(shape: str) -> None:
    check(FEW_ROWS[shape])


@pytest.mark.parametrize("size", range(1, 50))
def test_few_rows_of_any_size(size: int) -> None:
    heads = 2 * (1 + size % 4)
    check(Attention(1, heads, 1 + size % 8, size, key_heads=2, keys=1 + size * 7 % 53, value_size=50 - size), (1,))


def test_a_cache_of_other_keys_behind_those_that_count() -> None:
    """What is not read may be anything: here what follows the last key and value in memory, of another head."""
    node = Attention(1, 2, 1, 16, keys=20, first=(1, 1, 1, 1))
    inputs = node.inputs()
    clean = node.expected(inputs)
    for array in inputs[1:]:
        array[0, 1] = np.nan
    (result,) = run(new_session(node.model(), session_options()), inputs)
    np.testing.assert_allclose(result[:, 0], clean[:, 0], rtol=1e-5, atol=1e-5)
    assert np.isnan(result[:, 1]).all()


def test_without_keys_the_result_is_zero_as_that_of_an_empty_product() -> None:
    node = Attention(1, 2, 3, 4, keys=0)
    (result,) = run(new_session(node.model(), session_options()), node.laid_out(node.inputs()))
    np.testing.assert_array_equal(result, np.zeros((1, 3, 8), np.float32), strict=True)


def test_without_elements_of_q_all_keys_count_alike() -> None:
    node = Attention(1, 2, 3, 0, keys=4, value_size=5)
    check(node)


@pytest.mark.parametrize("size", range(1, 50))
def test_rows_that_end_anywhere_in_a_vector(size: int) -> None:
    check(Attention(1, 2, 1 + size % 19, size, keys=1 + size * 7 % 53, value_size=50 - size), (1,))


@pytest.mark.parametrize("keys", (5, 37, 130))
@pytest.mark.parametrize("kind", range(7))
def test_masks(kind: int, keys: int) -> None:
    shapes = [(2, 1, 1, keys), (3, 9, keys), (9, keys), (keys,), (2, 3, 9, keys), (2, 3, 9, 1), ()]
    check(Attention(2, 3, 9, 8, keys=keys, mask=shapes[kind]))


CHOICES: list[Sizes] = [(2, 1, 1, 37), (3, 9, 37), (9, 37), (37,), (2, 3, 9, 37), (2, 3, 9, 1), (1,), ()]


@pytest.mark.parametrize("fills", (False, True))
@pytest.mark.parametrize("mask", (None, (2, 1, 9, 37)))
@pytest.mark.parametrize("shape", CHOICES)
def test_choices(shape: Sizes, mask: Sizes | None, fills: bool) -> None:
    """What is chosen takes the score's place, and the mask is added to it."""
    check(Attention(2, 3, 9, 8, keys=37, mask=mask, choices=shape, fill=0.7, fills=fills))


@pytest.mark.parametrize("keys", range(1, 40))
def test_choices_for_any_number_of_keys(keys: int) -> None:
    for length in (1, 3, 17):
        check(Attention(1, 4, length, 8, key_heads=2, keys=keys, choices=(4, length, keys), fill=0.5), (1,))


@pytest.mark.parametrize("fill", (-10000.0, float(np.finfo(np.float32).min)))
def test_a_row_of_which_nothing_is_left_counts_all_keys_alike(fill: float) -> None:
    """As a Where before a Softmax has it, and not as a mask that is added."""
    node = Attention(1, 2, 12, 8, choices=(12, 12), fill=fill)
    *parts, _ = node.inputs()
    choices = np.tri(12, dtype=bool)
    choices[5] = False
    (result,) = run(new_session(node.model(), session_options()), [*node.laid_out(parts), choices])
    np.testing.assert_allclose(result, node.expected([*parts, choices]), rtol=1e-5, atol=1e-5)
    apart = result.reshape(12, 2, 8)
    np.testing.assert_allclose(apart[5], parts[2][0].mean(axis=1), rtol=1e-5, atol=1e-5)


def test_a_fill_of_minus_infinity_leaves_no_number() -> None:
    node = Attention(1, 1, 12, 8, choices=(12, 1), fill=-np.inf, first=(1, 1, 1, 1))
    *parts, _ = node.inputs()
    choices = np.ones((12, 1), bool)
    choices[4] = False
    (result,) = run(new_session(node.model(), session_options()), [*parts, choices])
    assert np.isnan(result[0, 0, 4]).all()
    assert np.isfinite(np.delete(result, 4, axis=2)).all()


def test_choices_may_have_more_rows_and_keys() -> None:
    one = Attention(2, 3, 1, 8, keys=1, first=(1, 1, 1, 1))
    node = Attention(2, 3, 1, 8, keys=1, choices=(3, 7), fill=2.0, first=(1, 1, 1, 1))
    inputs = [*one.inputs()[:2], *Attention(2, 3, 7, 8).inputs()[2:], np.arange(21).reshape(3, 7) % 2 == 0]
    (result,) = run(new_session(node.model(), session_options()), node.laid_out(inputs))
    np.testing.assert_allclose(result, node.expected(inputs), rtol=1e-5, atol=1e-5)
    assert result.shape == (2, 3, 3, 8)


@pytest.mark.parametrize("hidden", (-np.inf, np.finfo(np.float32).min, -1e4, -110, -96, -60))
def test_what_a_mask_hides_weighs_nothing(hidden: float) -> None:
    # -110 and -96 are where an exponential function underflows and is denormal.
    node = Attention(1, 2, 21, 8, mask=(21, 21), scale=1e-3, first=(1, 1, 1, 1))
    *parts, _ = node.inputs()
    mask = np.where(np.tri(21, dtype=bool), np.float32(0), np.float32(hidden)).astype(np.float32)
    (result,) = run(new_session(node.model(), session_options()), [*parts, mask])
    np.testing.assert_allclose(result, node.expected([*parts, mask]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result[:, :, 0], parts[2][:, :, 0], rtol=1e-6)


def test_a_batch_of_one_serves_all() -> None:
    node = Attention(3, 2, 5, 4)
    inputs = node.inputs()
    wanted = node.expected([inputs[0], inputs[1][:1], inputs[2]])
    arrays = node.laid_out([inputs[0], inputs[1][:1], inputs[2]])
    (result,) = run(new_session(node.model(), session_options()), arrays)
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


def test_a_mask_may_have_more_rows_and_keys() -> None:
    node = Attention(2, 3, 1, 8, keys=1, first=(1, 1, 1, 1))
    inputs = [
        *node.inputs()[:2],
        *Attention(2, 3, 7, 8).inputs()[2:],
        np.arange(21, dtype=np.float32).reshape(3, 7) / 9,
    ]
    masked = Attention(2, 3, 1, 8, keys=1, mask=(3, 7), first=(1, 1, 1, 1))
    (result,) = run(new_session(masked.model(), session_options()), masked.laid_out(inputs))
    np.testing.assert_allclose(result, masked.expected(inputs), rtol=1e-5, atol=1e-5)
    assert result.shape == (2, 3, 3, 8)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("dims", (3, 4, 5))
@pytest.mark.parametrize("static", (False, True))
def test_parts_of_one_tensor(order: tuple[int, int, int], dims: int, static: bool) -> None:
    """What one projection makes of Q, K and V, all three inputs of the node."""
    node = Attention(2, 4, 37, 24, mask=(2, 1, 1, 37))
    *parts, mask = node.inputs()
    packed = np.stack([parts[order.index(place)].swapaxes(1, 2) for place in range(3)], axis=2)
    shape = {3: (2, 37, 288), 4: (2, 37, 12, 24), 5: (2, 37, 3, 4, 24)}[dims]
    packed = packed.reshape(shape)
    model = node.model(input_heads=[12, 12, 12], first_head=[4 * place for place in order])
    model.graph.node[0].input[:] = ["x0", "x0", "x0", "x3"]
    del model.graph.input[1:3]
    for value, array in zip(model.graph.input, (packed, mask), strict=True):
        sizes = array.shape if static else [f"{value.name}_{axis}" for axis in range(array.ndim)]
        value.CopyFrom(helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, sizes))
    session = new_session(model, session_options())
    assert not static or session.get_outputs()[0].shape == [2, 37, 96]
    (result,) = session.run(None, {"x0": packed, "x3": mask})
    np.testing.assert_allclose(result, node.expected([*parts, mask]), rtol=1e-5, atol=1e-5)


def test_some_heads_of_several_tensors() -> None:
    """Fewer heads of K and V, before and behind others; those of V come first."""
    node = Attention(2, 6, 12, 8, key_heads=2, keys=5, first=(0, 0, 1, 1), merged=False)
    inputs = node.inputs()
    rng = np.random.default_rng(1)
    before, after = (1, 0, 3), (0, 4, 2)
    wide = []
    for array, first, last in zip(inputs, before, after, strict=True):
        others = [rng.standard_normal((2, more, *array.shape[2:])).astype(np.float32) for more in (first, last)]
        wide.append(np.concatenate([others[0], array, others[1]], axis=1))
    model = node.model(input_heads=[7, 6, 7], first_head=list(before))
    (result,) = run(new_session(model, session_options()), node.laid_out(wide))
    np.testing.assert_allclose(result, node.expected(inputs), rtol=1e-5, atol=1e-5)


def test_against_onnx_runtimes_nodes() -> None:
    node = Attention(2, 4, 37, 24, mask=(2, 1, 1, 37), first=(1, 1, 1, 1))
    inputs = node.inputs()
    inputs[3][0, 0, 0, 20:] = -np.inf
    nodes = [
        helper.make_node("Transpose", ["x1"], ["k"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["x0", "k"], ["a"]),
        helper.make_node("Constant", [], ["c"], value_float=node.scale),
        helper.make_node("Mul", ["a", "c"], ["b"]),
        helper.make_node("Add", ["b", "x3"], ["d"]),
        helper.make_node("Softmax", ["d"], ["e"], axis=-1),
        helper.make_node("MatMul", ["e", "x2"], ["y0"]),
    ]
    (wanted,) = run_nodes(nodes, inputs, ["f32"])
    (result,) = run(new_session(node.model(), session_options()), inputs)
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5, strict=True)


@pytest.mark.parametrize("value", (np.nan, np.inf))
def test_what_is_not_finite_stays_where_it_belongs(value: float) -> None:
    node = Attention(2, 3, 20, 16, first=(1, 1, 1, 1))
    inputs = node.inputs()
    clean = node.expected(inputs)
    inputs[0][1, 2, 7, 3] = value
    (result,) = run(new_session(node.model(), session_options()), inputs)
    assert np.isnan(result[1, 2, 7]).all()
    result[1, 2, 7] = clean[1, 2, 7]
    np.testing.assert_allclose(result, clean, rtol=1e-5, atol=1e-5)


def test_a_row_that_the_mask_leaves_nothing_of_is_not_a_number() -> None:
    """As ONNX Runtime has it."""
    node = Attention(1, 1, 3, 4, mask=(3, 3))
    inputs = node.inputs()
    inputs[3][1] = -np.inf
    (result,) = run(new_session(node.model(), session_options()), node.laid_out(inputs))
    np.testing.assert_array_equal(np.isnan(result[0]).all(axis=1), [False, True, False])


@pytest.mark.parametrize("length", (3, 12))
def test_a_row_that_is_no_number_is_zero_where_that_is_asked_for(length: int) -> None:
    """Of its weights: a value that is not finite still makes no number of it."""
    node = Attention(2, 4, length, 16, key_heads=2, mask=(2, 1, length, length), first=(1, 1, 1, 1))
    inputs = node.inputs()
    inputs[3][0, 0, 1] = -np.inf
    inputs[0][1, 2, 0, 5] = np.nan
    inputs[2][1, 0, 2, 3] = np.inf
    inputs[3][1, 0, 2] = -np.inf
    (result,) = run(new_session(node.model(nan_as_zero=1), session_options()), node.laid_out(inputs))
    weights = node.expected(
        [*inputs[:2], np.broadcast_to(np.eye(length, dtype=np.float32), (2, 2, length, length)), inputs[3]]
    )
    wanted = np.nan_to_num(weights) @ np.repeat(inputs[2].astype(np.float64), 2, axis=1)
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)
    assert not result[0, :, 1].any() and not result[1, 2, 0].any() and np.isnan(result[1, 0, 2, 3])


@pytest.mark.parametrize("least", (-np.inf, np.finfo(np.float32).min))
@pytest.mark.parametrize("one", (False, True), ids=("a mask of columns", "a mask of rows"))
def test_a_row_that_is_masked_is_zero_where_that_is_asked_for(least: float, one: bool) -> None:
    """Whatever its scores are, as ONNX Runtime's Attention has it; a row that is no number for others stays so."""
    node = Attention(2, 4, 6, 16, key_heads=2, mask=(2, 1, 6, 1 if one else 6), first=(1, 1, 1, 1))
    inputs = node.inputs()
    inputs[3][0, 0, 1] = least
    inputs[0][0, 2, 1, 5] = np.nan
    inputs[0][1, 2, 0, 5] = np.nan
    (result,) = run(new_session(node.model(masked_as_zero=1), session_options()), node.laid_out(inputs))
    assert not result[0, :, 1].any() and np.isnan(result[1, 2, 0]).all()
    inputs[3][0, 0, 1] = 0
    inputs[0][np.isnan(inputs[0])] = 0
    rows = np.ones((2, 4, 6), bool)
    rows[0, :, 1] = rows[1, 2, 0] = rows[0, 2, 1] = False
    np.testing.assert_allclose(result[rows], node.expected(inputs)[rows], rtol=1e-5, atol=1e-5)


def test_large_scores_do_not_overflow() -> None:
    node = Attention(1, 2, 8, 8, scale=1e30, first=(1, 1, 1, 1))
    inputs = node.inputs()
    (result,) = run(new_session(node.model(), session_options()), inputs)
    largest = (inputs[0] @ inputs[1].swapaxes(2, 3)).argmax(axis=3)
    np.testing.assert_array_equal(result, np.take_along_axis(inputs[2], largest[..., None], axis=2))


def test_one_session_takes_any_shapes_and_threads() -> None:
    nodes = [Attention(batch, 4, length, 16) for batch in (1, 3) for length in (1, 17, 90)]
    session = new_session(nodes[0].model(), session_options())
    inputs = [node.inputs() for node in nodes]
    cases = [node.laid_out(arrays) for node, arrays in zip(nodes, inputs, strict=True)]
    wanted = [node.expected(arrays) for node, arrays in zip(nodes, inputs, strict=True)]
    check_in_threads(session, cases, wanted, 1e-5)


def test_a_thread_without_memory_is_an_error_and_not_the_end_of_the_process() -> None:
    """The memory is for K and V of one head, which each thread has a copy of."""
    code = """import mmap, resource
import numpy as np
from tests.custom_ops.fused import new_session, run, session_options
from tests.custom_ops.nodes.test_attention import Attention
few, many = (Attention(1, 4, length, 16, keys=keys, key_heads=1) for length, keys in ((40, 400), (9, 400_000)))
session, arrays = new_session(many.model(), session_options()), many.laid_out(many.inputs())
run(session, few.laid_out(few.inputs()))
used = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), used + (8 << 20)))
try:
    mmap.mmap(-1, 64 << 20)
    raise SystemExit("no limit")
except OSError:
    pass
try:
    run(session, arrays)
except Exception as error:
    print(error)
"""
    done = run_code(code)
    if "no limit" in done.stderr:
        pytest.skip("limits of memory do not hold here, as under QEMU")
    assert done.returncode == 0, done.stderr
    assert "out of memory" in done.stdout


def test_the_shape_of_the_output_is_known_before_it_runs() -> None:
    joined, apart = Attention(2, 4, 6, 8, value_size=5), Attention(2, 4, 6, 8, value_size=5, first=(0, 0, 0, 1))
    assert new_session(joined.model(static=True), session_options()).get_outputs()[0].shape == [2, 6, 20]
    assert new_session(apart.model(static=True), session_options()).get_outputs()[0].shape == [2, 4, 6, 5]
    assert new_session(apart.model(), session_options()).get_outputs()[0].shape[1:3] == [4, "d0_1"]
