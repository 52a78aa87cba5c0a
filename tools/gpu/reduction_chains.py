"""Chains and single operators that reduce, written once for every system that computes them.

Each is a function of a namespace of operations and its inputs: ``ReducingNodes`` makes ONNX nodes of it, and
``ReducingOps`` computes it with NumPy, PyTorch or JAX.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tools.gpu.chains import ArrayOps, OnnxOps

OPSET = 21
EPSILON = 1e-5
CONSTANTS_OF = 0.001
"""The megabytes for which a model's constants are drawn, whatever the size of its inputs."""
Axes = tuple[int, ...]


class ReducingNodes(OnnxOps):
    """Collects ONNX nodes, of reductions and normalizations too."""

    def _node(self, operator: str, operands: Sequence[str], **attributes: Any) -> str:
        output = f"v{len(self.nodes)}"
        node = helper.make_node(operator, list(operands), [output], f"{operator}_{len(self.nodes)}", **attributes)
        self.nodes.append(node)
        return output

    def _axes(self, axes: Axes) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.array(axes, np.int64), name))
        return name

    def mean(self, x: str, axes: Axes) -> str:
        """The mean along axes, which stay as 1."""
        return self._node("ReduceMean", [x, self._axes(axes)])

    def sum(self, x: str, axes: Axes) -> str:
        """The sum along axes, which stay as 1."""
        return self._node("ReduceSum", [x, self._axes(axes)])

    def max(self, x: str, axes: Axes) -> str:
        """The maximum along axes, which stay as 1."""
        return self._node("ReduceMax", [x, self._axes(axes)])

    def softmax(self, x: str, axis: int) -> str:
        """Along an axis."""
        return self._node("Softmax", [x], axis=axis)

    def log_softmax(self, x: str, axis: int) -> str:
        """Along an axis."""
        return self._node("LogSoftmax", [x], axis=axis)

    def layer_norm(self, x: str, scale: str, bias: str) -> str:
        """Of the last axis."""
        return self._node("LayerNormalization", [x, scale, bias], axis=-1, epsilon=EPSILON)

    def group_norm(self, x: str, scale: str, bias: str, groups: int) -> str:
        """Of groups of channels of an image."""
        return self._node("GroupNormalization", [x, scale, bias], num_groups=groups, epsilon=EPSILON)

    def instance_norm(self, x: str, scale: str, bias: str) -> str:
        """Of each channel of an image."""
        return self._node("InstanceNormalization", [x, scale, bias], epsilon=EPSILON)

    def gelu(self, x: str) -> str:
        """With the error function."""
        return self._node("Gelu", [x])

    def transpose(self, x: str, order: Axes) -> str:
        """With the axes in this order."""
        return self._node("Transpose", [x], perm=list(order))

    def concat(self, x: str, y: str, axis: int) -> str:
        """Along an axis."""
        return self._node("Concat", [x, y], axis=axis)


class ReducingOps(ArrayOps):
    """The same on arrays; compilers fuse what these are made of."""

    def mean(self, x: Any, axes: Axes) -> Any:
        """The mean along axes, which stay as 1."""
        return self._np.mean(x, axis=axes, keepdims=True)

    def sum(self, x: Any, axes: Axes) -> Any:
        """The sum along axes, which stay as 1."""
        return self._np.sum(x, axis=axes, keepdims=True)

    def max(self, x: Any, axes: Axes) -> Any:
        """The maximum along axes, which stay as 1."""
        return (self._special.get("amax") or self._np.max)(x, axis=axes, keepdims=True)

    def softmax(self, x: Any, axis: int) -> Any:
        """Along an axis."""
        power = self._np.exp(x - self.max(x, (axis,)))
        return power / self.sum(power, (axis,))

    def log_softmax(self, x: Any, axis: int) -> Any:
        """Along an axis."""
        shifted = x - self.max(x, (axis,))
        return shifted - self._np.log(self.sum(self._np.exp(shifted), (axis,)))

    def _normalized(self, x: Any, axes: Axes) -> Any:
        centred = x - self.mean(x, axes)
        return centred / self._np.sqrt(self.mean(centred * centred, axes) + EPSILON)

    def layer_norm(self, x: Any, scale: Any, bias: Any) -> Any:
        """Of the last axis."""
        return self._normalized(x, (-1,)) * scale + bias

    def group_norm(self, x: Any, scale: Any, bias: Any, groups: int) -> Any:
        """Of groups of channels of an image."""
        n, c, h, w = x.shape
        normal = self._normalized(x.reshape(n, groups, c // groups, h, w), (2, 3, 4)).reshape(n, c, h, w)
        return normal * scale.reshape(1, c, 1, 1) + bias.reshape(1, c, 1, 1)

    def instance_norm(self, x: Any, scale: Any, bias: Any) -> Any:
        """Of each channel of an image."""
        return self._normalized(x, (2, 3)) * scale.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)

    def gelu(self, x: Any) -> Any:
        """With the error function."""
        return 0.5 * x * (self.erf(x * 0.70710678) + 1.0)

    def transpose(self, x: Any, order: Axes) -> Any:
        """With the axes in this order."""
        return x.permute(order) if hasattr(x, "permute") else self._np.transpose(x, order)

    def concat(self, x: Any, y: Any, axis: int) -> Any:
        """Along an axis."""
        return (self._special.get("concat") or self._np.concatenate)([x, y], axis)


@dataclass(frozen=True)
class Reducing:
    """``inputs`` are the shapes of the inputs, in which 0 stands for what follows from a size in bytes, or is ``usual``
    in models that are deployed; those without are constants.  ``build(ops, *inputs)`` returns the result."""

    name: str
    inputs: tuple[tuple[int, ...], ...]
    build: Callable[..., Any]
    usual: int
    ops: ClassVar[type[ArrayOps]] = ReducingOps

    def shapes(self, megabytes: float | None, dtype: str) -> list[tuple[int, ...]]:
        """The shapes for a first input of so many 10^6 bytes; None for the usual ones."""
        row = math.prod(size for size in self.inputs[0] if size) * np.dtype(dtype).itemsize
        count = self.usual if megabytes is None else max(1, round(megabytes * 1e6 / row))
        return [tuple(size or count for size in shape) for shape in self.inputs]

    def size(self, megabytes: float | None) -> str:
        """That of the first input: so many megabytes, or the usual shape."""
        if megabytes is not None:
            return f"{megabytes:g} MB"
        return "x".join(map(str, self.shapes(None, "float32")[0]))

    def arrays(self, megabytes: float | None, dtype: str) -> list[np.ndarray]:
        """Random inputs, the same every time."""
        random = np.random.default_rng(0)
        return [
            np.resize(random.standard_normal(min(math.prod(shape), 1_000_003), np.float32).astype(dtype), shape)
            for shape in self.shapes(megabytes, dtype)
        ]


CHAINS = (
    Reducing("L2 normalize", ((0, 768),), lambda op, x: op.div(x, op.sqrt(op.sum(op.mul(x, x), (-1,)))), 64 * 1024),
    Reducing(
        "softmax of scaled and masked",
        ((0, 12, 256, 256), (0, 1, 1, 256)),
        lambda op, x, mask: op.softmax(op.add(op.mul(x, 0.125), mask), -1),
        8,
    ),
    Reducing(
        "GELU of LayerNorm of a sum",
        ((0, 512, 768), (0, 512, 768), (768,), (768,)),
        lambda op, x, r, scale, bias: op.gelu(op.layer_norm(op.add(x, r), scale, bias)),
        16,
    ),
    Reducing(
        "SiLU of GroupNorm",
        ((0, 320, 64, 64), (320,), (320,)),
        lambda op, x, scale, bias: _silu(op, op.group_norm(x, scale, bias, 32)),
        2,
    ),
    Reducing(
        "ReLU of InstanceNorm",
        ((0, 64, 256, 256), (64,), (64,)),
        lambda op, x, scale, bias: op.relu(op.instance_norm(x, scale, bias)),
        4,
    ),
    Reducing("mean over channels of SiLU", ((0, 256, 56, 56),), lambda op, x: op.mean(_silu(op, x), (1,)), 8),
    Reducing("deviation of rows", ((0, 4096),), lambda op, x: _deviation(op, x), 2048),
    Reducing("scaled log softmax", ((0, 32000),), lambda op, x: op.log_softmax(op.mul(x, 0.7), -1), 64),
    Reducing(
        "GELU of a transpose, residual",
        ((0, 196, 384), (0, 384, 196)),
        lambda op, x, r: op.add(op.gelu(op.transpose(x, (0, 2, 1))), r),
        32,
    ),
    Reducing(
        "concat of two activations",
        ((0, 64, 56, 56), (0, 64, 56, 56)),
        lambda op, x, y: op.concat(op.relu(x), op.sigmoid(y), 1),
        8,
    ),
)
"""Those of which one node is wanted each."""

_ALONE = (
    *(
        Reducing(f"{what} of {where}", (shape,), lambda op, x, what=what, axes=axes: getattr(op, what)(x, axes), usual)
        for where, shape, axes, usual in (("rows", (0, 1024), (-1,), 4096), ("columns", (0, 1024, 64), (1,), 12))
        for what in ("sum", "mean", "max")
    ),
    Reducing("softmax of rows", ((0, 1024),), lambda op, x: op.softmax(x, -1), 12 * 1024),
    Reducing("softmax over channels", ((0, 150, 64, 64),), lambda op, x: op.softmax(x, 1), 1),
    Reducing(
        "LayerNorm", ((0, 1024), (1024,), (1024,)), lambda op, x, scale, bias: op.layer_norm(x, scale, bias), 4096
    ),
    Reducing(
        "InstanceNorm", ((0, 64, 64, 64), (64,), (64,)), lambda op, x, scale, bias: op.instance_norm(x, scale, bias), 4
    ),
)

OPERATORS = tuple(
    Reducing(one.name, one.inputs, lambda op, x, *rest, one=one: one.build(op, op.mul(x, 0.7), *rest), one.usual)
    for one in _ALONE
)
"""Single operators, of a product: what has no neighbour is left to ONNX Runtime."""

SUBJECTS = {one.name: one for one in (*CHAINS, *OPERATORS)}


def _silu(op: Any, x: Any) -> Any:
    return op.mul(x, op.sigmoid(x))


def _deviation(op: Any, x: Any) -> Any:
    centred = op.sub(x, op.mean(x, (-1,)))
    return op.sqrt(op.mean(op.mul(centred, centred), (-1,)))


def onnx_model(subject: Reducing, dtype: str) -> onnx.ModelProto:
    """The subject as ONNX nodes, on inputs x0, x1, …; what has a size that is open is an input, all else constant."""
    op = ReducingNodes(dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs, names = [], []
    for index, (shape, array) in enumerate(zip(subject.inputs, subject.arrays(CONSTANTS_OF, dtype), strict=True)):
        names.append(f"x{index}")
        if 0 in shape:
            inputs.append(helper.make_tensor_value_info(f"x{index}", kind, [size or "n" for size in shape]))
        else:
            op.initializers.append(numpy_helper.from_array(array, f"x{index}"))
    result = subject.build(op, *names)
    one, two = _result_shapes(subject.name)
    known = [size if size == larger else "n" for size, larger in zip(one, two, strict=True)]
    outputs = [helper.make_tensor_value_info(result, kind, known)]
    graph = helper.make_graph(op.nodes, "subject", inputs, outputs, op.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def output_shape(subject: Reducing, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of the result."""
    one, two = _result_shapes(subject.name)
    count = next(size for size, spec in zip(shapes[0], subject.inputs[0], strict=True) if not spec)
    return tuple(size + (larger - size) * (count - 1) for size, larger in zip(one, two, strict=True))


@cache
def _result_shapes(name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """That of a subject where the size that is open is 1, and where it is 2."""
    subject = SUBJECTS[name]
    ops = ReducingOps(np, np.dtype("float32"), {"erf": np.tanh})
    found = []
    for count in (1, 2):
        with np.errstate(all="ignore"):
            arrays = [np.zeros([size or count for size in shape], np.float32) for shape in subject.inputs]
            found.append(subject.build(ops, *arrays).shape)
    return found[0], found[1]


def feeds(subject: Reducing, megabytes: float | None, dtype: str) -> dict[str, np.ndarray]:
    """What ``onnx_model`` reads."""
    arrays = subject.arrays(megabytes, dtype)
    return {
        f"x{index}": array
        for index, (shape, array) in enumerate(zip(subject.inputs, arrays, strict=True))
        if 0 in shape
    }
