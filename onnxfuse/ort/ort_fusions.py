"""What ONNX Runtime fuses outside of convolutions, as patterns, on its CPU and its CUDA provider.

A pattern is either kept whole, because a fused node would break it up (a LayerNormalization around its reductions), or
free, because ORT computes it inside a matrix product, or one kernel, which a region larger than the pattern beats but
a region of nothing else does not.  For the CPU read off ORT 1.31 by optimizing small models and looking at what it
saved.  For CUDA, where no GPU was at hand, from ORT's source as of March 2026, version 1.25
(onnxruntime/core/optimizer/graph_transformer_utils.cc says which transformation is for which provider): normalizations,
GELU in its forms, the addition before a normalization or a Softmax, bias and scale of a matrix product, as on the CPU;
but no activation, neither of a Gemm nor of a Conv, and so no residual of a Conv either (until 1.20 Conv+Relu and
Conv+Add+Relu of float32 were one kernel).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse import cpu
from onnxfuse.fused.target import CPU, CUDA, Target
from onnxfuse.model.constants import domain_of
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import producer_of, standard_op
from onnxfuse.model.symbols import is_made_up
from onnxfuse.ort.ort_quantization import exact_weights
from onnxfuse.program.lowering import check
from onnxfuse.rewrite.editor import GraphEditor
from onnxfuse.rewrite.matcher import Match, Matcher, may_occur
from onnxfuse.rewrite.pattern import Ops, Value, Variable, root_ops

NORMALIZATION = "ONNX Runtime fuses it into a normalization"
ONE_KERNEL = "ONNX Runtime already computes it in one kernel"
ATTENTION = "ONNX Runtime fuses it into an attention"
INSIDE_MATMUL = "ONNX Runtime computes it inside the matrix product"
EXACT_FACTOR = "without it ONNX Runtime would multiply by the quantized weights, and quantize the other factor anew"
EXACT_PRODUCT = "without it ONNX Runtime would multiply by the quantized weights, and quantize the other factor too"
LOGARITHM = "a logarithm reads it, and ONNX Runtime's Sigmoid is 0 where the exact one is small"

GEMM_ACTIVATIONS = frozenset(("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Selu", "HardSigmoid", "Softplus"))


def _layer_normalization(op: Ops, x: Value, scale: Value, bias: Value, epsilon: Value) -> Value:
    """(x - mean) / sqrt(mean((x - mean)²) + epsilon) scale + bias."""
    mean = op.ReduceMean(x, _extra_inputs=True)
    centred = op.Sub(x, mean)
    again = op.any_of(centred, op.Sub(x, mean))
    square = op.any_of(op.Pow(again, 2.0), op.Mul(again, again))
    deviation = op.Sqrt(op.Add(op.ReduceMean(square, _extra_inputs=True), epsilon))
    return op.Add(op.Mul(op.Div(centred, deviation), scale), bias)


def _rms_normalization(op: Ops, x: Value, scale: Value, epsilon: Value) -> Value:
    """x / sqrt(mean(x²) + epsilon) scale."""
    square = op.any_of(op.Pow(x, 2.0), op.Mul(x, x))
    deviation = op.Sqrt(op.Add(op.ReduceMean(square, _extra_inputs=True), epsilon))
    return op.Mul(op.any_of(op.Div(x, deviation), op.Mul(x, op.Div(1.0, deviation))), scale)


def _gelu(op: Ops, x: Value) -> Value:
    """x/2 (1 + erf(x / sqrt 2)), in the orders of the factors that ORT knows."""
    gate = op.Add(op.Erf(op.any_of(op.Div(x, 1.4142135), op.Mul(x, 0.70710677))), 1.0)
    return op.any_of(op.Mul(op.Mul(x, gate), 0.5), op.Mul(x, op.Mul(gate, 0.5)), op.Mul(op.Mul(x, 0.5), gate))


def _bias_gelu(op: Ops, y: Value) -> Value:
    """GELU of a sum with a bias."""
    x = op.Add(y, op.constant("bias"))
    return op.any_of(_gelu(op, x), op.Gelu(x))


def _quick_gelu(op: Ops, x: Value, alpha: Value) -> Value:
    """x sigmoid(alpha x)."""
    return op.Mul(x, op.Sigmoid(op.any_of(x, op.Mul(x, op.constant("alpha")))))


def _fast_gelu(op: Ops, x: Value) -> Value:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x³))), in the two forms that ORT knows."""
    root, cubic = op.const(0.7978846, tolerance=1e-5), op.const(0.044715, tolerance=1e-5)
    inner = op.any_of(
        op.Mul(op.Add(x, op.Mul(op.Pow(x, 3.0), cubic)), root),
        op.Mul(op.Mul(x, root), op.Add(op.Mul(op.Mul(x, cubic), x), 1.0)),
    )
    return op.Mul(op.Mul(x, 0.5), op.Add(op.Tanh(inner), 1.0))


def _attention_mask(op: Ops, mask: Value, x: Value) -> Value:
    """Softmax(x + (1 - mask) c), with the mask widened from its two dimensions: part of an attention."""
    widened = op.Unsqueeze(mask, _extra_inputs=True)
    wanted = op.Mul(op.Sub(1.0, op.maybe("Cast", widened)), op.constant("c"))
    return op.Softmax(op.Add(x, wanted))


_Pattern = Callable[..., Value]
_NORMALIZATIONS: Sequence[_Pattern] = (_layer_normalization, _rms_normalization)


@dataclass(frozen=True)
class _Provider:
    """What the execution provider of a target makes of nodes.

    one_kernel: what is one kernel there, besides the GELU.
    bias_gelu: whether its kernel for a GELU of a sum with a bias is faster than a region.
    masks_attention: a mask that is widened from two dimensions becomes part of an attention.
    adds_in_normalization: the additions before a normalization are part of it at no cost; else of a slower kernel.
    gemm_activations: what a Gemm computes at its end.
    quantized: it has kernels for products of integers with what is around them, and a Sigmoid that is 0 where the exact
    one is small; and its kernels of double that ``slow_kernels`` names are faster than the library's.
    frees_bias: whether the bias of a product, an Add, is better computed with what follows it.
    """

    one_kernel: Sequence[_Pattern]
    bias_gelu: Callable[[], bool]
    masks_attention: bool
    adds_in_normalization: bool
    gemm_activations: frozenset[str]
    quantized: bool
    frees_bias: Callable[[gs.Node], bool]


_PROVIDERS: Mapping[str, _Provider] = {
    # With AVX-512 a region is as fast as the kernel for BiasGelu or faster, with AVX2 it takes a fifth longer.
    CPU.provider: _Provider(
        one_kernel=(_quick_gelu,),
        bias_gelu=lambda: not cpu.has_avx512(),
        masks_attention=False,
        adds_in_normalization=False,
        gemm_activations=GEMM_ACTIVATIONS,
        quantized=True,
        frees_bias=lambda add: _is_bias_of_stack(add),
    ),
    # CUDA's Gemm writes the bias into its result with a product of its own first (core/providers/cuda/math/gemm.cc).
    CUDA.provider: _Provider(
        one_kernel=(_quick_gelu, _fast_gelu),
        bias_gelu=lambda: False,
        masks_attention=True,
        adds_in_normalization=True,
        gemm_activations=frozenset(),
        quantized=False,
        frees_bias=lambda add: standard_op(add) == "Add",
    ),
}


class OrtFusions:
    """The patterns found in a model.

    ``reasons`` maps the ids of nodes that must stay out of regions to why; ``keeps`` judges regions.  ``slowed`` are
    the ids of nodes that ORT would make a part of a slower kernel, ``weights`` of those that it would multiply by in
    integers if no fused node computed them.  ``gelus`` are those of ``find_gelus``.  ``quantized`` says whether
    ORT has quantized kernels there.
    """

    def __init__(self, model: Model, on: Target) -> None:
        provider = _PROVIDERS[on.provider]
        self.quantized = provider.quantized
        self.reasons: dict[int, str] = {}
        self.slowed: set[int] = set()
        self.weights: set[int] = set()
        self._kernels: dict[int, list[set[int]]] = {}
        editor = GraphEditor(model)
        nodes = [node for graph in editor.graphs for node in graph.nodes]
        layers = [(node.inputs[0], {id(node)}) for node in nodes if standard_op(node) == "LayerNormalization"]
        normalized = [tensor for tensor, _readers in layers]
        for match in find_normalizations(nodes, editor):
            self.reasons.update((id(node), NORMALIZATION) for node in match.nodes)
            normalized.append(match["x"])
            if standard_op(match.root) == "Add":  # not that of an RMS normalization
                layers.append((match["x"], {id(node) for node in match.nodes}))
        gelus = list(_find((_gelu,), nodes, editor))
        self.gelus = _parts_of_gelus(nodes, gelus)
        for match in (*gelus, *_find(provider.one_kernel, nodes, editor)):
            self._add_kernel(match.nodes)
        for match in _find((_bias_gelu,), nodes, editor) if provider.bias_gelu() else ():
            bias = match.constant("bias")
            if bias is not None and bias.ndim == 1 and _is_exact(match.root):
                self._add_kernel(match.nodes)
        for match in _find((_attention_mask,), nodes, editor) if provider.masks_attention else ():
            self.reasons.update((id(node), ATTENTION) for node in match.nodes)
        if provider.adds_in_normalization:
            for tensor in normalized:
                self._add_kernel(_additions_before(tensor))
        else:
            self.slowed.update(id(tensor.inputs[0]) for tensor, readers in layers if _is_skip(tensor, readers, editor))
        for node in nodes if provider.quantized else ():
            if standard_op(node) == "Sigmoid" and any(standard_op(one) == "Log" for one in node.outputs[0].outputs):
                self.reasons[id(node)] = LOGARITHM
            if standard_op(node) == "DynamicQuantizeLinear":  # with a product of integers, or in vectors of its own
                self.reasons[id(node)] = ONE_KERNEL
            if standard_op(node) == "MatMulInteger" and len(node.inputs[0].outputs) == 1:
                self._leave_dequantization(node, editor)
        for weights, kept in () if provider.quantized else exact_weights(nodes, model.functions):
            if check(weights, model.opsets[""]) is None:
                self.weights.add(id(weights))
            elif kept is not None:
                self.reasons[id(kept)] = EXACT_FACTOR
        for node in nodes:
            if _keeps_weights_exact(node, editor):
                self.reasons[id(node)] = EXACT_PRODUCT
            elif _is_inside_matmul(node, editor, provider.gemm_activations):
                if provider.frees_bias(node):
                    self._add_kernel([node])
                else:
                    self.reasons[id(node)] = INSIDE_MATMUL

    def _leave_dequantization(self, product: gs.Node, editor: GraphEditor) -> None:
        """Leave to ORT what it computes inside a product of integers: Cast, factor, product of scales, and bias.

        With the bias a region may begin that is more than that and a Relu.
        """
        cast = _only_reader(product, "Cast", editor)
        scaled = None if cast is None else _only_reader(cast, "Mul", editor)
        if cast is None or scaled is None:
            return
        scales = (tensor.inputs[0] for tensor in scaled.inputs if tensor.inputs and tensor is not cast.outputs[0])
        inside = [cast, scaled, *(node for node in scales if standard_op(node) == "Mul")]
        self.reasons.update((id(node), INSIDE_MATMUL) for node in inside)
        biased = _only_reader(scaled, "Add", editor)
        if biased is not None:
            self._add_kernel([node for node in (biased, _only_reader(biased, "Relu", editor)) if node is not None])

    def _add_kernel(self, nodes: Sequence[gs.Node]) -> None:
        kernel = {id(node) for node in nodes}
        for node_id in kernel:
            self._kernels.setdefault(node_id, []).append(kernel)

    def keeps(self, region: Iterable[gs.Node]) -> bool:
        """Whether ORT computes the whole region in one kernel of its own."""
        ids = {id(node) for node in region}
        return any(ids <= kernel for kernel in self._kernels.get(next(iter(ids)), ()))


def find_normalizations(nodes: Sequence[gs.Node], editor: GraphEditor) -> Iterable[Match]:
    """Normalizations that are written out: of ``x``, with ``scale``, ``epsilon`` and, but for the root mean square,
    ``bias``."""
    return _find(_NORMALIZATIONS, nodes, editor)


def find_gelus(model: Model) -> dict[int, bool]:
    """The ids of nodes that are exact GELUs or parts of one, and of each whether its result is that of the GELU."""
    nodes = [node for graph in model.graphs() for node in graph.nodes]
    written_out = any(standard_op(node) == "Erf" for node in nodes)
    return _parts_of_gelus(nodes, _find((_gelu,), nodes, GraphEditor(model)) if written_out else ())


def _parts_of_gelus(nodes: Iterable[gs.Node], written_out: Iterable[Match]) -> dict[int, bool]:
    found = {id(node): True for node in nodes if standard_op(node) == "Gelu" and _is_exact(node)}
    for match in written_out:
        found |= {id(node): node is match.root for node in match.nodes}
    return found


def _find(patterns: Sequence[_Pattern], nodes: Sequence[gs.Node], editor: GraphEditor) -> Iterable[Match]:
    by_root: dict[tuple[str, str], list[Matcher]] = {}
    operators = {node.op for node in nodes}
    for pattern in patterns:
        names = pattern.__code__.co_varnames[1 : pattern.__code__.co_argcount]
        value = pattern(Ops(), *map(Variable, names))
        if not may_occur(value, operators):
            continue
        matcher = Matcher([value])
        for root in dict.fromkeys(root_ops(value)):
            by_root.setdefault(root, []).append(matcher)
    for node in nodes:
        for matcher in by_root.get((domain_of(node), node.op), ()):
            if match := matcher.match(editor, node):
                yield match


def _is_exact(gelu: gs.Node) -> bool:
    """Whether a GELU is not the approximation by tanh."""
    return gelu.attrs.get("approximate", "none") in ("none", b"none")


def _additions_before(tensor: gs.Tensor) -> list[gs.Node]:
    """The addition that gives ``tensor`` and that of a bias before it: ORT adds both inside a normalization."""
    found = [node for node in tensor.inputs if standard_op(node) == "Add"]
    for operand in found[0].inputs if found else ():
        for node in operand.inputs:
            constants = (tensor for tensor in node.inputs if isinstance(tensor, gs.Constant))
            if standard_op(node) == "Add" and any(len(bias.shape) == 1 for bias in constants):
                return [*found, node]
    return found


def _is_skip(tensor: gs.Tensor, readers: set[int], editor: GraphEditor) -> bool:
    """Whether ORT makes the addition that gives ``tensor``, which a normalization's nodes read, a part of it.

    It does where the shapes of both operands have three known, equal dimensions.  The CPU kernel of the result,
    SkipLayerNormalization, adds up one element at a time: measured on float32 of 64x96 to 512x1024 with ORT 1.31
    (AVX-512), it takes 2.5 to 8 times as long as Add and LayerNormalization with one thread, and 1.9 to 8 with two.
    (ORT 1.20 has a slower LayerNormalization: there it takes 0.6 to 1.7 times as long.)
    """
    if len(tensor.inputs) != 1 or standard_op(tensor.inputs[0]) != "Add" or tensor.dtype != np.float32:
        return False
    if editor.is_graph_output(tensor) or not {id(node) for node in tensor.outputs} <= readers:
        return False
    first, second = (operand.shape for operand in tensor.inputs[0].inputs)
    return first is not None and first == second and len(first) == 3 and all(map(_is_known, first))


def _is_known(dim: int | str | None) -> bool:
    """Whether ORT's inference, too, knows the size or its name, for it makes none up."""
    return isinstance(dim, int) or (bool(dim) and not is_made_up(dim))


def _is_inside_matmul(node: gs.Node, editor: GraphEditor, activations: frozenset[str]) -> bool:
    """A bias or a scalar factor of a MatMul with nothing else in between, or one of the ``activations`` of a Gemm."""
    op = standard_op(node)
    for index, tensor in enumerate(node.inputs):
        producer = tensor.inputs[0] if tensor.inputs else None
        if producer is None or len(tensor.outputs) != 1 or editor.is_graph_output(tensor):
            continue
        if standard_op(producer) == "Gemm" and op in activations:
            return True
        if standard_op(producer) == "MatMul" and len(node.inputs) == 2:
            other = node.inputs[1 - index]
            if not isinstance(other, gs.Constant):
                return False
            if op == "Add":
                return len(other.shape) == 1 and isinstance(producer.inputs[1], gs.Constant) and _becomes_gemm(producer)
            return len(other.shape) == 0 and (op == "Mul" or (op == "Div" and index == 0))
    return False


def _keeps_weights_exact(node: gs.Node, editor: GraphEditor) -> bool:
    """Whether a node keeps ONNX Runtime from quantizing a factor of the product before it.

    Its CPU provider makes a MatMul of dequantized constants a MatMulNBits that rounds the other factor to 8 bits, with
    a vector as its bias; but a product of two dimensions and what is added to it in two become a Gemm, which it leaves
    in floats, and behind a Relu or Clip that one node reads it expects a QuantizeLinear.  Read off ORT 1.32.
    """
    if standard_op(node) in ("Relu", "Clip"):
        (made,) = node.outputs
        read_once = len(made.outputs) == 1 and not editor.is_graph_output(made)
        return read_once and _product_of_weights(node.inputs[0], node, editor) is not None
    if standard_op(node) != "Add":
        return False
    for tensor, other in (node.inputs, node.inputs[::-1]):
        product = _product_of_weights(tensor, node, editor)
        if product is not None and _may_have_two(product.inputs[0].shape) and _may_have_two(other.shape):
            return True
    return False


def _product_of_weights(tensor: gs.Tensor, reader: gs.Node, editor: GraphEditor) -> gs.Node | None:
    """The MatMul of dequantized weights that makes a tensor, if ``reader`` alone reads that."""
    product = producer_of(tensor)
    if product is None or standard_op(product) != "MatMul" or _only_reader(product, reader.op, editor) is None:
        return None
    weights = producer_of(product.inputs[1])
    return product if weights is not None and standard_op(weights) == "DequantizeLinear" else None


def _may_have_two(shape: Sequence[int | str | None] | None) -> bool:
    """Whether there may be two dimensions."""
    return shape is None or len(shape) == 2


def _only_reader(node: gs.Node, op: str, editor: GraphEditor) -> gs.Node | None:
    """The one node that reads what ``node`` makes, if it is of this operator."""
    (made,) = node.outputs
    reader = made.outputs[0] if len(made.outputs) == 1 and not editor.is_graph_output(made) else None
    return reader if reader is not None and standard_op(reader) == op else None


def _is_bias_of_stack(node: gs.Node) -> bool:
    """Whether ORT would need two Reshapes to make the matrix product of this bias a Gemm.

    Added together with what follows, the bias costs nothing, and the Reshapes and the Gemm's copy of the bias go.
    """
    shape = node.outputs[0].shape
    return standard_op(node) == "Add" and shape is not None and len(shape) > 2


def _becomes_gemm(matmul: gs.Node) -> bool:
    """Whether ORT makes a MatMul with a bias a Gemm: of a matrix, or of a tensor whose shape it knows."""
    shape = matmul.inputs[0].shape
    return shape is not None and (len(shape) == 2 or all(isinstance(dim, int) for dim in shape))
