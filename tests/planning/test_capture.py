"""What keeps a CUDA graph of a model from being captured."""

import pytest
from onnx import parser

import onnxfuse
from onnxfuse.files.model_io import load_proto
from onnxfuse.targets.cuda.capture import BOTH, CONTROL_FLOW, TO_DEVICE, TO_HOST, WAITS, not_captured

CASES = {
    "nothing": ("g (float[n, 4] x) => (float[m, 4] y) { a = Exp(x) y = MatMul(a, a) }", []),
    "sizes that only the host reads": (
        "g (float[n, 4] x, float[m, 4] z) => (float[k, l] y) { s = Shape(x) y = Reshape(z, s) }",
        [],
    ),
    "sizes that are numbers": (
        "g (float[3, 4] x) => (float[k] y) { s = Shape(x) f = Cast<to = 1>(s) y = Add(f, f) }",
        [],
    ),
    "sizes as data": (
        "g (float[n, 4] x) => (float[n, n] y) {"
        " p = Gemm<transB = 1>(x, x) s = Shape<start = 0, end = 1>(x) f = Cast<to = 1>(s) y = Mul(p, f) }",
        [("Mul", TO_DEVICE)],
    ),
    "data as a size": (
        "g (float[n, 4] x, float[n] z) => (float[a, b] y) { r = Exp(z) s = Cast<to = 7>(r) y = Expand(x, s) }",
        [("Expand", TO_HOST)],
    ),
    "a number that another domain's operator of that name reads on the GPU": (
        "g (float[n, 4] x, float[1] z) => (float[n, 4] y) { r = Exp(z) y = acme.Clip(x, r) }",
        [],
    ),
    "no kernel": (
        "g (float[n, 4] x, float[4, 4] w) => (float[n, 4] y) { a = MatMul(x, w) b = Det(a) y = Mul(a, b) }",
        [("Det", TO_HOST), ("Mul", TO_DEVICE)],
    ),
    "an input on both sides": (
        "g (float[n, 4] x, int64[2] k) => (float[a, b] y, int64[2] z) { y = Expand(x, k) z = Mul(k, k) }",
        [("Mul", BOTH)],
    ),
    "as many as there are": (
        "g (float[n] x) => (int64[1, m] y) { y = NonZero(x) }",
        [("NonZero", WAITS)],
    ),
    "control flow": (
        "g (float[4] x, bool c) => (float[4] y) {"
        " y = If (c) <then_branch = t () => (float[4] p) { p = Abs(x) },"
        " else_branch = e () => (float[4] q) { q = Exp(x) }> }",
        [("If", CONTROL_FLOW)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_nodes_and_reasons(case: str) -> None:
    text, expected = CASES[case]
    model = load_proto(parser.parse_model(f'<ir_version: 9, opset_import: ["": 17, "acme": 1]> {text}'))
    assert [(item.op, item.reason) for item in not_captured(model)] == expected


def test_what_the_report_says() -> None:
    def report(case: str, target: str = "cuda") -> onnxfuse.report.report.Report:
        model = parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {CASES[case][0]}')
        return onnxfuse.optimize(model, target, embed=target == "cpu", check=False).report

    captured, kept = report("nothing"), report("sizes as data")
    assert "nothing is known" in captured.describe_capture() and captured.to_json()["not_captured"] == []
    assert kept.describe_capture().startswith("No CUDA graph can be captured: what it reads on the GPU")
    assert not report("nothing", "cpu").describe_capture() and report("nothing", "cpu").not_captured is None
