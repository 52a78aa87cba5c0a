"""The documents: how figures are written into them, their links, and the Python of the README."""

import re
from pathlib import Path
from typing import Any

import bench_cpu
import numpy as np
import onnx
import pytest

from onnxfuse.fused.kinds import KINDS

ROOT = Path(__file__).resolve().parents[2]


def test_figures_are_held_against_their_targets_as_printed() -> None:
    figure = bench_cpu.Figure
    assert str(figure(1.249, at_least=1.25)) == "1.25 (≥ 1.25)"
    assert str(figure(1.24, at_least=1.25)) == "**1.24** (≥ 1.25, missed)"
    assert str(figure(2.5, at_most=3, unit=" s")) == "2.50 s (≤ 3 s)"
    assert str(figure(2)) == "2.00"
    assert not figure(float("nan"), at_most=1).met
    table = bench_cpu.Table("t", ("a", "b"), [("x", figure(1, at_least=2)), ("y", figure(3, at_least=2))])
    assert table.missed() == 1
    lines = ["| a | b |", "| --- | --- |", "| x | **1.00** (≥ 2, missed) |", "| y | 3.00 (≥ 2) |"]
    assert str(table).splitlines()[2:] == lines


def test_results_go_between_the_markers_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{bench_cpu.BEGIN}\nold\n{bench_cpu.END}\nafter\n")
    bench_cpu.put_into_page("new", page)
    assert page.read_text() == f"before\n{bench_cpu.BEGIN}\nnew\n{bench_cpu.END}\nafter\n"
    page.write_text("no markers")
    with pytest.raises(ValueError, match="no markers"):
        bench_cpu.put_into_page("new", page)
    assert bench_cpu.BEGIN in bench_cpu.PAGE.read_text(encoding="utf-8")


DOCUMENTS = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)


def anchors(page: Path) -> set[str]:
    """Those of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_and_path_in_the_documents_exists() -> None:
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", text):
            page = document.parent / link if link else document
            assert page.exists(), f"{document.name} links to {link}"
            assert not anchor or anchor in anchors(page), f"{document.name} links to {link}#{anchor}"
        for path in re.findall(r"`((?:scripts|tools|docs|models|custom_ops|onnxfuse|tests)/[\w./-]*)`", text):
            assert (ROOT / path).exists(), f"{document.name} names {path}"


def test_pages_on_the_native_library_are_short() -> None:
    for page in (ROOT / "docs" / "native.md", *(ROOT / "docs" / "native").glob("*.md")):
        assert len(page.read_text(encoding="utf-8").splitlines()) <= 120, page.name


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 8, n, n] x) => (float[1, 8, n, n] y) { a = Exp(x) b = Sqrt(a) y = Neg(b) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    pages = [(ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/languages.md")]
    blocks = re.findall(r"```python\n(.*?)```", "".join(pages), re.DOTALL)
    assert len(blocks) == 3
    namespace: dict[str, Any] = {}
    for block in blocks:
        exec(block, namespace)
    (y,) = namespace["session"].run(None, {"x": np.zeros((1, 8, 2, 2), np.float32)})
    np.testing.assert_array_equal(y, -np.ones((1, 8, 2, 2), np.float32))
    np.testing.assert_array_equal(namespace["y"], -np.ones((1, 8, 16, 16), np.float32))
    assert "3 nodes fused into 1" in namespace["result"].report.summary()


def test_how_many_operators_are_registered() -> None:
    text = (ROOT / "docs" / "languages.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| `(Fused\w+)` \| (\d+) \|$", text, re.MULTILINE)
    assert found == [(kind.name, str(kind.plain)) for kind in KINDS]
