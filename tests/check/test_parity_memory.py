"""What the parity check takes of memory besides the values that the models take and give."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto

from onnxfuse.check.comparison import compare_values
from onnxfuse.check.made_up_inputs import generate, make_inputs
from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.inputs import InputSpec


def peak_bytes(work: Callable[[], object]) -> int:
    """How much more memory there is in use at a time while ``work`` runs, its result included."""
    tracemalloc.start()
    try:
        kept = work()
        assert kept is not None
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_large_outputs_are_compared_in_a_fraction_of_their_size() -> None:
    expected = np.random.default_rng(0).normal(size=(1 << 12, 1 << 10)).astype(np.float32)
    actual = expected.copy()
    actual[-1, -1] += 1
    actual[7, 7] = np.nan
    assert peak_bytes(lambda: compare_values("y", expected, actual)) < 3 * expected.nbytes
    found = compare_values("y", expected, actual)
    assert found.reason == "NaN in 1 other places of 4194304" and found.max_abs == pytest.approx(1)


@pytest.mark.parametrize("dtype", [TensorProto.UINT8, TensorProto.BOOL, TensorProto.FLOAT16, TensorProto.FLOAT])
def test_large_inputs_are_made_in_little_more_than_their_size(dtype: int) -> None:
    spec = InputSpec("x", dtype, (1, 1 << 12, 1 << 12))
    size = spec.dtype.itemsize << 24
    made = peak_bytes(lambda: make_inputs([spec], {"x": (1, 1 << 12, 1 << 12)}, "normal", 16))
    assert size <= made < size + (24 << 20)


def test_inputs_that_would_fill_the_memory_are_refused_or_made_once() -> None:
    specs = [InputSpec(name, TensorProto.UINT8, (1 << 25, size)) for name, size in (("x", 48), ("y", 49))]
    with pytest.raises(OnnxfuseError, match=r"y: uint8\[33554432, 49\] .* larger than 2 GiB"):
        next(generate(specs, lambda feeds: [], {}))
    spec = InputSpec("x", TensorProto.BOOL, ((1 << 25) + 1,))
    assert [inputs.label for inputs, _ in generate([spec], lambda feeds: [], {})] == ["normal values"]
    huge = np.broadcast_to(np.float32(0), (1 << 26,))
    small = InputSpec("x", TensorProto.FLOAT, (2,))
    assert len(list(generate([small], lambda feeds: [huge], {}))) == 1
    assert len(list(generate([small], lambda feeds: [huge[:2]], {}))) == 3
