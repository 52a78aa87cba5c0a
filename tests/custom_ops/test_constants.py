"""Inputs that are constants: what the library keeps of them from run to run gives the bits that it reads otherwise."""

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.custom_ops.fused import (
    NUMPY_TYPES,
    ONNX_TYPES,
    assert_same_bits,
    check_in_threads,
    fused_model,
    new_session,
    run,
    run_fused,
    sample,
    session_options,
)

SUM = "onnxfuse 1\ninput {0} broadcast\ninput {0} {1}\nadd {0} 0 1\nmul {0} 2 1\noutput 3\n"
SHAPES = [(2, 5, 3), (1, 5, 3), (7, 5, 3), (40, 5, 20), (40, 5, 21), (0, 5, 3), (2, 5, 700), (1, 5, 1)]
"""Of few elements and of many, with short rows and with long ones."""


def session_of(program: str, arrays: Sequence[np.ndarray | None]) -> ort.InferenceSession:
    """A session in which input number i is the constant ``arrays[i]``, or any tensor of three dimensions if that is
    None."""
    shapes: list[Sequence[int | str]] = [["a", "b", "c"] if array is None else array.shape for array in arrays]
    model = fused_model(program, shapes)
    for i, array in enumerate(arrays):
        if array is not None:
            types = {dtype: name for name, dtype in NUMPY_TYPES.items()}
            kind = ONNX_TYPES[types[array.dtype]]
            model.graph.initializer.append(
                onnx.helper.make_tensor(f"x{i}", kind, array.shape, array.tobytes(), raw=True)
            )
    for value in [*model.graph.input]:
        if arrays[int(value.name[1:])] is not None:
            model.graph.input.remove(value)
    return new_session(model, session_options())


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
@pytest.mark.parametrize(
    ("shape", "reads"),
    [((5, 1), "broadcast"), ((5,), "axis 1"), ((1, 1), "broadcast"), ((3, 1, 1), "slice 0:1:2:1"), ((2, 1), "axis -2")],
)
def test_every_type_and_place(shape: tuple[int, ...], reads: str, dtype: str) -> None:
    """One session for all shapes, each run again after others have taken its plan's place."""
    if reads == "axis -2":
        shape, reads = (5,), reads
    op = "and" if dtype == "bool" else "add"
    program = SUM.format(dtype, reads).replace("add", op).replace("mul", "or" if dtype == "bool" else "mul")
    constant = sample(dtype, int(np.prod(shape))).reshape(shape)
    session = session_of(program, [None, constant])
    for _ in range(2):
        for size in SHAPES:
            x = sample(dtype, int(np.prod(size)), 1).reshape(size) if np.prod(size) else np.zeros(size, constant.dtype)
            assert_same_bits(run(session, [x])[0], run_fused(program, [x, constant])[0])


def test_halves_and_results_that_are_constants() -> None:
    """A constant whose halves are swapped, and one that is a result as it is."""
    text = "onnxfuse 1\ninput f32 broadcast\ninput f32 halves\nadd f32 0 1\noutput 2\noutput 1\n"
    x, constant = (
        np.random.default_rng(i).normal(size=s).astype(np.float32) for i, s in enumerate([(3, 4, 6), (4, 6)])
    )
    session = session_of(text, [None, constant])
    swapped = np.concatenate([constant[:, 3:], constant[:, :3]], axis=1)
    for _ in range(2):
        total, same = run(session, [x])
        assert_same_bits(total, x + swapped)
        assert_same_bits(same, swapped)


def test_all_inputs_are_constants() -> None:
    program = SUM.format("f32", "broadcast")
    x, y = np.float32([[[1, 2, 3]]]), np.float32([[4], [5]])
    assert_same_bits(run(session_of(program, [x, y]), [])[0], (x + y) * y)


def test_an_initializer_that_a_run_may_replace_is_no_constant() -> None:
    program = SUM.format("f32", "broadcast")
    model = fused_model(program, [["n", 4, 3], [4, 1]])
    default = np.float32([[1], [2], [3], [4]])
    model.graph.initializer.append(onnx.numpy_helper.from_array(default, "x1"))
    session = new_session(model, session_options())
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    for factor in (default, default + 1, default * 0.5):
        assert_same_bits(session.run(None, {"x0": x, "x1": factor})[0], (x + factor) * factor)
    assert_same_bits(session.run(None, {"x0": x})[0], (x + default) * default)


def test_many_threads_and_shapes() -> None:
    constant = np.random.default_rng(1).normal(size=(5, 1)).astype(np.float32)
    session = session_of(SUM.format("f32", "broadcast"), [None, constant])
    cases = [[np.random.default_rng(n).normal(size=(n, 5, n + 1)).astype(np.float32)] for n in range(1, 9)]
    check_in_threads(session, cases, [(case[0] + constant) * constant for case in cases], 0)
