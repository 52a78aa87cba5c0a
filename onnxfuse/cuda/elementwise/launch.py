"""Launching the kernels of a source through PyCUDA, as the native library does in ONNX Runtime."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onnxfuse.cuda.arguments import grid_size, pack, pack_joint
from onnxfuse.cuda.elementwise.access import choose, classify
from onnxfuse.cuda.elementwise.parts import choose_joint, classify_parts, part_addresses, part_of
from onnxfuse.cuda.kernel import Kernel, Source
from onnxfuse.cuda.pycuda_tools import Gpu
from onnxfuse.program import Program, ProgramError


class LoadedSource:
    """The machine code of a source on a GPU."""

    def __init__(self, gpu: Gpu, program: Program, source: Source, cubin: bytes) -> None:
        self._gpu = gpu
        self._program = program
        self._source = source
        self._parts = [part_of(program, part.outputs) for part in source.parts]
        self._module: Any = gpu.driver.module_from_buffer(cubin)

    def function(self, name: str) -> Any:
        """The PyCUDA function of the kernel of this name."""
        return self._module.get_function(name)

    def prepare(self, shapes: Sequence[Sequence[int]], addresses: Sequence[int]) -> "Launch":
        """A launch for inputs of these shapes, with inputs, then outputs, at these addresses of device memory.

        Raises ProgramError for shapes that do not broadcast, and where no kernel computes all parts at once.
        """
        if self._parts:
            return self._prepare_parts(shapes, addresses)
        layout = classify(self._program, shapes)
        kernel = choose(self._source.kernels, layout, addresses)
        arguments = pack(kernel, layout, addresses)
        return Launch(self._gpu, self.function(kernel.name), kernel, arguments, grid_size(kernel, layout))

    def _prepare_parts(self, shapes: Sequence[Sequence[int]], addresses: Sequence[int]) -> "Launch":
        layouts = classify_parts(self._program, self._parts, shapes)
        own = part_addresses(self._program, self._parts, addresses)
        joint = choose_joint(self._source, layouts, own)
        if joint is None:
            raise ProgramError("no kernel computes all parts at once")
        members = [self._source.kernels[place] for place in joint.members]
        arguments, blocks = pack_joint(members, layouts, own)
        return Launch(self._gpu, self.function(joint.name), replace(members[0], name=joint.name), arguments, blocks)


class Launch:
    """A kernel with its arguments; of a joint one the kernel is what its first part has, by the joint one's name."""

    def __init__(self, gpu: Gpu, function: Any, kernel: Kernel, arguments: Sequence[bytes], blocks: int) -> None:
        self.kernel = kernel
        self.name, self.block = kernel.name, kernel.block
        self._function = function
        self._arguments = arguments
        self._grid = (blocks, 1)
        # Each argument is passed as its bytes.  They need no padding between them: pointers come first, and the sizes
        # of all others are multiples of what they are aligned to.
        function.prepare([f"{len(argument)}s" for argument in self._arguments])

    def __call__(self, stream: Any = None) -> None:
        """Enqueue it on ``stream``, the default stream by default; nothing if there are no elements."""
        if self._grid[0]:
            self._function.prepared_async_call(self._grid, (self.block, 1, 1), stream, *self._arguments)
