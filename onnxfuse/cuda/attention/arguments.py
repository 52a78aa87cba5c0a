"""Which kernel of attention is launched, on how many blocks, and its arguments, as the native library has it."""

import struct
from collections.abc import Mapping, Sequence

from onnxfuse.cuda.arguments import pack_divider, split_row
from onnxfuse.cuda.attention.kernel import AttentionKernel
from onnxfuse.cuda.attention.layout import AttentionLayout, HeadStrides
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program.figures import ATTENTION_STATE, LEAST_ATTENTION_KEYS, WAVES

PARAMETER_BYTES = (*(8,) * 7, 256)
"""Of each parameter: six tensors, the workspace, and the shape."""


def accepts(kernel: AttentionKernel, layout: AttentionLayout, addresses: Sequence[int]) -> bool:
    """Whether a kernel takes heads of these sizes; ``addresses`` are those of Q, K, V and the output."""
    if kernel.family == "any":
        return True
    if layout.q.size > kernel.size:
        return False
    views = (layout.q, layout.k, layout.v, layout.out)
    steps = [step for view in views for step in (view.size, view.begin, view.batch, view.head, view.row)]
    bytes_ = kernel.vector * DTYPES[kernel.dtype].itemsize
    return all(step % kernel.vector == 0 for step in steps) and all(address % bytes_ == 0 for address in addresses)


def choose(
    kernels: Sequence[AttentionKernel], layout: AttentionLayout, addresses: Sequence[int], multiprocessors: int
) -> AttentionKernel:
    """The first kernel that accepts; one for fewer rows where this has a block for too few multiprocessors, or for more
    rows than there are."""
    found = [kernel for kernel in kernels if accepts(kernel, layout, addresses)]
    best = found[0]
    for kernel in found[1:]:
        is_smaller = kernel.vector == best.vector and kernel.family == best.family and kernel.rows < best.rows
        if is_smaller and (tiles(best, layout) < multiprocessors or layout.rows <= kernel.rows):
            best = kernel
    return best


def tiles(kernel: AttentionKernel, layout: AttentionLayout) -> int:
    """Blocks for all rows and columns, without splits."""
    rows, columns = -(-layout.rows // kernel.rows), -(-layout.v.size // kernel.columns)
    return rows * columns * layout.key_heads * layout.batch


def splits(kernel: AttentionKernel, layout: AttentionLayout, multiprocessors: int) -> tuple[int, int]:
    """How many blocks share the keys of a row, and how many keys each of them has."""
    keys = layout.k.length
    wanted = min(WAVES * multiprocessors // tiles(kernel, layout), keys // LEAST_ATTENTION_KEYS, kernel.split)
    return split_row(keys, kernel.keys, wanted)


def workspace_bytes(layout: AttentionLayout, parts: int) -> int:
    """Bytes of what splits leave for each other."""
    rows = layout.batch * layout.heads * layout.q.length
    return 4 * parts * rows * (layout.v.size + ATTENTION_STATE) if parts > 1 else 0


def sum_blocks(layout: AttentionLayout) -> int:
    """Blocks of the kernel that joins them: one for each row."""
    return layout.batch * layout.heads * layout.q.length


def pack(
    attributes: Mapping[str, object],
    layout: AttentionLayout,
    addresses: Sequence[int],
    parts: tuple[int, int],
    workspace: int = 0,
) -> list[bytes]:
    """The parameters in order, each as its bytes; ``addresses`` are those of Q, K, V, the mask and the choices, 0 where
    there are none, and the output."""
    numbers: list[int] = []
    for view in (layout.q, layout.k, layout.v, layout.out):
        numbers += _strides(view)
    numbers += [*layout.mask, *layout.choices]
    counts = (
        *(layout.batch, layout.key_heads, layout.q.length, layout.k.length),
        *(layout.q.size, layout.v.size, layout.mask_batch, *parts),
    )
    words = [int(str(attributes.get(name, 0))) for name in ("scale_bits", "fill_bits", "fills", "nan_as_zero")]
    shape = struct.pack("<24q9i4I", *numbers, *counts, *words) + pack_divider(layout.group, 32)
    return [struct.pack("<Q", address) for address in (*addresses, workspace)] + [shape]


def _strides(view: HeadStrides) -> tuple[int, ...]:
    return view.begin, view.batch, view.head, view.row
