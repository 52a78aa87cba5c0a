"""How it is chosen which convolutions are fused: what the user may ask for, and a choice with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from onnxfuse.errors import OnnxfuseError

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model
    from onnxfuse.model.graph_ir import Node


class ConvPolicy(Enum):
    """What the user asks for: what is known to be faster, every convolution that can be, or none."""

    AUTO = "auto"
    ALL = "all"
    NONE = "none"


def policy_named(name: str) -> ConvPolicy:
    """The policy of this name.  Raises OnnxfuseError for one that is unknown."""
    try:
        return ConvPolicy(name)
    except ValueError:
        known = ", ".join(policy.value for policy in ConvPolicy)
        raise OnnxfuseError(f"unknown choice of convolutions {name!r}; there are {known}") from None


@dataclass(frozen=True)
class ConvChoice:
    """Whether a convolution becomes a fused node, and why; ``reason`` continues a sentence about it."""

    fused: bool
    reason: str


ASKED_FOR = ConvChoice(True, "all were asked for")
SWITCHED_OFF = ConvChoice(False, "none were asked for")


class ConvChooser(Protocol):
    """Chooses between a fused convolution and ONNX Runtime's, on one target."""

    def begin(self, model: Model) -> None:
        """Choose what is chosen for a whole model at once, if that has not been done; its shapes are known."""

    def might(self, node: Node, convolution: Any) -> ConvChoice:
        """Whether any fusion of a convolution may be chosen; if not, nothing has to be planned for it."""

    def prepare(self, fusions: Sequence[Any]) -> None:
        """Compile at once what ``choose`` would compile for several fusions, one after the other."""

    def choose(self, fusion: Any) -> ConvChoice:
        """The choice for a convolution with all that its kernel would take in."""
