"""Every family of convolution kernels in the emulation of CUDA, against ONNX Runtime and the NumPy reference."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from onnxfuse.cuda.conv.arguments import accepts
from onnxfuse.cuda.conv.candidates import candidates
from onnxfuse.cuda.conv.kernel import ConvSource
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.cuda.conv.tiling import Tiling
from tests.cuda.convolutions import Fused, check, convolution, random_fused
from tests.cuda.emulator import Emulation

DTYPES = ("f32", "f16", "bf16")
CASES = 12

SIMT = (
    Tiling("gemm", (32, 64, 8), (4, 8), 8),
    Tiling("gemm", (32, 32, 8), (4, 4), 4, split=4),
    Tiling("gemm", (64, 32, 16), (8, 4), 2),
    Tiling("gemm", (128, 128, 8), (8, 8), 4),
)
SCALAR = Tiling("gemm", (32, 32, 16), (4, 4), 1, split=3)
TENSOR = (
    Tiling("gemm", (64, 64, 32), (32, 32), 8, split=4, tensor_cores=True),
    Tiling("gemm", (32, 64, 16), (32, 32), 4, tensor_cores=True),
    Tiling("gemm", (128, 128, 32), (64, 32), 8, tensor_cores=True),
)
TF32 = (
    Tiling("gemm", (64, 64, 16), (32, 32), 4, split=4, tensor_cores=True),
    Tiling("gemm", (32, 64, 16), (32, 32), 2, tensor_cores=True),
    Tiling("gemm", (128, 128, 16), (64, 32), 4, tensor_cores=True),
)
SCALAR_TENSOR = Tiling("gemm", (64, 64, 16), (32, 32), 1, split=2, tensor_cores=True)
DEPTHWISE = (
    Tiling("depthwise", (1, 8, 16), (4, 4), 4),
    Tiling("depthwise", (2, 8, 16), (2, 8), 8),
    Tiling("depthwise", (3, 7, 6), (7, 2), 2),
    Tiling("depthwise", (5, 4, 7), (2, 1), 1),
)
DIRECT = (
    Tiling("direct", (16, 4, 16), (8, 4), 4),
    Tiling("direct", (8, 3, 24), (4, 8), 8),
    Tiling("direct", (16, 2, 6), (8, 2), 2),
    Tiling("direct", (4, 5, 7), (4, 1), 1),
)


def random_conv(rng: random.Random, dtype: str, rank: int, *, automatic: bool = True) -> Convolution:
    """A Conv or ConvTranspose in groups, with strides, dilations and pads of all kinds."""
    transposed = rng.random() < 0.3
    kernel = [rng.choice((1, 2, 3, 3, 5)) for _ in range(rank)]
    strides = [rng.choice((1, 1, 2, 3)) for _ in range(rank)]
    group = rng.choice((1, 1, 1, 2, 3))
    channels = group * rng.choice((1, 3, 7, 16, 32)), group * rng.choice((1, 4, 5, 33))
    if automatic and rng.random() < 0.3:
        pads = rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
        return convolution(dtype, channels, kernel, group=group, strides=strides, pads=pads, transposed=transposed)
    extra = [rng.randint(0, stride - 1) for stride in strides] if transposed else ()
    return convolution(
        dtype,
        channels,
        kernel,
        group=group,
        strides=strides,
        dilations=[rng.choice((1, 1, 2)) for _ in range(rank)],
        pads=[rng.randint(0, size - 1) for size in kernel * 2],
        output_padding=extra,
        transposed=transposed,
    )


def random_spatial(rng: random.Random, conv: Convolution) -> list[int]:
    """Sizes of X for which there is a result, often multiples of a vector."""
    sizes = {1: (9, 16, 40), 2: (5, 7, 8, 12), 3: (4, 5, 6)}[conv.rank]
    while True:
        spatial = [rng.choice(sizes) + 4 * (axis == 0 and conv.rank > 1) for axis in range(conv.rank)]
        if min(conv.output_shape((1, conv.in_channels, *spatial))) > 0:
            return spatial


def any_case(seed: int) -> Fused:
    rng = random.Random(seed)
    conv = random_conv(rng, DTYPES[seed % 3], rng.choice((1, 2, 2, 3)))
    return random_fused(rng, conv, random_spatial(rng, conv), ())


def gemm_case(seed: int) -> Fused:
    rng = random.Random(seed)
    dtype = DTYPES[seed % 3]
    if seed % 4 == 0:
        conv = convolution(dtype, (rng.choice((5, 16, 40)), rng.choice((3, 40, 70))), (1, 1))
    else:
        conv = random_conv(rng, dtype, rng.choice((1, 2, 2, 3)))
    return random_fused(rng, conv, random_spatial(rng, conv), (SIMT[seed // 3 % len(SIMT)], SCALAR))


def tensor_case(seed: int) -> Fused:
    rng = random.Random(seed)
    dtype = DTYPES[1 + seed % 2]
    if seed % 3 == 0:
        conv = convolution(dtype, (rng.choice((5, 72, 200)), rng.choice((3, 40, 70))), (1, 1))
    else:
        conv = random_conv(rng, dtype, rng.choice((1, 2, 2, 3)))
    return random_fused(rng, conv, random_spatial(rng, conv), (TENSOR[seed % len(TENSOR)], SCALAR_TENSOR))


def tf32_case(seed: int) -> Fused:
    """Of f32 by tensor cores, for which small integers are exact."""
    rng = random.Random(seed)
    conv = random_conv(rng, "f32", rng.choice((1, 2, 2, 3)))
    if seed % 3 == 0:
        conv = convolution("f32", (rng.choice((5, 72)), rng.choice((3, 40, 70))), (1, 1))
    return random_fused(rng, conv, random_spatial(rng, conv), (TF32[seed % 3], SCALAR_TENSOR))


def copied_case(seed: int) -> Fused:
    """What asynchronous copies are for."""
    rng = random.Random(seed)
    conv = convolution(DTYPES[1 + seed % 2], (8 * rng.choice((1, 7, 20)), rng.choice((3, 40, 70))), (1, 1))
    fused = random_fused(rng, conv, (rng.choice((2, 4, 6)), 10), (*rng.sample(TENSOR, 2), SCALAR_TENSOR))
    return replace(fused, prologue=None, x_operands=())


def windowed(rng: random.Random, dtype: str, channels: tuple[int, int], group: int, tilings: Sequence[Tiling]) -> Fused:
    """A convolution that slides over patches of X, and those of the tilings whose vectors fit its sizes."""
    rank = rng.choice((1, 2, 2, 2, 3))
    kernel = [rng.choice((1, 2, 3, 3, 5)) for _ in range(rank)]
    conv = convolution(
        dtype,
        channels,
        kernel,
        group=group,
        strides=[rng.choice((1, 1, 2)) for _ in range(rank)],
        dilations=[rng.choice((1, 1, 2)) for _ in range(rank)],
        pads=[rng.randint(0, size - 1) for size in kernel * 2],
    )
    spatial = [rng.choice((8, 9, 11, 16)) if axis > rank - 3 else rng.choice((3, 4)) for axis in range(rank - 1)]
    spatial.append(rng.choice((7, 16, 16, 24, 33)))
    while min(conv.output_shape((1, conv.in_channels, *spatial))) < 1:
        spatial = [size + 4 for size in spatial]
    width = conv.output_shape((1, conv.in_channels, *spatial))[-1]
    fitting = [tiling for tiling in tilings if spatial[-1] % tiling.vector == width % tiling.vector == 0]
    return random_fused(rng, conv, spatial, fitting)


def depthwise_case(seed: int) -> Fused:
    rng = random.Random(seed)
    channels = rng.choice((2, 7, 10))
    return windowed(rng, DTYPES[seed % 3], (channels, channels), channels, DEPTHWISE)


def candidate_case(seed: int) -> Fused:
    rng = random.Random(seed)
    conv = random_conv(rng, DTYPES[seed % 3], 2)
    if seed % 3 == 0:
        conv = convolution(conv.dtype, (6, 6), (3, 3), group=6, pads=(1, 1, 1, 1), strides=(1 + seed % 2,) * 2)
    spatial = random_spatial(rng, conv)
    known = [size if rng.random() < 0.5 else None for size in spatial]
    return random_fused(rng, conv, spatial, rng.choice(candidates(conv, (None, conv.in_channels, *known))))


def direct_case(seed: int) -> Fused:
    rng = random.Random(seed)
    return windowed(rng, DTYPES[seed % 3], (rng.choice((1, 3, 4)), rng.choice((3, 16, 21))), 1, DIRECT)


MAKERS = {
    "any": any_case,
    "gemm": gemm_case,
    "tensor cores": tensor_case,
    "asynchronous copies": copied_case,
    "tf32": tf32_case,
    "depthwise": depthwise_case,
    "direct": direct_case,
}


@cache
def compiled(family: str, architecture: int = 80) -> tuple[Emulation, list[tuple[Fused, ConvSource]]]:
    """All cases of a family as one library."""
    cases = [MAKERS[family](seed) for seed in range(CASES)]
    rendered = [(case, case.render()) for case in cases]
    return Emulation({source.sha256: source for _, source in rendered}.values(), architecture), rendered


@pytest.mark.parametrize("seed", range(CASES))
@pytest.mark.parametrize("family", MAKERS)
def test_random_convolutions(family: str, seed: int) -> None:
    emulation, rendered = compiled(family)
    case, source = rendered[seed]
    ran = check(emulation, source, case, seed)
    assert set(source.kernels[-2:]) <= set(ran)  # the scalar kernel of the family, and the one that takes anything


@pytest.mark.parametrize("seed", range(CASES))
@pytest.mark.parametrize("family", ["tensor cores", "tf32"])
def test_what_compute_capability_7_5_runs_instead(family: str, seed: int) -> None:
    emulation, rendered = compiled(family, 75)
    assert check(emulation, rendered[seed][1], rendered[seed][0], seed)


@pytest.mark.parametrize("family", MAKERS)
def test_unaligned_operands(family: str) -> None:
    emulation, rendered = compiled(family)
    for seed, (case, source) in enumerate(rendered[:4]):
        ran = check(emulation, source, case, seed, shift=1)
        assert {kernel.vector for kernel in ran} == {1}


@pytest.mark.parametrize(
    "tiling", [*SIMT, *TENSOR, *TF32, *DEPTHWISE, *DIRECT], ids=lambda own: f"{own.family}-{own.tile}"
)
def test_each_tiling_has_run(tiling: Tiling) -> None:
    """Of operands that are aligned, as those of test_random_convolutions are, some are for the tiling's kernel."""
    cases = [case for make in MAKERS.values() for case in map(make, range(CASES)) if tiling in case.tilings]
    for case in cases:
        layout = case.layout()
        aligned = [0] * (2 + len(layout.prologue) + len(layout.epilogue) + len(layout.outputs))
        if accepts(case.render().kernels[case.tilings.index(tiling)], layout, aligned):
            return
    pytest.fail(f"none of {len(cases)} cases")
