"""Launching convolution kernels: what each accepts, its grid, and its parameters byte for byte.

This is the contract between the kernels of custom_ops/cuda/device/conv*.cuh and the native library, which does the same
in C++; here it serves the tests, the emulation and the tuner.  All sizes are of three spatial dimensions, D, H, W; a
convolution of fewer has leading ones: kernel, stride, dilation, in, out 1, pad 0.  With the channels last the sizes
before them are N, D, H, W, of which the first ones may be missing, and both in and out are D, H, W.

**Nothing is launched** if the result has no elements.  Otherwise the first kernel of the recipe that accepts is.

**A kernel accepts** if all of this holds.

1. ``index 32``: N·C·in and N·M·out have at most 2^31 - 2^24 - 1 elements; for each strided operand
   (letter ``g``) the sum of (size - 1)·step over the dimensions is below 2^31; and in each spatial dimension
   (max(in, out) + pad + 1)·stride + dilation·kernel is below 2^31.
2. Letters.  An operand has a step, in elements, for each dimension of its space ([N, M, D, H, W] of the result for the
   epilogue, [N, C, D, H, W] of X for the prologue): the product of its own sizes inside that dimension, 0 where it is
   broadcast (its own size is 1).  A letter accepts it if in every dimension whose size in the space is not 1 the step
   is the letter's:  l (M·D·H·W, D·H·W, H·W, W, 1), with the channels last (D·H·W·M, 1, H·W·M, W·M, M);
   s (0, 0, 0, 0, 0);  c (0, 1, 0, 0, 0);  o (M, 1, 0, 0, 0);  g any.
3. ``vector`` V > 1: the addresses of X, of the outputs and of operands with letter ``l``, with the channels last also
   ``c`` and ``o``, are multiples of min(16, V · their itemsize); and V divides, for ``depthwise`` and ``direct``, the
   last size of X and of the result, for ``gemm`` the product of the result's spatial sizes, with the channels last M.
4. ``gemm`` and ``direct``: the address of W is a multiple of 16.
5. The grid (below) with ``split`` for splits has at most 2^31 - 1 blocks; ``any`` always does.

**The grid** is one-dimensional, and there is no dynamic shared memory.  With S the product of the result's spatial
sizes and ``tile`` AxBxC:

- ``any``: ceil(N·M·S / block), at most 32 for each multiprocessor of the device;
- ``depthwise``: ceil(N·M / A) · out_d · ceil(out_h / B) · ceil(out_w / C);
- ``direct``: N · ceil(M / A) · out_d · ceil(out_h / B) · ceil(out_w / C);
- ``gemm``: group · ceil(M / group / A) · ceil(N·S / B) · splits, with the channels last
  ceil(N·S / A) · ceil(M / B) · splits.

**splits** is 1 unless ``split`` is more than 1; then, with b the blocks of ``gemm`` for one split, it is
2·multiprocessors div b, at least 1 and at most ``split``.  If it comes out as more than 1, the kernel writes partial
sums to the workspace, ``splits`` · N·M·S floats, and the kernel ``NAME_sum`` is launched after it on the same stream
with the same parameters, in blocks of 256 threads, ceil(N·M·S / (256·V)) of them, at most 32 for each multiprocessor.
The workspace is aligned to 16 bytes.

**The parameters**, each one argument of cuLaunchKernel with its natural alignment:

1. a pointer (8 bytes) each: X, W, the prologue's operands 1…, the epilogue's operands 1…, the epilogue's outputs, the
   workspace (0 if splits is 1);
2. ``ConvShape<index>``: N, in[3], out[3], pad[3] (of the begins), splits: 11 words of ``index`` bits; then
   ``Divider<index>`` of out_w, of out_h, and of S (12 bytes each for ``index 32``, 8 for 64: ``pack_divider``);
3. for each operand with letter ``g``, the prologue's first: ``ConvSteps<index>``, its 5 steps in words of ``index``
   bits, (N, M or C, D, H, W), 0 where it is broadcast.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse.cuda.arguments import pack_divider
from onnxfuse.cuda.conv.kernel import ConvAccess, ConvKernel
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Input, Program, ProgramError
from onnxfuse.program.figures import (
    CONV_BLOCKS,
    CONV_SUM_BLOCK,
    LIMIT_32,
    MAX_BLOCKS,
    MAX_COUNT_32,
    MAX_SPATIAL_RANK,
    WIDEST_ACCESS,
)

Triple = tuple[int, int, int]
Steps = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class ConvOperand:
    """An operand of a Program: bytes of an element, and its ``steps`` in its space (N, C, D, H, W)."""

    itemsize: int
    steps: Steps


@dataclass(frozen=True)
class ConvLayout:
    """A convolution of known sizes: N is ``batch``; ``inside``, ``outside`` and ``pad`` (of the begins) are in, out and
    pads along D, H, W.  ``prologue`` and ``epilogue`` are the Programs' operands after the first, ``outputs`` the bytes
    of an element of each output."""

    conv: Convolution
    batch: int
    inside: Triple
    outside: Triple
    pad: Triple
    prologue: tuple[ConvOperand, ...]
    epilogue: tuple[ConvOperand, ...]
    outputs: tuple[int, ...]

    @property
    def positions(self) -> int:
        """The product of the result's spatial sizes."""
        return math.prod(self.outside)

    @property
    def count(self) -> int:
        """The elements of the result."""
        return self.batch * self.conv.out_channels * self.positions

    @property
    def x_space(self) -> tuple[int, ...]:
        """[N, C, D, H, W] of X."""
        return (self.batch, self.conv.in_channels, *self.inside)

    @property
    def vector_letters(self) -> str:
        """The letters of operands that are read by vectors."""
        return "lco" if self.conv.channels_last else "l"

    @property
    def y_space(self) -> tuple[int, ...]:
        """[N, M, D, H, W] of the result."""
        return (self.batch, self.conv.out_channels, *self.outside)


def resolve(
    conv: Convolution,
    x_shape: Sequence[int],
    epilogue: Program,
    epilogue_shapes: Sequence[Sequence[int]],
    prologue: Program | None = None,
    prologue_shapes: Sequence[Sequence[int]] = (),
) -> ConvLayout:
    """The layout for an X of this shape; the shapes are those of the Programs' inputs after the first.

    Raises ProgramError for shapes that do not fit, or that would enlarge X or the result.
    """
    y_shape = conv.output_shape(x_shape)
    last = conv.channels_last
    batch, inside = _positions(x_shape, last)
    return ConvLayout(
        conv,
        batch,
        inside,
        _positions(y_shape, last)[1],
        (0, 0, 0) if last else padded(conv.resolved_pads(x_shape[2:])[: conv.rank], 0),
        _operands(prologue.inputs, x_shape, prologue_shapes, last) if prologue else (),
        _operands(epilogue.inputs, y_shape, epilogue_shapes, last),
        tuple(DTYPES[epilogue.dtype(output)].itemsize for output in epilogue.outputs),
    )


def padded(sizes: Sequence[int], filler: int) -> Triple:
    """Sizes along D, H, W of up to three spatial dimensions."""
    first, second, third = [*[filler] * (MAX_SPATIAL_RANK - len(sizes)), *sizes]
    return first, second, third


def _positions(shape: Sequence[int], channels_last: bool) -> tuple[int, Triple]:
    """N, and the sizes along D, H, W, of a tensor of this shape."""
    if not channels_last:
        return shape[0], padded(shape[2:], 1)
    batch, first, second, third = [*[1] * (MAX_SPATIAL_RANK + 2 - len(shape)), *shape[:-1]]
    return batch, (first, second, third)


def _operands(
    specs: Sequence[Input], space: Sequence[int], shapes: Sequence[Sequence[int]], channels_last: bool
) -> tuple[ConvOperand, ...]:
    """The operands after the first, of the given shapes, in a space of [N, C, spatial…], or [.., C]."""
    if len(shapes) != len(specs) - 1:
        raise ProgramError(f"{len(shapes)} shapes for {len(specs) - 1} operands")
    pairs = zip(specs[1:], shapes, strict=True)
    return tuple(_operand(spec, space, tuple(shape), channels_last) for spec, shape in pairs)


def _operand(spec: Input, space: Sequence[int], shape: tuple[int, ...], channels_last: bool) -> ConvOperand:
    full = shape
    if spec.axis is not None:
        axis = spec.axis + len(space) if spec.axis < 0 else spec.axis
        if len(shape) != 1 or not 0 <= axis < len(space):
            raise ProgramError(f"an input of shape {list(shape)} does not lie along axis {spec.axis} of {list(space)}")
        full = tuple(shape[0] if index == axis else 1 for index in range(len(space)))
    full = (1,) * (len(space) - len(full)) + full
    if len(full) != len(space) or any(own not in (1, size) for own, size in zip(full, space, strict=True)):
        raise ProgramError(f"an operand of shape {list(shape)} does not broadcast to {list(space)}")
    inner, steps = 1, []
    for own in reversed(full):
        steps.append(0 if own == 1 else inner)
        inner *= own
    steps.reverse()
    if channels_last:
        image, first, second, third = [*[0] * (MAX_SPATIAL_RANK + 2 - len(steps)), *steps[:-1]]
        return ConvOperand(DTYPES[spec.dtype].itemsize, (image, steps[-1], first, second, third))
    image, channel, *spatial = steps
    return ConvOperand(DTYPES[spec.dtype].itemsize, (image, channel, *padded(spatial, 0)))


# ------------------------------------------------------------------------------------------------------- conditions


def letter_steps(letter: str, space: Sequence[int], channels_last: bool = False) -> Steps | None:
    """The steps that a letter stands for in a space [N, C, D, H, W]; None for ``g``."""
    _, channels, depth, height, width = space
    match letter:
        case "l" if channels_last:
            row = width * channels
            return (depth * height * row, 1, height * row, row, channels)
        case "l":
            plane = height * width
            return (channels * depth * plane, depth * plane, plane, width, 1)
        case "c":
            return (0, 1, 0, 0, 0)
        case "o":
            return (channels, 1, 0, 0, 0)
        case "s":
            return (0, 0, 0, 0, 0)
        case _:
            return None


def letter_accepts(letter: str, operand: ConvOperand, space: Sequence[int], channels_last: bool = False) -> bool:
    """Whether a kernel of this letter reads the operand."""
    wanted = letter_steps(letter, space, channels_last)
    return wanted is None or all(
        size == 1 or own == step for own, step, size in zip(operand.steps, wanted, space, strict=True)
    )


def tightest(operands: Sequence[ConvOperand], space: Sequence[int], channels_last: bool = False) -> str:
    """For each operand the first letter of s, c, o, l, g that accepts it."""
    return "".join(
        next(letter for letter in "scolg" if letter_accepts(letter, own, space, channels_last)) for own in operands
    )


def layout_access(layout: ConvLayout) -> ConvAccess:
    """The letters of a layout's operands."""
    last = layout.conv.channels_last
    return ConvAccess(tightest(layout.prologue, layout.x_space, last), tightest(layout.epilogue, layout.y_space, last))


def accepts(kernel: ConvKernel, layout: ConvLayout, addresses: Sequence[int]) -> bool:
    """Whether ``kernel`` computes ``layout``.

    ``addresses`` are those of X, W, the prologue's operands, the epilogue's operands, and the outputs.
    """
    if kernel.index == 32 and not _fits_32_bits(kernel, layout):
        return False
    spaces = [layout.x_space] * len(layout.prologue) + [layout.y_space] * len(layout.epilogue)
    operands = layout.prologue + layout.epilogue
    last = layout.conv.channels_last
    matched = zip(kernel.access.letters, operands, spaces, strict=True)
    if not all(letter_accepts(letter, operand, space, last) for letter, operand, space in matched):
        return False
    if kernel.family in ("gemm", "direct") and addresses[1] % WIDEST_ACCESS:
        return False
    if kernel.vector > 1 and not _vectors_fit(kernel, layout, addresses):
        return False
    return kernel.family == "any" or _blocks(kernel, layout) * kernel.split <= MAX_BLOCKS


def choose(kernels: Sequence[ConvKernel], layout: ConvLayout, addresses: Sequence[int]) -> ConvKernel:
    """The first kernel that accepts; the last one of a source always does."""
    return next(kernel for kernel in kernels if accepts(kernel, layout, addresses))


def _fits_32_bits(kernel: ConvKernel, layout: ConvLayout) -> bool:
    if max(math.prod(layout.x_space), layout.count) > MAX_COUNT_32:
        return False
    spaces = [layout.x_space] * len(layout.prologue) + [layout.y_space] * len(layout.epilogue)
    for letter, operand, space in zip(kernel.access.letters, layout.prologue + layout.epilogue, spaces, strict=True):
        reach = sum((size - 1) * step for size, step in zip(space, operand.steps, strict=True))
        if letter == "g" and reach >= LIMIT_32:
            return False
    conv = layout.conv
    return all(
        (max(inside, outside) + pad + 1) * stride + dilation * size < LIMIT_32
        for inside, outside, pad, stride, dilation, size in zip(
            layout.inside,
            layout.outside,
            layout.pad,
            padded(conv.strides, 1),
            padded(conv.dilations, 1),
            padded(conv.kernel, 1),
            strict=True,
        )
    )


def _vectors_fit(kernel: ConvKernel, layout: ConvLayout, addresses: Sequence[int]) -> bool:
    vector = kernel.vector
    operands = layout.prologue + layout.epilogue
    behind = 2 + len(operands)
    linear = [(addresses[0], layout.conv.itemsize)]
    linear += [
        (address, operand.itemsize)
        for letter, operand, address in zip(kernel.access.letters, operands, addresses[2:behind], strict=True)
        if letter in layout.vector_letters
    ]
    linear += list(zip(addresses[behind:], layout.outputs, strict=True))
    if any(address % min(16, vector * itemsize) for address, itemsize in linear):
        return False
    if kernel.family == "gemm":
        return (layout.conv.out_channels if layout.conv.channels_last else layout.positions) % vector == 0
    return all(run % vector == 0 for run in (layout.inside[2], layout.outside[2]))


# ------------------------------------------------------------------------------------------------------- grid


def splits(kernel: ConvKernel, layout: ConvLayout, multiprocessors: int) -> int:
    """The parts that the sum over K is cut into, so that small results occupy the device."""
    if kernel.split == 1:
        return 1
    return max(1, min(kernel.split, 2 * multiprocessors // _blocks(kernel, layout)))


def grid_size(kernel: ConvKernel, layout: ConvLayout, multiprocessors: int) -> int:
    """Blocks of ``kernel`` for a result of at least one element."""
    if kernel.family == "any":
        return min(-(-layout.count // kernel.block), CONV_BLOCKS * multiprocessors)
    return _blocks(kernel, layout) * splits(kernel, layout, multiprocessors)


def sum_grid_size(kernel: ConvKernel, layout: ConvLayout, multiprocessors: int) -> int:
    """Blocks of ``CONV_SUM_BLOCK`` threads of the kernel ``NAME_sum``."""
    return min(-(-layout.count // (CONV_SUM_BLOCK * kernel.vector)), CONV_BLOCKS * multiprocessors)


def workspace_bytes(layout: ConvLayout, parts: int) -> int:
    """What the partial sums of ``parts`` splits take."""
    return parts * layout.count * 4 if parts > 1 else 0


def _blocks(kernel: ConvKernel, layout: ConvLayout) -> int:
    """The blocks for one split of any family but ``any``."""
    first, second, third = kernel.tile
    conv, (depth, height, width) = layout.conv, layout.outside
    if kernel.family == "gemm" and conv.channels_last:
        return -(-layout.batch * layout.positions // first) * -(-conv.out_channels // second)
    if kernel.family == "gemm":
        rows = -(-(conv.out_channels // conv.group) // first)
        return conv.group * rows * -(-layout.batch * layout.positions // second)
    tiles = depth * -(-height // second) * -(-width // third)
    if kernel.family == "depthwise":
        return -(-layout.batch * conv.out_channels // first) * tiles
    return layout.batch * -(-conv.out_channels // first) * tiles


# ------------------------------------------------------------------------------------------------------- parameters


def pack(
    kernel: ConvKernel, layout: ConvLayout, addresses: Sequence[int], parts: int = 1, workspace: int = 0
) -> list[bytes]:
    """The kernel's parameters in order, as bytes; ``addresses`` are as for ``accepts``, ``parts`` the splits."""
    index = "I" if kernel.index == 32 else "Q"
    arguments = [struct.pack("<Q", address) for address in (*addresses, workspace)]
    numbers = (layout.batch, *layout.inside, *layout.outside, *layout.pad, parts)
    dividers = (layout.outside[2], layout.outside[1], layout.positions)
    arguments.append(
        struct.pack(f"<{len(numbers)}{index}", *numbers)
        + b"".join(pack_divider(divisor, kernel.index) for divisor in dividers)
    )
    operands = layout.prologue + layout.epilogue
    for letter, operand in zip(kernel.access.letters, operands, strict=True):
        if letter == "g":
            arguments.append(struct.pack(f"<5{index}", *operand.steps))
    return arguments


def parameter_bytes(kernel: ConvKernel, outputs: int) -> int:
    """The size of the kernel's parameters; none needs padding before it."""
    word = kernel.index // 8
    divider = 12 if kernel.index == 32 else 8
    letters = kernel.access.letters
    return 8 * (2 + len(letters) + outputs + 1) + 11 * word + 3 * divider + 5 * word * letters.count("g")
