"""The nodes that compute MaxPool and AveragePool with the channels last, and their functions."""

import onnx_graphsurgeon as gs

from onnxfuse.fused.fused_node import local_function, set_overload
from onnxfuse.fused.fusion import Fusion
from onnxfuse.fused.kinds import NHWC_POOL
from onnxfuse.fused.nhwc.nhwc_node import put_channels_last
from onnxfuse.fused.nhwc.pools import Pool

_LATER = ("ceil_mode", "dilations", "count_include_pad")
"""Attributes that not every opset has: a function has them as the node had them, if at all."""


def nhwc_pool(node: gs.Node, pool: Pool, opset: int) -> Fusion:
    """What takes the place of the ``node`` of a ``pool`` whose tensors have the channels last by now."""
    data, result = node.inputs[0], node.outputs[0]
    attributes = pool.attributes
    node.attrs = {**pool.windows, **{name: node.attrs[name] for name in _LATER if name in node.attrs}}
    function, constants = local_function([node], [data], [result], attributes, opset, {id(node): pool.windows})
    put_channels_last(function, len(pool.kernel) + 2, [0], outputs=True)
    set_overload(function, "", "nhwc", node.op)
    return Fusion(NHWC_POOL, [node], [data], [result], {**attributes, **constants}, function)
