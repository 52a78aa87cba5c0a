"""Optimized models that run without ONNX Runtime: those whose nodes are all onnxfuse's, on the CPU."""

import ctypes
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx

from onnxfuse import cpu
from onnxfuse.errors import OnnxfuseError
from onnxfuse.files.model_io import load, load_proto, parse
from onnxfuse.model.dtypes import DType
from onnxfuse.model.graph import sorted_nodes
from onnxfuse.run.executable_library import MOST_DIMENSIONS, Handle, last_error, native_library
from onnxfuse.run.executable_values import Values, contiguous

_MOST_THREADS = 1024
_Dims = ctypes.c_int64 * MOST_DIMENSIONS
_Byte = ctypes.c_char * 1


class Executable:
    """An optimized model whose nodes are all onnxfuse's, without ONNX Runtime.

    Its results are those of a session, and a run with arrays that are bound (``bind``) takes a few microseconds less.
    The library has threads of its own for it, which all executables of as many threads share; they wait for work for a
    millisecond before they sleep.  Any number of threads may call ``run``: while one of them shares its work with the
    library's threads, the others do theirs alone.  Memory of results and of what is computed on the way is kept for
    later runs when it is no longer used, as in a session, until the Executable is gone.
    """

    def __init__(self, model: str | Path | bytes | onnx.ModelProto, *, threads: int | None = None) -> None:
        """Load ``model``, a path, the bytes of a file, or a ModelProto, which must not be changed from then on.

        ``threads`` run it together, the caller's among them: by default as many as the process may use processors.
        Raises OnnxfuseError if the model cannot be loaded, or has another node.
        """
        threads = cpu.usable() if threads is None else threads
        if not isinstance(threads, int) or not 1 <= threads <= _MOST_THREADS:
            raise OnnxfuseError(f"{threads!r} threads: from 1 to {_MOST_THREADS} can run a model")
        if isinstance(model, str | Path):
            loaded = load(model)
        else:
            loaded = load_proto(parse(model) if isinstance(model, bytes) else model)
        self._values = Values(loaded)
        self._handle = self._values.create(sorted_nodes(loaded.graph), threads)
        self._idle: deque[Binding] = deque()

    @property
    def input_names(self) -> list[str]:
        """The names of the model's inputs, in order."""
        return list(self._values.inputs)

    @property
    def output_names(self) -> list[str]:
        """The names of the model's outputs, in order."""
        return list(self._values.output_names)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[np.ndarray]:
        """The values of the outputs ``output_names``, all by default, as new arrays.

        ``input_feed`` has an array for each input, of the declared type and of a shape that fits the declared one, as
        in ``onnxruntime.InferenceSession.run``.  Raises OnnxfuseError if it has not, or if the run fails.
        """
        names = self._values.output_names if output_names is None else output_names
        if isinstance(names, str):
            raise OnnxfuseError(f"the names of outputs are a list, not {names!r}")
        indices = [self._values.find(self._values.outputs, name, "output")[0] for name in names]
        try:
            binding = self._idle.pop()
        except IndexError:
            binding = Binding(self)
        results = binding._run_on(input_feed)
        self._idle.append(binding)
        return [results[index] for index in indices]

    def bind(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray] | None = None) -> "Binding":
        """A call that reads ``inputs`` and writes ``outputs`` in place, again and again: the fastest way to run.

        All arrays must be contiguous, aligned and of the declared types; those of ``outputs`` must have the shapes that
        come out.  Outputs that are not given get memory of the binding's own.  Raises OnnxfuseError otherwise.
        """
        _check_named(inputs)
        binding = Binding(self)
        binding._set_inputs(inputs)
        binding._set_outputs({} if outputs is None else outputs)
        return binding


class Binding:
    """An Executable with arrays to read and to write: see ``Executable.bind``.  One thread at a time may use it."""

    def __init__(self, executable: Executable) -> None:
        """Bind nothing but constants yet."""
        library = native_library()
        self._values = executable._values
        created = library.onnxfuse_binding_create(executable._handle.value)
        self._handle = Handle(created, library.onnxfuse_binding_release)
        self._native: Callable[[], int] = partial(library.onnxfuse_binding_run, self._handle.value)
        self._move = partial(library.onnxfuse_binding_move, self._handle.value)
        self._arrays: dict[int, np.ndarray] = {}
        self._seen: dict[str, tuple[int, np.dtype, tuple[int, ...]]] | None = None  # inputs of the last run
        self._shapes: dict[int, tuple[int, ...]] = {}  # of outputs, which follow from those of the inputs
        for index, array in self._values.constants.items():
            self._bind(index, array)

    def run(self) -> None:
        """Compute the outputs from what the inputs' arrays have now.  Raises OnnxfuseError if that fails."""
        if self._native():
            raise last_error()

    def outputs(self) -> dict[str, np.ndarray]:
        """What the last run has computed: the arrays that were bound, and copies of the others."""
        return {name: self._output(name, index) for name, (index, _) in self._values.outputs.items()}

    def _set_inputs(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Read these from now on.  Raises OnnxfuseError if they are not what the model takes, or not all of it."""
        for index, _ in self._values.inputs.values():
            self._arrays.pop(index, None)
            if index in self._values.constants:
                self._bind(index, self._values.constants[index])
        for name, array in arrays.items():
            index, tensor = self._values.find(self._values.inputs, name, "input")
            _check_array(array, name, self._values.dtypes[index])
            _check_shape(array.shape, name, tensor.shape)
            self._bind(index, array)
        for name, (index, _) in self._values.inputs.items():
            if index not in self._arrays:
                raise OnnxfuseError(f"there is no value for input {name!r}")

    def _set_outputs(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write these from now on.  Raises OnnxfuseError if results cannot be written there."""
        for name, array in arrays.items():
            index, _ = self._values.find(self._values.outputs, name, "output")
            _check_array(array, name, self._values.dtypes[index])
            if not array.flags.writeable:
                raise OnnxfuseError(f"the array for {name!r} is read-only")
            others = [other for place, other in self._arrays.items() if place != index and self._is_apart(place)]
            if any(np.may_share_memory(array, other) for other in others):
                raise OnnxfuseError(f"the array for {name!r} lies where another one does")
            self._bind(index, array)

    def _is_apart(self, index: int) -> bool:
        """Whether an output may not lie where this value does; where there is one node alone, inputs of it may."""
        return self._values.nodes > 1 or index in self._values.output_indices

    def _run_on(self, feed: Mapping[str, Any]) -> dict[int, np.ndarray]:
        """Run on these inputs, which are not kept, and give the outputs, by number, as arrays of their own."""
        arrays = self._move_inputs(feed)
        if arrays is None:
            self._seen = None
            _check_named(feed)
            arrays = {name: contiguous(value) for name, value in feed.items()}
            self._set_inputs(arrays)
            indices = {name: self._values.inputs[name][0] for name in arrays}
            self._seen = {name: (i, self._arrays[i].dtype, self._arrays[i].shape) for name, i in indices.items()}
            for index in indices.values():
                del self._arrays[index]
            self.run()
            self._shapes = {index: self._result(index)[0] for index in self._values.output_indices}
        else:
            self.run()
        return {index: self._take(name, index) for name, (index, _) in self._values.outputs.items()}

    def _move_inputs(self, feed: Mapping[str, Any]) -> Any:
        """The arrays of these inputs, which are now read, if they are of the shapes of the last run's; else None.

        This takes a tenth of the time of looking at all of them.
        """
        if self._seen is None or not isinstance(feed, dict) or len(feed) != len(self._seen):
            return None
        arrays = []
        for name, (index, dtype, shape) in self._seen.items():
            array = feed.get(name)
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                return None
            if self._move(index, _memory(array)):
                raise last_error()
            arrays.append(array)
        return arrays

    def _take(self, name: str, index: int) -> np.ndarray:
        """A result, in the memory that the library has computed it in."""
        return _array(_Taken(self._handle, index, self._shapes[index], self._values.dtypes[index]), name)

    def _output(self, name: str, index: int) -> np.ndarray:
        if index in self._arrays:
            return self._arrays[index]
        shape, address = self._result(index)
        return _array(_Lent(address, shape, self._values.dtypes[index]), name).copy()

    def _result(self, index: int) -> tuple[tuple[int, ...], int]:
        dims, data = _Dims(), ctypes.c_void_p()
        rank = native_library().onnxfuse_binding_result(self._handle.value, index, dims, ctypes.byref(data))
        if rank < 0 or data.value is None:
            raise last_error()
        return tuple(dims[:rank]), data.value

    def _bind(self, index: int, array: np.ndarray) -> None:
        dims = _Dims(*array.shape)
        if native_library().onnxfuse_binding_bind(self._handle.value, index, _memory(array), dims, array.ndim):
            raise last_error()
        self._arrays[index] = array


class _Lent:
    """Memory of the library's, as NumPy looks at it."""

    __slots__ = ("__array_interface__", "dtype")

    def __init__(self, address: int | None, shape: tuple[int, ...], dtype: DType) -> None:
        self.dtype = dtype.numpy
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": shape, "typestr": dtype.numpy.str}


class _Taken(_Lent):
    """The same, which goes back when no array is in it any longer."""

    __slots__ = ("_release", "_taken")

    def __init__(self, binding: Handle, index: int, shape: tuple[int, ...], dtype: DType) -> None:
        """The value of this number."""
        library, address = native_library(), ctypes.c_void_p()
        self._release = library.onnxfuse_memory_release
        self._taken = library.onnxfuse_binding_take(binding.value, index, ctypes.byref(address))
        if self._taken is None:
            raise last_error()
        super().__init__(address.value, shape, dtype)

    def __del__(self) -> None:
        if self._taken is not None:
            self._release(self._taken)


def _array(memory: _Lent, name: str) -> np.ndarray:
    """The array in this memory, as long as it lives.  Raises OnnxfuseError if NumPy has none of that shape."""
    try:
        array = np.asarray(memory)
    except ValueError as error:
        raise OnnxfuseError(f"{name!r} has a shape that NumPy cannot hold: {error}") from error
    return array if array.dtype == memory.dtype else array.view(memory.dtype)  # a type that NumPy knows by its size


def _memory(array: np.ndarray) -> Any:
    """Where the elements are, as an argument for the library; this takes a quarter of the time of ``array.ctypes``."""
    try:
        return _Byte.from_buffer(cast(Any, array))
    except (TypeError, ValueError):  # it is read-only, has no elements, or a type that buffers do not know
        return array.ctypes.data


def _check_named(inputs: object) -> None:
    if not isinstance(inputs, Mapping):
        raise OnnxfuseError(f"inputs are given by name, not as {type(inputs).__name__}")


def _check_array(array: object, name: str, dtype: DType) -> None:
    if not isinstance(array, np.ndarray):
        raise OnnxfuseError(f"{name!r} is {type(array).__name__}, not a NumPy array")
    if array.dtype != dtype.numpy:
        raise OnnxfuseError(f"{name!r} has the type {array.dtype}, not {dtype.numpy}")
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise OnnxfuseError(f"the array for {name!r} is not contiguous and aligned")
    if array.ndim > MOST_DIMENSIONS:
        raise OnnxfuseError(f"{name!r} has more than {MOST_DIMENSIONS} dimensions")


def _check_shape(shape: tuple[int, ...], name: str, declared: Sequence[int | str | None] | None) -> None:
    if declared is None:
        return
    fits = len(shape) == len(declared) and all(
        not isinstance(dim, int) or dim < 0 or dim == size for dim, size in zip(declared, shape, strict=True)
    )
    if not fits:
        raise OnnxfuseError(f"{name!r} has the shape {list(shape)}, and the model takes {list(declared)}")
