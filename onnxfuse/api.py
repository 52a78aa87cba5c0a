"""``onnxfuse.optimize``: from a model to an optimized model, checked."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx

from onnxfuse.errors import OnnxfuseError
from onnxfuse.files.model_io import check_output, read_proto
from onnxfuse.optimization import Optimization, checked_source, load_source
from onnxfuse.report.report import Report
from onnxfuse.report.report_file import ReportFile, TraceFile
from onnxfuse.run.given_shapes import fit_shapes
from onnxfuse.run.inputs import input_specs
from onnxfuse.targets.request import path_of, request


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
    runs, tunes = check or bench or profile is not None, tune and asked.on.chosen_by_runs
    if given is not None and not runs and not tunes:
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
    models = [path for path in (source, output) if isinstance(path, Path)]
    with ExitStack() as stack:
        page = None if report is None else stack.enter_context(ReportFile(path_of("the report", report), *models))
        trace = None if profile is None else stack.enter_context(TraceFile(path_of("the trace", profile), *models))
        job = Optimization(
            source=source,
            specs=specs,
            shapes=fit_shapes(specs, asked.shapes),
            given=given,
            output=output,
            overwrite=overwrite,
            check=check,
            bench=bench,
            time_kernels=time_kernels or page is not None,
            trace=trace,
            progress=progress,
        )
        first = [loaded]
        del loaded  # which is not held while the result runs
        made, found = job.run(asked, first.pop)
        found.seconds = time.perf_counter() - started
        if page is not None:
            page.write_report(found)
        return Result(made, found)
