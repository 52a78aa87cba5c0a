"""Launching the kernels of a source through PyCUDA, as the native library does in ONNX Runtime."""

from collections.abc import Sequence
from typing import Any

from onnxfuse.cuda.arguments import grid_size, pack
from onnxfuse.cuda.elementwise.access import Layout, choose, classify
from onnxfuse.cuda.kernel import Kernel, Source
from onnxfuse.cuda.pycuda_tools import Gpu
from onnxfuse.program import Program


class LoadedSource:
    """The machine code of a source on a GPU."""

    def __init__(self, gpu: Gpu, program: Program, source: Source, cubin: bytes) -> None:
        self._gpu = gpu
        self._program = program
        self._kernels = source.kernels
        self._module: Any = gpu.driver.module_from_buffer(cubin)

    def function(self, kernel: Kernel) -> Any:
        """The PyCUDA function of a kernel."""
        return self._module.get_function(kernel.name)

    def prepare(self, shapes: Sequence[Sequence[int]], addresses: Sequence[int]) -> "Launch":
        """A launch for inputs of these shapes, with inputs, then outputs, at these addresses of device memory.

        Raises ProgramError for shapes that do not broadcast.
        """
        layout = classify(self._program, shapes)
        kernel = choose(self._kernels, layout, addresses)
        return Launch(self._gpu, self.function(kernel), kernel, layout, addresses)


class Launch:
    """A kernel with its arguments."""

    def __init__(self, gpu: Gpu, function: Any, kernel: Kernel, layout: Layout, addresses: Sequence[int]) -> None:
        self.kernel = kernel
        self.layout = layout
        self._function = function
        self._arguments = pack(kernel, layout, addresses)
        self._grid = (grid_size(kernel, layout), 1)
        # Each argument is passed as its bytes.  They need no padding between them: pointers come first, and the sizes
        # of all others are multiples of what they are aligned to.
        function.prepare([f"{len(argument)}s" for argument in self._arguments])

    def __call__(self, stream: Any = None) -> None:
        """Enqueue it on ``stream``, the default stream by default; nothing if there are no elements."""
        if self.layout.count:
            block = (self.kernel.block, 1, 1)
            self._function.prepared_async_call(self._grid, block, stream, *self._arguments)
