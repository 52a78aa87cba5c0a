"""Every kernel of attention in the emulation of CUDA against float64, for heads, lengths, masks, groups and types."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from onnxfuse.cuda.attention.arguments import accepts, splits
from onnxfuse.cuda.attention.fitting import candidates
from onnxfuse.cuda.attention.layout import lay_out
from tests.cuda.attention.nodes import MULTIPROCESSORS, Node, Operands, run_kernel, source_of
from tests.cuda.emulation.emulator import Emulation

TOLERANCES = {"f32": 2e-6, "f16": 2e-3, "bf16": 1.6e-2}
LOWEST = {"f32": np.finfo(np.float32).min, "f16": -65504.0, "bf16": -3.3895314e38}


@cache
def emulation(*cases: object, place: int = 0, architecture: int = 80) -> Emulation:
    """The kernels of cases, compiled once."""
    return Emulation([source_of(case, place) for case in cases], architecture)  # type: ignore[arg-type]


def check(node: Node, operands: Operands | None = None, place: int = 0, architecture: int = 80) -> set[str]:
    """Runs every kernel that accepts the node, aligned and not; returns their families."""
    operands = operands or node.operands()
    inputs, expected = operands.inputs(), operands.expected()
    layout = lay_out(node.attributes, [array.shape for array in inputs])
    kernels = [kernel for kernel in source_of(node.case, place).kernels if accepts(kernel, layout, [0])]
    compiled = emulation(node.case, place=place, architecture=architecture)
    for number, kernel in enumerate(kernels):
        shifts: Sequence[int] = [1] * (len(inputs) + 1) if kernel.vector == 1 and number % 2 else ()
        result = operands.in_order(run_kernel(compiled, kernel, node.attributes, inputs, shifts)).astype(np.float64)
        with np.errstate(over="ignore"):
            wanted = expected.astype(operands.q.dtype).astype(np.float64)
        tolerance = TOLERANCES[node.dtype]
        np.testing.assert_allclose(result, wanted, tolerance, tolerance, err_msg=str(kernel))
    return {kernel.family for kernel in kernels}


SIZES = [(24, 40), (64, 64), (40, 200), (256, 128)]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(("size", "value_size"), SIZES)
def test_sizes_of_heads(dtype: str, size: int, value_size: int) -> None:
    node = Node(
        dtype, batch=1, heads=2, key_heads=2, queries=19, keys=70, size=size, value_size=value_size, scale=size**-0.5
    )
    assert check(node) == {"simt" if dtype == "f32" else "tensor", "any"}


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_sizes_that_are_no_multiples(dtype: str) -> None:
    check(Node(dtype, size=7, value_size=33, mask=(2, 4, 5, 7), form="first"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 65), (17, 1), (64, 64), (65, 63), (130, 129)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_lengths(dtype: str, queries: int, keys: int) -> None:
    check(Node(dtype, heads=2, key_heads=1, queries=queries, keys=keys, mask=(1, 1, 1, keys), hidden=-1e4))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", ["packed", "merged", "split", "first"])
@pytest.mark.parametrize("out_first", [False, True])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_where_heads_lie(form: str, out_first: bool, key_heads: int) -> None:
    for dtype in ("f32", "f16"):
        node = Node(dtype, queries=9, keys=9, key_heads=key_heads, form=form, out_first=out_first, mask=(9, 9))
        check(node)


MASKS = [(), (7,), (1, 7), (5, 1), (5, 7), (4, 5, 7), (4, 1, 1), (2, 1, 1, 7), (1, 4, 5, 7), (2, 4, 5, 7), (2, 4, 1, 1)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_masks(dtype: str, mask: tuple[int, ...]) -> None:
    check(Node(dtype, mask=mask, hidden=-3.0))
    check(Node(dtype, choices=mask, fill=-9.0, fills=True))
    check(Node(dtype, mask=(5, 7), choices=mask, fill=2.5, hidden=-1e4))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("hidden", [-np.inf, "lowest"])
@pytest.mark.parametrize(("zeros", "nan_as_zero"), [(False, False), (True, False), (False, True), (True, True)])
def test_rows_of_which_nothing_is_left(dtype: str, hidden: float | str, zeros: bool, nan_as_zero: bool) -> None:
    """They are NaN, a mean of all values, or zero."""
    value = LOWEST[dtype] if hidden == "lowest" else -np.inf
    node = Node(dtype, mask=(2, 1, 5, 7), hide=0.7, hidden=value, zeros=zeros, nan_as_zero=nan_as_zero)
    operands = node.operands()
    assert operands.mask is not None
    operands.mask[0, 0, 1:3] = value
    assert np.isnan(operands.expected()).any() == (value == -np.inf and not zeros and not nan_as_zero)
    check(node, operands)
    chosen = replace(node, mask=None, choices=(2, 1, 5, 7), fill=value)
    operands = chosen.operands()
    assert operands.choices is not None
    operands.choices[0, 0, 1:3] = chosen.fills
    check(chosen, operands)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("nan_as_zero", [False, True])
@pytest.mark.parametrize("where", ["q", "k", "v", "mask"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_no_numbers_and_infinities(dtype: str, nan_as_zero: bool, where: str, value: float) -> None:
    node = Node(dtype, queries=9, keys=70, mask=(2, 1, 9, 70), nan_as_zero=nan_as_zero, hide=0.0)
    operands = node.operands()
    getattr(operands, where)[0, 0, 3, 5] = value
    check(node, operands)


def test_windows_of_images() -> None:
    for dtype in ("f32", "f16"):
        check(Node(dtype, batch=6, windows=3, queries=4, keys=4, mask=(3, 1, 4, 4)))
        check(Node(dtype, batch=6, windows=2, queries=4, keys=4, mask=(2, 4, 4, 4), choices=(6, 1, 1, 4), fill=1.0))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_keys_are_shared_by_blocks(dtype: str) -> None:
    """Splits give what one block gives, with rows of which some splits have nothing left."""
    node = Node(dtype, batch=1, heads=6, key_heads=2, queries=2, keys=777, mask=(1, 1, 2, 777), zeros=True)
    operands = node.operands()
    assert operands.mask is not None
    operands.mask[..., :400] = -np.inf
    operands.mask[0, 0, 1] = -np.inf
    check(node, operands)
    layout = lay_out(node.attributes, [array.shape for array in operands.inputs()])
    found = {splits(kernel, layout, MULTIPROCESSORS)[0] for kernel in source_of(node.case).kernels}
    assert max(found) > 2 and 1 in found


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_the_oldest_architecture(dtype: str) -> None:
    """Without asynchronous copies, and of bf16 without tensor cores."""
    check(Node(dtype, queries=18, keys=40, size=48, value_size=48, mask=(2, 1, 18, 40)), architecture=75)


@pytest.mark.parametrize(("dtype", "size"), [("f32", 64), ("f16", 128)])
def test_tiles_for_where_registers_run_out(dtype: str, size: int) -> None:
    node = Node(dtype, batch=1, heads=2, key_heads=2, queries=35, keys=70, size=size, value_size=size, mask=(35, 70))
    count = len(list(candidates(node.case)))
    for place in (1, count - 1):
        check(node, place=place)


def test_heads_of_unknown_size() -> None:
    node = Node(queries=3, keys=20, size=72, value_size=24)
    unknown = replace(node.case, size=None, value_size=None)
    source = source_of(unknown)
    operands = node.operands()
    inputs = operands.inputs()
    layout = lay_out(node.attributes, [array.shape for array in inputs])
    kernels = [kernel for kernel in source.kernels if accepts(kernel, layout, [0])]
    assert {kernel.size for kernel in kernels} == {128, 256, 0}
    for kernel in kernels:
        result = run_kernel(emulation(unknown), kernel, node.attributes, inputs)
        np.testing.assert_allclose(operands.in_order(result), operands.expected(), 2e-6, 2e-6)


def test_float32_is_as_exact_as_onnx_runtime() -> None:
    """No further from float64 than twice what the nodes are in float32."""
    node = Node(queries=64, keys=400, size=64, value_size=64, scale=1.0, mask=(1, 1, 64, 400), hidden=-1e4)
    operands = node.operands()
    exact, plain = operands.expected(), operands.expected(np.float32)
    kernel = source_of(node.case).kernels[0]
    result = operands.in_order(run_kernel(emulation(node.case), kernel, node.attributes, operands.inputs()))
    assert np.abs(result - exact).max() <= 2 * np.abs(plain - exact).max()
