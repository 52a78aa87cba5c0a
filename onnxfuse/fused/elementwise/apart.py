"""Why single nodes stay out of every region."""

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from onnxfuse.fused.elementwise.cuda_placement import CudaPlacement
from onnxfuse.model.graph import Model
from onnxfuse.model.returned import Returned
from onnxfuse.ort.host import CONSTANT_ARITHMETIC, constant_arithmetic, shape_arithmetic
from onnxfuse.ort.ort_fusions import OrtFusions
from onnxfuse.ort.ort_layout import INSIDE_CONV, ConvLayout
from onnxfuse.ort.ort_quantization import QUANTIZED, quantized_nodes
from onnxfuse.ort.slow_kernels import FASTER, is_faster
from onnxfuse.program.lowering import check
from onnxfuse.rewrite.base import PassContext

SHAPE_ARITHMETIC = "computes with shapes, which ONNX Runtime keeps on the host"


class Apart:
    """Judges the elementwise nodes of a model.

    ``ort`` is what ONNX Runtime fuses itself, ``placement`` where nodes run beside a GPU; both are None where they do
    not matter.
    """

    def __init__(self, model: Model, context: PassContext) -> None:
        self._opset = model.opsets[""]
        self.ort = None if context.everything else OrtFusions(model, context.on)
        self.placement = CudaPlacement(model) if context.on.host_apart and not context.everything else None
        self._on = context.on
        self._is_output = Returned(model.graphs())

    def layout(self, nodes: Sequence[gs.Node]) -> ConvLayout | None:
        """What ONNX Runtime has in blocks of channels in a graph; None where that does not matter."""
        return ConvLayout(nodes, self._is_output, self._on, self.ort.gelus) if self.ort else None

    def reasons(
        self, nodes: Sequence[gs.Node], elementwise: Sequence[gs.Node], layout: ConvLayout | None
    ) -> dict[int, str]:
        """Why some of the ``elementwise`` nodes of a graph's ``nodes`` are not fused, by id."""
        ids = {id(node) for node in elementwise}
        reasons = dict.fromkeys(shape_arithmetic(nodes, ids), SHAPE_ARITHMETIC)
        if self.placement:
            on_host = {id(node): self.placement.why_alone(node) for node in elementwise if id(node) not in reasons}
            reasons.update((node_id, reason) for node_id, reason in on_host.items() if reason)
        if self.ort:
            reasons.update(dict.fromkeys((constant_arithmetic(nodes) & ids) - self.ort.weights, CONSTANT_ARITHMETIC))
            reasons.update(self.ort.reasons)
        if self.ort and self.ort.quantized:
            reasons.update(dict.fromkeys(quantized_nodes(nodes, ids), QUANTIZED))
            reasons.update((id(node), FASTER) for node in elementwise if is_faster(node))
        if layout:
            reasons.update(dict.fromkeys(layout.inside_conv, INSIDE_CONV))
        for node in elementwise:
            if id(node) not in reasons and (reason := check(node, self._opset)):
                reasons[id(node)] = reason
        return reasons
