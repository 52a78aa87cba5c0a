"""Compiling with PyCUDA: ``pycuda.compiler`` runs the nvcc of the CUDA toolkit."""

import shutil
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onnxfuse.cuda.compile.compiled import Compiled, CompileError
from onnxfuse.cuda.compile.resources import read_log
from onnxfuse.errors import OnnxfuseError

_NVCC = "nvcc"


class PycudaCompiler:
    """nvcc, as PyCUDA runs it."""

    def __init__(self) -> None:
        """Raises OnnxfuseError if PyCUDA is not installed or does not load, or nvcc is not on the PATH."""
        if shutil.which(_NVCC) is None:
            raise OnnxfuseError("PyCUDA needs nvcc, which is not on the PATH")
        try:
            import pycuda
            import pycuda.compiler
        except ImportError as error:
            raise OnnxfuseError(f"PyCUDA cannot be used: {error}") from error
        self._compiler: Any = pycuda.compiler
        release = pycuda.compiler.get_nvcc_version(_NVCC).strip().splitlines()[-1]
        self.version = f"nvcc ({release}) by PyCUDA {pycuda.VERSION_TEXT}"

    def compile(self, source: str, architecture: str, options: tuple[str, ...]) -> Compiled:
        """Machine code, PTX and resources of ``source``.  Raises CompileError."""
        cubin, log = self._run(source, architecture, options, "cubin")
        ptx, _ = self._run(source, architecture, options, "ptx")
        return Compiled(cubin, ptx, read_log(log))

    def _run(self, source: str, architecture: str, options: tuple[str, ...], target: str) -> tuple[bytes, str]:
        with _what_nvcc_says() as said:
            try:
                code = self._compiler.compile(
                    source,
                    nvcc=_NVCC,
                    options=list(options),
                    no_extern_c=True,
                    arch=architecture,
                    cache_dir=False,
                    target=target,
                )
            except Exception as error:  # pycuda.driver.CompileError, or OSError where nvcc does not start
                raise CompileError(self.version, architecture, getattr(error, "stderr", "") or str(error)) from error
        return code, "\n".join(said)


class _Listener(threading.local):
    """What nvcc said to this thread; None while it compiles nothing."""

    said: list[str] | None = None


_listener = _Listener()
_lock = threading.Lock()
_listeners = 0
_caught: Any = warnings.catch_warnings()
_show_elsewhere: Any = None


@contextmanager
def _what_nvcc_says() -> Iterator[list[str]]:
    """The log of nvcc, which PyCUDA gives as a warning in the thread that compiles and in no other way."""
    global _caught, _listeners, _show_elsewhere
    with _lock:
        if _listeners == 0:
            _show_elsewhere, _caught = warnings.showwarning, warnings.catch_warnings()
            _caught.__enter__()
            warnings.simplefilter("always")
            warnings.showwarning = _show
        _listeners += 1
    said: list[str] = []
    _listener.said = said
    try:
        yield said
    finally:
        _listener.said = None
        with _lock:
            _listeners -= 1
            if _listeners == 0:
                _caught.__exit__(None, None, None)


def _show(message: Any, *details: Any, **more: Any) -> None:
    if _listener.said is None:
        _show_elsewhere(message, *details, **more)
    else:
        _listener.said.append(str(message))
