"""``onnxfuse.optimize``: from a model to an optimized model, checked."""

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from onnxfuse.errors import OnnxfuseError, ParityError
from onnxfuse.example_counts import count_for
from onnxfuse.graph import Model
from onnxfuse.inputs import InputSpec, Shapes, Sizes, check_shapes, resolve_shapes, symbol_sizes
from onnxfuse.model_io import check_output, load, load_proto, save
from onnxfuse.passes import PassContext, resolve
from onnxfuse.report import Report
from onnxfuse.statistics import Example, collect

TARGETS = ("auto", "cpu", "cuda")


@dataclass
class Result:
    """What ``optimize`` returns: the optimized model, and the report of what was done to it."""

    model: onnx.ModelProto
    report: Report


def _silent(_message: str) -> None:
    """The progress callback of a caller that wants none."""


def optimize(
    model: str | Path | onnx.ModelProto,
    target: str = "auto",
    passes: Iterable[str] | None = None,
    *,
    shapes: Mapping[str, Iterable[int]] | None = None,
    check: bool = True,
    inputs: str | Path | None = None,
    fast_math: bool = False,
    output: str | Path | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Result:
    """Fuse the elementwise regions of a model.

    ``model`` is a path or a ModelProto, which is not changed.  ``target`` names the hardware to optimize for:
    ``"cpu"``, or ``"auto"``, which is ``"cpu"`` in this version; ``"cuda"`` is refused until there are CUDA
    kernels. ``passes`` names the passes to run, in order; None runs the built-in ones.  ``shapes`` gives
    inputs with dynamic dimensions the shape to check with; it does not make the model static.  ``check`` runs
    the original and the optimized model on the same inputs and compares them: on those of ``inputs``, an
    ``.npz`` file or a directory, else on made-up ones.  ``fast_math`` allows kernels
    that are not exact.  ``output`` is where to write the model: it is written only if it passes, through a
    temporary file in the same directory, and ``overwrite`` allows it to be the input itself.  ``progress`` is
    called with one line at the start of each step.

    The returned ModelProto has the external data references of the input.  Raises OnnxfuseError if something
    about the request is wrong (bad model, unknown pass, inputs that cannot be made up), ParityError if the
    optimized model does not compute what the original does; nothing is written then.
    """
    started = time.perf_counter()
    progress = progress or _silent
    target = resolve_target(target)
    selected = resolve(None if passes is None else list(passes))
    sizes = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    if output is not None:
        check_output(output, None if isinstance(model, onnx.ModelProto) else model, overwrite=overwrite)
    progress("reading the model")
    loaded = _load(model)
    check_shapes(graph_inputs(loaded), sizes)

    report = Report(model=str(loaded.path or ""), target=target)
    report.before = collect(loaded)
    context = PassContext(target=target, fast_math=fast_math, report=report, progress=progress)
    for step in selected:
        progress(f"pass {step.name}")
        step.run(loaded, context)
    report.after = collect(loaded)
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as scratch:

        def finish(candidate: Path) -> None:
            """All that needs the original file, which ``output`` may replace."""
            if check:
                _compare(model, candidate, Path(scratch), sizes, inputs, context)
            report.example = _example(model, candidate, graph_inputs(loaded), sizes, report)

        path = Path(scratch) / "optimized.onnx" if output is None else Path(output)
        progress("writing the model")
        save(loaded, path, overwrite=overwrite, check=finish)
    report.seconds = time.perf_counter() - started
    return Result(loaded.to_proto(), report)


def resolve_target(target: str) -> str:
    """The target to optimize for.  Raises OnnxfuseError for one that is unknown or not supported yet."""
    if target == "cuda":
        raise OnnxfuseError("target cuda is not supported yet: this version has kernels for the CPU alone")
    if target not in TARGETS:
        raise OnnxfuseError(f"unknown target {target!r}; the targets are {', '.join(TARGETS)}")
    return "cpu"


def graph_inputs(model: Model) -> list[InputSpec]:
    """The inputs of a loaded model, as far as shapes are concerned."""
    specs = []
    for tensor in model.graph.inputs:
        dims = None if tensor.shape is None else tuple(tensor.shape)
        specs.append(InputSpec(tensor.name, _elem_type(tensor.dtype), dims))
    return specs


def _elem_type(dtype: object) -> int:
    if dtype is None:  # of which NumPy would make float64
        return onnx.TensorProto.UNDEFINED
    try:
        return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))  # type: ignore[call-overload]
    except (KeyError, TypeError, ValueError):
        return onnx.TensorProto.UNDEFINED


def _load(source: str | Path | onnx.ModelProto, shapes: Mapping[str, Sequence[int]] | None = None) -> Model:
    if isinstance(source, onnx.ModelProto):
        return load_proto(source, shapes=shapes)
    return load(source, shapes=shapes)


def _example(
    source: str | Path | onnx.ModelProto, candidate: Path, specs: list[InputSpec], shapes: Shapes, report: Report
) -> Example | None:
    """The counts of both models for the shapes they were checked with; None where the counts are numbers without."""
    specs = [spec for spec in specs if spec.elem_type != onnx.TensorProto.UNDEFINED]  # a sequence has no one shape
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
        return Example(sizes, *(count_for(_load(model, sizes), sizes) for model in (source, candidate)))
    except OnnxfuseError:  # ONNX Runtime takes more shapes than onnx's inference; counts are not worth an error
        return None


def _compare(
    source: str | Path | onnx.ModelProto,
    candidate: Path,
    scratch: Path,
    shapes: Shapes,
    inputs: str | Path | None,
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
        original = Path(source)
    report = context.report
    try:
        parity = compare(
            original,
            candidate,
            inputs=None if inputs is None else Path(inputs),
            shapes=shapes,
            target=context.target,
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
