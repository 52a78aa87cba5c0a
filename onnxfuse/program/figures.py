"""Limits, and what work costs, that the planners and the native library both read.

One row a figure, with its unit: ``custom_ops/generate_opcodes.py`` writes ``program/figures.h`` of them, in which
``MAX_RANK`` is ``kMaxRank``.  Only the standard library is imported, for the build reads this file by itself.

Costs are nanoseconds of one thread on an AMD EPYC at 3.7 GHz with AVX-512; other machines differ by much the same
factor for all.  Those of convolutions and attention are products, each with its addition, of float32 in vectors: which
share of the time they are hardly depends on the machine.  They were found on such EPYCs, with one thread and with two,
by timing the layers and the whole of vision models and transformers.  What a convolution takes in each layout, by
processor, is in ``onnxfuse/fused/conv/conv_figures.py``, and what an operator takes in ``onnxfuse/program/ops.py``.
What belongs to a loop, as how much of it is unrolled or fits into a cache with it, stands beside the loop.
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


def _cost(name: str, value: float, means: str, unit: str = "ns") -> float:
    FIGURES.append(Figure(name, "double", value, unit, means))
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

# --- products of matrices ---
#
# On an AMD EPYC (Zen 5, AVX-512), one thread, ONNX Runtime's time over the library's, both with warm weights: 0.5 to
# 1.0 with 8x8 to 384x96 of them, 0.96 to 1.3 from 512x256 on, and 1.0 to 1.35 with any number where a bias and a Relu
# follow.  Where weights come from memory, as those of a BERT's layers do, 1.0 to 1.4.

LEAST_PRODUCT_WEIGHTS = _limit(
    "LEAST_PRODUCT_WEIGHTS",
    1 << 17,
    "elements",
    "of a constant matrix: with fewer a product alone is left to ONNX Runtime",
    "int64_t",
)

# --- outputs in parts ---
#
# On an AMD EPYC (Zen 5, AVX-512), one thread, three elementwise nodes and a Concat with 1, 4, 8, 16 and 32 times as
# much from elsewhere took ONNX Runtime 2.0, 1.7, 1.3, 1.2 and 1.2 times as long as one node, and 1.7, 1.4, 1.2, 1.1 and
# 1.1 times as long as its own Concat behind a fused node.  Along the last axis, of 32 elements and 1 to 32 times as
# many, it was 2.3, 2.0, 1.3, 1.05 and 1.04 against 2.7, 2.2, 1.4, 1.1 and 1.1.

MOST_FOREIGN_PARTS = _limit(
    "MOST_FOREIGN_PARTS",
    8,
    "parts of what a region makes",
    "that a Concat behind it joins with that and the fused node copies: ONNX Runtime joins more of them itself",
    "int64_t",
)

# --- kernels for GPUs: what Python renders, the library launches ---

MAX_RECIPE_TEXT = _limit("MAX_RECIPE_TEXT", 1 << 16, "bytes", "of the text of a launch recipe")
MAX_KERNELS = _limit("MAX_KERNELS", 16, "kernels", "of a source, one after the other tried")
MAX_PARTS = _limit("MAX_PARTS", 16, "parts", "of a kernel, to each of which a range of its blocks belongs")
SMALL_MAP = _limit(
    "SMALL_MAP",
    132 * 2048,
    "threads",
    "that a GPU of 132 multiprocessors holds: maps of fewer, each of which would leave it in part idle, share a launch",
    "int64_t",
)
MAX_PART_LINES = _limit("MAX_PART_LINES", 128, "lines", "of the kernels of a recipe whose Program has parts")
MAX_KERNEL_NAME = _limit("MAX_KERNEL_NAME", 128, "characters", "of the name of a kernel")
MAX_PARAMETER_BYTES = _limit("MAX_PARAMETER_BYTES", 4096, "bytes", "that a launch of any kernel may pass")
MAX_BLOCK = _limit("MAX_BLOCK", 1024, "threads", "of a block", "uint32_t")
MAX_BLOCKS = _limit("MAX_BLOCKS", (1 << 31) - 1, "blocks", "of a launch", "int64_t")
WARP = _limit("WARP", 32, "threads", "of a warp", "uint32_t")
SHARED_BYTES = _limit("SHARED_BYTES", 48 << 10, "bytes", "of shared memory that a block of any GPU may have unasked")
WIDEST_ACCESS = _limit("WIDEST_ACCESS", 16, "bytes", "of the widest load and store")
LIMIT_32 = _limit("LIMIT_32", 1 << 31, "elements", "from the first one, beyond indices of 32 bits", "int64_t")
MAX_COUNT_32 = _limit(
    "MAX_COUNT_32",
    (1 << 31) - (1 << 24) - 1,
    "elements",
    "of an iteration space for indices of 32 bits; the rest is room for the threads of the last block",
    "int64_t",
)
WAVES = _limit("WAVES", 2, "blocks of a multiprocessor", "at most, where blocks share rows or keys", "int64_t")
MAX_CONV_TILE = _limit("MAX_CONV_TILE", 4096, "elements", "of an edge of a convolution's tile", "uint32_t")
MAX_CONV_SPLIT = _limit("MAX_CONV_SPLIT", 64, "parts", "of a convolution's sums", "uint32_t")
CONV_SUM_BLOCK = _limit("CONV_SUM_BLOCK", 256, "threads", "of a block of the kernel that adds such parts", "uint32_t")
CONV_BLOCKS = _limit(
    "CONV_BLOCKS",
    32,
    "blocks of a multiprocessor",
    "at most, where threads of a convolution loop over what remains: a few waves of the device",
    "int64_t",
)
MAX_NEST_ITEMS = _limit("MAX_NEST_ITEMS", 64, "elements", "of a row that a thread keeps", "uint32_t")
MAX_NEST_STEPS = _limit("MAX_NEST_STEPS", 16, "kernels", "in which blocks share rows", "uint32_t")
MAX_NEST_SPLITS = _limit("MAX_NEST_SPLITS", 128, "blocks", "that share a row", "int64_t")
LEAST_NEST_GROUPS = _limit("LEAST_NEST_GROUPS", 8, "groups", "of a thread, where blocks share rows", "int64_t")
NEST_PART_BYTES = _limit("NEST_PART_BYTES", 8, "bytes", "of one partial result in the workspace")
NEST_LANES = _limit(
    "NEST_LANES", 32, "groups of columns", "that a block along columns takes, one for each lane of a warp", "uint32_t"
)
MAX_ATTENTION_TILE = _limit("MAX_ATTENTION_TILE", 1024, "elements", "of an edge of an attention's tile", "uint32_t")
MAX_ATTENTION_SPLIT = _limit("MAX_ATTENTION_SPLIT", 64, "blocks", "that share the keys of a row", "uint32_t")
ATTENTION_SUM_BLOCK = _limit(
    "ATTENTION_SUM_BLOCK", 128, "threads", "of a block of the kernel that joins what these have left", "uint32_t"
)
LEAST_ATTENTION_KEYS = _limit("LEAST_ATTENTION_KEYS", 128, "keys", "of each of these", "int64_t")
ATTENTION_STATE = _limit("ATTENTION_STATE", 3, "numbers of a row", "that each leaves besides its results", "int64_t")

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
_cost("FUNCTION_NANOSECONDS", 0.1, "an element of an instruction that is a function: that long, with or without others")
_cost("CHAINED_BYTE_NANOSECONDS", 0.003, "a byte of an element of any other, beside others in registers")

# --- what work costs on the CPU, in products: whichever node has them ---

_cost("ALONE_PRODUCTS", 300e3, "fewer in all are done by the calling thread before others begin", "products")
_cost("HANDOVER_PRODUCTS", 200e3, "a part of a convolution with fewer is not worth the hand-over", "products")
_cost("RESULT_PRODUCTS", 8.0, "a result of a convolution, besides its own", "products")

# --- convolutions in the plain layout ---

_cost("SPLIT_PRODUCTS", 400e3, "a part of its filters with fewer is not worth a unit of its own", "products")
_cost("PLAIN_SINGLE_PRODUCTS", 2.5, "a product of single channels", "products")
_cost("PLAIN_ELEMENT_PRODUCTS", 10.0, "an element that is read or written for single channels", "products")
_limit("PLAIN_UNITS", 16, "units", "to divide filters for, if there are less than half as many", "int64_t")
_limit("PLAIN_UNIT_FILTERS", 8, "filters", "of a unit at least, or half of those of a strip", "int64_t")
_limit("LIGHT_STRIPS", 16, "strips", "at least, where the weights stay in the level 2 cache", "int64_t")
_limit("LEAST_STRIPS", 4, "strips", "at least, for equal shares of the work, of SHARED_FILTERS and more", "int64_t")
_limit("SHARED_FILTERS", 32, "filters", "of fewer there are more strips", "int64_t")

# --- convolutions with the channels last ---

_cost("NEAR_WEIGHT_PRODUCTS", 3.0, "a weight or an element of X on its way from the level 2 cache", "products")
_cost("FAR_WEIGHT_PRODUCTS", 12.0, "a weight from farther away", "products")
_cost("NHWC_UNIT_PRODUCTS", 30e3, "a unit, however small", "products")
_cost("NHWC_RUN_PRODUCTS", 3000.0, "a run of results after which the epilogue stops", "products")
_cost("NHWC_SINGLE_PRODUCTS", 1.5, "a product of single channels", "products")
_cost("NHWC_ELEMENT_PRODUCTS", 5.0, "an element that is read for single channels", "products")
_cost("NHWC_READ_ROWS", 0.3, "a row that single channels read", "rows of results")
_cost("NHWC_UNIT_ROWS", 0.2, "a unit of rows, however small", "rows of results")
_cost("ONE_BLOCK", 1.25, "a pixel of one block of filters, which does not fill the registers", "blocks of filters")
_cost("TWO_BLOCKS", 2.1, "a pixel of two blocks of filters", "blocks of filters")
_cost("SPILT_UNIT", 1.03, "a unit whose results do not stay in the caches next to the processor", "such units")
_limit("NHWC_UNIT_RESULTS", 12288, "results", "of a unit, that stay there until its epilogue reads them", "int64_t")
_limit(
    "NHWC_ROW_RESULTS", 65536, "results", "of single channels or whole rows, that the level 2 cache keeps", "int64_t"
)
_limit("NHWC_TILE_PIXELS", 8, "pixels", "of a tile of most sizes: units are whole ones", "int64_t")
_limit("NHWC_LEAST_TILE", 2, "pixels", "of the last tile of a unit, which has a multiple of them", "int64_t")
_limit("NHWC_MANY_PIXELS", 256, "pixels", "of a unit, whatever its results take", "int64_t")
_limit("NHWC_FILTER_PARTS", 8, "parts", "of the filters at most", "int64_t")
_limit("PAIR_SHARE", 8, "parts of the level 2 cache", "of which results of a pair may take one", "int64_t")
WIDE_SHARE = _limit(
    "WIDE_SHARE", 2, "parts of the level 2 cache", "of which what is made for single channels takes one", "int64_t"
)
_limit("NHWC_READ_ELEMENTS", 6144, "elements", "of a kernel's rows that single channels read at once", "int64_t")
_limit("NHWC_LEAST_COLUMNS", 16, "columns", "of single channels that are computed at once", "int64_t")
_limit("WIDE_IMAGE", 2, "columns a row", "of an image whose threads rather take columns each than rows", "int64_t")

# --- attention on the CPU ---

_cost("TASK_PRODUCTS", 1 << 17, "a task that is worth the hand-over", "products")
_cost("EXP_PRODUCTS", 16, "an exponential function", "products")
_cost("COPIED_KEY_PRODUCTS", 16, "an element of K or V that is copied", "products")
_cost("SPLIT_TASK_PRODUCTS", 16e3, "a task besides its products, where tasks have copies of their own", "products")
_limit("SPLIT_TASK_ROWS", 16, "rows of Q", "of such a task at least", "int64_t")
_limit("UNCOPIED_ROWS", 8, "rows of Q", "that meet a key, for which a copy takes longer than the products", "int64_t")
_limit("UNCOPIED_PARTS", 8, "parts", "that are worth more copies of a key", "int64_t")

# --- squeeze-and-excitation on the CPU ---

_limit("GATE_ELEMENTS", 1 << 15, "elements", "of X to add up, that are worth the hand-over", "int64_t")
_limit("GATE_PRODUCTS", 1 << 15, "products", "that are worth the hand-over", "int64_t")
