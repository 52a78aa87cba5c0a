"""``onnxfuse.optimize``: from a model to an optimized model, checked."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from onnxfuse.errors import OnnxfuseError, ParityError
from onnxfuse.example_counts import counts_for
from onnxfuse.fused.kinds import PREFERS_NHWC
from onnxfuse.given_shapes import Shapes, checked_shapes, fit_shapes, symbol_sizes
from onnxfuse.graph import Model
from onnxfuse.graph_ir import Node
from onnxfuse.inputs import InputSpec, input_specs
from onnxfuse.made_up_inputs import Sizes, resolve_shapes
from onnxfuse.model_io import check_output, load, load_proto, parse, save
from onnxfuse.passes import Pass, PassContext, resolve
from onnxfuse.passes.base import label
from onnxfuse.passes.inline_functions import inlined
from onnxfuse.planner.functions import mark_float_functions
from onnxfuse.replacing import scratch
from onnxfuse.report import Report
from onnxfuse.runtime import why_no_cuda
from onnxfuse.statistics import Example, collect

if TYPE_CHECKING:
    from onnxfuse.cpu_tuning import Tuned
    from onnxfuse.cuda.fitting import Fitter
    from onnxfuse.cuda.options import CudaOptions
    from onnxfuse.cuda.report import CudaReport
    from onnxfuse.fused.choices import ConvPolicy

TARGETS = ("auto", "cpu", "cuda")


@dataclass
class Result:
    """What ``optimize`` returns: the optimized model, and the report of what was done to it."""

    model: onnx.ModelProto
    report: Report


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
    inputs: str | Path | None = None,
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
    output: str | Path | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Result:
    """Fuse the elementwise regions of a model.

    ``model`` is a path, a ModelProto, which is not changed, or the bytes of one.  ``target`` names the hardware to
    optimize for: ``"cpu"``, ``"cuda"``, or ``"auto"``, which is ``"cuda"`` where ONNX Runtime has its CUDA provider and
    there is a GPU, and ``"cpu"`` elsewhere.  ``passes`` names the passes to run, in order, as a list or with commas
    between; None runs all that are registered.
    ``shapes`` gives inputs with dynamic dimensions the shape to check with, and to choose convolutions for, or the
    name of such a dimension its size, as ``{"batch": 1}``; with ``static`` the optimized model takes these shapes
    alone, and what it computes from them is computed now.  A dimension of the same name in another input has the same
    size; inputs and dimensions that the shapes say nothing of stay dynamic.
    ``check`` runs the original and the optimized model on the same inputs and compares them: on those of ``inputs``,
    an ``.npz`` file or a directory, else on made-up ones.
    ``fast_math`` lets results be rounded otherwise: in fused nodes a product and the sum that it is added to once, a
    product by the reciprocal where a constant divides, and one product and one sum for a chain of those with constants;
    for the target cuda it is the compiler's ``--use_fast_math`` too.

    For the target cuda, ``arch`` lists the architectures to compile for, ``"sm_80,sm_90"``; by default those of the
    GPUs of this machine, or else the common ones.  ``embed=False`` leaves the machine code out of the model;
    ``onnxfuse.InferenceSession`` compiles then.  ``keep_source`` is a directory for the CUDA source.
    ``conv``, for the CPU too, says which convolutions are fused: ``"auto"`` those that are faster by measurement or by
    rule, ``"all"``, ``"none"``.  ``tune`` times variants of each kernel on the GPU of this machine, and convolutions
    against ONNX Runtime's; for the CPU it runs the model with each of these choices on the inputs of the check, and
    takes the fastest.  ``tuning`` names files of measurements, of which later ones win; with ``tune`` the last one gets
    what is measured.  ``tf32`` lets fused convolutions of float32 round their factors to TF32, as ONNX Runtime does by
    default.  ``prefer_nhwc`` writes the model for sessions whose CUDA provider has that option, which
    ``onnxfuse.InferenceSession`` sets then: elementwise nodes between ONNX Runtime's convolutions have their channels
    last, as these.  ``time_kernels`` has the report say how long each kernel takes on the GPU of this machine.
    Without a GPU the check runs on the CPU.

    ``output`` is where to write the model: it is written only if it passes, through a temporary file in the same
    directory, with its external data, if any, in ``<output>.data``; of a link the target is written.  ``overwrite``
    allows it to be the input itself.  ``progress`` is called with one line at the start of each step.

    The returned ModelProto is what was written to ``output``; without that it refers to the external data of the input.
    Raises OnnxfuseError if something
    about the request is wrong (bad model, unknown pass, inputs that cannot be made up, no outputs to check),
    ParityError if the optimized model does not compute what the original does; nothing is written then.
    """
    started = time.perf_counter()
    progress = progress or _silent
    target = resolve_target(target)
    cuda = cuda_options(target, arch, embed, keep_source, tune, conv, tuning, tf32, prefer_nhwc)
    selected_names = None if passes is None else _names("passes", passes)
    selected = resolve(selected_names)
    given = None if inputs is None else _path("an input file", inputs)
    if given is not None and not check and not (tune and target == "cpu"):
        raise OnnxfuseError("nothing is run on the inputs with --no-check (check=False)")
    if output is not None:
        output = _path("the output", output)
    sizes = checked_shapes({} if shapes is None else shapes)
    if static and not sizes:
        raise OnnxfuseError("a static model needs the shapes of its inputs: give them with --shape, or shapes=")
    source = _source(model)
    if output is not None:
        check_output(output, source if isinstance(source, Path) else None, overwrite=overwrite)
    progress("reading the model")
    loaded = _load(source)
    if check and not loaded.graph.outputs:
        raise OnnxfuseError("the model has no outputs to check: leave that out with --no-check (check=False)")
    specs = input_specs(loaded.source)
    sizes = fit_shapes(specs, sizes)

    report = Report(model=str(loaded.path or ""), target=target)
    if tune and target == "cpu":
        optimized = partial(
            optimize, source, "cpu", selected_names, shapes=sizes, static=static, check=False, fast_math=fast_math
        )
        tuned = _tune_on_cpu(optimized, sizes, given, progress)
        conv, report.tuned = tuned.policy.value, tuned.describe()
    report.before = collect(inlined(loaded))
    fitter = None if cuda is None else cuda.fitter(fast_math)
    context = PassContext(target=target, fast_math=fast_math, fitter=fitter, report=report, progress=progress)
    if static:
        from onnxfuse.static_shapes import make_static

        progress("computing what follows from the shapes")
        loaded = make_static(loaded, specs, sizes, context)
    if target == "cpu":
        from onnxfuse.fused.choices import policy_named
        from onnxfuse.planner.cpu_convolutions import CpuChooser

        context.convolutions = CpuChooser(policy_named(conv), measured=tune, shapes=sizes)
    if cuda is not None and fitter is not None:
        from onnxfuse.cuda.conv.chooser import chooser_for, keep_tunings
        from onnxfuse.planner.choosers import CudaChooser

        chooser = chooser_for(cuda, fitter, progress, report.add_warning)
        context.convolutions, context.tf32 = CudaChooser(chooser, tf32=tf32), tf32
        context.prefer_nhwc = cuda.prefer_nhwc
    for step in selected:
        run_pass(step, loaded, context)
    add_unknown(loaded, report)
    if cuda is not None and fitter is not None:
        from onnxfuse.cuda.conv.choice import about_layout
        from onnxfuse.cuda.embed import embed as embed_kernels

        written = PREFERS_NHWC in loaded.metadata
        if written or not cuda.prefer_nhwc:
            report.layout = about_layout([one.reason for one in report.convolutions], written)

        keep_tunings(cuda, chooser)
        if tune:
            from onnxfuse.cuda.measure import tune as tune_kernels

            tune_kernels(loaded, fitter, cuda, progress)
        progress("compiling kernels")
        report.cuda = embed_kernels(loaded, fitter, cuda)
        if time_kernels:
            _add_times(loaded, fitter, cuda, report.cuda, context)
    mark_float_functions(loaded)
    report.after = collect(loaded)
    with scratch() as folder:

        def finish(candidate: Path) -> None:
            """All that needs the original file, which ``output`` may replace."""
            if check:
                _compare(source, candidate, folder, sizes, given, context)
            report.example = _example(source, candidate, specs, sizes, report)

        path = folder / "optimized.onnx" if output is None else output
        progress("writing the model")
        written = save(loaded, path, overwrite=overwrite, check=finish)
    report.seconds = time.perf_counter() - started
    return Result(loaded.to_proto() if output is None else written, report)


def _tune_on_cpu(
    optimized: Callable[..., Result], sizes: Shapes, inputs: Path | None, progress: Callable[[str], None]
) -> "Tuned":
    """The fastest choice of convolutions; ``optimized`` is ``optimize`` but for the choice and the output."""
    from onnxfuse.cpu_tuning import tune

    def make(policy: "ConvPolicy", path: Path) -> None:
        optimized(conv=policy.value, output=path)

    with scratch() as folder:
        return tune(make, folder, sizes, inputs, progress)


def run_pass(step: Pass, model: Model, context: PassContext) -> None:
    """Run a pass.  An exception that is no OnnxfuseError, which may come from a user's, gets a note that names it."""
    context.progress(f"pass {step.name}")
    try:
        step.run(model, context)
    except Exception as error:
        error.add_note(f"pass {step.name!r}")
        raise


def add_unknown(model: Model, report: Report) -> None:
    """Say in the report which nodes of ONNX's own domain were left alone because they are not all known, and why."""
    for graph in model.graphs():
        for node in graph.nodes:
            if isinstance(node, Node) and node.unknown:
                report.add_left_alone(label(node), node.operator, node.unknown)


def resolve_target(target: str) -> str:
    """The target to optimize for: ``"cpu"`` or ``"cuda"``.  Raises OnnxfuseError for one that is unknown."""
    if target not in TARGETS:
        raise OnnxfuseError(f"unknown target {target!r}; the targets are {', '.join(TARGETS)}")
    if target == "auto":
        return "cpu" if why_no_cuda() else "cuda"
    return target


def runnable_target(target: str) -> str:
    """The same, to run models on.  Raises OnnxfuseError also for a target that is not here."""
    found = resolve_target(target)
    if found == "cuda" and (reason := why_no_cuda()):
        raise OnnxfuseError(f"nothing can run on the target cuda: {reason}")
    return found


def cuda_options(
    target: str,
    arch: str | Iterable[str] | None = None,
    embed: bool = True,
    keep_source: str | Path | None = None,
    tune: bool = False,
    conv: str = "auto",
    tuning: str | Path | Iterable[str | Path] = (),
    tf32: bool = False,
    prefer_nhwc: bool = False,
) -> "CudaOptions | None":
    """What ``optimize`` was asked for the target cuda; None for another one.

    Raises OnnxfuseError for what cannot be, or is not for the target.
    """
    tunings = tuning if isinstance(tuning, Iterable) and not isinstance(tuning, (str, bytes)) else [tuning]
    files = [_path("a tuning file", name) for name in tunings]
    if target != "cuda":
        if arch is not None or not embed or keep_source is not None or files or tf32 or prefer_nhwc:
            raise OnnxfuseError(
                "architectures, embedding, sources, tuning files, TF32 and prefer_nhwc are for the target cuda"
            )
        if tune and conv != "auto":
            raise OnnxfuseError(f"on the CPU the choice of convolutions is tuned, and {conv!r} was asked for")
        return None
    from onnxfuse.cuda.arch import default_architectures, devices, parse_architectures
    from onnxfuse.cuda.conv.tunings import all_tunings
    from onnxfuse.cuda.options import CudaOptions
    from onnxfuse.fused.choices import policy_named

    architectures = default_architectures() if arch is None else parse_architectures(_names("architectures", arch))
    if tune and not devices():
        raise OnnxfuseError("tuning needs a GPU, and there is no CUDA GPU here")
    if tune and not set(devices()) & set(architectures):
        raise OnnxfuseError(f"tuning is for the GPU here, {devices()[0]}, which is not among the architectures")
    sources = None if keep_source is None else _path("the directory for the source", keep_source)
    if sources is not None and sources.exists() and not sources.is_dir():
        raise OnnxfuseError(f"the sources cannot be kept in {sources}: it is no directory")
    return CudaOptions(
        architectures,
        embed,
        sources,
        tune,
        policy_named(conv),
        all_tunings(files, may_be_new=tune),
        files[-1] if files else None,
        prefer_nhwc,
    )


def _add_times(
    model: Model, fitter: "Fitter", options: "CudaOptions", report: "CudaReport", context: PassContext
) -> None:
    """Times of the kernels, where there is a GPU that they are compiled for."""
    from onnxfuse.cuda.arch import devices

    if not report.compiler or not set(devices()) & set(options.architectures):
        return
    from onnxfuse.cuda.measure import add_times

    context.progress("timing kernels")
    try:
        add_times(model, fitter, options, report)
    except OnnxfuseError as error:
        context.report.add_warning(f"the kernels were not timed: {error}")


def _names(what: str, given: str | Iterable[str]) -> list[str]:
    """The names of a list, or of a text with commas between.  Raises OnnxfuseError for anything else."""
    if isinstance(given, str):
        return [name.strip() for name in given.split(",")]
    names = list(given) if isinstance(given, Iterable) else [given]
    for name in names:
        if not isinstance(name, str):
            raise OnnxfuseError(f"{what} are names, in a list or with commas between, not {type(name).__name__}")
    return names


def _path(what: str, given: str | Path) -> Path:
    """A path as it may be given.  Raises OnnxfuseError for what is none."""
    try:
        path = Path(given)
    except TypeError as error:
        raise OnnxfuseError(f"{what} is given by its path, not as {type(given).__name__}") from error
    if "\0" in str(path):
        raise OnnxfuseError(f"{str(path)!r} is no path of {what}")
    return path


def _source(model: str | Path | bytes | onnx.ModelProto) -> Path | onnx.ModelProto:
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, bytes):
        return parse(model)
    try:
        return Path(model)
    except TypeError as error:
        kind = type(model).__name__
        raise OnnxfuseError(f"a model is given by its path, as a ModelProto or as its bytes, not as {kind}") from error


def _load(source: Path | onnx.ModelProto, shapes: Mapping[str, Sequence[int]] | None = None) -> Model:
    if isinstance(source, onnx.ModelProto):
        return load_proto(source, shapes=shapes)
    return load(source, shapes=shapes)


def _example(
    source: Path | onnx.ModelProto, candidate: Path, specs: list[InputSpec], shapes: Shapes, report: Report
) -> Example | None:
    """The counts of both models for the shapes they were checked with; None where the counts are numbers without."""
    specs = [spec for spec in specs if spec.kind == "tensor"]  # a sequence has no one shape
    if report.before is None or report.after is None or not report.before.is_symbolic():
        return None
    if report.parity is not None and report.parity.sets:
        ran = report.parity.sets[0].shapes
    else:
        ran = {name: list(shape) for name, shape in resolve_shapes(specs, shapes, Sizes()).items()}
    sizes = {spec.name: ran[spec.name] for spec in specs if spec.name in ran}
    symbols = symbol_sizes(specs, {name: tuple(shape) for name, shape in sizes.items()})
    found = Example(sizes, report.before.at(symbols), report.after.at(symbols))
    if not (found.before.is_symbolic() or found.after.is_symbolic()):
        return found
    try:
        models = (inlined(_load(model, sizes or None), sizes or None) for model in (source, candidate))
        return Example(sizes, *counts_for(models, sizes))
    except OnnxfuseError:  # ONNX Runtime takes more shapes than onnx's inference; counts are not worth an error
        return None


def _compare(
    source: Path | onnx.ModelProto,
    candidate: Path,
    scratch: Path,
    shapes: Shapes,
    inputs: Path | None,
    context: PassContext,
) -> None:
    """Compare the saved optimized model with the original.  Raises ParityError if they differ.

    A model with operators of other domains may be one that ONNX Runtime cannot run here: it stays unchecked, with a
    warning.
    """
    from onnxfuse.parity import UnloadableError, compare, foreign_domains

    original = scratch / "original.onnx"
    if isinstance(source, onnx.ModelProto):
        save(Model.from_proto(source), original)
    else:
        original = source
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
