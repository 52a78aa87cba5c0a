"""Models written part by part."""

import io

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import ModelProto, helper, numpy_helper, parser

from onnxfuse.errors import OnnxfuseError
from onnxfuse.files import wire
from onnxfuse.files.wire import outline, write_model
from tests.support.model_files import small_model


def _rich_model() -> ModelProto:
    """Every kind of field before and behind the graph and its initializers."""
    text = """<ir_version: 10, opset_import: ["" : 20, "f" : 1], producer_name: "p", doc_string: "d">
        g (float[n, 3] x) => (float[n, 3] y) { a = Add(x, w) b = f.Twice(a) y = Mul(b, empty) }
        <opset_import: ["" : 20], domain: "f"> Twice (x) => (y) { y = Add(x, x) }"""
    model = parser.parse_model(text)
    values = {"w": np.arange(3, dtype=np.float32), "empty": np.zeros((0, 3), np.float32), "long": np.arange(200.0)}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    model.graph.doc_string = "of a graph"
    model.graph.value_info.append(helper.make_tensor_value_info("a", 1, ["n", 3]))
    helper.set_model_props(model, {"key": "value", "other": "é"})
    return model


@pytest.mark.parametrize("model", [ModelProto(), ModelProto(ir_version=8), small_model(), _rich_model()])
def test_the_bytes_are_those_of_protobuf(model: ModelProto) -> None:
    file = io.BytesIO()
    write_model(model, file)
    assert file.getvalue() == model.SerializeToString()
    assert onnx.load_model_from_string(file.getvalue()) == model


def test_a_model_beyond_what_protobuf_reads_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    model, file = small_model(), io.BytesIO()
    monkeypatch.setattr(wire, "_LIMIT", model.ByteSize() - 1)
    with pytest.raises(OnnxfuseError, match="too large for one file"):
        write_model(model, file)
    assert not file.getvalue()
    monkeypatch.setattr(wire, "_LIMIT", model.ByteSize())
    write_model(model, file)


def test_an_outline_has_all_but_the_data_of_large_initializers() -> None:
    model = _rich_model()
    model.graph.initializer.append(helper.make_tensor("packed", 1, [100], list(range(100))))  # in float_data
    model.graph.initializer.append(helper.make_tensor("texts", 8, [100], [b"long enough"] * 100))
    light = ModelProto.FromString(outline(model.SerializeToString(), 300))
    assert [tensor.name for tensor in light.graph.initializer] == [tensor.name for tensor in model.graph.initializer]
    for was, tensor in zip(model.graph.initializer, light.graph.initializer, strict=True):
        assert (tensor.dims, tensor.data_type) == (was.dims, was.data_type)
        assert (tensor == was) == (tensor.name not in ("long", "packed"))
        assert tensor.ByteSize() < 300 or tensor.name == "texts"
    del model.graph.initializer[:], light.graph.initializer[:]
    assert light == model


@pytest.mark.parametrize("model", [ModelProto(), ModelProto(ir_version=8), small_model()])
def test_an_outline_of_what_has_no_large_initializer_is_all_of_it(model: ModelProto) -> None:
    assert ModelProto.FromString(outline(model.SerializeToString(), 1 << 16)) == model


def test_an_outline_of_damaged_bytes_is_an_error_or_what_protobuf_reads() -> None:
    data, random = _rich_model().SerializeToString(), np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(data[: random.integers(1, len(data) + 1)])
        for place in random.integers(0, len(damaged), 3):
            damaged[place] = random.integers(256)
        try:
            light = outline(bytes(damaged), 64)
        except ValueError:
            continue
        try:
            ModelProto.FromString(light)
        except DecodeError:
            with pytest.raises(DecodeError):
                ModelProto.FromString(bytes(damaged))
