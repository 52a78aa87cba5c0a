"""Models in int8, as ONNX Runtime's tools make them of float32 ones."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import full_images
import full_text
import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

_SAMPLES = 4
_WORDS = 30000


class _Samples(CalibrationDataReader):
    """A few inputs as the manifest describes them."""

    def __init__(self, model: Path) -> None:
        generator = np.random.default_rng(0)
        inputs = onnx.load(model, load_external_data=False).graph.input
        self._left = iter([{value.name: _drawn(generator, value) for value in inputs} for _ in range(_SAMPLES)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def _drawn(generator: np.random.Generator, value: onnx.ValueInfoProto) -> np.ndarray:
    kind = value.type.tensor_type
    shape = [dim.dim_value for dim in kind.shape.dim]
    if kind.elem_type == onnx.TensorProto.FLOAT:
        return generator.standard_normal(shape).astype(np.float32)
    return np.ones(shape, np.int64) if "mask" in value.name else generator.integers(3, _WORDS, shape)


def _prepared(recipe: Callable[[Path], None], folder: Path) -> Path:
    """The float32 model after the preparation that ONNX Runtime's guide asks for."""
    source, prepared = folder / "float32.onnx", folder / "prepared.onnx"
    recipe(source)
    quant_pre_process(source, prepared, skip_symbolic_shape=True)
    return prepared


def _dynamic(path: Path, recipe: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as name:
        quantize_dynamic(_prepared(recipe, Path(name)), path)


def _static(path: Path, recipe: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as name:
        prepared = _prepared(recipe, Path(name))
        quantize_static(prepared, path, _Samples(prepared), quant_format=QuantFormat.QDQ, per_channel=True)


def bert_base_dynamic(path: Path) -> None:
    """BERT-base, weights in int8 and activations as they come."""
    _dynamic(path, full_text.bert_base)


def bert_base_qdq(path: Path) -> None:
    """BERT-base with quantize and dequantize nodes."""
    _static(path, full_text.bert_base)


def resnet50_dynamic(path: Path) -> None:
    """ResNet-50, weights in int8 and activations as they come."""
    _dynamic(path, full_images.resnet50)


def resnet50_qdq(path: Path) -> None:
    """ResNet-50 with quantize and dequantize nodes."""
    _static(path, full_images.resnet50)
