"""The steps of views between tensors and the space of a region."""

from collections.abc import Sequence

from onnxfuse.fused.space.layouts import Atom, Layout, LayoutError
from onnxfuse.program.view_steps import ViewStep


def steps_into(layout: Layout, space: Sequence[Atom]) -> tuple[ViewStep, ...]:
    """The steps from a tensor of this layout to one that broadcasts in the space.  Raises LayoutError."""
    steps: list[ViewStep] = []
    behind = 0
    for dim in reversed(layout):
        for first in range(len(dim) - 1):
            steps.append(_split(-behind - 1, dim[first], dim[first + 1 :]))
        behind += max(len(dim), 1)
    places = [atom for dim in layout for atom in (dim or (None,))]
    return (*steps, *_arranged(places, space))


def steps_between(before: Layout, after: Layout) -> tuple[ViewStep, ...]:
    """The steps from a tensor to another of the same atoms.  Raises LayoutError."""
    if before == after:
        return ()
    whole = {dim for dim in before if dim in after}
    steps: list[ViewStep] = []
    units: list[tuple[Atom, ...]] = []
    behind = 0
    for dim in reversed(before):
        parts = [dim] if dim in whole or len(dim) < 2 else [(atom,) for atom in dim]
        steps += [_split(-behind - 1, dim[first], dim[first + 1 :]) for first in range(len(parts) - 1)]
        units[:0] = parts
        behind += len(parts)
    for place in range(len(units))[::-1]:
        if not units[place]:
            steps.append(ViewStep("squeeze", (place - len(units),)))
            del units[place]
    wanted = [unit for dim in after for unit in ([dim] if dim in whole else [(atom,) for atom in dim]) if unit]
    if set(wanted) != set(units) or len(wanted) != len(units):
        raise LayoutError("a view of other elements")
    if wanted != units:
        steps.append(ViewStep("permute", tuple(map(units.index, wanted))))
    return (*steps, *_merged([len(dim) if dim and dim not in whole else len(dim[:1]) for dim in after]))


def _merged(parts: Sequence[int]) -> list[ViewStep]:
    """The steps that make dimensions of so many each, of one element for none."""
    steps: list[ViewStep] = []
    count = sum(parts)
    for number in parts:
        for _ in range(number - 1):
            steps.append(ViewStep("merge", (-count,)))
            count -= 1
        count -= number > 0
    return steps + [ViewStep("unsqueeze", (axis - len(parts),)) for axis in range(len(parts))[::-1] if not parts[axis]]


def _split(axis: int, first: Atom, rest: Sequence[Atom]) -> ViewStep:
    if isinstance(first.size, int):
        return ViewStep("split", (axis, first.size, -1))
    inner = 1
    for atom in rest:
        if not isinstance(atom.size, int):
            raise LayoutError("a dimension of two sizes that are not known")
        inner *= atom.size
    return ViewStep("split", (axis, -1, inner))


def _arranged(places: Sequence[Atom | None], space: Sequence[Atom]) -> tuple[ViewStep, ...]:
    """The steps that put dimensions, None for those of one element, where the space has them."""
    pairs = zip(reversed(places), reversed(space), strict=False)
    if len(places) <= len(space) and all(atom is None or atom is own for atom, own in pairs):
        return ()
    steps, atoms = _squeezed(places)
    order = sorted(range(len(atoms)), key=lambda place: space.index(atoms[place]))
    if order != list(range(len(atoms))):
        steps.append(ViewStep("permute", tuple(order)))
    first = min((space.index(atom) for atom in atoms), default=len(space))
    for place in range(first + 1, len(space))[::-1]:
        if space[place] not in atoms:
            steps.append(ViewStep("unsqueeze", (place - len(space),)))
    return tuple(steps)


def steps_out_of(space: Sequence[Atom], rank: int, layout: Layout) -> tuple[ViewStep, ...]:
    """The steps to a tensor of this layout from a value that has the last ``rank`` dimensions of the space, and one
    element along those that the layout has not.  Raises LayoutError.
    """
    own = [atom for dim in layout for atom in dim]
    places = [atom if atom in own else None for atom in space[len(space) - rank :]]
    if all(len(dim) < 2 for dim in layout) and places == [dim[0] if dim else None for dim in layout]:
        return ()
    steps, atoms = _squeezed(places)
    if atoms != own:
        raise LayoutError("a result in another order")
    return (*steps, *_merged(list(map(len, layout))))


def _squeezed(places: Sequence[Atom | None]) -> tuple[list[ViewStep], list[Atom]]:
    """The steps that leave out the dimensions of one element, and those that are left."""
    steps: list[ViewStep] = []
    rank = len(places)
    for place in range(len(places))[::-1]:
        if places[place] is None:
            steps.append(ViewStep("squeeze", (place - rank,)))
            rank -= 1
    return steps, [atom for atom in places if atom is not None]
