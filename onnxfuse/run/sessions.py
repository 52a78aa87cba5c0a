"""ONNX Runtime sessions as the parity check and the benchmark use them: plain or with the onnxfuse
library."""

import ctypes
import math
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.run.runtime import (
    CUDA_PROVIDER,
    EXTERNAL_DATA_FOLDER,
    load_cuda_libraries,
    load_onnxruntime,
    register_for_one,
    with_kernels,
)
from onnxfuse.system import give_back_memory
from onnxfuse.wording import is_utf8

Value = Any
"""What a model takes and gives: an array, a list (sequence), a dict (map), or None (an optional without a
value)."""

# Types that ONNX Runtime's Python API cannot turn into NumPy arrays; their values pass as raw bits.
_RAW: dict[int, np.dtype] = {
    onnx.TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    onnx.TensorProto.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    onnx.TensorProto.FLOAT8E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    onnx.TensorProto.FLOAT8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    onnx.TensorProto.FLOAT8E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    24: np.dtype(ml_dtypes.float8_e8m0fnu),  # FLOAT8E8M0, which earlier versions of onnx do not know
}
_RAW_BY_NUMPY = {dtype: onnx_type for onnx_type, dtype in _RAW.items()}
_RAW_NAMES = ("bfloat16", "float8", "float4", "int4", "int2")
_PACKED_NAMES = {"FLOAT4E2M1": 4, "INT2": 2, "INT4": 4, "UINT2": 2, "UINT4": 4}
_PACKED: dict[np.dtype, tuple[int, int]] = {
    np.dtype(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(name))): (
        onnx.TensorProto.DataType.Value(name),
        bits,
    )
    for name, bits in _PACKED_NAMES.items()
    if name in onnx.TensorProto.DataType.keys()  # noqa: SIM118 - an enum of protobuf's
}
"""Types of which a byte holds several elements in ONNX Runtime and one in NumPy: ONNX's number, the bits of one."""


_MOST_FOLDED = "optimization.constant_folding_max_output_size_in_bytes"
_LEAST_OF_WEIGHTS = 1 << 18
"""Bytes; a lean session computes smaller constants once."""


_NO_MEMORY = ("std::bad_alloc", "Cannot allocate memory", "Failed to allocate memory")


class SessionError(Exception):
    """ONNX Runtime refused a model or a run; the message is its own, on one line."""

    def lacks_memory(self) -> bool:
        """Whether it had too little memory, which says nothing of the model."""
        return any(words in str(self) for words in _NO_MEMORY)


class Session:
    """An ONNX Runtime session that takes and gives NumPy arrays of every type."""

    def __init__(
        self,
        model: Path | bytes,
        *,
        providers: tuple[str, ...] = ("CPUExecutionProvider",),
        library: bool = False,
        optimized: bool = True,
        lean: bool = False,
        threads: int = 0,
        spinning: bool = True,
        spinning_between_runs: bool = True,
        tf32: bool = False,
        folder: Path | None = None,
        profile: Path | None = None,
    ) -> None:
        """Load ``model``: the path of a file, or the bytes of a model whose external data lies in ``folder``.

        ``library`` registers the onnxfuse library, so that fused nodes run as kernels; without it they are
        inlined.  ``threads`` is the number of intra-op threads, 0 for ONNX Runtime's choice.
        ``lean`` takes less memory: weights that nodes make of others are made in each run, by the same kernels, and not
        before the first and then kept beside these (before ONNX Runtime 1.27 they are), and a run's tensors are not put
        into a block that is kept beside what earlier runs have left.
        ``spinning=False`` keeps idle threads from taking the cores of another session in the same process;
        ``spinning_between_runs=False`` does so while this one is not running, and leaves its runs as they are.
        ``tf32`` lets the CUDA provider compute products of float32 in TF32, as it does by default: for times, but not
        for results, which would differ by more than a rewrite may change them.
        ``profile`` is where ONNX Runtime's profile goes, as the beginning of a file's path.
        Raises SessionError if ONNX Runtime does not take the model, OnnxfuseError if it takes no such path.
        """
        if isinstance(model, Path) and not is_utf8(str(model)):
            raise OnnxfuseError(f"{model}: the path is not UTF-8, and ONNX Runtime takes no other")
        ort = load_onnxruntime()
        options = ort.SessionOptions()
        options.log_severity_level = 4  # errors arrive as exceptions; a log line beside them only confuses
        options.intra_op_num_threads = threads
        if not spinning:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if not spinning_between_runs:
            options.add_session_config_entry("session.force_spinning_stop", "1")
        if not optimized:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if lean:
            options.add_session_config_entry(_MOST_FOLDED, str(_LEAST_OF_WEIGHTS))
            options.enable_mem_pattern = False
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        if folder is not None:
            options.add_session_config_entry(EXTERNAL_DATA_FOLDER, str(folder.resolve()))
        loaded = model if isinstance(model, bytes) else str(model)
        try:
            if CUDA_PROVIDER in providers:
                load_cuda_libraries()
            settings = {} if tf32 else {"use_tf32": "0"}
            if library:
                register_for_one(options, loaded)
                if CUDA_PROVIDER in providers:
                    loaded, wanted = with_kernels(loaded, options)
                    settings |= wanted
            configured = [(name, settings if name == CUDA_PROVIDER else {}) for name in providers]
            self._session = ort.InferenceSession(loaded, options, providers=configured)
        except OnnxfuseError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions share no base class below Exception
            raise SessionError(one_line(error)) from error
        if lean:
            give_back_memory()  # the weights were copied, and many of the first copies lie between the second
        if CUDA_PROVIDER in providers and CUDA_PROVIDER not in self._session.get_providers():
            raise SessionError("ONNX Runtime could not load its CUDA provider, and would run on the CPU")
        self._outputs = {value.name: value.type for value in self._session.get_outputs()}

    @property
    def output_names(self) -> list[str]:
        """The names of the model's outputs, in order."""
        return list(self._outputs)

    def run(self, feeds: dict[str, Value], names: list[str] | None = None) -> list[Value]:
        """The values of the outputs ``names`` (all by default).  Raises SessionError if the run fails."""
        names = self.output_names if names is None else names
        raw = any(_is_raw(value) for value in feeds.values()) or any(
            kind in self._outputs[name] for name in names for kind in _RAW_NAMES
        )
        try:
            return _run_raw(self._session, feeds, names) if raw else self._session.run(names, feeds)
        except Exception as error:
            raise SessionError(one_line(error)) from error

    def end_profiling(self) -> Path:
        """Finish the profile; the path of its file."""
        return Path(self._session.end_profiling())


_NOISE = (
    re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : "),
    re.compile(r"^Load model from .*? failed: ?"),
    re.compile(r"/onnxruntime_src/\S+:\d+ .*?\)(?: const)? (?=\S)"),  # a source file and the signature of a function
)


def one_line(error: BaseException) -> str:
    """An exception's message on one line, without what ONNX Runtime says of itself."""
    text = " ".join(str(error).split())
    for pattern in _NOISE:
        text = pattern.sub("", text, count=1)
    return text or type(error).__name__


def has_fused_nodes(model: onnx.ModelProto) -> bool:
    """Whether the model needs the onnxfuse library to run fused."""
    return any(opset.domain == DOMAIN for opset in model.opset_import)


def _is_raw(value: Value) -> bool:
    return isinstance(value, np.ndarray) and (value.dtype in _RAW_BY_NUMPY or value.dtype in _PACKED)


def _run_raw(session: Any, feeds: dict[str, Value], names: list[str]) -> list[Value]:
    values = {name: _from_numpy(value) for name, value in feeds.items()}
    return [_to_numpy(value) for value in session.run_with_ort_values(names, values)]


def _from_numpy(value: Value) -> Any:
    ort_value = load_onnxruntime().OrtValue
    if isinstance(value, np.ndarray) and value.dtype in _PACKED:
        elem_type, bits = _PACKED[value.dtype]
        made = ort_value.ortvalue_from_shape_and_type(list(value.shape), elem_type, "cpu")
        packed = _packed(value, bits)
        ctypes.memmove(made.data_ptr(), packed, len(packed))
        return made
    if _is_raw(value):
        bytes_of = np.require(value, requirements="C").view(f"u{value.dtype.itemsize}")
        return ort_value.ortvalue_from_numpy_with_onnx_type(bytes_of, _RAW_BY_NUMPY[value.dtype])
    return ort_value.ortvalue_from_numpy(np.require(value, requirements="C"))


def _packed(value: np.ndarray, bits: int) -> bytes:
    """The elements as ONNX Runtime has them, the first of a byte in its lowest bits."""
    count = 8 // bits
    elements = np.ascontiguousarray(value).view(np.uint8).reshape(-1) & ((1 << bits) - 1)
    padded = np.pad(elements, (0, -elements.size % count)).reshape(-1, count)
    return bytes(np.bitwise_or.reduce(padded << (bits * np.arange(count, dtype=np.uint8)), axis=1).astype(np.uint8))


def _unpacked(data: bytes, shape: list[int], bits: int) -> np.ndarray:
    count = 8 // bits
    elements = np.frombuffer(data, np.uint8)[:, None] >> (bits * np.arange(count, dtype=np.uint8))
    return (elements & ((1 << bits) - 1)).reshape(-1)[: math.prod(shape)].astype(np.uint8).reshape(shape)


def _to_numpy(value: Any) -> Value:
    if not value.is_tensor():
        return value.numpy()
    elem_type, shape = value.element_type(), value.shape()
    size = value.tensor_size_in_bytes()
    packed = next(((dtype, bits) for dtype, (number, bits) in _PACKED.items() if number == elem_type), None)
    dtype = _RAW.get(elem_type)
    if dtype is None and packed is None:
        return value.numpy()
    buffer = ctypes.string_at(value.data_ptr(), size) if size else b""
    if packed is not None:
        return _unpacked(buffer, shape, packed[1]).view(packed[0])
    return np.frombuffer(buffer, dtype).reshape(shape)
