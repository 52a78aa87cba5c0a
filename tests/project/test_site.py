"""The documents as a site: its pages, and what is made from the code."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import onnxfuse
from onnxfuse.cli import cli
from tools.site_pages import commands_page, pictures, python_page, without_links_out

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def nav() -> list[str]:
    """The pages that the map of the site names."""
    return re.findall(r"([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_map_of_the_site_names_pages_that_are_there() -> None:
    """Each once; ``on_config`` puts the others behind."""
    made = {"reference/commands.md", "reference/python.md"}
    assert len(set(nav())) == len(nav()) > 15 and made <= set(nav())
    assert all((DOCS / page).exists() for page in set(nav()) - made)


def test_the_reference_has_every_command_and_name() -> None:
    commands, python = commands_page(), python_page()
    for name in cli._COMMANDS:
        assert f"## onnxfuse {name}\n" in commands
    for name in onnxfuse.__all__:
        assert name == "__version__" or f"## onnxfuse.{name}\n" in python
    assert "--profile" in commands and "profile: str" in python and "### Report.summary" in python


def test_links_out_of_the_documents_are_paths_on_the_site() -> None:
    page = DOCS / "native" / "cuda.md"
    text = "[a](../../README.md) [b](../cuda.md#x) [`tests/`](../../tests)\n```\n[c](../../README.md)\n```\n"
    made = without_links_out(text, page)
    assert without_links_out("![p](../../benchmarks/p.svg)", page) == "![p](../outside/benchmarks/p.svg)"
    assert "benchmarks/full/peers.svg" in pictures()
    assert made == "a (`README.md`) [b](../cuda.md#x) `tests`\n```\n[c](../../README.md)\n```\n"


def test_errors_of_the_questions_are_those_of_the_code() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "onnxfuse").rglob("*.py"))
    quoted = re.findall(r"^### `([^`]+)`$", (DOCS / "faq.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(quoted) >= 9
    for message in quoted:
        for part in message.split(" … "):
            assert part in code, message


@pytest.mark.skipif(find_spec("material") is None, reason="mkdocs-material is not installed")
def test_the_site_is_built_with_every_link_in_place(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for page in [*nav(), *(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))]:
        assert (tmp_path / "site" / page).with_suffix(".html").stat().st_size > 1000
