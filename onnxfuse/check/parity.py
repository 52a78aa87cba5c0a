"""Does an optimized model compute what the original computes?

The original runs in plain ONNX Runtime with all optimizations; the optimized model runs with the onnxfuse
library, and once more without it, when ONNX Runtime inlines the fused nodes.  ``onnxfuse.check.comparison`` says
what counts as equal.

A model can amplify rounding until its outputs mean little (a top-k near a tie, a quantizer on an edge).  So
an output that differs is held against the original run with ONNX Runtime's optimizations disabled, and, if that
does not explain it, with its weights, its inputs or what it quantizes rounded otherwise
(``rounding_noise.py``): if one of these alone makes at least a third as large a difference, the output counts as
unstable, with a warning, and not as an error.  Where the original can be computed in float64
(``float64_reference.py``) that decides: an output of floats passes if it is no more than five times as far from that as
ONNX Runtime's own, with or without its optimizations, or than that on the same numbers in other places of the inputs,
and fails if it is further, however unstable.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path

import numpy as np
import onnx

from onnxfuse.check.comparison import Comparison, Numbers, compare_values, precision
from onnxfuse.check.dynamic_sizes import sizes_of
from onnxfuse.check.float64_reference import Float64Model, describe_off, is_within, off
from onnxfuse.check.made_up_inputs import generate
from onnxfuse.check.numerics import has_tf32, output_numbers, reads_computed_constants, with_tf32
from onnxfuse.check.region_parity import RegionResult, compare_regions
from onnxfuse.check.rounding_noise import Expected, OtherRun, done, inputs_shuffled, other_originals
from onnxfuse.errors import OnnxfuseError, ParityError
from onnxfuse.files.model_io import read_outline, read_proto, read_stored
from onnxfuse.fused.target import TARGETS
from onnxfuse.model.protos import onnx_graphs
from onnxfuse.run.given_shapes import Shapes, fit_shapes_of, guessed_inputs
from onnxfuse.run.inputs import Given, InputSet, InputSpec, default_specs, input_specs, read_inputs
from onnxfuse.run.sessions import Session, SessionError, Value, has_fused_nodes
from onnxfuse.system import give_back_memory

PROVIDERS = {name: target.providers for name, target in TARGETS.items()}
"""The execution providers that a target runs on."""

_NOISE = 3
"""How many times as large as what noise does a difference may be."""

_FEW = 64
"""Elements of which ONNX Runtime's own result may be near the one in float64 by luck."""

_LARGE = 1 << 26
"""Bytes of a file from which on it takes some seconds, and several times its memory, to round a model otherwise."""

_SECONDS = 60.0
"""What the computation in float64 may take."""

_SHUFFLES = 8
"""How often the numbers of the inputs change places: a gate that is open by chance makes a large error by chance."""

_MADE_UP_ADVICE = (
    "numbers that rounding alone changes tell little of such outputs: compare on real data with --inputs (inputs=), "
    "and compare what is made of them, labels or boxes, not the numbers"
)
_GIVEN_ADVICE = (
    "numbers that rounding alone changes tell little of such outputs: compare what is made of them, labels or boxes"
)

Progress = Callable[[str], None]


@dataclass
class SetResult:
    """The outputs for one set of inputs.  ``sizes`` are those of the dimensions that the model leaves open, by name, or
    as ``x[2]`` by input and axis."""

    label: str
    shapes: dict[str, list[int]]
    outputs: list[Comparison]
    library: bool
    sizes: dict[str, int] = field(default_factory=dict)
    differing: dict[str, Value] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, object]:
        """The fields as JSON takes them."""
        return {
            "inputs": self.label,
            "shapes": self.shapes,
            "sizes": self.sizes,
            "library": self.library,
            "outputs": [output.to_json() for output in self.outputs],
        }


@dataclass
class ParityResult:
    """Everything that was compared.  Each set of inputs stands twice if the model was also run without the
    library.  ``made_up`` says that the inputs were, ``guessed`` names those whose sizes are guesses."""

    sets: list[SetResult] = field(default_factory=list)
    regions: list[RegionResult] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    made_up: bool = False
    guessed: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every output and every region passes."""
        return all(output.ok for output in self.outputs()) and all(region.ok for region in self.regions)

    def outputs(self) -> Iterator[Comparison]:
        """Every output of every run."""
        for result in self.sets:
            yield from result.outputs

    def sizes(self) -> dict[str, list[int]]:
        """The sizes that were run of each dimension that the model leaves open, the least first."""
        names = dict.fromkeys(name for result in self.sets for name in result.sizes)
        return {name: sorted({result.sizes[name] for result in self.sets if name in result.sizes}) for name in names}

    def worst(self) -> Comparison | None:
        """The output with the largest error relative to what is allowed; failures first."""
        return max(self.outputs(), key=lambda c: (not c.ok, c.mismatches > 0, c.excess, c.max_abs), default=None)

    def failure(self) -> str:
        """One line that says what differs; empty if nothing does."""
        for result in self.sets:
            for output in result.outputs:
                if not output.ok:
                    without = "" if result.library else " (run without the onnxfuse library)"
                    regions = [region.node for region in self.regions if not region.ok]
                    guilty = f"; fused node {regions[0]!r} differs when run alone" if regions else ""
                    return f"output {output.name!r} differs from the original{without}: {output.reason}{guilty}"
        for region in self.regions:
            if not region.ok:
                return f"fused node {region.node!r} differs from its nodes: {region.comparison.reason}"
        return ""

    def to_json(self) -> dict[str, object]:
        """The fields as JSON takes them."""
        return {
            "ok": self.ok,
            "made_up": self.made_up,
            "guessed": list(self.guessed),
            "sizes": self.sizes(),
            "sets": [result.to_json() for result in self.sets],
            "regions": [region.to_json() for region in self.regions],
            "warnings": list(self.warnings),
        }


def compare(
    original: Path,
    optimized: Path,
    *,
    inputs: Given | list[InputSet] | None = None,
    shapes: Shapes | None = None,
    target: str = "cpu",
    regions: bool = False,
    progress: Progress = lambda message: None,
) -> ParityResult:
    """Run both models on the same inputs and compare their outputs.

    ``inputs`` is what ``read_inputs`` takes, or the sets themselves; without
    it, inputs are made up, with the ``shapes`` for dynamic dimensions, and those that the optimized model fixes.
    ``regions`` also runs every fused node alone; it is done in any case when an output differs, to name the node.
    Raises OnnxfuseError if the
    original has no outputs or cannot be run, ParityError if the optimized model has other inputs or outputs or cannot
    be run; a difference in values is in the result.
    """
    shapes = shapes or {}
    original_proto, optimized_proto = read_outline(original), read_outline(optimized)
    if not original_proto.graph.output:
        raise OnnxfuseError(f"{original}: the model has no outputs, so there is nothing to compare")
    specs = input_specs(original_proto)
    shapes = fit_shapes_of(specs, input_specs(optimized_proto), shapes)
    _check_signature(original_proto, optimized_proto)
    providers = PROVIDERS[target]
    numbers = output_numbers(original_proto)
    if TARGETS[target].tf32 and has_tf32(optimized_proto):
        numbers = {name: replace(known, coarsest=with_tf32(known.coarsest)) for name, known in numbers.items()}

    progress("running the original")
    result = ParityResult(made_up=inputs is None, guessed=guessed_inputs(specs, shapes) if inputs is None else [])
    expected = _run_original(original, original_proto, inputs, shapes, providers, result.warnings.append)
    result.warnings += _untold(original_proto, expected)
    fused = has_fused_nodes(optimized_proto)
    runs = {
        library: partial(_run_optimized, optimized, specs, expected, providers, numbers, library)
        for library in ((True, False) if fused else (False,))
    }
    judge = cache(partial(_Judge.of, original, expected, providers, numbers))
    warnings = list(result.warnings)
    for lean in (True, False):  # what does not pass is run as users do, which may be rounded otherwise
        result.sets = []
        for library, run in runs.items():
            progress("running the optimized model" + (" without the onnxfuse library" if fused and not library else ""))
            as_users_run_it = not lean or (library and reads_computed_constants(optimized_proto))
            result.sets += run(False) if as_users_run_it else _run_lean(run)
        differs = any(output.reason for output in result.outputs())
        result.warnings = warnings + (_settled(result, judge(), progress) if differs else [])
        if result.ok:
            break
    if fused and (regions or not result.ok):
        progress("running each fused node alone")
        result.regions = compare_regions(optimized, read_proto(optimized), expected[0][0], providers, progress)
    return result


def foreign_domains(path: Path) -> set[str]:
    """The domains of operators, in any graph of the model, that are neither ONNX's nor the model's own functions."""
    model = read_outline(path)
    own = {(function.domain, function.name) for function in model.functions}
    nodes = [node for graph in onnx_graphs(model.graph) for node in graph.node]
    nodes += [node for function in model.functions for node in function.node]
    return {node.domain for node in nodes if (node.domain, node.op_type) not in own} - {"", "ai.onnx", "ai.onnx.ml"}


def _check_signature(original: onnx.ModelProto, optimized: onnx.ModelProto) -> None:
    for what, left, right in (
        ("inputs", input_specs(original), input_specs(optimized)),
        ("outputs", original.graph.output, optimized.graph.output),
    ):
        names, others = [value.name for value in left], [value.name for value in right]
        if names != others:
            raise ParityError(f"the models have different {what}: {_listed(names)} and {_listed(others)}")
    for one, other in zip(input_specs(original), input_specs(optimized), strict=True):
        if (one.elem_type, one.kind) != (other.elem_type, other.kind):
            raise ParityError(f"the models have different inputs: {one.describe()} and {other.describe()}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


class UnloadableError(OnnxfuseError):
    """ONNX Runtime does not take the original model, so nothing can be compared with it."""


def _run_original(
    path: Path,
    model: onnx.ModelProto,
    inputs: Given | list[InputSet] | None,
    shapes: Shapes,
    providers: tuple[str, ...],
    tell: Progress,
) -> Expected:
    try:
        session = Session(path, providers=providers)
    except SessionError as error:
        raise UnloadableError(f"ONNX Runtime cannot load {path}: {error}") from error
    specs = input_specs(model)
    if inputs is None:
        return list(generate(specs, session.run, shapes, model=model, tell=tell))
    expected = []
    for values in inputs if isinstance(inputs, list) else read_inputs(inputs, specs, default_specs(model)):
        try:
            expected.append((values, session.run(values.feeds)))
        except SessionError as error:
            raise OnnxfuseError(f"the original cannot be run on {values.label}: {error}") from error
    return expected


def _untold(original: onnx.ModelProto, expected: Expected) -> Iterator[str]:
    """A warning for every output that has no element or nothing but NaN in all runs, as a wrong one may have too."""
    names = dict.fromkeys(output.name for output in original.graph.output)  # ONNX Runtime gives each once
    for index, name in enumerate(names):
        if all(_tells_nothing(values[index]) for _, values in expected):
            yield f"output {name!r} has nothing to compare on these inputs: it is empty, or NaN throughout"


def _tells_nothing(value: Value) -> bool:
    if isinstance(value, list):
        return all(map(_tells_nothing, value))
    if not isinstance(value, np.ndarray):
        return False
    return value.size == 0 or (precision(value.dtype) > 0 and bool(np.isnan(value).all()))


def _run_optimized(
    path: Path,
    specs: list[InputSpec],
    expected: Expected,
    providers: tuple[str, ...],
    numbers: Mapping[str, Numbers],
    library: bool,
    lean: bool,
) -> list[SetResult]:
    give_back_memory()
    how = " with the onnxfuse library" if library else ""
    results = []
    try:
        session = Session(path, providers=providers, library=library, lean=lean)
        for inputs, values in expected:
            actual = session.run(inputs.feeds)
            outputs = [
                compare_values(name, left, right, numbers[name])
                for name, left, right in zip(session.output_names, values, actual, strict=True)
            ]
            shapes = inputs.shapes()
            differing = {output.name: value for output, value in zip(outputs, actual, strict=True) if output.reason}
            sizes = sizes_of(specs, shapes)
            results.append(SetResult(inputs.label, shapes, outputs, library, sizes, differing))
    except SessionError as error:
        if error.lacks_memory():
            raise MemoryError(str(error)) from error
        raise ParityError(f"the optimized model does not run in ONNX Runtime{how}: {error}") from error
    return results


def _run_lean(run: Callable[[bool], list[SetResult]]) -> list[SetResult]:
    """The results of a lean session, or where that does not run those of one as users have it.

    The bodies of functions turn weights back from the order in which kernels read them, and so does what else reads
    them.  ONNX Runtime makes several copies of them all where it does so before the first run.
    """
    with suppress(ParityError):
        return run(True)
    return run(False)


def _settled(result: ParityResult, judge: "_Judge", progress: Progress) -> list[str]:
    """Settle which outputs that differ pass, as unstable ones; the warnings that say so.

    A large original is not rounded otherwise, which takes long, for what float64 decides without.
    """
    progress("running the original without ONNX Runtime's optimizations")
    causes: dict[str, str] = {}
    warnings: dict[str, str] = {}
    count = 1 if judge.is_large else len(judge.runs)
    _mark_noise(result, judge, judge.runs[:count], causes)
    is_told = result.ok or not judge.is_large
    _mark_judged(result, judge, causes, warnings, progress)
    if not is_told and not result.ok:
        progress("running the original rounded otherwise")
        left = [output for output in result.outputs() if not output.ok]
        _mark_noise(result, judge, judge.runs[count:], causes)
        _mark_judged(result, judge, causes, warnings, progress, left)
    for compared in result.sets:
        compared.differing.clear()
    unstable = {output.name for output in result.outputs() if output.unstable}
    told = [f"output {name!r} is unstable: {why}" for name, why in warnings.items() if name in unstable]
    return [*told, _MADE_UP_ADVICE if result.made_up else _GIVEN_ADVICE] if unstable else []


def _mark_noise(result: ParityResult, judge: "_Judge", runs: Iterable[OtherRun], causes: dict[str, str]) -> None:
    """Mark as unstable what these runs of the original make as large a difference to, until nothing is left.

    ``causes`` gets by what, by the names of outputs.
    """
    expected, numbers = judge.expected, judge.numbers
    for original, others in done(runs):
        noises = [
            [
                compare_values(output.name, first, other, numbers[output.name])
                for output, first, other in zip(result.sets[index].outputs, values, others[index], strict=True)
            ]
            for index, (_, values) in enumerate(expected)
        ]
        for number, compared in enumerate(result.sets):
            own = noises if original.by_chance else [noises[number % len(expected)]]
            for output, *of_sets in zip(compared.outputs, *own, strict=True):
                if output.ok:
                    continue
                found = next((noise for noise in of_sets if is_within(output, noise, _NOISE)), None)
                output.unstable = found is not None
                if found is not None:
                    much = found.reason or f"{found.excess:.2f} of what is allowed"
                    causes[output.name] = f"{original.cause} it as much ({much})"
        if result.ok:
            break


def _mark_judged(
    result: ParityResult,
    judge: "_Judge",
    causes: Mapping[str, str],
    warnings: dict[str, str],
    progress: Progress,
    wanted: list[Comparison] | None = None,
) -> None:
    """Let float64 decide of the outputs that differ, or of those ``wanted`` alone; ``warnings`` get why they pass."""
    progress("running the original in float64")
    give_back_memory()
    for number, compared in enumerate(result.sets):
        for place, output in enumerate(compared.outputs):
            if output.name not in compared.differing or not (wanted is None or any(output is one for one in wanted)):
                continue
            said = judge.judge(output, compared.differing[output.name], number % len(judge.expected), place)
            if output.ok:
                warnings[output.name] = "; ".join(filter(None, (causes.get(output.name), said)))


@dataclass
class _Judge:
    """Tells by a result in float64 whether an output that differs is worse than ONNX Runtime's own."""

    model: Float64Model
    model_elsewhere: Float64Model
    original: Callable[[], Session]
    expected: Expected
    runs: list[OtherRun]
    numbers: Mapping[str, Numbers]
    is_large: bool
    _known: dict[int, dict[str, Value] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path, expected: Expected, providers: tuple[str, ...], numbers: Mapping[str, Numbers]) -> "_Judge":
        """That of the model in a file, which was run on the inputs that are ``expected`` to give these outputs."""
        proto, stored = read_stored(path)
        first, more = (Float64Model(proto, path.absolute().parent, _SECONDS, stored) for _ in range(2))
        runs = [OtherRun(original, expected) for original in other_originals(path, providers)]
        session = cache(partial(Session, path, providers=providers))
        return cls(first, more, session, expected, runs, numbers, path.stat().st_size > _LARGE)

    def judge(self, output: Comparison, actual: Value, index: int, place: int) -> str:
        """Settle whether an output passes, if there is such a result; what to say of it.

        ``index`` is the set of inputs and ``place`` that of the output.
        """
        ours = self._off(output.name, actual, index)
        if ours is None:
            return f"there is no result in float64 to tell more: {self.model.reason}" if self.model.reason else ""
        theirs = self._off(output.name, self.expected[index][1][place], index)
        if theirs is None:
            return ""
        as_good = [run for run in self.runs if run.original.is_as_exact or (run.is_done and np.size(actual) < _FEW)]
        others = (
            self._off(output.name, values[at][place], at)
            for original, values in done(as_good)
            for at in (range(len(self.expected)) if original.by_chance else (index,))
        )
        output.off, output.original_off = ours.max_abs, theirs.max_abs
        output.unstable = any(other is not None and is_within(ours, other) for other in chain((theirs,), others))
        said = describe_off(ours, theirs)
        if not output.unstable:
            elsewhere = next(filter(partial(is_within, ours), self._off_elsewhere(output.name, index, place)), None)
            output.unstable = elsewhere is not None
            if elsewhere is not None:
                said += f"; with its inputs in another order ONNX Runtime's own is off by {elsewhere.max_abs:.2g}"
        if not output.unstable and said not in output.reason:
            output.reason += f"; {said}"
        return said

    def _off_elsewhere(self, name: str, index: int, place: int) -> Iterator[Comparison]:
        """How far ONNX Runtime's own result is off on inputs of the same numbers in other places."""
        for seed in range(_SHUFFLES):
            feeds = inputs_shuffled(self.expected[index][0].feeds, seed)
            exact = self.model_elsewhere.outputs(feeds) if feeds else None
            if exact is None:
                return
            try:
                value = self.original().run(feeds)[place]
            except SessionError:  # of a model that takes no such inputs
                return
            found = off(name, value, exact.get(name), self.numbers[name])
            if found is not None:
                yield found

    def _off(self, name: str, value: Value, index: int) -> Comparison | None:
        """How far a value is from the result in float64, if there is one."""
        if index not in self._known:
            self._known[index] = self.model.outputs(self.expected[index][0].feeds)
        return off(name, value, (self._known[index] or {}).get(name), self.numbers[name])
