"""Kernels of Programs that reduce compile for every architecture, and keep rows without spilling."""

import itertools
import re
from collections.abc import Callable
from functools import cache

import pytest

from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.compile.cache import Cache
from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.elementwise.fitting import LOG_OPTION
from onnxfuse.cuda.elementwise.renderer import compile_options
from onnxfuse.cuda.nest.fitting import NestFit, NestFitter
from onnxfuse.cuda.nest.renderer import case_of, render_nest
from tests.cuda.elementwise.test_nvrtc import compile_quickly, entry, nvrtc
from tests.cuda.nest.product_programs import dequantized, product
from tests.cuda.nest.programs import chains, integers, random_nest

__all__ = ["compile_quickly"]
TYPES = {"f32": "sm_90", "f16": "sm_80", "f64": "sm_75"}
"""Each with one architecture on which what is compiled is looked at."""


def _shapes(dtype: str, name: str, length: int = 0) -> list[list[int | str]]:
    return [[size if size else "n" for size in shape] for shape in chains(dtype)[name].shapes(length)]


@cache
def fitted(dtype: str, name: str, length: int = 0) -> tuple[NestFit, CompilerCache]:
    compiler = CompilerCache(nvrtc(), Cache())
    fitter = NestFitter(compiler, (*compile_options(False), LOG_OPTION), (TYPES[dtype],))
    return fitter.fit(chains(dtype)[name].program, _shapes(dtype, name, length)), compiler


WIDE = ("layer norm, residual, gelu", "group norm, silu", "softmax over channels")
"""Those that take the most registers."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("dtype", "name"), [*(("f32", name) for name in chains("f32")), *itertools.product(("f16", "f64"), WIDE)]
)
def test_rows_are_kept_without_spills(dtype: str, name: str) -> None:
    fit, _ = fitted(dtype, name)
    assert fit.is_good and fit.occupancy[0] >= 0.4
    assert all(fit.traffic(kernel) == 1 for kernel in fit.source.kernels if kernel.items)


@pytest.mark.parametrize("name", ["softmax, scale, mask", "log softmax", "l2 normalize", "instance norm, relu"])
def test_rows_of_16384_floats_are_read_once(name: str) -> None:
    fit, _ = fitted("f32", name)
    assert max(kernel.capacity for kernel in fit.source.kernels if kernel.vector == 4) == 16384


def test_layer_norm_of_a_known_length() -> None:
    fit, compiler = fitted("f32", "layer norm, residual, gelu", 768)
    main = fit.source.kernels[0]
    assert (main.threads, main.items, main.vector) == (64, 3, 4) and fit.is_good
    options = (*compile_options(False), LOG_OPTION)
    compiled = compiler.compile([fit.source.text], ("sm_90",), options)[fit.source.sha256, "sm_90"]
    words = re.findall(r"(?:ld|st)\.global\S*", entry(compiled, main.name))
    assert len(words) == 2 * 3 + 2 * 3 + 2 * 3 and all(".v4." in word or ".v2.b64" in word for word in words)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("architecture", COMMON)
def test_rows_compile(architecture: str, dtype: str, compile_quickly: Callable[[str, str], bytes]) -> None:
    names = chains(dtype) if dtype == "f32" else ["softmax, scale, mask", "mean over channels", "group norm, silu"]
    sources = [render_nest(case_of(chains(dtype)[name].program, _shapes(dtype, name))) for name in names]
    cubin = compile_quickly("\n".join(source.text for source in sources), architecture)
    assert all(name.encode() in cubin for source in sources for name in source.functions())


@pytest.mark.parametrize("architecture", ["sm_75", "sm_100"])
def test_what_runs_in_the_emulation_compiles(
    architecture: str,
    compile_quickly: Callable[[str, str], bytes],
) -> None:
    sources = [render_nest(case_of(*random_nest(seed))) for seed in range(24)]
    sources += [render_nest(case_of(integers(dtype).program, [("n", "m")])) for dtype in ("i8", "u8", "i32", "i64")]
    compile_quickly("\n".join(source.text for source in sources), architecture)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("architecture", COMMON)
def test_products_of_few_rows_wait_for_enough_without_spills(architecture: str) -> None:
    """Enough of the matrix, for a quarter of a multiprocessor's threads or more."""
    fitter = NestFitter(CompilerCache(nvrtc(), Cache()), (*compile_options(False), LOG_OPTION), (architecture,))
    for dtype, rows, inner, tail in (
        ("f32", 1, 768, "gate"),
        ("f32", 8, 2048, "residual"),
        ("f16", 1, 4096, "gate"),
        ("bf16", 4, 11008, "bias"),
        ("f16", 1, 4096, "quantized"),
    ):
        fit = fitter.fit(*product(dtype, rows, inner, 4096, tail, normalized=tail == "gate"))
        main = fit.source.kernels[0]
        assert fit.is_good and fit.tuning.share == 0 and fit.occupancy[0] >= 0.25
        vector = 16 if tail == "quantized" else 4 if dtype == "f32" else 8
        assert (main.vector, main.tile) == (vector, rows) and main.items
    for dtype, rows, tail, vector in (("f32", 1, "", 32), ("f16", 1, "gate", 32), ("f16", 4, "", 16)):
        fit = fitter.fit(*dequantized(dtype, rows, 128, 32, 4096, zeros="packed", tail=tail))
        assert fit.is_good and fit.tuning.share == 0 and fit.occupancy[0] >= 0.25
        assert (fit.source.kernels[0].vector, fit.source.kernels[0].tile) == (vector, rows)
