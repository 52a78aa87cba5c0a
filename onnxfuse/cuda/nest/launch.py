"""Launching the kernels of a Program that reduces through PyCUDA, as the native library does in ONNX Runtime."""

from collections.abc import Sequence
from typing import Any

from onnxfuse.cuda.nest.arguments import Grid, grid_of, pack, workspace_bytes
from onnxfuse.cuda.nest.kernel import NestKernel, NestSource
from onnxfuse.cuda.nest.layout import NestLayout, accepts, lay_out
from onnxfuse.cuda.pycuda_tools import Gpu
from onnxfuse.program import Program


def choose(
    kernels: Sequence[NestKernel], layout: NestLayout, addresses: Sequence[int], multiprocessors: int
) -> tuple[NestKernel, Grid]:
    """The first kernel that accepts, with its grid; one in steps only where blocks have to share rows."""
    for kernel in kernels:
        if accepts(kernel, layout, addresses):
            grid = grid_of(kernel, layout, multiprocessors)
            if grid.splits > 1 or not kernel.steps:
                return kernel, grid
    raise ValueError("no kernel accepts the operands, although the last one takes all")


class LoadedNest:
    """The machine code of a source on a GPU."""

    def __init__(self, gpu: Gpu, program: Program, source: NestSource, cubin: bytes) -> None:
        self._gpu = gpu
        self._program = program
        self._kernels = source.kernels
        self._module: Any = gpu.driver.module_from_buffer(cubin)

    def prepare(self, shapes: Sequence[Sequence[int]], addresses: Sequence[int]) -> "NestLaunch":
        """A launch for inputs of these shapes, with inputs, then outputs, at these addresses of device memory.

        Raises ProgramError for shapes that do not fit.
        """
        layout = lay_out(self._program, shapes)
        kernel, grid = choose(self._kernels, layout, addresses, self._gpu.multiprocessors)
        functions = [self._module.get_function(name) for name in kernel.functions]
        return NestLaunch(self._gpu, self._program, functions, kernel, layout, grid, addresses)


class NestLaunch:
    """A kernel with its arguments; of one in steps all of them, with their workspace."""

    def __init__(
        self,
        gpu: Gpu,
        program: Program,
        functions: Sequence[Any],
        kernel: NestKernel,
        layout: NestLayout,
        grid: Grid,
        addresses: Sequence[int],
    ) -> None:
        self.kernel = kernel
        self.layout = layout
        self._functions = functions
        self._grid = grid
        size = workspace_bytes(program, layout, grid)
        self._workspace: Any = gpu.allocate(size) if size else None
        place = 0 if self._workspace is None else int(self._workspace)
        self._arguments = pack(kernel, layout, grid, addresses, place)
        for function in functions:
            # Each argument is passed as its bytes, which need no padding between them.
            function.prepare([f"{len(argument)}s" for argument in self._arguments])

    def __call__(self, stream: Any = None) -> None:
        """Enqueue it on ``stream``, the default stream by default; nothing if there are no rows."""
        if self.layout.rows:
            for function in self._functions:
                block = (self.kernel.block, 1, 1)
                function.prepared_async_call((self._grid.blocks, 1), block, stream, *self._arguments)
