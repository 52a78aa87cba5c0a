"""Rendered convolutions, launched by the native library in ONNX Runtime, in an emulation of CUDA on a stand-in driver.

Only the compiler, the driver and the GPU are missing.  The results are those of ONNX Runtime's own Conv and
ConvTranspose, and every launch is the one that ``onnxfuse.cuda.conv`` foretells, byte for byte.
"""

from functools import cache
from pathlib import Path

import pytest

from onnxfuse.cuda.conv.arguments import splits
from onnxfuse.cuda.conv.kernel import ConvSource
from tests.cuda.conv.convolutions import MULTIPROCESSORS, Fused
from tests.cuda.conv.nodes import check_launcher, node_case, rendered_object
from tests.cuda.conv.test_emulation import MAKERS
from tests.cuda.stand_in import AVAILABLE, REASON

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)

SEEDS = range(100, 103)


@cache
def rendered(family: str) -> tuple[Path, dict[int, tuple[Fused, ConvSource]]]:
    """The cases of a family, and machine code of the stand-in's for all of them."""
    cases = {seed: node_case(MAKERS[family], seed) for seed in SEEDS}
    sources = {seed: (fused, fused.render()) for seed, fused in cases.items()}
    return rendered_object(list(sources.values())), sources


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", MAKERS)
def test_the_results_are_the_reference(family: str, seed: int, tmp_path: Path) -> None:
    code, sources = rendered(family)
    check_launcher(*sources[seed], code, seed, tmp_path)


def test_sums_in_parts_are_among_them() -> None:
    parts = set()
    for make in MAKERS.values():
        for seed in SEEDS:
            fused = node_case(make, seed)
            parts.add(splits(fused.render().kernels[0], fused.layout(), MULTIPROCESSORS))
    assert {1, 4} <= parts
