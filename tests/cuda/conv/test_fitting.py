"""Tilings by what the compiler says: the next one where registers run out, and ONNX Runtime's where none is good."""

import re
from collections.abc import Callable
from pathlib import Path

import onnx.parser
import pytest

import onnxfuse
from onnxfuse.cuda.compile import compiler as compilers
from onnxfuse.cuda.compile.cache import Cache
from onnxfuse.cuda.compile.compiled import Compiled
from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.compile.resources import Resources
from onnxfuse.cuda.conv.case import ConvCase
from onnxfuse.cuda.conv.choice import RuleChooser
from onnxfuse.cuda.conv.fitting import ConvFitter, Tilings, tilings_of
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.cuda.conv.tunings import OURS, TuningEntry, Tunings, key_of
from onnxfuse.cuda.tuned import Choice
from onnxfuse.fused.choices import ConvPolicy
from onnxfuse.program import Program
from tests.cuda.compilers import MadeUpCompiler

RELU = Program.parse("onnxfuse 1\ninput f32 broadcast\nrelu f32 0\noutput 1\n")
DEPTHWISE = Convolution(False, "f32", 512, 512, 512, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "NOTSET", (0, 0))
CASE = ConvCase(DEPTHWISE, ("n", 512, 56, 56), RELU, ())
ARCHITECTURES = ("sm_80", "sm_90")
_SIZES = re.compile(r"convolve_depthwise<\w+, ([\d, ]+)>")

Rule = Callable[[int, str], Resources]


class _BySums(MadeUpCompiler):
    """What ``rule`` says for the sums of a thread of a depthwise kernel on an architecture."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.rule = rule

    def compile(self, source: str, architecture: str, options: tuple[str, ...]) -> Compiled:
        compiled = super().compile(source, architecture, options)
        resources = {}
        for name, made_up in compiled.resources.items():
            body = source[source.index(f"\n{name}(") :].split('extern "C"')[0]
            sizes = _SIZES.search(body)
            rows, vector = map(int, sizes[1].split(", ")[3:5]) if sizes else (0, 0)
            resources[name] = self.rule(rows * vector, architecture) if sizes else made_up
        return Compiled(compiled.cubin, compiled.ptx, resources)


def spills_beyond(sums: int, where: str = "sm_80") -> Rule:
    """On one architecture threads of more sums than that spill."""
    return lambda own, name: Resources(64, spill_stores=4 * own if own > sums and name == where else 0)


def fitter(tmp_path: Path, rule: Rule, tunings: Tunings | None = None) -> ConvFitter:
    compiler = CompilerCache(_BySums(rule), Cache(tmp_path))
    return ConvFitter(compiler, (), ARCHITECTURES, False, tunings or Tunings())


def sums(tilings: Tilings) -> int:
    return tilings[0].thread[0] * tilings[0].vector


def test_the_best_by_argument_is_taken_if_it_is_good(tmp_path: Path) -> None:
    fit = fitter(tmp_path, spills_beyond(1000)).fit(CASE)
    assert fit.choice is Choice.HEURISTIC and not fit.problem
    assert fit.source.kernels[0].tile == tilings_of(CASE)[0][0].tile


@pytest.mark.parametrize("where", ARCHITECTURES)
def test_what_spills_on_any_architecture_gives_way(tmp_path: Path, where: str) -> None:
    fit = fitter(tmp_path, spills_beyond(8, where)).fit(CASE)
    wanted = next(tilings for tilings in tilings_of(CASE) if sums(tilings) <= 8)
    assert fit.choice is Choice.REGISTERS and not fit.problem
    assert [kernel.tile for kernel in fit.source.kernels[:-1]] == [tiling.tile for tiling in wanted]


def test_where_all_spill_the_least_is_kept_and_is_a_problem(tmp_path: Path) -> None:
    fit = fitter(tmp_path, lambda own, name: Resources(64, spill_loads=own)).fit(CASE)
    least = min(sums(tilings) for tilings in tilings_of(CASE))
    assert fit.problem == (
        f"its kernels run out of registers in every tiling, and spill {least} bytes a thread on sm_90"
    )


def test_low_occupancy_is_a_problem(tmp_path: Path) -> None:
    fit = fitter(tmp_path, lambda own, name: Resources(255)).fit(CASE)
    assert fit.problem == "its kernels leave 88 % of the threads of sm_80 out, in every tiling"


def test_a_convolution_without_a_good_kernel_is_left_to_onnx_runtime(tmp_path: Path) -> None:
    bad, good = fitter(tmp_path / "bad", spills_beyond(0)), fitter(tmp_path / "good", spills_beyond(8))
    for policy in (ConvPolicy.AUTO, ConvPolicy.ALL):
        choice = RuleChooser(policy, fitter=bad).choose(CASE)
        assert not choice.fused and "run out of registers" in choice.reason
        assert RuleChooser(policy, fitter=good).choose(CASE).fused


def test_what_was_measured_needs_no_compiler_to_say_so(tmp_path: Path) -> None:
    tuned = tilings_of(CASE)[0]
    entry = TuningEntry(key_of(CASE, "sm_90", False), "made-up GPU", "1.31.1", OURS, tuned, ())
    bad = fitter(tmp_path, spills_beyond(0), Tunings([entry]))
    assert bad.fit(CASE).choice is Choice.TUNED and not bad.fit(CASE).problem
    assert RuleChooser(tunings=Tunings([entry]), architectures=ARCHITECTURES, fitter=bad).choose(CASE).fused


def test_the_report_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[n, 512, 56, 56] x, float[512, 1, 3, 3] w) => (float[n, 512, 56, 56] z)
        { y = Conv <group = 512, pads = [1, 1, 1, 1]> (x, w)  z = Relu(y) }"""
    )
    made: list[_BySums] = []

    def optimized(rule: Rule) -> tuple[str, str]:
        made.append(_BySums(rule))
        made[-1].version = f"made-up {len(made)}"
        monkeypatch.setattr(compilers, "find_compiler", lambda: made[-1])
        result = onnxfuse.optimize(model, "cuda", arch=ARCHITECTURES, check=False)
        (choice,) = result.report.convolutions
        kernels = [] if result.report.cuda is None else list(result.report.cuda.kernels.values())
        return choice.reason, kernels[0].choice if kernels else ""

    assert optimized(spills_beyond(1000)) == (
        "depthwise: memory is what counts, and the fused kernel goes through it once",
        "heuristic",
    )
    assert optimized(spills_beyond(8))[1] == "heuristic, less for want of registers"
    reason, _ = optimized(spills_beyond(0))
    assert "run out of registers in every tiling" in reason
