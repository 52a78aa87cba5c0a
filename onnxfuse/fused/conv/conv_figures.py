"""What convolutions, pooling and the nodes beside them take on the CPU, by processor and layout: figures alone.

The times were measured on one core of AMD EPYCs, those with AVX-512 on a Zen 5 (ONNX Runtime 1.32), where those of one
tap and of single channels with the channels last are from whole models, and on an Intel Xeon.  Those of pooling and of
GELUs were measured on a Zen 4 alone; with AVX2 those of pooling are taken to be twice as long, about the ratio of the
others, and on a Zen 5 and a Xeon those of GELUs half as long.  What few pixels take with the channels last was measured
on a Xeon alone.  Other machines differ by much the same factor for all.  Where they do not, or the number of threads
makes a difference, ``optimize --tune`` measures (cpu_tuning.py).  What the library reads too is in
``onnxfuse/program/figures.py``.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from onnxfuse import cpu
from onnxfuse.program.figures import WIDE_SHARE


class Layout(IntEnum):
    """How a tensor's channels lie, and so who computes the convolution: the library, ONNX Runtime, or the library."""

    PLAIN = 0
    BLOCKED = 1
    NHWC = 2


class Cost(NamedTuple):
    """Nanoseconds that a convolution takes: for each product and its addition, and to read or write an element."""

    product: float
    element: float


@dataclass(frozen=True)
class Times:
    """What parts of nodes take, in nanoseconds; of three, one for each Layout."""

    pointwise: tuple[Cost, Cost, Cost]
    """Convolutions of one tap: products of matrices."""
    depthwise: tuple[Cost, Cost, Cost]
    strided: Cost
    """Depthwise ones in the plain layout that skip columns."""
    rows: tuple[int, float]
    """How many rows of depthwise ones in the plain layout are computed together, and times what a product takes in the
    last rows, which are computed two by two."""
    others: tuple[Cost, Cost, Cost]
    far: tuple[float, float, float]
    """To read or write an element beyond that, where a tensor is larger than what a core has of the caches."""
    call: tuple[float, float, float]
    """A convolution, however small, beyond what any node takes."""
    reorder: float
    """To change an element's layout."""
    weight: float
    """To order a weight in the plain layout, in each run."""
    node: float
    """An element of an elementwise node that is computed by itself."""
    affine: float
    """The same of a scale and a shift of each channel, which conv-layout writes as a depthwise convolution."""
    silu: float
    """The same of x Sigmoid(x), which ONNX Runtime computes as one node."""
    gelu: tuple[float, float]
    """The same of a GELU, and in the tail of a convolution."""
    tail: tuple[float, float]
    """The same in the tail of a convolution: of a function, or of a few instructions."""
    pool: tuple[Cost, Cost, Cost]
    """MaxPool and AveragePool: an element of a window for each product."""
    pool_row: float
    """A row of a channel of their results in the plain layout."""
    one_block: float = 1.0
    """Times what a product takes in ONNX Runtime's blocked layout where all filters are one block."""
    concat: tuple[float, float] = (0.0, 0.0)
    """An element of a Concat of channels, and of one where these come last; 0 where that was not measured."""
    least_gain: float = 0.09
    """Of a graph's time, that convolutions which could be blocked are not for less: what the estimates are good for."""


_AVX2 = Times(
    pointwise=(Cost(1 / 50, 0.30), Cost(1 / 57, 0.10), Cost(1 / 62, 0.10)),
    depthwise=(Cost(0.020, 0.10), Cost(0.018, 0.10), Cost(0.022, 0.20)),
    strided=Cost(0.028, 0.30),
    rows=(4, 1.5),
    others=(Cost(1 / 50, 0.30), Cost(1 / 57, 0.10), Cost(1 / 60, 0.10)),
    far=(0.07, 0.07, 0.25),
    call=(0.0, 0.0, 3000.0),
    reorder=0.40,
    weight=0.40,
    node=0.35,
    affine=0.35,
    silu=0.70,
    gelu=(1.00, 1.00),
    tail=(0.30, 0.08),
    pool=(Cost(0.050, 0.24), Cost(0.024, 0.09), Cost(0.034, 0.12)),
    pool_row=12.0,
)
_AVX512 = Times(
    pointwise=(Cost(1 / 105, 0.09), Cost(1 / 104, 0.035), Cost(1 / 114, 0.053)),
    depthwise=(Cost(0.0113, 0.11), Cost(0.0166, 0.05), Cost(0.0148, 0.058)),
    strided=Cost(0.0132, 0.14),
    rows=(6, 1.7),
    others=(Cost(1 / 97, 0.12), Cost(1 / 117, 0.065), Cost(1 / 112, 0.065)),
    far=(0.04, 0.12, 0.35),
    call=(1000.0, 1000.0, 3000.0),
    reorder=0.11,
    weight=0.11,
    node=0.14,
    affine=0.14,
    silu=0.16,
    gelu=(0.33, 0.25),
    tail=(0.10, 0.01),
    pool=(Cost(0.025, 0.12), Cost(0.012, 0.045), Cost(0.017, 0.06)),
    pool_row=6.0,
)
# Measured on a Zen 4, which computes vectors of AVX-512 in two steps: 880 convolutions of vision models, each between
# two others in the same layout, in one thread.  The estimates are for two, which share products; they share less of the
# way through the caches, for which 0.7 of the time stands here, and hardly what ONNX Runtime computes beside
# convolutions.
_HALVED_AVX512 = replace(
    _AVX512,
    pointwise=(Cost(1 / 96, 0.047), Cost(1 / 113, 0.004), Cost(1 / 106, 0.026)),
    depthwise=(Cost(0.0110, 0.084), Cost(0.0090, 0.034), Cost(0.0114, 0.074)),
    strided=Cost(0.0175, 0.12),
    others=(Cost(1 / 111, 0.10), Cost(1 / 118, 0.035), Cost(1 / 112, 0.07)),
    far=(0.11, 0.035, 0.18),
    call=(3000.0, 3000.0, 4000.0),
    reorder=0.14,
    weight=0.055,
    node=0.19,
    affine=0.19,
    silu=0.31,
    gelu=(0.64, 0.48),
    tail=(0.25, 0.04),
    least_gain=0.05,
)
# Measured on a Xeon with AVX-512 (Sapphire Rapids): 38 kinds of convolutions of vision models, each between two others
# in the same layout, in one thread and in two, of which the mean stands here, and what ONNX Runtime has beside them.
# Single channels with the channels last are from whole models (MobileNetV2, EfficientNet-Lite0 and B0, MNASNet).
# For a product of one block of filters it takes 1.4 to 1.65 times as long; less stands here, for where another thread
# shares the core the library loses more than ONNX Runtime.
_INTEL_AVX512 = replace(
    _AVX512,
    pointwise=(Cost(1 / 69, 0.11), Cost(1 / 100, 0.02), Cost(1 / 93, 0.02)),
    depthwise=(Cost(0.0165, 0.134), Cost(0.0134, 0.073), Cost(0.0150, 0.080)),
    strided=Cost(0.019, 0.20),
    others=(Cost(1 / 87, 0.13), Cost(1 / 102, 0.075), Cost(1 / 101, 0.072)),
    reorder=0.22,
    affine=0.36,
    silu=0.28,
    one_block=1.25,
    concat=(0.25, 0.08),
)

FAR = 1 << 20
"""Elements of a tensor that is as large as what a core has of the caches."""
FAR_FOR_EACH = 8
"""Elements that are gone before they are read, for each that there is no room for."""
FEW_BLOCKS = {1: 1.25, 2: 1.05}
"""Times what a product takes with the channels last, of blocks of filters that do not fill the registers."""
WIDE = 3 << 17
"""Elements that a core's caches do not keep for the next node."""
ROWS = (1 << 20) // (4 * WIDE_SHARE)
"""Elements of as many rows as are made at once: what stays in a level 2 cache of 1 MiB."""
MADE_AGAIN = 1.3
"""Rows that are made, most of them once, for each that there is."""
SHORT_GROUP = (5.0, 8.0, 2.5)
"""What a group costs in each layout, in products of each of its filters, or channels."""
NARROW = 1.55
"""Times what a product takes of vectors of whole groups, whose channels are put in order."""
WEIGHT_PIXELS = 5
"""Pixels that take as long as the weights' way through the caches."""
TAP = 0.3
"""Nanoseconds to find what a tap of a pixel reads."""
CHANGES = 1.5
"""Times what a reorder takes, for an element whose layout a convolution changes itself."""
TRANSPOSES = 2.0
"""Times what a reorder takes, for an element of a Transpose."""
FAR_APART = 4
"""Times what it takes to read an element, for elements that are more than two apart."""

INSIDE = {
    **{"Clip": 0.09, "HardSigmoid": 0.15, "HardSwish": 0.23, "LeakyRelu": 0.23, "Relu": 0.0, "Sigmoid": 0.28},
    **{"Tanh": 0.25, "Add": 0.0, "BatchNormalization": 0.0, "Mul": 0.0},
}
"""Nanoseconds of an element of what ONNX Runtime computes inside a convolution: activations, and what becomes part of
the weights or is added to the sums."""
SWISH_MUL = 0.08
"""The same of the Mul that makes HardSigmoid a hard swish."""
SHORT = 0.05
"""Nanoseconds of an instruction by itself: what takes less, as an addition does, is short in a tail."""

NODE_CALL = 1500.0
"""Nanoseconds of a node, a reorder among them, however small."""


def times() -> Times:
    """Those of this machine."""
    if not cpu.has_avx512():
        return _AVX2
    if cpu.is_intel():
        return _INTEL_AVX512
    return _HALVED_AVX512 if cpu.halves_avx512() else _AVX512
