"""A CUDA driver that is none: sessions of plain ONNX Runtime whose fused nodes run the library's CUDA operators.

``stand_in_cuda.cc`` in ``custom_ops/tests/cuda`` takes the place of libcuda and ``cuda_provider_shim.cc`` that of the
provider.
"""

import ctypes
import functools
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from tests.custom_ops.fused import library, run

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "custom_ops"
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
AVAILABLE = bool(COMPILER) and sys.platform == "linux"
REASON = "there is no C++ compiler, or this is not Linux"
MACHINE_CUDA = 190  # ELF's number for NVIDIA GPUs

INVALID_IMAGE, NO_BINARY, LAUNCH_FAILED = 200, 209, 719
Call = dict[str, Any]


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="onnxfuse_stand_in_")


def scratch_folder() -> Path:
    """A folder for what the tests of this process share."""
    return Path(_temporary().name)


def _compile(target: Path, arguments: Sequence[str]) -> Path:
    command = [*(COMPILER or "").split(), "-O1", "-fPIC", *arguments, "-o", str(target)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    return target


def compile_shared(target: Path, *arguments: str) -> Path:
    """Compile and link sources and objects into a shared object."""
    return _compile(target, ["-shared", "-pthread", *arguments, "-ldl"])


@functools.cache
def built(name: str, suffix: str = ".so") -> Path:
    """A C++ file of custom_ops/tests as a shared object, or as an object to link."""
    flags = ["-std=gnu++17", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}"]
    target = scratch_folder() / f"{name}{suffix}"
    arguments = [*flags, str(next((NATIVE / "tests").rglob(f"{name}.cc")))]
    return compile_shared(target, *arguments) if suffix == ".so" else _compile(target, ["-c", *arguments])


def cubin(shared_object: Path, architecture: int) -> bytes:
    """The shared object as machine code for that architecture (90 for sm_90), in the stand-in's form."""
    image = bytearray(shared_object.read_bytes())
    struct.pack_into("<H", image, 18, MACHINE_CUDA)
    struct.pack_into("<I", image, 48, architecture << 8)
    return bytes(image)


def ptx(shared_object: Path, architecture: int) -> bytes:
    """The shared object as PTX, in the stand-in's form."""
    text = f".version 8.0\n.target sm_{architecture}\n.address_size 64\n// emulated by {shared_object}\n"
    return text.encode()


class StandIn:
    """Copies of the stand-in driver, the shim and the library under test, with a state of their own.

    ``devices`` are (major, minor, multiprocessors).
    """

    def __init__(self, folder: Path, devices: Sequence[tuple[int, int, int]] = ((9, 0, 132),)) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.driver_path = Path(shutil.copy(built("stand_in_cuda"), folder))
        self._shim_path = Path(shutil.copy(built("cuda_provider_shim"), folder))
        operators = shutil.copy(library(), folder)
        self._creating = threading.Lock()  # the environment is that of all threads
        self._driver = ctypes.CDLL(str(self.driver_path))
        self._driver.stand_in_take_log.restype = ctypes.c_char_p
        self._driver.stand_in_stream.restype = ctypes.c_void_p
        self._shim = ctypes.CDLL(str(self._shim_path))
        self._shim.shim_open(os.fsencode(operators))
        self._shim.shim_take_scratch.restype = ctypes.c_char_p
        for device in devices:
            self._driver.stand_in_add_device(*device)

    @contextmanager
    def _environment(self) -> Iterator[None]:
        before = os.environ.get("ONNXFUSE_LIBCUDA")
        os.environ["ONNXFUSE_LIBCUDA"] = str(self.driver_path)
        try:
            yield
        finally:
            del os.environ["ONNXFUSE_LIBCUDA"]
            if before is not None:
                os.environ["ONNXFUSE_LIBCUDA"] = before

    def session(
        self,
        model: onnx.ModelProto,
        device: int | None = 0,
        severity: int = 2,
        entries: Mapping[str, str] = MappingProxyType({}),
    ) -> ort.InferenceSession:
        """A session whose fused nodes run on ``device``, which None leaves for the first run to find out.

        ``entries`` are added to the session's configuration.
        """
        options = ort.SessionOptions()
        for name, value in entries.items():
            options.add_session_config_entry(name, value)
        options.intra_op_num_threads = 1
        options.log_severity_level = severity
        self.set_current(device)
        with self._creating, self._environment():
            options.register_custom_ops_library(str(self._shim_path))
            return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def set_current(self, device: int | None) -> None:
        """Make the device's primary context current on this thread."""
        self._driver.stand_in_set_current(-1 if device is None else device)

    def keep_providers(self) -> None:
        """Leave the operators with the providers that they are made for, from the first session on."""
        self._shim.shim_keep_providers(1)

    def use_stream(self, device: int | None) -> None:
        """Give the nodes a new stream of that device, or the default stream."""
        stream = None if device is None else ctypes.c_void_p(self._driver.stand_in_stream(device))
        self._shim.shim_set_stream(stream)

    def use_stream_of_thread(self, device: int) -> None:
        """Give the nodes that this thread runs a new stream of that device."""
        self._shim.shim_set_thread_stream(ctypes.c_void_p(self._driver.stand_in_stream(device)))

    def fail(self, function: str, result: int, after: int = 0) -> None:
        """Let a driver function fail once, ``after`` so many calls."""
        self._driver.stand_in_fail(function.encode(), after, result)

    def capture(self, on: bool) -> None:
        """Refuse from now on what CUDA refuses while a graph is captured."""
        self._driver.stand_in_capture(int(on))

    def check_captured(self, session: ort.InferenceSession, inputs: Sequence[np.ndarray]) -> None:
        """A run that is captured gives what others give: it does not wait, or allocate but scratch memory."""
        self.use_stream(0)
        before = run(session, inputs)
        self.capture(True)
        np.testing.assert_array_equal(run(session, inputs)[0], before[0])
        self.scratch()

    def scratch(self) -> list[int]:
        """The bytes of scratch memory that runs have asked for since the last time; all of it was given back."""
        sizes, kept = self._shim.shim_take_scratch().decode().split("| ")
        assert kept == "0 0"
        return [int(size) for size in sizes.split()]

    def out_of_memory(self, on: bool) -> None:
        """Refuse scratch memory from now on."""
        self._shim.shim_out_of_memory(int(on))

    def limit_threads(self, threads: int) -> None:
        """What kernels claim to be able to run with."""
        self._driver.stand_in_max_threads(threads)

    def calls(self, *functions: str) -> list[Call]:
        """The driver calls since the last time, of these functions or all."""
        calls = [json.loads(line) for line in self._driver.stand_in_take_log().decode().splitlines()]
        return [call for call in calls if not functions or call["call"] in functions]

    def launches(self) -> list[Call]:
        """The launches since the last time."""
        return self.calls("cuLaunchKernel")
