"""The kernels of the zoo's models, which the corpus has: they compile for every architecture, and run in the emulation.

The models are not in the repository, and most of them take long to make, so what they render is
(scripts/zoo_kernels.py); that it is up to date shows on those models that are quick to have.
"""

import itertools
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import zoo_kernels

from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.compile.cache import Cache
from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.elementwise.access import classify
from onnxfuse.cuda.kernel import Access
from onnxfuse.cuda.strided import broadcast
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Input, Program, ProgramError, reference
from onnxfuse.program.strides import output_shape, read_by
from onnxfuse.program.view_steps import ViewStep
from onnxfuse.zoo.manifest import StoredModel
from tests.cuda.compilers import nvrtc
from tests.cuda.elementwise.programs import FUNCTIONS
from tests.cuda.emulation.emulator import Emulation, check_program
from tests.custom_ops.fused import assert_same_bits, sample
from tests.support import versions
from tools import zoo_sources

CORPUS = zoo_kernels.read()
KERNELS = list(CORPUS.kernels)
LEAST_OCCUPANCY = 50
QUICK = (
    *("light_resnet50", "light_shufflenet", "light_vgg19"),  # in the package onnx
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
        if program.reads_views:
            shapes = next(shapes_for_views(program))
        else:
            shapes = next(found for own in sizes if (found := shapes_for(program, rendered.access, own)) is not None)
        inputs = [
            sample(spec.dtype, int(np.prod(shape)), seed, special=exact).reshape(shape)
            for seed, (spec, shape) in enumerate(zip(program.inputs, shapes, strict=True))
        ]
        with np.errstate(all="ignore"):
            expected = reference.run(program, inputs)
        ran |= check_program(emulation(), source, program, inputs, expected, check)
    assert ran == {kernel.name for kernel in source.kernels} or (program.reads_views and source.kernels[-1].name in ran)


def shapes_for_views(program: Program) -> Iterator[list[tuple[int, ...]]]:
    """Small shapes that fit views, of as few dimensions as these can have, the largest first."""
    sizes = {1, 6, 24}
    for spec in program.inputs:
        steps = [*spec.view, *(ViewStep("slice", part) for part in spec.slices)]
        for step in steps:
            numbers = [abs(number) for number in step.numbers[1:] if 0 < abs(number) < 1 << 12]
            least = math.prod(numbers) if step.name == "split" else max(numbers, default=1)
            sizes |= {least, 2 * least}

    def fitting(spec: Input) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Shapes, and what is read of them."""
        plain = replace(spec, swaps_halves=False)
        for rank in range(6):
            found = []
            for shape in itertools.product(sorted(sizes), repeat=rank):
                with suppress(ProgramError):
                    read = read_by(plain, shape).sizes
                    halves = not spec.swaps_halves or (rank and read[-1] % 2 == 0)
                    if halves and math.prod(read) > 0 and math.prod(shape) <= 1 << 14:
                        found.append((shape, read))
            yield from sorted(found, key=lambda one: -math.prod(one[1]))
            if found and not any(program.output_views):
                return

    def chosen(specs: Sequence[Input], space: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
        if not specs:
            yield []
            return
        spec, *others = specs
        if spec.axis is not None:
            yield from ([(1,), *rest] for rest in chosen(others, space))
            return
        whole = not (spec.view or spec.slices or spec.swaps_halves)
        for shape, read in [(space, space)] if whole else fitting(spec):
            with suppress(ProgramError):
                yield from ([shape, *rest] for rest in chosen(others, broadcast([space, read])))

    order = sorted(range(len(program.inputs)), key=lambda index: str(program.inputs[index]).endswith(" broadcast"))
    for shapes in chosen([program.inputs[index] for index in order], ()):
        found = dict(zip(order, shapes, strict=True))
        own = [found[index] for index in range(len(order))]
        with suppress(ProgramError):
            read = [read_by(spec, shape).sizes for spec, shape in zip(program.inputs, own, strict=True) if spec.view]
            for steps in program.output_views:
                output_shape(broadcast(read), steps)
            if classify(program, own).count <= 1 << 16:
                yield own


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
