"""Limits, and what work costs, that the planners and the native library both read.

One row a figure, with its unit: ``custom_ops/generate_opcodes.py`` writes ``program/figures.h`` of them, in which
``MAX_RANK`` is ``kMaxRank``.  Only the standard library is imported, for the build reads this file by itself.

Costs are nanoseconds of one thread on an AMD EPYC at 3.7 GHz with AVX-512; other machines differ by much the same
factor for all.  What a convolution takes in each layout, by processor, is in ``onnxfuse/fused/conv/conv_times.py``,
and what an operator takes in ``onnxfuse/program/ops.py``.
"""

from typing import NamedTuple


class Figure(NamedTuple):
    """A figure: its name, its type in C++, its value, its unit, and what it means."""

    name: str
    type: str
    value: int | float
    unit: str
    means: str


FIGURES: list[Figure] = []


def _limit(name: str, value: int, unit: str, means: str, cpp: str = "size_t") -> int:
    FIGURES.append(Figure(name, cpp, value, unit, means))
    return value


def _cost(name: str, value: float, means: str) -> float:
    FIGURES.append(Figure(name, "double", value, "ns", means))
    return value


# --- Programs ---

MAX_TEXT = _limit("MAX_TEXT", 1 << 20, "bytes", "of a Program's text")
MAX_INPUTS = _limit("MAX_INPUTS", 128, "tensors", "that a Program reads")
MAX_OUTPUTS = _limit("MAX_OUTPUTS", 64, "tensors", "that a Program makes")
MAX_VALUES = _limit("MAX_VALUES", 4096, "values", "of a Program")
MAX_SLICES = _limit("MAX_SLICES", 32, "slices", "of one input")
MAX_VIEW_STEPS = _limit("MAX_VIEW_STEPS", 32, "steps", "of the view of one tensor")
MAX_RANK = _limit("MAX_RANK", 16, "dimensions", "of a tensor that the library takes", "int")

# --- convolutions ---

MAX_SPATIAL_RANK = _limit("MAX_SPATIAL_RANK", 3, "dimensions", "beside batch and channels")
MAX_CONV_ATTRIBUTE = _limit(
    "MAX_CONV_ATTRIBUTE",
    (1 << 15) - 1,
    "elements",
    "of kernel_shape, strides, dilations, pads, output_padding",
    "int64_t",
)
MAX_CONV_WEIGHTS = _limit("MAX_CONV_WEIGHTS", (1 << 31) - (1 << 24) - 1, "elements", "of the weights", "int64_t")
NHWC_BLOCK = _limit(
    "NHWC_BLOCK", 16, "filters", "whose weights follow one another for each tap and channel, with the channels last"
)
FEW_NHWC_PIXELS = _limit("FEW_NHWC_PIXELS", 12, "pixels", "that are computed in one piece with the channels last")
LEAST_GROUP = _limit("LEAST_GROUP", 4, "filters", "of a group, of which there are kernels with the channels last")

# --- views ---
#
# On an AMD EPYC (Zen 5, AVX-512), one thread, a Transpose and an Add took ONNX Runtime 1.0 to 1.4 times as long as a
# Program with rows of 200 to 4096 elements and 16 to 3000 columns, 0.5 with rows of 5000, 0.6 to 0.9 with 3 to 8
# columns; where more than two dimensions change places 0.9 to 13 times as long.

LONGEST_TRANSPOSED_ROW = _limit(
    "LONGEST_TRANSPOSED_ROW",
    4096,
    "elements",
    "of a row whose columns lie side by side in memory: up to so many are read in tiles of several rows",
    "int64_t",
)
LEAST_TRANSPOSED = _limit(
    "LEAST_TRANSPOSED",
    16,
    "elements",
    "of both of two dimensions that change places: ONNX Runtime transposes fewer faster than a Program reads them so",
    "int64_t",
)

# --- what work costs on the CPU ---

_cost("BYTE_NANOSECONDS", 0.012, "a byte that a tile reads from or writes to a tensor, operands in the level 1 cache")
_cost("STEP_NANOSECONDS", 10.0, "a step of a tile besides its elements")
_cost(
    "CHUNK_NANOSECONDS",
    2e3,
    "work worth handing to another thread: less than it takes to wake one, for the nodes around are computed by all",
)
_cost("PART_NANOSECONDS", 6e3, "the least part of which a thread takes several: to begin one takes a hundredth of that")
_cost(
    "LEAD_NANOSECONDS", 1.3e3, "what a thread does before ONNX Runtime's others begin; those of the library begin soon"
)
_cost("POOL_TAP_NANOSECONDS", 0.015, "an element that pooling with the channels last reads, in each of its windows")
_cost("POOL_RESULT_NANOSECONDS", 0.1, "an element that it makes")
_cost("CONCAT_RUN_NANOSECONDS", 1.0, "a run of elements that is copied, besides its bytes")
_cost("NORMALIZED_ELEMENT_NANOSECONDS", 0.2, "an element of a row that is normalized")
_cost("NORMALIZED_ROW_NANOSECONDS", 20.0, "such a row")
_cost("REDUCED_ELEMENT_NANOSECONDS", 0.05, "an element of a tensor that is reduced as it lies in memory")
_cost("NEST_ELEMENT_NANOSECONDS", 0.04, "an element of a block that is reduced")
_cost("NEST_BLOCK_NANOSECONDS", 200.0, "such a block, however small")
