"""The processor of this machine."""

import os
import platform
from functools import cache
from pathlib import Path


@cache
def _info() -> dict[str, str]:
    """What Linux says of the first processor; empty elsewhere."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}


def has_avx512() -> bool:
    """Whether there are the registers of AVX-512; False where that cannot be told."""
    return "avx512f" in _info().get("flags", "").split()


def has_avx2() -> bool:
    """Whether there are the instructions of AVX2 and FMA; False where that cannot be told."""
    return {"avx2", "fma"} <= set(_info().get("flags", "").split())


def halves_avx512() -> bool:
    """Whether vectors of AVX-512 are computed in two steps, as on AMD's Zen 4 (family 25, of which Zen 3 has none)."""
    info = _info()
    return has_avx512() and info.get("vendor_id") == "AuthenticAMD" and info.get("cpu family") == "25"


def is_intel() -> bool:
    """Whether the processor is one of Intel's; False where that cannot be told."""
    return _info().get("vendor_id") == "GenuineIntel"


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
    """The processor's name, and its vector instructions where they are known."""
    name = _info().get("model name") or platform.processor() or platform.machine()
    if has_avx512():
        return f"{name} (AVX-512)"
    return f"{name} (AVX2)" if has_avx2() else name
