"""What differs from one operating system to another: names of libraries, folders, and what a process can be told."""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

_WINDOWS = sys.platform == "win32"

LIBRARY = {"win32": "onnxfuse_ops.dll", "darwin": "libonnxfuse_ops.dylib"}.get(sys.platform, "libonnxfuse_ops.so")
"""The file name of the native library."""
CUDA_DRIVER = "nvcuda.dll" if _WINDOWS else "libcuda.so.1"
"""The library of NVIDIA's driver."""
STOPS_PROCESSES = hasattr(signal, "SIGSTOP")
"""Whether a process can be stopped for a while, as timing models in turns takes it."""


def signals(*names: str) -> tuple[signal.Signals, ...]:
    """Those of these signals that there are."""
    return tuple(signal.Signals[name] for name in names if name in signal.Signals.__members__)


def give_back_memory() -> None:
    """Give the system what this process has freed.

    The heap of glibc keeps it in between: blocks of up to 32 MB, once some as large have been freed (``mallopt``, the
    dynamic threshold of ``M_MMAP_THRESHOLD``), such as the weights of an ONNX Runtime session.  Elsewhere nothing
    happens.
    """
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # a C library without that function
            ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def caches() -> Path:
    """The folder of this user's caches: what ``XDG_CACHE_HOME`` names, or else the system's own.

    Raises RuntimeError if the user has no home.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():  # others are to be ignored by the rules of XDG
        return named
    if _WINDOWS and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"])
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
