"""Whether fusing a model pays for the library that runs its fused nodes.

The library costs a session about half a megabyte and a millisecond when it is created, once for all fused nodes.  A
model that would save a handful of small kernels among many is better off without.
"""

from collections.abc import Callable, Sequence

import onnx_graphsurgeon as gs

from onnxfuse.fused.fusion import Fusion
from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import VIEWS
from onnxfuse.ort.slow_kernels import FREE_OPS
from onnxfuse.report.byte_counts import bytes_saved

TOO_LITTLE = "the whole model has too little to fuse to load a library for"

_FEW_LAUNCHES = 8
_SMALL_SHARE = 1 / 8
_FEW_BYTES = 1 << 18
_SLOW_KERNEL = 8  # a slow kernel of ORT's takes as long as so many passes over memory


def loads_library(model: Model) -> bool:
    """Whether a session of the model as it is loads the library."""
    return any(node.domain == DOMAIN for graph in model.graphs() for node in graph.nodes)


def is_worthwhile(fusions: Sequence[Fusion], nodes: int, is_slow: Callable[[gs.Node], bool]) -> bool:
    """Whether the ``fusions`` of a model of so many ``nodes`` save many kernels, or a large share, or many bytes.

    ``is_slow`` tells of a node whether ONNX Runtime would compute it in a slow kernel.
    """
    launches = sum(len(fusion.nodes) - 1 for fusion in fusions)
    if launches >= _FEW_LAUNCHES or launches >= _SMALL_SHARE * nodes:
        return True
    return sum(_likely_bytes(fusion, is_slow) for fusion in fusions) >= _FEW_BYTES


def _likely_bytes(fusion: Fusion, is_slow: Callable[[gs.Node], bool]) -> int:
    """The bytes that a fusion saves if the first symbolic dimension is a batch of one and others are 64."""
    reads = fusion.inputs if fusion.reads is None else fusion.reads
    saved = bytes_saved(fusion.nodes, reads, fusion.outputs, FREE_OPS | VIEWS)
    for node in filter(is_slow, fusion.nodes):
        saved.add(node.outputs[0], _SLOW_KERNEL)
    return sum(count * 64 ** max(len(symbols) - 1, 0) for symbols, count in saved.terms.items())
