"""Quantized models: the QuantizeLinear and DequantizeLinear nodes that ONNX Runtime's quantized kernels take in.

A quantized model has a pair of them on every tensor.  ORT replaces an operator with a DequantizeLinear on each input
and a QuantizeLinear on its output by one integer kernel (Conv by QLinearConv, Add by QLinearAdd), and a fused node that
took one of these in would leave the operator in float.
"""

from collections.abc import Iterable, Iterator, Mapping

import onnx
import onnx_graphsurgeon as gs

from onnxfuse.model.graph_ir import STANDARD_DOMAINS, function_key, producer_of, standard_op
from onnxfuse.model.inlining import FunctionKey

QUANTIZED = "ONNX Runtime computes it in a quantized kernel"
UNTYPED = "ONNX Runtime would move a QuantizeLinear up to it and not find its type, for it reads what may be a scalar"

_MOVED_PAST = {"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
_MOVE = {*_MOVED_PAST, "Flatten"} - {"MaxPool"}


def quantized_nodes(nodes: Iterable[gs.Node], elementwise: set[int]) -> set[int]:
    """The ids of the nodes that belong to ORT's quantized kernels; ``elementwise`` are the ids of elementwise nodes."""
    found: set[int] = set()
    for node in nodes:
        op = standard_op(node)
        if op == "DequantizeLinear":
            if _producer_op(node.inputs[0]) == "QuantizeLinear" or not _read_only_by(node, elementwise):
                found.add(id(node))
                if _is_guarded_softmax(node):
                    found.update(map(id, node.outputs[0].outputs))
        elif op == "QuantizeLinear":
            producer = producer_of(node.inputs[0])
            if producer is None or id(producer) not in elementwise or "DequantizeLinear" in _reader_ops(node):
                found.add(id(node))
        elif id(node) in elementwise:
            operands = [tensor for tensor in node.inputs if not isinstance(tensor, gs.Constant) and tensor.name]
            dequantized = [_producer_op(tensor) == "DequantizeLinear" for tensor in operands]
            last = _before_quantization(node)
            if dequantized and all(dequantized) and last is not None:
                found.update((id(node), id(last)))
                found.update(id(tensor.inputs[0]) for tensor in operands)
                found.update(id(reader) for reader in last.outputs[0].outputs)
    return found


def exact_weights(
    nodes: Iterable[gs.Node], functions: Mapping[FunctionKey, onnx.FunctionProto]
) -> Iterator[tuple[gs.Node, gs.Node | None]]:
    """The DequantizeLinear of each constant that a MatMul alone multiplies with what was dequantized, or whose product
    is quantized.

    If a fused node takes in what does either, ONNX Runtime's CPU provider, where the file may run too, sees a product
    of floats and one dequantized constant, makes of it a MatMulNBits, and rounds the floats to 8 bits in blocks of its
    own.  With each comes the node that has to stay for the product to be what it was, None where it is inside a fused
    node already, one of those that call ``functions``.  Where the weights have a scale a block, ORT does not run the
    product of two such factors.  Read off ORT 1.32.
    """
    for node in nodes:
        weights = producer_of(node.inputs[1]) if standard_op(node) == "MatMul" else None
        if weights is None or standard_op(weights) != "DequantizeLinear" or len(weights.outputs[0].outputs) != 1:
            continue
        if not isinstance(weights.inputs[0], gs.Constant) or weights.attrs.get("block_size"):
            continue
        (product,) = node.outputs
        quantizing = next((reader for reader in product.outputs if standard_op(reader) == "QuantizeLinear"), None)
        dequantizing = _made_by(node.inputs[0], "DequantizeLinear", functions)
        if quantizing is not None:
            yield weights, quantizing
        elif dequantizing is not None:
            yield weights, dequantizing if standard_op(dequantizing) else None
        elif any(_reads_in(reader, product, "QuantizeLinear", functions) for reader in product.outputs):
            yield weights, None


def _made_by(tensor: gs.Tensor, op: str, functions: Mapping[FunctionKey, onnx.FunctionProto]) -> gs.Node | None:
    """The node of the operator that makes a tensor, up to moved elements, or the fused node that has it inside."""
    while (maker := producer_of(tensor)) is not None and standard_op(maker) in _MOVE:
        tensor = maker.inputs[0]
    if maker is None or standard_op(maker) == op:
        return maker
    function = functions.get(function_key(maker))
    if function is None:
        return None
    makers = {name: inner for inner in function.node for name in inner.output}
    place = next(place for place, made in enumerate(maker.outputs) if made is tensor)
    inner = makers.get(function.output[place])
    while inner is not None and inner.domain in STANDARD_DOMAINS and inner.op_type in _MOVE:
        inner = makers.get(inner.input[0])
    return maker if inner is not None and inner.domain in STANDARD_DOMAINS and inner.op_type == op else None


def _reads_in(node: gs.Node, tensor: gs.Tensor, op: str, functions: Mapping[FunctionKey, onnx.FunctionProto]) -> bool:
    """Whether a fused node has one of the operator inside that reads ``tensor``."""
    function = functions.get(function_key(node))
    if function is None:
        return False
    names = {name for name, read in zip(function.input, node.inputs, strict=False) if read is tensor}
    return any(inner.op_type == op and inner.input[0] in names for inner in function.node)


def loses_type(inputs: Iterable[gs.Tensor], outputs: Iterable[gs.Tensor]) -> bool:
    """Whether ONNX Runtime would fail to infer the type of an output of a fused elementwise node.

    ORT moves a QuantizeLinear up past nodes that only move elements, and gives the value before it a new name, for
    which the model says no type.  The type is then the one that the custom operator infers, and it can infer one only
    together with a shape.  ORT shows it scalars and tensors of unknown rank alike, so of these it knows no shape.
    """
    return any(not tensor.shape for tensor in inputs) and any(_is_moved_and_quantized(tensor) for tensor in outputs)


def _is_moved_and_quantized(tensor: gs.Tensor) -> bool:
    seen: set[int] = set()
    left = [tensor]
    while left:
        moved = left.pop()
        for reader in moved.outputs:
            if standard_op(reader) == "QuantizeLinear" and moved is not tensor:
                return True
            if standard_op(reader) in _MOVED_PAST and id(reader) not in seen:
                seen.add(id(reader))
                left.extend(reader.outputs)
    return False


def _before_quantization(node: gs.Node) -> gs.Node | None:
    """The node itself if only QuantizeLinear reads it, or the Relu or Clip in between, which ORT drops; or None."""
    readers = node.outputs[0].outputs
    last = readers[0] if len(readers) == 1 and standard_op(readers[0]) in ("Relu", "Clip") else node
    return last if set(_reader_ops(last)) == {"QuantizeLinear"} else None


def _is_guarded_softmax(node: gs.Node) -> bool:
    """Whether a DequantizeLinear is that of a Softmax of whose result a guard takes what is no number.

    If one fused node read it in place of both, ORT would compute the Softmax in integers, which may be off by a level
    from what it was.
    """
    quantized = producer_of(node.inputs[0])
    softmax = _producer_op(quantized.inputs[0]) if quantized is not None and quantized.inputs else None
    return softmax == "Softmax" and sorted(op or "" for op in _reader_ops(node)) == ["IsNaN", "Where"]


def _producer_op(tensor: gs.Tensor) -> str | None:
    return standard_op(tensor.inputs[0]) if tensor.inputs else None


def _reader_ops(node: gs.Node) -> list[str]:
    return [standard_op(reader) for reader in node.outputs[0].outputs]


def _read_only_by(node: gs.Node, elementwise: set[int]) -> bool:
    return all(id(reader) in elementwise for reader in node.outputs[0].outputs)
