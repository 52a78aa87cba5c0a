"""What the machine has that scripts/gpu_suite.py needs: looked for at once, before time on a GPU is spent."""

import ctypes
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from onnxfuse.cuda.compile.compiler import find_compiler
from onnxfuse.cuda.pycuda_tools import open_gpu
from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.runtime import load_onnxruntime, why_no_cuda
from tools.gpu.chains import CHAINS, onnx_model
from tools.gpu.report import DRY_RUN
from tools.gpu.sessions import new_session

GIANT_BYTES = 16_000_000_000
"""What two tensors of 2^31 bytes take on the device, where ONNX Runtime rounds up to powers of two, and on the host."""
PACKAGES = ("pycuda", "torch", "jax", "cupy-cuda13x", "cupy-cuda12x", "onnx", "numpy", "onnxfuse")


def missing(parts: Sequence[str]) -> list[str]:
    """Why these parts of the suite cannot run here, one line each; empty if they can."""
    reason = why_no_cuda()
    if reason:
        return [reason]
    checks: list[Callable[[], object]] = [find_compiler, _open_session]
    if {"kernels", "reductions", "convolutions"} & set(parts):
        checks.append(_open_gpu)
    found = []
    for check in checks:
        try:
            check()
        except Exception as error:  # of ONNX Runtime, whose exceptions share no base class, or what a driver raises
            text = " ".join(str(error).split())
            found.append(text if isinstance(error, OnnxfuseError) else f"{type(error).__name__}: {text}")
    return found


def _open_session() -> None:
    """A session on the CUDA provider; ONNX Runtime says on standard error why it cannot load it."""
    new_session(onnx_model(CHAINS[0], "float32").SerializeToString(), library=True, severity=3)


def _open_gpu() -> None:
    with open_gpu():
        pass


def why_nothing_giant() -> str:
    """Why a case of GIANT_BYTES cannot run here; empty if it can."""
    for what, size in (("GPU", _gpu_memory()), ("host", os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))):
        if size < GIANT_BYTES:
            return f"the {what} has {size / 1e9:.0f} GB of memory, and it takes {GIANT_BYTES / 1e9:.0f}"
    return ""


def _gpu_memory() -> int:
    """Bytes of the first GPU's memory, 0 if the driver does not tell."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    device, size = ctypes.c_int(), ctypes.c_size_t()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return 0
    return 0 if driver.cuDeviceTotalMem_v2(ctypes.byref(size), device) else size.value


def describe(dry_run: bool) -> dict[str, str]:
    """GPU, driver, compiler and versions, for the head of the results."""
    found = {"Python": platform.python_version(), "system": platform.platform()}
    found["ONNX Runtime"] = str(load_onnxruntime().__version__)  # of two packages, the one that is imported
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    try:
        found["CUDA compiler"] = find_compiler().version
    except OnnxfuseError as error:
        found["CUDA compiler"] = f"none ({error})"
    if dry_run:
        return {DRY_RUN: "without a GPU: no number was measured on one", **found}
    return {"GPU": _gpus(), **found}


def _gpus() -> str:
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        names = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    except OSError:
        return "unknown"
    return names.stdout.strip().replace("\n", "; ") or "unknown"
