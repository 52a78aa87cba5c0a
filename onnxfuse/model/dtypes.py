"""Element types: the short names that Programs use, and the ONNX and NumPy types that they stand for."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx


@dataclass(frozen=True)
class DType:
    """An element type.  ``compute`` names the type that kernels calculate in: f32 for f16 and bf16, else itself."""

    name: str
    onnx: int
    numpy: np.dtype
    compute: str

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        return self.numpy.itemsize


def _dtype(name: str, onnx_type: int, numpy_type: type, compute: str = "") -> DType:
    return DType(name, onnx_type, np.dtype(numpy_type), compute or name)


_TABLE = (
    _dtype("f16", onnx.TensorProto.FLOAT16, np.float16, "f32"),
    _dtype("bf16", onnx.TensorProto.BFLOAT16, ml_dtypes.bfloat16, "f32"),
    _dtype("f32", onnx.TensorProto.FLOAT, np.float32),
    _dtype("f64", onnx.TensorProto.DOUBLE, np.float64),
    _dtype("i8", onnx.TensorProto.INT8, np.int8),
    _dtype("i16", onnx.TensorProto.INT16, np.int16),
    _dtype("i32", onnx.TensorProto.INT32, np.int32),
    _dtype("i64", onnx.TensorProto.INT64, np.int64),
    _dtype("u8", onnx.TensorProto.UINT8, np.uint8),
    _dtype("u16", onnx.TensorProto.UINT16, np.uint16),
    _dtype("u32", onnx.TensorProto.UINT32, np.uint32),
    _dtype("u64", onnx.TensorProto.UINT64, np.uint64),
    _dtype("bool", onnx.TensorProto.BOOL, np.bool_),
)

DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in _TABLE}
"""Every element type that a Program can hold, by short name."""

_BY_NUMPY = {dtype.numpy: dtype for dtype in _TABLE}
_BY_ONNX = {dtype.onnx: dtype for dtype in _TABLE}


def from_numpy(dtype: object) -> DType | None:
    """The DType of a NumPy type (or anything that ``np.dtype`` takes); None if Programs cannot hold it."""
    if dtype is None:
        return None
    try:
        return _BY_NUMPY.get(np.dtype(dtype))  # type: ignore[call-overload]
    except TypeError:
        return None


def from_onnx(data_type: int) -> DType | None:
    """The DType of a ``TensorProto.DataType``; None if Programs cannot hold it."""
    return _BY_ONNX.get(data_type)
