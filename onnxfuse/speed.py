"""What ``optimize`` says of how fast its result is, and what it takes back for being slower."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path

import numpy as np
import onnx

from onnxfuse.bench_processes import Timed, time_models
from onnxfuse.bench_turns import Ratio, ratio_of_processes, ratio_with_spread
from onnxfuse.check.made_up_inputs import BENCHMARK_SIZES, generate
from onnxfuse.check.parity import PROVIDERS
from onnxfuse.core_distance import FAR
from onnxfuse.errors import OnnxfuseError
from onnxfuse.files.model_io import external_files, read_outline, read_proto
from onnxfuse.fused.choices import ConvPolicy
from onnxfuse.model.replacing import scratch
from onnxfuse.passes import PassContext
from onnxfuse.run.given_shapes import Shapes
from onnxfuse.run.inputs import Given, InputSet, default_specs, input_specs, read_inputs
from onnxfuse.run.sessions import Session, SessionError, has_fused_nodes
from onnxfuse.targets.request import Request, why_not_here

LEAST_LOSS = 0.99
"""A result is slower where its ratio is below this and the whole interval below 1."""
ORIGINAL, RESULT = "original", "result"
_LEAST_KILOBYTES = 10_000
"""Bytes of a file; smaller ones are told to the byte."""


@dataclass(frozen=True)
class Speed:
    """How many times as fast as the original the result is: ``ratio``, and the bounds of its 95 % interval.

    ``milliseconds`` are the lower quartiles of a run, ``sizes`` the bytes of the files with their external data, of the
    original and of the result.  ``taken_back`` says what was not done because it made the model slower, if anything.
    ``shapes`` are those of the inputs, ``distance`` is how far two cores were from each other (core_distance.py).
    """

    ratio: float
    low: float
    high: float
    milliseconds: tuple[float, float]
    sizes: tuple[int, int]
    taken_back: str = ""
    shapes: dict[str, list[int]] = field(default_factory=dict)
    distance: float | None = None

    @property
    def slower(self) -> bool:
        """Whether the result is slower beyond chance."""
        return is_slower((self.ratio, self.low, self.high))

    def describe(self) -> str:
        """``1.34 times as fast (1.30 to 1.38), 21 → 20 MB``."""
        return f"{_described((self.ratio, self.low, self.high))}, {_sizes(*self.sizes)}"

    def lines(self) -> list[str]:
        """All there is to say, the empty string for what there is not."""
        return [self.describe(), self.taken_back, self.describe_cores()]

    def describe_cores(self) -> str:
        """What to know of the processor, if anything."""
        if self.distance is None or self.distance < FAR:
            return ""
        return (
            f"Two cores were {self.distance:.0f} ns from each other, as without a shared cache: "
            "where they are near, the ratio is another."
        )

    def to_json(self) -> dict[str, object]:
        """The fields as JSON takes them."""
        return asdict(self)


def is_slower(ratio: Ratio) -> bool:
    """Whether a ratio with its interval is that of a model which is slower than the original beyond chance."""
    return ratio[0] < LEAST_LOSS and ratio[2] < 1


def _slower_here(original: Timed, other: Timed) -> bool:
    """Whether the second model is slower in these two processes, beyond chance: others, which are asked next, may
    differ from them."""
    count = min(len(original.times), len(other.times))
    return is_slower(ratio_with_spread(np.stack([original.times[:count], other.times[:count]], axis=1)))


def _described(ratio: Ratio) -> str:
    value, low, high = ratio
    return f"{value:.2f} times as fast ({low:.2f} to {high:.2f})"


def _sizes(before: int, after: int) -> str:
    """``21 → 20 MB``."""
    largest = max(before, after)
    if largest < _LEAST_KILOBYTES:
        return f"{before} → {after} bytes"
    unit, name = next(
        ((10**power, name) for power, name in ((9, "GB"), (6, "MB")) if largest >= 10**power), (1000, "kB")
    )
    return f"{before / unit:.3g} → {after / unit:.3g} {name}"


def ratio_of(original: Timed, other: Timed) -> Ratio:
    """How many times as fast as the first model the second is, with the bounds."""
    return ratio_of_processes(original.times, other.times)


def _speed(original: Timed, result: Timed, paths: tuple[Path, Path], taken_back: str = "") -> Speed:
    first, second = (float(np.percentile(timed.times, 25) * 1000) for timed in (original, result))
    sizes = (file_bytes(paths[0]), file_bytes(paths[1]))
    return Speed(
        *ratio_of(original, result), (first, second), sizes, taken_back, original.inputs.shapes(), original.distance
    )


def file_bytes(path: Path) -> int:
    """The bytes of a model's file and of the files of its external data."""
    return sum(file.stat().st_size for file in {path, *external_files(path)})


# --- what is taken back ---


@dataclass(frozen=True)
class Choice:
    """One way to optimize a model; ``words`` say what becomes of it."""

    words: str
    request: Request


_PRODUCTS = "fuse-matmul"
_OF_CONVOLUTIONS = {"fuse-conv", "split-conv-bias", "channels-last", "conv-layout", "fuse-squeeze-excite"}


def choices(asked: Request) -> list[Choice]:
    """The ways to optimize a model that asks for less and less, as asked for first.

    One alone where the user has said which passes run or which convolutions are fused, and for cuda.
    """
    found = [Choice("everything is done as planned", asked.again())]
    if (
        asked.passes is not None
        or (asked.conv is not ConvPolicy.AUTO and not asked.tune)
        or not asked.on.chosen_by_runs
    ):
        return found

    def without(unwanted: Callable[[str], bool], conv: ConvPolicy = ConvPolicy.NONE) -> Request:
        return asked.again(lambda name: not unwanted(name), conv=conv)

    fusing = {name for name in (step.name for step in asked.steps) if name.startswith("fuse-")} | _OF_CONVOLUTIONS
    found.append(Choice("products of matrices are ONNX Runtime's", without(lambda name: name == _PRODUCTS, asked.conv)))
    found.append(Choice("every convolution that can be is fused", without(lambda name: False, ConvPolicy.ALL)))
    found.append(Choice("convolutions are ONNX Runtime's", without(lambda name: False)))
    elementwise = fusing - {"fuse-elementwise"}
    found.append(Choice("elementwise nodes alone are fused", without(lambda name: name in elementwise)))
    found.append(Choice("nothing is fused", without(lambda name: name in fusing)))
    found.append(Choice("the nodes are the original's", asked.again(lambda name: False)))
    return found


def judged(
    original: Path,
    result: Path,
    asked: Request,
    shapes: Shapes,
    given: Given | None,
    write: Callable[[Request, Path], None],
    context: PassContext,
) -> tuple[Request, Speed] | None:
    """Time a result beside its original, say so in the report, and find another request where it is slower.

    None where it is not, or where there is no other request: a warning says then that it is slower.  Both run on the
    first set of ``given``, as ``read_inputs`` takes it, or else on made-up inputs of ``shapes``.  ``write`` writes the
    model that a request makes.  A model that does not run here is not timed, and the report says why.
    """
    report = context.report
    if reason := why_not_here(asked.target):
        report.not_timed = f"Not timed: {reason}."
        return None
    if _is_same(original, result):
        report.not_timed = "Not timed: the result is the original, nothing was changed."
        return None
    context.progress("timing the original and the result in turns")
    try:
        inputs = None if given is None else timing_inputs(original, shapes, given, asked.target)
        models = {ORIGINAL: original, RESULT: result}
        timed = time_models(models, inputs, shapes=shapes, target=asked.target)
        report.speed = _speed(timed[ORIGINAL], timed[RESULT], (original, result))
        if not _slower_here(timed[ORIGINAL], timed[RESULT]):
            return None
        inputs = timed[ORIGINAL].inputs
        candidates = choices(asked)
        if len(candidates) == 1:
            if report.speed.slower:
                report.add_warning(f"the result is slower than the original: {report.speed.describe()}")
            return None
        context.progress("the result is slower: timing what does less")
        request, speed = choose(candidates, write, original, inputs, report.speed, asked.target)
        report.speed = speed
    except OnnxfuseError as error:
        report.speed, report.not_timed = None, f"Not timed: {error}."
        return None
    return None if request is candidates[0].request else (request, report.speed)


def _is_same(original: Path, result: Path) -> bool:
    """Whether both have the same nodes and weights: what would be timed is chance."""

    def parts(model: onnx.ModelProto) -> Iterator[bytes]:
        for part in (*model.graph.node, *model.graph.input, *model.graph.initializer, *model.functions):
            yield part.SerializeToString(deterministic=True)

    def same(read: Callable[[Path], onnx.ModelProto]) -> bool:
        return all(a == b for a, b in zip_longest(parts(read(original)), parts(read(result))))

    return same(read_outline) and same(read_proto)  # weights are read where all else is the same


def timing_inputs(path: Path, shapes: Shapes, given: Given | None, target: str) -> InputSet:
    """What a model is timed on: the first set of ``given``, as ``read_inputs`` takes it, or else made-up inputs."""
    model = read_outline(path)
    if given is not None:
        return read_inputs(given, input_specs(model), default_specs(model))[0]
    return benchmark_inputs(path, model, shapes, target)


def benchmark_inputs(path: Path, model: onnx.ModelProto, shapes: Shapes, target: str) -> InputSet:
    """Made-up inputs of the size of benchmarks, which the model at ``path`` takes.

    Raises OnnxfuseError if it cannot be run.
    """
    try:
        session = Session(path, providers=PROVIDERS[target], library=has_fused_nodes(model))
    except SessionError as error:
        raise OnnxfuseError(f"ONNX Runtime cannot load {path}: {error}") from error
    return next(generate(input_specs(model), session.run, shapes, BENCHMARK_SIZES, model))[0]


def choose(
    candidates: list[Choice],
    write: Callable[[Request, Path], None],
    original: Path,
    inputs: InputSet,
    first: Speed,
    target: str,
) -> tuple[Request, Speed]:
    """The fastest way to optimize a model of which ``first``, measured, says that the first way makes it slower.

    ``write`` writes the model that a request makes.  All that differ are timed beside the original, the first one too:
    in another process it may not be slower.  Where all are slower, the last one is taken, which is the original.
    """
    with scratch() as folder:
        paths = {ORIGINAL: original}
        for number, candidate in enumerate(candidates[:-1]):
            path = folder / f"{number}.onnx"
            write(candidate.request, path)
            if all(path.read_bytes() != other.read_bytes() for name, other in paths.items() if name != ORIGINAL):
                paths[candidate.words] = path
        timed = time_models(paths, inputs, target=target)
        ratios = {name: ratio_of(timed[ORIGINAL], found) for name, found in timed.items() if name != ORIGINAL}
        planned = f"as planned it ran {_described(ratios[candidates[0].words])}."
        tried = [choice for choice in candidates[:-1] if choice.words in timed]
        good = [choice for choice in tried if not _slower_here(timed[ORIGINAL], timed[choice.words])]
        if not good:
            last = candidates[-1]
            said = f"Taken back: {last.words}; {planned}"
            sizes = (first.sizes[0], first.sizes[0])
            milliseconds = float(np.percentile(timed[ORIGINAL].times, 25) * 1000)
            return last.request, Speed(
                1.0, 1.0, 1.0, (milliseconds, milliseconds), sizes, said, inputs.shapes(), timed[ORIGINAL].distance
            )
        best = max(good, key=lambda choice: ratios[choice.words][0])
        said = ""
        if best is not candidates[0]:
            said = f"Taken back: {best.words}; {planned}"
        return best.request, _speed(timed[ORIGINAL], timed[best.words], (original, paths[best.words]), said)
