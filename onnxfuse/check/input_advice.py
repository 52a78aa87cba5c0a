"""What to tell a user of a model that does not run on made-up inputs: which input to give, and how."""

import re
from collections.abc import Mapping

import onnx

from onnxfuse.check.input_shapes import size_name
from onnxfuse.check.tensor_facts import Graph
from onnxfuse.run.inputs import InputSpec
from onnxfuse.wording import listed

_RUNNING = re.compile(r"while running (\S+) node\. Name:'([^']*)'")


def advice(
    specs: list[InputSpec], graph: Graph | None, message: str, shapes: Mapping[str, tuple[int, ...]], given: set[str]
) -> str:
    """What could be given for the input that seems to be at fault for ONNX Runtime's ``message``.

    ``shapes`` are such as the inputs could have, ``given`` the inputs whose shape was.
    """
    spec = _at_fault(specs, graph, message)
    if spec is None:
        return "though it has none"
    names = [size_name(spec, axis) for axis in range(len(shapes[spec.name]))] if spec.shape is not None else [""]
    if spec.kind == "tensor" and spec.name not in given and any(name is not None for name in names):
        return f"for {spec.describe()} such as --shape {spec.name}={'x'.join(map(str, shapes[spec.name]))}"
    if any(other.kind != "tensor" for other in specs):
        return f"for {spec.describe()} as --inputs DIR, with a file input_0.pb and so on for each"
    first = [spec, *(other for other in specs if other is not spec)]
    arrays = [_argument(other.name, _array(other, shapes[other.name])) for other in first]
    written = f'numpy.savez("inputs.npz", {listed(arrays)})'
    return f"for {spec.describe()} as --inputs inputs.npz, which {written} writes"


def _argument(name: str, value: str) -> str:
    return f"{name}={value}" if name.isidentifier() else f"**{{{name!r}: {value}}}"


def _array(spec: InputSpec, shape: tuple[int, ...]) -> str:
    kind = '"str"' if spec.elem_type == onnx.TensorProto.STRING else f'"{spec.dtype.name}"'
    return f"numpy.ones({shape}, {kind})"


def _at_fault(specs: list[InputSpec], graph: Graph | None, message: str) -> InputSpec | None:
    """The input that the failing node reads, or what that is made of; or one that the message names; or any that
    something is open of."""
    by_name = {spec.name: spec for spec in specs}
    failing = _RUNNING.findall(message)
    if graph is not None and failing:
        operator, name = failing[-1]
        nodes = [node for node in graph.nodes if node.op_type == operator and node.name in (name, "")]
        pending, seen = [name for node in nodes[:1] for name in node.input], {""}
        while pending:  # the last input of a node first: data come before what says how to take them
            tensor = pending.pop()
            if tensor in by_name:
                return by_name[tensor]
            producer = graph.producers.get(tensor)
            if producer is not None and tensor not in seen:
                pending += producer.input
            seen.add(tensor)
    words = set(re.findall(r"[^\s'\"]+", message))
    named = [spec for spec in specs if spec.name in words]
    open_ones = [spec for spec in specs if spec.shape is None or not all(isinstance(dim, int) for dim in spec.shape)]
    return next(iter([*named, *open_ones, *specs]), None)
