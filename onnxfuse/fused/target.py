"""What passes and planners ask about where a model will run: facts of ONNX Runtime there, and of the kernels there.

A pass never asks for a target's name.  To add a target, add a row here, what makes its kernels under its own folder,
and its object in ``onnxfuse.targets``; where its provider is not one of ONNX Runtime's that others have, a row of what
that computes itself in ``onnxfuse.ort.ort_fusions``, and who chooses convolutions in ``onnxfuse.fused.conv.choosers``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from onnxfuse import cpu
from onnxfuse.fused.kinds import KINDS, Kind


@dataclass(frozen=True)
class AttentionKernels:
    """What the kernels of attention take on a target.

    types: of Q, K, V, the mask and the result, by their short names (``onnxfuse.model.dtypes``).
    largest_head: the most elements of a head; None for any number.
    plain: whether one is worth it whose heads are neither split nor joined, without a mask, at many rows.
    """

    types: frozenset[str]
    largest_head: int | None
    plain: bool

    def refusal(self, types: Iterable[str], sizes: Iterable[object]) -> str | None:
        """Why there are no kernels for tensors of these types, with heads of these sizes as far as they are known; None
        if there are."""
        found = sorted(set(types))
        if len(found) != 1 or found[0] not in self.types:
            return (
                f"its tensors are of {' and '.join(found)}, and there are kernels for {', '.join(sorted(self.types))}"
            )
        largest = max((size for size in sizes if isinstance(size, int)), default=0)
        if self.largest_head is not None and largest > self.largest_head:
            return f"its heads have {largest} elements, and there are kernels for up to {self.largest_head}"
        return None


@dataclass(frozen=True)
class Target:
    """The facts of one target.

    name: in requests and reports.
    providers: ONNX Runtime's execution providers, the one whose nodes are meant first.
    kinds: the kinds of fused nodes that have kernels there.
    blocked_images: ONNX Runtime has images in blocks of channels between its convolutions, and reorders them where a
    node beside these knows the plain layout alone.  What counts is the machine where the model is optimized; the file
    runs on others too, but was planned for this one.
    activations_in_conv: ONNX Runtime computes an activation inside the convolution before it.
    halves_in_float: whether ONNX Runtime computes products and convolutions of float16 in float32.
    bias_apart: ONNX Runtime adds the bias of a convolution or a Gemm in a kernel of its own.
    turns_products: matrix products read their factors by columns as fast as by rows.
    nhwc_option: the provider has the option ``prefer_nhwc``.
    host_apart: nodes without a kernel there run on the host, between copies.
    one_space: a fused node of elementwise operators is one kernel over one iteration space.
    gathers_rows: kernels that reduce read tensors well whose elements do not follow one another.  On an EPYC with
    AVX-512 sums of squares and normalizations of parts of rows took 1.1 to 1.3 times as long as behind ONNX Runtime's
    Slice, of transposed tensors 1 to 5 times as long as behind its Transpose.
    repeats_sums: a sum that the next region with a reduction reads is computed there again from what is in memory
    anyway, not written.
    writes_parts: a fused node of elementwise operators writes what it makes as parts of a larger tensor.
    copies_parts: and copies what is joined with that as fast as ONNX Runtime does, however much it is.  ONNX Runtime's
    CUDA kernel divides for each element, and where sizes differ gets them, and the axis, in four copies from the host
    (core/providers/cuda/tensor/concat.cc).
    transposes_well: ONNX Runtime transposes some tensors faster than a fused node reads them in another order.
    fast_products: the library multiplies matrices as fast as ONNX Runtime or faster, where the kind for it is there.
    product_rows: by the type of what is multiplied, the most rows whose product with a constant matrix is computed by
    kernels that reduce, with what is around it: so few take the time in which the matrix is read.  An H100 reads 3.8
    floats, or 7.5 of 16 bits, from memory for each multiprocessor and cycle, with each of which a thread of 128 does an
    instruction or two a row.
    multiplies_as_convolution: kernels of convolutions compute matrix products too, with what is around them.
    shares_launches: independent maps, each of which leaves the device in part idle, are fused into one node.
    reads_immediates: scalars of the programs of a convolution are in their text, and no inputs.
    softmax_rows: the types whose Softmax and LogSoftmax are computed with what is around them, and of how many elements
    their rows are a multiple where that is a single node.  With a scale and a mask a Softmax of float32 is 1.2 to 1.9
    times as fast as ONNX Runtime's nodes from 96x49x49 to 6x1500x1500, and 0.91 for four rows of 50,257; with a scale
    alone 0.94 to 1.35 times in rows of whole vectors, and less in others (AVX-512, one thread).
    normalized_alone: the types whose rows are normalized by a node of ours where nothing around it is fused.  ONNX
    Runtime's kernels take 1.07 to 2.1 times as long from 50x50 to 8192x1024 (Zen 4, one thread), and where rows are few
    longer with two threads than with one.
    attention: what the kernels of attention take.
    library_costs: what it costs to load the library shows beside a small model.
    tf32: kernels round factors of float32 to TF32 where that is allowed.
    chosen_by_runs: which convolutions are fused with ``tune``, and what is taken back where a result is slower, is
    chosen by running whole models.  Elsewhere kernels are timed one by one, and nothing is taken back.
    """

    name: str
    providers: tuple[str, ...]
    kinds: frozenset[Kind]
    blocked_images: Callable[[], bool]
    activations_in_conv: bool
    halves_in_float: Callable[[], bool]
    bias_apart: bool
    turns_products: bool
    nhwc_option: bool
    host_apart: bool
    one_space: bool
    gathers_rows: bool
    repeats_sums: bool
    writes_parts: bool
    copies_parts: bool
    transposes_well: bool
    shares_launches: bool
    fast_products: Callable[[], bool]
    product_rows: Mapping[str, int]
    multiplies_as_convolution: bool
    reads_immediates: bool
    softmax_rows: Mapping[str, int]
    normalized_alone: frozenset[str]
    library_costs: bool
    tf32: bool
    chosen_by_runs: bool
    attention: AttentionKernels

    @property
    def provider(self) -> str:
        """ONNX Runtime's provider that runs what is left to it there: tables of its kernels are by that."""
        return self.providers[0]


CPU = Target(
    "cpu",
    providers=("CPUExecutionProvider",),
    kinds=frozenset(kind for kind in KINDS if "cpu" in kind.targets),
    blocked_images=lambda: cpu.has_blocked_images(),
    activations_in_conv=True,
    halves_in_float=lambda: not cpu.has_float16(),
    bias_apart=False,
    turns_products=False,
    nhwc_option=False,
    host_apart=False,
    one_space=False,
    gathers_rows=False,
    repeats_sums=False,
    writes_parts=True,
    copies_parts=False,
    transposes_well=True,
    shares_launches=False,
    fast_products=cpu.has_avx2,
    product_rows={},
    multiplies_as_convolution=False,
    reads_immediates=False,
    softmax_rows={"f32": 16},
    normalized_alone=frozenset(("f32",)),
    library_costs=True,
    tf32=False,
    chosen_by_runs=True,
    attention=AttentionKernels(frozenset(("f32",)), largest_head=None, plain=False),
)
CUDA = Target(
    "cuda",
    providers=("CUDAExecutionProvider", "CPUExecutionProvider"),
    kinds=frozenset(kind for kind in KINDS if "cuda" in kind.targets),
    blocked_images=lambda: False,
    activations_in_conv=False,
    halves_in_float=lambda: False,
    bias_apart=True,
    turns_products=True,
    nhwc_option=True,
    host_apart=True,
    one_space=True,
    gathers_rows=True,
    repeats_sums=True,
    writes_parts=True,
    copies_parts=True,
    transposes_well=False,
    shares_launches=True,
    fast_products=lambda: False,
    product_rows={"f32": 8, "f16": 4, "bf16": 4},
    multiplies_as_convolution=True,
    reads_immediates=True,
    softmax_rows={"f32": 1, "f64": 1, "f16": 1, "bf16": 1},
    normalized_alone=frozenset(),
    library_costs=False,
    tf32=True,
    chosen_by_runs=False,
    attention=AttentionKernels(frozenset(("f32", "f16", "bf16")), largest_head=256, plain=True),
)
TARGETS = {target.name: target for target in (CPU, CUDA)}
