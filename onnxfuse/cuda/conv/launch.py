"""Launching the kernels of a fused convolution through PyCUDA, as the native library does in ONNX Runtime."""

from collections.abc import Sequence
from typing import Any

from onnxfuse.cuda.conv.arguments import ConvLayout, choose, grid_size, pack, splits, sum_grid_size, workspace_bytes
from onnxfuse.cuda.conv.kernel import ConvKernel, ConvSource
from onnxfuse.cuda.pycuda_tools import Gpu
from onnxfuse.program.figures import CONV_SUM_BLOCK


class LoadedConv:
    """The machine code of a source on a GPU."""

    def __init__(self, gpu: Gpu, source: ConvSource, cubin: bytes) -> None:
        self._gpu = gpu
        self._kernels = source.kernels
        self._module: Any = gpu.driver.module_from_buffer(cubin)

    def function(self, kernel: ConvKernel) -> Any:
        """The PyCUDA function of a kernel."""
        return self._module.get_function(kernel.name)

    def prepare(self, layout: ConvLayout, addresses: Sequence[int]) -> "ConvLaunch":
        """A launch with X, W, the prologue's operands, the epilogue's operands and the outputs at these addresses."""
        kernel = choose(self._kernels, layout, addresses)
        functions = [self.function(kernel)]
        if kernel.split > 1:
            functions.append(self._module.get_function(kernel.sum_name))
        return ConvLaunch(self._gpu, functions, kernel, layout, addresses)


class ConvLaunch:
    """A kernel with its arguments and its workspace, and the kernel that adds up what it leaves there."""

    def __init__(
        self, gpu: Gpu, functions: Sequence[Any], kernel: ConvKernel, layout: ConvLayout, addresses: Sequence[int]
    ) -> None:
        self.kernel = kernel
        self._count = layout.count
        self._steps: list[tuple[Any, int, int]] = []
        self._workspace: Any = None
        self._arguments: list[bytes] = []
        if not layout.count:
            return
        multiprocessors = gpu.multiprocessors
        parts = splits(kernel, layout, multiprocessors)
        self._steps.append((functions[0], grid_size(kernel, layout, multiprocessors), kernel.block))
        if parts > 1:
            self._workspace = gpu.allocate(workspace_bytes(layout, parts))
            self._steps.append((functions[1], sum_grid_size(kernel, layout, multiprocessors), CONV_SUM_BLOCK))
        workspace = 0 if self._workspace is None else int(self._workspace)
        self._arguments = pack(kernel, layout, addresses, parts, workspace)
        for function, _, _ in self._steps:
            # Each argument is passed as its bytes; none needs padding before it.
            function.prepare([f"{len(argument)}s" for argument in self._arguments])

    def __call__(self, stream: Any = None) -> None:
        """Enqueue it on ``stream``, the default stream by default; nothing if there are no elements."""
        for function, grid, block in self._steps:
            function.prepared_async_call((grid, 1), (block, 1, 1), stream, *self._arguments)
