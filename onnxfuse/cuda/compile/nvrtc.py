"""Compiling with NVRTC, which needs neither a CUDA toolkit nor a driver nor a GPU.

NVRTC is called through cuda-bindings.  The layer above it, cuda-core, makes machine code without a driver, but asks for
the driver's version before it compiles to PTX (version 1.2.2, November 2026), which nodes carry too.
"""

from typing import Any

from onnxfuse.cuda.compile.compiled import Compiled, CompileError
from onnxfuse.cuda.compile.resources import read_log
from onnxfuse.errors import OnnxfuseError

_FILE = b"onnxfuse.cu"
_ALL_ON_DEVICE = "--device-as-default-execution-space"
"""NVRTC 13.0 takes lambdas inside of others for functions of the host."""


class Nvrtc:
    """The compiler of the package nvidia-cuda-nvrtc."""

    def __init__(self) -> None:
        """Raises OnnxfuseError if NVRTC or its bindings are not installed or do not load."""
        try:
            from cuda.bindings import nvrtc
        except ImportError as error:
            raise OnnxfuseError(f"NVRTC cannot be used: {error}") from error
        self._nvrtc: Any = nvrtc
        try:
            major, minor = self._call(nvrtc.nvrtcVersion())
        except Exception as error:  # the bindings look for the library now; what they raise has no common base class
            raise OnnxfuseError(f"NVRTC cannot be loaded: {' '.join(str(error).split())}") from error
        self.version = f"NVRTC {major}.{minor}"

    def compile(self, source: str, architecture: str, options: tuple[str, ...]) -> Compiled:
        """Machine code, PTX and resources of ``source``.  Raises CompileError."""
        nvrtc = self._nvrtc
        arguments = [option.encode() for option in (f"--gpu-architecture={architecture}", _ALL_ON_DEVICE, *options)]
        program = self._call(nvrtc.nvrtcCreateProgram(source.encode(), _FILE, 0, [], []))
        try:
            (status,) = nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)
            log = self._read(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode(errors="replace")
            if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
                raise CompileError(self.version, architecture, log or str(status))
            cubin = self._read(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
            ptx = self._read(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        finally:
            nvrtc.nvrtcDestroyProgram(program)
        return Compiled(cubin, ptx.rstrip(b"\0"), read_log(log))

    def _read(self, program: Any, size_of: Any, read: Any) -> bytes:
        size = self._call(size_of(program))
        buffer = b"\0" * (size + 1)  # filled in place; never a single byte, of which Python has one object for all
        self._call(read(program, buffer))
        return buffer[:size]

    def _call(self, answer: tuple[Any, ...]) -> Any:
        status, *values = answer
        if status != self._nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise OnnxfuseError(f"NVRTC failed: {status}")
        return values[0] if len(values) == 1 else values
