"""A convolution as its kernels know it: everything but the batch and the spatial sizes, which arrive at run time.

The shape formulas are those of the ONNX operators Conv and ConvTranspose; where their text leaves automatic padding
open, they are what ONNX Runtime computes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import ProgramError
from onnxfuse.program.figures import MAX_CONV_ATTRIBUTE, MAX_CONV_WEIGHTS, MAX_SPATIAL_RANK
from onnxfuse.shapes.windows import count, covered, extent, same_padding, sides

DTYPES_OF_X = ("f32", "f16", "bf16")
OPERATORS = {"Conv": False, "ConvTranspose": True}
"""The values of a fused node's attribute ``operator`` for convolutions, and whether they are transposed."""
PRODUCT = "MatMul"
"""That for products."""
AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True)
class Convolution:
    """A Conv, or a ConvTranspose if ``transposed``, without its bias, of X [N, C, in…] and W.

    W is [M, C / group, kernel…], or [C, M / group, kernel…] if ``transposed``.  ``dtype`` is that of X, W and the
    result.  ``in_channels`` is C, ``out_channels`` M.  The tuples have an element for each of 1 to 3 spatial
    dimensions, ``pads`` two: all begins, then all ends; it is None unless ``auto_pad`` is NOTSET.  ``output_padding``
    is all 0 unless ``transposed``.

    With ``channels_last`` it is a matrix product, a convolution of single positions: X is [.., C], of 2 to 5
    dimensions, the result [.., M], and W [M, C], or [C, M] if ``transposed``; of the rest all is 1, and pads are 0.
    """

    transposed: bool
    dtype: str
    in_channels: int
    out_channels: int
    group: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...] | None
    auto_pad: str
    output_padding: tuple[int, ...]
    channels_last: bool = False

    def __post_init__(self) -> None:
        """Raises ProgramError for what is no convolution or has no kernel."""
        if problem := self._problem():
            raise ProgramError(f"no convolution: {problem}")

    def _problem(self) -> str | None:
        rank = len(self.kernel)
        if not 1 <= rank <= MAX_SPATIAL_RANK:
            return f"{rank} spatial dimensions"
        if self.dtype not in DTYPES_OF_X:
            return f"elements of type {self.dtype}"
        if self.auto_pad not in AUTO_PADS:
            return f"auto_pad {self.auto_pad!r}"
        if (self.pads is None) != (self.auto_pad != "NOTSET"):
            return "pads are given if auto_pad is NOTSET, and only then"
        pads = (0,) * (2 * rank) if self.pads is None else self.pads
        if (
            any(len(own) != rank for own in (self.strides, self.dilations, self.output_padding))
            or len(pads) != 2 * rank
        ):
            return f"attributes that are not of {rank} spatial dimensions"
        if not all(1 <= value <= MAX_CONV_ATTRIBUTE for value in (*self.kernel, *self.strides, *self.dilations)):
            return f"a kernel size, stride or dilation that is not between 1 and {MAX_CONV_ATTRIBUTE}"
        if not all(0 <= value <= MAX_CONV_ATTRIBUTE for value in (*pads, *self.output_padding)):
            return f"a padding that is not between 0 and {MAX_CONV_ATTRIBUTE}"
        if any(self.output_padding) and not self.transposed:
            return "output_padding of a Conv"
        if min(self.in_channels, self.out_channels, self.group) < 1:
            return "no channels"
        unit = {1, *self.kernel, *self.strides, *self.dilations, self.group, 1 + max((*pads, *self.output_padding))}
        if self.channels_last and (unit != {1} or rank != 1):
            return "a product that is not of single positions"
        if self.in_channels % self.group or self.out_channels % self.group:
            return f"{self.in_channels} and {self.out_channels} channels in {self.group} groups"
        if math.prod(self.weight_shape) > MAX_CONV_WEIGHTS:
            return f"weights of shape {list(self.weight_shape)}"
        return None

    @property
    def rank(self) -> int:
        """The number of spatial dimensions."""
        return len(self.kernel)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The shape of W."""
        outer, inner = self.out_channels, self.in_channels
        if self.transposed:
            outer, inner = inner, outer
        return (outer, inner) if self.channels_last else (outer, inner // self.group, *self.kernel)

    @property
    def depth(self) -> int:
        """The products that each element of the result is a sum of: C / group times the kernel's size."""
        return self.in_channels // self.group * math.prod(self.kernel)

    @property
    def depthwise(self) -> bool:
        """Whether each channel is convolved by itself, by one filter."""
        return not self.transposed and self.group == self.in_channels == self.out_channels > 1

    @property
    def pointwise(self) -> bool:
        """Whether it is a matrix product of W, as it lies, and each image of X: all kernel sizes and strides 1, nothing
        padded or transposed."""
        unit = set(self.kernel) == set(self.strides) == {1} and self.group == 1 and not self.transposed
        unit = unit and not self.channels_last
        return unit and self.static_pads is not None and not any(self.static_pads)

    @property
    def static_pads(self) -> tuple[int, ...] | None:
        """The pads (begins, then ends) if they are the same for all spatial sizes, else None.

        They depend on the sizes if automatic and a stride is not 1.
        """
        if self.pads is not None:
            return self.pads
        if self.auto_pad == "VALID" or set(self.strides) == {1}:
            return self.resolved_pads((1 << 16,) * self.rank)
        return None

    def resolved_pads(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """The pads (begins, then ends) for an X of these spatial sizes."""
        if self.pads is not None:
            return self.pads
        begins, ends = [], []
        for size, window, stride, extra in zip(spatial, self._windows, self.strides, self.output_padding, strict=True):
            if self.auto_pad == "VALID":
                total = 0
            elif self.transposed:
                total = covered(size, window, stride) + extra - size * stride
            else:
                total = same_padding(size, window, stride)
            begin, end = sides(max(0, total), self.auto_pad)
            begins.append(begin)
            ends.append(end)
        return (*begins, *ends)

    def output_shape(self, x_shape: Sequence[int]) -> tuple[int, ...]:
        """[N, M, out…] for an X of this shape, with the channels last [.., M].  Raises ProgramError for an X that does
        not fit."""
        if self.channels_last:
            fits = 2 <= len(x_shape) <= 2 + MAX_SPATIAL_RANK and min(x_shape) >= 0
            if not fits or x_shape[-1] != self.in_channels:
                raise ProgramError(f"X of shape {list(x_shape)} for a product with rows of {self.in_channels}")
            return (*x_shape[:-1], self.out_channels)
        if len(x_shape) != 2 + self.rank or x_shape[1] != self.in_channels or min(x_shape) < 0:
            raise ProgramError(
                f"X of shape {list(x_shape)} for a convolution of {self.in_channels} channels "
                f"in {self.rank} spatial dimensions"
            )
        spatial = x_shape[2:]
        pads = self.resolved_pads(spatial)
        sizes = []
        for axis, size in enumerate(spatial):
            pad = pads[axis] + pads[axis + self.rank]
            window, stride = self._windows[axis], self.strides[axis]
            if self.transposed:
                sizes.append(covered(size, window, stride) + self.output_padding[axis] - pad)
            else:
                sizes.append(count(size, window, stride, (pads[axis], pads[axis + self.rank])))
        # Nothing remains of a window that is larger than what it slides over.
        return (x_shape[0], self.out_channels, *(max(0, size) for size in sizes))

    @property
    def _windows(self) -> tuple[int, ...]:
        """What the dilated kernel spans in each dimension."""
        return tuple(map(extent, self.kernel, self.dilations))

    @property
    def itemsize(self) -> int:
        """Bytes of an element of X, W and the result."""
        return DTYPES[self.dtype].itemsize


def product(dtype: str, sizes: tuple[int, int], *, by_rows: bool) -> Convolution:
    """The product of any A [.., K] and a matrix of ``sizes`` K and N, which is [K, N], or [N, K] if ``by_rows``.

    Raises ProgramError for what has no kernel.
    """
    one, none = (1,), (0,)
    return Convolution(not by_rows, dtype, *sizes, 1, one, one, one, none * 2, "NOTSET", none, channels_last=True)
