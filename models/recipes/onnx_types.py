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


def four_bits(path: Path) -> None:
    """A step of decoding: two layers of a Llama with weights of 4 bits in blocks, and words of 8, for ONNX Runtime's
    MatMulNBits; keys and values of the words before are inputs."""
    width, heads, size, words, layers = 64, 2, 32, 96, 2
    b = Builder()
    x = b.op("Gather", b.weight("words", (words, width)), b.input("input_ids", [1, 1], TensorProto.INT64))
    mask = b.input("mask", [1, 1, 1, "all"])

    def product(x: str, name: str, inner: int, columns: int, bits: int = 4) -> str:
        blocks, bytes_of = inner // 32, 32 * bits // 8
        random = np.random.default_rng(len(b.nodes))
        numbers = random.integers(0, 256, (columns, blocks, bytes_of))
        scales = random.uniform(0.5, 1.0, (columns, blocks)) / (2 ** (bits - 1) * inner**0.5)
        zeros = np.full((columns, -(-blocks * bits // 8)), 0x88 if bits == 4 else 0x80)
        given = [
            b.array(f"{name}.numbers", numbers, TensorProto.UINT8),
            b.array(f"{name}.scales", scales),
            b.array(f"{name}.zeros", zeros, TensorProto.UINT8),
        ]
        facts = {"K": inner, "N": columns, "bits": bits, "block_size": 32}
        return b.op("MatMulNBits", x, *given, domain="com.microsoft", **facts)

    def normalized(x: str, name: str) -> str:
        mean = b.op("ReduceMean", b.op("Mul", x, x), b.ints(-1))
        root = b.op("Sqrt", b.op("Add", mean, b.scalar(1e-5)))
        return b.op("Mul", b.op("Div", x, root), b.weight(f"{name}.scale", (width,)))

    def of_heads(x: str) -> str:
        return b.op("Transpose", b.op("Reshape", x, b.ints(1, 1, heads, size)), perm=[0, 2, 1, 3])

    for index in range(layers):
        y = normalized(x, f"norm{index}")
        query, key, value = (of_heads(product(y, f"{index}.{part}", width, width)) for part in ("q", "k", "v"))
        cached = {}
        for kind, new in (("key", key), ("value", value)):
            past = b.input(f"past.{index}.{kind}", [1, heads, "past", size])
            cached[kind] = b.op("Concat", past, new, axis=2)
            b.output(cached[kind], f"present.{index}.{kind}", [1, heads, "all", size])
        scores = b.op("MatMul", query, b.op("Transpose", cached["key"], perm=[0, 1, 3, 2]))
        scores = b.op("Add", b.op("Mul", scores, b.scalar(size**-0.5)), mask)
        mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), cached["value"])
        joined = b.op("Reshape", b.op("Transpose", mixed, perm=[0, 2, 1, 3]), b.ints(1, 1, width))
        x = b.op("Add", x, product(joined, f"{index}.out", width, width))
        y = normalized(x, f"feed{index}")
        gate = product(y, f"{index}.gate", width, 2 * width)
        gated = b.op("Mul", b.op("Mul", gate, b.op("Sigmoid", gate)), product(y, f"{index}.up", width, 2 * width))
        x = b.op("Add", x, product(gated, f"{index}.down", 2 * width, width))
    b.output(product(normalized(x, "last"), "head", width, words, 8), "logits", [1, 1, words])
    b.save(path, 18, domains=("com.microsoft",))


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
