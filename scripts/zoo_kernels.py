#!/usr/bin/env python3
"""Collect the CUDA kernels of the whole zoo, so that tests can compile and run them without its models.

Optimizes every model of models/manifest.toml for the target cuda and the common architectures, fetching and making
what the cache lacks, and writes tests/cuda/zoo_kernels.txt: each distinct Program with its access pattern and the
models that have it.  Then compiles all of them for every common architecture, and writes benchmarks/cuda_kernels.md:
what the kernels take.  Needs a CUDA compiler and no GPU; some minutes once the models are in the cache.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, TypeVar

import onnx

import onnxfuse
from onnxfuse.cuda.arch import COMMON, architecture
from onnxfuse.cuda.compiler import Compiled, CompilerCache
from onnxfuse.cuda.conv.kernel import ConvSource
from onnxfuse.cuda.embed import RECIPE, fused_nodes, text_attribute
from onnxfuse.cuda.fitting import LOG_OPTION
from onnxfuse.cuda.kernel import Access, Source
from onnxfuse.cuda.recipe import Recipe
from onnxfuse.cuda.renderer import HEURISTIC, Tuning, compile_options, render
from onnxfuse.cuda.rerender import tuning_of
from onnxfuse.errors import OnnxfuseError
from onnxfuse.graph import Model
from onnxfuse.program import Program
from onnxfuse.zoo import fetch, read_manifest

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "cuda" / "zoo_kernels.txt"
PAGE = ROOT / "benchmarks" / "cuda_kernels.md"
OPTIONS = (*compile_options(False), LOG_OPTION)
"""What `onnxfuse optimize` compiles with."""

_HEAD = """\
# The distinct CUDA kernels of the zoo, written by scripts/zoo_kernels.py from all of its models.
# A paragraph is a Program, its access pattern and sizes, and the models that have it.
"""
_HEURISTIC = "heuristic"


@dataclass(frozen=True)
class Rendered:
    """What a source is rendered from."""

    program: Program
    access: Access
    tuning: Tuning = HEURISTIC

    @cached_property
    def source(self) -> Source:
        """The CUDA source."""
        return render(self.program, [self.access], self.tuning)


@dataclass(frozen=True)
class Corpus:
    """The models of the zoo, and the kernels of all of them, each with the names of the models that have it."""

    models: tuple[str, ...]
    kernels: Mapping[Rendered, tuple[str, ...]]

    def of_model(self, name: str) -> set[Rendered]:
        """The kernels of one model."""
        return {kernel for kernel, models in self.kernels.items() if name in models}


def rendered_by(model: Path | onnx.ModelProto) -> Counter[Rendered]:
    """What `onnxfuse optimize --target cuda` renders for a model, and for how many of its nodes each."""
    optimized = onnxfuse.optimize(model, "cuda", arch=COMMON, embed=False, check=False).model
    found: Counter[Rendered] = Counter()
    for fused in fused_nodes(Model.from_proto(optimized)):
        recipe = Recipe.parse(text_attribute(fused.node, RECIPE))
        found[Rendered(fused.program, recipe.kernels[0].access, tuning_of(fused.program, recipe))] += 1
    return found


# ------------------------------------------------------------------------------------------------ the file


def read(path: Path = CORPUS) -> Corpus:
    """The corpus in the repository."""
    head, *paragraphs = path.read_text(encoding="utf-8").split("\n\n")
    kernels = {}
    for paragraph in paragraphs:
        models, kernel, program = paragraph.rstrip("\n").split("\n", 2)
        _, access, *sizes = kernel.split(" ")
        rendered = Rendered(Program.parse(program + "\n"), Access.parse(access), _parse_sizes(sizes))
        kernels[rendered] = tuple(models.split(" ")[1:])
    return Corpus(tuple(head.splitlines()[-1].split(" ")[1:]), kernels)


def text(corpus: Corpus) -> str:
    """What ``read`` reads."""
    parts = [f"{_HEAD}zoo {' '.join(corpus.models)}\n"]
    for kernel, models in corpus.kernels.items():
        parts.append(f"models {' '.join(models)}\nkernel {kernel.access} {_sizes(kernel.tuning)}\n{kernel.program}")
    return "\n".join(parts)


def _sizes(tuning: Tuning) -> str:
    given = {name: value for name, value in vars(tuning).items() if value is not None}
    return " ".join(f"{name} {value}" for name, value in given.items()) or _HEURISTIC


def _parse_sizes(words: Sequence[str]) -> Tuning:
    if list(words) == [_HEURISTIC]:
        return HEURISTIC
    return Tuning(**{name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)})


# ------------------------------------------------------------------------------------------------ the page


class HasSource(Protocol):
    """What is rendered as a source."""

    @property
    def source(self) -> Source | ConvSource:
        """The CUDA source."""


Kind = TypeVar("Kind", bound=HasSource)


def compile_all(kernels: Iterable[Kind], name: str, compiler: CompilerCache) -> dict[Kind, Compiled]:
    """Machine code for one architecture.  Raises CompileError."""
    sources = {kernel: kernel.source for kernel in kernels}
    found = compiler.compile([source.text for source in sources.values()], (name,), OPTIONS)
    return {kernel: found[source.sha256, name] for kernel, source in sources.items()}


def row(name: str, compiled: Mapping[Kind, Compiled]) -> list[str]:
    """A row of the page's first table: what the kernels take on one architecture."""
    resources = [found for code in compiled.values() for found in code.resources.values()]
    main = [
        (kernel.source.kernels[0], code.resources[kernel.source.kernels[0].name]) for kernel, code in compiled.items()
    ]
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


def page(corpus: Corpus, nodes: Mapping[str, int], version: str, rows: Sequence[Sequence[str]]) -> str:
    """The text of benchmarks/cuda_kernels.md; ``nodes`` are the fused nodes of each model."""
    table = [list(COLUMNS), ["---"] * len(COLUMNS), *rows]
    models = [["model", "fused nodes", "distinct sources"], ["---"] * 3]
    models += [[name, str(nodes[name]), str(len(corpus.of_model(name)))] for name in corpus.models]
    fusing = sum(count > 0 for count in nodes.values())
    return "\n".join(
        [
            "# The CUDA kernels of the zoo, compiled",
            "",
            "What `onnxfuse optimize --target cuda` renders for the models of the zoo, compiled without a GPU for",
            "every common architecture by `scripts/zoo_kernels.py`. These are the compiler's numbers: nothing ran on a",
            "GPU.",
            "",
            f"{version}; {datetime.now(UTC):%Y-%m-%d}; onnxfuse {onnxfuse.__version__}.",
            f"{len(corpus.models)} models, of which {fusing} have {sum(nodes.values())} fused nodes with "
            f"{len(corpus.kernels)} distinct sources. The most of any kernel, or the least occupancy:",
            "",
            *_lines(table),
            "",
            "A source has a main kernel for the shapes that its nodes are expected to meet, and others for whatever",
            "may come. What two models share counts for both here:",
            "",
            *_lines(models),
            "",
        ]
    )


def _lines(table: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in table]


def main() -> int:
    """Write both files."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    manifest = read_manifest()
    nodes: dict[str, int] = {}
    kernels: dict[Rendered, tuple[str, ...]] = {}
    compiler = CompilerCache()
    try:
        for name in manifest:
            with TemporaryDirectory() as scratch:
                found = rendered_by(fetch(name, manifest, folder=Path(scratch), progress=_say))
            nodes[name] = found.total()
            _say(f"{name}: {nodes[name]} fused nodes, {len(found)} sources")
            for kernel in found:
                kernels[kernel] = (*kernels.get(kernel, ()), name)
        corpus = Corpus(tuple(manifest), kernels)
        CORPUS.write_text(text(corpus), encoding="utf-8")
        rows = [row(name, compile_all(kernels, name, compiler)) for name in COMMON]
        PAGE.write_text(page(corpus, nodes, compiler.version, rows), encoding="utf-8")
    except OnnxfuseError as error:
        print(f"zoo_kernels.py: error: {error}", file=sys.stderr)
        return 2
    return 0


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
