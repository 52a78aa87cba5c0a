"""Helpers of many tests: fuse all that can be fused, and run models with and without the library."""

import ctypes
from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

import onnxfuse
from onnxfuse.fused.elementwise.fuse_elementwise import FuseElementwise
from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.passes import PassContext
from onnxfuse.rewrite.base import Pass
from onnxfuse.shapes.inference import infer

_BFLOAT16 = onnx.TensorProto.BFLOAT16


def fuse_everything(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every node fused that can be, single nodes too."""
    loaded = onnxfuse.Model.from_proto(model)
    infer(loaded)
    FuseElementwise().run(loaded, PassContext(everything=True))
    fused = loaded.to_proto()
    onnx.checker.check_model(fused, full_check=True)
    return fused


def fused_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The fused nodes of a model's main graph."""
    return [node for node in model.graph.node if node.domain == DOMAIN]


def session(model: onnx.ModelProto, library: bool, optimize: bool = False) -> ort.InferenceSession:
    """A CPU session on one thread; ``optimize`` switches ONNX Runtime's own optimizations on."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if library:
        onnxfuse.register(options)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], library: bool, optimize: bool = False
) -> list[np.ndarray]:
    """Run a model once; bfloat16 goes in and out as ml_dtypes arrays."""
    return run_session(session(model, library, optimize), model, feeds)


def run_session(
    running: ort.InferenceSession, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """Run a session of ``model`` once."""
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    binding = running.io_binding()
    for name, array in feeds.items():
        raw = np.array(array, order="C")
        raw = raw.view(np.uint16) if types[name] == _BFLOAT16 else raw
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, types[name]))
    names = [output.name for output in model.graph.output]
    for name in names:
        binding.bind_output(name)
    running.run_with_iobinding(binding)
    return [_to_numpy(value) for value in binding.get_outputs()]


def _to_numpy(value: ort.OrtValue) -> np.ndarray:
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    shape: Sequence[int] = value.shape()
    count = int(np.prod(shape, dtype=np.int64))
    buffer = (ctypes.c_uint16 * count).from_address(value.data_ptr()) if count else b""
    return np.frombuffer(buffer, np.uint16).copy().view(ml_dtypes.bfloat16).reshape(shape)


def ulp_distance(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Steps between neighbouring floating-point numbers; 0 for two NaNs, and for +0 against -0."""
    integer = {2: np.int16, 4: np.int32, 8: np.int64}[actual.dtype.itemsize]

    def ordered(array: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(array).view(integer).astype(object if array.dtype.itemsize == 8 else np.int64)
        sign = 1 << (8 * array.dtype.itemsize - 1)
        return np.where(bits < 0, -sign - bits, bits)

    distance = np.abs(ordered(actual) - ordered(expected))
    both_nan = np.isnan(actual.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    return np.where(both_nan, 0, distance)


def same_bits(actual: np.ndarray, expected: np.ndarray) -> bool:
    """Equal bit for bit, one NaN as good as another."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    raw = [np.ascontiguousarray(array).view(np.uint8) for array in (actual.reshape(-1), expected.reshape(-1))]
    if actual.dtype.kind in "iub" or actual.size == 0:
        return bool(np.array_equal(*raw))
    different = (raw[0] != raw[1]).reshape(actual.size, -1).any(axis=1)
    nans = np.isnan(actual.reshape(-1).astype(np.float64)) & np.isnan(expected.reshape(-1).astype(np.float64))
    return not bool(np.any(different & ~nans))


def assert_close(actual: np.ndarray, wanted: np.ndarray) -> None:
    """For results behind convolutions, whose sums have an order of their own."""
    assert actual.dtype == wanted.dtype
    relative = 1e-5 if wanted.dtype == np.float32 else 1e-2
    wide = wanted.astype(np.float32)
    # A sum's rounding is that of its terms, of which the largest result is a measure.
    largest = np.max(np.abs(wide), initial=0, where=np.isfinite(wide))
    absolute = max(relative, relative * largest / 10)
    np.testing.assert_allclose(actual.astype(np.float32), wide, relative, absolute)


def rewritten_by(own: Pass, model: onnx.ModelProto) -> tuple[onnx.ModelProto, PassContext]:
    """The model after one pass alone, and what that reports."""
    loaded = onnxfuse.Model.from_proto(model)
    context = PassContext()
    own.run(loaded, context)
    result = loaded.to_proto()
    onnx.checker.check_model(result, full_check=True)
    return result, context


def assert_same_everywhere(
    rewritten: onnx.ModelProto, original: onnx.ModelProto, feeds: Mapping[str, np.ndarray]
) -> None:
    """A rewritten model computes what the original does: with the library, without it, and in the reference."""
    expected = run(original, feeds, library=False)
    results = [run(rewritten, feeds, library) for library in (False, True)]
    for found in (*results, ReferenceEvaluator(rewritten).run(None, dict(feeds))):
        for own, wanted in zip(found, expected, strict=True):
            # A sum's rounding is that of its terms, of which the largest result is a measure.
            largest = np.max(np.abs(wanted), initial=0, where=np.isfinite(wanted)) if wanted.dtype.kind == "f" else 0
            np.testing.assert_allclose(own, wanted, rtol=1e-5, atol=max(1e-5, 1e-6 * float(largest)), strict=True)
