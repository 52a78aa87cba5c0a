"""From an attention to CUDA C++: kernels for many rows of Q, for few, and one for everything."""

import hashlib
from collections.abc import Sequence

from onnxfuse.cuda.attention.case import AttentionCase
from onnxfuse.cuda.attention.kernel import AttentionKernel, AttentionSource, Family
from onnxfuse.cuda.attention.tiling import MOST_COLUMNS, SHARERS, Tilings
from onnxfuse.cuda.prelude import attention_prelude
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program.figures import ATTENTION_SUM_BLOCK, MAX_ATTENTION_SPLIT, WIDEST_ACCESS

PARAMETERS = (
    *("const {t}* q", "const {t}* k", "const {t}* v", "const {t}* mask", "const boolean* choices", "{t}* out"),
    *("f32* workspace", "const __grid_constant__ AttentionShape shape"),
)


def render_attention(case: AttentionCase, tilings: Sequence[Tilings]) -> AttentionSource:
    """The source of an attention with tiles for heads of some sizes, the smallest first: for rows that are aligned to
    16 bytes, and those for few rows once more for others."""
    whole = WIDEST_ACCESS // DTYPES[case.dtype].itemsize
    digest = hashlib.sha256(f"{case.facts} {tilings}".encode()).hexdigest()[:12]
    kernels: list[AttentionKernel] = []

    def add(family: Family, sizes: tuple[int, int, int, int], block: int, vector: int, split: int) -> None:
        name = f"attention_{digest}_{len(kernels)}"
        kernels.append(AttentionKernel(name, family, *case.facts, *sizes, block, vector, split))

    for many, few in tilings:
        for tiling, vector, split in (
            (many, whole, 1),
            (few, whole, MAX_ATTENTION_SPLIT),
            (few, 1, MAX_ATTENTION_SPLIT),
        ):
            sizes = tiling.rows, tiling.keys, tiling.size, tiling.columns
            add(tiling.family, sizes, tiling.block, vector, split)
    add("any", (4, 1, 0, MOST_COLUMNS), 128, 1, 1)
    return source_with(kernels)


def source_with(kernels: Sequence[AttentionKernel]) -> AttentionSource:
    """The source that has these kernels."""
    texts = []
    for kernel in kernels:
        texts.append(_definition(kernel, kernel.name, kernel.block, _call(kernel)))
        if kernel.split > 1:
            call = f"join_splits<{_kind(kernel)}, {kernel.dtype}, {ATTENTION_SUM_BLOCK}>(operands, shape);"
            texts.append(_definition(kernel, kernel.sum_name, ATTENTION_SUM_BLOCK, call))
    body = "\n".join(("namespace onnxfuse {\n", *texts, "}  // namespace onnxfuse\n"))
    return AttentionSource(attention_prelude(), body, tuple(kernels))


def _kind(kernel: AttentionKernel) -> str:
    flags = ("m" in kernel.reads, "c" in kernel.reads, kernel.zeros)
    return f"ScoreKind<{', '.join(str(flag).lower() for flag in flags)}>"


def _call(kernel: AttentionKernel) -> str:
    if kernel.family == "any":
        return f"attend_rows<{_kind(kernel)}, {kernel.rows}, {kernel.columns}, {kernel.block}>(operands, shape);"
    options = f"{_kind(kernel)}, {kernel.vector}, {str(kernel.split > 1).lower()}"
    sizes = f"{kernel.dtype}, {kernel.rows}, {kernel.keys}, {kernel.size}, {kernel.columns}"
    if kernel.family == "tensor":
        return f"attend_by_tensor_cores<{sizes}, {options}>(operands, shape);"
    engine = f"SimtAttention<{sizes}, {kernel.rows * SHARERS // kernel.block}>"
    return f"attend_tiles<{engine}, {options}>(operands, shape);"


def _definition(kernel: AttentionKernel, name: str, block: int, call: str) -> str:
    parameters = ",\n".join(f"    {parameter.format(t=kernel.dtype)}" for parameter in PARAMETERS)
    return "\n".join(
        (
            f'extern "C" __global__ void __launch_bounds__({block})',
            f"{name}(",
            f"{parameters}) {{",
            f"  const AttentionOperands<{kernel.dtype}> operands{{q, k, v, mask, choices, out, workspace}};",
            f"  {call}",
            "}\n",
        )
    )
