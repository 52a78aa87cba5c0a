"""What the library's file asks of every process that loads it, however small its model is."""

import re
import shutil
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from onnxfuse.run.library import custom_ops_library

_LOAD = 1
_WRITABLE = 2
_WINDOW = 64 << 10
_BUILT = Path(__file__).parents[3] / "build"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the library is an ELF file on Linux alone")


def segments(library: Path | None = None) -> list[tuple[int, int, int]]:
    """Flags, bytes in memory and alignment of each loaded segment (Elf64_Phdr)."""
    data = (library or Path(custom_ops_library())).read_bytes()
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", data, table + i * size) for i in range(count)]
    return [(header[1], header[6], header[7]) for header in headers if header[0] == _LOAD]


def test_little_is_written() -> None:
    """Memory that is filled in at start, such as a table of kernels, is a process's own."""
    assert sum(memory for flags, memory, _ in segments() if flags & _WRITABLE) < 16 << 10


def test_segments_begin_with_a_window() -> None:
    assert min(alignment for _, _, alignment in segments()) >= _WINDOW


def test_code_lies_in_the_order_of_its_use() -> None:
    """First what every session runs, then kernels of the newest instruction set, of older ones, and what launches CUDA.

    A process maps windows of code around what it touches.  The installed library has no symbols, the built one has.
    """
    nm = shutil.which("nm")
    built = [path for path in _BUILT.glob("*/libonnxfuse_ops.so") if segments(path) == segments()]
    if nm is None or not built:
        pytest.skip("there is no nm, or not the library as it was built")
    symbols = subprocess.run([nm, "-C", built[0]], capture_output=True, text=True, check=True).stdout
    places: dict[str, list[int]] = {}
    for address, name in re.findall(r"^(\w+) [tT] (.*)$", symbols, re.MULTILINE):
        found = re.match(r"(RegisterCustomOps$)|.*?onnxfuse::(avx512|avx2|neon|baseline|cuda)::", name)
        if found and ".cold]" not in name:  # which the compiler puts before all
            places.setdefault(found[2] or "start", []).append(int(address, 16))
    order = [part for part in ("start", "avx512", "avx2", "neon", "baseline", "cuda") if part in places]
    assert len(order) > 2
    for before, behind in pairwise(order):
        assert max(places[before]) < min(places[behind]), (before, behind)
