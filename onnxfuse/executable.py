"""Optimized models that run without ONNX Runtime: those whose nodes are all onnxfuse's, on the CPU."""

import ctypes
import math
import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from onnxfuse.dtypes import DType, from_numpy
from onnxfuse.errors import OnnxfuseError
from onnxfuse.graph import Graph, Model, Node, describe, sorted_nodes
from onnxfuse.model_io import load, load_proto, parse
from onnxfuse.runtime import DOMAIN, custom_ops_library

_MOST_DIMENSIONS = 16
_MOST_THREADS = 1024
_Dims = ctypes.c_int64 * _MOST_DIMENSIONS
_Byte = ctypes.c_char * 1
_ERROR_BYTES = 4096


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("text", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("numbers", ctypes.POINTER(ctypes.c_int64)),
        ("count", ctypes.c_int64),
    )


class _Node(ctypes.Structure):
    _fields_ = (
        ("op", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("inputs", ctypes.POINTER(ctypes.c_int64)),
        ("input_count", ctypes.c_size_t),
        ("outputs", ctypes.POINTER(ctypes.c_int64)),
        ("output_count", ctypes.c_size_t),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_size_t),
    )


class _Value(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("type", ctypes.c_int32))


@cache
def _library() -> Any:
    """The native library; its functions are described in ``custom_ops/src/executable_api.cc``."""
    library = ctypes.CDLL(custom_ops_library())
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name, result, arguments in (
        ("executable_create", pointer, (pointer, size, pointer, size, size, ctypes.c_char_p, size)),
        ("executable_release", None, (pointer,)),
        ("binding_create", pointer, (pointer,)),
        ("binding_release", None, (pointer,)),
        ("binding_bind", None, (pointer, size, pointer, pointer, size)),
        ("binding_move", None, (pointer, size, pointer)),
        ("binding_error", ctypes.c_char_p, (pointer,)),
        ("binding_result", size, (pointer, size, pointer, ctypes.POINTER(pointer))),
    ):
        function = getattr(library, f"onnxfuse_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class Executable:
    """An optimized model whose nodes are all onnxfuse's, without ONNX Runtime.

    Its results are those of a session, and a run with arrays that are bound (``bind``) takes a few microseconds less.
    The library has threads of its own for it, which all executables of as many threads share; they wait for work for a
    millisecond before they sleep.  Any number of threads may call ``run``: while one of them shares its work with the
    library's threads, the others do theirs alone.
    """

    def __init__(self, model: str | Path | bytes | onnx.ModelProto, *, threads: int | None = None) -> None:
        """Load ``model``, a path, the bytes of a file, or a ModelProto, which must not be changed from then on.

        ``threads`` run it together, the caller's among them: by default as many as the process may use processors.
        Raises OnnxfuseError if the model cannot be loaded, or has another node.
        """
        threads = len(os.sched_getaffinity(0)) if threads is None else threads
        if not 1 <= threads <= _MOST_THREADS:
            raise OnnxfuseError(f"{threads} threads: from 1 to {_MOST_THREADS} can run a model")
        if isinstance(model, str | Path):
            loaded = load(model)
        else:
            loaded = load_proto(parse(model) if isinstance(model, bytes) else model)
        self._values = _Values(loaded)
        self._handle = self._values.create(sorted_nodes(loaded.graph), threads)
        weakref.finalize(self, _library().onnxfuse_executable_release, self._handle)
        self._idle: deque[Binding] = deque()

    @property
    def input_names(self) -> list[str]:
        """The names of the model's inputs, in order."""
        return list(self._values.inputs)

    @property
    def output_names(self) -> list[str]:
        """The names of the model's outputs, in order."""
        return list(self._values.outputs)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[np.ndarray]:
        """The values of the outputs ``output_names``, all by default, as new arrays.

        ``input_feed`` has an array for each input, of the declared type and of a shape that fits the declared one, as
        in ``onnxruntime.InferenceSession.run``.  Raises OnnxfuseError if it has not, or if the run fails.
        """
        try:
            binding = self._idle.pop()
        except IndexError:
            binding = Binding(self)
        results = binding._run_on(input_feed)
        self._idle.append(binding)
        if output_names is None:
            return results
        by_name = dict(zip(self._values.outputs, results, strict=True))
        return [by_name[self._values.checked_output(name)] for name in output_names]

    def bind(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray] | None = None) -> "Binding":
        """A call that reads ``inputs`` and writes ``outputs`` in place, again and again: the fastest way to run.

        All arrays must be contiguous, aligned and of the declared types; those of ``outputs`` must have the shapes that
        come out.  Outputs that are not given get memory of the binding's own.  Raises OnnxfuseError otherwise.
        """
        binding = Binding(self)
        binding._set_inputs(inputs)
        binding._set_outputs({} if outputs is None else outputs)
        return binding


class Binding:
    """An Executable with arrays to read and to write: see ``Executable.bind``.  One thread at a time may use it."""

    def __init__(self, executable: Executable) -> None:
        """Bind nothing but constants yet."""
        library = _library()
        self._values = executable._values
        handle = library.onnxfuse_binding_create(executable._handle)
        if handle is None:
            raise OnnxfuseError("there is no memory for a binding")
        self._handle = ctypes.c_void_p(handle)
        weakref.finalize(self, library.onnxfuse_binding_release, self._handle)
        self._native: Callable[[], int] = partial(library.onnxfuse_binding_run, self._handle)
        self._move = library.onnxfuse_binding_move
        self._dtypes = [dtype.numpy for dtype in self._values.dtypes]
        self._arrays: dict[int, np.ndarray] = {}
        self._seen: dict[str, tuple[int, tuple[int, ...]]] | None = None  # inputs that have been run on
        for index, array in self._values.constants.items():
            self._bind(index, array)

    def run(self) -> None:
        """Compute the outputs from what the inputs' arrays have now.  Raises OnnxfuseError if that fails."""
        if self._native():
            raise OnnxfuseError(_library().onnxfuse_binding_error(self._handle).decode(errors="replace"))

    def outputs(self) -> dict[str, np.ndarray]:
        """What the last run has computed: the arrays that were bound, and copies of the others."""
        return {name: self._output(index) for name, (index, _) in self._values.outputs.items()}

    def _set_inputs(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Read these from now on.  Raises OnnxfuseError if they are not what the model takes, or not all of it."""
        for index, _ in self._values.inputs.values():
            self._unbind(index)
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
            others = (*(other for place, other in self._arrays.items() if place != index and self._is_apart(place)),)
            if any(np.may_share_memory(array, other) for other in others):
                raise OnnxfuseError(f"the array for {name!r} lies where another one does")
            self._bind(index, array)

    def _is_apart(self, index: int) -> bool:
        """Whether an output may not lie where this value does; where there is one node alone, inputs of it may."""
        return self._values.nodes > 1 or index in self._values.output_indices

    def _run_on(self, feed: Mapping[str, Any]) -> list[np.ndarray]:
        """Run on these inputs, and give the outputs as arrays that the next run leaves alone."""
        if not self._move_inputs(feed):
            self._seen = None
            self._set_inputs({name: _contiguous(value) for name, value in feed.items()})
            self._seen = {name: (index, self._arrays[index].shape) for name, (index, _) in self._values.inputs.items()}
            for index in self._values.output_indices:
                self._unbind(index)
            self.run()
            results = [self._output(index) for index, _ in self._values.outputs.values()]
            for (index, _), array in zip(self._values.outputs.values(), results, strict=True):
                self._bind(index, array)
            return results
        # Shapes of outputs follow from those of inputs.
        results = []
        for index, _ in self._values.outputs.values():
            array = np.empty_like(self._arrays[index])
            self._arrays[index] = array
            self._move(self._handle, index, _memory(array))
            results.append(array)
        self.run()
        return results

    def _move_inputs(self, feed: Mapping[str, Any]) -> bool:
        """Read these inputs, if they are as those before; this takes a tenth of the time of looking at all of them."""
        if self._seen is None or len(feed) != len(self._seen):
            return False
        for name, (index, shape) in self._seen.items():
            array = feed.get(name)
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != self._dtypes[index]:
                return False
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                return False
            self._arrays[index] = array
            self._move(self._handle, index, _memory(array))
        return True

    def _output(self, index: int) -> np.ndarray:
        if index in self._arrays:
            return self._arrays[index]
        dims, data = _Dims(), ctypes.c_void_p()
        rank = _library().onnxfuse_binding_result(self._handle, index, dims, ctypes.byref(data))
        if data.value is None:
            raise OnnxfuseError("nothing has run yet")
        shape, dtype = tuple(dims[:rank]), self._values.dtypes[index].numpy
        size = math.prod(shape) * dtype.itemsize
        return np.frombuffer(bytearray(ctypes.string_at(data.value, size)), dtype).reshape(shape)

    def _bind(self, index: int, array: np.ndarray) -> None:
        self._arrays[index] = array
        dims = _Dims(*array.shape)
        _library().onnxfuse_binding_bind(self._handle, index, _memory(array), dims, array.ndim)

    def _unbind(self, index: int) -> None:
        if self._arrays.pop(index, None) is not None:
            _library().onnxfuse_binding_bind(self._handle, index, None, _Dims(), 0)


class _Values:
    """The values that a model's nodes read and write, numbered."""

    def __init__(self, model: Model) -> None:
        self._indices: dict[int, int] = {}
        self._names: list[str] = []
        self.dtypes: list[DType] = []
        self.constants: dict[int, np.ndarray] = {}
        self.nodes = len(model.graph.nodes)
        computed = {id(tensor) for node in model.graph.nodes for tensor in node.outputs}
        for node in model.graph.nodes:
            if node.domain != DOMAIN:
                raise OnnxfuseError(
                    f"{describe(node)} is not one of onnxfuse's nodes: run the model in onnxfuse.InferenceSession"
                )
        for tensor in model.graph.outputs:
            if id(tensor) not in computed:
                raise OnnxfuseError(f"output {tensor.name!r} is not computed by a node")
        self.inputs = {tensor.name: (self.index(tensor), tensor) for tensor in model.graph.inputs}
        self.outputs = {tensor.name: (self.index(tensor), tensor) for tensor in model.graph.outputs}
        self.output_indices = {index for index, _ in self.outputs.values()}
        self._read_defaults(model.graph)

    def _read_defaults(self, graph: Graph) -> None:
        """Inputs that have a value unless the caller gives another."""
        for initializer in graph.source.initializers:
            if isinstance(initializer.tensor, gs.Variable) and initializer.tensor.name in self.inputs:
                self.constants[self.index(initializer.tensor)] = _contiguous(initializer.values.load())

    def index(self, tensor: gs.Tensor) -> int:
        """The number of a tensor, -1 for an input that is left out.  Raises OnnxfuseError for types of no Program."""
        if not tensor.name and not isinstance(tensor, gs.Constant):
            return -1
        if (known := self._indices.get(id(tensor))) is not None:
            return known
        dtype = from_numpy(tensor.dtype)
        if dtype is None:
            kind = "unknown" if tensor.dtype is None else f"{tensor.dtype}, which fused nodes do not take"
            raise OnnxfuseError(f"the type of {tensor.name!r} is {kind}")
        index = self._indices[id(tensor)] = len(self._names)
        self._names.append(tensor.name)
        self.dtypes.append(dtype)
        if isinstance(tensor, gs.Constant):
            self.constants[index] = _contiguous(tensor.values)
        return index

    def create(self, nodes: Sequence[Node], threads: int) -> ctypes.c_void_p:
        """What the library makes of the nodes.  Raises OnnxfuseError if it refuses one."""
        described = (_Node * len(nodes))(*map(self._describe, nodes))
        kinds = [_Value(name.encode(), dtype.onnx) for name, dtype in zip(self._names, self.dtypes, strict=True)]
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        values = (_Value * len(kinds))(*kinds)
        counts = (len(nodes), values, len(kinds), threads)
        handle = _library().onnxfuse_executable_create(described, *counts, error, _ERROR_BYTES)
        if handle is None:
            raise OnnxfuseError(error.value.decode(errors="replace"))
        return ctypes.c_void_p(handle)

    def _describe(self, node: Node) -> _Node:
        attributes = [described for name, value in node.attrs.items() if (described := _attribute(name, value))]
        inputs, outputs = ([self.index(tensor) for tensor in tensors] for tensors in (node.inputs, node.outputs))
        return _Node(
            node.op.encode(),
            (node.name or "").encode(),
            (ctypes.c_int64 * len(inputs))(*inputs),
            len(inputs),
            (ctypes.c_int64 * len(outputs))(*outputs),
            len(outputs),
            (_Attribute * len(attributes))(*attributes),
            len(attributes),
        )

    def checked_output(self, name: str) -> str:
        """The name, if an output has it.  Raises OnnxfuseError if none does."""
        self.find(self.outputs, name, "output")
        return name

    @staticmethod
    def find(named: Mapping[str, tuple[int, gs.Tensor]], name: str, kind: str) -> tuple[int, gs.Tensor]:
        """An input or an output.  Raises OnnxfuseError if there is none of that name."""
        if name not in named:
            raise OnnxfuseError(f"the model has no {kind} {name!r}; it has {', '.join(map(repr, named)) or 'none'}")
        return named[name]


def _attribute(name: str, value: Any) -> _Attribute | None:
    """An attribute for the library; None for a kind that no operator on the CPU has, such as code for a GPU."""
    if isinstance(value, str):
        text = value.encode()
        return _Attribute(name.encode(), text, len(text), None, 0)
    if isinstance(value, int):
        return _Attribute(name.encode(), None, 0, (ctypes.c_int64 * 1)(value), -1)
    if isinstance(value, list) and all(isinstance(number, int) for number in value):
        return _Attribute(name.encode(), None, 0, (ctypes.c_int64 * len(value))(*value), len(value))
    return None


def _contiguous(value: Any) -> np.ndarray:
    return np.require(value, requirements=("C", "A"))


def _memory(array: np.ndarray) -> Any:
    """Where the elements are, as an argument for the library; this takes a quarter of the time of ``array.ctypes``."""
    try:
        return _Byte.from_buffer(cast(Any, array))
    except (TypeError, ValueError):  # it is read-only, has no elements, or a type that buffers do not know
        return array.ctypes.data


def _check_array(array: object, name: str, dtype: DType) -> None:
    if not isinstance(array, np.ndarray):
        raise OnnxfuseError(f"{name!r} is {type(array).__name__}, not a NumPy array")
    if array.dtype != dtype.numpy:
        raise OnnxfuseError(f"{name!r} has the type {array.dtype}, not {dtype.numpy}")
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise OnnxfuseError(f"the array for {name!r} is not contiguous and aligned")
    if array.ndim > _MOST_DIMENSIONS:
        raise OnnxfuseError(f"{name!r} has more than {_MOST_DIMENSIONS} dimensions")


def _check_shape(shape: tuple[int, ...], name: str, declared: Sequence[int | str | None] | None) -> None:
    if declared is None:
        return
    fits = len(shape) == len(declared) and all(
        not isinstance(dim, int) or dim < 0 or dim == size for dim, size in zip(declared, shape, strict=True)
    )
    if not fits:
        raise OnnxfuseError(f"{name!r} has the shape {list(shape)}, and the model takes {list(declared)}")
