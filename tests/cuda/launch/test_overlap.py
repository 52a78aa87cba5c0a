"""Outputs that a user binds to the memory of an input or of another output, on the CUDA provider."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxfuse.cuda.conv.tiling import Tiling
from tests.cuda.contract import Kernel, node_model
from tests.cuda.conv.convolutions import MULTIPROCESSORS, Fused, convolution, tail
from tests.cuda.conv.nodes import arrays_of, rendered_model, rendered_object
from tests.cuda.stand_in import AVAILABLE, REASON, StandIn
from tests.custom_ops.fused import run, sample

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)

Arrays = Sequence[np.ndarray]
SUMS = ("01", "1", "0")
ELEMENTWISE = [Kernel("v4", "li:lwl", SUMS), Kernel("any", "gg:www", SUMS, index=64)]
CONV = convolution("f32", (12, 8), (3, 3), pads=(1, 1, 1, 1))


@cache
def conv_model(kind: str) -> tuple[onnx.ModelProto, Fused]:
    tiling = Tiling("gemm", (32, 32, 8), (4, 4), 4, split=4)
    fused = Fused(CONV, (1, 12, 6, 8), *tail("f32", kind, (1, 8, 6, 8)), tilings=(tiling,))
    source = fused.render()
    return rendered_model(fused, source, rendered_object([(fused, source)])), fused


def case(kind: str) -> tuple[onnx.ModelProto, Arrays]:
    if kind == "elementwise":
        shapes = [[9, 16], [16]]
        arrays = [sample("f32", int(np.prod(shape)), i, special=False) for i, shape in enumerate(shapes)]
        return node_model(ELEMENTWISE, shapes), [a.reshape(shape) for a, shape in zip(arrays, shapes, strict=True)]
    model, fused = conv_model(kind)
    return model, arrays_of(fused)


def bound(
    session: ort.InferenceSession, arrays: Arrays, inputs: dict[int, int], outputs: Sequence[int], results: Arrays
) -> tuple[np.ndarray, np.ndarray]:
    """Memory after a run, and what it should be.

    It has the inputs and outputs at these places of it; other inputs lie elsewhere.
    """
    memory = np.zeros(max(array.nbytes for array in (*arrays, *results)) + max(outputs) + 512, np.uint8)
    memory = memory[-memory.ctypes.data % 256 :]
    binding = session.io_binding()
    for i, (name, value) in enumerate(zip(session.get_inputs(), arrays, strict=True)):
        at = value.ctypes.data
        if i in inputs:
            memory[inputs[i] : inputs[i] + value.nbytes] = value.reshape(-1).view(np.uint8)
            at = memory.ctypes.data + inputs[i]
        binding.bind_input(name.name, "cpu", 0, value.dtype.type, value.shape, at)
    expected = memory.copy()
    for place, name, result in zip(outputs, session.get_outputs(), results, strict=True):
        at = memory.ctypes.data + place
        binding.bind_output(name.name, "cpu", 0, result.dtype.type, result.shape, at)
        expected[place : place + result.nbytes] = result.reshape(-1).view(np.uint8)
    session.run_with_iobinding(binding)
    return memory, expected


@pytest.mark.parametrize("shift", (0, 64, -64))
@pytest.mark.parametrize("kind", ("elementwise", "bias, hard swish, residual", "masks"))
def test_overlapping_memory(kind: str, shift: int, tmp_path: Path) -> None:
    """Each input in the memory of the first output, and the other outputs ``shift`` bytes behind one another."""
    stand_in = StandIn(tmp_path, [(9, 0, MULTIPROCESSORS)])
    model, arrays = case(kind)
    session = stand_in.session(model)
    stand_in.use_stream(0)
    results = run(session, arrays)
    stand_in.capture(True)  # nothing waits, or allocates but scratch memory
    places = [256 + shift * o for o in range(len(results))]
    for i in range(len(arrays)):
        for behind in (0, 16, -16):
            memory, expected = bound(session, arrays, {i: 256 + behind}, places, results)
            np.testing.assert_array_equal(memory, expected, err_msg=f"input {i} at {behind}")
    assert stand_in.launches()
    stand_in.scratch()


def test_an_input_of_the_same_elements_is_not_copied(tmp_path: Path) -> None:
    """Where each thread reads what it writes, as in a state that is updated in place."""
    stand_in = StandIn(tmp_path)
    model, arrays = case("elementwise")
    session = stand_in.session(model)
    results = run(session, arrays)
    places = [1024 * o for o in range(len(results))]
    stand_in.calls()
    for output in (0, 2):
        memory, expected = bound(session, arrays, {0: places[output]}, places, results)
        np.testing.assert_array_equal(memory, expected)
        assert len(stand_in.launches()) == 1
        assert not stand_in.scratch()
    memory, expected = bound(session, arrays, {1: places[1]}, places, results)
    np.testing.assert_array_equal(memory, expected)
    assert [call["bytes"] for call in stand_in.calls("cuMemcpyDtoDAsync")] == [arrays[1].nbytes]


def test_a_part_of_a_tensor_in_the_memory_of_an_output(tmp_path: Path) -> None:
    """Its elements lie elsewhere than those of the output, but for a part that begins where the tensor does."""
    kernels = [Kernel("v4", "ll:l", vector=4), Kernel("any", "gg:w", index=64)]
    arrays = [sample("f32", 64, 1, special=False).reshape(4, 16), sample("f32", 32, 2, special=False).reshape(2, 16)]
    for start, copies in ((1, 1), (0, 0)):
        model = node_model(kernels, [[4, 16], [2, 16]])
        program = f"onnxfuse 1\ninput f32 slice 0:{start}:{start + 2}:1\ninput f32 broadcast\nadd f32 0 1\noutput 2\n"
        model.graph.node[0].attribute[0].s = program.encode()
        stand_in = StandIn(tmp_path / str(start))
        session = stand_in.session(model)
        results = run(session, arrays)
        np.testing.assert_array_equal(results[0], arrays[0][start : start + 2] + arrays[1])
        stand_in.calls()
        memory, expected = bound(session, arrays, {0: 0}, [0], results)
        np.testing.assert_array_equal(memory, expected)
        calls = [call.get("kernel", call["call"]) for call in stand_in.calls()]
        assert (calls.count("v4"), calls.count("cuMemcpyDtoDAsync")) == (1, copies)
        memory, expected = bound(session, arrays, {0: 1024}, [1024 + 64], results)
        np.testing.assert_array_equal(memory, expected)


def test_no_memory_for_a_copy(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    model, arrays = case("elementwise")
    session = stand_in.session(model)
    results = run(session, arrays)
    stand_in.out_of_memory(True)
    with pytest.raises(Exception, match="the shim has no memory"):
        bound(session, arrays, {1: 0}, [0, 1024, 2048], results)
    stand_in.out_of_memory(False)
    memory, expected = bound(session, arrays, {1: 0}, [0, 1024, 2048], results)
    np.testing.assert_array_equal(memory, expected)
