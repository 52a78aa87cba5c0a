"""Emitters of If, Loop and Scan, whose bodies hold nodes of any kind, and of calls of the model's own functions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper

from onnxfuse.model.dtypes import DTYPES
from tools.fuzz.graph import MAX_ELEMENTS, Graph, Tensor

MAX_DEPTH = 2
FUNCTION_DOMAIN = "fuzz.functions"

Fill = Callable[[Graph], object]
"""Adds one node of any kind to a graph."""


def control_flow(graph: Graph, fill: Fill) -> None:
    """An If, a Loop or a Scan."""
    first = graph.pick()
    assert first is not None
    if graph.depth >= MAX_DEPTH:
        return
    match graph.choose.randrange(3):
        case 0:
            _branch(graph, fill)
        case 1:
            _loop(graph, fill, first)
        case _ if graph.opset >= 9 and first.shape and first.shape[0] > 0:
            _scan(graph, fill, first)


def call(graph: Graph) -> None:
    """A call of a function of the model's own: x + relu(x)."""
    x = graph.pick("f32")
    if x is None or graph.opset < 8:
        return
    opsets = [helper.make_opsetid("", graph.opset)]
    body = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])]
    if not graph.main.functions:
        graph.main.functions.append(helper.make_function(FUNCTION_DOMAIN, "Twice", ["x"], ["y"], body, opsets))
    graph.add("Twice", [x], "f32", x.shape, FUNCTION_DOMAIN)


def _body(graph: Graph, fill: Fill, *inputs: Tensor) -> Graph:
    """A graph in an attribute of the next node, with some nodes."""
    body = Graph(graph.choose, graph.style, graph)
    body.tensors.extend(inputs)
    for _ in range(graph.choose.randint(1, 6)):
        fill(body)
    return body


def _result(body: Graph, like: Tensor | None = None) -> Tensor:
    """A tensor that the body makes, of the type and shape of ``like`` where it is given."""
    made = {name for node in body.nodes for name in node.output}
    for tensor in reversed(body.tensors):
        if tensor.name in made and (like is None or (tensor.dtype, tensor.shape) == (like.dtype, like.shape)):
            return tensor
    if like is None:
        like = body.pick()
        assert like is not None
    elif like not in body.tensors:
        like = body.constant(like.dtype, body.array(like.dtype, like.shape))
    return body.add("Identity", [like], like.dtype, like.shape)


def _close(body: Graph, inputs: list[Tensor], outputs: list[Tensor]) -> onnx.GraphProto:
    def declare(tensor: Tensor) -> onnx.ValueInfoProto:
        dims = [None] * len(tensor.shape) if inputs else None  # ORT needs the ranks in the bodies of Loop and Scan
        return helper.make_tensor_value_info(tensor.name, DTYPES[tensor.dtype].onnx, dims)

    declared = [declare(tensor) for tensor in inputs]
    return helper.make_graph(body.nodes, "body", declared, [declare(tensor) for tensor in outputs], body.initializers)


def _branch(graph: Graph, fill: Fill) -> None:
    """If on a scalar input, or on a computed one; both branches read tensors of the graphs around."""
    condition = graph.pick("bool", lambda tensor: tensor.shape == ()) if graph.chance(2) else None
    if condition is None:
        main = graph.main
        name = f"condition{len(main.feeds)}"
        main.feeds[name] = np.array(graph.chance(2))
        main.inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, []))
        condition = Tensor(name, "bool", ())
    bodies = [_body(graph, fill), _body(graph, fill)]
    then = _result(bodies[0])
    results = [then, _result(bodies[1], then)]
    graphs = [_close(body, [], [result]) for body, result in zip(bodies, results, strict=True)]
    graph.add("If", [condition], then.dtype, then.shape, then_branch=graphs[0], else_branch=graphs[1])


def _loop(graph: Graph, fill: Fill, first: Tensor) -> None:
    """Some rounds that change ``first``, and now and then what each round made of it."""
    prefix = f"{graph.prefix}{len(graph.nodes)}."
    rounds = graph.any_of((0, 1, 3))
    count = graph.scalar("i64", rounds)
    state = [Tensor(f"{prefix}i", "i64", ()), Tensor(f"{prefix}go", "bool", ())]
    carried = Tensor(f"{prefix}carried", first.dtype, first.shape)
    body = _body(graph, fill, *state, carried)
    go = body.add("Identity", [state[1]], "bool", ())
    results = [_result(body, carried)]
    outputs = [(first.dtype, first.shape)]
    if graph.chance(2):
        collected = _result(body)
        if collected not in (results[0], go):
            results.append(collected)
            outputs.append((collected.dtype, (rounds, *collected.shape)))
    closed = _close(body, [*state, carried], [go, *results])
    graph.add_many("Loop", [count, None, first], outputs, body=closed)


def _scan(graph: Graph, fill: Fill, first: Tensor) -> None:
    """What a body makes of each row of ``first``."""
    prefix = f"{graph.prefix}{len(graph.nodes)}."
    row = Tensor(f"{prefix}row", first.dtype, first.shape[1:])
    body = _body(graph, fill, row)
    result = _result(body)
    shape = (first.shape[0], *result.shape)
    if int(np.prod(shape, dtype=np.int64)) > MAX_ELEMENTS:
        return
    closed = _close(body, [row], [result])
    graph.add("Scan", [first], result.dtype, shape, body=closed, num_scan_inputs=1)
