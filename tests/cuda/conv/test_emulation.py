"""Every family of convolution kernels in the emulation of CUDA, against ONNX Runtime and the NumPy reference."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from onnxfuse.cuda.conv.arguments import accepts, layout_access
from onnxfuse.cuda.conv.candidates import candidates
from onnxfuse.cuda.conv.kernel import LETTERS, ConvSource
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.cuda.conv.tiling import Tiling
from tests.cuda.conv.convolutions import Fused, check, convolution, head, random_fused, random_windowed, tail
from tests.cuda.emulation.emulator import Emulation

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
    """What asynchronous copies are for, and what only looks like it: transposed, its weights lie in the other order."""
    rng = random.Random(seed)
    channels = 8 * rng.choice((1, 7, 20)), rng.choice((3, 40, 70))
    conv = convolution(DTYPES[1 + seed % 2], channels, (1, 1), transposed=seed == CASES - 1)
    fused = random_fused(rng, conv, (rng.choice((2, 4, 6)), 10), (*rng.sample(TENSOR, 2), SCALAR_TENSOR))
    return replace(fused, prologue=None, x_operands=())


def windowed(rng: random.Random, dtype: str, channels: tuple[int, int], group: int, tilings: Sequence[Tiling]) -> Fused:
    """A random windowed convolution, and those of the tilings whose vectors fit its sizes."""
    conv = random_windowed(rng, dtype, channels, group)
    rank = conv.rank
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


_RESIZING: dict[str, Any] = {"strides": (2, 1), "dilations": (1, 2), "pads": (1, 0, 2, 1)}
BOUNDARIES: dict[str, tuple[Tiling, Sequence[str]]] = {
    "gemm": (SIMT[1], DTYPES),
    "tensor cores": (TENSOR[1], DTYPES[1:]),
    "tf32": (TF32[1], DTYPES[:1]),
    "depthwise": (DEPTHWISE[3], DTYPES),
    "direct": (DIRECT[3], DTYPES),
    "any": (SCALAR, DTYPES),
}
"""What every family meets at the edges of what it computes, by a small tiling of it."""


def boundary_cases(family: str) -> list[Fused]:
    """Automatic padding that is not even, operands for each image and channel, raw results and other types, and
    transposed convolutions with output padding where a family has them; batch 3."""
    tiling, dtypes = BOUNDARIES[family]
    found = []
    for number, dtype in enumerate(dtypes):
        rng = random.Random(number)
        channels, group = {"depthwise": ((5, 5), 5), "direct": ((3, 7), 1)}.get(family, ((6, 10), 2))
        same = convolution(
            dtype, channels, (3, 2), group=group, strides=(2, 1), pads=("SAME_LOWER", "SAME_UPPER")[number % 2]
        )
        convs = [same]
        if family not in ("depthwise", "direct"):
            extra = {"output_padding": (1, 0), "transposed": True}
            convs.append(convolution(dtype, channels, (3, 2), group=group, **_RESIZING, **extra))
        for conv in convs:
            x_shape = (3, conv.in_channels, 5, 6)
            kind = ("gate and raw result", "quantize", "masks")[number]
            epilogue, operands = tail(dtype, kind, conv.output_shape(x_shape))
            prologue, x_operands = head(dtype, rng.choice(("gate", "")), x_shape)
            tilings = () if family == "any" else (replace(tiling, vector=1),)
            found.append(Fused(conv, x_shape, epilogue, operands, prologue, x_operands, tilings))
    return found


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
def compiled(family: str, architecture: int = 80, step: int = 1) -> tuple[Emulation, list[tuple[Fused, ConvSource]]]:
    """The cases of a family, or one in ``step`` of them, as one library."""
    cases = [MAKERS[family](seed) for seed in range(0, CASES, step)]
    rendered = [(case, case.render()) for case in cases]
    return Emulation({source.sha256: source for _, source in rendered}.values(), architecture), rendered


@pytest.mark.parametrize("seed", range(CASES))
@pytest.mark.parametrize("family", MAKERS)
def test_random_convolutions(family: str, seed: int) -> None:
    emulation, rendered = compiled(family)
    case, source = rendered[seed]
    ran = check(emulation, source, case, seed)
    assert set(source.kernels[-2:]) <= set(ran)  # the scalar kernel of the family, and the one that takes anything


@pytest.mark.parametrize("family", ["tensor cores", "tf32"])
def test_what_compute_capability_7_5_runs_instead(family: str, pytestconfig: pytest.Config) -> None:
    step = 1 if pytestconfig.getoption("exhaustive") else 5  # which leaves each tiling and type
    emulation, rendered = compiled(family, 75, step)
    for number, (case, source) in enumerate(rendered):
        assert check(emulation, source, case, number * step)


def test_boundaries_of_every_family() -> None:
    cases = [case for family in BOUNDARIES for case in boundary_cases(family)]
    sources = [case.render() for case in cases]
    emulation = Emulation({source.sha256: source for source in sources}.values())
    for case, source in zip(cases, sources, strict=True):
        assert check(emulation, source, case) == list(source.kernels)


def _traits(case: Fused) -> set[object]:
    """What the issue of a kernel may depend on."""
    conv, layout = case.conv, case.layout()
    access = layout_access(layout)
    pads = conv.pads or ()
    named = {
        "groups": conv.group > 1,
        "transposed": conv.transposed,
        "output padding": any(conv.output_padding),
        "asymmetric pads": pads[: conv.rank] != pads[conv.rank :],
        "several outputs": len(case.epilogue.outputs) > 1,
        "raw output": 0 in case.epilogue.outputs,
        "batch 1": layout.batch == 1,
        "odd batch": layout.batch == 3,
    }
    counted = [("rank", conv.rank), ("dtype", conv.dtype), *(("dilation", own) for own in conv.dilations)]
    counted += [("kernel", own) for own in conv.kernel] + [("stride", own) for own in conv.strides]
    counted += [("output", case.epilogue.dtype(output)) for output in case.epilogue.outputs]
    counted += [("tail", own) for own in access.epilogue] + [("head", own) for own in access.prologue]
    counted += [("automatic", conv.auto_pad)] if conv.pads is None else []
    return {*(name for name, holds in named.items() if holds), *counted}


@pytest.mark.parametrize("family", BOUNDARIES)
def test_the_cases_cover_what_a_family_computes(family: str) -> None:
    cases = [*map(MAKERS[family], range(CASES)), *boundary_cases(family)]
    wanted: set[object] = {"asymmetric pads", "several outputs", "raw output", "batch 1", "odd batch"}
    wanted |= {("rank", rank) for rank in (1, 2, 3)} | {("kernel", size) for size in (1, 2, 3, 5)}
    wanted |= {("dtype", dtype) for dtype in BOUNDARIES[family][1]} | {("stride", 2), ("dilation", 2), ("output", "u8")}
    wanted |= {("tail", letter) for letter in LETTERS} | {("head", letter) for letter in "lsog"}
    wanted |= {("automatic", name) for name in ("SAME_LOWER", "SAME_UPPER")[: len(BOUNDARIES[family][1])]}
    wanted |= {"groups"} if family != "direct" else set()
    wanted |= {"transposed", "output padding"} if family not in ("depthwise", "direct") else set()
    assert wanted - {trait for case in cases for trait in _traits(case)} == set()


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
