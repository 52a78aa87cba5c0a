"""Every elementwise operator of ONNX, lowered and run by the reference and by the library, against unfused ORT."""

import re

import numpy as np
import onnx
import pytest
from onnx import helper

import onnxfuse
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.model.elementwise_operators import Slack, operators_that
from onnxfuse.program import Program, reference
from tests.program.elementwise_cases import Case, cases, values
from tests.support import fusing

EXACT = operators_that(lambda row: Slack.FUNCTION not in row.slack)
SHAPE = [2, 3, 37]

KNOWN_DIFFERENCES = {
    "Clip-bf16-(None, None)-opset21": "ORT clips bfloat16 to the bounds of float32",
    "Cast-f16-u32-opset21": "ORT converts through another type where the result is undefined",
}


def _feeds(case: Case) -> dict[str, np.ndarray]:
    """Inputs that are defined behaviour in ORT: no integer division by zero, no shift beyond the width."""
    constants = dict(case.constants)
    feeds: dict[str, np.ndarray] = {}
    for index, dtype in enumerate(case.inputs):
        if not dtype or index in constants:
            continue
        numbers = values(dtype, int(np.prod(SHAPE)), index).reshape(SHAPE)
        if index and dtype[0] in "iu":
            if case.op in ("Div", "Mod"):
                numbers = np.where(
                    (numbers == 0) | (numbers == numbers.dtype.type(-1 if dtype[0] == "i" else 0)), 3, numbers
                )
            elif case.op in ("Pow", "BitShift"):
                numbers = numbers % 7
        elif case.op == "Pow" and dtype[0] == "i":
            numbers = numbers % 11
        if case.op == "Clip" and index:
            numbers = np.array({1: -1, 2: 2}[index])
        feeds[f"in{index}"] = np.asarray(numbers).astype(DTYPES[dtype].numpy)
    return feeds


def _tolerance(case: Case, dtype: np.dtype) -> tuple[float, float]:
    """Relative and absolute: ORT's own functions are off by more than ours, which are tested on their own."""
    if dtype.itemsize == 2:
        return 8e-3, 1e-3
    return (2e-5, 2e-6) if dtype == np.float32 else (1e-6, 1e-7)


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_same_as_onnx_runtime(case: Case) -> None:
    feeds = _feeds(case)
    model = case.model([list(array.shape) for array in feeds.values()])
    try:
        (expected,) = fusing.run(model, feeds, library=False)
    except Exception as error:
        if not re.search(r"NOT_IMPLEMENTED|INVALID_GRAPH.*Type Error", str(error)):
            raise  # not for want of a kernel for the type
        pytest.skip(f"ONNX Runtime cannot run it: {str(error)[:80]}")
    fused = fusing.fuse_everything(model)
    (node,) = fusing.fused_nodes(fused)
    program = Program.parse(helper.get_node_attr_value(node, "program").decode())
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in fused.graph.initializer}
    arrays = [feeds.get(name, constants.get(name)) for name in node.input]
    by_reference, by_library = reference.run(program, arrays)[0], fusing.run(fused, feeds, library=True)[0]
    for actual in (by_reference, by_library):
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        if str(case) in KNOWN_DIFFERENCES:
            assert fusing.same_bits(by_library, by_reference)
            continue
        if case.op in EXACT and not (case.op == "PRelu" and "16" in case.output):
            assert fusing.same_bits(actual, expected)
        else:
            relative, absolute = _tolerance(case, expected.dtype)
            np.testing.assert_allclose(
                actual.astype(np.float64), expected.astype(np.float64), relative, absolute, equal_nan=True
            )
    (plain,) = fusing.run(fused, feeds, library=False)
    assert fusing.same_bits(plain, expected), "the function body is not the original node"


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (helper.make_node("Dropout", ["x", "", "flag"], ["y"]), "training"),
        (helper.make_node("Dropout", ["x"], ["y", "mask"]), "second output"),
        (helper.make_node("Mod", ["x", "x"], ["y"]), "kernel"),
        (helper.make_node("QuantizeLinear", ["x", "scales"], ["y"], block_size=2), "blocks"),
        (helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.FLOAT8E4M3FN), "not supported"),
        (helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.STRING), "not supported"),
        (helper.make_node("BatchNormalization", ["x"] + ["scales"] * 4, ["y"], training_mode=1), "training"),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else value,
)
def test_what_cannot_be_lowered_says_why(node: onnx.NodeProto, reason: str) -> None:
    from onnxfuse.model.graph import Model
    from onnxfuse.program.lowering import check
    from onnxfuse.shapes.inference import infer

    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 4]),
            helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("scales", onnx.TensorProto.FLOAT, [4]),
        ],
        [onnx.ValueInfoProto(name="y")],
    )
    model = Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    infer(model)
    found = check(model.graph.nodes[0], 21)
    assert found is not None
    assert reason in found


def test_operators_before_opset_7_are_left_alone() -> None:
    """Add, for one, broadcasts by attributes there."""
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3, 3]) for name in "xy"]
    vector = helper.make_tensor_value_info("v", onnx.TensorProto.FLOAT, [3])
    nodes = [helper.make_node("Add", ["x", "v"], ["a"], broadcast=1, axis=0), helper.make_node("Exp", ["a"], ["y"])]
    graph = helper.make_graph(nodes, "g", [info[0], vector], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=4)
    result = onnxfuse.optimize(model, check=False)
    assert [node.op_type for node in result.model.graph.node] == ["Add", "Exp"]
    assert {left.reason for left in result.report.left_alone} == {
        "it is of opset 6; operators are fused from opset 7 on",
        "its attribute axis is not known",
    }


def test_softplus_of_doubles_is_infinite_where_exp_is() -> None:
    """As in ONNX Runtime, which runs the operator's function on doubles, and a kernel that is not so on floats."""
    for dtype in (np.float32, np.float64):
        info = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [6]) for name in "xy"
        ]
        graph = helper.make_graph([helper.make_node("Softplus", ["x"], ["y"])], "g", info[:1], info[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        feeds = {"x": np.array([1000, -1000, 709, 0, -np.inf, np.nan], dtype)}
        (expected,) = fusing.run(model, feeds, library=False)
        (actual,) = fusing.run(fusing.fuse_everything(model), feeds, library=True)
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
        assert np.isinf(actual[0]) == (dtype == np.float64)


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize(("op", "attributes"), [("Selu", {}), ("Celu", {}), ("Celu", {"alpha": 2.0}), ("Elu", {})])
def test_the_sign_of_zero(op: str, attributes: dict[str, float], count: int) -> None:
    """As in ONNX Runtime, in vectors and in single elements."""
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [count]) for name in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], **attributes)], "g", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    for zero in (0.0, -0.0):
        feeds = {"x": np.full(count, zero, np.float32)}
        (expected,) = fusing.run(model, feeds, library=False)
        (actual,) = fusing.run(fusing.fuse_everything(model), feeds, library=True)
        assert fusing.same_bits(actual, expected)
