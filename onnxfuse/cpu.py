"""The processor of this machine."""

import ctypes
import os
import platform
from functools import cache

from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.library import custom_ops_library


def read(library: str) -> dict[str, str]:
    """What the native library at a path says of the processor: "vendor", "family", "features" and "name"; nothing on
    others than x86-64."""
    function = ctypes.CDLL(library).onnxfuse_processor
    function.restype = ctypes.c_char_p
    lines = function().decode(errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@cache
def _info() -> dict[str, str]:
    """The same of the package's library.  Raises OnnxfuseError if there is none."""
    return read(custom_ops_library())


def has_avx512() -> bool:
    """Whether there are the instructions of AVX-512 (F, BW, DQ and VL)."""
    return "avx512" in _info().get("features", "").split()


def has_avx2() -> bool:
    """Whether there are the instructions of AVX2, FMA and F16C."""
    return "avx2" in _info().get("features", "").split()


def has_vnni() -> bool:
    """Whether there are instructions that add up products of uint8 and int8 without saturating: VNNI, as AVX-512 or
    AVX."""
    return "vnni" in _info().get("features", "").split()


def halves_avx512() -> bool:
    """Whether vectors of AVX-512 are computed in two steps, as on AMD's Zen 4 (family 25, of which Zen 3 has none)."""
    return has_avx512() and _info().get("vendor") == "AuthenticAMD" and _info().get("family") == "25"


def is_intel() -> bool:
    """Whether the processor is one of Intel's."""
    return _info().get("vendor") == "GenuineIntel"


def has_float16() -> bool:
    """Whether ONNX Runtime has kernels of its own for products and convolutions of float16 on such a processor."""
    return platform.machine().lower() in ("aarch64", "arm64")


def has_blocked_images() -> bool:
    """Whether ONNX Runtime has images in blocks of channels on such a processor: on x86-64 alone."""
    return platform.machine().lower() in ("x86_64", "amd64")


def usable() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> str:
    """The processor's name and vector instructions; without a library to ask, what the system calls it."""
    system = platform.processor() or platform.machine()
    try:
        name = _info().get("name") or system
        sets = "AVX-512" if has_avx512() else "AVX2" if has_avx2() else ""
    except OnnxfuseError:
        return system
    return f"{name} ({sets})" if sets else name
