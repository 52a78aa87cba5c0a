"""What the machine has that gpu_suite.py needs: looked for at once, before time on a GPU is spent."""

import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from gpu_chains import CHAINS, onnx_model
from gpu_report import DRY_RUN
from gpu_sessions import new_session

from onnxfuse.cuda.compiler import find_compiler
from onnxfuse.cuda.pycuda_tools import open_gpu
from onnxfuse.errors import OnnxfuseError
from onnxfuse.runtime import load_onnxruntime, why_no_cuda

PACKAGES = ("pycuda", "torch", "jax", "cupy-cuda13x", "cupy-cuda12x", "onnx", "numpy", "onnxfuse")


def missing(parts: Sequence[str]) -> list[str]:
    """Why these parts of the suite cannot run here, one line each; empty if they can."""
    reason = why_no_cuda()
    if reason:
        return [reason]
    checks: list[Callable[[], object]] = [find_compiler, _open_session]
    if {"kernels", "convolutions"} & set(parts):
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
