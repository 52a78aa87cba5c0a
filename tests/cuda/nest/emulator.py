"""Runs kernels of Programs that reduce in the emulation, and compares with the reference."""

from collections.abc import Sequence

import numpy as np

from onnxfuse.cuda.nest.arguments import Grid, grid_of, pack, workspace_bytes
from onnxfuse.cuda.nest.kernel import NestKernel, NestSource
from onnxfuse.cuda.nest.layout import NestLayout, accepts, lay_out
from onnxfuse.program import Program, reference
from onnxfuse.program.figures import NEST_PART_BYTES
from tests.cuda.emulation.emulator import Emulation, aligned, operand_names

MULTIPROCESSORS = 8
"""Of the device that is emulated."""


def run_kernel(
    emulation: Emulation,
    kernel: NestKernel,
    program: Program,
    layout: NestLayout,
    inputs: Sequence[np.ndarray],
    shifts: Sequence[int] = (),
    multiprocessors: int = MULTIPROCESSORS,
) -> list[np.ndarray]:
    """The outputs.  ``shifts`` moves each operand by so many elements from an address that is aligned to 16 bytes."""
    types = [spec.dtype for spec in program.inputs] + [program.dtype(output) for output in program.outputs]
    counts = [array.size for array in inputs] + [int(np.prod(shape)) for shape in layout.output_shapes]
    shifts = shifts or [0] * len(types)
    memories = [aligned(*one) for one in zip(types, counts, shifts, strict=True)]
    for memory, array in zip(memories, inputs, strict=False):
        memory[...] = array.reshape(-1)
    addresses = [memory.ctypes.data for memory in memories]
    grid = grid_of(kernel, layout, multiprocessors)
    assert not kernel.steps or grid.splits > 1
    workspace = np.full(workspace_bytes(program, layout, grid) + 16, 0xA5, np.uint8)
    place = workspace.ctypes.data + -workspace.ctypes.data % 16
    operands = list(zip(operand_names(program), addresses, [memory.nbytes for memory in memories], strict=True))
    arguments = pack(kernel, layout, grid, addresses, place)
    for step, function in enumerate(kernel.functions):
        own = [*operands, *_parts(program, layout, grid, place)]
        emulation.launch(function, arguments, grid.blocks, kernel.block, own, in_part=kernel.steps > 0)
        assert step < max(1, kernel.steps)
    return [memory.reshape(shape) for memory, shape in zip(memories[len(inputs) :], layout.output_shapes, strict=True)]


def _parts(program: Program, layout: NestLayout, grid: Grid, place: int) -> list[tuple[str, int, int]]:
    """The workspace, a part for each reduction, to read and to write."""
    if grid.splits == 1:
        return []
    size = NEST_PART_BYTES * grid.splits * layout.rows
    return [
        (f"{prefix}workspace{number}", place + number * size, size)
        for number in range(len(program.reductions))
        for prefix in ("", "out_")
    ]


def accepting(
    source: NestSource, layout: NestLayout, addresses: Sequence[int], multiprocessors: int = MULTIPROCESSORS
) -> list[NestKernel]:
    """Every kernel of the source that may run on these operands."""
    return [
        kernel
        for kernel in source.kernels
        if accepts(kernel, layout, addresses)
        and not (kernel.steps and grid_of(kernel, layout, multiprocessors).splits == 1)
    ]


def check_nest(
    emulation: Emulation,
    source: NestSource,
    program: Program,
    inputs: Sequence[np.ndarray],
    rtol: float,
    atol: float,
    shifts: Sequence[int] = (),
    every: int = 1,
    start: int = 0,
) -> list[NestKernel]:
    """Run the first kernel that accepts the inputs, which a launch takes, and of the others each ``every``-th from a
    place on that ``start`` gives, and compare; returns those."""
    layout = lay_out(program, [array.shape for array in inputs])
    if layout.rows == 0:
        return []
    sizes = [array.dtype.itemsize for array in inputs]
    sizes += [operand.bits // 8 for operand in layout.operands[len(layout.operands) - len(program.outputs) :]]
    addresses = [shift * size for shift, size in zip(shifts or [0] * len(sizes), sizes, strict=True)]
    expected = reference.run(program, inputs)
    kernels = accepting(source, layout, addresses)
    kernels = kernels[:1] + kernels[1:][start % every :: every]
    for kernel in kernels:
        results = run_kernel(emulation, kernel, program, layout, inputs, shifts)
        for place, (result, wanted) in enumerate(zip(results, expected, strict=True)):
            assert result.shape == wanted.shape
            if wanted.dtype.kind in "iub":
                np.testing.assert_array_equal(result, wanted, f"output {place} of {kernel}")
                continue
            np.testing.assert_allclose(
                result.astype(np.float64),
                wanted.astype(np.float64),
                rtol,
                atol,
                err_msg=f"output {place} of {kernel}",
            )
    return kernels
