"""The pass that computes the gates of squeeze-and-excitation blocks in one node each, on the CPU."""

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from onnxfuse.fused.choices import ConvChoice, ConvPolicy
from onnxfuse.fused.conv.cpu_convolutions import cpu_chooser
from onnxfuse.fused.fusion import emit_all
from onnxfuse.fused.kinds import SQUEEZE_EXCITE
from onnxfuse.fused.squeeze_excite.squeeze_blocks import SqueezeBlock, SqueezeBlocks, SqueezeFusion, fuse_squeeze_excite
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.returned import Returned
from onnxfuse.ort.host import constant_arithmetic
from onnxfuse.ort.ort_layout import ConvLayout
from onnxfuse.passes.rules.conv_layout.gated_residual import GatedResidual
from onnxfuse.passes.rules.conv_layout.hard_sigmoid import RecogniseHardSigmoid
from onnxfuse.passes.rules.conv_layout.hard_swish import RecogniseHardSwish
from onnxfuse.passes.rules.fold_affine.fold_affine_before_mean import FoldAffineBeforeMean
from onnxfuse.program import ProgramError
from onnxfuse.program.node_lowering import UnsupportedError
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.rewriter import RulePass
from onnxfuse.shapes.inference import infer

NAME = "fuse-squeeze-excite"
IN_GATE = ConvChoice(True, "it is part of a gate of one value a channel, which is one node")
BLOCKED_DATA = "ONNX Runtime keeps what it takes the means of in the blocked layout"


class FuseSqueezeExcite:
    """Replaces the gates of squeeze-and-excitation blocks by single nodes, for the target cpu.

    Such a gate is a few microseconds of work in five nodes or more.  It runs before what depends on where ONNX Runtime
    uses its blocked layout, which the new node does not know.
    """

    name = NAME
    description = "compute the gate of a squeeze-and-excitation block in one node, on the CPU"

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrite ``model`` in place and record every gate."""
        if SQUEEZE_EXCITE not in context.on.kinds or "" not in model.opsets:
            return
        if cpu_chooser(context).policy is ConvPolicy.NONE:
            return
        if not all(_is_known(tensor) for tensor in _made(model)):
            infer(model)
        # A division by six that ends an activation is no affine step, so activations are recognised first.
        RulePass([RecogniseHardSigmoid(), RecogniseHardSwish()], NAME).run(model, context)
        # So that the one that GatedResidual adds is added in the gate, and its weights take in what they can.
        RulePass([GatedResidual(), FoldAffineBeforeMean()], NAME).run(model, context)
        if any(tensor.dtype is None for tensor in _made(model)):
            infer(model)  # it has added tensors
        for graph in list(model.fusible_graphs()):
            fusions = _plan(model, graph, context)
            for conv in (conv for found in fusions for conv in found.block.convolutions):
                context.report.add_convolution(label(conv), conv.op, IN_GATE)
            emit_all(model, graph, [found.fusion for found in fusions], context)


def _made(model: Model) -> Iterator[gs.Tensor]:
    """What the nodes of all graphs make."""
    return (tensor for graph in model.graphs() for node in graph.nodes for tensor in node.outputs)


def _is_known(tensor: gs.Tensor) -> bool:
    """Whether inference has nothing to add, whatever has been folded since the last one."""
    return tensor.dtype is not None and tensor.shape is not None and all(isinstance(dim, int) for dim in tensor.shape)


def _plan(model: Model, graph: gs.Graph, context: PassContext) -> list[SqueezeFusion]:
    """The fusions of one graph, which is not changed."""
    returned = Returned(model.graphs())
    nodes = sorted_nodes(graph)
    opset = model.opsets[""]
    blocks = SqueezeBlocks(nodes, returned, opset)
    layout = ConvLayout(nodes, returned)
    constant = constant_arithmetic(nodes)
    found = []
    for node in nodes:
        try:
            block = None if id(node) in constant else blocks.block(node)
            if block is None:
                continue
            if not context.everything and _stays_blocked(block, blocks, layout, returned):
                raise UnsupportedError(BLOCKED_DATA)
            found.append(fuse_squeeze_excite(block, opset, context.fast_math))
        except (UnsupportedError, ProgramError) as reason:
            context.refused(NAME, node, str(reason))
    return found


def _stays_blocked(block: SqueezeBlock, blocks: SqueezeBlocks, layout: ConvLayout, returned: Returned) -> bool:
    """Whether the new node alone would make ONNX Runtime reorder what the block reads.

    ONNX Runtime has no product of a tensor and its gate in the blocked layout.
    """
    if not layout.is_blocked(block.data) or returned(block.data):
        return False
    others = [node for node in blocks.readers(block.data) if node is not block.pool]
    return all(
        id(node) in layout.blocked_nodes and all(tensor is not block.excite.result for tensor in node.inputs)
        for node in others
    )
