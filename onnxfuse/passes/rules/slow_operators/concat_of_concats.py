"""Concat(Concat(a, …), c, …) along one axis → Concat(a, …, c, …), for CUDA."""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs

from onnxfuse.model.graph_ir import producer_of, standard_op
from onnxfuse.program.lowering import is_elementwise
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule

_MOST_PARTS = 4
"""Each has kernels of its own in every node that reads it: with up to 16 a DenseNet-121 took minutes to compile.  So of
three Concats that follow one another one is computed."""


class ConcatOfConcats(RewriteRule):
    """Joins at once what several Concats join one after the other, where elementwise nodes alone read what is between.

    These read the parts then, and nothing writes it: so the layers of a DenseNet (G. Huang et al., Densely Connected
    Convolutional Networks, 2017), each of which normalizes all that those before it have made.  Refused: more than
    four parts.
    """

    name = "concat-of-concats"

    def pattern(self, op: Ops, first: Any) -> Any:
        """The outer Concat; its inputs are read in ``check``."""
        return op.Concat(first, _extra_inputs=True, _name="concat")

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds all parts in their order."""
        concat = match.node("concat")
        shape, axis = concat.outputs[0].shape, concat.attrs.get("axis")
        if shape is None or axis is None:
            return NOT_APPLICABLE
        parts: list[gs.Tensor] = []
        for tensor in concat.inputs:
            inner = producer_of(tensor)
            if inner is None or standard_op(inner) != "Concat" or match.editor.is_graph_output(tensor):
                parts.append(tensor)
                continue
            readers = [reader for reader in tensor.outputs if reader is not concat]
            along = inner.attrs.get("axis")
            if along is None or along % len(shape) != axis % len(shape) or not all(map(is_elementwise, readers)):
                parts.append(tensor)
                continue
            parts += inner.inputs
        if len(parts) == len(concat.inputs):
            return NOT_APPLICABLE
        if len(parts) > _MOST_PARTS:
            return f"more than {_MOST_PARTS} parts"
        match.plan = parts
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """One Concat of all parts."""
        return builder.like(match.node("concat"), *match.plan)
