"""The operators that a model has, as the native library reads them.

This is for what happens whenever a session is created, so it does without the ``onnx`` package, whose import takes
longer than many a session, and without a loop in Python, which takes a tenth of a small session.
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast

_Names = ctypes.c_char * 4096
"""More than the names of all operators take; made once, for a type takes longer to make than a model to read."""


def operators(model: str | bytes | Path, library: str) -> str | None:
    """The names of the operators of onnxfuse in a serialized ModelProto, given as a path or as its bytes, with commas
    between and ``=float`` behind those of float32 alone; ``library`` is the path of the native library.

    None if it cannot be read as a model.
    """
    path, data = (None, model) if isinstance(model, bytes) else (os.fsencode(model), b"")
    names = _Names()
    try:
        length = _entry_point(library)(path, data, len(data), names, len(names))
    except ctypes.ArgumentError:  # a path with a null byte
        return None
    return None if length < 0 else names.value.decode(errors="replace")


@cache
def _entry_point(library: str) -> Callable[..., int]:
    function = ctypes.CDLL(library).onnxfuse_operators
    function.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    function.restype = ctypes.c_int64
    return cast(Callable[..., int], function)
