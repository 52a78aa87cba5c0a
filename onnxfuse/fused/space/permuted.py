"""Whether reading a tensor in another order than it lies in memory is worth it."""

import math
from collections.abc import Sequence

from onnxfuse.fused.likely_shapes import LIKELY_SIZE
from onnxfuse.fused.space.layouts import Atom, Dim, Layout
from onnxfuse.program.figures import LONGEST_TRANSPOSED_ROW, SHORTEST_TRANSPOSED_ROW

LONG = "ONNX Runtime transposes rows of so many elements faster"
FEW = "ONNX Runtime transposes rows of so few elements faster"


def why_not_permuted(layout: Layout, order: Sequence[Atom]) -> str | None:
    """Why a tensor of this layout is better transposed by ONNX Runtime than read in this order; None if it is not.

    Where elements that lie side by side stay so, the order of the others does not matter.
    """
    runs = _runs([atom for dim in layout for atom in dim], order)
    by_place = sorted(runs, key=lambda run: order.index(run[0]))
    if len(runs) < 2 or by_place[-1] == runs[-1]:
        return None
    if _size(by_place[-1]) > LONGEST_TRANSPOSED_ROW:
        return LONG
    # More than two dimensions that change places are slow in ONNX Runtime.
    moved = [run for run, other in zip(runs, by_place, strict=True) if run != other]
    if len(moved) == 2 and min(map(_size, moved)) < SHORTEST_TRANSPOSED_ROW:
        return FEW
    return None


def _runs(atoms: Sequence[Atom], order: Sequence[Atom]) -> list[Dim]:
    """The atoms of a tensor, in the order of memory; in one run those that follow one another in the order too."""
    own = [atom for atom in order if atom in atoms]
    runs: list[list[Atom]] = []
    for atom in atoms:
        place = own.index(atom)
        if runs and place > 0 and own[place - 1] is runs[-1][-1]:
            runs[-1].append(atom)
        else:
            runs.append([atom])
    return list(map(tuple, runs))


def _size(run: Dim) -> int:
    return math.prod(atom.size if isinstance(atom.size, int) else LIKELY_SIZE for atom in run)
