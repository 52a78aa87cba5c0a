"""The CUDA sources that the models of the zoo render: collected, compiled, and the page of what they take.

What is rendered scripts/zoo_kernels.py and zoo_convolutions.py say, each for its kind.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Generic, Protocol, TypeVar

import onnxfuse
from onnxfuse.cuda.arch import COMMON, architecture
from onnxfuse.cuda.compile.compiled import Compiled
from onnxfuse.cuda.compile.compiler import CompilerCache, find_compiler
from onnxfuse.cuda.conv.kernel import ConvSource
from onnxfuse.cuda.elementwise.fitting import LOG_OPTION
from onnxfuse.cuda.elementwise.renderer import compile_options
from onnxfuse.cuda.kernel import Source
from onnxfuse.errors import OnnxfuseError
from onnxfuse.zoo.fetching import fetch
from onnxfuse.zoo.manifest import StoredModel, read_manifest, select
from tools.markdown_table import table
from tools.messages import Parser, say

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = (*compile_options(False), LOG_OPTION)
"""What `onnxfuse optimize` compiles with."""
COLUMNS = (
    "architecture",
    "sources",
    "kernels",
    "registers, main kernels",
    "registers, all",
    "occupancy, main kernels",
    "kernels that spill",
    "stack, bytes",
    "machine code",
)


class HasSource(Protocol):
    """What is rendered as a source."""

    @property
    def source(self) -> Source | ConvSource:
        """The CUDA source."""


Kind = TypeVar("Kind", bound=HasSource)


@dataclass(frozen=True)
class Collected(Generic[Kind]):
    """Of all models the number of ``nodes``, and the distinct ``sources`` with the names of the models that have it."""

    nodes: dict[str, int]
    sources: dict[Kind, tuple[str, ...]]


def small_models(manifest: Mapping[str, StoredModel]) -> tuple[str, ...]:
    """The names of the zoo's models but for those of deployed size that are made when needed: what these have is what
    the small ones of the same networks have."""
    return tuple(name for name, model in manifest.items() if model.kept or not model.set)


def collect(rendered_by: Callable[[Path], Counter[Kind]], what: str, patterns: Sequence[str] = ()) -> Collected[Kind]:
    """Go through the models of the manifest that match, or all small ones, fetching and making what the cache lacks.

    ``rendered_by`` gives what a model renders, and for how many of its nodes each; ``what`` those are.  Raises
    OnnxfuseError.
    """
    manifest = read_manifest()
    found: Collected[Kind] = Collected({}, {})
    for name in [model.name for model in select(manifest, patterns)] if patterns else small_models(manifest):
        with TemporaryDirectory() as scratch:
            rendered = rendered_by(fetch(name, manifest, folder=Path(scratch), progress=say))
        found.nodes[name] = rendered.total()
        say(f"{name}: {rendered.total()} {what}, {len(rendered)} sources")
        for source in rendered:
            found.sources[source] = (*found.sources.get(source, ()), name)
    return found


def compile_all(sources: Iterable[Kind], name: str, compiler: CompilerCache) -> dict[Kind, Compiled]:
    """Machine code for one architecture.  Raises CompileError."""
    rendered = {kind: kind.source for kind in sources}
    found = compiler.compile([source.text for source in rendered.values()], (name,), OPTIONS)
    return {kind: found[source.sha256, name] for kind, source in rendered.items()}


def row(name: str, compiled: Mapping[Kind, Compiled]) -> list[str]:
    """A row of the page's first table: what the kernels take on one architecture."""
    resources = [found for code in compiled.values() for found in code.resources.values()]
    main = [(kind.source.kernels[0], code.resources[kind.source.kernels[0].name]) for kind, code in compiled.items()]
    occupancies = [architecture(name).occupancy(found.registers, kernel.block, found.shared) for kernel, found in main]
    return [
        name,
        str(len(compiled)),
        str(len(resources)),
        str(max(found.registers for _, found in main)),
        str(max(found.registers for found in resources)),
        f"{100 * min(occupancies):.0f} %",
        str(sum(found.spills > 0 for found in resources)),
        str(max(found.stack for found in resources)),
        f"{sum(len(code.cubin) for code in compiled.values()) / 1e6:.1f} MB",
    ]


def page(introduction: str, what: str, found: Collected[Kind], compiler: CompilerCache) -> str:
    """The text of a page: what the sources take on the common architectures, and which models have some.

    ``what`` are the nodes that have them.  Raises CompileError.
    """
    nodes = {name: count for name, count in found.nodes.items() if count}
    models = [(name, count, sum(name in own for own in found.sources.values())) for name, count in nodes.items()]
    return f"""\
{introduction}
{compiler.version}; {datetime.now(UTC):%Y-%m-%d}; onnxfuse {onnxfuse.__version__}.
{len(found.nodes)} models, of which {len(nodes)} have {sum(nodes.values())} {what}, \
with {len(found.sources)} distinct sources.
The most of any kernel, or the least occupancy:

{table(COLUMNS, (row(name, compile_all(found.sources, name, compiler)) for name in COMMON))}

A source has a main kernel for the shapes that its nodes are expected to meet, and others for whatever may come.
What two models share counts for both here; models without {what} are left out:

{table(("model", what, "distinct sources"), models)}
"""


def write_files(
    script: str,
    description: str | None,
    rendered_by: Callable[[Path], Counter[Kind]],
    what: str,
    introduction: str,
    page_file: Path,
    corpus_file: Path,
    text: Callable[[Collected[Kind]], str],
) -> int:
    """What a script does: collects what the zoo renders, and writes its page and, as ``text`` has it, the corpus of the
    tests; or prints the page of the models that its arguments name.  Returns the exit status.
    """
    parser = Parser(description=description)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="print the page of these, and write nothing")
    models = parser.parse_args().models
    try:
        compiler = CompilerCache(find_compiler())  # at once: without one, other sources are rendered
        found = collect(rendered_by, what, models)
        written = page(introduction, what, found, compiler)
        if models:
            print(written)
        else:
            corpus_file.write_text(text(found), encoding="utf-8")
            page_file.write_text(written, encoding="utf-8")
    except OnnxfuseError as error:
        print(f"{script}: error: {error}", file=sys.stderr)
        return 2
    return 0
