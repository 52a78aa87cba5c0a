#!/usr/bin/env python3
"""Write docs/conformance.md, and its count into the README: what becomes of every operator case of onnx.

Each case is fused with single nodes allowed to be regions, run with the onnxfuse library, and compared with
ONNX Runtime's own result.  tests/test_conformance.py does the same and holds the document against it.
"""

import argparse
import functools
import os
import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

os.environ["PYTHONSAFEPATH"] = "1"

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import onnx
from executable_check import differs_alone

import onnxfuse
from onnxfuse.comparison import Numbers, compare_values
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.inference import infer
from onnxfuse.numerics import coarsest_type
from onnxfuse.passes import PassContext
from onnxfuse.planner import FuseElementwise
from onnxfuse.sessions import Session, SessionError, Value

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "conformance.md"
README = ROOT / "README.md"
NEWEST_IR_VERSION = 13
"""The newest IR version that ONNX Runtime takes; no case uses what a newer one brought."""

NEWEST_OPSET = 26
"""The newest opset that ONNX Runtime takes; a case of a newer one runs in this one."""

_OPERATORS = """
Abs Acos Acosh Add And Asin Asinh Atan Atanh BatchNormalization BitCast BitShift BitwiseAnd BitwiseNot
BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Cos Cosh DequantizeLinear Div Dropout Elu Equal Erf Exp
Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log
Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow QuantizeLinear Reciprocal Relu Round Selu Shrink Sigmoid Sign
Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
"""

ELEMENTWISE = frozenset(_OPERATORS.split())
"""The operators of the standard whose result at a place depends on the inputs at that place alone."""

FUSED, LEFT_ALONE, NOT_RUN, OTHER, WRONG = "fused", "left alone", "not run", "other", "wrong"


@dataclass(frozen=True)
class Outcome:
    """What became of a case: ``fused`` with the same result; elementwise and ``left alone``; ``not run``, since
    ONNX Runtime cannot; ``other``, of no elementwise operator; or ``wrong``."""

    kind: str
    reason: str = ""


@dataclass(frozen=True)
class Case:
    """One case: a model of a few nodes, and sets of its inputs."""

    name: str
    model: onnx.ModelProto
    inputs: tuple[tuple[Value, ...], ...]

    @property
    def operators(self) -> list[str]:
        """The operators of the standard in it."""
        return [node.op_type for node in self.model.graph.node if node.domain in ("", "ai.onnx")]


@functools.cache
def cases() -> dict[str, Case]:
    """Every operator case by name."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases overflow and divide by zero on purpose
        found = load_model_tests(kind="node")
    return {
        case.name: Case(case.name, case.model, tuple(tuple(inputs) for inputs, _ in case.data_sets or ()))
        for case in found
        if case.model is not None
    }


def examine(case: Case) -> Outcome:
    """Fuse the case, run it, and compare."""
    elementwise = any(operator in ELEMENTWISE for operator in case.operators)
    model = _for_onnxruntime(case.model)
    feeds = [_feeds(model, inputs) for inputs in case.inputs]
    try:
        session = Session(model.SerializeToString(), threads=1, optimized=False)
        expected = [session.run(one) for one in feeds]
    except SessionError as error:
        return Outcome(NOT_RUN if elementwise else OTHER, _why_not_run(str(error)))
    loaded = onnxfuse.Model.from_proto(model)
    context = PassContext()
    try:
        infer(loaded)
        FuseElementwise(everything=True).run(loaded, context)
    except OnnxfuseError as error:
        return Outcome(LEFT_ALONE if elementwise else OTHER, str(error))
    fused = loaded.to_proto()
    reason = _difference(model, fused, feeds, expected)
    if reason:
        return Outcome(WRONG, reason)
    if any(node.domain == DOMAIN for node in fused.graph.node):
        return Outcome(FUSED)
    if not elementwise:
        return Outcome(OTHER)
    reasons = dict.fromkeys(item.reason for item in context.report.left_alone)
    return Outcome(LEFT_ALONE, "; ".join(reasons) or "the operator is not one that is fused")


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


def _feeds(model: onnx.ModelProto, inputs: tuple[Value, ...]) -> dict[str, Value]:
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
        ("is under development", "opset newer than ONNX Runtime takes"),
        ("NOT_IMPLEMENTED", "no kernel of ONNX Runtime for it"),
        ("INVALID_GRAPH", f"types that opset {NEWEST_OPSET} does not take"),
        ("Non-zero status code", "ONNX Runtime fails on it"),
        ("INVALID_ARGUMENT", "inputs that ONNX Runtime does not take"),
    ):
        if text in message:
            return reason
    return "inputs that ONNX Runtime's Python interface does not take"


def _difference(
    model: onnx.ModelProto, fused: onnx.ModelProto, feeds: list[dict[str, Value]], expected: list[list[Value]]
) -> str:
    """Why the fused model differs, or nothing."""
    numbers = Numbers(coarsest_type(model))
    try:
        onnx.checker.check_model(fused)
        for library in (True, False):
            session = Session(fused.SerializeToString(), threads=1, library=library, optimized=False)
            for one, values in zip(feeds, expected, strict=True):
                results = session.run(one)
                for name, left, right in zip(session.output_names, values, results, strict=True):
                    found = compare_values(name, left, right, numbers)
                    if found.reason:
                        return found.reason + ("" if library else " (without the library)")
                if library and (reason := differs_alone(fused, [one], [results])):
                    return f"without ONNX Runtime {reason}"
    except (SessionError, onnx.checker.ValidationError) as error:
        return f"it does not run: {_without_names(str(error))}"
    return ""


def _without_names(message: str) -> str:
    """A message that is the same for all cases with one fault: names of nodes, and what follows, left out."""
    message = re.sub(r"\(\w*test_\w+\)", "(...)", message)
    return message.partition(", inferred types:")[0]


# --- the document ---


def document(outcomes: dict[str, Outcome]) -> str:
    """The text of docs/conformance.md."""
    count = Counter(outcome.kind for outcome in outcomes.values())
    known = cases()
    versions = ", ".join(f"{name} {version(name)}" for name in ("onnx", "onnxruntime"))
    opsets = sorted({opset.version for case in known.values() for opset in case.model.opset_import if not opset.domain})
    lines = [
        "# Conformance",
        "",
        "This page is made by `scripts/conformance.py`. With the versions named here a test fails if it is out of",
        "date, with others only if a result is another.",
        "Every operator case of `onnx.backend.test` is fused, with single nodes allowed to be regions, and run with",
        "the onnxfuse library and without it. The results are held against those of ONNX Runtime on the case as it is.",
        f"There are {len(outcomes)} cases, of opsets {opsets[0]} to {opsets[-1]}. Versions: {versions}.",
        f"Cases of an opset newer than {NEWEST_OPSET}, the newest that ONNX Runtime takes, run in that one.",
        "",
        "| cases | number |",
        "| --- | --- |",
        f"| fused, with the same result | {count[FUSED]} |",
        f"| elementwise, run by ONNX Runtime, left alone (listed below) | {count[LEFT_ALONE]} |",
        f"| elementwise, not run by ONNX Runtime (listed below) | {count[NOT_RUN]} |",
        f"| no elementwise operator | {count[OTHER]} |",
        f"| fused, with another result | {count[WRONG]} |",
        "",
        "An elementwise operator is one whose result at a place depends on the inputs at that place alone. Cases that",
        "onnx expands from functions are among them where they contain one.",
        "",
        "## Fused cases by operator",
        "",
        "| operator | cases |",
        "| --- | --- |",
    ]
    fused: Counter[str] = Counter()
    for name, outcome in outcomes.items():
        if outcome.kind == FUSED:
            fused.update(set(known[name].operators) & ELEMENTWISE)
    lines += [f"| {operator} | {number} |" for operator, number in sorted(fused.items())]
    for kind, title in ((LEFT_ALONE, "Left alone"), (NOT_RUN, "Not run by ONNX Runtime"), (WRONG, "Other results")):
        lines += _listing(title, {name: found for name, found in outcomes.items() if found.kind == kind})
    return "\n".join(lines) + "\n"


def _listing(title: str, outcomes: dict[str, Outcome]) -> list[str]:
    if not outcomes:
        return []
    reasons: dict[str, list[str]] = {}
    for name, outcome in sorted(outcomes.items()):
        reasons.setdefault(outcome.reason or "no reason given", []).append(name)
    lines = ["", f"## {title}"]
    for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        lines += ["", f"{reason[:1].upper()}{reason[1:]}:", "", *(f"- `{name}`" for name in names)]
    return lines


def summary(outcomes: dict[str, Outcome]) -> str:
    """The sentence of the README."""
    count = Counter(outcome.kind for outcome in outcomes.values())
    known = f"; {count[WRONG]} known differences" if count[WRONG] else ""
    return f"Of the {len(outcomes)} operator cases of onnx, {count[FUSED]} are fused with ONNX Runtime's result{known}:"


def put_into_readme(sentence: str, text: str) -> str:
    """The text of the README with its sentence replaced."""
    return re.sub(r"Of the \d+ operator cases of onnx, [^:]*:", sentence, text)


def listed(text: str) -> dict[str, set[str]]:
    """The names that the document lists, by kind."""
    kinds = {"## Left alone": LEFT_ALONE, "## Not run by ONNX Runtime": NOT_RUN, "## Other results": WRONG}
    found: dict[str, set[str]] = {kind: set() for kind in kinds.values()}
    kind = ""
    for line in text.splitlines():
        if line.startswith("## "):
            kind = kinds.get(line, "")
        elif kind and line.startswith("- `"):
            found[kind].add(line[3:-1])
    return found


def main() -> int:
    """Examine every case and write the document; 1 if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE", help="only say what becomes of these")
    arguments = parser.parse_args()
    np.seterr(all="ignore")
    if arguments.names:
        for name in arguments.names:
            print(name, examine(cases()[name]))
        return 0
    outcomes = {name: examine(case) for name, case in cases().items()}
    DOCUMENT.write_text(document(outcomes), encoding="utf-8")
    README.write_text(put_into_readme(summary(outcomes), README.read_text(encoding="utf-8")), encoding="utf-8")
    wrong = {name: outcome for name, outcome in outcomes.items() if outcome.kind == WRONG}
    for name, outcome in wrong.items():
        print(f"{name}: {outcome.reason}")
    print(Counter(outcome.kind for outcome in outcomes.values()))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
