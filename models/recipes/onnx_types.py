"""Models by number type: int8 with quantize and dequantize nodes, bfloat16, double, bytes, and a very large one."""

from pathlib import Path

import numpy as np
import onnx
from common_builder import Builder
from common_weights import draw
from onnx import TensorProto, external_data_helper, helper


def _requantize(b: Builder, x: str, scale: float, kind: int = TensorProto.UINT8) -> str:
    """To 8 bits and back, as quantization tools write it."""
    zero = b.array(f"zero_{kind}", 128 if kind == TensorProto.UINT8 else 0, kind)
    pair = b.scalar(scale), zero
    return b.op("DequantizeLinear", b.op("QuantizeLinear", x, *pair), *pair)


def _quantized_conv(b: Builder, x: str, name: str, channels: tuple[int, int], kernel: int, stride: int = 1) -> str:
    before, after = channels
    weight = draw(f"{name}.weight", (after, before, kernel, kernel), before * kernel**2)
    scale = np.abs(weight).max((1, 2, 3)) / 127
    integers = np.round(weight / scale[:, None, None, None])
    quantized = b.array(f"{name}.weight_int8", integers, TensorProto.INT8)
    scales, zeros = b.array(f"{name}.scale", scale), b.array(f"{name}.zero", np.zeros(after), TensorProto.INT8)
    real = b.op("DequantizeLinear", quantized, scales, zeros, axis=0)
    pad = kernel // 2
    return b.op("Conv", x, real, b.weight(f"{name}.bias", (after,)), pads=[pad] * 4, strides=[stride] * 2)


def qdq_int8(path: Path) -> None:
    """A residual network in int8: quantize and dequantize nodes around every convolution, hard swish between."""
    b = Builder()
    x = _requantize(b, b.input("image", ["batch", 3, "height", "width"]), 0.02)
    x = _requantize(b, b.op("Relu", _quantized_conv(b, x, "stem", (3, 32), 3, 2)), 0.03)
    for index in range(3):
        y = b.op("HardSwish", _quantized_conv(b, x, f"a{index}", (32, 32), 3))
        y = _quantized_conv(b, _requantize(b, y, 0.03), f"b{index}", (32, 32), 1)
        x = _requantize(b, b.op("Relu", b.op("Add", x, _requantize(b, y, 0.04))), 0.04)
    pooled = b.op("Flatten", b.op("GlobalAveragePool", x))
    b.output(b.linear(pooled, "head", (32, 10)), "logits", ["batch", 10])
    b.save(path, 15)


def qdq_transformer(path: Path) -> None:
    """A transformer layer in int8, signed, GELU and LayerNorm in float."""
    width = 64
    b = Builder()
    x = b.input("hidden", ["batch", "length", width])
    for index in range(2):
        y = _requantize(b, b.layer_norm(x, f"norm{index}", width), 0.03, TensorProto.INT8)
        y = b.linear(y, f"up{index}", (width, 4 * width))
        erf = b.op("Erf", b.op("Mul", y, b.scalar(0.70710677)))
        y = b.op("Mul", b.op("Mul", y, b.scalar(0.5)), b.op("Add", erf, b.scalar(1.0)))
        y = b.linear(_requantize(b, y, 0.03, TensorProto.INT8), f"down{index}", (4 * width, width))
        x = b.op("Add", x, _requantize(b, y, 0.05, TensorProto.INT8))
    b.output(x, "out", ["batch", "length", width])
    b.save(path, 17)


def bfloat16(path: Path) -> None:
    """Gated layers in bfloat16: stored so, computed in float where ONNX Runtime has no kernel, rounded after each
    step."""
    width = 64
    b = Builder(TensorProto.BFLOAT16)
    x = b.input("hidden", ["batch", "length", width])

    def wide(value: str) -> str:
        return b.op("Cast", value, to=TensorProto.FLOAT)

    def narrow(value: str) -> str:
        return b.op("Cast", value, to=TensorProto.BFLOAT16)

    for index in range(2):
        y = b.op("LayerNormalization", x, b.weight(f"norm{index}.scale", (width,)), axis=-1)
        gate = b.op("MatMul", wide(y), wide(b.weight(f"gate{index}.weight", (width, 2 * width), width)))
        up = b.op("MatMul", wide(y), wide(b.weight(f"up{index}.weight", (width, 2 * width), width)))
        gate, up = wide(narrow(gate)), wide(narrow(up))
        silu = wide(narrow(b.op("Mul", gate, b.op("Sigmoid", gate))))
        y = wide(narrow(b.op("Mul", silu, up)))
        y = b.op("MatMul", y, wide(b.weight(f"down{index}.weight", (2 * width, width), 2 * width)))
        x = narrow(b.op("Add", wide(x), wide(narrow(y))))
    b.output(x, "out", ["batch", "length", width])
    b.save(path, 21, 10)


def black_scholes(path: Path) -> None:
    """Prices of options in double: logarithms, exponentials, the normal distribution by Erf in float."""
    b = Builder(TensorProto.DOUBLE)
    names = ("spot", "strike", "years", "rate", "volatility")
    spot, strike, years, rate, volatility = (b.input(name, ["options"]) for name in names)
    spread = b.op("Mul", volatility, b.op("Sqrt", years))
    half_variance = b.op("Mul", b.op("Mul", volatility, volatility), b.scalar(0.5))
    drift = b.op("Mul", b.op("Add", rate, half_variance), years)
    first = b.op("Div", b.op("Add", b.op("Log", b.op("Div", spot, strike)), drift), spread)
    second = b.op("Sub", first, spread)

    def normal(x: str) -> str:
        narrow = b.op("Cast", b.op("Mul", x, b.scalar(0.7071067811865476)), to=TensorProto.FLOAT)
        erf = b.op("Cast", b.op("Erf", narrow), to=TensorProto.DOUBLE)
        return b.op("Mul", b.op("Add", erf, b.scalar(1.0)), b.scalar(0.5))

    discount = b.op("Exp", b.op("Neg", b.op("Mul", rate, years)))
    present = b.op("Mul", strike, discount)
    call = b.op("Sub", b.op("Mul", spot, normal(first)), b.op("Mul", present, normal(second)))
    put = b.op("Add", b.op("Sub", call, spot), present)
    b.output(call, "call", ["options"])
    b.output(put, "put", ["options"])
    b.save(path, 17)


def camera(path: Path) -> None:
    """Bytes of a camera to a normalized image and a mask: casts, gamma, comparisons, Where, integer arithmetic."""
    b = Builder()
    frame = b.input("frame", ["batch", "height", "width", 3], TensorProto.UINT8)
    x = b.op("Div", b.op("Cast", frame, to=TensorProto.FLOAT), b.scalar(255.0))
    linear = b.op("Pow", b.op("Div", b.op("Add", x, b.scalar(0.055)), b.scalar(1.055)), b.scalar(2.4))
    dark = b.op("LessOrEqual", x, b.scalar(0.04045))
    x = b.op("Where", dark, b.op("Div", x, b.scalar(12.92)), linear)
    means, deviations = b.array("means", [0.485, 0.456, 0.406]), b.array("deviations", [0.229, 0.224, 0.225])
    normal = b.op("Transpose", b.op("Div", b.op("Sub", x, means), deviations), perm=[0, 3, 1, 2])
    wide = b.op("Cast", frame, to=TensorProto.INT32)
    weights = b.array("luma", [77, 150, 29], TensorProto.INT32)
    luma = b.op("ReduceSum", b.op("Mul", wide, weights), b.ints(3), keepdims=0)
    luma = b.op("Div", luma, b.array("i256", 256, TensorProto.INT32))
    bright = b.op("Greater", luma, b.array("i200", 200, TensorProto.INT32))
    faint = b.op("Less", luma, b.array("i16", 16, TensorProto.INT32))
    bad = b.op("Or", bright, faint)
    b.output(normal, "image", ["batch", 3, "height", "width"])
    b.output(b.op("Not", bad), "usable", ["batch", "height", "width"], TensorProto.BOOL)
    b.save(path, 16)


def tabular(path: Path) -> None:
    """A recommender on tables: embeddings by Gather, crossed features, sums of squares, SELU layers."""
    b = Builder()
    user = b.input("user", ["batch"], TensorProto.INT64)
    item = b.input("item", ["batch"], TensorProto.INT64)
    dense = b.input("dense", ["batch", 16])
    log = b.op("Log", b.op("Add", b.op("Relu", dense), b.scalar(1.0)))
    u = b.op("Gather", b.weight("users", (1000, 32), 32), user)
    i = b.op("Gather", b.weight("items", (1000, 32), 32), item)
    total = b.op("Add", u, i)
    squares = b.op("Add", b.op("Mul", u, u), b.op("Mul", i, i))
    cross = b.op("Mul", b.op("Sub", b.op("Mul", total, total), squares), b.scalar(0.5))
    x = b.op("Concat", u, i, cross, log, axis=1)
    x = b.op("Selu", b.linear(x, "first", (112, 128)))
    x = b.op("Selu", b.linear(x, "second", (128, 64)))
    weight, bias = b.weight("last.weight", (64, 1), 64), b.weight("last.bias", (1,))
    b.output(b.op("Sigmoid", b.op("Gemm", x, weight, bias)), "click", ["batch", 1])
    b.save(path, 13)


def large(path: Path) -> None:
    """More than 2 GB of weights in an external file: eight projections of 8192 by 8192, each with a SiLU gate."""
    width, layers = 8192, 8
    data = path.with_name(path.name + ".data")
    generator = np.random.default_rng(7)
    nodes, weights = [], []
    row = (generator.standard_normal((64, width)) / np.sqrt(width / 1.6)).astype(np.float32)
    value = "hidden"
    with data.open("wb") as file:
        for layer in range(layers + 1):
            name = f"weight{layer}"
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[width, width])
            tensor.raw_data = b""
            external_data_helper.set_external_data(tensor, data.name, offset=file.tell(), length=width * width * 4)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for block in range(width // 64):
                file.write(np.roll(row, 131 * block + 17 * layer, axis=1).tobytes())
            weights.append(tensor)
            product, gate, out = f"product{layer}", f"gate{layer}", f"out{layer}"
            nodes.append(helper.make_node("MatMul", [value, name], [product], name=product))
            nodes.append(helper.make_node("Sigmoid", [product], [gate], name=gate))
            nodes.append(helper.make_node("Mul", [product, gate], [out], name=out))
            value = out
    dims = ["batch", width]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("hidden", 1, dims)],
        [helper.make_tensor_value_info(value, 1, dims)],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
