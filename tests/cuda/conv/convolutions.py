"""Fused convolutions for the tests: random ones, what they should give, and their kernels run in the emulation.

X and W are small integers, so that every order of the sums gives the same bits, and those of the unfused operators.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnxruntime as ort
from onnx import helper

from onnxfuse.cuda.conv.arguments import (
    ConvLayout,
    accepts,
    grid_size,
    layout_access,
    pack,
    resolve,
    splits,
    sum_grid_size,
    workspace_bytes,
)
from onnxfuse.cuda.conv.kernel import ConvKernel, ConvSource
from onnxfuse.cuda.conv.renderer import render_conv
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.cuda.conv.tiling import Tiling
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program, ProgramBuilder, reference
from onnxfuse.program.figures import CONV_SUM_BLOCK
from onnxfuse.program.ops import OPS
from tests.cuda.elementwise.programs import BASIC
from tests.cuda.emulation.emulator import Emulation, aligned
from tests.custom_ops.fused import assert_same_bits, make_model, new_session, sample, session_options

MULTIPROCESSORS = 8

Shape = tuple[int, ...]


def convolution(
    dtype: str,
    channels: tuple[int, int],
    kernel: Sequence[int],
    *,
    group: int = 1,
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    pads: Sequence[int] | str = (),
    output_padding: Sequence[int] = (),
    transposed: bool = False,
) -> Convolution:
    """A Convolution with the defaults of ONNX; ``pads`` may be an auto_pad."""
    rank = len(kernel)
    ones, zeros = (1,) * rank, (0,) * rank
    return Convolution(
        transposed,
        dtype,
        *channels,
        group,
        tuple(kernel),
        tuple(strides) or ones,
        tuple(dilations) or ones,
        None if isinstance(pads, str) else tuple(pads) or zeros * 2,
        pads if isinstance(pads, str) else "NOTSET",
        tuple(output_padding) or zeros,
    )


def random_windowed(rng: random.Random, dtype: str, channels: tuple[int, int], group: int) -> Convolution:
    """A convolution that slides over patches of X, with strides, dilations and pads of all kinds."""
    rank = rng.choice((1, 2, 2, 2, 3))
    kernel = [rng.choice((1, 2, 3, 3, 5)) for _ in range(rank)]
    return convolution(
        dtype,
        channels,
        kernel,
        group=group,
        strides=[rng.choice((1, 1, 2)) for _ in range(rank)],
        dilations=[rng.choice((1, 1, 2)) for _ in range(rank)],
        pads=[rng.randint(0, size - 1) for size in kernel * 2],
    )


@dataclass(frozen=True)
class Fused:
    """A fused convolution with the shapes of one run; ``operands`` are those of the Programs after the first."""

    conv: Convolution
    x_shape: Shape
    epilogue: Program
    operands: tuple[Shape, ...] = ()
    prologue: Program | None = None
    x_operands: tuple[Shape, ...] = ()
    tilings: tuple[Tiling, ...] = field(default=(), compare=False)

    def layout(self) -> ConvLayout:
        """What the shapes come to."""
        return resolve(self.conv, self.x_shape, self.epilogue, self.operands, self.prologue, self.x_operands)

    def render(self) -> ConvSource:
        """Kernels for the letters that the shapes have."""
        access = layout_access(self.layout())
        return render_conv(self.conv, self.epilogue, self.prologue, access, self.tilings)


def integers(dtype: str, shape: Sequence[int], seed: int, low: int = -4, high: int = 4) -> np.ndarray:
    """Random small integers."""
    values = np.random.default_rng(seed).integers(low, high, shape, endpoint=True)
    return values.astype(DTYPES[dtype].numpy)


def convolve(conv: Convolution, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """What ONNX Runtime computes in float, or for a product NumPy, rounded to the type."""
    if conv.channels_last:
        factors = x.astype(np.float32), w.astype(np.float32)
        return (np.matmul(factors[0], factors[1] if conv.transposed else factors[1].T)).astype(DTYPES[conv.dtype].numpy)
    own = {"strides": conv.strides, "dilations": conv.dilations, "group": conv.group, "auto_pad": conv.auto_pad}
    if conv.pads is not None:
        own["pads"] = conv.pads
    if conv.transposed:
        own["output_padding"] = conv.output_padding
    node = helper.make_node("ConvTranspose" if conv.transposed else "Conv", ["x", "w"], ["y"], **own)
    model = make_model([node], {"x": ("f32", x.shape), "w": ("f32", w.shape)}, {"y": ("f32", None)})
    options = session_options(1, ops=False)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (y,) = new_session(model, options).run(None, {"x": x.astype(np.float32), "w": w.astype(np.float32)})
    return (y + np.float32(0)).astype(DTYPES[conv.dtype].numpy)  # no negative zeros


def check(emulation: Emulation, source: ConvSource, case: Fused, seed: int = 0, shift: int = 0) -> list[ConvKernel]:
    """Run every kernel that accepts the case; the outputs must have the bits of the reference.

    All operands lie ``shift`` elements behind an aligned address.  Returns the kernels that ran.
    """
    conv = case.conv
    x, w = integers(conv.dtype, case.x_shape, seed), integers(conv.dtype, conv.weight_shape, seed + 1, -3, 3)
    x_extra = _operands(case.prologue, case.x_operands, seed + 2)
    extra = _operands(case.epilogue, case.operands, seed + 20)
    convolved = reference.run(case.prologue, [x, *x_extra])[0] if case.prologue else x
    expected = reference.run(case.epilogue, [convolve(conv, convolved, w), *extra])
    layout = case.layout()
    assert convolve(conv, convolved, w).shape == conv.output_shape(case.x_shape)
    inputs = [_placed(array, shift) for array in (x, w, *x_extra, *extra)]
    ran = []
    for kernel in source.kernels:
        outputs = [aligned(case.epilogue.dtype(own), layout.count, shift) for own in case.epilogue.outputs]
        addresses = [memory.ctypes.data for memory in (*inputs, *outputs)]
        if accepts(kernel, layout, addresses):
            _run(emulation, kernel, layout, inputs, outputs)
            for result, wanted in zip(outputs, expected, strict=True):
                full = np.broadcast_to(wanted, conv.output_shape(case.x_shape))
                assert_same_bits(result.reshape(full.shape), full)
            ran.append(kernel)
    return ran


def _run(
    emulation: Emulation,
    kernel: ConvKernel,
    layout: ConvLayout,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
) -> None:
    """Launch as the native library does."""
    addresses = [memory.ctypes.data for memory in (*inputs, *outputs)]
    parts = splits(kernel, layout, MULTIPROCESSORS)
    workspace = aligned("f32", workspace_bytes(layout, parts) // 4, 0)
    arguments = pack(kernel, layout, addresses, parts, workspace.ctypes.data if parts > 1 else 0)
    read = _named("in", inputs)
    written = _named("out", [workspace] if parts > 1 else outputs)
    blocks = grid_size(kernel, layout, MULTIPROCESSORS)
    emulation.launch(kernel.name, arguments, blocks, kernel.block, read + written)
    if parts > 1:
        blocks = sum_grid_size(kernel, layout, MULTIPROCESSORS)
        operands = [*read, *_named("workspace", [workspace]), *_named("out", outputs)]
        emulation.launch(kernel.sum_name, arguments, blocks, CONV_SUM_BLOCK, operands)


def _named(name: str, memories: Sequence[np.ndarray]) -> list[tuple[str, int, int]]:
    return [(f"{name}{i}", memory.ctypes.data, memory.nbytes) for i, memory in enumerate(memories)]


def _operands(program: Program | None, shapes: Sequence[Shape], seed: int) -> list[np.ndarray]:
    specs = program.inputs[1:] if program else ()
    return [
        sample(spec.dtype, int(np.prod(shape)), seed + i, special=False).reshape(shape)
        if spec.dtype not in ("f32", "f16", "bf16")
        else integers(spec.dtype, shape, seed + i)
        for i, (spec, shape) in enumerate(zip(specs, shapes, strict=True))
    ]


def _placed(array: np.ndarray, shift: int) -> np.ndarray:
    name = next(name for name, dtype in DTYPES.items() if dtype.numpy == array.dtype)
    memory = aligned(name, array.size, shift)
    memory[...] = array.reshape(-1)
    return memory


# ------------------------------------------------------------------------------------------------------- Programs


def raw(dtype: str) -> Program:
    """No tail at all."""
    builder = ProgramBuilder()
    return builder.build([builder.input(dtype)])


def tail(dtype: str, kind: str, y_shape: Sequence[int]) -> tuple[Program, tuple[Shape, ...]]:
    """An epilogue as models have them, and the shapes of its operands."""
    b = ProgramBuilder()
    x = b.input(dtype)
    image, channels, *spatial = y_shape
    ones = (1,) * len(spatial)
    match kind:
        case "bias, hard swish, residual":
            bias, residual = b.input(dtype, 1), b.input(dtype)
            activated = b.emit("hard_swish", dtype, b.emit("add", dtype, x, bias))
            return b.build([b.emit("add", dtype, activated, residual)]), ((channels,), tuple(y_shape))
        case "gate and raw result":
            gate, scale = b.input(dtype), b.input(dtype)
            gated = b.emit("mul", dtype, b.emit("mul", dtype, x, gate), scale)
            return b.build([gated, x]), ((image, channels, *ones), ())
        case "quantize":
            scale = b.emit("mul", "f32", b.cast(x, "f32"), b.const("f32", 0.25))
            low = b.emit("max", "f32", b.emit("round", "f32", scale), b.const("f32", 0))
            return b.build([b.cast(b.emit("min", "f32", low, b.const("f32", 255)), "u8")]), ()
        case "masks":
            mask, row = b.input("bool"), b.input(dtype)
            kept = b.emit("where", dtype, mask, x, b.const(dtype, -1))
            large = b.emit("less", dtype, row, x)
            return b.build([kept, large, b.emit("add", dtype, kept, row)]), (tuple(y_shape), (*ones, spatial[-1]))
        case _:
            return b.build([x]), ()


def random_tail(rng: random.Random, dtype: str, y_shape: Sequence[int]) -> tuple[Program, tuple[Shape, ...]]:
    """Basic operations on the result and operands that broadcast to it in any way, and up to three outputs."""
    builder = ProgramBuilder()
    values = [builder.input(dtype)]
    shapes = []
    for _ in range(rng.randint(0, 3)):
        own = tuple(1 if rng.random() < 0.4 else size for size in y_shape)
        shapes.append(own[rng.choice((0, 0, 0, 1, 2)) :])
        values.append(builder.input(dtype))
    values.append(builder.const(dtype, 1.5))
    for _ in range(rng.randint(1, 8)):
        op = rng.choice(BASIC[dtype])
        values.append(builder.emit(op, dtype, *(rng.choice(values) for _ in range(OPS[op].arity))))
    last = builder.emit("add", dtype, values[0], values[-1])
    return builder.build([last, *rng.sample(values[:1] + values[-2:], rng.randint(0, 2))]), tuple(shapes)


TAILS = ("bias, hard swish, residual", "gate and raw result", "quantize", "masks", "")


def head(dtype: str, kind: str, x_shape: Sequence[int]) -> tuple[Program | None, tuple[Shape, ...]]:
    """A prologue as models have them, and the shapes of its operands.  None maps 0 to 0: padding must stay zero."""
    b = ProgramBuilder()
    x = b.input(dtype)
    image, channels, *spatial = x_shape
    ones = (1,) * len(spatial)
    match kind:
        case "gate":
            gated = b.emit("mul", dtype, x, b.input(dtype))
            return b.build([b.emit("add", dtype, gated, b.const(dtype, 1))]), ((image, channels, *ones),)
        case "affine":
            scaled = b.emit("mul", dtype, x, b.input(dtype, 1))
            return b.build([b.emit("relu", dtype, b.emit("add", dtype, scaled, b.input(dtype)))]), ((channels,), ())
        case "sum":
            total = b.emit("add", dtype, b.emit("sub", dtype, x, b.input(dtype)), b.input(dtype))
            return b.build([total]), (tuple(x_shape), (spatial[0], *ones[1:]))
        case _:
            return None, ()


HEADS = ("", "gate", "affine", "sum")


def random_fused(rng: random.Random, conv: Convolution, spatial: Sequence[int], tilings: Sequence[Tiling]) -> Fused:
    """The convolution of an X of these spatial sizes, with Programs and a batch at random."""
    return fused_of(rng, conv, spatial, rng.choice((1, 1, 2, 3)), tilings)


def fused_of(
    rng: random.Random, conv: Convolution, spatial: Sequence[int], batch: int, tilings: Sequence[Tiling]
) -> Fused:
    """The same with this batch."""
    x_shape = (batch, conv.in_channels, *spatial)
    y_shape = conv.output_shape(x_shape)
    kind = rng.choice((*TAILS, "random", "random"))
    if kind == "random":
        epilogue, operands = random_tail(rng, conv.dtype, y_shape)
    else:
        epilogue, operands = tail(conv.dtype, kind, y_shape)
    prologue, x_operands = head(conv.dtype, rng.choice(HEADS), x_shape)
    return Fused(conv, x_shape, epilogue, operands, prologue, x_operands, tuple(tilings))
