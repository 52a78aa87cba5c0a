"""Convolution kernels compile for every architecture, without spills, to the instructions they are meant to have."""

import re
from functools import cache
from typing import Any

import pytest

from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.compile.compiled import Compiled
from onnxfuse.cuda.conv.candidates import candidates
from onnxfuse.cuda.conv.kernel import ConvSource
from onnxfuse.cuda.elementwise.renderer import compile_options
from tests.cuda.compilers import nvrtc
from tests.cuda.conv.convolutions import Fused, Shape, convolution, head, tail

VERBOSE = "--ptxas-options=-v"
SAME = (1, 1, 1, 1)


def _fused(
    dtype: str,
    channels: tuple[int, int],
    size: int,
    x_shape: Shape,
    prologue: str = "",
    tf32: bool = False,
    **options: Any,
) -> Fused:
    conv = convolution(dtype, channels, (size, size), **options)
    epilogue, operands = tail(dtype, "bias, hard swish, residual", conv.output_shape(x_shape))
    return Fused(conv, x_shape, epilogue, operands, *head(dtype, prologue, x_shape), candidates(conv, x_shape, tf32)[0])


CASES = {
    "depthwise f32": _fused("f32", (96, 96), 3, (1, 96, 56, 56), group=96, pads=SAME),
    "depthwise f16": _fused("f16", (96, 96), 5, (1, 96, 64, 64), group=96, pads=(2, 2, 2, 2), strides=(2, 2)),
    "pointwise f32": _fused("f32", (96, 24), 1, (1, 96, 56, 56), "gate"),
    "pointwise f16": _fused("f16", (96, 24), 1, (16, 96, 56, 56)),
    "dense f32": _fused("f32", (64, 64), 3, (1, 64, 56, 56), pads=SAME),
    "dense tf32": _fused("f32", (64, 64), 3, (16, 64, 56, 56), tf32=True, pads=SAME),
    "dense bf16": _fused("bf16", (64, 64), 3, (16, 64, 56, 56), pads=SAME),
    "transposed f16": _fused("f16", (64, 32), 4, (1, 64, 28, 28), pads=SAME, strides=(2, 2), transposed=True),
    "direct f32": _fused("f32", (3, 32), 3, (1, 3, 224, 224), "affine", pads=SAME, strides=(2, 2)),
    "direct f16": _fused("f16", (3, 16), 3, (1, 3, 224, 224), pads=SAME, strides=(2, 2)),
}


@cache
def compiled(architecture: str, part: int | None = None) -> tuple[dict[str, ConvSource], Compiled]:
    """All cases, or one part in four of them."""
    names = list(CASES) if part is None else list(CASES)[part::4]
    sources = {name: CASES[name].render() for name in names}
    text = "\n".join(source.text for source in sources.values())
    return sources, nvrtc().compile(text, architecture, (*compile_options(False), VERBOSE))


@pytest.mark.parametrize("architecture", COMMON)
def test_all_families_compile_without_spills(architecture: str, pytestconfig: pytest.Config) -> None:
    """For sm_90, and each for one or two others, or with --exhaustive for all."""
    everything = architecture == "sm_90" or pytestconfig.getoption("exhaustive")
    sources, result = compiled(architecture) if everything else compiled(architecture, COMMON.index(architecture) % 4)
    for source in sources.values():
        for kernel in source.kernels:
            resources = result.resources[kernel.name]
            # The kernel that takes anything divides 64-bit numbers by function calls.
            assert kernel.family == "any" or (resources.spills, resources.stack) == (0, 0), kernel
            assert resources.registers * kernel.block <= 65536, kernel


@pytest.mark.parametrize("name", CASES)
def test_registers_suffice_for_384_threads_of_the_main_kernel(name: str) -> None:
    sources, result = compiled("sm_90")
    assert result.resources[sources[name].kernels[0].name].registers <= 168


def test_kernels_have_the_instructions_they_are_meant_to_have() -> None:
    sources, result = compiled("sm_90")

    def main(name: str) -> str:
        return result.ptx.decode().split(f".entry {sources[name].kernels[0].name}(")[1].split(".entry ")[0]

    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in main("pointwise f16")
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in main("dense tf32")
    assert "cp.async.cg.shared.global" in main("pointwise f16")
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in main("dense bf16")
    for name in CASES:
        assert re.search(r"st\.global\.v4\.\w+32", main(name)), name
        assert name.startswith(("pointwise f16", "dense bf16", "dense tf32", "transposed")) or "fma.rn.f32" in main(
            name
        ), name
