"""Measuring fused convolutions against ONNX Runtime's on the GPU of this machine.

Every candidate of a convolution is launched through PyCUDA, with the Programs around it and on the shapes that the
model has; where it leaves a size open, on a range of sizes.  A kernel counts only if its results are those of the one
that takes anything, within rounding.  The best one wins over ONNX Runtime only where it is no slower on any of the
sizes, and faster on the whole.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np

from onnxfuse.cuda.compile.compiled import CompileError
from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.conv.case import ConvCase
from onnxfuse.cuda.conv.fitting import ConvFit, Tilings, render_case, tilings_of
from onnxfuse.cuda.conv.kernel import ConvSource
from onnxfuse.cuda.conv.launch import ConvLaunch, LoadedConv
from onnxfuse.cuda.conv.tunings import OURS, THEIRS, Times, TuningEntry, key_of
from onnxfuse.cuda.pycuda_tools import Gpu, copy_bandwidth, launch_seconds, occupancy, resources
from onnxfuse.cuda.report import KernelTimes
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import ProgramError

BATCHES = (1, 16)
SIZES = (14, 56, 224)
"""The batches and spatial sizes to measure with where the model leaves them open."""
MOST_ELEMENTS = 1 << 25
"""Elements of X and of the result beyond which a size is left out."""
_NOISE = 0.99
"""A candidate replaces another only if it takes less than this share of its time."""
_GAIN = 1.02
"""How many times as long ONNX Runtime has to take on the whole."""
_NO_SLOWER = 0.98
"""And on each size: a hair is noise."""


class Baseline(Protocol):
    """What a convolution is measured against."""

    version: str

    def seconds(self, case: ConvCase, x_shape: Sequence[int], values: Sequence[np.ndarray]) -> float:
        """How long ONNX Runtime takes, the elementwise work fused, for X, W and the operands of these ``values``.

        Raises OnnxfuseError if it does not run.
        """


def sizes_of(case: ConvCase) -> list[tuple[int, ...]]:
    """The shapes of X to measure with, the smallest first; none if the ones that are open do not fit the kernel."""
    batches = BATCHES if not isinstance(case.x_shape[0], int) else (0,)
    sizes = SIZES if not all(isinstance(dim, int) for dim in case.x_shape[2:]) else (0,)
    found = dict.fromkeys(case.sizes(batch, size) for batch in batches for size in sizes)
    return [shape for shape in found if _is_sensible(case, shape)]


def _is_sensible(case: ConvCase, x_shape: Sequence[int]) -> bool:
    try:
        count = case.layout(x_shape).count
    except ProgramError:
        return False
    return 0 < count <= MOST_ELEMENTS and math.prod(x_shape) <= MOST_ELEMENTS


class ConvBench:
    """Runs kernels on a GPU and times them; ``options`` are the compiler's."""

    def __init__(self, gpu: Gpu, compiler: CompilerCache, options: tuple[str, ...]) -> None:
        self._gpu = gpu
        self._compiler = compiler
        self._options = options

    def times(self, fit: ConvFit) -> KernelTimes | None:
        """How long the chosen kernels take for the smallest size to measure with, and that against a copy of as many
        bytes; None if there is no size."""
        shapes = sizes_of(fit.case)
        if not shapes:
            return None
        sample, loaded = _Sample(self._gpu, fit.case, shapes[0]), self.load(fit.source)
        launch = sample.prepare(loaded)
        elapsed = launch_seconds(self._gpu, launch)
        function = loaded.function(launch.kernel)
        takes = resources(function)
        return KernelTimes(
            microseconds=1e6 * elapsed,
            share_of_copy=sample.bytes / elapsed / copy_bandwidth(self._gpu, max(sample.bytes // 2, 1)),
            elements=sample.elements,
            registers=takes.registers,
            local_bytes=takes.stack,
            shared_bytes=takes.shared,
            occupancy=occupancy(self._gpu, function, launch.kernel.block),
        )

    def compile_ahead(self, sources: Sequence[ConvSource]) -> None:
        """Compile all of these at once; what does not compile is found out about when it is loaded."""
        with suppress(CompileError):
            self._compiler.compile([source.text for source in sources], (self._gpu.architecture,), self._options)

    def load(self, source: ConvSource) -> LoadedConv:
        """The kernels of a source on the GPU.  Raises CompileError."""
        name = self._gpu.architecture
        code = self._compiler.compile([source.text], (name,), self._options)
        return LoadedConv(self._gpu, source, code[source.sha256, name].cubin)


class ConvTuner:
    """Measures convolutions against a baseline."""

    def __init__(
        self, gpu: Gpu, compiler: CompilerCache, options: tuple[str, ...], fast_math: bool, baseline: Baseline
    ) -> None:
        self._gpu = gpu
        self._bench = ConvBench(gpu, compiler, options)
        self._fast_math = fast_math
        self._baseline = baseline

    def measure(self, case: ConvCase) -> TuningEntry | None:
        """Who is faster, and by what kernels; None if there is no size to measure with.

        Raises OnnxfuseError if ONNX Runtime does not run the convolution.
        """
        shapes = sizes_of(case)
        if not shapes:
            return None
        samples = [_Sample(self._gpu, case, shape) for shape in shapes]
        theirs = [self._baseline.seconds(case, sample.x_shape, sample.values) for sample in samples]
        best, ours = self._best(case, samples)
        known: Sequence[float | None] = [None] * len(samples) if ours is None else ours
        times = [Times(sample.x_shape, slow, fast) for sample, slow, fast in zip(samples, theirs, known, strict=True)]
        winner = OURS if ours and _is_faster(theirs, ours) else THEIRS
        key = key_of(case, self._gpu.architecture, self._fast_math)
        return TuningEntry(key, self._gpu.name, self._baseline.version, winner, best, tuple(times))

    def _best(self, case: ConvCase, samples: "Sequence[_Sample]") -> tuple[Tilings, list[float] | None]:
        """The candidate with the least geometric mean of times, and its times; none if no candidate is right."""
        found: tuple[Tilings, list[float] | None] = ((), None)
        self._bench.compile_ahead([render_case(case, tilings) for tilings in ((), *tilings_of(case))])
        wanted = [sample.run(self._bench.load(render_case(case, ()))) for sample in samples]
        for tilings in tilings_of(case):
            source = render_case(case, tilings)
            try:
                loaded = self._bench.load(source)
            except CompileError:  # too large a tile
                continue
            if not all(
                _agree(sample.run(loaded), right, case.tf32) for sample, right in zip(samples, wanted, strict=True)
            ):
                continue
            times = [sample.seconds(loaded) for sample in samples]
            if found[1] is None or _mean(times) < _NOISE * _mean(found[1]):
                found = tilings, times
        return found


def _is_faster(theirs: Sequence[float], ours: Sequence[float]) -> bool:
    ratios = [slow / fast for slow, fast in zip(theirs, ours, strict=True)]
    return min(ratios) >= _NO_SLOWER and _mean(ratios) >= _GAIN


def _mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


class _Sample:
    """Device memory for a case on one shape of X, with random values that are the same every time."""

    def __init__(self, gpu: Gpu, case: ConvCase, x_shape: tuple[int, ...]) -> None:
        self.x_shape = x_shape
        self._gpu = gpu
        self._layout = case.layout(x_shape)
        self.values = made_up(case, x_shape)
        self._inputs = [gpu.allocate(array.nbytes) for array in self.values]
        for place, array in zip(self._inputs, self.values, strict=True):
            gpu.driver.memcpy_htod(place, array)
        self._dtypes = [case.epilogue.dtype(output) for output in case.epilogue.outputs]
        self._outputs = [gpu.allocate(self._layout.count * size) for size in self._layout.outputs]

    @property
    def bytes(self) -> int:
        """What a kernel has to read and to write."""
        return sum(array.nbytes for array in self.values) + self.elements * sum(self._layout.outputs)

    @property
    def elements(self) -> int:
        """The elements of the result."""
        return self._layout.count

    @property
    def _addresses(self) -> list[int]:
        return [int(place) for place in (*self._inputs, *self._outputs)]

    def prepare(self, loaded: LoadedConv) -> ConvLaunch:
        """A launch on the memory of the sample."""
        return loaded.prepare(self._layout, self._addresses)

    def run(self, loaded: LoadedConv) -> list[np.ndarray]:
        """The outputs."""
        sizes = [self._layout.count * size for size in self._layout.outputs]
        for place, size in zip(self._outputs, sizes, strict=True):
            self._gpu.driver.memset_d8(place, 0xA5, size)  # so that what was not written shows
        self.prepare(loaded)()
        results = []
        for place, dtype, size in zip(self._outputs, self._dtypes, sizes, strict=True):
            buffer = np.empty(size, np.uint8)
            self._gpu.driver.memcpy_dtoh(buffer, place)
            results.append(buffer.view(DTYPES[dtype].numpy))
        return results

    def seconds(self, loaded: LoadedConv) -> float:
        """How long a launch takes."""
        return launch_seconds(self._gpu, self.prepare(loaded))


def made_up(case: ConvCase, x_shape: Sequence[int]) -> list[np.ndarray]:
    """Random values of X, W, and the operands of the Programs."""
    random = np.random.default_rng(0)
    prologue, epilogue = case.operand_shapes(x_shape)
    specs = [*(case.prologue.inputs[1:] if case.prologue else ()), *case.epilogue.inputs[1:]]
    shapes = [tuple(x_shape), case.conv.weight_shape, *prologue, *epilogue]
    dtypes = [case.conv.dtype, case.conv.dtype, *(spec.dtype for spec in specs)]
    scales = [1.0, 1.0 / math.sqrt(case.conv.depth), *[1.0] * len(specs)]
    return [_values(random, *each) for each in zip(dtypes, shapes, scales, strict=True)]


def _values(random: np.random.Generator, dtype: str, shape: Sequence[int], scale: float) -> np.ndarray:
    """Values of about ``scale``; small integers, and positive ones of unsigned types."""
    kind = DTYPES[dtype].numpy
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(np.bool_)
    if kind.kind in "iu":
        return random.integers(1, 8, shape).astype(kind)
    return (scale * random.standard_normal(shape, np.float32)).astype(kind)


_TOLERANCE = {"f64": 1e-5, "f32": 1e-4, "f16": 2e-2, "bf16": 1e-1}
_OFF = 0.01
"""The share of elements of other types that may differ, where rounding falls on the other side of an edge."""


def _agree(results: Sequence[np.ndarray], wanted: Sequence[np.ndarray], tf32: bool) -> bool:
    """Whether two kernels, which add in other orders, one of them perhaps in TF32, computed the same."""
    for result, right in zip(results, wanted, strict=True):
        name = next(name for name, dtype in DTYPES.items() if dtype.numpy == right.dtype)
        if name not in _TOLERANCE:
            if np.mean(result != right) > _OFF:
                return False
            continue
        left, other = result.astype(np.float64), right.astype(np.float64)
        scale = float(np.max(np.abs(other), initial=0.0, where=np.isfinite(other))) or 1.0
        allowed = _TOLERANCE["f16" if tf32 and name == "f32" else name]
        if not np.allclose(left, other, allowed, allowed * scale, equal_nan=True):
            return False
    return True
