"""Fused nodes built by hand, run by the native library, and their unfused twins run by plain ONNX Runtime.

ONNXFUSE_TEST_LIBRARY names another library than the installed package's.
"""

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests.custom_ops import aarch64
from tests.support.threads import run_in_threads

ONNX_TYPES = {
    "f16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
    "f32": TensorProto.FLOAT,
    "f64": TensorProto.DOUBLE,
    "i8": TensorProto.INT8,
    "i16": TensorProto.INT16,
    "i32": TensorProto.INT32,
    "i64": TensorProto.INT64,
    "u8": TensorProto.UINT8,
    "u16": TensorProto.UINT16,
    "u32": TensorProto.UINT32,
    "u64": TensorProto.UINT64,
    "bool": TensorProto.BOOL,
}
NUMPY_TYPES = {
    name: np.dtype(ml_dtypes.bfloat16) if name == "bf16" else helper.tensor_dtype_to_np_dtype(number)
    for name, number in ONNX_TYPES.items()
}
NAMES = {number: name for name, number in ONNX_TYPES.items()}
NODE_NAME = "the_fused_node"
ON_AARCH64 = platform.machine() == "aarch64"
"""Where ONNX Runtime computes what is left behind vectors of floats otherwise than those (benchmarks/aarch64.md)."""
if ON_AARCH64:
    aarch64.install()


def library() -> str:
    """The native library under test."""
    chosen = os.environ.get("ONNXFUSE_TEST_LIBRARY")
    if chosen:
        return chosen
    from onnxfuse.run.library import custom_ops_library

    return custom_ops_library()


def rounds_once() -> bool:
    """Whether the kernels that run here have an instruction that multiplies and adds."""
    from onnxfuse import cpu

    features = cpu.read(library()).get("features", "").split()
    return ON_AARCH64 or ("avx2" in features and os.environ.get("ONNXFUSE_ISA") != "baseline")


def run_code(code: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, which finds the tests and the library under test."""
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "ONNXFUSE_TEST_LIBRARY": library()}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout, check=False)


def session_options(threads: int = 2, *, ops: bool = True) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if ops:
        options.register_custom_ops_library(library())
    return options


def new_session(model: onnx.ModelProto, options: ort.SessionOptions) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[str, Sequence[int | str] | None]],
    outputs: dict[str, tuple[str, Sequence[int | str] | None]],
    opset: int = 20,
) -> onnx.ModelProto:
    """A model of ``nodes``; inputs and outputs map a name to (short type, shape)."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, ONNX_TYPES[t], s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, ONNX_TYPES[t], s) for n, (t, s) in outputs.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("onnxfuse", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def fused_node(program: str, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.NodeProto:
    return helper.make_node("FusedElementwise", inputs, outputs, domain="onnxfuse", name=NODE_NAME, program=program)


def value_types(program: str) -> tuple[list[str], list[str]]:
    """Types of a program's inputs and outputs."""
    values: list[str] = []
    inputs: list[str] = []
    outputs: list[str] = []
    for line in program.replace("contract\n", "").splitlines()[1:]:
        word, kind, *_ = line.split(" ")
        if word == "output":
            outputs.append(values[int(kind)])
            continue
        if word == "input":
            inputs.append(kind)
        values.append("bool" if word in ("equal", "less", "less_equal") else kind)
    return inputs, outputs


def fused_model(program: str, shapes: Sequence[Sequence[int | str] | None]) -> onnx.ModelProto:
    """A model of one fused node on graph inputs x0, x1, … with graph outputs y0, y1, …"""
    input_types, output_types = value_types(program)
    inputs = {f"x{i}": (t, s) for i, (t, s) in enumerate(zip(input_types, shapes, strict=True))}
    outputs: dict[str, tuple[str, Sequence[int | str] | None]] = {
        f"y{i}": (t, None) for i, t in enumerate(output_types)
    }
    return make_model([fused_node(program, list(inputs), list(outputs))], inputs, outputs)


def run(session: ort.InferenceSession, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run on inputs x0, x1, …, of any type that ONNX has (NumPy alone has no bfloat16)."""
    feeds = {}
    for i, array in enumerate(arrays):
        if array.dtype == ml_dtypes.bfloat16:
            value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16).copy(), TensorProto.BFLOAT16)
        else:
            value = ort.OrtValue.ortvalue_from_numpy(np.require(array, requirements="C"))
        feeds[f"x{i}"] = value
    results = session.run_with_ort_values(None, feeds)
    return [to_numpy(value) for value in results]


def assert_refused(model: onnx.ModelProto, arrays: Sequence[np.ndarray], reason: str, node: str) -> None:
    """A run on arrays of shapes that the model does not tell fails for this reason, and the message names the node."""
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")
    with pytest.raises(Exception, match=reason) as caught:
        run(new_session(model, session_options()), arrays)
    assert node in str(caught.value)


def check_in_threads(
    session: ort.InferenceSession, cases: Sequence[Sequence[np.ndarray]], wanted: Sequence[np.ndarray], tolerance: float
) -> None:
    """One session gives the result of each case whatever other threads run in it."""
    failures: list[str] = []

    def work(first: int) -> None:
        for i in range(60):
            place = (first + i) % len(cases)
            if not np.allclose(run(session, cases[place])[0], wanted[place], rtol=tolerance, atol=tolerance):
                failures.append(f"{first} {i}")

    run_in_threads(work, range(4))
    assert not failures


def to_numpy(value: ort.OrtValue) -> np.ndarray:
    if value.element_type() != TensorProto.BFLOAT16:
        return value.numpy()
    count = int(np.prod(value.shape()))
    if count == 0:
        return np.zeros(value.shape(), ml_dtypes.bfloat16)
    buffer = (ctypes.c_uint16 * count).from_address(value.data_ptr())
    return np.array(buffer, np.uint16).view(ml_dtypes.bfloat16).reshape(value.shape())


def run_fused(program: str, arrays: Sequence[np.ndarray], threads: int = 2) -> list[np.ndarray]:
    model = fused_model(program, [array.shape for array in arrays])
    return run(new_session(model, session_options(threads)), arrays)


def run_nodes(
    nodes: Sequence[onnx.NodeProto], arrays: Sequence[np.ndarray], output_types: Sequence[str], opset: int = 20
) -> list[np.ndarray]:
    """Plain ONNX Runtime, without the library, on nodes from x0, x1, … to y0, y1, …"""
    types = {dtype: name for name, dtype in NUMPY_TYPES.items()}
    inputs = {f"x{i}": (types[array.dtype], array.shape) for i, array in enumerate(arrays)}
    outputs: dict[str, tuple[str, Sequence[int | str] | None]] = {
        f"y{i}": (t, None) for i, t in enumerate(output_types)
    }
    options = session_options(ops=False)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return run(new_session(make_model(nodes, inputs, outputs, opset), options), arrays)


def sample(dtype: str, count: int, seed: int = 0, *, special: bool = True) -> np.ndarray:
    """Values of a type that meet every case: special ones at both ends, so in vectors and in remainders, and random."""
    random = np.random.default_rng([seed, count])
    numpy = NUMPY_TYPES[dtype]
    if dtype == "bool":
        return random.integers(0, 2, count).astype(bool)
    if dtype in ("f16", "bf16", "f32", "f64"):
        values = (random.standard_normal(count) * 4).astype(numpy)
        info = ml_dtypes.finfo(numpy)
        specials = np.array(
            [
                np.nan,
                np.inf,
                -np.inf,
                0.0,
                -0.0,
                1,
                -1,
                0.5,
                -0.5,
                1.5,
                2.5,
                -2.5,
                3,
                2,
                info.max,
                info.min,
                info.tiny,
                -float(info.smallest_subnormal),
                100,
                -100,
                1e4,
                -0.1,
                1e-3,
            ],
        ).astype(numpy)
    else:
        limits = np.iinfo(numpy)
        values = random.integers(-20 if limits.min < 0 else 0, 21, count).astype(numpy)
        specials = np.array([limits.min, limits.max, 0, 1, 2, 3, 7, limits.max // 2], numpy)
        if limits.min < 0:
            specials = np.append(specials, np.array([-1, -3, limits.min + 1], numpy))
    if not special:
        return values
    specials = random.permutation(specials)
    head = min(len(specials), count)
    values[:head] = specials[:head]
    values[count - head :] = random.permutation(specials)[:head]
    return values


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal to the bit, -0 and 0 told apart; any NaN equals any NaN."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.dtype.kind not in "fV":
        np.testing.assert_array_equal(actual, expected)
        return
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    same = (np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))
    assert same.all(), f"{(~same).sum()} differ, first: {a[~same][:5]} instead of {b[~same][:5]}"
