"""The nodes that compute convolutions with the channels last, and their functions.

A function is that of the plain layout with a Transpose for every tensor that has the channels last, and with nodes that
put the weights, which lie as the kernels read them, in ONNX's order.  ONNX Runtime computes those once.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper, numpy_helper

from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.fused.conv.conv_node import ConvFusion
from onnxfuse.fused.functions import change_function
from onnxfuse.fused.fused_node import ATTRIBUTE_OPSET, constant_from_attribute, constant_integers, set_overload
from onnxfuse.fused.fusion import Fusion
from onnxfuse.fused.kinds import NHWC_CONV, SQUEEZE_EXCITE
from onnxfuse.fused.nhwc.nhwc_layout import (
    NhwcLayout,
    joins_channels,
    permuted,
    permutes,
    takes_parts,
    tells_sizes,
    to_first,
    to_last,
)
from onnxfuse.fused.nhwc.nhwc_pairs import BEFORE, EXPANSION, NhwcPair, pair_function
from onnxfuse.fused.views import parts_of
from onnxfuse.model.graph import Model, Node
from onnxfuse.model.graph_ir import function_key
from onnxfuse.program import Program
from onnxfuse.program.figures import NHWC_BLOCK
from onnxfuse.rewrite.editor import GraphEditor

_SLICES_OF_INPUTS = 10
"""The opset from which Slice has its axes from an input."""

_LAYOUTS = {"nhwc_inputs", "nhwc_output"}
"""Attributes that a node has for itself and not for each of its convolutions."""

_FIRST = "_channels_first"
"""Ends the name, in a function, of a tensor in ONNX's order."""


def pack_weights(values: np.ndarray, conv: Convolution) -> np.ndarray:
    """The weights [M, C, kernel…] as the kernels read them.

    They are [M / 16, kernel…, C, 16], with zeros for filters that there are not, C being those of a group, or for
    convolutions of single channels [kernel…, M].
    """
    if conv.depthwise:
        return np.ascontiguousarray(np.moveaxis(values[:, 0], 0, -1))
    filters, channels = values.shape[:2]
    blocks = -(-filters // NHWC_BLOCK)
    whole = np.zeros((blocks * NHWC_BLOCK, *values.shape[1:]), values.dtype)
    whole[:filters] = values
    parts = whole.reshape(blocks, NHWC_BLOCK, channels, *conv.kernel)
    return np.ascontiguousarray(parts.transpose(0, *range(3, parts.ndim), 2, 1))


@dataclass(frozen=True)
class NhwcFusion:
    """What takes the place of a convolution's region, or of a pair's, in a layout."""

    nodes: tuple[gs.Node, ...]
    epilogue: Program
    prologue: Program | None
    function: onnx.FunctionProto
    attributes: Mapping[str, Any]
    inputs: tuple[gs.Tensor, ...]
    outputs: tuple[gs.Tensor, ...]

    @property
    def fusion(self) -> Fusion:
        """The fused node."""
        return Fusion(NHWC_CONV, self.nodes, self.inputs, self.outputs, self.attributes, self.function)


def nhwc_fusion(
    model: Model, fusion: ConvFusion, layout: NhwcLayout, parts: Sequence[gs.Tensor] | None = None
) -> NhwcFusion:
    """A convolution in a layout, which reads the ``parts`` of its data.  The model gets its weights."""
    conv, weights, inputs = fusion.region.convolution, fusion.inputs[1], list(fusion.inputs)
    assert isinstance(weights, gs.Constant)
    inputs[1] = model.constant(pack_weights(weights.values, conv), f"{weights.name}_nhwc")
    flags = layout.inputs(fusion)
    function = onnx.FunctionProto()
    function.CopyFrom(fusion.function)
    opset = function.opset_import[0].version
    last = [index for index, is_last in enumerate(flags) if is_last]
    put_channels_last(function, conv.rank + 2, last, outputs=layout.output(fusion))
    _unpack_weights(function, conv)
    attributes = {**fusion.attributes, **_weight_attributes(conv, opset)}
    if parts is not None and len(parts) > 1:
        inputs[:2] = [parts[0], inputs[1], *parts[1:]]
        flags[:2] = [True, False, *[True] * (len(parts) - 1)]
        attributes["joined_channels"] = [part.shape[-1] for part in parts]
        _join_parts(function, len(parts), conv.rank + 2)
    attributes |= _layouts(flags, layout.output(fusion))
    _name(function, attributes, fusion.function.overload, fusion.region.nodes)
    nodes = fusion.region.nodes
    return NhwcFusion(nodes, fusion.epilogue, fusion.prologue, function, attributes, tuple(inputs), fusion.outputs)


def nhwc_pair(model: Model, pair: NhwcPair, layout: NhwcLayout) -> NhwcFusion:
    """A pair in a layout.  The model gets its weights."""
    fusions = [nhwc_fusion(model, fusion, layout) for fusion in pair.fusions]
    names = " ".join(fusion.function.overload for fusion in fusions)
    if pair.expansion is not None:
        fusions[:2] = [_joined(fusions[0], fusions[1], EXPANSION, _LAYOUTS)]
    if pair.product is not None:
        prologue = pair.depthwise.epilogue
        joined = _joined(fusions[0], fusions[1], BEFORE, {"program", *_LAYOUTS})
        fusions = [replace(joined, prologue=prologue, attributes={**joined.attributes, "prologue": str(prologue)})]
    (joined,) = fusions
    is_last = [id(tensor) in layout.tensors for tensor in joined.inputs]
    attributes = {**joined.attributes, **_layouts(is_last, layout.output(pair.fusions[-1]))}
    _name(joined.function, attributes, names, joined.nodes)
    return replace(joined, attributes=attributes)


def _joined(first: NhwcFusion, second: NhwcFusion, prefix: str, without: Set[str]) -> NhwcFusion:
    """What computes the data of the ``second`` one too; with a function that has no name.

    Names of what is the first's, but for its attributes that it is ``without``, begin with ``prefix``.
    """
    before = {prefix + name: value for name, value in first.attributes.items() if name not in without}
    return replace(
        second,
        nodes=(*first.nodes, *second.nodes),
        function=pair_function(first.function, second.function, prefix),
        attributes={**second.attributes, **before},
        inputs=(first.inputs[0], second.inputs[1], *first.inputs[1:], *second.inputs[2:]),
    )


def _name(function: onnx.FunctionProto, attributes: Mapping[str, Any], identity: str, nodes: Sequence[gs.Node]) -> None:
    """Name a function whose nodes have these ``attributes``."""
    del function.attribute[:]
    function.attribute.extend(attributes)
    set_overload(function, identity, "nhwc", *(node.op for node in nodes))


def squeeze_excite_reads_last(model: Model, node: Node) -> None:
    """Make a fused gate read a tensor that has the channels last."""
    function = onnx.FunctionProto()
    function.CopyFrom(model.functions[function_key(node)])
    function.name = ""
    put_channels_last(function, len(node.inputs[0].shape), [0], outputs=False)
    function.attribute.append("nhwc")
    set_overload(function, node.overload, "squeeze_excite", "nhwc")
    change_function(model, node, function, SQUEEZE_EXCITE)
    node.attrs["nhwc"] = 1


def apply_layout(model: Model, graph: gs.Graph, layout: NhwcLayout) -> dict[str, str]:
    """Rename the tensors that have the channels last, permute their shapes, and change the nodes for it.

    Returns the new names by the old ones.
    """
    others: dict[int, gs.Tensor] = {}
    for node in layout.nodes:
        if permutes(node) is not None:
            node.op, node.attrs = "Identity", {}
        elif joins_channels(node):
            rank, is_last = len(node.outputs[0].shape), id(node.outputs[0]) in layout.tensors
            for index, tensor in enumerate(node.inputs):
                if (id(tensor) in layout.tensors) != is_last:
                    if id(tensor) not in others:
                        others[id(tensor)] = _transposed(model, graph, tensor, rank, to_be_last=is_last)
                    node.inputs[index] = others[id(tensor)]
            if is_last:
                node.attrs["axis"] = rank - 1
        elif takes_parts(node):
            _take_parts_of_last(model, node)
        elif tells_sizes(node):
            _order_sizes(model, graph, node)
    names: dict[str, str] = {}
    for tensor in layout.tensors.values():
        names[tensor.name] = model.unique_name(f"{tensor.name}_nhwc")
        tensor.name = names[tensor.name]
        if tensor.shape is not None:
            tensor.shape = permuted(tensor.shape)
    return names


def drop_identities(model: Model, nodes: Iterable[Node]) -> None:
    """Take away the Transposes among ``nodes`` that a layout has made do nothing, but for one that makes an output."""
    editor = GraphEditor(model)
    for node in nodes:
        if node.op == "Identity" and not editor.is_graph_output(node.outputs[0]):
            editor.replace_uses(node.outputs[0], node.inputs[0])
            editor.remove([node])
    editor.finish()


def _take_parts_of_last(model: Model, node: Node) -> None:
    """Make a Slice or Split take the same parts of a tensor that has its channels last."""
    part, rank = parts_of(node)[0], len(node.inputs[0].shape)
    axes = [to_last(rank).index(one.axis % rank) for one in part.slices]
    if node.op == "Split":
        (node.attrs["axis"],) = axes
    elif model.opsets[""] < _SLICES_OF_INPUTS:
        node.attrs["axes"] = axes
    else:
        operands = list(node.inputs)
        operands[3:4] = [model.constant(np.array(axes, np.int64), f"{part.tensor.name}_axes")]
        node.inputs = operands


def _order_sizes(model: Model, graph: gs.Graph, node: Node) -> None:
    """Put the sizes that a Shape tells of a tensor that has its channels last in ONNX's order."""
    (result,), rank = node.outputs, len(node.inputs[0].shape)
    places = to_first(rank)[node.attrs.pop("start", 0) : node.attrs.pop("end", rank)]
    sizes = gs.Variable(model.unique_name(f"{result.name}_nhwc"), dtype=np.int64, shape=[rank])
    node.outputs = [sizes]
    indices = model.constant(np.array(places, np.int64), f"{result.name}_axes")
    name = model.unique_name(f"{result.name}_ordered")
    graph.nodes.append(Node("Gather", name=name, attrs={"axis": 0}, inputs=[sizes, indices], outputs=[result]))


def _transposed(model: Model, graph: gs.Graph, tensor: gs.Tensor, rank: int, *, to_be_last: bool) -> gs.Variable:
    """A tensor in the other layout, and a Transpose in the graph.  The shape of ``tensor`` is still in ONNX's order."""
    name = model.unique_name(f"{tensor.name}_{'nhwc' if to_be_last else 'nchw'}")
    shape = permuted(tensor.shape) if to_be_last and tensor.shape is not None else tensor.shape
    result = gs.Variable(name, dtype=tensor.dtype, shape=shape)
    perm = to_last(rank) if to_be_last else to_first(rank)
    name = model.unique_name(f"{name}_transpose")
    graph.nodes.append(Node("Transpose", name=name, attrs={"perm": perm}, inputs=[tensor], outputs=[result]))
    return result


def put_channels_last(function: onnx.FunctionProto, rank: int, inputs: Sequence[int], *, outputs: bool) -> None:
    """Transpose what a function reads as those of its ``inputs``, and all that it gives if ``outputs``."""
    read = {function.input[index] for index in inputs}
    given = list(dict.fromkeys(function.output)) if outputs else []
    _rename(function, {name: name + _FIRST for name in (*read, *given)})
    before = [helper.make_node("Transpose", [name], [name + _FIRST], perm=to_first(rank)) for name in sorted(read)]
    after = [helper.make_node("Transpose", [name + _FIRST], [name], perm=to_last(rank)) for name in given]
    body = [*before, *function.node, *after]
    del function.node[:]
    function.node.extend(body)


def _join_parts(function: onnx.FunctionProto, count: int, rank: int) -> None:
    """Make input 0 of a function one that it joins of ``count`` parts: input 0, and those from 2 on."""
    parts = [f"part_{index}" for index in range(count)]
    joined, weights, *others = function.input
    body = [helper.make_node("Concat", parts, [joined], axis=rank - 1), *function.node]
    del function.node[:]
    function.node.extend(body)
    del function.input[:]
    function.input.extend([parts[0], weights, *parts[1:], *others])


def _rename(function: onnx.FunctionProto, names: Mapping[str, str]) -> None:
    """Rename tensors in the body."""
    for node in function.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]


def _unpack_weights(function: onnx.FunctionProto, conv: Convolution) -> None:
    """Put the weights, input 1, in ONNX's order.

    Sizes are not written down but read off the tensor: so functions do not differ in them.
    """
    packed = function.input[1]
    _rename(function, {packed: packed + _FIRST})
    opset = function.opset_import[0].version
    nodes = _of_single_channels(conv, opset) if conv.depthwise else _of_all_channels(conv, opset)
    nodes[0].input[0], nodes[-1].output[0] = packed, packed + _FIRST
    body = [*nodes, *function.node]
    del function.node[:]
    function.node.extend(body)


def _of_single_channels(conv: Convolution, opset: int) -> list[onnx.NodeProto]:
    turn = helper.make_node("Transpose", [""], ["by_filter"], perm=[conv.rank, *range(conv.rank)])
    if opset < 13:
        return [turn, helper.make_node("Unsqueeze", ["by_filter"], [""], axes=[1])]
    axes = constant_integers("channel_axis", [1])
    return [turn, axes, helper.make_node("Unsqueeze", ["by_filter", "channel_axis"], [""])]


def _of_all_channels(conv: Convolution, opset: int) -> list[onnx.NodeProto]:
    rank = conv.rank
    nodes = [
        helper.make_node("Transpose", [""], ["by_channel"], perm=[rank + 1, *range(1, rank + 1), 0, rank + 2]),
        constant_integers("all_filters", [0] * (rank + 1) + [-1]),  # zeros keep a size
        helper.make_node("Reshape", ["by_channel", "all_filters"], ["filters_last"]),
        helper.make_node("Transpose", ["filters_last"], ["filters"], perm=[rank + 1, *range(rank + 1)]),
    ]
    if not _is_padded(conv):
        return nodes
    if opset < ATTRIBUTE_OPSET:
        nodes.append(helper.make_node("Split", ["filters"], ["", "no_filters"], axis=0))
        nodes[-1].attribute.add(name="split", type=onnx.AttributeProto.INTS, ref_attr_name="weight_split")
    else:
        nodes.append(constant_from_attribute("places", "weight_filters"))
        nodes.append(helper.make_node("Gather", ["filters", "places"], [""], axis=0))
    return nodes


def _is_padded(conv: Convolution) -> bool:
    return not conv.depthwise and conv.out_channels % NHWC_BLOCK > 0


def _weight_attributes(conv: Convolution, opset: int) -> dict[str, onnx.TensorProto | list[int]]:
    """How many filters there are, where the function cannot read it off the weights."""
    if not _is_padded(conv):
        return {}
    if opset < ATTRIBUTE_OPSET:
        return {"weight_split": [conv.out_channels, -conv.out_channels % NHWC_BLOCK]}
    return {"weight_filters": numpy_helper.from_array(np.arange(conv.out_channels, dtype=np.int64))}


def _layouts(inputs: Sequence[bool], output: bool) -> dict[str, int | list[int]]:
    return {"nhwc_inputs": list(map(int, inputs)), "nhwc_output": int(output)}
