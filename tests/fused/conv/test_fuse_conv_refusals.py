"""Convolutions that are left to ONNX Runtime, and how many nodes and operands there may be."""

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import parser

import onnxfuse
from onnxfuse.cuda.conv.case import ConvCase
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.fused.choices import ConvChoice
from onnxfuse.fused.conv.choosers import CudaChooser
from onnxfuse.fused.conv.fuse_conv import NO_NEIGHBOUR, FuseConv
from onnxfuse.passes import PassContext
from onnxfuse.shapes.inference import infer
from tests.fused.conv.test_fuse_conv import ALL, REFUSALS, array, assert_same, fuse, model, regions, why
from tests.support import fusing


@pytest.mark.parametrize(("text", "reason"), REFUSALS)
def test_what_is_left_to_onnx_runtime_and_why(text: str, reason: str) -> None:
    made = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]>\n{text}')
    fused, report = fuse(made)
    assert reason in why(report, "a")
    assert not fused.functions


@pytest.mark.parametrize(
    "attributes",
    ["kernel_shape = [2]", "strides = [0]", "group = 3", "pads = [1, -1]", "dilations = [1, 1]"],
)
def test_attributes_that_do_not_fit_are_left_alone(attributes: str) -> None:
    made = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]>'
        " g (float[1, 4, 6] x, float[4, 4, 1] w) => (float[1, 4, 6] y)"
        f" {{ a = Conv <{attributes}> (x, w) y = Relu(a) }}"
    )
    loaded = onnxfuse.Model.from_proto(made)
    infer(loaded)
    context = PassContext(target="cuda", convolutions=CudaChooser(ALL))
    FuseConv().run(loaded, context)
    assert [node.op for node in loaded.graph.nodes] == ["Conv", "Relu"]
    assert not context.report.convolutions[0].fused


def test_what_onnx_runtime_computes_otherwise_is_left_to_it() -> None:
    """Shape arithmetic, constants, normalizations, and what a LayerNormalization is made of."""
    made = model(
        "g (float[1, 4, 6] x) => (float[1, 4, 6] y) { a = Conv (x, w) m = ReduceMean <axes = [-1]> (a) d = Sub(a, m)"
        " q = Mul(d, d) v = ReduceMean <axes = [-1]> (q) e = Add(v, eps) s = Sqrt(e) n = Div(d, s) g = Mul(n, k)"
        " y = Add(g, k) }",
        13,
        w=array(4, 4, 1),
        eps=np.float32(1e-5),
        k=array(6),
    )
    _, report = fuse(made)
    assert why(report, "a") == NO_NEIGHBOUR


def test_constant_convolutions_are_left() -> None:
    made = model(
        "g (float[1, 4, 6] x) => (float[1, 4, 6] y) { a = Conv (c, w) b = Relu(a) y = Add(b, x) }",
        w=array(4, 4, 1),
        c=array(1, 4, 6),
    )
    _, report = fuse(made)
    assert "depends on no input" in why(report, "a")


def test_bodies_of_control_flow() -> None:
    """What a body reads of the graph around it is an output of the region; convolutions in bodies are fused too."""
    made = model(
        "g (bool c, float[1, 4, 6] x) => (float[1, 4, 6] y) { a = Conv (x, w) r = Relu(a) s = Neg(r)"
        " y = If (c) <then_branch = t () => (float[1, 4, 6] u) { i = Conv (r, w) u = Tanh(i) },"
        " else_branch = e () => (float[1, 4, 6] v) { v = Add(s, r) }> }",
        w=array(4, 4, 1),
    )
    fused, report = fuse(made)
    assert sorted(regions(report)) == ["Conv Relu Neg", "Conv Tanh"]
    assert report.fused[0].outputs == ["r", "s"]
    for flag in (True, False):
        assert_same(made, fused, {"c": np.array(flag), "x": array(1, 4, 6)})


def test_a_node_has_24_operands_at_most() -> None:
    names = [f"r{index}" for index in range(40)]
    body = " ".join(f"t{index + 1} = Add(t{index}, {name})" for index, name in enumerate(names))
    inputs = ", ".join(f"float[1, 4, 6] {name}" for name in ("x", *names))
    made = model(f"g ({inputs}) => (float[1, 4, 6] t40) {{ t0 = Conv (x, w) {body} }}", w=array(4, 4, 1))
    fused, _ = fuse(made)
    (node,) = fusing.fused_nodes(fused)
    assert 10 < len(node.input) + len(node.output) <= 24
    assert_same(made, fused, {name: array(1, 4, 6) for name in ("x", *names)})


class _OnlyWith:
    """Takes the convolutions whose epilogue has an instruction."""

    def __init__(self, op: str) -> None:
        self._op = op

    def might(self, conv: Convolution) -> ConvChoice:
        return ConvChoice(True, "perhaps")

    def prepare(self, cases: Sequence[ConvCase]) -> None:
        pass

    def choose(self, case: ConvCase) -> ConvChoice:
        found = any(instruction.op == self._op for instruction in case.epilogue.instructions)
        return ConvChoice(found, "tuned" if found else "slower")


def test_what_is_not_chosen_gives_its_neighbours_back() -> None:
    made = model(
        "g (float[1, 4, 6] x) => (float[1, 4, 6] y) { a = Conv (x, w) t = Tanh(a) b = Conv (t, v) y = Add(b, a) }",
        w=array(4, 4, 1),
        v=array(4, 4, 1),
    )
    assert regions(fuse(made)[1]) == ["Conv Tanh", "Conv Add"]
    fused, report = fuse(made, _OnlyWith("tanh"))
    assert regions(report) == ["Conv Tanh"]
    assert why(report, "b") == "slower"
    assert [node.op_type for node in fused.graph.node] == ["FusedConv", "Conv", "Add"]
    assert_same(made, fused, {"x": array(1, 4, 6)})


def test_long_tails_and_many_convolutions_take_linear_time() -> None:
    body = ["c0 = Conv (x, w)"]
    for index in range(300):
        body += [f"r{index} = Relu(c{index})", f"s{index} = Add(r{index}, x)", f"c{index + 1} = Conv (s{index}, w)"]
    made = model(f"g (float[1, 4, 6] x) => (float[1, 4, 6] c300) {{ {' '.join(body)} }}", w=array(4, 4, 1))
    fused, report = fuse(made)
    assert len(report.fused) == 300 and len(fused.functions) == 2
