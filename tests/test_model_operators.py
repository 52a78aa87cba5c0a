"""What a session needs to know of a model before ONNX Runtime reads it."""

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

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
    assert names(tmp_path) is None  # a folder
    assert names(b"") is None
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


def typed(name: str, element_type: str, overload: str = "") -> onnx.FunctionProto:
    proto = function("onnxfuse", name)
    proto.overload = overload
    proto.metadata_props.add(key="other", value="float")
    proto.metadata_props.add(key="onnxfuse.element_type", value=element_type)
    return proto


def test_operators_of_floats_alone() -> None:
    functions = typed("A", "float"), typed("B", "double"), function("onnxfuse", "C")
    assert names(model(*functions).SerializeToString()) == "A=float,B,C"


def test_functions_that_share_a_name_must_all_be_of_floats() -> None:
    for first, second in itertools.product(("float", "double"), repeat=2):
        listed = names(model(typed("A", first, "1"), typed("A", second, "2")).SerializeToString())
        assert listed == ("A=float" if first == second == "float" else "A")


def mixed() -> onnx.ModelProto:
    """A chain of floats, and one that makes integers of them."""
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4, 5])
    outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in (("y", 1), ("z", 7))]
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Sub", ["a", "x"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("Abs", ["c"], ["d"]),
        helper.make_node("Cast", ["d"], ["z"], to=onnx.TensorProto.INT64),
        helper.make_node("Identity", ["b"], ["y"]),
    ]
    weights = numpy_helper.from_array(np.eye(5, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "g", [x], outputs, [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_optimize_says_which_operators_are_of_floats_alone() -> None:
    assert names(optimized()) == "FusedElementwise=float"
    result = onnxfuse.optimize(mixed(), "cpu")
    data = result.model.SerializeToString()
    assert names(data) == "FusedElementwise=float,FusedElementwise_2"
    onnx.checker.check_model(data, full_check=True)
    value = np.linspace(-2, 3, 40, dtype=np.float32).reshape(2, 4, 5)
    expected = ort.InferenceSession(mixed().SerializeToString(), providers=CPU).run(None, {"x": value})
    for options in (None, ort.SessionOptions()):
        session = onnxfuse.InferenceSession(data, options, providers=CPU)
        for actual, wanted in zip(session.run(None, {"x": value}), expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-6)


def test_options_for_one_model_serve_another_of_other_types() -> None:
    options = ort.SessionOptions()
    onnxfuse.register(options, optimized())
    integers = chain()
    del integers.graph.node[:]
    integers.graph.node.extend([helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Sub", ["a", "x"], ["y"])])
    for value in (*integers.graph.input, *integers.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.INT32
    data = onnxfuse.optimize(integers, "cpu", check=False).model.SerializeToString()
    assert names(data) == "FusedElementwise"
    x = np.arange(-20, 20, dtype=np.int32).reshape(2, 4, 5)
    (result,) = onnxfuse.InferenceSession(data, options, providers=CPU).run(None, {"x": x})
    np.testing.assert_array_equal(result, np.abs(x) - x)


def test_an_operator_of_floats_refuses_other_types() -> None:
    """Where the entry is another model's there is no session, and the message names the node."""
    options = ort.SessionOptions()
    options.add_session_config_entry(OPERATORS, "FusedElementwise=float,FusedElementwise_2=float")
    options.register_custom_ops_library(custom_ops_library())
    data = onnxfuse.optimize(mixed(), "cpu", check=False).model.SerializeToString()
    with pytest.raises(Exception, match="z_fused"):
        ort.InferenceSession(data, options, providers=CPU)
