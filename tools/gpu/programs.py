"""The kernel of a Program beside ONNX Runtime's nodes for the same: what the subjects of several parts have in common.

The kernel is launched alone, from a CUDA graph, as in ``kernels.py``; ONNX Runtime's session has the nodes as they are.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from onnxfuse.cuda.elementwise.fitting import Fit
from onnxfuse.cuda.elementwise.launch import LoadedSource
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.cuda.pycuda_tools import Gpu, copy_bandwidth, launch_seconds, open_gpu
from onnxfuse.program import Program
from tools.gpu.kernels import Measured
from tools.gpu.sessions import BoundSession
from tools.messages import one_line


@dataclass(frozen=True)
class Case:
    """A Program of ``arrays``, the same as a ``model`` with inputs x0, x1, …, and the results ``wanted`` of both."""

    program: Program
    model: onnx.ModelProto
    arrays: Sequence[np.ndarray]
    wanted: Sequence[np.ndarray]

    def fit(self, options: CudaOptions) -> Fit:
        """What is launched."""
        return options.fitter(fast_math=False).fit(self.program, [x.shape for x in self.arrays])

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """The arrays by the names of the model's inputs."""
        return {f"x{place}": x for place, x in enumerate(self.arrays)}


def random_arrays(shapes: Sequence[Sequence[int]], dtype: str) -> list[np.ndarray]:
    """Inputs, the same every time."""
    random = np.random.default_rng(0)
    return [random.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]


def measure(
    part: str,
    todo: Sequence[Measured],
    case_of: Callable[[Measured], Case],
    deadline: float,
    progress: Callable[[str], None],
) -> None:
    """Fill in what can be measured until the deadline (of ``time.monotonic``).

    The kernel's results have to be NumPy's, bit for bit.  What gives wrong ones is not timed.
    """
    with open_gpu() as gpu:
        for job in todo:
            if time.monotonic() > deadline:
                return
            progress(f"{part}: {job.chain}, {job.dtype}, {job.megabytes} MB")
            case = case_of(job)
            for system, run in (("kernel", _kernel), ("ort", _session)):
                try:
                    run(gpu, case, job)
                except Exception as error:  # one that fails leaves the others
                    job.errors[system] = one_line(error)


def run_on_cpu(case: Case) -> None:
    """The nodes in a session on the CPU.  Raises AssertionError if the results are others."""
    session = BoundSession(case.model.SerializeToString(), case.feeds, library=False, on_gpu=False)
    session.run()
    for result, wanted in zip(session.results(), case.wanted, strict=True):
        np.testing.assert_array_equal(result, wanted)


def _kernel(gpu: Gpu, case: Case, job: Measured) -> None:
    options = CudaOptions((gpu.architecture,))
    fit = case.fit(options)
    code = options.compiler.compile([fit.source.text], (gpu.architecture,), options.fitter(fast_math=False).options)
    loaded = LoadedSource(gpu, fit.program, fit.source, code[fit.source.sha256, gpu.architecture].cubin)
    memory = [gpu.allocate(array.nbytes) for array in (*case.arrays, *case.wanted)]
    for place, array in enumerate(case.arrays):
        gpu.driver.memcpy_htod(memory[place], array)
    launch = loaded.prepare([x.shape for x in case.arrays], [int(place) for place in memory])
    launch()
    for place, right in zip(memory[len(case.arrays) :], case.wanted, strict=True):
        result = np.empty(right.nbytes, np.uint8)
        gpu.driver.memcpy_dtoh(result, place)
        wrong = int(np.count_nonzero(result.view(right.dtype).reshape(right.shape) != right))
        if wrong:
            raise ValueError(f"wrong results: {wrong} of {right.size} elements")
    job.seconds["kernel"] = launch_seconds(gpu, launch)
    job.seconds["copy"] = job.bytes / copy_bandwidth(gpu, job.bytes // 2)


def _session(_gpu: Gpu, case: Case, job: Measured) -> None:
    session = BoundSession(case.model.SerializeToString(), case.feeds, library=False, graph=True)
    job.seconds["ort"] = session.seconds()
