"""The native library as ctypes calls it, for models that run without ONNX Runtime.

Its functions are described in ``custom_ops/executable/executable_api.h``.
"""

import ctypes
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.library import custom_ops_library

MOST_DIMENSIONS = 16
"""Of a tensor."""


class NativeAttribute(ctypes.Structure):
    """An attribute of a node: a text, or numbers, -1 of them for a single one."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("text", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("numbers", ctypes.POINTER(ctypes.c_int64)),
        ("count", ctypes.c_int64),
    )


class NativeNode(ctypes.Structure):
    """A node, whose tensors are numbered."""

    _fields_ = (
        ("op", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("inputs", ctypes.POINTER(ctypes.c_int64)),
        ("input_count", ctypes.c_size_t),
        ("outputs", ctypes.POINTER(ctypes.c_int64)),
        ("output_count", ctypes.c_size_t),
        ("attributes", ctypes.POINTER(NativeAttribute)),
        ("attribute_count", ctypes.c_size_t),
    )


class NativeValue(ctypes.Structure):
    """A tensor."""

    _fields_ = (("name", ctypes.c_char_p), ("type", ctypes.c_int32), ("is_output", ctypes.c_int32))


@cache
def native_library() -> Any:
    """The library with the types of its functions."""
    library = ctypes.CDLL(custom_ops_library())
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name, result, arguments in (
        ("last_error", ctypes.c_char_p, ()),
        ("executable_create", pointer, (pointer, size, pointer, size, size)),
        ("executable_release", None, (pointer,)),
        ("binding_create", pointer, (pointer,)),
        ("binding_release", None, (pointer,)),
        ("binding_bind", ctypes.c_int, (pointer, size, pointer, pointer, size)),
        ("binding_move", ctypes.c_int, (pointer, size, pointer)),
        ("binding_result", ctypes.c_int64, (pointer, size, pointer, ctypes.POINTER(pointer))),
        ("binding_take", pointer, (pointer, size, pointer)),
        ("memory_release", None, (pointer,)),
    ):
        function = getattr(library, f"onnxfuse_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def last_error() -> OnnxfuseError:
    """Why the last call of this thread failed."""
    return OnnxfuseError(native_library().onnxfuse_last_error().decode(errors="replace"))


class Handle:
    """Something of the library's, released when nobody has this object; copies of its owners share it."""

    def __init__(self, address: int | None, release: Callable[[ctypes.c_void_p], None]) -> None:
        """Raises OnnxfuseError if there is none."""
        if address is None:
            raise last_error()
        self.value = ctypes.c_void_p(address)
        # When the interpreter ends, other threads may still run what would be released.
        weakref.finalize(self, release, self.value).atexit = False
