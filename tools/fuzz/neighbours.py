"""Emitters of what stands beside elementwise nodes: convolutions, products, reductions, moves, and the patterns made of
several nodes that rewrite rules or ONNX Runtime look for."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfuse.model.dtypes import DTYPES
from tools.fuzz.graph import FLOATS, Graph, Tensor
from tools.fuzz.operators import Emitter

EMITTERS: list[Emitter] = []
"""All emitters of this file."""

_FLOAT = ("f32", "f32", "f64", "f16")


def _neighbour(emitter: Emitter) -> Emitter:
    EMITTERS.append(emitter)
    return emitter


def _image(graph: Graph, op: str) -> Tensor | None:
    """A float tensor with a batch, channels and two more axes, none of them empty."""
    if not graph.takes(op, ["f32", "f32"] if "Conv" in op else ["f32"], **_pool_attributes(op)):
        return None
    found = graph.pick("f32", lambda tensor: len(tensor.shape) == 4 and tensor.size > 0)
    if found is not None:
        return found
    flat = graph.pick("f32", lambda tensor: tensor.size > 0)
    if flat is None:
        return None
    shape = (1, *flat.shape) if len(flat.shape) == 3 else (1, flat.size, 1, 1)
    return graph.add("Reshape", [flat, graph.constant("i64", shape)], "f32", shape)


def _pool_attributes(op: str) -> dict[str, Any]:
    return {"kernel_shape": (3, 3)} if op in ("MaxPool", "AveragePool") else {}


@_neighbour
def convolution(graph: Graph) -> None:
    """Conv: dense, depthwise or pointwise, with an affine before or after it now and then."""
    x = _image(graph, "Conv")
    if x is None:
        return
    if graph.chance(2):
        x = _affine(graph, x)
    channels, kernel = x.shape[1], graph.any_of((1, 1, 3))
    group = channels if graph.chance(3) else 1
    outputs = channels * graph.any_of((1, 2)) if group > 1 else graph.any_of((1, 4, 8, 16))
    weights = graph.random.normal(
        0, (kernel * kernel * channels / group) ** -0.5, (outputs, channels // group, kernel, kernel)
    )
    given = [x, graph.constant("f32", weights)]
    if graph.chance(2):
        given.append(graph.constant("f32", graph.random.normal(size=outputs)))
    result = graph.add("Conv", given, "f32", (x.shape[0], outputs, *x.shape[2:]), group=group, pads=[kernel // 2] * 4)
    if graph.chance(2):
        _affine(graph, result)


def _affine(graph: Graph, x: Tensor) -> Tensor:
    """A scale or an offset for each channel, or for all."""
    shape = graph.any_of(((), (x.shape[1], 1, 1), (1, x.shape[1], 1, 1), (1, 1, 1)))
    numbers = graph.constant("f32", graph.random.normal(1, 0.5, shape))
    return graph.add(graph.any_of(("Mul", "Add", "Sub")), [x, numbers], "f32", x.shape)


@_neighbour
def transposed_convolution(graph: Graph) -> None:
    """ConvTranspose with an affine after it."""
    x = _image(graph, "ConvTranspose")
    if x is not None:
        n, channels, h, w = x.shape
        weights = graph.constant("f32", graph.random.normal(0, channels**-0.5, (channels, 4, 2, 2)))
        _affine(graph, graph.add("ConvTranspose", [x, weights], "f32", (n, 4, h + 1, w + 1)))


FIRST_KNOWN_SPREAD = 9
"""The opset from which a noisy model can choose how far a NaN spreads in LRN (with Where)."""


@_neighbour
def pooling(graph: Graph) -> None:
    """A pool over an image."""
    op = graph.any_of(("MaxPool", "AveragePool", "GlobalAveragePool", "LRN"))
    x = None if op == "LRN" else _image(graph, op)
    if op == "LRN" and graph.opset >= FIRST_KNOWN_SPREAD and graph.takes("LRN", ["f32"], size=3):
        image = _image(graph, "GlobalAveragePool")
        if image is not None:
            graph.add("LRN", [image], "f32", image.shape, size=3)
    elif x is not None and op == "GlobalAveragePool":
        graph.add(op, [x], "f32", (*x.shape[:2], 1, 1))
    elif x is not None:
        graph.add(op, [x], "f32", x.shape, kernel_shape=(3, 3), pads=[1] * 4)


@_neighbour
def product(graph: Graph) -> None:
    """MatMul or Gemm with a constant, and a bias or a factor or an activation after it."""
    op = graph.any_of(("MatMul", "MatMul", "Gemm"))
    dtype = graph.dtype(_FLOAT, lambda candidate: graph.takes(op, [candidate] * 2))
    x = None if dtype is None else graph.pick(dtype, lambda tensor: tensor.size > 0 and len(tensor.shape) > 0)
    if dtype is None or x is None:
        return
    if len(x.shape) == 1 or (op == "Gemm" and len(x.shape) > 2):
        x = graph.add("Flatten", [x], dtype, (x.shape[0], x.size // x.shape[0]), axis=1)
    width = graph.any_of((1, 4, 7))
    given = [x, graph.constant(dtype, graph.random.normal(0, 0.5, (x.shape[-1], width)))]
    if op == "Gemm" and graph.chance(2):
        given.append(graph.constant(dtype, graph.random.normal(size=width)))
    result = graph.add(op, given, dtype, (*x.shape[:-1], width))
    if graph.chance(2):
        operand = graph.constant(dtype, graph.random.normal(size=graph.any_of(((width,), (), (1,)))))
        graph.add(graph.any_of(("Add", "Mul", "Div")), [result, operand], dtype, result.shape)


@_neighbour
def reduction(graph: Graph) -> None:
    """A reduction over one axis, kept or not."""
    op = graph.any_of(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2"))
    x = graph.pick("f32", lambda tensor: len(tensor.shape) > 0 and 0 not in tensor.shape)
    if x is None or not graph.takes(op, ["f32"]):
        return
    axis, keep = graph.choose.randrange(len(x.shape)), graph.choose.randrange(2)
    shape = [1 if dim == axis else size for dim, size in enumerate(x.shape) if keep or dim != axis]
    given, attributes = _axes(graph, op, x, axis)
    graph.add(op, given, "f32", tuple(shape), keepdims=keep, **attributes)


def _axes(graph: Graph, op: str, x: Tensor, axis: int) -> tuple[list[Tensor], dict[str, Any]]:
    """The inputs and attributes of a reduction over ``axis``: an input since opset 13 (ReduceSum) or 18."""
    if graph.opset >= (13 if op == "ReduceSum" else 18):
        return [x, graph.constant("i64", [axis])], {}
    return [x], {"axes": [axis]}


@_neighbour
def softmax(graph: Graph) -> None:
    """Softmax over the last axis."""
    x = graph.pick("f32", lambda tensor: len(tensor.shape) > 1 and 0 not in tensor.shape)
    if x is not None and graph.takes("Softmax", ["f32"]):
        graph.add("Softmax", [x], "f32", x.shape, axis=len(x.shape) - 1)


@_neighbour
def layer_normalization(graph: Graph) -> None:
    """LayerNormalization or RMSNorm written out, as exporters do."""
    x = graph.pick("f32", lambda tensor: len(tensor.shape) > 1 and 0 not in tensor.shape)
    if x is None or not graph.takes("ReduceMean", ["f32"]):
        return

    def mean(tensor: Tensor) -> Tensor:
        given, attributes = _axes(graph, "ReduceMean", tensor, len(x.shape) - 1)
        return graph.add("ReduceMean", given, "f32", (*x.shape[:-1], 1), keepdims=1, **attributes)

    centred = graph.add("Sub", [x, mean(x)], "f32", x.shape) if graph.chance(2) else x
    square = graph.add("Pow", [centred, graph.scalar("f32", 2)], "f32", x.shape)
    variance = mean(square)
    shifted = graph.add("Add", [variance, graph.scalar("f32", 1e-5)], "f32", variance.shape)
    deviation = graph.add("Sqrt", [shifted], "f32", shifted.shape)
    normal = graph.add("Div", [centred, deviation], "f32", x.shape)
    scale, offset = (graph.constant("f32", graph.random.normal(size=x.shape[-1])) for _ in range(2))
    graph.add("Add", [graph.add("Mul", [normal, scale], "f32", x.shape), offset], "f32", x.shape)


@_neighbour
def decomposed_activation(graph: Graph) -> None:
    """GELU, SiLU, HardSigmoid or HardSwish written out."""
    dtype = graph.any_of(_FLOAT)
    if not graph.takes("Erf", [dtype]) or not graph.takes("Sigmoid", [dtype]):
        return
    x = graph.source(dtype)

    def op(kind: str, *inputs: Tensor | float) -> Tensor:
        given = [value if isinstance(value, Tensor) else graph.scalar(dtype, value) for value in inputs]
        return graph.add(kind, given, dtype, x.shape)

    match graph.choose.randrange(4):
        case 0:
            gate = op("Add", op("Erf", op("Div", x, 1.4142135)), 1.0)
            op("Mul", op("Mul", x, gate), 0.5)
        case 1:
            op("Mul", x, op("Sigmoid", x))
        case 2:
            op("Div", graph.bounded(op("Add", x, 3.0), 0.0, 6.0), 6.0)
        case _:
            op("Div", op("Mul", x, graph.bounded(op("Add", x, 3.0), 0.0, 6.0)), 6.0)


@_neighbour
def transpose(graph: Graph) -> None:
    """A path through it must not close a cycle."""
    x = graph.pick(None, lambda tensor: len(tensor.shape) > 1)
    if x is not None and graph.takes("Transpose", [x.dtype]):
        order = list(range(len(x.shape)))
        graph.choose.shuffle(order)
        graph.add("Transpose", [x], x.dtype, tuple(x.shape[axis] for axis in order), perm=order)


@_neighbour
def grouped(graph: Graph) -> None:
    """An axis taken apart, the axes in another order, two of them joined: shuffles of channels, windows, heads."""
    x = graph.pick(None, lambda tensor: 0 < len(tensor.shape) < 5 and tensor.size > 1)
    if x is None or not graph.takes("Reshape", [x.dtype, "i64"]) or not graph.takes("Transpose", [x.dtype]):
        return
    axis = graph.any_of([axis for axis, size in enumerate(x.shape) if size > 1])
    size = x.shape[axis]
    inner = graph.any_of([part for part in range(1, size + 1) if size % part == 0])
    shape = (*x.shape[:axis], size // inner, inner, *x.shape[axis + 1 :])
    x = graph.add("Reshape", [x, graph.constant("i64", shape)], x.dtype, shape)
    if graph.chance(3) and graph.takes("Neg", [x.dtype]):
        x = graph.add("Neg", [x], x.dtype, shape)
    order = list(range(len(shape)))
    graph.choose.shuffle(order)
    shape = tuple(shape[axis] for axis in order)
    x = graph.add("Transpose", [x], x.dtype, shape, perm=order)
    if graph.chance(2):
        axis = graph.choose.randrange(len(shape) - 1)
        joined = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
        graph.add("Reshape", [x, graph.constant("i64", joined)], x.dtype, joined)


@_neighbour
def taken(graph: Graph) -> None:
    """A Gather of one place of an axis, or of some at even distances."""
    x = graph.pick(None, lambda tensor: len(tensor.shape) > 0 and tensor.size > 0)
    if x is None or not graph.takes("Gather", [x.dtype, "i64"], axis=0):
        return
    axis = graph.choose.randrange(len(x.shape))
    first, step = graph.choose.randrange(x.shape[axis]), graph.any_of((1, 1, 2, 3))
    places = list(range(first, x.shape[axis], step))[: graph.choose.randint(1, 4)]
    if graph.chance(2):
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        graph.add("Gather", [x, graph.constant("i64", places[0] - x.shape[axis])], x.dtype, shape, axis=axis)
    else:
        shape = (*x.shape[:axis], len(places), *x.shape[axis + 1 :])
        graph.add("Gather", [x, graph.constant("i64", places)], x.dtype, shape, axis=axis)


@_neighbour
def looked_up(graph: Graph) -> None:
    """Rows of a tensor that constants or what is computed name, as words of a text, and what is reduced of each."""
    table = graph.pick(None, lambda tensor: len(tensor.shape) > 1 and tensor.size > 0)
    if table is None or not graph.takes("Gather", [table.dtype, "i64"], axis=0):
        return
    rows, (outer, inner) = table.shape[0], graph.any_of(((2, 3), (1, 5), (4, 1)))
    numbers = graph.pick("i64", lambda tensor: 0 < len(tensor.shape) < 3 and 0 < tensor.size < 50)
    if numbers is not None and graph.chance(2) and graph.takes("Clip", ["i64"] * 3):
        ends = [graph.constant("i64", end) for end in (-rows, rows - 1)]
        numbers = graph.add("Clip", [numbers, *ends], "i64", numbers.shape)
    else:
        named = [graph.choose.randrange(-rows, rows) for _ in range(outer * inner)]
        numbers = graph.constant("i64", np.reshape(named, (outer, inner)))
    shape = (*numbers.shape, *table.shape[1:])
    if len(shape) > 5 or np.prod(shape) > 2000:
        return
    x = graph.add("Gather", [table, numbers], table.dtype, shape, axis=graph.any_of((0, -len(table.shape))))
    if graph.takes("ReduceMax", [x.dtype], keepdims=1) and graph.takes("Sub", [x.dtype] * 2) and graph.opset < 18:
        most = graph.add("ReduceMax", [x], x.dtype, (*shape[:-1], 1), axes=[-1], keepdims=1)
        graph.add("Sub", [x, most], x.dtype, shape)
    elif graph.takes("LayerNormalization", [x.dtype] * 2):
        scale = graph.constant(x.dtype, np.linspace(0.5, 1.5, shape[-1]))
        graph.add("LayerNormalization", [x, scale], x.dtype, shape)


@_neighbour
def repeated(graph: Graph) -> None:
    """Dimensions more, and those of one element repeated."""
    x = graph.pick(None, lambda tensor: len(tensor.shape) < 4 and 0 < tensor.size < 500)
    if x is None or not graph.takes("Expand", [x.dtype, "i64"]):
        return
    shape = [graph.any_of((1, 2, 3)) if size == 1 else size for size in (1, *x.shape)]
    graph.add("Expand", [x, graph.constant("i64", shape)], x.dtype, tuple(shape))


@_neighbour
def concat(graph: Graph) -> None:
    """Two tensors that differ along one axis at most, or views of these that have a dimension more."""
    x = graph.pick(None, lambda tensor: len(tensor.shape) > 0)
    if x is None or not graph.takes("Concat", [x.dtype] * 2, axis=0):
        return
    axis, own = graph.choose.randrange(len(x.shape)), x.shape

    def fits(other: Tensor) -> bool:
        return len(other.shape) == len(own) and all(
            size == mine for dim, (size, mine) in enumerate(zip(other.shape, own, strict=True)) if dim != axis
        )

    other = graph.pick(x.dtype, fits)
    if other is None or x.size + other.size > 4096:
        return
    longer = min(x.size, other.size) > 0 and len(x.shape) < 4 and graph.chance(3)
    if longer and graph.takes("Reshape", [x.dtype, "i64"]):
        alike = x.shape == other.shape

        def with_one(one: Tensor) -> Tensor:
            shape = (*one.shape[:axis], 1, *one.shape[axis:])
            return graph.add("Reshape", [one, graph.constant("i64", list(shape))], one.dtype, shape)

        x, other = with_one(x), with_one(other)
        axis += not alike or graph.chance(2)
    shape = list(x.shape)
    shape[axis] += other.shape[axis]
    graph.add("Concat", [x, other], x.dtype, tuple(shape), axis=axis)


@_neighbour
def slices(graph: Graph) -> None:
    """A Slice, or a Split in two, whose parts go different ways; or Slices of any axes."""
    x = graph.pick(None, lambda tensor: len(tensor.shape) > 0 and tensor.shape[-1] > 1)
    if x is None:
        return
    if graph.opset >= 10 and graph.chance(2) and graph.takes("Slice", [x.dtype] + ["i64"] * 4):
        return _any_slice(graph, x)
    axis, size = len(x.shape) - 1, x.shape[-1]
    half = size // 2
    if graph.opset >= 13 and graph.chance(2) and graph.takes("Split", [x.dtype, "i64"], 2):
        parts = graph.constant("i64", [half, size - half])
        outputs = [(x.dtype, (*x.shape[:-1], part)) for part in (half, size - half)]
        graph.add_many("Split", [x, parts], outputs, axis=axis)
    elif graph.opset >= 10 and graph.takes("Slice", [x.dtype] + ["i64"] * 3):
        given = [x, *(graph.constant("i64", [number]) for number in (1, size, axis))]
        graph.add("Slice", given, x.dtype, (*x.shape[:-1], size - 1))
    elif graph.opset < 10:
        graph.add("Slice", [x], x.dtype, (*x.shape[:-1], size - 1), starts=[1], ends=[size], axes=[axis])


def _any_slice(graph: Graph, x: Tensor) -> None:
    """Some elements of some axes, which count from either end."""
    rank = len(x.shape)
    axes = graph.choose.sample(range(rank), graph.choose.randint(1, rank))
    shape, starts, ends, steps = list(x.shape), [], [], []
    for axis in axes:
        size = x.shape[axis]
        first = graph.choose.randrange(size) if size else 0
        last = graph.choose.randint(first, size) if graph.chance(2) else size
        step = graph.any_of((1, 1, 2, 3))
        shape[axis] = len(range(first, last, step))
        starts.append(first - size if size and graph.chance(3) else first)
        ends.append((1 << 63) - 1 if last == size else last)
        steps.append(step)
    named = [axis - rank if graph.chance(3) else axis for axis in axes]
    given = [x, *(graph.constant("i64", numbers) for numbers in (starts, ends, named, steps))]
    graph.add("Slice", given, x.dtype, tuple(shape))


@_neighbour
def rotation(graph: Graph) -> None:
    """The halves of the last dimension swapped, often with a minus and a factor, as in rotary embeddings; of each head,
    too, which a Reshape makes before and takes away after."""
    x = graph.pick(None, lambda tensor: len(tensor.shape) > 0 and tensor.shape[-1] % 2 == 0)
    if x is None or graph.opset < 10 or not graph.takes("Slice", [x.dtype] + ["i64"] * 3):
        return
    whole = x.shape
    heads = [heads for heads in (1, 2, 3, 4) if whole[-1] % (2 * heads) == 0]
    if x.size and graph.chance(2):
        x = _reshaped(graph, x, (*whole[:-1], count := graph.any_of(heads), whole[-1] // count))
    axis, size = len(x.shape) - 1, x.shape[-1]
    halves = []
    for start, end in ((size // 2, size), (0, size // 2)):
        given = [x, *(graph.constant("i64", [number]) for number in (start, end, axis))]
        halves.append(graph.add("Slice", given, x.dtype, (*x.shape[:-1], size // 2)))
    if graph.chance(2) and graph.takes("Neg", [x.dtype]):
        halves[0] = graph.add("Neg", halves[:1], x.dtype, halves[0].shape)
    swapped = graph.add("Concat", halves, x.dtype, x.shape, axis=-1 if graph.opset >= 11 else axis)
    if graph.chance(2) and graph.takes("Mul", [x.dtype] * 2):
        swapped = graph.add("Mul", [swapped, x], x.dtype, x.shape)
    if x.shape != whole and graph.chance(2):
        swapped = _reshaped(graph, swapped, whole)
    if swapped.size and x.dtype == "f32" and graph.chance(3) and graph.takes("MatMul", [x.dtype] * 2):
        weights = graph.constant(x.dtype, graph.random.normal(0, 0.5, (swapped.shape[-1], 4)))
        graph.add("MatMul", [swapped, weights], x.dtype, (*swapped.shape[:-1], 4))


def _reshaped(graph: Graph, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return graph.add("Reshape", [x, graph.constant("i64", shape)], x.dtype, shape)


@_neighbour
def shape_arithmetic(graph: Graph) -> None:
    """Elementwise nodes that compute with a shape, which then reshapes or expands."""
    x = graph.pick(None, lambda tensor: len(tensor.shape) > 0)
    if x is None or not graph.takes("Expand", [x.dtype, "i64"]):
        return
    shape = graph.add("Shape", [x], "i64", (len(x.shape),))
    scaled = graph.add("Mul", [shape, graph.constant("i64", [1])], "i64", shape.shape)
    if graph.chance(2):
        graph.add("Reshape", [x, scaled], x.dtype, x.shape) if 0 not in x.shape else None
    else:
        single = graph.constant(x.dtype, graph.array(x.dtype, graph.broadcast_shape(x.shape)))
        graph.add("Expand", [single, scaled], x.dtype, x.shape)


@_neighbour
def flatten(graph: Graph) -> None:
    """A tensor in two dimensions, or with an axis more."""
    x = graph.pick(None, lambda tensor: len(tensor.shape) > 0)
    if x is not None and graph.takes("Flatten", [x.dtype], axis=1):
        graph.add("Flatten", [x], x.dtype, (x.shape[0], int(np.prod(x.shape[1:], dtype=np.int64))), axis=1)


@_neighbour
def eight_bit_float(graph: Graph) -> None:
    """To float8 and back, with saturation or without: types that no program holds."""
    if graph.opset < 19:
        return
    kind = graph.any_of((TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ))
    x = graph.source(graph.any_of(("f32", "f16")))
    if x.dtype in FLOATS and graph.takes("Cast", [x.dtype], to=kind):
        small = graph.add("Cast", [x], "f8", x.shape, to=kind, saturate=graph.choose.randrange(2))
        graph.tensors.remove(small)
        graph.add("Cast", [small], x.dtype, x.shape, to=DTYPES[x.dtype].onnx)
