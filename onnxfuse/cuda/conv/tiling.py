"""How a convolution kernel divides its work: what a tuner may vary."""

from dataclasses import dataclass
from math import prod

from onnxfuse.cuda.conv.kernel import Family, Tile
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.shapes.windows import covered, extent


@dataclass(frozen=True)
class Tiling:
    """One kernel: ``family``, ``tile``, ``vector`` and ``split`` are those of ``onnxfuse.cuda.conv.kernel.ConvKernel``.

    ``thread`` is the part of the tile that one thread computes, rows x columns, in the terms of the tile: for ``gemm``
    channels x positions (of one warp with ``tensor_cores``), for ``depthwise`` rows x ``vector`` columns, for
    ``direct`` channels x ``vector`` columns.
    """

    family: Family
    tile: Tile
    thread: tuple[int, int]
    vector: int
    split: int = 1
    tensor_cores: bool = False

    @property
    def block(self) -> int:
        """Threads of a block."""
        (first, second, third), (rows, columns) = self.tile, self.thread
        if self.family == "gemm":
            return first // rows * (second // columns) * (32 if self.tensor_cores else 1)
        if self.family == "depthwise":
            threads = first * (second // rows) * (third // columns)
        else:
            threads = first // rows * second * (third // columns)
        return -(-threads // 32) * 32


ANY = Tiling("any", (1, 1, 1), (1, 1), 1)


def patch_bytes(conv: Convolution, tiling: Tiling) -> int:
    """The shared memory that one plane of X takes: ConvPatch of custom_ops/cuda/device/conv_depthwise.cuh."""
    _, rows, columns = tiling.tile
    _, stride_h, stride_w = _last((1, 1, 1), conv.strides)
    _, span_h, span_w = _last((1, 1, 1), tuple(map(extent, conv.kernel, conv.dilations)))
    vector = tiling.vector
    pads = conv.static_pads
    shift = -pads[conv.rank - 1] % vector if pads is not None else 0
    reach = -(-(shift + (vector - 1) * stride_w + span_w) // vector) * vector
    return 4 * covered(rows, span_h, stride_h) * ((columns - vector) * stride_w + reach)


def shared_bytes(conv: Convolution, tiling: Tiling) -> int:
    """The shared memory of a block of a ``depthwise`` or ``direct`` kernel."""
    if tiling.family == "depthwise":
        return tiling.tile[0] * patch_bytes(conv, tiling)
    return conv.in_channels * patch_bytes(conv, tiling) + 4 * conv.in_channels * prod(conv.kernel) * tiling.tile[0]


def _last(filler: tuple[int, int, int], values: tuple[int, ...]) -> tuple[int, ...]:
    return (*filler[: 3 - len(values)], *values)
