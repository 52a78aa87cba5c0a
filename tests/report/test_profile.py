"""Where the time goes: the report's, the trace, and what a notebook shows; and inputs as a dict of arrays."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.errors import OnnxfuseError
from onnxfuse.profiling import profile
from onnxfuse.report.profile import NodeTime, Profile
from onnxfuse.report.report import Report
from onnxfuse.report.report_file import TraceFile
from onnxfuse.report.report_html import render
from onnxfuse.run.inputs import InputSet
from tests.report.test_report import HOSTILE, Page
from tests.support.parity_models import chain

FEEDS = {"x": np.linspace(-1, 1, 2 * 4 * 5, dtype=np.float32).reshape(2, 4, 5)}


def test_a_profile_a_page_and_a_trace(tmp_path: Path) -> None:
    """In one call, on arrays that are given."""
    page, trace, output = tmp_path / "r.html", tmp_path / "t.json", tmp_path / "m.onnx"
    result = onnxfuse.optimize(chain(), inputs=FEEDS, report=page, profile=trace, output=output, target="cpu")
    found = result.report.profile
    assert found is not None and {time.op for time in found.result} == {"FusedElementwise"}
    assert len(found.result[0].stands_for) == 4 and found.result[0].microseconds > 0
    assert min(found.runs) >= 3 and len(found.original) > 1
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1, 2}
    assert sum(event["ph"] == "X" and event["pid"] == 2 for event in events) == 1
    assert "Where the time goes" in Page(page.read_text()).text
    assert result.report.parity is not None and {each.label for each in result.report.parity.sets} == {
        "the arrays given"
    }
    assert json.loads(json.dumps(result.report.to_json()))["profile"]["runs"] == list(found.runs)


def test_fusions_of_onnx_runtime_are_named_as_its(tmp_path: Path) -> None:
    """It makes a FusedMatMul of a Transpose and a MatMul, as fused nodes are called too."""
    path = tmp_path / "m.onnx"
    onnx.save(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (float[4, 5] x) => (float[5, 5] y) { t = Transpose<perm = [1, 0]>(x) y = MatMul(t, x) }"""
        ),
        path,
    )
    found, trace = profile(path, path, InputSet("ones", {"x": np.ones((4, 5), np.float32)}))
    assert [time.op for time in found.result] == ["FusedMatMul of ONNX Runtime"]
    assert b'"op": "FusedMatMul of ONNX Runtime"' in trace


def test_arrays_that_do_not_fit() -> None:
    for feeds, message in (
        ({}, "inputs has no value for input 'x'"),
        ({**FEEDS, "z": FEEDS["x"]}, "inputs has a value for 'z', which is no input"),
        ({"x": FEEDS["x"].astype(np.float64)}, "cannot take an array of float64"),
        ({"x": [1.0]}, "inputs has no array for 'x', but list"),
        ({"x": FEEDS["x"][0]}, "cannot take an array of shape"),
    ):
        with pytest.raises(OnnxfuseError, match=message):
            onnxfuse.optimize(chain(), inputs=feeds)


def test_a_trace_goes_to_a_file_of_its_own(tmp_path: Path) -> None:
    model = tmp_path / "m.json"
    model.touch()
    for path, message in ((tmp_path / "t.txt", "must end in .json"), (model, "over the model")):
        with pytest.raises(OnnxfuseError, match=message):
            TraceFile(path, model)


def test_operators_are_summed_and_the_longest_is_first() -> None:
    found = Profile((NodeTime("a", "Add", 3.0), NodeTime("b", "Add", 4.0)), (NodeTime("c", "Mul", 9.0),), (3, 3))
    assert found.by_operator() == [("Mul", 0.0, 9.0), ("Add", 7.0, 0.0)]
    text = render(Report(profile=found))
    assert text.count('class="bar before"') == text.count('class="bar after"') == 1  # of nothing there is no bar
    assert text.count("<td>-</td>") == 2


def test_a_notebook_shows_the_report_in_a_frame() -> None:
    result = onnxfuse.optimize(chain(), check=False)
    assert repr(result).startswith("<onnxfuse.Result: kernel launches 4") and len(repr(result)) < 120
    frame = Page(result._repr_html_())
    assert frame.tags == ["iframe"] and dict(frame.attributes)["srcdoc"] == render(result.report)


def test_hostile_names_stay_text_in_the_times() -> None:
    report = Report(
        profile=Profile((NodeTime(HOSTILE, HOSTILE, 1.0),), (NodeTime(HOSTILE, "", 1.0, (HOSTILE,)),), (3, 3))
    )
    text = render(report)
    assert "script" not in Page(text).tags and "\x1b" not in text
