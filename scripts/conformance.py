#!/usr/bin/env python3
"""Write docs/conformance.md, and its count into docs/results.md: what becomes of every case of onnx's backend test.

Each case is optimized as by default and with all fused that can be (PassContext.everything), for the CPU and for CUDA,
as it is and with all inputs but the first as constants, which weights are in real models.  What comes out runs on the
case's own inputs, with the onnxfuse library and without it, and is compared with ONNX Runtime's result of the case
itself.  tests/commands/test_conformance.py does the same and holds the document against it.
"""

import functools
import os
import re
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["PYTHONSAFEPATH"] = "1"

sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

import numpy as np
import onnx

from onnxfuse.check.comparison import compare_values
from onnxfuse.check.numerics import output_numbers
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.model.protos import onnx_graphs
from onnxfuse.passes import PassContext
from onnxfuse.report.report import Report
from onnxfuse.run.inputs import input_specs, read_inputs
from onnxfuse.run.sessions import Session, SessionError, Value
from tools.executable_check import differs_alone
from tools.fuzz import check as fuzz_check
from tools.messages import Parser

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "conformance.md"
RESULTS = ROOT / "docs" / "results.md"
NEWEST_IR_VERSION = 13
"""The newest IR version that ONNX Runtime takes; no case uses what a newer one brought."""

NEWEST_OPSET = 26
"""The newest opset that ONNX Runtime takes; a case of a newer one runs in this one."""

MODELS = ("simple", "pytorch-converted", "pytorch-operator")
"""Kinds of cases that are models of several nodes, besides those of operators ("node")."""

_OLDEST_OPSET, _CONVERTED_OPSET = 7, 13
"""Operators are fused from the one on; models before are converted to the other."""

DEFAULT, FORCED, CUDA, CUDA_FORCED = "default", "forced", "CUDA", "CUDA, forced"
WAYS: dict[str, dict[str, Any]] = {
    DEFAULT: {"target": "cpu"},
    FORCED: {"target": "cpu", "everything": True},
    CUDA: {"target": "cuda"},
    CUDA_FORCED: {"target": "cuda", "everything": True},
}
"""How a case is optimized: what the PassContext has.  Nothing is compiled for CUDA, and the results run on the CPU."""

FUSED, REWRITTEN, LEFT_ALONE, NOT_RUN, WRONG = "fused", "rewritten", "left alone", "not run", "other result"
NO_PASS = "no pass is for it"

Feeds = dict[str, Value]


@dataclass(frozen=True)
class Outcome:
    """What became of a case: ``fused``, in fused nodes of these ``families``; ``rewritten`` without any; ``left alone``
    for these ``reasons``; ``not run`` by ONNX Runtime; or an ``other result``."""

    kind: str
    families: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One case: a model, sets of its inputs, and the operator that it is for, or the kind of models that it is of."""

    name: str
    model: onnx.ModelProto
    inputs: tuple[Feeds, ...]
    operator: str


@functools.cache
def cases() -> dict[str, Case]:
    """Every case by name."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases overflow and divide by zero on purpose
        nodes = [(case, case.model) for case in load_model_tests(kind="node") if case.model is not None]
    others = [(kind, case) for kind in MODELS for case in load_model_tests(kind=kind) if case.model_dir is not None]
    first = {case.name: model.graph.node[0] for case, model in nodes}
    found = {}
    for case, model in nodes:
        # What an operator's function expands to is a case of that operator.
        node = first.get(case.name.partition("_expanded")[0], model.graph.node[0])
        inputs = tuple(_feeds(model, values) for values, _ in case.data_sets or ())
        found[case.name] = Case(case.name, model, inputs, f"{node.domain}.{node.op_type}".removeprefix("."))
    for kind, case in others:
        folder = Path(case.model_dir or "")
        model = onnx.load(folder / "model.onnx")
        if any(opset.version < _OLDEST_OPSET for opset in model.opset_import if not opset.domain):
            model = onnx.version_converter.convert_version(model, _CONVERTED_OPSET)
        sets = read_inputs(folder, input_specs(model))
        found[case.name] = Case(case.name, model, tuple(one.feeds for one in sets), f"models: {kind}")
    return found


def by_operator() -> dict[str, list[Case]]:
    """The cases by their operators, those of other domains and the models last."""
    found: dict[str, list[Case]] = {}
    for case in sorted(cases().values(), key=lambda case: (":" in case.operator, "." in case.operator, case.operator)):
        found.setdefault(case.operator, []).append(case)
    return found


def examine(case: Case, ways: Iterable[str] = WAYS) -> dict[str, Outcome]:
    """What becomes of the case, in each of the ``ways``."""
    model = _for_onnxruntime(case.model)
    forms = [(model, list(case.inputs))]
    forms += [frozen for inputs in case.inputs[:1] if (frozen := _with_constants(model, inputs)) is not None]
    found: dict[str, list[Outcome]] = {way: [] for way in ways}
    for form, feeds in forms:
        try:
            session = Session(form.SerializeToString(), threads=1, optimized=False)
            expected = [session.run(one) for one in feeds]
        except SessionError as error:
            if form is model:
                return dict.fromkeys(ways, Outcome(NOT_RUN, reasons=(_why_not_run(str(error)),)))
            continue
        same: set[bytes] = {_computed(form)}
        for way, outcomes in found.items():
            outcomes.append(_outcome(form, feeds, expected, WAYS[way], same))
    return {way: _together(outcomes) for way, outcomes in found.items()}


def _outcome(
    model: onnx.ModelProto,
    feeds: list[Feeds],
    expected: list[list[Value]],
    way: Mapping[str, Any],
    same: set[bytes],
) -> Outcome:
    """What becomes of one form of a case; what is computed in ``same`` is known to give the same result."""
    context = PassContext(**way)
    try:
        optimized = fuzz_check.rewritten(model, context)
    except OnnxfuseError as error:
        return Outcome(LEFT_ALONE, reasons=(str(error),))
    except Exception as error:  # whatever it is, it is a failure of that case
        return Outcome(WRONG, reasons=(f"optimizing fails: {type(error).__name__}: {error}",))
    key = _computed(optimized)
    changed = key != _computed(model)
    if key not in same:
        if reason := _difference(model, optimized, feeds, expected):
            return Outcome(WRONG, reasons=(reason,))
        same.add(key)
    if families := _families(optimized):
        return Outcome(FUSED, families)
    if changed and context.report.rewrites:
        return Outcome(REWRITTEN)
    return Outcome(LEFT_ALONE, (), _reasons(context.report))


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of a case of those of its forms: the worst if it is wrong, else the one where most was done."""
    kind = next(kind for kind in (WRONG, FUSED, REWRITTEN, LEFT_ALONE) if any(one.kind == kind for one in outcomes))
    own = [one for one in outcomes if one.kind == kind]
    families = dict.fromkeys(family for one in own for family in one.families)
    # With constants there is less that a pass could not know.
    return Outcome(kind, tuple(sorted(families)), own[-1].reasons)


def _for_onnxruntime(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in an opset and an IR version that ONNX Runtime takes.

    An older opset may know fewer types, and then ONNX Runtime refuses the model; if it computes something else,
    it does so for both models that are compared.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.ir_version = min(model.ir_version, NEWEST_IR_VERSION)
    for opset in changed.opset_import:
        if opset.domain in ("", "ai.onnx"):
            opset.version = min(opset.version, NEWEST_OPSET)
    return changed


def _with_constants(model: onnx.ModelProto, feeds: Feeds) -> tuple[onnx.ModelProto, list[Feeds]] | None:
    """The model with all tensors but the first as constants and the first output alone, as real models have operators,
    and what is left to feed it; None if there are no such tensors."""
    arrays = [name for name, value in feeds.items() if isinstance(value, np.ndarray)]
    names = [name for name in arrays if name != next(iter(feeds))]
    if not names:
        return None
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    kept = [value for value in model.graph.input if value.name not in names]
    del changed.graph.input[:]
    changed.graph.input.extend(kept)
    del changed.graph.output[1:]
    changed.graph.initializer.extend(onnx.numpy_helper.from_array(feeds[name], name) for name in names)
    return changed, [{name: value for name, value in feeds.items() if name not in names}]


def _feeds(model: onnx.ModelProto, inputs: Iterable[Value]) -> Feeds:
    names = [value.name for value in model.graph.input]
    return {name: _array(value) for name, value in zip(names, inputs, strict=False) if value is not None}


def _array(value: Value) -> Value:
    """As Session takes it: some cases have scalars and TensorProtos."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _why_not_run(message: str) -> str:
    """ONNX Runtime's message in a few words."""
    for text, reason in (
        ("find an implementation", "no kernel of ONNX Runtime for it"),
        ("find kernel", "no kernel of ONNX Runtime for it"),
        ("registered function/op", "an operator that ONNX Runtime does not know"),
        ("This is an invalid model. In Node", f"an operator that opset {NEWEST_OPSET} does not have"),
        ("This is an invalid model. Type Error", f"types that opset {NEWEST_OPSET} does not take"),
        ("Exception during initialization", "ONNX Runtime fails on it"),
        ("Non-zero status code", "ONNX Runtime fails on it"),
    ):
        if text in message:
            return reason
    return "inputs that ONNX Runtime's Python interface does not take"


def _computed(model: onnx.ModelProto) -> bytes:
    """What a model computes, without what is only said of it."""
    graph = onnx.GraphProto()
    graph.CopyFrom(model.graph)
    for field in ("value_info", "doc_string", "name"):
        graph.ClearField(field)
    return graph.SerializeToString(deterministic=True)


def _families(model: onnx.ModelProto) -> tuple[str, ...]:
    """The operators of the fused nodes, without the numbers that tell apart several of one family."""
    nodes = (node for graph in onnx_graphs(model.graph) for node in graph.node)
    return tuple(sorted({re.sub(r"_\d+$", "", node.op_type) for node in nodes if node.domain == DOMAIN}))


def _reasons(report: Report) -> tuple[str, ...]:
    """Why nothing was fused or rewritten."""
    found = [item.reason for item in report.left_alone]
    found += [item.reason for item in report.convolutions if not item.fused]
    found += [item.reason for item in report.refusals]
    return tuple(dict.fromkeys(found)) or (NO_PASS,)


def _difference(
    model: onnx.ModelProto, optimized: onnx.ModelProto, feeds: list[Feeds], expected: list[list[Value]]
) -> str:
    """Why the optimized model differs, or nothing.

    ONNX Runtime's own optimizations run on it, so that its result of the original with them is as good.
    """
    try:
        onnx.checker.check_model(optimized)
        others: list[list[Value]] | None = None
        for library in (True, False) if _families(optimized) else (False,):
            session = Session(optimized.SerializeToString(), threads=1, library=library)
            results = [session.run(one) for one in feeds]
            reason = _unequal(model, session.output_names, expected, results)
            if reason and others is None:
                plain = Session(model.SerializeToString(), threads=1)
                others = [plain.run(one) for one in feeds]
            if reason and others is not None and _unequal(model, session.output_names, others, results):
                return reason + ("" if library else " (without the library)")
            if library and (reason := differs_alone(optimized, feeds, results)):
                return f"without ONNX Runtime {reason}"
    except (SessionError, onnx.checker.ValidationError) as error:
        return f"it does not run: {_without_names(str(error))}"
    return ""


def _unequal(model: onnx.ModelProto, names: list[str], expected: list[list[Value]], results: list[list[Value]]) -> str:
    numbers = output_numbers(model)
    for values, actual in zip(expected, results, strict=True):
        for name, left, right in zip(names, values, actual, strict=True):
            found = compare_values(name, left, right, numbers[name])
            if found.reason:
                return found.reason
    return ""


def _without_names(message: str) -> str:
    """A message that is the same for all cases with one fault: names of nodes, and what follows, left out."""
    message = re.sub(r"\(\w*test_\w+\)", "(...)", message)
    return message.partition(", inferred types:")[0]


# --- the document ---


Outcomes = Mapping[str, Mapping[str, Outcome]]
"""By the name of the case, by the way."""


def document(outcomes: Outcomes) -> str:
    """The text of docs/conformance.md."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("onnx", "onnxruntime"))
    known = cases().values()
    opsets = sorted({opset.version for case in known for opset in case.model.opset_import if not opset.domain})
    operators = sum(":" not in case.operator for case in known)
    text = f"""
    Every case of `onnx.backend.test` is optimized by all passes, in four ways: for the CPU as by default, and with all
    fused that can be, whether or not that gains; and both for CUDA, where nothing is compiled and the results run on
    the CPU. Each time it is taken as it is, and with all inputs but the first as constants, as weights are, and its
    first output alone. What comes out, with the onnxfuse library and without it, is held against ONNX Runtime's result
    of the case itself. There are {len(outcomes)} cases, {operators} of operators and the others models of several
    nodes, of opsets {opsets[0]} to {opsets[-1]}. Cases of an opset newer than {NEWEST_OPSET}, the newest that ONNX
    Runtime takes, run in that one, and models of one before {_OLDEST_OPSET} in opset {_CONVERTED_OPSET}.
    Versions: {versions}.
    """
    lines = [
        "# Conformance",
        "",
        "This page is made by `scripts/conformance.py`; a test fails if a result is another.",
        *textwrap.wrap(" ".join(text.split()), 119, break_long_words=False, break_on_hyphens=False),
        "",
        f"| cases | {' | '.join(WAYS)} |",
        f"| --- |{' --- |' * len(WAYS)}",
    ]
    titles = {
        FUSED: "fused, with the same result",
        REWRITTEN: "rewritten without fused nodes, with the same result",
        LEFT_ALONE: "left alone",
        NOT_RUN: "not run by ONNX Runtime",
        WRONG: "with another result",
    }
    for kind, title in titles.items():
        counts = [sum(one[way].kind == kind for one in outcomes.values()) for way in WAYS]
        lines.append(f"| {title} | {' | '.join(map(str, counts))} |")
    lines += [
        "",
        "## By operator",
        "",
        "What an operator's function expands to is among its cases. Which convolutions are fused by default depends on",
        "the processor. The last column says why cases are left alone even where everything is to be fused, or are not",
        "run.",
        "",
        f"| operator | cases | {' | '.join(WAYS)} | left alone, or not run |",
        f"| --- | --- |{' --- |' * len(WAYS)} --- |",
    ]
    lines += [row(operator, own, outcomes) for operator, own in by_operator().items()]
    if others := wrong(outcomes):
        lines += ["", "## Other results", "", *(f"- {line}" for line in others)]
    return "\n".join(lines) + "\n"


def wrong(outcomes: Outcomes) -> list[str]:
    """A line for each other result."""
    pairs = [(name, way, own) for name, one in sorted(outcomes.items()) for way, own in one.items()]
    return [f"`{name}` ({way}): {own.reasons[0]}" for name, way, own in pairs if own.kind == WRONG]


def row(operator: str, own: Sequence[Case], outcomes: Outcomes) -> str:
    """The row of an operator with its cases."""
    cells = [_counts(_done(outcomes[case.name][way] for case in own)) for way in WAYS]
    left = _counts(_left(outcomes[case.name][FORCED] for case in own))
    return f"| {operator} | {len(own)} | {' | '.join(cells)} | {left} |"


def _done(outcomes: Iterable[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        if outcome.kind == FUSED:
            yield " and ".join(outcome.families)
        elif outcome.kind != NOT_RUN:
            yield outcome.kind


def _left(outcomes: Iterable[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        if outcome.kind in (LEFT_ALONE, NOT_RUN):
            yield f"{outcome.kind}: {'; '.join(outcome.reasons)}"


def _counts(texts: Iterable[str]) -> str:
    return "<br>".join(f"{number} {text}" for text, number in sorted(Counter(texts).items()))


def summary(outcomes: Outcomes) -> str:
    """The sentence of docs/results.md."""
    count = Counter(outcome[FORCED].kind for outcome in outcomes.values())
    others = sum(any(own.kind == WRONG for own in one.values()) for one in outcomes.values())
    known = f"; {others} known differences" if others else ""
    start = f"Of the {len(outcomes)} cases of onnx's backend test"
    return f"{start}, {count[FUSED]} can be fused, with ONNX Runtime's result{known}:"


def put_into_page(sentence: str, text: str) -> str:
    """The text of docs/results.md with its sentence replaced."""
    return re.sub(r"Of the \d+ cases of onnx's backend test, [^:]*:", sentence, text)


def main() -> int:
    """Examine every case and write the document; 1 if a result is wrong."""
    parser = Parser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CASE", help="only say what becomes of these")
    parser.add_argument("--way", action="append", choices=WAYS, help="optimize them in this way alone; may be repeated")
    arguments = parser.parse_args()
    if arguments.way and not arguments.names:
        parser.error("the document is of all ways")
    np.seterr(all="ignore")
    if arguments.names:
        for name in arguments.names:
            for way, outcome in examine(cases()[name], arguments.way or WAYS).items():
                print(f"{name}, {way}: {outcome}")
        return 0
    outcomes = {name: examine(case) for name, case in cases().items()}
    DOCUMENT.write_text(document(outcomes), encoding="utf-8")
    RESULTS.write_text(put_into_page(summary(outcomes), RESULTS.read_text(encoding="utf-8")), encoding="utf-8")
    for line in wrong(outcomes):
        print(line)
    for way in WAYS:
        print(way, dict(Counter(one[way].kind for one in outcomes.values())))
    return int(bool(wrong(outcomes)))


if __name__ == "__main__":
    sys.exit(main())
