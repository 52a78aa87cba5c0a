"""Models that onnx's checker lets through and no exporter writes: they are refused in one line, or worked with."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper, parser

import onnxfuse
from onnxfuse.check.numerics import probabilities
from onnxfuse.errors import OnnxfuseError
from onnxfuse.files import model_io
from onnxfuse.planning.inspection import Inspection, inspect
from onnxfuse.planning.statistics import collect
from tests.support import fusing

WEIGHTS = numpy_helper.from_array(np.full((16, 16, 3, 3), 0.1, np.float32), "w")
VECTOR = numpy_helper.from_array(np.full(16, 0.5, np.float32), "v")
PER_CHANNEL = numpy_helper.from_array(np.full((16, 1, 1), 0.5, np.float32), "k")


def model_of(nodes: list[NodeProto], rank: int = 4, opset: int = 17) -> onnx.ModelProto:
    """The nodes on an input x with 16 channels, which a has too if there is one; y is what the last gives."""
    shapes = {"x": [1, 16, 8, 8][:rank], "y": None, "a": [1, 16, "h", "w"]}
    x, y, a = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    graph = helper.make_graph(nodes, "g", [x], [y], [WEIGHTS, VECTOR, PER_CHANNEL], value_info=[a])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("acme", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def inspected(model: onnx.ModelProto, path: Path, target: str = "cpu") -> Inspection:
    """What all passes make of a model."""
    onnx.save(model, path)
    return inspect(path, target)


def node_of(model: onnx.ModelProto, op: str) -> NodeProto:
    return next(node for node in model.graph.node if node.op_type == op)


BRANCHES = (
    '<ir_version: 8, opset_import: ["" : 17]> g (bool f, float[2] x) => (float[2] y) '
    "{ y = If(f) <then_branch = t () => (float[2] o) { o = Relu(x) }, "
    "else_branch = e () => (float[2] q) { q = Abs(x) }> }"
)


@pytest.mark.parametrize("name", ["pads", "else_branch"])
def test_an_attribute_of_a_function_outside_functions_is_refused(name: str) -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["y"], name="odd", pads=[1, 1, 1, 1])
    model = model_of([conv]) if name == "pads" else parser.parse_model(BRANCHES)
    attributes = {attribute.name: attribute for attribute in model.graph.node[0].attribute}
    attributes[name].ref_attr_name = "given"
    with pytest.raises(OnnxfuseError, match=f"'(odd|y)' .*attribute '{name}' stands for one of a function"):
        model_io.load_proto(model)


@pytest.mark.parametrize(("op", "group"), [("Conv", 0), ("Conv", -16), ("ConvTranspose", 0)])
def test_convolutions_of_no_groups_are_refused(op: str, group: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "k"], ["m"]),
        helper.make_node(op, ["m", "w"], ["c"], name="odd", group=group),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    with pytest.raises(OnnxfuseError, match=rf"node 'odd' \({op}\): its group is {group}"):
        inspected(model_of(nodes), tmp_path / "m.onnx")
    nodes[1].domain = "acme"
    assert inspected(model_of(nodes), tmp_path / "m.onnx").operators[op] == 1


FOREIGN = {
    "Concat": [
        helper.make_node("Concat", ["c"], ["a"], domain="acme", axis="rows"),
        *(helper.make_node("Mul", ["a", "x"], ["m"]), helper.make_node("Neg", ["m"], ["y"])),
    ],
    "Conv": [helper.make_node("Conv", ["x"], ["a"], domain="acme"), helper.make_node("Relu", ["a"], ["y"])],
    "DequantizeLinear": [
        helper.make_node("DequantizeLinear", [], ["a"], domain="acme"),
        helper.make_node("Mul", ["a", "x"], ["y"]),
    ],
    "If": [helper.make_node("If", [], ["a"], domain="acme"), helper.make_node("Mul", ["a", "x"], ["y"])],
    "LayerNormalization": [
        helper.make_node("LayerNormalization", [], ["a"], domain="acme"),
        helper.make_node("Mul", ["a", "x"], ["y"]),
    ],
    "MatMul": [helper.make_node("MatMul", ["x"], ["a"], domain="acme"), helper.make_node("Add", ["a", "v"], ["y"])],
    "HardSigmoid": [
        helper.make_node("HardSigmoid", ["c"], ["a"], domain="acme", alpha="steep"),
        helper.make_node("Mul", ["c", "a"], ["y"]),
    ],
    "Div": [
        helper.make_node("Div", ["c"], ["a"], domain="acme"),
        helper.make_node("Mul", ["a", "k"], ["m"]),
        helper.make_node("Conv", ["m", "w"], ["y"]),
    ],
    "Reshape": [helper.make_node("Reshape", ["c", "x"], [], domain="acme"), helper.make_node("Relu", ["c"], ["y"])],
}
"""Nodes of a domain that ONNX does not know, named as ONNX's are and with fewer inputs and outputs."""


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("op", FOREIGN)
def test_another_domain_may_use_the_names_of_the_standard(op: str, target: str, tmp_path: Path) -> None:
    model = model_of([helper.make_node("Conv", ["x", "w"], ["c"]), *FOREIGN[op]])
    found = inspected(model, tmp_path / "m.onnx", target)
    assert found.operators[op] >= 1 and not any(op in region.ops for region in found.plan.fused)


def test_a_convolution_of_another_domain_may_have_no_weights(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Conv", ["r"], ["a"], domain="acme"),
        *(helper.make_node("Conv", ["r", "w"], ["c"]), helper.make_node("Sigmoid", ["c"], ["y"])),
    ]
    model = model_of(nodes)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "channels"
    assert inspected(model, tmp_path / "m.onnx").operators["Conv"] == 2


@pytest.mark.parametrize("tensors", [([], ["a"]), (["x"], [])])
@pytest.mark.parametrize("op", ["Floor", "DynamicQuantizeLinear", "Cast"])
def test_another_domain_may_round_float16_in_its_own_way(
    op: str, tensors: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    """Where the last digit of a float16 decides is asked of nodes whatever their domain."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"]), helper.make_node(op, *tensors, domain="acme")]
    model = model_of(nodes)
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = TensorProto.FLOAT16
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(numpy_helper.to_array(WEIGHTS).astype(np.float16), "w"))
    assert inspected(model, tmp_path / "m.onnx").operators[op] == 1


def test_text_that_is_not_utf8_as_the_padding(tmp_path: Path) -> None:
    conv = helper.make_node("Conv", ["m", "w"], ["y"], auto_pad="?")
    conv.attribute[0].s = b"\xff\xfe"
    for target in ("cpu", "cuda"):
        mul_conv = [helper.make_node("Add", ["x", "k"], ["m"]), conv]
        assert inspected(model_of(mul_conv), tmp_path / "m.onnx", target).nodes == 2


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_convolution_of_a_scalar(target: str, tmp_path: Path) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    assert inspected(model_of(nodes, rank=0), tmp_path / "m.onnx", target).nodes == 2


def test_a_softmax_over_an_axis_that_is_not_there(tmp_path: Path) -> None:
    found = inspected(model_of([helper.make_node("Softmax", ["x"], ["y"], axis=7)]), tmp_path / "m.onnx")
    reasons = {refusal.reason for refusal in found.plan.refusals}
    assert reasons == {"its axis is out of range", "Softmax along an axis that there is not"}


def test_the_name_of_a_type_to_cast_to(tmp_path: Path) -> None:
    """As it was before opset 6; one that there is not is not for us to judge."""
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to="FLOAT"),
        helper.make_node("Cast", ["a"], ["b"], to="NOTHING"),
        helper.make_node("Identity", ["b"], ["y"]),
    ]
    found = inspected(model_of(nodes, opset=5), tmp_path / "m.onnx")
    assert [rewrite.nodes for rewrite in found.plan.rewrites if rewrite.rule == "fold-constants"] == [("a",)]


@pytest.mark.parametrize(("levels", "refused"), [(4, False), (40, True)])
def test_functions_that_call_each_other_twice_and_twice_again(levels: int, refused: bool, tmp_path: Path) -> None:
    """A file of a few kB may stand for more nodes than can be inlined."""
    model = model_of([helper.make_node("F0", ["x"], ["y"], domain="acme")])
    for level in range(levels):
        call = ("Relu", "") if level == levels - 1 else (f"F{level + 1}", "acme")
        body = [helper.make_node(call[0], [a], [b], domain=call[1]) for a, b in ("ab", "bc")]
        model.functions.append(helper.make_function("acme", f"F{level}", "a", "c", body, model.opset_import))
    if refused:
        with pytest.raises(OnnxfuseError, match="stand for 1099511627776 nodes, more than the 4194304"):
            inspected(model, tmp_path / "m.onnx")
    else:
        assert collect(model_io.load_proto(model)).nodes == 16


@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand", "Reshape"])
def test_shapes_of_more_sizes_than_any_tensor_has(op: str, tmp_path: Path) -> None:
    model = model_of([helper.make_node(op, ["s"] if op == "ConstantOfShape" else ["x", "s"], ["y"])], opset=9)
    model.graph.input.append(helper.make_tensor_value_info("s", TensorProto.INT64, [1 << 31]))
    with pytest.raises(OnnxfuseError, match=f"{op} to a shape of 2147483648 sizes in 's'"):
        inspected(model, tmp_path / "m.onnx")


def test_branches_that_return_each_other() -> None:
    """What outputs are is asked of models that no checker has seen."""
    model = parser.parse_model(BRANCHES)
    for attribute in node_of(model, "If").attribute:
        assert attribute.type == AttributeProto.GRAPH
        del attribute.g.node[:]
        attribute.g.output[0].name = "y"
    assert probabilities(model) == set()
    del model.graph.node[0].attribute[0].g.output[:]
    assert probabilities(model) == set()


def test_an_input_without_a_shape_may_be_given_one(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["a"], ["s"]),
        helper.make_node("Mul", ["a", "s"], ["y"]),
    ]
    weights = numpy_helper.from_array(np.full((16, 16, 3, 3), 0.01, np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [weights])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnxfuse.optimize(made, "cpu", shapes={"x": (2, 16, 20, 20)})


@pytest.mark.parametrize("rank", [64, 65, 500])
def test_more_dimensions_than_arrays_have(rank: int) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1] * rank) for name in "xy"]
    made = helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:]), ir_version=8)
    made.opset_import[0].version = 17
    if rank <= 64:
        onnxfuse.optimize(made, "cpu")
    else:
        with pytest.raises(OnnxfuseError, match=f"input 'x' has {rank} dimensions, and NumPy's arrays 64 at most"):
            onnxfuse.optimize(made, "cpu")


def test_a_symbol_of_several_sizes() -> None:
    """Two models through onnx's inference, merged: each has its first made-up symbol, by which memory is planned."""
    nodes = [
        helper.make_node("Compress", ["a", "c"], ["ak"], axis=0),
        helper.make_node("Compress", ["b", "d"], ["bk"], axis=0),
        *(helper.make_node(op, [f"{name}k"], [f"{name}y"]) for op, name in (("Tanh", "a"), ("Relu", "b"))),
        helper.make_node("Add", ["ay", "by"], ["s"]),
        helper.make_node("Softmax", ["s"], ["t"]),
        helper.make_node("Mul", ["t", "ay"], ["y"]),
    ]
    model = model_of(nodes)
    del model.graph.input[:], model.graph.output[:]
    model.graph.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in "ab")
    model.graph.input.extend(helper.make_tensor_value_info(name, TensorProto.BOOL, ["n"]) for name in "cd")
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 64]))
    known = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["unk__0", 64]) for name in ("ak", "bk", "ay", "by")
    ]
    model.graph.value_info.extend(known)
    result = onnxfuse.optimize(model, check=False)
    assert result.report.fused
    for first, second in ((3, 1), (1, 3), (2, 2)):
        feeds = {name: np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32) for name in "ab"}
        feeds |= {name: np.arange(5) < count for name, count in (("c", first), ("d", second))}
        (expected,), (actual,) = (fusing.run(each, feeds, library=True) for each in (model, result.model))
        np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_operators_of_onnx_runtime_without_an_import() -> None:
    """Its own optimizer leaves it out, and it takes such models."""
    nodes = [helper.make_node("FastGelu", ["x"], ["h"], domain="com.microsoft")]
    nodes += [helper.make_node("Neg", ["h"], ["s"]), helper.make_node("Exp", ["s"], ["y"])]
    model = model_of(nodes)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    result = onnxfuse.optimize(model)
    (region,) = result.report.fused
    assert region.ops[-3:] == ["Mul", "Neg", "Exp"] and "Tanh" in region.ops
    assert {entry.domain for entry in result.model.opset_import} == {"", "acme", "onnxfuse"}


MALFORMED = {
    "no inputs": helper.make_node("FastGelu", [], ["y"], domain="com.microsoft"),
    "no outputs": helper.make_node("FastGelu", ["x"], [], domain="com.microsoft"),
    "no scales": helper.make_node("MatMulNBits", ["x", "v"], ["y"], domain="com.microsoft", K=16, N=4),
    "no bits": helper.make_node("GatherBlockQuantized", ["w", "x", "v"], ["y"], domain="com.microsoft", bits=0),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_operators_of_onnx_runtime(case: str, tmp_path: Path) -> None:
    """Their types are unknown; ONNX Runtime refuses them."""
    model = model_of([MALFORMED[case], helper.make_node("Neg", ["x"], ["y" if case == "no outputs" else "z"])])
    assert not inspected(model, tmp_path / "m.onnx").plan.fused
