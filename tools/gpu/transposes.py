"""How near kernels that read a tensor in another order come to a copy.

A subject is a tensor of some factors and the order in which they are read, with two operations on the elements so that
it is an elementwise Program.
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
from onnxfuse.program import Program, ProgramBuilder
from onnxfuse.program.program import Input
from onnxfuse.program.view_steps import ViewStep
from tools.gpu.kernels import DTYPES, Measured
from tools.gpu.programs import Case, measure, random_arrays, run_on_cpu

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
        helper.make_node("Transpose", ["x0"], ["turned"], perm=list(subject.order)),
        helper.make_node("Abs", ["turned"], ["magnitude"]),
        helper.make_node("Add", ["magnitude", "one"], ["y"]),
    ]
    rank = len(subject.order)
    values = [helper.make_tensor_value_info(name, element, [None] * rank) for name in ("x0", "y")]
    graph = helper.make_graph(nodes, "transpose", values[:1], values[1:], [one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def case_of(job: Measured) -> Case:
    """A job's subject at its size."""
    subject = SUBJECTS[job.chain]
    (x,) = random_arrays([subject.shape(job.megabytes, job.dtype)], job.dtype)
    wanted = np.abs(x.transpose(subject.order)) + x.dtype.type(1)
    return Case(program_of(subject, job.dtype), onnx_model(subject, job.dtype), [x], [wanted])


def measure_all(todo: Sequence[Measured], deadline: float, progress: Callable[[str], None]) -> None:
    """Fill in what can be measured until the deadline (of ``time.monotonic``)."""
    measure("transposes", todo, case_of, deadline, progress)


def try_on_cpu(subject: Subject) -> None:
    """The subject in a session on the CPU, small, and its source: what needs no GPU.  Raises what goes wrong."""
    case = case_of(Measured(subject.name, "float32", 0.1, 0))
    case.fit(CudaOptions(COMMON[-1:], embed=False))
    run_on_cpu(case)
