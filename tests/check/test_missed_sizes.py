"""Sizes that onnx's inference leaves open: every operator that they follow for, and those that do not."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from onnxfuse.model.graph import Model
from onnxfuse.model.symbols import is_made_up
from onnxfuse.shapes.inference import infer

CONSTANTS = {
    "zero": np.array(0),
    "one": np.array(1),
    "two": np.array(2),
    "first": np.array(0.0, np.float32),
    "step": np.array(1.0, np.float32),
    "half": np.array(0.5, np.float32),
    "begin": np.array([0]),
    "second": np.array([1]),
    "end": np.array([2]),
    "rest": np.array([-1]),
    "eight": np.array([8]),
    "three": np.array([3]),
    "twice": np.array([1, 2, 1]),
    "halves": np.array([0, 0, 2, -1]),
    "joined": np.array([0, -1, 4]),
    "flat": np.array([-1, 4]),
}
INPUTS = "float[n, t, 8] x, float[n, p, 8] past"


def proto(text, inputs=INPUTS, opset=17):
    made = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => (float y) {{ {text} }}')
    used = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in CONSTANTS.items() if name in used
    )
    whole = made.graph.node[-1].op_type == "Range" and made.graph.node[-1].input[0] != "first"
    made.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("y", TensorProto.INT64 if whole else TensorProto.FLOAT, None)
    )
    return made


def inferred(made):
    """The shape of y, and that its symbols are the sizes that ONNX Runtime finds."""
    model = Model.from_proto(made)
    infer(model)
    (shape,) = [tensor.shape for node in model.graph.nodes for tensor in node.outputs if tensor.name == "y"]
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    sizes = {"n": 2, "t": 5, "p": 3}
    feeds = {
        item.name: np.ones([sizes.get(dim, dim) for dim in item.shape], np.float32) for item in session.get_inputs()
    }
    (result,) = session.run(None, feeds)
    known = [sizes.get(size, size) for size in shape]
    assert all(isinstance(size, str) or size == own for size, own in zip(known, result.shape, strict=True))
    return [None if is_made_up(size) else size for size in shape]


LENGTH = "s = Shape(x) l = Gather(s, one) "
COUNTED = "f = Cast <to = 1> (l) r = Range(first, f, step) "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LENGTH + "y = Range(zero, l, one)", ["t"]),
        (LENGTH + COUNTED + "y = Abs(r)", ["t"]),
        ("s = Shape <start = 1, end = 2> (x) l = Squeeze(s, begin) y = Range(zero, l, one)", ["t"]),
        ("s = Shape(x) l = Slice(s, second, end, begin) m = Squeeze(l, begin) y = Range(zero, m, one)", ["t"]),
        (LENGTH + "q = Shape(past) p = Gather(q, one) e = Add(p, l) y = Range(p, e, one)", ["t"]),
        (LENGTH + "q = Shape(past) p = Gather(q, one) e = Add(l, p) y = Range(p, e, one)", ["t"]),
        (LENGTH + "q = Shape(past) p = Gather(q, one) e = Add(l, p) y = Range(zero, e, one)", [None]),
        (LENGTH + "y = Range(one, l, one)", [None]),
        (LENGTH + "y = Range(zero, l, two)", [None]),
        (LENGTH + "f = Cast <to = 1> (l) y = Range(first, f, half)", [None]),
        (LENGTH + "e = Mul(l, two) y = Range(zero, e, one)", [None]),
    ],
)
def test_ranges(text, expected):
    assert inferred(proto(text)) == expected


MERGED = "s = Shape(x) b = Slice(s, begin, second) m = {} k = Concat <axis = 0> (m, rest, {}) y = Reshape(x, k)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y = Tile(x, twice)", ["n", None, 8]),
        (LENGTH + COUNTED + "c = Unsqueeze(r, second) y = Mul(x, c)", ["n", "t", 8]),
        (LENGTH + COUNTED + "c = Unsqueeze(r, second) y = Where(flag, x, c) ", ["n", "t", 8]),
        ("h = Reshape(x, halves) t = Tile(h, four) y = Neg(t)", ["n", "t", 2, 4]),
        ("h = Reshape(x, joined) y = Neg(h)", ["n", None, 4]),
        ("s = Shape(x) b = Slice(s, begin, end) k = Concat <axis = 0> (b, eight) y = Expand(z, k)", ["n", "t", 8]),
        (
            "s = Shape(x) b = Slice(s, begin, second) k = Concat <axis = 0> (b, rest, eight) y = Reshape(x, k)",
            ["n", "t", 8],
        ),
        ("y = Reshape(x, flat)", [None, 4]),
        (MERGED.format("Mul(b, two)", "four1"), [None, "t", 4]),
        (MERGED.format("Mul(two, b) m = Mul(m1, two)", "two1").replace("m =", "m1 =", 1), [None, "t", 2]),
        (MERGED.format("Mul(b, two)", "two1"), [None, None, 2]),
        (MERGED.format("Add(b, b)", "four1"), [None, None, 4]),
        (LENGTH + "e = Unsqueeze(l, begin) y = Slice(x, begin, e, second)", ["n", None, 8]),
        (LENGTH + "e = Unsqueeze(l, begin) y = Slice(x, begin, e, rest)", ["n", "t", None]),
        (LENGTH + "e = Unsqueeze(l, begin) y = Slice(x, begin, e)", [None, None, None]),
        (LENGTH + COUNTED + "c = Unsqueeze(r, begin) e = Unsqueeze(c, begin) y = MatMul(e, x)", ["n", 1, 8]),
        (LENGTH + COUNTED + "c = Unsqueeze(r, second) m = Mul(x, c) y = Concat <axis = 1> (past, m)", ["n", None, 8]),
    ],
)
def test_sizes_behind(text, expected):
    constants = CONSTANTS | {
        "two1": np.array([2]),
        "four1": np.array([4]),
        "four": np.array([1, 1, 1, 1]),
        "flag": np.array([True]),
        "z": np.zeros((1, 1, 8), np.float32),
    }
    made = proto(text)
    known = {item.name for item in made.graph.initializer}
    used = {name for node in made.graph.node for name in node.input} & constants.keys()
    made.graph.initializer.extend(numpy_helper.from_array(constants[name], name) for name in used - known)
    assert inferred(made) == expected


def test_many_layers_take_one_pass():
    """What one layer leaves open makes all behind it open: rounds over the model would take one for each."""
    layer = "h{0} = Reshape(x{0}, halves) t{0} = Tile(h{0}, four) k{0} = Reshape(t{0}, whole) x{1} = Add(x{0}, k{0}) "
    made = proto("x0 = Neg(x) " + "".join(layer.format(i, i + 1) for i in range(60)) + "y = Neg(x60)")
    for name, value in {"four": [1, 1, 1, 1], "whole": [0, -1, 8], "halves": [0, 0, 2, -1]}.items():
        if name not in {item.name for item in made.graph.initializer}:
            made.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    assert inferred(made) == ["n", "t", 8]


def test_sizes_in_bodies():
    made = proto(
        LENGTH
        + COUNTED
        + "c = Unsqueeze(r, second) k = Equal(l, one) y = If (k) <"
        + "then_branch = t () => (float[a, b, d] u) { v = Mul(x, c) u = Neg(v) }, "
        + "else_branch = e () => (float[a, b, d] u) { w = Add(c, x) u = Neg(w) }>"
    )
    model = Model.from_proto(made)
    infer(model)
    shapes = {out.name: out.shape for graph in model.graphs() for node in graph.nodes for out in node.outputs}
    assert shapes["v"] == shapes["w"] == ["n", "t", 8]


def test_declared_symbols_of_what_has_no_dimensions():
    """A model may declare what contradicts its nodes, in symbols that look like those of inference."""
    made = proto("a = ReduceSum <keepdims = 0> (x) b = Concat <axis = 0> (a, a) y = Neg(b)")
    made.graph.value_info.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, ["unk__0"]))
    infer(Model.from_proto(made))
