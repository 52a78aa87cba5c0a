"""Limits, and what work costs, that the planners and the native library read.

One row a figure, with its unit, in the table of its readers.  ``custom_ops/generate_opcodes.py`` writes a header of
each table that a part of the library reads, in which ``MAX_RANK`` is ``kMaxRank``, so that a figure changed or added
compiles that part anew and no other.  A row whose value has a name in this file is one that Python reads.  Only the
standard library is imported, for the build reads this file by itself.

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


TABLES: list["Table"] = []


class Table:
    """Figures that the same part of the library reads, by the header ``figures/<header>.h``; without one, none does."""

    def __init__(self, header: str | None = None) -> None:
        self.header = header
        self.figures: list[Figure] = []
        TABLES.append(self)

    def limit(self, name: str, value: int, unit: str, means: str, cpp: str = "size_t") -> int:
        """Adds a number of things, of the type ``cpp`` in C++, and gives it."""
        self.figures.append(Figure(name, cpp, value, unit, means))
        return value

    def cost(self, name: str, value: float, means: str, unit: str = "ns") -> float:
        """Adds what some work takes, a ``double`` in C++, and gives it."""
        self.figures.append(Figure(name, "double", value, unit, means))
        return value


# --- Programs ---

PROGRAMS = Table("programs")
MAX_TEXT = PROGRAMS.limit("MAX_TEXT", 1 << 20, "bytes", "of a Program's text")
MAX_INPUTS = PROGRAMS.limit("MAX_INPUTS", 128, "tensors", "that a Program reads")
MAX_OUTPUTS = PROGRAMS.limit("MAX_OUTPUTS", 64, "tensors", "that a Program makes")
MAX_VALUES = PROGRAMS.limit("MAX_VALUES", 4096, "values", "of a Program")
MAX_SLICES = PROGRAMS.limit("MAX_SLICES", 32, "slices", "of one input")
MAX_VIEW_STEPS = PROGRAMS.limit("MAX_VIEW_STEPS", 32, "steps", "of the view of one tensor")
MAX_RANK = PROGRAMS.limit("MAX_RANK", 16, "dimensions", "of a tensor that the library takes", "int")

# --- regions: what is worth a node ---

PLANNERS = Table()
MAX_OPERANDS = PLANNERS.limit(
    "MAX_OPERANDS",
    24,
    "tensors",
    "that a fused node for CUDA reads and makes: each takes registers for its address, and parameters of the kernel",
)

# On an AMD EPYC (Zen 5, AVX-512), one thread, a Transpose and an Add took ONNX Runtime 1.0 to 1.4 times as long as a
# Program with rows of 200 to 4096 elements and 16 to 3000 columns, 0.5 with rows of 5000, 0.6 to 0.9 with 3 to 8
# columns; where more than two dimensions change places 0.9 to 13 times as long.

LEAST_TRANSPOSED = PLANNERS.limit(
    "LEAST_TRANSPOSED",
    16,
    "elements",
    "of both of two dimensions that change places: ONNX Runtime transposes fewer faster than a Program reads them so",
)

# On an AMD EPYC (Zen 5, AVX-512), one thread, ONNX Runtime's time over the library's, both with warm weights: 0.5 to
# 1.0 with 8x8 to 384x96 of them, 0.96 to 1.3 from 512x256 on, and 1.0 to 1.35 with any number where a bias and a Relu
# follow.  Where weights come from memory, as those of a BERT's layers do, 1.0 to 1.4.

LEAST_PRODUCT_WEIGHTS = PLANNERS.limit(
    "LEAST_PRODUCT_WEIGHTS",
    1 << 17,
    "elements",
    "of a constant matrix: with fewer a product alone is left to ONNX Runtime",
)

# On an AMD EPYC (Zen 5, AVX-512), one thread, three elementwise nodes and a Concat with 1, 4, 8, 16 and 32 times as
# much from elsewhere took ONNX Runtime 2.0, 1.7, 1.3, 1.2 and 1.2 times as long as one node, and 1.7, 1.4, 1.2, 1.1 and
# 1.1 times as long as its own Concat behind a fused node.  Along the last axis, of 32 elements and 1 to 32 times as
# many, it was 2.3, 2.0, 1.3, 1.05 and 1.04 against 2.7, 2.2, 1.4, 1.1 and 1.1.

MOST_FOREIGN_PARTS = PLANNERS.limit(
    "MOST_FOREIGN_PARTS",
    8,
    "parts of what a region makes",
    "that a Concat behind it joins with that and the fused node copies: ONNX Runtime joins more of them itself",
)

TURNED_BYTES = PLANNERS.limit(
    "TURNED_BYTES",
    1 << 21,
    "bytes",
    "of a tensor that a kernel which reduces reads on a GPU though neighbours in memory are in other rows: a Transpose "
    "takes about as long as a launch, and caches hold what is read in pieces",
)

SMALL_MAP = PLANNERS.limit(
    "SMALL_MAP",
    132 * 2048,
    "threads",
    "that a GPU of 132 multiprocessors holds: maps of fewer, each of which would leave it in part idle, share a launch",
)

# --- kernels for GPUs: what Python renders, the library launches ---

CUDA = Table("cuda")
CUDA.limit("MAX_RECIPE_TEXT", 1 << 16, "bytes", "of the text of a launch recipe")
MAX_KERNELS = CUDA.limit("MAX_KERNELS", 16, "kernels", "of a source, one after the other tried")
MAX_KERNEL_NAME = CUDA.limit("MAX_KERNEL_NAME", 128, "characters", "of the name of a kernel")
MAX_PARAMETER_BYTES = CUDA.limit("MAX_PARAMETER_BYTES", 4096, "bytes", "that a launch of any kernel may pass")
MAX_BLOCK = CUDA.limit("MAX_BLOCK", 1024, "threads", "of a block", "uint32_t")
MAX_BLOCKS = CUDA.limit("MAX_BLOCKS", (1 << 31) - 1, "blocks", "of a launch", "int64_t")
WARP = CUDA.limit("WARP", 32, "threads", "of a warp", "uint32_t")
WIDEST_ACCESS = CUDA.limit("WIDEST_ACCESS", 16, "bytes", "of the widest load and store")
LIMIT_32 = CUDA.limit("LIMIT_32", 1 << 31, "elements", "from the first one, beyond indices of 32 bits", "int64_t")
MAX_COUNT_32 = CUDA.limit(
    "MAX_COUNT_32",
    (1 << 31) - (1 << 24) - 1,
    "elements",
    "of an iteration space for indices of 32 bits; the rest is room for the threads of the last block",
    "int64_t",
)
WAVES = CUDA.limit("WAVES", 2, "blocks of a multiprocessor", "at most, where blocks share rows or keys", "int64_t")
SHARED_BYTES = PLANNERS.limit(
    "SHARED_BYTES", 48 << 10, "bytes", "of shared memory that a block of any GPU may have unasked"
)

CUDA_ELEMENTWISE = Table("cuda_elementwise")
MAX_PARTS = CUDA_ELEMENTWISE.limit(
    "MAX_PARTS", 16, "parts", "of a kernel, to each of which a range of its blocks belongs"
)
MAX_PART_LINES = CUDA_ELEMENTWISE.limit(
    "MAX_PART_LINES", 128, "lines", "of the kernels of a recipe whose Program has parts"
)

CUDA_CONV = Table("cuda_conv")
MAX_CONV_TILE = CUDA_CONV.limit("MAX_CONV_TILE", 4096, "elements", "of an edge of a convolution's tile", "uint32_t")
MAX_CONV_SPLIT = CUDA_CONV.limit("MAX_CONV_SPLIT", 64, "parts", "of a convolution's sums", "uint32_t")
CONV_SUM_BLOCK = CUDA_CONV.limit(
    "CONV_SUM_BLOCK", 256, "threads", "of a block of the kernel that adds such parts", "uint32_t"
)
CONV_BLOCKS = CUDA_CONV.limit(
    "CONV_BLOCKS",
    32,
    "blocks of a multiprocessor",
    "at most, where threads of a convolution loop over what remains: a few waves of the device",
    "int64_t",
)

CUDA_NEST = Table("cuda_nest")
MAX_NEST_ITEMS = CUDA_NEST.limit("MAX_NEST_ITEMS", 64, "elements", "of a row that a thread keeps", "uint32_t")
MAX_NEST_VECTOR = CUDA_NEST.limit(
    "MAX_NEST_VECTOR", 32, "elements", "that a thread reads at once: 16 bytes of 4-bit ones", "uint32_t"
)
MAX_NEST_STEPS = CUDA_NEST.limit("MAX_NEST_STEPS", 16, "kernels", "in which blocks share rows", "uint32_t")
MAX_NEST_TILE = CUDA_NEST.limit(
    "MAX_NEST_TILE",
    8,
    "rows",
    "of a thread, which reads once what they share, as those that meet one matrix",
    "uint32_t",
)
MAX_NEST_SPLITS = CUDA_NEST.limit("MAX_NEST_SPLITS", 128, "blocks", "that share a row", "int64_t")
LEAST_NEST_GROUPS = CUDA_NEST.limit("LEAST_NEST_GROUPS", 8, "groups", "of a thread, where blocks share rows", "int64_t")
NEST_PART_BYTES = CUDA_NEST.limit("NEST_PART_BYTES", 8, "bytes", "of one partial result in the workspace")
NEST_LANES = CUDA_NEST.limit(
    "NEST_LANES", 32, "groups of columns", "that a block along columns takes, one for each lane of a warp", "uint32_t"
)

CUDA_ATTENTION = Table("cuda_attention")
MAX_ATTENTION_TILE = CUDA_ATTENTION.limit(
    "MAX_ATTENTION_TILE", 1024, "elements", "of an edge of an attention's tile", "uint32_t"
)
MAX_ATTENTION_SPLIT = CUDA_ATTENTION.limit(
    "MAX_ATTENTION_SPLIT", 64, "blocks", "that share the keys of a row", "uint32_t"
)
ATTENTION_SUM_BLOCK = CUDA_ATTENTION.limit(
    "ATTENTION_SUM_BLOCK", 128, "threads", "of a block of the kernel that joins what these have left", "uint32_t"
)
LEAST_ATTENTION_KEYS = CUDA_ATTENTION.limit("LEAST_ATTENTION_KEYS", 128, "keys", "of each of these", "int64_t")
ATTENTION_STATE = CUDA_ATTENTION.limit(
    "ATTENTION_STATE", 3, "numbers of a row", "that each leaves besides its results", "int64_t"
)

# --- stages of Programs on the CPU: how work is divided, and what it costs ---

PLAN = Table("plan")
LONGEST_TRANSPOSED_ROW = PLAN.limit(
    "LONGEST_TRANSPOSED_ROW",
    4096,
    "elements",
    "of a row whose columns lie side by side in memory: up to so many are read in tiles of several rows",
    "int64_t",
)
PLAN.cost(
    "BYTE_NANOSECONDS", 0.012, "a byte that a tile reads from or writes to a tensor, operands in the level 1 cache"
)
PLAN.cost("STEP_NANOSECONDS", 10.0, "a step of a tile besides its elements")
PLAN.cost(
    "CHUNK_NANOSECONDS",
    2e3,
    "work worth handing to another thread: less than it takes to wake one, for the nodes around are computed by all",
)
PLAN.cost(
    "PART_NANOSECONDS", 6e3, "the least part of which a thread takes several: to begin one takes a hundredth of that"
)
PLAN.cost(
    "LEAD_NANOSECONDS", 1.3e3, "what a thread does before ONNX Runtime's others begin; those of the library begin soon"
)
PLAN.cost(
    "FUNCTION_NANOSECONDS", 0.1, "an element of an instruction that is a function: that long, with or without others"
)
PLAN.cost("CHAINED_BYTE_NANOSECONDS", 0.003, "a byte of an element of any other, beside others in registers")

NEST = Table("nest")
NEST.cost("REDUCED_ELEMENT_NANOSECONDS", 0.05, "an element of a tensor that is reduced as it lies in memory")
NEST.cost("NEST_ELEMENT_NANOSECONDS", 0.04, "an element of a block that is reduced")
NEST.cost("NEST_BLOCK_NANOSECONDS", 200.0, "such a block, however small")
NEST.cost("CHEAP_NANOSECONDS", 0.1, "an element of an instruction that each phase computes again, at most")

# --- nodes of the CPU ---

NHWC_POOL = Table("nhwc_pool")
NHWC_POOL.cost(
    "POOL_TAP_NANOSECONDS", 0.015, "an element that pooling with the channels last reads, in each of its windows"
)
NHWC_POOL.cost("POOL_RESULT_NANOSECONDS", 0.1, "an element that it makes")

NHWC_CONCAT = Table("nhwc_concat")
NHWC_CONCAT.cost("CONCAT_RUN_NANOSECONDS", 1.0, "a run of elements that is copied, besides its bytes")

SQUEEZE_EXCITE = Table("squeeze_excite")
SQUEEZE_EXCITE.limit("GATE_ELEMENTS", 1 << 15, "elements", "of X to add up, that are worth the hand-over", "int64_t")
SQUEEZE_EXCITE.limit("GATE_PRODUCTS", 1 << 15, "products", "that are worth the hand-over", "int64_t")

ATTENTION = Table("attention")
ATTENTION.cost("TASK_PRODUCTS", 1 << 17, "a task that is worth the hand-over", "products")
ATTENTION.cost("EXP_PRODUCTS", 16, "an exponential function", "products")
ATTENTION.cost("COPIED_KEY_PRODUCTS", 16, "an element of K or V that is copied", "products")
ATTENTION.cost(
    "SPLIT_TASK_PRODUCTS", 16e3, "a task besides its products, where tasks have copies of their own", "products"
)
ATTENTION.limit("SPLIT_TASK_ROWS", 16, "rows of Q", "of such a task at least", "int64_t")
ATTENTION.limit(
    "UNCOPIED_ROWS", 8, "rows of Q", "that meet a key, for which a copy takes longer than the products", "int64_t"
)
ATTENTION.limit("UNCOPIED_PARTS", 8, "parts", "that are worth more copies of a key", "int64_t")

# --- convolutions ---

CONVOLUTION = Table("convolution")
MAX_SPATIAL_RANK = CONVOLUTION.limit("MAX_SPATIAL_RANK", 3, "dimensions", "beside batch and channels")
MAX_CONV_ATTRIBUTE = CONVOLUTION.limit(
    "MAX_CONV_ATTRIBUTE",
    (1 << 15) - 1,
    "elements",
    "of kernel_shape, strides, dilations, pads, output_padding",
    "int64_t",
)
MAX_CONV_WEIGHTS = CONVOLUTION.limit(
    "MAX_CONV_WEIGHTS", (1 << 31) - (1 << 24) - 1, "elements", "of the weights", "int64_t"
)
CONVOLUTION.cost("ALONE_PRODUCTS", 300e3, "fewer in all are done by the calling thread before others begin", "products")
CONVOLUTION.cost(
    "HANDOVER_PRODUCTS", 200e3, "a part of a convolution with fewer is not worth the hand-over", "products"
)
CONVOLUTION.cost("RESULT_PRODUCTS", 8.0, "a result of a convolution, besides its own", "products")

# --- convolutions in the plain layout ---

CONV = Table("conv")
CONV.cost("SPLIT_PRODUCTS", 400e3, "a part of its filters with fewer is not worth a unit of its own", "products")
CONV.cost("PLAIN_SINGLE_PRODUCTS", 2.5, "a product of single channels", "products")
CONV.cost("PLAIN_ELEMENT_PRODUCTS", 10.0, "an element that is read or written for single channels", "products")
CONV.limit("PLAIN_UNITS", 16, "units", "to divide filters for, if there are less than half as many", "int64_t")
CONV.limit("PLAIN_UNIT_FILTERS", 8, "filters", "of a unit at least, or half of those of a strip", "int64_t")
CONV.limit("LIGHT_STRIPS", 16, "strips", "at least, where the weights stay in the level 2 cache", "int64_t")
CONV.limit("LEAST_STRIPS", 4, "strips", "at least, for equal shares of the work, of SHARED_FILTERS and more", "int64_t")
CONV.limit("SHARED_FILTERS", 32, "filters", "of fewer there are more strips", "int64_t")

# --- convolutions with the channels last ---

NHWC_KERNELS = Table("nhwc_kernels")
NHWC_BLOCK = NHWC_KERNELS.limit(
    "NHWC_BLOCK", 16, "filters", "whose weights follow one another for each tap and channel, with the channels last"
)
LEAST_GROUP = NHWC_KERNELS.limit(
    "LEAST_GROUP", 4, "filters", "of a group, of which there are kernels with the channels last"
)

NHWC_CONV = Table("nhwc_conv")
FEW_NHWC_PIXELS = NHWC_CONV.limit(
    "FEW_NHWC_PIXELS", 12, "pixels", "that are computed in one piece with the channels last"
)
NHWC_CONV.cost("NEAR_WEIGHT_PRODUCTS", 3.0, "a weight or an element of X on its way from the level 2 cache", "products")
NHWC_CONV.cost("FAR_WEIGHT_PRODUCTS", 12.0, "a weight from farther away", "products")
NHWC_CONV.cost("NHWC_UNIT_PRODUCTS", 30e3, "a unit, however small", "products")
NHWC_CONV.cost("NHWC_RUN_PRODUCTS", 3000.0, "a run of results after which the epilogue stops", "products")
NHWC_CONV.cost("NHWC_SINGLE_PRODUCTS", 1.5, "a product of single channels", "products")
NHWC_CONV.cost("NHWC_ELEMENT_PRODUCTS", 5.0, "an element that is read for single channels", "products")
NHWC_CONV.cost("NHWC_READ_ROWS", 0.3, "a row that single channels read", "rows of results")
NHWC_CONV.cost("NHWC_UNIT_ROWS", 0.2, "a unit of rows, however small", "rows of results")
NHWC_CONV.cost(
    "ONE_BLOCK", 1.25, "a pixel of one block of filters, which does not fill the registers", "blocks of filters"
)
NHWC_CONV.cost("TWO_BLOCKS", 2.1, "a pixel of two blocks of filters", "blocks of filters")
NHWC_CONV.cost("SPILT_UNIT", 1.03, "a unit whose results do not stay in the caches next to the processor", "such units")
NHWC_CONV.limit(
    "NHWC_UNIT_RESULTS", 12288, "results", "of a unit, that stay there until its epilogue reads them", "int64_t"
)
NHWC_CONV.limit(
    "NHWC_ROW_RESULTS", 65536, "results", "of single channels or whole rows, that the level 2 cache keeps", "int64_t"
)
NHWC_CONV.limit("NHWC_TILE_PIXELS", 8, "pixels", "of a tile of most sizes: units are whole ones", "int64_t")
NHWC_CONV.limit("NHWC_LEAST_TILE", 2, "pixels", "of the last tile of a unit, which has a multiple of them", "int64_t")
NHWC_CONV.limit("NHWC_MANY_PIXELS", 256, "pixels", "of a unit, whatever its results take", "int64_t")
NHWC_CONV.limit("NHWC_FILTER_PARTS", 8, "parts", "of the filters at most", "int64_t")
NHWC_CONV.limit("PAIR_SHARE", 8, "parts of the level 2 cache", "of which results of a pair may take one", "int64_t")
WIDE_SHARE = NHWC_CONV.limit(
    "WIDE_SHARE", 2, "parts of the level 2 cache", "of which what is made for single channels takes one", "int64_t"
)
NHWC_CONV.limit(
    "NHWC_READ_ELEMENTS", 6144, "elements", "of a kernel's rows that single channels read at once", "int64_t"
)
NHWC_CONV.limit("NHWC_LEAST_COLUMNS", 16, "columns", "of single channels that are computed at once", "int64_t")
NHWC_CONV.limit(
    "WIDE_IMAGE", 2, "columns a row", "of an image whose threads rather take columns each than rows", "int64_t"
)
