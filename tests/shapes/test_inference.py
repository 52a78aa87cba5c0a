"""Element types and shapes of the graph's Variables."""

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.errors import OnnxfuseError
from onnxfuse.files.model_io import load_proto
from onnxfuse.model.graph import Model
from onnxfuse.shapes.inference import infer


def info(name: str, shape: list | None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(
    nodes: list, inputs: list, outputs: list, initializer: list | None = None, value_info=(), opset: int = 17
) -> Model:
    graph = helper.make_graph(nodes, "main", inputs, outputs, initializer, value_info=value_info)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("custom", 1)]
    return Model.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def types(model: Model) -> dict[str, tuple]:
    return {
        tensor.name: (tensor.dtype, tensor.shape)
        for graph in model.graphs()
        for node in graph.nodes
        for tensor in node.outputs
        if isinstance(tensor, gs.Variable)
    }


def test_shapes_through_constants_of_any_size():
    nodes = [
        helper.make_node("MatMul", ["x", "weights"], ["m"]),
        helper.make_node("Reshape", ["m", "shape"], ["r"]),
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.BFLOAT16),
    ]
    initializer = [
        numpy_helper.from_array(np.zeros((64, 32), np.float32), "weights"),
        numpy_helper.from_array(np.array([-1, 4, 8]), "shape"),
    ]
    model = model_of(nodes, [info("x", ["N", 64])], [info("y", None, TensorProto.BFLOAT16)], initializer)
    before = model.to_proto()
    infer(model)
    found = types(model)
    assert found["m"] == (np.float32, ["N", 32])
    assert found["r"][1][1:] == [4, 8]
    assert found["y"][0] == ml_dtypes.bfloat16
    assert model.to_proto() == before, "inferred types were written"


def test_shape_arithmetic_is_followed():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "first"], ["n"]),
        helper.make_node("Concat", ["n", "four"], ["target"], axis=0),
        helper.make_node("Expand", ["scalar", "target"], ["y"]),
    ]
    initializer = [
        numpy_helper.from_array(np.array([0]), "first"),
        numpy_helper.from_array(np.array([4]), "four"),
        numpy_helper.from_array(np.float32(1), "scalar"),
    ]
    model = model_of(nodes, [info("x", ["N", 3])], [info("y", None)], initializer)
    infer(model)
    assert types(model)["y"] == (np.float32, ["N", 4])


def test_subgraphs_and_symbols():
    then = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("NonZero", ["a"], ["b"])],
        "then",
        [],
        [onnx.ValueInfoProto(name="b")],
    )
    other = helper.make_graph([helper.make_node("NonZero", ["x"], ["c"])], "else", [], [onnx.ValueInfoProto(name="c")])
    model = model_of(
        [helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other)],
        [info("x", ["N", 4]), info("flag", [], TensorProto.BOOL)],
        [info("y", None, TensorProto.INT64)],
    )
    infer(model)
    found = types(model)
    assert found["a"] == (np.float32, ["N", 4])
    assert found["b"][0] == np.int64
    assert found["b"][1][0] == 2
    assert isinstance(found["b"][1][1], str)


def test_unknown_operators_leave_unknown_types():
    nodes = [
        helper.make_node("Mystery", ["x"], ["a"], domain="custom"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Relu", ["x"], ["c"]),
    ]
    model = model_of(nodes, [info("x", [2])], [info("b", None), info("c", None)])
    infer(model)
    found = types(model)
    assert found["a"] == (None, None)
    assert found["c"] == (np.float32, [2])


def test_other_shapes_for_inputs():
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Neg", ["r"], ["y"])]
    model = model_of(
        nodes, [info("x", ["N", 3, None])], [info("y", ["A", 3, 640])], value_info=[info("r", [1, 3, 640])]
    )
    infer(model, {"x": [2, 3, "W"]})
    assert types(model) == {"r": (np.float32, [2, 3, "W"]), "y": (np.float32, [2, 3, "W"])}
    assert model.graph.inputs[0].shape == [2, 3, "W"]
    assert model.to_proto().graph.input[0] == info("x", ["N", 3, None])


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": [1]}, "no input 'z'; its inputs: x"),
        ({"x": [1, 3]}, "has 3 dimensions, not 2"),
        ({"x": [1, 4, 5]}, "dimension 1 is 3, not 4"),
        ({"x": [-1, 3, 5]}, "dimension 0 is a size, not -1"),
    ],
)
def test_shapes_that_do_not_fit(shapes, message):
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [info("x", ["N", 3, None])], [info("y", None)])
    with pytest.raises(OnnxfuseError, match=message):
        infer(model, shapes)


def test_a_contradiction_in_shapes_is_no_error():
    nodes = [helper.make_node("Add", ["x", "z"], ["a"]), helper.make_node("Relu", ["x"], ["y"])]
    model = model_of(nodes, [info("x", [2]), info("z", [3])], [info("y", None), info("a", None)])
    infer(model)
    assert types(model)["y"] == (np.float32, [2])


def test_types_that_are_no_tensors():
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
    ]
    model = model_of(nodes, [info("x", [2])], [info("y", None)])
    infer(model)
    sequence = model.graph.nodes[0].outputs[0]
    assert (sequence.type, sequence.dtype, sequence.shape) == ("sequence_type", None, None)
    assert types(model)["y"][0] == np.float32


def test_sparse_initializers_are_tensors():
    graph = helper.make_graph([helper.make_node("Add", ["x", "s"], ["y"])], "g", [info("x", [3])], [info("y", None)])
    values, indices = numpy_helper.from_array(np.float32([5]), "s"), numpy_helper.from_array(np.array([4]))
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = load_proto(proto)
    assert types(model) == {"y": (np.float32, [2, 3])}
    assert model.to_proto() == proto


@pytest.mark.parametrize("imported", ["", "ai.onnx"])
def test_the_domain_of_onnx_may_be_spelled_out(imported):
    body = helper.make_graph([helper.make_node("Abs", ["r"], ["a"], domain="ai.onnx")], "b", [], [info("a", [2])])
    choice = helper.make_node("If", ["c"], ["y"], domain="ai.onnx", then_branch=body, else_branch=body)
    nodes = [helper.make_node("Relu", ["x"], ["r"], domain="ai.onnx"), choice]
    inputs = [info("x", [2]), info("c", [], TensorProto.BOOL)]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", None)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid(imported, 17)], ir_version=8)
    model = load_proto(proto)
    assert types(model) == dict.fromkeys("rya", (np.float32, [2]))
    assert model.to_proto() == proto


def test_what_did_not_change_is_inferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of([helper.make_node("Transpose", ["x"], ["y"], "turn", perm=[1, 0])], [info("x", [2, 3])], [])
    calls = []
    infer_shapes = onnx.shape_inference.infer_shapes
    monkeypatch.setattr(
        onnx.shape_inference, "infer_shapes", lambda *args, **kw: calls.append(args) or infer_shapes(*args, **kw)
    )
    infer(model)
    once = len(calls)
    infer(model, {"x": [2, 3]})
    assert len(calls) == once  # which are the declared ones
    (y,) = model.graph.nodes[0].outputs
    y.shape = None
    infer(model)
    assert (y.shape, len(calls)) == ([3, 2], once)

    model.graph.nodes[0].attrs["perm"] = [0, 1]
    infer(model)
    assert (y.shape, len(calls)) == ([2, 3], 2 * once)


def test_nodes_out_of_order_get_their_own_types():
    then = helper.make_graph([helper.make_node("Abs", ["made"], ["t"])], "then", [], [onnx.ValueInfoProto(name="t")])
    other = helper.make_graph([helper.make_node("Neg", ["made"], ["e"])], "else", [], [onnx.ValueInfoProto(name="e")])
    nodes = [
        helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other),
        helper.make_node("Relu", ["x"], ["made"]),
    ]
    model = model_of(nodes, [info("x", [2, "N"]), info("flag", [], TensorProto.BOOL)], [info("y", None)])
    infer(model)
    assert {found for name, found in ((n, str(t)) for n, t in types(model).items())} == {
        str((np.dtype(np.float32), [2, "N"]))
    }


def test_long_vectors_take_little_time_and_memory():
    nodes = [helper.make_node("Add", ["x", "w"], ["t"]), helper.make_node("Mul", ["t", "w"], ["y"])]
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 30])
    weights.data_location = TensorProto.EXTERNAL
    model = model_of(nodes, [info("x", [1])], [info("y", None)], [weights])
    infer(model)
    assert types(model)["y"] == (np.float32, [1 << 30])


def test_declared_shapes_of_constants_hold_for_any_input():
    """torch.export declares those of initializers like those of other tensors."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    weights = numpy_helper.from_array(np.zeros((6, 4), np.float32), "w")
    declared = [info("w", [6, 4]), info("m", ["N", 4])]
    model = model_of(nodes, [info("x", ["N", 6])], [info("y", None)], [weights], declared)
    infer(model, {"x": ["rows", 6]})
    assert types(model)["m"] == types(model)["y"] == (np.float32, ["rows", 4])


@pytest.mark.parametrize("opset", [12, 17])
def test_shapes_computed_from_constant_nodes(opset):
    def constant(name: str, *values: int) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(values)))

    nodes = [
        *(constant("zero", 0), constant("two", 2), constant("rest", -1)),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "two", "zero"], ["first"]),
        helper.make_node("Concat", ["first", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["r"]),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    model = model_of(nodes, [info("x", ["N", 3, 4, 5])], [info("y", None)], opset=opset)
    infer(model)
    assert types(model)["r"] == types(model)["y"] == (np.float32, ["N", 3, 20])


@pytest.mark.parametrize(
    ("way", "dtype", "step"),
    [
        ("initializer", np.int64, np.iinfo(np.int64).max),
        ("initializer", np.int64, np.iinfo(np.int64).min),
        ("initializer", np.int32, np.iinfo(np.int32).max),
        ("Constant", np.int64, np.iinfo(np.int64).max),
        ("ints", np.int64, np.iinfo(np.int64).max),
    ],
)
def test_steps_that_overflow(way, dtype, step):
    """onnx would gather elements until the memory is full, or read some that there are not."""
    nodes = [
        helper.make_node("Slice", ["x", "start", "end", "axis", "step"], ["y"]),
        helper.make_node("Neg", ["y"], ["z"]),
    ]
    numbers = {"start": 1, "end": 9, "axis": 0, "step": step}
    tensors = [numpy_helper.from_array(np.array([number], dtype), name) for name, number in numbers.items()]
    if way == "Constant":
        nodes.insert(0, helper.make_node("Constant", [], ["step"], value=tensors.pop()))
    elif way == "ints":
        nodes.insert(0, helper.make_node("Constant", [], ["step"], value_ints=[numbers["step"]]))
        tensors.pop()
    model = model_of(nodes, [info("x", [7], TensorProto.INT64)], [info("z", None, TensorProto.INT64)], tensors)
    infer(model)
    assert types(model)["y"][0] == np.int64


def test_a_rank_that_no_tensor_has():
    """The length of the shape that an input gives is the file's to claim."""
    reshape = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("Relu", ["r"], ["y"])]
    for rank in (3, 1 << 16):
        inputs = [info("x", [4]), info("shape", [rank], TensorProto.INT64)]
        model = model_of(reshape, inputs, [info("y", None)], opset=13)
        infer(model)
        shape = types(model)["r"][1]
        assert shape is None if rank > 3 else len(shape) == 3


def test_question_marks_are_no_symbol():
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [info("x", ["?", "?", "N"])], [info("y", None)])
    infer(model)
    assert types(model)["y"] == (np.float32, [None, None, "N"])


def pool_up(operator: str, kernel: int, stride: int, pad: int = 0) -> onnx.NodeProto:
    """A pool that rounds its size up."""
    window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    return helper.make_node(operator, ["x"], ["a"], ceil_mode=1, **window)


@pytest.mark.parametrize(
    ("node", "size", "constants"),
    [
        (pool_up("MaxPool", 2, 2, 1), 5, {}),
        (pool_up("MaxPool", 2, 2, 1), 6, {}),
        (pool_up("MaxPool", 3, 2), 6, {}),
        (pool_up("AveragePool", 1, 2), 6, {}),
        (pool_up("AveragePool", 2, 3), 6, {}),
        (helper.make_node("Resize", ["x", "", "scales"], ["a"]), 5, {"scales": np.array([1, 1, 1.4, 2.6], np.float32)}),
        (helper.make_node("Resize", ["x", "", "scales"], ["a"]), 5, {"scales": np.array([1, 1, 2, 1.5], np.float32)}),
        (
            helper.make_node(
                "ConvTranspose", ["x", "w"], ["a"], strides=[2, 2], auto_pad="SAME_UPPER", output_padding=[1, 1]
            ),
            5,
            {"w": np.ones((2, 2, 3, 3), np.float32)},
        ),
    ],
)
def test_sizes_are_those_that_onnx_runtime_computes(node: onnx.NodeProto, size: int, constants: dict) -> None:
    """Or none: what onnx's inference says of these is wrong here and there, and so is what follows from it."""
    model = model_of(
        [node, helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Abs", ["b"], ["y"])],
        [info("x", [1, 2, size, size])],
        [info("y", None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
        opset=19,
    )
    proto = model.to_proto()
    infer(model)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": np.zeros((1, 2, size, size), np.float32)})
    for name in ("a", "b"):
        shape = types(model)[name][1]
        assert len(shape) == 4
        assert all(dim is None or dim == own for dim, own in zip(shape, result.shape, strict=True))


@pytest.mark.parametrize(("parts", "shape"), [("", [2, 1]), ("parts", None)])
def test_parts_of_a_sequence_may_have_another_rank(parts: str, shape: list[int] | None) -> None:
    """ONNX Runtime drops the dimension of parts of a size that is given too, where ONNX keeps it."""
    nodes = [
        helper.make_node("SplitToSequence", ["x", parts][: 1 + bool(parts)], ["s"], keepdims=0),
        helper.make_node("SequenceAt", ["s", "first"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in (("first", 0), ("parts", 1))]
    model = model_of(nodes, [info("x", [1, 2, 1])], [info("y", None)], constants)
    proto = model.to_proto()
    infer(model)
    assert types(model)["a"][1] == shape
    (result,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": np.zeros((1, 2, 1), np.float32)})
    assert result.shape == (2, 1)


@pytest.mark.parametrize(("values", "rank"), [([1, 2, 4, 3], 4), (None, None)])
def test_products_of_an_attention_of_values_of_any_rank_have_any_rank(
    values: list[int] | None, rank: int | None
) -> None:
    nodes = [
        helper.make_node("Attention", ["q", "k", "v"], ["o", "", "", "a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    inputs = [info("q", [1, 2, 3, 3]), info("k", [1, 2, 4, 3]), info("v", values)]
    model = model_of(nodes, inputs, [info("y", None)], opset=23)
    infer(model)
    shape = types(model)["a"][1]
    assert (None if shape is None else len(shape)) == rank


def test_sizes_of_other_pools_are_known() -> None:
    pool = helper.make_node(
        "MaxPool", ["x"], ["a"], kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1], ceil_mode=1
    )
    model = model_of([pool, helper.make_node("Relu", ["a"], ["y"])], [info("x", [1, 2, 112, 112])], [info("y", None)])
    infer(model)
    assert types(model)["a"][1] == [1, 2, 56, 56]


def test_sizes_that_come_out_of_a_body() -> None:
    body = helper.make_graph([pool_up("MaxPool", 2, 2, 1)], "body", [], [info("a", None)])
    chosen = helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body)
    model = model_of(
        [chosen, helper.make_node("Relu", ["z"], ["y"])],
        [info("x", [1, 2, 5, 5]), info("c", [], TensorProto.BOOL)],
        [info("y", None)],
    )
    infer(model)
    known = types(model)
    assert [known[name][1] for name in "azy"] == [[None] * 4] * 3


def test_a_pool_of_what_is_no_image_says_nothing() -> None:
    pool = helper.make_node("MaxPool", ["x"], ["a"], ceil_mode=1)
    pool.attribute.add(name="kernel_shape", type=onnx.AttributeProto.INTS)
    relu = helper.make_node("Relu", ["a"], ["y"])
    model = model_of([pool, relu], [info("x", [2, 3])], [info("y", None)], value_info=[info("a", [2, 3])])
    infer(model)
    assert types(model)["a"][1] == [2, 3]


@pytest.mark.parametrize("as_input", (False, True))
def test_symbols_that_onnx_made_up_are_found_anew(as_input: bool) -> None:
    """Those of inputs are declared, as tf2onnx declares them."""
    name = "unk__0"
    nodes = [helper.make_node("Compress", ["x", "c"], ["k"], axis=0), helper.make_node("Exp", ["k"], ["y"])]
    inputs = [info("x", [name if as_input else "n", 4]), info("c", ["m"], TensorProto.BOOL)]
    model = model_of(nodes, inputs, [info("y", [name, 4])], value_info=[info("k", [name, 4])])
    infer(model)
    (size, columns), other = (types(model)[tensor][1] for tensor in "ky")
    assert columns == 4 and other == [size, 4] and (size == name if as_input else size.startswith("?unk__"))
    assert [dim.dim_param for dim in model.to_proto().graph.value_info[0].type.tensor_type.shape.dim] == [name, ""]


def test_what_is_said_of_initializers_does_not_count() -> None:
    """Converters to float16 leave their old types there."""
    weights = numpy_helper.from_array(np.ones(4, np.float16), "w")
    node = helper.make_node("Add", ["x", "w"], ["y"])
    outputs = [info("y", None, TensorProto.FLOAT16)]
    inputs = [info("x", ["n", 4], TensorProto.FLOAT16)]
    proto = model_of([node], inputs, outputs, [weights], value_info=[info("w", [4])]).to_proto()
    assert types(load_proto(proto))["y"] == (np.float16, ["n", 4])


CONTRIB = {
    "FastGelu": ([], {}, [2, "n", 6]),
    "SkipSimplifiedLayerNormalization": (["x", "g"], {}, [2, "n", 6]),
    "MatMulNBits": (["b", "s"], {"K": 6, "N": 5, "bits": 4, "block_size": 16}, [2, "n", 5]),
    "GroupQueryAttention": (["x", "x"], {"num_heads": 2, "kv_num_heads": 2}, [2, "n", 6]),
}


@pytest.mark.parametrize("op", CONTRIB)
@pytest.mark.parametrize("dtype", (np.float16, np.float32))
def test_operators_of_onnx_runtime(op: str, dtype: type) -> None:
    operands, attributes, shape = CONTRIB[op]
    elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    outputs = ["h", "", "", "t"] if op.startswith("Skip") else ["h"]
    nodes = [
        helper.make_node(op, ["x", *operands], outputs, domain="com.microsoft", **attributes),
        helper.make_node("Abs", outputs[-1:], ["y"]),
    ]
    constants = {"g": np.ones(6, dtype), "b": np.zeros((5, 1, 8), np.uint8), "s": np.ones((5, 1), dtype)}
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items() if name in operands]
    model = model_of(nodes, [info("x", [2, "n", 6], elem_type)], [info("y", None, elem_type)], initializers)
    infer(model)
    assert types(model)["h"] == types(model)["y"] == (dtype, shape)


@pytest.mark.parametrize(("dtype", "attributes"), [(np.uint8, {}), (np.uint8, {"bits": 8}), (None, {})])
def test_rows_of_a_quantized_table(dtype: type | None, attributes: dict) -> None:
    size = 32 // (1 if dtype is None or attributes else 2)
    table = helper.make_tensor("d", TensorProto.UINT4, [9, size], np.zeros(9 * size)) if dtype is None else None
    scales = numpy_helper.from_array(np.ones((9, 2), np.float32), "s")
    gather = helper.make_node(
        "GatherBlockQuantized", ["d", "x", "s"], ["y"], domain="com.microsoft", block_size=16, **attributes
    )
    data = table or numpy_helper.from_array(np.zeros((9, size), np.uint8), "d")
    inputs = [info("x", [2, "n"], TensorProto.INT64)]
    model = model_of([gather], inputs, [info("y", None)], [data, scales])
    infer(model)
    assert types(model)["y"] == (np.float32, [2, "n", 32])
