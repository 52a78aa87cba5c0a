"""What ``onnxfuse.optimize`` does with a model: it is made, checked, timed, and made anew where that is worth it."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from onnxfuse.check.input_shapes import Sizes, resolve_shapes
from onnxfuse.errors import OnnxfuseError, ParityError
from onnxfuse.files.model_io import load, load_again, load_proto, parse, save, staged
from onnxfuse.fused.choices import ConvPolicy
from onnxfuse.fused.functions import finish_functions, more_than_plain
from onnxfuse.fused.target import CPU
from onnxfuse.model.graph import Model
from onnxfuse.model.replacing import scratch
from onnxfuse.passes import PassContext
from onnxfuse.passes.inline_functions import inlined
from onnxfuse.planning.example_counts import counts_for
from onnxfuse.planning.outlines import outline
from onnxfuse.planning.plan import apply_passes
from onnxfuse.planning.statistics import Example, collect
from onnxfuse.report.report import Report
from onnxfuse.report.report_file import TraceFile
from onnxfuse.run.given_shapes import Shapes, symbol_sizes
from onnxfuse.run.inputs import Given, InputSpec
from onnxfuse.targets import target_of
from onnxfuse.targets.request import Request, why_not_here
from onnxfuse.wording import plural

if TYPE_CHECKING:
    from onnxfuse.cpu_tuning import Tuned
    from onnxfuse.speed import Speed

Source = Path | onnx.ModelProto
"""A model as it was given."""


@dataclass(frozen=True)
class Optimization:
    """One call of ``optimize``, of a model with the inputs ``specs``, for which ``shapes`` fit.

    given: the inputs to run it on, as ``read_inputs`` takes them; None for made-up ones.
    output: where the model is written; None for a model in memory.
    check, bench: whether the original and the result are compared and timed.
    time_kernels: whether kernels are timed, where that can be.
    trace: what gets a trace of a run of both.
    """

    source: Source
    specs: list[InputSpec]
    shapes: Shapes
    given: Given | None
    output: Path | None
    overwrite: bool
    check: bool
    bench: bool
    time_kernels: bool
    trace: TraceFile | None
    progress: Callable[[str], None]

    def run(self, asked: Request, load: Callable[[], Model]) -> tuple[onnx.ModelProto | Path, Report]:
        """The model, or where it was written, and what was done: the first attempt, or where its result is slower what
        is taken instead.

        ``load`` gives the model once, which is not held after it is written.
        """
        tuned = ""
        if asked.tune and asked.on.chosen_by_runs:
            found = self._tune(asked)
            asked, tuned = replace(asked, conv=found.policy), found.describe()
        if not self.bench:
            return self._attempt(asked, tuned, load, lambda *_unused: None)

        def judge(original: Path, candidate: Path, context: PassContext) -> None:
            from onnxfuse.speed import judged

            if instead := judged(original, candidate, asked, self.shapes, self.given, self._write, context):
                raise _TakenBackError(*instead)

        def keep(_original: Path, _candidate: Path, context: PassContext) -> None:
            context.report.speed = back.speed

        try:
            return self._attempt(asked, tuned, load, judge)
        except _TakenBackError as found_faster:
            back = found_faster
            return self._attempt(back.asked, tuned, partial(load_source, self.source), keep)

    @property
    def _runs(self) -> bool:
        return self.check or self.bench or self.trace is not None

    def _attempt(
        self,
        asked: Request,
        tuned: str,
        load: Callable[[], Model],
        finish: Callable[[Path, Path, PassContext], None],
    ) -> tuple[onnx.ModelProto | Path, Report]:
        """What a request makes.  ``finish`` is called with the original's file, the result's, and what the passes
        worked with, before the result takes its place."""
        loaded = load()
        report = Report(model=str(loaded.path or ""), target=asked.target, tuned=tuned)
        plain = inlined(loaded)
        report.before, report.graph_before = collect(plain), outline(plain)
        del plain
        context = PassContext(asked.target, asked.fast_math, report=report, progress=self.progress)
        loaded = self._optimized(loaded, asked, context)
        with scratch() as folder:
            path = folder / "optimized.onnx" if self.output is None else self.output
            self.progress("writing the model")
            made = loaded.to_proto() if self.output is None else self.output
            with staged(loaded, path, overwrite=self.overwrite) as candidate:
                del loaded
                if self._runs:  # nodes and tensors refer to each other, and may be as large as the sessions to come
                    gc.collect()
                original = self._original(folder) if self._runs else candidate  # which ``output`` may replace
                if self.check:
                    _compare(original, candidate, self.shapes, self.given, context)
                finish(original, candidate, context)
                report.example = _example(self.source, candidate, self.specs, self.shapes, report)
                if self.trace is not None:
                    _profile(original, candidate, self.shapes, self.given, context, self.trace)
        return made, report

    def _optimized(self, loaded: Model, asked: Request, context: PassContext) -> Model:
        """What a request makes of a loaded model, ready to be written."""
        on = target_of(asked, self.shapes)
        loaded = apply_passes(loaded, self.specs, asked, self.shapes, on, context)
        on.finish(loaded, context, time_kernels=self.time_kernels)
        finish_functions(loaded)
        if names := more_than_plain(loaded):
            context.report.add_warning(
                f"sessions that register the library without naming the model (docs/languages.md) have no kernels for "
                f"{plural(len(names), 'operator')} of it, {names[0]} and so on, and run the original nodes"
            )
        context.report.after, context.report.graph_after = collect(loaded), outline(loaded, with_sizes=True)
        return loaded

    def _write(self, asked: Request, path: Path) -> None:
        """Write what a request makes to a file, and say nothing."""
        silent = PassContext(asked.target, asked.fast_math, report=Report(target=asked.target))
        save(replace(self, time_kernels=False)._optimized(load_source(self.source), asked, silent), path)

    def _tune(self, asked: Request) -> "Tuned":
        """The fastest choice of convolutions for the model."""
        from onnxfuse.cpu_tuning import tune

        def make(policy: ConvPolicy, path: Path) -> None:
            self._write(asked.again(conv=policy, tune=False), path)

        with scratch() as folder:
            return tune(make, folder, self.shapes, self.given, self.progress)

    def _original(self, folder: Path) -> Path:
        """The file of the model, which one in memory gets in ``folder``."""
        if isinstance(self.source, Path):
            return self.source
        path = folder / "original.onnx"
        save(Model.from_proto(self.source), path)
        return path


class _TakenBackError(Exception):
    """Another request than that of the user is faster, as fast as ``speed`` says."""

    def __init__(self, asked: Request, speed: "Speed") -> None:
        super().__init__()
        self.asked = asked
        self.speed = speed


def checked_source(model: str | Path | bytes | onnx.ModelProto) -> Source:
    """A model as it may be given, by its path or as a ModelProto.  Raises OnnxfuseError for what is none."""
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, bytes):
        return parse(model)
    try:
        return Path(model)
    except TypeError as error:
        kind = type(model).__name__
        raise OnnxfuseError(f"a model is given by its path, as a ModelProto or as its bytes, not as {kind}") from error


def load_source(source: Source) -> Model:
    """``load`` or ``load_proto``."""
    return load_proto(source) if isinstance(source, onnx.ModelProto) else load(source)


def _example(source: Source, candidate: Path, specs: list[InputSpec], shapes: Shapes, report: Report) -> Example | None:
    """The counts of both models for the shapes they were timed with, or else checked; None where they are numbers
    without."""
    specs = [spec for spec in specs if spec.kind == "tensor"]  # a sequence has no one shape
    if report.before is None or report.after is None or not report.before.is_symbolic():
        return None
    if report.speed is not None and report.speed.shapes:
        ran = report.speed.shapes
    elif report.parity is not None and report.parity.sets:
        ran = report.parity.sets[0].shapes
    else:
        ran = {name: list(shape) for name, shape in resolve_shapes(specs, shapes, Sizes()).items()}
    sizes = {spec.name: ran[spec.name] for spec in specs if spec.name in ran}
    symbols = symbol_sizes(specs, {name: tuple(shape) for name, shape in sizes.items()})
    found = Example(sizes, report.before.at(symbols), report.after.at(symbols), symbols)
    if not (found.before.is_symbolic() or found.after.is_symbolic()):
        return found
    try:
        models = (inlined(load_again(model, sizes or None), sizes or None) for model in (source, candidate))
        before, after = counts_for(models, sizes)
        return Example(sizes, before, after, symbols)
    except OnnxfuseError:  # ONNX Runtime takes more shapes than onnx's inference; counts are not worth an error
        return None


def _compare(
    original: Path,
    candidate: Path,
    shapes: Shapes,
    inputs: Given | None,
    context: PassContext,
) -> None:
    """Compare the saved optimized model with the original.  Raises ParityError if they differ.

    A model with operators of other domains may be one that ONNX Runtime cannot run here: it stays unchecked, with a
    warning.
    """
    from onnxfuse.check.parity import UnloadableError, compare, foreign_domains

    report = context.report
    on = context.target
    if reason := why_not_here(on):
        on, report.checked_on = CPU.name, f"on the CPU ({reason})"
    try:
        parity = compare(
            original,
            candidate,
            inputs=inputs,
            shapes=shapes,
            target=on,
            progress=context.progress,
        )
    except UnloadableError as error:
        if not (domains := foreign_domains(original)):
            raise
        report.add_warning(f"not checked, for the model has operators of {', '.join(sorted(domains))}: {error}")
        return
    report.parity = parity
    for warning in parity.warnings:
        report.add_warning(warning)
    if not parity.ok:
        raise ParityError(f"{parity.failure()}; nothing was written")


def _profile(
    original: Path, candidate: Path, shapes: Shapes, inputs: Given | None, context: PassContext, trace: TraceFile
) -> None:
    """Put the times of the nodes of both models in the report, and write the trace.

    On a machine that does not run the target there are none, and a warning says so.
    """
    from onnxfuse.profiling import profile
    from onnxfuse.speed import timing_inputs

    if reason := why_not_here(context.target):
        context.report.add_warning(f"not profiled: {reason}")
        return
    context.progress("profiling the original and the result")
    values = timing_inputs(original, shapes, inputs, context.target)
    context.report.profile, content = profile(original, candidate, values, context.target)
    trace.write(content)
