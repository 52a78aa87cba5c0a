"""Products of few rows, as in steps of decoding, with matrices of floats, bytes and 4 bits, for random models."""

from __future__ import annotations

import numpy as np

from tools.fuzz.kernels.graph import CONTRIB_DOMAIN, Given, Kernels, Known

_INNER = (16, 32, 48, 64, 96)
_COLUMNS = (1, 5, 8, 16, 32)


def few_rows(graph: Kernels) -> object:
    """Products of one tensor, normalized or not, with a bias, a gate, a residual or an activation behind them."""
    x = _rows(graph)
    columns = graph.any_of((x.shape[-1], *_COLUMNS))
    made = _product(graph, _normalized(graph, x), columns)
    if made is None:
        return None
    match graph.any_of(("nothing", "bias", "gate", "residual", "activation", "halves")):
        case "bias":
            return graph.one("Add", made, graph.constant(graph.numbers((columns,))))
        case "gate":
            other = _product(graph, x, columns)
            gate = graph.one("Sigmoid", made)
            return other and gate and graph.one("Mul", gate, other)
        case "residual":
            return graph.one("Add", made, x if columns == x.shape[-1] else made)
        case "activation":
            return graph.one(graph.any_of(("Relu", "Tanh", "Softplus")), made)
        case "halves":
            return _product(graph, made, graph.any_of(_COLUMNS))
    return made


def _rows(graph: Kernels) -> Known:
    """One to nine rows: up to eight are few."""
    found = graph.pick(lambda value: value.ndim in (2, 3) and value.shape[-1] in _INNER) if graph.chance(3) else None
    rows = graph.any_of(((1,), (1, 1), (graph.any_of((2, 3, 8, 9)),), (1, 4)))
    return found or graph.input(graph.numbers((*rows, graph.any_of(_INNER))))


def _normalized(graph: Kernels, x: Known) -> Known:
    if not graph.chance(3):
        return x
    square = graph.one("Mul", x, x)
    mean = square and graph.one("ReduceMean", square, axes=[-1]) if graph.opset < 18 else None
    if square is not None and mean is None:
        mean = graph.one("ReduceMean", square, graph.integers(-1))
    shifted = mean and graph.one("Add", mean, graph.constant(graph.dtype(1e-2)))
    root = shifted and graph.one("Sqrt", shifted)
    return (root and graph.one("Div", x, root)) or x


def _product(graph: Kernels, x: Known, columns: int) -> Known | None:
    inner = x.shape[-1]
    match graph.any_of(("floats", "gemm", "bytes", "blocks", "blocks")):
        case "gemm" if x.rank == 2:
            matrix = graph.constant(graph.numbers((columns, inner), inner**-0.5))
            return graph.one("Gemm", x, matrix, transB=1, **graph.maybe(alpha=(0.5, 1.0)))
        case "bytes":
            numbers = graph.constant(graph.random.integers(-127, 128, (inner, columns)), np.int8)
            scales = graph.constant(graph.random.uniform(0.001, 0.01, columns).astype(graph.dtype))
            dequantized = graph.one("DequantizeLinear", numbers, scales, axis=1)
            return dequantized and graph.one("MatMul", x, dequantized)
        case "blocks":
            return blocks(graph, x, columns)
    return graph.one("MatMul", x, graph.constant(graph.numbers((inner, columns), inner**-0.5)))


def blocks(graph: Kernels, x: Known, columns: int) -> Known | None:
    """ONNX Runtime's MatMulNBits: 4 or 8 bits, blocks of any size, with zero points of either kind or none, an order of
    rows now and then, and any accuracy level."""
    inner, bits, block = x.shape[-1], graph.any_of((4, 4, 8)), graph.any_of((16, 16, 32, 64))
    number = -(-inner // block)
    matrix = graph.constant(graph.random.integers(0, 256, (columns, number, block * bits // 8)), np.uint8)
    flat = graph.chance(2)
    shape = (columns * number,) if flat else (columns, number)
    given: list[Given] = [x, matrix, graph.constant(graph.random.uniform(0.001, 0.02, shape).astype(graph.dtype))]
    zeros: Given = None
    match graph.any_of(("none", "packed", "floats")):
        case "packed":
            packed = graph.random.integers(0, 256, (columns, -(-number * bits // 8)))
            zeros = graph.constant(packed.reshape(-1) if flat else packed, np.uint8)
        case "floats":
            zeros = graph.constant(graph.random.uniform(0, 15, shape).astype(graph.dtype))
    order = graph.constant(np.arange(number * block) // block, np.int32) if graph.chance(10) else None
    bias = graph.constant(graph.numbers((columns,))) if graph.chance(3) else None
    given += [zeros, order, bias]
    while given[-1] is None:
        given.pop()
    attributes = {"K": inner, "N": columns, "bits": bits, "block_size": block}
    made = graph.add("MatMulNBits", given, domain=CONTRIB_DOMAIN, **attributes, **graph.maybe(accuracy_level=(0, 1, 4)))
    return None if made is None else made[0]


EMITTERS = (few_rows,)
