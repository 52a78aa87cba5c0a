"""Models in ONNX Runtime's CUDA provider, as they are and optimized: time of a run, and kernels launched."""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import onnxfuse
from tools.gpu.half import half_model, half_values
from tools.gpu.limits import OutOfTime, at_most
from tools.gpu.sessions import BoundSession, best_of_settings
from tools.messages import one_line

CONVOLUTIONAL = ("ch_", "mobilenet_v3", "efficientnet", "opennsfw", "resnet", "yolo")
"""Begins the names of the models that stand for convolutional networks; opennsfw is a ResNet-50."""
MOST_SECONDS = 45.0
"""For one model at one batch size."""
LEAST_SECONDS = 10.0
"""With less left none is begun."""
_AT_A_TIME = 8
"""Models that are optimized at once."""


@dataclass
class ModelTimes:
    """One model at one batch size, as it is (``float32``) or converted to ``float16``.

    ``seconds`` by what ran: ``ort`` or ``onnxfuse``, with ``, graph`` or without, and by the same the ``settings`` of
    the provider that are on in the fastest one.  The counts are of one run: nodes that were executed, those among them
    that copy tensors between host and device, and nodes in the fused parts.
    """

    model: str
    batch: int
    shapes: dict[str, list[int]]
    dtype: str = "float32"
    seconds: dict[str, float] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    launches: dict[str, int] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    elementwise: dict[str, int] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def ratio(self, graph: bool) -> float | None:
        """ONNX Runtime's time over ours."""
        suffix = ", graph" if graph else ""
        ours, theirs = self.seconds.get("onnxfuse" + suffix), self.seconds.get("ort" + suffix)
        return theirs / ours if ours and theirs else None

    @property
    def best_ratio(self) -> float | None:
        """ONNX Runtime's time over ours, each in the faster of a plain run and one from a CUDA graph."""
        theirs, ours = (
            min((self.seconds[label] for label in (name, f"{name}, graph") if label in self.seconds), default=None)
            for name in ("ort", "onnxfuse")
        )
        return theirs / ours if ours and theirs else None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return asdict(self)


def with_batch(feeds: Mapping[str, np.ndarray], batch: int) -> dict[str, np.ndarray]:
    """The inputs repeated along their first dimension, if that is 1 for all of them."""
    if batch > 1 and any(array.ndim == 0 or array.shape[0] != 1 for array in feeds.values()):
        raise ValueError("its inputs have no batch dimension of 1")
    return {name: np.concatenate([array] * batch) if batch > 1 else array for name, array in feeds.items()}


@dataclass(frozen=True)
class Prepared:
    """A model's file, what optimizing it gave, and what that gave for ``prefer_nhwc``; nodes of the fused parts before
    and after."""

    original: Path
    optimized: Path
    nhwc: Path
    elementwise: dict[str, int]


def prepare(path: Path, half: bool, folder: Path) -> Prepared:
    """Convert a model to float16 with ``half``, and optimize it, into ``folder``."""
    original = half_model(path, folder / f"{path.stem}.half.onnx") if half else path
    optimized, nhwc = (folder / f"{original.stem}.{kind}.onnx" for kind in ("optimized", "nhwc"))
    report = onnxfuse.optimize(original, "cuda", check=False, output=optimized).report
    onnxfuse.optimize(original, "cuda", check=False, prefer_nhwc=True, output=nhwc)
    counts = {
        "ort": sum(region.before.launches for region in report.fused if region.before is not None),
        "onnxfuse": len(report.fused),
    }
    return Prepared(original, optimized, nhwc, counts)


def measure_model(
    path: Path,
    feeds: Mapping[str, np.ndarray],
    batch: int,
    half: bool,
    prepared: Callable[[], Prepared],
    on_gpu: bool = True,
    limit: float = MOST_SECONDS,
) -> ModelTimes:
    """Times of the model, with ``half`` in float16, and of the optimized one, and what they launch.

    What is not measured within ``limit`` seconds is missing, and ``errors`` say so.
    """
    found = ModelTimes(path.stem, batch, {}, "float16" if half else "float32")
    try:
        with at_most(limit):
            _measure(found, feeds, prepared, on_gpu)
    except OutOfTime:
        found.errors["time"] = f"not all is measured: {limit:.0f} s were over"
    return found


def _measure(
    found: ModelTimes, feeds: Mapping[str, np.ndarray], prepared: Callable[[], Prepared], on_gpu: bool
) -> None:
    try:
        values = with_batch(feeds, found.batch)
        if found.dtype == "float16":
            values = half_values(values)
        found.shapes = {name: list(array.shape) for name, array in values.items()}
        files = prepared()
    except Exception as error:  # whatever it is, the next model may do
        found.errors["onnxfuse"] = one_line(error)
        return
    found.elementwise = dict(files.elementwise)
    for name, model, nhwc, library in (
        ("ort", files.original, None, False),
        ("onnxfuse", files.optimized, files.nhwc, True),
    ):
        for graph in (False, True):
            label = name + (", graph" if graph else "")
            best = best_of_settings(
                str(model),
                values,
                found.errors,
                label,
                library=library,
                graph=graph,
                on_gpu=on_gpu,
                nhwc=None if nhwc is None else str(nhwc),
            )
            if best is not None:
                found.seconds[label], found.settings[label] = best.seconds, best.settings
        try:
            with tempfile.TemporaryDirectory() as folder:
                executed = executed_nodes(str(model), values, library, on_gpu, Path(folder) / "profile")
            found.launches[name] = executed.total()
            found.copies[name] = sum(count for op, count in executed.items() if op.startswith("Memcpy"))
        except Exception as error:
            found.errors[f"{name}, launches"] = one_line(error)


def executed_nodes(
    model: str, values: Mapping[str, np.ndarray], library: bool, on_gpu: bool, prefix: Path
) -> Counter[str]:
    """The nodes that a run executes by operator, as ONNX Runtime's profile counts them."""
    session = BoundSession(model, values, library=library, on_gpu=on_gpu, profile=str(prefix))
    session.run()
    session.run()
    events = json.loads(Path(session.session.end_profiling()).read_text(encoding="utf-8"))
    counted = Counter(
        str(event["args"]["op_name"])
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    )
    return Counter({op: count // 2 for op, count in counted.items()})


def measure_all(
    models: Sequence[tuple[Path, Mapping[str, np.ndarray]]],
    deadline: float,
    progress: Callable[[str], None],
    on_gpu: bool = True,
) -> Iterator[ModelTimes]:
    """Every model at batch 1 and 16, convolutional ones in float16 too, until the deadline (of ``time.monotonic``).

    On a GPU they are optimized first, several at a time, in processes of their own.
    """
    with ExitStack() as stack:
        # A process that still writes there when the time is over must not be an error.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        todo = rounds(models)
        kinds = dict.fromkeys((path, half) for path, _, _, half in todo)
        prepared: dict[tuple[Path, bool], Callable[[], Prepared]]
        if on_gpu:
            progress("models: optimizing")
            pool = ProcessPoolExecutor(_AT_A_TIME, mp_context=get_context("spawn"))  # CUDA does not survive a fork
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            futures = {kind: pool.submit(prepare, *kind, folder) for kind in kinds}
            wait(futures.values(), max(deadline - time.monotonic(), 0))
            prepared = {kind: partial(future.result, 0) for kind, future in futures.items()}
        else:
            prepared = {kind: partial(prepare, *kind, folder) for kind in kinds}
        for path, feeds, batch, half in todo:
            left = deadline - time.monotonic()
            if left < LEAST_SECONDS:
                return
            progress(f"models: {path.stem}, batch {batch}{', float16' if half else ''}")
            yield measure_model(path, feeds, batch, half, prepared[path, half], on_gpu, min(left, MOST_SECONDS))


def rounds(
    models: Sequence[tuple[Path, Mapping[str, np.ndarray]]],
) -> list[tuple[Path, Mapping[str, np.ndarray], int, bool]]:
    """What is measured, the most telling first: model, inputs, batch size, and whether in float16."""
    convolutional = [model for model in models if model[0].stem.startswith(CONVOLUTIONAL)]
    return [
        (path, feeds, batch, half)
        for batch, half in ((1, False), (1, True), (16, False))
        for path, feeds in (convolutional if half else models)
    ]
