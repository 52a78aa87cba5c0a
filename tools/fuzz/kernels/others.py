"""Products, recurrence, sequences, optional values and functions, for random models."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tools.fuzz.kernels.graph import CHANNELS, FUNCTION_DOMAIN, SIZES, Given, Kernels

# --- products and recurrence ---


def product(graph: Kernels) -> object:
    """MatMul or Gemm in any form, with what follows that ONNX Runtime or a rule may take in."""
    if graph.chance(2):
        x = graph.tensor(1, 2, 3, 4)
        width = x.shape[-1]
        shape = graph.any_of(((width, graph.size(CHANNELS)), (width,), (*x.shape[:-2], width, 3)))
        return graph.one("MatMul", x, graph.constant(graph.numbers(shape, max(width, 1) ** -0.5)))
    x = graph.tensor(2)
    attributes = graph.maybe(transA=(0, 1), transB=(0, 1), alpha=(1.0, 0.5), beta=(1.0, 2.0, 0.0))
    inner, columns = x.shape[1 - attributes.get("transA", 0)], graph.size(CHANNELS)
    shape = (columns, inner) if attributes.get("transB") else (inner, columns)
    bias = graph.any_of(((columns,), (), (1, columns), (x.shape[attributes.get("transA", 0)], 1)))
    more = [graph.constant(graph.numbers(bias))] if graph.chance(2) else []
    return graph.one("Gemm", x, graph.constant(graph.numbers(shape)), *more, **attributes)


_EQUATIONS = {
    "ij,jk->ik": (2, 2), "bij,bjk->bik": (3, 3), "bhid,bhjd->bhij": (4, 4), "...ij->...ji": (3,), "ii->i": (2,),
    "ij->": (2,), "i,j->ij": (1, 1), "bij,bij->b": (3, 3), "ij,ij->ij": (2, 2), "bhwc,hkc->bhwk": (4, 3), "ij": (2,),
    "bi,bij,bj->b": (2, 3, 2),
}  # fmt: skip


def einsum(graph: Kernels) -> object:
    """A product by an equation."""
    equation = graph.any_of(list(_EQUATIONS))
    sizes: dict[str, int] = {}
    operands = []
    for indices in equation.partition("->")[0].split(","):
        own = indices.replace("...", "b")
        # Without elements ONNX Runtime ends the process.
        operands.append(graph.input(graph.numbers([sizes.setdefault(index, graph.any_of(SIZES)) for index in own])))
    return graph.one("Einsum", *operands, equation=equation)


def recurrence(graph: Kernels) -> object:
    """LSTM, GRU or RNN in any direction, with any of its inputs and outputs."""
    op = graph.any_of(("LSTM", "GRU", "RNN"))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    # Of an empty batch ONNX Runtime ends the process.
    length, batch, width, hidden = (graph.any_of(sizes) for sizes in (SIZES, (1, 2), CHANNELS, (1, 2, 4, 8)))
    found = graph.pick(lambda value: value.ndim == 3 and value.size > 0)
    x = found if found is not None and graph.chance(2) else graph.input(graph.numbers((length, batch, width)))
    length, batch, width = x.shape
    direction = graph.any_of(("forward", "reverse", "bidirectional"))
    count = 2 if direction == "bidirectional" else 1

    def tensor(*shape: int, chance: int = 1) -> Given:
        return graph.constant(graph.numbers(shape, 0.5)) if graph.chance(chance) else None

    given = [x, tensor(count, gates * hidden, width), tensor(count, gates * hidden, hidden)]
    given.append(tensor(count, 2 * gates * hidden, chance=2))
    given.append(graph.constant(graph.random.integers(1, length + 1, batch), np.int32) if graph.chance(3) else None)
    given.append(tensor(count, batch, hidden, chance=2))
    if op == "LSTM":
        given += [tensor(count, batch, hidden, chance=2), tensor(count, 3 * hidden, chance=3)]
    while given[-1] is None:
        given.pop()
    attributes = graph.maybe(clip=(0.5, 2.0))
    if op == "GRU":
        attributes |= graph.maybe(linear_before_reset=(0, 1))
    if op == "LSTM":
        attributes |= graph.maybe(input_forget=(0, 1))
    if op == "RNN" and graph.chance(2):
        attributes["activations"] = [graph.any_of(("Tanh", "Relu", "Sigmoid"))] * count
    outputs = [graph.chance(2), graph.chance(2), op == "LSTM" and graph.chance(2)]
    outputs[0] = outputs[0] or not any(outputs)
    while not outputs[-1]:
        outputs.pop()
    return graph.add(op, given, outputs, hidden_size=hidden, direction=direction, **attributes)


# --- what is not a tensor, and functions ---


def sequence(graph: Kernels) -> object:
    """Tensors put into a sequence, and taken out again one by one or together."""
    x = graph.tensor(1, 2, 3)
    axis = graph.axis(x.rank)
    if graph.chance(2):
        others = [x, *(graph.one("Neg", x) for _ in range(graph.any_of((0, 1, 2))))]
        known = [one for one in others if one is not None]
        made = graph.one("SequenceConstruct", *known)
    else:
        parts = [graph.constant(graph.any_of((1, 2)), np.int64)] if graph.chance(2) else []
        made = graph.one("SplitToSequence", x, *parts, axis=axis, **graph.maybe(keepdims=(0, 1)))
    if made is None or not made.value:
        return None
    graph.one("SequenceAt", made, graph.constant(graph.any_of((0, -1)), np.int64))
    return graph.one("ConcatFromSequence", made, axis=axis)


def optional(graph: Kernels) -> object:
    """A tensor in an optional, and out of it."""
    x = graph.tensor(1, 2, 3)
    return graph.one("OptionalHasElement", x) and graph.one("OptionalGetElement", x)


def clipped(graph: Kernels) -> object:
    """Clip and others with inputs left out, or with more than are usual."""
    x = graph.tensor(0, 1, 2, 3, 4)
    low, high = graph.constant(-0.5), graph.constant(0.75)
    match graph.any_of(("Clip", "Clip", "Sum", "Mean", "Dropout")):
        case "Clip":
            given = graph.any_of(([low, high], [None, high], [low], [low, None], []))
            return graph.one("Clip", x, *given)
        case "Dropout":
            return graph.add("Dropout", [x], [True, graph.chance(2)])
        case op:
            return graph.one(op, *([x] * graph.any_of((1, 2, 3))), low)


def function(graph: Kernels) -> object:
    """A function of the model's own whose nodes take their attributes from the call, more than once."""
    x = graph.tensor(2, 3)
    name, attribute, values = graph.any_of(
        (("Leaky", "alpha", (0.1, 0.5)), ("Along", "axis", (0, 1, -1)), ("Moments", "epsilon", (1e-5, 1e-1)))
    )
    if name not in graph.functions:
        graph.functions[name] = _function(name, attribute, graph.opset)
    scale = [graph.constant(graph.numbers(x.shape[-1:]))] if name == "Moments" else []
    for _ in range(graph.any_of((1, 2))):
        graph.add(name, [x, *scale], 1, FUNCTION_DOMAIN, **{attribute: graph.any_of(values)})
    return None


def _function(name: str, attribute: str, opset: int) -> onnx.FunctionProto:
    """An activation before a sum, a Softmax along an axis, or a normalization of a residual."""
    inputs, kind = ["x"], onnx.AttributeProto.FLOAT
    if name == "Leaky":
        nodes = [helper.make_node("LeakyRelu", ["x"], ["a"]), helper.make_node("Add", ["a", "x"], ["y"])]
    elif name == "Along":
        kind = onnx.AttributeProto.INT
        nodes = [helper.make_node("Softmax", ["x"], ["a"]), helper.make_node("Mul", ["a", "x"], ["y"])]
    else:
        inputs.append("scale")
        nodes = [
            helper.make_node("LayerNormalization", ["a", "scale"], ["y"]),
            helper.make_node("Add", ["x", "x"], ["a"]),
        ]
        nodes.reverse()
    owner = next(node for node in nodes if node.op_type not in ("Add", "Mul"))
    owner.attribute.append(onnx.AttributeProto(name=attribute, type=kind, ref_attr_name=attribute))
    return helper.make_function(
        FUNCTION_DOMAIN, name, inputs, ["y"], nodes, [helper.make_opsetid("", opset)], [attribute]
    )


EMITTERS = (product, einsum, recurrence, sequence, optional, clipped, function)
