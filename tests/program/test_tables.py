"""The tables of operators, and everything that has a row for each: none may be missing."""

import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from onnxfuse.fused import kinds
from onnxfuse.fused.conv import conv_figures
from onnxfuse.model.elementwise_operators import BROADCASTING, ELEMENTWISE, Slack
from onnxfuse.model.graph_ir import Node
from onnxfuse.model.known_operators import OPERATORS
from onnxfuse.ort import cuda_kernels, ort_layout, slow_kernels
from onnxfuse.passes.result_size import largest_elements
from onnxfuse.program import lowering, ops
from onnxfuse.program.ops import COSTS, OPS, Op
from tests.program.elementwise_cases import cases
from tools.fuzz.operators import EMITTED

sys.path.append(str(Path(__file__).resolve().parents[2] / "custom_ops"))

import generate_opcodes

READERS: dict[str, Collection[str]] = {
    "lowering": {*lowering._DIRECT, *lowering._LOWERINGS},
    "the speed of ONNX Runtime's CPU kernels": slow_kernels.SPEEDS,
    "ONNX Runtime's CUDA kernels": cuda_kernels.ELEMENTWISE,
    "random graphs": EMITTED,
    "the cases that are compared with ONNX Runtime": {case.op for case in cases()},
}


@pytest.mark.parametrize("reader", READERS)
def test_readers_know_every_elementwise_operator_and_no_other(reader: str) -> None:
    assert set(READERS[reader]) == set(ELEMENTWISE)


def test_versions_and_attributes_of_every_elementwise_operator_are_known() -> None:
    assert set(ELEMENTWISE) <= set(OPERATORS)


def test_what_onnx_runtime_computes_inside_a_convolution_has_a_time() -> None:
    inside = ort_layout.CONV_ACTIVATIONS | ort_layout.SUM_ACTIVATIONS | ort_layout.DEPTHWISE_ACTIVATIONS
    assert inside <= set(conv_figures.INSIDE) <= set(ELEMENTWISE)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_bound_on_the_size_of_a_result_is_known(name: str) -> None:
    inputs = [gs.Variable("x", np.float32, [20]), gs.Variable("y", np.float32, [30])]
    node = Node(name, "node", {}, inputs, [gs.Variable("z")])
    (bound,) = largest_elements(node, {"x": 20, "y": 30}) or [0]
    assert bound == (600 if name in BROADCASTING else 50)


def test_an_operator_without_a_cost_is_no_row() -> None:
    with pytest.raises(TypeError, match="cost"):
        Op("atan2", 2, ops.FLOATS, "np.arctan2(a, b)", "atan2(a, b)")  # type: ignore[call-arg]


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_a_row_says_what_its_readers_need(op: Op) -> None:
    assert set(op.types) <= set(op.cost.cpu)
    assert set(op.chained) <= set(op.types)
    assert all(op.cost.cpu[dtype] > 0 for dtype in op.types)
    assert min(op.cost.cuda) > 0
    assert not (op.cost.repeatable and op.ulp)
    assert not op.divides or op.arity == 2


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.onnx], ids=lambda op: op.name)
def test_precision_is_that_of_the_onnx_operator(op: Op) -> None:
    assert bool(op.ulp) == (Slack.FUNCTION in ELEMENTWISE[op.onnx].slack)


def test_the_library_gets_the_costs_of_the_table() -> None:
    text = generate_opcodes.render(ops, kinds)
    costs = {}
    for line in text.splitlines():
        if line.startswith("ONNXFUSE_COST("):
            name, *numbers = line.removeprefix("ONNXFUSE_COST(").rstrip(")").split(", ")
            costs[name] = dict(zip(generate_opcodes.DTYPES, map(float, numbers), strict=True))
    assert len(costs) == len(COSTS)
    rows = [line.removeprefix("ONNXFUSE_OP(").split(", ") for line in text.splitlines() if "ONNXFUSE_OP(" in line]
    found = {row[1].strip('"'): costs[row[5]] for row in rows if row[0].isidentifier() and row[1].startswith('"')}
    assert set(found) == set(OPS)
    for op in OPS.values():
        assert {dtype: found[op.name][dtype] for dtype in op.types} == {dtype: op.cost.cpu[dtype] for dtype in op.types}


def test_the_build_refuses_a_cost_that_says_nothing_of_a_type() -> None:
    op = replace(OPS["exp"], types=(*ops.FLOATS, "i32"))
    table = SimpleNamespace(**{**vars(ops), "OPS": {"exp": op}})
    with pytest.raises(SystemExit, match="i32"):
        generate_opcodes.render(table, kinds)
