"""``onnxfuse.optimize``: from a model to an optimized model, checked."""

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from onnxfuse.check.input_shapes import Sizes, resolve_shapes
from onnxfuse.errors import OnnxfuseError, ParityError
from onnxfuse.files.model_io import check_output, load, load_again, load_proto, parse, read_proto, save, staged
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
from onnxfuse.report.report_file import ReportFile, TraceFile
from onnxfuse.run.given_shapes import Shapes, fit_shapes, symbol_sizes
from onnxfuse.run.inputs import Given, InputSpec, input_specs
from onnxfuse.run.runtime import why_no_cuda
from onnxfuse.targets import target_of
from onnxfuse.targets.request import Request, path_of, request
from onnxfuse.wording import plural

if TYPE_CHECKING:
    from onnxfuse.cpu_tuning import Tuned
    from onnxfuse.speed import Speed


class Result:
    """What ``optimize`` returns: the optimized ``model``, and the ``report`` of what was done to it.

    A model that was written to a file is not held, but read from there when it is first asked for.
    """

    def __init__(self, model: onnx.ModelProto | Path, report: Report) -> None:
        self.report = report
        self._written = model
        self._state = _state(model) if isinstance(model, Path) else None

    def __repr__(self) -> str:
        """``<onnxfuse.Result: 1.34 times as fast (1.30 to 1.38), 21 → 20 MB>``."""
        return f"<onnxfuse.Result: {self.report.describe_gain()}>"

    def _repr_html_(self) -> str:
        """The report, for notebooks: in a frame of its own, where its style changes nothing else."""
        from onnxfuse.report.report_html import framed

        return framed(self.report)

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The optimized model.  Raises OnnxfuseError if the file that it was written to is not that any more."""
        if not isinstance(self._written, Path):
            return self._written
        if _state(self._written) != self._state:
            raise OnnxfuseError(f"{self._written} is not what was written there any more")
        return read_proto(self._written)


def _state(path: Path) -> tuple[int, int, int] | None:
    """What changes with a file's content."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _silent(_message: str) -> None:
    """The progress callback of a caller that wants none."""


def optimize(
    model: str | Path | bytes | onnx.ModelProto,
    target: str = "auto",
    passes: str | Iterable[str] | None = None,
    *,
    shapes: Mapping[str, Iterable[int] | int] | None = None,
    static: bool = False,
    check: bool = True,
    bench: bool = False,
    inputs: str | Path | Mapping[str, np.ndarray] | None = None,
    fast_math: bool = False,
    arch: str | Iterable[str] | None = None,
    embed: bool = True,
    keep_source: str | Path | None = None,
    tune: bool = False,
    conv: str = "auto",
    tuning: str | Path | Iterable[str | Path] = (),
    tf32: bool = False,
    prefer_nhwc: bool = False,
    time_kernels: bool = False,
    report: str | Path | None = None,
    profile: str | Path | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Result:
    """Fuse the nodes of a model that belong together.

    ``model`` is a path, a ModelProto, which is not changed, or the bytes of one.  ``target`` names the hardware to
    optimize for: ``"cpu"``, ``"cuda"``, or ``"auto"``, which is ``"cuda"`` where ONNX Runtime has its CUDA provider and
    there is a GPU, and ``"cpu"`` elsewhere.  ``passes`` names the passes to run, in order, as a list or with commas
    between; None runs all that are registered.
    ``shapes`` gives inputs with dynamic dimensions the shape to check with, and to choose convolutions for, or the
    name of such a dimension its size, as ``{"batch": 1}``; with ``static`` the optimized model takes these shapes
    alone, and what it computes from them is computed now.  A dimension of the same name in another input has the same
    size; inputs and dimensions that the shapes say nothing of stay dynamic.
    ``check`` runs the original and the optimized model on the same inputs and compares them: on those of ``inputs``,
    an ``.npz`` file, a directory, or a dict of arrays by the names of the inputs, else on made-up ones.
    ``bench`` times the original beside the result on the inputs of ``inputs``, else on made-up ones of the size of
    benchmarks, each in a process of its own, for two seconds, or 18 runs where one takes a tenth of a second: the
    report's ``speed``.  On the CPU, what makes the model slower beyond chance is taken back: other convolutions, fewer
    kinds of nodes, at last all, by the fastest of these; where ``passes`` or ``conv`` are given, and for cuda, a
    warning says that it is slower.  For cuda without a GPU nothing is timed.  It is off by default, for programs that
    optimize many models; the command line has it on.
    ``fast_math`` lets results be rounded otherwise: in fused nodes a product and the sum that it is added to once, a
    product by the reciprocal where a constant divides, and one product and one sum for a chain of those with constants;
    for the target cuda it is the compiler's ``--use_fast_math`` too.

    For the target cuda, ``arch`` lists the architectures to compile for, ``"sm_80,sm_90"``; by default those of the
    GPUs of this machine, or else the common ones.  ``embed=False`` leaves the machine code out of the model;
    ``onnxfuse.InferenceSession`` compiles then.  ``keep_source`` is a directory for the CUDA source.
    ``conv``, for the CPU too, says which convolutions are fused, for CUDA also which products: ``"auto"`` those that
    are faster by measurement or by rule, ``"all"``, ``"none"``.  ``tune`` times variants of each kernel on the GPU of
    this machine, and convolutions and products against ONNX Runtime's; for the CPU it runs the model with each of these
    choices on the inputs of the check, and takes the fastest.  ``tuning`` names files of measurements, of which later
    ones win; with ``tune`` the last one gets what is measured.  ``tf32`` lets fused convolutions and products of
    float32 round their factors to TF32, as ONNX Runtime does by default.  ``prefer_nhwc`` writes the model for sessions
    whose CUDA provider has that option, which ``onnxfuse.InferenceSession`` sets then: elementwise nodes between ONNX
    Runtime's convolutions have their channels last, as these.  ``time_kernels`` has the report say how long each kernel
    takes on the GPU of this machine.
    Without a GPU the check runs on the CPU.

    ``report`` is where to write the report, as a page or as JSON by its suffix, ``.html`` or ``.json``.  ``profile`` is
    where to write a trace, ``.json``, of a run of the original and of the result, as Chrome and Perfetto show them,
    from ONNX Runtime's profiler; the report has the times of the nodes then.

    ``output`` is where to write the model: it is written only if it passes, through a temporary file in the same
    directory, with its external data, if any, in ``<output>.data``; of a link the target is written.  ``overwrite``
    allows it to be the input itself.  ``progress`` is called with one line at the start of each step.

    The model of the result is what was written to ``output``; without that it refers to the external data of the input.
    Raises OnnxfuseError if something
    about the request is wrong (bad model, unknown pass, inputs that cannot be made up, no outputs to check),
    ParityError if the optimized model does not compute what the original does; nothing is written then.
    """
    started = time.perf_counter()
    progress = progress or _silent
    asked = request(
        target,
        passes,
        shapes=shapes,
        static=static,
        fast_math=fast_math,
        arch=arch,
        embed=embed,
        keep_source=keep_source,
        tune=tune,
        conv=conv,
        tuning=tuning,
        tf32=tf32,
        prefer_nhwc=prefer_nhwc,
    )
    given = inputs if inputs is None or isinstance(inputs, Mapping) else path_of("an input file", inputs)
    runs = check or bench or profile is not None
    if given is not None and not runs and not (tune and asked.target == CPU.name):
        raise OnnxfuseError("nothing is run on the inputs with --no-check (check=False)")
    if output is not None:
        output = path_of("the output", output)
    source = checked_source(model)
    if output is not None:
        check_output(output, source if isinstance(source, Path) else None, overwrite=overwrite)
    progress("reading the model")
    loaded = load_source(source)
    if check and not loaded.graph.outputs:
        raise OnnxfuseError("the model has no outputs to check: leave that out with --no-check (check=False)")
    specs = input_specs(loaded.source)
    sizes = fit_shapes(specs, asked.shapes)

    tuned = ""
    if tune and asked.target == CPU.name:
        found = _tune_on_cpu(source, asked, sizes, given, progress)
        asked, tuned = replace(asked, conv=found.policy), found.describe()

    def attempt(asked: Request, load: Callable[[], Model], finish: Callable[[Path, Path, PassContext], None]) -> Result:
        """The model that a request makes, of one that is not held after it is written.  ``finish`` is called with the
        original's file, the result's, and what the passes worked with, before the result takes its place."""
        loaded = load()
        report = Report(model=str(loaded.path or ""), target=asked.target, tuned=tuned)
        plain = inlined(loaded)
        report.before, report.graph_before = collect(plain), outline(plain)
        del plain
        context = PassContext(target=asked.target, fast_math=fast_math, report=report, progress=progress)
        loaded = _optimized(loaded, specs, asked, sizes, context, time_kernels=time_kernels or page is not None)
        with scratch() as folder:

            def judge(candidate: Path) -> None:
                """All that needs the original file, which ``output`` may replace."""
                original = _file_of(source, folder) if runs else candidate
                if check:
                    _compare(original, candidate, sizes, given, context)
                finish(original, candidate, context)
                report.example = _example(source, candidate, specs, sizes, report)
                if trace is not None:
                    _profile(original, candidate, sizes, given, context, trace)

            path = folder / "optimized.onnx" if output is None else output
            progress("writing the model")
            made = loaded.to_proto() if output is None else output
            with staged(loaded, path, overwrite=overwrite) as candidate:
                del loaded
                if runs:  # nodes and tensors refer to each other, and may be as large as the sessions to come
                    gc.collect()
                judge(candidate)
        report.seconds = time.perf_counter() - started
        return Result(made, report)

    first = [loaded]
    del loaded

    def run() -> Result:
        """The first attempt, or where its result is slower the one that is taken instead."""
        if not bench:
            return attempt(asked, first.pop, lambda *_unused: None)

        def write(request: Request, path: Path) -> None:
            silent = PassContext(target=request.target, fast_math=fast_math, report=Report(target=request.target))
            save(_optimized(load_source(source), specs, request, sizes, silent), path)

        def judge(original: Path, candidate: Path, context: PassContext) -> None:
            from onnxfuse.speed import judged

            if instead := judged(original, candidate, asked, sizes, given, write, context):
                raise _TakenBackError(*instead)

        def keep(_original: Path, _candidate: Path, context: PassContext) -> None:
            context.report.speed = back.speed

        try:
            return attempt(asked, first.pop, judge)
        except _TakenBackError as found:
            back = found
            return attempt(back.asked, partial(load_source, source), keep)

    models = [path for path in (source, output) if isinstance(path, Path)]
    with ExitStack() as stack:
        page = None if report is None else stack.enter_context(ReportFile(path_of("the report", report), *models))
        trace = None if profile is None else stack.enter_context(TraceFile(path_of("the trace", profile), *models))
        result = run()
        if page is not None:
            page.write_report(result.report)
        return result


class _TakenBackError(Exception):
    """Another request than that of the user is faster, as fast as ``speed`` says."""

    def __init__(self, asked: Request, speed: "Speed") -> None:
        super().__init__()
        self.asked = asked
        self.speed = speed


def _optimized(
    loaded: Model,
    specs: list[InputSpec],
    asked: Request,
    sizes: Shapes,
    context: PassContext,
    *,
    time_kernels: bool = False,
) -> Model:
    """What a request makes of a model, ready to be written."""
    on = target_of(asked, sizes)
    loaded = apply_passes(loaded, specs, asked, sizes, on, context)
    on.finish(loaded, context, time_kernels=time_kernels)
    finish_functions(loaded)
    if names := more_than_plain(loaded):
        context.report.add_warning(
            f"sessions that register the library without naming the model (docs/languages.md) have no kernels for "
            f"{plural(len(names), 'operator')} of it, {names[0]} and so on, and run the original nodes"
        )
    context.report.after, context.report.graph_after = collect(loaded), outline(loaded, with_sizes=True)
    return loaded


def _file_of(source: Path | onnx.ModelProto, folder: Path) -> Path:
    """The file of a model, which one in memory gets in ``folder``."""
    if isinstance(source, Path):
        return source
    path = folder / "original.onnx"
    save(Model.from_proto(source), path)
    return path


def _tune_on_cpu(
    source: Path | onnx.ModelProto,
    asked: Request,
    sizes: Shapes,
    inputs: Given | None,
    progress: Callable[[str], None],
) -> "Tuned":
    """The fastest choice of convolutions for a model."""
    from onnxfuse.cpu_tuning import tune

    def make(policy: ConvPolicy, path: Path) -> None:
        optimize(
            source,
            asked.target,
            asked.passes,
            shapes=sizes,
            static=asked.static,
            check=False,
            fast_math=asked.fast_math,
            conv=policy.value,
            output=path,
        )

    with scratch() as folder:
        return tune(make, folder, sizes, inputs, progress)


def checked_source(model: str | Path | bytes | onnx.ModelProto) -> Path | onnx.ModelProto:
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


def load_source(source: Path | onnx.ModelProto) -> Model:
    """``load`` or ``load_proto``."""
    return load_proto(source) if isinstance(source, onnx.ModelProto) else load(source)


def _example(
    source: Path | onnx.ModelProto, candidate: Path, specs: list[InputSpec], shapes: Shapes, report: Report
) -> Example | None:
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
    if on == "cuda" and (reason := why_no_cuda()):
        on, report.checked_on = "cpu", f"on the CPU ({reason})"
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

    if context.target == "cuda" and (reason := why_no_cuda()):
        context.report.add_warning(f"not profiled: {reason}")
        return
    context.progress("profiling the original and the result")
    values = timing_inputs(original, shapes, inputs, context.target)
    context.report.profile, content = profile(original, candidate, values, context.target)
    trace.write(content)
