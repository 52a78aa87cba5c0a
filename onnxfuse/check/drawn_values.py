"""Random values for an input, of which its name, type and shape alone say what it may be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import onnx

from onnxfuse.check.comparison import precision
from onnxfuse.run.inputs import InputSpec
from onnxfuse.run.sessions import Value

_RATE = re.compile(r"^sr$|sample_?rate|sampling_?rate", re.IGNORECASE)
_MASK = re.compile(r"mask", re.IGNORECASE)
_CHANNELS = (1, 3, 4)
_PART = 1 << 20
"""Elements that are made at a time."""


def drawn(spec: InputSpec, shape: tuple[int, ...], kind: str, bound: int, generator: np.random.Generator) -> Value:
    """An array of this shape and of the type of ``spec``, for an input of which nothing but its signature is known.

    ``kind`` is "normal", "uniform", "image" (uniform for what is none) or "spread", as ``made_up_inputs.generate`` has
    them; integers stay below ``bound`` but for pixels, rates and masks.
    """
    if spec.elem_type == onnx.TensorProto.STRING:
        return np.full(shape, "text", dtype=object)
    dtype = spec.dtype
    if kind == "image" and is_image(spec, shape):
        return _page(shape, dtype, generator)
    if dtype.kind == "b" and math.prod(shape) == 1 and kind != "spread":
        return np.full(shape, kind == "normal")
    if dtype.kind == "b":
        return _filled(shape, dtype, lambda count: generator.random(count) < 0.5)
    if dtype.kind in "iu":
        return _integers(spec, shape, bound, generator)
    if dtype.kind == "c":
        return np.asarray(generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype)
    if kind == "normal":
        return _filled(shape, dtype, lambda count: generator.standard_normal(count, dtype=np.float32))
    return np.asarray(_floats(shape, kind, generator)).astype(dtype, copy=False)


def _filled(shape: tuple[int, ...], dtype: np.dtype, draw: Callable[[int], np.ndarray]) -> np.ndarray:
    """An array of the numbers that ``draw`` gives, which may be of a wider type: it is asked for a part at a time."""
    values = np.empty(shape, dtype)
    flat = values.reshape(-1)
    for start in range(0, flat.size, _PART):
        part = flat[start : start + _PART]
        part[:] = draw(part.size)
    return values


def _floats(shape: tuple[int, ...], kind: str, generator: np.random.Generator) -> np.ndarray:
    if kind in ("uniform", "image"):
        return generator.random(shape, dtype=np.float32)
    values = generator.standard_normal(shape, dtype=np.float32)
    magnitude = 10.0 ** generator.uniform(-3.0, 1.5, shape).astype(np.float32)
    return np.where(generator.random(shape) < 0.01, np.float32(0), np.sign(values) * magnitude)


def is_image(spec: InputSpec, shape: tuple[int, ...]) -> bool:
    """Whether an input of this shape looks like an image, or several, with its channels first or last."""
    if spec.kind != "tensor" or len(shape) != 4 or (shape[1] not in _CHANNELS and shape[3] not in _CHANNELS):
        return False
    return spec.elem_type == onnx.TensorProto.UINT8 or precision(spec.dtype) > 0


def _page(shape: tuple[int, ...], dtype: np.dtype, generator: np.random.Generator) -> np.ndarray:
    """Images of lines of dark strokes on white with a little noise, in about [-1, 1], or [0, 255] for bytes."""
    batch, height, width = (shape[0], *shape[2:]) if shape[1] in _CHANNELS else shape[:3]
    strokes = generator.random((batch, -(-height // 12), -(-width // 2))) < 0.5
    ink = strokes.repeat(12, axis=1).repeat(2, axis=2)[:, :height, :width]
    ink &= (np.arange(height) % 12 < 8)[:, None]
    margin = width // 8
    ink &= (np.arange(width) >= margin) & (np.arange(width) < width - margin)
    page = np.where(ink, np.float32(-0.9), np.float32(0.9))
    image = np.broadcast_to(np.expand_dims(page, 1 if shape[1] in _CHANNELS else 3), shape)
    image = image + np.float32(0.03) * generator.standard_normal(shape, dtype=np.float32)
    if dtype == np.uint8:
        image = np.clip(127.5 + 127.5 * image, 0, 255)
    return np.asarray(image).astype(dtype)


def _integers(spec: InputSpec, shape: tuple[int, ...], bound: int, generator: np.random.Generator) -> np.ndarray:
    if spec.dtype.itemsize == 1 and len(shape) >= 3:  # pixels or quantized activations rather than indices
        low, high = (-128, 128) if spec.dtype.kind == "i" else (0, 256)
        return _filled(shape, spec.dtype, lambda count: generator.integers(low, high, count))
    if _RATE.search(spec.name) and spec.dtype.itemsize > 2:
        return np.full(shape, 16000, spec.dtype)
    if _MASK.search(spec.name):
        mask = _filled(shape, spec.dtype, lambda count: generator.integers(0, 2, count))
        if mask.size:
            mask.reshape(-1)[0] = 1  # a row that attends to nothing is not what a model meets
        return mask
    return _filled(shape, spec.dtype, lambda count: generator.integers(0, bound, count))
