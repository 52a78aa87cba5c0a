"""Every case of onnx.backend.test, optimized."""

import conformance
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from onnxfuse.program.lowering import is_elementwise

OPERATORS = conformance.by_operator()
OLDEST_OPSET = 7
"""The oldest that is fused."""


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.filterwarnings("ignore")
def test_every_case_of_an_operator_has_the_same_result(operator: str) -> None:
    cases = OPERATORS[operator]
    with np.errstate(all="ignore"):
        outcomes = {case.name: conformance.examine(case) for case in cases}
    assert conformance.wrong(outcomes) == []
    for ways in outcomes.values():
        assert all(one.reasons for one in ways.values() if one.kind in (conformance.LEFT_ALONE, conformance.NOT_RUN))
    known = [case.name for case in cases if any(opset.version >= OLDEST_OPSET for opset in case.model.opset_import)]
    kinds = {outcomes[name][conformance.FORCED].kind for name in known} - {conformance.NOT_RUN}
    if is_elementwise(gs.Node(operator)) and kinds:
        assert conformance.FUSED in kinds


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
