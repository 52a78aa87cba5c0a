"""Convolutions measured against ONNX Runtime's, on a stand-in for PyCUDA that runs them in the emulation."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnxfuse
from onnxfuse.cuda import arch
from onnxfuse.cuda.compile import compiler as compilers
from onnxfuse.cuda.compile.cache import Cache
from onnxfuse.cuda.compile.compiled import Compiled
from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.conv import choice, fitting, tuning
from onnxfuse.cuda.conv import tunings as files
from onnxfuse.cuda.conv.case import ConvCase
from onnxfuse.cuda.conv.fitting import Tilings
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.cuda.conv.tiling import Tiling
from onnxfuse.cuda.conv.tuning import ConvTuner, made_up, sizes_of
from onnxfuse.cuda.conv.tunings import OURS, THEIRS, read_tunings
from onnxfuse.cuda.elementwise.renderer import compile_options
from onnxfuse.cuda.pycuda_tools import open_gpu
from onnxfuse.errors import OnnxfuseError
from onnxfuse.program import Program, reference
from onnxfuse.targets import request
from onnxfuse.targets.cuda import measuring
from onnxfuse.targets.cuda.baseline import OrtBaseline, baseline_model
from tests.cuda.compilers import MadeUpCompiler
from tests.cuda.conv.convolutions import convolve
from tests.cuda.fake_pycuda import FakeGpu, install
from tests.cuda.stand_in import AVAILABLE, REASON
from tests.support import fusing

needs_a_compiler = pytest.mark.skipif(not AVAILABLE, reason=REASON)

TAIL = Program.parse(
    "onnxfuse 1\ninput f32 broadcast\ninput f32 axis 1\ninput f32 broadcast\nadd f32 0 1\nrelu f32 3\nadd f32 4 2\n"
    "output 5\n"
)
POINTWISE = Convolution(False, "f32", 8, 16, 1, (1, 1), (1, 1), (1, 1), (0, 0, 0, 0), "NOTSET", (0, 0))
CASE = ConvCase(POINTWISE, (1, 8, 6, 6), TAIL, ((16,), (1, 16, 6, 6)))
SMALL = Tiling("gemm", (32, 32, 16), (4, 4), 4)
WIDE = Tiling("gemm", (32, 64, 16), (4, 4), 4)


class _TextCompiler(MadeUpCompiler):
    """Its machine code is the source."""

    def compile(self, source: str, architecture: str, options: tuple[str, ...]) -> Compiled:
        compiled = super().compile(source, architecture, options)
        return Compiled(source.encode(), compiled.ptx, compiled.resources)


class _Baseline:
    """ONNX Runtime, in a time that is made up."""

    version = "made-up"

    def __init__(self, *times: float) -> None:
        self._times = list(times)
        self.shapes: list[tuple[int, ...]] = []

    def seconds(self, case: ConvCase, x_shape: Sequence[int], values: Sequence[np.ndarray]) -> float:
        assert [array.shape for array in values[:2]] == [tuple(x_shape), case.conv.weight_shape]
        self.shapes.append(tuple(x_shape))
        return self._times.pop(0) if len(self._times) > 1 else self._times[0]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeGpu:
    made_up_gpu = FakeGpu()
    install(monkeypatch, made_up_gpu)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _offer(monkeypatch, (SMALL,), (WIDE,))
    return made_up_gpu


def _offer(monkeypatch: pytest.MonkeyPatch, *tilings: Tilings) -> None:
    """Only these candidates, for compiling takes time."""
    for module in (fitting, choice, measuring, tuning):
        monkeypatch.setattr(module, "tilings_of", lambda case: list(tilings), raising=False)
    monkeypatch.setattr(files, "candidates", lambda conv, shape, tf32: list(tilings))


def _tuner(gpu: object, folder: Path, baseline: _Baseline) -> ConvTuner:
    compiler = CompilerCache(_TextCompiler(), Cache(folder))
    return ConvTuner(gpu, compiler, compile_options(False), False, baseline)  # type: ignore[arg-type]


@needs_a_compiler
def test_the_fastest_kernel_that_is_right_is_measured_against_onnx_runtime(gpu: FakeGpu, tmp_path: Path) -> None:
    gpu.cost = lambda name: 1e-3 if name.endswith("any") else 2e-5
    with open_gpu() as opened:
        entry = _tuner(opened, tmp_path, _Baseline(3e-5)).measure(CASE)
    assert entry is not None and (entry.winner, entry.gpu, entry.onnxruntime) == (OURS, "made-up GPU", "made-up")
    assert entry.tilings == (SMALL,) and entry.ratio() == pytest.approx(1.5)
    (times,) = entry.times
    assert times.input == (1, 8, 6, 6) and times.onnxfuse == pytest.approx(2e-5)
    wrong = next(name for name in gpu.launched if "gemm" in name)
    gpu.wrong = {wrong}
    with open_gpu() as opened:
        entry = _tuner(opened, tmp_path, _Baseline(1e-5)).measure(CASE)
    assert entry is not None and (entry.winner, entry.tilings) == (THEIRS, (WIDE,))
    assert not gpu.memory and gpu.contexts == 0


@needs_a_compiler
def test_a_split_sum_is_launched_with_its_second_kernel(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = ConvCase(replace(POINTWISE, in_channels=64), (1, 64, 4, 4), TAIL, ((16,), (1, 16, 4, 4)))
    _offer(monkeypatch, (replace(SMALL, split=2),))
    gpu.cost = lambda name: 1e-5
    with open_gpu() as opened:
        entry = _tuner(opened, tmp_path, _Baseline(3e-5)).measure(deep)
    assert entry is not None and entry.winner == OURS and entry.times[0].onnxfuse == pytest.approx(2e-5)
    assert any(name.endswith("_sum") for name in gpu.launched)


@needs_a_compiler
def test_without_a_kernel_that_is_right_onnx_runtime_wins(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _offer(monkeypatch)
    with open_gpu() as opened:
        entry = _tuner(opened, tmp_path, _Baseline(1.0)).measure(CASE)
    assert entry is not None and (entry.winner, entry.tilings, entry.ratio()) == (THEIRS, (), None)


@needs_a_compiler
def test_open_sizes_are_measured_on_a_range_and_none_may_be_slower(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "BATCHES", (1, 2))
    monkeypatch.setattr(tuning, "SIZES", (4, 8))
    _offer(monkeypatch, (SMALL,))
    gpu.cost = lambda name: 1e-5
    case = ConvCase(POINTWISE, ("n", 8, "h", "w"), TAIL, ((16,), ("n", 16, "h", "w")))
    baseline = _Baseline(5e-5, 5e-5, 5e-5, 0.9e-5)
    with open_gpu() as opened:
        entry = _tuner(opened, tmp_path, baseline).measure(case)
    assert entry is not None and entry.key.input == (None, 8, None, None)
    assert baseline.shapes == [(1, 8, 4, 4), (1, 8, 8, 8), (2, 8, 4, 4), (2, 8, 8, 8)]
    assert entry.winner == THEIRS
    with open_gpu() as opened:
        entry = _tuner(opened, tmp_path, _Baseline(5e-5)).measure(case)
    assert entry is not None and entry.winner == OURS


def test_sizes_that_do_not_fit_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SIZES", (4, 64))
    large = replace(POINTWISE, kernel=(9, 9), in_channels=4096)
    assert sizes_of(ConvCase(large, (1, 4096, None, None), TAIL, ((16,), None))) == [(1, 4096, 64, 64)]
    assert sizes_of(ConvCase(large, (16, 4096, None, None), TAIL, ((16,), None))) == []
    assert sizes_of(replace(CASE, x_shape=(0, 8, 6, 6))) == []


def test_the_baseline_computes_the_same_with_the_elementwise_work_fused() -> None:
    head = Program.parse("onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nmul f32 0 1\noutput 2\n")
    case = replace(CASE, prologue=head, prologue_shapes=((1, 8, 1, 1),))
    values = made_up(case, (1, 8, 6, 6))
    model = baseline_model(case, (1, 8, 6, 6), values[1:], 2)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["FusedElementwise", "Conv", "FusedElementwise"] * 2
    results = fusing.run(model, {"x0": values[0], "x1": values[0]}, library=True)
    (before,) = reference.run(head, [values[0], values[2]])
    (expected,) = reference.run(TAIL, [convolve(POINTWISE, before, values[1]), *values[3:]])
    for result in results:
        np.testing.assert_allclose(result, expected, 1e-5, 1e-5)
    assert 0 < OrtBaseline(on_gpu=False).seconds(case, (1, 8, 6, 6), values) < 1


def test_what_onnx_runtime_cannot_run_is_an_error_of_one_line() -> None:
    half = Program.parse("onnxfuse 1\ninput bf16 broadcast\nrelu bf16 0\noutput 1\n")
    case = ConvCase(replace(POINTWISE, dtype="bf16"), (1, 8, 6, 6), half, ())
    values = [np.zeros(shape, ml_dtypes.bfloat16) for shape in ((1, 8, 6, 6), (16, 8, 1, 1))]
    with pytest.raises(OnnxfuseError, match="bfloat16"):
        OrtBaseline(on_gpu=False).seconds(case, (1, 8, 6, 6), values)
    with pytest.raises(OnnxfuseError, match=r"does not run the convolution: [^\n]*$"):
        OrtBaseline(on_gpu=False).seconds(CASE, (1, 8, 6, 6), made_up(CASE, (1, 8, 6, 6))[:-1])


MODEL = (
    '<ir_version: 9, opset_import: ["" : 20]>'
    " g (float[1, 8, 6, 6] x) => (float[1, 8, 4, 4] y) { a = Conv (x, w) r = Relu(a) y = Softmax(r) }"
)


def _model() -> onnx.ModelProto:
    made = parser.parse_model(MODEL)
    made.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8, 3, 3), np.float32), "w"))
    return made


@needs_a_compiler
def test_optimize_measures_convolutions_and_the_file_serves_elsewhere(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilers, "find_compiler", _TextCompiler)
    for module in ("onnxfuse.cuda.arch", "onnxfuse.cuda.compile.compiler"):
        monkeypatch.setattr(f"{module}.devices", lambda: ("sm_90",))
    monkeypatch.setattr(request, "why_no_cuda", lambda: "there is no provider in this test")
    monkeypatch.setattr(measuring.MeasuringChooser.__init__, "__defaults__", (lambda: _Baseline(3e-5), False))
    gpu.cost = lambda name: 1e-5
    files.own_file().parent.mkdir(parents=True)
    files.own_file().write_text("{")  # damaged: it counts as empty, and is written anew
    report = onnxfuse.optimize(
        _model(), "cuda", tune=True, tuning=tmp_path / "mine.json", check=False, time_kernels=True
    ).report
    (found,) = report.convolutions
    assert found.fused and "ONNX Runtime takes 3.00 times as long" in found.reason
    assert report.cuda is not None
    (kernel,) = report.cuda.kernels.values()
    assert (kernel.choice, kernel.family, kernel.tile) == ("tuned", "gemm", "32x32x16")
    assert kernel.times is not None and kernel.times.microseconds == pytest.approx(10)
    data = json.loads((tmp_path / "mine.json").read_text())
    assert [entry["winner"] for entry in data["entries"]] == [OURS]
    assert list(read_tunings(tmp_path / "mine.json")) == list(files.own_tunings())

    files.own_file().unlink()
    monkeypatch.setattr(arch, "devices", tuple)
    for given, fused in (([], False), ([tmp_path / "mine.json"], True)):
        report = onnxfuse.optimize(_model(), "cuda", arch="sm_90", tuning=given, check=False).report
        assert report.convolutions[0].fused == fused


def test_what_cannot_be_measured_is_a_warning(
    gpu: FakeGpu, tmp_path: Path, compiler: MadeUpCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arch, "devices", lambda: ("sm_90",))
    monkeypatch.setitem(sys.modules, "pycuda", None)
    monkeypatch.setitem(sys.modules, "pycuda.driver", None)
    messages: list[str] = []
    chooser = measuring.MeasuringChooser(
        choice.ConvPolicy.AUTO,
        files.Tunings(),
        ("sm_90",),
        CompilerCache(compiler),
        (),
        False,
        messages.append,
        messages.append,
    )
    assert chooser.might(POINTWISE).fused
    assert chooser.choose(CASE) == chooser.choose(CASE) == choice.FEW_CHANNELS  # by the rule
    assert len(messages) == 2 and messages[1].startswith("a convolution was not measured: PyCUDA cannot be used")
    assert len(chooser.measured) == 0
