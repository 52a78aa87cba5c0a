"""The kinds of fused nodes, and how fused nodes are known in a model.

A kind is a row here: the planner, the emitter, the native library (``custom_ops/generate_opcodes.py`` reads the table),
the reports and the scripts take it from there.  To add one, add its row, its planner, and its kernels if it has new
ones.

This module imports the standard library alone, because the native build reads it before anything is installed.
"""

from typing import NamedTuple

DOMAIN = "onnxfuse"
"""The domain of the fused nodes."""
OPSET_VERSION = 1
"""The version of that domain which models import."""
NODES_KEY = "onnxfuse.nodes"
"""Metadata of a fused node: the names of the nodes that it stands for."""
FAST_MATH_KEY = "onnxfuse.fast_math"
"""Metadata of a fused node whose kernels need not be exact."""
TF32_KEY = "onnxfuse.tf32"
"""Metadata of a fused convolution whose factors may be rounded to TF32."""
PREFERS_NHWC = "onnxfuse.prefer_nhwc"
"""Metadata of a model that is written for sessions whose CUDA provider has the option ``prefer_nhwc``."""


class Kind(NamedTuple):
    """A kind of fused node.

    name: the operator's; those of more functions of a model have a number behind it.
    names: how many of these the library registers.  A model's local functions are told apart by their names, because
    ORT before 1.27 and onnx's ReferenceEvaluator ignore overloads and would run the wrong function.  Each name costs
    every session 40 µs, so there are only so many.
    targets: where it has kernels.
    programs: its attributes that are Programs, the one of its results first.
    computes: what it does, for readers of generated code and documents.
    """

    name: str
    names: int
    targets: frozenset[str]
    programs: tuple[str, ...]
    computes: str

    @property
    def operators(self) -> tuple[str, ...]:
        """The names of its operators, which all do the same."""
        return (self.name, *(f"{self.name}_{number}" for number in range(2, self.names + 1)))


_CPU = frozenset(("cpu",))
_BOTH = frozenset(("cpu", "cuda"))

ELEMENTWISE = Kind("FusedElementwise", 16, _BOTH, ("program",), "a Program")
CONV = Kind("FusedConv", 16, _BOTH, ("program", "prologue"), "a convolution with Programs around it")
SQUEEZE_EXCITE = Kind(
    "FusedSqueezeExcite", 4, _CPU, ("program", "squeeze_program"), "the gate of a squeeze-and-excitation block"
)
ATTENTION = Kind("FusedAttention", 4, _CPU, (), "scaled dot-product attention")
NORMALIZATION = Kind("FusedNormalization", 6, _CPU, ("program",), "a normalization of rows")
NHWC_CONV = Kind(
    "FusedNhwcConv", 12, _CPU, ("program", "prologue"), "a convolution with Programs around it, the channels last"
)
NHWC_POOL = Kind("FusedNhwcPool", 6, _CPU, (), "MaxPool or AveragePool, the channels last")
NHWC_CONCAT = Kind("FusedNhwcConcat", 6, _CPU, (), "joined channels, which come last")

KINDS = (ELEMENTWISE, CONV, SQUEEZE_EXCITE, ATTENTION, NORMALIZATION, NHWC_CONV, NHWC_POOL, NHWC_CONCAT)

_OF_OPERATOR = {operator: kind for kind in KINDS for operator in kind.operators}


def kind_of(operator: str) -> Kind | None:
    """The kind of an operator of the domain by its name; None for a name that none has."""
    return _OF_OPERATOR.get(operator)
