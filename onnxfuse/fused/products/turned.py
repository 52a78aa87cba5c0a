"""The pass turn-products: for CUDA, products of transposed matrices, and transposed products, without the Transposes.

cuBLAS reads either factor by rows or by columns, and a product whose factors change places is the transposed one.  So
where a transformer convolves its tokens as an image, as SegFormer does, the product before the convolution gives the
channels first, and the one behind it reads them so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import dtype_of, is_constant
from onnxfuse.model.graph import sorted_nodes
from onnxfuse.model.graph_ir import VIEWS, Node, permutation_of, producer_of, standard_op
from onnxfuse.passes.cancel_transposes import cancel_behind
from onnxfuse.program.lowering import is_elementwise
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor
from onnxfuse.rewrite.matcher import Match
from onnxfuse.rewrite.pattern import Ops
from onnxfuse.rewrite.rewriter import RulePass
from onnxfuse.rewrite.rule import NOT_APPLICABLE, Builder, RewriteRule
from onnxfuse.shapes.inference import infer

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model

NAME = "turn-products"
_TYPES = (np.float32, np.float64, np.float16)
_OPSET = 11
"""From which the bias of a Gemm is optional."""
_ACTIVATIONS = ("Gelu", "Relu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Elu", "LeakyRelu", "Selu", "Mish")
"""Elementwise operators of one tensor that follow convolutions."""
_DEPTH = 16
"""Elementwise nodes that are looked through for a Transpose, one after the other."""


class TurnedResult(RewriteRule):
    """Transpose(MatMul(x, w) + bias) → Gemm(wᵀ, xᵀ, bias as a column), where the columns come first and the rows stay
    in their order, so that the result is a matrix of all rows.
    """

    name = NAME

    def pattern(self, op: Ops, x: Any) -> Any:
        """With or without a bias."""
        product = op.MatMul(x, op.constant("w"))
        return op.Transpose(op.any_of(op.Add(product, op.constant("bias")), product), _name="transpose")

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds the shape of the result, with -1 for a size that is not known, the bias or None, and
        whether that is added behind the Gemm, with what is fused there, and not as a column in it.
        """
        x, w, result = match["x"], match["w"], match.outputs[0]
        if not _is_of_rows(x, w) or result.shape is None or len(result.shape) != len(x.shape):
            return NOT_APPLICABLE
        sizes = [*x.shape[:-1], w.shape[1]]
        perm = permutation_of(match.node("transpose"))
        if perm is None or not _turns(sizes, perm):
            return NOT_APPLICABLE
        bias, fused = None, bool(result.outputs) and all(is_elementwise(reader) for reader in result.outputs)
        if match.get("bias") is not None:
            if list(match["bias"].shape or ()) != [w.shape[1]]:
                return NOT_APPLICABLE
            behind = len(perm) - 1 - perm.index(len(perm) - 1) if fused else 1
            bias = np.asarray(match.constant("bias")).reshape(-1, *[1] * behind)
        shape = [sizes[axis] if isinstance(sizes[axis], int) else -1 for axis in perm]
        if shape.count(-1) > 1 or 0 in shape:
            return NOT_APPLICABLE
        match.plan = shape, bias, fused
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The product with its factors exchanged, of what is transposed where that is in memory."""
        shape, bias, fused = match.plan
        x, w = match["x"], match["w"]
        turned = _turned_source(x)
        if turned is None:
            rows = builder.op("Reshape", x, builder.initializer(np.array([-1, w.shape[0]]), "rows"))
        else:
            rows = builder.op("Reshape", turned, builder.initializer(np.array([w.shape[0], -1]), "columns"))
        more = [] if bias is None else [builder.initializer(bias, match["bias"].name)]
        of_gemm = [] if fused else more
        made = builder.op("Gemm", w, rows, *of_gemm, transA=1, transB=int(turned is None))
        made = builder.op("Reshape", made, builder.initializer(np.array(shape), "shape"))
        return builder.op("Add", made, *more) if len(more) > len(of_gemm) else made


class TurnedSource(RewriteRule):
    """MatMul(Transpose(x), w) → Gemm(x, w) that reads x by columns, where these are all rows of the product."""

    name = NAME

    def pattern(self, op: Ops, source: Any) -> Any:
        """A product of constant weights."""
        return op.MatMul(source, op.constant("w"))

    def check(self, match: Match) -> str | None:
        """``match.plan`` holds what is transposed, and the shape of the result, with -1 for a size that is not known.

        Not applicable where anything but products reads what the Transpose makes: that would still be needed.
        """
        source, w = match["source"], match["w"]
        turned = _turned_source(source)
        if turned is None or not _is_of_rows(source, w) or match.editor.is_graph_output(source):
            return NOT_APPLICABLE
        if not all(_multiplies(reader, source) for reader in source.outputs):
            return NOT_APPLICABLE
        shape = [size if isinstance(size, int) else -1 for size in (*source.shape[:-1], w.shape[1])]
        if shape.count(-1) > 1 or 0 in shape:
            return NOT_APPLICABLE
        match.plan = turned, shape
        return None

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The product."""
        turned, shape = match.plan
        w = match["w"]
        columns = builder.op("Reshape", turned, builder.initializer(np.array([w.shape[0], -1]), "columns"))
        made = builder.op("Gemm", columns, w, transA=1)
        return builder.op("Reshape", made, builder.initializer(np.array(shape), "shape"))


class ReshapeBehindActivation(RewriteRule):
    """f(Reshape(conv)) → Reshape(f(conv)) for an elementwise node of one tensor, which is then fused with the
    convolution.
    """

    name = NAME

    def may_end_at(self, node: Node) -> bool:
        """Elementwise nodes alone."""
        return is_elementwise(node)

    def pattern(self, op: Ops, x: Any) -> Any:
        """Any of them; what it reads is looked at in ``check``."""
        reshaped = op.Reshape(x, op.constant("shape"), _name="reshape")
        return op.any_of(*(getattr(op, name)(reshaped, _name="f") for name in _ACTIVATIONS))

    def check(self, match: Match) -> str | None:
        """Only what a convolution makes, and nothing else reads."""
        made = producer_of(match["x"])
        alone = made is not None and standard_op(made) == "Conv" and match.editor.is_inner(match["x"])
        return None if alone else NOT_APPLICABLE

    def rewrite(self, match: Match, builder: Builder) -> Any:
        """The activation where the convolution is."""
        return builder.like(match.node("reshape"), builder.like(match.node("f"), match["x"]), match["shape"])


class TurnProducts:
    """Runs the rules, where products read their factors transposed at no cost."""

    name = NAME
    description = "For CUDA: multiplies transposed matrices, and gives transposed products, without Transposes."

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrites ``model`` in place."""
        if not context.on.turns_products or model.opsets.get("", 0) < _OPSET:
            return
        if not any(standard_op(node) == "MatMul" for graph in model.graphs() for node in graph.nodes):
            return
        infer(model)
        _turn_activations(model)
        for rule in (TurnedResult, TurnedSource, ReshapeBehindActivation):
            RulePass([rule()], NAME).run(model, context)
            infer(model)


def _is_of_rows(x: gs.Tensor, w: gs.Tensor) -> bool:
    """Whether a product is one of all rows of a tensor with a matrix that Gemm multiplies too."""
    known = w.shape is not None and len(w.shape) == 2 and x.shape is not None and len(x.shape) >= 2
    return known and dtype_of(x) in _TYPES and dtype_of(w) == dtype_of(x) and 0 not in w.shape


def _multiplies(reader: Node, source: gs.Tensor) -> bool:
    """Whether a node is a product of ``source`` with constant weights."""
    return standard_op(reader) == "MatMul" and reader.inputs[0] is source and is_constant(reader.inputs[1])


def _turns(sizes: list[Any], perm: list[int]) -> bool:
    """Whether an order of dimensions puts the last before all others, which stay in theirs, but for those of 1."""
    order = [axis for axis in perm if sizes[axis] != 1]
    last = len(sizes) - 1
    return len(order) > 1 and order[0] == last and order[1:] == sorted(order[1:])


def _turned_source(x: gs.Tensor) -> gs.Tensor | None:
    """What a Transpose makes ``x`` of, whose last dimension, as a matrix, are the rows of that; None if none does."""
    node = producer_of(x)
    perm = None if node is None else permutation_of(node)
    source = None if node is None else node.inputs[0]
    if perm is None or source is None or source.shape is None or len(source.shape) != len(perm):
        return None
    sizes = list(source.shape)
    back = [perm.index(axis) for axis in range(len(perm))]
    return source if _turns([sizes[axis] for axis in perm], back) else None


def _turn_activations(model: Model) -> None:
    """Computes elementwise nodes between a Transpose and a product before the Transpose."""
    editor = GraphEditor(model)
    try:
        for graph in model.fusible_graphs():
            for node in sorted_nodes(graph):
                if standard_op(node) == "MatMul" and is_constant(node.inputs[1]) and editor.is_inner(node.inputs[0]):
                    _turn_activation(model, editor, node)
    finally:
        editor.finish()


def _turn_activation(model: Model, editor: GraphEditor, product: Node) -> None:
    """Two Transposes that undo each other are put before the product, of which the first undoes the one further up."""
    x = product.inputs[0]
    perm = _perm_before(x)
    if perm is None or x.shape is None or len(x.shape) != len(perm):
        return
    back = [perm.index(axis) for axis in range(len(perm))]
    if not _turns(list(x.shape), back):
        return
    name = label(product)
    turned = gs.Variable(model.unique_name(f"{x.name}_turned"), x.dtype, [x.shape[axis] for axis in back])
    again = gs.Variable(model.unique_name(f"{x.name}_again"), x.dtype, list(x.shape))
    first = Node("Transpose", model.unique_name(f"{name}_turned"), {"perm": back}, [x], [turned])
    second = Node("Transpose", model.unique_name(f"{name}_again"), {"perm": perm}, [turned], [again])
    product.inputs[0] = again
    editor.insert([first, second], at=product)
    if not cancel_behind(model, editor, first):
        product.inputs[0] = x
        editor.remove([second, first])


def _perm_before(x: gs.Tensor) -> list[int] | None:
    """The order in which a Transpose of what a convolution makes puts dimensions before the elementwise nodes that make
    a tensor; None without one.  Other nodes read what is transposed where it lies.
    """
    node = producer_of(x)
    for _ in range(_DEPTH):
        if node is None or not is_elementwise(node):
            return None
        made = [one for tensor in node.inputs if (one := producer_of(tensor)) is not None]
        found = next((perm for one in made if (perm := permutation_of(one)) is not None and _is_of_conv(one)), None)
        if found is not None:
            return found
        node = next((one for one in made if is_elementwise(one)), None)
    return None


def _is_of_conv(transpose: Node) -> bool:
    """Whether a convolution makes what is transposed, perhaps in another shape."""
    made = producer_of(transpose.inputs[0])
    while made is not None and standard_op(made) in VIEWS:
        made = producer_of(made.inputs[0])
    return made is not None and standard_op(made) == "Conv"
