"""Build models node by node with onnx alone."""

from pathlib import Path

import numpy as np
import onnx
from common_weights import draw
from onnx import TensorProto, helper, numpy_helper

Dims = list[int | str]


class Builder:
    """A graph that grows: ``op`` adds a node and returns the name of its output.

    ``dtype`` is the type of the weights and of the constants.
    """

    def __init__(self, dtype: int = TensorProto.FLOAT) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.dtype = dtype

    def input(self, name: str, dims: Dims, dtype: int | None = None) -> str:
        """A graph input."""
        self.inputs.append(helper.make_tensor_value_info(name, self.dtype if dtype is None else dtype, dims))
        return name

    def output(self, value: str, name: str, dims: Dims, dtype: int | None = None) -> None:
        """Make ``value`` a graph output called ``name``."""
        self.nodes.append(helper.make_node("Identity", [value], [name], name=f"out_{name}"))
        self.outputs.append(helper.make_tensor_value_info(name, self.dtype if dtype is None else dtype, dims))

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        """Add a node; the name of its (first) output.  The others are called after it, with ``:1``, ``:2``."""
        name = f"{op_type}_{len(self.nodes)}"
        names = [name, *(f"{name}:{index}" for index in range(1, outputs))]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, name=name, **attributes))
        return name

    def array(self, name: str, values: object, dtype: int | None = None) -> str:
        """An initializer of the builder's type, or of ``dtype``."""
        kind = self.dtype if dtype is None else dtype
        array = np.asarray(values).astype(helper.tensor_dtype_to_np_dtype(kind))
        if name not in {weight.name for weight in self.weights}:
            self.weights.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, *values: int) -> str:
        """A vector of int64."""
        return self.array("ints_" + "_".join(map(str, values)), list(values), TensorProto.INT64)

    def scalar(self, value: float) -> str:
        """A scalar constant."""
        return self.array(f"c_{value}", value)

    def weight(self, name: str, shape: tuple[int, ...], fan_in: int = 0) -> str:
        """Random weights; see ``common_weights.draw``."""
        return self.array(name, draw(name, shape, fan_in))

    def conv(
        self, x: str, name: str, channels: tuple[int, int], kernel: int = 3, stride: int = 1, group: int = 1
    ) -> str:
        """A convolution with a bias that keeps the size (or divides it by the stride)."""
        before, after = channels
        weight = self.weight(f"{name}.weight", (after, before // group, kernel, kernel), before // group * kernel**2)
        bias = self.weight(f"{name}.bias", (after,))
        pad = kernel // 2
        return self.op("Conv", x, weight, bias, pads=[pad] * 4, strides=[stride] * 2, group=group)

    def batch_norm(self, x: str, name: str, channels: int) -> str:
        """A batch normalization in inference mode."""
        parts = [self.weight(f"{name}.{part}", (channels,)) for part in ("scale", "bias", "mean", "var")]
        return self.op("BatchNormalization", x, *parts)

    def linear(self, x: str, name: str, sizes: tuple[int, int]) -> str:
        """``x @ weight + bias``."""
        product = self.op("MatMul", x, self.weight(f"{name}.weight", sizes, sizes[0]))
        return self.op("Add", product, self.weight(f"{name}.bias", (sizes[1],)))

    def layer_norm(self, x: str, name: str, size: int, axes_input: bool = False) -> str:
        """A layer normalization over the last axis, written out as exporters did before opset 17."""

        def mean(value: str) -> str:
            if axes_input:
                return self.op("ReduceMean", value, self.ints(-1))
            return self.op("ReduceMean", value, axes=[-1])

        centred = self.op("Sub", x, mean(x))
        variance = mean(self.op("Pow", centred, self.scalar(2.0)))
        deviation = self.op("Sqrt", self.op("Add", variance, self.scalar(1e-5)))
        scaled = self.op("Mul", self.op("Div", centred, deviation), self.weight(f"{name}.scale", (size,)))
        return self.op("Add", scaled, self.weight(f"{name}.bias", (size,)))

    def graph(self, name: str) -> onnx.GraphProto:
        """The graph as it is now."""
        return helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.weights)

    def save(
        self, path: Path, opset: int = 18, ir_version: int = 8, domains: tuple[str, ...] = (), **storage: object
    ) -> None:
        """Write the model, checked; ``domains`` are those of operators beside the standard's."""
        model = helper.make_model(
            self.graph(path.stem),
            opset_imports=[helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)],
            ir_version=ir_version,
            producer_name="onnxfuse-zoo",
        )
        onnx.save_model(model, path, **storage)
        onnx.checker.check_model(str(path))
