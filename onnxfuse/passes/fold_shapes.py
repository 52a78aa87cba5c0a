"""The pass fold-shapes: what a model computes from shapes to reshape, expand or slice by it becomes constant."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import constant_value, is_constant
from onnxfuse.model.elementwise_operators import BROADCASTING
from onnxfuse.model.graph_ir import Node, standard_op
from onnxfuse.model.graph_order import sorted_nodes
from onnxfuse.passes.fold_constants import FoldConstants
from onnxfuse.passes.rules.conv_layout.upsampling import repeats, stretches
from onnxfuse.passes.rules.fold_shapes.gather_in_order import GatherInOrder
from onnxfuse.passes.rules.fold_shapes.product_of_rows import ProductOfRows
from onnxfuse.passes.rules.fold_shapes.unit_dimensions import SqueezeAfterReshape, UnitDimensionsBeforeReshape
from onnxfuse.rewrite.base import PassContext, label
from onnxfuse.rewrite.editor import GraphEditor
from onnxfuse.rewrite.rewriter import RulePass
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.shape_values import Element, ShapeValues, constant_target, size_of

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model

NAME = "fold-shapes"

_MAX_ROUNDS = 8
_RECURRENT = {"GRU", "LSTM", "RNN"}
_SHAPED = {"Reshape", "Shape", "GatherND", "Pad", "Resize", "Upsample"}


class FoldShapes:
    """Constant shapes in place of computed ones for Reshape: 0 stands for a size that its data has at that place, and
    -1 for the one that then is left.  For Expand 1 stands for a size of its data.  And constant bounds for Slice and
    sizes for Split, where they are numbers.  A Reshape to the shape that its data has goes, a Pad by nothing, a Resize
    to the same size, and an Expand to the shape of a tensor with which all that read it broadcast it anyway; of what
    ConstantOfShape fills with a number in such a shape they read the number.  What is
    taken of a shape to compute with becomes constant where that is a number, and then what is computed of it, by
    FoldConstants.  Where it is a size of an input of the graph, it is taken of that input's shape, and nobody reads the
    other tensor for it, which may be inside of what is fused: scores of an attention, whose size a mask is made of.

    Rows are multiplied by a matrix where they are, all elements that are gathered in their order stay so, and
    dimensions of 1 that are inserted before a Reshape to a constant shape, or taken away after it, are left out.

    What computed them goes where nothing else reads it.  A Reshape that refuses an empty tensor stays where a recurrent
    operator depends on it: ONNX Runtime's end the process where a batch is empty.  Exact for all shapes that the model
    takes, sizes of zero among them.  Nodes in the bodies of If, Loop and Scan stay as they are.
    """

    name = NAME
    description = (
        "Writes what Reshape, Expand, Slice and Split take from shapes as constants where that follows from their data."
    )

    def run(self, model: Model, context: PassContext) -> None:
        """Rewrites again and again, for a shape that is known then may make the next one known."""
        rules = RulePass([ProductOfRows(), GatherInOrder(), UnitDimensionsBeforeReshape(), SqueezeAfterReshape()], NAME)
        rounds = 0
        while rounds < _MAX_ROUNDS and any(_reads_a_shape(node) for node in model.graph.nodes):
            with _distinct_shapes(model):
                found = _fold(model, context)
                rewrites = len(context.report.rewrites)
                rules.run(model, context)
            if not found and len(context.report.rewrites) == rewrites:
                break
            rounds += 1
        if rounds > 0:
            FoldConstants().run(model, context)


@contextmanager
def _distinct_shapes(model: Model) -> Iterator[None]:
    """Shapes in which sizes of one name are equal.  Declared ones that inference does not find return at the end."""
    made = [tensor for node in model.graph.nodes for tensor in node.outputs if tensor.shape is not None]
    declared = [tensor.shape for tensor in made]
    numbers = [[size if isinstance(size, int) else None for size in shape] for shape in declared]
    for tensor, shape in zip(made, numbers, strict=True):
        tensor.shape = shape
    infer(model, _distinct_sizes(model))
    yield
    for tensor, shape, before in zip(made, numbers, declared, strict=True):
        if tensor.shape is shape:
            tensor.shape = before


def _distinct_sizes(model: Model) -> dict[str, list[int | str]]:
    """The shapes of the inputs with a symbol of its own for every size that is not known.

    ONNX Runtime takes sizes that differ where a model declares one symbol, as some exporters do for all of them.
    """
    counter = itertools.count()
    return {
        tensor.name: [size if isinstance(size, int) else f"{NAME}_{next(counter)}" for size in tensor.shape]
        for tensor in model.graph.inputs
        if tensor.shape is not None
    }


def _before_recurrent_ones(nodes: Sequence[Node]) -> set[int]:
    """The ids of recurrent nodes and of those that they depend on, of ``nodes`` in topological order."""
    found: set[int] = set()
    for node in reversed(nodes):
        readers = (reader for tensor in node.outputs for reader in tensor.outputs)
        if standard_op(node) in _RECURRENT or any(id(reader) in found for reader in readers):
            found.add(id(node))
    return found


def _refuses_no_elements(node: Node, values: ShapeValues) -> bool:
    """Whether ONNX Runtime refuses a Reshape of a tensor with a size of zero, as no size follows for -1 then."""
    if standard_op(node) != "Reshape" or len(node.inputs) < 2 or node.attrs.get("allowzero", 0):
        return False
    elements = values.of(node.inputs[1]) or []
    return -1 in elements and any(not isinstance(element, int) or element == 0 for element in elements)


def _reads_a_shape(node: Node) -> bool:
    return standard_op(node) in _SHAPED or bool(_computed_inputs(node))


def _shape_before(node: Node) -> Node | None:
    """The Shape that a Gather or Slice takes something of; None for other nodes."""
    if standard_op(node) not in ("Gather", "Slice") or not node.inputs[0].inputs:
        return None
    shape = node.inputs[0].inputs[0]
    return shape if standard_op(shape) == "Shape" else None


def _numbers(node: Node, values: ShapeValues) -> np.ndarray | None:
    """What a Gather or Slice takes of a shape to compute with, if these are numbers; None if it does something else.

    So scaled_dot_product_attention, as TorchScript exports it, computes its scale of the size of heads.
    """
    if _shape_before(node) is None:
        return None
    made = node.outputs[0]
    if any(standard_op(one) != "Cast" for one in made.outputs):
        return None
    elements = values.of(made)
    if elements is None or made.shape is None or len(made.shape) > 1 or made.dtype != np.int64:
        return None
    numbers = [element for element in elements if isinstance(element, int)]
    if len(numbers) != len(elements) or (not made.shape and len(numbers) != 1):
        return None
    return np.array(numbers if made.shape else numbers[0], np.int64)


def _input_size(
    node: Node, values: ShapeValues, sizes: Mapping[Element, tuple[gs.Tensor, int]], doubted: Container[int]
) -> tuple[gs.Tensor, int] | None:
    """The graph's input and its axis, of ``sizes``, whose size a Gather or Slice takes of another tensor's shape.

    Not of those whose ids are ``doubted``.
    """
    shape = _shape_before(node)
    if shape is None or not shape.inputs[0].inputs:
        return None
    made = node.outputs[0]
    if made.dtype != np.int64:
        return None
    elements = values.of(made)
    if elements is None or len(elements) != 1 or made.shape is None or len(made.shape) > 1:
        return None
    return None if id(shape.inputs[0]) in doubted else sizes.get(elements[0])


def _beside_empty_ones(nodes: Sequence[Node]) -> set[int]:
    """The ids of tensors whose sizes rest on a Concat of tensors that may be of other sizes than each other.

    ONNX Runtime leaves out those without elements, whatever their sizes are.  The ``nodes`` are in topological order.
    """
    found: set[int] = set()
    for node in nodes:
        operator = standard_op(node)
        shapes = [tensor.shape for tensor in node.inputs] if operator == "Concat" else []
        axis = node.attrs.get("axis", 0)
        differ = operator == "ConcatFromSequence" or any(
            shape is None or shapes[0] is None or _without(shape, axis) != _without(shapes[0], axis) for shape in shapes
        )
        if differ or any(id(tensor) in found for tensor in node.inputs):
            found.update(map(id, node.outputs))
    return found


def _without(shape: Sequence[object], axis: int) -> list[object]:
    """The sizes but for one; those that are not known are like no other."""
    return [object() if size is None else size for place, size in enumerate(shape) if place != axis % len(shape)]


def _take_size(model: Model, editor: GraphEditor, node: Node, tensor: gs.Tensor, axis: int) -> None:
    """Take what ``node`` takes of a shape of the ``tensor``'s along an ``axis``."""
    made = node.outputs[0]
    shape = gs.Variable(model.unique_name(f"{tensor.name}_shape"), np.int64, [len(tensor.shape)])
    index = model.constant(np.array([axis] if made.shape else axis, np.int64), f"{made.name}_axis")
    size = gs.Variable(model.unique_name(f"{made.name}_size"), made.dtype, made.shape)
    taken = [
        Node("Shape", model.unique_name(f"{label(node)}_shape"), {}, [tensor], [shape]),
        Node("Gather", model.unique_name(f"{label(node)}_size"), {"axis": 0}, [shape, index], [size]),
    ]
    editor.insert(taken, node)
    editor.replace_uses(made, size)
    editor.remove([node])


def _computed_inputs(node: Node) -> list[int]:
    """The inputs of Reshape, Expand, Slice and Split that the model computes, and that say how it does what it does."""
    if standard_op(node) not in ("Reshape", "Expand", "Slice", "Split"):
        return []
    return [index for index, tensor in enumerate(node.inputs) if index > 0 and tensor.name and not is_constant(tensor)]


def _is_needless(node: Node, opsets: dict[str, int]) -> bool:
    """Whether a node is a Reshape to the shape that its data has, a Pad by nothing, a Resize to the same size, or an
    Expand to the shape of a tensor which is another operand of every node that reads it."""
    if standard_op(node) in ("Resize", "Upsample"):
        times = repeats(node, opsets) or stretches(node, opsets)
        return times is not None and all(time == 1 for time in times)
    if standard_op(node) == "Pad":
        sizes = constant_value(node.inputs[1]) if len(node.inputs) > 1 else np.asarray(node.attrs.get("pads", [1]))
        return sizes is not None and not sizes.any()
    if standard_op(node) == "Expand":
        return _meets_its_shape(node, node.inputs[1])
    if standard_op(node) != "Reshape":
        return False
    before, after = node.inputs[0].shape, node.outputs[0].shape
    return before is not None and after is not None and None not in before and list(before) == list(after)


def _meets_its_shape(node: Node, sizes: gs.Tensor) -> bool:
    """Whether the ``sizes`` of what a node makes are those of a tensor with which all that read it broadcast it."""
    shape = sizes.inputs[0] if sizes.inputs else None
    return (
        shape is not None
        and standard_op(shape) == "Shape"
        and not shape.attrs
        and all(
            standard_op(reader) in BROADCASTING and any(tensor is shape.inputs[0] for tensor in reader.inputs)
            for reader in node.outputs[0].outputs
        )
    )


def _filling(model: Model, node: Node) -> gs.Constant | None:
    """The number that readers of a ConstantOfShape broadcast as well as that; None for other nodes."""
    if standard_op(node) != "ConstantOfShape" or not _meets_its_shape(node, node.inputs[0]):
        return None
    value = node.attrs.get("value")
    number = np.zeros((), np.float32) if value is None else np.asarray(value.values).reshape(-1)
    return model.constant(number.reshape(()), f"{node.outputs[0].name}_number") if number.size == 1 else None


def _fold(model: Model, context: PassContext) -> bool:
    """One round; whether anything became constant."""
    editor = GraphEditor(model)
    nodes = sorted_nodes(model.graph)
    values, doubted = ShapeValues(nodes), _beside_empty_ones(nodes)
    guards = _before_recurrent_ones(nodes)
    sizes: dict[Element, tuple[gs.Tensor, int]] = {}
    for tensor in model.graph.inputs:
        for axis in range(len(tensor.shape or ())):
            size = size_of(tensor, axis)
            if isinstance(size, str):
                sizes.setdefault(size, (tensor, axis))
    found = False
    try:
        for node in list(model.graph.nodes):
            if editor.graph_index(node) is None:
                continue
            refuses = id(node) in guards and _refuses_no_elements(node, values)
            if _is_needless(node, model.opsets) and not refuses and not editor.is_graph_output(node.outputs[0]):
                found = True
                context.rewrote(NAME, [node])
                editor.replace_uses(node.outputs[0], node.inputs[0])
                editor.remove([node])
                continue
            filling = None if editor.is_graph_output(node.outputs[0]) else _filling(model, node)
            if filling is not None:
                found = True
                context.rewrote(NAME, [node])
                editor.replace_uses(node.outputs[0], filling)
                editor.remove([node])
                continue
            numbers = _numbers(node, values)
            if numbers is not None and not editor.is_graph_output(node.outputs[0]):
                found = True
                context.rewrote(NAME, [node])
                made = node.outputs[0]
                editor.replace_uses(made, model.constant(numbers, f"{made.name}_constant"))
                editor.remove([node])
                continue
            taken = _input_size(node, values, sizes, doubted)
            if taken is not None and not editor.is_graph_output(node.outputs[0]):
                found = True
                context.rewrote(NAME, [node])
                _take_size(model, editor, node, *taken)
                continue
            for index in _computed_inputs(node):
                computed = node.inputs[index]
                elements = values.of(computed)
                target = None if elements is None else _constant(node, computed, elements, refuses)
                if target is None or computed.dtype is None:
                    continue
                found = True
                context.rewrote(NAME, [node])
                node.inputs[index] = model.constant(np.array(target, computed.dtype), f"{computed.name}_constant")
                node.attrs.pop("allowzero", None)
                editor.remove([producer for producer in computed.inputs if editor.is_dead(producer)])
    finally:
        editor.finish()
    return found


def _constant(node: Node, computed: gs.Tensor, elements: Sequence[Element], refuses: bool) -> list[int] | None:
    """What means the same to ``node`` as a computed input of these elements, for every shape of its data; or None.

    ``refuses`` says whether it has to refuse a Reshape of an empty tensor as they do.
    """
    if standard_op(node) == "Reshape":
        if node.attrs.get("allowzero", 0) and 0 in elements:
            return None  # where it stands for itself
        # Where -1 is among the elements, ONNX Runtime takes no other size of zero, unless this one stands for itself.
        has_zeros = -1 not in elements or bool(node.attrs.get("allowzero", 0))
        known = elements if refuses else _without_rest(node, elements)
        target = constant_target(node.inputs[0], known, has_zeros)
        return None if has_zeros and target is not None and {0, -1} <= {*target} else target
    if standard_op(node) == "Expand":
        return _constant_expansion(node.inputs[0], elements)
    if computed.shape is None or len(computed.shape) != 1:
        return None  # ONNX Runtime refuses it
    numbers = [element for element in elements if isinstance(element, int)]
    return numbers if len(numbers) == len(elements) else None


def _without_rest(node: Node, elements: Sequence[Element]) -> list[Element]:
    """The shape that a Reshape is given, with the number that -1 stands for in its place where it is known."""
    made = node.outputs[0].shape
    sizes = made if made is not None and len(made) == len(elements) else [None] * len(elements)
    return [
        size if element == -1 and isinstance(size, int) else element
        for element, size in zip(elements, sizes, strict=True)
    ]


def _constant_expansion(data: gs.Tensor, elements: Sequence[Element]) -> list[int] | None:
    """The input of Expand that means the same as ``elements`` for every shape of ``data``; None if there is none."""
    if data.shape is None:
        return None
    first = len(data.shape) - len(elements)  # the axis of the data that the first element is for
    target = []
    for axis, element in enumerate(elements, first):
        kept = axis >= 0 and element is not None and size_of(data, axis) == element
        target.append(1 if kept else element)
    numbers = [size for size in target if isinstance(size, int)]
    return numbers if len(numbers) == len(target) else None
