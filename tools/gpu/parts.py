"""How near kernels of several parts come to a copy: Concats of two activations, and small maps that share a launch.

A subject is maps of tensors of its own, whose results are joined or apart.  All parts are launched as one kernel.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.model.dtypes import from_numpy
from onnxfuse.program import Program
from tools.gpu.kernels import DTYPES, Measured
from tools.gpu.programs import Case, measure, random_arrays, run_on_cpu

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


def case_of(job: Measured) -> Case:
    """A job's subject at its size."""
    subject = SUBJECTS[job.chain]
    arrays = random_arrays(subject.shapes(job.megabytes, job.dtype), job.dtype)
    results = [np.abs(x) + x.dtype.type(1) for x in arrays]
    wanted = results if subject.axis == 0 else [np.concatenate(results, subject.axis)]
    model = onnx_model(subject, job.dtype, [x.shape for x in arrays])
    return Case(program_of(subject, job.dtype), model, arrays, wanted)


def measure_all(todo: Sequence[Measured], deadline: float, progress: Callable[[str], None]) -> None:
    """Fill in what can be measured until the deadline (of ``time.monotonic``)."""
    measure("parts", todo, case_of, deadline, progress)


def try_on_cpu(subject: Subject) -> None:
    """The subject in a session on the CPU, small, and its source: what needs no GPU.  Raises what goes wrong."""
    case = case_of(Measured(subject.name, "float32", 1, 0))
    source = case.fit(CudaOptions(COMMON[-1:], embed=False)).source
    if len(source.parts) != len(case.arrays) or not source.joint:
        raise ValueError(f"{subject.name}: no kernel computes all parts")
    run_on_cpu(case)
