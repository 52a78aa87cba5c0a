"""Convolutions and products with elementwise tails, on the shapes of real networks, against ONNX Runtime on CUDA.

A model has the convolution several times, each on an input of its own, and runs from a CUDA graph, so that the device
is timed.  Ours is the faster one of the candidates that ``onnxfuse optimize --tune`` chooses from: the fused node, and
ONNX Runtime's convolution with its tail fused.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import onnxfuse
from onnxfuse.cuda.arch import COMMON, devices
from onnxfuse.cuda.conv.choice import RuleChooser
from onnxfuse.cuda.conv.node import fused_convolutions
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.fused.choices import ConvPolicy
from onnxfuse.fused.conv.choosers import CudaChooser
from onnxfuse.model.graph import Model
from onnxfuse.passes import PassContext, resolve
from onnxfuse.shapes.inference import infer
from tools.gpu.sessions import best_of_settings
from tools.messages import one_line

DEPTHWISE, POINTWISE, DENSE, PRODUCT = "depthwise", "pointwise", "dense", "product"
BATCHES = {DEPTHWISE: (1, 16), POINTWISE: (1, 16), DENSE: (1, 16), PRODUCT: (1, 8, 32)}
DTYPES = ("float32", "float16")
COPIES = 8
_MOST_BYTES = 1 << 28


@dataclass(frozen=True)
class Layer:
    """A convolution of a network: channels in and out, rows and columns of its input, and what follows it.

    A product's channels are the columns of its input and of its result, and the rest of ``size`` one row of tokens.
    """

    network: str
    kind: str
    channels: tuple[int, int]
    size: tuple[int, int]
    kernel: int
    stride: int
    tail: str

    @property
    def name(self) -> str:
        """The layer in words."""
        inputs, outputs = self.channels
        width = f"{inputs}" if inputs == outputs else f"{inputs} to {outputs}"
        stride = f", stride {self.stride}" if self.stride > 1 else ""
        rows, columns = self.size
        return f"{self.kind} {self.kernel}x{self.kernel}{stride}, {width} at {rows}x{columns}, {self.tail}"

    @property
    def output_size(self) -> tuple[int, int]:
        """Rows and columns of the result, for padding of half the kernel."""
        rows, columns = self.size
        return -(-rows // self.stride), -(-columns // self.stride)


def _depthwise(network: str, channels: int, size: tuple[int, int], kernel: int, stride: int = 1) -> Layer:
    return Layer(network, DEPTHWISE, (channels, channels), size, kernel, stride, "HardSwish")


def _pointwise(network: str, channels: tuple[int, int], size: tuple[int, int], tail: str) -> Layer:
    return Layer(network, POINTWISE, channels, size, 1, 1, tail)


def _dense(channels: int, size: int) -> Layer:
    return Layer("ResNet-50", DENSE, (channels, channels), (size, size), 3, 1, "Relu")


def _product(channels: tuple[int, int], tail: str) -> Layer:
    return Layer("BERT-base", PRODUCT, channels, (1, 128), 1, 1, tail)


LAYERS = (
    _depthwise("MobileNetV3", 64, (112, 112), 3, 2),
    _depthwise("MobileNetV3", 120, (28, 28), 5),
    _depthwise("MobileNetV3", 480, (14, 14), 3),
    _depthwise("MobileNetV3", 960, (7, 7), 5),
    _depthwise("PP-OCR det", 64, (160, 160), 3),
    _depthwise("PP-OCR det", 256, (40, 40), 5),
    _depthwise("PP-OCR rec", 256, (12, 160), 5),
    _pointwise("MobileNetV3", (24, 72), (56, 56), "SiLU"),
    _pointwise("MobileNetV3", (120, 40), (28, 28), "residual"),
    _pointwise("MobileNetV3", (80, 480), (14, 14), "SiLU"),
    _pointwise("MobileNetV3", (960, 160), (7, 7), "residual"),
    _pointwise("PP-OCR det", (32, 64), (160, 160), "SiLU"),
    _pointwise("PP-OCR det", (256, 256), (40, 40), "SiLU"),
    _pointwise("PP-OCR rec", (256, 256), (12, 160), "residual"),
    _dense(64, 56),
    _dense(128, 28),
    _dense(256, 14),
    _dense(512, 7),
    _product((768, 768), "residual"),
    _product((768, 3072), "Gelu"),
    _product((3072, 768), "residual"),
)


@dataclass
class ConvTimes:
    """One layer.  ``seconds`` of one convolution by what ran it: ``ort`` as it is, ``tail`` with a fused tail, and the
    ``fused`` node; ``errors`` by the same say why there is no time."""

    layer: str
    kind: str
    network: str
    batch: int
    dtype: str
    seconds: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Layer, type and batch."""
        return f"{self.layer}, {self.dtype}, batch {self.batch}"

    @property
    def choice(self) -> str | None:
        """The faster one of our candidates."""
        return min(
            (name for name in ("tail", "fused") if name in self.seconds), key=self.seconds.__getitem__, default=None
        )

    @property
    def ratio(self) -> float | None:
        """ONNX Runtime's time over that of our choice."""
        ours, theirs = self.choice, self.seconds.get("ort")
        return theirs / self.seconds[ours] if ours and theirs else None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return asdict(self)


def jobs() -> Iterator[tuple[Layer, ConvTimes]]:
    """What is to be measured, the most telling first."""
    for batch in sorted({batch for batches in BATCHES.values() for batch in batches}):
        for dtype in DTYPES:
            for layer in (layer for layer in LAYERS if batch in BATCHES[layer.kind]):
                yield layer, ConvTimes(layer.name, layer.kind, layer.network, batch, dtype)


def layer_model(layer: Layer, batch: int, dtype: str) -> onnx.ModelProto:
    """The layer ``copies`` times over, of inputs x0, x1, … and for a residual r0, r1, …; weights are constants."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs, outputs = layer.channels
    group = inputs if layer.kind == DEPTHWISE else 1
    random = np.random.default_rng(0)
    shape = (outputs, inputs // group, layer.kernel, layer.kernel)
    weights = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    multiplies = layer.kind == PRODUCT
    constants = {"w": weights.reshape(shape[:2]).T if multiplies else weights, "b": random.standard_normal(outputs)}
    nodes, read, written = [], [], []
    sizes = [batch, layer.size[1], outputs] if multiplies else [batch, outputs, *layer.output_size]
    own = [batch, layer.size[1], inputs] if multiplies else [batch, inputs, *layer.size]
    for copy in range(copies(layer, batch, dtype)):
        read.append(helper.make_tensor_value_info(f"x{copy}", kind, own))
        nodes += _product_nodes(copy) if multiplies else [_convolution(layer, group, copy)]
        if layer.tail == "residual":
            read.append(helper.make_tensor_value_info(f"r{copy}", kind, sizes))
        nodes += _tail(layer.tail, copy)
        written.append(helper.make_tensor_value_info(f"y{copy}", kind, sizes))
    tensors = [numpy_helper.from_array(array.astype(dtype), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "layers", read, written, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _convolution(layer: Layer, group: int, copy: int) -> onnx.NodeProto:
    return helper.make_node(
        "Conv",
        [f"x{copy}", "w", "b"],
        [f"a{copy}"],
        kernel_shape=[layer.kernel] * 2,
        strides=[layer.stride] * 2,
        pads=[layer.kernel // 2] * 4,
        group=group,
    )


def _product_nodes(copy: int) -> list[onnx.NodeProto]:
    product = helper.make_node("MatMul", [f"x{copy}", "w"], [f"m{copy}"])
    return [product, helper.make_node("Add", [f"m{copy}", "b"], [f"a{copy}"])]


def _tail(tail: str, copy: int) -> list[onnx.NodeProto]:
    a, y = f"a{copy}", f"y{copy}"
    match tail:
        case "SiLU":
            return [helper.make_node("Sigmoid", [a], [f"s{copy}"]), helper.make_node("Mul", [a, f"s{copy}"], [y])]
        case "residual":
            return [helper.make_node("Add", [a, f"r{copy}"], [y])]
        case _:
            return [helper.make_node(tail, [a], [y])]


def copies(layer: Layer, batch: int, dtype: str) -> int:
    """How often the layer is in its model: fewer times where its tensors are large."""
    size = batch * max(layer.channels) * layer.size[0] * layer.size[1] * np.dtype(dtype).itemsize
    return max(1, min(COPIES, _MOST_BYTES // size))


def feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Random inputs, the same every time."""
    random = np.random.default_rng(1)
    found = {}
    by_shape: dict[tuple[int, ...], np.ndarray] = {}  # copies on the device are apart all the same
    for info in model.graph.input:
        shape = tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        if shape not in by_shape:
            dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
            by_shape[shape] = random.standard_normal(shape, np.float32).astype(dtype)
        found[info.name] = by_shape[shape]
    return found


def measure(layer: Layer, job: ConvTimes, on_gpu: bool = True, tune: bool = False) -> None:
    """Fill in the times of one layer; ``tune`` finds the best kernels first."""
    model = layer_model(layer, job.batch, job.dtype)
    values, count = feeds(model), copies(layer, job.batch, job.dtype)
    for name, conv in (("ort", None), ("tail", "none"), ("fused", "all")):
        made = model
        if conv is not None:
            try:
                made = onnxfuse.optimize(
                    model, "cuda", check=False, embed=on_gpu, conv=conv, tune=tune and conv == "all"
                ).model
            except Exception as error:  # whatever it is, the next one may do
                job.errors[name] = one_line(error)
                continue
        data = made.SerializeToString()
        best = best_of_settings(data, values, job.errors, name, library=conv is not None, graph=on_gpu, on_gpu=on_gpu)
        if best is not None:
            job.seconds[name] = best.seconds / count


def compile_ahead(todo: Sequence[tuple[Layer, ConvTimes]]) -> None:
    """Compile the kernels of all fused layers together, which takes all processors; later they come from the cache."""
    options = CudaOptions(devices() or COMMON[-1:])
    cases = []
    for layer, job in todo:
        model = Model.from_proto(layer_model(layer, job.batch, job.dtype))
        context = PassContext(target="cuda", convolutions=CudaChooser(RuleChooser(ConvPolicy.ALL)))
        for step in resolve():
            step.run(model, context)
        infer(model)
        cases += [fused.case for fused in fused_convolutions(model)]
    options.conv_fitter(options.fitter(fast_math=False)).prepare(cases)


def measure_all(
    todo: Sequence[tuple[Layer, ConvTimes]], deadline: float, progress: Callable[[str], None], tune: bool = False
) -> None:
    """Fill in what can be measured until the deadline (of ``time.monotonic``)."""
    progress("convolutions: compiling")
    compile_ahead(todo)
    for layer, job in todo:
        if time.monotonic() > deadline:
            return
        progress(f"convolutions: {job.name}")
        try:
            measure(layer, job, tune=tune)
        except Exception as error:  # one layer that fails leaves the others
            job.errors["layer"] = one_line(error)
