"""The arguments of launches, as the native library makes them: for the tests and the emulation."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnxfuse.cuda.arguments import pack_divider, split_row
from onnxfuse.cuda.nest.kernel import NestKernel
from onnxfuse.cuda.nest.layout import NestLayout, NestOperand
from onnxfuse.program import Program
from onnxfuse.program.figures import LEAST_NEST_GROUPS, MAX_BLOCKS, MAX_NEST_SPLITS, MAX_RANK, NEST_PART_BYTES, WAVES


@dataclass(frozen=True)
class Grid:
    """``tiles`` blocks for all rows, ``splits`` times that where blocks share them; each then takes ``chunk`` elements
    of a row."""

    tiles: int
    splits: int
    chunk: int

    @property
    def blocks(self) -> int:
        """Blocks to launch."""
        return min(self.tiles * self.splits, MAX_BLOCKS)


def grid_of(kernel: NestKernel, layout: NestLayout, multiprocessors: int) -> Grid:
    """How the rows are shared out; of a kernel in steps ``splits`` is 1 where that is not worth it."""
    tiles = -(-(layout.rows // kernel.tile) // kernel.rows_of_block)
    if not kernel.steps:
        return Grid(tiles, 1, layout.length)
    group = kernel.threads * (kernel.vector if kernel.along == "rows" else 1)
    wanted = min(WAVES * multiprocessors // tiles, layout.length // (LEAST_NEST_GROUPS * group), MAX_NEST_SPLITS)
    return Grid(tiles, *split_row(layout.length, group, wanted))


def workspace_bytes(program: Program, layout: NestLayout, grid: Grid) -> int:
    """Bytes of the partial results of all reductions."""
    return NEST_PART_BYTES * len(program.reductions) * grid.splits * layout.rows if grid.splits > 1 else 0


def pack(
    kernel: NestKernel, layout: NestLayout, grid: Grid, addresses: Sequence[int], workspace: int = 0
) -> list[bytes]:
    """The kernel's parameters in order, each as its bytes; ``addresses`` are those of inputs, then outputs."""
    index = "I" if kernel.index == 32 else "Q"
    arguments = [struct.pack("<Q", address) for address in (*addresses, workspace)]
    arguments += [struct.pack(f"<{index}", number) for number in (layout.rows, layout.length, grid.splits, grid.chunk)]
    dims = (*layout.reduced, *layout.kept)
    sizes = [*dims, *[1] * (MAX_RANK - len(dims))]
    ranks = struct.pack("<II", len(layout.reduced), len(dims))
    arguments.append(ranks + b"".join(pack_divider(size, kernel.index) for size in sizes))
    arguments += [struct.pack(f"<{1 + MAX_RANK}{index}", *_steps(operand)) for operand in layout.operands]
    tables = [(operand.table, operand.table_step) for operand in layout.operands if operand.table is not None]
    return arguments + [struct.pack(f"<2{index}", *table) for table in tables]


def _steps(operand: NestOperand) -> Iterator[int]:
    steps = (*operand.reduced, *operand.kept)
    yield operand.offset
    yield from steps
    yield from [0] * (MAX_RANK - len(steps))


def parameter_bytes(kernel: NestKernel, tables: int = 0) -> int:
    """The size of the kernel's parameters, where it is named rows of so many inputs."""
    width = kernel.index // 8
    access = kernel.access
    pointers = 8 * (len(access.inputs) + len(access.outputs) + 1)
    space = 8 + MAX_RANK * (12 if kernel.index == 32 else 8)
    return pointers + 4 * width + space + (len(access.letters) * (1 + MAX_RANK) + 2 * tables) * width
