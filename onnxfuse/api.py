"""``onnxfuse.optimize``: from a model to an optimized model, checked."""

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from onnxfuse.errors import OnnxfuseError, ParityError
from onnxfuse.graph import Model
from onnxfuse.inputs import InputSpec, Shapes, check_shapes
from onnxfuse.model_io import load, load_proto, save
from onnxfuse.passes import PassContext, resolve
from onnxfuse.report import Report
from onnxfuse.statistics import Statistics, collect

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
    the original and the optimized model on the same inputs and compares them.  ``fast_math`` allows kernels
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
    progress("reading the model")
    loaded = load_proto(model) if isinstance(model, onnx.ModelProto) else load(model)
    check_shapes(graph_inputs(loaded), sizes)

    report = Report(model=str(loaded.path or ""), target=target)
    report.before = _count(loaded, sizes)
    context = PassContext(target=target, fast_math=fast_math, report=report, progress=progress)
    for step in selected:
        progress(f"pass {step.name}")
        step.run(loaded, context)
    report.after = _count(loaded, sizes)
    if check or output is not None:
        with tempfile.TemporaryDirectory(prefix="onnxfuse-") as scratch:
            _check_and_write(model, loaded, Path(scratch), sizes, check, output, overwrite, context)
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
    try:
        return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))  # type: ignore[call-overload]
    except (KeyError, TypeError, ValueError):
        return onnx.TensorProto.UNDEFINED


def _count(model: Model, shapes: Shapes) -> Statistics:
    """The counts of the model; where shapes are given, of a copy with them, so that sizes are numbers."""
    if not shapes:
        return collect(model)
    return collect(load_proto(model.to_proto(), path=model.path, shapes=shapes))


def _check_and_write(
    source: str | Path | onnx.ModelProto,
    optimized: Model,
    scratch: Path,
    shapes: Shapes,
    check: bool,
    output: str | Path | None,
    overwrite: bool,
    context: PassContext,
) -> None:
    """Save the optimized model, in ``scratch`` if it is only to be checked."""

    def compare(candidate: Path) -> None:
        from onnxfuse.parity import compare

        if isinstance(source, onnx.ModelProto):
            original = scratch / "original.onnx"
            save(Model.from_proto(source), original)
        else:
            original = Path(source)
        report = context.report
        parity = report.parity = compare(
            original, candidate, shapes=shapes, target=context.target, progress=context.progress
        )
        for warning in parity.warnings:
            report.add_warning(warning)
        if not parity.ok:
            raise ParityError(f"{parity.failure()}; nothing was written")

    path = scratch / "optimized.onnx" if output is None else Path(output)
    if not check:
        context.progress("writing the model")
    save(optimized, path, overwrite=overwrite, check=compare if check else None)
