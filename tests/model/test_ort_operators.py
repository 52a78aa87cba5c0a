"""Models that ONNX Runtime has optimized: their LayerNormalization and SimplifiedLayerNormalization of any opset."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import onnxfuse
from onnxfuse.model.graph import Model
from onnxfuse.planning.inspection import inspect
from onnxfuse.shapes.inference import infer


def normalized(operator: str, opset: int, dtype: type = np.float32) -> onnx.ModelProto:
    """A normalization of rows, with nodes to fuse before and after it."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    more = ["bias"] if operator == "LayerNormalization" else []
    nodes = [
        helper.make_node("Abs", ["x"], ["a0"]),
        helper.make_node("Sqrt", ["a0"], ["a"]),
        helper.make_node("Mul", ["a", "x"], ["b"]),
        helper.make_node(operator, ["b", "scale", *more], ["c"], axis=-1, epsilon=1e-5),
        helper.make_node("Abs", ["c"], ["d"]),
        helper.make_node("Sqrt", ["d"], ["e"]),
        helper.make_node("Add", ["e", "c"], ["y"]),
    ]
    vectors = [numpy_helper.from_array(np.linspace(1, 2, 64).astype(dtype), name) for name in ("scale", *more)]
    infos = [helper.make_tensor_value_info(name, kind, ["n", 64]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], vectors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("operator", "opset"),
    [
        *(("LayerNormalization", n) for n in (12, 14, 16, 17)),
        *(("SimplifiedLayerNormalization", n) for n in (14, 17, 21)),
    ],
)
def test_they_are_left_to_onnx_runtime_and_their_neighbours_fused(operator: str, opset: int, dtype: type) -> None:
    made = normalized(operator, opset, dtype)
    result = onnxfuse.optimize(made, "cpu")
    left = [node.op_type for node in result.model.graph.node]
    if opset < 17 or operator == "SimplifiedLayerNormalization":
        assert left.count(operator) == 1 and sum(op.startswith("FusedElementwise") for op in left) == 2
    assert result.report.warnings == []


@pytest.mark.parametrize("opset", [18, 19, 20, 21])
def test_a_version_that_onnx_has_withdrawn_and_onnx_runtime_takes(opset: int) -> None:
    """GroupNormalization is deprecated before opset 21, so that onnx's checker refuses it."""
    text = f"""<ir_version: 8, opset_import: ["": {opset}]> g (float[n, 4, 3] x) => (float[n, 4, 3] y)
        <float[2] s = {{1, 2}}, float[2] b = {{0, 1}}> {{
        a = Abs(x) c = Sqrt(a) d = GroupNormalization <num_groups = 2> (c, s, b)
        e = Exp(d) f = Sqrt(e) y = Add(f, e) }}"""
    if opset == 21:
        text = text.replace("{1, 2}", "{1, 1, 2, 2}").replace("{0, 1}", "{0, 0, 1, 1}").replace("[2]", "[4]")
    result = onnxfuse.optimize(onnx.parser.parse_model(text), "cpu")
    left = [node.op_type for node in result.model.graph.node]
    if opset == 21:
        assert left == ["FusedReduction"]
    else:
        assert left.count("GroupNormalization") == 1 and sum(op.startswith("FusedElementwise") for op in left) == 2


def test_the_result_has_the_shape_of_x_and_the_type_of_the_scale() -> None:
    model = Model.from_proto(normalized("SimplifiedLayerNormalization", 17))
    infer(model)
    (made,) = [node.outputs[0] for node in model.graph.nodes if node.op == "SimplifiedLayerNormalization"]
    assert made.shape == ["n", 64] and made.dtype == np.float32


def test_a_model_that_onnx_runtime_has_saved(tmp_path: Path) -> None:
    """As people have it: the pattern of a normalization, optimized at the level extended."""
    text = """g (float[n, 64] x) => (float[n, 64] y) {
        m = ReduceMean <axes = [-1]> (x) d = Sub(x, m) p = Pow(d, two) v = ReduceMean <axes = [-1]> (p)
        e = Add(v, epsilon) r = Sqrt(e) q = Div(d, r) s = Mul(q, scale) t = Add(s, bias) u = Sigmoid(t)
        y = Mul(t, u) }"""
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 14]> {text}')
    constants = {"two": 2.0, "epsilon": 1e-5, "scale": np.linspace(1, 2, 64), "bias": np.linspace(0, 1, 64)}
    for name, value in constants.items():
        made.graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(made.SerializeToString(), options)
    saved = onnx.load(tmp_path / "saved.onnx")
    assert "LayerNormalization" in {node.op_type for node in saved.graph.node}
    onnxfuse.optimize(tmp_path / "saved.onnx", "cpu", output=tmp_path / "out.onnx")
    inspect(tmp_path / "out.onnx", "cpu")
