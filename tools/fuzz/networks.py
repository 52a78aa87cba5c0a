"""Random convolutional networks: what the rules around convolutions rewrite, and near misses of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

CHANNELS = (1, 3, 4, 6, 8, 12, 16, 18, 32)
BLOCKS = (
    *("conv", "conv", "depthwise", "grouped", "transposed", "pool", "affine", "affine", "batch_normalization"),
    *("activation", "hard_swish", "gate", "residual", "concat", "shared", "returned", "upsampled", "branches", "parts"),
)
WINDOWS = ((3, 1, 1, 0), (3, 1, 1, 0), (2, 2, 0, 0), (2, 2, 0, 1), (3, 2, 1, 0), (3, 2, 0, 1), (2, 1, 0, 0))
"""Of pools: kernel, stride, padding and whether the size is rounded up, the same along both dimensions."""
ROUNDINGS = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("asymmetric", "ceil"))
MOST_POSITIONS = 2048
ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish", "Elu", "Clip", "PRelu", "SiLU")
FINITE = (0.0, -0.0, 1e-40, 1e30)
SPECIAL = (*FINITE, np.inf, -np.inf, np.nan)


@dataclass
class RandomNetwork:
    """A model of one input, ``feeds`` for it, and whether some of its constants are large or no numbers."""

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    special: bool


@dataclass(frozen=True)
class _Tensor:
    name: str
    shape: tuple[int, int, int, int]

    @property
    def channels(self) -> int:
        return self.shape[1]


def random_network(choose: Random, special: bool = False, blocks: Sequence[str] = BLOCKS) -> RandomNetwork:
    """A network of 2 to 12 blocks of these kinds, each as likely.

    ``special`` puts zeros, denormals, large numbers, infinities or NaN into it.
    """
    make = _Maker(choose, np.random.default_rng(choose.getrandbits(32)), special)
    make.block("conv")
    for _ in range(choose.randint(1, 11)):
        make.block(choose.choice(blocks))
    return make.finish()


@dataclass
class _Maker:
    choose: Random
    random: np.random.Generator
    special: bool
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    tensors: list[_Tensor] = field(default_factory=list)
    outputs: dict[str, _Tensor] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        shape = (self.any_of((1, 2)), self.any_of((3, 4, 16)), self.any_of((1, 5)), 6)
        dims = [self.any_of((size, symbol)) for size, symbol in zip(shape, "nchw", strict=True)]
        dims[1] = shape[1]
        self.input = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, dims)
        self.feeds = {"x": self.random.normal(0, 2, shape).astype(np.float32)}
        self.value = _Tensor("x", shape)

    def any_of(self, choices: Any) -> Any:
        return self.choose.choice(choices)

    def chance(self, times: int) -> bool:
        return self.choose.randrange(times) == times - 1

    def constant(self, values: Any, special: tuple[float, ...] = SPECIAL) -> str:
        array = np.array(values, np.float32)
        if special and self.special and array.size and self.chance(4):
            array.reshape(-1)[self.choose.randrange(array.size)] = self.any_of(special)
        self.count += 1
        tensor = numpy_helper.from_array(array, f"k{self.count}")
        if self.chance(10):
            self.nodes.append(helper.make_node("Constant", [], [tensor.name], value=tensor))
        else:
            self.constants.append(tensor)
        return tensor.name

    def op(self, op_type: str, *inputs: str, shape: tuple[int, ...] | None = None, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], f"{op_type}_{name}", **attributes))
        self.value = _Tensor(name, shape or self.value.shape)  # type: ignore[arg-type]
        return name

    def block(self, kind: str) -> None:
        getattr(self, kind)()
        self.tensors.append(self.value)

    def convolve(self, source: _Tensor, outputs: int, group: int = 1, kernel: int = 1) -> str:
        weights = self.random.normal(0, (kernel * kernel * source.channels / group) ** -0.5,
                                     (outputs, source.channels // group, kernel, kernel))  # fmt: skip
        # ORT's layouts differ in what infinite weights make of padding: they are no matter of the rules.
        inputs = [source.name, self.constant(weights, FINITE)]
        if self.chance(2):
            inputs.append(self.constant(self.random.normal(size=outputs), FINITE))
        size = source.shape[2:]
        attributes: dict[str, Any] = {"group": group}
        if kernel > 1 and (self.chance(3) or min(size) < kernel):
            attributes["auto_pad"] = self.any_of(("SAME_UPPER", "SAME_LOWER"))
        elif kernel > 1 and self.chance(2):
            size = (size[0] - kernel + 1, size[1] - kernel + 1)
        elif kernel > 1:
            attributes["pads"] = [kernel // 2] * 4
        return self.op("Conv", *inputs, shape=(source.shape[0], outputs, *size), **attributes)

    def conv(self) -> None:
        self.convolve(self.value, self.any_of(CHANNELS), kernel=self.any_of((1, 1, 3)))

    def depthwise(self) -> None:
        channels = self.value.channels
        self.convolve(self.value, channels * self.any_of((1, 1, 2)), group=channels, kernel=self.any_of((1, 3)))

    def grouped(self) -> None:
        group = next(size for size in (4, 3, 2, 1) if self.value.channels % size == 0)
        self.convolve(self.value, group * self.any_of((1, 4, 8)), group=group, kernel=self.any_of((1, 3)))

    def branches(self) -> None:
        """A sum of convolutions of one tensor, and of the tensor itself as it is, scaled or normalized."""
        source = self.value
        outputs = self.any_of((source.channels, self.any_of(CHANNELS)))
        total: _Tensor | None = None
        for _ in range(self.choose.randint(2, 5)):
            self.value = source
            match self.any_of(("conv", "conv", "depthwise", "batch_normalization", "affine", "itself")):
                case "conv":
                    self.convolve(source, outputs, kernel=self.any_of((1, 3)))
                case "depthwise":
                    self.convolve(source, source.channels, group=source.channels, kernel=self.any_of((1, 3)))
                case "batch_normalization":
                    self.batch_normalization()
                case "affine":
                    self.affine()
            if total is not None and total.shape == self.value.shape:
                self.op("Add", *self.choose.sample((total.name, self.value.name), 2))
            total = self.value
        if self.chance(8):
            self.outputs[self.value.name] = self.value

    def transposed(self) -> None:
        n, channels, h, w = self.value.shape
        outputs = self.any_of((4, 6, 16))
        weights = self.constant(self.random.normal(0, channels**-0.5, (channels, outputs, 2, 2)), FINITE)
        bias = [self.constant(self.random.normal(size=outputs))] if self.chance(2) else []
        self.op("ConvTranspose", self.value.name, weights, *bias, shape=(n, outputs, h + 1, w + 1))

    def pool(self) -> None:
        kind = self.any_of(("MaxPool", "AveragePool", "GlobalAveragePool"))
        if kind == "GlobalAveragePool":
            self.op(kind, self.value.name, shape=(*self.value.shape[:2], 1, 1))
            return
        kernel, stride, pad, ceil = self.any_of(WINDOWS)
        n, channels, *size = self.value.shape
        if min(size) < kernel:
            kernel, stride, pad, ceil = WINDOWS[0]
        made = [_windows(length, kernel, stride, pad, ceil) for length in size]
        self.op(kind, self.value.name, shape=(n, channels, *made), kernel_shape=[kernel] * 2, strides=[stride] * 2,
                pads=[pad] * 4, ceil_mode=ceil)  # fmt: skip

    def affine(self) -> None:
        channels, width = self.value.channels, self.value.shape[3]
        shapes = [(), (1,), (1, 1, 1), (channels, 1, 1), (1, channels, 1, 1), (1, 1, 1, 1), (width,), (1, 1, 1, width)]
        if channels == 1 and self.chance(2):
            shapes = [(16, 1, 1), (8, 1, 1)]  # makes one channel many
        shape = self.any_of(shapes)
        op_type = self.any_of(("Mul", "Add", "Sub", "Div"))
        numbers = self.random.normal(1, 0.5, shape)
        numbers = np.where(np.abs(numbers) < 0.2, 0.5, numbers)
        operands = [self.value.name, self.constant(numbers)]
        if op_type != "Div" and self.chance(3):
            operands.reverse()
        self.op(op_type, *operands, shape=np.broadcast_shapes(self.value.shape, shape))

    def batch_normalization(self) -> None:
        parameters = [self.random.normal(loc, 0.3, self.value.channels) for loc in (1, 0, 0, 1)]
        names = [self.constant(np.abs(values) + 0.1 if i == 3 else values) for i, values in enumerate(parameters)]
        self.op("BatchNormalization", self.value.name, *names, epsilon=self.any_of((1e-5, 1e-3)))

    def activation(self) -> None:
        x, kind = self.value.name, self.any_of(ACTIVATIONS)
        if kind == "Clip":
            bounds = self.any_of(((0.0, 6.0), (0.0, 1.0), (-1.0, 6.0), (0.001, 6.0)))
            self.op("Clip", x, *(self.constant(bound, special=()) for bound in bounds))
        elif kind == "PRelu":
            self.op("PRelu", x, self.constant(self.random.normal(size=(self.value.channels, 1, 1))))
        elif kind == "SiLU":
            self.op("Mul", x, self.op("Sigmoid", x))
        else:
            self.op(kind, x)

    def hard_swish(self) -> None:
        """The decomposed forms, and some that differ from them in one number."""
        x = self.value.name

        def number(value: float) -> str:
            wrong = value * self.any_of((1.001, 1.5)) if self.chance(12) else value
            shape = self.any_of(((), (), (1,), (1, 1, 1, 1)))
            return self.constant(np.full(shape, wrong), special=())

        def scalar(value: float) -> str:
            return self.constant(value, special=())

        shifted = self.op("Add", x, number(3.0))
        match self.any_of(("clip", "min", "relu")):
            case "clip":
                bounded = self.op(
                    "Clip", shifted, scalar(self.any_of((0, 0, 0, 0.001))), scalar(self.any_of((6, 6, 5)))
                )
            case "min":
                bounded = self.op("Min", self.op("Max", shifted, number(0.0)), number(6.0))
            case _:
                bounded = self.op("Min", number(6.0), self.op("Relu", shifted))
        if self.chance(8):
            self.outputs[shifted] = self.value
        match self.any_of(("gate", "before", "after", "middle")):
            case "gate":
                self.op("Div", bounded, number(6.0))
            case "before":
                self.op("Mul", self.op("Mul", x, number(1 / 6)), bounded)
            case "after":
                self.op("Div", self.op("Mul", x, bounded), number(6.0))
            case _:
                self.op("Mul", x, self.op("Mul", bounded, number(1 / 6)))

    def gate(self) -> None:
        """Squeeze and excitation, with or without a residual."""
        image = self.value
        self.pool_of(image)
        self.convolve(self.value, self.any_of((3, 4, 8)))
        self.op("Relu", self.value.name)
        self.convolve(self.value, self.any_of((1, image.channels, image.channels)))
        gate = self.op(self.any_of(("Sigmoid", "HardSigmoid")), self.value.name)
        operands = [image.name, gate]
        if self.chance(2):
            operands.reverse()
        product = self.op("Mul", *operands, shape=image.shape)
        if self.chance(2):
            self.op("Add", *self.any_of(((image.name, product), (product, image.name))), shape=image.shape)

    def pool_of(self, image: _Tensor) -> None:
        self.value = image
        self.op("GlobalAveragePool", image.name, shape=(*image.shape[:2], 1, 1))

    def residual(self) -> None:
        """An Add or Mul with an earlier tensor of the same shape, or one that broadcasts."""
        for other in reversed(self.tensors[:-1]):
            if _fits(other, self.value):
                self.op(self.any_of(("Add", "Add", "Mul")), self.value.name, other.name,
                        shape=np.broadcast_shapes(other.shape, self.value.shape))  # fmt: skip
                return

    def concat(self) -> None:
        for other in reversed(self.tensors[:-1]):
            n, channels, *size = self.value.shape
            if list(other.shape[2:]) == size and other.shape[0] == n and channels + other.channels <= 64:
                self.op("Concat", self.value.name, other.name, axis=1, shape=(n, channels + other.channels, *size))
                return

    def parts(self) -> None:
        """A tensor in two parts, one of which is computed with, together again or one alone."""
        source = self.value
        axis = self.any_of((1, 1, 2, 3, -1))
        size = source.shape[axis]
        if size < 2:
            return
        cut = self.choose.randint(1, size - 1)
        parts = []
        if self.chance(2):
            sizes = self.integers(cut, size - cut)
            name = f"t{len(self.nodes)}"
            self.nodes.append(helper.make_node("Split", [source.name, sizes], [name, f"{name}b"], axis=axis))
            parts = [
                _Tensor(name, _with_size(source, axis, cut)),
                _Tensor(f"{name}b", _with_size(source, axis, size - cut)),
            ]
        else:
            step = self.any_of((1, 1, 2))
            for begin, end in ((0, cut), (cut, self.any_of((size, 1 << 40)))):
                shape = _with_size(source, axis, len(range(begin, min(end, size), step)))
                bounds = (self.integers(begin), self.integers(end), self.integers(axis), self.integers(step))
                parts.append(_Tensor(self.op("Slice", source.name, *bounds, shape=shape), shape))
        self.value = self.any_of(parts)
        first, second = parts
        if self.chance(2):
            self.op("Concat", *(part.name for part in parts), axis=axis,
                    shape=_with_size(source, axis, first.shape[axis] + second.shape[axis]))  # fmt: skip
        elif first.shape == second.shape:
            self.op("Mul", first.name, second.name)
        self.convolve(self.value, self.any_of(CHANNELS), kernel=self.any_of((1, 3)))

    def integers(self, *values: int) -> str:
        self.count += 1
        self.constants.append(numpy_helper.from_array(np.array(values, np.int64), f"k{self.count}"))
        return f"k{self.count}"

    def shared(self) -> None:
        """The weights of an earlier 1x1 convolution once more, on another tensor."""
        kernels = [item for item in self.constants if len(item.dims) == 4 and list(item.dims[2:]) == [1, 1]]
        fitting = [
            (kernel, tensor) for kernel in kernels for tensor in self.tensors if kernel.dims[1] == tensor.channels
        ]
        if fitting:
            kernel, tensor = self.any_of(fitting)
            n, _, *size = tensor.shape
            self.op("Conv", tensor.name, kernel.name, shape=(n, kernel.dims[0], *size))

    def upsampled(self) -> None:
        """A convolution of a Resize, alone or beside others in a Concat."""
        n, channels, h, w = self.value.shape
        scales = self.any_of(((2, 2), (2, 2), (1, 2), (4, 4), (3, 2), (1, 1)))
        shape = (n, channels, h * scales[0], w * scales[1])
        if shape[2] * shape[3] > MOST_POSITIONS:
            return
        mode, rounding = self.any_of(ROUNDINGS)
        attributes = {"mode": "nearest", "coordinate_transformation_mode": mode, "nearest_mode": rounding}
        alike = [tensor for tensor in self.tensors if tensor.shape == self.value.shape]
        parts = []
        for source in (self.value, *(self.any_of(alike) for _ in range(self.any_of((0, 0, 1, 2))) if alike)):
            factors = self.constant((1, 1, *scales), special=())
            parts.append(self.op("Resize", source.name, "", factors, shape=shape, **attributes))
            if self.chance(4):
                parts.insert(0, self.op("Relu", parts[0]))
        if self.chance(6):
            self.outputs[parts[0]] = _Tensor(parts[0], shape)
        if len(parts) > 1:
            self.op("Concat", *parts, axis=1, shape=(n, channels * len(parts), *shape[2:]))
        self.convolve(self.value, self.any_of(CHANNELS), kernel=self.any_of((1, 3, 3, 5)))

    def returned(self) -> None:
        self.outputs[self.value.name] = self.value

    def finish(self) -> RandomNetwork:
        outputs = {**self.outputs, self.value.name: self.value}
        infos = [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [f"{name}_{axis}" for axis in range(4)])
            for name in outputs
            if name != "x"
        ]
        graph = helper.make_graph(self.nodes, "network", [self.input], infos, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return RandomNetwork(model, self.feeds, self.special)


def _windows(size: int, kernel: int, stride: int, pad: int, ceil: int) -> int:
    """How many windows there are; none begins in the padding at the end."""
    made = (size + 2 * pad - kernel + (stride - 1 if ceil else 0)) // stride + 1
    return made - ((made - 1) * stride >= size + pad)


def _with_size(tensor: _Tensor, axis: int, size: int) -> tuple[int, int, int, int]:
    shape = list(tensor.shape)
    shape[axis] = size
    return tuple(shape)  # type: ignore[return-value]


def _fits(first: _Tensor, second: _Tensor) -> bool:
    return all(a == b or 1 in (a, b) for a, b in zip(first.shape, second.shape, strict=True))
