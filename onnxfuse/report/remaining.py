"""What ONNX Runtime still computes after an optimization, the largest first, and why it was left to it."""

from dataclasses import dataclass

from onnxfuse.report.byte_counts import Bytes
from onnxfuse.report.fused_region import weight
from onnxfuse.report.outline import Step
from onnxfuse.report.report import Report

PRODUCTS = {
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "MatMulInteger", "MatMulNBits", "QLinearMatMul", "QLinearConv"),
    "ConvInteger",
}
"""The operators of products and convolutions."""
_PRODUCT = "a product or convolution: ONNX Runtime's own kernel computes it"
_OTHER = "no fused node computes this operator, or it has nothing around it to be fused with"


@dataclass(frozen=True)
class Remaining:
    """Nodes of one operator, shape and reason, which move ``size`` bytes together; a dimension that has no size counts
    as 64."""

    op: str
    shape: str
    reason: str
    nodes: tuple[str, ...]
    size: int


def remaining(report: Report) -> list[Remaining]:
    """The launches of the main graph that are no fused nodes, of equal shape together, first what moves the most."""
    reasons = {item.node: item.reason for item in report.left_alone}
    reasons |= {item.node: item.reason for item in report.convolutions if not item.fused}
    sizes = {} if report.example is None else report.example.symbols
    groups: dict[tuple[str, str, str], list[Step]] = {}
    for step in report.graph_after:
        if not step.kind:
            reason = reasons.get(step.name, _PRODUCT if step.op in PRODUCTS else _OTHER)
            groups.setdefault((step.op, step.shape, reason), []).append(step)
    found = [
        Remaining(*key, tuple(step.name for step in steps), sum(weight(step.size or Bytes(), sizes) for step in steps))
        for key, steps in groups.items()
    ]
    return sorted(found, key=lambda one: (-one.size, one.op, one.shape, one.reason))
