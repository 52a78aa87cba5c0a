"""Means and standard deviations in normalizations that are written out: Sqrt(ReduceMean(…) + ε)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import constant_value
from onnxfuse.model.graph_ir import standard_op


def is_mean_of_rows(mean: gs.Node) -> bool:
    """Whether a ReduceMean leaves a dimension of 1 in place of the last one, and all others as they are."""
    shape = mean.inputs[0].shape
    if mean.attrs.get("keepdims", 1) != 1 or shape is None:
        return False
    axes = mean.attrs.get("axes")
    if axes is None and len(mean.inputs) > 1:
        axes = constant_value(mean.inputs[1])
    return axes is not None and np.ravel(axes).tolist() in ([-1], [len(shape) - 1])


def is_deviation(tensor: gs.Tensor) -> bool:
    """Whether ``tensor`` is the root of a mean and something added to it."""
    return bool(means_in(tensor))


def means_in(tensor: gs.Tensor) -> list[gs.Node]:
    """The means of which, with something added, ``tensor`` is the root."""
    terms = inputs_of_producers(inputs_of_producers([tensor], "Sqrt"), "Add")
    return [node for term in terms for node in term.inputs if standard_op(node) == "ReduceMean"]


def is_normalized(tensor: gs.Tensor) -> bool:
    """Whether ``tensor`` is something over a deviation, in a form that ONNX Runtime recognizes."""
    inverses = (producer for factor in inputs_of_producers([tensor], "Mul") for producer in factor.inputs)
    divisions = (node for node in (*tensor.inputs, *inverses) if standard_op(node) == "Div")
    return any(is_deviation(node.inputs[1]) for node in divisions)


def inputs_of_producers(tensors: Iterable[gs.Tensor], op: str) -> list[gs.Tensor]:
    """What the nodes of type ``op`` that produce any of the tensors read."""
    return [read for tensor in tensors for node in tensor.inputs if standard_op(node) == op for read in node.inputs]
