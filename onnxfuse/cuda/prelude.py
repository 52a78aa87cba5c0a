"""The device prelude: the CUDA C++ text that stands before every generated kernel."""

from functools import cache
from pathlib import Path

FILES = ("types.cuh", "half.cuh", "memory.cuh", "indexing.cuh", "operators.cuh", "functions.cuh")
"""The parts of the prelude, in the order in which they build on each other."""

TRANSPOSE_FILES = ("shared.cuh", "transpose/transposed.cuh")
"""What a source has after that one of whose kernels transposes."""

CONV_FILES = (
    *("shared.cuh", "conv.cuh", "conv_any.cuh", "conv_depthwise.cuh", "conv_direct.cuh"),
    *("async_copy.cuh", "warp_matrix.cuh"),
    *("conv_tiles.cuh", "conv_simt.cuh", "conv_tensor.cuh", "conv_gemm.cuh"),
    "product/multiply_rows.cuh",
)
"""What a convolution's source has."""

NEST_FILES = ("shared.cuh", "nest.cuh")
"""What the source of a Program that reduces has."""

ATTENTION_FILES = (
    *("shared.cuh", "async_copy.cuh", "warp_matrix.cuh"),
    *("attention.cuh", "attention_simt.cuh", "attention_tensor.cuh", "attention_tiles.cuh"),
)
"""What the source of an attention has."""


def _folder() -> Path:
    """The folder of the parts: beside the package in a checkout, inside it in an installation."""
    package = Path(__file__).resolve().parent.parent
    folder = Path("custom_ops", "cuda", "device")
    checkout = package.parent / folder
    return checkout if (checkout / FILES[0]).is_file() else package / folder


@cache
def prelude() -> str:
    """The text of the prelude.  It has include guards, so several sources may be compiled as one."""
    return _read(FILES)


@cache
def transpose_prelude() -> str:
    """The text that stands before kernels of which one transposes."""
    return prelude() + "\n" + _read(TRANSPOSE_FILES)


@cache
def conv_prelude() -> str:
    """The text that stands before the kernels of a convolution."""
    return prelude() + "\n" + _read(CONV_FILES)


@cache
def nest_prelude() -> str:
    """The text that stands before the kernels of a Program that reduces."""
    return prelude() + "\n" + _read(NEST_FILES)


@cache
def attention_prelude() -> str:
    """The text that stands before the kernels of an attention."""
    return prelude() + "\n" + _read(ATTENTION_FILES)


def _read(names: tuple[str, ...]) -> str:
    folder = _folder()
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)
