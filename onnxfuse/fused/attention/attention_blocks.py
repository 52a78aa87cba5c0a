"""Attention: where a graph computes softmax(scale · Q Kᵀ + mask) V of several heads.

What splits Q, K and V into heads before it and joins the heads of the result after it is part of a block where nothing
else reads it (A. Vaswani et al., Attention Is All You Need, 2017).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.attention.attention_heads import (
    SWAPPED,
    UNKNOWN_HEADS,
    Heads,
    HeadsReader,
    factor_of,
    keeps,
    number_of,
    target_of,
)
from onnxfuse.fused.attention.attention_parts import producer
from onnxfuse.fused.attention.attention_windows import windows_of
from onnxfuse.fused.attention.position_masks import span_of
from onnxfuse.fused.contraction import Contraction
from onnxfuse.fused.target import AttentionKernels
from onnxfuse.model import dtypes
from onnxfuse.model.constants import dtype_of
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.program.node_lowering import UnsupportedError

READ_ELSEWHERE = "a value inside it is read elsewhere too"
LARGE_SCALE = "its scale is not finite in float32"
ORT_IS_AS_FAST = "ONNX Runtime is as fast where heads are neither split nor joined, without a mask, but at few rows"
OTHER_ATTENTION = (
    "it has keys or values of before, a mask besides its causal one or its windows, a cap, or more results"
)
UNKNOWN_SCALE = "the size of its heads, of which its scale is made, is not known"
UNKNOWN_MASK = "it is not known whether the mask leaves the scores their number of dimensions and of heads"
_MANY_ROWS = 64
"""Of Q: then products take nearly all of the time, which ONNX Runtime computes as fast or faster (0.80 to 1.2 times as
fast on an Intel Xeon, for heads of 16 to 512 elements; at fewer rows 1.0 to 3 times as slow)."""


@dataclass(frozen=True)
class Choice:
    """Where ``condition`` is ``fills``, the number ``fill`` takes the place of a score."""

    condition: gs.Tensor
    fills: bool
    fill: np.float32


@dataclass(frozen=True)
class Scores:
    """The product of Q and K, what it is multiplied by, what then takes the place of some, and what is added to all;
    ``nodes`` in topological order.  Where there are ``windows``, so many of an image, the mask has a part for each."""

    product: gs.Node
    scale: np.float32
    nodes: tuple[gs.Node, ...]
    choice: Choice | None = None
    mask: gs.Tensor | None = None
    windows: int = 0

    @property
    def masks(self) -> tuple[gs.Tensor, ...]:
        """What broadcasts to the scores."""
        mask = () if self.mask is None else (self.mask,)
        return mask if self.choice is None else (*mask, self.choice.condition)


@dataclass(frozen=True)
class AttentionBlock:
    """The parts of a block; ``guard`` are nodes that make 0 of what is no number behind the Softmax, and ``joined`` the
    nodes after the last product.
    """

    q: Heads
    k: Heads
    v: Heads
    scores: Scores
    softmax: gs.Node
    guard: tuple[gs.Node, ...]
    product: gs.Node
    joined: tuple[gs.Node, ...]

    @property
    def nodes(self) -> tuple[gs.Node, ...]:
        """All nodes, in topological order."""
        heads = (*self.q.nodes, *self.k.nodes, *self.v.nodes)
        nodes = (*heads, *self.scores.nodes, self.softmax, *self.guard, self.product, *self.joined)
        return tuple({id(node): node for node in nodes}.values())  # Q, K and V may be parts of what one node makes

    @property
    def inputs(self) -> tuple[gs.Tensor, ...]:
        """Q, K, V, and the mask and the condition, if there are any."""
        return (self.q.tensor, self.k.tensor, self.v.tensor, *self.scores.masks)

    @property
    def result(self) -> gs.Tensor:
        """What the last node makes."""
        made: gs.Tensor = self.nodes[-1].outputs[0]
        return made

    @property
    def attributes(self) -> dict[str, int | list[int]]:
        """Those of the fused node (custom_ops/nodes/attention/attention.h)."""
        inputs, choice = (self.q, self.k, self.v), self.scores.choice
        filled = {} if choice is None else {"fill_bits": int(choice.fill.view(np.uint32)), "fills": int(choice.fills)}
        return {
            "heads": [self.q.count, self.k.count],
            "input_heads": [heads.total for heads in inputs],
            "first_head": [heads.place for heads in inputs],
            "heads_first": [*(int(heads.first) for heads in inputs), int(not self.joined)],
            "scale_bits": int(self.scale.view(np.uint32)),
            **filled,
            **({"nan_as_zero": 1} if self.guard else {}),
            **({"masked_as_zero": 1} if self.softmax is self.product and self.scores.masks else {}),
            **({"windows": self.scores.windows} if self.scores.windows else {}),
        }

    @property
    def is_plain(self) -> bool:
        """Whether Q, K, V and the result are as ONNX Runtime's own products want them, but for a transpose of K."""
        plain = all(heads.first and heads.count == heads.total for heads in (self.q, self.k, self.v))
        return plain and self.q.count == self.k.count and not (self.joined or self.scores.masks or self.guard)

    @property
    def scale(self) -> np.float32:
        """By what the scores are multiplied, Q and K among them; infinite or no number if that is too much."""
        with np.errstate(all="ignore"):
            return np.float32(self.q.scale * self.k.scale * self.scores.scale)


class AttentionBlocks:
    """The blocks of one graph of a model of this opset; ``is_output`` says whether a graph returns a tensor, and
    ``kernels`` what the target has kernels for.

    With ``everything`` those are among them that ONNX Runtime computes as fast.
    """

    def __init__(
        self,
        nodes: Sequence[gs.Node],
        opset: int,
        is_output: Callable[[gs.Tensor], bool],
        kernels: AttentionKernels,
        *,
        everything: bool = False,
    ) -> None:
        self._kernels = kernels
        self._everything = everything or kernels.plain
        self._graph = Contraction(nodes)
        self._is_output = is_output
        self._softmax_axis = 1 if opset < 13 else -1
        self._readers = [
            (HeadsReader(self._reader, parts, whole, True), HeadsReader(self._reader, parts, whole, False))
            for parts, whole in ((True, True), (True, False), (False, False))
        ]

    def block(self, softmax: gs.Node) -> AttentionBlock | None:
        """The block around a Softmax; None if it does not stand between two products of four dimensions.

        Raises UnsupportedError, with a reason for the user, for one that has no kernel.
        """
        guard = self._guard(softmax.outputs[0])
        weights = guard[-1].outputs[0] if guard else softmax.outputs[0]
        product = self._reader(weights)
        if product is None or standard_op(product) != "MatMul" or product.inputs[0] is not weights:
            return None
        scores = self._scores(softmax.inputs[0])
        if scores is None or softmax.attrs.get("axis", self._softmax_axis) not in (-1, 3):
            return None
        q, k, v = scores.product.inputs[0], scores.product.inputs[1], product.inputs[1]
        if not _have_four_dimensions(q, k, v):
            return None
        inner = [node.outputs[0] for node in scores.nodes]
        if any(self._reader(tensor) is None for tensor in inner):
            raise UnsupportedError(READ_ELSEWHERE)
        return self._block((q, k, v), scores, softmax, guard, product)

    def operator(self, node: gs.Node) -> AttentionBlock | None:
        """The block of an Attention, whose queries, keys and values have four dimensions; None for any other.

        Raises UnsupportedError as ``block`` does.
        """
        q, k, v, *more = node.inputs
        if not _have_four_dimensions(q, k, v):
            return None
        if any(tensor.name for tensor in (*more[1:], *node.outputs[1:])) or not _is_plain_operator(node):
            raise UnsupportedError(OTHER_ATTENTION)
        size = q.shape[3]
        scale = node.attrs.get("scale", None if not isinstance(size, int) else size**-0.5)
        if scale is None:
            raise UnsupportedError(UNKNOWN_SCALE)
        scores = Scores(node, np.float32(scale), (node,))
        mask = more[0] if more and more[0].name else None
        if mask is not None:
            if mask.shape is None or len(mask.shape) < 2 or mask.shape[-1] != k.shape[2]:
                raise UnsupportedError(UNKNOWN_MASK)  # a shorter one says nothing of the rest
            if dtype_of(mask) == np.bool_:
                scores = replace(scores, choice=Choice(mask, False, -np.float32(np.inf)))
            else:
                scores = replace(scores, mask=mask)
        return self._block((q, k, v), scores, node, (), node)

    def _block(
        self,
        operands: tuple[gs.Tensor, gs.Tensor, gs.Tensor],
        scores: Scores,
        softmax: gs.Node,
        guard: tuple[gs.Node, ...],
        product: gs.Node,
    ) -> AttentionBlock:
        q, k, v = operands
        types = [*operands, *([] if scores.mask is None else [scores.mask])]
        sizes = q.shape[3], k.shape[2 if product is not softmax else 3], v.shape[3]
        if refusal := self._kernels.refusal(map(_type_name, types), sizes):
            raise UnsupportedError(refusal)
        for readers in self._readers:
            heads = _operands(*readers, *operands, transposed=product is not softmax)
            found = AttentionBlock(*heads, scores, softmax, guard, product, ())
            if self._is_closed(found):
                break
        if not np.isfinite(found.scale):
            raise UnsupportedError(LARGE_SCALE)
        if not all(_fits(mask, found.q.count) for mask in scores.masks):
            raise UnsupportedError(UNKNOWN_MASK)
        found = replace(found, joined=self._joined(product.outputs[0], found.q.count))
        rows = q.shape[2]
        fast = found.is_plain and not (isinstance(rows, int) and rows < _MANY_ROWS)
        if fast and not self._everything:
            raise UnsupportedError(ORT_IS_AS_FAST)
        return found

    def _is_closed(self, block: AttentionBlock) -> bool:
        """Whether nothing else reads what the nodes make, but for the last one, and all inputs are made elsewhere."""
        inside = {id(node) for node in block.nodes}
        made = {id(tensor): tensor for node in block.nodes[:-1] for tensor in node.outputs}
        if any(id(tensor) in made for tensor in block.inputs):
            return False
        return not any(
            self._is_output(tensor) or any(id(reader) not in inside for reader in self._graph.readers(tensor))
            for tensor in made.values()
        )

    def _reader(self, tensor: gs.Tensor) -> gs.Node | None:
        """The node that alone reads a tensor, once; None if there is none such."""
        readers = self._graph.readers(tensor)
        return readers[0] if len(readers) == 1 and not self._is_output(tensor) else None

    def _guard(self, weights: gs.Tensor) -> tuple[gs.Node, ...]:
        """Where(IsNaN(x), 0, x), as PyTorch exports scaled_dot_product_attention: a row of which the mask leaves
        nothing is 0.
        """
        readers = {id(node): node for node in self._graph.readers(weights)}
        if self._is_output(weights) or sorted(map(standard_op, readers.values())) != ["IsNaN", "Where"]:
            return ()
        test, choice = sorted(readers.values(), key=standard_op)
        if number_of(choice.inputs[1]) != 0:
            return ()
        known = choice.inputs[0] is test.outputs[0] and choice.inputs[2] is weights
        return (test, choice) if known and self._reader(test.outputs[0]) is choice else ()

    def _scores(self, tensor: gs.Tensor) -> Scores | None:
        """The product that a Softmax reads, or that a Mul or Div by one number, a Where and an Add after it do."""
        node = producer(tensor)
        windows = windows_of(node)
        if windows is not None and windows.is_regular:
            found = chosen_scores(windows.scores)
            nodes = () if found is None else (*found.nodes, *windows.nodes)
            return found and replace(found, mask=windows.mask, windows=windows.count, nodes=nodes)
        if standard_op(node) != "Add":
            return chosen_scores(tensor)
        added = masked_scores(node)
        return None if added is None else replace(added[0], mask=added[1], nodes=(*added[0].nodes, node))

    def _joined(self, tensor: gs.Tensor, heads: int) -> tuple[gs.Node, ...]:
        """The Transpose and the Reshape that make (batch, length, heads · size) of the result."""
        swap = self._reader(tensor)
        if swap is None or standard_op(swap) != "Transpose" or swap.attrs.get("perm") != SWAPPED:
            return ()
        join = self._reader(swap.outputs[0])
        if join is None or standard_op(join) != "Reshape" or not _joins_heads(join, heads):
            return ()
        return swap, join


def masked_scores(add: gs.Node) -> tuple[Scores, gs.Tensor] | None:
    """The scores to which an Add adds a mask, and the mask; None if neither operand is scores without one."""
    for place in (0, 1):
        found = chosen_scores(add.inputs[place])
        if found is not None:
            return found, add.inputs[1 - place]
    return None


def chosen_scores(tensor: gs.Tensor) -> Scores | None:
    """A product, perhaps scaled, with a number in the place of some scores; None for another tensor."""
    node = producer(tensor)
    if standard_op(node) != "Where":
        return _scaled(tensor)
    for place in (1, 2):
        found, fill = _scaled(node.inputs[place]), number_of(node.inputs[3 - place])
        if found is not None and fill is not None and not np.isnan(fill):
            choice = Choice(node.inputs[0], place == 2, fill)
            return replace(found, choice=choice, nodes=(*found.nodes, node))
    return None


def _scaled(tensor: gs.Tensor) -> Scores | None:
    node = producer(tensor)
    if standard_op(node) == "MatMul":
        return Scores(node, np.float32(1), (node,))
    factor = factor_of(node)
    made = None if factor is None else producer(factor[0])
    if factor is None or made is None or standard_op(made) != "MatMul":
        return None
    return Scores(made, factor[1], (made, node))


def _have_four_dimensions(*tensors: gs.Tensor) -> bool:
    return all(tensor.shape is not None and len(tensor.shape) == 4 for tensor in tensors)


def _type_name(tensor: gs.Tensor) -> str:
    known = dtypes.from_numpy(dtype_of(tensor))
    return "an unknown type" if known is None else known.name


def _is_plain_operator(attention: gs.Node) -> bool:
    """Whether an Attention hides nothing by places, and computes its Softmax of the scores, in their type."""
    attributes = attention.attrs
    return not (span_of(attention).hides or attributes.get("softcap", 0.0) or "softmax_precision" in attributes)


def _operands(
    reader: HeadsReader, of_values: HeadsReader, q: gs.Tensor, k: gs.Tensor, v: gs.Tensor, transposed: bool
) -> tuple[Heads, Heads, Heads]:
    """Q, K, perhaps ``transposed``, and V.  Raises UnsupportedError if their heads do not go together."""

    def keys(read: Callable[[gs.Tensor], Heads]) -> Heads:
        return reader.keys(k, read) if transposed else read(k)

    heads = reader.heads(q), keys(reader.repeated), of_values.repeated(v)
    if (heads[1].count, heads[1].repeats) != (heads[2].count, heads[2].repeats):
        heads = reader.heads(q), keys(reader.heads), of_values.heads(v)
    if not transposed and heads[1].repeats == 1:  # the operator repeats them itself
        heads = heads[0], replace(heads[1], repeats=max(heads[0].count // heads[1].count, 1)), heads[2]
    if heads[1].count != heads[2].count or heads[1].count * heads[1].repeats not in (1, heads[0].count):
        raise UnsupportedError(UNKNOWN_HEADS)
    return heads


def _fits(mask: gs.Tensor, heads: int) -> bool:
    """Whether a mask is known to leave the scores four dimensions and so many heads."""
    shape = mask.shape
    return shape is not None and len(shape) <= 4 and (len(shape) < 3 or shape[-3] in (1, heads))


def _joins_heads(reshape: gs.Node, heads: int) -> bool:
    """(batch, length, heads, size) → (batch, length, heads · size)."""
    shape, target = reshape.inputs[0].shape, target_of(reshape)
    if shape is None or len(shape) != 4 or target is None or len(target) != 3 or not keeps(target, shape):
        return False
    return target[2] == -1 or (isinstance(shape[3], int) and target[2] == heads * shape[3])
