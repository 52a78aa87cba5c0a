"""The space of a region: how the dimensions of its tensors lie in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_graphsurgeon as gs

from onnxfuse.fused.sizes import Size, Sizes
from onnxfuse.fused.space.layouts import (
    Atom,
    Dim,
    Layout,
    LayoutError,
    broadcast,
    divided,
    expanded,
    layout_of,
    reshaped,
    resolved,
    settled,
    tiled,
    unify,
)
from onnxfuse.fused.space.permuted import is_permuted
from onnxfuse.fused.space.steps import steps_between
from onnxfuse.fused.space.view_nodes import Part, is_part, is_view, names_rows, repeats, taken_parts
from onnxfuse.model.constants import constant_value, shape_of
from onnxfuse.model.graph_ir import permutation_of, standard_op
from onnxfuse.program.block_quantized import BlockQuantized
from onnxfuse.program.figures import MAX_RANK
from onnxfuse.program.lowering import ignores_input, is_elementwise, vector_axes
from onnxfuse.program.multiplying import Product
from onnxfuse.program.reducing import Reading, Result, reading, reduces
from onnxfuse.program.view_steps import ViewStep

OTHER_AXES = "it reduces along other axes"


class Space:
    """The layouts of all tensors that some nodes, in topological order, read and make, and the order of the axes.

    ``products``, by the ids of their nodes, are those of the nodes that multiply with a matrix.  Raises LayoutError if
    the nodes have no common space, UnsupportedError for a node that cannot be lowered.
    """

    def __init__(
        self, nodes: Sequence[gs.Node], opset: int, sizes: Sizes, products: Mapping[int, Product] | None = None
    ) -> None:
        self.products = products or {}
        self._opset = opset
        self._sizes = sizes
        self._layouts: dict[int, Layout] = {}
        self._elements: dict[int, Dim] = {}  # by tensor: the axes along which its value is not repeated
        self._viewed: dict[int, gs.Node] = {}  # by tensor: the view of all its elements that makes it
        self._parts: dict[int, tuple[gs.Tensor, Part]] = {}  # and of what it is a part
        self._packed: dict[int, tuple[ViewStep, ...]] = {}  # by tensor: what leads from it to what is laid out
        self._rows: dict[int, tuple[gs.Tensor, gs.Tensor]] = {}  # by tensor: of what it is rows, and their numbers
        self._met: set[int] = set()  # tensors that others than views read or make
        self._operands: list[gs.Tensor] = []  # those that they read
        self._outside: set[int] = set()  # tensors that the nodes do not make, and views of these
        self._joins: dict[int, frozenset[int]] = {}  # by tensor: the nodes before it that join sizes which may differ
        self._reduced: list[tuple[gs.Node, Dim, Layout]] = []
        for node in nodes:
            self._lay_out(node)
        self.reduced = self._common_axes()
        self._check_axes()
        if any(set(self.reduced) & set(resolved(dim)) for numbers in self._numbers() for dim in self.layout(numbers)):
            raise LayoutError("numbers of rows that differ along the axes that are reduced")

    def align(self, tensors: Sequence[gs.Tensor]) -> None:
        """Let tensors that never meet have the same axes, where their shapes are the same numbers.

        Raises LayoutError where that would have one of them in two orders.
        """
        first: dict[tuple[int, ...], Layout] = {}
        for tensor in tensors:
            shape = shape_of(tensor)
            if shape is None:
                continue
            layout = self._layouts[id(tensor)]
            for one, other in zip(first.setdefault(shape, layout), layout, strict=True):
                unify(one, other)
        self._check_axes()

    def _check_axes(self) -> None:
        for layout in self._layouts.values():
            atoms = [atom for dim in settled(layout) for atom in dim]
            if len(set(atoms)) < len(atoms):
                raise LayoutError("a tensor that meets itself in another order")

    def layout(self, tensor: gs.Tensor) -> Layout:
        """The layout of a tensor that a node reads or makes."""
        return settled(self._layouts[id(tensor)])

    @property
    def inputs(self) -> list[gs.Tensor]:
        """What is read from outside, and the parts that are read of it."""
        found = {id(tensor): tensor for tensor in map(self.base, self._operands)}
        return [tensor for tensor in found.values() if self.is_from_outside(tensor)]

    def base(self, tensor: gs.Tensor) -> gs.Tensor:
        """What has the value of a tensor: what it is a view of, or itself."""
        while id(tensor) in self._viewed:
            tensor = self._viewed[id(tensor)].inputs[0]
        return tensor

    def source(self, tensor: gs.Tensor) -> tuple[gs.Tensor, int, tuple[ViewStep, ...]]:
        """The tensor from outside that one is a view of, or itself; how many dimensions it has, and the steps between.

        Raises LayoutError where there are none.
        """
        steps: tuple[ViewStep, ...] = ()
        while True:
            if id(tensor) in self._parts:
                whole, part = self._parts[id(tensor)]
                steps = (*part.steps(len(self.layout(whole))), *steps)
            elif id(tensor) in self._viewed:
                whole = self._viewed[id(tensor)].inputs[0]
                steps = (*steps_between(self.layout(whole), self.layout(tensor)), *steps)
            elif id(tensor) in self._packed:
                return tensor, len(tensor.shape), (*self._packed[id(tensor)], *steps)
            else:
                return tensor, len(self.layout(tensor)), steps
            tensor = whole

    def is_packed(self, tensor: gs.Tensor) -> bool:
        """Whether the elements of a tensor are not those that it is read as."""
        return id(tensor) in self._packed

    def rows(self, tensor: gs.Tensor) -> tuple[gs.Tensor, gs.Tensor] | None:
        """The tensor whose rows one is, and that of their numbers, both from outside; None of any other tensor."""
        return self._rows.get(id(tensor))

    def _numbers(self) -> list[gs.Tensor]:
        return [numbers for _, numbers in self._rows.values()]

    def is_block(self, tensor: gs.Tensor, order: Sequence[Atom]) -> bool:
        """Whether a tensor or a part of one, from outside, is read in one piece, as it lies in memory."""
        if is_permuted(self.layout(tensor), order):
            return False
        while id(tensor) in self._parts:
            whole, part = self._parts[id(tensor)]
            outermost = next((axis for axis, dim in enumerate(self.layout(whole)) if dim), 0)
            if any(one.axis % len(self.layout(whole)) > outermost or one.step > 1 for one in part.slices):
                return False
            tensor = self.base(whole)
        return True

    def is_whole(self, tensor: gs.Tensor) -> bool:
        """Whether the value of a tensor has all of its axes: it is repeated along others where it is read."""
        return set(resolved(self._elements[id(tensor)])) == {atom for dim in self.layout(tensor) for atom in dim}

    def has_rows(self, tensor: gs.Tensor) -> bool:
        """Whether a tensor has all of the axes that are not reduced, whatever the sizes are at run time."""
        own = set(resolved(self._elements[id(tensor)]))
        return self.axes - set(self.reduced) <= own and self._is_behind_joins(tensor)

    def is_repeated(self, tensor: gs.Tensor) -> bool:
        """Whether the elements of a row of what is reduced are the same for several rows in this tensor."""
        own = set(resolved(self._elements[id(tensor)]))
        return bool(own & set(self.reduced)) and own != self.axes

    @property
    def axes(self) -> set[Atom]:
        """All axes of what is computed with."""
        return {atom for tensor in self._met for dim in settled(self._layouts[tensor]) for atom in dim}

    def check_rows(self) -> None:
        """Raises LayoutError unless what is reduced has all axes: else it would be computed several times, which it may
        be where products are, of which each result reads what all others read.
        """
        axes = self.axes
        for node, _, _ in self._reduced:
            if self.products and id(node) not in self.products:
                continue
            read = node.inputs[:2] if id(node) in self.products else node.inputs[:1]
            has_all = {atom for tensor in read for atom in resolved(self._elements[id(tensor)])} == axes
            if not has_all or not all(map(self._is_behind_joins, read)):
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
        reduced = sorted(self._reduced, key=lambda one: id(one[0]) not in self.products)
        sequences += [[atom for dim in settled(layout) for atom in dim] for _, _, layout in reduced]
        order: list[Atom] = []
        for place, sequence in enumerate(sequences):
            known = [atom for atom in sequence if atom in order]
            if place < hard and known != sorted(known, key=order.index):
                raise LayoutError("results in different orders")
            _merge(order, sequence)
        if not self.axes <= set(order):
            raise LayoutError("elements of which only the type counts")
        if len(order) > MAX_RANK:
            raise LayoutError(f"more than {MAX_RANK} axes")
        return tuple(order)

    def _lay_out(self, node: gs.Node) -> None:
        elements: Dim | None = None
        if names_rows(node):
            self._take_rows(node)
            return
        if is_part(node):
            self._take_parts(node)
            return
        if is_view(node):
            made: Sequence[Layout] = (self._view(node),)
            elements = self._elements[id(node.inputs[0])]
            self._viewed[id(node.outputs[0])] = node
            if not repeats(node) and self.is_from_outside(node.inputs[0]):
                self._outside.add(id(node.outputs[0]))
        elif reduces(node):
            made = self._reduce(node)
        elif id(node) in self.products:
            made = (self._multiply(self.products[id(node)]),)
        elif is_elementwise(node):
            made = (self._elementwise(node),)
            elements = tuple(atom for tensor in _operands(node) for atom in self._elements[id(tensor)])
        else:
            raise LayoutError(f"{node.op} is neither elementwise nor a reduction")
        before = frozenset[int]().union(*(self._joins.get(id(tensor), frozenset()) for tensor in node.inputs))
        for tensor, layout in zip(node.outputs, made, strict=False):
            self._joins[id(tensor)] = self._joins.get(id(tensor), frozenset()) | before
            if tensor.name:
                self._note(tensor, layout, elements)
        if not is_view(node):
            self._operands += [tensor for tensor in node.inputs if id(tensor) in self._layouts]
            self._met.update(id(tensor) for tensor in (*node.inputs, *node.outputs) if id(tensor) in self._layouts)

    def _note(self, tensor: gs.Tensor, layout: Layout, elements: Dim | None = None) -> None:
        if tensor.shape is not None and len(tensor.shape) != len(layout):
            raise LayoutError("a rank that is not the declared one")
        self._layouts[id(tensor)] = layout
        self._elements[id(tensor)] = tuple(atom for dim in layout for atom in dim) if elements is None else elements

    def _read(self, tensor: gs.Tensor) -> Layout:
        if id(tensor) not in self._layouts:
            self._note(tensor, layout_of(self._sizes_of(tensor)))
            self._outside.add(id(tensor))
        return self._layouts[id(tensor)]

    def _sizes_of(self, tensor: gs.Tensor) -> tuple[Size, ...]:
        sizes = self._sizes.of(tensor)
        if sizes is None:
            raise LayoutError(f"the rank of {tensor.name!r} is not known")
        return sizes

    def is_from_outside(self, tensor: gs.Tensor) -> bool:
        """Whether a tensor is not made by the nodes, or is a view of one that is not."""
        return id(tensor) in self._outside

    def _view(self, node: gs.Node) -> Layout:
        layout = settled(self._read(node.inputs[0]))
        match standard_op(node):
            case "Transpose":
                order = permutation_of(node, len(layout))
                if order is None:
                    raise LayoutError("a Transpose of another rank")
                return tuple(layout[axis] for axis in order)
            case "DepthToSpace":
                return _depth_to_space(layout, int(node.attrs["blocksize"]), str(node.attrs.get("mode", "DCR")))
            case "SpaceToDepth":
                return _space_to_depth(layout, int(node.attrs["blocksize"]))
            case "Expand":
                return expanded(layout, self._sizes_of(node.outputs[0]))
            case "Tile":
                return tiled(layout, _numbers(node.inputs[1]))
            case _:
                return reshaped(layout, self._sizes_of(node.outputs[0]))

    def _take_parts(self, node: gs.Node) -> None:
        whole = node.inputs[0]
        layout = self._read(whole)
        if not self.is_from_outside(whole) or self.rows(self.base(whole)) is not None:
            raise LayoutError("a part of what is computed")
        parts = taken_parts(node)
        if {id(part.tensor) for part in parts} != {id(tensor) for tensor in node.outputs if tensor.name}:
            raise LayoutError("a part that is not known in advance")
        for part in parts:
            sizes = list(self._sizes_of(part.tensor))
            if part.dropped is not None:
                sizes.insert(part.dropped % len(layout), 1)
            fresh = layout_of(sizes)
            taken = {one.axis % len(layout) for one in part.slices}
            dims = [fresh[axis] if axis in taken else dim for axis, dim in enumerate(layout)]
            if part.dropped is not None:
                del dims[part.dropped % len(layout)]
            self._parts[id(part.tensor)] = (whole, part)
            self._outside.add(id(part.tensor))
            self._note(part.tensor, tuple(dims))

    def _take_rows(self, node: gs.Node) -> None:
        table, numbers = node.inputs[:2]
        row, own = self._read(table)[1:], self._read(numbers)
        is_whole = id(table) not in self._parts and id(table) not in self._viewed
        are_rows = any(self.rows(self.base(tensor)) is not None for tensor in (table, numbers))
        if not is_whole or are_rows or not all(map(self.is_from_outside, (table, numbers))):
            raise LayoutError("rows of what is computed")
        (result,) = node.outputs
        self._rows[id(result)] = table, numbers
        self._outside.add(id(result))
        self._operands.append(numbers)
        self._note(result, (*own, *row))

    def _elementwise(self, node: gs.Node) -> Layout:
        vectors = vector_axes(node, self._opset)
        whole = [
            self._read(tensor)
            for index, tensor in enumerate(node.inputs)
            if index not in vectors and _is_operand(node, index)
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

    def _multiply(self, product: Product) -> Layout:
        """The result [.., N] of A [.., K], of which the elements are [.., N, K]."""
        *rows, inner = self._read(product.node.inputs[0])
        if product.quantized is not None:
            columns, own = self._lay_blocks(product.quantized)
        else:
            first, second = self._read(product.matrix)
            columns, own = (first, second) if product.transposed else (second, first)
        unify(inner, own)
        result = (*rows, columns)
        self._reduced.append((product.node, inner, (*result, inner)))
        if product.added is not None:
            added = self._read(product.added)
            if len(added) > len(result):
                raise LayoutError("a sum of more dimensions than the product")
            result, _ = broadcast([result, added])
        return settled(result)

    def _lay_blocks(self, matrix: BlockQuantized) -> tuple[Dim, Dim]:
        """The columns and the rows of a matrix of blocks, of which scales and zero points have one element."""
        whole = layout_of(matrix.sizes(1))
        for place, tensor in matrix.tensors.items():
            steps = matrix.steps(place)
            if id(tensor) not in self._layouts:
                own = whole[: len(matrix.sizes(place))]
                self._layouts[id(tensor)] = own
                self._elements[id(tensor)] = tuple(atom for dim in own for atom in dim)
                self._outside.add(id(tensor))
                self._packed[id(tensor)] = steps
                continue
            before = self._layouts[id(tensor)]  # of another product, or as it is
            if self._packed.get(id(tensor)) != steps or len(before) != len(matrix.sizes(place)):
                raise LayoutError("a matrix that is read in two ways")
            for one, other in zip(before, whole, strict=False):
                unify(one, other)
        columns, blocks, block = settled(whole)
        return columns, (*blocks, *block)

    def _members_of_groups(self, channels: Dim, groups: int) -> Dim:
        """The part of the channels that is reduced."""
        group = Atom(groups)
        found = resolved(channels)
        if len(found) == 1 and isinstance(found[0].size, int) and groups in (1, found[0].size):
            return found if groups == 1 else ()
        size = _count(channels)
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


def _operands(node: gs.Node) -> list[gs.Tensor]:
    return [tensor for index, tensor in enumerate(node.inputs) if _is_operand(node, index)]


def _is_operand(node: gs.Node, index: int) -> bool:
    return bool(node.inputs[index].name) and not ignores_input(node, index)


def _depth_to_space(x: Layout, block: int, mode: str) -> Layout:
    if len(x) != 4:
        raise LayoutError("a DepthToSpace of another rank")
    channels = _count(x[1])
    if channels % block**2:
        raise LayoutError(f"{channels} channels in blocks of {block}")
    own = channels // block**2
    if mode == "DCR":
        rows, columns, kept = divided(x[1], (block, block, own))
    else:
        kept, rows, columns = divided(x[1], (own, block, block))
    return settled((x[0], kept, (*x[2], *rows), (*x[3], *columns)))


def _space_to_depth(x: Layout, block: int) -> Layout:
    if len(x) != 4:
        raise LayoutError("a SpaceToDepth of another rank")
    sizes = [_count(dim) for dim in x[2:]]
    if any(size % block for size in sizes):
        raise LayoutError(f"an image of {sizes[0]} by {sizes[1]} in blocks of {block}")
    (high, rows), (wide, columns) = (
        divided(dim, (size // block, block)) for dim, size in zip(x[2:], sizes, strict=True)
    )
    return settled((x[0], (*rows, *columns, *x[1]), high, wide))


def _numbers(tensor: gs.Tensor) -> list[int]:
    """The numbers of a constant vector.  Raises LayoutError where it is none."""
    values = constant_value(tensor)
    if values is None or values.ndim != 1:
        raise LayoutError("numbers that are not known")
    return [int(value) for value in values]


def _count(dim: Dim) -> int:
    """The number of elements of a dimension.  Raises LayoutError where it is not known."""
    size = 1
    for atom in resolved(dim):
        if not isinstance(atom.size, int):
            raise LayoutError("a size that is not known")
        size *= atom.size
    return size


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
