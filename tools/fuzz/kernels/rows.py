"""Attention, normalizations, Softmax, reductions and selections, for random models."""

from __future__ import annotations

import numpy as np

from tools.fuzz.kernels.graph import WIDTHS, Given, Kernels, Known

# --- attention ---


def attention(graph: Kernels) -> object:
    """The operator, with any of its inputs, outputs and attributes."""
    batch, heads, rows, keys = (graph.size((1, 2)), graph.any_of((1, 2, 4)), graph.size(), graph.size())
    groups = graph.any_of((1, 1, 1, 2)) if heads > 1 else 1
    size, of_values = graph.any_of(WIDTHS), graph.any_of(WIDTHS)
    of_values = size if graph.chance(2) else of_values
    flat = graph.chance(3)
    rarely = graph.any_of((3, 16))  # how often there is what few models have

    def part(count: int, length: int, width: int) -> Known:
        shape = (batch, length, count * width) if flat else (batch, count, length, width)
        found = graph.pick(lambda value: value.shape == shape) if graph.chance(3) else None
        return found or graph.input(graph.numbers(shape))

    q = part(heads, rows, size)
    k = part(heads // groups, keys, size)
    v = part(heads // groups, keys, of_values)
    past: list[Given] = [None, None]
    total = keys
    if graph.chance(2 * rarely):
        before = graph.size()
        total += before
        past = [graph.input(graph.numbers((batch, heads // groups, before, width))) for width in (size, of_values)]
    mask = None
    if graph.chance(2):
        shape: tuple[int, ...] = graph.any_of(((rows, total), (1, total), (batch, 1, rows, total)))
        if graph.chance(3):
            shape = (graph.any_of((1, batch)), graph.any_of((1, heads)), rows, total)
        if graph.chance(4 * rarely) and total:
            shape = (*shape[:-1], total - 1)
        values = graph.random.random(shape) < 0.7 if graph.chance(2) else graph.numbers(shape)
        if values.dtype != bool and graph.chance(2):
            values = np.where(graph.random.random(shape) < 0.5, values, values.dtype.type(-np.inf))
        mask = graph.input(values) if graph.chance(2) else graph.constant(values, values.dtype)
    lengths = None
    if graph.opset >= 24 and graph.chance(2 * rarely) and past[0] is None:
        lengths = graph.input(graph.random.integers(0, keys + 1, batch).astype(np.int64))
    attributes = graph.maybe(is_causal=(1, 1, 0), scale=(0.125, 1.0, 0.3))
    attributes |= graph.maybe(
        often=rarely,
        softcap=(0.0, 2.0, 30.0),
        softmax_precision=(1, 10, 11),
        qk_matmul_output_mode=(0, 1, 2, 3),
    )
    if graph.opset >= 25:
        attributes |= graph.maybe(left_window_size=(-1, 0, 1, 3), right_window_size=(-1, 0, 2))
    if flat:
        attributes |= {"q_num_heads": heads, "kv_num_heads": heads // groups}
    given: list[Given] = [q, k, v, mask, *past, lengths]
    while given[-1] is None:
        given.pop()
    outputs = [True, *(past[0] is not None or graph.chance(2 * rarely) for _ in range(2)), graph.chance(2 * rarely)]
    while not outputs[-1]:
        outputs.pop()
    return graph.add("Attention", given, outputs, **attributes)


def written_attention(graph: Kernels) -> object:
    """Attention as exporters write it: heads split and joined, a scale and a mask in some form."""
    batch, heads, rows, size = graph.size((1, 2)), graph.any_of((1, 2, 4)), graph.size(), graph.any_of(WIDTHS)
    keys = rows if graph.chance(2) else graph.size()
    width = heads * size
    x = graph.input(graph.numbers((batch, rows, width)))
    y = x if keys == rows and graph.chance(2) else graph.input(graph.numbers((batch, keys, width)))

    def headed(source: Known, length: int, order: list[int]) -> Known | None:
        made: Known | None = source
        if graph.chance(2):
            made = graph.one("MatMul", source, graph.constant(graph.numbers((width, width), width**-0.5)))
        target = graph.integers(batch, length, heads, size) if graph.chance(2) else graph.integers(0, 0, heads, size)
        split = made and graph.one("Reshape", made, target)
        return split and graph.one("Transpose", split, perm=order)

    q, v = headed(x, rows, [0, 2, 1, 3]), headed(y, keys, [0, 2, 1, 3])
    k = headed(y, keys, [0, 2, 3, 1])
    scale = graph.constant(np.full(graph.any_of(((), (1,))), graph.any_of((size**-0.5, 0.5))))
    if q is not None and graph.chance(3):
        q = graph.one("Mul", q, scale)
    scores = graph.one("MatMul", q, k) if q is not None and k is not None else None
    if scores is None or v is None:
        return None
    form = graph.any_of(("none", "Mul", "Div", "add", "where", "both"))
    after: Known | None = scores
    if form in ("Mul", "Div", "both"):
        after = graph.one("Mul" if form == "both" else form, scores, scale)
    shape = graph.any_of(((rows, keys), (batch, 1, 1, keys), (1, 1, rows, keys), (keys,), (batch, heads, rows, keys)))
    if after is not None and form in ("add", "both"):
        mask = np.where(graph.random.random(shape) < 0.7, 0, graph.any_of((-1e4, -np.inf, -1.0)))
        given = graph.input(mask.astype(graph.dtype)) if graph.chance(2) else graph.constant(mask)
        after = graph.one("Add", *([after, given] if graph.chance(2) else [given, after]))
    elif after is not None and form == "where":
        condition = graph.input(graph.random.random(shape) < 0.7)
        fill = graph.constant(graph.any_of((-1e4, -np.inf, 0.0)))
        after = graph.one("Where", condition, *([after, fill] if graph.chance(2) else [fill, after]))
    weights = after and graph.one("Softmax", after, axis=graph.any_of((-1, 3, 3, 2)))
    result = weights and graph.one("MatMul", weights, v)
    swapped = result and graph.one("Transpose", result, perm=[0, 2, 1, 3])
    return swapped and graph.one("Reshape", swapped, graph.integers(0, 0, width))


# --- normalizations, Softmax, reductions ---


def normalization(graph: Kernels) -> object:
    """An operator that normalizes, over whatever axes."""
    op = graph.any_of(
        (
            *("LayerNormalization", "LayerNormalization", "RMSNormalization", "GroupNormalization"),
            *("InstanceNormalization", "LpNormalization", "MeanVarianceNormalization", "BatchNormalization", "LRN"),
        )
    )
    if op in ("LayerNormalization", "RMSNormalization"):
        x = graph.tensor(2, 3, 4)
        if graph.chance(3):
            x = graph.one("Add", x, graph.constant(graph.numbers(x.shape[-1:]))) or x
        axis = graph.axis(x.rank) if graph.chance(2) else -1
        shape = graph.any_of((x.shape[axis:], x.shape[axis:], x.shape[axis:], x.shape[-1:], (1,)))
        scale = [graph.constant(graph.numbers(shape)) for _ in range(graph.any_of((1, 2)) if op[0] == "L" else 1)]
        outputs = [True, graph.chance(6), graph.chance(6)] if op[0] == "L" else [True]
        while not outputs[-1]:
            outputs.pop()
        more = graph.maybe(epsilon=(1e-5, 1e-2, 0.0), stash_type=(1, 1, 10, 11))
        return graph.add(op, [x, *scale], outputs, axis=axis, **more)
    x = graph.image()
    channels = x.shape[1]
    more = graph.maybe(epsilon=(1e-5, 1e-2))
    match op:
        case "GroupNormalization":
            groups = graph.any_of([size for size in range(1, channels + 1) if channels % size == 0])
            vector = groups if graph.opset < 21 else channels
            parameters = [graph.constant(graph.numbers((vector,))) for _ in range(2)]
            return graph.one(op, x, *parameters, num_groups=groups, **more)
        case "InstanceNormalization":
            return graph.one(op, x, *(graph.constant(graph.numbers((channels,))) for _ in range(2)), **more)
        case "LpNormalization":
            return graph.one(op, x, axis=graph.axis(x.rank), p=graph.any_of((1, 2)))
        case "MeanVarianceNormalization":
            return graph.one(op, x, axes=graph.axes(x.rank))
        case "LRN":
            return graph.one(op, x, size=graph.any_of((1, 2, 3, 5)), **graph.maybe(bias=(1.0, 0.5), beta=(0.75, 0.5)))
        case _:
            mean, factor, bias = (graph.constant(graph.numbers((channels,))) for _ in range(3))
            variance = graph.constant(np.abs(graph.numbers((channels,))) + 0.1)
            return graph.one(op, x, factor, bias, mean, variance, **more)


def written_normalization(graph: Kernels) -> object:
    """The same in single steps, with or without the mean, over whatever axes."""
    x = graph.tensor(2, 3, 4)
    axes = graph.any_of(([-1], [-1], [x.rank - 1], graph.axes(x.rank)))

    def mean(value: Known) -> Known | None:
        if graph.opset >= 18:
            return graph.one("ReduceMean", value, graph.integers(*axes))
        return graph.one("ReduceMean", value, axes=axes)

    centred: Known | None = x
    if graph.chance(2):
        middle = mean(x)
        centred = middle and graph.one("Sub", x, middle)
    if centred is None:
        return None
    square = graph.one("Pow", centred, graph.constant(2)) if graph.chance(2) else graph.one("Mul", centred, centred)
    variance = square and mean(square)
    shifted = variance and graph.one("Add", variance, graph.constant(graph.any_of((1e-5, 1e-3))))
    deviation = shifted and graph.one("Sqrt", shifted)
    if deviation is None:
        return None
    if graph.chance(2):
        normal = graph.one("Div", centred, deviation)
    else:
        inverse = graph.one("Reciprocal", deviation)
        normal = inverse and graph.one("Mul", centred, inverse)
    shape = graph.any_of((*[x.shape[-1:]] * 6, (), x.shape[1:], (x.shape[-1], 1)))
    scaled = normal and graph.one("Mul", normal, graph.constant(graph.numbers(shape)))
    return scaled and graph.one("Add", scaled, graph.constant(graph.numbers(shape)))


def softmax(graph: Kernels) -> object:
    """Along any axis, or by its default one."""
    x = graph.tensor(1, 2, 3, 4)
    op = graph.any_of(("Softmax", "Softmax", "LogSoftmax", "Hardmax"))
    return graph.one(op, x, **({"axis": graph.axis(x.rank)} if graph.chance(2) else {}))


def reduction(graph: Kernels) -> object:
    """Over any axes, none or all, which are attributes or inputs."""
    kinds = ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    op, x = f"Reduce{graph.any_of(kinds)}", graph.tensor(1, 2, 3, 4)
    attributes = graph.maybe(keepdims=(0, 1))
    axes = graph.axes(x.rank)
    if graph.opset < (13 if op == "ReduceSum" else 18):
        return graph.one(op, x, **attributes, **({"axes": axes} if graph.chance(2) else {}))
    attributes |= graph.maybe(noop_with_empty_axes=(0, 1))
    given = graph.any_of(([graph.integers(*axes)], [graph.integers(*axes)], [], [graph.integers()]))
    return graph.one(op, x, *given, **attributes)


def selection(graph: Kernels) -> object:
    """What depends on the order of elements: ArgMax, TopK, CumSum."""
    x = graph.tensor(1, 2, 3)
    axis = graph.axis(x.rank)
    match graph.any_of(("ArgMax", "ArgMin", "TopK", "CumSum")):
        case "TopK":
            return graph.add("TopK", [x, graph.integers(graph.any_of((0, 1, 2)))], 2, axis=axis)
        case "CumSum":
            return graph.one(
                "CumSum", x, graph.constant(axis, np.int64), **graph.maybe(exclusive=(0, 1), reverse=(0, 1))
            )
        case op:
            return graph.one(op, x, axis=axis, **graph.maybe(keepdims=(0, 1), select_last_index=(0, 1)))


EMITTERS = (attention, written_attention, normalization, written_normalization, softmax, reduction, selection)
