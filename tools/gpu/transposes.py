"""How near kernels that read a tensor in another order come to a copy.

A subject is a tensor of some factors and the order in which they are read, with two operations on the elements so that
it is an elementwise Program.  Its kernel is launched alone, from a CUDA graph, as in ``kernels.py``, and beside it ONNX
Runtime's session with the Transpose and the operations.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.elementwise.fitting import Fit
from onnxfuse.cuda.elementwise.launch import LoadedSource
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.cuda.pycuda_tools import Gpu, copy_bandwidth, launch_seconds, open_gpu
from onnxfuse.model.dtypes import from_numpy
from onnxfuse.program import Program, ProgramBuilder
from onnxfuse.program.program import Input
from onnxfuse.program.view_steps import ViewStep
from tools.gpu.kernels import DTYPES, Measured
from tools.gpu.sessions import BoundSession
from tools.messages import one_line

SIZES = (512, 64)
"""10^6 bytes of the tensor: far more than the level 2 cache holds, and somewhat more."""


@dataclass(frozen=True)
class Subject:
    """A tensor of ``factors`` behind a first dimension that follows from its size, read in this ``order`` of all."""

    name: str
    factors: tuple[int, ...]
    order: tuple[int, ...]

    def shape(self, megabytes: float, dtype: str) -> tuple[int, ...]:
        """The whole shape of a tensor of about so many 10^6 bytes."""
        row = math.prod(self.factors) * np.dtype(dtype).itemsize
        return max(1, round(megabytes * 1e6 / row)), *self.factors


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("matrix", (4096,), (1, 0)),
        Subject("channels last, 64 at 56x56", (64, 3136), (0, 2, 1)),
        Subject("channels first, 64 at 56x56", (3136, 64), (0, 2, 1)),
        Subject("channels last, 3 at 224x224", (3, 50176), (0, 2, 1)),
        Subject("pixel shuffle by 2, 64 at 56x56", (64, 2, 2, 56, 56), (0, 1, 4, 2, 5, 3)),
        Subject("heads, 12 of 64, 196 tokens", (196, 12, 64), (0, 2, 1, 3)),
        Subject("keys turned, 12 of 64, 196 tokens", (196, 12, 64), (0, 2, 3, 1)),
        Subject("windows of 7x7, 96 at 56x56", (8, 7, 8, 7, 96), (0, 1, 3, 2, 4, 5)),
    )
}


def jobs() -> Iterator[Measured]:
    """What is to be measured, the most telling first."""
    for megabytes in SIZES:
        for dtype in DTYPES:
            for subject in SUBJECTS.values():
                size = math.prod(subject.shape(megabytes, dtype)) * np.dtype(dtype).itemsize
                yield Measured(subject.name, dtype, megabytes, 2 * size)


def program_of(subject: Subject, dtype: str) -> Program:
    """The Program of a subject: the absolute values, and something added so that none is left as it was."""
    found = from_numpy(np.dtype(dtype))
    assert found is not None
    builder = ProgramBuilder()
    read = builder.view(Input(found.name, view=(ViewStep("permute", subject.order),)))
    magnitude = builder.emit("abs", found.name, read)
    return builder.build([builder.emit("add", found.name, magnitude, builder.const(found.name, 1))])


def onnx_model(subject: Subject, dtype: str) -> onnx.ModelProto:
    """The same as ONNX nodes."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    one = helper.make_tensor("one", element, [], np.ones((), dtype))
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=list(subject.order)),
        helper.make_node("Abs", ["turned"], ["magnitude"]),
        helper.make_node("Add", ["magnitude", "one"], ["y"]),
    ]
    rank = len(subject.order)
    values = [helper.make_tensor_value_info(name, element, [None] * rank) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "transpose", values[:1], values[1:], [one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def expected(subject: Subject, x: np.ndarray) -> np.ndarray:
    """What a subject gives."""
    return np.abs(x.transpose(subject.order)) + x.dtype.type(1)


def fit_of(subject: Subject, job: Measured, options: CudaOptions) -> Fit:
    """What is launched for a subject."""
    shape = subject.shape(job.megabytes, job.dtype)
    return options.fitter(fast_math=False).fit(program_of(subject, job.dtype), [shape])


def measure_all(todo: Sequence[Measured], deadline: float, progress: Callable[[str], None]) -> None:
    """Fill in what can be measured until the deadline (of ``time.monotonic``).

    The kernel's results have to be NumPy's, bit for bit.  What gives wrong ones is not timed.
    """
    with open_gpu() as gpu:
        for job in todo:
            if time.monotonic() > deadline:
                return
            progress(f"transposes: {job.chain}, {job.dtype}, {job.megabytes} MB")
            subject = SUBJECTS[job.chain]
            x = np.random.default_rng(0).standard_normal(subject.shape(job.megabytes, job.dtype), np.float32)
            for system, run in (("kernel", _kernel), ("ort", _session)):
                try:
                    run(gpu, subject, job, x.astype(job.dtype))
                except Exception as error:  # one that fails leaves the others
                    job.errors[system] = one_line(error)


def try_on_cpu(subject: Subject) -> None:
    """The subject in a session on the CPU, small, and its source: what needs no GPU.  Raises what goes wrong."""
    job = Measured(subject.name, "float32", 0.1, 0)
    fit_of(subject, job, CudaOptions(COMMON[-1:], embed=False))
    x = np.ones(subject.shape(job.megabytes, job.dtype), job.dtype)
    session = BoundSession(onnx_model(subject, job.dtype).SerializeToString(), {"x": x}, library=False, on_gpu=False)
    session.run()
    np.testing.assert_array_equal(session.results()[0], expected(subject, x))


def _kernel(gpu: Gpu, subject: Subject, job: Measured, x: np.ndarray) -> None:
    options = CudaOptions((gpu.architecture,))
    fit = fit_of(subject, job, options)
    code = options.compiler.compile([fit.source.text], (gpu.architecture,), options.fitter(fast_math=False).options)
    loaded = LoadedSource(gpu, fit.program, fit.source, code[fit.source.sha256, gpu.architecture].cubin)
    memory = [gpu.allocate(x.nbytes), gpu.allocate(x.nbytes)]
    gpu.driver.memcpy_htod(memory[0], x)
    launch = loaded.prepare([x.shape], [int(place) for place in memory])
    launch()
    result = np.empty(x.nbytes, np.uint8)
    gpu.driver.memcpy_dtoh(result, memory[1])
    wanted = expected(subject, x)
    wrong = int(np.count_nonzero(result.view(x.dtype).reshape(wanted.shape) != wanted))
    if wrong:
        raise ValueError(f"wrong results: {wrong} of {wanted.size} elements")
    job.seconds["kernel"] = launch_seconds(gpu, launch)
    job.seconds["copy"] = 2 * x.nbytes / copy_bandwidth(gpu, x.nbytes)


def _session(_gpu: Gpu, subject: Subject, job: Measured, x: np.ndarray) -> None:
    """ONNX Runtime with the nodes as they are."""
    session = BoundSession(onnx_model(subject, job.dtype).SerializeToString(), {"x": x}, library=False, graph=True)
    job.seconds["ort"] = session.seconds()
