#!/usr/bin/env python3
"""Collect the CUDA kernels of the whole zoo, so that tests can compile and run them without its models.

Optimizes every model of models/manifest.toml for the target cuda and the common architectures, fetching and making
what the cache lacks, and writes tests/cuda/elementwise/zoo_kernels.txt: each distinct Program with its access pattern
and the models that have it.  Then compiles all of them for every common architecture, and writes
benchmarks/cuda_kernels.md: what the kernels take.  Needs a CUDA compiler and no GPU; some minutes once the models are
in the cache.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

import onnx

import onnxfuse
from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.elementwise.renderer import HEURISTIC, Tuning, render
from onnxfuse.cuda.embed import RECIPE, elementwise_nodes
from onnxfuse.cuda.kernel import Access, Source
from onnxfuse.cuda.parts_recipe import PartsRecipe
from onnxfuse.cuda.recipe import Recipe
from onnxfuse.cuda.rerender import tuning_of
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import text_attribute
from onnxfuse.program import Program
from tools.zoo_sources import ROOT, write_files

CORPUS = ROOT / "tests" / "cuda" / "elementwise" / "zoo_kernels.txt"
PAGE = ROOT / "benchmarks" / "cuda_kernels.md"
_HEAD = """\
# The distinct CUDA kernels of the zoo, written by scripts/zoo_kernels.py from all of its models.
# A paragraph is a Program, its access pattern and sizes, and the models that have it.
"""
_INTRODUCTION = """\
# The CUDA kernels of the zoo, compiled

What `onnxfuse optimize --target cuda` renders for the models of the zoo, compiled without a GPU for
every common architecture by `scripts/zoo_kernels.py`. These are the compiler's numbers: nothing ran on a
GPU.
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
    """What `onnxfuse optimize --target cuda` renders for a model, and for how many of its nodes each.

    Nodes of several parts are left out: each of these is a kernel like others.
    """
    optimized = onnxfuse.optimize(model, "cuda", arch=COMMON, embed=False, check=False).model
    found: Counter[Rendered] = Counter()
    for fused in elementwise_nodes(Model.from_proto(optimized)):
        text = text_attribute(fused.node, RECIPE)
        if text.startswith(PartsRecipe.header):
            continue
        recipe = Recipe.parse(text)
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


def main() -> int:
    """Write both files."""
    return write_files(
        "zoo_kernels.py",
        __doc__,
        rendered_by,
        "fused nodes",
        _INTRODUCTION,
        PAGE,
        CORPUS,
        lambda found: text(Corpus(tuple(found.nodes), found.sources)),
    )


if __name__ == "__main__":
    sys.exit(main())
