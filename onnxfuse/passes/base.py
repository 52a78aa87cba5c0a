"""What a pass is, and what it is given to work with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from onnxfuse.report import Report

if TYPE_CHECKING:
    from onnxfuse.cuda.conv.choice import ConvChooser
    from onnxfuse.cuda.fitting import Fitter
    from onnxfuse.graph import Model
    from onnxfuse.graph_ir import Node
    from onnxfuse.planner.cpu_convolutions import CpuChooser


def _silent(_message: str) -> None:
    """The progress callback of a caller that wants none."""


@dataclass
class PassContext:
    """What a pass may depend on besides the model: the request, and where to say what was done.

    ``target`` is ``"cpu"`` or ``"cuda"``; ``progress`` takes one line at a time.  For the target cuda ``fitter`` tells
    what the compiler makes of a Program, if it is to be asked, ``convolutions`` chooses which of them are fused, by a
    rule if there is none, ``tf32`` allows those of float32 to round their factors, and ``prefer_nhwc`` says that the
    sessions will have that option.
    """

    target: str = "cpu"
    fast_math: bool = False
    fitter: Fitter | None = None
    convolutions: ConvChooser | None = None
    own_convolutions: CpuChooser | None = None
    tf32: bool = False
    prefer_nhwc: bool = False
    report: Report = field(default_factory=Report)
    progress: Callable[[str], None] = _silent
    _reported: set[tuple[str, str, str]] = field(default_factory=set, repr=False)

    def rewrote(self, rule: str, nodes: Iterable[Node]) -> None:
        """Records that ``rule`` (or a pass that is no set of rules) replaced ``nodes``."""
        self.report.add_rewrite(rule, [label(node) for node in nodes])

    def refused(self, rule: str, node: Node, reason: str) -> None:
        """Records once why ``rule`` left ``node`` as it is; ``reason`` is one sentence."""
        key = (rule, label(node), reason)
        if key not in self._reported:
            self._reported.add(key)
            self.report.add_refusal(rule, label(node), reason)


@runtime_checkable
class Pass(Protocol):
    """Something that rewrites a model in place.

    ``run`` raises OnnxfuseError when the model cannot be processed; what it merely cannot improve it leaves
    alone and says why with ``context.refused``.
    """

    name: str
    description: str

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrites ``model`` in place."""


def label(node: Node) -> str:
    """A node's name; the name of its first output for a node that has none."""
    if node.name:
        return str(node.name)
    return str(next((tensor.name for tensor in node.outputs if tensor.name), ""))
