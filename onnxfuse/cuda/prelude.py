"""The device prelude: the CUDA C++ text that stands before every generated kernel."""

from functools import cache
from pathlib import Path

FILES = ("types.cuh", "half.cuh", "memory.cuh", "indexing.cuh", "operators.cuh", "functions.cuh")
"""The parts of the prelude, in the order in which they build on each other."""


def _folder() -> Path:
    """The folder of the parts: beside the package in a checkout, inside it in an installation."""
    package = Path(__file__).resolve().parent.parent
    checkout = package.parent / "custom_ops" / "cuda"
    return checkout if (checkout / FILES[0]).is_file() else package / "custom_ops" / "cuda"


@cache
def prelude() -> str:
    """The text of the prelude.  It has include guards, so several sources may be compiled as one."""
    folder = _folder()
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in FILES)
