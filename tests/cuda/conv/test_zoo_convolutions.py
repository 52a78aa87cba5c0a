"""The kernels of the zoo's fused convolutions, which the corpus has: they compile, and none but the last one spills.

All of them for every architecture are on the page that scripts/zoo_convolutions.py writes; here each is rendered, and
some are compiled, with the architectures in turn.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import zoo_convolutions

from onnxfuse.cuda.arch import COMMON, architecture
from onnxfuse.cuda.conv.fitting import LEAST_OCCUPANCY
from onnxfuse.cuda.conv.kernel import FAMILIES
from onnxfuse.zoo.manifest import StoredModel
from tests.cuda.elementwise.test_zoo_kernels import compiler
from tests.support import versions
from tools import zoo_sources

CORPUS = zoo_convolutions.read()
EVERY = 5


def test_the_corpus_is_of_the_zoo(manifest: dict[str, StoredModel]) -> None:
    assert zoo_convolutions.text(CORPUS) == zoo_convolutions.CORPUS.read_text(encoding="utf-8")
    assert {name for models in CORPUS.values() for name in models} <= set(manifest)
    assert len({rendered.source.sha256 for rendered in CORPUS}) == len(CORPUS)


@pytest.mark.parametrize("number", range(0, len(CORPUS), EVERY))
def test_kernels_compile_without_spills(number: int) -> None:
    rendered, name = list(CORPUS)[number], COMMON[number // EVERY % len(COMMON)]
    (code,) = zoo_sources.compile_all([rendered], name, compiler()).values()
    for kernel in rendered.source.kernels:
        takes = code.resources[kernel.name]
        if kernel.family != FAMILIES[-1]:
            assert takes.spills == takes.stack == 0, kernel
            share = architecture(name).occupancy(takes.registers, kernel.block, takes.shared)
            assert share >= LEAST_OCCUPANCY[kernel.family], kernel


@pytest.mark.parametrize("name", ["float16"])
def test_it_is_up_to_date(name: str, real_model: Callable[[str], Path]) -> None:
    compiler()  # which has a say in what is rendered, so that another version may render something else
    versions.need("nvidia-cuda-nvrtc", "onnx")
    rendered = zoo_convolutions.rendered_by(real_model(name))
    assert set(rendered) == {own for own, models in CORPUS.items() if name in models}, "run scripts/zoo_convolutions.py"
