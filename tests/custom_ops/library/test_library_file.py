"""What the library's file asks of every process that loads it, however small its model is."""

import struct
import sys
from pathlib import Path

import pytest

from onnxfuse.run.library import custom_ops_library

_LOAD = 1
_WRITABLE = 2
_WINDOW = 64 << 10

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the library is an ELF file on Linux alone")


def segments() -> list[tuple[int, int, int]]:
    """Flags, bytes in memory and alignment of each loaded segment (Elf64_Phdr)."""
    data = Path(custom_ops_library()).read_bytes()
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", data, table + i * size) for i in range(count)]
    return [(header[1], header[6], header[7]) for header in headers if header[0] == _LOAD]


def test_little_is_written() -> None:
    """Memory that is filled in at start, such as a table of kernels, is a process's own."""
    assert sum(memory for flags, memory, _ in segments() if flags & _WRITABLE) < 16 << 10


def test_segments_begin_with_a_window() -> None:
    assert min(alignment for _, _, alignment in segments()) >= _WINDOW
