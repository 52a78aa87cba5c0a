"""Hooks of MkDocs: the pages of the site that are made from the code, and links that lead out of the documents."""

import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import onnxfuse
from onnxfuse.cli.cli_arguments import Parser, make_parser

ROOT = Path(__file__).resolve().parents[1]
_WIDTH = "100"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:]+)(#[^)]*)?\)")
_OUTSIDE = "outside"
"""The folder of the site for pictures that lie outside the documents."""
_FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)


def commands_page() -> str:
    """The help of every command."""
    parts = ["# Commands", "What `--help` prints."]
    with mock.patch.dict(os.environ, {"COLUMNS": _WIDTH}):  # which argparse folds to
        for parser in _parsers(make_parser()):
            parts += [f"## {parser.prog}", f"```text\n{parser.format_help().rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"


def _parsers(parser: Parser) -> Iterator[Parser]:
    yield parser
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for inner in action.choices.values():
                yield from _parsers(inner)


def python_page() -> str:
    """The public names of the package, with their signatures and docstrings."""
    parts = ["# Python", "The names of `onnxfuse`; all else may move at any time."]
    for name in onnxfuse.__all__:
        value = getattr(onnxfuse, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            parts += _described(f"onnxfuse.{name}", value, "##")
        if inspect.isclass(value):
            for inner, member in sorted(vars(value).items()):
                if not inner.startswith("_") and inspect.getdoc(member) and not inspect.isclass(member):
                    parts += _described(f"{name}.{inner}", getattr(member, "__func__", member), "###")
    return "\n\n".join(parts) + "\n"


def _described(name: str, value: Any, level: str) -> list[str]:
    found = [f"{level} {name}"]
    if callable(value):
        try:
            parameters = inspect.signature(value)
        except ValueError:  # of some classes of C
            parameters = None
        if parameters is not None and not (inspect.isclass(value) and issubclass(value, Exception)):
            found.append(f"```python\n{_folded(name, parameters)}\n```")
    return [*found, inspect.getdoc(value) or ""]


def _folded(name: str, signature: inspect.Signature) -> str:
    """The signature on a line, or on one for each parameter where that is too long."""
    line = f"{name}{signature}"
    if len(line) <= int(_WIDTH):
        return line
    parts, starred = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        parts.append(str(parameter))
    returned = "" if signature.return_annotation is signature.empty else f" -> {signature.return_annotation}"
    return f"{name}(\n    " + ",\n    ".join(parts) + f",\n){returned}"


def without_links_out(markdown: str, page: Path) -> str:
    """A page of the documents with links to files outside them as text with the path, for the site has no others; its
    pictures are taken to the folder ``outside``."""

    def replaced(match: re.Match[str]) -> str:
        picture, text, link, _anchor = match.groups()
        target = (page.parent / link).resolve()
        if target.is_relative_to(ROOT / "docs") or not target.is_relative_to(ROOT):
            return match[0]
        path = str(target.relative_to(ROOT))
        if picture:
            return f"![{text}]({os.path.relpath(ROOT / 'docs' / _OUTSIDE / path, page.parent)})"
        return f"`{path}`" if text.strip("`/") == path else f"{text} (`{path}`)"

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(replaced, part) for part in parts)


def pictures() -> list[str]:
    """The pictures that the documents show and that lie outside them."""
    found = set()
    for page in (ROOT / "docs").rglob("*.md"):
        for match in _LINK.finditer(page.read_text(encoding="utf-8")):
            target = (page.parent / match[3]).resolve()
            if match[1] and target.is_relative_to(ROOT) and not target.is_relative_to(ROOT / "docs"):
                found.add(str(target.relative_to(ROOT)))
    return sorted(found)


# --- what MkDocs calls ---


def on_config(config: Any) -> Any:
    """Put the pages that the site's map does not name at its end."""
    named = set(_named(config.nav))
    docs = Path(config.docs_dir)
    pages = sorted(str(path.relative_to(docs)) for path in docs.rglob("*.md"))
    next(iter(config.nav[-1].values())).extend(page for page in pages if page not in named)
    return config


def _named(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from _named(item)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made from the code."""
    from mkdocs.structure.files import File

    for name, text in (("commands", commands_page()), ("python", python_page())):
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for path in pictures():
        files.append(File.generated(config, f"{_OUTSIDE}/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Take the links out that lead out of the documents."""
    source = page.file.abs_src_path
    return markdown if source is None else without_links_out(markdown, Path(source))
