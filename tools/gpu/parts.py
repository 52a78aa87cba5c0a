"""How near kernels of several parts come to a copy: Concats of two activations, and small maps that share a launch.

A subject is maps of tensors of its own, whose results are joined or apart.  All parts are launched as one kernel, from
a CUDA graph, as in ``kernels.py``, and beside it ONNX Runtime's session with the nodes as they are.
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
from onnxfuse.program import Program
from tools.gpu.kernels import DTYPES, Measured
from tools.gpu.sessions import BoundSession
from tools.messages import one_line

SIZES = (512, 64, 8, 1)
"""10^6 bytes of the results of a Concat."""
_ROW = 64 * 56 * 56
_MAPS = 16


@dataclass(frozen=True)
class Subject:
    """Maps whose results are joined along an ``axis``, counted from the back, or apart where that is 0."""

    name: str
    axis: int

    def shapes(self, megabytes: float, dtype: str) -> list[tuple[int, ...]]:
        """Of the inputs, for results of about so many 10^6 bytes; maps that are apart have sizes of their own."""
        if self.axis == 0:
            return [(8 * place + 8, 257) for place in range(_MAPS)]
        rows = max(1, round(megabytes * 1e6 / (2 * _ROW * np.dtype(dtype).itemsize)))
        return [(rows, 64, 56, 56), (rows, 64, 56, 56)]


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("Concat of two, along channels", -3),
        Subject("Concat of two, along the batch", -4),
        Subject("16 small maps", 0),
    )
}


def jobs() -> Iterator[Measured]:
    """What is to be measured, the most telling first; the small maps have one size."""
    for megabytes in SIZES:
        for dtype in DTYPES:
            for subject in SUBJECTS.values():
                if subject.axis != 0 or megabytes == SIZES[-1]:
                    shapes = subject.shapes(megabytes, dtype)
                    size = sum(map(math.prod, shapes)) * np.dtype(dtype).itemsize
                    yield Measured(subject.name, dtype, megabytes, 2 * size)


def program_of(subject: Subject, dtype: str) -> Program:
    """The Program of a subject: of each input the absolute values and 1, for each a part."""
    found = from_numpy(np.dtype(dtype))
    assert found is not None
    count = len(subject.shapes(1, dtype))
    one = np.ones((), dtype).tobytes()[::-1].hex()
    lines = ["onnxfuse 2", *[f"input {found.name} broadcast"] * count, f"const {found.name} {one}"]
    for place in range(count):
        lines += [f"abs {found.name} {place}", f"add {found.name} {count + 1 + 2 * place} {count}"]
    for place in range(count):
        number = count + 2 + 2 * place
        lines.append(f"append {number} {subject.axis}" if place and subject.axis else f"output {number}")
    return Program.parse("\n".join(lines) + "\n")


def onnx_model(subject: Subject, dtype: str, shapes: Sequence[Sequence[int]]) -> onnx.ModelProto:
    """The same as ONNX nodes."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    one = helper.make_tensor("one", element, [], np.ones((), dtype))
    nodes = []
    results = [f"y{place}" for place in range(len(shapes))]
    for place, result in enumerate(results):
        nodes.append(helper.make_node("Abs", [f"x{place}"], [f"magnitude{place}"]))
        nodes.append(helper.make_node("Add", [f"magnitude{place}", "one"], [result]))
    if subject.axis != 0:
        nodes.append(helper.make_node("Concat", results, ["y"], axis=subject.axis))
        results = ["y"]
    inputs = [helper.make_tensor_value_info(f"x{place}", element, shape) for place, shape in enumerate(shapes)]
    outputs = [helper.make_tensor_value_info(name, element, [None] * len(shapes[0])) for name in results]
    graph = helper.make_graph(nodes, "parts", inputs, outputs, [one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def expected(subject: Subject, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What a subject gives."""
    results = [np.abs(x) + x.dtype.type(1) for x in arrays]
    return results if subject.axis == 0 else [np.concatenate(results, subject.axis)]


def fit_of(subject: Subject, job: Measured, options: CudaOptions) -> Fit:
    """What is launched for a subject."""
    shapes = subject.shapes(job.megabytes, job.dtype)
    return options.fitter(fast_math=False).fit(program_of(subject, job.dtype), shapes)


def arrays_of(subject: Subject, job: Measured) -> list[np.ndarray]:
    """Random inputs, the same every time."""
    random = np.random.default_rng(0)
    shapes = subject.shapes(job.megabytes, job.dtype)
    return [random.standard_normal(shape, np.float32).astype(job.dtype) for shape in shapes]


def measure_all(todo: Sequence[Measured], deadline: float, progress: Callable[[str], None]) -> None:
    """Fill in what can be measured until the deadline (of ``time.monotonic``).

    The kernel's results have to be NumPy's, bit for bit.  What gives wrong ones is not timed.
    """
    with open_gpu() as gpu:
        for job in todo:
            if time.monotonic() > deadline:
                return
            progress(f"parts: {job.chain}, {job.dtype}, {job.megabytes} MB")
            subject = SUBJECTS[job.chain]
            arrays = arrays_of(subject, job)
            for system, run in (("kernel", _kernel), ("ort", _session)):
                try:
                    run(gpu, subject, job, arrays)
                except Exception as error:  # one that fails leaves the others
                    job.errors[system] = one_line(error)


def try_on_cpu(subject: Subject) -> None:
    """The subject in a session on the CPU, small, and its source: what needs no GPU.  Raises what goes wrong."""
    job = Measured(subject.name, "float32", 1, 0)
    source = fit_of(subject, job, CudaOptions(COMMON[-1:], embed=False)).source
    arrays = arrays_of(subject, job)
    if len(source.parts) != len(arrays) or not source.joint:
        raise ValueError(f"{subject.name}: no kernel computes all parts")
    feeds = {f"x{place}": x for place, x in enumerate(arrays)}
    model = onnx_model(subject, job.dtype, [x.shape for x in arrays])
    session = BoundSession(model.SerializeToString(), feeds, library=False, on_gpu=False)
    session.run()
    for result, wanted in zip(session.results(), expected(subject, arrays), strict=True):
        np.testing.assert_array_equal(result, wanted)


def _kernel(gpu: Gpu, subject: Subject, job: Measured, arrays: Sequence[np.ndarray]) -> None:
    options = CudaOptions((gpu.architecture,))
    fit = fit_of(subject, job, options)
    code = options.compiler.compile([fit.source.text], (gpu.architecture,), options.fitter(fast_math=False).options)
    loaded = LoadedSource(gpu, fit.program, fit.source, code[fit.source.sha256, gpu.architecture].cubin)
    wanted = expected(subject, arrays)
    memory = [gpu.allocate(array.nbytes) for array in (*arrays, *wanted)]
    for place, array in enumerate(arrays):
        gpu.driver.memcpy_htod(memory[place], array)
    launch = loaded.prepare([x.shape for x in arrays], [int(place) for place in memory])
    launch()
    for place, right in zip(memory[len(arrays) :], wanted, strict=True):
        result = np.empty(right.nbytes, np.uint8)
        gpu.driver.memcpy_dtoh(result, place)
        wrong = int(np.count_nonzero(result.view(right.dtype).reshape(right.shape) != right))
        if wrong:
            raise ValueError(f"wrong results: {wrong} of {right.size} elements")
    job.seconds["kernel"] = launch_seconds(gpu, launch)
    job.seconds["copy"] = job.bytes / copy_bandwidth(gpu, job.bytes // 2)


def _session(_gpu: Gpu, subject: Subject, job: Measured, arrays: Sequence[np.ndarray]) -> None:
    """ONNX Runtime with the nodes as they are."""
    model = onnx_model(subject, job.dtype, [x.shape for x in arrays])
    feeds = {f"x{place}": x for place, x in enumerate(arrays)}
    job.seconds["ort"] = BoundSession(model.SerializeToString(), feeds, library=False, graph=True).seconds()
