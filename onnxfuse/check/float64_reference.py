"""A model computed in float64, node by node: what tells a wrong result from one that a model makes of roundings.

Every float of the model becomes a float64, whatever it is rounded to in it.  A node runs in ONNX Runtime where that has
a kernel for float64; else in NumPy (``float64_kernels``), or in onnx's reference evaluator.  What that gives is held
against ONNX Runtime's own kernel in float32, on the same inputs, for it may understand an operator otherwise.
"""

import time
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfuse.check.comparison import Comparison, Numbers, compare_values, precision
from onnxfuse.check.float64_kernels import KERNELS, UnsupportedError
from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import STANDARD_DOMAINS, LazySparseTensor, LazyTensor
from onnxfuse.model.tensor_data import NOTHING_STORED, Stored, byte_size
from onnxfuse.run.sessions import Session, SessionError, Value

_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}
_NUMPY_FLOATS = {np.dtype(name) for name in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)}
_TYPE_ATTRIBUTES = {"dtype", "output_dtype", "to"}

_VECTORS = {
    *(
        "Acos",
        "Acosh",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "Attention",
        "Celu",
        "Cosh",
        "DequantizeLinear",
        "Elu",
        "Gelu",
    ),
    *("HardSigmoid", "HardSwish", "Hardmax", "LeakyRelu", "Mean", "Mish", "NonZero", "OneHot", "PRelu"),
    *("RotaryEmbedding", "Selu", "Sinh", "Softplus", "Softsign", "Tan", "ThresholdedRelu"),
}
"""What onnx's reference evaluator does with whole arrays; others take it a microsecond an element, and more."""

_MOST_BYTES = 1 << 31
_MOST_ELEMENTS = 1 << 16
"""Of an input of an operator that is slow."""

_FEW_BYTES = 1 << 20
"""For which threads are not worth being made."""

_NEAR = 3e-5
"""How near ONNX Runtime's float32 has to be for an implementation to be trusted, relative to the number and to the
largest one."""


class _UnknownError(Exception):
    """There is no float64 result, for the reason given."""


class Float64Model:
    """A model whose outputs can be computed in float64."""

    def __init__(
        self, model: ModelProto, folder: Path, seconds: float, stored: Mapping[str, Stored] = NOTHING_STORED
    ) -> None:
        """``folder`` is where its external data lies, ``stored`` has data that ``model`` lacks, as ``read_stored``
        gives both; all outputs together may take so many ``seconds``."""
        self._model, self._stored = _inlined(model, stored)
        self._folder = folder
        self._seconds = seconds
        self._without_kernel: set[tuple[str, str]] = set()
        self.reason = ""
        """Why there are no outputs."""

    def outputs(self, feeds: dict[str, Value]) -> dict[str, Value] | None:
        """The outputs by name; None where they cannot be computed, or not in time."""
        if self.reason:
            return None
        started = time.monotonic()
        run = _Run(self._model, self._stored, self._folder, started + self._seconds, self._without_kernel)
        try:
            with np.errstate(all="ignore"):
                return run.outputs(feeds)
        except (_UnknownError, OnnxfuseError) as error:
            self.reason = str(error)
            return None
        finally:
            self._seconds -= time.monotonic() - started


class _Run:
    """One run; what nothing reads any more is let go of."""

    def __init__(
        self,
        model: ModelProto,
        stored: Mapping[str, Stored],
        folder: Path,
        deadline: float,
        without_kernel: set[tuple[str, str]],
    ) -> None:
        self._model = model
        self._stored = stored
        self._folder = folder
        self._deadline = deadline
        self._without_kernel = without_kernel
        self._bytes = 0

    def outputs(self, feeds: dict[str, Value]) -> dict[str, Value]:
        """The outputs by name."""
        scope: Scope = ChainMap({name: _wide(value) for name, value in feeds.items()})
        graph = self._model.graph
        self._run(graph, scope, set(feeds), self._stored)
        return {output.name: _value(scope, output.name) for output in graph.output}

    def _run(self, graph: GraphProto, scope: "Scope", given: set[str], stored: Mapping[str, Stored]) -> None:
        self._add_constants(graph, scope, given, stored)
        left = Counter(name for node in graph.node for name in _reads(node))
        left.update(output.name for output in graph.output)
        for node in graph.node:
            if time.monotonic() > self._deadline:
                raise _UnknownError("it takes too long")
            for name, value in zip(filter(None, node.output), self._results(node, scope), strict=False):
                self._hold(scope, name, value)
            for name in _reads(node):
                left[name] -= 1
                if left[name] == 0:
                    self._bytes -= _bytes(scope.maps[0].pop(name, None))

    def _hold(self, scope: "Scope", name: str, value: Value) -> None:
        scope[name] = value
        self._bytes += _bytes(value)
        if self._bytes > _MOST_BYTES:
            raise _UnknownError("it takes too much memory")

    def _add_constants(self, graph: GraphProto, scope: "Scope", given: set[str], stored: Mapping[str, Stored]) -> None:
        if sum(byte_size(tensor) or 0 for tensor in graph.initializer) > _MOST_BYTES // 2:
            raise _UnknownError("it takes too much memory")
        for tensor in graph.initializer:
            if tensor.name not in given:
                scope[tensor.name] = LazyTensor(tensor, self._folder, stored.get(tensor.name))
        for item in graph.sparse_initializer:
            scope[item.values.name] = LazySparseTensor(item, self._folder)

    def _results(self, node: NodeProto, scope: "Scope") -> list[Value]:
        is_standard = node.domain in STANDARD_DOMAINS
        settings = {item.name: item for item in node.attribute}
        if is_standard and node.op_type == "If":
            return self._branch(node, scope)
        if is_standard and node.op_type.startswith("Random"):
            raise _UnknownError("it has random numbers")
        first = _value(scope, node.input[0]) if node.input and node.input[0] else None
        to_float = (node.op_type == "Cast" and settings["to"].i in _FLOATS) or (
            node.op_type == "CastLike" and _value(scope, node.input[1]).dtype == np.float64
        )
        if is_standard and to_float and isinstance(first, np.ndarray) and not first.dtype.hasobject:
            return [first.astype(np.float64)]
        return self._computed(node, {name: _value(scope, name) for name in _reads(node)})

    def _branch(self, node: NodeProto, scope: "Scope") -> list[Value]:
        wanted = "then_branch" if np.asarray(_value(scope, node.input[0])).item() else "else_branch"
        body = next(item.g for item in node.attribute if item.name == wanted)
        inner, held = scope.new_child(), self._bytes
        self._run(body, inner, set(), NOTHING_STORED)
        self._bytes = held
        pairs = zip(node.output, body.output, strict=False)
        return [_value(inner, output.name) for name, output in pairs if name]

    def _computed(self, node: NodeProto, feeds: dict[str, Value]) -> list[Value]:
        key = (node.domain, node.op_type)
        if key not in self._without_kernel:
            try:
                return self._session(node, feeds, TensorProto.DOUBLE)
            except SessionError:
                self._without_kernel.add(key)
        if (known := self._known(node, feeds)) is not None:
            return [known]
        results = self._evaluated(node, feeds)
        narrow = {name: _narrow(value) for name, value in feeds.items()}
        try:
            own = self._session(node, narrow, TensorProto.FLOAT)
        except SessionError as error:
            raise _UnknownError(f"{node.op_type} does not run by itself: {error}") from error
        if not all(_is_near(left, right) for left, right in zip(own, results, strict=True)):
            raise _UnknownError(f"{node.op_type} is understood otherwise")
        return results

    def _session(self, node: NodeProto, feeds: dict[str, Value], kind: int) -> list[Value]:
        """What ONNX Runtime makes of a node by itself, with floats of one type."""
        threads = 1 if sum(map(_bytes, feeds.values())) < _FEW_BYTES else 0
        model = self._of_node(node, feeds, kind).SerializeToString()
        return Session(model, optimized=False, threads=threads).run(feeds)

    def _of_node(self, node: NodeProto, feeds: dict[str, Value], kind: int) -> ModelProto:
        graph = GraphProto(name="node", node=[_retyped(node, kind)])
        for name, value in feeds.items():
            graph.input.append(_declared(name, value))
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
        return ModelProto(
            ir_version=min(self._model.ir_version, 10), graph=graph, opset_import=self._model.opset_import
        )

    def _known(self, node: NodeProto, feeds: dict[str, Value]) -> np.ndarray | None:
        if node.domain not in STANDARD_DOMAINS or node.op_type not in KERNELS:
            return None
        settings = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        try:
            return KERNELS[node.op_type]([feeds[name] if name else None for name in node.input], settings)
        except UnsupportedError:
            return None

    def _evaluated(self, node: NodeProto, feeds: dict[str, Value]) -> list[Value]:
        largest = max((value.size for value in feeds.values() if isinstance(value, np.ndarray)), default=0)
        if largest > _MOST_ELEMENTS and node.op_type not in _VECTORS:
            raise _UnknownError(f"{node.op_type} takes too long")
        from onnx.reference import ReferenceEvaluator

        try:
            evaluator = ReferenceEvaluator(self._of_node(node, feeds, TensorProto.DOUBLE))
            return [np.asarray(value) for value in evaluator.run(None, feeds)]
        except Exception as error:  # it raises whatever an operator's implementation runs into
            raise _UnknownError(f"{node.op_type} has no implementation for float64") from error


Scope = ChainMap[str, Value]
"""Values by name, those of initializers as ``LazyTensor``: in float64 they would take twice as much memory."""


def _value(scope: Scope, name: str) -> Value:
    value = scope[name]
    return _wide(value.load()) if isinstance(value, LazyTensor) else value


FACTOR = 5
"""How many times as far as ONNX Runtime's own result another may be from that in float64."""

_EPS = precision(np.dtype(np.float64))


def off(name: str, value: Value, reference: Value, numbers: Numbers) -> Comparison | None:
    """How far a value is from what was computed in float64; None if it is no array of floats that have fewer digits."""
    if not isinstance(value, np.ndarray) or value.dtype.kind == "c" or precision(value.dtype) <= _EPS:
        return None
    if not isinstance(reference, np.ndarray) or reference.shape != value.shape or reference.dtype != np.float64:
        return None
    with np.errstate(over="ignore"):
        return compare_values(name, reference.astype(value.dtype), value, numbers)


def is_within(ours: Comparison, theirs: Comparison, factor: float = FACTOR) -> bool:
    """Whether one is off by no more than some times as much as the other, at most and on average."""
    return (
        ours.mismatches <= factor * theirs.mismatches
        and ours.excess <= max(1.0, factor * theirs.excess)
        and ours.mean_excess <= max(1.0, factor * theirs.mean_excess)
    )


def describe_off(ours: Comparison, theirs: Comparison) -> str:
    """Which of the optimized model and ONNX Runtime's original is nearer to what was computed in float64."""
    nearer = "the original" if theirs.excess < ours.excess else "the optimized model"
    return (
        f"against float64 it is off by {ours.max_abs:.2g} and ONNX Runtime's original by {theirs.max_abs:.2g}, "
        f"of values up to {theirs.largest:.2g}: {'none' if theirs.excess == ours.excess else nearer} is nearer"
    )


def _inlined(model: ModelProto, stored: Mapping[str, Stored]) -> tuple[ModelProto, Mapping[str, Stored]]:
    """The model without its own functions, those of fused nodes among them: these say what the nodes compute."""
    if not model.functions:
        return model, stored
    from onnxfuse.fused.plain_nodes import plain_nodes
    from onnxfuse.passes.inline_functions import inlined_parts

    with suppress(OnnxfuseError):  # a fused node without its function, of which there is no result then
        model, stored = plain_nodes(Model.from_proto(model, stored=stored))
    return inlined_parts(Model.from_proto(model, stored=stored)) or (model, stored)


def _reads(node: NodeProto) -> dict[str, None]:
    """The tensors that a node reads, in its bodies too."""
    names = dict.fromkeys(name for name in node.input if name)
    for item in node.attribute:
        if item.type == AttributeProto.GRAPH:
            names |= dict.fromkeys(_captured(item.g))
    return names


def _captured(graph: GraphProto) -> Iterator[str]:
    own = {tensor.name for tensor in graph.initializer} | {info.name for info in graph.input}
    own |= {item.values.name for item in graph.sparse_initializer}
    for node in graph.node:
        yield from (name for name in _reads(node) if name not in own)
        own.update(node.output)
    yield from (output.name for output in graph.output if output.name not in own)


def _wide(value: Value) -> Value:
    if isinstance(value, list):
        return [_wide(item) for item in value]
    is_float = isinstance(value, np.ndarray) and value.dtype in _NUMPY_FLOATS
    return value.astype(np.float64) if is_float else value


def _narrow(value: Value) -> Value:
    if isinstance(value, list):
        return [_narrow(item) for item in value]
    is_float = isinstance(value, np.ndarray) and value.dtype == np.float64
    return value.astype(np.float32) if is_float else value


def _bytes(value: Value) -> int:
    if isinstance(value, LazyTensor):
        return 0
    return sum(map(_bytes, value)) if isinstance(value, list) else getattr(value, "nbytes", 0)


def _declared(name: str, value: Value) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        kind = helper.np_dtype_to_tensor_dtype(value[0].dtype) if value else TensorProto.DOUBLE
        tensor = helper.make_tensor_type_proto(kind, None)
        return helper.make_value_info(name, helper.make_sequence_type_proto(tensor))
    if not isinstance(value, np.ndarray):
        raise _UnknownError("it has values that are no tensors")
    kind = TensorProto.STRING if value.dtype.hasobject else helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, kind, value.shape)


def _retyped(node: NodeProto, kind: int) -> NodeProto:
    """The node with all floats in its attributes, and bodies, of one type."""
    changed = NodeProto()
    changed.CopyFrom(node)
    for item in changed.attribute:
        if item.name in _TYPE_ATTRIBUTES and item.type == AttributeProto.INT and item.i in _FLOATS:
            item.i = kind
        elif item.type == AttributeProto.TENSOR:
            _retype_tensor(item.t, kind)
        elif node.op_type == "Constant" and item.type in (AttributeProto.FLOAT, AttributeProto.FLOATS):
            value = np.array(helper.get_attribute_value(item), helper.tensor_dtype_to_np_dtype(kind))
            item.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))
        elif item.type == AttributeProto.GRAPH:
            _retype_graph(item.g, kind)
    return changed


def _retype_tensor(tensor: TensorProto, kind: int) -> None:
    if tensor.data_type in _FLOATS:
        value = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(kind))
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


def _retype_graph(graph: GraphProto, kind: int) -> None:
    nodes = [_retyped(node, kind) for node in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    for tensor in graph.initializer:
        _retype_tensor(tensor, kind)
    for info in (*graph.input, *graph.value_info, *graph.output):
        if info.type.tensor_type.elem_type in _FLOATS:
            info.type.tensor_type.elem_type = kind


def _is_near(expected: Value, actual: Value) -> bool:
    """Whether a float64 result is that of the same operator as a float32 one, or an integer off by one at most."""
    if not isinstance(expected, np.ndarray) or expected.shape != actual.shape:
        return False
    if expected.dtype.kind not in "fiu" or actual.dtype.kind not in "fiu":
        return bool(np.array_equal(expected, actual))
    left, right = expected.astype(np.float64), actual.astype(np.float64)
    if expected.dtype.kind in "iu":
        return bool(np.all(np.abs(left - right) <= 1))
    finite = np.isfinite(left) & np.isfinite(right)
    agree = finite | (np.isnan(left) & np.isnan(right)) | (left == right)
    left, right = left[finite], right[finite]
    limit = _NEAR * (np.abs(left).max(initial=0.0) + np.abs(left))
    return bool(agree.all() and np.all(np.abs(left - right) <= limit))
