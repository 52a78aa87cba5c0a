"""What is not in the table of known operators is left as it is, whatever else is known of its operator."""

import warnings
from collections.abc import Iterator
from functools import cache

import onnx
import pytest
from onnx import helper, parser
from onnx.backend.test.loader import load_model_tests

import onnxfuse
from onnxfuse.model import known_operators
from onnxfuse.model.graph import describe
from onnxfuse.model.known_operators import OPERATORS, unknown
from onnxfuse.passes import PassContext, resolve
from onnxfuse.planning.plan import add_unknown
from onnxfuse.shapes.inference import infer
from tests.fused.attention.test_fuse_attention import projected

_WITHOUT_CASES = {
    *("ConcatFromSequence", "GlobalLpPool", "ImageDecoder", "MaxRoiPool", "Multinomial", "Optional", "RandomNormal"),
    *("RandomNormalLike", "RandomUniform", "RandomUniformLike", "Scatter", "SequenceAt", "SequenceConstruct"),
    *("SequenceEmpty", "SequenceErase", "SequenceLength", "SimplifiedLayerNormalization", "Upsample"),
}
"""Operators of which onnx has no case."""


@cache
def cases() -> dict[str, onnx.ModelProto]:
    """For each operator the first of onnx's cases with the fewest nodes that has it."""
    found: dict[str, onnx.ModelProto] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases overflow and divide by zero on purpose
        tests = load_model_tests(kind="node")
    for made in sorted((case.model for case in tests if case.model is not None), key=lambda made: len(made.graph.node)):
        for node in made.graph.node:
            if node.domain in ("", "ai.onnx"):
                found.setdefault(node.op_type, made)
    return found


def optimized(made: onnx.ModelProto) -> tuple[onnx.ModelProto, PassContext]:
    """The model after all passes, with all fused that can be."""
    loaded, context = onnxfuse.Model.from_proto(made), PassContext(everything=True)
    infer(loaded)
    for step in resolve():
        step.run(loaded, context)
    return loaded.to_proto(), context


def nodes_of(made: onnx.ModelProto, operator: str) -> Iterator[onnx.NodeProto]:
    return (node for node in made.graph.node if node.op_type == operator and node.domain in ("", "ai.onnx"))


def stays(made: onnx.ModelProto, operator: str) -> bool:
    """Whether the nodes of an operator come out of all passes as they went in, but for what is in their graphs."""
    return list(map(shown, nodes_of(optimized(made)[0], operator))) == list(map(shown, nodes_of(made, operator)))


def shown(node: onnx.NodeProto) -> bytes:
    """The node with empty graphs."""
    bare = onnx.NodeProto()
    bare.CopyFrom(node)
    for attribute in bare.attribute:
        attribute.ClearField("g")
    return bare.SerializeToString()


def with_attribute(made: onnx.ModelProto, operator: str) -> onnx.ModelProto:
    """The model with an attribute that nobody knows on the operator's nodes."""
    changed = onnx.ModelProto()
    changed.CopyFrom(made)
    for node in nodes_of(changed, operator):
        node.attribute.append(helper.make_attribute("of_the_future", 1))
    return changed


@pytest.mark.parametrize("operator", sorted(OPERATORS.keys() - _WITHOUT_CASES))
def test_an_attribute_and_a_version_of_the_future(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cases()[operator]
    assert stays(with_attribute(made, operator), operator)
    of_today = known_operators._version
    monkeypatch.setattr(known_operators, "_version", lambda op, opset: 99 if op == operator else of_today(op, opset))
    assert stays(made, operator)


def test_the_cases_above_can_fail() -> None:
    """With nothing unknown about them, the nodes of most operators that can be fused or folded do not stay."""
    changed = {operator for operator, made in cases().items() if not stays(made, operator)}
    assert len(changed) > 60 and {"Add", "Cast", "Gelu", "QuantizeLinear", "Where"} <= changed


def test_an_unknown_node_in_the_middle_of_what_would_be_fused() -> None:
    """Rules and planners of several nodes do not read across it, and the report says why."""
    made = projected()
    (softmax,) = nodes_of(made, "Softmax")
    assert not stays(made, "Softmax")
    softmax.attribute.append(helper.make_attribute("temperature", 0.5))
    result, context = optimized(made)
    assert [node.SerializeToString() for node in nodes_of(result, "Softmax")] == [softmax.SerializeToString()]
    assert not any(node.op_type.startswith("FusedAttention") for node in result.graph.node)
    add_unknown(onnxfuse.Model.from_proto(made), context.report)
    (left,) = [item for item in context.report.left_alone if item.op == "Softmax"]
    assert left.reason == "its attribute temperature is not known"


def test_optimize_says_what_is_not_known() -> None:
    """BitShift of opset 28, where the standard has given it signed integers."""
    made = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 28]>'
        ' g (uint8[4] x, uint8[4] s) => (uint8[4] y) { a = BitShift <direction = "LEFT"> (x, s) y = BitwiseNot(a) }'
    )
    result = onnxfuse.optimize(made, check=False)
    assert [node.op_type for node in result.model.graph.node] == ["BitShift", "BitwiseNot"]
    (left,) = [item for item in result.report.left_alone if item.op == "BitShift"]
    assert left.reason == "BitShift is known up to the version of opset 11"


def test_the_reasons() -> None:
    assert unknown("Attention", 25, {"is_causal": 2}, 3, 1) == "is_causal=2 is not known"
    assert unknown("Attention", 25, {"is_causal": 1, "left_window_size": 128}, 3, 1) == ""
    assert unknown("Attention", 25, {"chunk_size": 128}, 3, 1) == "its attribute chunk_size is not known"
    assert unknown("Relu", 21, {}, 2, 1) == "it has more than 1 inputs or 1 outputs"
    assert unknown("Conv", 21, {"auto_pad": "SAME"}, 2, 1) == "auto_pad=SAME is not known"
    assert unknown("Swiglu", 21, {}, 2, 1) == "its operator is not known"
    assert unknown("Relu", 21, {}, 1, 1, {"Relu"}) == "it is a function of the model by the name of an operator"
    assert unknown("SimplifiedLayerNormalization", 14, {"axis": -1, "epsilon": 1e-5}, 2, 1) == ""


def test_a_function_by_the_name_of_an_operator_is_not_taken_for_it() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
        g (float[4, 4] x) => (float[4, 4] y) { a = Relu(x) b = Sqrt(a) c = Exp(b) y = Sqrt(c) }
        <domain: "", opset_import: ["" : 20]> Relu (x) => (y) { y = Neg(x) }"""
    made = parser.parse_model(text)
    assert stays(made, "Relu") and not stays(made, "Sqrt")


def test_unknown_nodes_are_copied_and_written_by_their_names() -> None:
    made = with_attribute(cases()["Relu"], "Relu")
    loaded = onnxfuse.Model.from_proto(made)
    (node,) = loaded.graph.nodes
    copied = node.copy(node.inputs, node.outputs)
    assert (copied.operator, copied.unknown) == ("Relu", node.unknown) and copied.op != "Relu"
    assert describe(node).startswith("Relu")
    node.outputs = []
    loaded.graph.nodes = [copied]
    written = loaded.to_proto()
    assert [(one.op_type, one.domain) for one in written.graph.node] == [("Relu", "")]
    assert [entry.domain for entry in written.opset_import] == [entry.domain for entry in made.opset_import]


def test_operators_of_a_newer_onnx_are_unknown_and_no_error() -> None:
    newest = onnx.defs.onnx_opset_version()
    for schema in onnx.defs.get_all_schemas():
        if schema.domain == "":
            reason = unknown(schema.name, newest, {}, 0, 0)
            assert reason == "" or "known" in reason
