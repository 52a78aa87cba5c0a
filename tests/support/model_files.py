"""Model files for the tests of reading and writing them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfuse.errors import OnnxfuseError
from onnxfuse.files import model_io

ROWS = 1 << 19


def info(name: str, shape: list | None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(nodes: list, inputs: list, outputs: list, initializer: list | None = None, **fields) -> ModelProto:
    graph = helper.make_graph(nodes, "main", inputs, outputs, initializer)
    return helper.make_model(graph, **{"opset_imports": [helper.make_opsetid("", 17)], "ir_version": 8, **fields})


def small_model() -> ModelProto:
    weights = numpy_helper.from_array(np.arange(3, dtype=np.float32).reshape(1, 3), "w")
    nodes = [
        helper.make_node("Add", ["x", "w"], ["t"], name="add"),
        helper.make_node("Relu", ["t"], ["y"], name="relu"),
    ]
    return model_of(nodes, [info("x", ["N", 3])], [info("y", ["N", 3])], [weights])


def write(path: Path, proto: ModelProto) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


def external(name: str, dims: list[int], location: str, dtype: int = TensorProto.FLOAT, **entries) -> TensorProto:
    tensor = TensorProto(name=name, dims=dims, data_type=dtype, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def external_model(directory: Path) -> Path:
    """Several MB in two files: tensors that share bytes, one in a Constant node, a shape, and some inline."""
    directory.mkdir(exist_ok=True)
    big = np.arange(ROWS * 2, dtype=np.float32)
    (directory / "weights.bin").write_bytes(b"pad" + big.tobytes())
    (directory / "sub").mkdir(exist_ok=True)
    (directory / "sub" / "more.bin").write_bytes(
        np.array([-1, 2]).tobytes() + np.arange(4096, dtype=np.float32).tobytes()
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], value=external("", [2048, 2], "sub/more.bin", offset=16)),
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Add", ["r", "a"], ["t0"]),
        helper.make_node("Add", ["t0", "b"], ["t1"]),
        helper.make_node("MatMul", ["c", "small"], ["t2"]),
        helper.make_node("Add", ["t1", "zero"], ["y"]),
    ]
    initializer = [
        external("a", [ROWS, 2], "weights.bin", offset=3, length=ROWS * 8, checksum="stale"),
        external("b", [ROWS, 2], "weights.bin", offset=3),
        external("shape", [2], "sub/more.bin", TensorProto.INT64, length=16),
        numpy_helper.from_array(np.ones((2, 2), np.float32), "small"),
        numpy_helper.from_array(np.float32(0), "zero"),
    ]
    outputs = [info("y", [ROWS, 2]), info("t2", [2048, 2])]
    return write(directory / "in.onnx", model_of(nodes, [info("x", [ROWS * 2])], outputs, initializer))


def arrays(path: Path) -> dict[str, np.ndarray]:
    proto = onnx.load(path)
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    found.update(
        (node.output[0], numpy_helper.to_array(node.attribute[0].t))
        for node in proto.graph.node
        if node.op_type == "Constant"
    )
    return found


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def refused(path: Path, message: str | None = None) -> str:
    """Load must fail with one line that names the file."""
    with pytest.raises(OnnxfuseError, match=message) as caught:
        model_io.load(path)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    return text
