"""How near the kernels of what reduces come to a copy, and how they compare with other systems.

In ONNX Runtime the nodes as they are and fused are timed in sessions captured as CUDA graphs, and where one kernel is
all there is, that alone, as in ``kernels.py``.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx
from onnx import numpy_helper

import onnxfuse
from onnxfuse.cuda.embed import reducing_nodes
from onnxfuse.cuda.nest.fitting import NestFit
from onnxfuse.cuda.nest.launch import LoadedNest
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.cuda.pycuda_tools import Gpu, copy_bandwidth, launch_seconds
from onnxfuse.model.graph import Model
from onnxfuse.shapes.inference import infer
from tools.gpu.kernels import DTYPES, SIZES, TOLERANCE, Measured, measure_each
from tools.gpu.reduction_chains import SUBJECTS, Reducing, feeds, onnx_model, output_shape
from tools.gpu.sessions import BoundSession


def jobs() -> Iterator[Measured]:
    """What is to be measured, the most telling first; the bytes are those of inputs and the output, each once."""
    for megabytes in SIZES:
        for dtype in DTYPES:
            for subject in SUBJECTS.values():
                shapes = subject.shapes(megabytes, dtype)
                elements = sum(map(math.prod, shapes)) + math.prod(output_shape(subject, shapes))
                yield Measured(subject.name, dtype, megabytes, elements * np.dtype(dtype).itemsize)


def fit_of(model: onnx.ModelProto, options: CudaOptions) -> NestFit | None:
    """What an optimized subject launches, if that is one kernel alone."""
    loaded = Model.from_proto(model)
    infer(loaded)
    nodes = list(reducing_nodes(loaded))
    if len(nodes) != 1 or len(model.graph.node) != 1:
        return None
    fitter = options.nest_fitter(options.fitter(fast_math=False))
    return fitter.fit(nodes[0].program, nodes[0].shapes)


def try_on_cpu(subject: Reducing) -> None:
    """The subject in both sessions on the CPU, small: what of the measuring needs no GPU.  Raises what goes wrong."""
    ready = _ready(subject, "float32")
    values = feeds(subject, 0.1, "float32")
    for model, library in ((ready.original, False), (ready.fused, True)):
        BoundSession(model.SerializeToString(), values, library=library, on_gpu=False).run()


@dataclass
class Ready:
    """A subject of one type as ONNX nodes, and optimized for CUDA; ``expected`` is what ONNX Runtime gave first.

    ``feeds`` gives the inputs for a size in 10^6 bytes, ``output_shape`` the result's shape for those of the fused
    node's inputs.
    """

    dtype: str
    original: onnx.ModelProto
    fused: onnx.ModelProto
    feeds: Callable[[float], dict[str, np.ndarray]]
    output_shape: Callable[[Sequence[tuple[int, ...]]], tuple[int, ...]]
    expected: np.ndarray | None = None
    unchecked: set[str] = field(default_factory=lambda: {"kernel", "onnxfuse"})

    def check(self, system: str, result: np.ndarray) -> None:
        """Raises ValueError if a result is not ONNX Runtime's."""
        if self.expected is None or system not in self.unchecked:
            return
        allowed = TOLERANCE[self.dtype]
        actual, wanted = (array.reshape(-1).astype(np.float64) for array in (result, self.expected))
        wrong = int(np.count_nonzero(~np.isclose(actual, wanted, allowed, allowed, equal_nan=True)))
        if wrong:
            raise ValueError(f"wrong results: {wrong} of {actual.size} elements")
        self.unchecked.discard(system)


def measure_all(todo: Sequence[Measured], deadline: float, progress: Callable[[str], None]) -> None:
    """Fill in what can be measured until the deadline (of ``time.monotonic``).

    At the first size the results are held against ONNX Runtime's own.  What gives wrong ones is not timed.
    """
    systems = {"ort": time_session, "onnxfuse": time_session, "kernel": time_kernel}
    measure_each("reductions", todo, deadline, lambda job: _ready(SUBJECTS[job.chain], job.dtype), systems, progress)


def _ready(subject: Reducing, dtype: str) -> Ready:
    original = onnx_model(subject, dtype)
    fused = onnxfuse.optimize(original, "cuda", check=False).model
    return Ready(dtype, original, fused, partial(feeds, subject, dtype=dtype), partial(output_shape, subject))


def time_session(_gpu: Gpu, ready: Ready, job: Measured, system: str) -> None:
    """ONNX Runtime with the nodes as they are, or fused."""
    model = ready.original if system == "ort" else ready.fused
    values = ready.feeds(job.megabytes)
    session = BoundSession(model.SerializeToString(), values, library=system == "onnxfuse", graph=True)
    if system == "ort" and ready.unchecked:
        session.run()
        (ready.expected,) = session.results()
    elif system in ready.unchecked:
        session.run()
        ready.check(system, session.results()[0])
    job.seconds[system] = session.seconds()


def time_kernel(gpu: Gpu, ready: Ready, job: Measured, system: str) -> None:
    """The kernel of the fused node, if it is all there is, and a copy of as many bytes."""
    options = CudaOptions((gpu.architecture,))
    fit = fit_of(ready.fused, options)
    if fit is None:
        return
    code = options.compiler.compile([fit.source.text], (gpu.architecture,), options.fitter(fast_math=False).options)
    loaded = LoadedNest(gpu, fit.program, fit.source, code[fit.source.sha256, gpu.architecture].cubin)
    arrays = _operands(ready, job)
    memory = [gpu.allocate(array.nbytes) for array in arrays]
    for place, array in zip(memory, arrays, strict=True):
        gpu.driver.memcpy_htod(place, np.require(array, requirements="C"))
    size = np.dtype(job.dtype).itemsize * math.prod(ready.output_shape([array.shape for array in arrays]))
    memory.append(gpu.allocate(size))
    launch = loaded.prepare([array.shape for array in arrays], [int(place) for place in memory])
    launch()
    raw = np.empty(size, np.uint8)
    gpu.driver.memcpy_dtoh(raw, memory[-1])
    ready.check(system, raw.view(job.dtype))
    job.seconds[system] = launch_seconds(gpu, launch)
    job.seconds["copy"] = job.bytes / copy_bandwidth(gpu, job.bytes // 2)


def _operands(ready: Ready, job: Measured) -> list[np.ndarray]:
    """The inputs of the fused node, in its order: the graph's and constants."""
    given = ready.feeds(job.megabytes)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in ready.fused.graph.initializer}
    (node,) = ready.fused.graph.node
    return [given[name] if name in given else constants[name] for name in node.input]
