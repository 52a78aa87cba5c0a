"""The kernels of the zoo's models, which the corpus has: they compile for every architecture, and run in the emulation.

The models are not in the repository, and most of them take long to make, so what they render is
(scripts/zoo_kernels.py); that it is up to date shows on those models that are quick to have.
"""

import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import zoo_kernels

from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.cache import Cache
from onnxfuse.cuda.compiler import CompilerCache
from onnxfuse.cuda.elementwise.access import classify
from onnxfuse.cuda.kernel import Access
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program, ProgramError, reference
from onnxfuse.zoo.manifest import StoredModel
from tests.cuda.compilers import nvrtc
from tests.cuda.emulator import Emulation, check_program
from tests.cuda.programs import FUNCTIONS
from tests.custom_ops.fused import assert_same_bits, sample
from tests.support import versions
from tools import zoo_sources

CORPUS = zoo_kernels.read()
KERNELS = list(CORPUS.kernels)
LEAST_OCCUPANCY = 50
QUICK = (
    *("light_densenet121", "light_resnet50", "light_shufflenet", "light_vgg19"),  # in the package onnx
    *("float16", "bfloat16", "qdq_transformer", "if_loop", "black_scholes", "tabular"),  # made with no more than that
)
SIZES = ((4803,), (100, 48), (8, 12, 48), (2, 4, 12, 48))
"""Inner dimensions for vectors of every length; elements for more than one group of a thread in a block of 256."""
ODD_SIZES = ((1031,), (29, 37), (5, 7, 31), (3, 5, 7, 11))
JUMPS = {"round", "floor", "ceil", "less", "less_equal", "greater", "greater_equal", "equal"}
"""Where a small difference may become a large one."""


@cache
def compiler() -> CompilerCache:
    """NVRTC, and what the tests of this user have compiled before."""
    return CompilerCache(nvrtc(), Cache(Path(tempfile.gettempdir()) / f"onnxfuse-compiled-{os.getuid()}"))


@pytest.mark.parametrize("architecture", COMMON)
def test_every_kernel_compiles_without_spills(architecture: str, pytestconfig: pytest.Config) -> None:
    """Each for one architecture, or with --exhaustive for all."""
    own = KERNELS if pytestconfig.getoption("exhaustive") else KERNELS[COMMON.index(architecture) :: len(COMMON)]
    compiled = zoo_sources.compile_all(own, architecture, compiler())
    assert len(compiled) == len(own) > 0
    for rendered, code in compiled.items():
        names = [kernel.name for kernel in rendered.source.kernels]
        assert code.cubin.startswith(b"\x7fELF") and all(name.encode() in code.cubin for name in names)
        assert [name for name in names if code.resources[name].spills] == [], rendered
    found = zoo_sources.row(architecture, compiled)
    assert int(found[zoo_sources.COLUMNS.index("occupancy, main kernels")].split(" ")[0]) >= LEAST_OCCUPANCY


@cache
def emulation() -> Emulation:
    """All of them, compiled for the CPU."""
    return Emulation(rendered.source for rendered in KERNELS)


def shapes_for(program: Program, access: Access, sizes: Sequence[int]) -> list[tuple[int, ...]] | None:
    """Shapes that broadcast to ``sizes`` and are accessed so; None if there are none of as many dimensions."""
    rank = len(sizes)
    splits = [(outer, inner) for inner in range(rank + 1) for outer in range(rank + 1 - inner)]
    for (outer, inner), apart in itertools.product(splits, (False, True)):
        head, tail = set(range(outer)), set(range(rank - inner, rank))
        everything = set(range(rank))
        general = tail | ({0} if apart else head)
        dims = {"l": everything, "s": set[int](), "i": tail, "o": head, "c": everything - head - tail, "g": general}
        try:
            shapes = [
                tuple(size if index in dims[letter] else 1 for index, size in enumerate(sizes))
                if spec.axis is None
                else (sizes[spec.axis],)
                for spec, letter in zip(program.inputs, access.inputs, strict=True)
            ]
            if classify(program, shapes).access == access:
                return shapes
        except (ProgramError, IndexError):  # an axis that so few dimensions do not have, or lies along another letter
            continue
    return None


@pytest.mark.parametrize("number", range(len(KERNELS)))
def test_every_kernel_computes_what_the_reference_does(number: int) -> None:
    rendered = KERNELS[number]
    program, source = rendered.program, rendered.source
    exact = not FUNCTIONS & {instruction.op for instruction in program.instructions}

    def check(actual: np.ndarray, wanted: np.ndarray, output: int, kernel: str) -> None:
        if exact:
            assert_same_bits(actual, wanted)
        else:
            assert_close(actual, wanted, program)

    ran: set[str] = set()
    for sizes in (SIZES, ODD_SIZES):
        shapes = next(found for own in sizes if (found := shapes_for(program, rendered.access, own)) is not None)
        inputs = [
            sample(spec.dtype, int(np.prod(shape)), seed, special=exact).reshape(shape)
            for seed, (spec, shape) in enumerate(zip(program.inputs, shapes, strict=True))
        ]
        with np.errstate(all="ignore"):
            expected = reference.run(program, inputs)
        ran |= check_program(emulation(), source, program, inputs, expected, check)
    assert ran == {kernel.name for kernel in source.kernels}


def assert_close(actual: np.ndarray, wanted: np.ndarray, program: Program) -> None:
    """Functions are within 4 units in the last place; what uses them within a few more of what they were added to."""
    a, b = actual.astype(np.float64), wanted.astype(np.float64)
    typical = max(1.0, float(np.median(np.abs(b[np.isfinite(b)]))))
    types = {instruction.dtype for instruction in program.instructions} & {"f16", "bf16", "f32", "f64"}
    step = 32 * max(float(ml_dtypes.finfo(DTYPES[dtype].numpy).eps) for dtype in types)
    different = ~np.isclose(a, b, rtol=step, atol=step * typical, equal_nan=True)
    jumps = any(instruction.op in JUMPS for instruction in program.instructions)
    assert np.count_nonzero(different) <= (different.size // 1000 if jumps else 0), (a[different], b[different])


@pytest.mark.parametrize("name", QUICK)
def test_the_corpus_has_what_a_model_renders(name: str, real_model: Callable[[str], Path]) -> None:
    compiler()  # which has a say in what is rendered, so that another version may render something else
    versions.need("nvidia-cuda-nvrtc", "onnx")
    rendered = zoo_kernels.rendered_by(real_model(name))
    assert set(rendered) == CORPUS.of_model(name), "run scripts/zoo_kernels.py"


def test_the_corpus_is_of_the_whole_zoo(manifest: dict[str, StoredModel]) -> None:
    assert CORPUS.models == zoo_sources.small_models(manifest), "run scripts/zoo_kernels.py"
    assert {name for models in CORPUS.kernels.values() for name in models} <= set(manifest)
    assert zoo_kernels.text(CORPUS) == zoo_kernels.CORPUS.read_text(encoding="utf-8")
    assert len({rendered.source.sha256 for rendered in KERNELS}) == len(KERNELS)
