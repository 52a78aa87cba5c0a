"""What ONNX Runtime's CPU provider fuses outside of convolutions, as patterns.

A pattern is either kept whole, because a fused node would break it up (a LayerNormalization around its reductions), or
free, because ORT computes it inside a matrix product, or one kernel, which a region larger than the pattern beats but
a region of nothing else does not.  Read off ORT 1.31 by optimizing small models and looking at what it saved.
"""

from collections.abc import Callable, Iterable, Sequence

import onnx_graphsurgeon as gs

from onnxfuse.graph import Model
from onnxfuse.passes.editor import GraphEditor
from onnxfuse.passes.matcher import Matcher
from onnxfuse.passes.pattern import Ops, Value, Variable, root_ops

NORMALIZATION = "ONNX Runtime fuses it into a normalization"
ONE_KERNEL = "ONNX Runtime already computes it in one kernel"
INSIDE_MATMUL = "ONNX Runtime computes it inside the matrix product"

GEMM_ACTIVATIONS = {"Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Selu", "HardSigmoid", "Softplus"}


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


def _quick_gelu(op: Ops, x: Value, alpha: Value) -> Value:
    """x sigmoid(alpha x)."""
    return op.Mul(x, op.Sigmoid(op.any_of(x, op.Mul(x, op.constant("alpha")))))


_Pattern = Callable[..., Value]
_KEPT_WHOLE: Sequence[_Pattern] = (_layer_normalization, _rms_normalization)
_ONE_KERNEL: Sequence[_Pattern] = (_gelu, _quick_gelu)


class OrtFusions:
    """The patterns found in a model.

    ``reasons`` maps the ids of nodes that must stay out of regions to why; ``keeps`` judges regions.
    """

    def __init__(self, model: Model) -> None:
        self.reasons: dict[int, str] = {}
        self._kernels: dict[int, set[int]] = {}
        editor = GraphEditor(model)
        nodes = [node for graph in editor.graphs for node in graph.nodes]
        for match in _find(_KEPT_WHOLE, nodes, editor):
            self.reasons.update((id(node), NORMALIZATION) for node in match)
        for match in _find(_ONE_KERNEL, nodes, editor):
            kernel = {id(node) for node in match}
            self._kernels.update((node_id, kernel) for node_id in kernel)
        for node in nodes:
            if _is_inside_matmul(node, editor):
                self.reasons[id(node)] = INSIDE_MATMUL

    def keeps(self, region: Iterable[gs.Node]) -> bool:
        """Whether ORT computes the whole region in one kernel of its own."""
        ids = {id(node) for node in region}
        return ids <= self._kernels.get(next(iter(ids)), set())


def _find(patterns: Sequence[_Pattern], nodes: Iterable[gs.Node], editor: GraphEditor) -> Iterable[list[gs.Node]]:
    by_root: dict[tuple[str, str], list[Matcher]] = {}
    for pattern in patterns:
        names = pattern.__code__.co_varnames[1 : pattern.__code__.co_argcount]
        value = pattern(Ops(), *map(Variable, names))
        matcher = Matcher([value])
        for root in dict.fromkeys(root_ops(value)):
            by_root.setdefault(root, []).append(matcher)
    for node in nodes:
        for matcher in by_root.get((node.domain or "", node.op), ()):
            if match := matcher.match(editor, node):
                yield match.nodes


def _is_inside_matmul(node: gs.Node, editor: GraphEditor) -> bool:
    """A bias or a scalar factor of a MatMul with nothing else in between, or the activation of a Gemm."""
    for index, tensor in enumerate(node.inputs):
        producer = tensor.inputs[0] if tensor.inputs else None
        if producer is None or len(tensor.outputs) != 1 or editor.is_graph_output(tensor):
            continue
        if producer.op == "Gemm" and node.op in GEMM_ACTIVATIONS:
            return True
        if producer.op == "MatMul" and len(node.inputs) == 2:
            other = node.inputs[1 - index]
            if not isinstance(other, gs.Constant):
                return False
            if node.op == "Add":
                return len(other.shape) == 1 and isinstance(producer.inputs[1], gs.Constant) and _becomes_gemm(producer)
            return len(other.shape) == 0 and (node.op == "Mul" or (node.op == "Div" and index == 0))
    return False


def _becomes_gemm(matmul: gs.Node) -> bool:
    """Whether ORT makes a MatMul with a bias a Gemm: of a matrix, or of a tensor whose shape it knows."""
    shape = matmul.inputs[0].shape
    return shape is not None and (len(shape) == 2 or all(isinstance(dim, int) for dim in shape))
