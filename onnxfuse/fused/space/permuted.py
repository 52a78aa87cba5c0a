"""Whether reading a tensor in another order than it lies in memory is worth it."""

import math
from collections.abc import Sequence

from onnxfuse.fused.likely_shapes import LIKELY_SIZE
from onnxfuse.fused.space.layouts import Atom, Dim, Layout
from onnxfuse.program.figures import LEAST_TRANSPOSED, LONGEST_TRANSPOSED_ROW

LONG = "ONNX Runtime transposes rows of so many elements faster"
FEW = "ONNX Runtime transposes rows of so few elements faster"


def is_permuted(layout: Layout, order: Sequence[Atom]) -> bool:
    """Whether elements of a tensor of this layout do not follow one another as in memory in this order."""
    return len(_runs(layout, order)[0]) > 1


def is_turned(layout: Layout, order: Sequence[Atom]) -> bool:
    """Whether elements of a tensor of this layout that lie side by side do not follow one another in this order."""
    runs, by_place = _runs(layout, order)
    return bool(runs) and by_place[-1] != runs[-1]


def why_not_permuted(layout: Layout, order: Sequence[Atom]) -> str | None:
    """Why a tensor of this layout is better transposed by ONNX Runtime on the CPU than read in this order; None if it
    is not.

    Where elements that lie side by side stay so, the order of the others does not matter.
    """
    if not is_turned(layout, order):
        return None
    runs, by_place = _runs(layout, order)
    if _size(by_place[-1]) > LONGEST_TRANSPOSED_ROW:
        return LONG
    # More than two dimensions that change places are slow in ONNX Runtime.
    moved = [run for run, other in zip(runs, by_place, strict=True) if run != other]
    if len(moved) == 2 and min(map(_size, moved)) < LEAST_TRANSPOSED:
        return FEW
    return None


def _runs(layout: Layout, order: Sequence[Atom]) -> tuple[list[Dim], list[Dim]]:
    """The atoms of a tensor as in memory and as in ``order``, in one run those that follow one another in both."""
    atoms = [atom for dim in layout for atom in dim]
    own = [atom for atom in order if atom in atoms]
    runs: list[list[Atom]] = []
    for atom in atoms:
        place = own.index(atom)
        if runs and place > 0 and own[place - 1] is runs[-1][-1]:
            runs[-1].append(atom)
        else:
            runs.append([atom])
    found = list(map(tuple, runs))
    return found, sorted(found, key=lambda run: own.index(run[0]))


def _size(run: Dim) -> int:
    return math.prod(atom.size if isinstance(atom.size, int) else LIKELY_SIZE for atom in run)
