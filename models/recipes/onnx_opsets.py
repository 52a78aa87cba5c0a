"""One network in many opsets: a small vision transformer on a convolutional stem, of the operators that each
opset has."""

from pathlib import Path

from common_builder import Builder
from onnx import TensorProto

CHANNELS, GRID, CLASSES = 48, 8, 20


def _gelu(b: Builder, x: str, opset: int) -> str:
    if opset >= 20:
        return b.op("Gelu", x, approximate="none")
    erf = b.op("Erf", b.op("Div", x, b.scalar(1.4142135)))
    return b.op("Mul", b.op("Mul", x, b.op("Add", erf, b.scalar(1.0))), b.scalar(0.5))


def _norm(b: Builder, x: str, name: str, opset: int) -> str:
    if opset >= 23:
        return b.op("RMSNormalization", x, b.weight(f"{name}.scale", (CHANNELS,)), axis=-1, epsilon=1e-5)
    if opset >= 17:
        scale, bias = b.weight(f"{name}.scale", (CHANNELS,)), b.weight(f"{name}.bias", (CHANNELS,))
        return b.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)
    return b.layer_norm(x, name, CHANNELS)


def _hard_swish(b: Builder, x: str, opset: int) -> str:
    if opset >= 14:
        return b.op("HardSwish", x)
    if opset >= 11:
        clipped = b.op("Clip", b.op("Add", x, b.scalar(3.0)), b.scalar(0.0), b.scalar(6.0))
    else:
        clipped = b.op("Clip", b.op("Add", x, b.scalar(3.0)), min=0.0, max=6.0)
    return b.op("Div", b.op("Mul", x, clipped), b.scalar(6.0))


def _unsqueeze(b: Builder, x: str, axis: int, opset: int) -> str:
    return b.op("Unsqueeze", x, b.ints(axis)) if opset >= 13 else b.op("Unsqueeze", x, axes=[axis])


def _build(path: Path, opset: int, dtype: int = TensorProto.FLOAT) -> None:
    b = Builder(dtype)
    x = b.input("image", ["batch", 3, 32, 32])
    x = b.op("Mul", b.op("Sub", x, b.array("mean", [[[0.48]], [[0.45]], [[0.41]]])), b.scalar(4.0))
    x = _hard_swish(b, b.batch_norm(b.conv(x, "stem", (3, CHANNELS), 3, 2), "stem_norm", CHANNELS), opset)
    y = b.conv(x, "depthwise", (CHANNELS, CHANNELS), 3, 1, CHANNELS)
    x = b.conv(b.op("Add", x, b.op("LeakyRelu", y, alpha=0.1)), "patches", (CHANNELS, CHANNELS), 3, 2)
    tokens = b.op("Transpose", b.op("Reshape", x, b.ints(0, CHANNELS, -1)), perm=[0, 2, 1])
    tokens = b.op("Add", tokens, b.weight("places", (1, GRID * GRID, CHANNELS)))
    for index in range(2):
        y = _norm(b, tokens, f"norm{index}a", opset)
        q, k, v = (b.linear(y, f"{part}{index}", (CHANNELS, CHANNELS)) for part in "qkv")
        scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1]))
        weights = b.op("Softmax", b.op("Div", scores, b.scalar(CHANNELS**0.5)), axis=-1 if opset >= 11 else 2)
        tokens = b.op("Add", tokens, b.linear(b.op("MatMul", weights, v), f"out{index}", (CHANNELS, CHANNELS)))
        y = _gelu(b, b.linear(_norm(b, tokens, f"norm{index}b", opset), f"up{index}", (CHANNELS, 96)), opset)
        tokens = b.op("Add", tokens, b.linear(y, f"down{index}", (96, CHANNELS)))
    if opset >= 18:
        pooled = b.op("ReduceMean", tokens, b.ints(1), keepdims=0)
    else:
        pooled = b.op("ReduceMean", tokens, axes=[1], keepdims=0)
    gate = b.op("Sigmoid", b.linear(pooled, "gate", (CHANNELS, CHANNELS)))
    gated = _unsqueeze(b, b.op("Mul", pooled, gate), 1, opset)
    logits = b.op("Reshape", b.linear(gated, "head", (CHANNELS, CLASSES)), b.ints(0, CLASSES))
    b.output(logits, "logits", ["batch", CLASSES])
    ir_version = {9: 4, 11: 6, 13: 7, 15: 8, 18: 8, 21: 10, 23: 11}.get(opset, 12)
    b.save(path, opset, ir_version)


def opset9(path: Path) -> None:
    """Bounds of Clip as attributes."""
    _build(path, 9)


def opset11(path: Path) -> None:
    """Bounds of Clip as inputs."""
    _build(path, 11)


def opset13(path: Path) -> None:
    """Axes of Unsqueeze as an input."""
    _build(path, 13)


def opset15(path: Path) -> None:
    """HardSwish as a node."""
    _build(path, 15)


def opset18(path: Path) -> None:
    """LayerNormalization as a node, axes of reductions as an input."""
    _build(path, 18)


def opset21(path: Path) -> None:
    """Gelu as a node."""
    _build(path, 21)


def opset23(path: Path) -> None:
    """RMSNormalization as a node."""
    _build(path, 23)


def opset26(path: Path) -> None:
    """The newest opset that ONNX Runtime takes."""
    _build(path, 26)


def half(path: Path) -> None:
    """The network in float16, inputs and outputs too."""
    _build(path, 18, TensorProto.FLOAT16)


def half_opset11(path: Path) -> None:
    """The network in float16 with every activation written out."""
    _build(path, 11, TensorProto.FLOAT16)
