"""The nodes that compute MaxPool and AveragePool with the channels last, and their functions."""

import onnx_graphsurgeon as gs

from onnxfuse.fused.kinds import DOMAIN, OPSET_VERSION
from onnxfuse.graph import Model, Node
from onnxfuse.planner.described import described
from onnxfuse.planner.functions import add_function
from onnxfuse.planner.fused_node import local_function, make_node, set_overload
from onnxfuse.planner.nhwc_node import put_channels_last
from onnxfuse.planner.pools import Pool
from onnxfuse.program.ops import FUSED_NHWC_POOL_OPS
from onnxfuse.report import FusedRegion

_LATER = ("ceil_mode", "dilations", "count_include_pad")
"""Attributes that not every opset has: a function has them as the node had them, if at all."""


def nhwc_pool(model: Model, node: gs.Node, pool: Pool, stem: str, fast_math: bool) -> tuple[Node, FusedRegion]:
    """The fused node of a ``pool`` whose tensors have the channels last by now, and what the report says of it.

    It has a name made from ``stem``, and takes over the output of ``node``.
    """
    data, result = node.inputs[0], node.outputs[0]
    attributes = pool.attributes
    node.attrs = {**pool.windows, **{name: node.attrs[name] for name in _LATER if name in node.attrs}}
    opset = model.opsets[""]
    function = local_function([node], [data], [result], "", list(attributes), opset, {id(node): pool.windows})
    put_channels_last(function, len(pool.kernel) + 2, [0], outputs=True)
    set_overload(function, "", "nhwc", node.op)
    op, own = add_function(model, function, FUSED_NHWC_POOL_OPS)
    model.opsets[DOMAIN] = OPSET_VERSION
    name = model.unique_name(f"{stem}_fused")
    region = described(name, function, [node], [data], [result])
    known = {**attributes, **own}
    return make_node([node], name, op, known, [data], [result], function.overload, fast_math), region
