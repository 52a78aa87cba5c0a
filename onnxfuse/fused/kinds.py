"""The kinds of fused nodes, and how fused nodes are known in a model.

A kind is a row here: the planner, the emitter, the native library (``custom_ops/generate_opcodes.py`` reads the table),
the reports and the scripts take it from there.  To add one, add its row, its planner, and its kernels if it has new
ones.

This module imports the standard library alone, because the native build reads it before anything is installed.
"""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Kind:
    """A kind of fused node, whose operators differ in nothing but their names: NAME, NAME_2, NAME_3, …

    name: the first operator's.  Every local function of a model has an operator to itself, because ORT before 1.27,
    onnx's ReferenceEvaluator and others ignore overloads and would run the wrong function.
    plain: how many of them, from the first on, the library registers where a session does not say which ones its model
    has; each takes such a session some 35 µs.
    targets: where it has kernels.
    programs: its attributes that are Programs, the one of its results first.
    computes: what it does, for readers of generated code and documents.
    work: what the time of its nodes counts as, beside that of ONNX Runtime's own.
    """

    name: str
    plain: int
    targets: frozenset[str]
    programs: tuple[str, ...]
    computes: str
    work: str

    def operator(self, number: int) -> str:
        """The name of the operator with this number, from 1 on."""
        return self.name if number == 1 else f"{self.name}_{number}"

    def number(self, operator: str) -> int:
        """The number of an operator of this name; 0 if it is not of this kind."""
        if operator == self.name:
            return 1
        stem, _, digits = operator.rpartition("_")
        is_one = stem == self.name and digits.isascii() and digits.isdecimal() and not digits.startswith("0")
        return int(digits) if is_one and digits != "1" and len(digits) <= _MOST_DIGITS else 0


_MOST_DIGITS = 6
"""Of the number of an operator."""
_CPU = frozenset(("cpu",))
_BOTH = frozenset(("cpu", "cuda"))

ELEMENTWISE = Kind("FusedElementwise", 32, _BOTH, ("program",), "a Program", "fused region")
REDUCTION = Kind("FusedReduction", 24, _BOTH, ("program",), "a Program that reduces", "normalization, reduction")
CONV = Kind("FusedConv", 16, _BOTH, ("program", "prologue"), "a convolution with Programs around it", "convolution")
SQUEEZE_EXCITE = Kind(
    "FusedSqueezeExcite",
    4,
    _CPU,
    ("program", "squeeze_program"),
    "the gate of a squeeze-and-excitation block",
    "convolution",
)
ATTENTION = Kind("FusedAttention", 8, _BOTH, (), "scaled dot-product attention", "attention")
MATMUL = Kind("FusedMatMul", 8, _CPU, ("program",), "a product with a Program behind it", "matrix product")
NHWC_CONV = Kind(
    "FusedNhwcConv",
    24,
    _CPU,
    ("program", "prologue"),
    "a convolution with Programs around it, the channels last",
    "convolution",
)
NHWC_POOL = Kind("FusedNhwcPool", 8, _CPU, (), "MaxPool or AveragePool, the channels last", "pooling, resizing")
NHWC_CONCAT = Kind("FusedNhwcConcat", 8, _CPU, (), "joined channels, which come last", "layout")

KINDS = (
    ELEMENTWISE,
    REDUCTION,
    CONV,
    SQUEEZE_EXCITE,
    ATTENTION,
    MATMUL,
    NHWC_CONV,
    NHWC_POOL,
    NHWC_CONCAT,
)
_BY_NAME = {kind.name: kind for kind in KINDS}


_RETIRED = (Kind("FusedNormalization", 0, frozenset(), ("program",), "a normalization of rows", REDUCTION.work),)
"""Of files that earlier versions wrote; there are no kernels any more.  ONNX Runtime runs their functions, and
``optimize`` inlines them."""


def is_retired(operator: str) -> bool:
    """Whether an operator of the domain is of a kind that only earlier versions wrote."""
    return any(kind.number(operator) for kind in _RETIRED)


def kind_of(operator: str) -> Kind | None:
    """The kind of an operator of the domain by its name; None for a name that none has."""
    kind = _BY_NAME.get(operator) or _BY_NAME.get(operator.rpartition("_")[0])
    return kind if kind is not None and kind.number(operator) else None


def reported_name(operator: str, ours: bool) -> str:
    """How reports call an operator, which is ``ours`` in the domain of the fused nodes: these by their kind, and what
    ONNX Runtime calls as a kind is called here, such as its own FusedMatMul, as ONNX Runtime's."""
    kind = kind_of(operator)
    if kind is None:
        return operator
    return kind.name if ours else f"{operator} of ONNX Runtime"
