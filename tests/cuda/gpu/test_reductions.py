"""What reduces that scripts/gpu_suite.py times, without a GPU."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxfuse
from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.nest.arguments import pack
from onnxfuse.cuda.nest.launch import LoadedNest, choose
from onnxfuse.cuda.nest.layout import lay_out
from onnxfuse.cuda.nest.renderer import case_of, render_nest
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.cuda.pycuda_tools import Gpu
from tests.cuda.compilers import MadeUpCompiler
from tests.cuda.nest import programs as nest_programs
from tools.gpu import reduction_chains as gpu_reduction_chains
from tools.gpu import reductions as gpu_reductions
from tools.gpu import report as gpu_report
from tools.gpu.reduction_chains import CHAINS, SUBJECTS, Reducing, ReducingOps

ERF = np.vectorize(math.erf, otypes=[np.float32])
LEFT = {"GELU of a transpose, residual", "concat of two activations"}
"""Those that reduce nothing."""


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=lambda subject: subject.name)
def test_a_subject_is_the_same_for_every_system(subject: Reducing) -> None:
    model = gpu_reduction_chains.onnx_model(subject, "float32")
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, gpu_reduction_chains.feeds(subject, 0.02, "float32"))
    arrays = subject.arrays(0.02, "float32")
    for index, (shape, array) in enumerate(zip(subject.inputs, subject.arrays(0.001, "float32"), strict=True)):
        if 0 not in shape:
            arrays[index] = array
    ops = ReducingOps(np, np.dtype("float32"), {"erf": lambda a: ERF(a).astype(np.float32)})
    expected = subject.build(ops, *arrays)
    assert result.shape == gpu_reduction_chains.output_shape(subject, [array.shape for array in arrays])
    np.testing.assert_allclose(result, expected, 1e-3, 1e-4)


@pytest.mark.parametrize(
    "subject", [one for one in SUBJECTS.values() if one.name not in LEFT], ids=lambda one: one.name
)
def test_it_is_one_node_that_reads_a_row_once_where_it_fits(subject: Reducing, compiler: MadeUpCompiler) -> None:
    model = onnxfuse.optimize(gpu_reduction_chains.onnx_model(subject, "float16"), "cuda", check=False).model
    fit = gpu_reductions.fit_of(model, CudaOptions(COMMON[-1:], embed=False))
    assert fit is not None
    layout = lay_out(
        fit.program, [(2, *shape[1:]) if 0 in shape else shape for shape in _operand_shapes(subject, model)]
    )
    main = fit.source.kernels[0]
    assert fit.traffic(main) == 1 or (main.steps or not main.items)
    if main.items:
        assert layout.length <= main.capacity


def _operand_shapes(subject: Reducing, model: onnx.ModelProto) -> list[tuple[int, ...]]:
    shapes = {f"x{index}": shape for index, shape in enumerate(subject.inputs)}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    return [shapes[name] for name in model.graph.node[0].input]


def test_jobs_and_their_bytes() -> None:
    jobs = list(gpu_reductions.jobs())
    assert len(jobs) == 4 * 2 * len(SUBJECTS) and len(CHAINS) == 10
    first = next(job for job in jobs if job.chain == "L2 normalize" and job.megabytes == 64)
    assert first.bytes == pytest.approx(128e6, rel=0.01)
    means = next(job for job in jobs if job.chain == "mean of rows" and job.megabytes == 64)
    assert means.bytes == pytest.approx(64e6, rel=0.01)


def test_the_report_has_them() -> None:
    jobs = list(gpu_reductions.jobs())[:2]
    for job in jobs:
        job.seconds = {"kernel": 1e-4, "copy": 0.95e-4, "ort": 4e-4, "onnxfuse": 2e-4, "torch": 1.1e-4, "jax": 1.2e-4}
    results = gpu_report.Results(reductions=jobs)
    text = gpu_report.markdown(results)
    assert "## Reductions" in text and "L2 normalize" in text
    found = {target.name: target for target in gpu_report.targets(results)}
    assert found["share of copy bandwidth, 64 MB and up, what reduces"].measured == pytest.approx(0.95)
    assert found["against ORT, what reduces"].measured == pytest.approx(2)


def test_trying_on_the_cpu(compiler: MadeUpCompiler) -> None:
    gpu_reductions.try_on_cpu(SUBJECTS["L2 normalize"])


class _Function:
    def __init__(self, name: str, calls: list[tuple[Any, ...]]) -> None:
        self.name, self.calls = name, calls

    def prepare(self, formats: list[str]) -> None:
        self.calls.append(("prepare", self.name, formats))

    def prepared_async_call(
        self, grid: tuple[int, int], block: tuple[int, int, int], stream: Any, *values: bytes
    ) -> None:
        self.calls.append(("launch", self.name, grid, block, stream, b"".join(values)))


def test_launches_are_those_of_the_native_library() -> None:
    """Of rows that blocks share, one for each pass, with a workspace."""
    program = nest_programs.chains("f32")["log softmax"].program
    source = render_nest(case_of(program, [("n", "m")]))
    calls: list[tuple[Any, ...]] = []
    module = SimpleNamespace(get_function=lambda name: _Function(name, calls))
    driver = SimpleNamespace(module_from_buffer=lambda cubin: module, mem_alloc=lambda size: 4096)
    loaded = LoadedNest(Gpu("made-up", "sm_90", 8, driver), program, source, b"")
    launch = loaded.prepare([(1, 20000)], [256, 512])
    launch("stream")
    kernel, grid = choose(source.kernels, lay_out(program, [(1, 20000)]), [256, 512], 8)
    launched = [call for call in calls if call[0] == "launch"]
    assert kernel.steps == 3 and [call[1] for call in launched] == list(kernel.functions)
    arguments = b"".join(pack(kernel, launch.layout, grid, [256, 512], 4096))
    assert all(call[2:] == ((grid.blocks, 1), (kernel.block, 1, 1), "stream", arguments) for call in launched)
    calls.clear()
    loaded.prepare([(0, 7)], [256, 512])()
    assert [call[0] for call in calls] == ["prepare"]
