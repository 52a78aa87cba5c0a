"""The parity check of values that are no tensors of floats, and of types that NumPy lacks."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from onnxfuse.check.parity import compare
from onnxfuse.run.sessions import Session
from tests.support.parity_models import model_file, save

F32 = onnx.TensorProto.FLOAT


def test_sequences_strings_and_optional_values(tmp_path: Path) -> None:
    sequence = model_file(
        tmp_path / "a.onnx", "(float[2, 2] x) => (seq(float[2]) y)", "y = SplitToSequence<keepdims=0>(x)"
    )
    assert compare(sequence, sequence).sets[0].outputs[0].dtype == "sequence"
    text = model_file(tmp_path / "b.onnx", "(string[2] x) => (string[2] y)", "y = Identity(x)")
    assert compare(text, text).ok


def test_scalars_of_types_that_numpy_lacks_stay_scalars(tmp_path: Path) -> None:
    path = model_file(tmp_path / "a.onnx", "(bfloat16 x) => (bfloat16 y)", "f = Cast<to=1>(x) y = Cast<to=16>(f)")
    session = Session(path)
    (result,) = session.run({"x": np.array(1.5, ml_dtypes.bfloat16)})
    assert isinstance(result, np.ndarray) and result.shape == ()


@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT2", "UINT2", "FLOAT8E8M0"])
def test_numbers_of_few_bits_pass_through(kind: str, tmp_path: Path) -> None:
    if kind not in onnx.TensorProto.DataType.keys():  # noqa: SIM118 - an enum of protobuf's
        pytest.skip(f"this version of onnx has no {kind}")
    number = onnx.TensorProto.DataType.Value(kind)
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=F32),
        helper.make_node("Cast", ["f"], ["y"], to=number),
        helper.make_node("Cast", ["f"], ["z"], to=number),
    ]
    inputs = [helper.make_tensor_value_info("x", number, [3, 5])]
    outputs = [helper.make_tensor_value_info(name, number, [3, 5]) for name in ("y", "z")]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    path = save(model, tmp_path / "m.onnx")
    dtype = helper.tensor_dtype_to_np_dtype(number)
    x = np.arange(1, 16).reshape(3, 5).astype(dtype)
    y, _ = Session(path).run({"x": x})
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.view(np.uint8), x.view(np.uint8))
    result = compare(path, path)
    assert result.ok and len(result.sets) == 3


def test_bfloat16_passes_through(tmp_path: Path) -> None:
    path = model_file(tmp_path / "a.onnx", "(bfloat16[3] x) => (bfloat16[3] y)", "f = Cast<to=1>(x) y = Cast<to=16>(f)")
    found = compare(path, path).sets[0].outputs[0]
    assert found.ok and found.dtype == "bfloat16"
