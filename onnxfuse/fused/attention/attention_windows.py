"""Scores of the windows of images, to which a mask is added that differs between the windows, not between the images.

So shifted windows attend, with a bias of positions besides (Z. Liu et al., Swin Transformer: Hierarchical Vision
Transformer using Shifted Windows, 2021).
"""

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.attention.attention_heads import target_of
from onnxfuse.fused.attention.attention_parts import producer
from onnxfuse.fused.made import Made, Value, make_nodes
from onnxfuse.model.constants import constant_value, dtype_of
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor
from onnxfuse.shapes.missed_sizes import broadcast


@dataclass(frozen=True)
class Windows:
    """``split`` makes (images, windows, heads, length, keys) of scores, ``add`` adds ``mask``, and ``join`` makes
    (images · windows, heads, length, keys) of that again."""

    scores: gs.Tensor
    split: gs.Node
    add: gs.Node
    join: gs.Node
    mask: gs.Tensor
    count: int

    @property
    def nodes(self) -> tuple[gs.Node, ...]:
        """In topological order."""
        return self.split, self.add, self.join

    @property
    def is_regular(self) -> bool:
        """Whether the mask is of (windows, heads, length, keys), heads and all after them perhaps 1."""
        return self.mask.shape is not None and len(self.mask.shape) == 4


def windows_of(join: gs.Node) -> Windows | None:
    """The Windows that end with a Reshape; None for another one."""
    add = producer(join.inputs[0]) if standard_op(join) == "Reshape" else None
    if add is None or standard_op(add) != "Add":
        return None
    for place in (0, 1):
        split, mask = producer(add.inputs[place]), add.inputs[1 - place]
        count = count_windows(split, join)
        if count is None or mask.shape is None or dtype_of(mask) != np.float32:
            continue
        # Of one image, or without its dimension; and of no more rows or keys than the scores have.
        own = list(mask.shape)[-4:]
        fits = len(own) == 4 and list(mask.shape)[:-4] in ([], [1]) and own[0] == count
        sizes = zip(own[1:], split.inputs[0].shape[1:], strict=True)
        if fits and all(size in (1, of_scores) for size, of_scores in sizes):
            return Windows(split.inputs[0], split, add, join, mask, count)
    return None


def count_windows(split: gs.Node, join: gs.Node) -> int | None:
    """How many windows of an image ``split`` tells apart, and ``join`` does not; None if they do something else."""
    shape = split.inputs[0].shape if standard_op(split) == "Reshape" else None
    apart, joined = (target_of(reshape) if shape is not None else None for reshape in (split, join))
    if shape is None or apart is None or joined is None or len(shape) != 4 or len(apart) != 5 or len(joined) != 4:
        return None
    sizes = list(shape[1:])
    if not all(isinstance(size, int) and size > 0 for size in sizes) or apart[2:] != sizes or joined[1:] != sizes:
        return None
    return apart[1] if apart[1] > 0 and 0 not in (apart[0], joined[0]) else None


def regularize_windows(model: Model, context: PassContext) -> None:
    """Rewrites masks of windows, and biases before them, as one mask of four dimensions that is added to the scores.

    Of float32, before a Softmax, in models whose types have been inferred.  Attentions that add the same share a mask.
    Results stay the same up to rounding.
    """
    editor = GraphEditor(model)
    try:
        for graph in model.fusible_graphs():
            masks: dict[tuple[object, ...], gs.Tensor] = {}
            for node in sorted_nodes(graph):
                windows = windows_of(producer(node.inputs[0])) if standard_op(node) == "Softmax" else None
                if windows is not None and all(editor.is_inner(made.outputs[0]) for made in windows.nodes):
                    _regularize(model, context, editor, windows, masks)
    finally:
        editor.finish()


def _regularize(
    model: Model,
    context: PassContext,
    editor: GraphEditor,
    windows: Windows,
    masks: dict[tuple[object, ...], gs.Tensor],
) -> None:
    """Rewrite those of one attention; ``masks`` are those that were made, by what of."""
    mask: Value = windows.mask
    if not windows.is_regular:
        sizes = list(windows.mask.shape)[1:]
        if (values := constant_value(windows.mask)) is not None:
            mask = model.constant(values.reshape(sizes), f"{windows.mask.name}_windows")
        else:
            target = model.constant(np.array(sizes, np.int64), f"{windows.mask.name}_windows")
            mask = Made("Reshape", (mask, target), tuple(sizes))
    bias = _bias(windows, editor)
    if bias is not None:
        mask = Made("Add", (mask, bias.added), tuple(broadcast([mask.shape, bias.added.shape])))
        windows.split.inputs[0] = bias.scores
    if mask is windows.mask:
        return
    context.rewrote("regularize-windows", [*([] if bias is None else [bias.add]), *windows.nodes])
    key = id(windows.mask), None if bias is None else id(bias.added), *mask.shape
    if not isinstance(mask, Made):
        masks[key] = mask
    if (made := masks.get(key)) is None:
        name = label(windows.add)
        made = masks[key] = gs.Variable(model.unique_name(f"{name}_mask"), np.float32, list(mask.shape))
        editor.insert(make_nodes(model, mask, made, name), at=windows.add)
    editor.sort(windows.add)
    windows.add.inputs[1 if windows.add.inputs[1] is windows.mask else 0] = made
    if bias is not None:
        editor.remove([bias.add])


@dataclass(frozen=True)
class _Bias:
    """``add`` adds ``added`` to ``scores``, the same in all windows."""

    add: Node
    scores: gs.Tensor
    added: gs.Tensor


def _bias(windows: Windows, editor: GraphEditor) -> _Bias | None:
    """That before the mask, if nothing else reads what it makes."""
    add = producer(windows.scores)
    if standard_op(add) != "Add" or not editor.is_inner(windows.scores):
        return None
    for place in (1, 0):
        bias, scores = add.inputs[place], add.inputs[1 - place]
        if bias.shape is None or scores.shape is None or dtype_of(bias) != np.float32 or len(scores.shape) != 4:
            continue
        own = [*[1] * (4 - len(bias.shape)), *bias.shape]
        if len(own) == 4 and own[0] == 1 and list(scores.shape[1:]) == list(windows.scores.shape[1:]):
            return _Bias(add, scores, bias)
    return None
