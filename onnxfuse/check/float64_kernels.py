"""Operators in float64, by NumPy, of which ONNX Runtime has no such kernel and onnx's reference is slow."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from onnxfuse.shapes import windows

Arrays = Sequence[np.ndarray | None]
Settings = dict[str, Any]


class UnsupportedError(Exception):
    """The node has a setting that is not done here."""


def _strides(settings: Settings, rank: int) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations and pads, of which there are two for each dimension, the begins first."""
    if settings.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or settings.get("ceil_mode", 0):
        raise UnsupportedError
    ones = [1] * rank
    return settings.get("strides", ones), settings.get("dilations", ones), settings.get("pads", [0] * (2 * rank))


def _taps(
    padded: np.ndarray, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """For each place in a window what all windows have there, and the place."""
    spatial = padded.shape[2:]
    counts = [
        windows.count(size, windows.extent(width, dilation), stride)
        for size, width, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True)
    ]
    for place in product(*map(range, kernel)):
        starts = [at * dilation for at, dilation in zip(place, dilations, strict=True)]
        cut = [
            slice(start, start + windows.covered(count, 1, stride), stride)
            for start, stride, count in zip(starts, strides, counts, strict=True)
        ]
        yield place, padded[(slice(None), slice(None), *cut)]


def _padded(x: np.ndarray, pads: Sequence[int], value: float = 0.0) -> np.ndarray:
    rank = x.ndim - 2
    widths = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
    return np.pad(x, widths, constant_values=value)


def _grouped(x: np.ndarray, group: int) -> np.ndarray:
    """Channels by groups, and all positions in one dimension."""
    return x.reshape(x.shape[0], group, x.shape[1] // group, -1)


def _conv(arrays: Arrays, settings: Settings) -> np.ndarray:
    x, w, *bias = arrays
    assert x is not None and w is not None
    strides, dilations, pads = _strides(settings, x.ndim - 2)
    group = settings.get("group", 1)
    weights = w.reshape(group, w.shape[0] // group, *w.shape[1:])
    total: np.ndarray | None = None
    shape: tuple[int, ...] = ()
    for place, part in _taps(_padded(x, pads), w.shape[2:], strides, dilations):
        term = np.moveaxis(weights, (0, 1, 2), (-3, -2, -1))[place] @ _grouped(part, group)
        total, shape = term if total is None else total + term, part.shape[2:]
    assert total is not None
    y = total.reshape(x.shape[0], w.shape[0], *shape)
    return y if not bias or bias[0] is None else y + bias[0].reshape(-1, *[1] * len(shape))


def _conv_transpose(arrays: Arrays, settings: Settings) -> np.ndarray:
    x, w, *bias = arrays
    assert x is not None and w is not None
    rank = x.ndim - 2
    strides, dilations, pads = _strides(settings, rank)
    if "output_shape" in settings:
        raise UnsupportedError
    group, more = settings.get("group", 1), settings.get("output_padding", [0] * rank)
    whole = [
        windows.covered(size, windows.extent(width, dilation), stride) + extra
        for size, width, stride, dilation, extra in zip(x.shape[2:], w.shape[2:], strides, dilations, more, strict=True)
    ]
    weights = w.reshape(group, w.shape[0] // group, *w.shape[1:]).swapaxes(1, 2)
    channels = group * w.shape[1]
    y = np.zeros((x.shape[0], channels, *whole))
    data = _grouped(x, group)
    for place in product(*map(range, w.shape[2:])):
        term = (np.moveaxis(weights, (0, 1, 2), (-3, -2, -1))[place] @ data).reshape(x.shape[0], channels, *x.shape[2:])
        cut = [
            slice(at * dilation, at * dilation + windows.covered(size, 1, stride), stride)
            for at, dilation, stride, size in zip(place, dilations, strides, x.shape[2:], strict=True)
        ]
        y[(slice(None), slice(None), *cut)] += term
    ends = [size - pads[rank + axis] for axis, size in enumerate(whole)]
    y = y[(slice(None), slice(None), *(slice(pads[axis], end) for axis, end in enumerate(ends)))]
    return y if not bias or bias[0] is None else y + bias[0].reshape(-1, *[1] * rank)


def _average_pool(arrays: Arrays, settings: Settings) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    if settings.get("ceil_mode", 0):
        return _clipped_averages(x, settings)
    strides, dilations, pads = _strides(settings, x.ndim - 2)
    kernel = settings["kernel_shape"]
    total = sum(part for _, part in _taps(_padded(x, pads), kernel, strides, dilations))
    if settings.get("count_include_pad", 0):
        return np.asarray(total) / math.prod(kernel)
    counts = sum(part for _, part in _taps(_padded(np.ones_like(x[:1, :1]), pads), kernel, strides, dilations))
    return np.asarray(total / counts)


def _clipped_averages(x: np.ndarray, settings: Settings) -> np.ndarray:
    """AveragePool whose windows may reach beyond the padding; what they do there does not count as padding does.

    Window by window: a window may be much larger than the image.
    """
    rank = x.ndim - 2
    kernel = settings["kernel_shape"]
    strides, dilations, pads = _strides({**settings, "ceil_mode": 0}, rank)
    if any(dilation != 1 for dilation in dilations):
        raise UnsupportedError
    parts: list[list[slice]] = []  # for each axis what each of its windows has of the image
    counts: list[list[int]] = []  # and how much of it counts with padding
    for axis, (size, width, stride) in enumerate(zip(x.shape[2:], kernel, strides, strict=True)):
        before, behind = pads[axis], pads[rank + axis]
        number = windows.count(size, width, stride, (before, behind), rounds_up=True)
        starts = [at * stride - before for at in range(number)]
        ends = [min(start + width, size + behind) for start in starts]
        parts.append([slice(max(start, 0), min(end, size)) for start, end in zip(starts, ends, strict=True)])
        counts.append([end - start for start, end in zip(starts, ends, strict=True)])
    y = np.empty((*x.shape[:2], *map(len, parts)))
    for place in np.ndindex(*y.shape[2:]):
        window = x[(slice(None), slice(None), *(own[at] for own, at in zip(parts, place, strict=True)))]
        counted = math.prod(window.shape[2:])
        if settings.get("count_include_pad", 0):
            counted = math.prod(own[at] for own, at in zip(counts, place, strict=True))
        y[(slice(None), slice(None), *place)] = window.sum(axis=tuple(range(2, x.ndim))) / counted
    return y


def _global_average_pool(arrays: Arrays, _settings: Settings) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    return np.asarray(x.mean(axis=tuple(range(2, x.ndim)), keepdims=True))


def _erf(arrays: Arrays, _settings: Settings) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    return np.fromiter(map(math.erf, x.reshape(-1).tolist()), np.float64, x.size).reshape(x.shape)


def _instance_normalization(arrays: Arrays, settings: Settings) -> np.ndarray:
    x, scale, bias = arrays
    assert x is not None and scale is not None and bias is not None
    axes, broadcast = tuple(range(2, x.ndim)), (-1, *[1] * (x.ndim - 2))
    centred = x - x.mean(axis=axes, keepdims=True)
    variance = np.square(centred).mean(axis=axes, keepdims=True)
    normal = centred / np.sqrt(variance + settings.get("epsilon", 1e-5))
    return np.asarray(normal * scale.reshape(broadcast) + bias.reshape(broadcast))


def _lrn(arrays: Arrays, settings: Settings) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    size, channels = settings["size"], x.shape[1]
    before = (size - 1) // 2
    widths = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    squares = np.pad(np.square(x), widths)
    total = sum(squares[:, start : start + channels] for start in range(size))
    base = settings.get("bias", 1.0) + settings.get("alpha", 1e-4) / size * np.asarray(total)
    return np.asarray(x / base ** settings.get("beta", 0.75))


def _along_axis(x: np.ndarray, factor: np.ndarray, settings: Settings) -> np.ndarray:
    """A scale or a zero point as it is broadcast: one for all, or one for each place along the axis."""
    if settings.get("block_size", 0) or factor.ndim > 1:
        raise UnsupportedError
    if factor.size == 1:
        return factor.reshape(())
    axis = settings.get("axis", 1) % x.ndim
    return factor.reshape(*[-1 if place == axis else 1 for place in range(x.ndim)])


def _dequantize(arrays: Arrays, settings: Settings) -> np.ndarray:
    x, scale, *zero = arrays
    assert x is not None and scale is not None
    numbers = x.astype(np.float64)
    if zero and zero[0] is not None:
        numbers = numbers - _along_axis(x, zero[0].astype(np.float64), settings)
    return np.asarray(numbers * _along_axis(x, scale, settings))


def _quantize(arrays: Arrays, settings: Settings) -> np.ndarray:
    x, scale, *zero = arrays
    assert x is not None and scale is not None
    dtype = zero[0].dtype if zero and zero[0] is not None else np.dtype(np.uint8)
    if dtype.kind not in "iu" or settings.get("output_dtype", 0):
        raise UnsupportedError
    levels = np.rint(x / _along_axis(x, scale, settings))
    if zero and zero[0] is not None:
        levels = levels + _along_axis(x, zero[0].astype(np.float64), settings)
    return np.asarray(levels.clip(np.iinfo(dtype).min, np.iinfo(dtype).max)).astype(dtype)


KERNELS: dict[str, Callable[[Arrays, Settings], np.ndarray]] = {
    "AveragePool": _average_pool,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DequantizeLinear": _dequantize,
    "Erf": _erf,
    "GlobalAveragePool": _global_average_pool,
    "InstanceNormalization": _instance_normalization,
    "LRN": _lrn,
    "QuantizeLinear": _quantize,
}
"""By operator, from the inputs and the attributes to the one result."""
