"""The picture of a graph on the page of a report: what is folded, where boxes go, and that it can be read."""

import re
import shutil
import subprocess
from html import escape
from itertools import pairwise
from pathlib import Path

import onnx
import pytest

import onnxfuse
from onnxfuse.files.model_io import load_proto
from onnxfuse.planning.outlines import outline
from onnxfuse.report.layers import layered
from onnxfuse.report.outline import Step, draw, kinds_of_nodes
from onnxfuse.report.remaining import remaining
from onnxfuse.report.report_html import render
from tests.report.test_report import HOSTILE, Page, full_report
from tests.support.parity_models import model_file

LAYER = (("MatMul", (-1,)), ("Relu", (0,)), ("MatMul", (1,)), ("Add", (2, -1)))
"""Operators, and what they read of their layer; -1 is what the layer reads."""


def layers(count: int, shape: str = "[8]") -> list[Step]:
    """A network of equal layers behind a node, all of which read a mask too."""
    steps = [Step("mask", "Cast", "", "[1]", ()), Step("first", "Gather", "", shape, ())]
    for layer in range(count):
        base = len(steps)
        for op, reads in LAYER:
            inputs = tuple(base + read for read in reads)
            steps.append(Step(f"{layer}/{len(steps)}", op, "", shape, (*inputs, 0) if op == "Add" else inputs))
    return steps


def test_equal_layers_are_drawn_once() -> None:
    drawing = draw(layers(12), {})
    assert [(last - first, count) for first, last, count in drawing.blocks] == [(4, 12)]
    assert len(drawing.boxes) == 6
    folded = [box for box in drawing.boxes if len(box.steps) == 12]
    assert [box.label for box in folded] == ["MatMul", "Relu", "MatMul", "Add"]
    assert all(source < target for source, target in drawing.edges)


def test_layers_of_other_shapes_and_other_edges_are_not_one() -> None:
    wider = [*layers(6), *(Step(f"w{i}", op, "", "[9]", (25 + i,)) for i, op in enumerate(["MatMul", "Relu"] * 3))]
    assert [(last - first, count) for first, last, count in draw(wider, {}).blocks] == [(4, 6), (2, 3)]
    in_pairs = [Step("0", "Add", "", "[8]", ())]
    in_pairs += [Step(str(i), "Add", "", "[8]", (i - 1, i - 2) if i % 2 == 0 else (i - 1,)) for i in range(1, 13)]
    assert [(last - first, count) for first, last, count in draw(in_pairs, {}).blocks] in ([(2, 6)], [(1, 13)])


def test_what_is_computed_without_the_inputs_is_not_drawn() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 64] x) => (float[n, 64] y, float[64, 64] z)
        <int64 one = {1}, int64 zero = {0}, int64[1] first = {0}> {
            s = Shape(x) c = Gather(s, one) r = Range(zero, c, one) f = Cast<to = 1>(r) m = Sin(f) y = Add(x, m)
            z = RandomNormal<shape = [64, 64]>()
        }"""
    steps = outline(load_proto(onnx.parser.parse_model(text)))
    assert [(step.op, step.inputs) for step in steps] == [("Add", ()), ("RandomNormal", ())]


def test_every_box_has_a_place_of_its_own_below_what_it_reads() -> None:
    drawing = draw([*layers(2), Step("end", "Concat", "", "[8]", (1, 5, 9))], {})
    widths = [60.0 + 10 * (index % 3) for index in range(len(drawing.boxes))]
    places = layered(widths, drawing.edges)
    assert all(places.layer[source] < places.layer[target] for source, target in drawing.edges)
    for one in range(len(widths)):
        for other in range(one):
            if places.layer[one] == places.layer[other]:
                assert abs(places.x[one] - places.x[other]) >= (widths[one] + widths[other]) / 2
    assert all(path[0][1] < path[-1][1] for path in places.paths)
    assert min(places.x) >= 0 and max(places.x) <= places.width


def test_a_drawing_is_no_wider_than_its_widest_layer() -> None:
    """A chain with many edges over many layers stays together."""
    count = 120
    edges = [(box, box + 1) for box in range(count - 1)] + [(box, box + 15) for box in range(0, count - 15, 3)]
    places = layered([60.0] * count, edges)
    assert places.layers == count and places.width < 60 + 8 * 25
    assert all(x < 150 for x in places.x)


def deep_model(folder: Path) -> Path:
    """Ten equal layers that fuse in part."""
    names = ["x", *(f"a{index}" for index in range(9)), "y"]
    body = "\n".join(
        f"m{i} = MatMul({source}, w) s{i} = Sigmoid(m{i}) t{i} = Mul(m{i}, s{i}) {target} = Add(t{i}, {source})"
        for i, (source, target) in enumerate(pairwise(names))
    )
    return model_file(folder / "deep.onnx", "(float[8, 8] x, float[8, 8] w) => (float[8, 8] y)", body)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of ``deep_model``."""
    report = onnxfuse.optimize(deep_model(tmp_path_factory.mktemp("deep")), check=False).report
    assert set(kinds_of_nodes(report.fused).values()) == {"FusedElementwise"}
    left = remaining(report)
    assert [(one.op, len(one.nodes)) for one in left] == [("MatMul", 10)] and "product" in left[0].reason
    return render(report)


def test_the_picture_before_and_after(page: str) -> None:
    found = Page(page)
    assert found.tags.count("svg") == 2 and found.tags.count("rect") == 4 + 2
    assert found.text.count("\N{MULTIPLICATION SIGN} 10") >= 2
    before, after = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert before.count('<g class="k0"') == 3 and after.count('<g class="k0"') == 1
    assert "10 \N{MULTIPLICATION SIGN} MatMul" in found.text


def test_hostile_names_stay_text_in_the_picture() -> None:
    report = full_report(HOSTILE)
    report.graph_before = report.graph_after = [Step(HOSTILE, HOSTILE, "", HOSTILE, ())]
    text = render(report)
    assert "script" not in Page(text).tags and "\x1b" not in text


def test_large_graphs_stay_small_pictures() -> None:
    report = full_report("m")
    report.graph_before = [Step(f"n{i}", f"Op{i * i % 7919}", "", "[8]", (i // 2,) if i else ()) for i in range(3000)]
    report.graph_after = report.graph_before[:5]
    text = render(report)
    assert text.count("<rect") == 405 and "And 2600 more" in text and len(text) < 1_000_000


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_the_page_is_no_wider_than_the_screen(page: str, tmp_path: Path) -> None:
    """At 360 and 830 pixels: what is wider scrolls in a box of its own.  The policy of the page, which forbids scripts,
    is left out for the one that measures."""
    sizes = "`${innerWidth}:${document.documentElement.scrollWidth};`"
    measure = f"<script>onload = () => parent.document.body.append({sizes})</script></body>"
    bare = re.sub("<meta http-equiv[^>]*>", "", page).replace("</body>", measure)
    frames = [f'<iframe width="{width}" height="9000" srcdoc="{escape(bare)}"></iframe>' for width in (360, 830)]
    path = tmp_path / "page.html"
    path.write_text(f"<body>{''.join(frames)}</body>", encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom"]
    command = [str(CHROMIUM), *options, f"--user-data-dir={tmp_path}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert sorted(re.findall(r"(\d+):(\d+);", done.stdout.rpartition("</iframe>")[2])) == [
        ("360", "360"),
        ("830", "830"),
    ]
