"""What a pass is, and what it is given to work with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from onnxfuse.fused.target import TARGETS, Target
from onnxfuse.report.report import Report

if TYPE_CHECKING:
    from onnxfuse.cuda.elementwise.fitting import Fitter
    from onnxfuse.fused.choices import ConvChooser
    from onnxfuse.model.graph import Model
    from onnxfuse.model.graph_ir import Node


def _silent(_message: str) -> None:
    """The progress callback of a caller that wants none."""


@dataclass
class PassContext:
    """What a pass may depend on besides the model: the request, and where to say what was done.

    ``target`` is ``"cpu"`` or ``"cuda"``, ``on`` what is known of it; ``progress`` takes one line at a time.
    ``convolutions`` chooses which of them are fused, by estimates or a rule if there is none.  For the target cuda
    ``fitter`` tells what the compiler makes of a Program, if it is to be asked, ``tf32`` allows convolutions of float32
    to round their factors, and ``prefer_nhwc`` says that the sessions will have that option.  ``everything`` has all
    fused that can be, whether or not that gains, and whether or not ONNX Runtime would be as fast: for tests, whose
    models are too small for any gain.
    """

    target: str = "cpu"
    fast_math: bool = False
    fitter: Fitter | None = None
    convolutions: ConvChooser | None = None
    tf32: bool = False
    prefer_nhwc: bool = False
    everything: bool = False
    report: Report = field(default_factory=Report)
    progress: Callable[[str], None] = _silent
    _reported: set[tuple[str, str, str]] = field(default_factory=set, repr=False)

    @property
    def on(self) -> Target:
        """The facts of the target."""
        return TARGETS[self.target]

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

    @property
    def name(self) -> str:
        """What users call it."""

    @property
    def description(self) -> str:
        """What it does, in one line."""

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrites ``model`` in place."""


def label(node: Node) -> str:
    """A node's name; the name of its first output for a node that has none."""
    if node.name:
        return str(node.name)
    return str(next((tensor.name for tensor in node.outputs if tensor.name), ""))
