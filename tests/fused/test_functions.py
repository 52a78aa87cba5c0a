"""The functions of fused nodes: what they are called, which regions share one, and how their nodes are called."""

import numpy as np
import onnx
import pytest
from onnx import helper, parser
from onnx.reference import ReferenceEvaluator

import onnxfuse
from onnxfuse.files.model_io import load_proto
from onnxfuse.fused.functions import finish_functions
from onnxfuse.fused.kinds import ELEMENTWISE, KINDS, NHWC_CONV
from onnxfuse.planning.inspection import inspect
from onnxfuse.shapes.inference import infer
from tests.support import fusing, many_functions


def optimized(model: onnx.ModelProto, **options: object) -> onnx.ModelProto:
    result: onnx.ModelProto = onnxfuse.optimize(model, "cpu", check=False, **options).model  # type: ignore[arg-type]
    onnx.checker.check_model(result, full_check=True)
    return result


def of_text(text: str, opset: int = 17) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')


def assert_own_names(model: onnx.ModelProto) -> None:
    """A function is known by its name, and so is a node of what it becomes."""
    names = [(function.domain, function.name) for function in model.functions]
    assert len(set(names)) == len(names)
    for function in model.functions:
        inner = [node.name for node in function.node]
        assert all(inner) and len(set(inner)) == len(inner)


@pytest.mark.parametrize("count", [2, 40, 128])
def test_every_function_has_a_name_of_its_own(count: int) -> None:
    model = many_functions.regions(count)
    fused = optimized(model)
    assert_own_names(fused)
    names = {function.name for function in fused.functions}
    assert names == {ELEMENTWISE.operator(number + 1) for number in range(count)}
    fusing.assert_same_everywhere(many_functions.without_overloads(fused), model, many_functions.feeds(model))


def test_attentions_have_names_of_their_own() -> None:
    model = many_functions.attentions()
    fused = optimized(model)
    assert_own_names(fused)
    assert len([one for one in fused.functions if one.name.startswith("FusedAttention")]) >= 6
    fusing.assert_same_everywhere(many_functions.without_overloads(fused), model, many_functions.feeds(model))


SCALED = "a = Mul(x, {0}) b = Sin(a) c = Add(b, {1}) d = CumSum(c, at) e = Mul(d, {2}) f = Sin(e) y = Add(f, {3})"


@pytest.mark.parametrize(("opset", "count"), [(17, 1), (12, 1), (11, 2)])
def test_regions_that_differ_in_constants_share_a_function(opset: int, count: int) -> None:
    """onnx's ReferenceEvaluator knows attributes that are the value of a Constant from opset 12."""
    names = ("k0", "k1", "k2", "k3")
    constants = ", ".join(f"float {name} = {{{number}.5}}" for number, name in enumerate(names))
    constants += ", int64 at = {1}"
    model = of_text(f"g (float[n, 64] x) => (float[n, 64] y) <{constants}> {{ {SCALED.format(*names)} }}", opset)
    fused = optimized(model)
    assert len(fusing.fused_nodes(fused)) == 2 and len(fused.functions) == count
    x = np.linspace(-3, 3, 128, dtype=np.float32).reshape(2, 64)
    fusing.assert_same_everywhere(fused, model, {"x": x})


def test_regions_of_other_types_share_none() -> None:
    """A session registers an operator for float32 alone where all of its nodes are of that."""
    text = """g (float[n, 64] x, double[n, 64] u) => (float[n, 64] y, double[n, 64] v) {
        a = Sin(x) y = Abs(a) b = Sin(u) v = Abs(b) }"""
    loaded = onnxfuse.Model.from_proto(fusing.fuse_everything(of_text(text)))
    infer(loaded)
    finish_functions(loaded)
    assert [len(function.metadata_props) for function in loaded.functions.values()] == [1, 0]


def test_large_constants_stay_in_the_function() -> None:
    """Each node would have a copy of them."""
    wide = ", ".join(["0.5"] * 17)
    text = (
        f"g (float[n, 17] x) => (float[n, 17] y) {{ k = Constant<value_floats = [{wide}]>() a = Mul(x, k) y = Sin(a) }}"
    )
    fused = optimized(of_text(text))
    (node,) = fused.graph.node
    assert not [attribute for attribute in node.attribute if attribute.type == onnx.AttributeProto.TENSOR]


def test_those_of_most_nodes_come_first() -> None:
    steps = ["a = Abs(x) b = Sin(a) s0 = CumSum(b, at)"]
    steps += [f"c{i} = Sin(s{i}) d{i} = Abs(c{i}) s{i + 1} = CumSum(d{i}, at)" for i in range(3)]
    fused = optimized(of_text(f"g (float[n, 64] x) => (float[n, 64] s3) <int64 at = {{1}}> {{ {' '.join(steps)} }}"))
    assert [node.op_type for node in fusing.fused_nodes(fused)] == ["FusedElementwise_2", *["FusedElementwise"] * 3]


def test_a_warning_says_what_is_beyond_plain_sessions() -> None:
    plain = ELEMENTWISE.plain
    model = many_functions.regions(plain + 3)
    (warning,) = onnxfuse.optimize(model, "cpu", check=False).report.warnings
    assert f"3 operators of it, {ELEMENTWISE.operator(plain + 1)}" in warning
    assert not onnxfuse.optimize(many_functions.regions(plain), "cpu", check=False).report.warnings


def test_numbers_of_operators() -> None:
    for kind in KINDS:
        assert [kind.number(kind.operator(number)) for number in (1, 2, 10, 999999)] == [1, 2, 10, 999999]
    others = (
        "",
        "Fused",
        "FusedNhwcConcat",
        "FusedNhwcConv_",
        "FusedNhwcConv_1",
        "FusedNhwcConv_02",
        "FusedNhwcConv_x",
    )
    for name in (*others, "FusedNhwcConv_1000000", "FusedNhwcConv_²", "FusedNhwcConv_2_3", "fusednhwcconv"):
        assert not NHWC_CONV.number(name)


# --- files of earlier versions, whose last functions share a name and differ in their overloads ---


@pytest.fixture
def before() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A model, and what earlier versions made of it."""
    model = many_functions.regions(20)
    return model, many_functions.as_before(optimized(model), last=16)


def test_files_of_earlier_versions_run(before: tuple[onnx.ModelProto, onnx.ModelProto]) -> None:
    model, old = before
    assert len({function.name for function in old.functions}) == 16
    onnx.checker.check_model(old, full_check=True)
    feeds = many_functions.feeds(model)
    (expected,) = fusing.run(model, feeds, library=False)
    for library in (False, True):
        np.testing.assert_allclose(fusing.run(old, feeds, library)[0], expected, 1e-6)
    session = onnxfuse.InferenceSession(old.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, 1e-6)


def test_files_of_earlier_versions_are_read(before: tuple[onnx.ModelProto, onnx.ModelProto], tmp_path) -> None:  # type: ignore[no-untyped-def]
    model, old = before
    onnx.save(old, tmp_path / "old.onnx")
    assert len(inspect(tmp_path / "old.onnx", "cpu", lambda message: None).fused) == 20
    plain = onnxfuse.unfuse(old)
    assert not plain.functions
    feeds = many_functions.feeds(model)
    np.testing.assert_allclose(
        fusing.run(plain, feeds, library=False)[0], fusing.run(model, feeds, library=False)[0], 1e-6
    )


def test_files_of_earlier_versions_get_names_when_optimized(before: tuple[onnx.ModelProto, onnx.ModelProto]) -> None:
    model, old = before
    content = old.SerializeToString(deterministic=True)
    fused = optimized(old)
    assert old.SerializeToString(deterministic=True) == content
    assert len({function.name for function in fused.functions}) == 20
    feeds = many_functions.feeds(model)
    (expected,) = fusing.run(model, feeds, library=False)
    for library in (False, True):
        np.testing.assert_allclose(fusing.run(fused, feeds, library)[0], expected, 1e-6)


def test_a_name_without_a_function_is_given_to_none() -> None:
    """A node that has none would find another's where the library is not registered."""
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 4]) for name in "xy")
    program = "onnxfuse 1\ninput f32\n"
    nodes = [
        helper.make_node("FusedElementwise", ["x"], ["a"], "lonely", domain="onnxfuse", program=program),
        helper.make_node("FusedElementwise_5", ["a"], ["y"], "other", domain="onnxfuse"),
    ]
    body = [helper.make_node("Abs", ["a"], ["b"])]
    function = helper.make_function("onnxfuse", "FusedElementwise_5", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("onnxfuse", 1)]
    graph = helper.make_graph(nodes, "g", [x], [y])
    loaded = onnxfuse.Model.from_proto(
        helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)
    )
    finish_functions(loaded)
    assert [node.op for node in loaded.graph.nodes] == ["FusedElementwise", "FusedElementwise_2"]
    assert [name for _, name, _ in loaded.functions] == ["FusedElementwise_2"]


def test_functions_that_call_fused_nodes_follow() -> None:
    model = of_text("g (float[n, 64] x) => (float[n, 64] y) { a = Sin(x) y = Abs(a) }")
    fused = optimized(model)
    (node,) = fused.graph.node
    (function,) = fused.functions
    node.op_type = function.name = "FusedElementwise_7"
    caller = helper.make_function(
        "my", "F", ["x"], ["y"], [node], [helper.make_opsetid("", 17), helper.make_opsetid("onnxfuse", 1)]
    )
    fused.functions.append(caller)
    fused.graph.node[0].CopyFrom(helper.make_node("F", ["x"], ["y"], domain="my"))
    fused.opset_import.append(helper.make_opsetid("my", 1))
    loaded = onnxfuse.Model.from_proto(fused)
    finish_functions(loaded)
    result = loaded.to_proto()
    assert {(one.domain, one.name) for one in result.functions} == {("onnxfuse", "FusedElementwise"), ("my", "F")}
    x = np.linspace(-3, 3, 128, dtype=np.float32).reshape(2, 64)
    (actual,) = ReferenceEvaluator(result).run(None, {"x": x})  # ONNX Runtime runs no such model
    np.testing.assert_allclose(actual, np.abs(np.sin(x)), 1e-6)


def test_a_pass_that_takes_the_graph_of_another_model_keeps_the_import() -> None:
    """Whose fused nodes were not made in this one."""
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 64] x) => (float[n, 64] y) { a = Exp(x) y = Mul(a, x) }'
    )
    original = parser.parse_model(text)
    fused = onnxfuse.optimize(original, "cpu", "fuse-elementwise", check=False).model
    assert fusing.fused_nodes(fused)
    taken = load_proto(original)
    taken.graph = load_proto(fused).graph
    assert "onnxfuse" in {opset.domain for opset in taken.to_proto().opset_import}
