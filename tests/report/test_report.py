"""The report: its JSON, its page, its tables; and that no name in a model can do harm in them."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

import onnxfuse
from onnxfuse.check.comparison import Comparison
from onnxfuse.check.parity import ParityResult, RegionResult, SetResult
from onnxfuse.errors import OnnxfuseError
from onnxfuse.report.byte_counts import Bytes, Traffic
from onnxfuse.report.fused_region import FusedRegion
from onnxfuse.report.report import Report, _change, group_by_reason
from onnxfuse.report.report_file import ReportFile
from onnxfuse.report.report_html import render
from onnxfuse.report.tables import render_optimization, render_parity
from onnxfuse.speed import Speed
from tests.support.parity_models import chain, model_file

HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\x00[bold]"


def full_report(name: str) -> Report:
    report = Report(model=name, tuned=name)
    report.add_rewrite(name, [name])
    report.add_refusal(name, name, name)
    report.add_fused(FusedRegion(name, name, ["Mul", "Add"], name, [name], [name], [name, 3, None]))
    report.add_left_alone(name, name, name)
    report.add_warning(name)
    bad = Comparison(name, "float32", (1,), name, 2.0, 0.1, float("inf"), 3, 1)
    report.parity = ParityResult([SetResult(name, {name: [1]}, [bad], True)], [RegionResult(name, bad)], [name])
    return report


class Page(HTMLParser):
    """Collects the tags and the text of a page, and checks that tags are closed in order."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_json_has_what_its_text_says() -> None:
    report = onnxfuse.optimize(chain()).report
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert found["schema"] == 1 and found["parity"]["ok"]
    assert found["before"]["launches"] == 4 and found["after"]["launches"] == 1
    assert found["fused"][0]["ops"] == ["Mul", "Add", "Sigmoid", "Mul"]
    assert found["fused"][0]["program"].startswith("onnxfuse 1\n")
    assert set(found) == set(re.findall(r"``(\w+)``", Report.to_json.__doc__)) & set(found) | {
        "model",
        "target",
        "seconds",
    }


def test_json_of_infinite_errors_and_hostile_names_is_valid() -> None:
    found = json.loads(json.dumps(full_report(HOSTILE).to_json(), allow_nan=False))
    assert found["fused"][0]["name"] == HOSTILE
    assert found["parity"]["sets"][0]["outputs"][0]["max_rel"] == "inf"


def test_the_page_is_whole_and_self_contained() -> None:
    page = Page(render(onnxfuse.optimize(chain()).report))
    assert {"script", "link", "img", "iframe"}.isdisjoint(page.tags)
    assert not [value for name, value in page.attributes if name in ("src", "href")]
    for text in ("kernel launches", "Fused regions", "gated_fused", "Mul, Add, Sigmoid, Mul", "equal"):
        assert text in page.text


def test_hostile_names_stay_text_on_the_page() -> None:
    text = render(full_report(HOSTILE))
    page = Page(text)
    assert "script" not in page.tags and "<script>alert(1)</script>" in page.text
    assert "\x1b" not in text
    text.encode("utf-8")


def test_hostile_names_stay_text_in_a_terminal() -> None:
    report = full_report(HOSTILE)
    assert report.parity is not None
    console = Console(width=200)
    with console.capture() as capture:
        console.print(render_optimization(report), render_parity(report.parity))
    text = capture.get()
    assert "\x1b" not in text and "[bold]" in text


def test_large_reports_stay_small_pages() -> None:
    report = Report()
    for number in range(50_000):
        report.add_left_alone(f"node_{number}", "Abs", f"reason {number % 3}")
        report.add_fused(FusedRegion(f"r{number}", "o", ["Abs"], "p", ["x"], ["y"]))
    text = render(report)
    assert len(text) < 3_000_000 and "And 48000 more" in text


def test_left_alone_is_grouped_by_reason() -> None:
    report = Report()
    for node, reason in (("a", "rare"), ("b", "common"), ("c", "common")):
        report.add_left_alone(node, "Abs", reason)
    assert [(reason, len(items)) for reason, items in group_by_reason(report.left_alone)] == [
        ("common", 2),
        ("rare", 1),
    ]


def region(name: str, kind: str, shape: list[int], saves: int) -> FusedRegion:
    """A region of one node that reads 10 bytes more than it saves."""
    reads = [Traffic(1, Bytes(Counter({(): size})), Bytes(Counter({(): 5})), 0) for size in (saves + 10, 10)]
    return FusedRegion(name, name, ["Mul"], "p", ["x"], ["y"], list(shape), None, *reads, kind=kind)


def test_regions_of_equal_shape_are_one_row_and_the_largest_is_first() -> None:
    report = Report()
    for number in range(12):
        report.add_fused(region(f"layer{number}", "FusedAttention", [1, 64], 100))
    report.add_fused(region("head", "FusedAttention", [1, 32], 5000))
    report.add_fused(region("other", "FusedReduction", [1, 64], 100))
    assert [(group.title, group.before - group.after) for group in report.groups()] == [
        ("FusedAttention", 5000),
        ("12 \N{MULTIPLICATION SIGN} FusedAttention", 1200),
        ("FusedReduction", 100),
    ]
    page = Page(render(report))
    assert page.attributes.count(("class", "region")) == 3
    assert "14 fused nodes of 3 shapes" in page.text and "saves 1.2 kB" in page.text and "layer11" in page.text


def test_the_first_line_is_the_gain() -> None:
    report = onnxfuse.optimize(chain()).report
    text = render(report)
    assert "kernel launches 4 → 1 (-75 %)" in text.partition("</p>")[0]
    report.speed = Speed(1.34, 1.3, 1.38, (2.0, 1.5), (21_000_000, 20_000_000))
    assert "1.34 times as fast (1.30 to 1.38), 21 → 20 MB</p>" in render(report).partition('\n<p class="soft')[0]


def test_a_change_that_leaves_something_is_not_all_of_it() -> None:
    assert [_change(10_000, after) for after in (0, 1, 30, 2000, 10_000)] == [
        "-100 %",
        "-99.99 %",
        "-99.7 %",
        "-80 %",
        "0 %",
    ]


def test_refusals_are_grouped() -> None:
    report = Report()
    for number in range(500):
        report.add_refusal("rule", f"node_{number}", f"reason {number % 2}")
    assert [(key, len(items)) for key, items in report.refusals_by_reason()] == [
        (("rule", "reason 0"), 250),
        (("rule", "reason 1"), 250),
    ]
    assert render(report).count("<summary>") == 2


def test_what_was_tuned_is_on_the_page() -> None:
    assert "Tuned: as asked" in Page(render(Report(tuned="Tuned: as asked"))).text


def test_a_count_that_leaves_tensors_out_says_so(tmp_path: Path) -> None:
    body = "n = NonZero(x) f = Cast <to = 1> (n) a = Mul(f, f) y = Relu(a)"
    path = model_file(tmp_path / "m.onnx", "(float[8] x) => (float[1, found] y)", body)
    report = onnxfuse.optimize(path, check=False).report
    assert any(value.startswith("≥ ") for row in report.rows() for value in row)
    assert report.describe_sizes() == "Bytes are counted for x=8. ≥: without those of tensors whose size is not known."
    assert report.describe_sizes() in Page(render(report)).text


def test_counts_of_a_dynamic_model_are_numbers_in_the_table_and_formulas_elsewhere() -> None:
    model = chain()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "exporter.DynamicDimension.0"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "exporter.DynamicDimension.0"
    report = onnxfuse.optimize(model, shapes={"x": (2, 4, 1000)}).report
    assert ("bytes moved, all", "288 kB", "64.0 kB", "-78 %") in report.rows()
    assert report.describe_sizes() == "Bytes are counted for x=2x4x1000."
    assert report.to_json()["example"]["shapes"] == {"x": [2, 4, 1000]}
    assert any(
        "exporter.DynamicDimension.0" in term["dims"] for term in report.to_json()["before"]["bytes_total"]["terms"]
    )
    text = Page(render(report)).text
    assert "d0·width" in text and "d0 is exporter.DynamicDimension.0" in text


def test_the_table_fits_a_terminal() -> None:
    model = chain()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "a_very_long_name_of_a_dynamic_dimension"
    console = Console(width=300)
    with console.capture() as capture:
        console.print(render_optimization(onnxfuse.optimize(model, check=False).report))
    assert max(len(line.rstrip()) for line in capture.get().splitlines()) <= 100


def test_report_files(tmp_path: Path) -> None:
    report = full_report(HOSTILE)
    for name in ("r.html", "r.json", "R.HTM"):
        with ReportFile(tmp_path / name, tmp_path / "model.onnx") as file:
            file.write_report(report)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["R.HTM", "r.html", "r.json"]
    assert json.loads((tmp_path / "r.json").read_text())["fused"]
    for bad in (tmp_path / "r.txt", tmp_path / "none" / "r.html", tmp_path / "m.json"):
        with pytest.raises(OnnxfuseError):
            ReportFile(bad, tmp_path / "m.json")


def test_the_largest_error_in_words() -> None:
    report = Report()
    assert report.largest_error() == "not checked"
    near = Comparison("y", largest=0.9, max_abs=1e-7, max_rel=2e-6, max_ulp=2, excess=0.1)
    report.parity = ParityResult([SetResult("x", {}, [Comparison("z"), near], True)])
    assert report.largest_error() == "1e-07"
    assert report.describe_check() == "Checked on 1 set of inputs: within 1e-07, 2 ulp, of values up to 0.9 (output y)."
    near.max_ulp = 4000  # of a number near zero
    assert report.describe_check() == "Checked on 1 set of inputs: within 1e-07 of values up to 0.9 (output y)."
    report.parity = ParityResult([SetResult("x", {}, [Comparison("z")], True)])
    assert report.largest_error() == "none" and "every output is identical" in report.describe_check()
