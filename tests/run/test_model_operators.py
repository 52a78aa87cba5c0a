"""What a session needs to know of a model before ONNX Runtime reads it."""

import itertools
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import onnxfuse
from onnxfuse.fused.kinds import ELEMENTWISE, KINDS
from onnxfuse.run.library import custom_ops_library
from onnxfuse.run.model_operators import names_of, operators
from onnxfuse.run.runtime import OPERATORS
from tests.support import many_functions

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


def test_names_that_differ_in_their_numbers() -> None:
    def listed(*found: str) -> str | None:
        return names(model(*(function("onnxfuse", name) for name in found)).SerializeToString())

    assert listed(*(f"A_{number}" for number in range(10, 1, -1)), "A") == "A..10"
    assert listed("A_9", "A_10", "A_2", "A_11", "B", "A_4") == "A_2,A_4,A_9..11,B"
    assert listed("A_B_2", "A_B_3", "A_2", "A_B") == "A_2,A_B..3"
    others = ("A_", "A_1", "A_02", "A_1000000", "A_x", "A2", "_2")  # which are no numbers of an operator
    assert listed(*others) == ",".join(sorted(others, key=lambda name: (name.removesuffix("_2"), name)))
    assert listed("A", "A..9", "B,*", "*", "C=float", "", "É") == "A", "no name may mean another"


def test_types_of_names_that_differ_in_their_numbers() -> None:
    kinds = ["float", "float", "double", "double", "float"]
    functions = [typed("A" if number == 1 else f"A_{number}", kind) for number, kind in enumerate(kinds, 1)]
    assert names(model(*functions).SerializeToString()) == "A..2=float,A_3..4,A_5=float"


def test_too_many_names_for_a_session() -> None:
    """A value of a session's configuration has no room for them: first for their types, then for all of them."""

    def listed(count: int, step: int) -> str | None:
        numbers = range(2, 2 + count * step, step)
        functions = [typed(f"A_{number}", ("float", "double")[index % 2]) for index, number in enumerate(numbers)]
        return names(model(*functions).SerializeToString())

    assert listed(3, 1) == "A_2=float,A_3,A_4=float"
    assert (some := listed(100, 1)) is not None and some.count("=float") == 50
    assert listed(1000, 1) == "A_2..1001"
    assert (some := listed(300, 2)) is not None and some.count(",") == 299 and "=" not in some
    assert listed(1000, 2) is None


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
        helper.make_node("Einsum", ["b", "w"], ["c"], equation="nij,jk->nik"),
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


# --- sessions of models with more functions than are registered where nothing is said of the model ---

MANY = ELEMENTWISE.plain + 20


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of many functions."""
    path = tmp_path_factory.mktemp("many") / "many.onnx"
    onnxfuse.optimize(many_functions.regions(MANY), "cpu", check=False, output=path)
    return path


def kernels(session: ort.InferenceSession, path: Path) -> int:
    """How many fused nodes the session runs; it has written what it runs to ``path``."""
    feeds = {"x0": np.linspace(-3, 3, 32, dtype=np.float32).reshape(2, 16)}
    plain = ort.InferenceSession(many_functions.regions(MANY).SerializeToString(), providers=CPU)
    for actual, wanted in zip(session.run(None, feeds), plain.run(None, feeds), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5)
    return sum(node.domain == "onnxfuse" for node in onnx.load(path).graph.node)


def options_for(path: Path, **entries: str) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    for key, value in entries.items():
        options.add_session_config_entry(f"onnxfuse.{key}", value)
    return options


def plainly(many: Path, tmp_path: Path, **entries: str) -> int:
    """The number of kernels in a session as a program without Python creates it."""
    options = options_for(tmp_path / "o.onnx", **entries)
    options.register_custom_ops_library(custom_ops_library())
    return kernels(ort.InferenceSession(many, options, providers=CPU), tmp_path / "o.onnx")


def test_plain_sessions_know_some_of_each_kind(many: Path, tmp_path: Path) -> None:
    assert plainly(many, tmp_path) == ELEMENTWISE.plain


def test_sessions_know_all_of_a_model_that_they_name(many: Path, tmp_path: Path) -> None:
    assert plainly(many, tmp_path, model=str(many)) == MANY
    listed = names(many)
    assert listed == f"FusedElementwise..{MANY}=float"
    assert plainly(many, tmp_path, operators=listed) == MANY
    assert plainly(many, tmp_path, operators="FusedElementwise_3..7,*,FusedElementwise_50") == ELEMENTWISE.plain + 1
    assert plainly(many, tmp_path, operators="FusedElementwise_2,FusedElementwise_2..4=float") == 3
    assert plainly(many, tmp_path, operators="FusedConv") == 0
    assert plainly(many, tmp_path, operators="") == 0


@pytest.mark.parametrize(
    ("wish", "found"), [("7", 7), (str(MANY), MANY), ("0", None), ("-1", None), ("7x", None), ("", None)]
)
def test_the_environment_says_how_many_of_each_kind(
    wish: str, found: int | None, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXFUSE_NAMES", wish)
    assert plainly(many, tmp_path) == (ELEMENTWISE.plain if found is None else found)


def test_a_model_that_is_named_and_is_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no model")
    for path in (tmp_path / "missing", tmp_path / "text", tmp_path):
        options = options_for(tmp_path / "o.onnx", model=str(path))
        with pytest.raises(Exception, match=re.escape(f"onnxfuse.model names no model: {path}")):
            options.register_custom_ops_library(custom_ops_library())


def test_sessions_of_this_package_know_all(many: Path, tmp_path: Path) -> None:
    session = onnxfuse.InferenceSession(many, options_for(tmp_path / "o.onnx"), providers=CPU)
    assert kernels(session, tmp_path / "o.onnx") == MANY
    options = options_for(tmp_path / "o.onnx")
    onnxfuse.register(options, many)
    assert kernels(ort.InferenceSession(many, options, providers=CPU), tmp_path / "o.onnx") == MANY
    options = options_for(tmp_path / "o.onnx")
    runs(onnxfuse.InferenceSession(optimized(), options, providers=CPU))
    with pytest.warns(UserWarning, match=f"FusedElementwise_{ELEMENTWISE.plain + 1}, "):
        session = onnxfuse.InferenceSession(many, options, providers=CPU)
    assert kernels(session, tmp_path / "o.onnx") == ELEMENTWISE.plain


def test_names_of_lists() -> None:
    assert names_of("") == set() == names_of("Other,A..5")
    assert names_of("FusedConv") == {"FusedConv"}
    assert names_of("FusedConv..3=float,FusedNhwcConv_7..8") == {
        *("FusedConv", "FusedConv_2", "FusedConv_3"),
        *("FusedNhwcConv_7", "FusedNhwcConv_8"),
    }
    assert names_of("*,FusedConv_99") == {
        "FusedConv_99",
        *(kind.operator(number + 1) for kind in KINDS for number in range(kind.plain)),
    }
