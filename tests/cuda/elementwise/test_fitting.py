"""Rendering with the compiler's register count: fewer elements a thread first, and the tuner's choice before all."""

from pathlib import Path

import pytest

from onnxfuse.cuda.compile.cache import Cache
from onnxfuse.cuda.compile.compiled import Compiled
from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.compile.resources import Resources
from onnxfuse.cuda.elementwise.fitting import Fitter
from onnxfuse.cuda.elementwise.renderer import Tuning
from onnxfuse.cuda.kernel import Access
from onnxfuse.cuda.tuned import Choice, TunedKernels
from onnxfuse.program import Program
from tests.cuda.compilers import MadeUpCompiler

PROGRAM = Program.parse("onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nadd f32 0 1\nrelu f32 2\noutput 3\n")
SHAPES = (("n", 64), ("n", 64))


class _ByElements(MadeUpCompiler):
    """Kernels that take ``each`` registers for every element of a thread, and spill beyond 255."""

    def __init__(self, each: int) -> None:
        super().__init__()
        self.each = each

    def compile(self, source: str, architecture: str, options: tuple[str, ...]) -> Compiled:
        compiled = super().compile(source, architecture, options)
        resources = {}
        for name in compiled.resources:
            body = source[source.index(f"\n{name}(") :]
            vector, _ = body[body.index("for_own_group<") + 14 :].split(">")[0].split(", ")
            wanted = 16 + self.each * int(vector)
            resources[name] = Resources(min(wanted, 255), spill_stores=4 * max(0, wanted - 255))
        return Compiled(compiled.cubin, compiled.ptx, resources)


def _fitter(tmp_path: Path, each: int, architectures: tuple[str, ...] = ("sm_90",)) -> Fitter:
    cache = Cache(tmp_path)
    return Fitter(CompilerCache(_ByElements(each), cache), architectures, False, TunedKernels(architectures, cache))


@pytest.mark.parametrize("each", [1, 12])
def test_what_fits_is_as_the_heuristic_has_it(tmp_path: Path, each: int) -> None:
    fit = _fitter(tmp_path, each).fit(PROGRAM, SHAPES)
    assert fit.choice is Choice.HEURISTIC and fit.is_good and str(fit.access) == "ll:l"
    assert fit.source.kernels[0].vector == 4


@pytest.mark.parametrize(("each", "elements"), [(13, 2), (24, 2), (25, 1), (48, 1)])
def test_a_thread_takes_fewer_elements_where_registers_run_out(tmp_path: Path, each: int, elements: int) -> None:
    fit = _fitter(tmp_path, each).fit(PROGRAM, SHAPES)
    main = fit.source.kernels[0]
    assert fit.choice is Choice.REGISTERS and fit.is_good
    assert main.vector == elements


def test_where_nothing_fits_the_best_is_kept_and_is_not_good(tmp_path: Path) -> None:
    fit = _fitter(tmp_path, 150).fit(PROGRAM, SHAPES)
    assert not fit.is_good
    assert fit.main is not None and fit.main.spills == 0
    assert fit.source.kernels[0].vector == 1


def test_the_architecture_with_the_most_threads_decides(tmp_path: Path) -> None:
    assert _fitter(tmp_path, 16, ("sm_75",)).fit(PROGRAM, SHAPES).choice is Choice.HEURISTIC  # half of 1024 threads
    assert _fitter(tmp_path, 16, ("sm_75", "sm_90")).fit(PROGRAM, SHAPES).choice is Choice.REGISTERS


def test_the_tuners_choice_counts_first(tmp_path: Path) -> None:
    fitter = _fitter(tmp_path, 1)
    TunedKernels(("sm_90",), Cache(tmp_path)).keep("sm_90", PROGRAM, Access("ll", "l"), fitter.options, Tuning(2, 512))
    fit = fitter.fit(PROGRAM, SHAPES)
    main = fit.source.kernels[0]
    assert (fit.choice, main.vector, main.block) == (Choice.TUNED, 2, 512)
    assert _fitter(tmp_path, 1, ("sm_80",)).fit(PROGRAM, SHAPES).choice is Choice.HEURISTIC


@pytest.mark.parametrize("entry", ["", "[]", "{}", '{"vector": 3, "block": 256}', '{"vector": null}'])
def test_a_damaged_choice_does_not_count(tmp_path: Path, entry: str) -> None:
    fitter = _fitter(tmp_path, 1)
    TunedKernels(("sm_90",), Cache(tmp_path)).keep("sm_90", PROGRAM, Access("ll", "l"), fitter.options, Tuning(2, 512))
    for path in tmp_path.iterdir():
        Cache(tmp_path).store(path.stem, entry.encode())
    assert fitter.fit(PROGRAM, SHAPES).choice is Choice.HEURISTIC


def test_without_a_compiler_it_is_rendered_all_the_same() -> None:
    fit = Fitter(None, ("sm_90",), False, TunedKernels(())).fit(PROGRAM, SHAPES)
    assert fit.is_good and fit.main is None and fit.source.kernels
