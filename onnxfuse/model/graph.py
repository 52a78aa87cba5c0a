"""A model as passes see it: an onnx_graphsurgeon graph, and all else of the ModelProto that it came from."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
from onnx import ModelProto, TypeProto

from onnxfuse.fused.kinds import DOMAIN, Kind, kind_of
from onnxfuse.model import tensor_data
from onnxfuse.model.graph_export import Export
from onnxfuse.model.graph_import import import_functions, import_graph, import_opsets
from onnxfuse.model.graph_ir import Graph, LazyTensor, Node, operator_key, subgraphs, walk
from onnxfuse.model.graph_order import captured_tensors, describe, sorted_nodes, used_tensors

__all__ = [
    "Graph",
    "LazyTensor",
    "Model",
    "Node",
    "Types",
    "captured_tensors",
    "describe",
    "sorted_nodes",
    "subgraphs",
    "used_tensors",
    "walk",
]

Types = dict[str, list[TypeProto]]
"""What is told of a graph's tensors, by their names, of which what comes later replaces what it tells anew."""


class Model:
    """An ONNX model that passes can change and that loses nothing on the way in and out.

    graph: the main graph; the graphs of If, Loop and Scan are ``gs.Graph`` values in their nodes' ``attrs``.
    opsets: domain -> version for the whole model; the standard domain is ``""``.
    functions: the model's local functions by (domain, name, overload); passes may add some.
    path: the file that it was loaded from; external data is relative to its directory.
    metadata: keys and values that passes add to the model's own.
    inferred: what shape inference found last, by the bytes of what it was given.
    same_shapes: names of tensors -> the name of one that has the same shape, where a pass knows more than shape
    inference finds in what it wrote.

    An initializer is a ``gs.Constant`` whose values are read when first asked for and are read-only: change
    one by assigning new ``values``.  An initializer that is also a graph input is a ``gs.Variable``, for a
    caller may override it.  Names of new tensors and nodes come from ``unique_name``.
    """

    def __init__(
        self,
        source: ModelProto,
        path: Path | None,
        stored: Mapping[str, tensor_data.Stored] = tensor_data.NOTHING_STORED,
    ):
        """See ``from_proto``."""
        self.path = path
        self.replace(source, stored)

    @property
    def source(self) -> ModelProto:
        """What it was made of, without the data that is not in memory; passes do not change it."""
        return self._source

    def replace(
        self, source: ModelProto, stored: Mapping[str, tensor_data.Stored] = tensor_data.NOTHING_STORED
    ) -> None:
        """Hold another ModelProto, of which ``from_proto`` says the same, in place of all that the model has."""
        self.opsets = import_opsets(source)
        self.functions = import_functions(source)
        self.metadata: dict[str, str] = {}
        self.inferred: dict[bytes, Sequence[Types]] = {}
        self.same_shapes: dict[str, str] = {}
        self._source = source
        self._names: set[str] = {""}
        self._counters: dict[str, int] = {}
        self._made_constants: dict[tuple[np.dtype, tuple[int, ...], bytes], gs.Constant] = {}
        self.graph: gs.Graph = import_graph(source, self.directory, self.opsets, self._names, stored)

    @classmethod
    def from_proto(
        cls,
        proto: ModelProto,
        path: str | Path | None = None,
        stored: Mapping[str, tensor_data.Stored] = tensor_data.NOTHING_STORED,
    ) -> "Model":
        """The model of a ModelProto, which is kept and must not be changed from now on.

        ``path`` is the file that it comes from, needed if it has external data.  ``stored`` has the data of tensors
        of its graph, by their names, that have none themselves, as in an export (``Export.stored``).  Raises
        OnnxfuseError if two functions share a name.  Nothing else is checked: see ``onnxfuse.files.model_io``.
        """
        return cls(proto, None if path is None else Path(path).absolute(), stored)

    @property
    def had_external_data(self) -> bool:
        """Whether the model as it was loaded has data in other files."""
        return any(map(tensor_data.is_external, tensor_data.tensors(self._source)))

    @property
    def directory(self) -> Path | None:
        """The directory that external data is relative to."""
        return None if self.path is None else self.path.parent

    def to_proto(self) -> ModelProto:
        """The model as a new ModelProto, its nodes in topological order.

        What no pass changed is equal to what it was.  Once a fused node is there, the ``onnxfuse`` opset is
        imported and the IR version is at least 10.  Raises OnnxfuseError, naming a node, if there is a cycle.
        """
        return self.export().proto

    def export(self, *, light: bool = False, whole: bool = True) -> Export:
        """``to_proto`` with more to tell.

        ``light`` leaves out the data of tensors above 1024 elements; without ``whole`` that of initializers which is
        not in memory stays where it is.
        """
        return Export(
            self.graph,
            self._source,
            self.opsets,
            self.functions.values(),
            self.directory,
            metadata=self.metadata,
            light=light,
            whole=whole,
        )

    def graphs(self) -> Iterator[gs.Graph]:
        """The main graph and every graph nested in it, outer before inner."""
        return walk(self.graph)

    def fused_nodes(self, kind: Kind) -> Iterator[Node]:
        """The fused nodes of a kind, of every graph."""
        for graph in self.graphs():
            yield from (node for node in graph.nodes if node.domain == DOMAIN and kind_of(node.op) is kind)

    def fusible_graphs(self) -> Iterator[gs.Graph]:
        """The graphs that fused nodes can be in: not those in attributes of functions, SequenceMap among them.

        ONNX Runtime inlines functions before anything else, and of the graphs that they are given it keeps no types
        then, which it could not infer for fused nodes.
        """
        functions = {("", "SequenceMap"), *((domain, name) for domain, name, _ in self.functions)}
        inlined = {
            id(graph)
            for outer in self.graphs()
            for node in outer.nodes
            if node.attrs and operator_key(node) in functions
            for body in subgraphs(node)
            for graph in walk(body)
        }
        return (graph for graph in self.graphs() if id(graph) not in inlined)

    def remember_inferred(self, given: bytes, found: Sequence[Types]) -> None:
        """Keep what shape inference found in the graphs of a model, in place of what it found before the last time.

        Passes that change nothing between them, and two ways of looking at sizes in turns, are inferred once.
        """
        self.inferred = dict([*list(self.inferred.items())[-1:], (given, found)])

    def unique_name(self, base: str) -> str:
        """``base``, or ``base`` with a number, such that no tensor or node of the model has that name.

        The name is reserved once handed out.
        """
        name = base
        count = self._counters.get(base, 0)
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._counters[base] = count
        self._names.add(name)
        return name

    def constant(self, values: np.ndarray, hint: str) -> gs.Constant:
        """A new constant with a name made from ``hint``, or the one that a pass made before with the same values.

        Equal results of passes share one initializer: the file is smaller, and ORT sees that nodes that read them
        compute the same.
        """
        array = np.array(values, order="C")
        array.flags.writeable = False
        key = _content(array)
        if key not in self._made_constants:
            self._made_constants[key] = gs.Constant(self.unique_name(hint), array)
        return self._made_constants[key]

    def shared(self, constant: gs.Constant) -> gs.Constant:
        """The constant that a pass made before with the same values, or ``constant`` itself, which later ones share."""
        return self._made_constants.setdefault(_content(constant.values), constant)


def _content(array: np.ndarray) -> tuple[np.dtype, tuple[int, ...], bytes]:
    return array.dtype, array.shape, hashlib.blake2b(array.tobytes(), digest_size=16).digest()
