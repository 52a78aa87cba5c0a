"""The operators that a model has, as the native library reads and lists them.

This is for what happens whenever a session is created, so it does without the ``onnx`` package, whose import takes
longer than many a session, and without a loop in Python, which takes a tenth of a small session.
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast

PLAIN = "*"
"""In a list: the operators that are registered where there is none."""
OF_FLOATS = "=float"
"""In a list, behind operators: for tensors of float32 alone."""
_TO = ".."
"""In a list, before the number of the last one of several."""
_PLAIN_NAMES = "ONNXFUSE_NAMES"
"""Environment variable: how many operators of each family are registered where there is no list."""

_Names = ctypes.c_char * 2048
"""As long as a value in a session's configuration; made once, for a type takes longer to make than a model to
read."""


def operators(model: str | bytes | Path, library: str) -> str | None:
    """The list of the operators of onnxfuse in a serialized ModelProto, given as a path or as its bytes: names with
    commas between, as ``FusedConv..3=float,FusedElementwise_2``; ``library`` is the path of the native library.

    None if it cannot be read as a model, or the list is too long for a session's configuration.
    """
    path, data = (None, model) if isinstance(model, bytes) else (os.fsencode(model), b"")
    names = _Names()
    try:
        length = _entry_point(library)(path, data, len(data), names, len(names))
    except ctypes.ArgumentError:  # a path with a null byte
        return None
    return None if length < 0 else names.value.decode(errors="replace")


def names_of(listed: str) -> set[str]:
    """The names of the operators in a list."""
    from onnxfuse.fused.kinds import KINDS

    found: set[str] = set()
    for part in listed.split(","):
        first, _, last = part.removesuffix(OF_FLOATS).partition(_TO)
        for kind in KINDS:
            begin, end = (1, _plain(kind.plain)) if part == PLAIN else (kind.number(first), int(last or 0))
            if begin:
                found.update(map(kind.operator, range(begin, max(begin, end) + 1)))
    return found


def _plain(number: int) -> int:
    wish = os.environ.get(_PLAIN_NAMES, "")
    return int(wish) if wish.isascii() and wish.isdecimal() and int(wish) > 0 else number


@cache
def _entry_point(library: str) -> Callable[..., int]:
    function = ctypes.CDLL(library).onnxfuse_operators
    function.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    function.restype = ctypes.c_int64
    return cast(Callable[..., int], function)
