"""The order of nodes, and names: what is written, and what is refused."""

import onnx
import pytest
from onnx import TensorProto, helper

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.graph import Model, sorted_nodes
from tests.model.test_graph import BACKEND_DATA, assert_round_trip, info, model_of, nasty_model


def test_nodes_put_anywhere_are_written_in_order():
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(6)]
    model = Model.from_proto(model_of(nodes, [info("t0")], [info("t6")]))
    model.graph.nodes = [model.graph.nodes[i] for i in (5, 1, 0, 3, 4, 2)]
    assert [node.name for node in model.to_proto().graph.node] == [f"n{i}" for i in range(6)]


def test_order_follows_what_subgraphs_capture():
    branch = helper.make_graph([helper.make_node("Neg", ["made"], ["out"])], "b", [], [info("out")])
    nodes = [
        helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch),
        helper.make_node("Relu", ["x"], ["made"]),
    ]
    proto = model_of(nodes, [info("x"), info("flag", [], TensorProto.BOOL)], [info("y")])
    model = Model.from_proto(proto)
    assert [node.op for node in sorted_nodes(model.graph)] == ["Relu", "If"]
    onnx.checker.check_model(model.to_proto(), full_check=True)


def test_sorted_nodes_keep_their_order():
    nodes = [helper.make_node("Relu", ["x"], [f"t{i}"]) for i in (3, 1, 2, 0)]
    nodes.append(helper.make_node("Sum", ["t0", "t1", "t2", "t3"], ["y"]))
    assert_round_trip(model_of(nodes, [info("x")], [info("y")]))


def test_a_cycle_names_a_node():
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="one"),
        helper.make_node("Neg", ["a"], ["b"], name="two"),
    ]
    model = Model.from_proto(model_of(nodes, [info("x")], [info("b")]))
    with pytest.raises(OnnxfuseError, match=r"cycle through node '(one|two)'"):
        model.to_proto()


def test_a_name_redefined_inside_means_the_inner_tensor():
    inner = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["before"]), helper.make_node("Add", ["before", "x"], ["x"])],
        "inner",
        [],
        [info("x")],
    )
    nodes = [helper.make_node("If", ["flag"], ["y"], then_branch=inner, else_branch=inner)]
    model = assert_round_trip(model_of(nodes, [info("x"), info("flag", [], TensorProto.BOOL)], [info("y")]))
    then = model.graph.nodes[0].attrs["then_branch"]
    assert then.nodes[0].inputs[0] is model.graph.inputs[0]
    assert then.outputs[0] is then.nodes[1].outputs[0] is not model.graph.inputs[0]


def test_unique_names():
    model = Model.from_proto(nasty_model())
    assert model.unique_name("fresh") == "fresh"
    assert model.unique_name("fresh") == "fresh_1"
    assert model.unique_name("deep_out") == "deep_out_1"
    assert model.unique_name("same") == "same_1"
    assert model.unique_name("no such tensor") == "no such tensor_1"
    assert model.unique_name("") == "_1"


def test_equal_nodes_are_told_apart():
    nodes = [helper.make_node("Relu", ["x"], [""]), helper.make_node("Relu", ["x"], [""])]
    model = Model.from_proto(model_of(nodes, [info("x")], [info("x")]))
    first, second = model.graph.nodes
    second.inputs.clear()
    assert len(first.inputs[0].outputs) == 1
    assert first.inputs[0].outputs[0] is first


def test_a_renamed_output_keeps_its_description():
    described = info("y")
    described.doc_string = "the result"
    model = Model.from_proto(model_of([helper.make_node("Relu", ["x"], ["y"])], [info("x")], [described]))
    model.graph.outputs[0].name = "z"
    exported = model.to_proto().graph
    assert (exported.output[0].name, exported.output[0].doc_string) == ("z", "the result")
    assert list(exported.node[0].output) == ["z"]


def test_two_functions_of_one_name_are_refused():
    proto = model_of([], [], [])
    for _ in range(2):
        proto.functions.add(name="F", domain="d")
    with pytest.raises(OnnxfuseError, match="two functions"):
        Model.from_proto(proto)


@pytest.mark.parametrize("path", sorted(BACKEND_DATA.glob("**/*.onnx")), ids=lambda path: path.parent.name)
def test_onnx_backend_models_survive(path):
    assert_round_trip(onnx.load(path, load_external_data=False))


def test_a_long_chain():
    count = 50_000
    nodes = [helper.make_node("Neg", [f"t{i}"], [f"t{i + 1}"]) for i in range(count)]
    assert_round_trip(model_of(nodes, [info("t0")], [info(f"t{count}")]))
