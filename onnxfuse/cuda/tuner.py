"""Timing kernels on the GPU of this machine, and choosing among variants of them.

A variant is the same Program rendered with other sizes: elements a thread, threads a block.  Every variant must give
the bytes that the heuristic's gives, or it does not count.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxfuse.cuda.compile.compiled import CompileError
from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.elementwise.access import classify
from onnxfuse.cuda.elementwise.fitting import Fit
from onnxfuse.cuda.elementwise.launch import LoadedSource
from onnxfuse.cuda.elementwise.parts import Part, part_of, parts_of, tensor_shapes
from onnxfuse.cuda.elementwise.renderer import Tuning, render
from onnxfuse.cuda.kernel import Access, Source
from onnxfuse.cuda.pycuda_tools import Gpu, copy_bandwidth, launch_seconds, occupancy, resources
from onnxfuse.cuda.recipe import VECTORS
from onnxfuse.cuda.report import KernelTimes
from onnxfuse.cuda.strided import Dim
from onnxfuse.cuda.tuned import TunedKernels
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program

BLOCKS = (128, 256, 512)
ELEMENTS = 1 << 24
"""Elements of the iteration space to time with, where the model's own dimensions leave that open."""
_NOISE = 0.99
"""A variant replaces another only if it takes less than this share of its time."""
_MOST_DIM = 1 << 12


@dataclass(frozen=True)
class Case:
    """A fitted Program, and shapes of its inputs to time it with."""

    fit: Fit
    shapes: tuple[tuple[int, ...], ...]


def sizes_for(
    program: Program, shapes: Sequence[Sequence[Dim] | None], elements: int = ELEMENTS
) -> tuple[tuple[int, ...], ...]:
    """Shapes with numbers for the dimensions that are not known, so that the largest has at most some ``elements``.

    A dimension of one name gets one size, and so do those that lie on one axis, unless a tensor is read through a view;
    the last ones, which lie next to each other in memory, get the largest.  An input of unknown rank gets the largest
    of the other shapes.  Raises ProgramError if the shapes do not broadcast.
    """
    known = [tuple(shape) for shape in shapes if shape is not None]
    sizes: dict[Dim, int] = {}
    parts: tuple[list[Sequence[Dim]], list[Sequence[Dim]]] = ([], [])
    for spec, shape in zip(program.inputs, shapes, strict=True):
        parts[bool(spec.slices or spec.view)].append(() if shape is None else shape)
    groups = _groups(*parts)
    for names, fixed in groups:
        sizes.update(dict.fromkeys(names, fixed or 1))
    for names, fixed in groups:
        if fixed is None:
            largest = max(math.prod(_filled(shape, sizes)) for shape in known)
            sizes.update(dict.fromkeys(names, max(1, min(_MOST_DIM, elements // max(largest, 1)))))
    filled = [_filled(shape, sizes) for shape in known]
    largest_shape = max(filled, key=math.prod, default=(elements,))
    given = iter(filled)
    found = tuple(largest_shape if shape is None else next(given) for shape in shapes)
    if not parts_of(program, found):
        classify(program, found)
    return found


def _groups(shapes: Sequence[Sequence[Dim]], viewed: Sequence[Sequence[Dim]]) -> list[tuple[set[Dim], int | None]]:
    """The unknown dimensions that get one size, from the last axis to the first, and that size if a shape tells it."""
    groups: list[tuple[set[Dim], int | None]] = []
    for axis in range(1, max(map(len, shapes), default=0) + 1):
        dims = [shape[-axis] for shape in shapes if axis <= len(shape)]
        names: set[Dim] = {dim for dim in dims if dim is None or isinstance(dim, str)}
        fixed = next((int(dim) for dim in dims if dim not in names and dim != 1), None)  # type: ignore[arg-type]
        for other in [group for group in groups if group[0] & names]:
            groups.remove(other)
            names, fixed = names | other[0], fixed or other[1]
        if names:
            groups.append((names, fixed))
    for dim in (dim for shape in viewed for dim in reversed(shape) if dim is None or isinstance(dim, str)):
        if not any(dim in names for names, _ in groups):
            groups.append(({dim}, None))
    return groups


def _filled(shape: Sequence[Dim], sizes: Mapping[Dim, int]) -> tuple[int, ...]:
    return tuple(sizes[dim] if dim is None or isinstance(dim, str) else int(dim) for dim in shape)


class Bench:
    """Runs kernels on a GPU and times them."""

    def __init__(self, gpu: Gpu, compiler: CompilerCache, options: tuple[str, ...]) -> None:
        self._gpu = gpu
        self._compiler = compiler
        self._options = options
        self._copy: dict[int, float] = {}

    def times(self, case: Case) -> KernelTimes:
        """How long the kernel of a case takes, and that against a copy of as many bytes; what it takes of the GPU."""
        (code,) = self._compile([case.fit.source]).values()
        memory = _Memory(self._gpu, case)
        loaded = LoadedSource(self._gpu, case.fit.program, case.fit.source, code)
        launch = loaded.prepare(case.shapes, memory.addresses)
        function = loaded.function(launch.name)
        elapsed = launch_seconds(self._gpu, launch)
        half = max(memory.bytes // 2, 1)
        if half not in self._copy:
            self._copy[half] = copy_bandwidth(self._gpu, half)
        takes = resources(function)
        return KernelTimes(
            microseconds=1e6 * elapsed,
            share_of_copy=memory.bytes / elapsed / self._copy[half],
            elements=memory.elements,
            registers=takes.registers,
            local_bytes=takes.stack,
            shared_bytes=takes.shared,
            occupancy=occupancy(self._gpu, function, launch.block),
        )

    def tune(self, case: Case, keep: TunedKernels) -> Tuning:
        """The fastest sizes for a case, which are kept for its Program, access and architecture.

        Of a Program in several parts the heuristic's stay.
        """
        access = case.fit.access
        if access is None:
            return case.fit.tuning
        main = case.fit.source.kernels[0]
        best = Tuning(main.vector, main.block)
        memory = _Memory(self._gpu, case)
        wanted = self._run(case.fit.program, case.fit.source, case.shapes, memory)
        limit = _NOISE * wanted.seconds
        vectors = [main.vector] if "w" in main.access.outputs else VECTORS
        first = [Tuning(vector, main.block) for vector in vectors]
        for step in range(2):
            tunings = first if step == 0 else [Tuning(best.vector, block) for block in BLOCKS]
            for tuning, source in self._rendered(case, access, tunings):
                found = self._run(case.fit.program, source, case.shapes, memory)
                if found.seconds < limit and found.results == wanted.results:
                    best, limit = tuning, _NOISE * found.seconds
        keep.keep(self._gpu.architecture, case.fit.program, access, self._options, best)
        return best

    def _rendered(self, case: Case, access: Access, tunings: Iterable[Tuning]) -> list[tuple[Tuning, Source]]:
        """The variants that compile; all are compiled at once."""
        sources = [(tuning, render(case.fit.program, [access], tuning)) for tuning in tunings]
        try:
            self._compile([source for _, source in sources])
        except CompileError:  # too large a variant
            return [pair for pair in sources if self._compiles(pair[1])]
        return sources

    def _compiles(self, source: Source) -> bool:
        try:
            self._compile([source])
        except CompileError:
            return False
        return True

    def _compile(self, sources: Sequence[Source]) -> dict[str, bytes]:
        name = self._gpu.architecture
        found = self._compiler.compile([source.text for source in sources], (name,), self._options)
        return {digest: code.cubin for (digest, _), code in found.items()}

    def _run(self, program: Program, source: Source, shapes: Sequence[Sequence[int]], memory: "_Memory") -> "_Run":
        cubin = self._compile([source])[source.sha256]
        launch = LoadedSource(self._gpu, program, source, cubin).prepare(shapes, memory.addresses)
        memory.clear()
        launch()
        return _Run(memory.results(), launch_seconds(self._gpu, launch))


@dataclass(frozen=True)
class _Run:
    results: list[bytes]
    seconds: float


class _Memory:
    """Device memory for the operands of a case; inputs hold random values, the same every time."""

    def __init__(self, gpu: Gpu, case: Case) -> None:
        self._gpu = gpu
        program = case.fit.program
        self._allocations: list[Any] = []
        self._outputs: list[tuple[Any, int]] = []
        random = np.random.default_rng(0)
        for spec, shape in zip(program.inputs, case.shapes, strict=True):
            values = _values(random, spec.dtype, math.prod(shape))
            self._allocations.append(gpu.allocate(values.nbytes))
            gpu.driver.memcpy_htod(self._allocations[-1], values)
        parts = [part_of(program, part.outputs) for part in case.fit.source.parts] or [
            Part(tuple(range(len(program.inputs))), tuple(range(len(program.outputs))), program)
        ]
        made = tensor_shapes(program, parts, case.shapes)
        self.elements = max(
            classify(part.program, [case.shapes[place] for place in part.inputs]).count for part in parts
        )
        for shape, places in zip(made, program.tensors, strict=True):
            size = math.prod(shape) * DTYPES[program.dtype(program.outputs[places[0]])].itemsize
            self._allocations.append(gpu.allocate(size))
            self._outputs.append((self._allocations[-1], size))
        self.addresses = [int(allocation) for allocation in self._allocations]
        read = sum(
            math.prod(shape) * DTYPES[spec.dtype].itemsize
            for spec, shape in zip(program.inputs, case.shapes, strict=True)
        )
        self.bytes = read + sum(size for _, size in self._outputs)

    def clear(self) -> None:
        """Fill the outputs with a pattern, so that what was not written shows."""
        for address, size in self._outputs:
            self._gpu.driver.memset_d8(address, 0xA5, size)

    def results(self) -> list[bytes]:
        """The outputs' bytes."""
        found = []
        for address, size in self._outputs:
            buffer = np.empty(size, np.uint8)
            self._gpu.driver.memcpy_dtoh(buffer, address)
            found.append(buffer.tobytes())
        return found


def _values(random: np.random.Generator, dtype: str, count: int) -> np.ndarray:
    """Values between -4 and 4, positive for unsigned types."""
    numpy_type = DTYPES[dtype].numpy
    if dtype == "bool":
        return random.integers(0, 2, count).astype(np.bool_)
    low = 0 if numpy_type.kind == "u" else -4
    return random.uniform(low, 4, count).astype(np.float32).astype(numpy_type)
