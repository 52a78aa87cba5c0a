"""Which nodes of a model ONNX Runtime runs on the GPU, and which on the host.

A fused node runs on the GPU.  It must not take in what ONNX Runtime would have computed on the host, or tensors would
be copied that the original model did not copy.  The rules are those of ONNX Runtime: a node without a CUDA kernel is on
the CPU, and so is one that reads nothing but results that are on the CPU, small constants and inputs of the graph,
unless its CUDA kernel reads such a result on the host, as that of Range does
(onnxruntime/core/framework/fallback_cpu_capability.cc); shapes, and the counter and condition of a Loop, are on the
host from the start.
"""

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from onnxfuse.model import dtypes
from onnxfuse.model.graph import Model, captured_tensors, sorted_nodes
from onnxfuse.model.graph_ir import standard_op
from onnxfuse.ort.cuda_kernels import READ_ON_HOST, has_kernel
from onnxfuse.ort.host import shape_arithmetic
from onnxfuse.program.lowering import is_elementwise

ON_HOST = "ONNX Runtime computes it on the host, where its inputs are"
NO_CUDA_KERNEL = "ONNX Runtime has no CUDA kernel for it, and what it reads or gives is on the host"

_LOOP_STATE = 2
"""The inputs of a Loop's body that are on the host: the counter and the condition."""
_SMALL = 100
"""Elements of a constant that does not keep a node off the CPU."""


class CudaPlacement:
    """Where the nodes of a model run.

    ``on_host`` are the ids of nodes that stay on the host, ``moved`` those of elementwise nodes that run on the CPU for
    want of a CUDA kernel and may run on the GPU in a fused node, since all that they read and all that reads them is
    there.
    """

    def __init__(self, model: Model) -> None:
        self.on_host: set[int] = set()
        self.moved: set[int] = set()
        self._host_tensors: set[int] = set()
        self._entries: set[int] = set()
        graphs = [(graph, sorted_nodes(graph)) for graph in model.graphs()]
        for _, nodes in graphs:
            for node in nodes:
                if standard_op(node) == "Loop":
                    for body in (value for value in node.attrs.values() if isinstance(value, gs.Graph)):
                        self._host_tensors.update(id(tensor) for tensor in body.inputs[:_LOOP_STATE])
        every_node = [node for _, nodes in graphs for node in nodes]
        self._entries = {id(tensor) for graph, _ in graphs for tensor in graph.inputs} - self._host_tensors
        for _, nodes in graphs:
            self.on_host |= shape_arithmetic(nodes, {id(node) for node in nodes if is_elementwise(node)})
        self._captured = {id(tensor) for node in every_node for tensor in captured_tensors(node)}
        self._outputs = {id(tensor) for graph, _ in graphs[1:] for tensor in graph.outputs}
        self.moved = {id(node) for node in every_node if is_elementwise(node) and not has_kernel(node)} - self.on_host
        self._place(every_node)
        while self._unmove(every_node):
            self._place(every_node)

    def why_alone(self, node: gs.Node) -> str | None:
        """Why an elementwise node stays out of fused nodes; None if it may be in one."""
        if id(node) not in self.on_host:
            return None
        return ON_HOST if has_kernel(node) else NO_CUDA_KERNEL

    def _place(self, nodes: Sequence[gs.Node]) -> None:
        """Adds to ``on_host`` what is on the CPU if the ``moved`` nodes are not; producers come first."""
        for node in nodes:
            if id(node) in self.moved:
                continue
            if id(node) in self.on_host or not has_kernel(node) or self._prefers_cpu(node):
                self.on_host.add(id(node))
                self._host_tensors.update(id(tensor) for tensor in node.outputs)

    def _prefers_cpu(self, node: gs.Node) -> bool:
        inputs = [tensor for tensor in node.inputs if tensor.name]
        if not any(id(tensor) in self._host_tensors for tensor in inputs):
            return False
        meant_for_host = READ_ON_HOST.get(standard_op(node) or "", ())
        if any(id(node.inputs[place]) in self._host_tensors for place in meant_for_host if place < len(node.inputs)):
            return False
        return all(self._is_on_host(tensor) and not _is_half(tensor) for tensor in inputs)

    def _is_on_host(self, tensor: gs.Tensor) -> bool:
        if isinstance(tensor, gs.Constant):
            return _elements(tensor) <= _SMALL
        return id(tensor) in self._host_tensors or id(tensor) in self._entries

    def _unmove(self, nodes: Sequence[gs.Node]) -> bool:
        """Leave on the host what reads from there, and what is read there; whether there was any."""
        before = len(self.moved)
        for node in nodes:  # forwards, so that a chain goes at once
            if id(node) in self.moved and any(id(tensor) in self._host_tensors for tensor in node.inputs):
                self._leave(node)
        for node in reversed(nodes):
            if id(node) in self.moved and any(map(self._is_read_on_host, node.outputs)):
                self._leave(node)
        return len(self.moved) < before

    def _leave(self, node: gs.Node) -> None:
        self.moved.remove(id(node))
        self.on_host.add(id(node))
        self._host_tensors.update(id(tensor) for tensor in node.outputs)

    def _is_read_on_host(self, tensor: gs.Tensor) -> bool:
        if id(tensor) in self._captured or id(tensor) in self._outputs:
            return True
        return any(id(reader) in self.on_host for reader in tensor.outputs)


def _is_half(tensor: gs.Tensor) -> bool:
    dtype = dtypes.from_numpy(tensor.dtype)
    return dtype is not None and dtype.name in ("f16", "bf16")


def _elements(constant: gs.Constant) -> int:
    count = 1
    for size in constant.shape:
        count *= int(size)
    return count
