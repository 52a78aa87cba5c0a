"""Concats of channels where these come last.

ONNX Runtime's Concat runs on one thread, and calls for a copy of each run of elements by itself.  Where a product of
all channels, and other Concats, read the joined tensor, as in a DenseNet (Huang et al., 2017, arXiv:1608.06993), they
read its parts, and it is never made; any other Concat is a node of the library's.
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.conv.conv_node import ConvFusion
from onnxfuse.fused.fused_node import local_function, set_overload
from onnxfuse.fused.fusion import Fusion
from onnxfuse.fused.kinds import NHWC_CONCAT
from onnxfuse.fused.nhwc.nhwc_layout import NhwcLayout, joins_channels
from onnxfuse.fused.nhwc.nhwc_pairs import is_of_result
from onnxfuse.model.graph import captured_tensors

_MOST_PARTS = 64
"""That one node reads."""
_LEAST_CHANNELS = 8
"""Of a part, in the mean: runs that are shorter take longer to copy than a tensor that is made once."""
_MOST_FILTERS = 512
"""Of a product, whose units of more filters would each join the parts."""


class NhwcConcats:
    """The Concats of a graph's ``nodes``, in topological order, that make a float32 tensor whose channels come last."""

    def __init__(
        self,
        nodes: Sequence[gs.Node],
        fusions: Sequence[ConvFusion],
        layout: NhwcLayout,
        is_output: Callable[[gs.Tensor], bool],
    ) -> None:
        made = {id(node): node for node in layout.nodes if _makes_last(node, layout)}
        self.nodes = list(made.values())
        """Those nodes."""
        self._joined: dict[int, gs.Node] = {}
        if not made:
            return
        readers = _readers(nodes, fusions)
        captured = {id(tensor) for node in nodes for tensor in captured_tensors(node)}
        counts: dict[int, int] = {}
        for node in nodes:
            if id(node) not in made:
                continue
            (result,) = node.outputs
            count = sum(counts.get(id(tensor), 1) for tensor in node.inputs)
            read = id(result) in readers and not is_output(result) and id(result) not in captured
            fits = len(node.inputs) > 1 and count <= _MOST_PARTS  # so that those in each other are few too
            if not read or not fits or not _has_wide_parts(node, count):
                continue
            # Each product copies the parts for itself.
            products = {id(one): one for one in readers[id(result)] if not isinstance(one, gs.Node)}
            others = [one for one in readers[id(result)] if isinstance(one, gs.Node)]
            if len(products) > 1 or not all(id(one) in made for one in others):
                continue
            if all(_reads_parts(one, result, layout) for one in products.values()):
                self._joined[id(result)] = node
                counts[id(result)] = count

    def is_joined(self, node: gs.Node) -> bool:
        """Whether those who read what a Concat makes read the parts instead."""
        return id(node.outputs[0]) in self._joined

    def take_away(self) -> None:
        """Disconnect the Concats whose results are not made."""
        for node in self._joined.values():
            node.inputs.clear()
            node.outputs.clear()

    def parts(self, tensor: gs.Tensor) -> list[gs.Tensor]:
        """What to read in place of a tensor: itself, unless it is joined."""
        node = self._joined.get(id(tensor))
        return [tensor] if node is None else [part for one in node.inputs for part in self.parts(one)]


def nhwc_concat(node: gs.Node, concats: NhwcConcats, opset: int) -> Fusion:
    """What takes the place of the ``node`` of one of the ``concats``, along the last axis."""
    inputs, (result,) = [part for tensor in node.inputs for part in concats.parts(tensor)], node.outputs
    node.inputs = inputs
    function, constants = local_function([node], inputs, [result], [], opset)
    set_overload(function, "", "nhwc", node.op)
    return Fusion(NHWC_CONCAT, [node], inputs, [result], constants, function)


def _makes_last(node: gs.Node, layout: NhwcLayout) -> bool:
    return joins_channels(node) and node.outputs[0].dtype == np.float32 and id(node.outputs[0]) in layout.tensors


def _has_wide_parts(node: gs.Node, count: int) -> bool:
    """Whether the numbers of channels that a Concat makes, and reads in so many parts, are known, and parts are wide.

    Its shapes are in ONNX's order still.
    """
    shapes = [tensor.shape for tensor in (*node.outputs, *node.inputs)]
    if any(shape is None or not isinstance(shape[1], int) for shape in shapes):
        return False
    whole, *parts = (shape[1] for shape in shapes)
    return whole == sum(parts) and min(parts) > 0 and whole >= count * _LEAST_CHANNELS


def _readers(nodes: Sequence[gs.Node], fusions: Sequence[ConvFusion]) -> dict[int, list[ConvFusion | gs.Node]]:
    """Who reads a tensor, by its id: fusions, and nodes of none."""
    fusion_of = {id(node): fusion for fusion in fusions for node in fusion.region.nodes}
    readers: dict[int, list[ConvFusion | gs.Node]] = {}
    for node in nodes:
        for tensor in node.inputs:
            readers.setdefault(id(tensor), []).append(fusion_of.get(id(node), node))
    return readers


def _reads_parts(fusion: ConvFusion, tensor: gs.Tensor, layout: NhwcLayout) -> bool:
    """Whether a fused node can read the parts of a tensor: it is a product, and reads it as its data alone."""
    return (
        id(fusion.region.conv) in layout.convolutions
        and fusion.region.convolution.pointwise
        and fusion.region.convolution.out_channels <= _MOST_FILTERS
        and fusion.region.data is tensor
        and sum(one is tensor for one in fusion.inputs) == 1
        and (fusion.prologue is None or is_of_result(fusion.prologue))
    )
