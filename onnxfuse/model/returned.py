"""Which tensors the graphs of a model return."""

from collections.abc import Iterable

import onnx_graphsurgeon as gs


class Returned:
    """The tensors that are outputs of graphs, the first of which is the model's own and the others bodies in it."""

    def __init__(self, graphs: Iterable[gs.Graph]) -> None:
        self._ids: set[int] = set()
        self._names: set[str] = set()
        for index, graph in enumerate(graphs):
            self._ids.update(id(tensor) for tensor in graph.outputs)
            if index:
                # A body that returns a value of an outer graph names it; the body has another tensor of that name.
                self._names.update(tensor.name for tensor in graph.outputs)

    def __call__(self, tensor: gs.Tensor) -> bool:
        """Whether a graph returns ``tensor``."""
        return id(tensor) in self._ids or tensor.name in self._names
