"""What there is to run onnxfuse with on this machine, and what is missing for what."""

import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from onnx import parser

from onnxfuse import cpu
from onnxfuse.api import optimize
from onnxfuse.cuda.arch import devices
from onnxfuse.cuda.compile.cache import default_folder
from onnxfuse.cuda.compile.compiler import find_compiler
from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.library import custom_ops_library
from onnxfuse.run.runtime import load_onnxruntime, why_no_cuda
from onnxfuse.run.sessions import Session, SessionError
from onnxfuse.zoo.fetching import cache

_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnx", "onnx-graphsurgeon", "numpy", "ml_dtypes", "protobuf", "rich")
_TRIAL = """<ir_version: 9, opset_import: ["" : 17]>
g (float[n, 8] x) => (float[n, 8] y) { a = Sigmoid(x) b = Mul(a, x) y = Add(b, x) }"""


def examine() -> Iterator[tuple[str, str]]:
    """Pairs of a subject and what was found, in the order to be read in.

    A subject that begins with "missing" is one that keeps something from working, and says how to mend it.
    """
    yield "onnxfuse", _version("onnxfuse") or "not installed as a package"
    yield "Python", f"{platform.python_version()} ({sys.executable})"
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}"
    yield "processor", f"{cpu.describe()}, {cpu.usable()} of {os.cpu_count()} cores for this process"
    for name in _PACKAGES:
        if found := _version(name):
            yield name, found
    yield from _library()
    yield from _cuda()
    for name, folder in (("models", cache()), ("machine code", default_folder())):
        yield f"cache of {name}", _folder(folder)
    for name, value in sorted(os.environ.items()):
        if name.startswith("ONNXFUSE_"):
            yield f"environment {name}", value


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _library() -> Iterator[tuple[str, str]]:
    try:
        yield "providers", ", ".join(load_onnxruntime().get_available_providers())
        path = custom_ops_library()
        yield "native library", f"{path}, {Path(path).stat().st_size / 1e6:.1f} MB"
        yield "a fused model", _trial()
    except (OnnxfuseError, SessionError, OSError) as error:
        yield "missing to run fused nodes", str(error)


def _trial() -> str:
    """Fuse a small model and run it with the library.  Raises OnnxfuseError if that is not possible."""
    model = optimize(parser.parse_model(_TRIAL), "cpu", passes=["fuse-elementwise"], check=False).model
    fused = sum(node.domain == "onnxfuse" for node in model.graph.node)
    x = np.linspace(-4, 4, 24, dtype=np.float32).reshape(3, 8)
    (y,) = Session(model.SerializeToString(), library=True).run({"x": x})
    wanted = x / (1 + np.exp(-x.astype(np.float64))) + x
    if fused != 1 or not isinstance(y, np.ndarray) or not np.allclose(y, wanted, rtol=1e-5, atol=1e-6):
        raise OnnxfuseError("a small fused model does not compute what it should: please report it")
    return "runs, and is right"


def _cuda() -> Iterator[tuple[str, str]]:
    yield "GPUs", ", ".join(map(str, devices())) or "none"
    try:
        yield "compiler for CUDA", find_compiler().version
    except OnnxfuseError as error:
        yield "missing to compile for --target cuda", str(error)
    if reason := why_no_cuda():
        yield "missing to run on CUDA", reason


def _folder(folder: Path) -> str:
    try:
        files = [path for path in folder.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}"
    return f"{folder}, {len(files)} files, {size / 1e6:.0f} MB" if files else f"{folder}, empty"
