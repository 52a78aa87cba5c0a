"""Launching and timing kernels through PyCUDA, here a stand-in that runs them in the emulation."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import onnxfuse
from onnxfuse.cuda import arch, tuner
from onnxfuse.cuda.compile import compiler as compilers
from onnxfuse.cuda.compile.cache import Cache
from onnxfuse.cuda.compile.compiled import Compiled
from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.compile.resources import Resources
from onnxfuse.cuda.elementwise.fitting import Fitter
from onnxfuse.cuda.elementwise.launch import LoadedSource
from onnxfuse.cuda.elementwise.renderer import Tuning, render
from onnxfuse.cuda.kernel import Access
from onnxfuse.cuda.pycuda_tools import copy_bandwidth, occupancy, open_gpu, resources, seconds
from onnxfuse.cuda.tuned import TunedKernels
from onnxfuse.cuda.tuner import Bench, Case, sizes_for
from onnxfuse.errors import OnnxfuseError
from onnxfuse.program import Program, ProgramError
from onnxfuse.program.reference import run
from onnxfuse.report.report_html import render as render_page
from onnxfuse.targets import request
from tests.cuda.compilers import MadeUpCompiler
from tests.cuda.fake_pycuda import FakeGpu, install
from tests.cuda.stand_in import AVAILABLE, REASON

needs_a_compiler = pytest.mark.skipif(not AVAILABLE, reason=REASON)

PROGRAM = Program.parse(
    "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nmul f32 0 1\nrelu f32 2\noutput 3\noutput 2\n"
)


class _TextCompiler(MadeUpCompiler):
    """Its machine code is the source."""

    def compile(self, source: str, architecture: str, options: tuple[str, ...]) -> Compiled:
        compiled = super().compile(source, architecture, options)
        return Compiled(source.encode(), compiled.ptx, compiled.resources)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    made_up = FakeGpu()
    install(monkeypatch, made_up)
    return made_up


def _bench_parts(tmp_path: Path) -> tuple[CompilerCache, Fitter, TunedKernels]:
    cache = Cache(tmp_path)
    compiler = CompilerCache(_TextCompiler(), cache)
    tuned = TunedKernels(("sm_90",), cache)
    return compiler, Fitter(compiler, ("sm_90",), False, tuned), tuned


@needs_a_compiler
@pytest.mark.parametrize(("shapes", "letter"), [([(3, 8), (8,)], "i"), ([(3, 5), (3, 1)], "o"), ([(7,), (1,)], "s")])
def test_a_launch_computes_what_the_program_says(gpu: FakeGpu, shapes: list[tuple[int, ...]], letter: str) -> None:
    source = render(PROGRAM, [Access("l" + letter, "ll")])
    inputs = [np.random.default_rng(0).normal(size=shape).astype(np.float32) for shape in shapes]
    with open_gpu() as opened:
        assert (opened.name, opened.architecture, opened.multiprocessors) == ("made-up GPU", "sm_90", 2)
        places = [opened.allocate(array.nbytes) for array in inputs]
        places += [opened.allocate(inputs[0].nbytes) for _ in range(2)]
        for place, array in zip(places, inputs, strict=False):
            opened.driver.memcpy_htod(place, array.reshape(-1))
        launch = LoadedSource(opened, PROGRAM, source, source.text.encode()).prepare(
            shapes, [int(place) for place in places]
        )
        launch()
        results = [np.empty(inputs[0].nbytes, np.uint8) for _ in range(2)]
        for result, place in zip(results, places[2:], strict=True):
            opened.driver.memcpy_dtoh(result, place)
    assert launch.kernel.access.inputs == "l" + letter
    for result, expected in zip(results, run(PROGRAM, inputs), strict=True):
        np.testing.assert_array_equal(result.view(np.float32).reshape(shapes[0]), expected)
    assert gpu.contexts == 0


@needs_a_compiler
def test_nothing_is_launched_for_no_elements(gpu: FakeGpu) -> None:
    source = render(PROGRAM, [Access("ll", "ll")])
    with open_gpu() as opened:
        address = int(opened.allocate(0))
        LoadedSource(opened, PROGRAM, source, source.text.encode()).prepare([(0, 3), (0, 3)], [address] * 4)()
    assert gpu.launched == []


def test_times_are_medians_of_many_runs(gpu: FakeGpu) -> None:
    def run_once() -> None:
        gpu.now += 2e-4

    with open_gpu() as opened:
        assert seconds(opened, run_once) == pytest.approx(2e-4)
        assert copy_bandwidth(opened, 1 << 20) == pytest.approx(1e12)


@pytest.mark.parametrize(("registers", "block", "share"), [(40, 256, 1), (56, 256, 4 / 6), (16, 32, 0.5)])
def test_what_the_driver_says_of_a_kernel(gpu: FakeGpu, registers: int, block: int, share: float) -> None:
    """On a GPU of 1536 threads and 24 blocks a multiprocessor, which pycuda.tools does not know."""

    class Function:
        num_regs, local_size_bytes, shared_size_bytes = registers, 16, 0

    assert resources(Function()) == Resources(registers, stack=16)
    with open_gpu() as opened:
        assert occupancy(opened, Function(), block) == pytest.approx(share)


@needs_a_compiler
def test_the_tuner_keeps_the_fastest_variant_that_is_right(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "VECTORS", (1, 2, 4))
    monkeypatch.setattr(tuner, "BLOCKS", (128,))
    compiler, fitter, tuned = _bench_parts(tmp_path)
    fit = fitter.fit(PROGRAM, [("n", 16), (16,)])
    case = Case(fit, sizes_for(PROGRAM, [("n", 16), (16,)], 256))
    gpu.cost = lambda name: 1e-5 / (4 if "_v1" in name else 3 if "_v2" in name else 1)
    right = render(PROGRAM, [fit.access], Tuning(1, 256)).kernels[0].name
    gpu.wrong = {right}
    with open_gpu() as opened:
        best = Bench(opened, compiler, fitter.options).tune(case, tuned)
    assert best == Tuning(2, 256)
    assert tuned.find(PROGRAM, fit.access, fitter.options) == best
    fitter.forget()
    again = fitter.fit(PROGRAM, [("n", 16), (16,)])
    assert (again.choice.value, again.source.kernels[0].vector) == ("tuned", 2)
    assert not gpu.memory


@needs_a_compiler
def test_optimize_tunes_and_times(gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, sizes in (("VECTORS", (1, 4)), ("BLOCKS", (256,)), ("ELEMENTS", 64)):
        monkeypatch.setattr(tuner, name, sizes)
    monkeypatch.setattr(tuner.sizes_for, "__defaults__", (64,))
    monkeypatch.setattr(compilers, "find_compiler", _TextCompiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for module in ("onnxfuse.cuda.arch", "onnxfuse.cuda.compile.compiler"):
        monkeypatch.setattr(f"{module}.devices", lambda: ("sm_90",))
    monkeypatch.setattr(request, "why_no_cuda", lambda: "there is no provider in this test")
    gpu.cost = lambda name: 1e-5 if "_v1" in name else 2e-5
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> g (float[n, 4] x) => (float[n, 4] y) { a = Relu(x) y = Add(a, x) }'
    )
    report = onnxfuse.optimize(model, "cuda", tune=True, time_kernels=True).report
    assert report.cuda is not None and report.cuda.describe().endswith("Sizes: 1 tuned.")
    (kernel,) = report.cuda.kernels.values()
    assert (kernel.choice, kernel.vector, kernel.block) == ("tuned", 1, 256)
    assert kernel.times is not None
    assert kernel.times.microseconds == pytest.approx(10) and kernel.times.elements == 64
    assert kernel.times.share_of_copy == pytest.approx(2 * 4 * 64 / 1e-5 / 1e12)
    assert (kernel.times.registers, kernel.times.local_bytes, kernel.times.occupancy) == (40, 0, 1)
    assert "10.0 µs, 0 % of a copy; 40 registers, 0 B local, 0 B shared, 100 % by the driver" in render_page(report)
    with pytest.raises(OnnxfuseError, match="sm_90, which is not among"):
        onnxfuse.optimize(model, "cuda", tune=True, arch="sm_80")


def test_what_pycuda_raises_is_an_error_of_ours(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    import pycuda.driver

    with pytest.raises(OnnxfuseError, match="the GPU failed: cuMemAlloc failed: out of memory"), open_gpu():
        raise pycuda.driver.Error("cuMemAlloc failed: out of memory")
    assert gpu.contexts == 0


def test_the_primary_context_is_taken_once(gpu: FakeGpu) -> None:
    """PyCUDA detaches from it when its object goes, and ONNX Runtime would have none."""
    for _ in range(3):
        with open_gpu():
            assert gpu.contexts == 1
    assert (gpu.contexts, gpu.retained) == (0, 1)


def test_without_pycuda_or_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeGpu(), devices=0)
    with pytest.raises(OnnxfuseError, match="no CUDA GPU"), open_gpu():
        pass
    monkeypatch.setitem(sys.modules, "pycuda", None)
    monkeypatch.setitem(sys.modules, "pycuda.driver", None)
    with pytest.raises(OnnxfuseError, match="pip install pycuda"), open_gpu():
        pass


def test_without_pycuda_nothing_is_timed_and_the_report_says_why(
    compiler: MadeUpCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pycuda", None)
    monkeypatch.setitem(sys.modules, "pycuda.driver", None)
    monkeypatch.setattr(arch, "devices", lambda: ("sm_90",))
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> g (float[n, 4] x) => (float[n, 4] y) { a = Relu(x) y = Add(a, x) }'
    )
    assert not onnxfuse.optimize(model, "cuda", check=False).report.warnings
    report = onnxfuse.optimize(model, "cuda", check=False, time_kernels=True).report
    (warning,) = report.warnings
    assert warning.startswith("the kernels were not timed: PyCUDA cannot be used")


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([("n", 64), (64,)], ((64, 64), (64,))),
        ([("n", "c", 4), ("c", 1)], ((1, 1024, 4), (1024, 1))),
        ([("n",), ("m",)], ((4096,), (4096,))),
        ([("n", "m"), ("k", 1, 8)], ((512, 8), (1, 1, 8))),
        ([None, (3, 4)], ((3, 4), (3, 4))),
        ([None, None], ((4096,), (4096,))),
        ([(2, 3), (3,)], ((2, 3), (3,))),
    ],
)
def test_sizes_for_dimensions_that_are_not_known(shapes: list[object], expected: tuple[tuple[int, ...], ...]) -> None:
    assert sizes_for(PROGRAM, shapes, 4096) == expected  # type: ignore[arg-type]


def test_sizes_for_what_is_read_through_views() -> None:
    """Of which the axes are others."""
    program = Program.parse(
        "onnxfuse 2\ninput f32 view split:-1:4:-1,permute:0.2.1.3\ninput f32 broadcast\nadd f32 0 1\noutput 2\n"
    )
    assert sizes_for(program, [("n", "length", 64), ("length", 16)], 1 << 20) == ((4, 4096, 64), (4096, 16))


def test_shapes_that_do_not_broadcast_have_no_sizes() -> None:
    with pytest.raises(ProgramError):
        sizes_for(PROGRAM, [(3,), (4,)])
