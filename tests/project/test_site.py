"""The documents as a site: its pages, what is made from the code, and that their commands and their Python run."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.cli import cli
from onnxfuse.cli.cli_arguments import make_parser
from tools.site_pages import commands_page, pictures, python_page, without_links_out

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RUN = ("tutorial.md", "howto.md", "concepts.md", "faq.md", "index.md")
"""The pages whose commands run here; those of others are scripts that take long, or another language's."""


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
    assert without_links_out("![p](../../benchmarks/peers.svg)", page) == "![p](../outside/benchmarks/peers.svg)"
    assert "benchmarks/peers.svg" in pictures()
    assert made == "a (`README.md`) [b](../cuda.md#x) `tests`\n```\n[c](../../README.md)\n```\n"


def test_errors_of_the_questions_are_those_of_the_code() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "onnxfuse").rglob("*.py"))
    quoted = re.findall(r"^### `([^`]+)`$", (DOCS / "faq.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(quoted) >= 9
    for message in quoted:
        for part in message.split(" … "):
            assert part in code, message


def small_network() -> onnx.ModelProto:
    """A model of the signature of the tutorial's."""
    weights = np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype(np.float32)
    text = """<ir_version: 8, opset_import: ["" : 17]>
        network (float[batch, 3, 32, 32] x) => (float[batch, 8, 1, 1] y) {
            c = Conv <pads = [1, 1, 1, 1]> (x, w)
            s = Sigmoid(c)
            m = Mul(c, s)
            y = GlobalAveragePool(m)
        }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def blocks(page: str) -> list[tuple[str, str]]:
    """The blocks of commands and Python of a page, but for those that say why they are not run."""
    text = (DOCS / page).read_text(encoding="utf-8")
    block = r"(<!-- not run: [^\n]+ -->\n)?^```(\w*)\n(.*?)^```$"
    found = re.findall(block, text, re.DOTALL | re.MULTILINE)
    assert len(found) * 2 == text.count("```")
    assert {kind for _, kind, _ in found} <= {"sh", "python"}, page
    return [(kind, block) for reason, kind, block in found if not reason]


def commands() -> Iterator[tuple[str, list[str]]]:
    """The commands in the blocks of every page: where they stand, and their words."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples/README.md", *DOCS.rglob("*.md")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```(?:sh)?\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            for line in re.split(r"\n|&&", block):
                yield page.name, line.partition(" #")[0].split()


def test_commands_that_do_not_run_here_are_taken_by_their_programs() -> None:
    """Those of onnxfuse by its parser, those of scripts by the options that these name."""
    count = 0
    for page, words in commands():
        script = next((word for word in words[:2] if word.startswith("scripts/")), None)
        if words[:1] == ["onnxfuse"]:
            make_parser().parse_args([word.strip("'") for word in words[1:]])
        elif script is not None:
            text = (ROOT / script).read_text(encoding="utf-8")
            assert all(word in text for word in words if word.startswith("--")), (page, words)
        else:
            continue
        count += 1
    assert count > 20


def test_the_blocks_of_a_page_are_found() -> None:
    assert [kind for kind, _ in blocks("tutorial.md")] == ["sh", "sh", "sh", "python", "sh"]


@pytest.mark.parametrize("page", RUN)
def test_every_command_of_the_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(small_network(), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for kind, block in blocks(page):
        if kind == "python":
            exec(block, namespace)
            continue
        for line in block.splitlines():
            program, *arguments = shlex.split(line, comments=True)
            assert program == "onnxfuse", line
            assert cli.main(arguments) == 0, f"{line}\n{capsys.readouterr().err}"


@pytest.mark.skipif(find_spec("material") is None, reason="mkdocs-material is not installed")
def test_the_site_is_built_with_every_link_in_place(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for page in [*nav(), *(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))]:
        assert (tmp_path / "site" / page).with_suffix(".html").stat().st_size > 1000
