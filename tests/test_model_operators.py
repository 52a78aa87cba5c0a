"""What a session needs to know of a model before ONNX Runtime reads it."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import onnxfuse
from onnxfuse.model_operators import operators
from onnxfuse.runtime import OPERATORS, custom_ops_library

CPU = ["CPUExecutionProvider"]


def function(domain: str, name: str) -> onnx.FunctionProto:
    body = [helper.make_node("Relu", ["x"], ["y"])]
    return helper.make_function(domain, name, ["x"], ["y"], body, [helper.make_opsetid("", 17)])


def model(*functions: onnx.FunctionProto, size: int = 300) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [size]) for name in "xy"]
    weights = helper.make_tensor("w", onnx.TensorProto.FLOAT, [size], np.zeros(size, np.float32).tobytes(), raw=True)
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weights])
    proto = helper.make_model(graph, functions=functions, producer_name="p" * 200)
    helper.set_model_props(proto, {"key": "value"})
    return proto


def names(given: str | bytes | Path) -> str | None:
    return operators(given, custom_ops_library())


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_names_of_one_domain(tmp_path: Path, size: int) -> None:
    functions = function("onnxfuse", "A"), function("other", "B"), function("onnxfuse", "C"), function("", "D")
    path = tmp_path / "möglich.onnx"
    path.write_bytes(model(*functions, size=size).SerializeToString())
    for given in (path, str(path), path.read_bytes()):
        assert names(given) == "A,C"
    assert names(model(function("other", "B")).SerializeToString()) == ""


def test_what_is_no_model(tmp_path: Path) -> None:
    """Truncated anywhere, or anything else: nothing is known, or what came before the end."""
    data = model(function("onnxfuse", "A")).SerializeToString()
    path = tmp_path / "m.onnx"
    for size in range(len(data)):
        assert names(data[:size]) in (None, "")
        path.write_bytes(data[:size])
        assert names(path) == names(data[:size])
    for missing in (tmp_path / "missing.onnx", "null\0byte"):
        assert names(missing) is None
    assert names(tmp_path) == ""  # a folder
    for junk in (
        b"\xff" * 100,
        b"\x0b",
        b"\xca\x01\x03\x52\x7f\x00",
        bytes(range(256)),
        b"\x0a" + b"\xff" * 9 + b"\x01",
    ):
        assert names(junk) is None


def test_too_many_names_for_a_session() -> None:
    """They do not fit, so all operators are registered."""
    assert names(model(*(function("onnxfuse", f"{i:0500}") for i in range(8))).SerializeToString()) is not None
    assert names(model(*(function("onnxfuse", f"{i:0500}") for i in range(9))).SerializeToString()) is None


def chain() -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4, 5])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("Sub", ["a", "x"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def optimized() -> bytes:
    return onnxfuse.optimize(chain(), "cpu", check=False).model.SerializeToString()


def runs(session: ort.InferenceSession) -> None:
    value = np.ones((2, 4, 5), np.float32)
    (result,) = session.run(None, {"x": value})
    np.testing.assert_allclose(result, np.exp(value) - value, rtol=1e-6)


def test_sessions_register_what_the_model_has() -> None:
    options = ort.SessionOptions()
    onnxfuse.register(options, optimized())
    assert options.get_session_config_entry(OPERATORS) == "FusedElementwise"
    runs(onnxfuse.InferenceSession(optimized(), options, providers=CPU))


def test_options_serve_any_number_of_sessions_and_models() -> None:
    options = ort.SessionOptions()
    for data in (chain().SerializeToString(), optimized(), optimized()):
        runs(onnxfuse.InferenceSession(data, options, providers=CPU))
    with pytest.raises(RuntimeError):  # all operators are registered
        options.get_session_config_entry(OPERATORS)
    onnxfuse.register(options)
    onnxfuse.register(options, optimized())
    runs(ort.InferenceSession(optimized(), options, providers=CPU))


def test_options_for_one_model_say_what_they_lack_for_another() -> None:
    options = ort.SessionOptions()
    onnxfuse.register(options, model(function("onnxfuse", "FusedConv")).SerializeToString())
    with pytest.warns(UserWarning, match="without FusedElementwise"):
        session = onnxfuse.InferenceSession(optimized(), options, providers=CPU)
    runs(session)


def test_all_are_registered_where_the_model_tells_nothing() -> None:
    options = ort.SessionOptions()
    onnxfuse.register(options, b"no model")
    with pytest.raises(RuntimeError):
        options.get_session_config_entry(OPERATORS)
