"""Convolutions, pools and what else images go through, for random models."""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.fuzz.kernels.graph import CHANNELS, Given, Kernels, elementwise
from tools.fuzz.kernels.rows import normalization

# --- images ---


def _window(graph: Kernels, rank: int, *, dilated: bool = True) -> dict[str, Any]:
    """A kernel's shape, and steps, dilations and padding of any kind."""
    attributes: dict[str, Any] = {"kernel_shape": [graph.any_of((1, 2, 3, 3)) for _ in range(rank)]}
    if graph.chance(2):
        attributes["strides"] = [graph.any_of((1, 2, 3)) for _ in range(rank)]
    if dilated and graph.chance(3):
        attributes["dilations"] = [graph.any_of((1, 2)) for _ in range(rank)]
    if graph.chance(3):
        attributes["auto_pad"] = graph.any_of(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    elif graph.chance(2):
        attributes["pads"] = [graph.any_of((0, 1, 1, 2)) for _ in range(2 * rank)]
    return attributes


def convolution(graph: Kernels) -> object:
    """Of one to three dimensions, with groups, steps, dilations and padding."""
    x = graph.image()
    rank, channels = x.rank - 2, x.shape[1]
    group = graph.any_of([size for size in range(1, channels + 1) if channels % size == 0])
    outputs = group * graph.any_of((1, 1, 2, 4, 8))
    window = _window(graph, rank)
    kernel = window["kernel_shape"]
    weights = graph.constant(graph.numbers((outputs, channels // group, *kernel), 0.3))
    bias = [graph.constant(graph.numbers((outputs,)))] if graph.chance(2) else []
    if graph.chance(3):
        del window["kernel_shape"]
    return graph.one("Conv", x, weights, *bias, group=group, **window)


def transposed_convolution(graph: Kernels) -> object:
    """With a given shape or more padding of the result."""
    x = graph.image()
    rank, channels = x.rank - 2, x.shape[1]
    group = graph.any_of([size for size in range(1, channels + 1) if channels % size == 0])
    window = _window(graph, rank)
    weights = graph.constant(graph.numbers((channels, graph.any_of((1, 2, 4)), *window["kernel_shape"]), 0.3))
    bias = [graph.constant(graph.numbers((weights.shape[1] * group,)))] if graph.chance(2) else []
    if graph.chance(3):
        window["output_shape"] = [size * graph.any_of((1, 2)) + graph.any_of((0, 1)) for size in x.shape[2:]]
        window.pop("pads", None)
    elif graph.chance(3):
        window["output_padding"] = [graph.any_of((0, 1)) for _ in range(rank)]
    return graph.one("ConvTranspose", x, weights, *bias, group=group, **window)


def pool(graph: Kernels) -> object:
    """MaxPool, AveragePool or LpPool of any window, sizes rounded up or not, or a global one."""
    x = graph.image()
    op = graph.any_of(("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool", "Global"))
    if op == "Global":
        return graph.one(graph.any_of(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")), x)
    known = {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}
    window = _window(graph, x.rank - 2, dilated=graph.opset >= known[op])
    if op != "LpPool" or graph.opset >= 18:
        window |= graph.maybe(ceil_mode=(0, 1))
    if op == "AveragePool":
        window |= graph.maybe(count_include_pad=(0, 1))
    outputs = 2 if op == "MaxPool" and graph.chance(6) else 1
    return graph.add(op, [x], outputs, **window)


def convolutional_block(graph: Kernels) -> object:
    """Convolutions that follow one another, with a pool, a Resize, a gate or a sum between them."""
    graph.dtype, graph.chained = np.float32, True
    graph.input(graph.numbers([1, graph.any_of(CHANNELS), *(graph.any_of((5, 8, 12)) for _ in range(2))]))
    convolution(graph)
    for _ in range(graph.any_of((1, 2, 3))):
        for _ in range(graph.any_of((0, 1, 2))):
            elementwise(graph)
        graph.any_of((pool, pool, resize, convolution, convolution, transposed_convolution, gate, normalization))(graph)
    convolution(graph)
    graph.chained = False
    return None


def gate(graph: Kernels) -> object:
    """One value a channel that two convolutions make of its mean, and the product."""
    x = graph.image(2)
    channels = x.shape[1]
    inner = graph.any_of((1, 2, 4))
    mean = graph.one("GlobalAveragePool", x)
    first = graph.constant(graph.numbers((inner, channels, 1, 1)))
    squeezed = mean and graph.one("Conv", mean, first, graph.constant(graph.numbers((inner,))))
    active = squeezed and graph.one(graph.any_of(("Relu", "HardSwish", "Sigmoid")), squeezed)
    second = graph.constant(graph.numbers((channels, inner, 1, 1)))
    excited = active and graph.one("Conv", active, second, graph.constant(graph.numbers((channels,))))
    result = excited and graph.one(graph.any_of(("Sigmoid", "HardSigmoid")), excited)
    return result and graph.one("Mul", x, result)


def resize(graph: Kernels) -> object:
    """By scales or to sizes, in any mode."""
    x = graph.image()
    mode = graph.any_of(("nearest", "nearest", "linear", "cubic"))
    attributes: dict[str, Any] = {"mode": mode, **graph.maybe(
        coordinate_transformation_mode=("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel",
                                        "half_pixel_symmetric"),
        nearest_mode=("round_prefer_floor", "floor", "ceil", "round_prefer_ceil"),
        cubic_coeff_a=(-0.75, -0.5),
        exclude_outside=(0, 1),
    )}  # fmt: skip
    if graph.opset >= 18:
        attributes |= graph.maybe(antialias=(0, 1), keep_aspect_ratio_policy=("stretch", "not_larger"))
    first: Given = graph.constant(np.zeros(0, np.float32), np.float32) if graph.opset < 13 else None
    if graph.chance(2):
        scales = [1.0, 1.0, *(graph.any_of((1.0, 2.0, 2.0, 3.0, 0.5, 1.5)) for _ in x.shape[2:])]
        attributes.pop("keep_aspect_ratio_policy", None)
        return graph.one("Resize", x, first, graph.constant(scales, np.float32), **attributes)
    sizes = [*x.shape[:2], *(size * graph.any_of((1, 2, 2)) + graph.any_of((0, 0, 1)) for size in x.shape[2:])]
    return graph.one("Resize", x, first, None, graph.integers(*sizes), **attributes)


def rearrangement(graph: Kernels) -> object:
    """What moves pixels: DepthToSpace, Pad of any mode, Tile, Expand, Transpose, Gather, Slice, GridSample."""
    x = graph.image(2) if graph.chance(2) else graph.tensor(1, 2, 3, 4)
    match graph.any_of(("DepthToSpace", "SpaceToDepth", "Pad", "Tile", "Transpose", "Gather", "Slice", "GridSample")):
        case "DepthToSpace":
            return graph.one("DepthToSpace", x, blocksize=2, **graph.maybe(mode=("DCR", "CRD")))
        case "SpaceToDepth":
            return graph.one("SpaceToDepth", x, blocksize=graph.any_of((1, 2)))
        case "Pad":
            pads = graph.integers(*(graph.any_of((0, 0, 1, 2, -1)) for _ in range(2 * x.rank)))
            value = [graph.constant(graph.any_of((0, 1.5)))] if graph.chance(2) else []
            return graph.one("Pad", x, pads, *value, **graph.maybe(mode=("constant", "constant", "reflect", "edge")))
        case "Tile":
            return graph.one("Tile", x, graph.integers(*(graph.any_of((1, 1, 2)) for _ in range(x.rank))))
        case "Transpose":
            return graph.one("Transpose", x, perm=graph.choose.sample(range(x.rank), x.rank))
        case "Gather":
            axis = graph.axis(x.rank)
            size = x.shape[axis]
            indices = graph.random.integers(-size, size, graph.any_of(((), (2,), (1, 3)))) if size else np.zeros(0)
            return graph.one("Gather", x, graph.constant(indices, np.int64), axis=axis)
        case "Slice":
            axes = graph.axes(x.rank)
            bounds = [[graph.choose.randint(-3, 9) for _ in axes] for _ in range(2)]
            steps = [graph.any_of((1, 1, 2, -1)) for _ in axes]
            return graph.one("Slice", x, *(graph.integers(*values) for values in (*bounds, axes, steps)))
        case _:
            grid = graph.numbers((x.shape[0], graph.size(), graph.size(), 2))
            more = graph.maybe(align_corners=(0, 1), padding_mode=("zeros", "border", "reflection"))
            return graph.one("GridSample", x, graph.constant(grid), **more)


EMITTERS = (convolution, transposed_convolution, pool, convolutional_block, gate, resize, rearrangement)
