"""The check of one random model: optimize it, run it, and compare it with the original in plain ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from onnxfuse.check.comparison import Numbers, compare_values
from onnxfuse.check.float64_reference import Float64Model, describe_off, is_within, off
from onnxfuse.check.numerics import output_numbers
from onnxfuse.cuda.conv.choice import RuleChooser
from onnxfuse.files.model_io import load_proto
from onnxfuse.fused.choices import ConvPolicy
from onnxfuse.fused.conv.choosers import CudaChooser
from onnxfuse.fused.functions import finish_functions
from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.passes import PassContext, resolve
from onnxfuse.run.sessions import Session, SessionError, Value
from tools.executable_check import differs_alone, same_bits
from tools.fuzz import slack as fuzz_slack
from tools.fuzz.graph import EXACT_OPS
from tools.fuzz.slack import HALF

NHWC, CUDA_FORCED = "cuda, nhwc", "cuda, forced"
EVERYTHING, FORCED = "everything", "forced"
PIPELINES = (EVERYTHING, "fuse", "default", FORCED, "cuda", NHWC, CUDA_FORCED)
"""Every elementwise node that can be fused, single ones too; what the planner fuses; all passes, rewrite rules among
them; all passes with all fused that can be; what the planner fuses for CUDA, which the CPU runs as well; and all passes
for CUDA, with prefer_nhwc and with all fused that can be."""
REWRITING = ("default", FORCED, NHWC, CUDA_FORCED)
"""Those of all passes: results may differ by roundings."""

SAME, EXPLAINED, NOT_RUN, FAILED = "same", "explained", "not run", "failed"
ILL_CONDITIONED = "ill-conditioned"
"""It differs by more than noise explains, and is no further from what float64 gives than ONNX Runtime's own result."""

_FLOAT64_SECONDS = 30.0
UNJUDGED = "not judged"
"""It differs, and ONNX Runtime does not run the model with noise that would tell whether it may."""


REFUSED_CONCAT = "does not lie along axis"
"""What a fused node says of an operand of a Concat that it refuses."""

Difference = tuple[str, np.ndarray, np.ndarray, bool, str]
"""An output: its name, the original's value, the other, whether they must have the same bits, and the difference."""


@dataclass
class Verdict:
    """What came of one model: ``failed`` with a reason in one line, or what it counts as.

    ``kind`` is the part of the reason that stays the same while a failing model is made smaller.
    """

    outcome: str
    reason: str = ""
    kind: str = ""
    fused: int = 0
    exact: int = 0
    outputs: list[str] = field(default_factory=list)


def check(
    model: onnx.ModelProto,
    feeds: Sequence[Mapping[str, Value]],
    pipeline: str,
    attempts: int = fuzz_slack.ATTEMPTS,
) -> Verdict:
    """Check a model on several inputs; it is ``not run`` if ONNX Runtime refuses it or the first of them.

    ``attempts`` is how often a difference is held against noise.
    """
    rewritten = pipeline in REWRITING
    try:
        runs = run_original(model, feeds, pipeline)
    except SessionError as error:
        return Verdict(NOT_RUN, str(error))
    try:
        optimized = optimize(model, pipeline)
        if _passes_checker(model):
            onnx.checker.check_model(_with_shapes(optimized))
    except Exception as error:
        return Verdict(FAILED, f"optimizing fails: {type(error).__name__}: {_line(error)}", type(error).__name__)
    names = [output.name for output in model.graph.output]
    if names != [output.name for output in optimized.graph.output]:
        return Verdict(FAILED, "the outputs have other names", "names")
    exact = set() if rewritten else exact_outputs(model)
    verdict = Verdict(SAME, fused=_fused(optimized), exact=len(exact))
    numbers = output_numbers(model)
    for library in (True, False):
        how = "with" if library else "without"
        try:
            session = Session(optimized.SerializeToString(), threads=1, library=library, optimized=rewritten)
            results = [session.run(dict(inputs)) for inputs, _ in runs]
        except SessionError as error:
            if library and REFUSED_CONCAT in str(error) and any(joins_what_is_refused(model, one) for one, _ in runs):
                return Verdict(EXPLAINED, str(error))
            return Verdict(FAILED, f"it does not run {how} the library: {error}", f"run {library}")
        if library and (reason := differs_alone(optimized, [inputs for inputs, _ in runs], results)):
            return Verdict(FAILED, f"without ONNX Runtime {reason}", "alone")
        for (inputs, expected), actual in zip(runs, results, strict=True):
            triples = list(zip(names, expected, actual, strict=True))
            different = _different(triples, numbers, exact)
            if not different:
                continue
            try:
                found = fuzz_slack.unexplained(model, inputs, [item[:4] for item in different], rewritten, attempts)
                unjudged = ""
            except SessionError as error:
                found, unjudged = [name for name, *_ in different], f"{different[0][4]}: {error}"
            verdict.outcome = EXPLAINED if verdict.outcome == SAME else verdict.outcome
            left = [item for item in different if item[0] in found]
            judged = {} if not left else against_float64(model, inputs, left, numbers)
            if unjudged and not all(judged.get(name, (False, ""))[0] for name in found):
                return Verdict(UNJUDGED, unjudged)
            for name, _, _, _, reason in left:
                text = f"output {name!r} {how} the library: {reason}"
                excused, said = judged.get(name, (False, ""))
                if not excused:
                    kind = f"differs {library} {'other' if name not in exact else 'exact'}"
                    return Verdict(FAILED, f"{text}; {said}" if said else text, kind, outputs=found)
                verdict.outcome, verdict.reason = ILL_CONDITIONED, f"{text}; {said}"
    return verdict


def joins_what_is_refused(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> bool:
    """Whether a Concat of the main graph joins what fused nodes refuse by docs/results.md: an operand without elements
    that is not nothing along the axis, and whose other sizes are not those of another one.  ONNX Runtime returns memory
    for it that nothing has written."""
    concats = [node for node in model.graph.node if node.op_type == "Concat"]
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    names = list(dict.fromkeys(name for node in concats for name in node.input))
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        values = Session(watched.SerializeToString(), threads=1, optimized=False).run(dict(inputs), names)
    except SessionError:
        return False
    shapes = {name: np.shape(value) for name, value in zip(names, values, strict=True)}
    for node in concats:
        axis = onnx.helper.get_node_attr_value(node, "axis")
        joined = [np.delete(shapes[name], axis).tolist() for name in node.input if shapes[name][axis] > 0]
        if any(0 in sizes and sizes != other for sizes in joined for other in joined):
            return True
    return False


def against_float64(
    model: onnx.ModelProto, inputs: Mapping[str, Value], different: list[Difference], numbers: Mapping[str, Numbers]
) -> dict[str, tuple[bool, str]]:
    """By output, where that can be told: whether it is no further from float64 than ONNX Runtime's own results are, and
    which is nearer.  One that must be equal to the last bit is not excused."""
    reference = Float64Model(model, Path(), _FLOAT64_SECONDS).outputs(dict(inputs))
    if reference is None:
        return {}
    names = [name for name, *_ in different]
    try:
        plain = Session(model.SerializeToString(), threads=1, optimized=False).run(dict(inputs), names)
    except SessionError:
        plain = [expected for _, expected, *_ in different]
    judged = {}
    for (name, expected, actual, is_exact, _), unoptimized in zip(different, plain, strict=True):
        ours, theirs, other = (
            off(name, value, reference[name], numbers[name]) for value in (actual, expected, unoptimized)
        )
        if ours is not None and theirs is not None and other is not None:
            is_near = is_within(ours, theirs) or is_within(ours, other)
            judged[name] = is_near and not is_exact, describe_off(ours, theirs)
    return judged


def run_original(
    model: onnx.ModelProto, feeds: Sequence[Mapping[str, Value]], pipeline: str
) -> list[tuple[Mapping[str, Value], list[Value]]]:
    """The inputs that the model runs on, and its outputs; raises SessionError if the first inputs do not run."""
    session = Session(model.SerializeToString(), threads=1, optimized=pipeline in REWRITING)
    runs = [(inputs, session.run(dict(inputs))) for inputs in feeds[:1]]
    for inputs in feeds[1:]:
        try:
            runs.append((inputs, session.run(dict(inputs))))
        except SessionError:  # a constant fixes a size
            continue
    return runs


def _different(
    triples: list[tuple[str, Value, Value]], numbers: Mapping[str, Numbers], exact: set[str]
) -> list[Difference]:
    found: list[Difference] = []
    for name, expected, actual in triples:
        reason = compare_values(name, expected, actual, numbers[name]).reason
        if not reason and name in exact and not same_bits(expected, actual):
            reason = "not the same bits"
        if reason:
            where = _first_difference(np.asarray(expected), np.asarray(actual))
            found.append((name, expected, actual, name in exact, f"{reason}{where}"))
    return found


def _first_difference(expected: np.ndarray, actual: np.ndarray) -> str:
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return ""
    left, right = expected.reshape(-1), actual.reshape(-1)
    for index in range(left.size):
        if not same_bits(left[index : index + 1], right[index : index + 1]):
            return f"; element {index} is {right[index]} instead of {left[index]}"
    return ""


def optimize(model: onnx.ModelProto, pipeline: str) -> onnx.ModelProto:
    """The model after one of the pipelines; for cuda with every convolution fused that can be, or with none."""
    target = "cuda" if pipeline.startswith("cuda") else "cpu"
    policy = ConvPolicy.NONE if pipeline == NHWC else ConvPolicy.ALL
    context = PassContext(
        target=target,
        convolutions=CudaChooser(RuleChooser(policy)) if target == "cuda" else None,
        prefer_nhwc=pipeline == NHWC,
        everything=pipeline in (EVERYTHING, FORCED, CUDA_FORCED),
    )
    return rewritten(model, context, None if pipeline in REWRITING else ["fuse-elementwise"])


def rewritten(model: onnx.ModelProto, context: PassContext, passes: Sequence[str] | None = None) -> onnx.ModelProto:
    """What ``onnxfuse.optimize`` makes of a model, in memory; ``passes`` names the passes, all by default."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    loaded = load_proto(copy)
    for step in resolve(passes):
        step.run(loaded, context)
    finish_functions(loaded)
    return loaded.to_proto()


def _passes_checker(model: onnx.ModelProto) -> bool:
    """Whether onnx takes a model itself: ONNX Runtime takes some operators in opsets that have them not."""
    try:
        onnx.checker.check_model(_with_shapes(model))
    except onnx.checker.ValidationError:
        return False
    return True


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as onnx's checker wants it: with a rank of every input, which ONNX Runtime does not need."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for info in copy.graph.input:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.shape.SetInParent()
    return copy


def exact_outputs(model: onnx.ModelProto) -> set[str]:
    """The outputs that a fused model must give to the last bit: made by settled operators of no 16-bit floats."""
    inexact = _inexact(model.graph, set())
    return {output.name for output in model.graph.output} - inexact


def _inexact(graph: onnx.GraphProto, outer: set[str]) -> set[str]:
    found = set(outer)
    found |= {tensor.name for tensor in graph.initializer if tensor.data_type in HALF}
    found |= {info.name for info in graph.input if info.type.tensor_type.elem_type in HALF}
    for node in graph.node:
        if not _is_exact(node) or any(name in found for name in node.input):
            found.update(node.output)
        for attribute in node.attribute:
            if (
                (attribute.type == onnx.AttributeProto.GRAPH and _inexact(attribute.g, found) - found)
                or (attribute.name == "to" and attribute.i in HALF)
                or (attribute.name == "value" and attribute.t.data_type in HALF)
            ):
                found.update(node.output)
    return found


def _is_exact(node: onnx.NodeProto) -> bool:
    return node.op_type in EXACT_OPS and not (node.op_type == "Sum" and len(node.input) > 2)


def _fused(model: onnx.ModelProto) -> int:
    nodes = list(model.graph.node)
    count = 0
    while nodes:
        node = nodes.pop()
        count += node.domain == DOMAIN
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                nodes.extend(attribute.g.node)
    return count


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
