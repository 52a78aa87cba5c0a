"""Kernels of attention compile for every architecture, and do not spill in the tiles that are chosen."""

import pytest

from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.attention.case import AttentionCase
from onnxfuse.cuda.attention.fitting import AttentionFitter
from onnxfuse.cuda.attention.renderer import source_with
from onnxfuse.cuda.compile.cache import Cache
from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.elementwise.fitting import LOG_OPTION
from onnxfuse.cuda.elementwise.renderer import compile_options
from tests.cuda.attention.launches import PLACES
from tests.cuda.elementwise.test_end_to_end import declared_parameters
from tests.cuda.elementwise.test_nvrtc import nvrtc

OPTIONS = (*compile_options(False), LOG_OPTION)
CASES = [
    AttentionCase("f32", "m", False, 64, 64),
    AttentionCase("f16", "m", False, 64, 64),
    AttentionCase("bf16", "-", False, 128, 128),
    AttentionCase("f32", "mc", True, 256, 256),
]
MOST_CODE = 250_000
"""Bytes of machine code of one node for one architecture."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_chosen_tiles_do_not_spill(case: AttentionCase) -> None:
    compiler = CompilerCache(nvrtc(), Cache())
    fit = AttentionFitter(compiler, OPTIONS, COMMON).fit(case)
    assert fit.spills == (0, "")
    compiled = compiler.compile([fit.source.text], COMMON, OPTIONS)
    for name in COMMON:
        found = compiled[fit.source.sha256, name]
        assert all(function.encode() in found.cubin for function in fit.source.functions())
        assert len(found.cubin) < MOST_CODE
    many, few = (kernel for kernel in fit.source.kernels if kernel.vector > 1)
    assert many.rows > few.rows and few.split > 1
    assert source_with(fit.source.kernels) == fit.source


def test_the_compiler_lays_parameters_out_as_the_launcher() -> None:
    compiler = CompilerCache(nvrtc(), Cache())
    fit = AttentionFitter(compiler, OPTIONS, ("sm_90",)).fit(CASES[0])
    ptx = compiler.compile([fit.source.text], ("sm_90",), OPTIONS)[fit.source.sha256, "sm_90"].ptx.decode()
    for name in fit.source.functions():
        assert declared_parameters(ptx, name) == PLACES
