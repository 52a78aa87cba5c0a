"""The pass that normalizes rows in one node, with the additions before it, on the CPU."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.fused.fused_node import RegionProgram, local_function
from onnxfuse.fused.fusion import Fusion, emit_all
from onnxfuse.fused.kinds import NORMALIZATION
from onnxfuse.fused.normalization.normalization_blocks import NormalizationBlock, find_blocks
from onnxfuse.fused.sizes import Sizes
from onnxfuse.model.constants import dtype_of, is_constant
from onnxfuse.model.graph import Model, sorted_nodes
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.ort.ort_fusions import OrtFusions
from onnxfuse.program import Program, ProgramError
from onnxfuse.program.figures import MAX_OPERANDS
from onnxfuse.program.lowering import check
from onnxfuse.rewrite.base import PassContext
from onnxfuse.rewrite.editor import GraphEditor
from onnxfuse.shapes.inference import infer

NAME = "fuse-normalization"
OTHER_SHAPE = "its result is not known to have the shape of what is normalized"
FEW_ELEMENTS = "it has so few elements that ONNX Runtime's own kernel is as fast"

_BEFORE = ("Add", "Sub", "Mul", "Div")
"""What makes the rows of a residual, a bias and the scale of a layer."""
_FEW = 512
_SHORT_ROW = 16
"""Elements of a row, below which a Program takes its time to repeat what is the same in each."""


@dataclass(frozen=True)
class NormalizationFusion:
    """A block with the nodes ``before`` it, and what takes their place; ``program`` is None where there are none."""

    block: NormalizationBlock
    before: tuple[gs.Node, ...]
    program: Program | None
    keeps: bool
    inputs: tuple[gs.Tensor, ...]

    @property
    def nodes(self) -> tuple[gs.Node, ...]:
        """All nodes, in topological order."""
        return (*self.before, *self.block.nodes)

    @property
    def outputs(self) -> tuple[gs.Tensor, ...]:
        """The result, and what is normalized if that is read elsewhere too."""
        return (self.block.result, self.block.x) if self.keeps else (self.block.result,)

    @property
    def attributes(self) -> dict[str, str | int]:
        """Those of the fused node (custom_ops/nodes/normalization/normalization.h)."""
        found: dict[str, str | int] = {} if self.program is None else {"program": str(self.program)}
        epsilon = int(self.block.epsilon.view(np.uint32))
        return {**found, "centered": int(self.block.centered), "keeps": int(self.keeps), "epsilon_bits": epsilon}

    def fusion(self, opset: int) -> Fusion:
        """The fused node."""
        function, constants = local_function(self.nodes, self.inputs, self.outputs, self.attributes, opset)
        attributes = {**self.attributes, **constants}
        return Fusion(NORMALIZATION, self.nodes, self.inputs, self.outputs, attributes, function)


class FuseNormalization:
    """Replaces normalizations of rows by single nodes, together with the additions before them, for the target cpu.

    ONNX Runtime computes LayerNormalization with two threads more slowly than with one where there are few rows, and
    residuals and biases in passes of their own.
    """

    name = NAME
    description = "normalize rows in one node, with the additions before it, on the CPU"

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrite ``model`` in place and record every normalization."""
        if NORMALIZATION not in context.on.kinds or "" not in model.opsets:
            return
        infer(model)
        planner = _Planner(model, context)
        for graph, fusions in [(graph, planner.plan(graph)) for graph in model.fusible_graphs()]:
            emit_all(model, graph, [found.fusion(model.opsets[""]) for found in fusions], context)


class _Planner:
    """Plans the graphs of one model, without changing it."""

    def __init__(self, model: Model, context: PassContext) -> None:
        self._context = context
        self._opsets = model.opsets
        self._editor = GraphEditor(model)
        self._sizes = Sizes(model)
        self._to_ort = {} if context.everything else OrtFusions(model, context.on).reasons
        self._taken: set[int] = set()

    def plan(self, graph: gs.Graph) -> list[NormalizationFusion]:
        """The fusions of one graph."""
        nodes = sorted_nodes(graph)
        position = {id(node): index for index, node in enumerate(nodes)}
        fusions = []
        for block in find_blocks(nodes, self._editor, self._opsets, self._refuse):
            space = self._sizes.of(block.x)
            if space is None or self._sizes.of(block.result) != space:
                self._refuse(block.nodes[-1], OTHER_SHAPE)
                continue
            before = sorted(self._before(block, position), key=lambda node: position[id(node)])
            fusion = self._fuse(block, before) or self._fuse(block, ())
            if fusion is None:
                continue
            if not fusion.before and not self._context.everything and _has_few_elements(block.x):
                self._refuse(block.nodes[-1], FEW_ELEMENTS)
                continue
            self._taken.update(id(node) for node in fusion.before)
            fusions.append(fusion)
        return fusions

    def _refuse(self, node: gs.Node, reason: str) -> None:
        self._context.refused(NAME, node, reason)

    def _before(self, block: NormalizationBlock, here: Iterable[int]) -> list[gs.Node]:
        """The nodes of this graph that make what is normalized, and that nothing else needs.

        What is normalized itself may be read elsewhere: it comes before all that depends on it.
        """
        graph = set(here)
        inside = {id(node) for node in block.nodes}
        found: list[gs.Node] = []
        waiting = list(block.x.inputs)
        while waiting:
            node = waiting.pop(0)
            if id(node) not in graph or id(node) in inside or not self._joins(node, block):
                continue
            tensor = node.outputs[0]
            others = any(id(reader) not in inside for reader in tensor.outputs) or self._editor.is_graph_output(tensor)
            if others and tensor is not block.x:
                continue
            inside.add(id(node))
            found.append(node)
            waiting.extend(producer for read in node.inputs for producer in read.inputs)
        return found

    def _joins(self, node: gs.Node, block: NormalizationBlock) -> bool:
        """Whether a node makes a tensor of the block's shape in float32 of such tensors, constants among them."""
        if standard_op(node) not in _BEFORE or id(node) in self._taken or id(node) in self._to_ort:
            return False
        if check(node, self._opsets[""]) is not None or dtype_of(node.outputs[0]) != np.float32:
            return False
        space = self._sizes.of(block.x)
        if self._sizes.of(node.outputs[0]) != space:
            return False
        whole = [tensor for tensor in node.inputs if self._sizes.of(tensor) == space]
        return self._context.everything or len(whole) == len(node.inputs) or block.x.shape[-1] >= _SHORT_ROW

    def _fuse(self, block: NormalizationBlock, before: Sequence[gs.Node]) -> NormalizationFusion | None:
        """None if the nodes before the block are too many, or read no tensor of its shape."""
        if not before:
            return NormalizationFusion(block, (), None, False, (block.x, *block.vectors))
        made = {id(node.outputs[0]) for node in before}
        read = [tensor for node in before for tensor in node.inputs if id(tensor) not in made]
        space = self._sizes.of(block.x)
        whole = [tensor for tensor in read if not is_constant(tensor) and self._sizes.of(tensor) == space]
        if not whole:
            return None
        region = RegionProgram(self._opsets[""], self._context.fast_math)
        try:
            region.input(whole[0])
            for node in before:
                region.lower(node)
            program = region.build([block.x])
        except ProgramError:
            return None
        nodes = {id(node) for node in (*before, *block.nodes)}
        keeps = self._editor.is_graph_output(block.x) or any(id(reader) not in nodes for reader in block.x.outputs)
        inputs = (*region.inputs, *block.vectors)
        if len(inputs) + 2 > MAX_OPERANDS:
            return None
        return NormalizationFusion(block, tuple(before), program, keeps, inputs)


def _has_few_elements(tensor: gs.Tensor) -> bool:
    """Whether a tensor is known to have so few elements that a call costs more than the work."""
    return all(isinstance(dim, int) for dim in tensor.shape) and int(np.prod(tensor.shape)) < _FEW
