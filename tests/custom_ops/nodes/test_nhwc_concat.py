"""Concats along the last dimension, against NumPy."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.custom_ops.fused import NODE_NAME, check_in_threads, make_model, new_session, run, session_options

NODE = f"onnxfuse::FusedNhwcConcat node '{NODE_NAME}': "


def node(inputs: int, shape: Sequence[int | str] | None = None) -> onnx.ModelProto:
    """A node that joins so many inputs, of any shape or all of this one."""
    names = [f"x{i}" for i in range(inputs)]
    made = helper.make_node("FusedNhwcConcat", names, ["y0"], domain="onnxfuse", name=NODE_NAME)
    return make_model([made], dict.fromkeys(names, ("f32", shape)), {"y0": ("f32", None)})


def arrays(leading: Sequence[int], lengths: Sequence[int]) -> list[np.ndarray]:
    random = np.random.default_rng([*leading, *lengths])
    return [random.standard_normal((*leading, length)).astype(np.float32) for length in lengths]


def check(leading: Sequence[int], lengths: Sequence[int]) -> None:
    values = arrays(leading, lengths)
    for threads in (1, 2):
        (found,) = run(new_session(node(len(lengths)), session_options(threads)), values)
        np.testing.assert_array_equal(found, np.concatenate(values, axis=-1), strict=True)


@pytest.mark.parametrize("length", (*range(1, 40), 63, 64, 65, 127, 128, 130, 1000))
def test_lengths_that_end_anywhere_in_a_vector(length: int) -> None:
    check((2, 5), (length, 3, length + 1))


@pytest.mark.parametrize(
    "leading", ((), (1,), (7,), (1, 40, 41), (3, 100, 90), (2, 2, 2, 2, 2), (0, 4), (200_000,)), ids=str
)
def test_leading_dimensions(leading: tuple[int, ...]) -> None:
    check(leading, (5, 16, 1))


def test_inputs_without_elements() -> None:
    check((2, 3), (0, 4, 0))
    check((2, 3), (0, 0))
    check((2, 0, 3), (4, 5))


def test_many_inputs() -> None:
    check((1, 9, 9), tuple(range(1, 65)))


def test_one_input() -> None:
    check((3, 4), (20,))


def test_bits_that_are_no_numbers() -> None:
    values = [np.array([0x7FA00001, 0xFFC12345, 0x80000000], np.uint32).view(np.float32), np.zeros(2, np.float32)]
    (found,) = run(new_session(node(2), session_options()), values)
    np.testing.assert_array_equal(found.view(np.uint32), np.concatenate(values).view(np.uint32))


def test_one_session_takes_any_shapes_and_threads() -> None:
    cases = [arrays(leading, (24, 8)) for leading in ((1, 3, 5), (2, 16, 16), (1, 100, 90))]
    session = new_session(node(2), session_options())
    check_in_threads(session, cases, [np.concatenate(case, axis=-1) for case in cases], 0.0)


@pytest.mark.parametrize("shapes", (((2, 3), (3, 3)), ((2, 3), (2, 3, 1)), ((2, 3), (3,)), ((2, 2, 3), (2, 1, 3))))
def test_shapes_that_are_refused(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(Exception, match=r"input 1 of shape .* does not fit input 0 of shape") as caught:
        run(new_session(node(2), session_options()), [np.zeros(shape, np.float32) for shape in shapes])
    assert NODE in str(caught.value)


def test_scalars_are_refused() -> None:
    with pytest.raises(Exception, match="input 0 has no dimensions"):
        run(new_session(node(2), session_options()), [np.zeros((), np.float32)] * 2)


def test_types_that_are_refused() -> None:
    model = node(2)
    model.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    with pytest.raises(Exception, match=r"Type 'tensor\(double\)'") as caught:
        run(new_session(model, session_options()), [np.zeros((2, 3), np.float32), np.zeros((2, 3))])
    assert NODE_NAME in str(caught.value)


def test_no_inputs_and_more_outputs_are_refused() -> None:
    with pytest.raises(Exception, match="the node has no inputs"):
        new_session(node(0), session_options())
    model = node(2)
    model.graph.node[0].output.append("y1")
    model.graph.value_info.append(helper.make_tensor_value_info("y1", onnx.TensorProto.FLOAT, None))
    with pytest.raises(Exception, match="the node has 2 outputs, not 1"):
        new_session(model, session_options())


@pytest.mark.parametrize(
    ("shapes", "inferred"),
    [
        (([1, "h", 4], [1, "h", 5]), [1, "h", 9]),
        (([1, "h", 4], [1, 7, 5]), [1, 7, 9]),
        (([1, "h", 4], [1, "h", "c"]), [1, "h", None]),
    ],
)
def test_inferred_shapes(shapes: tuple[list[int | str], ...], inferred: list[int | str | None]) -> None:
    model = node(2)
    for value, shape in zip(model.graph.input, shapes, strict=True):
        value.CopyFrom(helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, shape))
    found = new_session(model, session_options()).get_outputs()[0].shape
    assert [dim if wanted is not None else None for dim, wanted in zip(found, inferred, strict=True)] == inferred
