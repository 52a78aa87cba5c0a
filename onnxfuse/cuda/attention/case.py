"""What is known of an attention when its kernels are rendered, read back from its node."""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxfuse.cuda.attention.kernel import TYPES
from onnxfuse.cuda.strided import Dim
from onnxfuse.fused.kinds import ATTENTION
from onnxfuse.model import dtypes
from onnxfuse.model.graph import Model
from onnxfuse.program import ProgramError


@dataclass(frozen=True)
class AttentionCase:
    """The type of Q, K and V, what else is read (``onnxfuse.cuda.attention.kernel.READS``), whether rows of which masks
    leave nothing are zero, and the sizes of the rows of Q and K, and of V; None of one that is not known.
    """

    dtype: str
    reads: str
    zeros: bool
    size: int | None
    value_size: int | None

    @property
    def facts(self) -> tuple[str, str, bool]:
        """What its kernels have in common."""
        return self.dtype, self.reads, self.zeros


@dataclass(frozen=True)
class AttentionOfModel:
    """A fused attention of a model."""

    node: gs.Node
    case: AttentionCase


def fused_attentions(model: Model) -> Iterator[AttentionOfModel]:
    """The fused attentions of every graph of a model whose shapes have been inferred.

    Raises ProgramError for a node that does not validate.
    """
    return (AttentionOfModel(node, case_of(node)) for node in model.fused_nodes(ATTENTION))


def case_of(node: gs.Node) -> AttentionCase:
    """What a fused node computes.  Raises ProgramError, which names the node, for one that does not validate."""
    chosen = "fill_bits" in node.attrs
    more = len(node.inputs) - 3 - chosen
    heads = node.attrs.get("input_heads")
    first = node.attrs.get("heads_first")
    if more not in (0, 1) or not _are_integers(heads, 3) or not _are_integers(first, 4):
        raise ProgramError(f"fused attention {node.name!r}: its attributes do not fit its inputs")
    known = dtypes.from_numpy(node.inputs[0].dtype)
    if known is None or known.name not in TYPES:
        raise ProgramError(f"fused attention {node.name!r}: there are no kernels for its type")
    sizes = [_size(node.inputs[place].shape, heads[place]) for place in (0, 2)]
    zeros = bool(node.attrs.get("masked_as_zero", 0))
    return AttentionCase(known.name, "m" * more + "c" * chosen or "-", zeros, *sizes)


def _are_integers(values: object, count: int) -> bool:
    return isinstance(values, list) and len(values) == count and all(isinstance(value, int) for value in values)


def _size(shape: "list[Dim] | None", heads: int) -> int | None:
    """The size of a head: the last dimension, which has all heads where there are three."""
    if not shape or not isinstance(shape[-1], int):
        return None
    return shape[-1] // heads if len(shape) == 3 else shape[-1]
