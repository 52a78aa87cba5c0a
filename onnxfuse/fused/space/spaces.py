"""The space of a region: how the dimensions of its tensors lie in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_graphsurgeon as gs

from onnxfuse.fused.sizes import Sizes
from onnxfuse.fused.space.layouts import (
    Atom,
    Dim,
    Layout,
    LayoutError,
    broadcast,
    layout_of,
    reshaped,
    resolved,
    settled,
    unify,
)
from onnxfuse.model.graph_ir import VIEWS, standard_op
from onnxfuse.program.figures import MAX_RANK
from onnxfuse.program.lowering import ignores_input, is_elementwise, vector_axes
from onnxfuse.program.reducing import Reading, Result, reading, reduces

OTHER_AXES = "it reduces along other axes"


class Space:
    """The layouts of all tensors that some nodes, in topological order, read and make, and the order of the axes.

    Raises LayoutError if the nodes have no common space, UnsupportedError for a node that cannot be lowered.
    """

    def __init__(self, nodes: Sequence[gs.Node], opset: int, sizes: Sizes) -> None:
        self._opset = opset
        self._sizes = sizes
        self._layouts: dict[int, Layout] = {}
        self._joins: dict[int, frozenset[int]] = {}  # by tensor: the nodes before it that join sizes which may differ
        self._reduced: list[tuple[gs.Node, Dim, Layout]] = []
        for node in nodes:
            self._lay_out(node)
        self.reduced = self._common_axes()
        for layout in self._layouts.values():
            atoms = [atom for dim in settled(layout) for atom in dim]
            if len(set(atoms)) < len(atoms):
                raise LayoutError("a tensor that meets itself in another order")

    def layout(self, tensor: gs.Tensor) -> Layout:
        """The layout of a tensor that a node reads or makes."""
        return settled(self._layouts[id(tensor)])

    def has_rows(self, tensor: gs.Tensor) -> bool:
        """Whether a tensor has all of the axes that are not reduced, whatever the sizes are at run time."""
        own = {atom for dim in self.layout(tensor) for atom in dim}
        return self.axes - set(self.reduced) <= own and self._is_behind_joins(tensor)

    @property
    def axes(self) -> set[Atom]:
        """All axes."""
        return {atom for layout in self._layouts.values() for dim in settled(layout) for atom in dim}

    def check_rows(self) -> None:
        """Raises LayoutError unless what is reduced has all axes: else it would be computed several times."""
        for node, _, layout in self._reduced:
            has_all = {atom for dim in settled(layout) for atom in dim} == self.axes
            if not has_all or not self._is_behind_joins(node.inputs[0]):
                raise LayoutError(f"{node.op} of fewer elements than the region has")

    def _is_behind_joins(self, tensor: gs.Tensor) -> bool:
        """Whether a tensor has the sizes that all joins give: one before may have a single element in their place."""
        return self._joins.get(id(tensor), frozenset()) == frozenset().union(*self._joins.values())

    def ordered(self, outputs: Iterable[gs.Tensor]) -> tuple[Atom, ...]:
        """The axes, in the order of the outputs, which all have to have the same.

        Those that no output has are where what is reduced has them.  Raises LayoutError if there is no such order.
        """
        sequences = [[atom for dim in self.layout(tensor) for atom in dim] for tensor in outputs]
        hard = len(sequences)
        sequences += [[atom for dim in settled(layout) for atom in dim] for _, _, layout in self._reduced]
        order: list[Atom] = []
        for place, sequence in enumerate(sequences):
            known = [atom for atom in sequence if atom in order]
            if place < hard and known != sorted(known, key=order.index):
                raise LayoutError("results in different orders")
            _merge(order, sequence)
        if len(order) > MAX_RANK:
            raise LayoutError(f"more than {MAX_RANK} axes")
        return tuple(order)

    def _lay_out(self, node: gs.Node) -> None:
        if standard_op(node) in VIEWS:
            made: Sequence[Layout] = (self._view(node),)
        elif reduces(node):
            made = self._reduce(node)
        elif is_elementwise(node):
            made = (self._elementwise(node),)
        else:
            raise LayoutError(f"{node.op} is neither elementwise nor a reduction")
        before = frozenset[int]().union(*(self._joins.get(id(tensor), frozenset()) for tensor in node.inputs))
        for tensor, layout in zip(node.outputs, made, strict=False):
            self._joins[id(tensor)] = self._joins.get(id(tensor), frozenset()) | before
            if not tensor.name:
                continue
            if tensor.shape is not None and len(tensor.shape) != len(layout):
                raise LayoutError("a rank that is not the declared one")
            self._layouts[id(tensor)] = layout

    def _read(self, tensor: gs.Tensor) -> Layout:
        if id(tensor) not in self._layouts:
            sizes = self._sizes.of(tensor)
            if sizes is None:
                raise LayoutError(f"the rank of {tensor.name!r} is not known")
            self._layouts[id(tensor)] = layout_of(sizes)
        return self._layouts[id(tensor)]

    def _view(self, node: gs.Node) -> Layout:
        sizes = self._sizes.of(node.outputs[0])
        if sizes is None:
            raise LayoutError(f"the rank of {node.outputs[0].name!r} is not known")
        return reshaped(self._read(node.inputs[0]), sizes)

    def _elementwise(self, node: gs.Node) -> Layout:
        vectors = vector_axes(node, self._opset)
        whole = [
            self._read(tensor)
            for index, tensor in enumerate(node.inputs)
            if tensor.name and index not in vectors and not ignores_input(node, index)
        ]
        result, joins = broadcast(whole, self._sizes.of(node.outputs[0]))
        if joins:
            self._joins[id(node.outputs[0])] = frozenset((id(node),))
        self._lay_vectors(node, vectors, whole[0])
        return result

    def _lay_vectors(self, node: gs.Node, axes: Mapping[int, int], along: Layout) -> None:
        for index, axis in axes.items():
            vector = self._read(node.inputs[index])
            if len(vector) != 1:
                raise LayoutError("a vector of more dimensions than one")
            if resolved(vector[0]):
                unify(along[axis], vector[0])

    def _reduce(self, node: gs.Node) -> list[Layout]:
        how = reading(node, self._opset)
        x = self._read(node.inputs[0])
        axes = set(how.axes)
        dims = [dim for axis, dim in enumerate(x) if axis in axes]
        if how.groups:
            dims.insert(0, self._members_of_groups(x[1], how.groups))
        self._reduced.append((node, tuple(atom for dim in dims for atom in dim), x))
        if how.vectors:
            self._lay_vectors(node, {index: 1 - len(x) for index in how.vectors if index < len(node.inputs)}, x)
        elif len(node.inputs) > 1 and Result.ELEMENTS in how.results:  # scale and bias, which broadcast to the elements
            operands = [self._read(tensor) for tensor in node.inputs[1:] if tensor.name]
            if any(len(operand) > len(x) for operand in operands):
                raise LayoutError("a scale of more dimensions than what is normalized")
            broadcast([x, *operands])
        return [_result(x, axes, how, result) for result in how.results]

    def _members_of_groups(self, channels: Dim, groups: int) -> Dim:
        """The part of the channels that is reduced."""
        group = Atom(groups)
        found = resolved(channels)
        if len(found) == 1 and isinstance(found[0].size, int) and groups in (1, found[0].size):
            return found if groups == 1 else ()
        size = 1
        for atom in found:
            if not isinstance(atom.size, int):
                raise LayoutError("a number of channels that is not known")
            size *= atom.size
        if size % groups:
            raise LayoutError(f"{size} channels in {groups} groups")
        member = Atom(size // groups)
        unify((group, member), channels)
        return resolved((member,))

    def _common_axes(self) -> tuple[Atom, ...]:
        sets = [(node, resolved(dim)) for node, dim, _ in self._reduced]
        for node, atoms in sets:
            if not atoms:
                raise LayoutError(f"{node.op} of single elements")
            if set(atoms) != set(sets[0][1]):
                raise LayoutError(OTHER_AXES)
        return sets[0][1] if sets else ()


def _result(x: Layout, axes: set[int], how: Reading, result: Result) -> Layout:
    match result:
        case Result.ELEMENTS:
            return x
        case Result.KEPT:
            return tuple(() if axis in axes else dim for axis, dim in enumerate(x))
        case Result.DROPPED:
            return tuple(dim for axis, dim in enumerate(x) if axis not in axes)


def _merge(order: list[Atom], sequence: Sequence[Atom]) -> None:
    """Put the atoms of ``sequence`` that are not in ``order`` there, each behind the one before it."""
    for place, atom in enumerate(sequence):
        if atom in order:
            continue
        before = next((other for other in reversed(sequence[:place]) if other in order), None)
        behind = next((other for other in sequence[place + 1 :] if other in order), None)
        if before is not None:
            order.insert(order.index(before) + 1, atom)
        elif behind is not None:
            order.insert(order.index(behind), atom)
        else:
            order.append(atom)
