#!/usr/bin/env python3
"""Collect the CUDA kernels of the zoo's fused convolutions, so that tests can compile them without its models.

Plans the convolutions of every model of models/manifest.toml as `onnxfuse optimize --target cuda` does for the common
architectures, fetching and making what the cache lacks, and writes tests/cuda/conv/zoo_convolutions.txt: each distinct
source with the models that have it.  Then compiles all of them for every common architecture, and writes
benchmarks/cuda_convolutions.md: what the kernels take.  Needs a CUDA compiler and no GPU.
"""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

import onnx

from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.conv.choice import RuleChooser
from onnxfuse.cuda.conv.kernel import ConvAccess, ConvSource
from onnxfuse.cuda.conv.node import fused_convolutions
from onnxfuse.cuda.conv.renderer import render_conv
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.cuda.conv.tiling import Tiling
from onnxfuse.cuda.conv.tunings import Tunings
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.files.model_io import load
from onnxfuse.fused.conv.choosers import CudaChooser
from onnxfuse.model.graph import Model
from onnxfuse.passes import PassContext, resolve
from onnxfuse.program import Program
from onnxfuse.shapes.inference import infer
from tools.zoo_sources import ROOT, write_files

CORPUS = ROOT / "tests" / "cuda" / "conv" / "zoo_convolutions.txt"
PAGE = ROOT / "benchmarks" / "cuda_convolutions.md"
_HEAD = """\
# The distinct CUDA sources of the zoo's fused convolutions, written by scripts/zoo_convolutions.py, each as JSON.
"""
_INTRODUCTION = """\
# The CUDA kernels of the zoo's fused convolutions, compiled

What `onnxfuse optimize --target cuda` renders for the convolutions of the zoo, compiled without a GPU
for every common architecture by `scripts/zoo_convolutions.py`. These are the compiler's numbers: nothing
ran on a GPU. What spills there and has a stack is the kernel that takes anything, which calls functions
to divide 64-bit numbers.
"""
_AFTER = "fuse-elementwise"
"""The first pass that convolutions do not depend on."""


@dataclass(frozen=True)
class RenderedConv:
    """What a source is rendered from."""

    conv: Convolution
    epilogue: Program
    prologue: Program | None
    access: ConvAccess
    tilings: tuple[Tiling, ...]

    @cached_property
    def source(self) -> ConvSource:
        """The CUDA source."""
        return render_conv(self.conv, self.epilogue, self.prologue, self.access, self.tilings)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return {
            "convolution": asdict(self.conv),
            "access": str(self.access),
            "tilings": [asdict(tiling) for tiling in self.tilings],
            "epilogue": str(self.epilogue),
            "prologue": None if self.prologue is None else str(self.prologue),
        }

    @classmethod
    def of_json(cls, data: dict[str, Any]) -> "RenderedConv":
        """Read what ``to_json`` gives."""
        prologue = data["prologue"]
        return cls(
            Convolution(**_tuples(data["convolution"])),
            Program.parse(data["epilogue"]),
            None if prologue is None else Program.parse(prologue),
            ConvAccess.parse(data["access"]),
            tuple(Tiling(**_tuples(tiling)) for tiling in data["tilings"]),
        )


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


Corpus = Mapping[RenderedConv, tuple[str, ...]]
"""The sources of all models, each with the names of the models that have it."""


def rendered_by(model: Path | onnx.ModelProto) -> Counter[RenderedConv]:
    """What `onnxfuse optimize --target cuda` renders for the convolutions of a model, and for how many nodes each."""
    loaded = Model.from_proto(model) if isinstance(model, onnx.ModelProto) else load(model)
    options = CudaOptions(COMMON, embed=False, tunings=Tunings())
    fitter = options.fitter(fast_math=False)
    conv_fitter = options.conv_fitter(fitter)
    chooser = RuleChooser(architectures=COMMON, fitter=conv_fitter)
    context = PassContext(target="cuda", fitter=fitter, convolutions=CudaChooser(chooser))
    for step in resolve():
        if step.name == _AFTER:
            break
        step.run(loaded, context)
    infer(loaded)
    fits = [conv_fitter.fit(fused.case) for fused in fused_convolutions(loaded)]
    return Counter(
        RenderedConv(fit.case.conv, fit.case.epilogue, fit.case.prologue, fit.case.access, fit.tilings) for fit in fits
    )


# ------------------------------------------------------------------------------------------------ the files


def read(path: Path = CORPUS) -> dict[RenderedConv, tuple[str, ...]]:
    """The corpus in the repository."""
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {RenderedConv.of_json(entry): tuple(entry["models"]) for entry in entries}


def text(corpus: Corpus) -> str:
    """What ``read`` reads."""
    lines = [json.dumps({"models": models, **rendered.to_json()}) for rendered, models in corpus.items()]
    return _HEAD + "".join(f"{line}\n" for line in lines)


def main() -> int:
    """Write both files."""
    return write_files(
        "zoo_convolutions.py",
        __doc__,
        rendered_by,
        "fused convolutions",
        _INTRODUCTION,
        PAGE,
        CORPUS,
        lambda found: text(found.sources),
    )


if __name__ == "__main__":
    sys.exit(main())
