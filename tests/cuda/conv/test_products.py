"""Fused matrix products: their kernels in the emulation of CUDA, launched by the library, and computed on the CPU."""

import random
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.conv.arguments import splits
from onnxfuse.cuda.conv.candidates import candidates
from onnxfuse.cuda.conv.kernel import ConvSource
from onnxfuse.cuda.conv.spec import product
from onnxfuse.cuda.conv.tiling import Tiling
from onnxfuse.cuda.elementwise.renderer import compile_options
from onnxfuse.program import ProgramError
from tests.cuda.compilers import nvrtc
from tests.cuda.conv.convolutions import MULTIPROCESSORS, Fused, check
from tests.cuda.conv.nodes import (
    arrays_of,
    check_launcher,
    conv_model,
    expected,
    node_case,
    rendered_object,
)
from tests.cuda.conv.products import head, product_case, tail
from tests.cuda.conv.test_emulation import SCALAR, SCALAR_TENSOR, SIMT, TENSOR, TF32
from tests.cuda.conv.test_nvrtc import VERBOSE
from tests.cuda.emulation.emulator import Emulation
from tests.cuda.stand_in import AVAILABLE, REASON
from tests.custom_ops.fused import assert_same_bits, new_session, run, session_options

FAMILIES: dict[str, tuple[tuple[Tiling, ...], Tiling, tuple[str, ...]]] = {
    "simt": (SIMT, SCALAR, ("f32", "f16", "bf16")),
    "tensor cores": (TENSOR, SCALAR_TENSOR, ("f16", "bf16")),
    "tf32": (TF32, SCALAR_TENSOR, ("f32",)),
}
CASES = 12


def case_of(family: str, seed: int) -> Fused:
    tilings, scalar, dtypes = FAMILIES[family]
    return product_case(seed, dtypes[seed % len(dtypes)], (tilings[seed % len(tilings)], scalar))


@cache
def compiled(architecture: int) -> tuple[Emulation, list[tuple[Fused, ConvSource]]]:
    cases = [case_of(family, seed) for family in FAMILIES for seed in range(CASES)]
    rendered = [(case, case.render()) for case in cases]
    return Emulation({source.sha256: source for _, source in rendered}.values(), architecture), rendered


@pytest.mark.parametrize("architecture", [80, 75])
def test_every_kernel_that_accepts_has_the_bits_of_the_reference(architecture: int) -> None:
    """Races, bounds and alignment are the emulation's to see."""
    emulation, rendered = compiled(architecture)
    with_vectors = set()
    for number, (case, source) in enumerate(rendered):
        ran = check(emulation, source, case, number)
        assert set(source.kernels[-2:]) <= set(ran)
        with_vectors |= {(case.conv.dtype, case.conv.transposed) for kernel in ran if kernel.vector > 1}
    assert with_vectors == {(dtype, by) for dtype in ("f32", "f16", "bf16") for by in (False, True)}


def test_operands_that_are_not_aligned() -> None:
    emulation, rendered = compiled(80)
    for number, (case, source) in enumerate(rendered[::3]):
        assert {kernel.vector for kernel in check(emulation, source, case, number, shift=1)} == {1}


def test_asynchronous_copies_and_sums_in_parts() -> None:
    """What copies are for: 16 bits, no prologue, weights by columns, vectors; a sum that is long enough for parts."""
    cases = []
    for dtype in ("f16", "bf16"):
        conv = product(dtype, (200, 72), by_rows=False)
        epilogue, operands = tail(dtype, "bias, activation, residual", (3, 11, 72))
        cases += [Fused(conv, (3, 11, 200), epilogue, operands, tilings=(tiling,)) for tiling in TENSOR]
    sources = [case.render() for case in cases]
    emulation = Emulation(sources)
    for case, source in zip(cases, sources, strict=True):
        assert check(emulation, source, case) == list(source.kernels)
    assert {splits(source.kernels[0], cases[0].layout(), MULTIPROCESSORS) for source in sources} == {1, 4}


def test_the_bias_is_read_by_vectors() -> None:
    epilogue, operands = tail("f16", "bias, activation, residual", (4, 64))
    prologue, x_operands = head("f16", "affine", (4, 32))
    conv = product("f16", (32, 64), by_rows=False)
    case = Fused(conv, (4, 32), epilogue, operands, prologue, x_operands, (TENSOR[0],))
    assert str(case.render().kernels[0].access) == "cc;cl"
    assert "load_pack<V>(in1, channel)" in case.render().text


# ------------------------------------------------------------------------------------------------------- machine code

DEEP = {"f32": (768, 768), "f16": (768, 3072), "bf16": (3072, 768)}


def _of_a_transformer(dtype: str, number: int, prologue: str = "", by_rows: bool = False, tf32: bool = False) -> Fused:
    conv = product(dtype, DEEP[dtype], by_rows=by_rows)
    x_shape = (1, 128, conv.in_channels)
    epilogue, operands = tail(dtype, "bias, activation, residual", conv.output_shape(x_shape))
    tilings = candidates(conv, x_shape, tf32)[number]
    return Fused(conv, x_shape, epilogue, operands, *head(dtype, prologue, x_shape), tilings)


@pytest.mark.parametrize("number", [0, 1])
def test_the_first_tilings_compile_without_spills_for_every_architecture(number: int) -> None:
    """Each architecture has some of the cases, so that compiling takes seconds."""
    cases = [
        *(_of_a_transformer(dtype, number) for dtype in DEEP),
        _of_a_transformer("f32", number, tf32=True),
        _of_a_transformer("f16", number, "affine"),
        _of_a_transformer("bf16", number, by_rows=True),
    ]
    for place, architecture in enumerate(COMMON):
        own = [case.render() for case in cases[(place + number) % 3 :: 3]]
        result = nvrtc().compile(
            "\n".join(source.text for source in own), architecture, (*compile_options(False), VERBOSE)
        )
        for kernel in (kernel for source in own for kernel in source.kernels if kernel.family != "any"):
            takes = result.resources[kernel.name]
            assert (takes.spills, takes.stack) == (0, 0), (architecture, kernel)
            assert takes.registers * kernel.block <= 65536, (architecture, kernel)


# ------------------------------------------------------------------------------------------------------- the library

SEEDS = range(100, 109)
_TILINGS = (SIMT[1], SIMT[3], TENSOR[0])


def node_of(seed: int) -> Fused:
    dtype = ("f32", "f16", "bf16")[seed % 3]
    tiling = SIMT[1] if dtype == "f32" else _TILINGS[seed // 3 % 3]
    return node_case(partial(product_case, dtype=dtype, tilings=(tiling,)), seed)


@cache
def launched() -> tuple[Path, dict[int, tuple[Fused, ConvSource]]]:
    sources = {seed: (fused, fused.render()) for seed, fused in ((seed, node_of(seed)) for seed in SEEDS)}
    return rendered_object(list(sources.values())), sources


@pytest.mark.skipif(not AVAILABLE, reason=REASON)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_library_launches_them(seed: int, tmp_path: Path) -> None:
    code, sources = launched()
    check_launcher(*sources[seed], code, seed, tmp_path)


@pytest.mark.parametrize("seed", range(24))
def test_the_cpu_computes_them_too(seed: int) -> None:
    fused = node_case(product_case, seed)
    arrays = arrays_of(fused, seed)
    session = new_session(conv_model(fused), session_options())
    for result, wanted in zip(run(session, arrays), expected(fused, arrays), strict=True):
        assert_same_bits(result, wanted)


def test_no_rows() -> None:
    fused = Fused(product("f32", (4, 6), by_rows=False), (2, 3, 4), *tail("f32", "", (2, 3, 6)))
    x, w = arrays_of(fused)
    (result,) = run(new_session(conv_model(fused), session_options()), [x[:0], w])
    assert result.shape == (0, 3, 6)


GOOD = Fused(product("f32", (4, 6), by_rows=False), (3, 4), *tail("f32", "", (3, 6)))


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"transB": None}, "it has no attribute transB that is 0 or 1"),
        ({"transB": 2}, "it has no attribute transB that is 0 or 1"),
        ({"weight_shape": None}, "it has no attribute weight_shape of two integers"),
        ({"weight_shape": [4, 6, 1]}, "it has no attribute weight_shape of two integers"),
        ({"weight_shape": [4, 0]}, "the attribute weight_shape has no elements"),
        ({"weight_shape": [1 << 20, 1 << 20]}, "the attribute weight_shape has no elements, or more than"),
        ({"weight_shape": [-4, 6]}, "the attribute weight_shape has no elements"),
        ({"operator": "Gemm"}, "the attribute operator is not Conv or ConvTranspose"),
    ],
)
def test_attributes_that_are_refused(attributes: dict[str, object], reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        new_session(conv_model(GOOD, **attributes), session_options())


@pytest.mark.parametrize(
    ("x", "w", "reason"),
    [
        ((3, 5), (4, 6), "is not of 2 to 5 dimensions, the last of them 4"),
        ((4,), (4, 6), "is not of 2 to 5 dimensions, the last of them 4"),
        ((1, 1, 1, 1, 3, 4), (4, 6), "is not of 2 to 5 dimensions, the last of them 4"),
        ((3, 4), (6, 4), r"the weights are of shape \[6,4\], not \[4,6\]"),
    ],
)
def test_shapes_that_are_refused(x: tuple[int, ...], w: tuple[int, ...], reason: str) -> None:
    arrays = [np.ones(shape, np.float32) for shape in (x, w)]
    names = [[f"d{number}_{axis}" for axis in range(array.ndim)] for number, array in enumerate(arrays)]
    with pytest.raises(Exception, match=reason.replace(",", ", ?")):
        run(new_session(conv_model(GOOD, names), session_options()), arrays)


def test_what_is_no_product() -> None:
    good = product("f32", (4, 6), by_rows=True)
    assert good.weight_shape == (6, 4) and good.output_shape((2, 3, 4)) == (2, 3, 6) and not good.pointwise
    for wrong in ({"strides": (2,)}, {"group": 2}, {"pads": (1, 0)}, {"kernel": (1, 1)}, {"dtype": "f64"}):
        with pytest.raises(ProgramError):
            replace(good, **wrong)
    for shape in ((4,), (3, 5), (1, 1, 1, 1, 1, 4)):
        with pytest.raises(ProgramError, match="product"):
            good.output_shape(shape)


def test_tilings_follow_what_is_known_of_the_rows() -> None:
    rng = random.Random(0)
    for dtype, tf32 in (("f32", False), ("f32", True), ("f16", False), ("bf16", False)):
        conv = product(dtype, (rng.choice((64, 768)), 768), by_rows=False)
        for shape in ((None, conv.in_channels), (1, None, conv.in_channels), (8, 512, conv.in_channels)):
            found = candidates(conv, shape, tf32)
            assert len(found) == 6 and all(tiling.family == "gemm" for own in found for tiling in own)
            assert all(own[0].tensor_cores == (tf32 or dtype != "f32") for own in found)
    large, small = (candidates(product("f16", (768, 768), by_rows=False), (rows, 768))[0][0] for rows in (8192, 16))
    assert large.tile[0] > small.tile[0]
