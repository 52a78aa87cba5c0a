"""From a Program that reduces to CUDA C++: one source with kernels for short and for long rows.

Sizes are dynamic, so the launch chooses: kernels that keep a row in registers, of a few threads, of a warp, of a block;
one that shares a row among blocks; one that reads a row again in each pass; and two that take everything.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from onnxfuse.cuda.element import header
from onnxfuse.cuda.nest.arguments import parameter_bytes
from onnxfuse.cuda.nest.kernel import Along, NestAccess, NestKernel, NestSource
from onnxfuse.cuda.nest.layout import NestLayout, access_of, lay_out
from onnxfuse.cuda.nest.text import KernelText
from onnxfuse.cuda.prelude import nest_prelude
from onnxfuse.cuda.strided import STAND_INS, Dim
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program, ProgramError
from onnxfuse.program.figures import (
    MAX_NEST_TILE,
    MAX_NEST_VECTOR,
    MAX_PARAMETER_BYTES,
    NEST_LANES,
    SHARED_BYTES,
    WIDEST_ACCESS,
)
from onnxfuse.program.nests import Nest, leaves, nest
from onnxfuse.program.ops import OPS

_KEPT_BYTES = 64
"""That a thread keeps in registers: of 1024 threads with 64 registers each, which is all there are."""
_MOST_ITEMS = 32
"""Elements that a thread keeps, however small."""
_MOST_GROUPS = 16
"""The same in groups, whose addresses take registers too."""
_MOST_COLUMNS = 4
"""Neighbours at a time along columns, each of which has sums of its own."""
_GROUP_BYTES = 128
"""That a thread has of the other operands, where it reads 16 bytes of the one that there is most of."""
_MAX_INSTRUCTIONS = 1 << 12


@dataclass(frozen=True)
class NestCase:
    """What is known of a node when its kernels are rendered.

    ``length`` is that of its rows, ``inner`` that of the innermost of their dimensions, ``rows`` how many there are,
    where all sizes are known.  ``most`` are the bits of an element of the inputs that have more bytes than all else
    together, where there are such, of sizes that are known.  With ``tiled``, an access with large letters for what is
    the same along the outermost dimension that stays, of ``tile`` places, and of which there are most bytes, kernels
    may read that once for all.
    """

    program: Program
    access: NestAccess
    along: Along
    length: int | None
    rows: int | None
    inner: int | None = None
    most: int | None = None
    tile: int = 1
    tiled: NestAccess | None = None


@dataclass(frozen=True)
class NestTuning:
    """What may be varied: ``share`` halves what a thread keeps, so many times; ``vector`` is at most this."""

    share: int = 0
    vector: int = MAX_NEST_VECTOR


def case_of(program: Program, shapes: Sequence[Sequence[Dim] | None]) -> NestCase:
    """What is known of a Program whose inputs have these shapes, as far as they are known.

    Sizes that are not known are taken to be more than 1.  Where none are found that fit, as for inputs of unknown rank,
    the kernels are those that take every shape.
    """
    known = [tuple(shape) for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return _general_case(program)
    found = [layout for size in STAND_INS if (layout := _try_layout(program, known, size)) is not None]
    if not found:
        return _general_case(program)
    layout, *others = found
    rows = [leaf for leaf, own in zip(leaves(program), layout.operands, strict=False) if layout.letter(own) == "s"]
    try:
        row_values = nest(program, rows).row_values
    except ProgramError:  # of rows of one element
        return _general_case(program)
    is_known = all(isinstance(dim, int) for shape in known for dim in shape)
    same_length = is_known or (bool(others) and all(other.length == layout.length for other in others))
    along = _along(program, layout)
    access = access_of(program, layout, row_values, along)
    inners = {other.reduced[:1] for other in found}
    case = NestCase(
        program,
        access,
        along,
        layout.length if same_length else None,
        layout.rows if is_known else None,
        layout.reduced[0] if same_length and layout.reduced and len(inners) == 1 else None,
        _most(layout) if is_known else None,
    )
    return replace(case, tile=layout.kept[-1], tiled=_tiled(access, layout)) if _has_tiles(case, layout) else case


def _most(layout: NestLayout) -> int | None:
    """The bits of an element of the inputs that have most of all bytes, and lie along rows."""
    sizes: Counter[int] = Counter()
    for operand in layout.operands:
        if not operand.is_output and operand.reduced[:1] == (1,):
            sizes[operand.bits] += operand.count * operand.bits
    if not sizes:
        return None
    ((bits, size),) = sizes.most_common(1)
    return bits if 2 * size > sum(operand.count * operand.bits for operand in layout.operands) else None


def _has_tiles(case: NestCase, layout: NestLayout) -> bool:
    """Whether a few rows each meet most of what is read, along which all sizes are known."""
    if case.rows is None or case.along != "rows" or not layout.kept or "g" in case.access.outputs:
        return False
    if case.program.names_rows:  # of which each tile would have its own
        return False
    if not 1 < layout.kept[-1] <= MAX_NEST_TILE:
        return False
    largest = max(layout.operands, key=lambda operand: operand.count)
    written = layout.operands[-len(case.program.outputs) :]
    return largest.kept[-1] == 0 and not largest.is_output and all(operand.kept[-1] for operand in written)


def _tiled(access: NestAccess, layout: NestLayout) -> NestAccess:
    """The same letters, large where an operand is the same for all tiles."""
    letters = [
        letter if operand.kept[-1] else letter.upper()
        for letter, operand in zip(access.letters, layout.operands, strict=True)
    ]
    inputs, indices = len(access.inputs), len(access.inputs) + len(access.indices)
    return NestAccess("".join(letters[:inputs]), "".join(letters[inputs:indices]), "".join(letters[indices:]))


def _try_layout(program: Program, shapes: Sequence[Sequence[Dim]], size: int) -> NestLayout | None:
    """The layout with this size for all that are not known; None if it does not fit."""
    try:
        return lay_out(program, [[dim if isinstance(dim, int) else size for dim in shape] for shape in shapes])
    except ProgramError:
        return None


def _general_case(program: Program) -> NestCase:
    return NestCase(program, _general_access(program), "rows", None, None)


def _general_access(program: Program) -> NestAccess:
    """The letters of kernels that take every shape."""
    inputs = len(program.inputs)
    rows = nest(program).row_values
    outputs = "".join("s" if output in rows else "g" for output in program.outputs)
    return NestAccess("g" * inputs, "g" * (len(leaves(program)) - inputs), outputs)


def _along(program: Program, layout: NestLayout) -> Along:
    """Along rows, unless the largest operand has its neighbours along columns, of which none is named."""
    if not layout.kept or program.names_rows:
        return "rows"
    largest = max(layout.operands, key=lambda operand: operand.count)
    in_columns = largest.kept[0] == 1 and (not layout.reduced or largest.reduced[0] != 1)
    return "columns" if in_columns else "rows"


def render_nest(case: NestCase, tuning: NestTuning | None = None) -> NestSource:
    """The source of a Program for nodes as ``case`` describes.

    Raises ProgramError if the operands are too many for a kernel's parameters.
    """
    tuning = tuning or NestTuning()
    program = case.program
    key = "\n".join((nest_prelude(), str(program), repr(replace(case, program=program)), repr(tuning)))
    name = f"reduced_{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    kernels = tuple(_Choice(case, tuning, name).kernels())
    tables = sum(spec.row is not None for spec in program.inputs)
    if (size := max(parameter_bytes(kernel, tables) for kernel in kernels)) > MAX_PARAMETER_BYTES:
        operands = len(program.inputs) + len(program.outputs)
        what = f"{operands} operands take {size} bytes of kernel parameters"
        raise ProgramError(f"{what}; the limit is {MAX_PARAMETER_BYTES}")
    return source_with(program, kernels)


def source_with(program: Program, kernels: tuple[NestKernel, ...]) -> NestSource:
    """The source that has these kernels."""
    parts = [text for kernel in kernels for text in KernelText(program, kernel, nest_of(program, kernel)).functions()]
    body = "\n".join((header(program), "namespace onnxfuse {\n", *parts, "}  // namespace onnxfuse\n"))
    return NestSource(nest_prelude(), body, kernels)


def nest_of(program: Program, kernel: NestKernel) -> Nest:
    """The passes of a kernel."""
    letters = (kernel.access.inputs + kernel.access.indices).lower()
    rows = [leaf for leaf, letter in zip(leaves(program), letters, strict=True) if letter == "s"]
    return nest(program, rows, keeps=kernel.items > 0)


class _Choice:
    """The kernels of a source, in the order in which they are tried."""

    def __init__(self, case: NestCase, tuning: NestTuning, name: str) -> None:
        self.case, self.name = case, name
        program = case.program
        letters = case.access.inputs + case.access.indices
        rows = [leaf for leaf, letter in zip(leaves(program), letters, strict=True) if letter == "s"]
        self.nest = nest(program, rows)
        self.passes = len(self.nest.passes)
        self.vector = min(self._vector(), tuning.vector)
        bytes_kept = max(self.nest.kept_bytes * case.tile, 1)
        self.most = max(1, min(_MOST_ITEMS, _KEPT_BYTES // bytes_kept, self._instructions()) >> tuning.share)
        self.vector = min(self.vector, _power_below(self.most))

    def kernels(self) -> Iterator[NestKernel]:
        found: dict[NestKernel, None] = {}
        for kernel in (*self._tiled(), *self._keeping(), *self._sharing(), *self._looping(), *self._general()):
            found[kernel] = None
        for number, kernel in enumerate(found):
            yield replace(kernel, name=f"{self.name}_{number}")

    def _tiled(self) -> Iterator[NestKernel]:
        """Kernels of which each thread has a row of every tile."""
        if self.case.tiled is None:
            return
        for kernel in (*self._keeping(), *self._looping()):
            if kernel.along == "rows":
                yield replace(kernel, tile=self.case.tile, access=self.case.tiled)

    def _vector(self) -> int:
        """Neighbours at a time, so that the operands of the most traffic are accessed 16 bytes at once."""
        program, access = self.case.program, self.case.access
        if "g" in access.outputs:
            return 1
        sizes = [
            DTYPES[spec.dtype].itemsize
            for spec, letter in zip(program.inputs, access.inputs, strict=True)
            if letter != "s"
        ]
        sizes += [
            DTYPES[program.dtype(output)].itemsize
            for output, letter in zip(program.outputs, access.outputs, strict=True)
            if letter != "s"
        ]
        if not sizes:
            return 1
        widest = max(set(sizes), key=lambda size: (sizes.count(size) * size, size))
        vector = max(1, min(16 // widest, 32 // max(sizes)))
        if self.case.along == "rows" and self.case.most is not None:
            others = _GROUP_BYTES // (self.case.tile * max(sizes))
            vector = max(vector, _power_below(min(8 * WIDEST_ACCESS // self.case.most, MAX_NEST_VECTOR, others)))
        if self.case.along == "rows" and self.case.length is not None:
            while (self.case.inner or self.case.length) % vector:
                vector //= 2
        if self.case.along == "columns":
            vector = min(vector, _MOST_COLUMNS)
            while vector > 1 and self._shared_bytes(vector, 8) > SHARED_BYTES:
                vector //= 2
        return vector

    def _instructions(self) -> int:
        """Elements of which all instructions are no more than a kernel may have."""
        program = self.case.program
        each = sum(OPS[one.op].cost.cuda[one.dtype.endswith("64")] for one in program.instructions)
        return max(1, _MAX_INSTRUCTIONS // max(1, each))

    def _shared_bytes(self, vector: int, threads: int) -> int:
        """Shared memory of a block of a kernel along columns."""
        sizes = (DTYPES[DTYPES[one.dtype].compute].itemsize for one in self.case.program.reductions)
        return sum(sizes) * NEST_LANES * vector * threads

    def _keeping(self) -> Iterator[NestKernel]:
        """Kernels that keep rows in registers, for short rows first.

        For rows of a length that is known there is the one that is meant for it: tensors that are not aligned, which
        are rare, are for a kernel that loops.
        """
        length = self.case.length
        vectors = sorted({self.vector, 1}, reverse=True)
        if self.case.along == "columns":
            if not self.nest.kept and not self._reads_again():
                return  # no pass needs what another one has read
            for threads, items in self._column_sizes(length):
                for vector in vectors:
                    own = items if vector == self.vector else min(items * self.vector, _MOST_GROUPS)
                    if self._shared_bytes(vector, threads) <= SHARED_BYTES:
                        yield self._kernel("columns", threads, own, vector, NEST_LANES * threads)
            return
        for threads, elements in self._row_sizes(length):
            for vector in vectors if threads > 8 and length is None else vectors[:1]:
                block = max(_BLOCK, threads) if threads <= 32 else threads
                items = min(-(-elements // vector), _MOST_GROUPS)
                yield self._kernel("rows", threads, items, vector, block)

    def _reads_again(self) -> bool:
        reads = [value for one in self.nest.passes for value in one.reads]
        return len(reads) > len(set(reads))

    def _row_sizes(self, length: int | None) -> Iterator[tuple[int, int]]:
        """Threads of a row, and elements of a thread."""
        if length is None:
            yield 8, self.vector
            yield 32, self.vector
            yield 32, self.most
            yield 256, self.most
            yield 1024, self.most
            return
        groups = -(-length // self.vector)
        each = max(1, min(self.most // self.vector, _MOST_GROUPS))
        threads = 8 if groups <= 8 else next((size for size in _THREADS if size * each >= groups), 0)
        if threads:
            yield threads, -(-groups // threads) * self.vector

    def _column_sizes(self, length: int | None) -> Iterator[tuple[int, int]]:
        each = max(1, self.most // self.vector)
        if length is None:
            yield 8, each
            yield 32, each
            return
        threads = next((size for size in (4, 8, 16, 32) if size * each >= length), 0)
        if threads:
            yield threads, -(-length // threads)

    def _sharing(self) -> Iterator[NestKernel]:
        """Rows so long that several blocks take each, where there are few."""
        case = self.case
        least = max(self._most_kept(), _LEAST_SHARED)
        if (case.length is not None and case.length <= least) or (case.rows or 0) > _MANY_ROWS:
            return
        threads = 8 if case.along == "columns" else 256
        block = threads * (NEST_LANES if case.along == "columns" else 1)
        for vector in sorted({self.vector if self.vector > _WORD else 1, 1}, reverse=True):
            yield self._kernel(case.along, threads, 0, vector, block, steps=self.passes)

    def _most_kept(self) -> int:
        """The longest row that is kept."""
        return max((kernel.capacity for kernel in self._keeping()), default=0)

    def _looping(self) -> Iterator[NestKernel]:
        """Rows that fit nowhere are read again in each pass, at worst from memory: Softmax in three reads.

        An online maximum and sum would take two, but with another exponential for each element.  What is read again
        has been read by the same multiprocessor just before; the level 2 cache has it where the rows that are in
        work fit there, which are 50 MB on an H100 and a row for each of 132 multiprocessors: 90,000 floats each.
        """
        vectors = sorted({self.vector, 1}, reverse=True)
        keeps_all = self.case.length is not None and self.case.length <= self._most_kept()
        for vector in vectors[-1:] if keeps_all else vectors:
            if self.case.along == "columns":
                threads = 8 if vector > 1 else 16
                while threads > 1 and self._shared_bytes(vector, threads) > SHARED_BYTES:
                    threads //= 2
                yield self._kernel("columns", threads, 0, vector, NEST_LANES * threads)
            else:
                short = keeps_all and (self.case.length or 0) <= _SHORT
                threads, block = (32, _BLOCK) if short else (512, 512)
                yield self._kernel("rows", threads, 0, vector, block)

    def _general(self) -> Iterator[NestKernel]:
        """For what nobody expected."""
        access = _general_access(self.case.program)
        for index in (32, 64) if self.case.access == access else (64,):
            yield replace(self._kernel("rows", 32, 0, 1, _BLOCK), index=index, access=access)

    def _kernel(self, along: Along, threads: int, items: int, vector: int, block: int, steps: int = 0) -> NestKernel:
        return NestKernel(self.name, along, threads, items, vector, block, 32, steps, self.case.access)


_BLOCK = 128
_THREADS = (32, 64, 128, 256, 512, 1024)
_LEAST_SHARED = 8192
"""The shortest rows that blocks share."""
_WORD = 4
"""Elements at a time of 32 bits, which fill the memory's sectors one by one too; smaller ones do not."""
_SHORT = 1024
"""Rows that a warp may loop over."""
_MANY_ROWS = 512
"""So many rows fill every GPU."""


def _power_below(number: int) -> int:
    """The largest power of two that is not more."""
    return 1 << (number.bit_length() - 1)
