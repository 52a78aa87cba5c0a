"""The pass that computes attention in one node."""

from collections.abc import Callable, Mapping

import onnx_graphsurgeon as gs

from onnxfuse.fused.attention.attention_blocks import AttentionBlock, AttentionBlocks
from onnxfuse.fused.attention.attention_masks import sum_masks
from onnxfuse.fused.attention.attention_projections import merge_projections
from onnxfuse.fused.attention.attention_windows import regularize_windows
from onnxfuse.fused.attention.batch_first import put_batch_first
from onnxfuse.fused.attention.choices_first import choose_first
from onnxfuse.fused.attention.head_scales import scale_queries
from onnxfuse.fused.attention.head_shapes import simplify_heads
from onnxfuse.fused.attention.merged_heads import separate_heads
from onnxfuse.fused.attention.position_masks import write_position_masks
from onnxfuse.fused.functions import INTEGERS_OPSET
from onnxfuse.fused.fused_node import local_function
from onnxfuse.fused.fusion import Fusion, emit_all
from onnxfuse.fused.kinds import ATTENTION
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.model.returned import Returned
from onnxfuse.program.node_lowering import UnsupportedError
from onnxfuse.rewrite.base import PassContext
from onnxfuse.shapes.inference import infer

NAME = "fuse-attention"

_FORMS: Mapping[str, Callable[[AttentionBlocks, gs.Node], AttentionBlock | None]] = {
    "Attention": AttentionBlocks.operator,
    "Softmax": AttentionBlocks.block,
}
"""What finds a block at a node of these operators."""
_ROUNDS = 3
"""Of the two products of an attention the second may be known only with the first."""


class FuseAttention:
    """Replaces scaled dot-product attention by single nodes, and its projections of one tensor by one product.

    ONNX Runtime computes it in ten nodes or more, each of which moves all of Q, K, V or the scores
    through memory.
    """

    name = NAME
    description = "compute scaled dot-product attention in one node"

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrite ``model`` in place and record every block."""
        if ATTENTION not in context.on.kinds or model.opsets.get("", 0) < INTEGERS_OPSET:  # Reshape has shapes
            return
        infer(model)
        write_position_masks(model, context)
        simplify_heads(model, context)
        for _ in range(_ROUNDS):
            if not separate_heads(model, context):
                break
            infer(model)
        put_batch_first(model, context)
        choose_first(model, context)
        sum_masks(model, context)
        regularize_windows(model, context)
        scale_queries(model, context)
        for graph in list(model.fusible_graphs()):
            blocks = _plan(model, graph, context)
            splits = {id(node) for node in merge_projections(model, blocks, context)}
            if splits:
                blocks = _plan(model, graph, context)
            emit_all(model, graph, [_fusion(block, model.opsets[""], splits) for block in blocks], context)


def _plan(model: Model, graph: gs.Graph, context: PassContext) -> list[AttentionBlock]:
    """The blocks of one graph, which is not changed."""
    nodes, opset = sorted_nodes(graph), model.opsets[""]
    blocks = AttentionBlocks(
        nodes, opset, Returned(model.graphs()), context.on.attention, everything=context.everything
    )
    found = []
    for node in graph.nodes:
        form = _FORMS.get(standard_op(node))
        if form is None:
            continue
        try:
            block = form(blocks, node)
        except UnsupportedError as reason:
            context.refused(NAME, node, str(reason))
            continue
        if block is not None:
            found.append(block)
    return found


def _fusion(block: AttentionBlock, opset: int, new: set[int]) -> Fusion:
    """What takes the place of a block; the nodes whose ids are ``new`` were not in the model and count for nothing."""
    nodes, inputs, outputs = block.nodes, block.inputs, [block.result]
    function, constants = local_function(nodes, inputs, outputs, block.attributes, opset)
    attributes = {**block.attributes, **constants}
    return Fusion(ATTENTION, nodes, inputs, outputs, attributes, function, new=frozenset(new))
