"""Every operator case of onnx.backend.test, fused, and docs/conformance.md held against what came out."""

import re
from importlib.metadata import version

import conformance
import numpy as np
import pytest

CASES = conformance.cases()
DOCUMENT = conformance.DOCUMENT.read_text(encoding="utf-8")
LISTED = conformance.listed(DOCUMENT)
SAME_VERSIONS = f"onnx {version('onnx')}, onnxruntime {version('onnxruntime')}" in DOCUMENT


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_case(name: str) -> None:
    with np.errstate(all="ignore"):
        outcome = conformance.examine(CASES[name])
    if outcome.kind == conformance.WRONG and name in LISTED[conformance.WRONG]:
        pytest.xfail(outcome.reason)
    assert outcome.kind != conformance.WRONG, outcome.reason
    if outcome.kind == conformance.LEFT_ALONE:
        assert outcome.reason, "left alone, and nothing says why"
    if SAME_VERSIONS:
        listed = [kind for kind, names in LISTED.items() if name in names]
        expected = [outcome.kind] if outcome.kind in LISTED else []
        assert listed == expected, f"{outcome}: run scripts/conformance.py"


def test_the_counts_of_the_document_are_those_of_its_lists() -> None:
    numbers = [int(number) for number in re.findall(r"^\| .*[a-z)] \| (\d+) \|$", DOCUMENT, re.MULTILINE)[:5]]
    fused, left_alone, not_run, _, wrong = numbers
    assert left_alone == len(LISTED[conformance.LEFT_ALONE])
    assert not_run == len(LISTED[conformance.NOT_RUN])
    assert wrong == len(LISTED[conformance.WRONG])
    if SAME_VERSIONS:
        assert sum(numbers) == len(CASES)
    readme = re.search(r"Of the (\d+) operator cases of onnx, (\d+) are fused", conformance.README.read_text("utf-8"))
    assert readme is not None and [int(number) for number in readme.groups()] == [sum(numbers), fused]
