"""Every case of onnx.backend.test, optimized, and docs/conformance.md held against what came out."""

import platform
import re
from importlib.metadata import version

import conformance
import numpy as np
import onnx
import pytest

OPERATORS = conformance.by_operator()
DOCUMENT = conformance.DOCUMENT.read_text(encoding="utf-8")
KNOWN = set(re.findall(r"^- `(\w+)` \(", DOCUMENT, re.MULTILINE))
"""Cases with another result that the document lists."""
COMPARABLE = f"onnx {version('onnx')}, onnxruntime {version('onnxruntime')}" in DOCUMENT and (
    platform.machine() == "x86_64"  # elsewhere ONNX Runtime has kernels of other types
)
ROWS = {line.split(" | ")[0]: line for line in DOCUMENT.splitlines() if line.startswith("| ")}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.filterwarnings("ignore")
def test_every_case_of_an_operator_has_the_same_result(operator: str) -> None:
    cases = OPERATORS[operator]
    with np.errstate(all="ignore"):
        outcomes = {case.name: conformance.examine(case) for case in cases}
    wrong = [
        f"{name} ({way}): {outcome.reasons[0]}"
        for name, ways in outcomes.items()
        for way, outcome in ways.items()
        if outcome.kind == conformance.WRONG and name not in KNOWN
    ]
    assert not wrong, "\n".join(wrong)
    for ways in outcomes.values():
        assert all(one.reasons for one in ways.values() if one.kind in (conformance.LEFT_ALONE, conformance.NOT_RUN))
    if COMPARABLE:
        row = conformance.row(operator, cases, outcomes)
        listed = ROWS.get(f"| {operator}", "| | | |")
        same = conformance.without_defaults(row) == conformance.without_defaults(listed)
        assert same, f"run scripts/conformance.py: {row}"


def test_the_counts_of_the_document_are_those_of_its_cases() -> None:
    numbers = [
        list(map(int, re.findall(r"\d+", line)))
        for line in DOCUMENT.splitlines()
        if re.match(r"\| [a-zA-Z ,]+ \| \d", line)
    ]
    kinds = numbers[:5]
    total = {sum(column) for column in zip(*kinds, strict=True)}
    assert len(total) == 1
    readme = re.search(
        r"Of the (\d+) cases of onnx's backend test, (\d+) can be fused", conformance.RESULTS.read_text("utf-8")
    )
    assert readme is not None and [int(number) for number in readme.groups()] == [*total, kinds[0][1]]
    if COMPARABLE:
        assert total == {len(conformance.cases())}
        assert {f"| {operator}" for operator in OPERATORS} <= ROWS.keys()


@pytest.mark.parametrize("way", conformance.WAYS)
def test_a_wrong_result_is_told(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = conformance.fuzz_check.rewritten

    def wrong(*arguments: object) -> onnx.ModelProto:
        model = rewritten(*arguments)
        model.graph.node.append(onnx.helper.make_node("Neg", ["wrong"], [model.graph.output[0].name]))
        for node in model.graph.node[:-1]:
            node.output[:] = ["wrong" if name == model.graph.output[0].name else name for name in node.output]
        for info in model.graph.value_info:
            if info.name == model.graph.output[0].name:
                info.name = "wrong"
        return model

    monkeypatch.setattr(conformance.fuzz_check, "rewritten", wrong)
    with np.errstate(all="ignore"):
        outcome = conformance.examine(conformance.cases()["test_mul"], [way])[way]
    assert outcome.kind == conformance.WRONG and "differ" in outcome.reasons[0]
