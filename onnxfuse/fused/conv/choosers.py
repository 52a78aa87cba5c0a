"""Which convolutions of a model are fused: one interface for all targets, and what stands in where nobody chose one."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_graphsurgeon as gs

from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.fused.choices import ConvChoice, ConvChooser, ConvPolicy
from onnxfuse.fused.conv.conv_node import ConvFusion, operands
from onnxfuse.fused.conv.cpu_convolutions import CpuChooser
from onnxfuse.fused.target import CPU, CUDA
from onnxfuse.model.graph import Model
from onnxfuse.rewrite.base import PassContext

if TYPE_CHECKING:
    from onnxfuse.cuda.conv.case import ConvCase
    from onnxfuse.cuda.conv.choice import CaseChooser


class CudaChooser:
    """Chooses for CUDA, where each convolution with its neighbours is a case of its own for ``chooser``.

    ``tf32``: those of float32 may round their factors.
    """

    def __init__(self, chooser: "CaseChooser", *, tf32: bool = False) -> None:
        self._chooser = chooser
        self._tf32 = tf32

    def begin(self, model: Model) -> None:
        """Nothing: no choice depends on another one."""

    def might(self, node: gs.Node, convolution: Convolution) -> ConvChoice:
        """Whether any fusion of a convolution may be chosen; if not, nothing has to be planned for it."""
        return self._chooser.might(convolution)

    def prepare(self, fusions: Sequence[ConvFusion]) -> None:
        """Compile at once what ``choose`` would compile one after the other."""
        self._chooser.prepare(list(map(self._case, fusions)))

    def choose(self, fusion: ConvFusion) -> ConvChoice:
        """The choice for a convolution with all that its kernel would take in."""
        return self._chooser.choose(self._case(fusion))

    def _case(self, fusion: ConvFusion) -> "ConvCase":
        from onnxfuse.cuda.conv.case import ConvCase

        before, after = operands(fusion.inputs, fusion.prologue)
        return ConvCase(
            fusion.region.convolution,
            _shape(fusion.region.data) or (),
            fusion.epilogue,
            tuple(map(_shape, after)),
            fusion.prologue,
            tuple(map(_shape, before)),
            self._tf32 and fusion.region.convolution.dtype == "f32",
        )


def _by_rule(policy: ConvPolicy) -> ConvChooser:
    from onnxfuse.cuda.conv.choice import RuleChooser

    return CudaChooser(RuleChooser(policy))


_DEFAULT: Mapping[str, Callable[[ConvPolicy], ConvChooser]] = {
    CPU.provider: CpuChooser,
    CUDA.provider: _by_rule,
}


def chooser_of(context: PassContext) -> ConvChooser:
    """The context's chooser, which is made where there is none."""
    if context.convolutions is None:
        policy = ConvPolicy.ALL if context.everything else ConvPolicy.AUTO
        context.convolutions = _DEFAULT[context.on.provider](policy)
    return context.convolutions


def _shape(tensor: gs.Tensor) -> tuple[int | str | None, ...] | None:
    if tensor.shape is None:
        return None
    return tuple(dim if dim is None or isinstance(dim, str) else int(dim) for dim in tensor.shape)
