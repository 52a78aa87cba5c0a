"""What ONNX Runtime's CPU provider does with convolutions: the blocked layout (NCHWc) and what it computes inside Conv.

ORT keeps the tensors between convolutions in blocks of channels.  Nodes that it knows in that layout cost little, or
nothing where a convolution takes them in; every other node, and so every fused node, makes ORT reorder its inputs and
outputs.  The planner needs to know which is which, or it would take work out of a convolution to do it more slowly.

The rules here were read off ORT 1.31 by optimizing small models and looking at what it saved; they are the same for
every version since 1.20 but for HardSwish (1.31 alone computes it inside a convolution).  ORT has blocks on x86-64
alone; elsewhere a convolution takes in its affine step and one of PLAIN_ACTIVATIONS, and no residual.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from types import MappingProxyType

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse import cpu
from onnxfuse.fused.target import CPU, Target
from onnxfuse.model.constants import constant_value, is_constant, shape_of
from onnxfuse.model.graph import subgraphs
from onnxfuse.model.graph_ir import standard_op

CONV_ACTIVATIONS = frozenset({"Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Clip", "HardSwish"})
"""Computed inside a convolution whose output nothing else reads."""
PLAIN_ACTIVATIONS = CONV_ACTIVATIONS - {"HardSwish"}
"""The same in the plain layout."""
SUM_ACTIVATIONS = {"Relu", "HardSigmoid", "HardSwish"}
"""The same after a residual Add that the convolution has taken in."""
DEPTHWISE_ACTIVATIONS = {"Relu", "HardSigmoid"}
"""Computed inside the depthwise convolution that a BatchNormalization in the blocked layout becomes."""
BLOCKED_UNARY = {"Relu", "Sigmoid", "Tanh", "HardSigmoid", "Gelu"}
BLOCKED_POOLING = {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}
BLOCKED_ENLARGING = {
    ("nearest", "asymmetric", "floor"),
    *(("linear", place, "") for place in ("align_corners", "asymmetric", "half_pixel")),
}
"""The modes of Resize: how it interpolates, where elements lie, and which one is the nearest."""

REORDER_COST = 1.5
"""Cost of changing the layout of a tensor, in copies of that tensor (measured: 1 to 1.5)."""
BLOCKED_NODE_COST = 1.5
"""Cost of an elementwise node in the blocked layout, in copies of its output."""
FUSED_NODE_COST = 1.3
"""Cost of a fused node, in copies of its output."""

CHANNEL_ALIGNMENT = 4
"""ORT blocks tensors whose number of channels is a multiple of this, and fills the last block with zeros."""

INSIDE_CONV = "ONNX Runtime computes it inside the convolution"
BLOCKED = "ONNX Runtime keeps it in the blocked layout between convolutions"


def block_size() -> int:
    """Channels in a block on this machine: 16 with AVX-512, else 8."""
    return 16 if cpu.has_avx512() else 8


class ConvLayout:
    """The blocked layout in one graph: ``inside_conv`` and ``blocked_nodes`` are ids of nodes.

    ``on`` is where the model will run.  Where images are never blocked, ORT still folds factors into the weights of
    convolutions.  On AArch64 it takes activations in as everywhere on the CPU; on CUDA none, and of offsets it makes a
    bias, which costs a kernel there (split_conv_bias.py).  ``gelus`` are the nodes of which ORT makes GELUs
    (ort_fusions.find_gelus).
    """

    def __init__(
        self,
        nodes: Iterable[gs.Node],
        is_output: Callable[[gs.Tensor], bool],
        on: Target = CPU,
        gelus: Mapping[int, bool] = MappingProxyType({}),
    ) -> None:
        self._has_blocks = on.blocked_images()
        self._folds_offsets = not on.bias_apart
        self._takes_in = frozenset[str]()
        if on.activations_in_conv:
            self._takes_in = CONV_ACTIVATIONS if self._has_blocks else PLAIN_ACTIVATIONS
        self._gelus = gelus
        self.inside_conv: set[int] = set()
        self.blocked_nodes: set[int] = set()
        self._blocked: set[int] = set()
        self._open_convs: dict[int, Set[str]] = {}  # outputs of convolutions, and the activations those can take in
        self._linear: set[int] = set()  # outputs of convolutions that can still take in an affine step or a residual
        self._is_output = is_output
        self._constants: set[int] = set()  # results that ORT folds when it loads the model
        self._block = block_size()
        nodes = list(nodes)
        if any(standard_op(node) == "Conv" for node in nodes):  # all that is blocked comes from a convolution
            for node in nodes:
                self._visit(node)

    def leaves_to_ort(self, region: Sequence[gs.Node]) -> bool:
        """Whether a region is better left in the blocked layout than fused with its tensors reordered."""
        if not all(id(node) in self.blocked_nodes for node in region):
            return False
        inside = {id(node) for node in region}
        reads = {id(tensor): tensor for node in region for tensor in node.inputs if id(tensor) in self._blocked}
        reorders = sum(1 for tensor in reads.values() if id(tensor.inputs[0]) not in inside)
        for node in region:
            outside = [consumer for consumer in node.outputs[0].outputs if id(consumer) not in inside]
            reorders += any(self._stays_blocked(consumer) for consumer in outside)
            # What reads the tensor in plain layout makes ORT reorder it with or without the fused node.
            reorders -= any(not self._stays_blocked(consumer) for consumer in outside) or (
                self._is_output(node.outputs[0])
            )
        nodes = sum(self._gelus.get(id(node), True) for node in region)
        return BLOCKED_NODE_COST * nodes <= FUSED_NODE_COST + REORDER_COST * reorders

    def is_blocked(self, tensor: gs.Tensor) -> bool:
        """Whether ORT has ``tensor`` in the blocked layout."""
        return id(tensor) in self._blocked

    def reads_blocked(self, node: gs.Node) -> bool:
        """Whether ``node`` is a convolution that wants its data blocked; one of few channels reads the plain layout."""
        if standard_op(node) != "Conv" or not self._conv_is_blocked(node):
            return False
        return bool(node.attrs.get("group", 1) > 1 or node.inputs[1].shape[1] >= self._block)

    def _visit(self, node: gs.Node) -> None:
        if not node.outputs or not node.inputs:
            return
        output = node.outputs[0]
        if self._folds(node):
            self._constants.update(id(tensor) for tensor in node.outputs)
        elif not (op := standard_op(node)):
            return
        elif op == "Conv":
            if self._conv_is_blocked(node):
                self._blocked.add(id(output))
                self.blocked_nodes.add(id(node))
            self._open(output, CONV_ACTIVATIONS, linear=self._is_constant(node.inputs[1]))
        elif self._is_taken_by_conv(node):
            self.inside_conv.add(id(node))
            if any(id(tensor) in self._blocked for tensor in node.inputs):
                self._blocked.add(id(output))
                self.blocked_nodes.add(id(node))
        elif self._is_kept_blocked(node):
            self._blocked.add(id(output))
            self.blocked_nodes.add(id(node))
            if node.op == "BatchNormalization":  # it becomes a depthwise convolution
                self._open(output, DEPTHWISE_ACTIVATIONS, linear=False)

    def _conv_is_blocked(self, node: gs.Node) -> bool:
        weights = node.inputs[1]
        if not self._has_blocks or not self._is_constant(weights) or weights.dtype != np.float32:
            return False
        if weights.shape is None or len(weights.shape) != 4 or not all(isinstance(dim, int) for dim in weights.shape):
            return False
        group = node.attrs.get("group", 1)
        out_channels, in_channels = weights.shape[0], weights.shape[1] * group
        if group == 1:
            return in_channels % CHANNEL_ALIGNMENT == 0 or in_channels < self._block
        if weights.shape[1] == 1 and out_channels == group:
            return bool(out_channels % CHANNEL_ALIGNMENT == 0)
        return weights.shape[1] % self._block == 0 and (out_channels // group) % self._block == 0

    def _is_taken_by_conv(self, node: gs.Node) -> bool:
        """Whether ORT computes ``node`` inside the convolution before it, which is then open for what may follow.

        Marks also the HardSigmoid of ``x * HardSigmoid(x)``, which is known to be taken only with its Mul.
        """
        output = node.outputs[0]
        if self._is_affine_of_conv(node):
            self._open(output, CONV_ACTIVATIONS, linear=True)
            return True
        if node.op in self._open_convs.get(id(node.inputs[0]), set()):
            return node.op != "Clip" or all(map(self._is_constant, node.inputs[1:]))
        if node.op == "Mul" and (pair := hard_swish_pair(node)):
            conv_output = pair.inputs[0]
            from_conv = conv_output.inputs and conv_output.inputs[0].op in ("Conv", "Add")
            if from_conv and len(conv_output.outputs) == 2 and id(conv_output) in self._blocked:
                self.inside_conv.add(id(pair))
                return True
        if node.op == "Add" and len(node.inputs) == 2 and _same_shape(node.inputs):
            blocked = all(id(tensor) in self._blocked for tensor in node.inputs)
            if blocked and any(id(tensor) in self._linear for tensor in node.inputs):
                self._open(output, SUM_ACTIVATIONS, linear=False)
                return True
        return False

    def _is_affine_of_conv(self, node: gs.Node) -> bool:
        """Whether ORT folds ``node`` into the weights of the convolution before it."""
        variables = [tensor for tensor in node.inputs if not self._is_constant(tensor)]
        if len(variables) != 1 or id(variables[0]) not in self._linear:
            return False
        if node.op == "BatchNormalization":
            return True
        if node.op != "Mul" and not (node.op == "Add" and self._folds_offsets):
            return False
        (factor,) = (tensor for tensor in node.inputs if tensor is not variables[0])
        if factor.shape is None or variables[0].shape is None:
            return False
        # [C, 1, 1] or [1, C, 1, 1]; a factor also as a scalar.
        rank = len(variables[0].shape)
        per_channel = len(factor.shape) in (rank - 1, rank) and all(dim == 1 for dim in factor.shape[2 - rank :])
        return per_channel or (node.op == "Mul" and len(factor.shape) == 0)

    def _open(self, output: gs.Tensor, activations: Set[str], linear: bool) -> None:
        """Note what the convolution behind ``output`` can still take in: nothing if more than one node reads it."""
        if self._read_once(output):
            self._open_convs[id(output)] = activations & self._takes_in
            if linear:
                self._linear.add(id(output))

    def _is_kept_blocked(self, node: gs.Node) -> bool:
        variables = [tensor for tensor in node.inputs if not self._is_constant(tensor)]
        if not variables or not all(id(tensor) in self._blocked for tensor in variables):
            return False
        if id(node) in self._gelus or node.op in BLOCKED_UNARY | BLOCKED_POOLING or node.op == "BatchNormalization":
            return True
        if node.op in ("Add", "Mul", "Sum"):
            return len(variables) == len(node.inputs) and _same_shape(node.inputs)
        if node.op == "Concat":
            channels = [tensor.shape[1] if tensor.shape and len(tensor.shape) == 4 else None for tensor in variables]
            return node.attrs.get("axis") == 1 and all(
                isinstance(count, int) and count % self._block == 0 for count in channels
            )
        return node.op in ("Resize", "Upsample") and _is_enlarged_blocked(node)

    def _folds(self, node: gs.Node) -> bool:
        deterministic = not node.op.startswith("Random") and not subgraphs(node)
        return deterministic and all(map(self._is_constant, node.inputs))

    def _is_constant(self, tensor: gs.Tensor) -> bool:
        return is_constant(tensor) or not tensor.name or id(tensor) in self._constants

    def _stays_blocked(self, consumer: gs.Node) -> bool:
        return id(consumer) in self.blocked_nodes

    def _read_once(self, tensor: gs.Tensor) -> bool:
        return len(tensor.outputs) == 1 and not self._is_output(tensor)


def hard_swish_pair(mul: gs.Node) -> gs.Node | None:
    """The HardSigmoid of ``mul`` = x * HardSigmoid(x; 1/6, 1/2), the form of HardSwish that ORT knows."""
    if len(mul.inputs) != 2:
        return None
    for x, gate in (mul.inputs, reversed(mul.inputs)):
        producer = gate.inputs[0] if gate.inputs else None
        if producer is None or standard_op(producer) != "HardSigmoid":
            continue
        if producer.inputs[0] is x and len(gate.outputs) == 1:
            alpha, beta = producer.attrs.get("alpha", 0.2), producer.attrs.get("beta", 0.5)
            if abs(alpha - 1 / 6) < 1e-6 and abs(beta - 0.5) < 1e-6:
                return producer
    return None


def _is_enlarged_blocked(node: gs.Node) -> bool:
    """Whether ORT makes an image larger in the blocked layout: by whole numbers, and in one of BLOCKED_ENLARGING."""
    old = len(node.inputs) < 3  # Upsample, and Resize of opset 10: data, scales
    place = "asymmetric" if old else node.attrs.get("coordinate_transformation_mode", "half_pixel")
    mode = node.attrs.get("mode", "nearest")
    nearest = "floor" if old else node.attrs.get("nearest_mode", "round_prefer_floor")
    if (mode, place, nearest if mode == "nearest" else "") not in BLOCKED_ENLARGING or node.attrs.get("antialias"):
        return False
    before, after = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if before and after and all(before):
        return before[:2] == after[:2] and not any(new % size for new, size in zip(after, before, strict=True))
    scales = constant_value(node.inputs[1 if old else 2])
    if scales is None or scales.size != 4 or np.any(scales[:2] != 1):
        return False
    return bool(np.all(scales >= 1) and np.all(scales == np.floor(scales)))


def _same_shape(tensors: Sequence[gs.Tensor]) -> bool:
    """Whether the shapes agree as far as they are known; ORT follows sizes through convolutions, inference does not."""
    shapes = [tensor.shape for tensor in tensors]
    if any(shape is None or len(shape) != len(shapes[0]) for shape in shapes):
        return False
    return all(len({dim for dim in dims if isinstance(dim, int)}) <= 1 for dims in zip(*shapes, strict=True))
