"""How the dimensions of a region's tensors belong together.

Every dimension of a tensor is a product of **atoms**: axes of the region's space that no tensor of it divides further.
A Reshape only groups atoms anew, a reduction leaves atoms out, and elementwise nodes make one of the dimensions that
meet each other.  Sizes may be symbols: two dimensions are one where their sizes are the same number or symbol, never
because they might be.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxfuse.fused.sizes import Size


class LayoutError(Exception):
    """Dimensions that are not known to belong together."""


class Atom:
    """An axis of the space, until it is found to be another one, or to be made of several."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self._is: tuple[Atom, ...] | None = None

    def resolved(self) -> tuple[Atom, ...]:
        """What it is made of by now."""
        if self._is is None:
            return (self,)
        self._is = resolved(self._is)
        return self._is

    def become(self, atoms: Sequence[Atom]) -> None:
        """Stand for other atoms from now on."""
        self._is = tuple(atoms)


Dim = tuple[Atom, ...]
"""The atoms of a dimension, the slowest first; none for one of a single element."""
Layout = tuple[Dim, ...]
"""The dimensions of a tensor."""


def resolved(dim: Sequence[Atom]) -> Dim:
    """The atoms of a dimension as they are by now."""
    return tuple(part for atom in dim for part in atom.resolved())


def layout_of(sizes: Sequence[Size]) -> Layout:
    """A tensor of which nothing is known but its sizes."""
    return tuple(() if size == 1 else (Atom(size),) for size in sizes)


def settled(layout: Layout) -> Layout:
    """A layout with its atoms as they are by now."""
    return tuple(map(resolved, layout))


def unify(first: Dim, second: Dim) -> None:
    """Make two dimensions one.  Raises LayoutError where their sizes are not known to be the same."""
    left, right = list(resolved(first)), list(resolved(second))
    while left and right:
        a, b = left.pop(0), right.pop(0)
        if a is b:
            continue
        if a.size == b.size:
            b.become((a,))
        elif isinstance(a.size, int) and isinstance(b.size, int) and a.size > b.size:
            left.insert(0, _split(a, b))
        elif isinstance(a.size, int) and isinstance(b.size, int):
            right.insert(0, _split(b, a))
        else:
            raise LayoutError(f"sizes {a.size} and {b.size}")
    if left or right:
        raise LayoutError("sizes that are different products")


def _split(whole: Atom, first: Atom) -> Atom:
    """Make ``first`` the slower part of an atom; returns the rest."""
    assert isinstance(whole.size, int) and isinstance(first.size, int)
    if first.size == 0 or whole.size % first.size:
        raise LayoutError(f"sizes {whole.size} and {first.size}")
    rest = Atom(whole.size // first.size)
    whole.become((first, rest))
    return rest


def divided(dim: Dim, sizes: Sequence[int]) -> list[Dim]:
    """A dimension as several of these sizes, the slowest first.  Raises LayoutError where they do not make it."""
    parts: list[Dim] = [() if size == 1 else (Atom(size),) for size in sizes]
    unify(tuple(atom for part in parts for atom in part), dim)
    return [resolved(part) for part in parts]


def expanded(layout: Layout, sizes: Sequence[Size]) -> Layout:
    """A tensor repeated along dimensions of one element until it has these sizes.  Raises LayoutError."""
    dims: list[Dim] = []
    for place, size in zip(range(-len(sizes), 0), sizes, strict=True):
        dim = resolved(layout[place]) if -place <= len(layout) else ()
        if dim:
            unify(dim, layout_of((size,))[0])
        elif not isinstance(size, int):  # of an operand that it meets a single element may be what it is repeated for
            raise LayoutError("a tensor repeated for a size that is not known")
        else:
            (dim,) = layout_of((size,))
        dims.append(dim)
    return settled(tuple(dims))


def tiled(layout: Layout, counts: Sequence[int]) -> Layout:
    """A tensor as often along each dimension.  Raises LayoutError for numbers that are not those of its dimensions."""
    if len(counts) != len(layout) or min(counts, default=1) < 1:
        raise LayoutError("a tensor repeated otherwise than along its dimensions")
    pairs = zip(counts, settled(layout), strict=True)
    return tuple(dim if count == 1 else (Atom(count), *dim) for count, dim in pairs)


def broadcast(layouts: Sequence[Layout], sizes: Sequence[Size] | None = None) -> tuple[Layout, bool]:
    """The result of an elementwise node with these operands, and whether operands may be broadcast to it at run time.

    With the ``sizes`` of the result, dimensions of different symbols become one of that size: either may be 1.  Raises
    LayoutError.
    """
    joins = False
    rank = max(map(len, layouts), default=0)
    dims: list[Dim] = []
    for place in range(-rank, 0):
        met = [dim for layout in layouts if -place <= len(layout) and (dim := resolved(layout[place]))]
        for other in met[1:]:
            # One of a known size may be split further, which an operand of a single element could not be.
            if sizes is not None and not isinstance(sizes[place], int) and _may_differ(met[0], other):
                joins = True
                _join(met[0], other, Atom(sizes[place]))
            else:
                unify(met[0], other)
        dims.append(resolved(met[0]) if met else ())
    return settled(tuple(dims)), joins


def _may_differ(first: Dim, second: Dim) -> bool:
    """Whether two dimensions are of one symbol each, and of different ones."""
    left, right = resolved(first), resolved(second)
    if len(left) != 1 or len(right) != 1 or left[0] is right[0]:
        return False
    sizes = left[0].size, right[0].size
    return sizes[0] != sizes[1] and not any(isinstance(size, int) for size in sizes)


def _join(first: Dim, second: Dim, atom: Atom) -> None:
    for dim in (first, second):
        (own,) = resolved(dim)
        own.become((atom,))


def reshaped(layout: Layout, sizes: Sequence[Size]) -> Layout:
    """The same elements in dimensions of these sizes, of which one need not be known.  Raises LayoutError."""
    atoms = [atom for dim in layout for atom in resolved(dim)]
    if 0 in sizes or any(atom.size == 0 for atom in atoms):
        raise LayoutError("a view of a tensor without elements")
    dims: list[Dim] = [()] * len(sizes)
    first = 0
    while first < len(sizes) and (dim := _taken(atoms, sizes[first], first_ones=True)) is not None:
        dims[first] = dim
        first += 1
    last = len(sizes)
    while last > first + 1 and (dim := _taken(atoms, sizes[last - 1], first_ones=False)) is not None:
        dims[last - 1] = dim
        last -= 1
    if last - first > 1:
        raise LayoutError("sizes that are not known")
    if last - first == 1:
        dims[first] = tuple(atoms)
        atoms = []
    if atoms:
        raise LayoutError("sizes that are not known")
    return settled(tuple(dims))


def _taken(atoms: list[Atom], size: Size, first_ones: bool) -> Dim | None:
    """Take a dimension of ``size`` from one end of ``atoms``; None, and nothing is taken, where none is known to be."""
    if size == 1:
        return ()
    taken: list[Atom] = []
    rest = list(atoms)
    needed = size
    while rest:
        atom = rest.pop(0 if first_ones else -1)
        if atom.size == needed:
            taken.append(atom)
            atoms[:] = rest
            return tuple(taken if first_ones else reversed(taken))
        if not isinstance(needed, int) or not isinstance(atom.size, int):
            return None
        if needed % atom.size == 0:
            taken.append(atom)
            needed //= atom.size
        elif atom.size % needed == 0:
            part, other = Atom(needed), Atom(atom.size // needed)
            atom.become((part, other) if first_ones else (other, part))
            taken.append(part)
            rest.insert(0 if first_ones else len(rest), other)
            atoms[:] = rest
            return tuple(taken if first_ones else reversed(taken))
        else:
            return None
    return None
