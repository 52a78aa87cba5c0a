"""Importing a model into the graph that passes work on, and exporting it again."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.model.graph import Model, Node, captured_tensors

FLOAT = TensorProto.FLOAT
BACKEND_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


def info(name: str, shape: list | None = None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, [2] if shape is None else shape)


def model_of(nodes: list[NodeProto], inputs: list, outputs: list, **fields) -> ModelProto:
    initializers = fields.pop("initializer", [])
    value_info = fields.pop("value_info", [])
    graph = helper.make_graph(nodes, "main", inputs, outputs, initializers, value_info=value_info)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], **{"ir_version": 8, **fields})


def floats(name: str, *values: float) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.float32), name)


def bytes_of(proto) -> bytes:
    return proto.SerializeToString(deterministic=True)


def assert_round_trip(proto: ModelProto) -> Model:
    before = bytes_of(proto)
    model = Model.from_proto(proto)
    assert bytes_of(model.to_proto()) == before
    assert bytes_of(proto) == before, "the imported message itself was changed"
    return model


def metadata(message, **entries: str) -> None:
    for key, value in entries.items():
        message.metadata_props.add(key=key, value=value)


def nasty_attributes() -> NodeProto:
    """A custom node with an attribute of every kind."""
    node = helper.make_node("Everything", ["x", "", "late"], ["everything", "", "rest"], name="n", domain="custom")
    node.attribute.extend(
        [
            AttributeProto(name="raw", type=AttributeProto.STRING, s=b"\xff\xfe\0"),
            AttributeProto(name="raws", type=AttributeProto.STRINGS, strings=[b"text", b"\xc3("]),
            AttributeProto(name="no_ints", type=AttributeProto.INTS),
            AttributeProto(name="no_tensors", type=AttributeProto.TENSORS),
            AttributeProto(name="no_graphs", type=AttributeProto.GRAPHS),
            AttributeProto(name="nan", type=AttributeProto.FLOAT, f=float("nan"), doc_string="documented"),
            AttributeProto(name="floats", type=AttributeProto.FLOATS, floats=[-0.0, float("inf"), 0.1]),
            AttributeProto(name="tensor", type=AttributeProto.TENSOR, t=floats("inner name", 1)),
            AttributeProto(name="tensors", type=AttributeProto.TENSORS, tensors=[floats("", 1), floats("b", 2)]),
            AttributeProto(name="type", type=AttributeProto.TYPE_PROTO, tp=info("t").type),
            AttributeProto(name="types", type=AttributeProto.TYPE_PROTOS, type_protos=[info("t").type]),
            AttributeProto(name="undefined"),
        ]
    )
    sparse = onnx.SparseTensorProto(values=floats("s", 1), indices=numpy_helper.from_array(np.array([1])), dims=[3])
    node.attribute.append(AttributeProto(name="sparse", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse))
    graphs = [
        GraphProto(name="g1"),
        helper.make_graph([helper.make_node("Neg", ["x"], ["in2"])], "g2", [], []),
    ]
    node.attribute.append(AttributeProto(name="graphs", type=AttributeProto.GRAPHS, graphs=graphs))
    metadata(node, layer="7", empty="")
    node.doc_string = "node doc"
    node.overload = "v2"
    return node


def nasty_subgraphs() -> list[NodeProto]:
    """If in If, Loop and Scan, with captures, their own initializers and a name used in two branches."""
    deep = helper.make_graph(
        [
            helper.make_node("Add", ["x", "w"], ["shared"]),
            helper.make_node("Mul", ["shared", "v"], ["deep_out"]),
        ],
        "deep",
        [],
        [onnx.ValueInfoProto(name="deep_out", doc_string="no type")],
        [floats("v", 3, 4)],
    )
    plain = helper.make_graph([helper.make_node("Neg", ["x"], ["shared"])], "plain", [], [info("shared")])
    outer = helper.make_graph(
        [helper.make_node("If", ["flag"], ["picked"], then_branch=deep, else_branch=plain)],
        "outer",
        [],
        [info("picked")],
        value_info=[info("x")],
    )
    metadata(outer, branch="then")
    passing = helper.make_graph([], "passing", [], [info("w")])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["keep"], ["keep_on"]),
            helper.make_node("Add", ["state", "w"], ["next"]),
        ],
        "body",
        [info("i", [], TensorProto.INT64), info("keep", [], TensorProto.BOOL), info("state")],
        [info("keep_on", [], TensorProto.BOOL), info("next")],
    )
    scan = helper.make_graph(
        [helper.make_node("Add", ["sum", "element"], ["sum_out"])],
        "scan",
        [info("sum", []), info("element", [])],
        [info("sum_out", [])],
    )
    return [
        helper.make_node("If", ["flag"], ["branched"], then_branch=outer, else_branch=passing),
        helper.make_node("Loop", ["trips", "", "branched"], ["looped"], name="same", body=body),
        helper.make_node("Scan", ["zero", "looped"], ["scanned"], name="same", body=scan, num_scan_inputs=1),
    ]


def nasty_model() -> ModelProto:
    """Everything that an exporter is likely to lose."""
    initializers = [floats("w", 1, 2), floats("unused", 5), floats("zero"), floats("scale", 0.5)]
    initializers[2].CopyFrom(numpy_helper.from_array(np.float32(0), "zero"))
    initializers[0].doc_string = "weights"
    metadata(initializers[0], origin="here")
    for index, dtype in enumerate((ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, np.float16)):
        initializers.append(numpy_helper.from_array(np.array([1, -2, 3], dtype), f"small{index}"))
    initializers.append(TensorProto(name="bf16", dims=[2], data_type=TensorProto.BFLOAT16, int32_data=[0x3F80, 0xFF80]))
    initializers.append(TensorProto(name="fields", dims=[2], data_type=FLOAT, float_data=[1, 2]))
    initializers.append(TensorProto(name="text", dims=[2], data_type=TensorProto.STRING, string_data=[b"a", b"\xff"]))
    initializers.append(floats("default", 1, 1))
    nodes = [
        helper.make_node("Relu", ["x"], ["late"], doc_string=""),
        nasty_attributes(),
        *nasty_subgraphs(),
        helper.make_node("Add", ["scanned", "default"], ["unread"], domain="ai.onnx"),
    ]
    sequence = onnx.ValueInfoProto(name="sequence", type=helper.make_sequence_type_proto(info("").type))
    optional = onnx.ValueInfoProto(name="optional", type=helper.make_optional_type_proto(sequence.type))
    mapping = onnx.ValueInfoProto(
        name="map",
        type=helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(FLOAT, None)),
    )
    sparse_type = onnx.ValueInfoProto(name="sparse", type=helper.make_sparse_tensor_type_proto(FLOAT, [3]))
    opaque = onnx.ValueInfoProto(name="opaque")
    opaque.type.opaque_type.name = "handle"
    inputs = [
        info("x", ["N"]),
        info("flag", [], TensorProto.BOOL),
        info("trips", [], TensorProto.INT64),
        *(sequence, optional, mapping, sparse_type, opaque),
        info("default"),
    ]
    inputs[0].doc_string = "the input"
    inputs[0].type.denotation = "IMAGE"
    inputs[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    metadata(inputs[0], unit="m")
    unknown_rank = helper.make_tensor_value_info("everything", FLOAT, None)
    proto = model_of(
        nodes,
        inputs,
        [info("scanned", []), unknown_rank, info("w")],
        initializer=initializers,
        value_info=[info("late", [None]), info("no such tensor"), info("w")],
    )
    graph = proto.graph
    graph.doc_string = "graph doc"
    metadata(graph, stage="test")
    graph.sparse_initializer.add(
        values=floats("sparse_w", 7, 8),
        indices=numpy_helper.from_array(np.array([[0, 1], [1, 0]])),
        dims=[2, 2],
    )
    annotation = graph.quantization_annotation.add(tensor_name="late")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")

    proto.doc_string = "model doc"
    proto.producer_name, proto.producer_version, proto.model_version, proto.domain = (
        "p",
        "1.2",
        3,
        "org.example",
    )
    metadata(proto, author="someone")
    proto.opset_import.extend([helper.make_opsetid("custom", 1), helper.make_opsetid("unused.domain", 4)])
    for overload in ("", "v2"):
        function = proto.functions.add(name="Everything", domain="custom", overload=overload, input=["a"], output=["b"])
        function.node.add(op_type="Neg", input=["a"], output=["b"])
        function.opset_import.extend([helper.make_opsetid("", 17)])
        function.attribute.append("alpha")
        function.attribute_proto.add(name="beta", type=AttributeProto.INT, i=1)
        metadata(function, kind="function")
    training = proto.training_info.add()
    training.algorithm.name = "step"
    training.update_binding.add(key="w", value="new_w")
    proto.configuration.add(name="two devices", num_devices=2)
    return proto


def test_everything_survives():
    model = assert_round_trip(nasty_model())
    assert isinstance(model.graph.nodes[0], Node)
    assert model.opsets == {"": 17, "custom": 1, "unused.domain": 4}
    assert set(model.functions) == {("custom", "Everything", ""), ("custom", "Everything", "v2")}
    assert [graph.name for graph in model.graphs()] == [
        *("main", "g1", "g2", "passing", "outer", "plain", "deep", "body", "scan")
    ]


def test_reading_all_values_changes_nothing():
    proto = nasty_model()
    model = Model.from_proto(proto)
    for graph in model.graphs():
        for node in graph.nodes:
            for value in (*node.inputs, *node.attrs.values()):
                if isinstance(value, gs.Constant):
                    value.values.sum()
        for entry in graph.source.initializers:
            if isinstance(entry.tensor, gs.Constant):
                assert entry.tensor.values.shape == entry.tensor.shape
    assert bytes_of(model.to_proto()) == bytes_of(proto)


def test_values_have_their_own_types_and_are_read_only():
    model = Model.from_proto(nasty_model())
    constants = model.graph.source.tensors
    assert constants["small0"].values.dtype == ml_dtypes.bfloat16
    assert constants["small1"].values.dtype == ml_dtypes.float8_e4m3fn
    assert constants["small2"].values.dtype == ml_dtypes.int4
    assert constants["small2"].values.tolist() == [1, -2, 3]
    assert constants["bf16"].values.tolist() == [1.0, float("-inf")]
    assert constants["text"].values.tolist() == ["a", b"\xff"]
    assert constants["sparse_w"].values.tolist() == [[0, 7], [8, 0]]
    with pytest.raises(ValueError, match="read-only"):
        constants["w"].values[0] = 9


def test_attributes_are_python_values():
    attrs = next(node for node in Model.from_proto(nasty_model()).graph.nodes if node.op == "Everything").attrs
    assert attrs["raw"] == b"\xff\xfe\0"
    assert attrs["raws"] == ["text", b"\xc3("]
    assert attrs["no_ints"] == []
    assert attrs["tensor"].values.tolist() == [1.0]
    assert [graph.name for graph in attrs["graphs"]] == ["g1", "g2"]


def test_an_overridable_initializer_is_no_constant():
    proto = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [info("x"), info("w")],
        [info("y")],
        initializer=[floats("w", 1, 2)],
        ir_version=8,
    )
    model = assert_round_trip(proto)
    assert isinstance(model.graph.inputs[1], gs.Variable)
    assert model.graph.inputs[1].dtype == np.float32


def _old_model():
    """IR version 3, where initializers are inputs that nobody can override."""
    return model_of(
        [helper.make_node("Add", ["w", "x"], ["y"])],
        [info("w"), info("x")],
        [info("y")],
        initializer=[floats("w", 1, 2)],
        ir_version=3,
    )


def test_before_ir_version_4_an_initializer_is_a_constant():
    model = assert_round_trip(_old_model())
    assert [tensor.name for tensor in model.graph.inputs] == ["x"]
    assert isinstance(model.graph.nodes[0].inputs[0], gs.Constant)


def test_a_new_initializer_raises_ir_version_3():
    model = Model.from_proto(_old_model())
    model.graph.nodes[0].inputs[0] = gs.Constant("v", np.ones(2, np.float32))
    exported = model.to_proto()
    assert exported.ir_version == 4
    assert [value.name for value in exported.graph.input] == ["x"]
    onnx.checker.check_model(exported)


def test_raising_the_ir_version_does_not_make_weights_overridable():
    proto = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [info("x"), info("w")],
        [info("y")],
        initializer=[floats("w", 1, 2)],
        ir_version=3,
    )
    model = Model.from_proto(proto)
    model.graph.nodes[0].op, model.graph.nodes[0].domain = "FusedElementwise", "onnxfuse"
    exported = model.to_proto()
    assert [value.name for value in exported.graph.input] == ["x"]
    assert [tensor.name for tensor in exported.graph.initializer] == ["w"]


def test_fused_nodes_bring_their_opset_and_ir_version():
    model = Model.from_proto(model_of([helper.make_node("Relu", ["x"], ["y"], name="old")], [info("x")], [info("y")]))
    old = model.graph.nodes[0]
    inputs, outputs = list(old.inputs), list(old.outputs)
    old.inputs.clear()
    old.outputs.clear()
    fused = Node("FusedElementwise", "new", {"program": "text"}, inputs, outputs, "onnxfuse", overload="relu")
    fused.metadata["from"] = "old"
    model.graph.nodes = [fused]
    model.functions["onnxfuse", "FusedElementwise", "relu"] = onnx.FunctionProto(
        name="FusedElementwise", domain="onnxfuse", overload="relu"
    )
    proto = model.to_proto()
    assert proto.ir_version == 10
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 17), ("onnxfuse", 1)]
    assert [function.overload for function in proto.functions] == ["relu"]
    node = proto.graph.node[0]
    assert (node.overload, node.name, node.domain, list(node.output)) == ("relu", "new", "onnxfuse", ["y"])
    assert node.metadata_props[0].key == "from"
    assert proto.graph.output[0] == info("y")


def test_a_changed_node_keeps_what_was_not_changed():
    proto = nasty_model()
    model = Model.from_proto(proto)
    node = next(node for node in model.graph.nodes if node.op == "Everything")
    node.attrs["nan"] = 1
    node.attrs["floats"] = [0.0, float("inf"), 0.1]
    node.attrs["tensor"].values = np.array([2], np.float32)
    node.attrs["added"] = np.int64(3)
    del node.attrs["type"]
    written = {item.name: item for item in model.to_proto().graph.node[1].attribute}
    before = {item.name: item for item in proto.graph.node[1].attribute}
    assert (written["nan"].type, written["nan"].f, written["nan"].doc_string) == (
        AttributeProto.FLOAT,
        1,
        "documented",
    )
    assert np.signbit(written["floats"].floats).tolist() == [False, False, False]
    assert numpy_helper.to_array(written["tensor"].t).tolist() == [2]
    assert (written["added"].type, written["added"].i) == (AttributeProto.INT, 3)
    assert set(written) - set(before) == {"added"}
    assert set(before) - set(written) == {"type"}
    for name in set(before) - {"nan", "floats", "tensor", "type"}:
        assert written[name] == before[name]


def test_constants_are_dropped_with_their_last_user_only():
    proto = model_of(
        [
            helper.make_node("Add", ["x", "a"], ["t"], name="first"),
            helper.make_node("Mul", ["t", "b"], ["y"]),
        ],
        [info("x")],
        [info("y")],
        initializer=[floats("a", 1, 2), floats("idle", 0), floats("b", 3, 4)],
        value_info=[info("t"), info("a")],
    )
    model = Model.from_proto(proto)
    first, second = model.graph.nodes
    second.inputs[0] = first.inputs[0]
    second.inputs[1].values = np.array([5, 6], np.float32)
    model.graph.nodes.remove(first)
    graph = model.to_proto().graph
    assert [tensor.name for tensor in graph.initializer] == ["idle", "b"]
    assert numpy_helper.to_array(graph.initializer[1]).tolist() == [5, 6]
    assert [value.name for value in graph.value_info] == []


def test_a_folded_variable_becomes_an_initializer():
    proto = model_of(
        [helper.make_node("Neg", ["a"], ["t"]), helper.make_node("Mul", ["x", "t"], ["y"])],
        [info("x")],
        [info("y")],
        initializer=[floats("a", 1, 2)],
        value_info=[info("t")],
    )
    model = Model.from_proto(proto)
    folded = model.graph.nodes[0].outputs[0]
    model.graph.nodes[0].outputs.clear()
    del model.graph.nodes[0]
    folded.to_constant(np.array([-1, -2], np.float32))
    graph = model.to_proto().graph
    assert [tensor.name for tensor in graph.initializer] == ["t"]
    assert not graph.value_info


def test_constants_of_subgraphs_stay_there_and_are_shared_from_outside():
    model = Model.from_proto(nasty_model())
    deep = next(graph for graph in model.graphs() if graph.name == "deep")
    new = gs.Constant(model.unique_name("v"), np.array([9, 9], np.float32))
    deep.nodes[1].inputs[1] = new
    exported = Model.from_proto(model.to_proto())
    deep = next(graph for graph in exported.graphs() if graph.name == "deep")
    assert [entry.proto.name for entry in deep.source.initializers] == ["v_1"]
    main = model.graph.nodes[0]
    main.inputs[0] = new
    exported = Model.from_proto(model.to_proto())
    deep = next(graph for graph in exported.graphs() if graph.name == "deep")
    assert deep.source.initializers == []
    assert deep.nodes[1].inputs[1] is exported.graph.nodes[0].inputs[0]


def test_large_new_constants_are_outside_of_subgraphs():
    """ONNX Runtime has two copies of what is inside."""
    model = Model.from_proto(nasty_model())
    deep = next(graph for graph in model.graphs() if graph.name == "deep")
    deep.nodes[1].inputs[1] = gs.Constant("large", np.arange(1024, dtype=np.float32))
    exported = Model.from_proto(model.to_proto())
    deep = next(graph for graph in exported.graphs() if graph.name == "deep")
    assert deep.source.initializers == []
    assert "large" in [tensor.name for tensor in exported.to_proto().graph.initializer]


def test_large_constants_of_one_name_stay_in_their_bodies():
    """Outside of both they would be one: ONNX Runtime takes the last of two initializers of a name."""

    def branch(value: float) -> GraphProto:
        nodes = [
            helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.full(1024, value, np.float32))),
            helper.make_node("Mul", ["x", "k"], ["o"]),
        ]
        return helper.make_graph(nodes, f"branch {value}", [], [info("o", [1024])])

    choice = helper.make_node("If", ["flag"], ["y"], then_branch=branch(2), else_branch=branch(3))
    inputs = [info("x", [1024]), info("flag", [], TensorProto.BOOL)]
    proto = onnxfuse.optimize(model_of([choice], inputs, [info("y", [1024])]), check=False).model
    assert [tensor.name for tensor in proto.graph.initializer] == []
    session = onnxfuse.InferenceSession(proto.SerializeToString())
    for flag, wanted in ((True, 2), (False, 3)):
        (y,) = session.run(None, {"x": np.ones(1024, np.float32), "flag": np.array(flag)})
        assert np.array_equal(y, np.full(1024, wanted, np.float32))


def test_captured_tensors_are_the_objects_outside():
    model = Model.from_proto(nasty_model())
    branching = next(node for node in model.graph.nodes if node.op == "If")
    assert {tensor.name for tensor in captured_tensors(branching)} == {"x", "w", "flag"}
    assert any(tensor is model.graph.inputs[0] for tensor in captured_tensors(branching))
