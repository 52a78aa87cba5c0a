"""Random models of operators that have kernels, in ONNX Runtime and perhaps here, with whatever attributes they take.

Attention in all its forms, normalizations, Softmax and reductions over any axes, convolutions, pools, Resize, Einsum,
recurrent networks, optional inputs and outputs, sequences, functions with attributes; of tensors down to a pixel, and
now and then without elements.  No shape is worked out here: each node runs alone in ONNX Runtime as it is added, on the
values that the model has there, and is left out if that refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfuse.run.sessions import Session, SessionError, Value

OLDEST_OPSET, NEWEST_OPSET = 11, 26
SIZES = (1, 1, 2, 3, 4, 5, 7, 8)
CHANNELS = (1, 2, 3, 4, 8, 16)
WIDTHS = (1, 2, 4, 8, 12, 32)
MAX_ELEMENTS = 1 << 14
FUNCTION_DOMAIN = "fuzz.kernels"
_FLOATS = (np.float32, np.float64, np.float16)
_UNARY = (
    *("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Exp", "Erf", "Softplus", "HardSwish", "LeakyRelu", "Elu", "Identity"),
    *("Gelu", "Mish", "Sqrt", "Reciprocal", "Round", "Sign", "Selu", "HardSigmoid"),
)
_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu")


@dataclass(frozen=True)
class Known:
    """A tensor of the model, or a sequence of such, and what it is for the model's feeds."""

    name: str
    value: Value

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a tensor."""
        return tuple(self.value.shape)

    @property
    def rank(self) -> int:
        """Of a tensor."""
        return len(self.value.shape)


Given = Known | None


class Kernels:
    """A model in the making."""

    def __init__(self, choose: Random, oldest: int) -> None:
        self.choose = choose
        self.random = np.random.default_rng(choose.getrandbits(32))
        self.opset = max(oldest, self.any_of((choose.randint(OLDEST_OPSET, NEWEST_OPSET), 17, 20, 23, 24, 26)))
        self.dtype = self.any_of((np.float32, np.float32, np.float32, np.float32, *_FLOATS))
        self.symbolic = self.chance(2)
        self.empty = self.chance(12)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.functions: dict[str, onnx.FunctionProto] = {}
        self.feeds: dict[str, np.ndarray] = {}
        self.tensors: list[Known] = []
        self.read: set[str] = set()
        self.count = 0
        self.chained = False
        """Whether each node reads the latest tensor that it can."""

    # --- choices ---

    def any_of(self, choices: Sequence[Any]) -> Any:
        """One of the choices."""
        return self.choose.choice(choices)

    def chance(self, times: int) -> bool:
        """True once in so many times."""
        return self.choose.randrange(times) == 0

    def size(self, sizes: Sequence[int] = SIZES) -> int:
        """A size of a dimension; 0 in some models."""
        return 0 if self.empty and self.chance(4) else int(self.any_of(sizes))

    def axes(self, rank: int) -> list[int]:
        """Some axes of a tensor, from either end."""
        some = self.choose.sample(range(rank), self.choose.randint(1, rank)) if rank else []
        return [axis - rank if self.chance(3) else axis for axis in some]

    def axis(self, rank: int) -> int:
        """An axis, from either end."""
        return self.choose.randrange(rank) - (rank if self.chance(3) else 0)

    def maybe(self, *, often: int = 2, **attributes: tuple[Any, ...]) -> dict[str, Any]:
        """Some of the attributes, each with one of its values; once in ``often`` times."""
        return {name: self.any_of(values) for name, values in attributes.items() if self.chance(often)}

    # --- tensors ---

    def numbers(self, shape: Sequence[int], scale: float = 1.0, dtype: Any = None) -> np.ndarray:
        """Normally distributed."""
        return np.asarray(self.random.normal(0, scale, tuple(shape))).astype(dtype or self.dtype)

    def input(self, value: np.ndarray) -> Known:
        """An input of the model, whose dimensions may have names or none."""
        name = f"x{len(self.feeds)}"
        dims: list[Any] = [
            self.any_of((size, f"{name}_{axis}", None)) if self.symbolic else size
            for axis, size in enumerate(value.shape)
        ]
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, None if self.chance(40) else dims))
        self.feeds[name] = value
        return self._known(name, value)

    def constant(self, value: Any, dtype: Any = None) -> Known:
        """An initializer, a Constant node, or an input all the same."""
        array = np.asarray(value, dtype or self.dtype)
        if self.chance(12):
            return self.input(array)
        self.count += 1
        name = f"k{self.count}"
        tensor = numpy_helper.from_array(array, name)
        if self.chance(10):
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.initializers.append(tensor)
        return Known(name, array)

    def integers(self, *values: int) -> Known:
        """A vector of sizes, axes or indices, most often a constant."""
        return self.constant(np.array(values, np.int64), np.int64)

    def pick(self, accepted: Callable[[np.ndarray], bool] = lambda value: True) -> Known | None:
        """A tensor of the model's type, the latest more often."""
        found = [
            known
            for known in self.tensors
            if isinstance(known.value, np.ndarray) and known.value.dtype == self.dtype and accepted(known.value)
        ]
        if not found or self.chained:
            return found[-1] if found else None
        return found[max(self.choose.randrange(len(found)), self.choose.randrange(len(found)))]

    def tensor(self, *ranks: int) -> Known:
        """A tensor of one of these ranks, an input of new ones now and then."""
        found = None if self.chance(6) else self.pick(lambda value: value.ndim in ranks)
        return found or self.input(self.numbers([self.size() for _ in range(self.any_of(ranks))]))

    def image(self, spatial: int | None = None) -> Known:
        """A batch of images of one to three dimensions."""
        ranks = (3, 4, 4, 5) if spatial is None else (spatial + 2,)
        new = self.chance(6) and not self.chained
        found = None if new else self.pick(lambda value: value.ndim in ranks and 0 not in value.shape[:2])
        if found is not None:
            return found
        sizes = [self.size() for _ in range(self.any_of(ranks) - 2)]
        return self.input(
            self.numbers([self.any_of((1, 2)), self.any_of(CHANNELS[: 4 if self.empty else None]), *sizes])
        )

    # --- nodes ---

    def add(
        self, op: str, inputs: Sequence[Given], outputs: int | Sequence[bool] = 1, domain: str = "", **attributes: Any
    ) -> list[Known] | None:
        """A node; its outputs, those that are not left out, or None if ONNX Runtime refuses it.

        ``outputs`` is how many there are, or for each whether it is there.
        """
        there = [True] * outputs if isinstance(outputs, int) else list(outputs)
        self.count += 1
        names = [f"t{self.count}_{index}" if wanted else "" for index, wanted in enumerate(there)]
        given = ["" if one is None else one.name for one in inputs]
        node = helper.make_node(op, given, names, f"{op}_{self.count}", domain=domain, **attributes)
        feeds = {one.name: one.value for one in inputs if one is not None}
        try:
            values = self._run(node, feeds)
        except SessionError:
            return None
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        # ONNX Runtime ends the process where a pool in its blocked layout has no elements.
        if any(value.size > MAX_ELEMENTS or (value.size == 0 and not self.empty) for value in arrays):
            return None
        self.nodes.append(node)
        self.read.update(given)
        return [self._known(name, value) for name, value in zip(filter(None, names), values, strict=True)]

    def one(self, op: str, *inputs: Given, **attributes: Any) -> Known | None:
        """A node of one output."""
        made = self.add(op, inputs, 1, **attributes)
        return None if made is None else made[0]

    def _run(self, node: onnx.NodeProto, feeds: dict[str, Value]) -> list[Value]:
        """What the node makes of values."""
        infos = [_info(name, value) for name, value in feeds.items()]
        results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "one", infos, results)
        model = self._model(graph, [self.functions[node.op_type]] if node.domain else [])
        return Session(model.SerializeToString(), threads=1, optimized=False).run(feeds)

    def _model(self, graph: onnx.GraphProto, functions: Sequence[onnx.FunctionProto]) -> onnx.ModelProto:
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(FUNCTION_DOMAIN, 1)] if functions else []
        return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)

    def _known(self, name: str, value: Value) -> Known:
        known = Known(name, value)
        self.tensors.append(known)
        return known

    def finish(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]] | None:
        """The model and its inputs; None if there is no node.  What nothing reads is an output, and some that is."""
        made = {name for node in self.nodes for name in node.output if node.op_type != "Constant"}
        tensors = [one for one in self.tensors if one.name in made and isinstance(one.value, np.ndarray)]
        wanted = [one for one in tensors if one.name not in self.read or self.chance(10)]
        if not wanted:
            return None
        outputs = []
        for one in wanted:
            kind = helper.np_dtype_to_tensor_dtype(one.value.dtype)
            dims = [f"{one.name}_{axis}" for axis in range(one.rank)]
            outputs.append(helper.make_tensor_value_info(one.name, kind, dims))
        graph = helper.make_graph(self.nodes, "kernels", self.inputs, outputs, self.initializers)
        return self._model(graph, list(self.functions.values())), self.feeds


def _info(name: str, value: Value) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        kind = helper.np_dtype_to_tensor_dtype(value[0].dtype)
        return helper.make_tensor_sequence_value_info(name, kind, None)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), list(value.shape))


def random_kernels(choose: Random, emitters: Sequence[str] | None = None) -> tuple[onnx.ModelProto, dict[str, Value]]:
    """A model of one to a few operators with elementwise nodes around them; ``emitters`` names the kinds."""
    names = list(EMITTERS) if emitters is None else list(emitters)
    while True:
        own = [choose.choice(names) for _ in range(choose.choice((1, 1, 2, 3, 5)))]
        graph = Kernels(choose, max(_SINCE.get(name, OLDEST_OPSET) for name in own))
        with np.errstate(all="ignore"):
            for name in own:
                if graph.chance(3):
                    elementwise(graph)
                EMITTERS[name](graph)
                for _ in range(graph.any_of((0, 1, 1, 3))):
                    elementwise(graph)
        if (found := graph.finish()) is not None:
            return found


_SINCE = {"attention": 23, "optional": 18, "function": 17}
"""The opsets of what is not in the oldest."""

EMITTERS: dict[str, Callable[[Kernels], object]] = {}
"""What adds an operator, or a pattern of several, by name."""


def _kernel(emitter: Callable[[Kernels], object]) -> Callable[[Kernels], object]:
    EMITTERS[emitter.__name__] = emitter
    return emitter


def elementwise(graph: Kernels) -> object:
    """A function, or two tensors, one a constant that broadcasts or an earlier one."""
    x = graph.tensors[-1] if graph.tensors and graph.chance(2) else graph.pick()
    if x is None or not isinstance(x.value, np.ndarray) or x.value.dtype != graph.dtype:
        return None
    if graph.chance(2):
        return graph.one(graph.any_of(_UNARY), x)
    other = graph.pick(lambda value: value.shape == x.shape) if graph.chance(2) else None
    if other is None:
        shape = [graph.any_of((1, size)) for size in x.shape][graph.choose.randint(0, x.rank) :]
        other = graph.constant(graph.numbers(shape, 0.5) + graph.dtype(1.5))
    op = graph.any_of(_BINARY)
    # Only the slope of a PRelu may be broadcast, which ONNX Runtime does not ask for.
    operands = [x, other] if op == "PRelu" or graph.chance(2) else [other, x]
    return graph.one(op, *operands)


# --- attention ---


@_kernel
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


@_kernel
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


@_kernel
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


@_kernel
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


@_kernel
def softmax(graph: Kernels) -> object:
    """Along any axis, or by its default one."""
    x = graph.tensor(1, 2, 3, 4)
    op = graph.any_of(("Softmax", "Softmax", "LogSoftmax", "Hardmax"))
    return graph.one(op, x, **({"axis": graph.axis(x.rank)} if graph.chance(2) else {}))


@_kernel
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


@_kernel
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


@_kernel
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


@_kernel
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


@_kernel
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


@_kernel
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


@_kernel
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


@_kernel
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


@_kernel
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


# --- products and recurrence ---


@_kernel
def product(graph: Kernels) -> object:
    """MatMul or Gemm in any form, with what follows that ONNX Runtime or a rule may take in."""
    if graph.chance(2):
        x = graph.tensor(1, 2, 3, 4)
        width = x.shape[-1]
        shape = graph.any_of(((width, graph.size(CHANNELS)), (width,), (*x.shape[:-2], width, 3)))
        return graph.one("MatMul", x, graph.constant(graph.numbers(shape, max(width, 1) ** -0.5)))
    x = graph.tensor(2)
    attributes = graph.maybe(transA=(0, 1), transB=(0, 1), alpha=(1.0, 0.5), beta=(1.0, 2.0, 0.0))
    inner, columns = x.shape[1 - attributes.get("transA", 0)], graph.size(CHANNELS)
    shape = (columns, inner) if attributes.get("transB") else (inner, columns)
    bias = graph.any_of(((columns,), (), (1, columns), (x.shape[attributes.get("transA", 0)], 1)))
    more = [graph.constant(graph.numbers(bias))] if graph.chance(2) else []
    return graph.one("Gemm", x, graph.constant(graph.numbers(shape)), *more, **attributes)


_EQUATIONS = {
    "ij,jk->ik": (2, 2), "bij,bjk->bik": (3, 3), "bhid,bhjd->bhij": (4, 4), "...ij->...ji": (3,), "ii->i": (2,),
    "ij->": (2,), "i,j->ij": (1, 1), "bij,bij->b": (3, 3), "ij,ij->ij": (2, 2), "bhwc,hkc->bhwk": (4, 3), "ij": (2,),
    "bi,bij,bj->b": (2, 3, 2),
}  # fmt: skip


@_kernel
def einsum(graph: Kernels) -> object:
    """A product by an equation."""
    equation = graph.any_of(list(_EQUATIONS))
    sizes: dict[str, int] = {}
    operands = []
    for indices in equation.partition("->")[0].split(","):
        own = indices.replace("...", "b")
        # Without elements ONNX Runtime ends the process.
        operands.append(graph.input(graph.numbers([sizes.setdefault(index, graph.any_of(SIZES)) for index in own])))
    return graph.one("Einsum", *operands, equation=equation)


@_kernel
def recurrence(graph: Kernels) -> object:
    """LSTM, GRU or RNN in any direction, with any of its inputs and outputs."""
    op = graph.any_of(("LSTM", "GRU", "RNN"))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    # Of an empty batch ONNX Runtime ends the process.
    length, batch, width, hidden = (graph.any_of(sizes) for sizes in (SIZES, (1, 2), CHANNELS, (1, 2, 4, 8)))
    found = graph.pick(lambda value: value.ndim == 3 and value.size > 0)
    x = found if found is not None and graph.chance(2) else graph.input(graph.numbers((length, batch, width)))
    length, batch, width = x.shape
    direction = graph.any_of(("forward", "reverse", "bidirectional"))
    count = 2 if direction == "bidirectional" else 1

    def tensor(*shape: int, chance: int = 1) -> Given:
        return graph.constant(graph.numbers(shape, 0.5)) if graph.chance(chance) else None

    given = [x, tensor(count, gates * hidden, width), tensor(count, gates * hidden, hidden)]
    given.append(tensor(count, 2 * gates * hidden, chance=2))
    given.append(graph.constant(graph.random.integers(1, length + 1, batch), np.int32) if graph.chance(3) else None)
    given.append(tensor(count, batch, hidden, chance=2))
    if op == "LSTM":
        given += [tensor(count, batch, hidden, chance=2), tensor(count, 3 * hidden, chance=3)]
    while given[-1] is None:
        given.pop()
    attributes = graph.maybe(clip=(0.5, 2.0))
    if op == "GRU":
        attributes |= graph.maybe(linear_before_reset=(0, 1))
    if op == "LSTM":
        attributes |= graph.maybe(input_forget=(0, 1))
    if op == "RNN" and graph.chance(2):
        attributes["activations"] = [graph.any_of(("Tanh", "Relu", "Sigmoid"))] * count
    outputs = [graph.chance(2), graph.chance(2), op == "LSTM" and graph.chance(2)]
    outputs[0] = outputs[0] or not any(outputs)
    while not outputs[-1]:
        outputs.pop()
    return graph.add(op, given, outputs, hidden_size=hidden, direction=direction, **attributes)


# --- what is not a tensor, and functions ---


@_kernel
def sequence(graph: Kernels) -> object:
    """Tensors put into a sequence, and taken out again one by one or together."""
    x = graph.tensor(1, 2, 3)
    axis = graph.axis(x.rank)
    if graph.chance(2):
        others = [x, *(graph.one("Neg", x) for _ in range(graph.any_of((0, 1, 2))))]
        known = [one for one in others if one is not None]
        made = graph.one("SequenceConstruct", *known)
    else:
        parts = [graph.constant(graph.any_of((1, 2)), np.int64)] if graph.chance(2) else []
        made = graph.one("SplitToSequence", x, *parts, axis=axis, **graph.maybe(keepdims=(0, 1)))
    if made is None or not made.value:
        return None
    graph.one("SequenceAt", made, graph.constant(graph.any_of((0, -1)), np.int64))
    return graph.one("ConcatFromSequence", made, axis=axis)


@_kernel
def optional(graph: Kernels) -> object:
    """A tensor in an optional, and out of it."""
    x = graph.tensor(1, 2, 3)
    return graph.one("OptionalHasElement", x) and graph.one("OptionalGetElement", x)


@_kernel
def clipped(graph: Kernels) -> object:
    """Clip and others with inputs left out, or with more than are usual."""
    x = graph.tensor(0, 1, 2, 3, 4)
    low, high = graph.constant(-0.5), graph.constant(0.75)
    match graph.any_of(("Clip", "Clip", "Sum", "Mean", "Dropout")):
        case "Clip":
            given = graph.any_of(([low, high], [None, high], [low], [low, None], []))
            return graph.one("Clip", x, *given)
        case "Dropout":
            return graph.add("Dropout", [x], [True, graph.chance(2)])
        case op:
            return graph.one(op, *([x] * graph.any_of((1, 2, 3))), low)


@_kernel
def function(graph: Kernels) -> object:
    """A function of the model's own whose nodes take their attributes from the call, more than once."""
    x = graph.tensor(2, 3)
    name, attribute, values = graph.any_of(
        (("Leaky", "alpha", (0.1, 0.5)), ("Along", "axis", (0, 1, -1)), ("Moments", "epsilon", (1e-5, 1e-1)))
    )
    if name not in graph.functions:
        graph.functions[name] = _function(name, attribute, graph.opset)
    scale = [graph.constant(graph.numbers(x.shape[-1:]))] if name == "Moments" else []
    for _ in range(graph.any_of((1, 2))):
        graph.add(name, [x, *scale], 1, FUNCTION_DOMAIN, **{attribute: graph.any_of(values)})
    return None


def _function(name: str, attribute: str, opset: int) -> onnx.FunctionProto:
    """An activation before a sum, a Softmax along an axis, or a normalization of a residual."""
    inputs, kind = ["x"], onnx.AttributeProto.FLOAT
    if name == "Leaky":
        nodes = [helper.make_node("LeakyRelu", ["x"], ["a"]), helper.make_node("Add", ["a", "x"], ["y"])]
    elif name == "Along":
        kind = onnx.AttributeProto.INT
        nodes = [helper.make_node("Softmax", ["x"], ["a"]), helper.make_node("Mul", ["a", "x"], ["y"])]
    else:
        inputs.append("scale")
        nodes = [
            helper.make_node("LayerNormalization", ["a", "scale"], ["y"]),
            helper.make_node("Add", ["x", "x"], ["a"]),
        ]
        nodes.reverse()
    owner = next(node for node in nodes if node.op_type not in ("Add", "Mul"))
    owner.attribute.append(onnx.AttributeProto(name=attribute, type=kind, ref_attr_name=attribute))
    return helper.make_function(
        FUNCTION_DOMAIN, name, inputs, ["y"], nodes, [helper.make_opsetid("", opset)], [attribute]
    )
