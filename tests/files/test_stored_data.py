"""Models of which the data of large initializers stays in the file."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

import onnxfuse
from onnxfuse.errors import OnnxfuseError
from onnxfuse.files import model_io
from onnxfuse.files.wire import divide
from onnxfuse.model.graph_ir import LazyTensor

LARGE = np.arange(1 << 18, dtype=np.float32).reshape(512, 512)
"""A tensor of 1 MiB."""


def _model(*others: TensorProto) -> ModelProto:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 512] x) => (float[n, 512] y) {'
        " a = MatMul(x, w) b = Add(a, small) y = Relu(b) }"
    )
    weights = numpy_helper.from_array(LARGE, "w")
    weights.doc_string = "behind the data"
    model.graph.initializer.extend([weights, numpy_helper.from_array(LARGE[0], "small"), *others])
    return model


def _saved(tmp_path: Path, model: ModelProto) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _weights(model: onnxfuse.Model) -> gs.Constant:
    (tensor,) = (t for node in model.graph.nodes for t in node.inputs if t.name == "w")
    return tensor


def test_large_initializers_stay_in_the_file_and_are_written_as_they_were(tmp_path: Path) -> None:
    proto = _model()
    path = _saved(tmp_path, proto)
    model = model_io.load(path)
    assert model.source.ByteSize() < 10_000
    assert isinstance(_weights(model)._values, LazyTensor)
    assert model.to_proto() == proto
    model_io.save(model, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == path.read_bytes()
    np.testing.assert_array_equal(_weights(model).values, LARGE)
    assert model.to_proto() == proto, "a constant that was read is no constant that was changed"


def test_values_that_a_pass_gives_are_written(tmp_path: Path) -> None:
    model = model_io.load(_saved(tmp_path, _model()))
    _weights(model).values = LARGE + 1
    model_io.save(model, tmp_path / "again.onnx")
    found = {tensor.name: tensor for tensor in onnx.load(tmp_path / "again.onnx").graph.initializer}
    np.testing.assert_array_equal(numpy_helper.to_array(found["w"]), LARGE + 1)
    assert found["w"].doc_string == "behind the data"


def test_a_model_takes_the_place_of_its_own_source(tmp_path: Path) -> None:
    proto = _model()
    path = _saved(tmp_path, proto)
    model = model_io.load(path)
    model_io.save(model, path, overwrite=True)
    assert onnx.load(path) == proto
    np.testing.assert_array_equal(_weights(model).values, LARGE)  # of the file that was


def test_a_file_that_is_written_to_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = _saved(tmp_path, _model())
    model = model_io.load(path)
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(b"other")
    os.utime(path, ns=(1, 1))
    with pytest.raises(OnnxfuseError, match="was changed while it was read"):
        _weights(model).values  # noqa: B018
    with pytest.raises(OnnxfuseError, match="was changed while it was read"):
        model_io.save(model, tmp_path / "again.onnx")
    assert not (tmp_path / "again.onnx").exists()


def test_too_little_or_too_much_data_is_refused(tmp_path: Path) -> None:
    proto = _model()
    proto.graph.initializer[0].dims[:] = [512, 513]
    with pytest.raises(OnnxfuseError, match="tensor 'w': it holds 1048576 bytes where 1050624 are needed"):
        model_io.load(_saved(tmp_path, proto))


def test_what_is_no_plain_raw_data_stays_in_the_message() -> None:
    typed = helper.make_tensor("typed", TensorProto.FLOAT, [1 << 16], np.ones(1 << 16))
    both = numpy_helper.from_array(LARGE, "both")
    both.float_data.append(1.0)
    outside = numpy_helper.from_array(LARGE, "outside")
    outside.data_location = TensorProto.EXTERNAL
    data = _model(typed, both, outside).SerializeToString()
    light, places = divide(data, 1 << 10)
    assert set(places) == {"w", "small"}
    for name, place in places.items():
        values = np.frombuffer(data[place.offset : place.offset + place.length], np.float32)
        np.testing.assert_array_equal(values, LARGE.reshape(-1) if name == "w" else LARGE[0])
    whole = ModelProto.FromString(light)
    for tensor in whole.graph.initializer[:2]:
        assert not tensor.HasField("raw_data")
        tensor.raw_data = (LARGE if tensor.name == "w" else LARGE[0]).tobytes()
    assert whole.SerializeToString() == data


def test_of_initializers_with_one_name_all_stay_in_the_message() -> None:
    data = _model(numpy_helper.from_array(LARGE + 1, "w")).SerializeToString()
    assert divide(data, 1 << 10) == (data, {})


def test_shapes_functions_and_external_data_keep_what_is_stored(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "f" : 1]> g (float[n, 512] x) => (float[n, 512] y) {
        a = MatMul(x, w) b = f.Twice(a) y = Add(b, far) }
        <opset_import: ["" : 17], domain: "f"> Twice (x) => (y) { y = Add(x, x) }"""
    proto = parser.parse_model(text)
    proto.graph.initializer.extend([numpy_helper.from_array(LARGE, "w"), numpy_helper.from_array(LARGE[0], "far")])
    onnx.external_data_helper.set_external_data(proto.graph.initializer[1], "far.data", 0, LARGE[0].nbytes)
    (tmp_path / "far.data").write_bytes(LARGE[0].tobytes())
    proto.graph.initializer[1].ClearField("raw_data")
    path = _saved(tmp_path, proto)
    x = np.linspace(-1, 1, 1024, dtype=np.float32).reshape(2, 512)
    expected = 2 * (x @ LARGE) + LARGE[0]
    for static in (False, True):
        output = tmp_path / "fused.onnx"
        onnxfuse.optimize(path, output=output, shapes={"x": [2, 512]}, static=static, check=False, overwrite=True)
        session = onnxfuse.InferenceSession(output)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-4)
        assert output.with_name("fused.onnx.data").exists()
